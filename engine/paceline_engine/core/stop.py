"""Which token ends a request: an end token, a stop token, or a length.

Output tokens are numbered from 0. A stop id ends a request at output index i only if
i >= min_tokens (the sampler masks it before that, so the two agree); the length ends it after
`max_tokens` outputs or `max_model_len` tokens in all. A stop id on the last allowed position is a
stop, not a length. The token that stops belongs to the output.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_engine.core.plan import Int32
from paceline_engine.core.request import FinishReason, SamplingParams
from paceline_engine.core.slots import AnyRows

GOES_ON, STOPPED, AT_LENGTH = 0, 1, 2
_REASONS = {STOPPED: FinishReason.STOP, AT_LENGTH: FinishReason.LENGTH}
Counts = NDArray[np.signedinteger[Any]]
_NO_TOKEN = -2  # stands in no vocabulary and is not the -1 that pads rows
_NEVER = np.iinfo(np.int64).max // 2


def stop_ids(params: SamplingParams, eos_token_ids: tuple[int, ...]) -> frozenset[int]:
    """Token ids that end such a request; masked while fewer than min_tokens outputs exist."""
    own = () if params.ignore_eos else eos_token_ids
    return frozenset(own) | frozenset(params.stop_token_ids)


def output_limit(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> int:
    """Output tokens that the request may have at most."""
    return max(0, min(params.max_tokens, max_model_len - num_prompt_tokens))


def ending(
    params: SamplingParams,
    eos_token_ids: tuple[int, ...],
    limit: int,
    index: int,
    token: int,
) -> FinishReason | None:
    """How `token` at output `index` ends the request, None if it goes on. Limit: `output_limit`."""
    if index >= params.min_tokens and token in stop_ids(params, eos_token_ids):
        return FinishReason.STOP
    return FinishReason.LENGTH if index + 1 >= limit else None


@dataclass(slots=True)
class Verdict:
    """What became of the rows of a step.

    Attributes:
        kept: [m] int32, tokens of the row that count; read only.
        ends: [m] int8, GOES_ON, STOPPED or AT_LENGTH; read only.
    """

    kept: Int32
    ends: NDArray[np.int8]

    def reason(self, row: int) -> FinishReason | None:
        """How the row's request ended, None if it goes on."""
        return _REASONS.get(int(self.ends[row]))


