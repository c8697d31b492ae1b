"""What is counted of requests that ended: noted one by one, counted many at once.

Until it is counted an ended request keeps its row, so that all of them are read column by column.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline_crds import metrics
from paceline_engine.core.histogram import Histogram
from paceline_engine.core.request import Finished, FinishReason, Request
from paceline_engine.core.request_log import EndedRequest, RequestLog
from paceline_engine.core.request_rows import RequestRows
from paceline_engine.core.slo import SloJudge

_KEPT = 256
_FAMILIES = (
    metrics.E2E,
    metrics.INFERENCE_TIME,
    metrics.DECODE_TIME,
    metrics.TPOT,
    metrics.REQUEST_PROMPT_TOKENS,
    metrics.REQUEST_GENERATION_TOKENS,
    metrics.REQUEST_MAX_TOKENS,
    metrics.REQUEST_MAX_GENERATION,
    metrics.REQUEST_PREEMPTIONS,
)
_Noted = tuple[int, Finished, float, Request | None, Sequence[bytes]]
"""Row, end, when, what was asked (None: not for the log) and keys."""


class RequestTally:
    """Writes into the recorder's histograms, counters, judge and log. Mutable; the recorder's.

    Args:
        rows: of which ended requests' are freed once they are counted.
        slo: judges them.
        counters, histograms: by family.
        max_model_len: of the engine.

    Attributes:
        log: what a recording holds of them.
        generation: of the settings in force; settle before it changes.
    """

    def __init__(
        self,
        rows: RequestRows,
        slo: SloJudge,
        counters: dict[str, float],
        histograms: dict[str, Histogram],
        *,
        max_model_len: int,
    ) -> None:
        self.log = RequestLog()
        self.generation = 0
        self._rows, self._slo, self._counters = rows, slo, counters
        self._families = [histograms[family] for family in _FAMILIES]
        self._prefill_time = histograms[metrics.PREFILL_TIME]
        self._max_model_len = max_model_len
        self._noted: list[_Noted] = []

    def add(
        self,
        row: int,
        finished: Finished,
        end_s: float,
        request: Request | None,
        keys: Sequence[bytes],
    ) -> None:
        """A request ended; nothing of its row changes any more."""
        self._noted.append((row, finished, end_s, request, keys))
        if len(self._noted) >= _KEPT:
            self.settle()

    def settle(self) -> None:
        """Count what was noted; due before anything that counts it is read or changed."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        at = np.array([row for row, *_ in noted])
        ends_s = np.array([end_s for _, _, end_s, _, _ in noted])
        finished = [end for _, end, _, _, _ in noted]
        self._observe(at, ends_s, finished)
        if self._slo.targets.is_any_set:
            self._judge(at, ends_s, finished)
        self._keep(at, noted)
        self._rows.free(at)

    def _observe(
        self, at: NDArray[np.int64], ends_s: NDArray[np.float64], finished: list[Finished]
    ) -> None:
        """Histograms of those that ended well."""
        well = (FinishReason.STOP, FinishReason.LENGTH)
        ended_well = np.array([end.reason in well for end in finished])
        at, ends_s = at[ended_well], ends_s[ended_well]
        rows = self._rows
        outputs = np.array([end.num_output_tokens for end in finished])[ended_well]
        first, last = rows.first_token_s[at], rows.last_token_s[at]
        admitted, prompts = rows.admitted_s[at], rows.prompt_tokens[at]
        has_token = ~np.isnan(first)
        if not has_token.all():  # only their prompts were asked for
            silent = ~has_token
            self._prefill_time.observe_many((ends_s - admitted)[silent])
            self._counters[metrics.PROMPT_TOKENS] += rows.serve_prompts(at[silent])
        most = rows.max_tokens[at]
        columns: tuple[NDArray[np.float64 | np.int64], ...] = (
            ends_s - rows.arrival_s[at],
            np.where(has_token, last, ends_s) - admitted,
            last - first,
            (last - first) / np.maximum(1, outputs - 1),
            prompts,
            outputs,
            most,
            np.minimum(most, self._max_model_len - prompts),
            rows.preemptions[at],
        )
        for histogram, column in zip(self._families, columns, strict=True):
            values = column.astype(np.float64)
            histogram.observe_many(values[~np.isnan(values)])  # NaN: there is no output

    def _judge(
        self, at: NDArray[np.int64], ends_s: NDArray[np.float64], finished: list[Finished]
    ) -> None:
        arrivals = self._rows.arrival_s[at]
        first = (self._rows.first_token_s[at] - arrivals).tolist()
        e2e = (ends_s - arrivals).tolist()
        for row, end, ttft_s, e2e_s in zip(at.tolist(), finished, first, e2e, strict=True):
            self._slo.finish(row, end.reason, None if ttft_s != ttft_s else ttft_s, e2e_s)

    def _keep(self, at: NDArray[np.int64], noted: list[_Noted]) -> None:
        rows = self._rows
        columns = (rows.arrival_s[at], rows.first_token_s[at], rows.preemptions[at])
        numbers = zip(*(column.tolist() for column in columns), strict=True)
        for (_, end, end_s, request, keys), (arrival_s, first_token_s, num_preemptions) in zip(
            noted, numbers, strict=True
        ):
            if request is None:
                continue
            self.log.add(
                EndedRequest(
                    arrival_s=arrival_s,
                    num_prompt_tokens=end.num_prompt_tokens,
                    num_output_tokens=end.num_output_tokens,
                    max_tokens=request.params.max_tokens,
                    num_cached_tokens=end.num_cached_tokens,
                    num_preemptions=num_preemptions,
                    first_token_s=first_token_s,
                    end_s=end_s,
                    reason=end.reason,
                    priority=request.priority,
                    tenant=request.tenant,
                    generation=self.generation,
                    keys=keys,
                )
            )
