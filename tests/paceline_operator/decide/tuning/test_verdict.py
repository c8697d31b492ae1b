"""The comparison of two arms at the same load; what chance does with few events is no verdict."""

from typing import Any

import pytest

from paceline_operator.decide.tuning import verdict
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.policy import Policy, Target
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.decide.tuning.verdict import Judgement, Verdict

REQUESTS = 1000.0


def arm(good: float, *, ttft_s: float = 1.0, itl_s: float = 0.05, **changed: Any) -> Arm:
    """An arm of five windows; `good` requests are within each target."""
    judged = {f"{name}_judged": REQUESTS for name in ("ttft", "itl")}
    within = {f"{name}_within": good for name in ("ttft", "itl")}
    return Arm(
        **{
            "start": 0,
            "end": 600,
            "windows": 5,
            "pod_seconds": 600.0,
            "judged": REQUESTS,
            "finished": REQUESTS,
            "arrived": REQUESTS,
            "present": 9000.0,
            "good": good,
            "prompts": 100 * REQUESTS,
            "outputs": 50 * REQUESTS,
            "output_tokens": 50 * REQUESTS,
            "primary": good / 120,
            "ttft": ttft_s * REQUESTS,
            "itl": itl_s * REQUESTS,
            **judged,
            **within,
            **changed,
        }
    )


def judged(symptom: Symptom, before: Arm, after: Arm, *targets: str) -> Verdict:
    policy = Policy(targets={name: Target(limit_s=0.1) for name in targets}, min_requests=500)
    return verdict.judge(symptom, before, after, policy)


@pytest.mark.parametrize(
    ("ttft_s", "judgement"),
    [(3.2, Judgement.BETTER), (3.95, Judgement.UNCLEAR), (4.4, Judgement.WORSE)],
)
def test_far_from_its_target_a_latency_that_comes_nearer_is_better(
    ttft_s: float, judgement: Judgement
) -> None:
    found = judged(Symptom.QUEUE_WAIT, arm(0, ttft_s=4.0), arm(3, ttft_s=ttft_s), "ttft")
    assert found.judgement is judgement
    assert "nobody is within the targets; ttft went from 4.000 s" in found.text


def test_as_soon_as_somebody_is_within_goodput_decides() -> None:
    before, after = arm(0, ttft_s=4.0), arm(300, ttft_s=4.0)
    assert judged(Symptom.QUEUE_WAIT, before, after, "ttft").judgement is Judgement.BETTER
    nearer = judged(Symptom.QUEUE_WAIT, arm(300, ttft_s=4.0), arm(301, ttft_s=2.0), "ttft")
    assert nearer.judgement is Judgement.UNCLEAR


@pytest.mark.parametrize(
    ("good", "text"),
    [
        (0, "goodput from none to 1.5 good requests a second and pod at equal load"),
        (25, "goodput from 0.0417 to 1.5 good requests a second and pod at equal load"),
    ],
)
def test_a_gain_over_next_to_nothing_is_told_in_figures(good: float, text: str) -> None:
    found = judged(Symptom.SLOW_STREAMS, arm(good), arm(900), "itl")
    assert (found.judgement, found.text) == (Judgement.BETTER, text)


def test_coming_nearer_does_not_pay_for_a_loss_of_throughput() -> None:
    after = arm(0, itl_s=0.15, output_tokens=40 * REQUESTS)
    found = judged(Symptom.SLOW_STREAMS, arm(0, itl_s=0.2), after, "itl")
    assert found.judgement is Judgement.WORSE
    assert "throughput" in found.text


def test_more_goodput_does_not_pay_for_a_target_that_is_missed_more_often() -> None:
    before = arm(800, itl_within=800.0, ttft_within=1000.0)
    after = arm(900, itl_within=1000.0, ttft_within=900.0)
    found = judged(Symptom.SLOW_STREAMS, before, after, "itl", "ttft")
    assert found.judgement is Judgement.WORSE
    assert found.text.endswith("attainment (ttft) fell by 10.0%")


@pytest.mark.parametrize(
    ("good", "judgement"),
    [(520, Judgement.UNCLEAR), (600, Judgement.BETTER), (420, Judgement.WORSE)],
)
def test_a_gain_within_the_noise_is_none(good: float, judgement: Judgement) -> None:
    """Of 500 good ones in 1,000 chance alone makes 460 or 540."""
    assert judged(Symptom.SLOW_PREFILL, arm(500), arm(good), "e2e").judgement is judgement


def test_a_gain_of_a_hundredth_is_none_however_well_it_is_measured() -> None:
    many = {"finished": 1e6, "judged": 1e6, "arrived": 1e6, "present": 9e6}
    lengths = {"prompts": 1e8, "outputs": 5e7, "output_tokens": 5e7}
    before, after = (
        arm(good, **many, **lengths, primary=good / 120, primary_squares=(good / 120) ** 2 / 5)
        for good in (900_000.0, 909_000.0)
    )
    found = judged(Symptom.SLOW_PREFILL, before, after, "e2e")
    assert found.text == "goodput +1.0% at equal load (noise 2.0%)"
    assert found.judgement is Judgement.UNCLEAR


@pytest.mark.parametrize(
    ("symptom", "judgement"),
    [(Symptom.SPIKY_STREAMS, Judgement.WORSE), (Symptom.SLOW_STREAMS, Judgement.BETTER)],
)
def test_later_first_tokens_speak_against_the_cure_of_spikes_alone(
    symptom: Symptom, judgement: Judgement
) -> None:
    before, after = arm(500), arm(900, ttft_s=1.5)
    assert judged(symptom, before, after, "itl").judgement is judgement


def uneven(windows: int, low: float, high: float) -> Arm:
    """An arm that is full, whose windows have two goodputs in turns."""
    rates = [low if index % 2 else high for index in range(windows)]
    squares = sum(rate**2 for rate in rates)
    return arm(900, windows=windows, primary=sum(rates), primary_squares=squares)


@pytest.mark.parametrize(
    ("measured", "is_ground"),
    [
        (uneven(3, 1.4, 1.6), True),
        (uneven(3, 1.0, 2.0), False),
        (uneven(8, 1.0, 2.0), False),
        (uneven(9, 1.0, 2.0), True),
        (arm(900, windows=2), False),
    ],
)
def test_windows_that_differ_are_no_ground_for_a_change_until_there_are_many(
    measured: Arm, is_ground: bool
) -> None:
    assert verdict.is_ground(measured, Policy(min_requests=500)) is is_ground


def test_an_arm_that_may_grow_no_older_is_ground_though_its_windows_differ() -> None:
    old = uneven(3, 1.0, 2.0)
    assert verdict.is_ground(old, Policy(min_requests=500, max_arm_s=590))


def test_an_unclear_comparison_goes_on_for_windows_and_requests_alike() -> None:
    rules = Policy(min_requests=300)
    assert not verdict.is_drawn_out(arm(900, windows=8), rules)
    assert not verdict.is_drawn_out(arm(900, windows=9, finished=899.0), rules)
    assert verdict.is_drawn_out(arm(900, windows=9), rules)


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


def test_a_handful_of_requests_is_no_alarm() -> None:
    rules = Policy(targets={"itl": Target(limit_s=0.1)}, min_requests=200)
    for requests, is_alarm in ((19.0, False), (25.0, True)):
        missed = arm(0, finished=requests, judged=requests, itl_judged=requests)
        assert bool(verdict.alarm(arm(1000), missed, rules)) is is_alarm


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
