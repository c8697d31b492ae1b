"""Tuner over spec over objective over default, and when the tuner's word no longer counts."""

from typing import Any

import pytest

from paceline_crds import llmdeployment, resolve
from paceline_crds.settings import knobs
from paceline_crds.source import Source
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.status_tuning import OverlayEntry
from paceline_operator.resources import overlay
from paceline_operator.resources.overlay import DropReason, Wanted


def spec_of(**fields: Any) -> LLMDeploymentSpec:
    document = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "demo"},
        "spec": {"model": {"uri": "demo"}, **fields},
    }
    return llmdeployment.parse(document).spec


def entry_under(spec: LLMDeploymentSpec, name: str, value: Any) -> OverlayEntry:
    return overlay.entry(resolve.resolve(spec), name, value)


def laid(spec: LLMDeploymentSpec, *entries: OverlayEntry) -> Wanted:
    return overlay.lay_over(resolve.resolve(spec), entries, spec)


def reasons(wanted: Wanted) -> list[DropReason]:
    return [item.reason for item in wanted.dropped]


def test_an_entry_wins_over_the_base_that_it_replaced() -> None:
    spec = spec_of(objective="Interactive")
    wanted = laid(spec, entry_under(spec, "max_num_seqs", 200))
    assert wanted.settings.max_num_seqs == 200
    assert wanted.sources["max_num_seqs"] is Source.TUNER
    assert wanted.sources["max_num_batched_tokens"] is Source.OBJECTIVE
    assert wanted.dropped == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"objective": "Interactive"}, {"objective": "FirstToken"}),
        ({"objective": "Interactive"}, {}),
        ({}, {"scheduling": {"maxNumSeqs": 128}}),
        (
            {"scheduling": {"maxNumSeqs": 64}, "tuning": {"bounds": {"maxNumSeqs": {}}}},
            {"scheduling": {"maxNumSeqs": 65}, "tuning": {"bounds": {"maxNumSeqs": {}}}},
        ),
    ],
)
def test_an_entry_goes_when_value_or_source_of_its_base_changes(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    made = entry_under(spec_of(**before), "max_num_seqs", 100)
    assert reasons(laid(spec_of(**before), made)) == []
    assert reasons(laid(spec_of(**after), made)) == [DropReason.BASE_CHANGED]


def test_a_pinned_setting_is_touched_only_while_the_bounds_name_it() -> None:
    pinned: dict[str, Any] = {"scheduling": {"maxNumSeqs": 64}}
    named = spec_of(**pinned, tuning={"bounds": {"maxNumSeqs": {"max": 100}}})
    made = entry_under(named, "max_num_seqs", 80)
    assert reasons(laid(named, made)) == []
    assert reasons(laid(spec_of(**pinned), made)) == [DropReason.PINNED]


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("max_num_seqs", 100, {"maxNumSeqs": {"max": 99}}),
        ("max_num_seqs", 100, {"maxNumSeqs": {"min": 101}}),
        ("watermark", "0.1", {"watermark": {"max": "0.05"}}),
        ("kv_cache_dtype", "FP8", {"kvCacheDtype": {"allowed": ["Auto"]}}),
    ],
)
def test_an_entry_outside_narrowed_bounds_goes(
    name: str, value: Any, bounds: dict[str, Any]
) -> None:
    made = entry_under(spec_of(), name, value)
    assert reasons(laid(spec_of(), made)) == []
    assert reasons(laid(spec_of(tuning={"bounds": bounds}), made)) == [DropReason.OUT_OF_BOUNDS]


def test_an_entry_above_the_boot_maximum_goes_and_the_others_stay() -> None:
    spec = spec_of(scheduling={"bootMaxNumSeqs": 200})
    high = entry_under(spec, "max_num_seqs", 201)
    wanted = laid(spec, high, entry_under(spec, "long_prefill_tokens", 64))
    assert reasons(wanted) == [DropReason.ABOVE_BOOT_MAXIMUM]
    assert wanted.settings.long_prefill_tokens == 64


def test_off_removes_the_overlay() -> None:
    made = entry_under(spec_of(), "max_num_seqs", 100)
    for mode in ("Observe", "Propose", "Auto"):
        assert reasons(laid(spec_of(tuning={"mode": mode}), made)) == []
    assert reasons(laid(spec_of(tuning={"mode": "Off"}), made)) == [DropReason.TUNING_OFF]


@pytest.mark.parametrize(
    ("name", "value"), [("blockSize", "32"), ("fromTheFuture", "1"), ("maxNumSeqs", "many")]
)
def test_what_the_tuner_cannot_have_set_goes(name: str, value: str) -> None:
    made = OverlayEntry(name=name, value=value, base="128", base_source=Source.DEFAULT)
    assert reasons(laid(spec_of(), made)) == [DropReason.NOT_TUNABLE]


def test_status_shows_every_setting_once_with_its_source() -> None:
    spec = spec_of(kvCache={"prefixCaching": False})
    shown = {item.name: (item.value, item.source) for item in laid(spec).effective()}
    assert len(shown) == len(knobs())
    assert shown["prefixCaching"] == ("false", Source.SPEC)
    assert shown["maxModelLen"] == ("", Source.DEFAULT)
    assert shown["kvCacheDtype"] == ("Auto", Source.DEFAULT)


def test_drafts_can_be_turned_down_to_none() -> None:
    drafting = {"speculative": {"method": "Ngram", "numTokens": 4}}
    spec = spec_of(**drafting, tuning={"bounds": {"speculativeNumTokens": {"min": 0}}})
    others = entry_under(spec, "max_num_seqs", 100)
    wanted = laid(spec, entry_under(spec, "speculative_num_tokens", 0), others)
    assert wanted.dropped == ()
    assert wanted.settings.speculative_num_tokens == 0
    assert wanted.settings.max_num_seqs == 100


def test_a_list_is_shown_alike_however_it_came_and_never_too_long() -> None:
    spec = spec_of(scheduling={"policy": "Fair", "tenants": [{"name": "gold", "weight": 3}]})
    settings = resolve.settings_of(spec)
    text = overlay.text_of(settings.tenants)
    assert text == '[{"budgetShare":"1","name":"gold","weight":3}]'
    assert overlay.text_of(settings.on_border()["tenants"]) == text
    many = [[{"name": f"tenant-{i}", "weight": weight} for i in range(9)] for weight in (1, 2)]
    short = [overlay.text_of(entries) for entries in many]
    assert all(text.startswith("9 entries, sha256 ") and len(text) < 60 for text in short)
    assert short[0] != short[1]
