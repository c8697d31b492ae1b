"""How many drafts a step asks for: as many as pay by what was measured, none included.

Two things are learned as steps go by. How likely drafts are: the share of rows for which a draft
stands at position j, and the share of those that hold when all before them did. What they cost: the
milliseconds of a step without drafts, by the number of rows (in powers of two), and the extra
milliseconds of each draft token: of verifying it, and of proposing it one step before, which is
much of it where a model proposes. From these the yield of each k follows, (rows + accepted tokens)
per millisecond, and the best k wins by a margin, so that noise does not move it. While none is
best, a short probe with few drafts now and then, less and less often, notices when that changes.
"""

from dataclasses import dataclass, field

import numpy as np

from paceline_engine.core.arrays import Float64, Int32

_DECAY = 0.98
"""What an observation still weighs one step later: some 50 steps are remembered."""
_MARGIN = 1.03
"""A longer draft has to yield so much more; none at all has only to be better."""
_MIN_STEPS = 4
"""Steps without drafts, and draft tokens, before costs are believed."""
_BASE_EVERY = 128
"""While drafts pay, a step without them is due so often, to know what it costs."""
_PROBE_STEPS = 6
_PROBE_EVERY, _PROBE_EVERY_MOST = 64, 512
_PROBE_SHARE = 0.01
"""Probes may cost so much of the time, so they are rarer where drafts are dear."""
_PAYS_AFTER = 128
"""Steps with drafts after which a probe counts as right and the next ones come early again."""
_STALE_WEIGHT = 3.0
"""Chances that what was known before a probe weighs as much as."""
_CLIP = 4.0
"""A step that took so many times the usual was disturbed from outside."""
_PRIOR_SHARE, _PRIOR_WEIGHT = 0.7, 2.0


@dataclass(slots=True)
class _Cost:
    """What is known of steps with about so many rows. Mutable.

    Attributes:
        base_ms, num_base: decayed sum over steps without drafts, and their decayed number.
        extra_ms, num_drafts: the same of what verifying drafts added, and of draft tokens.
        propose_ms, num_asked: the same of proposing, and of draft tokens that were asked for.
        num_accepted: decayed number of those that held.
        num_asks: most drafts that are asked for at present.
        since_base, since_probe: steps since the last without drafts, and since the last probe.
        since_none: steps in a row in which drafts were asked for.
        probe_left: steps that the present probe still has.
        probe_every: steps from one probe to the next.
    """

    base_ms: float = 0.0
    num_base: float = 0.0
    extra_ms: float = 0.0
    num_drafts: float = 0.0
    propose_ms: float = 0.0
    num_asked: float = 0.0
    num_accepted: float = 0.0
    num_asks: int = 0
    since_base: int = 0
    since_probe: int = 0
    since_none: int = 0
    probe_left: int = 0
    probe_every: int = _PROBE_EVERY

    @property
    def step_ms(self) -> float:
        """Of a step without drafts."""
        return self.base_ms / self.num_base

    @property
    def token_ms(self) -> float:
        """Of verifying one draft token more."""
        return max(0.0, self.extra_ms / self.num_drafts)

    @property
    def ask_ms(self) -> float:
        """Of proposing one."""
        return self.propose_ms / self.num_asked if self.num_asked else 0.0

    def steps_per_probe(self, num_drafts: int, num_asked: int) -> float:
        """Steps after which a probe has cost its share of them.

        Args:
            num_drafts: that each of its steps verifies.
            num_asked: that each of them asks for.
        """
        if not self.num_drafts:
            return 0.0
        probe_ms = num_drafts * self.token_ms + num_asked * self.ask_ms
        return _PROBE_STEPS * probe_ms / (_PROBE_SHARE * self.step_ms)


@dataclass(slots=True)
class _Shares:
    """Decayed counts by position: how often there was a chance, and how often it was taken."""

    chances: Float64
    taken: Float64

    @classmethod
    def unknown(cls, width: int) -> "_Shares":
        return cls(np.full(width, _PRIOR_WEIGHT), np.full(width, _PRIOR_WEIGHT * _PRIOR_SHARE))

    def observe(self, chances: Float64, taken: Float64) -> None:
        """Positions without a chance keep what is known of them."""
        decay = np.where(chances > 0, _DECAY, 1.0)
        self.chances = self.chances * decay + chances
        self.taken = self.taken * decay + taken

    def doubt(self) -> None:
        """What is known is old: new observations weigh more."""
        scale = np.minimum(1.0, _STALE_WEIGHT / self.chances)
        self.chances *= scale
        self.taken *= scale

    def values(self) -> Float64:
        share: Float64 = self.taken / self.chances
        return share


