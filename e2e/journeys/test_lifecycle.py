"""A cluster comes, lives beside another, and goes whole, even after its own parts were killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import lifecycle, node
from cluster.client import Cluster
from cluster.host_volumes import CHECKOUT
from cluster.layout import Layout
from cluster.namespace import Image, Namespace, pod
from cluster.processes import State, end, marked, start_time
from cluster.shell import run
from cluster.wait import until

MAIN = CHECKOUT / "e2e" / "cluster" / "main.py"


@pytest.fixture
def other(cluster: Cluster) -> Iterator[Layout]:
    """Names of a second cluster on this machine; whatever is left of it goes at the end."""
    if cluster.layout is None:
        pytest.skip("starts clusters on this machine, and KUBECONFIG names one elsewhere")
    layout = Layout(f"o{os.getpid()}")
    yield layout
    lifecycle.down(layout)


def remains(layout: Layout) -> list[str]:
    """Everything on this machine that is still the cluster's."""
    mounts = Path("/proc/self/mountinfo").read_text()
    found = [str(path) for path in (layout.folder, layout.netns_path) if path.exists()]
    found += [line for line in mounts.splitlines() if f"{layout.folder}/" in line]
    found += [f"process {pid}" for pid in marked(layout)]
    for number in (1, 2):
        found += [str(path) for path in node.cgroup_folders(layout.node(number)) if path.exists()]
    return found + [str(path) for path in lifecycle.outside_traces(layout)]


def test_a_cluster_with_killed_parts_goes_whole_and_leaves_its_neighbour_alone(
    cluster: Cluster, other: Layout
) -> None:
    lifecycle.up(other, nodes=1)
    second = Cluster.here(other)
    namespace = Namespace(second, "left-behind")
    namespace.create()
    image = Image.thin()
    namespace.provide(image)
    namespace.apply(pod("sleeper", image, ["sleep", "3600"]))
    namespace.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=90s")
    containers = node.members(other.node(1))
    assert len(containers) >= 2

    end(State(other).named("containerd"), 0)
    end(State(other).named("etcd"), 0)
    # Others may end soon, since these are gone.
    assert {"containerd-node1", "etcd"} <= set(State(other).dead())
    assert all(start_time(pid) for pid in containers)

    lifecycle.down(other)
    assert remains(other) == []
    assert not any(start_time(pid) for pid in containers)
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"
    assert cluster.layout is not None
    assert State(cluster.layout).dead() == []


def test_what_a_killed_start_left_is_taken_away(other: Layout) -> None:
    start = subprocess.Popen(
        [sys.executable, str(MAIN), "up", "--name", other.name], stderr=subprocess.DEVNULL
    )
    try:
        until("some parts run", lambda: State(other).named("containerd"), timeout_s=60)
    finally:
        start.send_signal(signal.SIGKILL)
        start.wait()
    other.state_file.unlink()  # as if it had been killed before it could write
    assert marked(other)
    lifecycle.down(other)
    assert remains(other) == []


def test_a_machine_without_the_rights_for_nodes_is_told_so(cluster: Cluster) -> None:
    if cluster.layout is None:
        pytest.skip("tries rights on this machine, and KUBECONFIG names a cluster elsewhere")
    told = run(["unshare", "--user", "--map-root-user", sys.executable, MAIN, "build"], check=False)
    assert told.returncode != 0
    assert "a real node needs a network namespace, and this machine refuses one" in told.stderr
