"""The operator's own image, built here from its Containerfile and run by the real kubelet."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cluster import operator_image
from cluster.deployment import Deployment
from cluster.namespace import Namespace
from cluster.release import OPERATOR_PODS, Release, built_values

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
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
    operator_image.build(archive)
    tell(f"the operator's image takes {archive.stat().st_size / 2**20:.0f} MiB")
    namespace.cluster.load_image(archive)

    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(built_values()), encoding="utf-8")
    release = Release(namespace, values)
    try:
        release.install("one", "--take-ownership")
        release.helm("test", "one")
        (pod,) = namespace.items("pods", OPERATOR_PODS)
        assert pod["status"]["containerStatuses"][0]["image"] == operator_image.TAG
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
