"""What a preStop hook calls, against a real server of a tiny model."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from paceline import cli
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import write_tiny_model


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    model = write_tiny_model(tmp_path / "model")
    with server_process(str(model), tmp_path, "--num-kv-blocks", "64") as running:
        yield running


def drain(server: ServerProcess, propagation_s: float) -> float:
    """Run the hook; returns how long it took."""
    began_s = time.monotonic()
    argv = ["drain", "--pid", str(server.pid), "--propagation-s", str(propagation_s)]
    assert cli.main([*argv, "--port", server.url.rpartition(":")[2]]) == 0
    return time.monotonic() - began_s


def completion(server: ServerProcess) -> httpx.Response:
    body = {"model": server.model, "prompt": "a river", "max_tokens": 2}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)


@pytest.mark.slow
def test_the_hook_lasts_as_long_as_phase_1_and_not_longer(server: ServerProcess) -> None:
    assert drain(server, propagation_s=0.5) >= 0.5
    assert server.get("/health/ready").json()["reason"] == "Propagating"
    accepted = completion(server)
    assert (accepted.status_code, accepted.headers["connection"]) == (200, "close")
    httpx.post(f"{server.admin_url}/v1/paceline/drain", json={"propagation_s": 0})
    while server.get("/health/ready").json()["reason"] != "Drained":
        time.sleep(0.01)
    assert drain(server, propagation_s=600) < 60
    assert completion(server).status_code == 503
    os.kill(server.pid, signal.SIGTERM)
    assert drain_of_ended(server) == 1


def drain_of_ended(server: ServerProcess) -> int:
    while Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    return cli.main(["drain", "--pid", str(server.pid), "--port", "1"])


def test_a_process_that_the_signal_would_end_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeper) as process:
        try:
            argv = ["drain", "--pid", str(process.pid), "--propagation-s", "0", "--port", "1"]
            assert cli.main(argv) == 1
            assert "nothing was sent" in capsys.readouterr().err
            assert process.poll() is None
        finally:
            process.kill()
    assert cli.main(["drain", "--pid", str(process.pid), "--port", "1"]) == 1
    assert f"there is no process {process.pid}" in capsys.readouterr().err
