"""Large bodies are read as small ones are, and do not hold up the event loop meanwhile."""

import asyncio
import json
import threading
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from paceline_engine.serve.openai import bodies, validation
from paceline_engine.serve.openai.errors import ApiError
from paceline_engine.serve.openai.openai_types import ChatBody, CompletionBody, DetokenizeBody

IDS = [7, 2**31 - 1, 0] * 9_000
LONG = 'so " much \\ text, [and] {more} \u00e9 ' * 3_000
ENTRY = {"role": "user", "content": "a"}


def outcome(read: Any, kind: type, text: str) -> Any:
    """What a reader makes of a body: its values and the fields that are set, or its refusal."""
    try:
        body = read(kind, text.encode())
    except ApiError as error:
        return error.status, str(error), error.param
    return body.model_dump(exclude=set(body.model_extra or {})), body.model_fields_set


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionBody, {"prompt": IDS, "max_tokens": 3, "allowed_token_ids": IDS}),
        (CompletionBody, {"prompt": [IDS, [1], IDS]}),
        (CompletionBody, {"prompt": [IDS, []]}),
        (CompletionBody, {"prompt": [IDS, [[1]]]}),
        (CompletionBody, {"prompt": [*IDS, -1]}),
        (CompletionBody, {"prompt": [*IDS, 1.5]}),
        (CompletionBody, {"prompt": [*IDS, None]}),
        (CompletionBody, {"prompt": [*IDS, [1]]}),
        (CompletionBody, {"prompt": [*IDS, "1"]}),
        (CompletionBody, {"prompt": LONG, "max_tokens": "3"}),
        (CompletionBody, {"prompt": LONG, "stop": ["a", LONG]}),
        (CompletionBody, {"prompt": [LONG, LONG], "new": [LONG]}),
        (CompletionBody, {"prompt": [[1]] * 30_000}),
        (CompletionBody, {"new": IDS}),
        (ChatBody, {"messages": [ENTRY] * 4_000}),
        (ChatBody, {"messages": [ENTRY, {"role": "user", "content": [LONG]}]}),
        (DetokenizeBody, {"tokens": IDS}),
        (DetokenizeBody, {"tokens": [*IDS, True]}),
        (DetokenizeBody, [IDS]),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (" ,\n ", " : ")])
def test_a_large_body_means_what_a_small_one_would(
    kind: type, body: Any, separators: tuple[str, str]
) -> None:
    text = json.dumps(body, separators=separators)
    assert outcome(bodies.parse_large, kind, text) == outcome(validation.parse, kind, text)


@pytest.mark.parametrize("text", ["", "{", '{"prompt": [1, 2', '{"prompt": [1,, 2]}', "[1]", "nul"])
def test_what_is_no_json_object_is_refused_in_the_same_words(text: str) -> None:
    read = outcome(bodies.parse_large, CompletionBody, text + " " * 10)
    assert read == outcome(validation.parse, CompletionBody, text + " " * 10)
    assert read[0] == 400


@pytest.mark.parametrize("piece", ['{"a":', "[", '{"prompt":[', '{"a":[{"b":'])
def test_a_body_of_any_depth_is_refused_as_no_json(piece: str) -> None:
    assert outcome(bodies.parse_large, CompletionBody, piece * 50_000)[0] == 400


def test_too_many_token_ids_are_refused_before_they_are_read() -> None:
    text = json.dumps({"prompt": [1] * (2**20 + 1)})
    assert outcome(bodies.parse_large, CompletionBody, text) == (
        400,
        "prompt: at most 1048576 entries are accepted, got 1048577",
        "prompt",
    )


def test_a_body_of_very_many_values_is_refused_and_what_nobody_reads_does_not_count() -> None:
    many = [[]] * (bodies.MAX_VALUES // 2 + 1)
    refused = outcome(
        bodies.parse_large, ChatBody, json.dumps({"messages": [{**ENTRY, "x": many}]})
    )
    assert refused[0] == 400
    assert f"more than {bodies.MAX_VALUES} values" in refused[1]
    body = bodies.parse_large(
        ChatBody, json.dumps({"messages": [ENTRY], "unheard_of": many}).encode()
    )
    assert validation.check_fields(body, strict=False) == {
        "x-paceline-warning": "ignored unknown fields: unheard_of"
    }


def test_a_large_body_is_read_in_a_thread_that_lets_go_between_its_pieces() -> None:
    data = json.dumps({"prompt": [12345] * 250_000}).encode()
    calls: list[str] = []  # into C, of threads that start from now on: the loop's is not among them

    def watch(_: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in ("decode", "sleep"):
            calls.append(function.__name__)

    threading.setprofile(watch)
    try:
        body = asyncio.run(bodies.parsed(CompletionBody, data))
    finally:
        threading.setprofile(None)
    assert body.prompt == [12345] * 250_000
    lets_go = [after for call, after in pairwise(calls) if call == "decode" and after == "sleep"]
    assert len(lets_go) == len(data) // bodies.PIECE_BYTES + 1
