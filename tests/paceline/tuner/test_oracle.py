"""The tuner against the best static setting of each simulated load: within 5 % of its goodput."""

import pytest

from paceline import cli
from paceline.bench_tuner import DEFAULT_SEED, DEFAULT_TUNED_S
from paceline.tuner import oracle
from paceline.tuner.oracle import Comparison
from paceline.tuner.scenarios import SCENARIOS
from paceline_operator.decide.tuning.symptom import Symptom

CURABLE = [symptom for symptom, scenario in SCENARIOS.items() if scenario.grid]
NEAR = 0.95


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("symptom", CURABLE)
def test_the_tuner_ends_within_five_percent_of_the_best_static_setting(symptom: Symptom) -> None:
    found = oracle.compare(SCENARIOS[symptom], DEFAULT_TUNED_S, DEFAULT_SEED)
    assert found.share >= NEAR
    assert found.num_kept >= 1
    assert found.num_changes <= 12
    assert found.settled_s > 0


def test_a_comparison_is_a_row_of_a_table() -> None:
    one = Comparison(
        symptom="CapTooLow",
        first=10.0,
        best=({"maxNumSeqs": 64}, 40.0),
        last=({"maxNumSeqs": "32"}, 38.4),
        settled_s=210.0,
        num_changes=3,
        num_kept=2,
    )
    assert one.share == pytest.approx(0.96)
    row = oracle.table([one]).splitlines()[-1]
    assert row == (
        "| CapTooLow | 10.00 | 40.00 (maxNumSeqs 64) | 38.40 (maxNumSeqs 32) | 96.0% | 3 (2) "
        "| 210 s |"
    )


def test_a_scenario_that_no_setting_cures_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "tuner", "--scenario", "SlowStart"]) == 2
    assert "--scenario must be among KvPressure" in capsys.readouterr().err
