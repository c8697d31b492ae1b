"""A step under construction can take rows back."""

import numpy as np

from paceline_engine.core.draft_plan import DraftPlan, RowTemplate
from paceline_engine.core.lanes import LaneBudget
from paceline_engine.core.slots import Slots
from paceline_engine.testing.trial import tiny_limits


def draft_with(slots: Slots, decodes: list[int], chunks: dict[int, int]) -> DraftPlan:
    draft = DraftPlan(7, LaneBudget(10, 10, 10, 0))
    draft.decodes = RowTemplate.of(np.array(decodes, dtype=np.int32), slots)
    draft.chunks.update(chunks)
    draft.lanes.take(len(decodes) + sum(chunks.values()), is_long=False)
    return draft


def test_a_row_that_is_taken_back_refunds_its_budget_and_its_blocks() -> None:
    slots = Slots(tiny_limits())
    draft = draft_with(slots, [0, 1], {2: 6})
    draft.note_blocks(np.array([0, 1], dtype=np.int32), np.array([11, 12], dtype=np.int32))
    draft.note_table(2, [13, 14])
    assert draft.lanes.total == 2
    draft.drop(1)
    assert draft.lanes.total == 3
    draft.drop(2)
    assert draft.lanes.total == 9
    plan = draft.build(slots, [1, 2, 1])
    assert plan is not None
    assert plan.slots.tolist() == [0]
    assert plan.block_slots.tolist() == [0]
    assert plan.block_ids.tolist() == [11]
    assert plan.removed_slots.tolist() == [1, 2]


def test_a_skipped_decode_keeps_its_slot_and_refunds_once() -> None:
    slots = Slots(tiny_limits())
    draft = draft_with(slots, [0, 1], {})
    draft.skip(1)
    assert draft.lanes.total == 9
    draft.drop(1)
    assert draft.lanes.total == 9
    assert draft.has_rows()
    draft.drop(0)
    assert not draft.has_rows()
    assert draft.build(slots, []) is None


def test_a_plan_shares_arrays_that_nobody_can_write_to() -> None:
    slots = Slots(tiny_limits())
    plan = draft_with(slots, [0, 1], {}).build(slots, [])
    assert plan is not None
    for array in (plan.num_tokens, plan.num_drafts, plan.samples, plan.epochs, plan.request_ids):
        assert not array.flags.writeable


def test_a_block_that_a_decode_gets_stands_behind_its_announced_table() -> None:
    slots = Slots(tiny_limits())
    draft = draft_with(slots, [0], {1: 3})
    draft.note_table(0, [11, 12])
    draft.note_blocks(np.array([0], dtype=np.int32), np.array([13], dtype=np.int32))
    draft.note_table(1, [14])
    plan = draft.build(slots, [])
    assert plan is not None
    table = [b for s, b in zip(plan.block_slots, plan.block_ids, strict=True) if s == 0]
    assert table == [11, 12, 13]
