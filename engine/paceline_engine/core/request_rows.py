"""One row of numbers per request in the engine, as arrays, so that a step updates many at once.

A row lasts from arrival until the end is counted, through preemptions; a slot points to the row of
who runs in it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.request import Request
from paceline_engine.core.snapshot import Labels
from paceline_engine.core.tenant_tally import TenantTally

_ENDED, _UNUSED, _WAITING = -3, -2, -1
_COLUMNS: dict[str, tuple[type, float]] = {
    "arrival_s": (np.float64, 0.0),
    "admitted_s": (np.float64, np.nan),
    "first_token_s": (np.float64, np.nan),
    "last_token_s": (np.float64, np.nan),
    "prompt_tokens": (np.int64, 0),
    "output_tokens": (np.int64, 0),
    "max_tokens": (np.int64, 0),
    "lost_tokens": (np.int64, -1),
    "preemptions": (np.int64, 0),
    "tenant": (np.int64, 0),
    "slot": (np.int64, _UNUSED),
    "has_stop_strings": (np.bool_, False),
}


class RequestRows:
    """Arrays by row and the maps into them. Mutable: the recorder owns it.

    Attributes:
        arrival_s, admitted_s, first_token_s, last_token_s: [capacity] float64, NaN until known.
        prompt_tokens, output_tokens, max_tokens: [capacity] int64; outputs as given by steps.
        lost_tokens: [capacity] int64, computed tokens at the last preemption; -1 while running.
        preemptions, tenant, slot: [capacity] int64.
        has_stop_strings: [capacity] bool.
        of_slot: [max_slots] int64, row of the request in each slot.
        num_running, num_waiting: requests with and without a slot.
        tenants: counters by tenant; `tenant` has indices into them.
        num_with_stop_strings: requests whose output is counted at their end.
    """

    arrival_s: NDArray[np.float64]
    admitted_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    last_token_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    lost_tokens: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    tenant: NDArray[np.int64]
    slot: NDArray[np.int64]
    has_stop_strings: NDArray[np.bool_]

    def __init__(self, max_slots: int) -> None:
        self.capacity = max(16, max_slots)
        for name, (dtype, empty) in _COLUMNS.items():
            setattr(self, name, np.full(self.capacity, empty, dtype=dtype))
        self.of_slot = np.zeros(max_slots, dtype=np.int64)
        self.num_running = self.num_waiting = 0
        self.num_with_stop_strings = 0
        self._row_of: dict[int, int] = {}
        self._spare = list(range(self.capacity - 1, -1, -1))
        self.tenants = TenantTally()

    def row_of(self, request_id: int) -> int:
        """Row of a request that has arrived and not ended."""
        return self._row_of[request_id]

    def add(self, request: Request) -> int:
        """A waiting request."""
        if not self._spare:
            self._grow()
        # What is not written here is empty in a spare row.
        row = self._spare.pop()
        self._row_of[request.request_id] = row
        self.arrival_s[row] = request.arrival_s
        self.prompt_tokens[row] = len(request.prompt_token_ids)
        self.max_tokens[row] = request.params.max_tokens
        self.tenant[row] = self.tenants.index_of(request.tenant)
        self.slot[row] = _WAITING
        if request.has_stop_strings:
            self.has_stop_strings[row] = True
            self.num_with_stop_strings += 1
        self.num_waiting += 1
        return row

    def _grow(self) -> None:
        old, self.capacity = self.capacity, 2 * self.capacity
        for name, (dtype, empty) in _COLUMNS.items():
            column: NDArray[Any] = np.full(self.capacity, empty, dtype=dtype)
            column[:old] = getattr(self, name)
            setattr(self, name, column)
        self._spare.extend(range(self.capacity - 1, old - 1, -1))

    def take_slot(self, request_id: int, slot: int) -> int:
        """A waiting request runs in `slot`; returns its row."""
        row = self._row_of[request_id]
        self.slot[row] = slot
        self.of_slot[slot] = row
        self.num_running += 1
        self.num_waiting -= 1
        return row

    def leave_slot(self, request_id: int) -> int:
        """A running request waits again; returns its row."""
        row = self._row_of[request_id]
        self.slot[row] = _WAITING
        self.num_running -= 1
        self.num_waiting += 1
        return row

    def end(self, request_id: int) -> int:
        """A request is over and not counted as running or waiting any longer; returns its row."""
        row = self._row_of[request_id]
        if self.slot[row] >= 0:
            self.num_running -= 1
        elif self.slot[row] == _WAITING:
            self.num_waiting -= 1
        self.slot[row] = _ENDED
        return row

    def forget(self, request_id: int) -> int:
        """Nobody asks for an ended request by its id again; returns its row, kept until `free`."""
        return self._row_of.pop(request_id)

    def free(self, at: NDArray[np.int64]) -> None:
        """Nothing more is to be known of these rows' requests: others may have them."""
        self.num_with_stop_strings -= int(np.count_nonzero(self.has_stop_strings[at]))
        for name, (_, empty) in _COLUMNS.items():
            getattr(self, name)[at] = empty
        self._spare.extend(at.tolist())

    def oldest_waiting_s(self, now: float) -> float:
        """Age, since its arrival, of the oldest request that waits; 0 if none does."""
        if not self.num_waiting:
            return 0.0
        return max(0.0, now - float(self.arrival_s[self.slot == _WAITING].min()))

    # -- tenants -----------------------------------------------------------------------------

    def serve_prompts(self, at: NDArray[np.int64]) -> int:
        """The prompts of these rows are done; returns their tokens."""
        counts = self.prompt_tokens[at]
        self.tenants.serve(0, self.tenant[at], counts)
        return int(np.add.reduce(counts))

    def serve_outputs(self, at: NDArray[np.int64], counts: NDArray[np.integer[Any]]) -> None:
        """These rows got output tokens that count."""
        self.tenants.serve(1, self.tenant[at], counts)

    def tenant_series(self) -> dict[str, dict[Labels, float]]:
        """All families by tenant."""
        return self.tenants.series(
            running=self.tenant[self.slot >= 0], waiting=self.tenant[self.slot == _WAITING]
        )
