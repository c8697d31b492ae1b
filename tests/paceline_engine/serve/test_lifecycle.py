"""A whole server as its own process: real sockets, real signals, a runner that needs no torch."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.lifecycle import EXIT_USAGE, serve
from paceline_engine.testing import fake_engine
from paceline_engine.testing.ports import free_port
from paceline_engine.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow

SERVE = """
import sys
from pathlib import Path, PosixPath
from paceline_crds.settings import EngineSettings
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.lifecycle import serve
settings = EngineSettings.model_validate(eval(sys.argv[2]))
sys.exit(serve(ServeConfig(model="tiny", settings=settings, **eval(sys.argv[1]))))
"""


@dataclass(slots=True)
class Server:
    """A server's process and where it listens."""

    process: subprocess.Popen[bytes]
    http: httpx.Client
    admin: httpx.Client
    log: Path
    model_dir: Path

    def status(self, path: str) -> int:
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return 0

    def ends_with(self) -> int:
        return self.process.wait(20)

    def step_process(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = children.read_text().split()
        return int(pid)


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


@contextmanager
def serving(
    tmp_path: Path,
    files: Mapping[str, str] = MappingProxyType({"step_ms": "2"}),
    *,
    is_ready: bool = True,
    settings: dict[str, object] | None = None,
    **config: object,
) -> Iterator[Server]:
    model_dir = write_tiny_model(tmp_path / "model")
    for name, text in files.items():
        (model_dir / name).write_text(text)
    options = {
        "port": free_port(),
        "admin_port": free_port(),
        "runner_factory": fake_engine.FACTORY,
    } | config
    source = f"dict(model_dir={model_dir!r}, **{options!r})"
    log = tmp_path / "log"
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, source, repr(settings or {})], stderr=log_file
        )
    server = Server(
        process=process,
        http=httpx.Client(base_url=f"http://127.0.0.1:{options['port']}", timeout=20),
        admin=httpx.Client(base_url=f"http://127.0.0.1:{options['admin_port']}", timeout=20),
        log=log,
        model_dir=model_dir,
    )
    try:
        until(lambda: server.status("/health/startup") != 0 or process.poll() is not None)
        if is_ready:
            until(lambda: server.status("/health/ready") == 200)
        yield server
    finally:
        server.http.close()
        server.admin.close()
        process.kill()
        process.wait()


def completion(max_tokens: int, *, stream: bool = True) -> dict[str, object]:
    return {
        "model": "tiny",
        "prompt": [1, 2, 3],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
        "temperature": 0,
    }


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_sigterm_while_loading_ends_the_server_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path, {"slow_load": ""}, is_ready=False) as server:
        until(lambda: server.http.get("/health/startup").json()["phase"] == "Loading")
        assert server.status("/health/live") == 200
        assert server.status("/health/ready") == 503
        assert server.http.post("/v1/completions", json=completion(1)).status_code == 503
        child = server.step_process()
        server.process.send_signal(signal.SIGTERM)
        assert server.ends_with() == 0
        until(lambda: not Path(f"/proc/{child}").exists())


def test_an_idle_server_does_not_wait_for_the_engines_interpreter_to_end(tmp_path: Path) -> None:
    with serving(tmp_path, {"slow_exit": ""}, log_level="debug") as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.ends_with() == 0
        assert "drained; exiting" in server.log.read_text()
        assert "it is killed" not in server.log.read_text()


def test_sigterm_refuses_new_requests_and_finishes_running_ones(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        server.http.stream("POST", "/v1/completions", json=completion(300)) as running,
    ):
        chunks = events(running.iter_lines())
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.status("/health/ready") == 503)
        assert server.status("/health/live") == 200
        refused = httpx.post(f"{server.http.base_url}/v1/completions", json=completion(1))
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert int(refused.headers["retry-after"]) >= 1
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        assert reasons[-1] == "length"
        assert server.ends_with() == 0


def test_a_stream_beyond_the_grace_gets_an_error_event(tmp_path: Path) -> None:
    with (
        serving(tmp_path, shutdown_timeout_s=0.3, settings={"numKvBlocks": 4000}) as server,
        server.http.stream("POST", "/v1/completions", json=completion(50_000)) as running,
    ):
        chunks = events(running.iter_lines())
        next(chunks)
        server.process.send_signal(signal.SIGTERM)
        last = list(chunks)[-1]
        assert "shut down" in str(last["error"])
        assert server.ends_with() == 0


