"""Requests and their outputs, in the few words that tests of clients need."""

import time

from paceline_engine.core.request import Finished, Request, SamplingParams
from paceline_engine.serve.step.engine_client import OutputStream


def make_request(
    request_id: int,
    prompt: tuple[int, ...] = (1, 2, 3),
    *,
    max_tokens: int = 8,
    timeout_s: float | None = None,
) -> Request:
    """A greedy request that arrives now."""
    now = time.monotonic()
    return Request(
        request_id=request_id,
        external_id=f"cmpl-{request_id}",
        prompt_token_ids=prompt,
        params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        arrival_s=now,
        deadline_s=None if timeout_s is None else now + timeout_s,
    )


async def collect(stream: OutputStream) -> tuple[list[int], Finished]:
    """All tokens of a request, and how it ended."""
    tokens: list[int] = []
    async for delta in stream:
        tokens += delta.token_ids
        if delta.finished is not None:
            return tokens, delta.finished
    raise AssertionError("a stream ended without saying how")
