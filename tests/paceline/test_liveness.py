"""Which replica hangs, told by real servers that answer like one."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

from paceline.liveness import MAX_UNANSWERED, why_hung
from paceline.replicas import Replica, Replicas
from paceline_engine.testing.loop_server import Receive, Scope, Send, serving_here
from paceline_engine.testing.ports import free_port


class Backend:
    """Answers both probes as it is told to; with `is_silent` not at all."""

    def __init__(self, live: bytes = b"{}", *, status: int = 503) -> None:
        self.live = live
        self.status = status
        self.is_silent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_silent:
            await receive()
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        headers = [(b"content-length", str(len(self.live)).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.live})


def told_of(backend: Backend) -> str:
    """What is told of one backend after a probe."""

    async def test() -> str:
        async with AsyncExitStack() as stack:
            parts = urlsplit(await stack.enter_async_context(serving_here(backend)))
            replica = Replica(index=0, host="127.0.0.1", port=parts.port or 0)
            await Replicas([replica]).probe()
            return await why_hung(replica)

    return asyncio.run(asyncio.wait_for(test(), 10))


def test_a_replica_whose_steps_hang_is_told_with_its_own_words() -> None:
    hung = b'{"reason": "Hung", "message": "no step finished for 31.0 s"}'
    assert told_of(Backend(hung)) == "hangs: no step finished for 31.0 s"


def test_a_replica_that_loads_fails_or_drains_is_left_to_itself() -> None:
    for live in (b'{"reason": "OutOfMemory"}', b"[]", b"no JSON"):
        assert told_of(Backend(live)) == ""
    assert told_of(Backend(b'{"reason": "Stepping"}', status=200)) == ""


def test_only_probes_that_were_taken_and_not_answered_count_and_one_answer_ends_the_row() -> None:
    async def test() -> None:
        backend = Backend(status=200)
        async with serving_here(backend) as url:
            replica = Replica(index=0, host="127.0.0.1", port=urlsplit(url).port or 0)
            replicas = Replicas([replica], probe_timeout_s=0.01)
            backend.is_silent = True
            for turn in range(MAX_UNANSWERED):
                assert await why_hung(replica) == ""
                await replicas.probe()
                assert (replica.num_unanswered, replica.is_ready) == (turn + 1, False)
            assert "has not answered 12 probes" in await why_hung(replica)
            backend.is_silent = False
            await Replicas([replica]).probe()
            assert (replica.num_unanswered, replica.is_ready) == (0, True)
            assert await why_hung(replica) == ""

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_replica_that_does_not_listen_yet_does_not_hang() -> None:
    async def test() -> Any:
        replica = Replica(index=0, host="127.0.0.1", port=free_port())
        replicas = Replicas([replica])
        for _ in range(MAX_UNANSWERED + 1):
            await replicas.probe()
        return replica.num_unanswered, await why_hung(replica)

    assert asyncio.run(asyncio.wait_for(test(), 10)) == (0, "")
