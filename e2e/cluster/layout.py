"""Names and folders of one cluster. Everything that is its own can be told from these names."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

GATEWAY = "10.244.0.1"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
SERVER = f"https://{GATEWAY}:6443"
MARKER = "PACELINE_E2E_CLUSTER"


def base() -> Path:
    """The folder of all clusters: $PACELINE_E2E_DIR, or /var/lib/paceline-e2e.

    Not below a home or a checkout: unix sockets live there and their paths end at 107 bytes, and
    overlayfs must be possible.
    """
    return Path(os.environ.get("PACELINE_E2E_DIR", "/var/lib/paceline-e2e"))


@dataclass(frozen=True, slots=True)
class Layout:
    """One cluster's names."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?", self.name):
            raise ClusterError(
                f"a cluster's name has 1 to 20 small letters, digits and dashes, got {self.name!r}"
            )

    @property
    def folder(self) -> Path:
        """All its files; gone after `down`."""
        return base() / self.name

    @property
    def state_file(self) -> Path:
        """What was started, written before and after each start."""
        return self.folder / "state.json"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, usable inside the network namespace."""
        return self.folder / "admin.kubeconfig"

    @property
    def netns(self) -> str:
        """Its network namespace."""
        return f"pl-{self.name}"

    @property
    def netns_path(self) -> Path:
        """The namespace as a file."""
        return Path("/run/netns") / self.netns

    def node(self, number: int) -> "Node":
        """Its node of that number, counted from 1."""
        return Node(self, number)


@dataclass(frozen=True, slots=True)
class Node:
    """One node's names."""

    layout: Layout
    number: int

    @property
    def name(self) -> str:
        """As `kubectl get nodes` shows it."""
        return f"node{self.number}"

    @property
    def address(self) -> str:
        """Its address on the bridge; node 1 has the gateway's."""
        return f"10.244.0.{self.number}"

    @property
    def pod_range(self) -> tuple[str, str]:
        """First and last address of its pods, on the same bridge."""
        return f"10.244.{self.number}.2", f"10.244.{self.number}.250"

    @property
    def folder(self) -> Path:
        """Files of its containerd and kubelet."""
        return self.layout.folder / self.name

    @property
    def socket(self) -> Path:
        """Its containerd."""
        return self.folder / "containerd.sock"

    @property
    def network(self) -> str:
        """Name of its pod network, in CNI's own cache too."""
        return f"paceline-{self.layout.name}-{self.name}"

    @property
    def cgroup(self) -> str:
        """Its root in every cgroup hierarchy: two kubelets under one root end each other's pods."""
        return f"paceline-{self.layout.name}-{self.name}"
