"""Slots are given out and taken back, and their arrays grow without losing anything."""

import numpy as np

from paceline_engine.core.block_pool import BlockPool
from paceline_engine.core.output_tail import OutputTail
from paceline_engine.core.prefix_cache import PrefixCache
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.core.slots import Slots
from paceline_engine.core.tracked import TrackedRequest
from paceline_engine.testing.trial import tiny_limits

NOTHING_SEEN = OutputTail()
LIMITS = tiny_limits(num_blocks=600, block_size=8, max_slots=3)


def tracked(number: int, prompt: int, max_tokens: int = 4) -> TrackedRequest:
    request = Request(
        request_id=number,
        external_id=str(number),
        prompt_token_ids=tuple(range(prompt)),
        params=SamplingParams(max_tokens=max_tokens),
    )
    chain = PrefixCache(BlockPool(4), 8, b"").chain(number)
    return TrackedRequest(request, number, prompt + max_tokens, chain)


def test_a_slot_that_is_given_out_again_has_another_epoch() -> None:
    slots = Slots(LIMITS)
    before = tracked(1, 5)
    first = slots.seat(before, 0, [7, 8], 0)
    epoch = int(slots.epoch[first])
    slots.append_blocks(first, [9])
    assert slots.unseat([before]) == [[9, 8, 7]]
    assert before.slot == -1
    slots.compact()
    again = slots.seat(tracked(2, 5), 0, [], 0)
    assert again == first
    assert slots.epoch[again] > epoch
    assert slots.blocks(again).tolist() == []


def test_the_order_of_admission_outlives_slots_that_are_reused() -> None:
    slots = Slots(LIMITS)
    requests = [tracked(number, 5) for number in range(3)]
    seats = [slots.seat(request, 0, [], 0) for request in requests]
    slots.unseat(requests[:1])
    slots.compact()
    slots.seat(tracked(9, 5), 0, [], 0)
    assert slots.order.tolist() == [seats[1], seats[2], seats[0]]
    assert slots.num_free == 0


def test_a_long_request_makes_the_arrays_wider_and_keeps_what_stood_there() -> None:
    slots = Slots(LIMITS)
    short = slots.seat(tracked(1, 40), 0, [3, 4, 5], 0)
    long = slots.seat(tracked(2, 3000, max_tokens=1000), 0, list(range(6, 381)), 0)
    np.testing.assert_array_equal(slots.known_tokens(short), np.arange(40))
    np.testing.assert_array_equal(slots.known_tokens(long), np.arange(3000))
    assert slots.blocks(short).tolist() == [3, 4, 5]
    assert slots.blocks(long).tolist() == list(range(6, 381))
    np.testing.assert_array_equal(slots.tokens_by_block[short, 1], np.arange(8, 16))


def test_promised_blocks_count_only_what_is_still_missing() -> None:
    slots = Slots(LIMITS)
    for number, promised in ((1, 5), (2, 1)):
        slots.seat(tracked(number, 5), 0, [10 * number, 10 * number + 1], promised)
    assert slots.promised_blocks(NOTHING_SEEN) == 3


def test_promised_blocks_follow_every_change_of_tables_and_seats() -> None:
    slots = Slots(LIMITS)
    first = slots.seat(tracked(0, 5), 0, [], 4)
    assert slots.promised_blocks(NOTHING_SEEN) == 4
    other = tracked(1, 5)
    second = slots.seat(other, 0, [], 6)
    assert slots.promised_blocks(NOTHING_SEEN) == 10
    slots.append_blocks(first, [1, 2])
    assert slots.promised_blocks(NOTHING_SEEN) == 8
    slots.append_one_each(np.array([first, second]), np.array([3, 4]))
    assert slots.promised_blocks(NOTHING_SEEN) == 6
    slots.truncate(first, LIMITS.block_size)
    assert slots.promised_blocks(NOTHING_SEEN) == 8
    slots.set_num_blocks(np.array([second]), np.array([3], dtype=np.int32))
    assert slots.promised_blocks(NOTHING_SEEN) == 6
    slots.unseat([other])  # before its place in the order is dropped, too
    assert slots.promised_blocks(NOTHING_SEEN) == 3


def test_blocks_beyond_what_was_promised_take_nothing_from_the_promises() -> None:
    slots = Slots(LIMITS)
    first, second = slots.seat(tracked(0, 5), 0, [], 2), slots.seat(tracked(1, 5), 0, [], 9)
    assert slots.promised_blocks(NOTHING_SEEN) == 11
    for number, left in enumerate((9, 7, 6, 5)):
        slots.append_one_each(np.array([first, second]), np.array([2 * number + 1, 2 * number + 2]))
        assert slots.promised_blocks(NOTHING_SEEN) == left
    slots.forget_promises()
    assert slots.promised_blocks(NOTHING_SEEN) == 5


def test_promises_are_counted_again_when_longer_outputs_are_seen() -> None:
    slots, tail = Slots(LIMITS), OutputTail()
    slots.seat(tracked(1, 5, max_tokens=400), 0, [], 1)
    before = slots.promised_blocks(tail)
    tail.observe(300)
    assert slots.promised_blocks(tail) > before


def test_blocks_to_come_follow_every_change_of_tables_and_seats() -> None:
    slots = Slots(LIMITS)
    one, other = tracked(0, 5, max_tokens=36), tracked(1, 20, max_tokens=0)
    first = slots.seat(one, 0, [1], 2)  # computes 40 tokens: 5 blocks
    assert slots.num_to_come == 4
    second = slots.seat(other, 0, [], 3)  # its prompt alone: 3 blocks
    assert slots.num_to_come == 4 + 3
    slots.append_blocks(second, [2])
    assert slots.num_to_come == 4 + 2
    slots.append_one_each(np.array([first, second]), np.array([3, 4]))
    assert slots.num_to_come == 3 + 1
    slots.truncate(first, LIMITS.block_size)
    assert slots.num_to_come == 4 + 1
    slots.set_num_blocks(np.array([first]), np.array([5], dtype=np.int32))
    assert slots.num_to_come == 0 + 1
    slots.unseat([one])
    assert slots.num_to_come == 1
    slots.unseat([other])
    assert slots.num_to_come == 0
