"""Overlap changes when steps are planned, and nothing about which tokens come.

Each case is run twice on one runner, step after step and overlapping, with whatever makes a token
depend on those before it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paceline_crds import metrics
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel

MAX_TOKENS = 24
LENGTHS = (1, 5, 16, 33, 70, 120, 15, 31)

KINDS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2, "prompt_logprobs": 1},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"presence_penalty": 1.0, "min_tokens": 12, "logit_bias": ((2, 9.0),)},
    {"bad_words": ((7,), (40, 41)), "logit_bias": ((40, 6.0), (41, 5.0))},
    {"allowed_token_ids": (5, 6, 7, 8), "repetition_penalty": 1.05},
    {"temperature": 0.9, "top_p": 0.9, "seed": 3, "frequency_penalty": 0.2},
    {"temperature": 1.2, "top_k": 9, "min_p": 0.01, "seed": 4, "logprobs": 0},
]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(3, 500, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("overlapping"))


@pytest.fixture(scope="module")
def runner(folder: Path) -> Runner:
    return load_runner(folder)


def run(
    runner: Runner, kinds: Sequence[dict[str, Any]], *, overlap: bool, **settings: Any
) -> OfflineEngine:
    """All prompts at once; afterwards nothing of them is left in the engine."""
    session = OfflineEngine(runner, overlap=overlap, **settings)
    for prompt, kind in zip(prompts(), kinds, strict=True):
        session.submit(prompt, **{"max_tokens": MAX_TOKENS} | kind)
    session.run()
    assert session.value(metrics.KV_USAGE) == session.value(metrics.RUNNING) == 0
    return session


def overlapped(session: OfflineEngine) -> list[dict[str, Any]]:
    """Steps that waited for the one before, as the flight recorder shows them.

    Its clock counts applied steps, so who was planned in time waited for a whole one.
    """
    return [step for step in session.recorder.steps(1000) if step["planned_s"] < step["applied_s"]]


@pytest.mark.parametrize("budget", [pytest.param(16, marks=pytest.mark.slow), 61, 2048])
@pytest.mark.parametrize("hits", [True, False], ids=["with prefix hits", "without prefix hits"])
def test_greedy_tokens_are_those_of_steps_one_by_one(
    runner: Runner, budget: int, hits: bool
) -> None:
    settings = {"max_num_batched_tokens": budget, "prefix_caching": hits}
    plain = run(runner, [{}] * len(LENGTHS), overlap=False, **settings)
    both = run(runner, [{}] * len(LENGTHS), overlap=True, **settings)
    assert both.outputs == plain.outputs
    assert overlapped(both)
    assert not overlapped(plain)


@pytest.mark.slow
@pytest.mark.parametrize("seqs", [3, 8])
def test_what_depends_on_earlier_tokens_is_the_same(runner: Runner, seqs: int) -> None:
    plain = run(runner, KINDS, overlap=False, max_num_seqs=seqs)
    both = run(runner, KINDS, overlap=True, max_num_seqs=seqs)
    assert both.outputs == plain.outputs
    assert [entry.token_id for entry in both.prompt_logprobs[1]] == prompts()[1][1:]
    for entries in ("logprobs", "prompt_logprobs"):
        ours, theirs = getattr(both, entries), getattr(plain, entries)
        assert ours.keys() == theirs.keys()
        for number, rows in ours.items():
            assert [(row.token_id, row.rank) for row in rows] == [
                (row.token_id, row.rank) for row in theirs[number]
            ]


@pytest.mark.slow
def test_preemption_in_a_small_pool_changes_no_token(folder: Path, runner: Runner) -> None:
    small = load_runner(folder, num_kv_blocks=12)
    kinds = [kind | {"max_tokens": 50} for kind in KINDS]
    whole = run(runner, kinds, overlap=False, prefix_caching=False)
    session = OfflineEngine(small, overlap=True, watermark="0", prefix_caching=False)
    for _ in range(500):
        session.expected.observe(0, 1000)  # so that it lets too many in
    for prompt, kind in zip(prompts(), kinds, strict=True):
        session.submit(prompt, **kind)
    session.run()
    assert session.outputs == whole.outputs
    # Blocks that a step in flight holds are waited for: nobody is preempted for them in vain.
    assert 0 < session.value(metrics.PREEMPTIONS) < 4 * len(LENGTHS)


def test_a_token_behind_a_stop_is_computed_and_given_to_nobody(runner: Runner) -> None:
    whole = run(runner, [{}] * len(LENGTHS), overlap=False).outputs
    kinds = [{"stop_token_ids": (whole[number][9],)} for number in range(len(LENGTHS))]
    plain = run(runner, kinds, overlap=False)
    both = run(runner, kinds, overlap=True)
    assert both.outputs == plain.outputs
    assert both.finished == plain.finished
    stopped = [end for end in both.finished.values() if end.reason == "stop"]
    assert len(stopped) == len(LENGTHS)
    assert plain.value(metrics.DISCARDED) == 0
    assert both.value(metrics.DISCARDED) == len(stopped)
    assert both.value(metrics.GENERATION_TOKENS) == plain.value(metrics.GENERATION_TOKENS)
    computed = sum(step["num_tokens"] for step in both.recorder.steps(1000))
    assert computed == len(stopped) + sum(step["num_tokens"] for step in plain.recorder.steps(1000))


def test_who_ends_by_its_length_wastes_nothing(runner: Runner) -> None:
    both = run(runner, [{"ignore_eos": True}] * len(LENGTHS), overlap=True, prefix_caching=False)
    assert both.value(metrics.DISCARDED) == 0
    computed = sum(step["num_tokens"] for step in both.recorder.steps(1000))
    assert computed == sum(LENGTHS) + len(LENGTHS) * (MAX_TOKENS - 1)


def test_nan_of_one_request_ends_it_alone(tmp_path: Path) -> None:
    folder = TinyModel().write(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = np.nan
    save_file(weights, folder / "model.safetensors")
    session = OfflineEngine(load_runner(folder, num_kv_blocks=4), overlap=True)
    session.submit([3, 4, 5], max_tokens=3)
    session.submit([3, *[7] * 30], max_tokens=3)
    session.run()
    assert (session.finished[0].reason, session.finished[1].reason) == ("length", "error")
    again = session.submit([3, 4, 5], max_tokens=3)
    session.run()
    assert session.outputs[again] == session.outputs[0]


def test_a_step_with_drafts_is_planned_alone(folder: Path) -> None:
    drafting = load_runner(
        folder,
        speculative_method="Ngram",
        speculative_num_tokens=4,
        boot_max_speculative_num_tokens=4,
        speculative_min_lookup=1,
        speculative_adaptive=False,
    )
    repeated = [[*prompt[:4] * 5] for prompt in prompts()]

    def tokens(*, overlap: bool, num_drafts: int) -> OfflineEngine:
        session = OfflineEngine(drafting, overlap=overlap, speculative_num_tokens=num_drafts)
        for prompt in repeated:
            session.submit(prompt, max_tokens=MAX_TOKENS)
        session.run()
        return session

    drafted = tokens(overlap=True, num_drafts=4)
    assert drafted.value(metrics.SPEC_ACCEPTED) > 0
    assert not overlapped(drafted)
    plain = tokens(overlap=True, num_drafts=0)
    assert overlapped(plain)
    assert drafted.outputs == plain.outputs
