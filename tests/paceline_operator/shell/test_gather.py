"""How many deployments are being changed at once, as the operator's cap counts them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.decide.tuning.state import Mood, Phase
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.gather import Gatherer
from paceline_operator.shell.keys import MasterKeys
from paceline_operator.shell.memory import Memory
from paceline_operator.testing.api import FakeApi
from paceline_operator.testing.rig import WorldEngines
from paceline_operator.testing.world import World

KIND = "LLMDeployment"


def deployment(name: str, state: str = "") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "models",
            "uid": f"u-{name}",
            "resourceVersion": "5",
        },
        "spec": {"model": {"uri": "demo"}},
        "status": {"tuning": {"state": state}} if state else {},
    }


def num_changing(tmp_path: Path, *deployments: dict[str, Any]) -> int:
    """What the deployment `mine` is told of the others."""
    world = World({"model": {"uri": "demo"}})
    (tmp_path / "key").write_text("k" * 32)
    cache = Cache(world.config.field_manager)
    for item in (deployment("mine"), *deployments):
        cache.see(KIND, item)
    gatherer = Gatherer(
        cache=cache,
        cluster=Cluster(FakeApi(world.store, lambda: world.now), world.config.field_manager),
        engines=WorldEngines(world),
        keys=MasterKeys(tmp_path / "key"),
        inputs=world.inputs,
        config=world.config,
        clock=lambda: world.now,
    )
    found = asyncio.run(gatherer.gather(("models", "mine"), Memory("u-mine")))
    assert found is not None
    return found.observed.num_changing


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.PROPOSED])
def test_a_change_in_flight_elsewhere_counts_in_each_of_its_phases(
    tmp_path: Path, phase: Phase
) -> None:
    assert num_changing(tmp_path, deployment("other", phase.value), deployment("idle")) == 1


@pytest.mark.parametrize("state", [Phase.PROPOSED, Mood.WATCHING, Mood.FROZEN, Mood.HALTED, ""])
def test_what_only_waits_or_watches_does_not_count(tmp_path: Path, state: str) -> None:
    assert num_changing(tmp_path, deployment("other", str(state))) == 0


def test_the_deployment_itself_does_not_keep_itself_from_going_on(tmp_path: Path) -> None:
    assert num_changing(tmp_path, deployment("mine", "Verifying")) == 0
    several = [deployment(f"other-{number}", "Settling") for number in range(3)]
    assert num_changing(tmp_path, *several) == 3
