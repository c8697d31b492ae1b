"""Starting a cluster, and taking away exactly what is its own."""

import concurrent.futures
import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from cluster import (
    certificates,
    control_plane,
    debian,
    host_volumes,
    images,
    network,
    node,
    rights,
)
from cluster.binaries import NODE_PROGRAMS, program
from cluster.console import say
from cluster.errors import ClusterError, NotReady
from cluster.layout import Layout, Node, base
from cluster.processes import State, end, inside, marked
from cluster.shell import run
from cluster.wait import until


def build(more: Sequence[str] = ()) -> None:
    """Have everything that `up` needs, and more programs: minutes the first time, then none.

    Raises:
        MissingRight: this machine does not let us have nodes.
        MissingTool: something cannot be installed or built here.
    """
    debian.require()
    rights.require()
    for name in (*NODE_PROGRAMS, *more):
        program(name)


def up(layout: Layout, nodes: int) -> None:
    """Start a cluster and return when pods can be created on all its nodes.

    Raises:
        ClusterError: it exists already, or a part did not come up (its log is named).
    """
    build()
    if layout.folder.exists() or layout.netns_path.exists():
        raise ClusterError(
            f"there is a cluster {layout.name} or what is left of one; "
            f"take it away first: python e2e/cluster/main.py down --name {layout.name}"
        )
    layout.folder.mkdir(parents=True, mode=0o711)
    state = State(layout)
    state.nodes = nodes
    state.save()
    try:
        _start(layout, state)
    except Exception as error:
        if dead := state.dead():
            raise ClusterError(f"{error}\nended: {dead}; {_last_words(layout, dead)}") from error
        raise
    say(f"cluster {layout.name} is ready: {nodes} node{'s' if nodes > 1 else ''}")


def _start(layout: Layout, state: State) -> None:
    nodes = [layout.node(number) for number in range(1, state.nodes + 1)]
    network.make(layout, state.nodes)
    certificates.make(layout, state.nodes)
    for each in nodes:
        node.configure(each)
    say("starting etcd, the API server and containerd")
    state.start("etcd", control_plane.etcd())
    state.start("apiserver", control_plane.api_server(layout))
    for each in nodes:
        state.start(f"containerd-{each.name}", node.containerd(each))
    archives = [images.pause(), images.host(host_volumes.environment())]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        imports = [pool.submit(_import, each, archives) for each in nodes]
        until(
            "the API server is ready",
            lambda: _kubectl(layout, "get", "--raw", "/readyz") == "ok" or _fail_if_dead(state),
            timeout_s=120,
        )
        say("starting controllers, scheduler, kubelets, proxy and DNS")
        state.start("controller-manager", control_plane.controller_manager(layout))
        state.start("scheduler", control_plane.scheduler(layout))
        for job in imports:
            job.result()
    for each in nodes:
        state.start(f"kubelet-{each.name}", node.kubelet(each))
    state.start("proxy", control_plane.proxy(layout))
    state.start("dns", control_plane.dns(layout))
    _wait_ready(layout, state)


def _import(each: Node, archives: list[bytes]) -> None:
    until(f"containerd of {each.name}", lambda: images.is_answering(each), timeout_s=60)
    for data in archives:
        images.load(each, data)


def _wait_ready(layout: Layout, state: State) -> None:
    path = "{range .items[*]}{.status.conditions[?(@.type=='Ready')].status} {end}"

    def nodes_ready() -> bool:
        _fail_if_dead(state)
        answer = _kubectl(layout, "get", "nodes", f"-o=jsonpath={path}")
        return answer.split() == ["True"] * state.nodes

    until("the nodes are Ready", nodes_ready, timeout_s=120, interval_s=0.5)
    until(
        "pods have a service account",
        lambda: _kubectl(layout, "get", "serviceaccount", "default", "-o=name"),
        timeout_s=60,
    )
    log = layout.folder / "logs" / "dns.log"
    until("CoreDNS serves", lambda: "CoreDNS-" in log.read_text(), timeout_s=60)


def _kubectl(layout: Layout, *arguments: str) -> str:
    client = [str(program("kubectl")), f"--kubeconfig={layout.kubeconfig}"]
    return run([*inside(layout), *client, *arguments], check=False).stdout.strip()


def _fail_if_dead(state: State) -> bool:
    if dead := state.dead():
        raise NotReady(f"{', '.join(dead)} ended")
    return False


def _last_words(layout: Layout, names: list[str]) -> str:
    texts = []
    for name in names:
        lines = (layout.folder / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
        texts.append("\n".join([f"{name}:", *lines[-8:]]))
    return "\n".join(texts)


def down(layout: Layout) -> None:
    """Take a cluster away, also one that crashed half-way; nothing is there afterwards.

    Raises:
        ClusterError: something of it would not go.
    """
    rights.require_root()
    state = State(layout)
    numbers = {int(path.name.removeprefix("node")) for path in layout.folder.glob("node[1-9]")}
    nodes = [layout.node(number) for number in sorted(numbers)]
    # Kubelets first, or they would start again what ends; the API server is not asked nicely,
    # since it would wait for its watchers, and nobody needs its last words.
    end(state.named("kubelet"), 3)
    for each in nodes:
        end(node.members(each), 0)
    end(state.named("apiserver"), 0)
    end([record.pid for record in state.records if record.is_alive()], 3)
    end(marked(layout), 1)
    for each in nodes:
        end(node.members(each), 0)
    _unmount(layout.folder)
    network.remove(layout)
    for each in nodes:
        node.remove_cgroups(each)
    for trace in outside_traces(layout):
        trace.unlink(missing_ok=True)
    if layout.folder.exists():
        shutil.rmtree(layout.folder)
    say(f"cluster {layout.name} is gone")


def outside_traces(layout: Layout) -> list[Path]:
    """Files that CNI and the kubelet keep in fixed places, and that speak of this cluster."""
    found = []
    for path in (*Path("/var/lib/cni/results").glob("*"), *Path("/var/log/containers").glob("*")):
        with contextlib.suppress(FileNotFoundError):  # another cluster's, gone meanwhile
            text = str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
            if f"{layout.folder}/" in text:
                found.append(path)
    return found


def _unmount(folder: Path) -> None:
    """Unmount everything below a folder, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    for point in sorted((p for p in points if p.startswith(f"{folder}/")), reverse=True):
        if run(["umount", point], check=False).returncode != 0:
            run(["umount", "--lazy", point])


def names() -> list[str]:
    """Clusters that are there, whole or not."""
    if not base().is_dir():
        return []
    folders = (path for path in base().iterdir() if path.is_dir())
    return sorted(path.name for path in folders if not path.name.startswith("."))