def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    with (
        serving(tmp_path, shutdown_timeout_s=600.0, settings={"numKvBlocks": 4000}) as server,
        server.http.stream("POST", "/v1/completions", json=completion(50_000)) as running,
    ):
        chunks = events(running.iter_lines())
        next(chunks)
        server.process.send_signal(signal.SIGINT)
        until(lambda: server.status("/health/ready") == 503)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert "error" in list(chunks)[-1]
        assert server.ends_with() == 0


def test_a_closed_terminal_lets_running_requests_finish(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        server.http.stream("POST", "/v1/completions", json=completion(300)) as running,
    ):
        chunks = events(running.iter_lines())
        next(chunks)
        for pid in (server.process.pid, server.step_process()):  # as the kernel signals the group
            os.kill(pid, signal.SIGHUP)
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        assert reasons[-1] == "length"
        assert server.ends_with() == 0
        assert "drain (SIGHUP)" in server.log.read_text()


def test_a_drain_by_post_keeps_the_process_until_sigterm(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        answer = server.admin.post("/v1/paceline/drain", json={"propagation_s": 0.5})
        assert answer.json() == {"phase": "Propagating"}
        accepted = server.http.post("/v1/completions", json=completion(2, stream=False))
        assert (accepted.status_code, accepted.headers["connection"]) == (200, "close")
        assert server.status("/health/ready") == 503

        def phase() -> str:
            body = server.admin.get("/v1/paceline/status").json()
            return str(body["drain"]["phase"])

        until(lambda: phase() == "Drained")
        assert server.http.post("/v1/completions", json=completion(1)).status_code == 503
        assert server.status("/health/live") == 200
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.ends_with() == 0


def test_a_killed_engine_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    with (
        serving(tmp_path, settings={"numKvBlocks": 4000}) as server,
        server.http.stream("POST", "/v1/completions", json=completion(50_000)) as running,
    ):
        chunks = events(running.iter_lines())
        next(chunks)
        os.kill(server.step_process(), signal.SIGKILL)
        assert "error" in list(chunks)[-1]
        assert server.ends_with() == 1
        assert "EngineDied: the step process ended by signal SIGKILL" in server.log.read_text()


def test_a_server_that_is_killed_takes_its_engine_with_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        child = server.step_process()
        server.process.kill()
        server.process.wait()
        until(lambda: not Path(f"/proc/{child}").exists())


def test_a_failed_start_is_told_and_ends_the_server(tmp_path: Path) -> None:
    files = {"start_failed": "UnsupportedModel"}
    with serving(tmp_path, files, is_ready=False) as server:
        assert server.ends_with() == 3
        assert "UnsupportedModel: the test wants it so" in server.log.read_text()


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_server_that_could_read_no_text_is_never_ready(tmp_path: Path, file: str) -> None:
    with serving(tmp_path, {file: "{% if %}"}, is_ready=False) as server:
        until(lambda: server.process.poll() is not None or server.status("/health/ready") == 200)
        assert server.ends_with() == 3
        text = server.log.read_text()
        assert "the engine did not start: UnsupportedModel: " in text
        assert file in text
        assert "Traceback" not in text


def test_a_hung_step_turns_liveness_red_and_back(tmp_path: Path) -> None:
    with serving(tmp_path, min_hang_s=0.3) as server:
        server.http.post("/v1/completions", json=completion(30, stream=False))
        assert server.status("/health/live") == 200
        hang = server.model_dir / "hang"
        hang.touch()
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(
                server.http.post, "/v1/completions", json=completion(3, stream=False)
            )
            until(lambda: server.status("/health/live") == 503)
            assert server.status("/health/ready") == 503
            hang.unlink()
            assert answer.result(20).status_code == 200
        until(lambda: server.status("/health/live") == 200)


def refused(config: ServeConfig, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.ERROR):
        assert serve(replace(config, runner_factory=fake_engine.FACTORY)) == EXIT_USAGE
    return caplog.text


def test_a_taken_port_is_an_error_with_its_own_exit_code(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refused(ServeConfig(model="tiny", port=port), caplog)
        assert f"--port: 127.0.0.1:{port}: the port is in use" in text


def test_settings_that_nothing_builds_end_the_start(caplog: pytest.LogCaptureFixture) -> None:
    settings = EngineSettings(tensor_parallel_size=2)
    text = refused(ServeConfig(model="tiny", settings=settings), caplog)
    assert "tensorParallelSize must be 1, got 2" in text


def test_a_key_file_that_cannot_be_read_ends_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tmp_path / "missing"
    assert str(missing) in refused(ServeConfig(model="tiny", api_key_file=missing), caplog)


def test_the_log_says_where_and_what_it_serves(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        text = server.log.read_text()
        assert f"listening on http://127.0.0.1:{server.http.base_url.port}" in text
        until(lambda: "ready after" in server.log.read_text())
