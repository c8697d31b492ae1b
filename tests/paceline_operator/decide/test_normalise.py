"""Nothing is written that is there already, and nothing stays that is no longer wanted."""

import copy
from typing import Any

import pytest

from paceline_operator.decide import normalise

MANAGER = "paceline-operator"
DESIRED = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "a", "namespace": "n", "labels": {"x": "y"}},
    "spec": {
        "replicas": 1,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "engine",
                        "args": ["a", "b"],
                        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1Gi"}},
                    }
                ]
            }
        },
    },
}
FIELDS = {
    "f:metadata": {"f:labels": {"f:x": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"engine"}': {
                        ".": {},
                        "f:name": {},
                        "f:args": {},
                        "f:ports": {
                            'k:{"containerPort":8000,"protocol":"TCP"}': {
                                ".": {},
                                "f:containerPort": {},
                            }
                        },
                        "f:resources": {"f:limits": {"f:cpu": {}, "f:memory": {}}},
                    }
                }
            }
        },
    },
}


def live(**changes: Any) -> dict[str, Any]:
    """As the server gives it back: defaults filled in, quantities rewritten."""
    item: dict[str, Any] = copy.deepcopy(DESIRED)
    container = item["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["limits"]["cpu"] = "1"
    container["imagePullPolicy"] = "IfNotPresent"
    item["spec"]["progressDeadlineSeconds"] = 600
    entry = {"manager": MANAGER, "operation": "Apply", "fieldsV1": copy.deepcopy(FIELDS)}
    item["metadata"]["managedFields"] = [entry]
    container |= changes
    return item


def test_defaults_and_other_texts_of_an_amount_are_no_difference() -> None:
    assert not normalise.needs_write(DESIRED, live(), MANAGER)


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ["a"]},
        {"args": ["b", "a"]},
        {"ports": []},
        {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}},
        {"resources": None},
    ],
)
def test_a_value_that_differs_is_written(changes: dict[str, Any]) -> None:
    assert normalise.needs_write(DESIRED, live(**changes), MANAGER)


def test_a_key_that_we_own_and_no_longer_want_is_taken_away() -> None:
    item = live()
    item["metadata"]["labels"]["old"] = "z"
    item["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"]["f:old"] = {}
    assert normalise.needs_write(DESIRED, item, MANAGER)


def test_a_key_that_somebody_else_owns_is_left_alone() -> None:
    item = live()
    item["metadata"]["labels"]["theirs"] = "z"
    fields = {"f:metadata": {"f:labels": {"f:theirs": {}}}}
    item["metadata"]["managedFields"].append(
        {"manager": "kubectl", "operation": "Apply", "fieldsV1": fields}
    )
    assert not normalise.needs_write(DESIRED, item, MANAGER)


def test_a_status_that_a_controller_wrote_under_our_name_does_not_count() -> None:
    item = live()
    item["metadata"]["managedFields"].insert(
        0,
        {
            "manager": MANAGER,
            "operation": "Apply",
            "subresource": "status",
            "fieldsV1": {"f:status": {"f:replicas": {}}},
        },
    )
    assert not normalise.needs_write(DESIRED, item, MANAGER)


def test_a_member_of_a_keyed_list_that_we_own_and_no_longer_want_is_taken_away() -> None:
    item = live()
    containers = item["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]
    containers["f:containers"]['k:{"name":"sidecar"}'] = {".": {}, "f:name": {}}
    assert normalise.needs_write(DESIRED, item, MANAGER)


def test_what_was_applied_is_taken_back_out_of_the_live_object() -> None:
    kept = normalise.ours_of(live(), MANAGER)
    assert kept is not None
    assert kept["spec"]["replicas"] == 1
    assert "progressDeadlineSeconds" not in kept["spec"]
    container = kept["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["a", "b"]
    assert container["ports"] == [{"containerPort": 8000, "protocol": "TCP"}]
    assert "imagePullPolicy" not in container
    assert not normalise.needs_write(kept, live(), MANAGER)


def test_lists_of_what_was_applied_keep_their_order() -> None:
    """managedFields sort their keys; another order in a template would replace its pods."""
    env = [{"name": "HOME", "value": "/cache"}, {"name": "A", "value": "b"}]
    item = live(env=env)
    fields = item["metadata"]["managedFields"][0]["fieldsV1"]
    containers = fields["f:spec"]["f:template"]["f:spec"]["f:containers"]
    containers['k:{"name":"engine"}']["f:env"] = {
        f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}, "f:value": {}} for name in ("A", "HOME")
    }
    item["metadata"]["finalizers"] = ["z", "y"]
    fields["f:metadata"]["f:finalizers"] = {".": {}, 'v:"y"': {}, 'v:"z"': {}}
    kept = normalise.ours_of(item, MANAGER)
    assert kept is not None
    assert kept["spec"]["template"]["spec"]["containers"][0]["env"] == env
    assert kept["metadata"]["finalizers"] == ["z", "y"]


def test_an_object_that_was_never_applied_gives_nothing_back() -> None:
    item = live()
    item["metadata"]["managedFields"] = []
    assert normalise.ours_of(item, MANAGER) is None
