"""A plan has an end, however slow engines and the API server are."""

import asyncio
from collections.abc import Mapping
from typing import Any

from paceline_operator.decide.actions import Action, Apply, Event, PatchSettings, Plan
from paceline_operator.decide.observed import Inputs, Observed
from paceline_operator.shell.apply import ENGINES_S, WRITES_S, Executor, Outcome
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import EngineUnreachable
from paceline_operator.shell.gather import Gathered
from paceline_operator.shell.memory import Memory
from paceline_operator.testing.api import FakeApi
from paceline_operator.testing.rig import WorldEngines
from paceline_operator.testing.world import World

NAMES = [f"p{number}" for number in range(100)]


class Slow:
    """Time that passes with each request to an engine or to the API server."""

    def __init__(self, per_engine_s: float = 0.0, per_write_s: float = 0.0) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.written = 0
        self.world = World({"model": {"uri": "demo"}})
        api = FakeApi(self.world.store, lambda: self.world.now)
        slow = self

        class Engines(WorldEngines):
            async def patch_settings(
                self,
                pod: Mapping[str, Any],
                tokens: tuple[str, ...],
                changes: Mapping[str, Any],
                revision: int,
            ) -> None:
                assert tokens, (changes, revision)
                slow.now += per_engine_s
                slow.told.append(pod["metadata"]["name"])
                raise EngineUnreachable("no answer")

        class Writes(Cluster):
            async def create_event(
                self, about: Mapping[str, Any], kind: str, reason: str, message: str, now: float
            ) -> None:
                assert about, (kind, reason, message, now)
                slow.now += per_write_s
                slow.written += 1

        manager = self.world.config.field_manager
        self.executor = Executor(
            cache=Cache(manager),
            cluster=Writes(api, manager),
            engines=Engines(self.world),
            fence=lambda: None,
            clock=lambda: self.world.now,
            elapsed=lambda: self.now,
        )

    def carry_out(self, *actions: Action) -> Outcome:
        pods = tuple({"metadata": {"name": name, "uid": name}} for name in NAMES)
        observed = Observed(
            deployment=self.world.document, pods=pods, inputs=Inputs(engine_image="a")
        )
        seen = Gathered(observed=observed, tokens=("t",), look_again_s=None)
        plan = Plan(actions=actions, requeue_after_s=1.0)
        return asyncio.run(self.executor.carry_out(plan, seen, Memory("u")))


def patches() -> list[Action]:
    return [PatchSettings(pod=name, pod_uid=name, changes={}, revision=2) for name in NAMES]


def told(number: int) -> list[Action]:
    return [Event(type="Normal", reason="Told", message="x") for _ in range(number)]


def test_engines_that_do_not_answer_do_not_hold_up_what_comes_after_them() -> None:
    slow = Slow(per_engine_s=5.0)
    slow.carry_out(*patches(), *told(1))
    assert slow.now <= ENGINES_S + 5.0
    assert slow.told == NAMES[: len(slow.told)]
    assert slow.written == 1


def test_a_server_that_lets_every_write_wait_gets_a_new_plan() -> None:
    slow = Slow(per_write_s=30.0)
    slow.carry_out(*told(100))
    assert slow.now <= WRITES_S + 30.0


def test_engines_that_answer_are_all_told() -> None:
    slow = Slow(per_engine_s=0.01)
    slow.carry_out(*patches())
    assert slow.told == NAMES


def test_a_child_of_a_deployment_that_has_gone_meanwhile_is_not_written() -> None:
    slow = Slow()
    metadata = {"name": "demo-1", "namespace": "models"}
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}
    outcome = slow.carry_out(Apply(manifest=child, owner="demo-1"))
    assert outcome.is_conflict
    assert slow.world.store.of_kind("ConfigMap") == []
