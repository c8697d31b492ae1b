"""Two engines in turns: own clocks, equal work, and an interval that is Student's."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from paceline_engine.bench.paired_engines import (
    Arm,
    Interval,
    OwnClock,
    num_different,
    run_round,
    student_t,
)
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel


def test_a_clock_stands_still_while_the_other_engine_works() -> None:
    now = 100.0
    clock = OwnClock(lambda: now)
    assert clock() == 0.0
    with clock:
        now += 2.0
        assert clock() == 2.0
    now += 50.0
    with clock:
        now += 1.0
    assert clock() == 3.0


@pytest.mark.parametrize("freedom", [4, 5, 9, 29, 200])
def test_the_quantile_is_students(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.01)


def test_an_interval_holds_the_true_ratio_nineteen_times_of_twenty() -> None:
    rng = np.random.default_rng(4)
    found = [Interval.of((1.2 * np.exp(rng.normal(0, 0.05, 8))).tolist()) for _ in range(1000)]
    assert 0.93 < np.mean([one.low < 1.2 < one.high for one in found]) < 0.97
    assert Interval.of([1.3]).half_width == np.inf


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Arm, Arm]:
    folder: Path = TinyModel().write(tmp_path_factory.mktemp("paired"))
    plain = load_runner(folder)
    drafting = load_runner(
        folder,
        speculative_method="Ngram",
        speculative_num_tokens=4,
        speculative_min_lookup=1,
        speculative_adaptive=False,
    )
    return Arm(plain, plain.settings), Arm(drafting, drafting.settings)


def requests(first: int, count: int) -> list[Request]:
    return [
        Request(
            request_id=number,
            external_id=str(number),
            prompt_token_ids=tuple([3 + number % 50, 60, 61] * 4),
            params=SamplingParams(
                temperature=0.0,
                max_tokens=20,
                ignore_eos=True,
                allowed_token_ids=(60, 61, 62, 63),
            ),
        )
        for number in range(first, first + count)
    ]


@pytest.mark.slow
def test_both_engines_do_the_same_work_and_drafts_are_counted(arms: tuple[Arm, Arm]) -> None:
    plain, drafting = arms
    assert run_round(plain, drafting, requests(0, 3)) > 0
    assert plain.num_tokens == drafting.num_tokens == 60
    assert num_different(plain, drafting) == 0
    assert plain.outputs.keys() == {0, 1, 2}
    assert plain.num_drafted == plain.num_accepted == 0
    assert 0 < drafting.num_accepted <= drafting.num_drafted
    assert set(plain.asked) == {0}
    assert len(plain.asked) == 19  # the first token comes with the prompt, which does not count
    assert plain.num_decoded == drafting.num_decoded == 57
    assert len(drafting.asked) < 19
    assert set(drafting.asked) == {4}


@pytest.mark.slow
def test_an_answer_that_differs_is_told(arms: tuple[Arm, Arm]) -> None:
    plain, drafting = arms
    run_round(plain, drafting, requests(10, 2))
    plain.outputs[11][-1] += 1
    assert num_different(plain, drafting) == 1
