"""Who is served next when tenants share an engine: counters of served tokens, weighted.

Each tenant has a counter of virtual tokens: what was computed for it, over its weight. The one with
the smallest counter is served next, so tenants that wait get tokens in proportion to their weights
whatever they ask for and however often. A tenant that begins to wait starts at the smallest counter
of those that wait already, so idle time is not saved up, and what nobody wants is left to the
others. Source: virtual token counter, Sheng et al., arXiv:2401.00588, section 4. Our addition: a
few steps' worth of what it forwent it may have at once, as credit that is spent before its counter
grows, else two requests that come together would wait for each other's price.

A tenant pays for tokens that were computed for it: a prompt token once, an output token as two.
Cached tokens are free, since no work was done, and so is what is computed again after preemption
and drafts that did not hold, since the engine chose that, not the tenant.

Outputs are charged when somebody wants to know (`settle`), so a step in which nobody comes or goes
costs nothing here.
"""

import math
from collections.abc import Iterable

import numpy as np

from paceline_crds.settings import EngineSettings
from paceline_engine.core.accounts import DEFAULT_TENANT, Account, Accounts
from paceline_engine.core.admission import QueuePart
from paceline_engine.core.slots import Rows, Slots
from paceline_engine.core.tracked import OrderKey, TrackedRequest

PROMPT_COST = 1.0
OUTPUT_COST = 2.0
"""A decode reads all weights for one token, a prompt's tokens share them; as in the source."""
QUANTUM = 1024.0
"""Running requests of tenants whose counters differ by less are equals: none preempts another."""

CREDIT_STEPS = 8
"""Credit of a tenant that comes back is at most what so many full steps compute."""

RELIEF_STEPS = 2
"""So long a tenant without credit waits for a seat before it gets one that another has."""
_LONGEST_INTERVAL = 64
_NO_LIMIT = 1 << 30


