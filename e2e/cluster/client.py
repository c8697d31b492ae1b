"""A cluster as a journey uses it: kubectl, programs in its network, and its nodes."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster import images, network
from cluster.api import Api, Query
from cluster.binaries import program
from cluster.layout import MARKER, Layout
from cluster.processes import end, inside
from cluster.shell import run

Document = dict[str, Any]


class Cluster:
    """Either one that main.py started here, or any other through its kubeconfig.

    Attributes:
        kubeconfig: the administrator's; may be a list of files, as kubectl takes it.
        layout: names of a cluster of this machine; None for any other.
    """

    def __init__(self, kubeconfig: Path, layout: Layout | None) -> None:
        self.kubeconfig = kubeconfig
        self.layout = layout
        found = shutil.which("kubectl") if layout is None else None
        self._kubectl = found or str(program("kubectl"))
        self._prefix = inside(layout) if layout else []
        self._loaded: set[str] = set()
        self._api = Api(layout) if layout else None

    @classmethod
    def here(cls, layout: Layout) -> "Cluster":
        """A cluster of this machine that is up."""
        return cls(layout.kubeconfig, layout)

    @property
    def environment(self) -> dict[str, str]:
        """For programs that talk to the cluster: the kubeconfig, and kubectl on the path."""
        path = f"{Path(self._kubectl).parent}:{os.environ['PATH']}"
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}
        if self.layout is None:
            return env
        # All clusters of this machine have the same address: what kubectl remembers of the kinds
        # of one is nothing for the next.
        remembered = str(self.layout.folder / "kubectl-cache")
        return {**env, MARKER: str(self.layout.folder), "KUBECACHEDIR": remembered}

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        check: bool = True,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the cluster's network to its end; `env` adds to the environment."""
        return run(
            [*self._prefix, *argv],
            check=check,
            stdin=stdin,
            env={**self.environment, **(env or {})},
            timeout_s=timeout_s,
        )

    @contextlib.contextmanager
    def process(
        self, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Have a program run in the cluster's network (an operator, a proxy) during the block.

        It is ended afterwards, with all that it started itself in its session.
        """
        with log.open("ab") as output:
            started = subprocess.Popen(
                [*self._prefix, *map(str, argv)],
                env={**self.environment, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield started
        finally:
            session = [started.pid, *_session_members(started.pid)]
            if started.poll() is None:
                end([started.pid], 10)
            end([pid for pid in session if pid != started.pid], 0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(1)

    def network(self) -> contextlib.AbstractContextManager[None]:
        """Have this thread in the cluster's network during the block, e.g. for an API client."""
        return network.entered(self.layout) if self.layout else contextlib.nullcontext()

    def kubectl(
        self,
        *arguments: str,
        check: bool = True,
        stdin: str | None = None,
        timeout_s: float = 120,
    ) -> str:
        """Run kubectl and return what it wrote.

        Raises:
            CommandFailed: it failed; the message carries its own.
        """
        command = [self._kubectl, *arguments]
        done = self.run(command, check=check, stdin=stdin, timeout_s=timeout_s)
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *documents: Document, arguments: Sequence[str] = ("--server-side",)) -> str:
        """Apply documents (server-side unless told otherwise)."""
        return self.kubectl("apply", *arguments, "-f", "-", stdin=listed(documents))

    def refusals(self, documents: Sequence[Document]) -> dict[str, str]:
        """What the API server says against creating each document, by its name; all in one call.

        Documents that it would accept are missing from the answer. Nothing is stored.
        """
        command = [self._kubectl, "create", "-f", "-"]
        done = self.run([*command, "--dry-run=server"], check=False, stdin=listed(documents))
        told = re.split(r'^.* "(\S+)" is invalid: ', done.stderr, flags=re.MULTILINE)
        return dict(zip(told[1::2], told[2::2], strict=True))

    def get(self, what: str, *arguments: str) -> Document:
        """One object, or a list where no name is given; {} where there is none of that name."""
        query = Query.parse(what, arguments)
        if self._api is not None and query is not None:
            return self._api.get(query)
        text = self.kubectl("get", what, *arguments, "--ignore-not-found", "-o=json")
        found: Document = json.loads(text) if text else {}
        return found

    def items(self, what: str, *arguments: str) -> list[Document]:
        """The objects of a list."""
        found: list[Document] = self.get(what, *arguments).get("items", [])
        return found

    def node_names(self) -> list[str]:
        """All nodes."""
        return [item["metadata"]["name"] for item in self.items("nodes")]

    def set_devices(self, node: str, number: int, resource: str = "nvidia.com/gpu") -> None:
        """Let a node have devices that it has not: the real scheduler and kubelet count them.

        They stay while the kubelet runs, and through a restart of it that takes seconds.
        """
        self._patch_devices(node, resource, {"op": "add", "value": str(number)})

    def remove_devices(self, node: str, resource: str = "nvidia.com/gpu") -> None:
        """Take away what set_devices added."""
        self._patch_devices(node, resource, {"op": "remove"})

    def _patch_devices(self, node: str, resource: str, change: Document) -> None:
        key = resource.replace("~", "~0").replace("/", "~1")
        patch = json.dumps(
            [{**change, "path": f"/status/{kind}/{key}"} for kind in ("capacity", "allocatable")]
        )
        where = ("node", node, "--subresource=status")
        self.kubectl("patch", *where, "--type=json", f"--patch={patch}")

    def load_image(self, archive: bytes | Path) -> None:
        """Give an image archive (OCI or docker) to every node of this machine's cluster, once."""
        assert self.layout is not None, "only nodes of this machine take images by hand"
        digest = hashlib.sha256(archive).hexdigest() if isinstance(archive, bytes) else ""
        if digest in self._loaded:
            return
        for name in self.node_names():
            node = self.layout.node(int(name.removeprefix("node")))
            if isinstance(archive, Path):
                images.load_file(node, archive)
            else:
                images.load(node, archive)
        if digest:
            self._loaded.add(digest)


def listed(documents: Sequence[Document]) -> str:
    """Documents as one JSON text for kubectl's standard input."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})


def _session_members(leader: int) -> list[int]:
    """Processes of a session that we started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == leader:
                    found.append(int(entry.name))
    return found
