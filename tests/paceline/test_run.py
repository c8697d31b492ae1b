"""`paceline run` as a person uses it: processes, a tiny model, signals."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from paceline.supervisor import free_port
from paceline_engine.testing.clients import clients
from paceline_engine.testing.tiny_model import TinyModel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("tiny"))


class Run:
    """One `paceline run` and all that it has printed."""

    def __init__(self, manifest: Path, *options: str) -> None:
        self.port = free_port()
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "paceline", "run", "-f", str(manifest)),
                *("--port", str(self.port), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(manifest.parent)},
        )
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.text, repr(text))

    def wait_until(self, is_so: Callable[[], bool], what: str = "") -> None:
        with self._news:
            seen = self._news.wait_for(is_so, DEADLINE_S)
        assert seen, f"waited for {what} in:\n{self.text}"

    def serving_processes(self) -> list[psutil.Process]:
        """The HTTP process of each replica."""
        return psutil.Process(self.process.pid).children()

    def admin_ports(self) -> list[int]:
        return [int(p) for p in re.findall(r":(\d+)/v1/paceline/settings", self.text)]

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code


def manifest(tmp_path: Path, model: Path, **spec: Any) -> Path:
    file = tmp_path / "run.yaml"
    document = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "tiny"},
        "spec": {
            "model": {"uri": f"file://{model}", "servedName": "tiny"},
            "extraArgs": ["--num-kv-blocks=128"],
            **spec,
        },
    }
    file.write_text(json.dumps(document))
    return file


Start = Callable[..., Run]
"""`start(*options, **spec)` runs a manifest of the tiny model."""


@pytest.fixture
def start(tmp_path: Path, model: Path) -> Iterator[Start]:
    started: list[Run] = []

    def begin(
        *options: str, until: str = "Ctrl-C drains and stops", folder: Path = model, **spec: Any
    ) -> Run:
        run = Run(manifest(tmp_path, folder, **spec), *options)
        started.append(run)
        if until:
            run.wait_for(until)
        return run

    yield begin
    for run in started:
        if run.process.poll() is None:
            for child in psutil.Process(run.process.pid).children(recursive=True):
                child.kill()
            run.process.kill()
            run.process.wait()
        run._reader.join(DEADLINE_S)
        assert run.process.stdout is not None
        run.process.stdout.close()


def call(method: str, url: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    request = urllib.request.Request(
        url, None if body is None else json.dumps(body).encode(), method=method
    )
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
        return answer.status, text if url.endswith("/metrics") else json.loads(text)


def test_two_replicas_serve_restart_with_the_settings_in_force_and_drain(start: Start) -> None:
    run = start(replicas=2, scheduling={"maxNumSeqs": 8})
    assert "tiny: 2 x tiny on this machine" in run.text
    assert f"serving tiny on {run.url}" in run.text
    assert "the sample failed" not in run.text

    prompt = {"model": "tiny", "prompt": "The scheduler", "max_tokens": 8, "ignore_eos": True}
    for _ in range(2):
        status, answer = call("POST", run.url + "/v1/completions", prompt)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    _, metrics = call("GET", run.url + "/metrics")
    running = [line for line in metrics.splitlines() if "num_requests_running{" in line]
    assert [re.findall(r'engine="(\d)"', line) for line in running] == [["0"], ["1"]]

    client = openai.OpenAI(base_url=run.url + "/v1", api_key="none")
    chunks = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=4, stream=True
    )
    assert next(chunk.choices[0].finish_reason for chunk in [*chunks][::-1] if chunk.choices)

    folder = Path(re.findall(r"logs: (\S+)", run.text)[0])
    token_file = folder / "admin-token"
    assert token_file.stat().st_mode & 0o077 == 0
    token = token_file.read_text().strip()
    settings = f"http://127.0.0.1:{run.admin_ports()[0]}/v1/paceline/settings"
    status, change = call("PATCH", settings, {"maxNumSeqs": 5, "revision": 3}, token)
    assert (status, change["new"], change["revision"]) == (200, {"maxNumSeqs": 5}, 3)
    run.wait_for("settings changed, revision 3: maxNumSeqs 8 -> 5")

    victim = next(
        child for child in run.serving_processes() if str(run.admin_ports()[0]) in child.cmdline()
    )
    victim.kill()
    run.wait_for("replica 0 ended (killed by SIGKILL); it starts again in 1 s")
    status, _ = call("POST", run.url + "/v1/completions", prompt)
    assert status == 200
    run.wait_for("replica 0 is ready again")
    run.wait_until(lambda: len(run.admin_ports()) == 3)
    settings = f"http://127.0.0.1:{run.admin_ports()[-1]}/v1/paceline/settings"
    _, state = call("GET", settings, token=token)
    assert (state["settings"]["maxNumSeqs"], state["revision"]) == (5, 3)
    assert state["settings"]["bootMaxNumSeqs"] == 16

    children = psutil.Process(run.process.pid).children(recursive=True)
    long = client.completions.create(
        model="tiny",
        prompt="The scheduler",
        max_tokens=400,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    assert next(long).choices
    run.process.send_signal(signal.SIGINT)
    run.wait_for("draining: 1 requests still run")
    *_, last = long
    assert last.usage is not None
    assert last.usage.completion_tokens == 400
    assert run.process.wait(DEADLINE_S) == 0
    run.wait_for("stopped")
    assert run.lines[-1] == "stopped\n"
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert not folder.exists()


def test_a_model_that_cannot_be_loaded_ends_the_run_with_the_reason(
    tmp_path: Path, start: Start
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    run = start(until="", folder=empty)
    assert run.process.wait(DEADLINE_S) == 3
    run.wait_for("whole log")
    assert "replica 0 did not start (exit code 3)" in run.text
    assert "has no config.json" in run.text
    assert "Traceback" not in run.text


def test_replicas_end_when_their_owner_is_killed(start: Start) -> None:
    run = start("--no-sample")
    children = psutil.Process(run.process.pid).children(recursive=True)
    assert children
    run.process.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_a_closed_terminal_drains_and_leaves_nothing_behind(start: Start) -> None:
    run = start("--no-sample")
    children = psutil.Process(run.process.pid).children(recursive=True)
    for _ in range(2):  # the shell's and the kernel's
        run.process.send_signal(signal.SIGHUP)
    assert run.process.wait(DEADLINE_S) == 0
    run.wait_for("stopped")
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_the_third_signal_ends_a_replica_that_answers_nothing(start: Start) -> None:
    run = start("--no-sample")
    children = psutil.Process(run.process.pid).children(recursive=True)
    (victim,) = run.serving_processes()
    victim.suspend()
    for told in ("Ctrl-C again ends the wait", "Ctrl-C again ends the processes", "stopped"):
        run.process.send_signal(signal.SIGINT)
        run.wait_for(told)
    assert run.process.wait(DEADLINE_S) == 0
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert "probes in a row" not in run.text


@pytest.mark.full
def test_a_replica_that_hangs_is_ended_and_started_again(start: Start) -> None:
    """Half a minute passes until it counts as hung; the other one answers meanwhile."""
    run = start("--no-sample", replicas=2)
    victim = next(p for p in run.serving_processes() if str(run.admin_ports()[0]) in p.cmdline())
    victim.suspend()
    run.wait_for("replica 0 has not answered 12 probes in a row; its process is ended")
    prompt = {"model": "tiny", "prompt": "The scheduler", "max_tokens": 8}
    assert call("POST", run.url + "/v1/completions", prompt)[0] == 200
    run.wait_for("replica 0 is ready again")
    assert run.end() == 0


STARTED = r"tuner: ChangeStarted: (QueueWait|CapTooLow): maxNumSeqs 2 -> 4\n"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_tuner_turns_a_setting_from_the_engines_own_metrics_and_its_story_is_told(
    start: Start,
) -> None:
    """Two places for twelve clients: maxNumSeqs goes up, live, and the run's end says what to keep.

    Two to four minutes: windows of ten seconds, at least three for each side of a comparison.
    """
    tuning = {"window": "10s", "minRequests": 20, "cooldown": "0s"}
    tuning["bounds"] = {"maxNumSeqs": {"max": 16}}
    scheduling = {"maxNumSeqs": 2, "bootMaxNumSeqs": 32}
    extra = ["--num-kv-blocks=1024"]
    spec = {"tuning": tuning, "scheduling": scheduling, "extraArgs": extra}
    run = start("--no-sample", until="tuner: Auto, every 10 s", **spec)
    prompt = {"model": "tiny", "prompt": "The scheduler", "max_tokens": 24, "ignore_eos": True}
    with clients(12, lambda _: call("POST", run.url + "/v1/completions", prompt)):
        # Both hold, and QueueWait comes first unless a sample finds nobody waiting.
        run.wait_until(lambda: bool(re.search(STARTED, run.text)), STARTED)
        run.wait_for("settings changed, revision 1: maxNumSeqs 2 -> 4")
        run.wait_for("tuner: ChangeAccepted: maxNumSeqs 2 -> 4 stays: output tokens +")
    folder = Path(re.findall(r"logs: (\S+)", run.text)[0])
    (folder / "freeze").touch()
    run.wait_until(lambda: "Frozen" in (folder / "tuning.json").read_text())
    state = json.loads((folder / "tuning.json").read_text())
    (entry,) = state["overlay"]
    assert (entry["name"], entry["base"], entry["baseSource"]) == ("maxNumSeqs", "2", "Spec")
    assert run.end() == 0
    assert f"  spec.scheduling.maxNumSeqs: {entry['value']}\n" in run.text
