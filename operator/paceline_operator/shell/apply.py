"""Carries out a plan: each action is one write, in order, from the preconditions it was planned on.

What a refusal means stands in `decide/actions.py`: it ends the plan if later writes rely on it,
and is remembered for a condition. A conflict (409) ends the plan at once: the object is read anew
and a new plan is made. One that repeats ends it only where later writes rely on it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator.decide.actions import (
    Action,
    AnnotatePod,
    Apply,
    Delete,
    DeletePod,
    DrainPod,
    Event,
    PatchSettings,
    Plan,
    WriteStatus,
)
from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import (
    CONFLICT,
    ApiRefused,
    EngineRefused,
    EngineUnreachable,
)
from paceline_operator.shell.gather import EngineClient, Gathered
from paceline_operator.shell.kinds import Kind
from paceline_operator.shell.memory import Memory

_log = logging.getLogger(__name__)
ENGINES_S = 30.0
"""Engines have so long in one plan; what they were not told by then they are told in the next."""
WRITES_S = 120.0
"""A plan that takes longer is left where it is, and a new one made: a look has to end."""
_TO_ENGINES = (PatchSettings, DrainPod)
Fence = Callable[[], None]
"""Raises LeaseLost if this process may not write any more."""


@dataclass(slots=True)
class Outcome:
    """What came of a plan. Mutable while it is carried out.

    Attributes:
        num_done: writes that changed something; events do not count.
        worst: most refusals in a row of any action that was refused now.
    """

    num_done: int = 0
    worst: int = 0
    is_conflict: bool = False


@dataclass(slots=True, kw_only=True)
class Executor:
    """Writes; tells the cache what came back, so that the next plan starts from it."""

    cache: Cache
    cluster: Cluster
    engines: EngineClient
    fence: Fence
    clock: Callable[[], float]
    elapsed: Callable[[], float] = time.monotonic

    async def carry_out(self, plan: Plan, seen: Gathered, memory: Memory) -> Outcome:
        """Do it.

        Raises:
            ApiUnreachable: nobody knows whether the last write was done; a new plan will see.
            LeaseLost: nothing may be written any more.
        """
        outcome = Outcome()
        began, told_s = self.elapsed(), 0.0
        for action in plan.actions:
            self.fence()
            start = self.elapsed()
            if start - began > WRITES_S:
                name = objects.name(seen.observed.deployment)
                _log.warning("%s: writes take long; the rest is planned anew", name)
                outcome.worst = max(outcome.worst, 1)
                return outcome
            if isinstance(action, _TO_ENGINES) and told_s > ENGINES_S:
                continue
            try:
                await self._do(action, seen, memory)
            except (ApiRefused, EngineRefused) as refused:
                if isinstance(action, Event):
                    _log.warning("an event could not be written: %s", refused)
                    continue
                reason = refused.reason if isinstance(refused, ApiRefused) else ""
                times = memory.refused(action, refused.code, reason, refused.message)
                outcome.worst = max(outcome.worst, times)
                _tell(action, seen, refused, times)
                is_conflict = isinstance(refused, ApiRefused) and refused.code == CONFLICT
                # One that repeats is no race but an object of somebody else: no reason to wait
                # with what does not need it.
                if is_conflict and (times == 1 or action.stops_plan):
                    outcome.is_conflict = True
                    await self._look_at(action, seen)
                    return outcome
                if action.stops_plan:
                    return outcome
            except EngineUnreachable as error:
                _log.info("%s of %s: %s", type(action).__name__, action.target, error)
            else:
                memory.succeeded(action, self.clock())
                outcome.num_done += not isinstance(action, Event)
            if isinstance(action, _TO_ENGINES):
                told_s += self.elapsed() - start
        memory.keep_only(plan.actions)
        return outcome

    async def _do(self, action: Action, seen: Gathered, memory: Memory) -> None:
        document = seen.observed.deployment
        namespace = objects.text(document, "metadata", "namespace")
        match action:
            case Apply():
                made = await self.cluster.apply(
                    action.manifest, action.uid, action.resource_version
                )
                self.cache.see(action.manifest["kind"], made)
            case Delete():
                await self._delete(
                    kinds.CHILDREN[action.kind],
                    action.namespace,
                    action.name,
                    action.uid,
                    action.resource_version,
                )
            case WriteStatus():
                await self._write_status(action, document, memory)
            case AnnotatePod():
                made = await self.cluster.annotate_pod(
                    namespace, action.pod, action.pod_uid, action.annotations
                )
                self.cache.see(kinds.POD.name, made)
            case DeletePod():
                await self._delete(kinds.POD, namespace, action.pod, action.pod_uid, None)
            case PatchSettings():
                pod = _pod(seen, action.pod, action.pod_uid)
                await self.engines.patch_settings(pod, seen.tokens, action.changes, action.revision)
            case DrainPod():
                pod = _pod(seen, action.pod, action.pod_uid)
                await self.engines.drain(pod, seen.tokens, action.propagation_s)
            case Event():
                name = objects.name(document)
                _log.info("%s/%s: %s: %s", namespace, name, action.reason, action.message)
                await self.cluster.create_event(
                    document, action.type, action.reason, action.message, self.clock()
                )

    async def _write_status(
        self, action: WriteStatus, document: Mapping[str, Any], memory: Memory
    ) -> None:
        last, memory.status = memory.status, None
        try:
            made = await self.cluster.write_status(
                document, action.status, action.uid, action.resource_version
            )
        except ApiRefused:
            memory.status = last
            raise
        memory.status = last
        before, after = (objects.mapping(item, "status") for item in (document, made))
        memory.wrote_status(before, after, self.clock())
        self.cache.see(kinds.LLM_DEPLOYMENT.name, made)

    async def _delete(
        self, kind: Kind, namespace: str, name: str, uid: str, version: str | None
    ) -> None:
        left = await self.cluster.delete(kind, namespace, name, uid, version)
        if left is not None and left.get("kind") == kind.name:
            # It ends gracefully: this is its state with the time of its deletion.
            self.cache.see(kind.name, left)
        else:
            self.cache.forget(kind.name, namespace, name, uid)

    async def _look_at(self, action: Action, seen: Gathered) -> None:
        """Read the object of a conflict anew."""
        document = seen.observed.deployment
        namespace = objects.text(document, "metadata", "namespace")
        kind, name = _object_of(action, document)
        if kind is None:
            return
        live = await self.cluster.get(kind, namespace, name)
        if live is not None:
            self.cache.see(kind.name, live)
        else:
            known = [
                item
                for item in (*self.cache.family(kind.name, (namespace, objects.name(document))),)
                if objects.name(item) == name
            ]
            for item in known:
                self.cache.forget(kind.name, namespace, name, objects.uid(item))


def _object_of(action: Action, document: Mapping[str, Any]) -> tuple[Kind | None, str]:
    match action:
        case Apply():
            return kinds.CHILDREN[action.manifest["kind"]], action.manifest["metadata"]["name"]
        case Delete():
            return kinds.CHILDREN[action.kind], action.name
        case WriteStatus():
            return kinds.LLM_DEPLOYMENT, objects.name(document)
        case AnnotatePod() | DeletePod():
            return kinds.POD, action.pod
        case _:
            return None, ""


def _pod(seen: Gathered, name: str, uid: str) -> Mapping[str, Any]:
    for pod in seen.observed.pods:
        if objects.name(pod) == name and objects.uid(pod) == uid:
            return pod
    raise EngineUnreachable(f"pod {name} is gone")


def _tell(action: Action, seen: Gathered, refused: ApiRefused | EngineRefused, times: int) -> None:
    level = logging.INFO if times == 1 and refused.code == CONFLICT else logging.WARNING
    name = objects.name(seen.observed.deployment)
    what = f"{type(action).__name__} of {action.target}"
    _log.log(level, "%s: %s was refused (%d in a row): %s", name, what, times, refused)
