"""The cluster's network namespace with its bridge. Nothing outside of it is touched."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

from cluster.layout import GATEWAY, Layout
from cluster.processes import inside
from cluster.shell import run


def make(layout: Layout, nodes: int) -> None:
    """Add the namespace; the nodes' addresses lie on one bridge, pods join it by CNI."""
    run(["ip", "netns", "add", layout.netns])
    for command in (
        "link set lo up",
        "link add pl0 type bridge",
        f"addr add {GATEWAY}/16 dev pl0",
        *(f"addr add {layout.node(n).address}/16 dev pl0" for n in range(2, nodes + 1)),
        "link set pl0 up",
        "route add default dev pl0",
    ):
        run(["ip", "-n", layout.netns, *command.split()])
    run([*inside(layout), "sysctl", "-qw", "net.ipv4.ip_forward=1"])


@contextlib.contextmanager
def entered(layout: Layout) -> Iterator[None]:
    """Have this thread in the namespace during the block, with the threads and programs it starts.

    A socket stays in the namespace where it was made, so a client that is made inside can be used
    outside. Python has os.setns only from 3.12 on.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    new_network = 0x40000000  # CLONE_NEWNET

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, new_network) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {layout.netns}")

    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    inside_it = os.open(layout.netns_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(inside_it)
        try:
            yield
        finally:
            enter(before)
    finally:
        os.close(before)
        os.close(inside_it)


def remove(layout: Layout) -> None:
    """Delete the namespace; its links and rules go with it once its processes have ended."""
    if layout.netns_path.exists():
        run(["ip", "netns", "del", layout.netns], check=False)
