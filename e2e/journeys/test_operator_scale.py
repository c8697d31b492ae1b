"""A thousand deployments on the real API server: memory, time, writes, and silence afterwards.

What is timed is the operator's part: from the first creation until each LLMDeployment has all its
children and a status that says so. Each Deployment and Service also has other controllers write
(ReplicaSets, statuses, Endpoints, EndpointSlices), about as much again, and where all of it shares
two cores it cannot be told apart. So the journey runs twice: once with those controllers **held
back** (ended, and started again when the operator has done its part), which is what the limit
speaks of, and once with everything **beside** it. Both figures are told; what follows, the silence
above all, is with the controllers in both.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import held_back, host_volumes, operator_process
from cluster.client import Cluster, Document
from cluster.namespace import Image, Namespace
from cluster.operator_process import OperatorProcess
from cluster.processes import State
from cluster.wait import until

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
NUMBER = int(os.environ.get("PACELINE_E2E_SCALE", "1000"))
LIMIT_S = 1800
MAX_RSS_MIB = 250
QUIET_S = 60
SCRIPT = Path(__file__).with_name("operator_scale.py")


@pytest.fixture(autouse=True)
def _nothing_left(namespace: Namespace) -> Iterator[None]:
    """What one run leaves would be deleted beside the next one."""
    yield
    namespace.delete(wait=False)
    until(
        "the namespace is gone",
        lambda: not namespace.cluster.get("namespaces", namespace.name),
        timeout_s=LIMIT_S,
        interval_s=5,
    )


@pytest.fixture
def operator(
    cluster: Cluster, crd: str, namespace: Namespace, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator whose deployments want no pods, so that the pods' own cost is not counted."""
    assert crd
    process = OperatorProcess(cluster, namespace.name, tmp_path, Image(name="none:1"))
    yield from operator_process.running(process)


@pytest.fixture(params=["held back", "beside"])
def controllers(
    request: pytest.FixtureRequest, cluster: Cluster
) -> contextlib.AbstractContextManager[None]:
    """Where the other controllers are while the operator writes."""
    if request.param == "beside":
        return contextlib.nullcontext()
    if cluster.layout is None:
        pytest.skip("needs a cluster of this machine: its controllers are ended for a while")
    return held_back.controllers(cluster)


def cpu_seconds(cluster: Cluster) -> dict[str, float]:
    """What the parts of a cluster of this machine have used so far."""
    return State(cluster.layout).cpu_seconds() if cluster.layout is not None else {}


def create_and_wait(namespace: Namespace) -> Document:
    """What the script found: seconds from the first creation on."""
    rooms = ":".join(str(host_volumes.CHECKOUT / room) for room in host_volumes.SOURCES)
    command = [sys.executable, str(SCRIPT), namespace.name, str(NUMBER), str(LIMIT_S)]
    env = {"PYTHONPATH": rooms, "PYTHONSAFEPATH": "1"}
    done = namespace.cluster.run(command, env=env, timeout_s=LIMIT_S + 60)
    found: Document = json.loads(done.stdout.splitlines()[-1])
    return found


def have_followed(namespace: Namespace) -> bool:
    """Whether the Deployment controller has seen each Deployment, and others each Service."""
    seen = [item.get("status", {}) for item in namespace.items("deployments")]
    slices = namespace.items("endpointslices")
    return len(slices) >= NUMBER and all("observedGeneration" in status for status in seen)


def test_many_deployments_are_served_in_time_in_little_memory_and_then_in_silence(
    namespace: Namespace,
    operator: OperatorProcess,
    controllers: contextlib.AbstractContextManager[None],
    request: pytest.FixtureRequest,
    tell: Callable[[str], None],
) -> None:
    cluster, began = namespace.cluster, time.monotonic()
    with controllers:
        busy_before = cpu_seconds(cluster)
        found = create_and_wait(namespace)
        busy = cpu_seconds(cluster)
        operator_cpu_s = operator.metric("process_cpu_seconds_total")
    operator.settle()
    writes = operator.writes()
    until(
        "the other controllers have done their part",
        lambda: have_followed(namespace),
        timeout_s=LIMIT_S,
        interval_s=5,
    )
    others_s = time.monotonic() - began
    idle_cpu_s = -operator.metric("process_cpu_seconds_total")
    time.sleep(QUIET_S)  # silence is what is measured
    idle_cpu_s += operator.metric("process_cpu_seconds_total")
    found |= {
        "controllers": request.node.callspec.params["controllers"],
        "number": NUMBER,
        "others_done_s": round(others_s),
        "idle_cpu_s_a_minute": round(idle_cpu_s, 1),
        "rss_mib": round(operator.rss_mib()),
        "writes": writes,
        "reconcile_p99_s": operator.quantile("paceline_operator_reconcile_seconds", 0.99),
        "operator_cpu_s": round(operator_cpu_s, 1),
        "cluster_cpu_s": {name: round(busy[name] - busy_before[name], 1) for name in busy},
    }
    tell(json.dumps(found))
    # Four applies, a status and an event; a few more where a busy server did not answer in time.
    assert 6 * NUMBER <= sum(map(float, writes.values())) <= 6.1 * NUMBER
    assert operator.writes() == writes, "an idle operator writes nothing"
    assert found["rss_mib"] <= MAX_RSS_MIB
