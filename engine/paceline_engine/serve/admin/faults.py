"""What was wrong with a call of the admin port, in words: what was expected, what came."""

from collections.abc import Mapping
from typing import Any

from paceline_crds import phrases, routes

_EXAMPLES = {routes.ADMIN_SETTINGS: '{"maxNumSeqs": 8}', routes.ADMIN_DRAIN: '{"propagation_s": 5}'}


def sentence(error: Mapping[str, Any], path: str) -> str:
    """One sentence for the first finding of FastAPI.

    Args:
        error: an entry of `RequestValidationError.errors()`.
        path: of the call.
    """
    name = place(error)
    if name != "body":
        return f"{name}: {error['msg']}, got {phrases.got(error.get('input'))}; change {name}"
    return _object_expected(path, _body(error))


def unread(cause: BaseException, path: str) -> str:
    """One sentence for a body that FastAPI could not read.

    Args:
        cause: what reading raised.
        path: of the call.
    """
    if isinstance(cause, UnicodeDecodeError):
        byte = cause.object[cause.start]
        got = f"no UTF-8 text (byte 0x{byte:02x} at position {cause.start}); send it as UTF-8"
    elif isinstance(cause, RecursionError):
        got = "one that is nested too deeply; send an object of plain values"
    else:
        got = f"what cannot be read ({type(cause).__name__}: {cause}); correct it"
    return _object_expected(path, got)


def place(error: Mapping[str, Any]) -> str:
    """`body`, or the name of a parameter of the query."""
    loc = error["loc"]
    return "body" if loc[0] == "body" else str(loc[-1])


def _object_expected(path: str, got: str) -> str:
    example = _EXAMPLES.get(path, "{}")
    return f"the body must be a JSON object such as {example}, got {got}"


def _body(error: Mapping[str, Any]) -> str:
    given = error.get("input")
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", "malformed")
        return f"no JSON ({reason} at character {error['loc'][-1]}); correct it"
    if error["type"] == "missing" or given is None:
        return "none; send one"
    if isinstance(given, bytes):
        return "another type of content; send the header `Content-Type: application/json`"
    return f"{phrases.got(given)}; send an object"
