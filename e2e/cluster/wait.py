"""Waiting for a condition, never for luck."""

import time
from collections.abc import Callable
from typing import TypeVar

from cluster.errors import CommandFailed, NotReady

T = TypeVar("T")


def until(
    what: str,
    probe: Callable[[], T | None],
    *,
    timeout_s: float,
    interval_s: float = 0.2,
    seen: Callable[[], str] | None = None,
) -> T:
    """Call `probe` until it answers something true, and return that.

    Args:
        what: the condition in words, e.g. "both pods are ready".
        probe: answers a true value once the condition holds. A command of it that fails is no
            answer (a busy server that did not reply in time, a kind that is served in a moment);
            whatever else it raises goes through.
        timeout_s: when to give up.
        interval_s: pause between two probes.
        seen: text for the error: what is there instead.

    Raises:
        NotReady: the condition did not come true; says what was waited for and what was seen.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        failed, value = None, None
        try:
            value = probe()
        except CommandFailed as error:
            failed = error
        if value:
            return value
        if time.monotonic() >= deadline:
            break
        time.sleep(interval_s)
    rest = f"; instead: {seen()}" if seen else f"; last answer: {value!r}"
    raise NotReady(f"waited {timeout_s:g} s until {what}{rest}") from failed
