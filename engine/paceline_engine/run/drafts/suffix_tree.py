"""Counts of every run of a few tokens, and the likely continuation of a text by them.

Source: SuffixDecoding, arXiv:2411.04975; a trie of bounded depth instead of a whole suffix tree,
so that what is oldest can leave.
"""

from collections.abc import Iterable, Sequence

DEPTH = 24
"""Tokens of the longest run that is remembered: match and drafts together."""
MAX_MATCH = 12
MIN_SHARE = 0.15
"""Drafts end where the product of shares falls below."""
DRAFTS_PER_MATCH = 2
"""So many drafts at most for each token of the match: a short match says little."""


class _Node:
    """A run of tokens: how often it was seen, and what followed."""

    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, _Node] = {}


class SuffixTree:
    """Mutable. Texts are counted token by token: `Text` remembers where one stands.

    Attributes:
        num_nodes: runs that are known; memory grows with it.
    """

    def __init__(self) -> None:
        self.num_nodes = 0
        self._root = _Node()

    def extend(self, suffixes: list[_Node], tokens: Iterable[int]) -> list[_Node]:
        """Count the runs that new tokens end.

        Args:
            suffixes: nodes of the text's suffixes so far, shortest first; empty for a new text.
            tokens: what is new.

        Returns:
            The nodes of the longer text's suffixes, at most DEPTH.
        """
        for token in tokens:
            longer: list[_Node] = []
            for node in (self._root, *suffixes[: DEPTH - 1]):
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = _Node()
                    self.num_nodes += 1
                child.count += 1
                longer.append(child)
            suffixes = longer
        return suffixes

    def remove(self, tokens: Sequence[int]) -> None:
        """Take back a whole text that was counted."""
        suffixes: list[_Node] = []
        for token in tokens:
            parents = (self._root, *suffixes[: DEPTH - 1])
            suffixes = [parent.children[token] for parent in parents]
            for parent, child in zip(parents, suffixes, strict=True):
                child.count -= 1
                if not child.count:
                    del parent.children[token]
                    self.num_nodes -= 1

    def draft(self, tokens: Sequence[int], max_drafts: int) -> tuple[list[int], float]:
        """Go on from the longest suffix of a text that was seen before.

        Args:
            tokens: the end of the text.
            max_drafts: at most so many.

        Returns:
            The drafts, and how many of them are expected to hold.
        """
        for length in range(min(MAX_MATCH, len(tokens)), 0, -1):
            node = self._find(tokens[-length:])
            if node is not None and node.children:
                return _follow(node, min(max_drafts, DRAFTS_PER_MATCH * length))
        return [], 0.0

    def _find(self, run: Sequence[int]) -> _Node | None:
        node: _Node | None = self._root
        for token in run:
            node = node.children.get(token) if node is not None else None
        return node


def _follow(node: _Node, max_drafts: int) -> tuple[list[int], float]:
    """Go down the most frequent branches while that is likely enough."""
    drafts: list[int] = []
    share, score = 1.0, 0.0
    while node.children and len(drafts) < max_drafts:
        total = sum(child.count for child in node.children.values())
        token, child = max(node.children.items(), key=lambda item: (item[1].count, -item[0]))
        share *= child.count / total
        if share < MIN_SHARE:
            break
        drafts.append(token)
        score += share
        node = child
    return drafts, score


class Text:
    """One text and the tree that counts it."""

    def __init__(self, tree: SuffixTree) -> None:
        self.tree = tree
        self.tokens: list[int] = []
        self._suffixes: list[_Node] = []

    def extend(self, tokens: list[int]) -> None:
        """The text has grown."""
        self.tokens += tokens
        self._suffixes = self.tree.extend(self._suffixes, tokens)
