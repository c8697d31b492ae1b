"""A thousand deployments on the real API server: memory, time, writes, and silence afterwards."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import host_volumes, operator_process
from cluster.client import Cluster
from cluster.namespace import Image, Namespace
from cluster.operator_process import OperatorProcess
from cluster.processes import State

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
NUMBER = int(os.environ.get("PACELINE_E2E_SCALE", "1000"))
LIMIT_S = 1800
MAX_RSS_MIB = 250
QUIET_S = 60
SCRIPT = Path(__file__).with_name("operator_scale.py")


@pytest.fixture
def operator(
    cluster: Cluster, crd: str, namespace: Namespace, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator whose deployments want no pods, so that the pods' own cost is not counted."""
    assert crd
    process = OperatorProcess(cluster, namespace.name, tmp_path, Image(name="none:1"))
    yield from operator_process.running(process)


def cpu_seconds(cluster: Cluster) -> dict[str, float]:
    """What the parts of a cluster of this machine have used so far."""
    return State(cluster.layout).cpu_seconds() if cluster.layout is not None else {}


def test_many_deployments_are_served_in_time_in_little_memory_and_then_in_silence(
    namespace: Namespace, operator: OperatorProcess, tell: Callable[[str], None]
) -> None:
    rooms = ":".join(str(host_volumes.CHECKOUT / room) for room in host_volumes.SOURCES)
    busy_before = cpu_seconds(namespace.cluster)
    command = [sys.executable, str(SCRIPT), namespace.name, str(NUMBER), str(LIMIT_S)]
    env = {"PYTHONPATH": rooms, "PYTHONSAFEPATH": "1"}
    done = namespace.cluster.run(command, env=env, timeout_s=LIMIT_S + 60)
    found = json.loads(done.stdout.splitlines()[-1])
    writes = operator.writes()
    busy = cpu_seconds(namespace.cluster)
    operator_cpu_s = operator.metric("process_cpu_seconds_total")
    time.sleep(QUIET_S)  # silence is what is measured
    idle_cpu_s = operator.metric("process_cpu_seconds_total") - operator_cpu_s
    found |= {
        "number": NUMBER,
        "idle_cpu_s_a_minute": round(idle_cpu_s, 1),
        "rss_mib": operator.rss_mib(),
        "writes": writes,
        "reconcile_p99_s": operator.quantile("paceline_operator_reconcile_seconds", 0.99),
        "operator_cpu_s": operator_cpu_s,
        "cluster_cpu_s": {name: round(busy[name] - busy_before[name]) for name in busy},
    }
    tell(json.dumps(found))
    assert operator.writes() == writes, "an idle operator writes nothing"
    assert found["rss_mib"] <= MAX_RSS_MIB
