"""What a pod needs to run this checkout from the thin image: read-only views of this machine.

Static PersistentVolumes with claims, not hostPath volumes in the pod: the claims pass a namespace
that enforces the `restricted` Pod Security profile, and a real user's pod looks the same.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.shell import run

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = ("crds", "kernels", "engine", "operator")


@dataclass(frozen=True, slots=True)
class View:
    """A folder of this machine that pods see, at the same path unless `at` names another."""

    name: str
    path: str
    at: str = ""


def views() -> list[View]:
    """Debian's /usr, the Python that runs this, its environment, and the checkout's sources."""
    found = [View("usr", "/usr")]
    for name, path in (("python", sys.base_prefix), ("environment", sys.prefix)):
        resolved = str(Path(path).resolve())
        if not any(_covers(view.path, resolved) for view in found):
            found.append(View(name, resolved))
    found += [
        View(f"source-{room}", str(CHECKOUT / room))
        for room in SOURCES
        if (CHECKOUT / room).is_dir()
    ]
    return found


def _covers(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer + "/")


def environment() -> dict[str, str]:
    """Variables with which `python` and `paceline` in a pod are this checkout's."""
    programs = ["/opt/paceline/bin", f"{Path(sys.prefix).resolve()}/bin", "/usr/local/bin"]
    return {
        "PATH": ":".join([*programs, "/usr/bin", "/bin"]),
        "PYTHONPATH": ":".join(str(CHECKOUT / room) for room in SOURCES),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HOME": "/tmp",
    }


def compile_sources() -> None:
    """Compile the checkout's sources: pods see them read-only, and each would compile them anew.

    An engine and an operator read some 50,000 lines; without this every start costs a second.
    """
    rooms = [CHECKOUT / room for room in SOURCES]
    run([sys.executable, "-m", "compileall", "-q", *rooms])


def objects(namespace: str, extra: tuple[View, ...] = ()) -> list[dict[str, Any]]:
    """PersistentVolumes and their claims in a namespace; the volumes are named after it."""
    documents: list[dict[str, Any]] = []
    for view in (*views(), *extra):
        claim = f"host-{view.name}"
        volume = f"{namespace}-{view.name}"
        shared: dict[str, Any] = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume, "labels": {"paceline.dev/e2e-namespace": namespace}},
                "spec": {
                    **shared,
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": view.path, "type": "Directory"},
                    "claimRef": {"namespace": namespace, "name": claim},
                },
            }
        )
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim, "namespace": namespace},
                "spec": {
                    **shared,
                    "volumeName": volume,
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        )
    return documents


CACHE_CLAIM = "cache"


def cache_objects(namespace: str, folder: Path) -> list[dict[str, Any]]:
    """A volume that all engines of a cluster may write to, and a namespace's claim of it.

    As a cluster's own shared cache is: kernels are compiled by the first pod alone.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    volume = f"{namespace}-{CACHE_CLAIM}"
    shared: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": {"paceline.dev/e2e-namespace": namespace}},
            "spec": {
                **shared,
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": CACHE_CLAIM},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CACHE_CLAIM, "namespace": namespace},
            "spec": {
                **shared,
                "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    ]


def pod_volumes(extra: tuple[View, ...] = ()) -> list[dict[str, Any]]:
    """`volumes` of a pod that uses the claims; with a /tmp of its own."""
    claims = [
        {
            "name": view.name,
            "persistentVolumeClaim": {"claimName": f"host-{view.name}", "readOnly": True},
        }
        for view in (*views(), *extra)
    ]
    return [*claims, {"name": "tmp", "emptyDir": {}}]


def container_mounts(extra: tuple[View, ...] = ()) -> list[dict[str, Any]]:
    """`volumeMounts` of its containers."""
    mounts = [
        {"name": view.name, "mountPath": view.at or view.path, "readOnly": True}
        for view in (*views(), *extra)
    ]
    return [*mounts, {"name": "tmp", "mountPath": "/tmp"}]
