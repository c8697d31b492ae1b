"""The number of drafts follows what they yield, and comes to none where they do not pay."""

from collections.abc import Callable

import numpy as np
import pytest

from paceline_engine.core.draft_length import DraftLength

MOST = 6
Cost = Callable[[int], float]


class World:
    """Steps of `rows` requests whose drafts hold with a fixed chance. Deterministic."""

    def __init__(
        self, rows: int, chance: float, cost_ms: Cost, offered: float = 1.0, ask_ms: float = 0.0
    ) -> None:
        self.rows, self.chance, self.cost_ms, self.offered = rows, chance, cost_ms, offered
        self.ask_ms = ask_ms  # of proposing one draft token
        self.length = DraftLength()
        self.random = np.random.default_rng(3)
        self.asked = 0
        self.ms = 0.0
        self.tokens = 0
        self.history: list[int] = []

    def step(self) -> None:
        """One step with the drafts that the step before asked for."""
        count, asked = self.rows, self.asked
        drafts = np.where(self.random.random(count) < self.offered, asked, 0).astype(np.int32)
        if asked:
            self.length.observe_offer(drafts, asked)
        over = int(drafts.sum()) - self.length.max_total
        for row in range(count):
            cut = min(max(over, 0), int(drafts[row]))
            drafts[row] -= cut
            over -= cut
        holds = self.random.random((count, MOST)) < self.chance
        accepted = np.minimum(holds.cumprod(axis=1).sum(axis=1), drafts).astype(np.int32)
        total = int(drafts.sum())
        if total:
            self.length.observe_accepted(drafts, accepted)
        spent = self.cost_ms(count + total) * self.random.normal(1.0, 0.03)
        self.asked = self.length.choose(count, MOST)
        proposing = self.ask_ms * count * self.asked
        self.length.observe_step(
            count,
            total,
            int(accepted.sum()),
            spent,
            propose_ms=proposing,
            num_asked=count * self.asked,
        )
        self.ms += spent + proposing
        self.tokens += count + int(accepted.sum())
        self.history.append(self.asked)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def gain(self) -> float:
        """Tokens per millisecond, over those without drafts."""
        return self.tokens / self.ms / (self.rows / self.cost_ms(self.rows))


def memory_bound(tokens: int) -> float:
    """Weights are read once, whatever the tokens, up to a point."""
    return max(10.0, 0.5 * tokens) + 0.1 * tokens


def compute_bound(tokens: int) -> float:
    return 1.0 + 1.0 * tokens


def usual(world: World, last: int = 100) -> int:
    return int(np.median(world.history[-last:]))


def test_drafts_that_hold_and_cost_little_are_all_asked_for() -> None:
    world = World(1, 0.9, memory_bound)
    world.run(400)
    assert usual(world) == MOST
    assert world.gain() > 2.5


@pytest.mark.parametrize(("rows", "chance"), [(1, 0.05), (1, 0.3), (32, 0.3), (8, 0.5)])
def test_drafts_that_do_not_pay_come_to_none_and_the_probes_cost_little(
    rows: int, chance: float
) -> None:
    world = World(rows, chance, compute_bound)
    world.run(3000)
    assert usual(world) == 0
    assert world.gain() > 0.98
    assert world.history[-1000:].count(0) > 970


def test_a_middling_chance_asks_for_some_drafts() -> None:
    world = World(4, 0.6, lambda tokens: 10.0 + 0.55 * tokens)
    world.run(1500)
    assert 1 <= usual(world, 500) <= 3
    assert world.gain() > 1.1


def test_a_proposer_that_takes_long_is_asked_for_less() -> None:
    quick = World(1, 0.7, memory_bound)
    slow = World(1, 0.7, memory_bound, ask_ms=3.0)
    dear = World(1, 0.7, memory_bound, ask_ms=9.0)
    for world in (quick, slow, dear):
        world.run(3000)
    assert usual(quick) == MOST
    assert 1 <= usual(slow, 500) <= 3
    assert slow.gain() > 1.1
    assert usual(dear) == 0
    assert dear.gain() > 0.97


def test_probes_of_a_proposer_that_takes_long_are_rare() -> None:
    world = World(32, 0.3, compute_bound, ask_ms=1.0)
    world.run(4000)
    assert usual(world) == 0
    assert world.gain() > 0.98


def test_drafts_that_are_seldom_there_are_judged_by_what_they_yield_when_they_are() -> None:
    world = World(1, 0.9, memory_bound, offered=0.2)
    world.run(800)
    assert usual(world, 300) == MOST
    assert world.gain() > 1.2


def test_it_notices_that_drafts_begin_to_pay() -> None:
    world = World(1, 0.05, memory_bound)
    world.cost_ms = lambda tokens: 8.0 + 2.0 * tokens
    world.run(1500)
    assert usual(world) == 0
    world.chance = 1.0
    world.run(1500)
    assert usual(world) == MOST


def test_it_notices_that_drafts_pay_no_more() -> None:
    world = World(1, 0.9, compute_bound)
    world.cost_ms = lambda tokens: 5.0 + 1.0 * tokens
    world.run(400)
    assert usual(world) >= 3
    world.chance = 0.02
    world.run(200)
    assert usual(world, 50) == 0


def test_a_disturbed_step_moves_nothing() -> None:
    world = World(1, 0.9, memory_bound)
    world.run(300)
    world.length.observe_step(1, 0, 0, 100_000.0)
    world.run(5)
    assert world.history[-1] == MOST


def test_each_size_of_batch_has_its_own_number() -> None:
    length = DraftLength()
    alone, crowd = World(1, 0.8, memory_bound), World(64, 0.4, memory_bound)
    alone.length = crowd.length = length
    for _ in range(60):
        alone.run(20)
        crowd.run(20)
    assert usual(alone, 200) >= 4
    assert usual(crowd, 200) == 0


def test_nothing_is_asked_for_where_nothing_may_be_or_nobody_measures() -> None:
    length = DraftLength()
    assert length.choose(4, 0) == length.choose(0, 4) == 0
    for _ in range(50):
        length.observe_step(1, 0, 0, 0.0)
        assert length.choose(1, 4) == 0
    assert length.goodput == 0.0


def test_goodput_is_accepted_tokens_per_extra_millisecond() -> None:
    length = DraftLength()
    for _ in range(200):
        length.observe_step(1, 0, 0, 10.0)
        length.observe_step(1, 4, 3, 12.0)
    assert length.goodput == pytest.approx(1.5)
    for _ in range(300):
        length.observe_step(1, 0, 0, 10.0)
        length.observe_step(1, 4, 3, 12.0, propose_ms=1.0, num_asked=4)
    assert length.goodput == pytest.approx(1.0, rel=0.01)
