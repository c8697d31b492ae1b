"""Settings written as flags, and what a restarted replica carries over."""

import pytest

from paceline import serve
from paceline.flag_values import carried_over, changes, flags_for
from paceline.parser import Parser
from paceline_crds.settings import EngineSettings, SchedulingPolicy
from paceline_crds.tenants import Tenant


def read(flags: list[str]) -> EngineSettings:
    parser = Parser(prog="paceline serve")
    serve.add_arguments(parser)
    return serve.config_of(parser.parse_args(["demo", *flags])).settings


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 3, "boot_max_num_seqs": 9, "watermark": "0.05"},
        {"prefix_caching": False, "scheduling_policy": SchedulingPolicy.PRIORITY},
        {
            "scheduling_policy": SchedulingPolicy.FAIR,
            "tenants": (Tenant(name="gold", weight=3), Tenant(name="free", max_seqs=2)),
            "trust_tenant_header": True,
        },
        {"prefix_caching": True, "slo_itl_ms": 50, "long_prefill_tokens": 0},
    ],
)
def test_flags_read_back_as_the_settings_they_were_made_of(settings: dict[str, object]) -> None:
    assert read(flags_for(settings)) == EngineSettings(**settings)


def test_a_setting_that_is_not_pinned_gives_no_flag() -> None:
    assert flags_for({"slo_itl_ms": None}) == []


def test_a_restart_keeps_live_changes_and_the_boot_maxima_of_the_first_start() -> None:
    planned = {"max_num_seqs": 8, "block_size": 32}
    first = EngineSettings(**planned).booted()
    in_force = first.model_copy(update={"max_num_seqs": 3, "long_prefill_tokens": 64})
    again = read(flags_for(carried_over(planned, in_force)))
    assert (again.max_num_seqs, again.boot_max_num_seqs) == (3, 16)
    assert (again.long_prefill_tokens, again.block_size) == (64, 32)


def test_a_restart_leaves_restart_class_settings_as_planned() -> None:
    in_force = EngineSettings(max_model_len=512).booted()
    assert "max_model_len" not in carried_over({}, in_force)


def test_changes_are_told_by_their_border_names() -> None:
    old = EngineSettings()
    new = old.model_copy(update={"max_num_seqs": 5, "prefix_caching": False})
    assert changes(old, new) == "maxNumSeqs 128 -> 5, prefixCaching True -> False"
    assert changes(old, old) == ""
