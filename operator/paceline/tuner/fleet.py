"""A fleet behind a Prometheus: which engines a selector means, and what was measured of them.

Anything that exports vLLM's metrics will do. Where engines count no requests within targets, the
shares are interpolated from their histograms and marked as estimated: an average over gaps, not a
judgement of each request.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isclose, isfinite

from paceline.errors import CommandError
from paceline.tuner.prometheus import Prometheus
from paceline_crds import metrics
from paceline_operator.decide.tuning import queries
from paceline_operator.decide.tuning.policy import Policy, Target
from paceline_operator.decide.tuning.queries import LABEL, Scope
from paceline_operator.decide.tuning.signals import MIN_SCRAPES, Sample, Signal, Window
from paceline_operator.render import names

IDENTITY = ("instance", "engine")
"""Labels that tell engines apart wherever they are scraped."""
SET_LABELS = (
    "namespace",
    names.scraped(names.DEPLOYMENT_LABEL),
    names.scraped(names.HASH_LABEL),
    "model_name",
)
"""Labels that engines of one replica set have in common; some are absent elsewhere."""
_PAIR = re.compile(
    r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|[^"=~!,{}\s][^",{}\s]*)\s*(?:,|$)'
)
_KNOWN = frozenset(signal.value for signal in Signal)
_SHOWN = 5
_LATENCIES = {
    "ttft": (metrics.TTFT, Signal.TTFT_WITHIN, Signal.TTFT_JUDGED),
    "itl": (metrics.ITL, Signal.ITL_WITHIN, Signal.ITL_JUDGED),
    "e2e": (metrics.E2E, Signal.E2E_WITHIN, Signal.E2E_JUDGED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines that a selector means.

    Attributes:
        engines: their names.
        settings: camelCase name -> value, of numbers that engines export themselves.
        targets_s: latency -> target that engines judge by, seconds.
        is_paceline: they export Paceline's own metrics.
    """

    scope: Scope
    engines: tuple[str, ...]
    settings: Mapping[str, float] = field(default_factory=dict)
    targets_s: Mapping[str, float] = field(default_factory=dict)
    is_paceline: bool = False


def matchers(selector: str) -> str:
    """A selector as PromQL takes it; quotes and braces may be left out.

    Raises:
        CommandError: it is no list of label matchers.
    """
    text = selector.strip().removeprefix("{").removesuffix("}").strip()
    found, at = [], 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            break
        name, operator, value = pair.groups()
        quoted = value if value.startswith('"') else f'"{value}"'
        found.append(f"{name}{operator}{quoted}")
        at = pair.end()
    if not found or at < len(text):
        raise CommandError(
            f"--selector must be label matchers as in PromQL, got {selector!r}; for example "
            '--selector \'namespace="models",pod=~"chat-.*"\''
        )
    return ",".join(found)


def find(prometheus: Prometheus, selector: str, window_s: int, at: float) -> Fleet:
    """The engines that a selector means at a time.

    Raises:
        CommandError: there are none; what there is instead is told.
    """
    scope = Scope(matchers=matchers(selector), identity=IDENTITY)
    over = f"{{{scope.matchers}}}[{window_s}s]"
    by = ", ".join(IDENTITY)
    found = prometheus.ask(f"max by ({by}) (last_over_time({metrics.RUNNING}{over}))", at)
    if not found:
        raise CommandError(_nobody(prometheus, scope, window_s, at))
    names = sorted("/".join(filter(None, map(item.labels.get, IDENTITY))) for item in found)
    settings = prometheus.ask(f"max by (name) (last_over_time({metrics.SETTING}{over}))", at)
    targets = prometheus.ask(f"max by (signal) (last_over_time({metrics.SLO_TARGET}{over}))", at)
    return Fleet(
        scope=scope,
        engines=tuple(names),
        settings={item.labels["name"]: item.value for item in settings},
        targets_s={item.labels["signal"]: item.value for item in targets},
        is_paceline=bool(settings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """Engines that belong together.

    Attributes:
        name: for people.
        selector: what means them alone.
        engines: (instance, engine) -> name for people: the pod's, else the instance's.
    """

    name: str
    selector: str
    engines: Mapping[tuple[str, ...], str]


def replica_sets(
    prometheus: Prometheus, selector: str, window_s: int, at: float
) -> tuple[ReplicaSet, ...]:
    """The sets that a selector means: of one deployment and template, elsewhere of one model.

    Raises:
        CommandError: no engine is there, or Prometheus does not answer.
    """
    scope = Scope(matchers=matchers(selector), identity=IDENTITY)
    labels = (*IDENTITY, "pod", *SET_LABELS)
    over = f"{metrics.RUNNING}{{{scope.matchers}}}[{window_s}s]"
    found = prometheus.ask(f"max by ({', '.join(labels)}) (last_over_time({over}))", at)
    if not found:
        raise CommandError(_nobody(prometheus, scope, window_s, at))
    members: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    for item in found:
        engine = tuple(item.labels.get(name, "") for name in IDENTITY)
        kind = tuple(item.labels.get(name, "") for name in SET_LABELS)
        members.setdefault(kind, {})[engine] = _name_of(item.labels)
    titles = Counter(map(_title, members))
    return tuple(
        ReplicaSet(
            name=_title(kind) + (f" · {kind[2]}" if titles[_title(kind)] > 1 else ""),
            # One set alone keeps its past when a pod comes back under another address.
            selector=scope.matchers if len(members) == 1 else _only(scope.matchers, engines),
            engines=dict(sorted(engines.items(), key=lambda engine: engine[1])),
        )
        for kind, engines in sorted(members.items())
    )


def _name_of(labels: Mapping[str, str]) -> str:
    name = labels.get("pod") or labels.get("instance", "")
    engine = labels.get("engine", "0")
    return name if engine == "0" else f"{name}/{engine}"


def _title(kind: tuple[str, ...]) -> str:
    namespace, deployment, _, model = kind
    return "/".join(filter(None, (namespace, deployment or model))) or "engines"


def _only(matching: str, engines: Iterable[tuple[str, ...]]) -> str:
    listed = "|".join(sorted({re.escape(instance) for instance, _ in engines}))
    return f'{matching},instance=~"{listed}"'.replace("\\", "\\\\")


def _nobody(prometheus: Prometheus, scope: Scope, window_s: int, at: float) -> str:
    name = metrics.RUNNING
    there = prometheus.ask(f"group without (engine, job) (last_over_time({name}[{window_s}s]))", at)
    if not there:
        return (
            f"this Prometheus has no series {name} of the last {window_s} s: it scrapes no engine "
            "with vLLM's metrics; check its targets, and --prometheus"
        )
    shown = ["  " + _labels_text(item.labels) for item in there[:_SHOWN]]
    more = f"\n  and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return (
        f"no series {name} matches {{{scope.matchers}}}; this Prometheus has\n"
        + "\n".join(shown)
        + more
    )


def _labels_text(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))


