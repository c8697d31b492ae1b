"""The health check for Argo CD, run by a Lua interpreter on conditions that the operator writes."""

from pathlib import Path
from typing import Any

import lupa.lua53 as lua
import pytest
import yaml

from paceline_operator.decide import conditions, transitions
from paceline_operator.decide.conditions import Facts, Refusal
from paceline_operator.decide.failures import Failure, FailureReason
from paceline_operator.decide.rollout import Stage
from paceline_operator.decide.settings_push import Agreement

Document = dict[str, Any]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "argocd"
SCRIPT = (EXAMPLES / "health.lua").read_text(encoding="utf-8")
SERVING = {"replicas": 1, "num_pods": 1, "num_ready": 1, "num_serving": 1}
AGREED = {"agreement": Agreement.AGREED, "model_name": "demo"}


def failed(reason: FailureReason) -> Failure:
    return Failure(reason=reason, message=f"because of {reason}")


CASES: dict[str, tuple[Facts, str, str]] = {
    "serving": (Facts(**SERVING, **AGREED), "Healthy", "1 pods serve demo"),
    "scaled to zero": (Facts(), "Healthy", "no pod is wanted"),
    "starting": (Facts(replicas=2, stage=Stage.STARTING), "Progressing", "0 of 2 pods"),
    "rolling out": (
        Facts(replicas=1, num_old=1, num_serving=1, stage=Stage.ROLLING_OUT),
        "Progressing",
        "0 of 1 pods",
    ),
    "settings not everywhere": (
        Facts(**SERVING, agreement=Agreement.OVERDUE),
        "Progressing",
        "revision 0",
    ),
    "wrong spec while the old one serves": (
        Facts(**SERVING, **AGREED, refusal=Refusal(reason="InvalidSpec", message="gpus wrong")),
        "Degraded",
        "InvalidSpec: gpus wrong",
    ),
    "no progress": (
        Facts(replicas=1, stage=Stage.STARTING, is_overdue=True),
        "Degraded",
        "ProgressDeadlineExceeded",
    ),
    "a failed start": (
        Facts(replicas=1, stage=Stage.STARTING, failure=failed(FailureReason.AUTH_FAILED)),
        "Degraded",
        "AuthFailed: because of AuthFailed",
    ),
    "waiting for a GPU": (
        Facts(replicas=1, stage=Stage.STARTING, failure=failed(FailureReason.INSUFFICIENT_GPU)),
        "Progressing",
        "InsufficientGPU",
    ),
    "one replica of two fails": (
        Facts(
            replicas=2,
            num_pods=2,
            num_ready=1,
            num_serving=1,
            failure=failed(FailureReason.OUT_OF_MEMORY),
        ),
        "Progressing",
        "OutOfMemory",
    ),
    "a crash after it served": (
        Facts(replicas=1, num_pods=1, failure=failed(FailureReason.ENGINE_CRASHED)),
        "Degraded",
        "EngineCrashed",
    ),
}


def health(document: Document) -> tuple[str, str]:
    runtime = lua.LuaRuntime()
    runtime.globals().obj = runtime.table_from(document, recursive=True)
    told = runtime.execute(SCRIPT)
    return told["status"], told["message"]


def deployment(facts: Facts, *, spec: Document | None = None, seen: int = 3) -> Document:
    made = transitions.as_status(conditions.verdicts(facts), (), seen, 0.0)
    return {
        "metadata": {"name": "demo", "generation": 3},
        "spec": {"model": {"uri": "demo"}, **(spec or {})},
        "status": {"observedGeneration": seen, "conditions": made},
    }


@pytest.mark.parametrize(("facts", "status", "message"), CASES.values(), ids=CASES.keys())
def test_health_follows_the_conditions(facts: Facts, status: str, message: str) -> None:
    found, told = health(deployment(facts))
    assert (found, message in told) == (status, True), told


def test_what_nobody_has_seen_is_progressing() -> None:
    fresh = {"metadata": {"generation": 1}, "spec": {}}
    assert health(fresh) == ("Progressing", "no operator has looked at it yet")
    edited = deployment(Facts(**SERVING, **AGREED), seen=2)
    assert health(edited) == ("Progressing", "the operator has not seen the newest spec yet")


def test_a_paused_one_is_suspended() -> None:
    paused = deployment(Facts(**SERVING, **AGREED, is_paused=True), spec={"paused": True})
    assert health(paused) == ("Suspended", "spec.paused is true")


def test_the_settings_of_argo_cd_carry_the_same_text() -> None:
    read = yaml.safe_load((EXAMPLES / "argocd-cm.yaml").read_text(encoding="utf-8"))
    assert read["data"] == {"resource.customizations.health.paceline.dev_LLMDeployment": SCRIPT}


def test_the_values_in_the_examples_fit_the_chart(render: Any) -> None:
    documents = list(
        yaml.safe_load_all((EXAMPLES / "applications.yaml").read_text(encoding="utf-8"))
    )
    values = documents[0]["spec"]["source"]["helm"]["valuesObject"]
    rendered = render(values)
    assert not [item for item in rendered if item["kind"] == "Secret"], "rendered without a cluster"
    flux = EXAMPLES.parent / "flux" / "paceline.yaml"
    released = [
        item
        for item in yaml.safe_load_all(flux.read_text(encoding="utf-8"))
        if item["kind"] == "HelmRelease"
    ]
    assert render(released[0]["spec"]["values"])
