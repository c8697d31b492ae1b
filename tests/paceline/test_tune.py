"""`paceline tune` against a real Prometheus that scrapes a real engine, and against none."""

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

import httpx
import pytest

from paceline import cli
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import TinyModel
from paceline_operator.testing.prometheus import free_address, prometheus, target

SELECTOR = ("--selector", 'namespace="models",pod=~"chat-.*"')
NUM_CLIENTS = 16
SECONDS = 20.0
"""Windows cover the last twelve: clients come one by one and begin raggedly on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """Attributes: at: when the load ended, seconds since the epoch."""

    url: str
    engine: ServerProcess
    at: str


@pytest.fixture(scope="module")
def scraped(
    require_program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scraped]:
    """An engine with two places and sixteen clients for some time, and its Prometheus."""
    program, folder = require_program("prometheus"), tmp_path_factory.mktemp("tune")
    model = TinyModel(hidden_size=16, num_layers=1).write(folder / "model")
    flags = ["--max-model-len=256", "--max-num-seqs=2", "--num-kv-blocks=512", "--dtype=float32"]
    with server_process(str(model), folder, *flags) as engine, ExitStack() as stack:
        pages = [target(engine.url, namespace="models", pod="chat-0")]
        twice = {"one": pages, "two": pages}
        url = stack.enter_context(prometheus(program, twice, folder, interval="500ms"))
        wait_for_series(url)
        end, started_s = time.monotonic() + SECONDS, time.time()
        clients = [threading.Thread(target=ask, args=(engine, end)) for _ in range(NUM_CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        yield Scraped(url=url, engine=engine, at=str(int(started_s + SECONDS)))


def ask(engine: ServerProcess, end: float) -> None:
    body = {"model": "model", "prompt": "one two three", "max_tokens": 128, "ignore_eos": True}
    while time.monotonic() < end:
        engine.post("/v1/completions", body)


def wait_for_series(url: str) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            query = {"query": "count_over_time(vllm:num_requests_running[1m]) > 1"}
            answer = httpx.get(f"{url}/api/v1/query", params=query)
            # While it starts, it answers 503 and no JSON.
            if answer.is_success and answer.json()["data"]["result"]:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError("Prometheus never scraped the engine")


def tune(*arguments: str) -> int:
    return cli.main(["tune", *arguments])


@pytest.mark.full
def test_a_fleet_is_diagnosed_with_a_sentence_evidence_and_the_manifests_change(
    scraped: Scraped, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--prometheus", scraped.url, *SELECTOR, "--window", "4s", "--at", scraped.at)
    assert tune(*asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["windows"], len(found["engines"])) == (3, 1)
    told = {item["symptom"]: item for item in found["recommendations"]}
    item = told.get("CapTooLow") or told["QueueWait"]
    assert item["change"] == "spec.scheduling.maxNumSeqs: 4"
    assert item["text"].endswith(".")
    assert item["evidence"]["leastWaiting" if item["symptom"] == "QueueWait" else "waiting"] > 1
    assert "slo.itl" in found["notEvaluated"]["SpikyStreams"]
    before = httpx.get(f"{scraped.engine.admin_url}/v1/paceline/settings").json()
    assert (before["settings"]["maxNumSeqs"], before["generation"]) == (2, 0)


@pytest.mark.full
def test_targets_may_be_asked_for_that_engines_do_not_judge_and_are_marked_as_estimated(
    scraped: Scraped, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--prometheus", scraped.url, *SELECTOR, "--window", "4s", "--slo-ttft", "1ms")
    asked += ("--at", scraped.at)
    assert tune(*asked) == 0
    text = capsys.readouterr().out
    assert "1 engine, 3 of 3 windows of 4 s" in text
    assert "  change    spec.scheduling.maxNumSeqs: 4\n" in text
    assert "  evidence  " in text
    assert "estimated from histograms: shares within the targets of ttft\n" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selector", "window", "told"),
    [
        (
            'namespace="modells"',
            "4s",
            'no series vllm:num_requests_running matches {namespace="mod',
        ),
        ('namespace="modells"', "4s", 'instance="127.0.0.1:'),
        ('namespace=~"("', "4s", "refuses the question (status 400)"),
        ('namespace="models"', "1s", "scrapes and needs 4; choose a longer --window"),
    ],
)
def test_a_wrong_question_is_answered_with_what_there_is(
    scraped: Scraped, capsys: pytest.CaptureFixture[str], selector: str, window: str, told: str
) -> None:
    asked = ("--prometheus", scraped.url, "--selector", selector, "--window", window)
    asked += ("--at", scraped.at)
    assert tune(*asked) in {1, 2}
    assert told in capsys.readouterr().err


def test_a_prometheus_that_is_down_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--prometheus", f"http://{free_address()}", *SELECTOR) == 1
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>", "is no Prometheus"),
        (b'{"status": "success", "data": {"result": []}}', "it scrapes no engine"),
    ],
)
def test_a_server_that_is_no_prometheus_or_scrapes_nothing_is_told(
    capsys: pytest.CaptureFixture[str], body: bytes, told: str
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            code = tune("--prometheus", f"http://127.0.0.1:{server.server_address[1]}", *SELECTOR)
        finally:
            server.shutdown()
            thread.join()
    assert code in {1, 2}
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--selector", "models"], "--selector must be label matchers"),
        ([*SELECTOR, "--window", "soon"], "a time such as 500ms or 2m"),
        ([*SELECTOR, "--at", "noon"], "2026-01-31T10:00:00Z"),
        ([*SELECTOR, "-f", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ],
)
def test_a_wrong_argument_is_told_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert tune("--prometheus", "http://127.0.0.1:9", *arguments) == 2
    assert told in capsys.readouterr().err
