"""Rules for request bodies; every broken one is a 400 that names the field."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paceline_engine.serve.openai.errors import ApiError, bad_request
from paceline_engine.serve.openai.openai_types import (
    INT32,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    ChatBody,
    CompletionBody,
    Message,
    TokenizeBody,
)

B = TypeVar("B", bound=BaseModel)

# Fields of the OpenAI API that ask for nothing that would change the output.
_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
    }
)

# Fields that take several types: one sentence says more than one error for each type.
_UNIONS = {
    "stop": f"a non-empty string of at most {MAX_STOP_CHARACTERS} characters, or a list of at most "
    f"{MAX_STOPS} of them",
    "prompt": "a non-empty string, a non-empty list of token ids, or a non-empty list of either",
    "content": 'a string or a list of content parts such as {"type": "text", "text": "..."}',
    "tool_choice": 'a string such as "none", or an object',
}


def parse(kind: type[B], data: bytes) -> B:
    """Read a body.

    Raises:
        ApiError: 400; the message says field, expectation and what was found.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _from_pydantic(error) from None


def check_fields(body: BaseModel, *, strict: bool) -> dict[str, str]:
    """Report fields that nobody reads.

    Returns:
        Headers that warn of them.

    Raises:
        ApiError: 400 under `strict`.
    """
    unknown = sorted(set(body.model_extra or {}) - _WITHOUT_EFFECT)
    options = getattr(body, "stream_options", None)
    if options is not None:
        unknown += sorted(f"stream_options.{name}" for name in options.model_extra or {})
    if not unknown:
        return {}
    shown = ", ".join(ascii(name)[1:-1][:64] for name in unknown[:16])
    if strict:
        raise bad_request(f"unknown field: {shown}; remove it", unknown[0], "unknown_field")
    return {"x-paceline-warning": f"ignored unknown fields: {shown}"}


def check_chat(body: ChatBody) -> None:
    """Rules between the fields of a chat request.

    Raises:
        ApiError: 400.
    """
    _refuse_unbuilt_chat(body)
    check_messages(body.messages)
    _check_shared(body, body.max_completion_tokens or body.max_tokens)
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    check_chat_prompt(body)


def check_completion(body: CompletionBody) -> None:
    """Rules between the fields of a text completion request.

    Raises:
        ApiError: 400.
    """
    if body.suffix:
        raise _unbuilt("suffix", "text after the completion")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request(
            f"best_of must equal n ({body.n or 1}), got {body.best_of}: completions are not "
            "ranked; leave best_of out",
            "best_of",
            "unsupported",
        )
    _check_shared(body, body.max_tokens)
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("max_tokens must be >= 1 unless echo is true, got 0", "max_tokens")


def check_chat_prompt(body: ChatBody | TokenizeBody) -> None:
    """How the prompt shall end.

    Raises:
        ApiError: 400, asked to open a new message and to continue the last one.
    """
    if body.continue_final_message and body.add_generation_prompt:
        raise bad_request(
            "continue_final_message and add_generation_prompt exclude each other",
            "continue_final_message",
        )


def check_messages(messages: list[Message]) -> None:
    """Messages hold text alone.

    Raises:
        ApiError: 400.
    """
    for i, message in enumerate(messages):
        if message.tool_calls or message.function_call:
            raise _unbuilt(f"messages[{i}].tool_calls", "tool calls")
        if not isinstance(message.content, list):
            continue
        for j, part in enumerate(message.content):
            where = f"messages[{i}].content[{j}]"
            if part.type != "text":
                raise bad_request(
                    f"{where}: content parts of type {part.type!r} are not supported, only 'text'",
                    f"{where}.type",
                    "unsupported",
                )
            if part.text is None:
                raise bad_request(f"{where}: text is missing", f"{where}.text")


def check_token_ids(name: str, token_ids: list[int], vocab_size: int) -> None:
    """Token ids lie inside the vocabulary.

    Raises:
        ApiError: 400.
    """
    if token_ids and max(token_ids) >= vocab_size:
        raise bad_request(
            f"{name}: token ids must be in [0, {vocab_size}), got {max(token_ids)}", name
        )


def too_long(param: str, limit: int, found: str) -> ApiError:
    """The refusal of a list with too many entries."""
    return bad_request(f"{param}: at most {limit} entries are accepted, got {found}", param)


def _check_shared(body: ChatBody | CompletionBody, max_tokens: int | None) -> None:
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise bad_request(
            f"min_tokens must be <= max_tokens ({max_tokens}), got {body.min_tokens}", "min_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options needs stream: true", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise bad_request(
            "prompt_logprobs cannot be streamed; leave stream out, or use echo with logprobs",
            "prompt_logprobs",
        )
    if body.truncate_prompt_tokens == 0:
        raise bad_request(
            "truncate_prompt_tokens must be -1 or >= 1, got 0", "truncate_prompt_tokens"
        )
    kind = (body.response_format or {"type": "text"}).get("type")
    if kind != "text":
        raise _unbuilt("response_format", f"response_format other than text (got {kind!r})")
    for name in (
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "logits_processors",
        "use_beam_search",
    ):
        if getattr(body, name):
            raise _unbuilt(name, name)


def _refuse_unbuilt_chat(body: ChatBody) -> None:
    choice = body.tool_choice
    if choice is not None and choice != "none" and not body.tools:
        raise bad_request("tool_choice needs tools", "tool_choice")
    for name in ("tools", "functions", "audio", "documents", "prediction", "web_search_options"):
        if getattr(body, name):
            raise _unbuilt(name, name)
    if body.function_call is not None and body.function_call != "none":
        raise _unbuilt("function_call", "function_call")
    if any(kind != "text" for kind in body.modalities or []):
        raise _unbuilt("modalities", "modalities other than text")


def _unbuilt(param: str, what: str) -> ApiError:
    return bad_request(f"this release does not support {what}; remove it", param, "unsupported")


def _from_pydantic(error: ValidationError) -> ApiError:
    errors = error.errors(include_url=False)
    # Of a field with several types each one complains: that it is too long says most.
    first = next((one for one in errors if one["type"] == "too_long"), errors[0])
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return bad_request(f"the body is not valid JSON: {reason}", code="invalid_json")
    if not first["loc"]:
        return bad_request("the body must be a JSON object", code="invalid_json")
    if first["type"] == "too_long":
        return _too_long(first)
    param = ""
    for part in first["loc"]:
        if isinstance(part, int):
            param += f"[{part}]"
        else:
            param += f".{part}" if param else part
        if part in _UNIONS:
            return bad_request(f"{param} must be {_UNIONS[str(part)]}", param)
    if first["type"] == "missing":
        return bad_request(f"{param} is required", param, "missing_field")
    return bad_request(f"{param}: {first['msg']}, got {_shown(first['input'])}", param)


def _too_long(error: ErrorDetails) -> ApiError:
    # Behind the field come names of types and places in lists; the field is what can be mended.
    param = str(error["loc"][0])
    limit, got = error["ctx"]["max_length"], error["ctx"]["actual_length"]
    found = f"{got} or more" if got is not None else "more"
    if isinstance(error["input"], list | dict):
        found = str(len(error["input"]))
    return too_long(param, limit, found)


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > INT32 * INT32:
        return "a larger number"  # printing digits of a huge integer can itself be refused
    text = repr(value) if not isinstance(value, dict | list) else type(value).__name__
    return text if len(text) <= 64 else text[:61] + "..."
