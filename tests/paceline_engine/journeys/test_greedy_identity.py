"""Greedy output over HTTP is token-identical to transformers, whatever the schedule."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline_engine.bench.prompts import varied_prompts
from paceline_engine.testing.oracle import Oracle
from paceline_engine.testing.server_process import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROMPTS = varied_prompts()
MAX_TOKENS = 64
Answer = tuple[list[int], list[int]]


def complete(server: ServerProcess, prompt: str, **extra: object) -> Answer:
    """(prompt ids, output ids) of a greedy completion that does not stop early."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True, **extra}
    choice = server.post("/v1/completions", body)["choices"][0]
    return choice["prompt_token_ids"], choice["token_ids"]


def complete_all(server: ServerProcess) -> list[Answer]:
    """All prompts at once."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: complete(server, prompt), PROMPTS))


@pytest.fixture(scope="module")
def alone(server: ServerProcess) -> list[Answer]:
    """Every prompt by itself, nothing taken from the prefix cache."""
    server.patch(prefixCaching=False)
    answers = [complete(server, prompt) for prompt in PROMPTS]
    server.patch(prefixCaching=True)
    return answers


def test_alone_every_token_is_the_one_that_transformers_ranks_first(
    alone: list[Answer], oracle: Oracle
) -> None:
    assert len(PROMPTS) == 40
    for prompt, (prompt_ids, output_ids) in zip(PROMPTS, alone, strict=True):
        assert len(output_ids) == MAX_TOKENS
        # One pass over the whole text is the same induction as a step of generate for each.
        best = oracle.logits(prompt_ids + output_ids)[len(prompt_ids) - 1 : -1].argmax(-1)
        assert output_ids == best.tolist(), prompt


@pytest.mark.parametrize("budget", [16, 61, 256, 2048])
@pytest.mark.parametrize("hits", [True, False], ids=["with prefix hits", "without prefix hits"])
def test_all_at_once_the_tokens_are_the_same(
    server: ServerProcess, alone: list[Answer], budget: int, hits: bool
) -> None:
    server.patch(maxNumBatchedTokens=budget, prefixCaching=hits)
    before = server.metric("vllm:prefix_cache_hits_total")
    assert complete_all(server) == alone
    assert (server.metric("vllm:prefix_cache_hits_total") > before) == hits
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert server.metric("vllm:num_requests_running") == 0


@pytest.mark.parametrize("budget", [61, 2048])
def test_steps_that_overlap_give_the_same_tokens(
    server: ServerProcess, alone: list[Answer], budget: int
) -> None:
    server.patch(maxNumBatchedTokens=budget, prefixCaching=True, overlap=True)
    try:
        assert complete_all(server) == alone
    finally:
        server.patch(overlap=False)
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert server.metric("paceline:discarded_tokens_total") == 0  # all end by their length


@pytest.mark.parametrize("overlap", [(), ("--overlap",)], ids=["one by one", "overlap"])
def test_a_pool_so_small_that_most_are_preempted_changes_nothing(
    demo_folder: Path, alone: list[Answer], tmp_path: Path, overlap: tuple[str, ...]
) -> None:
    flags = ("--dtype", "float32", "--num-kv-blocks", "64", "--watermark", "0", *overlap)
    with server_process(str(demo_folder), tmp_path, *flags) as server:
        # Teach the engine that outputs are short, so that it lets too many in.
        for number in range(40):
            server.post(
                "/v1/completions",
                {"model": "model", "prompt": f"{number}", "max_tokens": 500, "temperature": 0}
                | {"allowed_token_ids": [2], "stop_token_ids": [2]},
            )
        assert complete_all(server) == alone
        assert server.metric("vllm:num_preemptions_total") >= len(PROMPTS) / 2
        assert server.metric("vllm:kv_cache_usage_perc") == 0
