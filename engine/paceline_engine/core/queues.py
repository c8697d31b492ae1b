"""The waiting queue: an order by policy, two lanes, deadlines, nothing ever lost.

Keys do not change while a request waits (aging is linear in time, so it is part of the key), and a
change of policy sorts once. Under Fair each tenant has an order of its own, and the walk over the
queue goes from tenant to tenant.
"""

import heapq
from collections.abc import Iterator

from paceline_crds.settings import EngineSettings, SchedulingPolicy
from paceline_engine.core.fair import FairBook
from paceline_engine.core.fair_walk import FairWalk
from paceline_engine.core.queue_lanes import LaneWalk, QueueLanes, QueueWalk
from paceline_engine.core.starters import Starters
from paceline_engine.core.tracked import OrderKey, TrackedRequest


def order_key(tracked: TrackedRequest, settings: EngineSettings) -> OrderKey:
    """Place of a request in the order of the policy in force; smaller is served first.

    Fcfs: preempted requests first, in the order in which they ran, then arrivals.
    Priority, and Fair inside a tenant: the level, then preempted ones before later arrivals. With
    aging a request gains one level each `priority_aging_s`: everybody gains at the same rate, so
    only the arrival counts.
    """
    if settings.scheduling_policy is not SchedulingPolicy.FCFS:
        level = float(tracked.request.priority)
        if settings.priority_aging_s:
            level += tracked.request.arrival_s / settings.priority_aging_s
        return level, 0 if tracked.has_started else 1, tracked.seq
    if tracked.has_started:
        return 0.0, 0, tracked.seat_no
    return 0.0, 1, tracked.seq


class WaitingQueue:
    """Requests that own no slot and no block. Mutable; the scheduler owns it.

    Attributes:
        num_tokens: known tokens of all waiting requests.
        lane_tokens: the same by lane, [short, long].
        cap: requests with more tokens than this are in the long lane; 0 = one lane.
        starters: those of them that find a seat and blocks at the next steps.
    """

    def __init__(self, settings: EngineSettings, cap: int, book: FairBook | None = None) -> None:
        self._settings = settings
        self._book = book
        self.cap = cap
        self.lane_tokens = [0, 0]
        self.starters = Starters()
        self._all = QueueLanes()  # without tenants
        self._groups: dict[int, QueueLanes] = {}  # by account
        self._num_waiting = 0
        self._deadlines: list[tuple[float, int, TrackedRequest]] = []
        self._fresh: dict[int, TrackedRequest] = {}  # never started, in order of arrival

    def __len__(self) -> int:
        return self._num_waiting

    def __bool__(self) -> bool:
        return self._num_waiting > 0

    def __iter__(self) -> Iterator[TrackedRequest]:
        groups = [lanes.items() for lanes in (self._all, *self._groups.values())]
        return (tracked for _, tracked in heapq.merge(*groups))

    @property
    def num_tokens(self) -> int:
        """Known tokens of all waiting requests."""
        return sum(self.lane_tokens)

    def push(self, tracked: TrackedRequest) -> None:
        """Put a request where its key says."""
        self._insert(tracked)
        if not tracked.has_started:
            self._fresh[tracked.request_id] = tracked
            deadline = tracked.request.deadline_s
            if deadline is not None:
                heapq.heappush(self._deadlines, (deadline, tracked.seq, tracked))

    def remove(self, tracked: TrackedRequest) -> None:
        """Take a waiting request out, wherever it stands."""
        self._take(tracked)
        self._fresh.pop(tracked.request_id, None)
        self.starters.discard(tracked.request_id)

    def walk(self) -> QueueWalk:
        """One pass in the order of the policy."""
        if self._book is not None:
            return FairWalk(self._groups, self._book)
        return LaneWalk(self._all)

    def best_of(self, index: int) -> TrackedRequest:
        """The first waiting request of the tenant whose account has this index; it has one."""
        return self._groups[index].best

    def rebuild(self, settings: EngineSettings, cap: int, book: FairBook | None) -> None:
        """Sort again for other settings; order inside a class is kept, nobody is lost."""
        everybody = list(self)
        for tracked in everybody:
            self._take(tracked)
        self._settings, self.cap, self._book = settings, cap, book
        for tracked in everybody:
            self._insert(tracked)

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

    def _insert(self, tracked: TrackedRequest) -> None:
        tracked.key = order_key(tracked, self._settings)
        lane = self._lane_of(tracked)
        if self._book is not None:
            self._book.waits(tracked)
        self._lanes_of(tracked).push(lane, tracked)
        self.lane_tokens[lane] += tracked.num_waiting_tokens
        self._num_waiting += 1

    def _take(self, tracked: TrackedRequest) -> None:
        lane, lanes = self._lane_of(tracked), self._lanes_of(tracked)
        lanes.remove(lane, tracked)
        self.lane_tokens[lane] -= tracked.num_waiting_tokens
        self._num_waiting -= 1
        if self._book is not None:
            self._book.left_queue(tracked)
            if not lanes and tracked.account is not None:
                del self._groups[tracked.account.index]

    def _lanes_of(self, tracked: TrackedRequest) -> QueueLanes:
        """Under Fair its tenant's, made if there are none."""
        if self._book is None:
            return self._all
        account = tracked.account
        assert account is not None, f"request {tracked.request_id} has no account"
        lanes = self._groups.get(account.index)
        if lanes is None:
            lanes = self._groups[account.index] = QueueLanes()
        return lanes
