"""The waiting queue: an order by policy, two lanes, deadlines, nothing ever lost.

Each lane is a list sorted by key. An arrival under Fcfs lands at the end, a preempted request at
the front; both cost a bisection. Keys do not change while a request waits (aging is linear in time,
so it is part of the key), and a change of policy sorts once.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from paceline_crds.settings import EngineSettings, SchedulingPolicy
from paceline_engine.core.starters import Starters
from paceline_engine.core.tracked import OrderKey, TrackedRequest

_Item = tuple[OrderKey, TrackedRequest]


def order_key(tracked: TrackedRequest, settings: EngineSettings) -> OrderKey:
    """Place of a request in the order of the policy in force; smaller is served first.

    Fcfs: preempted requests first, in the order in which they ran, then arrivals.
    Priority: the level, then preempted ones before later arrivals. With aging a request gains one
    level each `priority_aging_s`: everybody gains at the same rate, so only the arrival counts.
    """
    level = 0.0
    if settings.scheduling_policy is SchedulingPolicy.PRIORITY:
        level = float(tracked.request.priority)
        if settings.priority_aging_s:
            level += tracked.request.arrival_s / settings.priority_aging_s
        return level, 0 if tracked.has_started else 1, tracked.seq
    if tracked.has_started:
        return level, 0, tracked.seat_no
    return level, 1, tracked.seq


class WaitingQueue:
    """Requests that own no slot and no block. Mutable; the scheduler owns it.

    Attributes:
        num_tokens: known tokens of all waiting requests.
        lane_tokens: the same by lane, [short, long].
        cap: requests with more tokens than this are in the long lane; 0 = one lane.
        starters: those of them that find a seat and blocks at the next steps.
    """

    def __init__(self, settings: EngineSettings, cap: int) -> None:
        self._settings = settings
        self.cap = cap
        self.lane_tokens = [0, 0]
        self.starters = Starters()
        self._lanes: tuple[list[_Item], list[_Item]] = ([], [])
        self._deadlines: list[tuple[float, int, TrackedRequest]] = []
        self._fresh: dict[int, TrackedRequest] = {}  # never started, in order of arrival

    def __len__(self) -> int:
        return len(self._lanes[0]) + len(self._lanes[1])

    def __bool__(self) -> bool:
        return bool(self._lanes[0] or self._lanes[1])

    def __iter__(self) -> Iterator[TrackedRequest]:
        return (tracked for _, tracked in heapq.merge(*self._lanes))

    @property
    def num_tokens(self) -> int:
        """Known tokens of all waiting requests."""
        return sum(self.lane_tokens)

    def push(self, tracked: TrackedRequest) -> None:
        """Put a request where its key says."""
        tracked.key = order_key(tracked, self._settings)
        lane = self._lane_of(tracked)
        insort(self._lanes[lane], (tracked.key, tracked))
        self.lane_tokens[lane] += tracked.num_waiting_tokens
        if not tracked.has_started:
            self._fresh[tracked.request_id] = tracked
            deadline = tracked.request.deadline_s
            if deadline is not None:
                heapq.heappush(self._deadlines, (deadline, tracked.seq, tracked))

    def remove(self, tracked: TrackedRequest) -> None:
        """Take a waiting request out, wherever it stands."""
        lane = self._lane_of(tracked)
        items = self._lanes[lane]
        index = bisect_left(items, (tracked.key, tracked))
        assert items[index][1] is tracked, f"request {tracked.request_id} does not wait"
        del items[index]
        self.lane_tokens[lane] -= tracked.num_waiting_tokens
        self._fresh.pop(tracked.request_id, None)
        self.starters.discard(tracked.request_id)

    def first(self, start: tuple[int, int], lanes: tuple[bool, bool]) -> tuple[int, int] | None:
        """The first waiting request from `start` (index by lane) on, among the wanted lanes.

        Returns:
            (lane, index), None if there is none.
        """
        best: tuple[int, int] | None = None
        for lane in (0, 1):
            items = self._lanes[lane]
            if (
                lanes[lane]
                and start[lane] < len(items)
                and (best is None or items[start[lane]][0] < self._lanes[0][best[1]][0])
            ):
                best = (lane, start[lane])
        return best

    def at(self, lane: int, index: int) -> TrackedRequest:
        """The request at a place that `first` gave."""
        return self._lanes[lane][index][1]

    def rebuild(self, settings: EngineSettings, cap: int) -> None:
        """Sort again for other settings; order inside a class is kept, nobody is lost."""
        everybody = list(self)
        self._settings, self.cap = settings, cap
        self._lanes = ([], [])
        self.lane_tokens = [0, 0]
        for tracked in everybody:
            tracked.key = order_key(tracked, settings)
            lane = self._lane_of(tracked)
            self._lanes[lane].append((tracked.key, tracked))
            self.lane_tokens[lane] += tracked.num_waiting_tokens
        for items in self._lanes:
            items.sort()

    def late(self, now: float) -> list[TrackedRequest]:
        """Requests whose deadline, or the queue's time limit, passed before they started."""
        found: dict[int, TrackedRequest] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, tracked = heapq.heappop(self._deadlines)
            if tracked.request_id in self._fresh:
                found[tracked.request_id] = tracked
        timeout = self._settings.queue_timeout_s
        if timeout:
            for request_id, tracked in self._fresh.items():
                if tracked.request.arrival_s + timeout > now:
                    break
                found[request_id] = tracked
        return list(found.values())

    def _lane_of(self, tracked: TrackedRequest) -> int:
        return int(bool(self.cap) and tracked.num_waiting_tokens > self.cap)
