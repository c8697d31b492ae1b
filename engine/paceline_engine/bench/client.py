"""A streaming load client for any OpenAI-compatible server.

It shares the machine with the server, so while requests run it only stamps what arrives; bodies
are parsed when the run is over.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from paceline_crds import routes
from paceline_engine.bench.workloads import WorkItem, Workload
from paceline_engine.serve.http_stream import AnswerCut, ResponseStream


class Mode(StrEnum):
    """When requests are sent."""

    BATCH = "batch"
    """All at once."""
    POISSON = "poisson"
    """The workload's unit-rate arrivals, divided by the rate."""
    SCHEDULE = "schedule"
    """The workload's arrivals as they stand, in seconds."""
    CLOSED = "closed"
    """A fixed number in flight."""


class Api(StrEnum):
    """Which endpoint is driven."""

    COMPLETIONS = "completions"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server and how it is asked.

    Attributes:
        base_url: with or without `/v1`.
        prompts_as_text: send text instead of token ids (completions only).
        exact_lengths: send `ignore_eos` and `min_tokens`, which OpenAI itself does not know.
        extra: further fields of the body.
        timeout_s: of one request, from its sending to its end.
    """

    base_url: str
    model: str
    api: Api = Api.COMPLETIONS
    api_key: str = ""
    prompts_as_text: bool = False
    exact_lengths: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 900.0

    @property
    def url(self) -> str:
        """Where requests go."""
        base = self.base_url.rstrip("/")
        base = base if base.endswith(routes.OPENAI_BASE) else base + routes.OPENAI_BASE
        return base + ("/chat/completions" if self.api is Api.CHAT else "/completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests arrive: `rate` per second for Poisson, `concurrency` for the closed loop."""

    mode: Mode = Mode.BATCH
    rate: float = 1.0
    concurrency: int = 16


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one request gave. Mutable: filled while it runs. Times are seconds after the start.

    Attributes:
        due_s: when it should have been sent; sent_s: when it was; end_s: when its answer ended.
        token_times_s: arrival of each event that carried text.
        error: empty if all went well.
    """

    item: WorkItem
    due_s: float = 0.0
    sent_s: float = 0.0
    end_s: float = 0.0
    status: int = 0
    error: str = ""
    token_times_s: list[float] = field(default_factory=list)
    text: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0


class _StampedStream(ResponseStream):
    """Keeps (arrival, bytes) of every piece instead of waking a reader for it."""

    def __init__(self) -> None:
        super().__init__()
        self.stamped: list[tuple[float, bytes]] = []

    def received(self, body: bytes) -> None:
        self.stamped.append((time.perf_counter(), body))


def body_of(item: WorkItem, target: Target) -> bytes:
    """The JSON body that asks for one item of a workload."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": item.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.api is Api.CHAT:
        body["messages"] = [{"role": "user", "content": item.prompt}]
    elif target.prompts_as_text:
        body["prompt"] = item.prompt
    else:
        body["prompt"] = list(item.prompt_token_ids)
    if target.exact_lengths:
        body |= {"ignore_eos": True, "min_tokens": item.max_tokens}
    return json.dumps(body | dict(target.extra)).encode()


async def ask(item: WorkItem, target: Target, started_s: float, answer: Answer) -> None:
    """Send one request and fill in its answer; errors end up in `answer.error`."""
    headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
    if target.api_key:
        headers.append((b"authorization", b"Bearer " + target.api_key.encode("latin-1")))
    body = body_of(item, target)
    stream: _StampedStream | None = None
    answer.sent_s = time.perf_counter() - started_s
    try:
        async with asyncio.timeout(target.timeout_s):
            stream = await _StampedStream.open("POST", target.url, headers=headers, body=body)
            await stream.head()
            await stream.whole()
    except TimeoutError:
        answer.error = f"no end within {target.timeout_s:g} s"
    except (OSError, AnswerCut, ValueError) as error:
        answer.error = str(error) or repr(error)
    answer.end_s = time.perf_counter() - started_s
    if stream is not None:
        stream.abort()
        answer.status = stream.status
        _read(answer, stream.stamped, started_s)


