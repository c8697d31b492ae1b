"""The signals (`terms`) as one PromQL query, evaluated at an explicit time: the end of a window.

Every selector names the namespace and the counted pods; nothing goes by model name. Where two
Prometheus jobs scrape a pod each series is there twice, so duplicates go first (`max by` what
identifies an engine), then engines are added up. The whole sample is one query: the union of all
signals, each with its name in the label `signal`, so it is of one moment or it is missing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.decide.tuning.terms import (
    TERMS,
    Each,
    Folded,
    Over,
    Quantile,
    Ratio,
    Term,
    Total,
    Where,
)

LABEL = "signal"
ENGINE = ("namespace", "pod", "engine")
"""Labels that identify an engine in a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which series are meant.

    Attributes:
        matchers: label matchers of every selector, without braces.
        identity: labels that identify an engine.
    """

    matchers: str
    identity: tuple[str, ...] = ENGINE


def pods(namespace: str, names: Iterable[str]) -> Scope:
    """Exactly these pods of a namespace."""
    listed = "|".join(name.replace(".", r"\\.") for name in sorted(names))
    return Scope(matchers=f'namespace="{namespace}",pod=~"{listed}"')


def sample(scope: Scope, window_s: int) -> str:
    """The query of a whole sample; one series for each signal that there is.

    Args:
        scope: the series.
        window_s: length of the window, whose end is the time of evaluation.
    """
    return union(TERMS, scope, window_s)


def union(
    terms: Mapping[Signal, Term] | Mapping[str, Term],
    scope: Scope,
    window_s: int,
    *,
    by: tuple[str, ...] = (),
) -> str:
    """The query of some terms, each told by its name in the label `signal`.

    Args:
        terms: by name.
        scope: the series.
        window_s: length of the window, whose end is the time of evaluation.
        by: labels whose values are kept apart instead of put together; of the identity.
    """
    asked = _Asked(scope, f"{window_s}s", by)
    return " or ".join(
        f'label_replace({asked.text(term)}, "{LABEL}", "{name}", "", "")'
        for name, term in terms.items()
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """Writes terms for one scope and one window."""

    scope: Scope
    window: str
    by: tuple[str, ...]

    def text(self, term: Term) -> str:
        """A term."""
        match term:
            case Folded():
                return self._folded(term)
            case Quantile():
                buckets = self._each(term.buckets)
                labels = ", ".join((*self.by, "le"))
                return f"histogram_quantile({term.share}, sum by ({labels}) ({buckets}))"
            case Ratio():
                text = f"{self._folded(term.part)} / {self._folded(term.whole)}"
                return f"1 - {text}" if term.is_rest else text
            case Total():
                return f"{self._folded(term.one)} + {self._folded(term.other)}"

    def _folded(self, term: Folded) -> str:
        inner = self._each(term.each)
        if term.adds_up_each:
            inner = f"sum by ({', '.join(self.scope.identity)}) ({inner})"
        kept = f" by ({', '.join(self.by)}) " if self.by else ""
        return f"{term.fold}{kept}({inner})"

    def _each(self, each: Each) -> str:
        """One value for each engine (and further labels), duplicates gone."""
        labels = ", ".join((*self.scope.identity, *each.by))
        matchers = ",".join((self.scope.matchers, *(_matcher(item) for item in each.where)))
        share = "0.95, " if each.over is Over.P95 else ""
        series = f"{share}{each.series}{{{matchers}}}[{self.window}]"
        return f"max by ({labels}) ({each.over}({series}))"


def _matcher(where: Where) -> str:
    is_several = len(where.values) > 1
    operator = ("!" if where.is_not else "=") + ("~" if is_several else "=" * where.is_not)
    return f'{where.label}{operator}"{"|".join(where.values)}"'
