"""What a real node needs of the kernel and of whoever starts it, tried before anything is started.

A sandbox may be root by name and still lack these; then the journeys fail here, with one sentence,
and not minutes later in a log of the kubelet.
"""

import os
import tempfile
from pathlib import Path

from cluster import node
from cluster.errors import MissingRight
from cluster.layout import Layout, base
from cluster.shell import run

_ELSEWHERE = (
    "run the journeys on a machine that allows it, or set KUBECONFIG to a cluster that you have"
)


def require() -> None:
    """Try a network namespace, an overlay mount and a cgroup, and leave nothing behind.

    Raises:
        MissingRight: one of them is not allowed here.
    """
    require_root()
    layout = Layout(f"try{os.getpid()}")
    for what, attempt in (
        ("a network namespace", _network_namespace),
        ("an overlay mount", _overlay),
        ("a cgroup", _cgroup),
    ):
        if told := attempt(layout):
            raise MissingRight(
                f"a real node needs {what}, and this machine refuses one: {told}; {_ELSEWHERE}"
            )


def require_root() -> None:
    """Refuse whoever is not root.

    Raises:
        MissingRight: this is somebody else.
    """
    if os.geteuid() != 0:
        raise MissingRight(f"real nodes need root (namespaces, cgroups, mounts): {_ELSEWHERE}")


def _network_namespace(layout: Layout) -> str:
    made = run(["ip", "netns", "add", layout.netns], check=False)
    if made.returncode != 0:
        return made.stderr.strip()
    entered = run(
        ["nsenter", f"--net={layout.netns_path}", "ip", "link", "set", "lo", "up"], check=False
    )
    run(["ip", "netns", "delete", layout.netns], check=False)
    return entered.stderr.strip() if entered.returncode != 0 else ""


def _overlay(layout: Layout) -> str:
    base().mkdir(parents=True, mode=0o711, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{layout.name}-", dir=base()) as scratch:
        folders = {name: Path(scratch) / name for name in ("lower", "upper", "work", "merged")}
        for folder in folders.values():
            folder.mkdir()
        options = (
            f"lowerdir={folders['lower']},upperdir={folders['upper']},workdir={folders['work']}"
        )
        merged = str(folders["merged"])
        made = run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=False)
        if made.returncode != 0:
            return made.stderr.strip()
        run(["umount", merged])
    return ""


def _cgroup(layout: Layout) -> str:
    try:
        node.make_cgroups(layout.node(1))
    except OSError as error:
        return str(error)
    finally:
        node.remove_cgroups(layout.node(1))
    return ""