def windows_before(at: float, window_s: int, count: int) -> list[Window]:
    """So many windows in a row, the last one ending at that time."""
    end = int(at)
    starts = [end - window_s * back for back in range(count, 0, -1)]
    return [Window(start=start, end=start + window_s) for start in starts]


def measure(
    prometheus: Prometheus, fleet: Fleet, window: Window, rules: Policy
) -> tuple[Sample, frozenset[str]]:
    """One window, and the names of latencies whose shares within their target are estimated."""
    found = prometheus.ask(queries.sample(fleet.scope, window.length_s), float(window.end))
    values = {
        Signal(item.labels[LABEL]): item.value
        for item in found
        if item.labels.get(LABEL) in _KNOWN and isfinite(item.value)
    }
    sample = Sample(window=window, pods=fleet.engines, values=values)
    estimated = set()
    for name, target in rules.targets.items():
        histogram, within, judged = _LATENCIES[name]
        finished = sample.get(Signal.FINISHED)
        is_judged = sample.get(judged) and _is_theirs(fleet, name, target)
        if is_judged or not finished:
            continue
        share = _share_within(prometheus, fleet, histogram, window, target)
        if share is not None:
            more = {within: share * finished, judged: finished}
            sample = replace(sample, values={**sample.values, **more})
            estimated.add(name)
    return sample, frozenset(estimated)


def _is_theirs(fleet: Fleet, name: str, target: Target) -> bool:
    """Whether engines judge by that target; one that was asked for may be another."""
    return isclose(fleet.targets_s.get(name, target.limit_s), target.limit_s)


def _share_within(
    prometheus: Prometheus, fleet: Fleet, histogram: str, window: Window, target: Target
) -> float | None:
    """Share of a histogram's observations up to a target, linear within a bucket."""
    by = ", ".join((*IDENTITY, "le"))
    series = f"{histogram}_bucket{{{fleet.scope.matchers}}}[{window.length_s}s]"
    query = f"sum by (le) (max by ({by}) (increase({series})))"
    found = prometheus.ask(query, float(window.end))
    counts = sorted((float(item.labels["le"]), item.value) for item in found)
    return share_up_to(counts, target.limit_s)


def share_up_to(counts: Sequence[tuple[float, float]], limit: float) -> float | None:
    """Share of observations up to a limit.

    Args:
        counts: (upper bound, observations up to it), ascending, the last bound infinite.
        limit: in the bounds' unit.
    """
    if not counts or not counts[-1][1]:
        return None
    total = counts[-1][1]
    below, count_below = 0.0, 0.0
    for bound, count in counts:
        if limit <= bound:
            if bound == inf:
                return count_below / total
            inside = (limit - below) / (bound - below)
            return (count_below + inside * (count - count_below)) / total
        below, count_below = bound, count
    return 1.0


def too_few_scrapes(samples: Sequence[Sample]) -> str:
    """What to tell if the windows hold too few scrapes, empty if they hold enough."""
    counts = [sample.get(Signal.SCRAPES) or 0 for sample in samples]
    if not counts or max(counts) >= MIN_SCRAPES:
        return ""
    length = samples[-1].window.length_s
    return (
        f"a window of {length} s holds {max(counts):.0f} scrapes and needs {MIN_SCRAPES}; "
        "choose a longer --window, or wait if the engines are new"
    )
