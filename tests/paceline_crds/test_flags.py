"""The flags of the settings, generated from their declarations."""

import argparse

import pytest

from paceline_crds import flags, reference
from paceline_crds.errors import InvalidSettings
from paceline_crds.settings import (
    DType,
    EngineSettings,
    KvCacheDType,
    SchedulingPolicy,
    border_name,
    knobs,
)

VLLM_FLAGS = {
    "dtype": "--dtype",
    "max_model_len": "--max-model-len",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_seqs": "--max-num-seqs",
    "block_size": "--block-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "prefix_caching": "--enable-prefix-caching",
    "scheduling_policy": "--scheduling-policy",
    "tensor_parallel_size": "--tensor-parallel-size",
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="paceline serve")
    flags.add_setting_flags(made)
    return made


def settings(line: str) -> EngineSettings:
    return flags.settings_from_args(parser().parse_args(line.split()))


def test_flags_have_the_names_of_vllm_where_the_meaning_is_the_same() -> None:
    assert {name: flags.flag_of(name) for name in VLLM_FLAGS} == VLLM_FLAGS


def test_every_setting_has_a_flag_of_its_own_with_its_help() -> None:
    text = parser().format_help()
    names = [flags.flag_of(name) for name in knobs()]
    assert len(set(names)) == len(names)
    assert all(f"  {name}" in text for name in names)


def test_no_flag_leaves_every_setting_unset() -> None:
    assert settings("") == EngineSettings()
    assert settings("").model_fields_set == set()


def test_enums_take_camel_case_and_lower_case() -> None:
    for dtype in ("float32", "Float32"):
        assert settings(f"--dtype {dtype}").dtype is DType.FLOAT32
    assert settings("--kv-cache-dtype fp8").kv_cache_dtype is KvCacheDType.FP8
    assert settings("--scheduling-policy priority").scheduling_policy is SchedulingPolicy.PRIORITY


def test_a_switch_has_its_opposite() -> None:
    assert settings("--enable-prefix-caching").prefix_caching
    assert not settings("--no-enable-prefix-caching").prefix_caching


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--max-num-seqs 0",
            (
                "argument --max-num-seqs: maxNumSeqs must be an integer from 1 to 65536, got '0'; "
                "change --max-num-seqs or leave it out"
            ),
        ),
        ("--max-num-seqs many", "maxNumSeqs must be an integer from 1 to 65536, got 'many'"),
        ("--block-size 9", "blockSize must be a multiple of 8 from 8 to 128, got '9'"),
        ("--dtype int3", "dtype must be one of Auto, Float32, BFloat16, Float16, got 'int3'"),
        ("--gpu-memory-utilization 2", "gpuMemoryUtilization must be a decimal from 0 to 1"),
    ],
)
def test_a_wrong_value_says_what_was_expected(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(line.split())
    assert message in capsys.readouterr().err


def test_a_limit_above_its_boot_maximum_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"maxNumSeqs must be <= bootMaxNumSeqs \(2\), got 4"):
        settings("--max-num-seqs 4 --boot-max-num-seqs 2")


def test_a_default_gives_way_to_a_boot_maximum() -> None:
    assert settings("--boot-max-num-seqs 2").max_num_seqs == 2


def test_help_and_reference_say_what_this_release_does_not_build() -> None:
    page = reference.markdown()
    name, note = "tensor_parallel_size", "In this release it must be 1"
    assert note in flags.help_of(name)
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{border_name(name)}`")]
    assert note in row
    assert "In this release" not in flags.help_of("max_num_seqs")


def test_tenants_are_given_as_json() -> None:
    made = settings('--tenants [{"name":"gold","weight":3,"budgetShare":"0.5"},{"name":"free"}]')
    assert made.tenants is not None
    gold, free = made.tenants
    assert (gold.name, gold.weight, gold.max_seqs, gold.budget_share) == ("gold", 3, None, "0.5")
    assert (free.weight, free.budget_share) == (1, "1")


@pytest.mark.parametrize(
    "text", ["gold", "{}", '[{"weight":1}]', '[{"name":"a"},{"name":"a"}]', '[{"name":"a","w":1}]']
)
def test_what_is_no_list_of_tenants_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        settings(f"--tenants {text}")
    assert "tenants must be a list" in capsys.readouterr().err
