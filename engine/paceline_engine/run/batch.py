"""The persistent batch: what the runner knows of each slot, and how a plan changes it.

Arrays by slot; a plan's delta is applied with array operations. Python runs per *added* request
only, never per running request.
"""

from dataclasses import dataclass

import numpy as np
import torch

from paceline_engine.core.arrays import Int32, Int64
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import AddedRequest, StepPlan
from paceline_engine.run.slot_params import SlotParams
from paceline_kernels.decoder import DecoderBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """Positions of a plan that yield a token, in the order of their logits.

    A row that samples has one for each of its drafts, whose place the token takes, and one more.

    Attributes:
        inputs: [n] places in the flat batch, of the tokens that these follow.
        slots: [n].
        ends: [n] position that the new token will have in its request.
    """

    inputs: Int64
    slots: Int64
    ends: Int64


class Batch:
    """Token ids, block tables and sampling parameters by slot.

    Attributes:
        token_ids: [slots, max_model_len + 1] int32; known tokens and the drafts of this step, then
            rubbish.
        num_prompt: [slots] prompt tokens.
        emitted_prompt_logprobs: [slots] prompt positions whose log-probabilities were given out.
        block_tables: [slots, max_blocks] int32, valid up to num_blocks [slots].
    """

    def __init__(self, limits: EngineLimits, engine_seed: int) -> None:
        slots, self.block_size = limits.max_slots, limits.block_size
        self._max_blocks = -(-limits.max_model_len // limits.block_size)
        # numpy's zeros are mapped lazily: a slot costs memory once it is used, as far as it is.
        self.token_ids: Int32 = np.zeros((slots, limits.max_model_len + 1), dtype=np.int32)
        self.num_prompt: Int64 = np.zeros(slots, dtype=np.int64)
        self.emitted_prompt_logprobs: Int64 = np.zeros(slots, dtype=np.int64)
        self.params = SlotParams(slots, limits.vocab_size, limits.eos_token_ids, engine_seed)
        self.block_tables: Int32 = np.zeros((slots, self._max_blocks), dtype=np.int32)
        self.num_blocks: Int64 = np.zeros(slots, dtype=np.int64)

    def apply(self, plan: StepPlan) -> None:
        """Follow a plan's changes: removed, added, appended blocks."""
        if plan.removed_slots.size:
            self.params.remove(plan.removed_slots)
        for added in plan.added:
            self._add(added)
        if plan.block_ids.size:
            self._append_blocks(plan.block_slots, plan.block_ids)
        if plan.draft_tokens.size:
            slots, positions = _spread(plan.slots, plan.starts + plan.num_tokens, plan.num_drafts)
            self.token_ids[slots, positions] = plan.draft_tokens

    def inputs(self, plan: StepPlan, logit_rows: Int64) -> DecoderBatch:
        """Lay all new tokens of the plan end to end."""
        slots = plan.slots.astype(np.int64)
        starts = plan.starts.astype(np.int64)
        counts = plan.num_tokens.astype(np.int64)
        seq_lens = starts + counts
        bounds = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(counts, out=bounds[1:])
        total = int(bounds[-1])
        if total == len(slots):
            token_slots, positions = slots, starts
        else:
            token_slots = np.repeat(slots, counts)
            positions = np.arange(total) + np.repeat(starts - bounds[:-1], counts)
        block, offset = np.divmod(positions, self.block_size)
        slot_mapping = self.block_tables[token_slots, block] * np.int64(self.block_size) + offset
        used_blocks = -(-int(seq_lens.max()) // self.block_size)
        return DecoderBatch(
            token_ids=_tensor(self.token_ids[token_slots, positions].astype(np.int64)),
            positions=_tensor(positions),
            slot_mapping=_tensor(slot_mapping),
            block_tables=_tensor(self.block_tables[slots, :used_blocks]),
            cu_seqlens_q=_tensor(bounds.astype(np.int32)),
            seq_lens=_tensor(seq_lens.astype(np.int32)),
            logit_rows=_tensor(logit_rows),
        )

    def sampled_rows(self, plan: StepPlan) -> SampledRows:
        """Which positions of the plan yield a token, and where it will stand."""
        rows = np.flatnonzero(plan.samples)
        ends = plan.starts[rows].astype(np.int64) + plan.num_tokens[rows]
        inputs = np.cumsum(plan.num_tokens, dtype=np.int64)[rows] - 1
        slots = plan.slots[rows].astype(np.int64)
        if plan.draft_tokens.size:
            counts = plan.num_drafts[rows] + 1
            slots, ends = _spread(slots, ends + 1, counts)
            _, inputs = _spread(rows, inputs + 1, counts)
        return SampledRows(inputs=inputs, slots=slots, ends=ends)

    def append_tokens(self, slots: Int64, ends: Int64, tokens: Int32) -> None:
        """Remember the newest token of slots, so that the next plan need not carry it.

        Args:
            slots: [n], each once.
            ends: [n] where the token stands; accepted drafts before it stand there already.
            tokens: [n].
        """
        self.token_ids[slots, ends] = tokens

    def _add(self, added: AddedRequest) -> None:
        slot, known = added.slot, added.token_ids
        self.token_ids[slot, : len(known)] = known
        self.num_prompt[slot] = added.num_prompt_tokens
        self.emitted_prompt_logprobs[slot] = added.num_emitted_prompt_logprobs
        self.num_blocks[slot] = 0
        self.params.add(slot, added.request_id, added.params)

    def _append_blocks(self, slots: Int32, ids: Int32) -> None:
        """Append each id to its slot's table; several for one slot keep their order."""
        order = np.argsort(slots, kind="stable")
        ordered = slots[order].astype(np.int64)
        is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
        first = np.flatnonzero(is_first)
        counts = np.diff(np.append(first, len(ordered)))
        rank = np.arange(len(ordered)) - np.repeat(first, counts)
        self.block_tables[ordered, self.num_blocks[ordered] + rank] = ids[order]
        self.num_blocks[ordered[first]] += counts


def _spread(owners: Int32 | Int64, ends: Int64, counts: Int32) -> tuple[Int64, Int64]:
    """Owners repeated `counts` times each, and the positions [end - count, end) of each."""
    total = np.cumsum(counts, dtype=np.int64)
    repeated = np.repeat(owners, counts).astype(np.int64)
    return repeated, np.arange(len(repeated)) + np.repeat(ends - total, counts)


def _tensor(array: Int32 | Int64) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
