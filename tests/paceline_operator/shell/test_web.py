"""`/healthz`, `/readyz`, `/metrics`, and what the metrics say."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline_crds.operator_metrics import OPERATOR_METRICS
from paceline_operator.shell import metrics, web
from paceline_operator.shell.cache import Cache, Key
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import StartRefused
from paceline_operator.shell.leader import Always
from paceline_operator.shell.queue import WorkQueue
from paceline_operator.testing.api import FakeApi
from paceline_operator.testing.store import Store


async def _nothing(_: Key) -> None:
    return None


def test_readiness_and_liveness_answer_apart() -> None:
    async def script() -> None:
        ready = False
        async with web.serving(
            "127.0.0.1", 0, is_alive=lambda: True, is_ready=lambda: ready, metrics=lambda: b"m 1\n"
        ) as port:
            base = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession(base) as http:

                async def get(path: str) -> tuple[int, str]:
                    async with http.get(path) as answer:
                        return answer.status, await answer.text()

                assert await get("/healthz") == (200, "ok\n")
                assert (await get("/readyz"))[0] == 503
                ready = True
                assert await get("/readyz") == (200, "ok\n")
                assert await get("/metrics") == (200, "m 1\n")

    asyncio.run(script())


def test_work_that_hangs_for_long_is_not_alive() -> None:
    async def script() -> None:
        now, begun = [0.0], asyncio.Event()

        async def hang(_: Key) -> None:
            begun.set()
            await asyncio.Event().wait()

        cluster = Cluster(FakeApi(Store(), lambda: 0.0))
        queue = WorkQueue(hang, 1, clock=lambda: now[0])
        state = metrics.State(Cache("m"), queue, cluster, Always())
        running = asyncio.create_task(queue.run())
        queue.add(("models", "demo"))
        await begun.wait()
        now[0] = metrics.STUCK_S - 1
        assert state.is_alive()
        now[0] = metrics.STUCK_S
        assert not state.is_alive()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(script())


def test_a_taken_port_is_said_at_the_start() -> None:
    async def script() -> None:
        def yes() -> bool:
            return True

        async with web.serving(
            "127.0.0.1", 0, is_alive=yes, is_ready=yes, metrics=lambda: b""
        ) as port:
            with pytest.raises(StartRefused, match=f"port {port}"):
                async with web.serving(
                    "127.0.0.1", port, is_alive=yes, is_ready=yes, metrics=lambda: b""
                ):
                    pass

    asyncio.run(script())


def deployment(name: str, conditions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"},
        "status": {
            "conditions": [{"type": kind, "status": conditions[kind]} for kind in conditions]
        },
    }


def test_metrics_count_reconciles_writes_and_deployments_and_name_those_that_are_down() -> None:
    cluster, cache = Cluster(FakeApi(Store(), lambda: 0.0)), Cache("m")
    cluster.num_writes["apply"] = 7
    good = {"Ready": "True", "Available": "True", "Degraded": "False"}
    for name, differing in {
        "a": {},
        "down": {"Ready": "False", "Available": "False", "Degraded": "True"},
        "loading": {"Ready": "False", "Available": "False"},
        "limping": {"Ready": "False", "Degraded": "True"},
    }.items():
        cache.see("LLMDeployment", deployment(name, {**good, **differing}))
    counts = metrics.Reconciles()
    counts.registry.register(metrics.State(cache, WorkQueue(_nothing, 1), cluster, Always()))
    counts.told(0.02, "written")
    families = list(text_string_to_metric_families(metrics.text(counts.registry).decode()))
    ours = {family.name for family in families if family.name.startswith("paceline_operator_")}
    ours = {name for name in ours if not name.endswith("_created")}
    assert ours == {name.removesuffix("_total") for name in OPERATOR_METRICS}
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["paceline_operator_reconciles_total", "written"] == 1
    assert found["paceline_operator_reconcile_seconds_count",] == 1
    assert found["paceline_operator_api_writes_total", "apply"] == 7
    assert found["paceline_operator_deployments", "True"] == 1
    assert found["paceline_operator_deployments", "False"] == 3
    down = [labels for name, *labels in found if name == "paceline_operator_deployment_down"]
    assert down == [["down", "n"]]
    assert found["paceline_operator_is_leader",] == 1
