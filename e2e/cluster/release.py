"""Releases of the chart in one namespace, by the real Helm."""

from dataclasses import dataclass
from pathlib import Path

from cluster import built_images, host_volumes, images, operator_process
from cluster.binaries import program
from cluster.client import Document
from cluster.host_volumes import CHECKOUT
from cluster.namespace import Image, Namespace

CHART = CHECKOUT / "charts" / "paceline"
OPERATOR_PODS = "--selector=app.kubernetes.io/name=paceline-operator"


@dataclass
class Release:
    """Releases of the chart in one namespace.

    Attributes:
        values: a file with the values that every release here has.
    """

    namespace: Namespace
    values: Path

    def helm(self, *words: str) -> str:
        """Run Helm in this namespace."""
        cluster = self.namespace.cluster
        command = [str(program("helm")), f"--kubeconfig={cluster.kubeconfig}", *words]
        return cluster.run([*command, "-n", self.namespace.name], timeout_s=300).stdout

    def install(self, name: str, *words: str) -> str:
        """Install or upgrade, and wait until the operator is ready."""
        common = ["--values", str(self.values), "--wait", "--timeout=4m"]
        return self.helm("upgrade", "--install", name, str(CHART), *common, *words)

    def operator_log(self) -> str:
        """What the operators have written."""
        return self.namespace.kubectl("logs", OPERATOR_PODS, "--tail=-1", "--prefix")


def values_of(image: Image, namespace: str) -> Document:
    """A release whose operator runs this checkout."""
    operator: Document = {"image": parts(image.name), "resources": {"requests": {"cpu": "50m"}}}
    operator["image"]["pullPolicy"] = "Never" if image.name == images.HOST else "IfNotPresent"
    if image.name == images.HOST:
        operator |= {
            "command": ["paceline-operator"],
            "volumes": [v for v in host_volumes.pod_volumes() if v["name"] != "tmp"],
            "volumeMounts": [m for m in host_volumes.container_mounts() if m["name"] != "tmp"],
        }
    return {"scope": "Namespaced", "instance": namespace, "operator": operator}


def built_values() -> Document:
    """A release whose operator is the built image, with nothing of this machine in it."""
    operator = {
        "image": {**parts(built_images.OPERATOR), "pullPolicy": "Never"},
        "resources": {"requests": {"cpu": "50m"}},
    }
    return {"scope": "Namespaced", "operator": operator}


def engine_values(image: Image, cache_claim: str = "") -> Document:
    """Engines of this checkout, with what they fetch in a claim of that name."""
    name = images.ENGINE if image.name == images.HOST else image.name
    defaults = operator_process.pod_defaults(image)
    if cache_claim:
        defaults["cache"] = {"pvc": {"claimName": cache_claim}}
    return {"engine": {"image": parts(name), "podDefaults": defaults}}


def parts(name: str) -> Document:
    """An image's name as values have it."""
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}
