"""What to ask Prometheus for one deployment now: a question for each window that is due."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_crds.spec_tuning import TuningMode
from paceline_operator.decide.tuning import codec, policy, queries, windows
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample, Window
from paceline_operator.render import names
from paceline_operator.resources import objects, parse
from paceline_operator.resources.parse import Parsed

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One window.

    Attributes:
        pods: the counted ones; without any there is nothing to ask.
        query: PromQL, to be evaluated at the end of the window.
    """

    window: Window
    pods: tuple[str, ...]
    query: str

    @property
    def at(self) -> float:
        """Time of evaluation, seconds since the epoch."""
        return float(self.window.end)

    def nothing(self) -> Sample:
        """The sample of a window in which no pod counted."""
        return Sample(window=self.window, pods=self.pods)


def questions(document: Object, pods: Iterable[Object], now: float) -> tuple[Question, ...]:
    """The windows of a deployment that can be read by now, oldest first.

    Args:
        document: the LLMDeployment.
        pods: its pods; those of the wanted template that are ready and were warm count.
        now: seconds since the epoch.
    """
    parsed = parse.parse(document)
    if not isinstance(parsed, Parsed):
        return ()
    rules = policy.of_spec(parsed.deployment.spec)
    if rules.mode is TuningMode.OFF:
        return ()
    status = objects.mapping(document, "status")
    ready = list(ready_since(pods, objects.text(status, "wantedHash")))
    seen = codec.decode(objects.mapping(status, "tuning")).seen_until
    made = []
    for window in windows.due(seen, now, length_s=rules.window_s, scrape_s=rules.scrape_s):
        counted = windows.pods_of(window, ready, rules.warm_up)
        scope = queries.pods(parsed.identity.namespace, counted)
        made.append(
            Question(window=window, pods=counted, query=queries.sample(scope, rules.window_s))
        )
    return tuple(made)


def ready_since(pods: Iterable[Object], digest: str) -> Iterable[tuple[str, float]]:
    """Names of the ready pods of a template, and since when they are."""
    for pod in pods:
        ready = objects.condition(pod, "Ready")
        is_mine = objects.labels(pod).get(names.HASH_LABEL) == digest
        if is_mine and ready.get("status") == "True" and not objects.is_deleted(pod):
            yield objects.name(pod), objects.seconds(ready.get("lastTransitionTime")) or 0.0


def next_look_s(rules: Policy, now: float) -> float:
    """When the next window can be read."""
    return windows.next_due(now, length_s=rules.window_s, scrape_s=rules.scrape_s)


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Tells a spec that was changed in what measurements depend on.

    Replicas belong to a scaler, and `paused` and the mode have rules of their own.
    """
    kept = {key: value for key, value in spec.items() if key not in {"replicas", "paused"}}
    tuning = dict(objects.mapping(kept, "tuning"))
    tuning.pop("mode", None)
    kept["tuning"] = tuning
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
