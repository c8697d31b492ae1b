"""`plan(observed, now)`: what to do next. Total: odd input gives a condition, never an exception.

The shell carries the actions out in order (`actions.py` says what a refused one means) and calls
again when anything has changed, or after `requeue_after_s`.
"""

from paceline_operator.decide.actions import Plan
from paceline_operator.decide.observed import Observed


def plan(observed: Observed, now: float) -> Plan:
    """The next writes for one LLMDeployment, nothing if all is as it should be."""
    raise NotImplementedError
