import pytest

from paceline_operator.decide.tuning import arm as arms
from paceline_operator.decide.tuning.arm import Arm
from paceline_operator.decide.tuning.signals import Signal
from paceline_operator.testing.samples import sample


def of(*changed: dict[Signal, float], has_targets: bool = True, first: int = 0) -> Arm:
    made = Arm()
    for index, one in enumerate(changed, first):
        made = arms.extended(made, sample(one, index=index), has_targets)
    return made


def test_windows_add_up() -> None:
    made = of({}, {Signal.GOOD: 300})
    assert made.windows == 2
    assert made.end - made.start == 240
    assert made.finished == 1200
    assert made.attainment("all") == pytest.approx(0.75)
    assert made.goodput(has_targets=True) == pytest.approx(900 / 240)
    assert made.goodput(has_targets=False) == pytest.approx(120_000 / 240)


def test_goodput_and_load_are_those_of_a_pod() -> None:
    one, two = Arm(), Arm()
    one = arms.extended(one, sample(pods=("a",)), has_targets=True)
    twice = {Signal.GOOD: 1200.0, Signal.JUDGED: 1200.0, Signal.FINISHED: 1200.0}
    two = arms.extended(two, sample(twice, pods=("a", "b")), has_targets=True)
    assert one.goodput(has_targets=True) == two.goodput(has_targets=True)
    assert one.arrived / one.pod_seconds == two.arrived / two.pod_seconds


def test_a_long_gap_begins_a_new_arm() -> None:
    made = of({}, {})
    made = arms.extended(made, sample(index=9), has_targets=True)
    assert made.windows == 1
    assert made.finished == 600


def test_windows_that_were_left_out_do_not_end_an_arm() -> None:
    made = arms.extended(of({}, {}), sample(index=4), has_targets=True)
    assert made.windows == 3
    assert made.pod_seconds == 360


def test_requests_that_pile_up_count_as_arrived() -> None:
    assert of({Signal.QUEUE_GROWTH: 100}).arrived == 700
    assert of({Signal.QUEUE_GROWTH: -700}).arrived == 0


def test_noise_is_scatter_or_chance_whichever_is_larger() -> None:
    calm = of({Signal.GOOD: 540}, {Signal.GOOD: 540}, {Signal.GOOD: 540})
    assert calm.noise(has_targets=True) == pytest.approx((0.1 * 0.9 / 1800) ** 0.5 / 0.9, abs=1e-4)
    wild = of({Signal.GOOD: 300}, {Signal.GOOD: 600}, {Signal.GOOD: 300})
    assert wild.noise(has_targets=True) > 0.2
    assert Arm().noise(has_targets=True) == 1.0


def test_lengths_come_from_finished_requests_where_they_can() -> None:
    assert (
        of({Signal.PROMPT_LENGTH: 250}).per_request(of({Signal.PROMPT_LENGTH: 250}).prompts) == 250
    )
    one = sample(without=frozenset({Signal.OUTPUT_LENGTH}))
    made = arms.extended(Arm(), one, has_targets=True)
    assert made.per_request(made.outputs) == 100


def test_a_window_without_the_load_is_not_usable() -> None:
    assert arms.is_usable(sample())
    assert not arms.is_usable(sample(without=frozenset({Signal.FINISHED})))
    assert not arms.is_usable(sample({Signal.SCRAPES: 1}))


def test_people_are_shown_what_there_is() -> None:
    assert of({}).figures(has_targets=True)["attainment"] == 1
    assert "e2eAttainment" not in of({}).figures(has_targets=True)
