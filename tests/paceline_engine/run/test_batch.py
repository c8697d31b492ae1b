"""A plan's delta changes the slots it names, and the flat batch says where every token stands."""

import numpy as np

from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import AddedRequest, StepPlan
from paceline_engine.core.request import SamplingParams
from paceline_engine.run.batch import Batch

LIMITS = EngineLimits(
    num_blocks=64,
    block_size=8,
    max_model_len=64,
    max_slots=6,
    max_step_tokens=64,
    vocab_size=100,
    eos_token_ids=(2,),
    cache_root=b"",
)


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def added(slot: int, tokens: list[int], **params: object) -> AddedRequest:
    return AddedRequest(
        slot=slot,
        request_id=slot + 100,
        epoch=0,
        token_ids=array(*tokens),
        num_prompt_tokens=len(tokens),
        num_computed_tokens=0,
        params=SamplingParams(**params),
    )


def plan(
    rows: list[tuple[int, int, int]],
    new: tuple[AddedRequest, ...] = (),
    blocks: tuple[tuple[int, int], ...] = (),
    removed: tuple[int, ...] = (),
) -> StepPlan:
    """Rows are (slot, start, num_tokens), blocks are (slot, block id)."""
    slots, starts, counts = (array(*column) for column in zip(*rows, strict=True))
    return StepPlan(
        step_id=1,
        removed_slots=array(*removed),
        added=new,
        block_slots=array(*(slot for slot, _ in blocks)),
        block_groups=array(*(0 for _ in blocks)),
        block_ids=array(*(block for _, block in blocks)),
        slots=slots,
        starts=starts,
        num_tokens=counts,
        num_drafts=np.zeros_like(slots),
        samples=np.ones(len(slots), dtype=np.bool_),
        epochs=np.zeros_like(slots),
        request_ids=slots.astype(np.int64) + 100,
    )


def test_tokens_of_mixed_rows_lie_end_to_end() -> None:
    batch = Batch(LIMITS, engine_seed=0)
    first = plan(
        [(4, 0, 3), (1, 0, 10)],
        (added(1, list(range(10, 20))), added(4, [7, 8, 9])),
        blocks=((1, 20), (4, 30), (1, 21)),
    )
    batch.apply(first)
    inputs = batch.inputs(first, np.array([2, 12]))
    assert inputs.token_ids.tolist() == [7, 8, 9, *range(10, 20)]
    assert inputs.positions.tolist() == [0, 1, 2, *range(10)]
    assert inputs.slot_mapping.tolist() == [240, 241, 242, *range(160, 170)]
    assert inputs.block_tables.tolist() == [[30, 0], [20, 21]]
    assert inputs.cu_seqlens_q.tolist() == [0, 3, 13]
    assert inputs.seq_lens.tolist() == [3, 10]


def test_a_sampled_token_is_the_next_steps_input() -> None:
    batch = Batch(LIMITS, engine_seed=0)
    first = plan([(2, 0, 8)], (added(2, list(range(8))),), blocks=((2, 5),))
    batch.apply(first)
    rows = batch.sampled_rows(first)
    batch.append_tokens(rows.slots, rows.ends, array(77))
    second = plan([(2, 8, 1)], blocks=((2, 9),))
    batch.apply(second)
    inputs = batch.inputs(second, np.array([0]))
    assert inputs.token_ids.tolist() == [77]
    assert inputs.positions.tolist() == [8]
    assert inputs.slot_mapping.tolist() == [72]
    assert inputs.block_tables.tolist() == [[5, 9]]


def test_a_row_with_drafts_samples_at_each_of_them() -> None:
    batch = Batch(LIMITS, engine_seed=0)
    new = (added(2, [1, 2, 3, 4]), added(5, [9, 8]), added(0, [6, 6]))
    first = plan([(2, 0, 3), (5, 0, 2), (0, 0, 2)], new, blocks=((2, 5), (5, 6), (0, 7)))
    batch.apply(first)
    second = plan([(2, 3, 3), (5, 1, 1), (0, 1, 2)])
    second.num_drafts = array(2, 0, 1)
    second.draft_tokens = array(50, 51, 60)
    batch.apply(second)
    rows = batch.sampled_rows(second)
    assert rows.inputs.tolist() == [0, 1, 2, 3, 4, 5]
    assert rows.slots.tolist() == [2, 2, 2, 5, 0, 0]
    assert rows.ends.tolist() == [4, 5, 6, 2, 2, 3]
    assert batch.inputs(second, rows.inputs).token_ids.tolist() == [4, 50, 51, 8, 6, 60]


def test_a_slot_that_is_taken_again_keeps_nothing() -> None:
    batch = Batch(LIMITS, engine_seed=0)
    strange = {"allowed_token_ids": (4,), "logit_bias": ((3, 1.0),), "bad_words": ((9,),)}
    batch.apply(
        plan([(0, 0, 2)], (added(0, [1, 2], min_tokens=3, **strange),), blocks=((0, 1), (0, 2)))
    )
    again = plan([(0, 0, 1)], (added(0, [5], temperature=0.0),), blocks=((0, 7),), removed=(0,))
    batch.apply(again)
    assert batch.inputs(again, np.array([0])).slot_mapping.tolist() == [56]
    assert batch.params.flags[0] == 0
    params = batch.params
    assert [params.allowed, params.bias, params.bad_words, params.stop_ids] == [{}, {}, {}, {}]


def test_the_last_position_has_room_for_its_token() -> None:
    batch = Batch(LIMITS, engine_seed=0)
    full = plan([(3, 0, 64)], (added(3, [5] * 64),), blocks=tuple((3, 10 + i) for i in range(8)))
    batch.apply(full)
    sampled = batch.sampled_rows(full)
    assert sampled.ends.tolist() == [64]
    batch.append_tokens(sampled.slots, sampled.ends, array(6))
    assert batch.inputs(full, np.array([63])).token_ids.tolist() == [5] * 64
