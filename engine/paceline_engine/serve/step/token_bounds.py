"""The last look at token ids before they are indices: kernels read and write where they point.

The HTTP side checks them too, field by field, and says it better. A request that came past it, by
a mistake there, must not reach memory that is not the model's.
"""

from collections.abc import Iterator, Sequence

from paceline_engine.core.request import Refusal, Request


def refuse_outside(request: Request, vocab_size: int) -> Refusal | None:
    """A 400 that names the field with an id outside `[0, vocab_size)`; None if there is none."""
    for name, token_ids in _fields(request):
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            wrong = next(token for token in token_ids if not 0 <= token < vocab_size)
            return Refusal(
                status=400,
                message=f"{name}: token ids must be in [0, {vocab_size}), got {wrong}",
                param=name,
            )
    return None


def _fields(request: Request) -> Iterator[tuple[str, Sequence[int]]]:
    params = request.params
    yield "prompt", request.prompt_token_ids
    yield "stop_token_ids", params.stop_token_ids
    yield "allowed_token_ids", params.allowed_token_ids or ()
    yield "logit_bias", [token for token, _ in params.logit_bias]
    for word in params.bad_words:
        yield "bad_words", word