class FairBook:
    """What tenants were served, and who is next. Mutable; the scheduler's state owns it.

    Args:
        settings: weights, caps and the token budget.
        max_slots, max_step_tokens: what buffers are made for.

    Attributes:
        accounts: of every tenant that is declared or has requests, and some that had.
        step: the step that is planned next.
    """

    def __init__(self, settings: EngineSettings, max_slots: int, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens
        self._budget = 0
        self.accounts = Accounts()
        self._charged = np.zeros(max_slots, dtype=np.int64)  # T that is paid for, by slot
        self._account_of = np.zeros(max_slots, dtype=np.int64)
        self._left_at = 0.0  # counter of who stopped waiting last
        self.step = 0
        self._check_step = 0
        self._check_interval = RELIEF_STEPS
        self._waiting: dict[int, Account] = {}
        self.apply(settings)

    def apply(self, settings: EngineSettings) -> None:
        """Other weights, caps or budget are in force; counters stay what they are."""
        self._budget = min(settings.max_num_batched_tokens, self._max_step_tokens)
        self.accounts.declare(settings.tenants or ())

    # -- requests ----------------------------------------------------------------------------

    def arrived(self, tracked: TrackedRequest, slots: Slots) -> None:
        """A new request is about to wait. Its tenant's counter is lifted if it had none waiting."""
        account = self.accounts.of(tracked.request.tenant)
        tracked.account = account
        if account.num_waiting:
            return
        self.settle(slots)
        waiting = self._waiting.values()
        least = min((other.counter for other in waiting), default=self._left_at)
        account.lift(least, CREDIT_STEPS * self._budget)

    def waits(self, tracked: TrackedRequest) -> None:
        """A request is in the queue: new, back after preemption, or from another policy's."""
        account = tracked.account
        if account is None:
            account = tracked.account = self.accounts.of(tracked.request.tenant)
        if not account.num_waiting:
            account.blocked_since = self.step
            self._check_after(_patience(account))
        account.num_waiting += 1
        account.waiting_tokens += tracked.num_waiting_tokens
        self._waiting[account.index] = account

    def left_queue(self, tracked: TrackedRequest) -> None:
        """A request is not in the queue any more, for whatever reason."""
        account = _account(tracked)
        account.num_waiting -= 1
        account.waiting_tokens -= tracked.num_waiting_tokens
        if not account.num_waiting:
            self._left_at = account.counter
            del self._waiting[account.index]

    def seated(self, tracked: TrackedRequest, num_cached_tokens: int, num_tokens: int) -> None:
        """A request took a slot; what it has is paid for, and what it found in the cache is free.

        Args:
            tracked: in its slot.
            num_cached_tokens: tokens that need not be computed.
            num_tokens: known ones.
        """
        account, slot = _account(tracked), tracked.slot
        account.num_running += 1
        tracked.num_paid_prompt = max(tracked.num_paid_prompt, num_cached_tokens)
        self._charged[slot] = num_tokens
        self._account_of[slot] = account.index
        account.blocked_since = self.step

    def leaves_slot(self, tracked: TrackedRequest, num_tokens: int) -> None:
        """A request is about to lose its slot, with so many known tokens."""
        account, slot = _account(tracked), tracked.slot
        account.num_running -= 1
        account.pay(OUTPUT_COST * (num_tokens - int(self._charged[slot])))

    def computes(self, tracked: TrackedRequest, start: int, num_tokens: int) -> None:
        """A chunk was planned: it is part of the step, and its prompt tokens are paid for, once."""
        account = _account(tracked)
        account.step_left -= num_tokens
        account.chunk_left -= num_tokens
        end = min(start + num_tokens, tracked.num_prompt_tokens)
        if end > tracked.num_paid_prompt:
            account.pay(PROMPT_COST * (end - tracked.num_paid_prompt))
            tracked.num_paid_prompt = end

    def settle(self, slots: Slots) -> None:
        """Charge what running requests have gained since the last time.

        Args:
            slots: up to date.
        """
        rows = slots.order[slots.is_seated[slots.order]]
        if not len(rows):
            return
        gained = slots.total[rows] - self._charged[rows]
        self._charged[rows] += gained
        sums = np.bincount(self._account_of[rows], weights=gained)
        for index in np.flatnonzero(sums).tolist():
            self.accounts.at(index).pay(OUTPUT_COST * float(sums[index]))

    # -- order -------------------------------------------------------------------------------

    def rank(self, tracked: TrackedRequest) -> OrderKey:
        """Place among requests that run or gave their slot up: tenants that got least first.

        In steps of a quantum, so that tenants who are served alike do not preempt each other in
        turns; inside a step the own order of requests decides.
        """
        return (_account(tracked).standing // QUANTUM, *tracked.key)

    def turn(self, tracked: TrackedRequest) -> OrderKey:
        """Place of a running prompt in the order of the budget: here taking turns costs nothing."""
        return (_account(tracked).standing, *tracked.key)

    def by_need(self, rows: Rows) -> Rows:
        """Slots, those of tenants that got least first, else in the order given."""
        places = np.array([self.accounts.at(i).standing for i in self._account_of[rows].tolist()])
        return rows[np.argsort(places, kind="stable")]

    # -- seats that have to change hands ---------------------------------------------------------

    @property
    def is_check_due(self) -> bool:
        """Whether to look who waits for too long."""
        return self.step >= self._check_step

    def checked(self, *, has_found: bool) -> None:
        """Somebody looked: again in the next step if there was something, else ever later."""
        doubled = min(2 * self._check_interval, _LONGEST_INTERVAL)
        self._check_interval = 1 if has_found else doubled
        self._check_step = self.step + self._check_interval

    def neediest(self) -> Account | None:
        """The tenant that got least of those that wait and may run one more; too long already."""
        waiting = [account for account in self._waiting.values() if self.may_seat(account)]
        least = min(waiting, key=lambda account: account.standing, default=None)
        if least is None or self.step - least.blocked_since < _patience(least):
            return None
        return least

    def richest(self, needy: Account) -> Account | None:
        """Of tenants that got more and, for their weight, run more by a seat, who got most."""
        wanted = (needy.num_running + 1) / needy.weight
        return max(
            (
                account
                for account in self.accounts
                if account.standing > needy.standing
                and (account.num_running - 1) / account.weight >= wanted
            ),
            key=lambda account: account.standing,
            default=None,
        )

    # -- caps --------------------------------------------------------------------------------

    def seat_limit(self, account: Account) -> int:
        """Most requests of a tenant that may run: its own cap, and one token of its share each."""
        limit = _NO_LIMIT if account.max_seqs is None else account.max_seqs
        return limit if account.budget_share >= 1 else min(limit, self._share_tokens(account))

    def may_seat(self, account: Account) -> bool:
        """Whether a tenant may have one more running request."""
        return account.num_running < self.seat_limit(account)

    def begin_step(self, prefilling: Iterable[TrackedRequest], *, prefill_tokens: int) -> None:
        """Work out what each tenant may take of this step's prompt tokens.

        A tenant's cap is its share of the whole budget less its decodes. Of what is left for
        prompts, running ones leave tenants that wait and got less than they did a part by weight,
        as far as those want it: else long prompts that run would keep everybody out.

        Args:
            prefilling: running requests that want more than one token.
            prefill_tokens: what the step has for prompts; 0: nobody can be let in anyhow.
        """
        prefills: dict[int, int] = {}
        for tracked in prefilling:
            index = _account(tracked).index
            prefills[index] = prefills.get(index, 0) + 1
        for account in self._taking(prefills):
            account.step_left = self._share_tokens(account)
            if account.budget_share < 1:
                account.step_left -= account.num_running - prefills.get(account.index, 0)
            account.chunk_left = account.step_left
        rivals = [other for other in self._waiting.values() if self.may_seat(other)]
        if not prefill_tokens or not rivals or not prefills:
            return
        weights = sum(account.weight for account in self._taking(prefills))
        for index in prefills:
            account = self.accounts.at(index)
            kept = sum(
                min(other.waiting_tokens, prefill_tokens * other.weight // weights)
                for other in rivals
                if other is not account and other.standing <= account.standing
            )
            account.chunk_left = min(account.step_left, max(1, prefill_tokens - kept))

    def may_start(self, tenant: str) -> bool:
        """Whether one more request of a tenant starts at once, as far as its caps go.

        Those of its requests that wait are taken to start before.
        """
        account = self.accounts.find(tenant)
        if account is None:
            return True
        return account.num_running + account.num_waiting < self.seat_limit(account)

    def queue_part(self, tenant: str) -> QueuePart:
        """What a tenant has of the queue, and its share."""
        account = self.accounts.find(tenant)
        own = 1 if account is None else account.weight
        others = sum(other.weight for other in self._waiting.values() if other is not account)
        return QueuePart(
            tenant=tenant or DEFAULT_TENANT,
            num_waiting=0 if account is None else account.num_waiting,
            num_waiting_tokens=0 if account is None else account.waiting_tokens,
            share=own / (own + others),
        )

    def is_kept_out(self, tracked: TrackedRequest) -> bool:
        """Whether a cap of its tenant is why a request waits."""
        return not self.may_seat(_account(tracked))

    def chunk_room(self, tracked: TrackedRequest) -> int:
        """Prompt tokens that a running request's tenant may still take in this step."""
        account = _account(tracked)
        return min(account.chunk_left, account.step_left)

    def admission_room(self, tracked: TrackedRequest) -> int:
        """The same for a request that may be let in."""
        return _account(tracked).step_left

    def _check_after(self, num_steps: int) -> None:
        """A tenant began to wait, and may for so long."""
        self._check_step = min(self._check_step, self.step + num_steps)
        self._check_interval = 1

    def _taking(self, prefills: Iterable[int]) -> list[Account]:
        """Accounts whose requests may want prompt tokens in this step."""
        indices = dict.fromkeys([*prefills, *self._waiting])
        return [self.accounts.at(index) for index in indices]

    def _share_tokens(self, account: Account) -> int:
        return max(1, math.floor(account.budget_share * self._budget))


def _patience(account: Account) -> int:
    """Steps that a tenant waits for a seat before it gets one that another has."""
    return 0 if account.credit > 0 else RELIEF_STEPS


def _account(tracked: TrackedRequest) -> Account:
    account = tracked.account
    assert account is not None, f"request {tracked.request_id} has no account"
    return account