def _read(answer: Answer, stamped: Sequence[tuple[float, bytes]], started_s: float) -> None:
    """Parse what was stamped: server-sent events, or an error body."""
    if answer.status != 200:
        text = b"".join(piece for _, piece in stamped).decode("utf-8", "replace")
        answer.error = answer.error or f"HTTP {answer.status}: {text[:300]}"
        return
    rest, num_events = b"", 0
    for arrived_s, piece in stamped:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            payload = line[5:].strip() if line.startswith(b"data:") else b""
            if payload and payload != b"[DONE]":
                num_events += 1
                _take_any(answer, payload, arrived_s - started_s)
    if not num_events and not answer.error:
        text = b"".join(piece for _, piece in stamped).decode("utf-8", "replace")
        answer.error = f"HTTP 200 without one server-sent event: {text[:300]}"


def _take_any(answer: Answer, payload: bytes, at_s: float) -> None:
    """What other servers send may be anything; it is an error of this request alone."""
    try:
        _take(answer, json.loads(payload), at_s)
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError):
        shown = payload[:200].decode("utf-8", "replace")
        answer.error = answer.error or f"an event must be an OpenAI chunk, got {shown}"


def _take(answer: Answer, event: dict[str, Any], at_s: float) -> None:
    if "error" in event:
        answer.error = str(event["error"])[:300]
    usage = event.get("usage")
    if usage:
        answer.num_prompt_tokens = int(usage.get("prompt_tokens") or 0)
        answer.num_output_tokens = int(usage.get("completion_tokens") or 0)
        details = usage.get("prompt_tokens_details") or {}
        answer.num_cached_tokens = int(details.get("cached_tokens") or 0)
    for choice in event.get("choices") or ():
        delta = choice.get("delta")
        text = (delta.get("content") if delta is not None else choice.get("text")) or ""
        is_bare = delta is not None and bool(delta.get("role") or choice.get("finish_reason"))
        if text or not (is_bare or choice.get("finish_reason")):
            answer.token_times_s.append(at_s)
            answer.text += str(text)


async def drive(workload: Workload, target: Target, load: Load) -> list[Answer]:
    """Send the whole workload and wait for every answer, in the workload's order."""
    answers = [Answer(item=item) for item in workload.items]
    places = asyncio.Semaphore(load.concurrency) if load.mode is Mode.CLOSED else None
    started_s = time.perf_counter()

    async def one(answer: Answer) -> None:
        if places is None:
            await ask(answer.item, target, started_s, answer)
            return
        async with places:
            answer.due_s = time.perf_counter() - started_s
            await ask(answer.item, target, started_s, answer)

    async with asyncio.TaskGroup() as tasks:
        for answer in sorted(answers, key=lambda answer: answer.item.arrival_s):
            if load.mode is Mode.POISSON:
                answer.due_s = answer.item.arrival_s / load.rate
            elif load.mode is Mode.SCHEDULE:
                answer.due_s = answer.item.arrival_s
            wait_s = answer.due_s - (time.perf_counter() - started_s)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(one(answer))
    return answers


async def warm_up(workload: Workload, target: Target, count: int = 2) -> str:
    """Ask for a few tokens before the run, with prompts that the run does not repeat.

    Returns:
        The error of the last try, empty if it went well.
    """
    first = workload.items[0]
    error = ""
    for k in range(count):
        ids = tuple(reversed(first.prompt_token_ids[: 40 + k]))
        item = WorkItem(group="", prompt_token_ids=ids, prompt="warm up " * (5 + k), max_tokens=8)
        answer = Answer(item=item)
        await ask(item, target, time.perf_counter(), answer)
        error = answer.error
    return error
