"""When simulated requests come: an open stream that waits for nobody, or clients that do."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from paceline_engine.sim.requests import SimRequest


class Arrivals(Protocol):
    """A source of requests. Mutable: the simulator takes from it."""

    @property
    def next_s(self) -> float | None:
        """When the next request comes; None: none until one that runs ends, or none at all."""
        ...

    def pop(self) -> SimRequest:
        """Take the next request."""
        ...

    def ended(self, now: float) -> None:
        """One of the requests taken has ended, or was refused for good."""
        ...


class OpenLoop:
    """Requests at their own times, whatever became of those before them.

    Args:
        requests: in order of arrival; may be endless, it is read one request ahead.
    """

    def __init__(self, requests: Iterable[SimRequest]) -> None:
        self._rest: Iterator[SimRequest] = iter(requests)
        self._next = next(self._rest, None)

    @property
    def next_s(self) -> float | None:
        """Arrival of the next request."""
        return None if self._next is None else self._next.arrival_s

    def pop(self) -> SimRequest:
        """Take the next request.

        Raises:
            ValueError: the one after it arrives before it.
        """
        taken = self._next
        assert taken is not None, "no request is left"
        self._next = next(self._rest, None)
        if self._next is not None and self._next.arrival_s < taken.arrival_s:
            raise ValueError(
                f"arrivals must not go back, got {self._next.arrival_s} after {taken.arrival_s}"
            )
        return taken

    def ended(self, now: float) -> None:
        """An open stream does not care."""


class ClosedLoop:
    """A fixed number of clients: each sends its next request when its last one has ended.

    Args:
        requests: what they send, in this order; their own arrivals are ignored.
        concurrency: clients.
        think_s: from an end to the next request of that client.
        start_s: when all of them send their first.
    """

    def __init__(
        self,
        requests: Iterable[SimRequest],
        concurrency: int,
        *,
        think_s: float = 0.0,
        start_s: float = 0.0,
    ) -> None:
        self._rest = iter(requests)
        self._next = next(self._rest, None)
        self._think_s = think_s
        self._free_at = [start_s] * concurrency  # a heap

    @property
    def next_s(self) -> float | None:
        """When the first free client sends."""
        return self._free_at[0] if self._free_at and self._next is not None else None

    def pop(self) -> SimRequest:
        """Take the next request."""
        taken = self._next
        assert taken is not None, "no request is left"
        self._next = next(self._rest, None)
        return replace(taken, arrival_s=heapq.heappop(self._free_at))

    def ended(self, now: float) -> None:
        """A client is free again."""
        heapq.heappush(self._free_at, now + self._think_s)
