"""An FP8 KV cache, from the setting to the tokens."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from paceline_engine.core.errors import StartFailed
from paceline_engine.run.fp8_kv import HEADROOM, scales_of
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.run.single_row import SingleRow
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel
from paceline_kernels.paged_kv import FP8

PROMPTS = [
    [int(token) for token in np.random.default_rng(seed).integers(3, 500, length)]
    for seed, length in enumerate((3, 17, 40, 64, 9, 33))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def runner(folder: Path) -> Runner:
    return load_runner(folder, kv_cache_dtype="FP8", block_size=8)


def with_scales(folder: Path, scales: dict[str, float | list[float]]) -> Path:
    weights = load_file(folder / "model.safetensors")
    weights |= {name: np.array(value, dtype=np.float32) for name, value in scales.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def checkpoint_scales(name: str = "self_attn.{0}_scale", value: float = 0.02) -> dict[str, float]:
    return {
        f"model.layers.{layer}.{name.format(part)}": value * (layer + 1)
        for layer in range(2)
        for part in ("k", "v")
    }


def test_the_cache_holds_one_byte_a_value_and_says_so(runner: Runner) -> None:
    assert runner.kernels["kv_cache"] == "float8_e4m3fn"
    assert runner.kernels["kv_scales"] == "calibration"
    assert runner.settings.kv_cache_dtype == "FP8"
    values = 2 * 2 * 2 * 16 * 8 * runner.limits.num_blocks  # layers, k and v, heads, dims, tokens
    assert runner.memory_plan["kv_cache"] == values


def test_the_same_memory_holds_twice_the_blocks_of_a_16_bit_cache(folder: Path) -> None:
    # So many sequences that memory is the limit, not what they could fill.
    settings = {"num_kv_blocks": None, "max_num_seqs": 65_536, "max_num_batched_tokens": 2048}
    sizes = {
        kv: load_runner(folder, dtype="BFloat16", kv_cache_dtype=kv, **settings).limits.num_blocks
        for kv in ("Auto", "FP8")
    }
    assert sizes["FP8"] == pytest.approx(2 * sizes["Auto"], rel=0.01)


def test_the_divergence_is_measured_logged_and_small(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = load_runner(folder, kv_cache_dtype="FP8")
    measured = runner.kv_divergence
    assert 0 < measured["mean_kl_nats"] <= measured["max_kl_nats"] < 1.0
    assert measured["max_abs_logit"] > 0
    assert 0.5 < measured["top1_agreement"] <= 1.0
    assert any("scales of the calibration" in line for line in caplog.messages)
    assert load_runner(folder).kv_divergence == {}


@pytest.mark.parametrize("budget", [16, 29, 512])
def test_greedy_tokens_do_not_depend_on_the_schedule(runner: Runner, budget: int) -> None:
    alone = {}
    for number, prompt in enumerate(PROMPTS):
        session = OfflineEngine(runner, prefix_caching=False)
        session.submit(prompt, number, max_tokens=24, ignore_eos=True)
        alone |= session.run()
    crowd = OfflineEngine(runner, max_num_batched_tokens=budget)
    for prompt in PROMPTS:
        crowd.submit(prompt, max_tokens=24, ignore_eos=True)
    assert crowd.run() == alone
    # Once more, over what the prefix cache kept.
    again = [
        crowd.submit(prompt, 100 + i, max_tokens=24, ignore_eos=True)
        for i, prompt in enumerate(PROMPTS)
    ]
    crowd.run()
    assert sum(crowd.cached.values()) > 0
    assert [crowd.outputs[number] for number in again] == list(alone.values())


@pytest.mark.parametrize(
    "name",
    ["self_attn.{0}_scale", "self_attn.{0}_proj.{0}_scale", "self_attn.{0}_proj.output_scale"],
)
def test_scales_of_the_checkpoint_are_used(tmp_path: Path, name: str) -> None:
    folder = with_scales(TinyModel().write(tmp_path), checkpoint_scales(name))
    runner = load_runner(folder, kv_cache_dtype="FP8")
    assert runner.kernels["kv_scales"] == "checkpoint"
    # A checkpoint with scales serves a full cache just as well.
    assert "kv_scales" not in load_runner(folder).kernels


def test_scales_of_each_head_are_taken_as_they_are(tmp_path: Path) -> None:
    scales = checkpoint_scales()
    scales["model.layers.1.self_attn.k_scale"] = [0.25, 0.5]  # type: ignore[assignment]
    scales["model.layers.1.self_attn.q_scale"] = 1.0
    runner = load_runner(with_scales(TinyModel().write(tmp_path), scales), kv_cache_dtype="FP8")
    assert runner.decoder.kv_scales is not None
    (_, first_v), (second_k, _) = runner.decoder.kv_scales
    assert first_v.tolist() == pytest.approx([0.02, 0.02])
    assert second_k.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.0.self_attn.k_scale": -1.0}, "k_scale must be positive"),
        ({"model.layers.0.self_attn.k_scale": float("nan")}, "k_scale must be positive"),
        ({"model.layers.0.self_attn.k_scale": [1.0] * 3}, "has 3 values"),
        ({"model.layers.0.self_attn.k_scale": None}, "3 of 4 scales"),
    ],
)
def test_scales_that_make_no_sense_stop_the_start(
    tmp_path: Path, change: dict[str, float | None], message: str
) -> None:
    scales = {**checkpoint_scales(), **change}
    known = {name: value for name, value in scales.items() if value is not None}
    folder = with_scales(TinyModel().write(tmp_path), known)
    with pytest.raises(StartFailed, match=message) as failed:
        load_runner(folder, kv_cache_dtype="FP8")
    assert failed.value.reason == "UnsupportedModel"


def test_scales_that_cut_everything_off_are_told_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_scales(TinyModel().write(tmp_path), checkpoint_scales(value=1e-6))
    runner = load_runner(folder, kv_cache_dtype="FP8")
    assert runner.kv_divergence["mean_kl_nats"] > 0.1
    assert any(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.usefixtures("cpp_compiler")
def test_logits_that_are_not_finite_stop_the_start(tmp_path: Path) -> None:
    """The C++ kernels overflow with such scales; torch's stay finite, far off, with a warning."""
    folder = with_scales(TinyModel().write(tmp_path), checkpoint_scales(value=1e37))
    with pytest.raises(StartFailed, match="not finite, with scales of the checkpoint") as failed:
        load_runner(folder, kv_cache_dtype="FP8")
    assert failed.value.reason == "InvalidSettings"


