"""What is counted by tenant: bounded series, whatever names come from outside."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_crds import metrics
from paceline_crds.metrics import REQUEST_STATES, TOKEN_KINDS
from paceline_engine.core.accounts import DEFAULT_TENANT, MAX_TENANTS, OTHER_TENANTS
from paceline_engine.core.snapshot import Labels

_CAPACITY = 2 * MAX_TENANTS
_REST = _CAPACITY - 1  # index of all who are too many


class TenantTally:
    """Counters by tenant. Mutable; the recorder's rows own it.

    Who comes first has a series of its own, up to `MAX_TENANTS`; declared tenants have one in any
    case. The others share one.
    """

    def __init__(self) -> None:
        self._indices: dict[str, int] = {DEFAULT_TENANT: 0}
        self._served = np.zeros((_CAPACITY, len(TOKEN_KINDS)), dtype=np.int64)
        self._refused = np.zeros(_CAPACITY, dtype=np.int64)
        self._yields = np.zeros(_CAPACITY, dtype=np.int64)

    def index_of(self, name: str) -> int:
        """A tenant's index, given out at its first request."""
        index = self._indices.get(name or DEFAULT_TENANT)
        return self._add(name, MAX_TENANTS) if index is None else index

    def declare(self, names: Iterable[str]) -> None:
        """These tenants have series from now on, at 0 before their first request."""
        for name in names:
            if name not in self._indices:
                self._add(name, _REST)

    def _add(self, name: str, most: int) -> int:
        if len(self._indices) >= most:
            return self._indices.setdefault(OTHER_TENANTS, _REST)
        index = self._indices[name] = len(self._indices)
        return index

    def serve(
        self, kind: int, indices: NDArray[np.int64], counts: NDArray[np.integer[Any]]
    ) -> None:
        """Tenants were given tokens of a kind, [m] each."""
        if len(self._indices) == 1:
            self._served[0, kind] += int(np.add.reduce(counts))
        else:
            np.add.at(self._served[:, kind], indices, counts)

    def refuse(self, name: str) -> None:
        """A request was not taken because its tenant had its part of the queue."""
        self._refused[self.index_of(name)] += 1

    def give_up_seat(self, index: int) -> None:
        """A running request made room for another tenant's."""
        self._yields[index] += 1

    def series(
        self, running: NDArray[np.int64], waiting: NDArray[np.int64]
    ) -> dict[str, dict[Labels, float]]:
        """All families by tenant.

        Args:
            running: index of each request that runs.
            waiting: index of each that waits.
        """
        states = [np.bincount(indices, minlength=_CAPACITY) for indices in (running, waiting)]
        tenants = self._indices.items()
        return {
            metrics.SERVED_TOKENS: {
                (tenant, kind): float(self._served[index, column])
                for tenant, index in tenants
                for column, kind in enumerate(TOKEN_KINDS)
            },
            metrics.TENANT_REQUESTS: {
                (tenant, state): float(counts[index])
                for tenant, index in tenants
                for state, counts in zip(REQUEST_STATES, states, strict=True)
            },
            metrics.TENANT_REFUSED: {(t,): float(self._refused[i]) for t, i in tenants},
            metrics.TENANT_YIELDS: {(t,): float(self._yields[i]) for t, i in tenants},
        }
