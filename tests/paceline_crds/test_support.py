"""What no release builds yet is told, never ignored."""

import pytest

from paceline_crds import llmdeployment, support

MANIFEST = """
apiVersion: paceline.dev/v1alpha1
kind: LLMDeployment
metadata: {name: demo}
spec:
  model: {uri: demo}
"""


def test_a_plain_manifest_is_supported() -> None:
    assert support.not_supported(llmdeployment.loads(MANIFEST).spec) == []


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("tensorParallelSize: 2", "tensorParallelSize"),
        ("kvCache: {offload: {hostMemory: 1Gi}}", "kvCache.offload"),
        ("scheduling: {policy: Fair, tenants: [{name: a}]}", "scheduling.tenants"),
        ("gateway: {inferencePool: {endpointPicker: {name: a, port: 1}}}", "gateway.inferencePool"),
        ("speculative: {method: Eagle, model: a}", "speculative.model"),
    ],
)
def test_a_field_that_is_not_built_is_named(line: str, path: str) -> None:
    spec = llmdeployment.loads(MANIFEST + f"  {line}\n").spec
    assert support.not_supported(spec) == [
        f"spec.{path} is not supported by this release; remove it"
    ]
