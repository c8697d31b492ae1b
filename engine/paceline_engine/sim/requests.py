"""What a simulated client asks for: lengths are known beforehand, tokens only say what is shared.

Outputs are one constant token, so a prompt that goes on where another request's answer ended is
that request's prompt, so many of the constant, and something of its own.
"""

from dataclasses import dataclass

OUTPUT_TOKEN = 1
"""Every output of every simulated request, but for a last one that stops early."""
END_TOKEN = 2
_FILLER = 3
_FIRST_OWN = 16
_PADDING = (_FILLER,) * 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRequest:
    """One request before it is sent.

    Attributes:
        arrival_s: seconds of simulated time; a closed loop counts it from when its place is free.
        prompt_token_ids: equal prefixes are equal tokens.
        num_output_tokens: it stops by itself after so many, unless max_tokens ends it first.
        max_tokens: what it asks for at most; admission sees this one.
        group: part of the workload that is reported on its own.
    """

    arrival_s: float
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int
    max_tokens: int
    priority: int = 0
    tenant: str = ""
    group: str = ""


def prompt(number: int, num_tokens: int, prefix: tuple[int, ...] = ()) -> tuple[int, ...]:
    """A prompt whose own part begins behind `prefix` and is like no other number's.

    Args:
        number: tells own parts apart, >= 0.
        num_tokens: of the whole prompt; a longer prefix is cut to it.
        prefix: the first tokens.
    """
    rest = num_tokens - len(prefix)
    if rest <= 0:
        return prefix[:num_tokens]
    padding = _PADDING[: rest - 1] if rest <= len(_PADDING) else (_FILLER,) * (rest - 1)
    return (*prefix, _FIRST_OWN + number, *padding)


def continued(of: SimRequest, num_tokens: int) -> tuple[int, ...]:
    """The first tokens of a request's prompt and answer together."""
    ids = of.prompt_token_ids
    return (*ids, *((OUTPUT_TOKEN,) * max(0, num_tokens - len(ids))))[:num_tokens]