@dataclass(slots=True)
class DraftLength:
    """Chooses; one per engine, mutable, fed with every plan and result.

    Attributes:
        max_total: most draft tokens of the next step altogether, so that a probe stays cheap.
    """

    width: int = 32
    max_total: int = 0
    _costs: dict[int, _Cost] = field(default_factory=dict)
    _is_offered: _Shares = field(init=False)
    _holds: _Shares = field(init=False)

    def __post_init__(self) -> None:
        self._is_offered = _Shares.unknown(self.width)
        self._holds = _Shares.unknown(self.width)

    @property
    def goodput(self) -> float:
        """Accepted draft tokens per extra millisecond, of late; 0 = nothing was drafted."""
        extra = sum(cost.extra_ms + cost.propose_ms for cost in self._costs.values())
        accepted = sum(cost.num_accepted for cost in self._costs.values())
        return accepted / extra if extra > 0 else 0.0

    def choose(self, num_rows: int, most: int) -> int:
        """Drafts to ask for with the result of a step of `num_rows` decodes.

        Args:
            num_rows: rows that the next step will have, as far as one can tell.
            most: the limit in force.
        """
        if not most or not num_rows:
            return 0
        cost = self._cost(num_rows)
        cost.since_base += 1
        cost.since_probe += 1
        self.max_total = num_rows * most
        if cost.num_base < _MIN_STEPS:
            return 0
        if cost.num_drafts >= _MIN_STEPS:
            self._settle(cost, num_rows, most)
        elif not cost.num_asks:
            cost.probe_left = max(1, cost.probe_left)
        if cost.num_asks:
            if cost.since_base >= _BASE_EVERY:
                cost.since_base = 0
                return 0
            cost.since_none += 1
            if cost.since_none == _PAYS_AFTER:
                cost.probe_every = _PROBE_EVERY
            return min(cost.num_asks, most)
        cost.since_none = 0
        self.max_total = max(most, num_rows // 8)
        dear = cost.steps_per_probe(self.max_total, num_rows * most)
        if cost.since_probe >= max(cost.probe_every, dear):
            self._is_offered.doubt()
            self._holds.doubt()
            cost.since_probe, cost.probe_left = 0, _PROBE_STEPS
            cost.probe_every = min(2 * cost.probe_every, _PROBE_EVERY_MOST)
        if cost.probe_left:
            cost.probe_left -= 1
            return most
        return 0

    def _settle(self, cost: _Cost, num_rows: int, most: int) -> None:
        """Move to the k that yields most, if it is better by the margin."""
        yields = self._yields(cost, num_rows, most)
        now = min(cost.num_asks, most)
        best = int(yields.argmax())
        margin = 1.0 if best == 0 else _MARGIN
        if yields[best] > margin * yields[now]:
            cost.num_asks = best
            cost.since_probe = 0

    def _yields(self, cost: _Cost, num_rows: int, most: int) -> Float64:
        """[most + 1] tokens per millisecond with 0, 1, .. drafts asked for."""
        offered = self._is_offered.values()[:most]
        drafts = num_rows * np.append(0.0, offered.cumsum())
        held = offered * self._holds.values()[:most].cumprod()
        tokens = num_rows * (1.0 + np.append(0.0, held.cumsum()))
        asked = num_rows * np.arange(most + 1)
        value: Float64 = tokens / (cost.step_ms + cost.token_ms * drafts + cost.ask_ms * asked)
        return value

    def observe_offer(self, counts: Int32, asked: int) -> None:
        """Drafts came with a result: `counts` [m] of the rows that may have some, asked each."""
        positions = np.arange(self.width)
        chances = np.where(positions < asked, float(len(counts)), 0.0)
        reach = (counts[:, None] > positions).sum(axis=0).astype(np.float64)
        self._is_offered.observe(chances, np.minimum(reach, chances))

    def observe_accepted(self, drafts: Int32, accepted: Int32) -> None:
        """Drafts were verified: [m] of each row, and how many of them held."""
        positions = np.arange(self.width)
        tried = np.minimum(drafts, accepted + 1)
        chances = (tried[:, None] > positions).sum(axis=0).astype(np.float64)
        held = (accepted[:, None] > positions).sum(axis=0).astype(np.float64)
        self._holds.observe(chances, held)

    def observe_step(
        self,
        num_rows: int,
        num_drafts: int,
        num_accepted: int,
        spent_ms: float,
        *,
        propose_ms: float = 0.0,
        num_asked: int = 0,
    ) -> None:
        """A step of decodes alone took so long.

        Args:
            num_rows: decodes.
            num_drafts: draft tokens that it verified; num_accepted: that held.
            num_accepted: see there.
            spent_ms: without proposing; 0: nobody measured.
            propose_ms: of proposing drafts for the next step, `num_asked` at most.
            num_asked: see there.
        """
        if spent_ms <= 0 or not num_rows:
            return
        cost = self._cost(num_rows)
        if num_asked:
            usual = _CLIP * cost.ask_ms * num_asked
            is_known = cost.num_asked >= _MIN_STEPS
            taken_ms = min(propose_ms, usual) if is_known else propose_ms
            cost.propose_ms = _DECAY * cost.propose_ms + taken_ms
            cost.num_asked = _DECAY * cost.num_asked + num_asked
        if not num_drafts:
            usual = _CLIP * cost.step_ms if cost.num_base >= _MIN_STEPS else spent_ms
            cost.base_ms = _DECAY * cost.base_ms + min(spent_ms, usual)
            cost.num_base = _DECAY * cost.num_base + 1.0
            cost.since_base = 0
        elif cost.num_base >= _MIN_STEPS:
            most = _CLIP * cost.step_ms * (1 + num_drafts / num_rows)
            extra = min(spent_ms, most) - cost.step_ms
            cost.extra_ms = _DECAY * cost.extra_ms + extra
            cost.num_drafts = _DECAY * cost.num_drafts + num_drafts
            cost.num_accepted = _DECAY * cost.num_accepted + num_accepted

    def _cost(self, num_rows: int) -> _Cost:
        return self._costs.setdefault(num_rows.bit_length(), _Cost())
