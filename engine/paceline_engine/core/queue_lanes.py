"""Waiting requests in one order, in two lanes, and a walk over them.

Each lane is a list sorted by key. An arrival under Fcfs lands at the end, a preempted request at
the front; both cost a bisection.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from paceline_engine.core.tracked import OrderKey, TrackedRequest

Item = tuple[OrderKey, TrackedRequest]


class QueueLanes:
    """Short prompts and long ones. Mutable; the queue owns it."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: tuple[list[Item], list[Item]] = ([], [])

    def __bool__(self) -> bool:
        return bool(self._lanes[0] or self._lanes[1])

    def items(self) -> Iterator[Item]:
        """All of them, best first."""
        return heapq.merge(*self._lanes)

    @property
    def best(self) -> TrackedRequest:
        """The first of all; there is one."""
        return min(items[0] for items in self._lanes if items)[1]

    def push(self, lane: int, tracked: TrackedRequest) -> None:
        """Put a request where its key says."""
        insort(self._lanes[lane], (tracked.key, tracked))

    def remove(self, lane: int, tracked: TrackedRequest) -> None:
        """Take a request out, wherever it stands."""
        items = self._lanes[lane]
        # Who leaves is mostly the first.
        index = 0 if items[0][1] is tracked else bisect_left(items, (tracked.key, tracked))
        assert items[index][1] is tracked, f"request {tracked.request_id} does not wait"
        del items[index]

    def first(self, start: list[int], lanes: tuple[bool, bool]) -> tuple[int, int] | None:
        """The best place at or behind `start`, by lane, in the lanes that count.

        Returns:
            (lane, index), None if there is none.
        """
        (short, long), (at_short, at_long) = self._lanes, start
        has_short = lanes[0] and at_short < len(short)
        if (
            lanes[1]
            and at_long < len(long)
            and not (has_short and short[at_short][0] <= long[at_long][0])
        ):
            return 1, at_long
        return (0, at_short) if has_short else None

    def at(self, lane: int, index: int) -> TrackedRequest:
        """The request at a place that `first` gave."""
        return self._lanes[lane][index][1]


class QueueWalk(Protocol):
    """One pass over waiting requests. Whoever is admitted meanwhile leaves the queue.

    Attributes:
        leaves_out: a tenant's cap keeps some out of this walk.
        is_short: some of them only in this step.
    """

    leaves_out: bool
    is_short: bool

    def next(self, lanes: tuple[bool, bool]) -> TrackedRequest | None:
        """The next request in the lanes, [short, long], that have budget left."""
        ...

    def skip(self) -> None:
        """The request that `next` gave stays where it is: look behind it."""
        ...


class LaneWalk:
    """A `QueueWalk` in the order of the keys."""

    __slots__ = ("_cursor", "_lane", "_lanes", "is_short", "leaves_out")

    def __init__(self, lanes: QueueLanes) -> None:
        self._lanes = lanes
        self._cursor = [0, 0]
        self._lane = 0
        self.leaves_out = self.is_short = False

    def next(self, lanes: tuple[bool, bool]) -> TrackedRequest | None:
        """The best request that was not skipped."""
        place = self._lanes.first(self._cursor, lanes)
        if place is None:
            return None
        self._lane = place[0]
        return self._lanes.at(*place)

    def skip(self) -> None:
        """Look behind it."""
        self._cursor[self._lane] += 1
