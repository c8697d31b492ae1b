import pytest
import torch

from paceline_kernels.errors import ImplUnavailableError
from paceline_kernels.fused import pointwise, runtime
from paceline_kernels.fused.configs import attention_configs, split_count


def test_the_fastest_configuration_is_measured_once_for_each_key():
    x, out = torch.ones(2, 8), torch.zeros(2, 4)
    asked = []

    def launch_of(config):
        asked.append(config)
        return pointwise.silu_and_mul_launch(x, out)

    def time_of(call):
        call()
        return {"slow": 3.0, "fast": 1.0, "middle": 2.0}[asked[-1]]

    configs = ("slow", "fast", "middle")
    for _ in range(2):
        assert runtime.pick(configs, "a key", launch_of, time_of=time_of) == "fast"
    assert asked == list(configs)
    assert out.count_nonzero() == 8  # each candidate ran


def test_the_interpreter_takes_the_first_configuration_unmeasured():
    def launch_of(config):
        raise AssertionError("must not be asked")

    assert runtime.pick((1, 2), "another key", launch_of) == 1


def test_times_are_refused_without_a_device():
    with pytest.raises(ImplUnavailableError, match="CUDA or ROCm device"):
        runtime.require_device()


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 8, 64])
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("decode_queries", [None, 1, 8])
@pytest.mark.parametrize("is_fp8", [False, True])
def test_every_program_has_room_for_a_group_and_there_are_few_candidates(
    dim, group, element_bytes, decode_queries, is_fp8
):
    configs = attention_configs(dim, group, element_bytes, decode_queries, is_fp8=is_fp8)
    assert 1 <= len(configs) == len(set(configs)) <= 5
    for config in configs:
        assert config.block_m >= max(16, group)
        assert config.tile >= 16
        assert config.block_m & (config.block_m - 1) == 0


def test_a_context_is_split_while_processors_are_idle_and_parts_are_long():
    assert split_count(programs=8, max_context=32_768, num_processors=132, tile=32) == 32
    assert split_count(programs=64, max_context=32_768, num_processors=132, tile=32) == 4
    assert split_count(programs=512, max_context=32_768, num_processors=132, tile=32) == 1
    assert split_count(programs=8, max_context=300, num_processors=132, tile=32) == 2
    assert split_count(programs=8, max_context=100, num_processors=132, tile=32) == 1
