"""The book of policy Fair alone: who pays what, who is next, who may have how much."""

from typing import Any

import numpy as np

from paceline_crds.settings import EngineSettings
from paceline_engine.core.fair import CREDIT_STEPS, OUTPUT_COST, QUANTUM, FairBook
from paceline_engine.core.prefix_cache import HashChain
from paceline_engine.core.request import Request
from paceline_engine.core.slots import Slots
from paceline_engine.core.tracked import TrackedRequest
from paceline_engine.testing.trial import tiny_limits


class Desk:
    """A book and slots, and the shortest words for what happens to requests."""

    def __init__(self, budget: int = 100, **settings: Any) -> None:
        limits = tiny_limits(max_step_tokens=256)
        self.slots = Slots(limits)
        self.book = FairBook(
            EngineSettings(max_num_batched_tokens=budget, **settings),
            limits.max_slots,
            limits.max_step_tokens,
        )
        self.count = 0

    def arrive(self, tenant: str, num_tokens: int = 10) -> TrackedRequest:
        request = Request(
            request_id=self.count,
            external_id="",
            prompt_token_ids=(1,) * num_tokens,
            tenant=tenant,
        )
        tracked = TrackedRequest(request, self.count, num_tokens + 50, HashChain(self.count, b""))
        self.count += 1
        self.book.arrived(tracked, self.slots)
        self.book.waits(tracked)
        return tracked

    def seat(self, tracked: TrackedRequest, cached: int = 0) -> TrackedRequest:
        self.book.left_queue(tracked)
        self.slots.seat(tracked, cached, [], 0)
        self.book.seated(tracked, cached, len(tracked.token_ids))
        return tracked

    def run(self, tenant: str, num_tokens: int = 10, cached: int = 0) -> TrackedRequest:
        return self.seat(self.arrive(tenant, num_tokens), cached)

    def unseat(self, tracked: TrackedRequest) -> None:
        tracked.token_ids = self.slots.known_tokens(tracked.slot)
        self.book.leaves_slot(tracked, int(self.slots.total[tracked.slot]))
        self.slots.unseat([tracked])
        self.slots.compact()

    def counter(self, tenant: str) -> float:
        return self.book.accounts.of(tenant).counter


def declared(*entries: tuple[str, int]) -> dict[str, Any]:
    return {"tenants": [{"name": name, "weight": weight} for name, weight in entries]}


def test_a_prompt_token_costs_one_and_an_output_token_two() -> None:
    desk = Desk(**declared(("gold", 2)))
    tracked = desk.run("gold", 10)
    desk.book.computes(tracked, 0, 6)
    assert desk.counter("gold") == 3.0
    desk.book.computes(tracked, 6, 4)
    assert desk.counter("gold") == 5.0
    desk.slots.total[tracked.slot] += 4
    assert desk.counter("gold") == 5.0
    desk.book.settle(desk.slots)
    desk.book.settle(desk.slots)
    assert desk.counter("gold") == 5.0 + 4 * OUTPUT_COST / 2


def test_cached_tokens_are_free_and_nothing_is_paid_for_twice() -> None:
    desk = Desk()
    tracked = desk.run("a", 20, cached=16)
    desk.book.computes(tracked, 16, 4)
    assert desk.counter("a") == 4.0
    desk.slots.total[tracked.slot] += 3
    desk.unseat(tracked)
    assert desk.counter("a") == 4.0 + 3 * OUTPUT_COST
    desk.book.waits(tracked)
    desk.seat(tracked)
    desk.book.computes(tracked, 0, 23)
    desk.book.settle(desk.slots)
    assert desk.counter("a") == 4.0 + 3 * OUTPUT_COST
    desk.slots.total[tracked.slot] += 1
    desk.unseat(tracked)
    assert desk.counter("a") == 4.0 + 4 * OUTPUT_COST
    assert desk.book.accounts.of("a").num_running == 0


def test_an_idle_tenant_saves_nothing_up() -> None:
    desk = Desk()
    desk.book.accounts.of("busy").pay(500.0)
    desk.book.accounts.of("busier").pay(800.0)
    desk.arrive("busy")
    desk.arrive("busier")
    desk.arrive("back")
    assert desk.counter("back") == 500.0
    desk.book.accounts.of("owes").pay(900.0)
    desk.arrive("owes")
    assert desk.counter("owes") == 900.0
    desk.book.accounts.of("back").counter = 100.0
    desk.arrive("back")
    assert desk.counter("back") == 100.0, "it waits already: nothing to lift"


def test_who_comes_back_is_next_for_what_it_had_forgone_and_no_more_than_a_few_steps() -> None:
    desk = Desk(budget=10)
    desk.book.accounts.of("flood").pay(1000.0)
    desk.arrive("flood")
    back = desk.arrive("back", 200)
    flood = desk.arrive("flood", 200)
    most = CREDIT_STEPS * 10
    assert desk.book.accounts.of("back").credit == most
    desk.seat(back)
    desk.book.computes(back, 0, most - 1)
    assert desk.book.turn(back) < desk.book.turn(flood)
    desk.book.computes(back, most - 1, 2)
    assert desk.book.turn(back) > desk.book.turn(flood)


