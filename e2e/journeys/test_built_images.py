"""The images themselves, built here from their Containerfiles and run by the real kubelet."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cluster import built_images, host_volumes, images, layout
from cluster.deployment import Deployment
from cluster.namespace import Image, Namespace
from cluster.operator_process import OperatorProcess
from cluster.release import OPERATOR_PODS, Release, built_values

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
ENGINE_NEEDS_GB = 25
"""Free disk: the build takes 20 GB with the archive, then a node twice the archive beside it."""
NO_TORCH = """
import importlib.util, os, sys
assert importlib.util.find_spec("torch") is None, "torch is in it"
assert os.getuid() == 65532
try:
    open(sys.prefix + "/x", "w")
except OSError:
    print("read-only")
"""


def test_the_built_image_installs_serves_and_holds_no_torch(
    namespace: Namespace, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    if namespace.cluster.layout is None:
        pytest.skip("loads the image into nodes of this machine")
    archive = tmp_path / "operator.tar"
    built_images.build(built_images.OPERATOR, archive)
    tell(f"the operator's image takes {archive.stat().st_size / 2**20:.0f} MiB")
    namespace.cluster.load_image(archive)

    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(built_values()), encoding="utf-8")
    release = Release(namespace, values)
    try:
        release.install("one", "--take-ownership")
        release.helm("test", "one")
        (pod,) = namespace.items("pods", OPERATOR_PODS)
        assert pod["status"]["containerStatuses"][0]["image"] == built_images.OPERATOR
        name = pod["metadata"]["name"]
        told = namespace.kubectl("exec", name, "--", "python", "-c", NO_TORCH)
        assert told.strip() == "read-only"

        deployment = Deployment(namespace, release.operator_log)
        deployment.apply(replicas=0)
        deployment.wait_ready()
        deployment.delete()
        assert "is forbidden: User" not in release.operator_log()
    finally:
        release.helm("uninstall", "one", "--wait", "--ignore-not-found")


def test_the_built_engine_serves_the_demo_model_on_the_cpu(
    namespace: Namespace,
    crd: str,
    model: Path,
    tmp_path: Path,
    tell: Callable[[str], None],
) -> None:
    """Nothing of this machine is in its pod but the model's files."""
    assert crd
    cluster = namespace.cluster
    if cluster.layout is None:
        pytest.skip("loads the image into a node of this machine")
    layout.base().mkdir(parents=True, mode=0o711, exist_ok=True)
    free_gb = shutil.disk_usage(layout.base()).free / 1e9
    if free_gb < ENGINE_NEEDS_GB:
        pytest.skip(f"needs {ENGINE_NEEDS_GB} GB of free disk, has {free_gb:.0f}")
    archive = layout.base() / ".engine.tar"
    try:
        built_images.build(built_images.ENGINE, archive)
        tell(f"the engine's image takes {archive.stat().st_size / 2**20:.0f} MiB")
        # One node is enough for gigabytes: the pods go there.
        images.load_file(cluster.layout.node(1), archive, timeout_s=1200)
    finally:
        archive.unlink(missing_ok=True)

    thin = Image.thin(model)
    namespace.provide(thin)
    own = {"model", "tmp"}
    image = Image(
        name=built_images.ENGINE,
        volumes=[item for item in thin.volumes if item["name"] in own],
        mounts=[item for item in thin.mounts if item["name"] in own],
    )
    operator = OperatorProcess(cluster, namespace.name, tmp_path, image)
    namespace.provide_cache()
    operator.keep_in(host_volumes.CACHE_CLAIM)
    node = {"kubernetes.io/hostname": cluster.layout.node(1).name}
    operator.config["engine"]["podDefaults"] |= {"imagePullPolicy": "Never", "nodeSelector": node}
    operator.start()
    try:
        operator.wait_ready()
        deployment = Deployment(namespace, operator.tail, operator.settle)
        deployment.apply()
        deployment.wait_ready(600)
        (pod,) = deployment.pod_items()
        assert pod["status"]["containerStatuses"][0]["image"] == built_images.ENGINE
        assert "Paris" in deployment.ask()
        deployment.delete()
    finally:
        operator.stop()
