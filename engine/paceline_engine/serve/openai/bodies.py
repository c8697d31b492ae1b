"""Request bodies, read without holding up the loop that sends everybody's tokens.

A reader in C keeps the interpreter to itself for the whole body, in another thread too: 4 MiB of
token ids took 0.1 to 0.4 s, as many small lists 5 s. So a large body is read in a thread, and there
in pieces: lists of token ids a slice at a time, fields that nobody reads not at all, and what is
left may hold so many values only.
"""

import asyncio
import re
import time
from typing import Annotated, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest

from paceline_engine.serve.openai import validation
from paceline_engine.serve.openai.errors import bad_request
from paceline_engine.serve.openai.middleware import read_json_body
from paceline_engine.serve.openai.openai_types import INT32, MAX_PROMPTS, MAX_TOKEN_IDS

B = TypeVar("B", bound=BaseModel)
Fields = dict[str, msgspec.Raw]

SMALL_BYTES = 64 * 1024
"""Read at once, in the loop: some milliseconds at most, and most bodies cost less than a thread."""
MAX_VALUES = 1 << 16
"""Entries of lists and objects in a large body beside token ids: several times the messages that a
chat may have. Reading so many holds up everybody for less than 0.1 s."""
PIECE_BYTES = 32 * 1024
"""Token ids that are read in one go."""
_TOKEN_FIELDS = ("prompt", "tokens", "allowed_token_ids")
_MARK = re.compile(rb'["\[{,]')
_BACKSLASH = ord("\\")
_FIELDS_OF = msgspec.json.Decoder(Fields)
_IDS_OF = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=INT32)]])


async def read_body(kind: type[B], http: HttpRequest) -> B:
    """The body of a JSON request, checked field by field.

    Raises:
        ApiError: 400, 413 or 415.
    """
    return await parsed(kind, await read_json_body(http))


async def parsed(kind: type[B], data: bytes) -> B:
    """The same for a body that has been received.

    Raises:
        ApiError: 400.
    """
    if len(data) <= SMALL_BYTES:
        return validation.parse(kind, data)
    return await asyncio.to_thread(parse_large, kind, data)


def parse_large(kind: type[B], data: bytes) -> B:
    """What `validation.parse` gives, computed so that other threads go on meanwhile.

    Raises:
        ApiError: 400.
    """
    try:
        fields = _FIELDS_OF.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return validation.parse(kind, data)  # it says what is wrong
    for name in fields.keys() - kind.model_fields.keys():
        fields[name] = msgspec.Raw(b"null")  # reported by its name, never read
    ids: dict[str, list[int] | list[list[int]]] = {}
    for name in _TOKEN_FIELDS:
        if name in kind.model_fields and (found := _token_ids(name, fields.get(name))):
            ids[name] = found
            fields[name] = msgspec.Raw(b"[[0]]" if isinstance(found[0], list) else b"[0]")
    _check_number(fields)
    body = validation.parse(kind, msgspec.json.encode(fields))
    for name, found in ids.items():
        setattr(body, name, found)
    return body


def _token_ids(name: str, raw: msgspec.Raw | None) -> list[int] | list[list[int]] | None:
    """A list of token ids, or a list of such lists; None for all else, wrong ids among it."""
    text = b"" if raw is None else bytes(raw).strip()
    if len(text) <= PIECE_BYTES or text[:1] != b"[" or b'"' in text or b"{" in text:
        return None
    try:
        if text[1:].lstrip()[:1] != b"[":
            return _flat_ids(name, text)
        num_lists = text.count(b"[") - 1
        if num_lists > MAX_PROMPTS:
            raise validation.too_long(name, MAX_PROMPTS, str(num_lists))
        # Between two lists stands a comma: what a slice of the outer list would begin with.
        inner = [part.lstrip(b", \t\r\n") for part in text[1:-1].split(b"]")[:-1]]
        lists = [_flat_ids(name, part + b"]") for part in inner]
    except msgspec.DecodeError:
        return None
    return lists if all(lists) else None


def _flat_ids(name: str, text: bytes) -> list[int]:
    """Token ids of `[1,2,3]`, a slice at a time.

    Raises:
        ApiError: too many of them.
        msgspec.DecodeError: something else stands in the list.
    """
    if text.count(b",") >= MAX_TOKEN_IDS:
        raise validation.too_long(name, MAX_TOKEN_IDS, str(text.count(b",") + 1))
    ids: list[int] = []
    start, end = 1, len(text) - 1
    while start < end:
        cut = text.find(b",", start + PIECE_BYTES, end)
        cut = end if cut < 0 else cut
        ids += _IDS_OF.decode(b"[%b]" % text[start:cut])
        start = cut + 1
        time.sleep(0)  # the loop may have waited for the interpreter
    return ids


def _check_number(fields: Fields) -> None:
    num_values = 0
    for raw in fields.values():
        num_values += _num_values(bytes(raw), MAX_VALUES)
        if num_values > MAX_VALUES:
            raise bad_request(
                f"the body holds more than {MAX_VALUES} values beside token ids; send several "
                "requests",
                code="too_many_values",
            )


def _num_values(text: bytes, at_most: int) -> int:
    """Entries in valid JSON, counted by what opens or parts them, up to just over `at_most`."""
    found = place = 0
    while found <= at_most and (mark := _MARK.search(text, place)):
        place = mark.end()
        if mark[0] == b'"':
            place = _end_of_text(text, place)
        else:
            found += 1
    return found


def _end_of_text(text: bytes, start: int) -> int:
    """Where the text that begins at `start` ends, behind its quotation mark."""
    while True:
        end = before = text.index(b'"', start)
        while text[before - 1] == _BACKSLASH:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        start = end + 1
