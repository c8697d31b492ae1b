"""Symptoms over time: one holds once three windows in a row showed it, and goes as slowly."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline_operator.decide.tuning.quantum import figures
from paceline_operator.decide.tuning.symptom import Finding, Symptom

HOLD_WINDOWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One symptom as it stands.

    Attributes:
        since: start of the first window that showed it.
        shown: windows in a row that showed it; it holds from three on and stays so until it goes.
        calm: windows in a row that did not.
        is_evaluated: whether the last window said anything about it.
    """

    symptom: Symptom
    since: int
    shown: int = 0
    calm: int = 0
    is_evaluated: bool = True
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether it may be acted on."""
        return self.shown >= HOLD_WINDOWS


def held(seen: Iterable[Seen]) -> frozenset[Symptom]:
    """Symptoms that hold."""
    return frozenset(item.symptom for item in seen if item.holds)


def advance(
    seen: Iterable[Seen], findings: Iterable[Finding], window_start: int
) -> tuple[Seen, ...]:
    """One more window.

    Args:
        seen: before.
        findings: of the window, every symptom once, in the order of their evaluation.
        window_start: its start.

    Returns:
        What holds, begins or could not be evaluated, in the order of evaluation.
    """
    before = {item.symptom: item for item in seen}
    after = (_after(before.get(item.symptom), item, window_start) for item in findings)
    return tuple(item for item in after if item is not None)


def _after(old: Seen | None, finding: Finding, start: int) -> Seen | None:
    if finding.is_shown is None:
        return _unknown(old, finding, start)
    known = old if old is not None and old.shown else None
    if finding.is_shown:
        return Seen(
            symptom=finding.symptom,
            since=known.since if known else start,
            shown=(known.shown if known else 0) + 1,
            evidence=figures(finding.evidence),
        )
    if known is None or not known.holds or known.calm + 1 >= HOLD_WINDOWS:
        return None
    return Seen(
        symptom=finding.symptom,
        since=known.since,
        shown=known.shown,
        calm=known.calm + 1,
        evidence=figures(finding.evidence),
    )


def _unknown(old: Seen | None, finding: Finding, start: int) -> Seen:
    """Missing data is no sign of health: what was known stays, and says that it is old."""
    if old is None:
        return Seen(symptom=finding.symptom, since=start, is_evaluated=False)
    return Seen(
        symptom=old.symptom,
        since=old.since,
        shown=old.shown,
        calm=old.calm,
        is_evaluated=False,
        evidence=old.evidence,
    )
