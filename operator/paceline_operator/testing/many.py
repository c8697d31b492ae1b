"""What many new LLMDeployments cost the operator: `python -m paceline_operator.testing.many 200`.

The real process (kopf, HTTP, watches) beside an API server in memory, so that nothing but the
operator is measured: processor time, looks and writes for each deployment, and memory. With
`--profile FILE` it runs under cProfile. On a real server: `e2e/journeys/test_operator_scale.py`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from paceline_crds import routes
from paceline_operator.testing.api import NAMESPACE
from paceline_operator.testing.served import Served

_POLL_S = 0.2
_STILL_S = 2.0
"""An operator that has written nothing for so long has ended."""
_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one run; `each` is for one deployment.

    Attributes:
        start_cpu_s: processor time until the operator was ready.
        done_s: from the first deployment to the last child of the last one.
        writes: method and resource -> number for each deployment.
    """

    number: int
    start_cpu_s: float
    cpu_ms_each: float
    done_s: float
    looks_each: float
    writes_each: dict[str, float]
    events_each: float
    event_kib_each: float
    rss_mib: float


async def measure(number: int, profile: str = "") -> Cost:
    """Create so many deployments at once, each with a spec of its own, and wait for silence.

    Args:
        number: of deployments.
        profile: where cProfile writes; it makes everything twice as slow.
    """
    served = Served(time.time)
    address = await served.start()
    async with _operator(address, _free_port(), profile) as operator:
        await operator.wait_ready()
        start_cpu_s, began = operator.cpu_s(), time.monotonic()
        for index in range(number):
            await served.create(f"many-{index:04d}", _spec(index))
        while len(served.store.of_kind("ConfigMap")) < number:
            await operator.wait(began)
        done_s = time.monotonic() - began
        await operator.wait_still(served)
        cost = Cost(
            number=number,
            start_cpu_s=start_cpu_s,
            cpu_ms_each=round(1000 * (operator.cpu_s() - start_cpu_s) / number, 2),
            done_s=round(done_s, 2),
            looks_each=await operator.looks() / number,
            writes_each={name: count / number for name, count in served.writes.items()},
            events_each=served.num_events / number,
            event_kib_each=round(served.event_bytes / number / 1024, 1),
            rss_mib=operator.rss_mib(),
        )
    await served.stop()
    return cost


def _spec(index: int) -> dict[str, Any]:
    return {"replicas": 0, "model": {"uri": "demo"}, "maxModelLen": 1024 + index}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Operator:
    """The process under measurement."""

    def __init__(self, pid: int, port: int, log: Path, http: aiohttp.ClientSession) -> None:
        self._pid = pid
        self._port = port
        self._log = log
        self._http = http

    async def page(self, path: str) -> str:
        """What it answers on its own port, empty if it does not."""
        try:
            async with self._http.get(f"http://127.0.0.1:{self._port}{path}") as answer:
                return await answer.text()
        except aiohttp.ClientError:
            return ""

    async def wait(self, began: float) -> None:
        """A moment, but not for ever."""
        if time.monotonic() - began > _LIMIT_S:
            raise TimeoutError(self._log.read_text()[-2000:])
        await asyncio.sleep(_POLL_S)

    async def wait_ready(self) -> None:
        """Until its first lists are done and its watches have begun."""
        began = time.monotonic()
        while await self.page("/readyz") != "ok\n":
            await self.wait(began)
        await asyncio.sleep(1.0)

    async def wait_still(self, served: Served) -> None:
        """Until nothing is written any more."""
        began, before = time.monotonic(), -1
        while before != served.store.version:
            before = served.store.version
            await self.wait(began)
            await asyncio.sleep(_STILL_S)

    async def looks(self) -> float:
        """How often it has looked at any deployment."""
        lines = (await self.page(routes.METRICS)).splitlines()
        name = "paceline_operator_reconcile_seconds_count "
        return next(float(line.split()[1]) for line in lines if line.startswith(name))

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Memory that it holds."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) // 1024


@contextlib.asynccontextmanager
async def _operator(address: str, port: int, profile: str) -> AsyncIterator[_Operator]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "key").write_text("0" * 32)
        (folder / "kubeconfig").write_text(json.dumps(_kubeconfig(address)))
        config = {
            "watchNamespaces": [NAMESPACE],
            "httpPort": port,
            "adminTokens": {"masterKeyFile": str(folder / "key")},
            "engine": {"image": "none:1"},
        }
        (folder / "config").write_text(json.dumps(config))
        argv = ["-m", "cProfile", "-o", profile] if profile else []
        argv += ["-m", "paceline_operator", f"--config={folder / 'config'}"]
        env = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
        log = folder / "log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *argv, env=env, stdout=out, stderr=out
            )
            try:
                async with aiohttp.ClientSession() as http:
                    yield _Operator(process.pid, port, log, http)
            finally:
                process.terminate()
                await process.wait()


def _kubeconfig(address: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="processor time of many new LLMDeployments")
    parser.add_argument("number", type=int)
    parser.add_argument("--profile", default="")
    given = parser.parse_args()
    cost = asyncio.run(measure(given.number, given.profile))
    sys.stdout.write(json.dumps(asdict(cost), indent=1) + "\n")


if __name__ == "__main__":
    main()
