"""Live changes under load: applied, read back, nobody ended by them, no output changed."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from paceline_crds import metrics
from paceline_engine.testing.metrics_page import MetricsPage
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow

N, M = 10, 800
PROMPTS = [f"{number} people cross the river and the bridge " * (1 + number) for number in range(N)]
CHANGES: list[dict[str, Any]] = [
    {"maxNumSeqs": 3},
    {"maxNumBatchedTokens": 16, "longPrefillTokens": 8},
    {"schedulingPolicy": "Priority", "priorityAgingS": 0},
    {"prefixCaching": False, "sloItlMs": 50},
    {"maxNumSeqs": 12, "maxNumBatchedTokens": 512, "longPrefillTokens": None, "sloItlMs": None},
    {"prefixCaching": True, "watermark": "0.1", "schedulingPolicy": "Fcfs"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    flags = ("--dtype", "float32", "--num-kv-blocks", "900", "--max-num-seqs", "8")
    with server_process(str(model), tmp_path_factory.mktemp("server"), *flags) as running:
        yield running


def stream(server: ServerProcess, prompt: str, first: threading.Event) -> tuple[list[int], str]:
    """Output ids and finish reason of one streamed completion."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": M, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    ids: list[int] = []
    reason = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=600) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                ids += choice.get("token_ids") or []
                reason = choice["finish_reason"] or reason
            first.set()
    return ids, reason


def start_all(
    server: ServerProcess, pool: ThreadPoolExecutor, is_enough: threading.Event
) -> list[Future[Any]]:
    """All streams of each prompt, one after the other until it is enough; one has begun."""
    first = threading.Event()

    def stream_again(prompt: str) -> list[tuple[list[int], str]]:
        answers = [stream(server, prompt, first)]
        while not is_enough.is_set():
            answers.append(stream(server, prompt, first))
        return answers

    running = [pool.submit(stream_again, prompt) for prompt in PROMPTS]
    assert first.wait(60)
    return running


def page_with(server: ServerProcess, name: str, value: float) -> MetricsPage:
    """The page once it shows this; a snapshot may be a tenth of a second old."""
    give_up_s = time.monotonic() + 60
    while (page := MetricsPage(server.get("/metrics").text)).total(name) != value:
        assert time.monotonic() < give_up_s, f"{name} never became {value}"
        time.sleep(0.01)
    return page


def state(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.admin_url}/v1/paceline/settings", timeout=30).json()
    return found


def test_changes_under_load_are_read_back_and_change_no_output(server: ServerProcess) -> None:
    once, is_enough = threading.Event(), threading.Event()
    once.set()
    with ThreadPoolExecutor(N) as pool:
        quiet = [running.result()[0] for running in start_all(server, pool, once)]
        assert {reason for _, reason in quiet} == {"length"}
        assert {len(ids) for ids, _ in quiet} == {M}
        before = state(server)
        num_seen_running = 0
        running = start_all(server, pool, is_enough)
        try:
            for number, change in enumerate(CHANGES, 1):
                answer = server.patch(**change)
                assert answer["generation"] == before["generation"] + number
                assert answer["new"] == change
                page = page_with(server, metrics.SETTINGS_GENERATION, answer["generation"])
                num_seen_running += page.total(metrics.RUNNING) > 0
                for name, value in change.items():
                    if value is None:
                        assert not page.has(metrics.SETTING, name=name)
                    elif not isinstance(value, str) or value[0].isdigit():
                        assert page.total(metrics.SETTING, name=name) == float(value), name
                if "schedulingPolicy" in change:
                    policy = change["schedulingPolicy"]
                    assert page.has(metrics.SETTINGS_INFO, scheduling_policy=policy)
                assert state(server)["settings"].items() >= change.items()
        finally:
            is_enough.set()
        changed = [one.result() for one in running]
    assert num_seen_running == len(CHANGES), "a change met an idle engine"
    for answers, alone in zip(changed, quiet, strict=True):
        assert all(answer == alone for answer in answers)
    page = page_with(server, metrics.RUNNING, 0)
    assert page.total(metrics.SUCCESS) == page.total(metrics.SUCCESS, finished_reason="length")


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({"blockSize": 32}, 409, ("blockSize", "restart")),
        ({"maxNumSeqs": 4, "dtype": "BFloat16"}, 409, ("dtype", "restart")),
        ({"maxNumSeqs": 17}, 409, ("maxNumSeqs", "bootMaxNumSeqs (16)", "restart")),
        ({"maxNumSeqs": 4, "revision": 0}, 412, ("revision",)),
        ({"maxNumSeqs": 0}, 400, ("maxNumSeqs",)),
        ({"maxNumSeqs": None}, 400, ("maxNumSeqs",)),
        ({"maxNumSeqs": 4, "noSuchSetting": 1}, 400, ("noSuchSetting",)),
        ({"interTokenTargetMs": -1}, 400, ("interTokenTargetMs",)),
    ],
    ids=repr,
)
def test_a_refused_change_says_what_is_wrong_and_changes_nothing(
    server: ServerProcess, body: dict[str, Any], status: int, names: tuple[str, ...]
) -> None:
    server.patch(sloTtftMs=1000)  # so that revision 0 is an old one
    before = state(server)
    url = f"{server.admin_url}/v1/paceline/settings"
    answer = httpx.patch(url, json=body, timeout=30)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == names[0]
    for name in names:
        assert name in error["message"]
    assert state(server) == before


def test_an_equal_revision_is_the_same_change_or_a_conflict(server: ServerProcess) -> None:
    revision = state(server)["revision"] + 5
    first = server.patch(queueMaxRequests=77, revision=revision)
    again = server.patch(queueMaxRequests=77, revision=revision)
    assert (again["generation"], again["revision"]) == (first["generation"], revision)
    url = f"{server.admin_url}/v1/paceline/settings"
    other = httpx.patch(url, json={"queueMaxRequests": 78, "revision": revision}, timeout=30)
    assert other.status_code == 412
    page_with(server, metrics.SETTINGS_REVISION, revision)
