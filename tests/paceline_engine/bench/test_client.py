"""The load client against small servers that speak server-sent events."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from paceline_engine.bench import client, report, serve
from paceline_engine.bench.client import Answer, Api, Load, Mode, Target
from paceline_engine.bench.workloads import Vocabulary, WorkItem, Workload
from paceline_engine.testing.loop_server import App, Receive, Scope, Send, serving_here

SSE = [(b"content-type", b"text/event-stream")]


class Model:
    """Answers with as many tokens as asked for, two events in one piece."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[bytes] = []
        self.num_now = self.num_most = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_now += 1
        self.num_most = max(self.num_most, self.num_now)
        body = json.loads(await _body(receive))
        self.bodies.append(body)
        self.keys.append(dict(scope["headers"]).get(b"authorization", b""))
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        is_chat = scope["path"].endswith("/chat/completions")
        if is_chat:
            await _send_event(send, {"choices": [{"delta": {"role": "assistant"}}]})
        for _ in range(body["max_tokens"]):
            choice = {"delta": {"content": "a"}} if is_chat else {"text": "a"}
            await _send_event(send, {"choices": [choice]})
            await asyncio.sleep(0)
        usage = {"prompt_tokens": 3, "completion_tokens": body["max_tokens"]}
        usage |= {"prompt_tokens_details": {"cached_tokens": 2}}
        last = [{"choices": [{"text": "", "finish_reason": "length"}]}]
        last += [{"choices": [], "usage": usage}]
        text = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in last)
        self.num_now -= 1
        await send({"type": "http.response.body", "body": text + b"data: [DONE]\n\n"})


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _send_event(send: Send, event: Any) -> None:
    body = b"data: " + json.dumps(event).encode() + b"\n\n"
    for part in (body[:7], body[7:]):  # events may be cut anywhere
        await send({"type": "http.response.body", "body": part, "more_body": True})


def items(*max_tokens: int) -> Workload:
    made = tuple(
        WorkItem(
            group="g", prompt_token_ids=(5, 6, 7), prompt=" a b c", max_tokens=n, arrival_s=0.01 * k
        )
        for k, n in enumerate(max_tokens)
    )
    return Workload(name="test", seed=0, items=made)


def drive(app: App, workload: Workload, load: Load, **options: Any) -> list[Answer]:
    async def test() -> list[Answer]:
        async with serving_here(app) as url:
            target = Target(base_url=url, model="m", **options)
            return await client.drive(workload, target, load)

    return asyncio.run(asyncio.wait_for(test(), 10))


def test_every_token_is_counted_and_timed_in_order() -> None:
    model = Model()
    answers = drive(model, items(3, 1, 5), Load())
    assert [len(answer.token_times_s) for answer in answers] == [3, 1, 5]
    assert [answer.num_output_tokens for answer in answers] == [3, 1, 5]
    assert [answer.text for answer in answers] == ["aaa", "a", "aaaaa"]
    for answer in answers:
        assert answer.token_times_s == sorted(answer.token_times_s)
        assert answer.sent_s <= answer.token_times_s[0] <= answer.end_s
        assert (answer.num_prompt_tokens, answer.num_cached_tokens) == (3, 2)


def test_lengths_are_asked_for_exactly_unless_told_otherwise() -> None:
    model = Model()
    drive(model, items(2), Load(), api_key="k", extra={"seed": 1})
    drive(model, items(2), Load(), exact_lengths=False)
    first, second = model.bodies
    assert (first["ignore_eos"], first["min_tokens"], first["seed"]) == (True, 2, 1)
    assert first["prompt"] == [5, 6, 7]
    assert first["stream_options"] == {"include_usage": True}
    assert "ignore_eos" not in second
    assert model.keys == [b"Bearer k", b""]


def test_chat_sends_a_message_and_does_not_count_the_role() -> None:
    model = Model()
    (answer,) = drive(model, items(4), Load(), api=Api.CHAT)
    assert model.bodies[0]["messages"] == [{"role": "user", "content": " a b c"}]
    assert len(answer.token_times_s) == 4


