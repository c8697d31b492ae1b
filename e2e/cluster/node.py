"""One node: its containerd and kubelet, their files, and its place in the cgroups."""

import json
import os
from pathlib import Path
from typing import Any

from cluster import certificates
from cluster.binaries import program
from cluster.layout import GATEWAY, POD_NETWORK, Node

CGROUPS = Path("/sys/fs/cgroup")

CONTAINERD = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def configure(node: Node) -> None:
    """Write the node's files and make its cgroups."""
    (node.folder / "cni").mkdir(parents=True)
    (node.folder / "cni" / "10-pods.conflist").write_text(json.dumps(_pod_network(node), indent=1))
    (node.folder / "containerd.toml").write_text(CONTAINERD.format(folder=node.folder))
    (node.folder / "kubelet.yaml").write_text(json.dumps(_kubelet(node), indent=1))
    make_cgroups(node)


def containerd(node: Node) -> list[str | Path]:
    """The command that starts the node's containerd."""
    return ["containerd", "-c", node.folder / "containerd.toml"]


def kubelet(node: Node) -> list[str | Path]:
    """The command that starts the node's kubelet."""
    return [
        program("kubelet"),
        f"--config={node.folder}/kubelet.yaml",
        f"--kubeconfig={node.layout.folder}/{node.name}.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.folder}/kubelet",
    ]


def _pod_network(node: Node) -> dict[str, Any]:
    first, last = node.pod_range
    ranges = [[{"subnet": POD_NETWORK, "rangeStart": first, "rangeEnd": last, "gateway": GATEWAY}]]
    return {
        "cniVersion": "1.0.0",
        "name": node.network,
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pl0",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.folder / "ipam"),
                    "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _kubelet(node: Node) -> dict[str, Any]:
    pki = certificates.folder(node.layout)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10400 + node.number,
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "podLogsDir": str(node.folder / "pod-logs"),
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": ["pods"],
        "makeIPTablesUtilChains": False,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "nodeStatusUpdateFrequency": "5s",
        # How often a pod is looked at that nobody changed: until then it sees its ConfigMaps of
        # before. A minute elsewhere.
        "syncFrequency": "5s",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
        "resolvConf": "",
        "clusterDomain": "cluster.local",
        "clusterDNS": [GATEWAY],
    }


def cgroup_folders(node: Node) -> list[Path]:
    """The node's root in each hierarchy (version 1), or the one there is (version 2)."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / node.cgroup]
    hierarchies = sorted(path.parent for path in CGROUPS.glob("*/cgroup.procs"))
    return [hierarchy / node.cgroup for hierarchy in hierarchies]


def make_cgroups(node: Node) -> None:
    """Make the node's roots; a cpuset without processors would take no process.

    A node weighs as much as one busy process per processor: with the default weight all its pods
    together would get the time of one, and an engine beside a busy build would start in minutes.
    """
    for folder in cgroup_folders(node):
        folder.mkdir(exist_ok=True)
        if (folder / "cpu.shares").exists():
            (folder / "cpu.shares").write_text(str(1024 * (os.cpu_count() or 1)))
        for name in ("cpuset.cpus", "cpuset.mems"):
            file = folder / name
            if file.exists() and folder.parent != CGROUPS:
                file.write_text((folder.parent / name).read_text())


def members(node: Node) -> list[int]:
    """Processes in the node's cgroups: its containers'."""
    found: set[int] = set()
    for folder in cgroup_folders(node):
        for file in folder.rglob("cgroup.procs"):
            found.update(int(line) for line in file.read_text().split())
    return sorted(found)


def remove_cgroups(node: Node) -> None:
    """Remove the node's cgroups, the innermost first. They must be empty."""
    for folder in cgroup_folders(node):
        if folder.exists():
            inner = [path for path in folder.rglob("*") if path.is_dir()]
            for path in sorted(inner, key=lambda path: len(path.parts), reverse=True):
                path.rmdir()
            folder.rmdir()
