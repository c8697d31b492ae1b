"""From a checked body to the engine's sampling parameters."""

from paceline_engine.core.request import SamplingParams
from paceline_engine.serve.openai.errors import bad_request
from paceline_engine.serve.openai.openai_types import ChatBody, CompletionBody
from paceline_engine.serve.openai.validation import check_token_ids
from paceline_engine.serve.step.engine_client import EngineInfo
from paceline_engine.serve.text.tokenizer import TextTokenizer

DEFAULT_COMPLETION_TOKENS = 16
LEAST_TEMPERATURE = 1e-5
"""Below it sampling is greedy in all but name; far below, logits would leave float32."""


def fit_prompt(
    token_ids: list[int], body: ChatBody | CompletionBody, info: EngineInfo, param: str
) -> list[int]:
    """Cut the prompt as the body asks and check that it fits the window and the vocabulary.

    A tokenizer may know more tokens than the model has rows for, so text is checked too.

    Raises:
        ApiError: 400, empty, too long (the message names both numbers) or of unknown tokens.
    """
    least_output = 0 if body.max_tokens == 0 else 1
    keep = body.truncate_prompt_tokens
    if keep == -1:
        wanted = asked_max_tokens(body) or least_output
        keep = max(1, info.max_model_len - wanted)
    if keep is not None:
        token_ids = token_ids[-keep:]
    if not token_ids:
        raise bad_request("the prompt is empty: it must have at least one token", param)
    if len(token_ids) + least_output > info.max_model_len:
        raise bad_request(
            f"this model's longest request is {info.max_model_len} tokens, prompt and output "
            f"together, but the prompt has {len(token_ids)} tokens; shorten it",
            param,
            "context_length_exceeded",
        )
    check_token_ids(param, token_ids, info.vocab_size)
    return token_ids


def asked_max_tokens(body: ChatBody | CompletionBody) -> int | None:
    """How many output tokens the body asks for; None: as many as fit."""
    if isinstance(body, ChatBody):
        return body.max_completion_tokens or body.max_tokens
    return DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens


def num_logprobs(body: ChatBody | CompletionBody) -> int | None:
    """How many candidates are reported per output token; None: no log-probabilities at all."""
    if isinstance(body, ChatBody):
        return (body.top_logprobs or 0) if body.logprobs else None
    return body.logprobs


def num_prompt_logprobs(body: ChatBody | CompletionBody) -> int | None:
    """The same for prompt tokens: asked for directly, or by echo with logprobs."""
    asked = body.prompt_logprobs
    if isinstance(body, CompletionBody) and body.echo and body.logprobs is not None:
        return max(asked or 0, body.logprobs)
    return asked


def sampling_params(
    body: ChatBody | CompletionBody,
    *,
    num_prompt_tokens: int,
    info: EngineInfo,
    tokenizer: TextTokenizer,
) -> SamplingParams:
    """The parameters of choice 0.

    Raises:
        ApiError: 400, a token id outside the vocabulary, or no token is left.
    """
    room = info.max_model_len - num_prompt_tokens
    asked = asked_max_tokens(body)
    max_tokens = room if asked is None else min(asked, room)
    stop_ids = body.stop_token_ids or []
    check_token_ids("stop_token_ids", stop_ids, info.vocab_size)
    bad_words = _bad_words(body.bad_words or [], tokenizer, info.vocab_size)
    min_tokens = min(body.min_tokens or 0, max_tokens)
    allowed = body.allowed_token_ids
    if allowed is not None:
        if len(allowed) > info.vocab_size:
            raise bad_request(
                f"allowed_token_ids: at most {info.vocab_size} entries are accepted, the size of "
                f"the vocabulary, got {len(allowed)}",
                "allowed_token_ids",
            )
        check_token_ids("allowed_token_ids", allowed, info.vocab_size)
        never = {sequence[-1] for sequence in bad_words}
        if min_tokens:
            never |= {*stop_ids, *info.eos_token_ids}
        if never.issuperset(allowed):
            raise bad_request(
                "allowed_token_ids: bad_words and min_tokens can exclude all of them, so that no "
                "token would be left; allow more",
                "allowed_token_ids",
            )
    return SamplingParams(
        temperature=_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=min(max(body.top_k or 0, 0), info.vocab_size),
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}, info.vocab_size),
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=tuple(dict.fromkeys(stop_ids)),
        ignore_eos=bool(body.ignore_eos),
        allowed_token_ids=None if allowed is None else tuple(sorted(set(allowed))),
        bad_words=bad_words,
        logprobs=num_logprobs(body),
        prompt_logprobs=num_prompt_logprobs(body),
        speculates=body.speculation is not False,
    )


def _temperature(asked: float | None) -> float:
    if asked is None:
        return 1.0
    return asked if asked >= LEAST_TEMPERATURE else 0.0


def _logit_bias(bias: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs: dict[int, float] = {}
    for name, value in bias.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise bad_request(f"logit_bias: keys are token ids, got {name[:64]!r}", "logit_bias")
        check_token_ids("logit_bias", [int(name)], vocab_size)
        pairs[int(name)] = value
    return tuple(sorted(pairs.items()))


def _bad_words(
    words: list[str], tokenizer: TextTokenizer, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Each word as it is tokenised at the start of a text and after a space.

    What has a token that the model does not have never comes, and need not be banned.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if not token_ids:
                raise bad_request(f"bad_words: {word!r} has no tokens", "bad_words")
            if max(token_ids) < vocab_size:
                sequences[token_ids] = None
    return tuple(sequences)
