"""Two prefill lanes: long prompts and short ones share a step's budget, neither can starve.

What decodes leave of the budget is split: each lane that has work is guaranteed a share, and takes
what the other does not want. Inside a lane the order of the policy holds, so both waits are
bounded: a flood of short prompts leaves the long lane its share, and the reverse.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class LaneBudget:
    """Tokens that prefill may still take in this step. Mutable: it is spent while planning.

    Attributes:
        total: tokens left in the step for both lanes.
        long, short: tokens left for each lane; they overlap, `total` bounds both.
        cap: most tokens of one request in a step; 0 = no cap and one lane.
    """

    total: int
    long: int
    short: int
    cap: int

    def is_long(self, wanted: int) -> bool:
        """Which lane a request with so many tokens left belongs to."""
        return bool(self.cap) and wanted > self.cap

    def has_room(self) -> tuple[bool, bool]:
        """Whether a short request, and a long one, may take a token now."""
        if not self.cap:
            return self.total > 0, self.total > 0
        return min(self.short, self.total) > 0, min(self.long, self.total) > 0

    def room(self, wanted: int) -> int:
        """Tokens that a request which wants `wanted` may take now."""
        if not self.cap:
            return min(wanted, self.total)
        if wanted > self.cap:
            return min(self.cap, self.long, self.total)
        return min(wanted, self.short, self.total)

    def take(self, num_tokens: int, *, is_long: bool) -> None:
        """Spend."""
        self.total -= num_tokens
        if is_long:
            self.long -= num_tokens
        else:
            self.short -= num_tokens

    def is_shared(self) -> bool:
        """Whether a lane may take less than all that is left."""
        return min(self.long, self.short) < self.total

    def open_up(self) -> None:
        """Either lane may take all that is left."""
        self.long = self.short = self.total

    def refund(self, num_tokens: int) -> None:
        """Rows were taken back; either lane may have what they would have used."""
        self.total += num_tokens
        self.long += num_tokens
        self.short += num_tokens


def split(budget: int, cap: int, long_wants: int, short_wants: int, turn: int) -> LaneBudget:
    """Share the prefill budget of one step between the lanes.

    Args:
        budget: tokens that decodes left.
        cap: most tokens of one request in a step; 0 turns lanes off.
        long_wants: tokens that the long lane could compute in this step, roughly.
        short_wants: the same of the short lane.
        turn: a step counter; decides alternately when there is a single token to give.
    """
    if not cap:
        return LaneBudget(budget, budget, budget, 0)
    guarantee = turn & 1 if budget == 1 else min(cap, (budget + 1) // 2)
    return LaneBudget(
        total=budget,
        long=budget - min(short_wants, budget - guarantee),
        short=budget - min(long_wants, guarantee),
        cap=cap,
    )


def prefill_cap(long_prefill_tokens: int | None, budget: int, num_others: int) -> int:
    """Most prompt tokens of one request in a step; 0 = no cap.

    Args:
        long_prefill_tokens: the setting; None = half of the budget, 0 = off.
        budget: token budget of a whole step.
        num_others: other requests that run or wait; alone, a request is not capped.
    """
    if num_others <= 0:
        return 0
    if long_prefill_tokens is None:
        return max(1, budget // 2)
    return long_prefill_tokens
