"""The cache: the higher version wins, whatever order news comes in."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Listing

KEY = ("models", "demo")
KIND = "LLMDeployment"


def deployment(version: int, uid: str = "u1", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "demo",
            "namespace": "models",
            "uid": uid,
            "resourceVersion": str(version),
            **metadata,
        }
    }


def service(version: int, owner: str = "demo") -> dict[str, Any]:
    return deployment(version, labels={"paceline.dev/deployment": owner})


def version(cache: Cache) -> int | None:
    known = cache.deployment(KEY)
    return None if known is None else int(known["metadata"]["resourceVersion"])


def test_older_news_changes_nothing() -> None:
    cache = Cache("m")
    assert cache.see(KIND, deployment(5))
    assert not cache.see(KIND, deployment(4))
    assert not cache.see(KIND, deployment(5))
    assert version(cache) == 5


def test_a_late_deletion_of_the_object_before_does_not_take_its_successor() -> None:
    cache = Cache("m")
    cache.see(KIND, deployment(5, "u1"))
    cache.see(KIND, deployment(9, "u2"))
    assert not cache.see_gone(KIND, deployment(7, "u1"))
    assert version(cache) == 9


def test_a_late_change_does_not_bring_back_what_was_deleted() -> None:
    cache = Cache("m")
    cache.see(KIND, deployment(5))
    assert cache.see_gone(KIND, deployment(7))
    assert not cache.see(KIND, deployment(6))
    assert version(cache) is None
    assert cache.see(KIND, deployment(8, "u2"))


def test_a_list_drops_what_it_lacks_unless_that_is_newer_than_the_list() -> None:
    cache = Cache("m")
    cache.see(KIND, deployment(5))
    assert cache.merge(KIND, Listing([], 4)) == set()
    assert version(cache) == 5
    assert cache.merge(KIND, Listing([], 6)) == {KEY}
    assert version(cache) is None


def test_a_list_of_one_namespace_says_nothing_about_another() -> None:
    cache = Cache("m")
    cache.see(KIND, deployment(5))
    cache.merge(KIND, Listing([], 9), "elsewhere")
    assert version(cache) == 5


def test_what_the_operator_deleted_is_not_brought_back_by_an_old_list() -> None:
    cache = Cache("m")
    cache.see("Service", service(5))
    cache.forget("Service", "models", "demo", "u1")
    cache.merge("Service", Listing([service(5)], 5))
    assert cache.family("Service", KEY) == ()


def test_a_child_whose_label_moves_leaves_its_old_family() -> None:
    cache = Cache("m")
    cache.see("Service", service(5))
    cache.see("Service", service(6, "other"))
    assert cache.family("Service", KEY) == ()
    assert len(cache.family("Service", ("models", "other"))) == 1


def test_only_our_managed_fields_and_no_copy_of_the_manifest_are_kept() -> None:
    cache = Cache("m")
    fields = [{"manager": "m", "fieldsV1": {}}, {"manager": "kubectl", "fieldsV1": {}}]
    notes = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}
    labels = {"paceline.dev/deployment": "demo"}
    child = deployment(1, managedFields=fields, annotations=notes, labels=labels)
    cache.see("Service", child)
    (known,) = cache.family("Service", KEY)
    assert [item["manager"] for item in known["metadata"]["managedFields"]] == ["m"]
    assert known["metadata"]["annotations"] == {"a": "b"}
    cache.see(KIND, child)
    deployed = cache.deployment(KEY)
    assert deployed is not None
    assert "managedFields" not in deployed["metadata"]


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"status": {"observedGeneration": 1, "conditions": [{"type": "Progressing"}]}}, False),
        ({"status": {"conditions": [{"type": "ReplicaFailure", "status": "True"}]}}, True),
        ({"spec": {"replicas": 2}}, True),
        ({"metadata": {"annotations": {"deployment.kubernetes.io/revision": "1"}}}, False),
        ({"metadata": {"labels": {"paceline.dev/deployment": "demo", "a": "b"}}}, True),
        ({"metadata": {"generation": 2, "managedFields": [{"manager": "hpa"}]}}, False),
        ({"metadata": {"managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ],
)
def test_a_version_that_changes_no_plan_is_kept_and_is_no_news(
    change: dict[str, Any], is_news: bool
) -> None:
    cache = Cache("m")
    before = service(5) | {"spec": {"replicas": 1}}
    cache.see("Deployment", before)
    after = {
        **before,
        **change,
        "metadata": {**service(6)["metadata"], **change.get("metadata", {})},
    }
    assert cache.see("Deployment", after) is is_news
    (known,) = cache.family("Deployment", KEY)
    assert known["metadata"]["resourceVersion"] == "6"


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(6)), st.integers(0, 6))
def test_any_order_of_the_same_news_ends_in_the_same_state(
    order: list[int], num_repeated: int
) -> None:
    """Created, changed, deleted, created again, changed, changed: told in any order."""
    news = [
        (False, deployment(1, "u1")),
        (False, deployment(2, "u1")),
        (True, deployment(3, "u1")),
        (False, deployment(4, "u2")),
        (False, deployment(5, "u2")),
        (False, deployment(6, "u2")),
    ]
    cache = Cache("m")
    for number in [*order, *order[:num_repeated]]:
        is_gone, item = news[number]
        if is_gone:
            cache.see_gone(KIND, item)
        else:
            cache.see(KIND, item)
    assert version(cache) == 6


def test_changes_in_flight_elsewhere_are_counted_by_the_newest_status() -> None:
    def tuned(version: int, state: str, name: str = "demo") -> dict[str, Any]:
        return deployment(version, name=name) | {"status": {"tuning": {"state": state}}}

    cache, other = Cache("m"), ("models", "other")
    cache.see(KIND, tuned(1, "Settling"))
    assert (cache.num_changing(other), cache.num_changing(KEY)) == (1, 0)
    cache.see(KIND, tuned(2, "Proposed"))
    assert cache.num_changing(other) == 0
    cache.see(KIND, tuned(3, "Verifying"))
    cache.see(KIND, tuned(2, "Proposed"))
    cache.see(KIND, tuned(4, "Applying", "other"))
    assert cache.num_changing(("models", "third")) == 2
    cache.see_gone(KIND, deployment(5))
    cache.merge(KIND, Listing([], 9))
    assert cache.num_changing(("models", "third")) == 0
