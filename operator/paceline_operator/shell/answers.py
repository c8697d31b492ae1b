"""JSON answers of what the operator does not trust: engines, whose image a tenant chooses.

An answer costs no more memory and time than its reader grants: it is not unpacked, and not followed
to another address.
"""

import json
from typing import Any

import aiohttp

PLAIN = {"Accept-Encoding": "identity"}
"""Headers of every request: a packed answer may be a thousand times larger than it looks."""
_CHUNK = 64 * 1024
_MOVED, _REFUSED = 300, 400


def session(timeout: aiohttp.ClientTimeout, connector: aiohttp.TCPConnector | None = None) -> Any:
    """A client whose answers `json_of` may read; it keeps no cookies."""
    return aiohttp.ClientSession(
        timeout=timeout,
        connector=connector,
        headers=PLAIN,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def json_of(answer: aiohttp.ClientResponse, most_bytes: int) -> Any:
    """The JSON value of an answer.

    Raises:
        ValueError: it is longer than that, no JSON, no text, or a redirect.
    """
    if _MOVED <= answer.status < _REFUSED:
        raise ValueError(f"HTTP {answer.status}: redirects are not followed")
    body = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK):
        body += chunk
        if len(body) > most_bytes:
            raise ValueError(f"the answer has more than {most_bytes} bytes")
    try:
        # As a text: of bytes, json takes half characters and other encodings.
        read = json.loads(body.decode(), parse_constant=_refuse)
        if b"\\u" in body:
            # Half a character is no text: the API server would store another one than it was sent.
            json.dumps(read, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("the answer is nested too deeply") from error
    return read


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
