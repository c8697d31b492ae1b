"""What requests of a recording share, once some of the requests have been left out."""

from collections.abc import Iterator, Sequence


def kept_prefixes(
    owners: Sequence[int], counts: Sequence[int], kept: Sequence[int]
) -> list[tuple[int, int]]:
    """Whose prefix each kept request shares, among those kept.

    Two that shared a prefix with one that is left out still share it with each other: the first of
    them stands for it from then on.

    Args:
        owners: index of an earlier request, -1 for none, of every request.
        counts: how many of its first tokens are those of the owner.
        kept: indices of those that stay, ascending.

    Returns:
        For each kept one (place in `kept`, tokens), (-1, 0) if it shares nothing with an earlier.

    Raises:
        ValueError: an owner that is no earlier request.
    """
    places = {index: place for place, index in enumerate(kept)}
    stands_for: dict[int, tuple[int, int]] = {}  # one left out -> (place, tokens it has of it)
    found: list[tuple[int, int]] = []
    for place, index in enumerate(kept):
        shared = (-1, 0)
        for ancestor, count in _ancestors(owners, counts, index):
            if ancestor in places:
                shared = max(shared, (places[ancestor], count), key=_tokens)
                break
            substitute, of_it = stands_for.get(ancestor, (-1, 0))
            shared = max(shared, (substitute, min(count, of_it)), key=_tokens)
            if count > of_it:
                stands_for[ancestor] = (place, count)
        found.append(shared)
    return found


def _tokens(shared: tuple[int, int]) -> int:
    return shared[1]


def _ancestors(
    owners: Sequence[int], counts: Sequence[int], index: int
) -> Iterator[tuple[int, int]]:
    """The owner, its owner and so on, with what `index` has of each."""
    count = counts[index]
    while (owner := owners[index]) >= 0:
        if owner >= index:
            raise ValueError(f"prefixOf must name an earlier request than {index}, got {owner}")
        yield owner, count
        index, count = owner, min(count, counts[owner])
