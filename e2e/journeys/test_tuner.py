"""The tuner on a real cluster: engines under load, a real Prometheus, a live setting, a verdict.

Nothing here is a matter of seconds: counts are compared, and goodputs of one machine before and
after. Windows are short, a scrape comes every two seconds and an arm has few requests, all by the
manifest; everything else is as in every deployment.

In the first journey the engine has KV blocks for a long answer and a half, and seats for eight, and
always drafts as many tokens as it may; answers of pure chance hold hardly any draft, so drafts
cost a step most of its time and take what blocks are left. Four long answers come in a row behind
twelve short ones: nobody expects them, too many are let in, and some are preempted. Blocks are
small, since after a preemption whole blocks are kept free: of half as many that would be a third.
In the others it has one seat, and many wait for it.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cluster import prometheus
from cluster.client import Cluster, Document
from cluster.deployment import Deployment, effective
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.prometheus import Prometheus
from cluster.tuned import Tuned

pytestmark = [pytest.mark.full, pytest.mark.timeout(3000)]
INTERVAL = "2s"
WINDOW_S = 40
"""Of the first journey: in each window somebody has to be preempted."""
DRAFTS = "speculativeNumTokens"
WAVES = (2,) * 12 + (110,) * 4
"""Tokens of answers, in turn."""
FEW = 8
"""Words of which hardly any draft holds either, and after some tokens there is always one."""
USERS = 8
CHANCE = 32
"""Words that answers are drawn from."""
CAP = "maxNumSeqs"
GENERATION = "max(paceline:settings_generation)"
"""Changes of settings, as the engine counts them."""
GAP = "histogram_quantile(0.5, sum by (le) (increase(vllm:inter_token_latency_seconds_bucket[1m])))"
"""Median gap between tokens, seconds."""


STARVED: Document = {
    "maxModelLen": 144,
    "kvCache": {"blockSize": 8},
    "extraArgs": ["--num-kv-blocks=26"],
    "scheduling": {CAP: 8, "bootMaxNumSeqs": 8},
    "speculative": {
        "method": "Ngram",
        "numTokens": 32,
        "minLookup": 1,
        "maxLookup": 2,
        "adaptive": False,
    },
    "monitoring": {"podMonitor": {"interval": INTERVAL}},
    "tuning": {
        "mode": "Auto",
        "window": f"{WINDOW_S}s",
        "minRequests": 100,
        "cooldown": "10m",
        "bounds": {DRAFTS: {"min": 16, "max": 32}},
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


def test_a_starved_cache_is_diagnosed_and_goodput_rises_though_the_operator_is_killed(
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
    with tuned.load(USERS, FEW, lengths=WAVES):
        begun = tuned.wait("a change is being verified", is_measured, 1200)
        tuned.assert_no_diff()
        idle_operator.kill()
        idle_operator.start()
        read = begun["current"]["measured"]["windows"]
        resumed = tuned.wait("its successor goes on", lambda told: is_measured(told, read + 1), 300)
        found = tuned.wait("it is judged", lambda told: told.get("history"), 1200)
        tuned.assert_no_diff()
        told = tuned.describe()
        # Nothing was done twice, as the engine itself counts it.
        scraped.wait_for(GENERATION, untouched + 1)
    assert_goes_on(begun["current"], resumed["current"])
    assert_diagnosed(told)
    (ended,) = found["history"]
    assert ended["id"] == begun["current"]["id"]
    turned = tuple(ended[name] for name in ("setting", "before", "after", "outcome"))
    assert turned == (DRAFTS, "32", "16", "Accepted"), json.dumps(ended)
    ((before, after),) = figures(ended, "goodput")
    tell(f"{ended['reason']}; goodput {before} -> {after}")
    assert after > before
    assert found["sequence"] == found["budget"]["liveChanges"] == 1
    assert tuned.events("ChangeStarted") == 1
    # No pod was touched, and no template.
    assert tuned.restarts() == pods
    assert tuned.deployment.generations() == generations
    now = tuned.deployment.get()
    assert effective(now, DRAFTS) == ("16", "Tuner")
    assert now["metadata"]["generation"] == ready["metadata"]["generation"]
    revision = ready["status"]["settingsRevision"]["applied"] + 1
    assert now["status"]["settingsRevision"] == {"wanted": revision, "applied": revision}
    for part in ("KvPressure", "ChangeStarted", "ChangeAccepted", "Measured Before", "Goodput"):
        assert part in told, told


def assert_diagnosed(told: str) -> None:
    """The event of the symptom shows a full cache and preempted requests."""
    found = re.search(r"KvPressure .* kvUsageP95 ([0-9.]+), preemptionsPerRequest ([0-9.]+)", told)
    assert found is not None, told
    assert float(found[1]) > 0.9
    assert float(found[2]) > 0.01


def is_measured(told: Document, windows: int = 1) -> bool:
    """A change is being verified, and so many windows of it have been read."""
    current = told.get("current", {})
    read = int(current.get("measured", {}).get("windows", 0))
    return bool(current.get("phase") == "Verifying" and read >= windows)


def assert_goes_on(change: Document, later: Document) -> None:
    """The same change, and the same measurement with more windows: none twice, none left out."""
    assert later["id"] == change["id"]
    arm, grown = change["measured"], later["measured"]
    assert grown["start"] == arm["start"]
    assert grown["windows"] > arm["windows"]
    begin, end = (datetime.fromisoformat(grown[side]) for side in ("start", "end"))
    assert end - begin == grown["windows"] * timedelta(seconds=WINDOW_S)


def in_force(told: Document) -> bool:
    """Pods have taken a change up, and no verdict has been given."""
    return told.get("state") in {"Settling", "Verifying"}


def one_seat(mode: str, **spec: object) -> Document:
    """Serves one request at a time though it has KV blocks for dozens."""
    return {
        "maxModelLen": 512,
        "extraArgs": ["--num-kv-blocks=512"],
        "scheduling": {CAP: 1, "bootMaxNumSeqs": 2, "interTokenTargetMs": 0},
        "monitoring": {"podMonitor": {"interval": INTERVAL}},
        "tuning": {
            "mode": mode,
            "window": "20s",
            "minRequests": 60,
            "cooldown": "0s",
            "bounds": {CAP: {"max": 2}},
        },
        **spec,
    }


def test_people_watch_decide_and_freeze_and_goodput_rises(
    tuned: Tuned, scraped: Prometheus, tell: Callable[[str], None]
) -> None:
    tuned.apply(**one_seat("Observe"))
    ready = tuned.deployment.wait_ready()
    pods, generations = tuned.restarts(), tuned.deployment.generations()
    scraped.scrape(tuned.deployment.pod_items())
    with tuned.load(USERS, CHANCE, lengths=(12,)):
        seen = tuned.wait("it is advised and measured", is_advised, 600)
        assert seen.get("current") is None
        (advice,) = [item for item in seen["recommendations"] if item["symptom"] == "QueueWait"]
        assert advice["change"] == "spec.scheduling.maxNumSeqs: 2"
        tuned.assert_no_diff()

        tuned.apply(**one_seat("Propose"))
        asked = tuned.wait("a change is proposed", lambda told: told.get("current"), 300)["current"]
        assert (asked["phase"], asked["setting"], asked["after"]) == ("Proposed", CAP, "2")

        tuned.annotate("paceline.dev/freeze=true", f"paceline.dev/approve={asked['id']}")
        tuned.wait("it is frozen", lambda told: told["reason"] == "Frozen", 300)
        frozen = tuned.wait_window()
        assert frozen["current"]["phase"] == "Proposed"
        untouched = tuned.deployment.get()
        assert untouched["status"]["settingsRevision"] == ready["status"]["settingsRevision"]
        assert effective(untouched, CAP) == ("1", "Spec")

        tuned.annotate("paceline.dev/freeze-")
        tuned.wait("it is in force", in_force, 300)
        assert effective(tuned.deployment.get(), CAP) == ("2", "Tuner")
        tuned.assert_no_diff()
        found = tuned.wait("it is judged", lambda told: told.get("history"), 900)
        tuned.assert_no_diff()
        told = tuned.describe()
    (ended,) = found["history"]
    assert (ended["id"], ended["outcome"]) == (asked["id"], "Accepted"), json.dumps(ended)
    ((before, after),) = figures(ended, "goodput")
    assert after > before
    assert effective(tuned.deployment.get(), CAP) == ("2", "Tuner")
    assert tuned.restarts() == pods
    assert tuned.deployment.generations() == generations
    for part in ("QueueWait", "ChangeProposed", "ChangeAccepted", "Measured Before", "Goodput"):
        assert part in told, told
    tell(f"{ended['outcome']}: {ended['reason']}; goodput {before} -> {after}")


def test_a_harmful_change_that_a_person_approved_is_taken_back(
    tuned: Tuned, scraped: Prometheus, tell: Callable[[str], None]
) -> None:
    """A second seat puts the prompt of one into the stream of the other: ten steps' time at once.

    What streams are promised is four times the gap that they have alone, as this machine has it.
    """
    tuned.apply(**one_seat("Observe"))
    tuned.deployment.wait_ready()
    pods, generations = tuned.restarts(), tuned.deployment.generations()
    scraped.scrape(tuned.deployment.pod_items())
    with tuned.load(USERS, CHANCE, prompt=300, lengths=(8, 20, 13)):
        tuned.wait("requests wait", is_shown, 600)
        promised = f"{4 * scraped.wait(GAP) * 1000:.0f}ms"
        slo = {"itl": {"target": promised, "attainment": "0.5"}}
        tuned.apply(**one_seat("Propose", slo=slo))
        asked = tuned.wait("a change is proposed", lambda told: told.get("current"), 600)["current"]
        assert (asked["setting"], asked["before"], asked["after"]) == (CAP, "1", "2")
        tuned.annotate(f"paceline.dev/approve={asked['id']}")
        tuned.wait("it is in force", in_force, 300)
        assert effective(tuned.deployment.get(), CAP) == ("2", "Tuner")
        tuned.assert_no_diff()
        found = tuned.wait("it is judged", lambda told: told.get("history"), 900)
        tuned.assert_no_diff()
        told = tuned.describe()
    (ended,) = found["history"]
    assert (ended["id"], ended["outcome"]) == (asked["id"], "RolledBack"), json.dumps(ended)
    assert "attainment" in ended["reason"], json.dumps(ended)
    ((before, after),) = figures(ended, "goodput")
    assert after < before
    # As it was, in the engine too; and not again at this load.
    assert effective(tuned.deployment.get(), CAP) == ("1", "Spec")
    scraped.wait_for(f'max(paceline:setting{{name="{CAP}"}})', 1)
    assert [(item["setting"], item["direction"]) for item in found["tabu"]] == [(CAP, "Up")]
    assert tuned.restarts() == pods
    assert tuned.deployment.generations() == generations
    for part in ("ChangeProposed", "RollingBack", "ChangeRolledBack", "Measured After"):
        assert part in told, told
    tell(f"promised {promised}: {ended['reason']}; goodput {before} -> {after}")


def is_shown(told: Document) -> bool:
    """Three windows have shown that requests wait."""
    return any(
        item["name"] == "QueueWait" and item.get("windows", 0) >= 3
        for item in told.get("symptoms", ())
    )


def is_advised(told: Document) -> bool:
    """A person is told what to do, on the ground of a complete measurement."""
    advised = [item["symptom"] for item in told.get("recommendations", ())]
    return "QueueWait" in advised and "baseline" in told


def figures(ended: Document, *names: str) -> list[tuple[float, float]]:
    """Of a change that has ended: each before it and with it."""
    before, after = ended["measuredBefore"], ended["measuredAfter"]
    return [(float(before[name]), float(after.get(name, 0))) for name in names]
