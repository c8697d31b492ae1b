"""Hits, pending blocks, failed steps; and a machine of requests that read back what they hit."""

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paceline_engine.core.block_pool import BlockPool
from paceline_engine.core.prefix_cache import HashChain, PrefixCache

BLOCK = 4


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def make(num_blocks: int = 32, **options) -> PrefixCache:
    return PrefixCache(BlockPool(num_blocks), BLOCK, b"model", **options)


def chain_of(cache: PrefixCache, request_id: int, ids: np.ndarray, **extras: str) -> HashChain:
    chain = cache.chain(request_id, **extras)
    cache.extend(chain, ids)
    return chain


def compute(cache: PrefixCache, request_id: int, ids: np.ndarray, step_id=None, **extras):
    """Allocate and name all full blocks of a request; returns (chain, table)."""
    chain = chain_of(cache, request_id, ids, **extras)
    table = cache.pool.allocate(len(chain.keys))
    cache.insert(chain, 0, table, step_id=step_id)
    return chain, table


IDS = np.arange(100, 100 + 3 * BLOCK, dtype=np.int32)


def test_a_hit_is_the_longest_run_of_whole_blocks():
    cache = make()
    _, table = compute(cache, 1, IDS)
    other = np.concatenate([IDS[: 2 * BLOCK], tokens(1, 2, 3, 4, 5)])
    assert cache.lookup(chain_of(cache, 2, other), len(other)) == table[:2]


def test_a_hit_leaves_the_last_token_to_be_computed():
    cache = make()
    chain, table = compute(cache, 1, IDS)
    assert cache.lookup(chain, len(IDS)) == table[:2]
    assert cache.lookup(chain, len(IDS) + 1) == table


def test_a_withheld_block_at_the_end_of_a_run_is_no_hit():
    cache = make(num_withheld=1)
    chain, table = compute(cache, 1, IDS)
    assert cache.lookup(chain, len(IDS) + 1) == table[:2]
    assert cache.lookup(chain, len(IDS)) == table[:1]
    assert cache.lookup(chain, len(IDS), start=1) == []
    assert cache.lookup(chain, BLOCK) == []


@pytest.mark.parametrize("num_tokens", [0, 1, BLOCK])
def test_a_prompt_of_one_block_or_less_hits_nothing(num_tokens):
    cache = make()
    chain, _ = compute(cache, 1, IDS)
    assert cache.lookup(chain, num_tokens) == []


def test_a_partial_block_has_no_key():
    cache = make()
    assert len(chain_of(cache, 1, IDS[: 2 * BLOCK + 3]).keys) == 2


def test_keys_do_not_depend_on_how_the_tokens_came():
    cache = make()
    slowly = cache.chain(1)
    for end in range(len(IDS) + 1):
        cache.extend(slowly, IDS[:end])
    assert slowly.keys == chain_of(cache, 2, IDS).keys


def test_a_key_names_the_whole_prefix():
    cache = make()
    a = chain_of(cache, 1, np.concatenate([IDS[:BLOCK], IDS[BLOCK : 2 * BLOCK]]))
    b = chain_of(cache, 2, np.concatenate([IDS[:BLOCK] + 1, IDS[BLOCK : 2 * BLOCK]]))
    assert not set(a.keys) & set(b.keys)


def test_an_adapter_and_a_salt_of_the_same_name_share_nothing():
    cache = make()
    compute(cache, 1, IDS, adapter="x")
    for extras in ({"salt": "x"}, {}, {"adapter": "x", "salt": "x"}, {"adapter": "y"}):
        assert cache.lookup(chain_of(cache, 2, IDS, **extras), 99) == []
    assert len(cache.lookup(chain_of(cache, 3, IDS, adapter="x"), 99)) == 3


def test_extras_cannot_be_shifted_into_each_other():
    cache = make()
    compute(cache, 1, IDS, adapter="ab", salt="c")
    assert cache.lookup(chain_of(cache, 2, IDS, adapter="a", salt="bc"), 99) == []


def test_another_model_has_other_keys():
    keys = [chain_of(PrefixCache(BlockPool(8), BLOCK, root), 1, IDS).keys for root in (b"a", b"b")]
    assert not set(keys[0]) & set(keys[1])


def test_a_key_has_all_256_bits():
    assert {len(key) for key in chain_of(make(), 1, IDS).keys} == {32}


