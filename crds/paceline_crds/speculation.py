"""Which settings of speculation go together."""

WITH_MODEL = frozenset({"DraftModel", "Eagle"})
"""Methods whose drafts come from a model of their own."""


def check(
    method: str, *, model: str | None, num_tokens: int, is_planned: bool, lookups: tuple[int, int]
) -> None:
    """Refuse settings of speculation that contradict each other.

    Args:
        method: value of speculativeMethod.
        model: speculativeModel.
        num_tokens: speculativeNumTokens.
        is_planned: somebody said how many drafts there may be, none included.
        lookups: shortest and longest suffix of method Ngram.

    Raises:
        ValueError: naming the fields at fault.
    """
    shortest, longest = lookups
    if shortest > longest:
        raise ValueError(
            f"speculativeMinLookup must be <= speculativeMaxLookup ({longest}), got {shortest}"
        )
    if method != "None" and not is_planned:
        raise ValueError(
            f"speculativeMethod {method} needs speculativeNumTokens (or, to turn it on later, "
            "bootMaxSpeculativeNumTokens), got neither"
        )
    if method == "None" and num_tokens:
        raise ValueError(
            "speculativeNumTokens needs a speculativeMethod that proposes the drafts, got "
            f"{num_tokens} with method None; name one, or set speculativeNumTokens to 0"
        )
    if (method in WITH_MODEL) != (model is not None):
        raise ValueError(
            "speculativeModel and the methods DraftModel and Eagle belong together, got "
            f"{model or 'no model'} with method {method}; give the model that drafts with such a "
            "method, and only then"
        )
