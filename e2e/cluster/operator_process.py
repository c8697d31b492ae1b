"""The operator as a process of this machine, in the cluster's network, as on somebody's laptop."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster import host_volumes, images
from cluster.client import Cluster, Document
from cluster.namespace import Image
from cluster.wait import until

MASTER_KEY = "journey-master-key-0123456789abcdef"


class OperatorProcess:
    """Starts, kills and starts again one operator for one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, image: Image) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.log = folder / "operator.log"
        self.image = image
        self.port = 18000 + os.getpid() % 1000
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "master-key").write_text(MASTER_KEY)
        self.config: Document = {
            "watchNamespaces": [namespace],
            "httpPort": self.port,
            "adminTokens": {"masterKeyFile": str(folder / "master-key")},
            "engine": {"image": image.name, "podDefaults": pod_defaults(image)},
        }

    def start(self, *arguments: str) -> None:
        """Start it; `ready` waits until it has seen everything."""
        file = self.folder / "operator.json"
        file.write_text(json.dumps(self.config))
        argv = [sys.executable, "-m", "paceline_operator", f"--config={file}", *arguments]
        rooms = ":".join(str(host_volumes.CHECKOUT / room) for room in host_volumes.SOURCES)
        env = {"PYTHONPATH": rooms, "PYTHONSAFEPATH": "1"}
        running = self.cluster.process(argv, self.log, env)
        self._process = self._stack.enter_context(running)

    def wait_ready(self, timeout_s: float = 60) -> None:
        """Wait until the first lists are done."""
        until(
            "the operator is ready",
            lambda: self.get("/readyz") == "ok\n",
            timeout_s=timeout_s,
            seen=self.tail,
        )

    def get(self, path: str) -> str:
        """What it answers on its own port, empty if it does not."""
        command = ["curl", "-sS", "-m", "5", f"http://127.0.0.1:{self.port}{path}"]
        done = self.cluster.run(command, check=False)
        return done.stdout

    def metric(self, name: str) -> float:
        """One sample of its metrics, by its name with labels."""
        for line in self.get("/metrics").splitlines():
            found, _, value = line.rpartition(" ")
            if found == name:
                return float(value)
        return 0.0

    def kill(self) -> None:
        """SIGKILL, as the machine does it."""
        assert self._process is not None
        # nsenter replaces itself by the operator, so this is the operator's own pid.
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> None:
        """End it in order."""
        self._stack.close()

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text().splitlines()[-lines:]) if self.log.exists() else ""


def pod_defaults(image: Image) -> Document:
    """`engine.podDefaults` with which engines find their programs in the thin image."""
    claims = [item for item in image.volumes if item["name"] != "tmp"]
    mounts = [item for item in image.mounts if item["name"] != "tmp"]
    return {"volumes": claims, "volumeMounts": mounts, "imagePullPolicy": "IfNotPresent"}


def load_engine_image(cluster: Cluster) -> None:
    """The thin image under the name of an engine's: it starts `paceline`, as a real one does."""
    archive = images.host(host_volumes.environment(), images.ENGINE, "paceline")
    cluster.load_image(archive)


def requests_in_network(cluster: Cluster, script: str, *arguments: str) -> str:
    """Run a script of this Python in the cluster's network."""
    return cluster.run([sys.executable, "-c", script, *arguments], timeout_s=180).stdout


def running(process: OperatorProcess, arguments: Sequence[str] = ()) -> Iterator[OperatorProcess]:
    """A fixture's body: started, and ended afterwards."""
    process.start(*arguments)
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()
