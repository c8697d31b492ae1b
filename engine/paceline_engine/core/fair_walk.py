"""A walk over the queue under policy Fair: whoever got least is next, after each seat anew."""

import heapq
from collections.abc import Mapping

from paceline_engine.core.accounts import Account
from paceline_engine.core.fair import FairBook
from paceline_engine.core.queue_lanes import LaneWalk, QueueLanes
from paceline_engine.core.tracked import TrackedRequest

_Entry = tuple[int, float, bool, float, int, int]


class FairWalk:
    """A `QueueWalk`. Mutable.

    Who got least is first; of equals, who is being kept blocks for, then who runs fewest for its
    weight, then who came first. A tenant whose request does not fit goes behind the others, so that
    all are looked at before its next ones. A tenant at a cap is left out.
    """

    def __init__(self, groups: Mapping[int, QueueLanes], book: FairBook) -> None:
        self._book = book
        self._walks = {index: LaneWalk(lanes) for index, lanes in groups.items()}
        self._groups = groups
        self._num_skips = dict.fromkeys(groups, 0)
        self._current: int | None = None
        self.leaves_out = self.is_short = False
        self._heap: list[_Entry] = []
        for index in groups:
            self._push(index)

    def next(self, lanes: tuple[bool, bool]) -> TrackedRequest | None:
        """The next request of the tenant whose turn it is."""
        if self._current is not None:
            self._push(self._current)
            self._current = None
        while self._heap:
            index = heapq.heappop(self._heap)[-1]
            tracked = self._walks[index].next(lanes)
            if tracked is not None:
                self._current = index
                return tracked
        return None

    def skip(self) -> None:
        """Look behind it, when all other tenants had a look."""
        assert self._current is not None, "nobody was looked at"
        self._walks[self._current].skip()
        self._num_skips[self._current] += 1

    def _push(self, index: int) -> None:
        if index not in self._groups:
            return
        account = self._book.accounts.at(index)
        if not self._book.may_seat(account):
            self.leaves_out = True
        elif account.step_left <= 0:
            self.leaves_out = self.is_short = True
        else:
            heapq.heappush(self._heap, self._entry(account))

    def _entry(self, account: Account) -> _Entry:
        best = self._groups[account.index].best
        return (
            self._num_skips[account.index],
            account.standing,
            best.pass_blocks < 0,
            account.num_running / account.weight,
            best.seq,
            account.index,
        )