class StopRules:
    """The rules of all running requests as arrays by slot, so that a step is judged at once.

    Mutable arrays because every step of every request passes here.
    """

    __slots__ = (
        "_all_kept",
        "_eos",
        "_eos_columns",
        "_eos_from",
        "_extra",
        "_extra_slots",
        "_found",
        "_ids_from",
        "_is_eos",
        "_limit",
        "_none_ends",
    )

    def __init__(self, max_slots: int, eos_token_ids: tuple[int, ...]) -> None:
        self._eos = sorted(set(eos_token_ids))
        self._limit = np.zeros(max_slots, dtype=np.int64)  # total tokens at which length ends it
        self._eos_from = np.zeros(max_slots, dtype=np.int64)  # total tokens before which eos counts
        self._ids_from = np.zeros(max_slots, dtype=np.int64)  # the same for its own stop ids
        self._extra = np.full((max_slots, 1), _NO_TOKEN, dtype=np.int32)
        self._extra_slots: set[int] = set()
        self._all_kept = np.ones(max_slots, dtype=np.int32)
        self._none_ends = np.zeros(max_slots, dtype=np.int8)
        self._all_kept.flags.writeable = self._none_ends.flags.writeable = False
        self._look_at((0, 1))

    def _look_at(self, shape: tuple[int, ...]) -> None:
        """Make what `may_stop` compares with and writes to: steps mostly have the same shape."""
        self._found = bytearray(int(np.prod(shape)))
        self._is_eos = np.frombuffer(self._found, dtype=np.bool_).reshape(shape)
        self._eos_columns = [np.full(shape, eos, dtype=np.int32) for eos in self._eos]

    def add(
        self, slot: int, params: SamplingParams, num_prompt_tokens: int, max_model_len: int
    ) -> None:
        """A request takes `slot` (again); what stood there before is void."""
        self._limit[slot] = num_prompt_tokens + output_limit(
            params, num_prompt_tokens, max_model_len
        )
        first = num_prompt_tokens + params.min_tokens
        self._ids_from[slot] = first
        self._eos_from[slot] = _NEVER if params.ignore_eos else first
        ids = params.stop_token_ids
        self._extra_slots.discard(slot)
        if not ids:
            return
        self._extra_slots.add(slot)
        if len(ids) > self._extra.shape[1]:
            wider = np.full((len(self._extra), len(ids)), _NO_TOKEN, dtype=np.int32)
            wider[:, : self._extra.shape[1]] = self._extra
            self._extra = wider
        self._extra[slot] = _NO_TOKEN
        self._extra[slot, : len(ids)] = ids

    def remove(self, slots: list[int]) -> None:
        """Requests gave these slots up."""
        self._extra_slots.difference_update(slots)

    def limits(self, slots: Int32) -> NDArray[np.int64]:
        """[m] total tokens (prompt and output) at which each request ends at the latest."""
        limits: NDArray[np.int64] = self._limit[slots]
        return limits

    def may_stop(self, slots: Int32, tokens: Int32) -> bool:
        """Whether one of [m, width] tokens is a stop id of its row, min_tokens or not: quickly.

        A step of many rows passes here each time. To compare with an array, into another, and to
        search the bytes of that one, is the cheapest there is.
        """
        if tokens.shape != self._is_eos.shape:
            self._look_at(tokens.shape)
        for column in self._eos_columns:
            np.equal(tokens, column, out=self._is_eos)
            if 1 in self._found:
                return True
        return bool(self._extra_slots) and bool((tokens == self._extra[slots]).any())

    def judge(self, slots: AnyRows, totals: Counts, tokens: Int32) -> Verdict:
        """Decide what of a step's tokens counts and who ends.

        Args:
            slots: [m], rows that yielded tokens.
            totals: [m], tokens that each request had before them.
            tokens: [m, width]; -1 behind a row's tokens.
        """
        if tokens.shape[1] == 1:
            return self._judge_one(slots, totals, tokens[:, 0])
        num = (tokens >= 0).sum(axis=1)
        index = totals[:, None] + np.arange(tokens.shape[1])  # total tokens before each
        at_length = index + 1 >= self._limit[slots][:, None]
        stops = self._stops(slots, index, tokens)
        if stops is None:
            stops = np.zeros_like(at_length)
        ended = (stops | at_length) & (tokens >= 0)
        any_end = ended.any(axis=1)
        first = ended.argmax(axis=1)
        room = np.maximum(self._limit[slots] - totals, 0)
        kept = np.minimum(np.where(any_end, first + 1, num), room).astype(np.int32)
        rows = np.arange(len(slots))
        ends = np.where(any_end, np.where(stops[rows, first], STOPPED, AT_LENGTH), GOES_ON)
        ends[(room == 0) & any_end] = AT_LENGTH
        return Verdict(kept, ends.astype(np.int8))

    def _judge_one(self, slots: AnyRows, totals: Counts, tokens: Int32) -> Verdict:
        """The all-decode step: one token a row, and mostly nobody ends."""
        limit = self._limit[slots]
        at_length = totals + 1 >= limit
        stops = self._stops(slots, totals, tokens)
        if stops is None and not np.count_nonzero(at_length):  # cheaper than any()
            return Verdict(self._all_kept[: len(slots)], self._none_ends[: len(slots)])
        ends = at_length * np.int8(AT_LENGTH)
        room = totals < limit
        if stops is not None:
            ends[stops & room] = STOPPED
        return Verdict(room.astype(np.int32), ends)

    def _stops(self, slots: AnyRows, before: Counts, tokens: Int32) -> NDArray[np.bool_] | None:
        """Same shape as `tokens`: stop ids, where min_tokens lets them count; None: none at all."""
        wide = tokens.ndim == 2
        hits: NDArray[np.bool_] | None = None
        for eos in self._eos:
            found = tokens == eos
            if np.count_nonzero(found):
                first = self._eos_from[slots]
                found &= before >= (first[:, None] if wide else first)
                hits = found if hits is None else hits | found
        if self._extra_slots:
            first, extra = self._ids_from[slots], self._extra[slots]
            own: NDArray[np.bool_] = tokens[..., None] == (extra[:, None] if wide else extra)
            found = own.any(axis=-1) & (before >= (first[:, None] if wide else first))
            hits = found if hits is None else hits | found
        return hits
