"""What is kept of each tenant under policy Fair: bounded, however many names there are."""

from collections.abc import Iterator, Sequence

from paceline_crds.tenants import Tenant

DEFAULT_TENANT = "default"
"""Who is charged for requests that name nobody."""
OTHER_TENANTS = "_other"
"""Who is charged when too many names are active at once; nobody can be called so."""
MAX_TENANTS = 256
"""Names may come from outside, in a header."""


class Account:
    """One tenant. Mutable, with slots; `FairBook` changes it.

    Attributes:
        index: its place in arrays.
        weight: its part of served tokens against the other tenants'.
        max_seqs: most running requests, None for no limit of its own.
        budget_share: most of a step's token budget, in [0, 1].
        counter: virtual tokens: what was computed for it, over its weight.
        credit: virtual tokens that it may have before its counter grows.
        num_running, num_waiting: its requests.
        waiting_tokens: known tokens of those that wait.
        step_left, chunk_left: prompt tokens that it may still take in this step, new requests and
            those that run together; running ones alone.
        blocked_since: the step in which it began to wait, or last took a seat.
    """

    __slots__ = (
        "blocked_since",
        "budget_share",
        "chunk_left",
        "counter",
        "credit",
        "index",
        "max_seqs",
        "name",
        "num_running",
        "num_waiting",
        "step_left",
        "waiting_tokens",
        "weight",
    )

    def __init__(self, name: str, index: int) -> None:
        self.name, self.index = name, index
        self.weight = 1
        self.max_seqs: int | None = None
        self.budget_share = 1.0
        self.counter = self.credit = 0.0
        self.num_running = self.num_waiting = self.waiting_tokens = 0
        self.step_left = self.chunk_left = 0
        self.blocked_since = 0

    @property
    def is_active(self) -> bool:
        """It has a request."""
        return bool(self.num_running or self.num_waiting)

    @property
    def standing(self) -> float:
        """Its place among tenants, in virtual tokens: who has the smallest is next."""
        return self.counter - self.credit

    def pay(self, cost: float) -> None:
        """Tokens were computed for it."""
        cost /= self.weight
        covered = min(self.credit, cost)
        self.credit -= covered
        self.counter += cost - covered

    def lift(self, counter: float, most_credit: float) -> None:
        """Begin no lower than a counter; some of the distance may be had in advance later."""
        if counter > self.counter:
            self.credit = min(self.credit + counter - self.counter, most_credit)
            self.counter = counter


class Accounts:
    """Accounts by name. Mutable.

    Declared tenants stay. Others come with their first request; when there are too many, the one
    without requests that got least is forgotten (it would be lifted anyway when it returns), and if
    all have requests, further names share one account.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Account] = {}
        self._by_index: list[Account | None] = []
        self._spare: list[int] = []
        self._declared: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def at(self, index: int) -> Account:
        """The account with an index."""
        account = self._by_index[index]
        assert account is not None, f"account {index} is free"
        return account

    def find(self, name: str) -> Account | None:
        """A tenant's account, if there is one."""
        return self._by_name.get(name or DEFAULT_TENANT)

    def of(self, name: str) -> Account:
        """A tenant's account, made if it is new."""
        name = name or DEFAULT_TENANT
        found = self._by_name.get(name)
        if found is not None:
            return found
        if len(self._by_name) - len(self._declared) >= MAX_TENANTS and not self._forget_one():
            return self._by_name.get(OTHER_TENANTS) or self._add(OTHER_TENANTS)
        return self._add(name)

    def declare(self, tenants: Sequence[Tenant]) -> None:
        """These are the tenants that settings name; the others have weight 1 and no caps."""
        self._declared = frozenset(tenant.name for tenant in tenants)
        for account in [*self._by_name.values()]:
            if account.name not in self._declared:
                account.weight, account.max_seqs, account.budget_share = 1, None, 1.0
        for tenant in tenants:
            account = self._by_name.get(tenant.name) or self._add(tenant.name)
            account.weight, account.max_seqs = tenant.weight, tenant.max_seqs
            account.budget_share = float(tenant.budget_share)

    def _add(self, name: str) -> Account:
        if self._spare:
            index = self._spare.pop()
        else:
            index = len(self._by_index)
            self._by_index.append(None)
        account = self._by_index[index] = self._by_name[name] = Account(name, index)
        return account

    def _forget_one(self) -> bool:
        idle = [
            account
            for account in self._by_name.values()
            if not account.is_active and account.name not in self._declared
        ]
        if not idle:
            return False
        least = min(idle, key=lambda account: account.counter)
        del self._by_name[least.name]
        self._by_index[least.index] = None
        self._spare.append(least.index)
        return True
