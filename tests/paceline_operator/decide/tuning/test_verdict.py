"""Verdicts: what chance does with few events is no reason to take a change back."""

from paceline_operator.decide.tuning import verdict
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.verdict import Judgement

FEW = Policy(min_requests=25)


def arm_of(requests: float, preemptions: float, tokens_per_second: float = 20.0) -> Arm:
    """Four windows of one pod with eight users; every window alike."""
    seconds = 80.0
    return Arm(
        start=1_000,
        end=1_080,
        windows=4,
        pod_seconds=seconds,
        finished=requests,
        arrived=requests,
        present=8 * seconds,
        prompts=16 * requests,
        outputs=25 * requests,
        output_tokens=tokens_per_second * seconds,
        preemptions=preemptions,
        primary=4 * tokens_per_second,
        primary_squares=4 * tokens_per_second**2,
    )


def test_a_few_preemptions_more_are_chance_and_no_alarm() -> None:
    assert verdict.alarm(arm_of(27, 1), arm_of(36, 6), FEW) == ""


def test_the_same_rates_of_many_requests_are_an_alarm() -> None:
    found = verdict.alarm(arm_of(2700, 100), arm_of(360, 60), Policy())
    assert found == "preemptions per request rose from 0.037 to 0.167"


def test_more_goodput_is_better_though_preemptions_differ_by_chance() -> None:
    before, after = arm_of(60, 12), arm_of(96, 20, tokens_per_second=32.0)
    found = verdict.judge(Symptom.KV_PRESSURE, before, after, FEW)
    assert found.judgement is Judgement.BETTER


def test_what_was_to_cure_preemptions_and_brings_more_of_them_is_worse() -> None:
    before, after = arm_of(600, 12), arm_of(960, 90, tokens_per_second=32.0)
    found = verdict.judge(Symptom.KV_PRESSURE, before, after, FEW)
    assert found.judgement is Judgement.WORSE
    assert "preemptions per request rose" in found.text
