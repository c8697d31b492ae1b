"""Which deployments have to be looked at, and when: one worker per key, back-off, no lost wake-up.

Keys that are added many times are worked on once; a key that is added while it is worked on is
worked on again. A key that fails waits longer each time, and events do not shorten that wait.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable

from paceline_operator.shell.cache import Key
from paceline_operator.shell.errors import LeaseLost, ShellError

_log = logging.getLogger(__name__)
FIRST_BACK_OFF_S = 0.25
MAX_BACK_OFF_S = 60.0
Work = Callable[[Key], Awaitable[float | None]]
"""Looks at one key; returns when to look again, None if an event is soon enough."""


class WorkQueue:
    """Mutable; used from one event loop.

    Attributes:
        num_done, num_failed: how often work has ended well and badly.
    """

    def __init__(
        self, work: Work, workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work = work
        self._clock = clock
        self._slots = asyncio.Semaphore(workers)
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._in_work: dict[Key, float] = {}
        self._failed: dict[Key, tuple[int, float]] = {}
        self._wake = asyncio.Event()
        self.num_done = 0
        self.num_failed = 0

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Have a key looked at after so long, or earlier if that was asked for already."""
        due = self._clock() + after_s
        if key in self._failed:
            due = max(due, self._failed[key][1])
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._offer(key)

    def __len__(self) -> int:
        """Keys that are due now or in work."""
        now = self._clock()
        return sum(due <= now for due in self._due.values()) + len(self._in_work)

    def stuck_s(self) -> float:
        """How long the oldest work has been going on."""
        now = self._clock()
        return max((now - began for began in self._in_work.values()), default=0.0)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._slots.acquire()
                key = await self._next()
                self._in_work[key] = self._clock()
                group.create_task(self._do(key))

    def _offer(self, key: Key) -> None:
        if key not in self._in_work:
            heapq.heappush(self._heap, (self._due[key], key))
            self._wake.set()

    async def _next(self) -> Key:
        while True:
            self._wake.clear()
            wait = None
            while self._heap:
                due, key = self._heap[0]
                if self._due.get(key) != due or key in self._in_work:
                    heapq.heappop(self._heap)
                    continue
                wait = due - self._clock()
                if wait > 0:
                    break
                heapq.heappop(self._heap)
                del self._due[key]
                return key
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue

    async def _do(self, key: Key) -> None:
        again: float | None
        try:
            again = await self._work(key)
        except LeaseLost:
            raise
        except Exception as error:
            times = self._failed.get(key, (0, 0.0))[0] + 1
            again = min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** (times - 1))
            self._failed[key] = (times, self._clock() + again)
            self.num_failed += 1
            level = logging.WARNING if times < 3 else logging.ERROR
            # What a border has put into words needs no traceback: an outage has one for each key.
            told = None if isinstance(error, ShellError) else error
            _log.log(level, "%s/%s failed, again in %.2f s: %s", *key, again, error, exc_info=told)
        else:
            self._failed.pop(key, None)
            self.num_done += 1
        finally:
            del self._in_work[key]
            self._slots.release()
        if key in self._due:
            self._offer(key)
        if again is not None:
            self.add(key, again)
