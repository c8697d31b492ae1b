"""What the page of a fleet is given, over a Prometheus that answers from a formula."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from paceline import cli
from paceline.errors import CommandError
from paceline.tuner import page
from paceline.tuner.look import Asked
from paceline.tuner.page import Watcher
from paceline.tuner.prometheus import Prometheus
from paceline_crds import metrics
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.queries import LABEL
from paceline_operator.decide.tuning.signals import Window
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing import surface as surfaces
from paceline_operator.testing.surface import Knobs
from paceline_operator.testing.tuner_scenarios import SCENARIOS

NOW = 1_800_000_000.0
CHAT = {"namespace": "models", "paceline_dev_deployment": "chat", "engine": "0"}
ENGINES = (
    {**CHAT, "pod": "chat-a", "instance": "10.0.0.7:8000", "paceline_dev_template_hash": "aa"},
    {**CHAT, "pod": "chat-b", "instance": "10.0.0.8:8000", "paceline_dev_template_hash": "aa"},
)
OTHER = {"namespace": "models", "pod": "vllm-0", "instance": "10.0.0.9:8000", "model_name": "qwen"}


def figures() -> dict[str, float]:
    """What a window measures while the cap is too low, and some figures that only a page shows."""
    scenario, knobs = SCENARIOS[Symptom.CAP_TOO_LOW], Knobs(seqs=128, budget=2048, long_cap=1024)
    found = surfaces.point(scenario.surface, knobs, scenario.load, Policy())
    window = Window(start=0, end=120)
    made = surfaces.sample(
        *(scenario.surface, found, scenario.load, Policy(), window, ("a", "b"), Random(1))
    )
    return {name.value: value for name, value in made.values.items()} | {"ttftP99": 3.0}


class Answers(HTTPServer):
    """Prometheus' HTTP API as far as it is asked here."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asking)
        self.figures, self.engines = figures(), [dict(engine) for engine in ENGINES]
        self.is_away = False

    def results(self, query: str, form: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
        if "start" in form:
            first, last, step = (int(form[name][0]) for name in ("start", "end", "step"))
            times = range(first, last + 1, step)
            for name, value in self.figures.items():
                yield {"metric": {LABEL: name}, "values": [[at, str(value)] for at in times]}
        elif "label_replace" in query:
            for name, value in self.figures.items():
                labels = {"instance": "10.0.0.7:8000", "engine": "0", LABEL: name}
                yield {"metric": labels, "value": [0, str(value)]}
        elif metrics.SETTING in query:
            for name, value in {"maxNumSeqs": 128, "maxNumBatchedTokens": 2048}.items():
                yield {"metric": {"name": name}, "value": [0, str(value)]}
        elif metrics.SLO_TARGET not in query:
            for labels in self.engines:
                yield {"metric": labels, "value": [0, "1"]}


class Asking(BaseHTTPRequestHandler):
    server: Answers

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        (query,) = form["query"]
        found = list(self.server.results(query, form))
        text = json.dumps({"status": "success", "data": {"result": found}}).encode()
        if self.server.is_away:
            text = b"Service Unavailable"
        self.send_response(503 if self.server.is_away else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(server: HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def answers() -> Iterator[Answers]:
    server = Answers()
    with running(server):
        yield server


def watching(answers: Answers, ticks: list[float], selector: str = "namespace=models") -> Watcher:
    prometheus = Prometheus(f"http://127.0.0.1:{answers.server_address[1]}")
    return Watcher(
        *(prometheus, selector, Asked(window_s=120)), clock=lambda: NOW, ticks=lambda: ticks[0]
    )


@pytest.fixture
def url(answers: Answers) -> Iterator[str]:
    with running(page.listening(watching(answers, [0.0]), ("127.0.0.1", 0))) as found:
        yield found


def test_the_answer_has_figures_their_course_and_the_diagnosis(url: str) -> None:
    answer = httpx.get(f"{url}/fleet.json").json()
    (chat,) = answer["sets"]
    assert (chat["name"], answer["problem"], answer["at"]) == ("models/chat", "", NOW)
    assert [engine["name"] for engine in chat["engines"]] == ["chat-a", "chat-b"]
    assert chat["engines"][0]["running"] == chat["now"]["running"] == 128
    assert "running" not in chat["engines"][1]  # nothing is known of it, and that is no zero
    assert len(chat["course"]) == answer["points"] == 60
    assert chat["course"][-1] == {"at": int(NOW), **{k: chat["now"][k] for k in chat["now"]}}
    assert chat["now"]["ttftP99"] == 3.0
    assert chat["settings"]["maxNumSeqs"] == 128
    told = {item["symptom"]: item for item in chat["diagnosis"]["recommendations"]}
    assert told["CapTooLow"]["change"].startswith("spec.scheduling.maxNumSeqs: ")
    assert told["CapTooLow"]["evidence"]["maxNumSeqs"] == 128


def test_deployments_templates_and_models_are_sets_of_their_own(answers: Answers) -> None:
    answers.engines[1]["paceline_dev_template_hash"] = "bb"
    answers.engines.append(OTHER)
    sets = watching(answers, [0.0]).answer()["sets"]
    assert [one["name"] for one in sets] == ["models/qwen", "models/chat · aa", "models/chat · bb"]
    assert sets[0]["selector"] == r'namespace="models",instance=~"10\\.0\\.0\\.9:8000"'


def test_what_was_found_stays_while_prometheus_is_away_and_it_recovers(answers: Answers) -> None:
    ticks = [0.0]
    watcher = watching(answers, ticks)
    assert watcher.answer()["problem"] == ""
    answers.is_away = True
    assert watcher.answer()["problem"] == ""  # nobody asks again so soon
    ticks[0] += watcher.answer()["everyS"]
    away = watcher.answer()
    assert "is no Prometheus: its answer to /api/v1/query has status 503" in away["problem"]
    assert len(away["sets"]) == 1
    answers.is_away = False
    ticks[0] += away["everyS"]
    assert watcher.answer()["problem"] == ""


def test_a_prometheus_that_is_away_from_the_start_is_told(answers: Answers) -> None:
    answers.is_away = True
    answer = watching(answers, [0.0]).answer()
    assert "is no Prometheus" in answer["problem"]
    assert (answer["sets"], answer["at"]) == ([], None)


def test_figures_are_shown_although_windows_are_too_short_to_diagnose(answers: Answers) -> None:
    answers.figures["scrapes"] = 1
    (chat,) = watching(answers, [0.0]).answer()["sets"]
    assert "holds 1 scrapes and needs 4" in chat["diagnosis"]["problem"]
    assert chat["now"]["running"] == 128


def test_every_file_comes_with_a_policy_that_names_no_other_host(url: str) -> None:
    own = sorted(file.name for file in (Path(page.__file__).parent / "ui").iterdir())
    assert own == ["fleet.js", "index.html", "set.js"]
    for name in ("", *own, "page.css", "chart.js", "figures.js", "parts.js", "icon.svg"):
        found = httpx.get(f"{url}/{name}")
        assert found.status_code == 200, name
        policy = found.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert not re.search("unsafe|http", policy)


def test_the_files_name_no_address_and_need_no_inline_script() -> None:
    for file in (Path(page.__file__).parent / "ui").iterdir():
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"\w+://", text) == [], file.name
        assert re.search(r"<script(?![^>]*\ssrc=)|\s(on\w+|style)=\"", text) is None, file.name


def test_nothing_else_is_served_and_no_other_name_is_answered(url: str) -> None:
    for name in ("../page.py", "%2e%2e/page.py", "panels.js", "ui/"):
        assert httpx.get(f"{url}/{name}").status_code == 404, name
    port = urlsplit(url).port
    for host, status in (("evil.example", 403), (f"localhost:{port}", 200), ("[::1]:1", 200)):
        assert httpx.get(f"{url}/", headers={"Host": host}).status_code == status, host


def test_whoever_listens_wider_is_asked_by_any_name(answers: Answers) -> None:
    with running(page.listening(watching(answers, [0.0]), ("0.0.0.0", 0))) as url:
        assert httpx.get(f"{url}/", headers={"Host": "fleet.example"}).status_code == 200


def test_a_port_that_is_taken_is_told(answers: Answers, url: str) -> None:
    port = urlsplit(url).port
    assert port is not None
    with pytest.raises(CommandError, match=f"nothing can listen at 127.0.0.1:{port}"):
        page.listening(watching(answers, [0.0]), ("127.0.0.1", port))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-l", "a=b", "--serve", "0", "--json"), "--serve shows a page; choose one"),
        (("-l", "a=b", "--serve", "host:http"), "a port must be 0 to 65535, got 'http'"),
        (("-l", "models", "--serve", "0"), "--selector must be label matchers"),
        (("-l", "a=b", "--serve", "0", "--set", "maxSeqs=1"), "maxSeqs is no setting"),
    ],
)
def test_what_is_wrong_in_itself_is_told_before_anybody_listens(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "--prometheus", "http://127.0.0.1:9", *arguments]) == 2
    assert told in capsys.readouterr().err
