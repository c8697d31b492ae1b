"""How much longer an output gets that has so many tokens already, learned from those that ended.

Outputs have heavy tails: who is past the mean is not about to end, it is one of the long ones. So
what running requests are still going to need is the mean of the lengths that were at least theirs.
"""

import numpy as np
from numpy.typing import NDArray

_EDGES = np.array([0.0, *(2.0**k for k in range(24))])
_FORGET = 1 / 128
_UNSEEN = 1.5
"""An output longer than all that were seen is taken to grow by half."""
_UNSEEN_MEANS = _UNSEEN * _EDGES[::-1]


class OutputTail:
    """Mean length of outputs that reached a length, by powers of two. Mutable; learns.

    Attributes:
        num_seen: outputs that it has learned from.
    """

    def __init__(self) -> None:
        self.num_seen = 0
        # Numbers and tokens of outputs by bucket, the longest first.
        self._seen = np.zeros((2, len(_EDGES)))
        self._weight = 1.0  # of the next one; grows, which is cheaper than to shrink the others
        self._means: NDArray[np.float64] | None = None

    def observe(self, num_tokens: int) -> None:
        """A request ended by itself after so many output tokens."""
        self.num_seen += 1
        bucket = num_tokens.bit_length()  # [2**(k-1), 2**k) is bucket k
        self._seen[0, -1 - bucket] += self._weight
        self._seen[1, -1 - bucket] += self._weight * num_tokens
        self._weight *= 1 + _FORGET
        self._means = None
        if self._weight > 1e9:
            self._seen /= self._weight
            self._weight = 1.0

    def expected(self, num_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """[n] lengths to expect of outputs that have [n] tokens already; never less than those."""
        if self._means is None:
            counts, sums = self._seen.cumsum(axis=1)
            means = _UNSEEN_MEANS.copy()
            np.divide(sums, counts, out=means, where=counts > self._weight / 1e6)
            self._means = means[::-1]
        return np.maximum(np.interp(num_tokens, _EDGES, self._means), num_tokens)
