"""The figures of /metrics against what clients saw, over a whole server of a tiny model."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_crds import metrics
from paceline_engine.testing.metrics_page import MetricsPage, complaints
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow

N, M = 12, 20
"""Requests, and output tokens of each."""
ONCE_A_REQUEST = (
    metrics.TTFT,
    metrics.TPOT,
    metrics.E2E,
    metrics.QUEUE_TIME,
    metrics.PREFILL_TIME,
    metrics.DECODE_TIME,
    metrics.INFERENCE_TIME,
)
Usage = dict[str, Any]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


EACH_WAY = pytest.mark.parametrize("overlap", [(), ("--overlap",)], ids=["one by one", "overlap"])


@pytest.fixture(scope="module", params=[(), ("--overlap",)], ids=["one by one", "overlap"])
def roomy(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    """Blocks for everybody, but a budget that cuts prompts and a batch that is full."""
    flags = ("--dtype", "float32", "--num-kv-blocks", "400")
    flags += ("--max-num-batched-tokens", "64", "--max-num-seqs", "8", *request.param)
    with server_process(str(tiny), tmp_path_factory.mktemp("roomy"), *flags) as running:
        yield running


def read(server: ServerProcess) -> MetricsPage:
    return MetricsPage(server.get("/metrics").text)


def settled(server: ServerProcess, num_ended: float) -> MetricsPage:
    """The page once so many requests have ended: a snapshot may be a tenth of a second old."""
    give_up_s = time.monotonic() + 60
    while (page := read(server)).total(metrics.SUCCESS) < num_ended or page.total(metrics.RUNNING):
        assert time.monotonic() < give_up_s, page.text
        time.sleep(0.02)
    return page


def growth(before: MetricsPage, after: MetricsPage) -> Callable[[str], float]:
    return lambda name: after.total(name) - before.total(name)


def complete(server: ServerProcess, number: int, **extra: Any) -> Usage:
    """One request; every other one is streamed, but shows its usage all the same."""
    body = {"model": server.model, "max_tokens": M, "temperature": 0, "ignore_eos": True} | extra
    if number % 2:
        whole: Usage = server.post("/v1/completions", body)["usage"]
        return whole
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=600)
    event = answer.text.split("\n\n")[-3].removeprefix("data: ")
    streamed: Usage = json.loads(event)["usage"]
    return streamed


def complete_all(server: ServerProcess, prompts: list[list[int]], **extra: Any) -> list[Usage]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        jobs = enumerate(prompts)
        return list(pool.map(lambda job: complete(server, job[0], prompt=job[1], **extra), jobs))


def own_prompts(seed: int) -> list[list[int]]:
    """Prompts of 20 to 108 tokens that begin differently."""
    return [[(seed + n + 7 * i * (n + 1)) % 500 + 3 for i in range(20 + 8 * n)] for n in range(N)]


def cached(usages: list[Usage]) -> int:
    return sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)


def total(usages: list[Usage], field: str) -> int:
    return sum(usage[field] for usage in usages)


def test_every_request_and_every_token_is_counted_once(roomy: ServerProcess) -> None:
    before = read(roomy)
    prompts = own_prompts(0)
    usages = complete_all(roomy, prompts)
    usages += complete_all(roomy, prompts)  # now with hits
    after = settled(roomy, before.total(metrics.SUCCESS) + 2 * N)
    grown = growth(before, after)
    num, prompt_tokens = 2 * N, total(usages, "prompt_tokens")
    assert cached(usages) > 0
    for name in ONCE_A_REQUEST:
        assert grown(f"{name}_count") == num, name
    assert grown(f"{metrics.ITL}_count") == num * (M - 1)
    computed = num * (M - 1) + prompt_tokens - cached(usages)
    assert grown(f"{metrics.ITERATION_TOKENS}_sum") == computed
    assert grown(f"{metrics.ITERATION_TOKENS}_count") == grown(metrics.STEPS)
    assert grown(metrics.PROMPT_TOKENS) == prompt_tokens == 2 * sum(map(len, prompts))
    assert grown(metrics.GENERATION_TOKENS) == total(usages, "completion_tokens") == num * M
    assert grown(metrics.PREFIX_QUERIES) == prompt_tokens
    assert grown(metrics.PREFIX_HITS) == cached(usages)
    assert grown(f"{metrics.REQUEST_PROMPT_TOKENS}_sum") == prompt_tokens
    assert grown(f"{metrics.REQUEST_GENERATION_TOKENS}_sum") == num * M
    assert grown(f"{metrics.REQUEST_GENERATION_TOKENS}_count") == num
    assert grown(metrics.RECOMPUTED) == grown(metrics.DISCARDED) == 0
    by_reason = after.total(metrics.SUCCESS, finished_reason="length")
    assert by_reason - before.total(metrics.SUCCESS, finished_reason="length") == num
    assert_nobody_is_left(after)


def test_tokens_behind_a_stop_string_are_computed_but_not_generated(roomy: ServerProcess) -> None:
    roomy.patch(prefixCaching=False)
    before = read(roomy)
    usages = complete_all(roomy, own_prompts(1), stop=["e", "o", "t"], max_tokens=60)
    after = settled(roomy, before.total(metrics.SUCCESS) + N)
    roomy.patch(prefixCaching=True)
    grown = growth(before, after)
    generated = total(usages, "completion_tokens")
    assert generated < N * 60, "nobody was stopped"
    assert grown(metrics.GENERATION_TOKENS) == generated
    computed = total(usages, "prompt_tokens") + generated - N
    assert grown(f"{metrics.ITERATION_TOKENS}_sum") == computed + grown(metrics.DISCARDED)
    assert_nobody_is_left(after)


def test_gauges_go_back_to_zero_after_clients_that_went_away(roomy: ServerProcess) -> None:
    before = read(roomy)
    body = {"model": roomy.model, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        for prompt in own_prompts(2)[:6]:
            http = stack.enter_context(httpx.Client(timeout=60))
            url = f"{roomy.url}/v1/completions"
            stream = stack.enter_context(http.stream("POST", url, json={**body, "prompt": prompt}))
            next(stream.iter_lines())
    after = settled(roomy, before.total(metrics.SUCCESS) + 6)
    aborted = after.total(metrics.SUCCESS, finished_reason="abort")
    assert aborted - before.total(metrics.SUCCESS, finished_reason="abort") == 6
    assert_nobody_is_left(after)


def test_the_shares_of_blocks_add_up_to_one_while_requests_run(roomy: ServerProcess) -> None:
    pages: list[MetricsPage] = []
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(complete_all, roomy, own_prompts(4), max_tokens=200)
        while not load.done():
            pages.append(read(roomy))
    load.result()
    busy = [page for page in pages if page.total(metrics.RUNNING)]
    assert busy
    assert any(page.total(metrics.BLOCK_SHARES, state="cached") for page in busy)
    for page in busy:
        shares = [page.total(metrics.BLOCK_SHARES, state=state) for state in metrics.BLOCK_STATES]
        assert len(shares) == 3
        assert shares[0] > 0
        assert sum(shares) == pytest.approx(1.0)
        assert page.total(metrics.BLOCK_SHARES) == pytest.approx(1.0), "there is no fourth"


def assert_nobody_is_left(page: MetricsPage) -> None:
    for gauge in (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE, metrics.OLDEST_WAITING):
        assert page.total(gauge) == 0, gauge
    assert page.total("vllm:gpu_cache_usage_perc") == 0
    assert page.total(metrics.BLOCKS, state="active") == 0


@EACH_WAY
def test_recomputed_tokens_are_counted_and_also_apart(
    tiny: Path, tmp_path: Path, overlap: tuple[str, ...]
) -> None:
    flags = ("--dtype", "float32", "--num-kv-blocks", "28", "--watermark", "0", *overlap)
    with server_process(str(tiny), tmp_path, *flags) as server:
        # Teach the engine that outputs are short, so that it lets too many in.
        for number in range(40):
            body = {"model": "model", "prompt": [3 + number], "max_tokens": 300, "temperature": 0}
            server.post("/v1/completions", {**body, "stop_token_ids": [9], "logit_bias": {"9": 99}})
        before = settled(server, 40)
        usages = complete_all(server, own_prompts(3), max_tokens=80)
        after = settled(server, 40 + N)
    grown = growth(before, after)
    assert grown(metrics.RECOMPUTED) > 0
    assert grown(metrics.PREEMPTIONS) == grown(f"{metrics.REQUEST_PREEMPTIONS}_sum") > 0
    assert grown(f"{metrics.ITL}_count") == N * 79
    assert grown(f"{metrics.TTFT}_count") == N
    assert grown(metrics.GENERATION_TOKENS) == N * 80
    computed = total(usages, "prompt_tokens") - cached(usages) + N * 79
    assert grown(f"{metrics.ITERATION_TOKENS}_sum") == computed + grown(metrics.RECOMPUTED)
    assert_nobody_is_left(after)


def test_slo_series_exist_from_the_start(roomy: ServerProcess) -> None:
    page = read(roomy)
    for result in metrics.SLO_RESULTS:
        assert page.has(metrics.SLO_REQUESTS, result=result)
    for signal in metrics.SLO_SIGNALS:
        for within in metrics.SLO_WITHIN:
            assert page.has(metrics.SLO_OBSERVATIONS, signal=signal, within=within)


def test_promtool_accepts_the_page_of_a_server(
    roomy: ServerProcess, require_program: Callable[[str], str]
) -> None:
    assert complaints(read(roomy).text, require_program("promtool")) == []
