"""Stateful test of the pool under every caller's order, and its O(1) claims by counting steps."""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paceline_engine.core.block_pool import NULL_BLOCK, BlockPool
from paceline_engine.core.errors import OutOfBlocks


def key(n: int) -> bytes:
    return n.to_bytes(32, "little")


def cached_blocks(pool: BlockPool, n: int) -> list[int]:
    """Allocate, name and release n blocks: the first one is the least recently used."""
    blocks = pool.allocate(n)
    for block in blocks:
        pool.set_key(block, key(block))
    pool.release(blocks)
    return blocks


def test_the_null_block_is_never_given_out():
    pool = BlockPool(8)
    assert NULL_BLOCK not in pool.allocate(7)
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)


def test_the_null_block_is_ignored_in_tables():
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    table = [NULL_BLOCK, block, NULL_BLOCK]
    pool.acquire(table)
    pool.hold(table)
    pool.unhold(table)
    pool.release(table)
    pool.check({block: 1}, {})


def test_a_refused_allocation_takes_nothing():
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(OutOfBlocks) as info:
        pool.allocate(2)
    assert (info.value.wanted, info.value.available) == (2, 1)
    assert pool.usage() == (2, 0, 1, 0)


def test_blocks_without_content_are_reused_before_cached_ones():
    pool = BlockPool(5)
    cached = cached_blocks(pool, 2)
    assert set(pool.allocate(2)).isdisjoint(cached)
    assert pool.usage() == (2, 2, 0, 0)


def test_cached_blocks_are_reused_in_the_order_of_their_release():
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    for block in blocks:
        pool.set_key(block, key(block))
    tail_first = blocks[::-1]
    pool.release(tail_first)
    assert [pool.allocate(1)[0] for _ in blocks] == tail_first


def test_a_hit_makes_a_block_the_most_recently_used():
    pool = BlockPool(4)
    first, *others = cached_blocks(pool, 3)
    pool.acquire([first])
    pool.release([first])
    assert pool.allocate(3) == [*others, first]


def test_an_evicted_block_is_not_found_any_more():
    pool = BlockPool(3)
    first, second = cached_blocks(pool, 2)
    pool.allocate(1)
    assert pool.find(key(first)) is None
    assert pool.find(key(second)) == second


def test_one_batch_of_single_blocks_is_an_array_of_distinct_blocks():
    pool = BlockPool(70)
    blocks = pool.allocate_many_one(64)
    assert (blocks.dtype, blocks.shape) == ("int32", (64,))
    assert len(set(blocks.tolist())) == 64


def test_a_shared_block_is_freed_with_its_last_reference():
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.acquire(blocks)
    assert pool.num_gained(blocks) == 0
    pool.release(blocks)
    assert pool.num_gained(blocks) == 1
    pool.release(blocks)
    assert pool.usage() == (0, 0, 2, 0)


def test_a_double_release_is_caught():
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(blocks)


def test_a_held_block_is_not_reused_and_counts_as_coming():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.hold(blocks)
    pool.release(blocks)
    assert (pool.num_free, pool.num_held) == (0, 2)
    pool.unhold(blocks)
    assert (pool.num_free, pool.num_held) == (2, 0)


def test_a_held_block_with_content_can_be_hit():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.set_key(blocks[0], key(1))
    pool.hold(blocks)
    pool.release(blocks)
    pool.acquire(blocks)
    assert pool.usage() == (1, 0, 0, 0)
    pool.unhold(blocks)
    pool.release(blocks)
    assert pool.usage() == (0, 1, 0, 0)


def test_a_block_that_is_free_cannot_be_hit():
    pool = BlockPool(3)
    with pytest.raises(AssertionError, match="holds nothing to hit"):
        pool.acquire([1])


def test_the_first_of_two_equal_contents_keeps_the_key():
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    assert pool.set_key(first, key(1))
    assert not pool.set_key(second, key(1))
    assert pool.find(key(1)) == first


def test_of_equal_contents_that_are_named_together_the_first_keeps_the_key():
    pool = BlockPool(5)
    first, second, other = pool.allocate(3)
    assert pool.set_keys([first, second, other], [key(1), key(1), key(2)]) == [first, other]
    assert pool.find(key(1)) == first
    pool.check({first: 1, second: 1, other: 1})