def test_only_with_credit_a_tenant_has_a_seat_of_another_at_once() -> None:
    desk = Desk()
    for _ in range(3):
        desk.run("flood")
    desk.book.step = 100
    desk.book.accounts.of("flood").pay(50.0)
    desk.arrive("flood")
    light = desk.book.accounts.of("light")
    for counter, is_due in ((0.0, True), (50.0, False)):
        light.counter = counter
        tracked = desk.arrive("light")
        assert desk.book.is_check_due is is_due
        assert (desk.book.neediest() is light) is is_due
        desk.book.left_queue(tracked)
        light.credit = 0.0
        desk.book.checked(has_found=False)


def test_when_nobody_waits_a_tenant_starts_where_the_last_one_left() -> None:
    desk = Desk()
    desk.book.accounts.of("busy").pay(700.0)
    desk.run("busy")
    desk.arrive("new")
    assert desk.counter("new") == 700.0


def test_what_running_requests_gained_counts_before_a_tenant_is_lifted() -> None:
    desk = Desk()
    runs = desk.run("busy")
    desk.arrive("busy")
    desk.slots.total[runs.slot] += 30
    desk.arrive("new")
    assert desk.counter("new") == 30 * OUTPUT_COST


def test_running_requests_are_equals_within_a_quantum() -> None:
    desk = Desk()
    early, late = desk.run("a"), desk.run("b")
    early.key, late.key = (0.0, 0, 1), (0.0, 0, 2)
    desk.book.accounts.of("a").pay(QUANTUM - 1)
    assert desk.book.rank(early) < desk.book.rank(late)
    desk.book.accounts.of("a").pay(1)
    assert desk.book.rank(late) < desk.book.rank(early)


def test_slots_by_need_are_those_of_who_got_least_else_as_they_stand() -> None:
    desk = Desk()
    slots = [desk.run(tenant).slot for tenant in ("a", "b", "a", "b")]
    desk.book.accounts.of("a").pay(1.0)
    rows = np.array(slots, dtype=np.int32)
    assert desk.book.by_need(rows).tolist() == [slots[1], slots[3], slots[0], slots[2]]


def test_a_tenant_may_run_as_many_as_its_caps_say() -> None:
    desk = Desk(
        budget=10,
        tenants=[
            {"name": "few", "maxSeqs": 2},
            {"name": "small", "budgetShare": "0.35"},
            {"name": "tiny", "budgetShare": "0.01"},
        ],
    )
    limits = dict.fromkeys(("few", "small", "tiny"), 0)
    for name in limits:
        account = desk.book.accounts.of(name)
        limits[name] = desk.book.seat_limit(account)
    assert limits == {"few": 2, "small": 3, "tiny": 1}
    assert desk.book.seat_limit(desk.book.accounts.of("free")) > 10_000
    assert desk.book.may_seat(desk.book.accounts.of("tiny"))
    desk.run("tiny")
    assert not desk.book.may_seat(desk.book.accounts.of("tiny"))


def test_a_budget_share_counts_decodes_and_prompts() -> None:
    desk = Desk(tenants=[{"name": "half", "budgetShare": "0.5"}])
    desk.run("half")
    prefilling = desk.run("half", 90)
    waiting = desk.arrive("half", 90)
    desk.book.begin_step([prefilling], prefill_tokens=99)
    assert desk.book.admission_room(waiting) == 49
    desk.book.computes(prefilling, 0, 40)
    assert desk.book.chunk_room(prefilling) == desk.book.admission_room(waiting) == 9


def test_running_prompts_leave_a_part_to_tenants_that_wait_and_got_less() -> None:
    desk = Desk(**declared(("gold", 3)))
    prefilling = desk.run("flood", 90)
    desk.arrive("gold", 200)
    desk.book.begin_step([prefilling], prefill_tokens=80)
    assert desk.book.chunk_room(prefilling) == 20
    desk.book.begin_step([prefilling], prefill_tokens=0)
    assert desk.book.chunk_room(prefilling) == 100
    desk.book.accounts.of("gold").pay(999.0)
    desk.book.begin_step([prefilling], prefill_tokens=80)
    assert desk.book.chunk_room(prefilling) == 80


def test_running_prompts_leave_no_more_than_is_wanted() -> None:
    desk = Desk()
    prefilling = desk.run("flood", 90)
    desk.arrive("light", 5)
    desk.book.begin_step([prefilling], prefill_tokens=80)
    assert desk.book.chunk_room(prefilling) == 75


def test_a_part_of_the_queue_is_a_tenants_own_by_weight() -> None:
    desk = Desk(**declared(("gold", 3)))
    assert desk.book.queue_part("gold").share == 1.0
    desk.arrive("flood", 7)
    assert desk.book.queue_part("gold").share == 0.75
    assert desk.book.queue_part("").share == 0.5
    part = desk.book.queue_part("flood")
    assert (part.num_waiting, part.num_waiting_tokens, part.share) == (1, 7, 1.0)
