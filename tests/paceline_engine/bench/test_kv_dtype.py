"""Figures of FP8 KV against full KV, on a tiny model."""

from pathlib import Path

import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.bench.kv_dtype import PhaseClock, agreement, measure
from paceline_engine.testing.tiny_model import TinyModel


def test_agreement_counts_whole_outputs_and_tokens_before_a_difference() -> None:
    found = agreement([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 9, 7, 8]])
    assert (found.num_prompts, found.identical, found.same_prefix) == (2, 0.5, 5 / 8)


def test_a_phase_lasts_until_the_next_begins() -> None:
    times = iter([0.0, 1.0, 3.0, 3.5, 7.0])
    clock = PhaseClock(lambda: next(times))
    for phase in ("config", "weights", "weights", "ready"):
        clock.progress(phase, 0.0)
    assert clock.seconds == {"": 1.0, "config": 2.0, "weights": 4.0}


@pytest.mark.slow
def test_everything_is_measured_in_one_run(tmp_path: Path) -> None:
    folder = TinyModel().write(tmp_path)
    settings = EngineSettings(dtype="Float32", num_kv_blocks=64)
    text = [3 + 7 * number % 400 for number in range(600)]
    figures = measure(folder, settings, text, [[5, 6, 7], [9] * 20], max_tokens=8)
    assert figures["formats"] == {"full": "float32", "fp8": "float8_e4m3fn"}
    assert figures["blocks_per_gib"]["fp8"] == 4 * figures["blocks_per_gib"]["full"]
    assert figures["text_tokens"] == 599
    assert figures["perplexity"]["fp8"] == pytest.approx(figures["perplexity"]["full"], rel=0.2)
    assert 0 < figures["divergence"]["mean_kl_nats"] < 0.5
    assert figures["greedy_fp8_to_full"]["prompts"] == 2
    assert 0 < figures["at_start"]["seconds"] < 60