def test_a_block_that_has_a_key_keeps_it_when_others_get_theirs():
    pool = BlockPool(5)
    named, other = pool.allocate(2)
    assert pool.set_key(named, key(1))
    assert pool.set_keys([named, other], [key(3), key(2)]) == [other]
    assert (pool.find(key(1)), pool.find(key(3))) == (named, None)
    pool.check({named: 1, other: 1})


def test_allocation_and_release_do_the_same_work_in_a_small_and_a_large_pool():
    """Counted, not timed: what a pool touches must not grow with its size."""

    touched = 0

    def count() -> None:
        nonlocal touched
        touched += 1

    class Counted(list):
        def __getitem__(self, index):
            count()
            return super().__getitem__(index)

        def __setitem__(self, index, value):
            count()
            super().__setitem__(index, value)

    class CountedKeys(dict):
        def __contains__(self, block):
            count()
            return super().__contains__(block)

        def pop(self, *args):
            count()
            return super().pop(*args)

        def __iter__(self):
            raise AssertionError("walks over all keys")

    def work(num_blocks: int) -> int:
        nonlocal touched
        pool = BlockPool(num_blocks)
        pool._refs, pool._free = Counted(pool._refs), Counted(pool._free)
        cached_blocks(pool, num_blocks - 1)
        pool._keys = CountedKeys(pool._keys)
        touched = 0
        pool.release(pool.allocate(3))
        return touched

    assert work(16) == work(4096) > 0


class Callers(RuleBasedStateMachine):
    """Tables that allocate, share, release and hold in any order, against a plain model."""

    NUM_BLOCKS = 6

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS)
        self.tables: list[list[int]] = []
        self.holds: list[list[int]] = []
        self.named = 0

    def refs(self) -> dict[int, int]:
        blocks = [block for table in self.tables for block in table]
        return {block: blocks.count(block) for block in blocks}

    @rule(n=st.integers(0, NUM_BLOCKS))
    def allocate_some(self, n):
        self.allocate(n)

    def allocate(self, n):
        available = self.pool.num_free
        if n > available:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(n)
            return
        before = self.refs()
        table = self.pool.allocate(n)
        assert len(set(table)) == n
        held = {block for blocks in self.holds for block in blocks}
        assert not set(table) & (set(before) | held)
        assert not any(self.pool.find(key(i)) in table for i in range(1, self.named + 1))
        self.tables.append(table)

    @rule()
    def allocate_all_there_is(self):
        self.allocate(self.pool.num_free)

    @rule(data=st.data())
    def name_a_block(self, data):
        used = sorted(self.refs())
        if used:
            self.named += 1
            self.pool.set_key(data.draw(st.sampled_from(used)), key(self.named))

    @rule(data=st.data())
    def finish_a_request_whose_blocks_stay_cached(self, data):
        if self.tables:
            table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
            for block in table:
                self.named += 1
                self.pool.set_key(block, key(self.named))
            self.pool.release(table[::-1])

    @rule(n=st.integers(1, 40))
    def hit(self, n):
        block = self.pool.find(key(n))
        if block is not None:
            self.pool.acquire([block])
            self.tables.append([block])

    @rule(data=st.data(), holds_first=st.booleans())
    def give_up_a_table(self, data, holds_first):
        if not self.tables:
            return
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        if holds_first:
            self.pool.hold(table)
            self.holds.append(table)
        self.pool.release(table[::-1])

    @rule(data=st.data())
    def a_step_is_applied(self, data):
        if self.holds:
            self.pool.unhold(self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1))))

    @rule(n=st.integers(0, 40))
    def forget_one_key_or_all(self, n):
        if n == 40:
            self.pool.clear_keys()
        elif (block := self.pool.find(key(n))) is not None:
            self.pool.clear_key(block)

    @invariant()
    def everything_adds_up(self):
        held = [block for blocks in self.holds for block in blocks]
        self.pool.check(self.refs(), {block: held.count(block) for block in held})
        active, cached, free, only_held = self.pool.usage()
        assert active == len(self.refs())
        assert only_held == len(set(held) - set(self.refs()))
        assert cached + free == self.pool.num_free

    def teardown(self) -> None:
        for table in self.tables:
            self.pool.release(table)
        for blocks in self.holds:
            self.pool.unhold(blocks)
        self.pool.check({}, {})
        assert self.pool.num_free == self.NUM_BLOCKS - 1


Callers.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=30)
TestCallers = pytest.mark.slow(Callers.TestCase)
