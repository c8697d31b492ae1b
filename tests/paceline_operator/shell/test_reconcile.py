"""When one deployment is looked at again: at once after a write, ever later if that never ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.testing.api import Fault
from paceline_operator.testing.rig import NetworkedWorld, Rig

pytestmark = pytest.mark.slow  # a whole cluster in memory

SPEC: dict[str, Any] = {"model": {"uri": "demo", "servedName": "demo"}}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    (tmp_path / "key").write_text("k" * 32)
    return Rig(NetworkedWorld(SPEC), tmp_path / "key")


def look(rig: Rig) -> float | None:
    async def script() -> float | None:
        await rig.operator.resync.once()
        return await rig.operator.reconciler.reconcile(rig.key)

    return asyncio.run(script())


def spoil_status(rig: Rig) -> None:
    document = rig.world.store.objects["LLMDeployment", "demo"]
    document["status"] = {**document["status"], "replicas": 7}
    rig.world.store.touch(document)


def put_budget(rig: Rig) -> None:
    """A disruption budget of ours that nobody wants."""
    uid, version = rig.world.store.stamp()
    owner = objects.uid(rig.world.document)
    metadata = {
        "name": "demo",
        "namespace": "models",
        "uid": uid,
        "resourceVersion": version,
        "labels": names.labels("demo", "default"),
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata}
    rig.world.store.objects["PodDisruptionBudget", "demo"] = budget


def test_somebody_who_undoes_every_write_is_answered_ever_later(rig: Rig) -> None:
    rig.settle()
    waits = []
    for _ in range(24):
        put_budget(rig)
        waits.append(look(rig))
    assert waits == [0.0] * 20 + [1.0, 2.0, 4.0, 8.0]
    look(rig)
    put_budget(rig)
    assert look(rig) == 0.0, "a look that wrote nothing has ended the row"


def test_a_fight_over_status_is_told_in_it_and_then_left(rig: Rig) -> None:
    """As of two installs that take the same LLMDeployment: each finds the other's word wrong."""
    rig.settle()
    waits = []
    for _ in range(7):
        spoil_status(rig)
        waits.append(look(rig))
    assert waits == [0.0] * 5 + [60.0] * 2
    degraded = objects.condition(rig.world.document, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ChildContended")
    assert "LLMDeployment/status" in degraded["message"]
    before = rig.num_writes
    look(rig)
    assert rig.num_writes == before, "not even an event"
    rig.world.tick(600)
    rig.settle()
    assert rig.world.condition("Degraded") == ("False", "AsExpected")


def test_a_conflict_is_looked_at_again_soon_and_ever_later(rig: Rig) -> None:
    rig.settle()
    rig.world.edit({**SPEC, "replicas": 2})
    rig.api.faults = lambda asked: Fault.CONFLICT if asked.is_write else None
    assert [look(rig) for _ in range(4)] == [0.1, 0.2, 0.4, 0.8]


def test_one_that_is_gone_is_forgotten(rig: Rig) -> None:
    rig.settle()
    rig.world.delete()
    rig.world.store.collect_garbage()
    assert look(rig) is None
