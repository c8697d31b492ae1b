"""The work queue: one worker per key, no lost wake-up, back-off."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from paceline_operator.shell.cache import Key
from paceline_operator.shell.errors import ApiUnreachable, LeaseLost
from paceline_operator.shell.queue import WorkQueue

A, B = ("n", "a"), ("n", "b")


class Clock:
    """Time that the test moves; a queue that waits is woken by an add."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def play(script: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(script(), 10))  # type: ignore[arg-type]


def test_a_key_that_is_added_while_it_is_worked_on_is_worked_on_again() -> None:
    async def script() -> None:
        begun, go = asyncio.Event(), asyncio.Event()
        seen: list[Key] = []
        done = asyncio.Event()

        async def work(key: Key) -> None:
            seen.append(key)
            begun.set()
            await go.wait()
            if len(seen) == 2:
                done.set()

        queue = WorkQueue(work, 4)
        running = asyncio.create_task(queue.run())
        queue.add(A)
        await begun.wait()
        queue.add(A)
        queue.add(A)
        await asyncio.sleep(0)
        assert seen == [A], "one worker per key"
        go.set()
        await done.wait()
        running.cancel()
        assert seen == [A, A]

    play(script)


def test_one_slow_key_does_not_hold_up_another() -> None:
    async def script() -> None:
        other = asyncio.Event()

        async def work(key: Key) -> None:
            if key == A:
                await asyncio.Event().wait()
            other.set()

        queue = WorkQueue(work, 2)
        running = asyncio.create_task(queue.run())
        queue.add(A)
        queue.add(B)
        await other.wait()
        assert len(queue) >= 1
        running.cancel()

    play(script)


def test_a_key_that_fails_waits_longer_each_time_and_events_do_not_shorten_it() -> None:
    async def script() -> None:
        clock, tries = Clock(), 0

        async def work(_: Key) -> None:
            nonlocal tries
            tries += 1
            raise RuntimeError("no")

        queue = WorkQueue(work, 1, clock)
        running = asyncio.create_task(queue.run())

        async def passes(seconds: float) -> int:
            clock.now += seconds
            queue.add(("n", str(clock.now)), 1e9)  # wakes the queue up: it looks at the clock
            for _ in range(20):
                await asyncio.sleep(0)
            return tries

        queue.add(A)
        assert await passes(0.0) == 1
        queue.add(A)
        assert await passes(0.2) == 1
        assert await passes(0.1) == 2
        assert await passes(0.3) == 2
        assert await passes(0.3) == 3
        running.cancel()

    play(script)


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(ApiUnreachable("GET /x: TimeoutError"), False), (ZeroDivisionError("a bug"), True)],
)
def test_a_failure_is_told_in_words_and_a_bug_with_its_traceback(
    error: Exception, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def script() -> None:
        failed = asyncio.Event()

        async def work(_: Key) -> None:
            failed.set()
            raise error

        queue = WorkQueue(work, 1)
        running = asyncio.create_task(queue.run())
        queue.add(A)
        await failed.wait()
        await asyncio.sleep(0)
        running.cancel()

    play(script)
    (record,) = caplog.records
    assert str(error) in record.getMessage()
    assert bool(record.exc_info) is has_traceback


def test_an_earlier_wish_wins_over_a_later_one() -> None:
    async def script() -> None:
        clock, seen = Clock(), []

        async def work(key: Key) -> None:
            seen.append((key, clock.now))

        queue = WorkQueue(work, 1, clock)
        running = asyncio.create_task(queue.run())
        queue.add(A, 100)
        queue.add(A, 5)
        queue.add(A, 50)
        clock.now = 6
        queue.add(B, 1e9)
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen == [(A, 6)]
        running.cancel()

    play(script)


def test_what_work_returns_is_when_it_is_looked_at_again() -> None:
    async def script() -> None:
        waits, seen = iter((0.0, 0.0, None)), asyncio.Semaphore(0)

        async def work(_: Key) -> float | None:
            seen.release()
            return next(waits)

        queue = WorkQueue(work, 1)
        running = asyncio.create_task(queue.run())
        queue.add(A)
        for _ in range(3):
            await seen.acquire()
        for _ in range(10):
            await asyncio.sleep(0)
        assert queue.num_done == 3
        running.cancel()

    play(script)


def test_a_lost_lease_ends_the_queue() -> None:
    async def script() -> None:
        async def work(_: Key) -> None:
            raise LeaseLost("lost")

        queue = WorkQueue(work, 1)
        queue.add(A)
        with pytest.raises(ExceptionGroup) as ended:
            await queue.run()
        assert ended.group_contains(LeaseLost)

    play(script)
