"""Load: when two arms may be compared, and under which name a failure is remembered.

Equal load means equal lengths of prompts and outputs and an equal demand, each within 15 %. Demand
is the rate at which requests arrive where users come on their own (open loop), and the number of
requests at the same time where each waits for its answer before it asks again (closed loop): there
a better setting raises the rate itself. Of the two the one that changed less tells which it is: had
both the users and the settings changed, both would have moved.
"""

from dataclasses import dataclass
from math import log2

from paceline_operator.decide.tuning.arm import Arm

TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the load of one arm compares with another's.

    Attributes:
        is_equal: each component within 15 %.
        demand: of the second over the first: what goodput is put in relation to.
        worst: name of the component that differs most, and by how much (share).
    """

    is_equal: bool
    demand: float
    worst: str
    difference: float


def compare(before: Arm, after: Arm) -> Comparison:
    """Whether two arms had the same load."""
    rate = _ratio(_per_second(after.arrived, after), _per_second(before.arrived, before))
    present = _ratio(_per_second(after.present, after), _per_second(before.present, before))
    demand = rate if abs(rate - 1) <= abs(present - 1) else present
    parts = {
        "demand": demand,
        "promptLength": _ratio(
            after.per_request(after.prompts), before.per_request(before.prompts)
        ),
        "outputLength": _ratio(
            after.per_request(after.outputs), before.per_request(before.outputs)
        ),
    }
    worst = max(parts, key=lambda name: abs(parts[name] - 1))
    difference = abs(parts[worst] - 1)
    return Comparison(
        is_equal=difference <= TOLERANCE, demand=demand, worst=worst, difference=difference
    )


def bin_of(arm: Arm) -> str:
    """The load of an arm, coarsely: powers of two of rate, prompt and output length."""
    rate = _level(60 * _per_second(arm.arrived, arm))
    prompt = _level(arm.per_request(arm.prompts))
    output = _level(arm.per_request(arm.outputs))
    return f"r{rate}-p{prompt}-o{output}"


def are_near(one: str, other: str) -> bool:
    """Whether two bins are the same or neighbours: a load on an edge must not dodge a tabu."""
    levels = [[int(part[1:]) for part in text.split("-")] for text in (one, other)]
    return all(abs(a - b) <= 1 for a, b in zip(*levels, strict=True))


def _per_second(total: float, arm: Arm) -> float:
    return total / arm.pod_seconds if arm.pod_seconds else 0.0


def _ratio(after: float, before: float) -> float:
    if before <= 0:
        return 1.0 if after <= 0 else 1000.0
    return after / before


def _level(value: float) -> int:
    return round(log2(max(value, 1.0)))
