"""What an operator of another version or configuration leaves alone, on a real API server."""

import json
from typing import Any

import pytest

from cluster.client import Document
from cluster.deployment import LABEL, Deployment
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.wait import until

pytestmark = pytest.mark.timeout(600)
INPUTS = "paceline.dev/inputs"
UNCHANGED = 'paceline_operator_reconciles_total{result="unchanged"}'


def children(namespace: Namespace) -> dict[str, Document]:
    """`Kind/name` -> everything that the operator made, without what controllers write into it."""
    kinds = "deployments,configmaps,services,networkpolicies"
    found = {}
    for item in namespace.items(kinds, f"--selector={LABEL}"):
        item.pop("status", None)
        item["metadata"].pop("resourceVersion")
        item["metadata"].get("annotations", {}).pop("deployment.kubernetes.io/revision", None)
        found[f"{item['kind']}/{item['metadata']['name']}"] = item
    return found


def template_of(deployment: Deployment) -> Document:
    (child,) = deployment.namespace.items("deployments", f"--selector={LABEL}")
    template: Document = child["spec"]["template"]["spec"]
    return template


def restart(operator: OperatorProcess, **engine: Any) -> None:
    """Another version of the chart: the operator starts anew, with other inputs for pods."""
    operator.stop()
    operator.config["engine"] |= engine
    operator.start()
    operator.wait_ready()
    until(
        "it has looked at the deployment",
        lambda: operator.metric(UNCHANGED) >= 1,
        timeout_s=60,
        seen=operator.tail,
    )
    operator.settle()


def test_other_pod_defaults_of_the_chart_change_nothing_until_the_user_does(
    deployment: Deployment, operator: OperatorProcess, namespace: Namespace
) -> None:
    deployment.apply(replicas=0)
    deployment.wait_ready()
    before, image = children(namespace), operator.image.name
    defaults = operator.config["engine"]["podDefaults"] | {"nodeSelector": {"pool": "new"}}
    restart(operator, image="localhost/engine-of-the-next-chart:1", podDefaults=defaults)
    assert children(namespace) == before
    assert operator.writes() == {}

    # A live setting and a count are no reason either.
    deployment.edit({"scheduling": {"maxNumSeqs": 6}})
    found = deployment.wait_ready()
    assert template_of(deployment)["containers"][0]["image"] == image
    assert found["status"]["image"] == image

    deployment.edit({"maxModelLen": 256})
    deployment.wait_ready()
    deployment.wait_children(1)
    moved = template_of(deployment)
    assert moved["containers"][0]["image"] == "localhost/engine-of-the-next-chart:1"
    assert moved["nodeSelector"] == {"pool": "new"}


def test_a_status_that_was_lost_is_made_again_from_the_children(
    deployment: Deployment, operator: OperatorProcess, namespace: Namespace
) -> None:
    deployment.apply(replicas=0)
    before, made = deployment.wait_ready()["status"], children(namespace)
    operator.stop()
    patch = json.dumps({"status": None})
    namespace.kubectl(
        "patch", "llmdep", "demo", "--subresource=status", "--type=merge", f"--patch={patch}"
    )
    assert "wantedHash" not in deployment.get().get("status", {})
    operator.config["engine"]["image"] = "localhost/engine-of-the-next-chart:1"
    operator.start()
    operator.wait_ready()
    after = deployment.wait_ready()["status"]
    for field in ("wantedHash", "image", "templateVersion"):
        assert after[field] == before[field]
    assert children(namespace).keys() == made.keys()
    deployments = {name for name in made if name.startswith("Deployment/")}
    assert all(children(namespace)[name] == made[name] for name in deployments)


def test_a_template_of_a_newer_operator_is_adopted_as_it_stands(
    deployment: Deployment, operator: OperatorProcess, namespace: Namespace
) -> None:
    deployment.apply(replicas=0)
    deployment.wait_ready()
    operator.stop()
    (child,) = namespace.items("deployments", f"--selector={LABEL}")
    pinned = json.loads(child["metadata"]["annotations"][INPUTS]) | {"templateVersion": 99}
    name = child["metadata"]["name"]
    namespace.kubectl(
        "annotate", "deployment", name, "--overwrite", f"{INPUTS}={json.dumps(pinned)}"
    )
    generation = namespace.get("deployment", name)["metadata"]["generation"]
    operator.start()
    operator.wait_ready()
    deployment.edit({"maxModelLen": 256, "scheduling": {"maxNumSeqs": 6}})
    deployment.wait_condition("Degraded", "True", "TemplateVersionUnknown")
    until(
        "live settings are managed",
        lambda: settings(namespace, name).get("maxNumSeqs") == 6,
        timeout_s=60,
        seen=operator.tail,
    )
    assert deployment.children() == {name: child["metadata"]["uid"]}
    assert namespace.get("deployment", name)["metadata"]["generation"] == generation


def settings(namespace: Namespace, name: str) -> Document:
    found: Document = json.loads(namespace.get("configmap", name)["data"]["settings.json"])
    values: Document = found["settings"]
    return values
