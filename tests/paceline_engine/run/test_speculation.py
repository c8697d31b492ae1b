"""Drafts change how fast tokens come, and nothing about which.

The tiny model's prompts repeat themselves, so that some drafts hold and some do not.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline_crds import metrics
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.testing.draft_heads import ONE_LAYER, write_eagle_head, write_mtp_model
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel, write_draft_model

DRAFTS = {
    "boot_max_speculative_num_tokens": 6,
    "speculative_min_lookup": 1,
    "speculative_adaptive": False,
}
MAX_TOKENS = 40
HOT = 8.0
"""A temperature at which no token of the tiny model is out of the question."""

KINDS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"presence_penalty": 1.0, "min_tokens": 20},
    {"logit_bias": ((40, 4.0), (41, 4.0), (2, 9.0)), "min_tokens": 9},
    {"bad_words": ((7,), (40, 41))},
    {"allowed_token_ids": (5, 6, 7, 8), "repetition_penalty": 1.05},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 1.0, "top_k": 4, "seed": 4, "logprobs": 0},
    {"temperature": 1.2, "top_p": 0.3, "seed": 5, "frequency_penalty": 0.2},
    {"temperature": 0.4, "min_p": 0.1, "seed": 6, "logit_bias": ((40, 5.0), (41, 5.0))},
    {"temperature": 1.0, "allowed_token_ids": (5, 6), "seed": 7},
]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(3, 500, 4 + n % 5).tolist() * 4 for n in range(len(KINDS))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculating")


METHODS = ["Ngram", "Suffix", "DraftModel", "Eagle", "Mtp"]


def load(folder: Path, method: str, **settings: Any) -> Runner:
    """A runner that drafts by a method, over the model that it needs; all files under a folder."""
    model = folder / method
    own: dict[str, Any] = {}
    if model.exists():
        pass
    elif method == "Mtp":
        write_mtp_model(model)
    else:
        (ONE_LAYER if method == "Eagle" else TinyModel()).write(model)
    if method == "DraftModel":
        own["speculative_model"] = str(folder / "draft")
        if not (folder / "draft").exists():
            write_draft_model(folder / "draft", model, noise=0.1)
    if method == "Eagle":
        own["speculative_model"] = str(write_eagle_head(folder / "head", model))
    return load_runner(model, speculative_method=method, **DRAFTS, **own, **settings)


@pytest.fixture(scope="module", params=METHODS)
def runner(request: pytest.FixtureRequest, folder: Path) -> Runner:
    return load(folder, request.param, max_num_seqs=64)


def run(
    runner: Runner, num_drafts: int, *, admits_all: bool = False, **settings: Any
) -> OfflineEngine:
    session = OfflineEngine(runner, speculative_num_tokens=num_drafts, **settings)
    for _ in range(500 * admits_all):  # it believes that outputs are short
        session.expected.observe(0, 1000)
    for prompt, kind in zip(prompts(), KINDS, strict=True):
        session.submit(prompt, max_tokens=MAX_TOKENS, **kind)
    session.run()
    return session


@pytest.fixture(scope="module")
def plain(runner: Runner) -> OfflineEngine:
    return run(runner, 0)


@pytest.mark.parametrize("num_drafts", [1, 3, 6])
@pytest.mark.parametrize("budget", [24, 2048])
def test_every_kind_of_request_gets_the_tokens_it_gets_without_drafts(
    runner: Runner, plain: OfflineEngine, num_drafts: int, budget: int
) -> None:
    session = run(runner, num_drafts, max_num_batched_tokens=budget)
    assert session.outputs == plain.outputs
    assert session.value(metrics.SPEC_ACCEPTED) > 20
    assert session.value(metrics.SPEC_DRAFT_TOKENS) > session.value(metrics.SPEC_ACCEPTED)


def test_log_probabilities_of_accepted_drafts_are_the_models_own(
    runner: Runner, plain: OfflineEngine
) -> None:
    session = run(runner, 4)
    for number, kind in enumerate(KINDS):
        if "logprobs" not in kind:
            continue
        wanted, got = plain.logprobs[number], session.logprobs[number]
        assert [entry.token_id for entry in got] == session.outputs[number]
        assert [entry.logprob for entry in got] == pytest.approx(
            [entry.logprob for entry in wanted], abs=1e-4
        )
        assert [entry.rank for entry in got] == [entry.rank for entry in wanted]
        assert [entry.top_ids for entry in got] == [entry.top_ids for entry in wanted]


def test_an_end_inside_an_accepted_run_ends_the_request_there(
    runner: Runner, plain: OfflineEngine
) -> None:
    outputs = plain.outputs[0]
    stop = next(token for at, token in enumerate(outputs) if at > 20 and token not in outputs[:at])
    session = OfflineEngine(runner, speculative_num_tokens=6)
    session.submit(prompts()[0], max_tokens=MAX_TOKENS, stop_token_ids=(stop,))
    session.run()
    assert session.outputs[0] == outputs[: outputs.index(stop) + 1]
    assert session.finished[0].stop_token_id == stop


def test_a_request_may_decline_drafts(runner: Runner, plain: OfflineEngine) -> None:
    session = OfflineEngine(runner, speculative_num_tokens=6)
    session.submit(prompts()[0], max_tokens=MAX_TOKENS, speculates=False)
    session.run()
    assert session.outputs[0] == plain.outputs[0]
    assert session.value(metrics.SPEC_DRAFT_TOKENS) == 0


@pytest.mark.slow
def test_preemption_and_prefix_hits_change_nothing(
    folder: Path, runner: Runner, plain: OfflineEngine
) -> None:
    small = load(folder, runner.settings.speculative_method.value, num_kv_blocks=24)
    session = run(small, 6, watermark="0", admits_all=True)
    assert session.num_returns > 0
    assert session.outputs == plain.outputs


@pytest.mark.slow
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_sampled_texts_come_as_often_as_the_model_says(runner: Runner, num_drafts: int) -> None:
    """Chi-square over all texts of three tokens, each one of two: eight texts."""
    prompt, count = [5, 6, 5, 6, 6, 5], 1500
    session = OfflineEngine(runner, speculative_num_tokens=num_drafts, queue_max_requests=count)
    for _ in range(count):
        session.submit(prompt, temperature=HOT, allowed_token_ids=(5, 6), max_tokens=3)
    session.run()
    assert (session.value(metrics.SPEC_ACCEPTED) > count / 4) == (num_drafts > 0)
    expected = text_probabilities(runner, prompt)
    texts = [tuple(tokens) for tokens in session.outputs.values()]
    seen = np.array([texts.count(text) for text in expected])
    wanted = np.array(list(expected.values())) * count
    assert seen.sum() == count
    assert wanted.min() > 5
    assert stats.chisquare(seen, wanted).pvalue > 1e-3


def text_probabilities(runner: Runner, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Texts of three tokens, each 5 or 6, and how likely each is."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in texts.items():
            weights = []
            for token in (5, 6):
                session = OfflineEngine(runner)
                allowed = {"allowed_token_ids": (token,), "logprobs": 0}
                session.submit([*prompt, *text], max_tokens=1, **allowed)
                session.run()
                weights.append(float(np.exp(session.logprobs[0][0].logprob / HOT)))
            for token, weight in zip((5, 6), weights, strict=True):
                longer[(*text, token)] = probability * weight / sum(weights)
        texts = longer
    return texts
