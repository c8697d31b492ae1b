"""Who got tokens when: latencies per token, gaps per request, and output tokens that count.

This is the part of the recorder that every step of every request passes, so it is arrays by row. A
batch in lockstep (the same requests again, one token each) costs a few Python calls whatever its
size: its gaps are equal, and what is kept by row is written later (`settle`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_crds import metrics
from paceline_engine.core.histogram import Histogram
from paceline_engine.core.request_rows import RequestRows
from paceline_engine.core.slo import SloJudge
from paceline_engine.core.slots import AnyRows

_GAPS_KEPT = 256


class TokenLedger:
    """Writes into the recorder's rows, judge, counters and histograms. Mutable; the recorder's."""

    def __init__(
        self,
        rows: RequestRows,
        slo: SloJudge,
        counters: dict[str, float],
        histograms: dict[str, Histogram],
    ) -> None:
        self._rows, self._slo = rows, slo
        self._counters, self._histograms = counters, histograms
        self._ones = np.ones(len(rows.of_slot), dtype=np.int32)  # read only
        self._owed_tokens = 0  # counted for requests that then ended earlier
        self._steady_slots: AnyRows | None = None  # who got tokens last, all at the same moment
        self._steady_at = np.empty(0, dtype=np.int64)  # their rows
        self._steady_since_s = 0.0
        self._steady_gaps: list[float] = []  # not yet written to their rows

    def tokens(self, slots: AnyRows, counts: NDArray[np.integer[Any]] | None, now: float) -> None:
        """Requests got tokens that count.

        Args:
            slots: [m], each once. The very same array as in the last call means the very same
                requests: then all gaps are equal, and what is kept by row can wait (`settle`).
            counts: [m], at least 1 each; None = one each.
            now: when the step was applied.
        """
        if slots is self._steady_slots and counts is None:
            self._tokens_again(now)
            return
        self.settle()
        if not len(slots):
            return
        rows = self._rows
        at = rows.of_slot[slots.astype(np.intp)]  # an index of int32 is much slower
        if counts is None:
            counts = self._ones[: len(slots)]
            self._steady_slots, self._steady_at, self._steady_since_s = slots, at, now
        last = rows.last_token_s[at]
        rows.last_token_s[at] = now
        rows.output_tokens[at] += counts
        is_first = np.isnan(last)
        first = is_first.nonzero()[0]
        if len(first):
            self._first_tokens(at[first], now)
            if len(first) == len(at):
                return
            others = (~is_first).nonzero()[0]
            at, last, counts = at[others], last[others], counts[others]
        one = last[0]
        if np.count_nonzero(last == one) == len(last):  # mostly: all got one in the step before
            gap = now - float(one)
            self._histograms[metrics.ITL].observe(gap, len(at))
            self._slo.equal_gaps(at, [gap])
        else:
            gaps = now - last
            self._histograms[metrics.ITL].observe_many(gaps)
            self._slo.gaps(at, gaps)
        self._generated(at, counts)

    def _tokens_again(self, now: float) -> None:
        """Everybody of the last call got one more token."""
        gap = now - self._steady_since_s
        self._steady_since_s = now
        self._steady_gaps.append(gap)
        self._histograms[metrics.ITL].observe(gap, len(self._steady_at))
        if len(self._steady_gaps) >= _GAPS_KEPT:
            self.settle_gaps()

    def settle_gaps(self) -> None:
        """Write what a batch in lockstep has gained; it may go on."""
        at, gaps = self._steady_at, self._steady_gaps
        if not gaps:
            return
        rows = self._rows
        rows.last_token_s[at] = self._steady_since_s
        rows.output_tokens[at] += len(gaps)
        self._slo.equal_gaps(at, gaps)
        self._generated(at, np.full(len(at), len(gaps), dtype=np.int32))
        gaps.clear()

    def settle(self) -> None:
        """The same before requests change; the next call begins another batch."""
        self.settle_gaps()
        self._steady_slots = None

    def _first_tokens(self, at: NDArray[np.int64], now: float) -> None:
        rows = self._rows
        rows.first_token_s[at] = now
        self._histograms[metrics.TTFT].observe_many(now - rows.arrival_s[at])
        self._histograms[metrics.PREFILL_TIME].observe_many(now - rows.admitted_s[at])
        self._counters[metrics.PROMPT_TOKENS] += rows.serve_prompts(at)
        self._generated(at, rows.output_tokens[at])

    def _generated(self, at: NDArray[np.int64], counts: NDArray[np.integer[Any]]) -> None:
        """Count output tokens, but not yet those of requests that may end earlier."""
        rows = self._rows
        if rows.num_with_stop_strings:
            certain = ~rows.has_stop_strings[at]
            at, counts = at[certain], counts[certain]
        total = int(np.add.reduce(counts))
        self._count_generated(total)
        rows.serve_outputs(at, counts)

    def _count_generated(self, n: int) -> None:
        paid = min(self._owed_tokens, n)
        self._owed_tokens -= paid
        self._counters[metrics.GENERATION_TOKENS] += n - paid

    def settle_output(self, row: int, num_output_tokens: int) -> int:
        """A request ends with so many outputs; returns how many it had beyond them."""
        rows = self._rows
        given = int(rows.output_tokens[row])
        if rows.has_stop_strings[row]:
            self._count_generated(num_output_tokens)
            counts = np.array([num_output_tokens])
            rows.serve_outputs(np.array([row]), counts)
        elif given > num_output_tokens:
            self._owed_tokens += given - num_output_tokens
        return max(0, given - num_output_tokens)
