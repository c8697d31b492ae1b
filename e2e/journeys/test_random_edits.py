"""Whichever way spec came there, the end is that of a fresh apply; and then nothing is written."""

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from cluster.client import Document
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.shape import shapes
from cluster.wait import until

UNCHANGED = 'paceline_operator_reconciles_total{result="unchanged"}'
BASE: Document = {
    "replicas": 0,
    "model": {"uri": "hf://example/model"},
    # What spec leaves out of these two is remembered from before, on purpose.
    "scheduling": {"bootMaxNumSeqs": 512, "bootMaxNumBatchedTokens": 16384},
}
CHOICES: dict[str, list[Any]] = {
    "maxModelLen": [128, 256, 512],
    "dtype": ["BFloat16", "Float32"],
    "objective": ["Interactive", "FirstToken", "Throughput"],
    "scheduling.maxNumSeqs": [1, 16, 300],
    "scheduling.maxNumBatchedTokens": [256, 9000],
    "scheduling.policy": ["Fcfs", "Priority"],
    "scheduling.queue": [{"maxRequests": 7}, {"timeout": "30s"}],
    "kvCache.prefixCaching": [True, False],
    "kvCache.blockSize": [16, 32],
    "slo.ttft": [{"target": "500ms"}, {"target": "2s", "attainment": "0.9"}],
    "resources": [{"gpus": 1}, {"requests": {"cpu": "1000m"}}, {"requests": {"cpu": "1"}}],
    "rollout.strategy": ["Auto", "Surge", "InPlace"],
    "drain.preStopSeconds": [0, 5],
    "service.port": [8000, 9000],
    "service.type": ["ClusterIP", "NodePort"],
    "monitoring.podMonitor.enabled": [True, False],
    "podTemplate.labels": [{"team": "a"}, {"team": "b", "tier": "x"}],
    "podTemplate.nodeSelector": [{"zone": "b"}],
    "extraArgs": [["--log-level=debug"]],
    "env": [[{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}]],
    "runtime": ["VLLM"],
    "paused": [True],
    "tensorParallelSize": [2],  # refused by this release, not by the server
}
AT_ONCE = 25
NEVER_LAST = ("paused", "tensorParallelSize")
"""An end with one of these has no children, or those of the spec before it."""


def some_spec(chance: random.Random, *, is_last: bool) -> Document:
    """A spec of a few fields, each with one of its values."""
    names = [name for name in CHOICES if not (is_last and name in NEVER_LAST)]
    spec: Document = json.loads(json.dumps(BASE))
    for path in chance.sample(names, chance.randint(1, 5)):
        *folders, field = path.split(".")
        place = spec
        for folder in folders:
            place = place.setdefault(folder, {})
        place[field] = chance.choice(CHOICES[path])
    return spec


def documents(prefix: str, specs: list[Document]) -> list[Document]:
    return [
        {
            "apiVersion": "paceline.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": f"{prefix}-{number:03d}"},
            "spec": spec,
        }
        for number, spec in enumerate(specs)
    ]


def apply_all(namespace: Namespace, found: list[Document]) -> None:
    """Apply many in portions: a busy server takes minutes for hundreds, and one call must end."""
    for first in range(0, len(found), AT_ONCE):
        namespace.apply(*found[first : first + AT_ONCE])


def verdict(found: Document) -> list[list[str]]:
    """What is said about spec."""
    return [item for item in found["conditions"] if item[0] in {"ConfigValid", "Ready"}]


def settle(namespace: Namespace, number: int, timeout_s: float) -> None:
    """Wait until every status is about the present spec and nothing is on its way."""

    def is_settled() -> bool:
        found = namespace.items("llmdep")
        return len(found) >= number and all(
            item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"]
            and any(c["type"] == "Ready" for c in item["status"]["conditions"])
            and not any(c["type"] == "Reconciling" for c in item["status"]["conditions"])
            for item in found
        )

    until("everything is settled", is_settled, timeout_s=timeout_s, interval_s=1)


def edited_like_fresh(
    namespace: Namespace, operator: OperatorProcess, seed: int, *, sequences: int, edits: int
) -> None:
    """All sequences at once: a round of edits changes some of them while others are worked on."""
    chance = random.Random(seed)
    ends = [some_spec(chance, is_last=True) for _ in range(sequences)]
    for _ in range(edits):
        specs = [some_spec(chance, is_last=False) for _ in range(sequences)]
        apply_all(namespace, documents("edited", specs))
        for _ in range(chance.randint(0, 3)):
            operator.get("/readyz")  # some time, never the same
    apply_all(namespace, [*documents("edited", ends), *documents("fresh", ends)])
    settle(namespace, 2 * sequences, timeout_s=120 + sequences)
    operator.settle(60 + sequences)
    different, found = [], shapes(namespace)
    for number in range(sequences):
        edited, fresh = (found[f"{name}-{number:03d}"] for name in ("edited", "fresh"))
        if ["ConfigValid", "False", "NotSupported"] in fresh["conditions"]:
            # What was served before is left as it is, so only the verdict must be the same.
            edited, fresh = ({"conditions": verdict(each)} for each in (edited, fresh))
        if edited != fresh:
            different.append(f"{ends[number]}:\n{edited}\n{fresh}")
    assert not different, f"{len(different)} of {sequences}, seed {seed}:\n{different[0]}"

    looked, writes = operator.metric(UNCHANGED), operator.writes()
    # One request for each of hundreds, on a server that may have much else to do.
    namespace.kubectl("label", "llmdep", "--all", "example.com/looked=at", timeout_s=600)
    until(
        "every one was looked at again",
        lambda: operator.metric(UNCHANGED) >= looked + 2 * sequences,
        timeout_s=60 + sequences,
    )
    assert operator.writes() == writes, "a second look writes nothing"


MANY = int(os.environ.get("PACELINE_E2E_SEQUENCES", "200"))
SEED = int(os.environ.get("PACELINE_E2E_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.mark.timeout(600)
def test_a_score_of_ways_ends_like_a_fresh_apply(
    namespace: Namespace, operator: OperatorProcess, tell: Callable[[str], None]
) -> None:
    edited_like_fresh(namespace, operator, SEED, sequences=20, edits=4)
    tell(f"20 sequences of 5 edits, PACELINE_E2E_SEED={SEED}")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_ways_end_like_a_fresh_apply(
    namespace: Namespace, operator: OperatorProcess, tell: Callable[[str], None]
) -> None:
    edited_like_fresh(namespace, operator, SEED, sequences=MANY, edits=6)
    tell(f"{MANY} sequences of 7 edits, PACELINE_E2E_SEED={SEED}")
