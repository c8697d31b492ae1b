"""The tuner on a real cluster: engines under load, a real Prometheus, a live setting, a verdict.

The engine has KV blocks for two long answers and places for eight, and always drafts as many tokens
as it may; answers of pure chance hold hardly any draft. Windows are short, a scrape comes every two
seconds and an arm has 30 requests, all by the manifest; everything else is as in every deployment.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import prometheus
from cluster.client import Cluster, Document
from cluster.deployment import Deployment, effective
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.prometheus import Prometheus
from cluster.tuned import Tuned

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
INTERVAL = "2s"
DRAFTS = "speculativeNumTokens"
USERS = 8
CHANCE = 32
"""Words that answers are drawn from."""
GENERATION = "max(paceline:settings_generation)"
"""Changes of settings, as the engine counts them."""


STARVED: Document = {
    "maxModelLen": 144,
    "extraArgs": ["--num-kv-blocks=14"],
    "scheduling": {"maxNumSeqs": 8, "bootMaxNumSeqs": 8},
    "speculative": {
        "method": "Ngram",
        "numTokens": 10,
        "minLookup": 1,
        "maxLookup": 2,
        "adaptive": False,
    },
    "monitoring": {"podMonitor": {"interval": INTERVAL}},
    "tuning": {
        "mode": "Auto",
        "window": "20s",
        "minRequests": 30,
        "cooldown": "10m",
        "bounds": {DRAFTS: {"min": 5, "max": 10}},
    },
}


@pytest.fixture
def scraped(cluster: Cluster, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes nothing so far."""
    if cluster.layout is None:
        pytest.skip("runs Prometheus itself, in the network of a cluster of this machine")
    with prometheus.running(cluster, tmp_path, INTERVAL) as found:
        yield found


@pytest.fixture
def tuned(
    namespace: Namespace, scraped: Prometheus, idle_operator: OperatorProcess, tmp_path: Path
) -> Tuned:
    """The deployment of this test, not applied yet, and an operator that asks that Prometheus."""
    idle_operator.config["prometheus"] = {"url": scraped.url}
    idle_operator.start()
    idle_operator.wait_ready()
    return Tuned(Deployment(namespace, idle_operator.tail, idle_operator.settle), tmp_path)


def test_a_full_cache_is_diagnosed_turned_and_verified_though_the_operator_is_killed(
    tuned: Tuned,
    idle_operator: OperatorProcess,
    scraped: Prometheus,
    tell: Callable[[str], None],
) -> None:
    tuned.apply(**STARVED)
    ready = tuned.deployment.wait_ready()
    pods, generations = tuned.restarts(), tuned.deployment.generations()
    scraped.scrape(tuned.deployment.pod_items())
    untouched = scraped.wait(GENERATION)
    with tuned.load(USERS, CHANCE):
        begun = tuned.wait("a change is in force", in_force, 300)
        tuned.assert_no_diff()
        idle_operator.kill()
        idle_operator.start()
        found = tuned.wait("it is judged", lambda told: told.get("history"), 300)
        tuned.assert_no_diff()
        told = tuned.describe()
        (ended,) = found["history"]
        is_kept = ended["outcome"] == "Accepted"
        # The successor went on: nothing was done twice, as the engine itself counts it.
        scraped.wait_for(GENERATION, untouched + (1 if is_kept else 2))
    (symptom,) = [item for item in begun["symptoms"] if item["name"] == "KvPressure"]
    assert float(symptom["evidence"]["preemptionsPerRequest"]) > 0.01
    assert float(symptom["evidence"]["kvUsageP95"]) > 0.9
    assert (ended["setting"], ended["before"], ended["after"]) == (DRAFTS, "10", "5")
    assert ended["id"] == begun["current"]["id"]
    before, after = (float(ended[side]["goodput"]) for side in ("measuredBefore", "measuredAfter"))
    tell(f"{ended['outcome']}: {ended['reason']}; goodput {before} -> {after}")
    assert_right(ended)
    assert found["sequence"] == found["budget"]["liveChanges"] == 1
    assert tuned.events("ChangeStarted") == 1
    # No pod was touched, and no template.
    assert tuned.restarts() == pods
    assert tuned.deployment.generations() == generations
    now = tuned.deployment.get()
    assert effective(now, DRAFTS) == (("5", "Tuner") if is_kept else ("10", "Spec"))
    assert now["metadata"]["generation"] == ready["metadata"]["generation"]
    revision = ready["status"]["settingsRevision"]["applied"] + (1 if is_kept else 2)
    assert now["status"]["settingsRevision"] == {"wanted": revision, "applied": revision}
    outcome = "ChangeAccepted" if is_kept else "ChangeRolledBack"
    for part in ("KvPressure", "ChangeStarted", outcome, "Measured Before", "Goodput"):
        assert part in told, told


def in_force(told: Document) -> bool:
    """Pods have taken a change up, and no verdict has been given."""
    return told.get("state") in {"Settling", "Verifying"}


def assert_right(ended: Document) -> None:
    """The verdict is what the figures say.

    On a machine that others use, too, the noise can be larger than the gain: then nothing but a
    roll-back is right.
    """
    plain = r"output tokens ([+-][0-9.]+)% at equal load \(noise ([0-9.]+)%\)"
    found = re.fullmatch(plain, ended["reason"])
    is_better = found is not None and float(found[1]) > float(found[2])
    assert ended["outcome"] == ("Accepted" if is_better else "RolledBack"), ended
