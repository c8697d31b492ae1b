"""What a reconcile remembers of the ones before it.

All of it may be lost: nothing depends on it but words in conditions and the patience of retries.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_operator.decide.actions import Action, Apply, WriteStatus
from paceline_operator.decide.observed import WriteFailure
from paceline_operator.shell.errors import CONFLICT

WINDOW_S = 600.0
Target = tuple[str, str]
"""Class name of an action and its target."""


@dataclass(slots=True)
class Memory:
    """Of one LLMDeployment. Mutable.

    Attributes:
        uid: of the LLMDeployment that it is about.
        failures: refused writes that have not succeeded since.
        rounds: reconciles in a row that wrote something.
        status: as the server had it after our last write; None if that is not known.
    """

    uid: str
    failures: dict[Target, WriteFailure] = field(default_factory=dict)
    rounds: int = 0
    status: Mapping[str, Any] | None = None
    _applied: dict[str, str] = field(default_factory=dict)
    _rewrites: dict[str, list[float]] = field(default_factory=dict)

    def rewrites(self, now: float) -> dict[str, int]:
        """`Kind/name` -> how often we wrote it over somebody's change in the last ten minutes."""
        for target, times in tuple(self._rewrites.items()):
            recent = [moment for moment in times if now - moment < WINDOW_S]
            if recent:
                self._rewrites[target] = recent
            else:
                del self._rewrites[target]
        return {target: len(times) for target, times in self._rewrites.items()}

    def succeeded(self, action: Action, now: float) -> None:
        """An action was carried out."""
        self.failures.pop(target_of(action), None)
        if isinstance(action, Apply):
            digest = _digest(action.manifest)
            if action.uid is not None and self._applied.get(action.target) == digest:
                self._rewrites.setdefault(action.target, []).append(now)
            self._applied[action.target] = digest

    def wrote_status(self, before: Mapping[str, Any], after: Mapping[str, Any], now: float) -> None:
        """Status was written: over our own last one, or over what somebody else had made of it."""
        if self.status is not None and self.status != before:
            self._rewrites.setdefault(WriteStatus.target, []).append(now)
        self.status = after

    def refused(self, action: Action, code: int, reason: str, message: str) -> int:
        """An action was refused; returns how often in a row by now."""
        target = target_of(action)
        before = self.failures.get(target)
        times = before.times + 1 if before is not None else 1
        self.failures[target] = WriteFailure(
            action=target[0],
            target=target[1],
            code=code,
            reason=reason,
            message=message,
            times=times,
        )
        return times

    def keep_only(self, actions: Iterable[Action]) -> None:
        """A plan was carried out to its end: what it does not want any more has not failed."""
        wanted = {target_of(action) for action in actions}
        self.failures = {target: item for target, item in self.failures.items() if target in wanted}

    def shown_failures(self) -> tuple[WriteFailure, ...]:
        """Failures for a condition; a single conflict is none, it means to look again."""
        return tuple(
            item for item in self.failures.values() if item.code != CONFLICT or item.times > 1
        )


def target_of(action: Action) -> Target:
    """What a failure is about."""
    return type(action).__name__, action.target


def _digest(manifest: Any) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
