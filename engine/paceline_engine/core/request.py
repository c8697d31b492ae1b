"""What a client asked for, and how it ended. The scheduler keeps its own state elsewhere."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended; the values are vLLM's `finished_reason` labels."""

    STOP = "stop"
    """An end token, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens or max_model_len reached."""
    ABORT = "abort"
    """The client went away."""
    ERROR = "error"
    """The engine failed; the message says how."""
    TIMEOUT = "timeout"
    """Its deadline passed before it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. Values are validated at the HTTP border, not here.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 keeps all.
        seed: None draws from the engine's own seed and the request id.
        choice: index of this completion among the n of one HTTP request; part of the noise key.
        max_tokens: output tokens at most, >= 0 (0: only the prompt is computed).
        min_tokens: no end token and no stop before so many output tokens.
        stop_token_ids: end the request, besides the model's own end tokens.
        ignore_eos: the model's own end tokens do not end the request.
        allowed_token_ids: None allows all.
        bad_words: token sequences that must not appear.
        logprobs: None = not asked; n >= 0 = the sampled token's and the n best.
        prompt_logprobs: the same for every prompt token (the first has none).
        speculates: drafts may be proposed for it if the engine does so; they change no token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    choice: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculates: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to compute: `n` choices of an HTTP request are n of these.

    Attributes:
        request_id: unique for the engine's life, given by the client of the engine.
        external_id: what people see: the id in the HTTP answer, in logs, in the admin API.
        prompt_token_ids: non-empty, inside the vocabulary.
        priority: smaller is served first under policy Priority.
        tenant: who is charged under policy Fair; empty = the default tenant.
        cache_salt: requests share prefix blocks only with equal salts.
        arrival_s: when the HTTP request arrived, on the monotonic clock of the machine.
        deadline_s: same clock; not started by then means finished with TIMEOUT, besides the limit
            of the queue itself (queueTimeoutS). None = no limit of its own.
        has_stop_strings: the serving side may end it with `finish`, after fewer tokens than were
            computed; its output is counted when it ends, so that counters never have to go back.
    """

    request_id: int
    external_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    arrival_s: float = 0.0
    deadline_s: float | None = None
    has_stop_strings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request was not taken; the border turns it into an HTTP answer.

    Attributes:
        status: 400 can never fit, 429 over its share, 503 queue full or draining.
        param: field of the HTTP body that is at fault, if one is.
        retry_after_s: from the measured drain rate, for 429 and 503.
    """

    status: int
    message: str
    param: str | None = None
    retry_after_s: int | None = None


@dataclass(slots=True, kw_only=True)
class Finished:
    """The end of one request. Not frozen, which would be slower to make; nobody changes it.

    Attributes:
        num_output_tokens: tokens that count; those computed beyond it are discarded.
        num_cached_tokens: prompt tokens taken from the prefix cache at the first admission.
        stop_token_id: the stop token that ended it, None if another cause did.
        message: for people, when reason is ERROR or TIMEOUT.
    """

    request_id: int
    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    stop_token_id: int | None = None
    message: str = ""
