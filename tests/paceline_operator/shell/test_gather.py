"""Who is asked, what the cluster's warnings are read for, and how many others are being changed."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.decide.observed import EngineReading
from paceline_operator.decide.tuning.state import Mood, Phase
from paceline_operator.render import names
from paceline_operator.resources import objects
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.gather import MOUNTING_S, STARTING_S, Gathered, Gatherer
from paceline_operator.shell.keys import MasterKeys
from paceline_operator.shell.memory import Memory
from paceline_operator.testing.api import FakeApi, Fault
from paceline_operator.testing.rig import WorldEngines
from paceline_operator.testing.world import START, World

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


class Engines(WorldEngines):
    """Remembers who was asked, and for what."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.asked: list[tuple[str, bool]] = []

    async def read(
        self, pod: Mapping[str, Any], tokens: tuple[str, ...], *, with_requests: bool = False
    ) -> EngineReading:
        self.asked.append((objects.name(pod), with_requests))
        return await super().read(pod, tokens)


class Scene:
    """An operator's cache with the deployment `mine`, its pods and other deployments."""

    def __init__(self, folder: Path, *others: dict[str, Any], pods: Sequence[Any] = ()) -> None:
        self.world = World({"model": {"uri": "demo"}})
        self.api = FakeApi(self.world.store, lambda: self.world.now)
        self.engines = Engines(self.world)
        (folder / "key").write_text("k" * 32)
        cache = Cache(self.world.config.field_manager)
        for item in (deployment("mine"), *others):
            cache.see(KIND, item)
        for pod in pods:
            cache.see("Pod", pod)
        self.gatherer = Gatherer(
            cache=cache,
            cluster=Cluster(self.api, self.world.config.field_manager),
            engines=self.engines,
            keys=MasterKeys(folder / "key"),
            inputs=self.world.inputs,
            config=self.world.config,
            clock=lambda: self.world.now,
        )

    def gather(self) -> Gathered:
        found = asyncio.run(self.gatherer.gather(("models", "mine"), Memory("u-mine")))
        assert found is not None
        return found


def num_changing(tmp_path: Path, *deployments: dict[str, Any]) -> int:
    """What the deployment `mine` is told of the others."""
    return Scene(tmp_path, *deployments).gather().observed.num_changing


def pod(
    name: str = "a",
    *,
    age_s: float = 60.0,
    is_ready: bool = True,
    runs: bool = True,
    container: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod of `mine` on a node, whose container runs unless its volumes are waited for."""
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": str(is_ready and runs)},
    ]
    status: dict[str, Any] = {"conditions": conditions, "phase": "Running" if runs else "Pending"}
    if runs:
        status |= {"podIP": "10.0.0.1", "containerStatuses": [{"state": {"running": {}}}]}
    return {
        "metadata": {
            "name": name,
            "namespace": "models",
            "uid": f"u-{name}",
            "resourceVersion": "5",
            "creationTimestamp": objects.timestamp(START - age_s),
            "labels": {names.DEPLOYMENT_LABEL: "mine"},
        },
        "spec": {"containers": [container or {"name": "engine"}]},
        "status": status,
    }


VLLM = {"name": "engine", "command": ["vllm", "serve"]}


def test_who_cannot_answer_or_must_not_be_asked_is_not_asked(tmp_path: Path) -> None:
    with_key = {**VLLM, "env": [{"name": "VLLM_API_KEY"}]}
    pods = [pod("a"), pod("b", container=VLLM), pod("c", container=with_key), pod("d", runs=False)]
    scene = Scene(tmp_path, pods=pods)
    assert scene.gather().observed.readings.keys() == {"a", "b"}
    assert [name for name, _ in scene.engines.asked] == ["a", "b"]


def test_requests_are_counted_only_when_some_pod_has_to_go(tmp_path: Path) -> None:
    alone = Scene(tmp_path, pods=[pod("a")])
    alone.gather()
    assert alone.engines.asked == [("a", False)]
    surplus = Scene(tmp_path, pods=[pod("a"), pod("b")])
    surplus.gather()
    assert surplus.engines.asked == [("a", True), ("b", True)]


@pytest.mark.parametrize(
    ("state", "again_s"),
    [({}, None), ({"is_ready": False}, STARTING_S), ({"runs": False}, MOUNTING_S)],
)
def test_a_start_that_no_event_tells_is_looked_at_again(
    tmp_path: Path, state: dict[str, Any], again_s: float | None
) -> None:
    assert Scene(tmp_path, pods=[pod(**state)]).gather().look_again_s == again_s


@pytest.mark.parametrize(("age_s", "is_asked"), [(MOUNTING_S - 1, False), (MOUNTING_S, True)])
def test_warnings_are_read_once_a_pod_has_waited_long_for_its_container(
    tmp_path: Path, age_s: float, is_asked: bool
) -> None:
    scene = Scene(tmp_path, pods=[pod(runs=False, age_s=age_s)])
    scene.world.store.objects["Event", "w"] = {
        "kind": "Event",
        "metadata": {"name": "w", "namespace": "models"},
        "reason": "FailedMount",
        "message": 'secret "keys" not found',
        "lastTimestamp": objects.timestamp(START),
    }
    found = scene.gather().observed.events
    assert [event.reason for event in found] == ["FailedMount"] * is_asked


def test_without_the_right_to_read_warnings_everything_else_is_gathered(tmp_path: Path) -> None:
    scene = Scene(tmp_path, pods=[pod(runs=False)])
    scene.api.faults = lambda _: Fault.FORBID
    observed = scene.gather().observed
    assert (observed.events, len(observed.pods)) == ((), 1)


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
