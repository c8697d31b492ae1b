"""The Debian packages that a node needs, installed where missing."""

import os
import shutil
from collections.abc import Mapping

from cluster.console import say
from cluster.errors import MissingTool
from cluster.shell import run

PACKAGES = {  # package: a program or file that shows it is there
    "etcd-server": "etcd",
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "iproute2": "ip",
    "util-linux": "nsenter",
    "openssl": "openssl",
    "gcc": "gcc",
    "libc6-dev": "/usr/include/stdio.h",
}


def require(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install what is missing.

    Args:
        packages: name -> a program or file that shows it is there.

    Raises:
        MissingTool: something is missing and this is not root on a Debian-like machine.
    """
    missing = [name for name, proof in packages.items() if not _has(proof)]
    if not missing:
        return
    command = f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingTool(f"packages are missing here; as root: {command}")
    say(command)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    if run(install, env=env, check=False, timeout_s=900).returncode != 0:
        run(["apt-get", "update", "-qq"], env=env, timeout_s=300)
        run(install, env=env, timeout_s=900)


def _has(proof: str) -> bool:
    return os.path.exists(proof) if proof.startswith("/") else shutil.which(proof) is not None  # noqa: PTH110 - also a plain text test