def test_scales_are_part_of_what_a_cached_block_depends_on(tmp_path: Path) -> None:
    folder = TinyModel().write(tmp_path)
    full, own = load_runner(folder), load_runner(folder, kv_cache_dtype="FP8")
    assert full.limits.cache_root != own.limits.cache_root
    assert load_runner(folder, kv_cache_dtype="FP8").limits.cache_root == own.limits.cache_root


def test_calibration_leaves_headroom_above_the_largest_value_of_each_head(runner: Runner) -> None:
    row = SingleRow(runner.decoder, 64, block_size=8, impl="cpu", dtype=torch.float32)
    with torch.inference_mode():
        row.logits(PROMPTS[3], chunk=10)
    scales = scales_of(row)
    for layer, (k_scale, v_scale) in zip(row.kv, scales, strict=True):
        for cache, scale in ((layer.k_cache, k_scale), (layer.v_cache, v_scale)):
            largest = cache[1:].abs().amax(dim=(0, 1, 3))
            assert torch.equal(scale, largest * HEADROOM / 448)
            assert scale[0] != scale[1]


def test_a_head_that_gives_only_zeros_gets_a_scale_that_can_divide(runner: Runner) -> None:
    row = SingleRow(runner.decoder, 8, block_size=8, impl="cpu", dtype=torch.float32)
    assert all(torch.equal(scale, torch.ones(2)) for pair in scales_of(row) for scale in pair)


def test_a_row_alone_computes_the_same_whatever_its_chunks(runner: Runner) -> None:
    scales = tuple((torch.full((2,), 0.05), torch.full((2,), 0.05)) for _ in range(2))
    outcomes = []
    for chunk in (64, 7):
        row = SingleRow(runner.decoder, 64, block_size=8, impl="cpu", dtype=FP8, scales=scales)
        with torch.inference_mode():
            outcomes.append(row.logits(PROMPTS[3], chunk=chunk, every=5))
    assert outcomes[0].shape == (12, 512)
    torch.testing.assert_close(*outcomes, rtol=1e-3, atol=1e-3)
