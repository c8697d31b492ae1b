"""Images without a registry and without a container engine: OCI archives, written in Python.

`pause` is a static program of three lines. `host` is only the links of a merged root; its pods see
the machine's /usr, Python and this checkout through read-only volumes (host_volumes.py), because an
image with PyTorch in it would be gigabytes to build and to import for every cluster.
"""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.cache import cache_root, locked
from cluster.layout import Node
from cluster.shell import run

PAUSE = "localhost/pause:1"
HOST = "localhost/paceline-host:1"
ENGINE = "localhost/paceline-engine:1"
PAUSE_SOURCE = """\
#include <signal.h>
#include <unistd.h>
#include <sys/wait.h>
static void end(int s) { _exit(0); }
static void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap);
  for (;;) pause(); }
"""
PASSWD = "root:x:0:0:root:/root:/bin/sh\n"
GROUP = "root:x:0:\n"
"""Without the user that containers run as, who has no name in real images either."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Layer:
    """A tar with fixed owner and time: the same content has the same digest."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115 - closed by data()

    def folder(self, name: str, mode: int = 0o755) -> None:
        """Add an empty folder."""
        self._add(name, tarfile.DIRTYPE, mode)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._add(name, tarfile.SYMTYPE, 0o777, link=target)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Add a file."""
        self._add(name, tarfile.REGTYPE, mode, data=data)

    def _add(self, name: str, kind: bytes, mode: int, link: str = "", data: bytes = b"") -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def data(self) -> bytes:
        """The finished tar."""
        self._tar.close()
        return self._buffer.getvalue()


def archive(tag: str, layers: Sequence[bytes], config: Mapping[str, Any]) -> bytes:
    """An OCI image archive, as `ctr images import` and `podman load` read it.

    Args:
        tag: full name, e.g. localhost/pause:1.
        layers: tars, the lowest first.
        config: the image's config: Entrypoint, Env, User, WorkingDir ...
    """
    machine = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    image = {
        "architecture": machine,
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    kind = "application/vnd.oci.image"
    blobs = [json.dumps(image).encode(), *layers]
    described = [
        {"mediaType": f"{kind}.{what}", "digest": _digest(blob), "size": len(blob)}
        for blob, what in zip(
            blobs, ["config.v1+json", *["layer.v1.tar"] * len(layers)], strict=True
        )
    ]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": described[0],
            "layers": described[1:],
        }
    ).encode()
    entry = {
        "mediaType": f"{kind}.manifest.v1+json",
        "digest": _digest(manifest),
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": tag},
    }
    outer = Layer()
    outer.file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    outer.file("index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
    for blob in (*blobs, manifest):
        outer.file("blobs/sha256/" + _digest(blob).removeprefix("sha256:"), blob)
    return outer.data()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def pause() -> bytes:
    """The image of a pod's sandbox; the program is compiled once and kept."""
    folder = cache_root() / f"pause-{hashlib.sha256(PAUSE_SOURCE.encode()).hexdigest()[:12]}"
    built = folder / "pause"
    with locked(folder / "lock", "the pause program"):
        if not built.exists():
            new = folder / ".pause.new"
            run(["gcc", "-x", "c", "-static", "-Os", "-s", "-o", new, "-"], stdin=PAUSE_SOURCE)
            new.rename(built)
    layer = Layer()
    layer.file("pause", built.read_bytes(), 0o755)
    return archive(PAUSE, [layer.data()], {"Entrypoint": ["/pause"], "User": "65535:65535"})


def host(environment: Mapping[str, str], tag: str = HOST, program: str = "") -> bytes:
    """The thin image.

    Args:
        environment: variables of its containers; what a shell on this machine would have.
        tag: its full name.
        program: started if a container names no command, as a real image of the engine does.
    """
    layer = Layer()
    for name in ("bin", "sbin", "lib", "lib64"):
        layer.link(name, f"usr/{name}")
    for name in ("usr", "etc", "opt", "dev", "proc", "sys", "run", "var", "root"):
        layer.folder(name)
    layer.folder("tmp", 0o1777)
    layer.file("etc/passwd", PASSWD.encode())
    layer.file("etc/group", GROUP.encode())
    layer.file("etc/nsswitch.conf", b"hosts: files dns\n")
    layer.folder("opt/paceline")
    layer.folder("opt/paceline/bin")
    for name, module in (("paceline", "paceline"), ("paceline-operator", "paceline_operator")):
        script = f'#!/bin/sh\nexec python -m {module} "$@"\n'
        layer.file(f"opt/paceline/bin/{name}", script.encode(), 0o755)
    env = [f"{name}={value}" for name, value in environment.items()]
    config = {"Env": env, "User": "65532:65532", "WorkingDir": "/tmp"}
    return archive(tag, [layer.data()], config | ({"Entrypoint": [program]} if program else {}))


def load(node: Node, image: bytes) -> None:
    """Import an archive into a node's containerd."""
    with tempfile.NamedTemporaryFile(suffix=".tar", dir=node.folder) as file:
        file.write(image)
        file.flush()
        load_file(node, Path(file.name))


def load_file(node: Node, path: Path, *, timeout_s: float = 300) -> None:
    """Import an archive that lies in a file, e.g. one that `podman save` wrote."""
    command = [
        "nice",
        "-n",
        "10",
        "ctr",
        "-a",
        node.socket,
        "-n",
        "k8s.io",
        "images",
        "import",
        path,
    ]
    run([str(word) for word in command], timeout_s=timeout_s)


def is_answering(node: Node) -> bool:
    """Whether the node's containerd takes commands."""
    command = ["ctr", "-a", str(node.socket), "--connect-timeout", "1s", "version"]
    return node.socket.exists() and run(command, check=False).returncode == 0
