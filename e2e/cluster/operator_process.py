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
QUEUE = "paceline_operator_queue_length"


class OperatorProcess:
    """Starts, kills and starts again one operator for one namespace.

    Attributes:
        environment: variables that it gets besides, such as another KUBECONFIG.
    """

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, image: Image) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.log = folder / "operator.log"
        self.image = image
        self.port = 18000 + os.getpid() % 1000
        self.environment: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "master-key").write_text(MASTER_KEY)
        self.config: Document = {
            "watchNamespaces": [namespace],
            "httpPort": self.port,
            "adminTokens": {"masterKeyFile": str(folder / "master-key")},
            "engine": {
                "image": image.name,
                "vllmImage": "localhost/no-such-vllm:1",
                "podDefaults": pod_defaults(image),
            },
        }

    def keep_in(self, claim: str) -> None:
        """Have its engines keep what they fetch and compile in a claim."""
        self.config["engine"]["podDefaults"]["cache"] = {"pvc": {"claimName": claim}}

    def take_turns(self) -> None:
        """Have it act only while it holds a lease of three seconds."""
        self.config |= {
            "namespace": self.namespace,
            "lease": {"name": "operator", "durationSeconds": 3},
        }

    def start(self, *arguments: str) -> None:
        """Start it; `ready` waits until it has seen everything."""
        file = self.folder / "operator.json"
        file.write_text(json.dumps(self.config))
        argv = [sys.executable, "-m", "paceline_operator", f"--config={file}", *arguments]
        rooms = ":".join(str(host_volumes.CHECKOUT / room) for room in host_volumes.SOURCES)
        env = {"PYTHONPATH": rooms, "PYTHONSAFEPATH": "1", **self.environment}
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

    def samples(self) -> dict[str, str]:
        """Its metrics, name with labels -> value; waits for a busy one to answer."""
        page = until(
            "the operator shows its metrics",
            lambda: self.get("/metrics"),
            timeout_s=60,
            seen=self.tail,
        )
        pairs = (line.rpartition(" ")[::2] for line in page.splitlines() if line[:1] != "#")
        return dict(pairs)

    def metric(self, name: str) -> float:
        """One sample of its metrics, by its name with labels."""
        return float(self.samples().get(name, 0))

    def looks(self) -> float:
        """How often it has looked at any deployment, whatever came of it."""
        name = "paceline_operator_reconciles_total{"
        return sum(float(value) for key, value in self.samples().items() if key.startswith(name))

    def settle(self, timeout_s: float = 60) -> None:
        """Wait until it has nothing to do now: what it has told, it has also carried out."""
        until(
            "the operator has nothing to do",
            lambda: self.get("/readyz") == "ok\n" and self.metric(QUEUE) == 0,
            timeout_s=timeout_s,
            seen=self.tail,
        )

    def writes(self) -> dict[str, str]:
        """Writes that it has sent to the API server, by kind."""
        return {
            name: value
            for name, value in self.samples().items()
            if name.startswith("paceline_operator_api_writes_total") and "lease" not in name
        }

    def quantile(self, histogram: str, share: float) -> float:
        """Upper bound of the bucket in which a quantile of a histogram lies."""
        counts = []
        for found, value in self.samples().items():
            if found.startswith(f'{histogram}_bucket{{le="'):
                counts.append((float(found.split('"')[1]), float(value)))
        total = counts[-1][1]
        return next(bound for bound, count in counts if count >= share * total)

    def rss_mib(self) -> float:
        """Memory that it holds now."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def kill(self) -> None:
        """SIGKILL, as the machine does it."""
        assert self._process is not None
        # nsenter replaces itself by the operator, so this is the operator's own pid.
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def pause(self) -> None:
        """Stop it where it is, as an overloaded node does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait_ended(self, timeout_s: float = 60) -> int:
        """Wait until it has ended by itself; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def second(self, folder: Path) -> "OperatorProcess":
        """Another replica with the same configuration but its port."""
        other = OperatorProcess(self.cluster, self.namespace, folder, self.image)
        other.port = self.port + 1000
        other.config = {**self.config, "httpPort": other.port}
        return other

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


def running(process: OperatorProcess, arguments: Sequence[str] = ()) -> Iterator[OperatorProcess]:
    """A fixture's body: started, and ended afterwards."""
    process.start(*arguments)
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()