def test_a_closed_loop_keeps_so_many_in_flight_and_no_more() -> None:
    model = Model()
    answers = drive(model, items(*[20] * 7), Load(mode=Mode.CLOSED, concurrency=2))
    assert model.num_most == 2
    assert all(not answer.error for answer in answers)


def test_a_schedule_sends_no_request_before_its_time() -> None:
    answers = drive(Model(), items(1, 1, 1), Load(mode=Mode.SCHEDULE))
    assert [answer.due_s for answer in answers] == [0.0, 0.01, 0.02]
    assert all(answer.sent_s >= answer.due_s for answer in answers)
    faster = drive(Model(), items(1, 1, 1), Load(mode=Mode.POISSON, rate=10.0))
    assert [answer.due_s for answer in faster] == [0.0, 0.001, 0.002]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 no\r\ncontent-length: 4\r\n\r\nfull", "HTTP 503: full"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ndata: {}", "closed the connection"),
        (
            b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n',
            "lost",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n", ""),
        (b"no HTTP\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>welcome</html>", "event: <html>welcome"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {half\n\n", "OpenAI chunk, got {half"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: [1]\n\n", "OpenAI chunk, got [1]"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [7]}\n\n', "OpenAI chunk"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"usage": {"prompt_tokens": "x"}}\n\n', "OpenAI chunk"),
    ],
    ids=[
        *("refused", "cut", "error event", "no tokens", "no HTTP"),
        *("a page", "no JSON", "no object", "no choice", "no number"),
    ],
)
def test_what_goes_wrong_is_an_error_of_that_answer(answer: bytes, error: str) -> None:
    async def serve_raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def test() -> list[Answer]:
        server = await asyncio.start_server(serve_raw, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await client.drive(items(1), Target(base_url=url, model="m"), Load())

    (got,) = asyncio.run(asyncio.wait_for(test(), 10))
    assert error in got.error
    row = report.row_of(items(1), Load(), [got], client_cpu_s=0.0)
    assert row["errors"] == 1
    assert row["output_tokens_per_s"] is None


def test_a_request_without_an_end_is_given_up() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    (answer,) = drive(silent, items(1), Load(), timeout_s=0.05)
    assert answer.error == "no end within 0.05 s"


def run_plan(as_json: bool, alter: Callable[[Target], Target] = lambda t: t) -> tuple[int, str]:
    lines: list[str] = []

    async def test() -> int:
        async with serving_here(Model()) as url:
            plan = serve.BenchPlan(
                target=alter(Target(base_url=url, model="m")),
                load=Load(),
                names=["prefill16"],
                vocabulary=Vocabulary.random_ids(),
                limit=2,
            )
            return await asyncio.to_thread(serve.run, plan, lines.append, as_json=as_json)

    return asyncio.run(asyncio.wait_for(test(), 10)), "\n".join(lines)


def test_a_run_prints_a_row_of_json_for_each_workload() -> None:
    code, text = run_plan(as_json=True)
    row = json.loads(text)
    assert code == 0
    assert (row["workload"], row["requests"], row["errors"]) == ("prefill16", 2, 0)
    assert row["output_tokens"] == 2
    assert row["ttft_ms"]["n"] == 2


def test_a_run_prints_a_table_for_people() -> None:
    code, text = run_plan(as_json=False)
    assert code == 0
    assert text.splitlines()[0].startswith("workload")
    assert text.splitlines()[1].startswith("prefill16")


def test_a_server_that_refuses_the_warm_up_ends_the_run_with_advice() -> None:
    def elsewhere(target: Target) -> Target:
        return Target(base_url="http://127.0.0.1:1", model=target.model)

    with pytest.raises(serve.BenchFailed, match="check --base-url"):
        run_plan(as_json=True, alter=elsewhere)
