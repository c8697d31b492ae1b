"""The recorder: what steps and requests did, counted as it happens and without a clock.

The scheduler calls it: once per event of a request, and once per step with arrays of slots, so a
decode that goes on costs a few vector operations whatever the batch. Exporters read `snapshot`.

Exact by construction, n requests of `prompt` and m output tokens: TTFT, queue, prefill, decode and
end-to-end count n; inter-token latency counts one per step that gives a request tokens after its
first; `iteration_tokens` sums what steps computed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_crds import metrics
from paceline_crds.metrics import METRICS, Kind
from paceline_crds.settings import EngineSettings
from paceline_engine.core import settings_series
from paceline_engine.core.histogram import Histogram
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.prompt_heads import PromptHeads
from paceline_engine.core.request import Finished, FinishReason, Request
from paceline_engine.core.request_rows import RequestRows
from paceline_engine.core.request_tally import RequestTally
from paceline_engine.core.slo import SloJudge, SloTargets
from paceline_engine.core.slots import AnyRows
from paceline_engine.core.snapshot import Labels, StatsSnapshot
from paceline_engine.core.step_record import StepRecord
from paceline_engine.core.step_tally import StepTally
from paceline_engine.core.token_ledger import TokenLedger

__all__ = ["Recorder", "StatsSnapshot", "StepRecord"]

_STEP_COLUMNS = (*(column.name for column in fields(StepRecord)), "num_tokens")


_Ended = tuple[Finished, float, Request | None, Sequence[bytes]]


def _no_reasons() -> Mapping[str, int]:
    return {}


def _no_tokens() -> Mapping[str, float]:
    return {}


def _no_host_tier() -> tuple[int, int]:
    return 0, 0


class Recorder:
    """Counters, histograms and the flight recorder of one engine. Mutable; the scheduler feeds it.

    Attributes:
        speculation_goodput: gauge, set by whoever measures it.
    """

    def __init__(self, settings: EngineSettings, limits: EngineLimits) -> None:
        self._limits = limits
        self._pool_usage: Callable[[], tuple[int, int, int, int]] = self._empty_pool
        self._waiting_reasons: Callable[[], Mapping[str, int]] = _no_reasons
        self._virtual_tokens: Callable[[], Mapping[str, float]] = _no_tokens
        self._host_usage: Callable[[], tuple[int, int]] = _no_host_tier
        self._counters = dict.fromkeys(
            (m.name for m in METRICS.values() if m.kind is Kind.COUNTER and not m.labels), 0.0
        )
        self._histograms = {
            m.name: Histogram(m.buckets)
            for m in METRICS.values()
            if m.kind is Kind.HISTOGRAM and not m.alias_of
        }
        self._finished = dict.fromkeys(metrics.FINISHED_REASONS, 0)
        self._step_parts = dict.fromkeys(metrics.STEP_PARTS, 0.0)
        self._reasons_seen: dict[str, None] = {}
        self._startup: dict[str, float] = {}
        self._kv_divergence: dict[str, float] = {}
        self._rows = RequestRows(limits.max_slots)
        self._slo = SloJudge(SloTargets.of(settings), self._rows.capacity)
        self._heads = PromptHeads()
        self._steps = StepTally(self._counters, self._histograms, limits.block_bytes)
        self._ends = RequestTally(
            self._rows,
            self._slo,
            self._counters,
            self._histograms,
            max_model_len=limits.max_model_len,
        )
        self._unsettled: dict[int, _Ended] = {}
        self._ledger = TokenLedger(self._rows, self._slo, self._counters, self._histograms)
        self.speculation_goodput = 0.0
        self._slo_revision = 0
        self.settings_applied(settings, generation=0, revision=0)

    def attach(
        self,
        pool_usage: Callable[[], tuple[int, int, int, int]],
        waiting_reasons: Callable[[], Mapping[str, int]],
        virtual_tokens: Callable[[], Mapping[str, float]] = _no_tokens,
        host_usage: Callable[[], tuple[int, int]] = _no_host_tier,
    ) -> None:
        """Say where to read gauges that only their owner knows, when a snapshot is made.

        Args:
            pool_usage: `BlockPool.usage`.
            waiting_reasons: reason -> waiting requests that are not admitted because of it.
            virtual_tokens: tenant -> its counter; empty but under policy Fair.
            host_usage: blocks that the host tier holds, and blocks that were not stored.
        """
        self._host_usage = host_usage
        self._virtual_tokens = virtual_tokens
        self._pool_usage = pool_usage
        self._waiting_reasons = waiting_reasons

    def _empty_pool(self) -> tuple[int, int, int, int]:
        return 0, 0, self._limits.num_blocks - 1, 0

    def settings_applied(self, settings: EngineSettings, *, generation: int, revision: int) -> None:
        """These settings are in force from now on."""
        self._ledger.settle()
        self._ends.settle()
        self._ends.generation = generation
        self._settings, self._generation, self._revision = settings, generation, revision
        self._rows.tenants.declare(tenant.name for tenant in settings.tenants or ())
        targets = SloTargets.of(settings)
        if targets != self._slo.targets:
            self._slo.retarget(targets)
            self._slo_revision = generation

    def startup(
        self, seconds_by_phase: Mapping[str, float], kv_divergence: Mapping[str, float]
    ) -> None:
        """How long the phases of the start took, and what FP8 KV does to the logits by measure."""
        self._startup.update(seconds_by_phase)
        self._kv_divergence.update(kv_divergence)

    # -- a request's life --------------------------------------------------------------------

    def request_arrived(self, request: Request) -> None:
        """A request was taken into the queue (a refused one never comes here)."""
        row = self._rows.add(request)
        if row >= self._slo.num_rows:
            self._slo.grow(self._rows.capacity)
        self._slo.start(row)

    def tenant_refused(self, tenant: str) -> None:
        """A request was not taken because its tenant had its part of the queue."""
        self._rows.tenants.refuse(tenant)

    def seat_given_up(self, request_id: int) -> None:
        """A running request is going to be preempted for another tenant's."""
        rows = self._rows
        rows.tenants.give_up_seat(int(rows.tenant[rows.row_of(request_id)]))

    def prompt_head(self, head: bytes, whole: bytes) -> None:
        """The keys of a new request's first blocks and of its whole prompt."""
        self._counters[metrics.PROMPT_HEADS] += 1
        self._counters[metrics.PROMPT_HEADS_SHARED] += self._heads.is_shared(head, whole)

    def request_admitted(
        self,
        request_id: int,
        slot: int,
        num_computed_tokens: int,
        now: float,
        num_loaded_tokens: int = 0,
    ) -> int:
        """A request took a slot, with so many tokens already computed (hit or kept).

        Args:
            request_id: of the request.
            slot: that it took.
            num_computed_tokens: with the loaded ones.
            now: when.
            num_loaded_tokens: of them those that are loaded from the host tier.

        Returns:
            Tokens that it had computed before and has to compute again.
        """
        rows = self._rows
        row = rows.take_slot(request_id, slot)
        had = int(rows.lost_tokens[row])
        if had >= 0:
            recomputed = max(0, had - num_computed_tokens)
            self._counters[metrics.RECOMPUTED] += recomputed
            self._counters[metrics.OFFLOAD_SAVED] += num_loaded_tokens
            rows.lost_tokens[row] = -1
            return recomputed
        rows.admitted_s[row] = now
        self._histograms[metrics.QUEUE_TIME].observe(now - float(rows.arrival_s[row]))
        if self._settings.prefix_caching:
            self._counters[metrics.PREFIX_QUERIES] += int(rows.prompt_tokens[row])
            on_device = num_computed_tokens - num_loaded_tokens
            self._counters[metrics.PREFIX_HITS] += on_device
            if self._limits.num_host_blocks:
                asked = int(rows.prompt_tokens[row]) - on_device
                self._counters[metrics.EXTERNAL_QUERIES] += asked
                self._counters[metrics.EXTERNAL_HITS] += num_loaded_tokens
        return 0

    def request_preempted(self, request_id: int, num_computed_tokens: int) -> None:
        """A request gave its slot up, having computed so many tokens; an undone plan's are not."""
        self._ledger.settle()
        rows = self._rows
        row = rows.leave_slot(request_id)
        rows.lost_tokens[row] = num_computed_tokens
        rows.preemptions[row] += 1
        self._counters[metrics.PREEMPTIONS] += 1

    def tokens(self, slots: AnyRows, counts: NDArray[np.integer[Any]] | None, now: float) -> None:
        """Requests got tokens that count.

        Args:
            slots: [m], each once. The very same array as in the last call means the very same
                requests, which is cheapest.
            counts: [m], at least 1 each; None = one each.
            now: when the step was applied.
        """
        self._ledger.tokens(slots, counts, now)

    def discarded(self, num_tokens: int) -> None:
        """Tokens were computed and given to nobody (behind an end, of a void row)."""
        self._counters[metrics.DISCARDED] += num_tokens

    def request_finished(
        self,
        finished: Finished,
        now: float,
        request: Request | None = None,
        keys: Sequence[bytes] = (),
        *,
        is_final: bool = True,
    ) -> None:
        """A request ended in whatever way; tokens beyond `num_output_tokens` are discarded.

        Args:
            finished: its end.
            now: when.
            request: what was asked; None keeps it out of the log of a recording.
            keys: of its full blocks, prompt and output; not to be changed any more.
            is_final: no stop string can be found in what it gave. Else one that may have stop
                strings is counted when `request_settled` says what its client read.
        """
        self._ledger.settle()
        row = self._rows.end(finished.request_id)
        if is_final:
            self._settle_output(finished)
        elif self._rows.has_stop_strings[row]:
            self._unsettled[finished.request_id] = finished, now, request, keys
            return
        self._count_finished(finished, now, request, keys)

    def request_settled(
        self, request_id: int, num_output_tokens: int | None = None, *, found_stop: bool = False
    ) -> None:
        """How many tokens of an ended request count; None: its client went away, so all of them.

        Does nothing for a request that was counted when it ended.
        """
        if (held := self._unsettled.pop(request_id, None)) is None:
            return
        finished, ended_s, request, keys = held
        if num_output_tokens is not None:
            finished = replace(
                finished,
                num_output_tokens=min(num_output_tokens, finished.num_output_tokens),
                reason=FinishReason.STOP if found_stop else finished.reason,
            )
        self._settle_output(finished)
        self._count_finished(finished, ended_s, request, keys)

    def _settle_output(self, finished: Finished) -> None:
        row = self._rows.row_of(finished.request_id)
        self.discarded(self._ledger.settle_output(row, finished.num_output_tokens))

    def _count_finished(
        self, finished: Finished, now: float, request: Request | None, keys: Sequence[bytes]
    ) -> None:
        self._finished[finished.reason] += 1
        self._ends.add(self._rows.forget(finished.request_id), finished, now, request, keys)

    # -- steps -------------------------------------------------------------------------------

    def step(self, record: StepRecord) -> None:
        """A step was applied; the recorder keeps the record."""
        active, cached, free, held = self._pool_usage()
        record.blocks_active, record.blocks_cached = active + held, cached
        record.blocks_free, record.generation = free, self._generation
        record.num_running, record.num_waiting = self._rows.num_running, self._rows.num_waiting
        self._steps.add(record)
        self._step_parts["host"] += record.host_ms / 1e3
        self._step_parts["device"] += record.device_ms / 1e3

    @property
    def last_step(self) -> StepRecord | None:
        """The record of the step applied last; the step loop adds what it measured."""
        return self._steps.last[-1] if self._steps.last else None

    def step_failed(self, record: StepRecord) -> None:
        """A step failed: it counts nothing and is kept for the flight recorder."""
        self._steps.last.append(record)

    def loop_time(self, part: str, seconds: float) -> None:
        """Time that the loop measured around the scheduler: part "schedule" or "apply"."""
        self._step_parts[part] += seconds

    def steps(self, limit: int) -> list[dict[str, Any]]:
        """The last steps, oldest first, as JSON-ready dicts."""
        kept = list(self._steps.last)[-limit:] if limit > 0 else []
        return [asdict(record) | {"num_tokens": record.num_tokens} for record in kept]

    def recording(self) -> dict[str, dict[str, list[Any]]]:
        """All that is kept of requests and steps, as columns: tens of milliseconds."""
        self._ends.settle()
        steps = list(self._steps.last)
        return {
            "requests": self._ends.log.columns(self._limits.block_size),
            "steps": {name: [getattr(step, name) for step in steps] for name in _STEP_COLUMNS},
        }

    # -- reading -----------------------------------------------------------------------------

    def snapshot(self, now: float) -> StatsSnapshot:
        """Everything at this moment, as plain data."""
        self._ledger.settle_gaps()
        self._steps.settle()
        self._ends.settle()
        rows = self._rows
        values: dict[str, dict[Labels, float]] = {
            name: {(): value} for name, value in self._counters.items()
        }
        values[metrics.RUNNING] = {(): float(rows.num_running)}
        values[metrics.WAITING] = {(): float(rows.num_waiting)}
        values[metrics.OLDEST_WAITING] = {(): rows.oldest_waiting_s(now)}
        values[metrics.SUCCESS] = {(reason,): float(n) for reason, n in self._finished.items()}
        values[metrics.STEP_SECONDS] = _by_label(self._step_parts.items())
        values.update(rows.tenant_series())
        values[metrics.TENANT_VIRTUAL_TOKENS] = _by_label(self._virtual_tokens().items())
        values[metrics.WAITING_BY_REASON] = self._reason_series()
        values[metrics.SLO_REQUESTS] = self._slo.requests()
        values[metrics.SLO_OBSERVATIONS] = self._slo.observations()
        values[metrics.SLO_TARGET] = self._slo.target_series()
        values[metrics.SLO_REVISION] = {(): float(self._slo_revision)}
        values[metrics.SPECULATION_GOODPUT] = {(): self.speculation_goodput}
        values[metrics.STARTUP_SECONDS] = _by_label(self._startup.items())
        values[metrics.KV_DIVERGENCE] = _by_label(self._kv_divergence.items())
        values[metrics.SETTINGS_GENERATION] = {(): float(self._generation)}
        values[metrics.SETTINGS_REVISION] = {(): float(self._revision)}
        values.update(settings_series.series(self._settings, self._limits))
        values.update(self._cache_series())
        values.update(self._host_series())
        return StatsSnapshot(
            now_s=now,
            values=values,
            histograms={name: h.data() for name, h in self._histograms.items()},
        )

    def _reason_series(self) -> dict[Labels, float]:
        """A reason once seen stays, at 0: a series that vanishes shows its last value for long."""
        now = self._waiting_reasons()
        self._reasons_seen.update(dict.fromkeys(now))
        return {(reason,): float(now.get(reason, 0)) for reason in self._reasons_seen}

    def _cache_series(self) -> dict[str, dict[Labels, float]]:
        active, cached, free, held = self._pool_usage()
        counts = (active + held, cached, free)
        shares = [count / sum(counts) for count in counts]
        queries = self._counters[metrics.PREFIX_QUERIES]
        hits = self._counters[metrics.PREFIX_HITS]
        return {
            metrics.KV_USAGE: {(): shares[0]},
            metrics.BLOCKS: _by_label(zip(metrics.BLOCK_STATES, counts, strict=True)),
            metrics.BLOCK_SHARES: _by_label(zip(metrics.BLOCK_STATES, shares, strict=True)),
            "vllm:gpu_prefix_cache_hit_rate": {(): hits / queries if queries else 0.0},
        }

    def _host_series(self) -> dict[str, dict[Labels, float]]:
        num_slots = self._limits.num_host_blocks
        if not num_slots:
            return {}
        used, num_skipped = self._host_usage()
        return {
            metrics.OFFLOAD_SKIPPED: {(): float(num_skipped)},
            metrics.OFFLOAD_USAGE: {(): used / num_slots},
            metrics.OFFLOAD_BLOCKS: _by_label((("used", used), ("free", num_slots - used))),
        }


def _by_label(pairs: Iterable[tuple[str, float]]) -> dict[Labels, float]:
    return {(label,): float(value) for label, value in pairs}