def test_hit_blocks_survive_the_end_of_their_first_request():
    cache = make(num_blocks=6)
    chain, table = compute(cache, 1, IDS)
    cache.pool.release(table[::-1])
    hit = cache.lookup(chain, 99)
    cache.take(2, hit)
    assert set(cache.pool.allocate(2)).isdisjoint(hit)
    assert cache.pool.usage() == (5, 0, 0, 0)


def test_the_tail_of_a_prefix_is_evicted_first():
    cache = make(num_blocks=4)
    chain, table = compute(cache, 1, IDS)
    cache.pool.release(table[::-1])
    cache.pool.allocate(1)
    assert cache.lookup(chain, 99) == table[:2]


def test_two_equal_prompts_in_one_step_are_computed_once():
    cache = make()
    _, table = compute(cache, 1, IDS, step_id=5)
    hit = cache.lookup(chain_of(cache, 2, IDS), 99)
    assert hit == table
    cache.take(2, hit)
    assert cache.is_relied_on(5, 1)
    cache.confirm(5)
    assert not cache.is_relied_on(5, 1)
    assert cache.lookup(chain_of(cache, 3, IDS), 99) == table


def test_a_preempted_request_that_hits_its_own_pending_blocks_loses_them_with_the_step():
    cache = make()
    chain, table = compute(cache, 1, IDS, step_id=5)
    cache.pool.hold(table)
    cache.pool.release(table[::-1])
    cache.take(1, cache.lookup(chain, 99))
    assert cache.withdraw(5) == {1: 0}
    cache.pool.check(dict.fromkeys(table, 1), dict.fromkeys(table, 1))


def test_an_undone_request_leaves_nothing_to_hit():
    cache = make()
    chain, table = compute(cache, 1, IDS, step_id=5)
    cache.undo(5, 1)
    cache.pool.release(table[::-1])
    assert cache.lookup(chain, 99) == []
    assert cache.pool.usage() == (0, 0, 31, 0)


def test_an_undone_follower_frees_the_one_it_relied_on():
    cache = make()
    chain, _ = compute(cache, 1, IDS, step_id=5)
    cache.take(2, cache.lookup(chain, 99))
    cache.undo(5, 2)
    assert not cache.is_relied_on(5, 1)


def test_a_failed_step_withdraws_its_keys_and_names_its_followers():
    cache = make()
    done = IDS[:BLOCK]
    compute(cache, 9, done)
    chain = chain_of(cache, 1, IDS)
    first = cache.lookup(chain, 99)
    cache.take(1, first)
    table = first + cache.pool.allocate(2)
    cache.insert(chain, 1, table[1:], step_id=5)
    cache.take(2, cache.lookup(chain_of(cache, 2, IDS), 99))
    assert cache.withdraw(5) == {2: BLOCK}
    assert cache.lookup(chain, 99) == first
    cache.check()


def test_a_step_that_failed_after_its_request_was_aborted_leaves_free_blocks():
    cache = make()
    _, table = compute(cache, 1, IDS, step_id=5)
    cache.pool.hold(table)
    cache.pool.release(table[::-1])
    cache.withdraw(5)
    cache.pool.unhold(table[::-1])
    assert cache.pool.usage() == (0, 0, 31, 0)


def test_a_hit_of_a_later_step_relies_on_the_step_that_fills_the_block():
    cache = make()
    chain, _ = compute(cache, 1, IDS, step_id=5)
    cache.take(2, cache.lookup(chain, 99))
    assert cache.withdraw(6) == {}
    assert cache.withdraw(5) == {2: 0}


def test_an_unknown_step_is_confirmed_and_withdrawn_in_peace():
    cache = make()
    cache.confirm(77)
    assert cache.withdraw(77) == {}


def test_reset_forgets_what_is_cached_and_what_runs():
    cache = make()
    chain, table = compute(cache, 1, IDS)
    _, other = compute(cache, 2, IDS + 1)
    cache.pool.release(other[::-1])
    assert cache.reset() == 3
    assert cache.lookup(chain, 99) == []
    cache.pool.check(dict.fromkeys(table, 1))


def test_reset_while_a_step_runs_does_not_break_its_end():
    for end in (PrefixCache.confirm, PrefixCache.withdraw):
        cache = make()
        _, table = compute(cache, 1, IDS, step_id=5)
        cache.reset()
        end(cache, 5)
        cache.check()
        cache.pool.check(dict.fromkeys(table, 1))


def test_switched_off_nothing_hits_and_nothing_is_named():
    cache = make(enabled=False)
    chain, _ = compute(cache, 1, IDS)
    cache.enabled = True
    assert cache.lookup(chain, 99) == []


