"""Verification is lossless: with drafts, good or bad, texts come as often as the model says.

Chi-square over all beginnings of three tokens, against probabilities worked out from the model's
logits of one row alone. No request has a seed: the engine gives each its own noise.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from paceline_crds import metrics
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.run.single_row import SingleRow
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel

pytestmark = pytest.mark.slow

ALLOWED = (5, 6, 7, 8)
NUM_TOKENS = 3
MAX_TOKENS = NUM_TOKENS + 2
"""Longer than what is counted, so that all of it may be drafted."""
NUM_REQUESTS = 400
"""Of each case."""
PROMPTS = {
    "good drafts": [5, 6, 7, 8, 5, 7, 6, 8, 6, 5, 8, 7],
    "bad drafts": [5, 40, 6, 41, 7, 42, 8, 43, 5],  # none of what followed is allowed
}
Case = tuple[str, int]
"""Name of the prompt, number of the kind of request."""

KINDS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 4.0},
    {"temperature": 2.0, "top_p": 0.8},
    {"temperature": 2.0, "top_k": 2},
    {"temperature": 3.0, "top_k": 3, "top_p": 0.9},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("verified"))


@pytest.fixture(scope="module", params=["Ngram", "Suffix"])
def runner(request: pytest.FixtureRequest, folder: Path) -> Runner:
    return load_runner(
        folder,
        speculative_method=request.param,
        boot_max_speculative_num_tokens=NUM_TOKENS,
        speculative_adaptive=False,
        speculative_min_lookup=1,
        max_num_seqs=128,
        num_kv_blocks=512,
    )


def kept(scores: Tensor, kind: dict[str, Any]) -> Tensor:
    """Probabilities of all tokens, as the parameters of a request describe them."""
    scaled = torch.full_like(scores, float("-inf"))
    scaled[list(ALLOWED)] = scores[list(ALLOWED)] / kind["temperature"]
    if "top_k" in kind:
        scaled[scaled < scaled.topk(kind["top_k"]).values[-1]] = float("-inf")
    shares = torch.softmax(scaled.double(), dim=-1)
    order = shares.argsort(descending=True)
    shares[order[shares[order].cumsum(0) - shares[order] >= kind.get("top_p", 1.0)]] = 0.0
    return shares / shares.sum()


def text_probabilities(
    runner: Runner, prompt: list[int], kind: dict[str, Any]
) -> dict[tuple[int, ...], float]:
    """Every text that may come, and how likely it is."""
    alone = SingleRow(
        runner.decoder,
        len(prompt) + NUM_TOKENS,
        block_size=runner.limits.block_size,
        impl=runner.kernels["attention"],
        dtype=torch.float32,
    )
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(NUM_TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in texts.items():
            shares = kept(alone.logits([*prompt, *text], chunk=64)[-1], kind)
            for token in shares.nonzero().flatten().tolist():
                longer[(*text, token)] = probability * float(shares[token])
        texts = longer
    return texts


@pytest.fixture(scope="module")
def drawn(runner: Runner) -> dict[Case, list[tuple[int, ...]]]:
    """Texts by case, all cases in the same batches; drafts of each prompt held or did not."""
    found: dict[Case, list[tuple[int, ...]]] = {}
    for name, prompt in PROMPTS.items():
        session = OfflineEngine(
            runner,
            speculative_num_tokens=NUM_TOKENS,
            queue_max_requests=NUM_REQUESTS * len(KINDS),
        )
        for _ in range(NUM_REQUESTS):
            for kind in KINDS:
                session.submit(prompt, max_tokens=MAX_TOKENS, allowed_token_ids=ALLOWED, **kind)
        session.run()
        drafted = session.value(metrics.SPEC_DRAFT_TOKENS)
        assert drafted > 2 * len(session.outputs)
        held = session.value(metrics.SPEC_ACCEPTED) / drafted
        assert held > 0.2 if name == "good drafts" else held < 0.15
        for number, tokens in session.outputs.items():
            found.setdefault((name, number % len(KINDS)), []).append(tuple(tokens[:NUM_TOKENS]))
    return found


def expect_distribution(
    texts: list[tuple[int, ...]], probabilities: dict[tuple[int, ...], float]
) -> None:
    """Chi-square over texts; rare ones count together, impossible ones must not come."""
    seen = Counter(texts)
    assert not seen.keys() - probabilities.keys()
    wanted = np.array([share * len(texts) for share in probabilities.values()])
    found = np.array([seen[text] for text in probabilities], dtype=np.float64)
    likely = wanted >= 5
    assert likely.sum() > 3, "too few texts to tell distributions apart"
    if not likely.all():
        wanted = np.append(wanted[likely], wanted[~likely].sum())
        found = np.append(found[likely], found[~likely].sum())
    assert stats.chisquare(found, wanted).pvalue > 1e-4


@pytest.mark.parametrize("name", list(PROMPTS))
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_texts_come_as_often_as_the_model_says(
    runner: Runner, drawn: dict[Case, list[tuple[int, ...]]], name: str, kind: int
) -> None:
    expected = text_probabilities(runner, PROMPTS[name], KINDS[kind])
    expect_distribution(drawn[name, kind], expected)
