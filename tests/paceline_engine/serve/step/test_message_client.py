"""The client's half alone: the engine is played by the test, message by message."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable

import pytest

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished, FinishReason, Refusal, Request
from paceline_engine.serve.step.engine_client import EngineGone, Heartbeat, RequestRefused, Startup
from paceline_engine.serve.step.message_client import MessageClient
from paceline_engine.serve.step.messages import Abort, Failed, Submit, ToEngine, Turn
from paceline_engine.serve.step.request_stream import RequestStream

Go = Callable[[MessageClient, list[ToEngine]], Awaitable[None]]


def play(go: Go) -> None:
    async def run() -> None:
        sent: list[ToEngine] = []
        client = MessageClient(sent.append, clock=lambda: 50.0)
        client.startup = Startup(phase="Ready", progress=1.0)
        await go(client, sent)

    asyncio.run(run())


def turn(
    tokens: dict[int, list[int]] | None = None,
    accepted: tuple[int, ...] = (),
    refused: tuple[tuple[int, Refusal], ...] = (),
    ended: tuple[int, ...] = (),
    logprobs: dict[int, list[TokenLogprobs]] | None = None,
) -> Turn:
    tokens = tokens or {}
    width = max([1, *map(len, tokens.values())])
    flat = [t for row in tokens.values() for t in row + [-1] * (width - len(row))]
    return Turn(
        accepted=list(accepted),
        refused=list(refused),
        request_ids=array("q", tokens).tobytes(),
        tokens=array("i", flat).tobytes(),
        width=width,
        logprobs=logprobs or {},
        prompt_logprobs={},
        finished=[
            Finished(
                request_id=i, reason=FinishReason.LENGTH, num_prompt_tokens=1, num_output_tokens=1
            )
            for i in ended
        ],
        num_cached_tokens=dict.fromkeys(accepted, 16),
        stats=b"",
    )


async def submitted(client: MessageClient, request_id: int) -> RequestStream:
    request = Request(request_id=request_id, external_id="x", prompt_token_ids=(1,))
    task = asyncio.create_task(client.submit(request))
    await asyncio.sleep(0)
    client.receive(turn(accepted=(request_id,)))
    return await task


def test_what_could_not_be_sent_is_not_waited_for() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        def refuse(message: ToEngine) -> None:
            raise OverflowError

        client = MessageClient(refuse, clock=lambda: 50.0)
        client.startup = Startup(phase="Ready", progress=1.0)
        with pytest.raises(OverflowError):
            await client.patch_settings({"maxNumSeqs": 10**30}, None)
        with pytest.raises(OverflowError):
            await client.submit(Request(request_id=1, external_id="x", prompt_token_ids=(1,)))
        idle = Heartbeat(last_progress_s=0.0, has_work=False, predicted_step_s=0.0)
        assert client.watched(idle) is idle
        assert client.num_open_streams == 0

    play(go)


def test_a_slow_reader_gets_what_came_meanwhile_as_one_delta() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        stream = await submitted(client, 1)
        for token in range(5):
            client.receive(turn({1: [token], 9: [77]}))
        delta = await anext(stream)
        assert (delta.token_ids, delta.num_cached_tokens, delta.finished) == (
            [0, 1, 2, 3, 4],
            16,
            None,
        )
        client.receive(turn({1: [5]}, ended=(1,)))
        delta = await anext(stream)
        assert delta.token_ids == [5]
        assert delta.finished is not None
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert client.num_open_streams == 0

    play(go)


def test_a_step_of_several_tokens_keeps_only_those_that_count() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        first, second = await submitted(client, 1), await submitted(client, 2)
        client.receive(turn({1: [4, 5, 6], 2: [7]}))
        assert (await anext(first)).token_ids == [4, 5, 6]
        assert (await anext(second)).token_ids == [7]

    play(go)


def test_a_reader_that_waits_is_woken_once_for_a_step() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        stream = await submitted(client, 1)
        assert (await anext(stream)).token_ids == []  # the admission itself
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        entry = TokenLogprobs(token_id=4, logprob=-0.1, rank=1)
        client.receive(turn({1: [4]}, ended=(1,), logprobs={1: [entry]}))
        delta = await reader
        assert (delta.token_ids, delta.logprobs) == ([4], [entry])
        assert delta.finished is not None

    play(go)


def test_a_refusal_is_raised_and_leaves_nothing() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        task = asyncio.create_task(
            client.submit(Request(request_id=1, external_id="x", prompt_token_ids=(1,)))
        )
        await asyncio.sleep(0)
        client.receive(turn(refused=((1, Refusal(status=429, message="share", retry_after_s=3)),)))
        with pytest.raises(RequestRefused) as refused:
            await task
        assert refused.value.refusal.status == 429
        assert client.num_open_streams == 0

    play(go)


def test_a_submit_that_is_cancelled_is_aborted_in_the_engine() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        task = asyncio.create_task(
            client.submit(Request(request_id=1, external_id="x", prompt_token_ids=(1,)))
        )
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [type(message) for message in sent] == [Submit, Abort]
        client.receive(turn(accepted=(1,), ended=(1,)))
        assert client.num_open_streams == 0
        client.abort(1)
        assert len(sent) == 2, "an unknown request needs no message"

    play(go)


def test_a_lost_engine_answers_everybody_and_keeps_its_first_reason() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        stream = await submitted(client, 1)
        client.receive(turn({1: [3]}))
        waiting = asyncio.create_task(
            client.submit(Request(request_id=2, external_id="x", prompt_token_ids=(1,)))
        )
        asking = asyncio.create_task(client.requests())
        await asyncio.sleep(0)
        client.receive(Failed("DeviceBroken", "steps failed"))
        client.lose("EngineDied", "exit code 4")
        assert client.startup.reason == "DeviceBroken"
        assert (await anext(stream)).token_ids == [3], "what came before is still delivered"
        for lost in (anext(stream), waiting, asking, client.settings()):
            with pytest.raises(EngineGone, match="steps failed"):
                await lost

    play(go)


def test_ended_streams_get_the_message_and_the_engine_an_abort() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        stream = await submitted(client, 1)
        client.end_streams("shutting down")
        delta = await anext(stream)
        assert delta.finished is not None
        assert (delta.finished.reason, delta.finished.message) == (
            FinishReason.ABORT,
            "shutting down",
        )
        assert isinstance(sent[-1], Abort)

    play(go)


def test_an_idle_heartbeat_counts_what_was_sent_and_never_answered() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        idle = Heartbeat(last_progress_s=10.0, has_work=False, predicted_step_s=0.0)
        assert client.watched(idle) == idle
        task = asyncio.create_task(
            client.submit(Request(request_id=1, external_id="x", prompt_token_ids=(1,)))
        )
        await asyncio.sleep(0)
        watched = client.watched(idle)
        assert (watched.has_work, watched.last_progress_s) == (True, 50.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(go)


def test_nothing_is_taken_before_the_engine_is_ready() -> None:
    async def go(client: MessageClient, sent: list[ToEngine]) -> None:
        client.startup = Startup(phase="Loading")
        with pytest.raises(EngineGone, match="Loading"):
            await client.submit(Request(request_id=1, external_id="x", prompt_token_ids=(1,)))
        assert sent == []

    play(go)
