"""One look at one LLMDeployment: gather, plan, apply; then when to look again."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline_operator.decide import plan as planning
from paceline_operator.resources import objects
from paceline_operator.shell.apply import Executor
from paceline_operator.shell.cache import Cache, Key
from paceline_operator.shell.gather import Gatherer
from paceline_operator.shell.memory import Memory

_log = logging.getLogger(__name__)
_FREE_ROUNDS = 20
"""Reconciles in a row that may write without a pause: a whole roll-out takes fewer."""
_MAX_WAIT_S = 60.0
_CONFLICT_S = 0.1
_REFUSED_S = 1.0


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Holds what is remembered between reconciles. Mutable.

    Attributes:
        told: gets the seconds that each reconcile took, and what came of it.
    """

    cache: Cache
    gatherer: Gatherer
    executor: Executor
    clock: Callable[[], float]
    told: Callable[[float, str], None] = lambda _seconds, _result: None
    _memories: dict[Key, Memory] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> float | None:
        """Look once; returns when to look again, None if an event or the resync is soon enough."""
        began = time.perf_counter()
        result = "failed"
        try:
            again, result = await self._look(key)
        finally:
            self.told(time.perf_counter() - began, result)
        return again

    async def _look(self, key: Key) -> tuple[float | None, str]:
        memory = self._memory(key)
        seen = await self.gatherer.gather(key, memory) if memory is not None else None
        if seen is None or memory is None:
            return None, "gone"
        plan = planning.plan(seen.observed, self.clock())
        outcome = await self.executor.carry_out(plan, seen, memory)
        waits = [plan.requeue_after_s, seen.look_again_s if plan.asks_readings else None]
        if outcome.is_conflict:
            return _growing(_CONFLICT_S, outcome.worst), "conflict"
        if outcome.worst:
            waits.append(_growing(_REFUSED_S, outcome.worst))
        if outcome.num_done == 0:
            memory.rounds = 0
            known = [wait for wait in waits if wait is not None]
            return (min(known) if known else None), "refused" if outcome.worst else "unchanged"
        memory.rounds += 1
        if memory.rounds > _FREE_ROUNDS:
            _log.warning("%s/%s: still writing after %d rounds", *key, memory.rounds)
            return _growing(1.0, memory.rounds - _FREE_ROUNDS), "written"
        if outcome.worst:
            return _growing(_REFUSED_S, outcome.worst), "refused"
        return 0.0, "written"

    def _memory(self, key: Key) -> Memory | None:
        deployment = self.cache.deployment(key)
        if deployment is None:
            self._memories.pop(key, None)
            return None
        uid = objects.uid(deployment)
        known = self._memories.get(key)
        if known is None or known.uid != uid:
            known = self._memories[key] = Memory(uid)
        return known


def _growing(first_s: float, times: int) -> float:
    return float(min(_MAX_WAIT_S, first_s * 2.0 ** min(times - 1, 10)))
