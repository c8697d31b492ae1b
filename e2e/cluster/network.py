"""The cluster's network namespace with its bridge. Nothing outside of it is touched."""

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


def remove(layout: Layout) -> None:
    """Delete the namespace; its links and rules go with it once its processes have ended."""
    if layout.netns_path.exists():
        run(["ip", "netns", "del", layout.netns], check=False)
