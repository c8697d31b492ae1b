"""Draft KV lies under the target's block ids, and no guess where somebody else reads."""

import numpy as np
import pytest

from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import AddedRequest, StepPlan
from paceline_engine.core.request import SamplingParams
from paceline_engine.run.batch import Batch
from paceline_engine.run.drafts.draft_kv import DraftKv, scratch_blocks
from paceline_kernels.decoder import DecoderBatch

SIZE = 8
MAX_DRAFTS = 10
LIMITS = EngineLimits(
    num_blocks=32,
    block_size=SIZE,
    max_model_len=64,
    max_slots=4,
    max_step_tokens=64,
    vocab_size=100,
    eos_token_ids=(2,),
    cache_root=b"",
)
TEXT = list(range(10, 60))


def int32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def int64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class Slots:
    """A batch and its draft KV, changed by plans without rows."""

    def __init__(self) -> None:
        self.batch = Batch(LIMITS, engine_seed=0)
        self.kv = DraftKv(self.batch, LIMITS.num_blocks, MAX_DRAFTS)

    def change(self, *new: tuple[int, int, int], blocks: tuple[tuple[int, int], ...] = ()) -> None:
        """New requests are (slot, known tokens, tokens hit); blocks are (slot, id)."""
        none = int32()
        plan = StepPlan(
            step_id=1,
            added=tuple(
                AddedRequest(
                    slot=slot,
                    request_id=slot,
                    epoch=0,
                    token_ids=int32(*TEXT[:known]),
                    num_prompt_tokens=known,
                    num_computed_tokens=hit,
                    params=SamplingParams(),
                )
                for slot, known, hit in new
            ),
            block_slots=int32(*(slot for slot, _ in blocks)),
            block_groups=int32(*(0 for _ in blocks)),
            block_ids=int32(*(block for _, block in blocks)),
            slots=none,
            starts=none,
            num_tokens=none,
            num_drafts=none,
            samples=none.astype(np.bool_),
            epochs=none,
            request_ids=none.astype(np.int64),
        )
        self.batch.apply(plan)
        self.kv.follow(plan)

    def rows(self, slot: int, start: int, end: int) -> DecoderBatch:
        return self.kv.rows(int64(slot), int64(start), int64(end), int64(end - start - 1))


def test_known_tokens_lie_under_the_targets_block_ids() -> None:
    slots = Slots()
    slots.change((1, 12, 0), blocks=((1, 20), (1, 7)))
    rows = slots.rows(1, 6, 12)
    assert rows.slot_mapping.tolist() == [166, 167, 56, 57, 58, 59]
    assert rows.block_tables.tolist() == [[20, 7]]
    assert rows.token_ids.tolist() == TEXT[6:12]
    assert (rows.seq_lens.tolist(), rows.logit_rows.tolist()) == ([12], [5])


def test_guesses_take_the_rest_of_the_last_own_block_and_then_scratch_ones() -> None:
    slots = Slots()
    slots.change((1, 13, 0), (2, 16, 0), blocks=((1, 20), (2, 5), (1, 7), (2, 6)))
    guesses = slots.rows(1, 13, 13 + MAX_DRAFTS - 1)
    blocks = (guesses.slot_mapping // SIZE).tolist()
    assert blocks[:3] == [7, 7, 7], "free places of its own block"
    others = slots.rows(2, 15, 15 + MAX_DRAFTS)
    scratch = set(blocks[3:]) | set((others.slot_mapping // SIZE).tolist()[1:])
    assert len(scratch) == 3
    total = LIMITS.num_blocks + scratch_blocks(LIMITS.max_slots, MAX_DRAFTS, SIZE)
    assert all(LIMITS.num_blocks <= block < total for block in scratch)
    assert set(blocks[3:]).isdisjoint((others.slot_mapping // SIZE).tolist())


@pytest.mark.parametrize("slot", range(LIMITS.max_slots))
def test_no_guess_of_a_request_at_its_longest_lies_outside_the_cache(slot: int) -> None:
    slots = Slots()
    slots.change((slot, 50, 0), blocks=tuple((slot, 9 + number) for number in range(7)))
    rows = slots.rows(slot, 55, LIMITS.max_model_len)
    total = LIMITS.num_blocks + scratch_blocks(LIMITS.max_slots, MAX_DRAFTS, SIZE)
    assert int(rows.slot_mapping.max()) < total * SIZE
    assert int(rows.block_tables.max()) < total


def test_a_hit_is_known_as_far_as_draft_layers_were_filled() -> None:
    slots = Slots()
    slots.change((0, 33, 0), blocks=tuple((0, 10 + number) for number in range(5)))
    assert slots.kv.known[0] == 0
    slots.kv.note_computed(int64(0), int64(19))
    assert slots.kv.known[0] == 19
    slots.change((1, 40, 32), blocks=((1, 10), (1, 11), (1, 12), (1, 13), (1, 15)))
    assert slots.kv.known[1] == 16, "two whole blocks"
    slots.kv.note_computed(int64(1), int64(40))
    slots.change((2, 40, 32), blocks=((2, 10), (2, 11), (2, 12), (2, 13), (2, 16)))
    assert slots.kv.known[2] == 32
    assert slots.kv.known[0] == 19


def test_a_block_that_was_given_to_somebody_else_is_known_no_more() -> None:
    slots = Slots()
    slots.change((0, 20, 0), blocks=((0, 10), (0, 11), (0, 12)))
    slots.kv.note_computed(int64(0), int64(20))
    # Slot 1 takes block 11 anew, and slot 2 hits it in the same step.
    slots.change((1, 9, 0), (2, 20, 16), blocks=((1, 11), (2, 10), (2, 11), (2, 13)))
    assert (slots.kv.known[1], slots.kv.known[2]) == (0, 8)


def test_what_lies_in_scratch_blocks_is_not_known() -> None:
    slots = Slots()
    slots.change((0, 17, 0), blocks=((0, 10), (0, 11)))
    slots.kv.note_computed(int64(0), int64(17))
    assert slots.kv.known[0] == 16
