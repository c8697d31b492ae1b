"""The last steps, and what counters and histograms say of all of them.

A step is noted when it is applied and counted later, many at once: counting takes longer than
everything else that a step of a batch in lockstep costs the recorder.
"""

from collections import deque

import numpy as np

from paceline_crds import metrics
from paceline_engine.core.histogram import Histogram
from paceline_engine.core.step_record import StepRecord

STEPS_KEPT = 8192
_UNCOUNTED_KEPT = 256


class StepTally:
    """Writes into the recorder's counters and histograms. Mutable; the recorder's.

    Args:
        counters, histograms: by family.
        block_bytes: of one KV block, all layers together.

    Attributes:
        last: the newest steps, oldest first.
    """

    def __init__(
        self,
        counters: dict[str, float],
        histograms: dict[str, Histogram],
        block_bytes: int = 0,
    ) -> None:
        self._block_bytes = block_bytes
        self.last: deque[StepRecord] = deque(maxlen=STEPS_KEPT)
        self._counters, self._histograms = counters, histograms
        self._uncounted: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        """A step was applied."""
        self.last.append(record)
        if len(self._uncounted) >= _UNCOUNTED_KEPT:
            self.settle()  # before the new one, to which the step loop still adds what it measured
        self._uncounted.append(record)

    def settle(self) -> None:
        """Count what was noted; due before counters and histograms are read."""
        records = self._uncounted
        if not records:
            return
        self._uncounted = []
        counters, histograms = self._counters, self._histograms
        counters[metrics.STEPS] += len(records)
        counters[metrics.SPEC_DRAFTS] += sum(r.num_drafts for r in records)
        counters[metrics.SPEC_DRAFT_TOKENS] += sum(r.num_draft_tokens for r in records)
        counters[metrics.SPEC_ACCEPTED] += sum(r.num_accepted_tokens for r in records)
        self._count_copies(records)
        tokens = np.array([r.num_tokens for r in records], dtype=np.float64)
        budgets = np.array([r.budget_tokens for r in records], dtype=np.float64)
        active = np.array([r.blocks_active for r in records], dtype=np.float64)
        idle = np.array([r.blocks_cached + r.blocks_free for r in records], dtype=np.float64)
        durations = np.array([r.applied_s - r.planned_s - r.queued_ms / 1e3 for r in records])
        has_budget = budgets > 0
        histograms[metrics.ITERATION_TOKENS].observe_many(tokens)
        histograms[metrics.STEP_BUDGET_USED].observe_many(tokens[has_budget] / budgets[has_budget])
        histograms[metrics.KV_USAGE_HISTOGRAM].observe_many(active / (active + idle))
        histograms[metrics.STEP_DURATION].observe_many(durations)

    def _count_copies(self, records: list[StepRecord]) -> None:
        """Copies to the host tier and back, of the steps that made some."""
        counters, histograms = self._counters, self._histograms
        for record in records:
            if record.num_stored_blocks:
                stored = record.num_stored_blocks * self._block_bytes
                counters[metrics.OFFLOAD_STORE_BYTES] += stored
                counters[metrics.OFFLOAD_STORE_TIME] += record.store_ms / 1e3
                histograms[metrics.OFFLOAD_STORE_SIZE].observe(stored)
            if record.num_loaded_blocks:
                loaded = record.num_loaded_blocks * self._block_bytes
                counters[metrics.OFFLOAD_LOAD_BYTES] += loaded
                counters[metrics.OFFLOAD_LOAD_TIME] += record.load_ms / 1e3
                histograms[metrics.OFFLOAD_LOAD_SIZE].observe(loaded)
