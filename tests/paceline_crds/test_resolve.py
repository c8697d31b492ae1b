"""Spec wins over objective, objective over default; a boot maximum bounds them all."""

from typing import Any

import pytest

from paceline_crds import llmdeployment, objective, resolve
from paceline_crds.errors import InvalidSettings
from paceline_crds.objective import Objective, Resolved
from paceline_crds.settings import KvCacheDType, SchedulingPolicy
from paceline_crds.source import Source


def resolved(**spec: Any) -> Resolved:
    document = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "demo"},
        "spec": {"model": {"uri": "demo"}, **spec},
    }
    return resolve.resolve(llmdeployment.parse(document).spec)


def test_nothing_pinned_leaves_every_setting_to_the_engine() -> None:
    whole = resolved()
    assert whole.settings.model_fields_set == set()
    assert set(whole.sources.values()) == {Source.DEFAULT}


def test_what_spec_says_arrives_in_the_settings_own_units() -> None:
    settings = resolved(
        dtype="Float32",
        maxModelLen=512,
        slo={"ttft": {"target": "500ms"}, "e2e": {"target": "1m30s"}},
        scheduling={"policy": "Priority", "aging": "2m", "queue": {"timeout": "1h"}},
        kvCache={"dtype": "FP8", "prefixCaching": False, "gpuMemoryUtilization": "0.5"},
    ).settings
    assert settings.scheduling_policy is SchedulingPolicy.PRIORITY
    assert settings.kv_cache_dtype is KvCacheDType.FP8
    assert (settings.slo_ttft_ms, settings.slo_e2e_ms) == (500, 90_000)
    assert (settings.priority_aging_s, settings.queue_timeout_s) == (120, 3600)
    assert settings.max_model_len == 512
    assert not settings.prefix_caching


def test_a_method_of_drafts_may_be_written_with_none_of_them() -> None:
    settings = resolved(speculative={"method": "Ngram", "numTokens": 0}).settings
    assert (settings.speculative_method, settings.speculative_num_tokens) == ("Ngram", 0)


def test_the_promised_gap_is_the_target_of_a_step_unless_another_is_written() -> None:
    promise = {"itl": {"target": "50ms"}}
    whole = resolved(slo=promise)
    assert whole.settings.slo_itl_ms == 50
    assert whole.settings.step_target_ms == 50
    assert whole.sources["inter_token_target_ms"] is Source.DEFAULT
    own = resolved(slo=promise, scheduling={"interTokenTargetMs": 40})
    assert own.settings.step_target_ms == 40
    off = resolved(slo=promise, scheduling={"interTokenTargetMs": 0})
    assert off.settings.step_target_ms is None
    assert resolved().settings.step_target_ms is None


def test_sources_tell_spec_objective_and_default_apart() -> None:
    whole = resolved(objective="Interactive", scheduling={"maxNumSeqs": 200})
    assert whole.settings.max_num_seqs == 200
    assert whole.sources["max_num_seqs"] is Source.SPEC
    assert whole.sources["max_num_batched_tokens"] is Source.OBJECTIVE
    assert whole.sources["block_size"] is Source.DEFAULT


def test_a_pinned_value_above_the_objectives_boot_maximum_drops_that_maximum() -> None:
    whole = resolved(objective="Interactive", scheduling={"maxNumSeqs": 300})
    assert whole.settings.boot_max_num_seqs is None
    assert whole.settings.booted().boot_max_num_seqs == 600
    assert whole.settings.boot_max_num_batched_tokens == 4096


@pytest.mark.parametrize("chosen", [None, *Objective])
def test_a_starting_value_gives_way_to_a_pinned_boot_maximum(chosen: Objective | None) -> None:
    spec: dict[str, Any] = {"scheduling": {"bootMaxNumSeqs": 4}}
    if chosen:
        spec["objective"] = chosen.value
    whole = resolved(**spec)
    assert whole.settings.max_num_seqs == 4
    assert whole.sources["max_num_seqs"] is (Source.OBJECTIVE if chosen else Source.DEFAULT)


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="maxNumSeqs must be <= bootMaxNumSeqs"):
        objective.start({"max_num_seqs": 9, "boot_max_num_seqs": 8}, None)
