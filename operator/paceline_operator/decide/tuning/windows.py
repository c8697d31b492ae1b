"""Which windows there are and which are due.

They lie on a grid of the clock, so that a restarted operator asks for the very same windows and
gets the very same answers.
"""

from collections.abc import Iterable

from paceline_operator.decide.tuning.signals import SCRAPES_BEHIND, Window

AT_MOST = 10
"""Windows asked for at once; older ones that nobody has looked at are left out."""


def due(seen_end: int, now: float, *, length_s: int, scrape_s: float) -> tuple[Window, ...]:
    """Windows that can be read by now and have not been, oldest first.

    Args:
        seen_end: end of the last window that was looked at; 0 for none: then the newest three.
        now: seconds since the epoch.
        length_s: length of a window.
        scrape_s: time between scrapes; a window is read two of them after its end.
    """
    last = int((now - SCRAPES_BEHIND * scrape_s) // length_s)
    first = max(last - AT_MOST, -(-seen_end // length_s) if seen_end else last - 3)
    return tuple(
        Window(start=index * length_s, end=(index + 1) * length_s) for index in range(first, last)
    )


def next_due(now: float, *, length_s: int, scrape_s: float) -> float:
    """Seconds until the next window can be read."""
    behind = SCRAPES_BEHIND * scrape_s
    passed = (now - behind) % length_s
    return length_s - passed


def pods_of(
    window: Window, ready_since: Iterable[tuple[str, float]], warm_up_s: float
) -> tuple[str, ...]:
    """Pods that were ready and warm during a whole window, by name.

    Args:
        window: the window.
        ready_since: names of pods that are ready now, and since when.
        warm_up_s: a pod is not counted for so long after it became ready.
    """
    return tuple(sorted(name for name, at in ready_since if at + warm_up_s <= window.start))