def test_switched_on_again_what_was_cached_still_hits():
    cache = make()
    chain, table = compute(cache, 1, IDS)
    cache.enabled = False
    assert cache.lookup(chain, 99) == []
    cache.enabled = True
    assert cache.lookup(chain, 99) == table


def prefix_of(ids: np.ndarray, index: int) -> tuple[int, ...]:
    return tuple(ids[: (index + 1) * BLOCK].tolist())


class Requests(RuleBasedStateMachine):
    """Requests that plan, run, fail, end. `content` is what the blocks really hold.

    A hit must always read the very tokens of its prefix, however blocks moved in between.
    """

    NUM_BLOCKS = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS)
        self.cache = PrefixCache(self.pool, BLOCK, b"model")
        self.content: dict[int, tuple[int, ...]] = {}  # block -> its whole prefix, once computed
        self.tables: dict[int, list[int]] = {}
        self.step_id = 0
        self.planned: dict[int, tuple[np.ndarray, list[int], int]] = {}  # rows of the step
        self.held: list[int] = []
        self.last_id = 0

    @rule(shape=st.lists(st.integers(0, 1), min_size=1, max_size=3), rest=st.integers(1, BLOCK))
    def plan_a_request(self, shape, rest):
        """Blocks are all zeros or all ones, so that prefixes often agree."""
        self.last_id += 1
        request = self.last_id
        ids = tokens(*(bit for bit in shape for _ in range(BLOCK)), *([7] * rest))
        chain = chain_of(self.cache, request, ids)
        hit = self.cache.lookup(chain, len(ids))
        assert len(hit) * BLOCK < len(ids)
        total = -(-len(ids) // BLOCK)
        revived = sum(1 for block in hit if not self.pool.is_in_use(block))
        if total - len(hit) > self.pool.num_free - revived:
            return
        self.cache.take(request, hit)
        table = hit + self.pool.allocate(total - len(hit))
        self.cache.insert(chain, len(hit), table[len(hit) : len(chain.keys)], step_id=self.step_id)
        self.tables[request] = table
        self.planned[request] = (ids, table, len(hit))

    @rule(data=st.data())
    def undo_a_planned_request(self, data):
        free = [r for r in self.planned if not self.cache.is_relied_on(self.step_id, r)]
        free = [r for r in free if r in self.tables]
        if free:
            request = data.draw(st.sampled_from(free))
            self.cache.undo(self.step_id, request)
            del self.planned[request]
            self.end(request)

    @rule()
    def run_the_step(self):
        """KV of all rows is written before any row reads: then every row reads its prefix."""
        for ids, table, first in self.planned.values():
            for index in range(first, len(table)):
                self.content[table[index]] = prefix_of(ids, index)
        for ids, table, _ in self.planned.values():
            for index, block in enumerate(table):
                assert self.content[block] == prefix_of(ids, index), "a hit reads another prompt"
        self.cache.confirm(self.step_id)
        self.next_step()

    @rule()
    def fail_the_step(self):
        followers = self.cache.withdraw(self.step_id)
        for request in [r for r in {*self.planned, *followers} if r in self.tables]:
            self.end(request)
        self.next_step()

    def next_step(self):
        self.planned.clear()
        self.pool.unhold(self.held)
        self.held = []
        self.step_id += 1

    @rule(data=st.data())
    def a_client_goes_away(self, data):
        """Also between plan and result: the step still uses the blocks, and fills them."""
        if not self.tables:
            return
        request = data.draw(st.sampled_from(sorted(self.tables)))
        if request in self.planned:
            self.pool.hold(self.tables[request][::-1])
            self.held.extend(self.tables[request][::-1])
        self.end(request)

    @rule()
    def reset(self):
        if not self.planned:
            self.cache.reset()

    def end(self, request):
        self.pool.release(self.tables.pop(request)[::-1])

    @invariant()
    def everything_adds_up(self):
        blocks = [block for table in self.tables.values() for block in table]
        self.pool.check(
            {block: blocks.count(block) for block in blocks},
            {block: self.held.count(block) for block in self.held},
        )
        self.cache.check()

    def teardown(self) -> None:
        self.cache.withdraw(self.step_id)
        for request in list(self.tables):
            self.end(request)
        self.next_step()
        self.pool.check({}, {})
        assert self.pool.num_free == self.NUM_BLOCKS - 1


Requests.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=25)
TestRequests = pytest.mark.slow(Requests.TestCase)
