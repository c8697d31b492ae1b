"""Bodies of the OpenAI-compatible routes, with the bounds of every value.

A field that is not named here is kept in `model_extra` and reported (`validation.check_fields`).
Fields of features that this release does not build are named, so that they can be refused.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARACTERS = 128
"""Each word is compared at each token, in a step that everybody waits for."""

# Reading holds up everybody's tokens, so lists end somewhere (see `bodies.py`). Those of token
# ids end above any window that fits a body; the model's own window and vocabulary come later.
MAX_TOKEN_IDS = 1 << 20
MAX_PROMPTS = 1024
MAX_MESSAGES = 16_384
MAX_PARTS = 4096
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024

INT32 = 2**31 - 1
INT64 = 2**63 - 1

TokenId = Annotated[int, Field(ge=0, le=INT32)]
# Fail fast: a million wrong entries are one error, not a million.
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)]


class _Body(BaseModel):
    """Strict: a number in quotes is an error, as at OpenAI."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class StreamOptions(_Body):
    """What a stream carries besides text."""

    include_usage: bool | None = Field(
        default=None, description="One more chunk, before the end, with the usage."
    )


class _Generate(_Body):
    """Fields that chat and text completions share."""

    model: str | None = Field(default=None, description="Served name; the only model if absent.")
    max_tokens: int | None = Field(
        default=None, ge=0, description="Output tokens at most; clamped to the model's window."
    )
    min_tokens: int | None = Field(
        default=None, ge=0, description="No end and no stop before so many output tokens."
    )
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES, description="Choices per prompt.")
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(
        default=None, description="Only together with stream."
    )
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 is greedy.")
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, description="0 and -1 keep all.")
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    # Beyond these bounds logits leave the range of float32.
    repetition_penalty: float | None = Field(default=None, ge=0.001, le=1000)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None,
        max_length=MAX_LOGIT_BIASES,
        description="Token id -> what is added to its logit.",
    )
    seed: int | None = Field(default=None, ge=-INT64 - 1, le=INT64)
    stop: Stop | None = Field(default=None, description="The text ends before any of these.")
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = Field(default=None, description="Default: true.")
    spaces_between_special_tokens: bool | None = Field(
        default=None, description="Taken for compatibility; the decoders here put none there."
    )
    truncate_prompt_tokens: int | None = Field(
        default=None,
        ge=-1,
        description="Keep the last so many prompt tokens; -1 keeps what fits the window.",
    )
    allowed_token_ids: TokenIds | None = None
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]],
            Field(max_length=MAX_BAD_WORDS),
        ]
        | None
    ) = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    return_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = Field(
        default=None, ge=-INT32, le=INT32, description="Smaller is served first."
    )
    request_id: str | None = Field(default=None, pattern=r"^[\x21-\x7e]{1,128}$")
    cache_salt: str | None = Field(
        default=None, max_length=256, description="Prefixes are shared among equal salts only."
    )
    speculation: bool | None = Field(
        default=None, description="false: no draft tokens for this request. Its text is the same."
    )
    user: str | None = None

    # Not built yet: refused by `validation` unless the value asks for nothing.
    response_format: dict[str, Any] | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    logits_processors: Any = None
    use_beam_search: Any = None


class TextPart(_Body):
    """A part of a message's content; only text is served."""

    type: str
    text: str | None = None


class Message(_Body):
    """One message of a chat; what else it holds is handed to the chat template."""

    role: Annotated[str, Field(min_length=1)]
    content: str | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = (
        None
    )
    name: str | None = None
    tool_calls: Any = None
    function_call: Any = None


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatBody(_Generate):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_tokens: int | None = Field(default=None, ge=1, description="See max_completion_tokens.")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, description="Output tokens at most; wins over max_tokens."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(
        default=None, ge=0, le=MAX_TOP_LOGPROBS, description="Needs logprobs."
    )
    echo: bool | None = Field(
        default=None, description="The text begins with the last message's content."
    )
    add_generation_prompt: bool | None = Field(default=None, description="Default: true.")
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    documents: Any = None
    prediction: Any = None
    web_search_options: Any = None


class CompletionBody(_Generate):
    """Body of POST /v1/completions."""

    prompt: (
        Annotated[str, Field(min_length=1)]
        | TokenIds
        | Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
        ]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = Field(default=None, description="The text begins with the prompt.")
    best_of: int | None = Field(default=None, ge=1)
    suffix: str | None = None


class TokenizeBody(_Body):
    """Body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(_Body):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]
    skip_special_tokens: bool | None = Field(default=None, description="Default: false.")


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Body of every answer that is not a success."""

    error: ErrorDetail
