"""Each condition is one value: status, constant, sentence, event."""

import re
from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.status import ConditionStatus, ConditionType
from paceline_operator.decide import conditions
from paceline_operator.decide.conditions import Facts, Refusal, Verdict
from paceline_operator.decide.failures import Failure, FailureReason
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.rollout import Stage
from paceline_operator.decide.settings_push import Agreement

GOOD = Facts(
    replicas=2,
    num_pods=2,
    num_ready=2,
    num_serving=2,
    agreement=Agreement.AGREED,
    model_name="demo",
    model_phase="Ready",
)
UNSERVED: dict[str, Any] = {"replicas": 0, "num_pods": 0, "num_ready": 0, "num_serving": 0}
BROKEN = Failure(reason=FailureReason.OUT_OF_MEMORY, message="9 GB wanted")
STUCK = Failure(reason=FailureReason.INSUFFICIENT_GPU, message="no device")


def told(**facts: Any) -> dict[str, Verdict]:
    return {item.type.value: item for item in conditions.verdicts(replace(GOOD, **facts))}


def short(verdict: Verdict) -> tuple[str, str]:
    return verdict.status.value, str(verdict.reason)


@pytest.mark.parametrize(
    ("facts", "kind", "expected"),
    [
        ({}, "Ready", ("True", "AllPodsReady")),
        ({}, "Progressing", ("True", "Complete")),
        ({}, "ConfigValid", ("True", "Valid")),
        ({}, "ModelCached", ("True", "Cached")),
        ({}, "MetricsAvailable", ("Unknown", "NotEvaluated")),
        ({}, "SLOMet", ("Unknown", "NotEvaluated")),
        ({}, "TuningActive", ("Unknown", "NotEvaluated")),
        ({}, "Degraded", ("False", "AsExpected")),
        ({"num_ready": 1}, "Ready", ("False", "PodsNotReady")),
        ({"num_ready": 1, "failure": BROKEN}, "Ready", ("False", "OutOfMemory")),
        ({"num_ready": 1, "failure": BROKEN}, "Degraded", ("True", "OutOfMemory")),
        ({"num_serving": 0}, "Available", ("False", "NoPodReady")),
        ({"num_ready": 0, "model_phase": "Fetching"}, "ModelCached", ("False", "Fetching")),
        ({"num_ready": 0, "model_phase": "Converting"}, "ModelCached", ("False", "Fetching")),
        ({"num_ready": 0, "model_phase": ""}, "ModelCached", ("Unknown", "NotStarted")),
        ({"model_phase": ""}, "ModelCached", ("True", "Cached")),
        ({"agreement": Agreement.PENDING}, "Ready", ("False", "SettingsPending")),
        ({"agreement": Agreement.OVERDUE}, "Ready", ("False", "SettingsNotAgreed")),
        ({"has_settings_api": False}, "Ready", ("True", "AllPodsReady")),
        (UNSERVED, "Ready", ("True", "ScaledToZero")),
        ({**UNSERVED, "missing": ("Service/demo",)}, "Ready", ("False", "ChildrenPending")),
        ({**UNSERVED, "missing": ("Service/demo",)}, "Reconciling", ("True", "ChildrenPending")),
        ({"missing": ("Service/demo",)}, "Ready", ("False", "ChildrenPending")),
        (
            {**UNSERVED, "missing": ("Service/demo",), "failure": BROKEN},
            "Ready",
            ("False", "OutOfMemory"),
        ),
        ({"num_ready": 1, "missing": ("Service/demo",)}, "Ready", ("False", "PodsNotReady")),
    ],
)
def test_facts_give_a_condition(
    facts: dict[str, Any], kind: str, expected: tuple[str, str]
) -> None:
    assert short(told(**facts)[kind]) == expected


@pytest.mark.parametrize(
    ("facts", "kind", "words"),
    [
        ({"num_ready": 1, "failure": BROKEN}, "Ready", "1 of 2 pods of the wanted template"),
        ({"num_ready": 1, "failure": BROKEN}, "Ready", "9 GB wanted"),
        ({"num_serving": 0, "failure": BROKEN}, "Available", "9 GB wanted"),
        ({"num_ready": 0, "model_phase": "Fetching"}, "Ready", "furthest is at Fetching"),
        ({"agreement": Agreement.OVERDUE, "unsettled": ("a", "b")}, "Ready", "in force on a, b"),
        (
            {"num_ready": 0, "agreement": Agreement.UNREACHABLE, "unreachable": tuple("abcdefg")},
            "Ready",
            "admin port of a, b, c, d, e and 2 more",
        ),
        (
            {"stage": Stage.STARTING, "is_overdue": True, "progress_deadline_s": 1800},
            "Progressing",
            "rollout.progressDeadline (1800 s)",
        ),
        ({"num_ready": 0, "num_pods": 0, "model_phase": ""}, "ModelCached", "there is no pod"),
        ({"num_ready": 0, "model_phase": ""}, "ModelCached", "no pod has told"),
    ],
)
def test_a_message_names_pods_phases_and_limits(
    facts: dict[str, Any], kind: str, words: str
) -> None:
    assert words in told(**facts)[kind].message


def test_a_pod_without_a_device_is_progress_until_the_deadline() -> None:
    waiting = {"stage": Stage.STARTING, "num_ready": 1, "failure": STUCK}
    assert short(told(**waiting)["Progressing"]) == ("True", "InsufficientGPU")
    late = told(**waiting, is_overdue=True)
    assert short(late["Progressing"]) == ("False", "InsufficientGPU")
    assert short(late["Stalled"]) == ("True", "InsufficientGPU")
    assert "Reconciling" not in late


def test_a_refused_spec_is_stalled_and_says_why() -> None:
    made = told(refusal=Refusal(reason="NotSupported", message="no tensor parallelism"))
    for kind in ("Ready", "ConfigValid", "Progressing"):
        assert short(made[kind]) == ("False", "NotSupported")
        assert made[kind].message == "no tensor parallelism"
    assert short(made["Stalled"]) == ("True", "NotSupported")


def test_every_reason_is_a_constant_that_the_schema_allows() -> None:
    allowed = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
    for family in (Reason, FailureReason, Stage, Agreement):
        assert all(allowed.fullmatch(reason.value) for reason in family)


def test_the_two_of_kstatus_are_never_true_together() -> None:
    for facts in (GOOD, replace(GOOD, num_ready=0, stage=Stage.STARTING)):
        for is_overdue in (False, True):
            kinds = {
                item.type
                for item in conditions.verdicts(replace(facts, is_overdue=is_overdue))
                if item.status is ConditionStatus.TRUE
            }
            assert not {ConditionType.STALLED, ConditionType.RECONCILING} <= kinds
