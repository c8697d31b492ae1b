"""The operator as a process: how it ends, and what it says then."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from paceline_operator.testing import http_api

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def start(folder: Path, address: str) -> asyncio.subprocess.Process:
    """An operator on a laptop, whose kubeconfig names that address."""
    here = {"cluster": "c", "user": "u"}
    kubeconfig = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": here}],
    }
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
    (folder / "key").write_text("k" * 32)
    config = {
        "watchNamespaces": ["models"],
        "httpPort": free_port(),
        "adminTokens": {"masterKeyFile": str(folder / "key")},
        "engine": {"image": "engine:1"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "paceline_operator",
        f"--config={folder / 'config.json'}",
        env={**os.environ, "KUBECONFIG": str(folder / "kubeconfig")},
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    assert process.stderr is not None
    told = (await asyncio.wait_for(process.stderr.read(), 40)).decode()
    return await process.wait(), told


def test_a_kind_that_is_gone_ends_the_process_as_failed_and_says_why(tmp_path: Path) -> None:
    async def live() -> tuple[int | None, str]:
        async with http_api.serving(is_gone=True) as address:
            return await ended(await start(tmp_path, address))

    code, told = asyncio.run(live())
    assert code == 1, told
    assert "a watch cannot go on" in told.splitlines()[-1]


def test_who_is_told_to_end_does_so_at_once_and_in_order(tmp_path: Path) -> None:
    async def live() -> tuple[int | None, str, float]:
        async with http_api.serving() as address:
            process = await start(tmp_path, address)
            assert process.stderr is not None
            said = b""
            while b"everything was listed" not in said:
                said += await asyncio.wait_for(process.stderr.readline(), 40)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            return *await ended(process), time.monotonic() - began

    code, told, took_s = asyncio.run(live())
    assert code == 0, told
    assert "Traceback" not in told
    assert took_s < 3, told
