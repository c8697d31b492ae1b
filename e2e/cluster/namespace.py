"""A namespace of a journey's own, and the pods that it runs there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import host_volumes, images
from cluster.client import Cluster, Document
from cluster.host_volumes import View
from cluster.wait import until

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """How pods get a Python with this project: an image, and the volumes that it needs.

    Attributes:
        name: image of containers.
        volumes: of the pod.
        mounts: of the container.
        views: folders of this machine that were asked for besides the usual ones.
        model: what `paceline serve` in it is given: the demo model.
    """

    name: str
    volumes: Sequence[Document] = ()
    mounts: Sequence[Document] = ()
    views: tuple[View, ...] = field(default=())
    model: str = "demo"

    @classmethod
    def thin(cls, model: Path | None = None) -> "Image":
        """The thin image and this machine's own folders; and a model's, if one is given."""
        views = (View("model", str(model), "/models/demo"),) if model else ()
        return cls(
            model="/models/demo" if model else "demo",
            name=images.HOST,
            volumes=host_volumes.pod_volumes(views),
            mounts=host_volumes.container_mounts(views),
            views=views,
        )

    @classmethod
    def whole(cls, name: str) -> "Image":
        """A real image of the engine, for clusters elsewhere."""
        return cls(
            name=name,
            volumes=[{"name": "tmp", "emptyDir": {}}],
            mounts=[{"name": "tmp", "mountPath": "/tmp"}],
        )


class Namespace:
    """One namespace under the `restricted` Pod Security profile."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def create(self) -> None:
        """Make it, and wait until pods can be created in it."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.name, "labels": labels},
            }
        )
        until(
            f"namespace {self.name} has its service account",
            lambda: self.get("serviceaccount", "default"),
            timeout_s=30,
        )

    def delete(self, *, wait: bool) -> None:
        """Delete it with all that is in it, and the volumes that are named after it."""
        selector = f"--selector=paceline.dev/e2e-namespace={self.name}"
        options = ("--ignore-not-found", f"--wait={str(wait).lower()}")
        self.cluster.kubectl("delete", "namespace", self.name, *options, timeout_s=300)
        self.cluster.kubectl("delete", "persistentvolumes", selector, *options, timeout_s=300)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Run kubectl in this namespace."""
        return self.cluster.kubectl(
            f"--namespace={self.name}", *arguments, stdin=stdin, timeout_s=timeout_s
        )

    def apply(self, *documents: Document) -> str:
        """Apply documents into this namespace."""
        placed = []
        for document in documents:
            metadata = {**document["metadata"], "namespace": self.name}
            placed.append({**document, "metadata": metadata})
        return self.cluster.apply(*placed)

    def get(self, what: str, *arguments: str) -> Document:
        """One object of this namespace, {} if it is not there."""
        return self.cluster.get(what, *arguments, f"--namespace={self.name}")

    def items(self, what: str, *arguments: str) -> list[Document]:
        """The objects of a list in this namespace."""
        return self.cluster.items(what, *arguments, f"--namespace={self.name}")

    def provide(self, image: Image) -> None:
        """Make the claims that an image's volumes name."""
        if image.name == images.HOST:
            self.cluster.apply(*host_volumes.objects(self.name, image.views))

    def provide_cache(self) -> Path:
        """Make the claim of what engines keep; the folder behind it."""
        assert self.cluster.layout is not None, "the folder is one of this machine"
        folder = self.cluster.layout.folder / "cache"
        self.cluster.apply(*host_volumes.cache_objects(self.name, folder))
        return folder

    def ready_pods(self, selector: str) -> list[str]:
        """Names of the pods that are ready and not about to end."""
        pods = self.items("pods", f"--selector={selector}")
        return sorted(
            pod["metadata"]["name"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
        )

    def run_python(self, name: str, image: Image, script: str, *, timeout_s: float = 120) -> str:
        """Run a script in a pod of its own to its end, and return what it wrote."""
        self.apply(pod(name, image, ["python", "-c", script], restart="Never"))
        phase = "--output=jsonpath={.status.phase}"

        def ended() -> str:
            answer = self.kubectl("get", "pod", name, phase)
            return answer if answer in {"Succeeded", "Failed"} else ""

        outcome = until(
            f"pod {name} ends", ended, timeout_s=timeout_s, interval_s=0.5, seen=self.describe
        )
        text = self.kubectl("logs", name)
        assert outcome == "Succeeded", f"pod {name} failed:\n{text}"
        self.kubectl("delete", "pod", name, "--wait=false")
        return text

    def describe(self) -> str:
        """What is in it, for a message about a failure: objects, events, last words of pods."""
        parts = [
            self.kubectl("get", "deployments,pods,services", "--output=wide"),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp"),
        ]
        for item in self.items("pods"):
            name = item["metadata"]["name"]
            options = ("--all-containers", "--tail=15", f"--namespace={self.name}")
            parts.append(f"{name}:\n" + self.cluster.kubectl("logs", name, *options, check=False))
        return "\n".join(parts)


def is_ready(item: Document) -> bool:
    """Whether a pod (or a node) has the condition Ready."""
    conditions = item.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def container(
    image: Image, command: Sequence[str], env: Mapping[str, str] | None = None, **fields: Any
) -> Document:
    """A container as the `restricted` profile wants it; `fields` are its other fields."""
    return {
        "name": "main",
        "image": image.name,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        "securityContext": RESTRICTED,
        "volumeMounts": list(image.mounts),
        **fields,
    }


def pod(
    name: str,
    image: Image,
    command: Sequence[str],
    *,
    labels: Mapping[str, str] | None = None,
    restart: str = "Always",
    env: Mapping[str, str] | None = None,
    **fields: Any,
) -> Document:
    """A pod of one container; `fields` are the container's other fields."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": restart,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 2,
            "containers": [container(image, command, env, **fields)],
            "volumes": list(image.volumes),
        },
    }


def service(name: str, labels: Mapping[str, str], port: int, target: int) -> Document:
    """A Service before pods with these labels."""
    ports = [{"port": port, "targetPort": target}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": dict(labels), "ports": ports},
    }
