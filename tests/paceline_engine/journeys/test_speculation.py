"""Speculation over HTTP: the tokens are those without drafts, only sooner."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline_crds import metrics
from paceline_engine.bench.prompts import varied_prompts
from paceline_engine.model.cut import cut_draft_model
from paceline_engine.testing.server_process import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROMPTS = varied_prompts()
MAX_TOKENS = 48


@pytest.fixture(scope="module", params=["Ngram", "Suffix", "DraftModel"])
def speculating(
    request: pytest.FixtureRequest, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    flags = ["--dtype", "float32", "--num-kv-blocks", "1200"]
    flags += ["--speculative-method", request.param, "--speculative-num-tokens", "5"]
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "DraftModel":
        cut_draft_model(demo_folder, folder / "draft", 12)
        flags += ["--speculative-model", str(folder / "draft")]
    with server_process(str(demo_folder), folder, *flags) as running:
        yield running


def complete(server: ServerProcess, prompt: str, **extra: object) -> list[int]:
    body = {"model": server.model, "prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    body |= {"temperature": 0, "return_token_ids": True, **extra}
    tokens: list[int] = server.post("/v1/completions", body)["choices"][0]["token_ids"]
    return tokens


def complete_all(server: ServerProcess, **extra: object) -> list[list[int]]:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: complete(server, prompt, **extra), PROMPTS))


SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 11}


@pytest.mark.parametrize("extra", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_tokens_are_the_same_with_and_without_drafts(
    speculating: ServerProcess, extra: dict[str, object]
) -> None:
    server = speculating
    server.patch(speculativeNumTokens=0)
    drafted = server.metric(metrics.SPEC_DRAFT_TOKENS)
    expected = complete_all(server, **extra)
    assert server.metric(metrics.SPEC_DRAFT_TOKENS) == drafted
    server.patch(speculativeNumTokens=5, speculativeAdaptive=False)
    assert complete_all(server, **extra) == expected
    server.patch(speculativeAdaptive=True)
    assert [complete(server, prompt, **extra) for prompt in PROMPTS[:12]] == expected[:12]
    accepted = server.metric(metrics.SPEC_ACCEPTED)
    drafted = server.metric(metrics.SPEC_DRAFT_TOKENS)
    assert 0 < accepted < drafted
    assert server.metric(metrics.SPEC_DRAFTS) <= drafted
    assert server.metric(metrics.KV_USAGE) == 0


def test_a_request_that_declines_drafts_gets_none(speculating: ServerProcess) -> None:
    server, prompt = speculating, "ABC ABC ABC ABC ABC ABC"
    server.patch(speculativeNumTokens=5, speculativeAdaptive=False)
    before = server.metric(metrics.SPEC_DRAFT_TOKENS)
    declined = complete(server, prompt, speculation=False)
    assert server.metric(metrics.SPEC_DRAFT_TOKENS) == before
    assert complete(server, prompt) == declined
    assert server.metric(metrics.SPEC_DRAFT_TOKENS) > before
