"""The Lease: one holder at a time, told by this machine's own clock."""

import asyncio

import pytest

from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.errors import LeaseLost
from paceline_operator.shell.leader import Always, Lock
from paceline_operator.testing.api import NAMESPACE, FakeApi, Fault
from paceline_operator.testing.store import Store


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(Store(), lambda: 1_800_000_000.0)


def lock(api: FakeApi, clock: Clock, identity: str) -> Lock:
    return Lock(
        Cluster(api),
        namespace=NAMESPACE,
        name="operator",
        identity=identity,
        duration_s=15,
        clock=clock,
    )


def test_the_second_waits_until_the_first_has_been_silent_for_the_whole_time(
    api: FakeApi, clock: Clock
) -> None:
    async def script() -> None:
        one, two = lock(api, clock, "one"), lock(api, clock, "two")
        assert await one.attempt()
        one.fence()
        assert not await two.attempt()
        clock.now += 14
        assert not await two.attempt()
        with pytest.raises(LeaseLost):
            one.fence()  # it stopped acting before anybody else may begin
        clock.now += 2
        assert await two.attempt()
        two.fence()
        assert not await one.attempt()

    asyncio.run(script())


def test_a_renewal_seen_by_the_other_starts_its_clock_anew(api: FakeApi, clock: Clock) -> None:
    async def script() -> None:
        one, two = lock(api, clock, "one"), lock(api, clock, "two")
        await one.attempt()
        await two.attempt()
        clock.now += 10
        assert await one.attempt()
        assert not await two.attempt()
        clock.now += 10
        assert not await two.attempt()

    asyncio.run(script())


def test_a_lease_given_back_can_be_taken_at_once(api: FakeApi, clock: Clock) -> None:
    async def script() -> None:
        one, two = lock(api, clock, "one"), lock(api, clock, "two")
        await one.attempt()
        await one.release()
        assert not one.is_leader()
        assert await two.attempt()

    asyncio.run(script())


def test_a_lease_that_another_has_taken_is_not_given_back(api: FakeApi, clock: Clock) -> None:
    async def script() -> None:
        one = lock(api, clock, "one")
        await one.attempt()
        (lease,) = api.store.of_kind("Lease")
        lease["spec"]["holderIdentity"] = "two"
        await one.release()
        assert not one.is_leader()
        (lease,) = api.store.of_kind("Lease")
        assert lease["spec"]["holderIdentity"] == "two"

    asyncio.run(script())


def test_a_server_that_does_not_answer_leaves_the_lease_as_long_as_it_lasts(
    api: FakeApi, clock: Clock
) -> None:
    async def script() -> None:
        one = lock(api, clock, "one")
        await one.attempt()
        api.faults = lambda _: Fault.LOSE
        clock.now += 5
        assert not await one.attempt()
        one.fence()
        clock.now += 8
        with pytest.raises(LeaseLost):
            one.fence()

    asyncio.run(script())


def test_without_a_lease_the_only_operator_always_acts() -> None:
    Always().fence()
    assert Always().is_leader()


def test_a_lease_that_somebody_made_without_a_spec_is_taken(api: FakeApi, clock: Clock) -> None:
    async def script() -> None:
        one = lock(api, clock, "one")
        assert await one.attempt()
        api.store.objects["Lease", "operator"].pop("spec")
        assert await lock(api, clock, "two").attempt()

    asyncio.run(script())
