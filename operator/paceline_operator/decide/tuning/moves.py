"""What is prescribed for a symptom: single changes in the order in which they are tried."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from paceline_crds.status_tuning import Direction
from paceline_operator.decide.tuning.dials import Dial, Dials
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.symptom import Symptom

UP, DOWN = Direction.UP, Direction.DOWN

Step = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of one setting.

    Attributes:
        after: the new value as text; equal to the dial's where it is at its bound already.
    """

    dial: Dial
    direction: Direction
    after: str

    @property
    def before(self) -> str:
        """The value in force, also where it is derived and nobody pinned it."""
        if self.dial.text or not self.dial.value:
            return self.dial.text
        return _text(self.dial, self.dial.value)

    @property
    def is_at_bound(self) -> bool:
        """Whether there is nothing left in that direction."""
        return self.after == self.dial.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much is left of what a change would use up.

    Attributes:
        usage: share of the KV blocks in use, 95th percentile.
        running: mean of the requests that run in a pod.
        has_itl_slack: streams are within their target, or have none.
    """

    usage: float
    running: float = inf
    has_itl_slack: bool = True


def prescribed(symptom: Symptom, dials: Dials, policy: Policy, room: Room) -> tuple[Move, ...]:
    """The changes for a symptom, first one first; none where only a person can help.

    Args:
        symptom: what is shown.
        dials: settings in force.
        policy: targets.
        room: what is left to be used.
    """
    made = []
    for name, direction, step in _steps(symptom, policy, room):
        dial = dials.get(name)
        if dial is not None and not (name == "speculativeNumTokens" and dial.value == 0):
            made.append(_move(dial, direction, step))
    return tuple(made)


def _move(dial: Dial, direction: Direction, step: Step) -> Move:
    if dial.name == "kvCacheDtype":
        after = "FP8" if "FP8" in dial.allowed else dial.text
        return Move(dial=dial, direction=direction, after=after)
    wanted = min(max(_rounded(dial, direction, step(dial.value)), dial.least), dial.most)
    is_progress = wanted > dial.value if direction is UP else wanted < dial.value
    is_turned_on = not dial.value and dial.name == "interTokenTargetMs" and wanted > 0
    after = _text(dial, wanted) if is_progress or is_turned_on else dial.text
    return Move(dial=dial, direction=direction, after=after)


def _rounded(dial: Dial, direction: Direction, value: float) -> float:
    """A value that people would choose, at least one step away."""
    if dial.name in _DECIMALS:
        return round(value, 4)
    whole = float(int(value))
    if whole == dial.value:
        whole += 1 if direction is UP else -1
    return whole


def _text(dial: Dial, value: float) -> str:
    if dial.name in _DECIMALS:
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return str(int(value))


_DECIMALS = frozenset({"watermark", "gpuMemoryUtilization"})


def _times(factor: float) -> Step:
    return lambda value: value * factor


def _next_watermark(value: float) -> float:
    return max(0.02, value * 4)


def _to_fit(running: float) -> Step:
    """Down to what runs on average; a fifth less of a cap that nobody reaches would be nothing."""
    return lambda value: max(1.0, running) if running < _REACHED * value else 0.8 * value


_REACHED = 0.95
"""Where so much of maxNumSeqs runs on average it is the limit, else the cache is."""
_TIGHTER = 0.8
"""Also where it is turned on. The governor keeps nine of ten steps with prefill below its target,
but a request is judged by its slowest gaps: a target equal to theirs would be missed by many."""
_TWICE, _HALF = _times(2.0), _times(0.5)
_FEWER = _times(0.8)


def _steps(symptom: Symptom, policy: Policy, room: Room) -> tuple[tuple[str, Direction, Step], ...]:
    itl = policy.targets.get("itl")
    # Twice as many cannot fill a cache that is a third full, but they slow every stream down.
    is_bold = room.usage < 0.35 and itl is None
    seqs_up = ("maxNumSeqs", UP, _TWICE if is_bold else _times(1.25))
    seqs_down = ("maxNumSeqs", DOWN, _FEWER)
    seqs_to_fit = ("maxNumSeqs", DOWN, _to_fit(room.running))
    budget_up = ("maxNumBatchedTokens", UP, _TWICE)
    budget_down = ("maxNumBatchedTokens", DOWN, _HALF)
    speculation_down = ("speculativeNumTokens", DOWN, _HALF)
    target_ms = itl.limit_s * 1000 if itl else 0.0
    table: Mapping[Symptom, tuple[tuple[str, Direction, Step], ...]] = {
        Symptom.KV_PRESSURE: (
            speculation_down,
            ("watermark", UP, _next_watermark),
            seqs_to_fit,
            ("gpuMemoryUtilization", UP, lambda value: value + 0.02),
            budget_down,
            ("kvCacheDtype", DOWN, _HALF),
        ),
        Symptom.SPECULATION_COSTS: (speculation_down,),
        Symptom.SPIKY_STREAMS: (
            ("longPrefillTokens", DOWN, _HALF),
            ("interTokenTargetMs", DOWN, lambda value: _TIGHTER * (value or target_ms)),
            budget_down,
        ),
        Symptom.SLOW_STREAMS: (seqs_down,),
        Symptom.QUEUE_WAIT: (seqs_up,) if room.usage < 0.85 and room.has_itl_slack else (),
        Symptom.SLOW_PREFILL: (budget_up,),
        Symptom.CAP_TOO_LOW: (seqs_up, budget_up) if room.has_itl_slack else (),
    }
    return table.get(symptom, ())


_OFF_AT_ZERO = frozenset({"longPrefillTokens", "interTokenTargetMs"})
"""Limits that 0 turns off: from 0 to any other value they become tighter."""


def direction_of(setting: str, before: str, after: str) -> Direction:
    """Which way a change of a number went; a word, or a limit where there was none, is down."""
    try:
        was, now = (
            inf if setting in _OFF_AT_ZERO and float(text) == 0 else float(text)
            for text in (before, after)
        )
    except ValueError:
        return DOWN
    return UP if now > was else DOWN
