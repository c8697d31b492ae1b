"""Every setting is declared once, with everything that the borders need."""

import re
from enum import StrEnum

import pytest
from pydantic import ValidationError

from paceline_crds.group import bare
from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, border_name, knobs


def test_names_are_camel_case_and_places_in_spec_are_taken_once() -> None:
    places = [knob.spec for knob in knobs().values() if knob.spec]
    assert len(set(places)) == len(places)
    for name in knobs():
        assert re.fullmatch(r"[a-z0-9]+([A-Z][a-z0-9]*)*", border_name(name)), name
    assert border_name("slo_e2e_ms") == "sloE2eMs"


def test_the_borders_names_are_those_of_the_live_settings_api() -> None:
    assert list(EngineSettings().on_border()) == [border_name(name) for name in knobs()]
    assert EngineSettings.model_validate({"sloE2eMs": 5, "maxNumSeqs": 3}).slo_e2e_ms == 5


def test_every_setting_has_help_and_bounds() -> None:
    for name, field in EngineSettings.model_fields.items():
        assert (field.description or "").endswith("."), name
        kind = bare(name)
        if kind is not bool and not (isinstance(kind, type) and issubclass(kind, StrEnum)):
            assert field.metadata, name


def test_a_boot_maximum_needs_a_restart_and_bounds_a_live_setting() -> None:
    for name, knob in knobs().items():
        if knob.boot_maximum:
            assert knob.change is ChangeClass.LIVE, name
            assert knobs()[knob.boot_maximum].change is ChangeClass.RESTART


def test_an_engine_has_every_boot_maximum_resolved() -> None:
    booted = EngineSettings(
        max_num_seqs=10, speculative_method="Ngram", speculative_num_tokens=3
    ).booted()
    assert booted.boot_max_num_seqs == 20
    assert booted.boot_max_num_batched_tokens == 4096
    assert booted.boot_max_speculative_num_tokens == 3


def test_a_method_of_speculation_without_drafts_is_refused() -> None:
    with pytest.raises(ValidationError, match="speculativeMethod Ngram needs speculativeNumTokens"):
        EngineSettings(speculative_method="Ngram")
    for most in (0, 1):  # what a tuner may have found and advised, none included
        EngineSettings(speculative_method="Ngram", speculative_num_tokens=most)
        EngineSettings(speculative_method="Ngram", boot_max_speculative_num_tokens=most)


def test_drafts_without_a_method_of_speculation_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"needs a speculativeMethod .* got 4 with method"):
        EngineSettings(speculative_num_tokens=4)


@pytest.mark.parametrize("method", ["DraftModel", "Eagle"])
def test_a_model_that_drafts_and_its_methods_belong_together(method: str) -> None:
    with pytest.raises(ValidationError, match=f"got no model with method {method}"):
        EngineSettings(speculative_method=method, speculative_num_tokens=2)
    with pytest.raises(ValidationError, match="got small with method Ngram"):
        EngineSettings(
            speculative_method="Ngram", speculative_num_tokens=2, speculative_model="small"
        )
    for model in ("small", "/models/small", "hf://org/small@main", "file:///models/small"):
        EngineSettings(speculative_method=method, speculative_num_tokens=2, speculative_model=model)


@pytest.mark.parametrize("model", ["", "pvc://claim/small", "two words", "s3://bucket"])
def test_a_place_that_an_engine_does_not_read_is_refused(model: str) -> None:
    with pytest.raises(ValidationError, match="speculative_model"):
        EngineSettings(
            speculative_method="DraftModel", speculative_num_tokens=2, speculative_model=model
        )


def test_the_shortest_lookup_is_at_most_the_longest() -> None:
    with pytest.raises(ValidationError, match=r"speculativeMinLookup must be <= .* got 5"):
        EngineSettings(speculative_min_lookup=5)


def test_a_limit_above_its_boot_maximum_is_refused() -> None:
    with pytest.raises(ValidationError, match="raise bootMaxNumSeqs, which needs a restart"):
        EngineSettings(max_num_seqs=9, boot_max_num_seqs=8)
