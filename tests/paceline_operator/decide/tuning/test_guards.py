"""One scenario for each guard-rail in which it stops what the tuner would do without it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from paceline_crds.spec_tuning import MaintenanceWindow, Weekday
from paceline_operator.decide.tuning import guards
from paceline_operator.decide.tuning.observation import Fleet, Observation
from paceline_operator.decide.tuning.state import Mood, Outcome, Spent, State
from paceline_operator.decide.tuning.symptom import Symptom
from paceline_operator.testing.surface import Load, Surface
from paceline_operator.testing.tuner_rig import TunerRig
from paceline_operator.testing.tuner_scenarios import SCENARIOS, TUNING, rig_of

CAP = SCENARIOS[Symptom.CAP_TOO_LOW]


def with_fleet(**changed: object) -> Callable[[Observation], Observation]:
    fleet = replace(Fleet(), **changed)  # type: ignore[arg-type]
    return lambda seen: replace(seen, fleet=fleet)


def reasons(rig: TunerRig) -> list[str]:
    return [note.reason for note in rig.notes]


def test_without_a_guard_the_setting_is_turned() -> None:
    rig = rig_of(CAP)
    rig.run(0.5)
    assert "ChangeAccepted" in reasons(rig)


def test_a_change_has_ended_before_the_next_one_begins() -> None:
    rig = rig_of(CAP, tuning={**TUNING, "cooldown": "0s"})
    rig.run(4)
    told = [name for name in reasons(rig) if name.startswith("Change")]
    assert told.count("ChangeStarted") >= 2
    assert set(told[::2]) == {"ChangeStarted"}
    assert set(told[1::2]) == {"ChangeAccepted"}


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ("Paused", lambda seen: replace(seen, is_paused=True)),
        ("Frozen", lambda seen: replace(seen, is_frozen=True)),
        ("OperatorFrozen", lambda seen: replace(seen, is_operator_frozen=True)),
        ("ScaledToZero", with_fleet(replicas=0, num_pods=0, num_ready=0)),
        ("RollingOut", with_fleet(is_rolling_out=True)),
        ("Scaling", with_fleet(replicas=2)),
        ("PodsNotReady", with_fleet(num_ready=0)),
        ("SettingsPending", with_fleet(is_agreed=False)),
        ("NoSeries", lambda seen: replace(seen, lack_of_metrics="NoSeries", lack_text="none")),
        ("TooManyAtOnce", lambda seen: replace(seen, may_start=False)),
    ],
)
def test_nothing_is_turned_while(reason: str, fault: Callable[[Observation], Observation]) -> None:
    rig = rig_of(CAP)
    rig.fault = fault
    state = rig.run(0.5)
    assert "ChangeStarted" not in reasons(rig)
    assert state.reason == reason
    assert state.message
    assert rig.in_force == {}


def test_nothing_is_turned_while_requests_fail() -> None:
    rig = rig_of(replace(CAP, load=replace(CAP.load, errors=0.2)))
    assert rig.run(0.5).reason == "Errors"
    assert "ChangeStarted" not in reasons(rig)


def test_nothing_is_turned_on_low_traffic() -> None:
    rig = rig_of(CAP, tuning={**TUNING, "minRequests": 1_000_000})
    assert rig.run(0.5).reason == "LowTraffic"
    assert "ChangeStarted" not in reasons(rig)


def test_nothing_is_turned_on_measurements_that_are_old() -> None:
    rig = rig_of(CAP)
    rig.run(0.05)
    rig.fault = lambda seen: replace(seen, samples=())
    assert rig.run(0.5).reason == "MetricsStale"
    assert "ChangeStarted" not in reasons(rig)


def test_a_change_waits_for_the_cooldown_of_the_one_before() -> None:
    rig = rig_of(CAP, tuning={**TUNING, "cooldown": "6h"})
    state = rig.run(4)
    assert reasons(rig).count("ChangeStarted") == 1
    assert state.history[-1].outcome is Outcome.ACCEPTED


@pytest.mark.slow
def test_no_more_changes_a_day_than_the_budget() -> None:
    rig = rig_of(CAP, tuning={**TUNING, "cooldown": "0s"})
    rig.policy = replace(rig.policy, live_budget=1)
    rig.run(4)
    assert reasons(rig).count("ChangeStarted") == 1


def test_a_bound_of_spec_is_never_crossed_and_exhausted_is_told_once() -> None:
    bounds = {"maxNumSeqs": {"max": 128}, "maxNumBatchedTokens": {"max": 2048}}
    rig = rig_of(CAP, tuning={**TUNING, "bounds": bounds})
    state = rig.run(2)
    assert "ChangeStarted" not in reasons(rig)
    assert state.mood == Mood.EXHAUSTED
    assert reasons(rig).count("Exhausted") == 1
    assert any("spec.replicas" in item.change for item in state.advice)


def test_a_lower_bound_of_spec_is_never_crossed() -> None:
    slow = SCENARIOS[Symptom.SLOW_STREAMS]
    rig = rig_of(slow, tuning={**TUNING, "bounds": {"maxNumSeqs": {"min": 120}}})
    state = rig.run(2)
    assert [item.after for item in state.history] == ["120"]
    assert state.mood == Mood.EXHAUSTED


def test_what_spec_pins_is_not_touched_unless_its_bounds_name_it() -> None:
    pinned = {"scheduling": {**CAP.spec["scheduling"], "maxNumSeqs": 128}}
    rig = rig_of(CAP, **pinned)
    state = rig.run(1)
    assert "maxNumSeqs" not in rig.in_force
    assert any("spec.scheduling.maxNumSeqs: 256" in item.change for item in state.advice)
    named = rig_of(CAP, **pinned, tuning={**TUNING, "bounds": {"maxNumSeqs": {"max": 200}}})
    named.run(1)
    assert named.in_force["maxNumSeqs"] == "200"


def test_live_changes_can_be_forbidden() -> None:
    rig = rig_of(CAP, tuning={**TUNING, "allowLive": False})
    state = rig.run(1)
    assert "ChangeStarted" not in reasons(rig)
    assert any("allowLive" in item.text for item in state.advice)


def test_what_engines_refuse_is_not_prescribed() -> None:
    rig = rig_of(SCENARIOS[Symptom.SPIKY_STREAMS])
    rig.run(6)
    turned = {item.setting for item in rig.state.history}
    assert turned
    assert not turned & {"interTokenTargetMs", "speculativeNumTokens", "kvCacheDtype"}


def test_maintenance_windows_are_open_at_their_local_time_and_over_midnight() -> None:
    def at(day: int, hour: int) -> int:
        return int(datetime(2026, 6, day, hour, 30, tzinfo=UTC).timestamp())

    window = MaintenanceWindow(
        name="night",
        start="23:00",
        duration="4h",
        days=[Weekday.MONDAY],
        time_zone="Europe/Berlin",
    )
    assert guards.is_open(window, at(1, 21))  # Monday, 23:30 in Berlin
    assert guards.is_open(window, at(2, 0))
    assert not guards.is_open(window, at(1, 20))
    assert not guards.is_open(window, at(2, 2))
    assert not guards.is_open(window, at(2, 21))


@pytest.mark.slow
def test_a_failed_move_is_tabu_for_a_day_and_twice_as_long_after_the_next_failure() -> None:
    rig = harmful()
    rig.run(20)
    first = [item for item in rig.state.history if item.setting == "maxNumSeqs"]
    assert len(first) == 1
    rig.run(30)
    bans = [ban for ban in rig.state.bans if ban.setting == "maxNumSeqs"]
    assert bans[0].failures == 2
    assert bans[0].until - rig.state.history[-2].ended > 86_400


def harmful() -> TunerRig:
    """Whatever is turned slows every step down."""
    rig = rig_of(CAP)
    healthy = rig.surface
    rig.fault = lambda seen: _slowed(rig, healthy, seen)
    return rig


def _slowed(rig: TunerRig, healthy: Surface, seen: Observation) -> Observation:
    harm = 1.5 if rig.in_force else 1.0
    rig.surface = replace(
        healthy,
        base_s=healthy.base_s * harm,
        per_seq_s=healthy.per_seq_s * harm,
        per_token_s=healthy.per_token_s * harm,
    )
    return seen


def test_after_three_roll_backs_of_a_day_changes_are_only_proposed() -> None:
    rig = rig_of(CAP)
    rig.fault = lambda seen: replace(seen, policy=replace(seen.policy, max_rollbacks=0))
    state = rig.run(0.5)
    assert state.mood == "Proposed"
    assert rig.in_force == {}


def test_after_two_reversals_of_a_day_it_holds_what_it_has() -> None:
    rig = rig_of(CAP)
    rig.run(0.05)
    day = rig.state.spent.day
    rig._state = replace(rig.state, spent=Spent(day=day, reversals=2))
    assert rig.run(0.5).reason == "Holding"
    assert "ChangeStarted" not in reasons(rig)


def test_without_a_verdict_at_equal_load_there_is_no_change() -> None:
    rig = rig_of(CAP)
    rig.load = lambda _: CAP.load if not rig.in_force else Load(clients=40, prompt=900, output=50)
    state = rig.run(2)
    ended = state.history[-1]
    assert ended.outcome is Outcome.ROLLED_BACK
    assert "no verdict" in ended.reason
    assert "maxNumSeqs" not in rig.in_force


def until(rig: TunerRig, mood: str) -> State:
    for _ in range(200):
        if rig.state.mood == mood:
            return rig.state
        rig.turn()
    raise AssertionError(f"never {mood}: {rig.state.mood} {rig.state.reason}")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (with_fleet(crashes=1), "crashed"),
        (with_fleet(crashes=1, num_ready=0), "crashed"),
        (with_fleet(crashes=1, is_out_of_memory=True), "memory"),
        (lambda seen: replace(seen, fingerprint="2"), "spec was changed"),
        (lambda seen: replace(seen, is_frozen=True), "freeze"),
        (lambda seen: replace(seen, is_operator_frozen=True), "frozen"),
        (lambda seen: replace(seen, is_paused=True), "paused"),
    ],
)
def test_a_change_in_flight_is_taken_back_at_once(
    fault: Callable[[Observation], Observation], why: str
) -> None:
    rig = rig_of(CAP)
    until(rig, "Verifying")
    rig.fault = fault
    rig.turn()
    assert rig.state.mood == "RollingBack"
    assert why in rig.state.message
    assert rig.state.overlay == ()
    rig.turn()
    rig.turn()
    assert rig.in_force == {}


def test_what_stops_new_changes_leaves_the_one_in_flight_to_its_verdict() -> None:
    rig = rig_of(CAP)
    until(rig, "Verifying")
    rig.fault = lambda seen: replace(seen, may_start=False)
    rig.run(2)
    assert rig.state.history[-1].outcome is Outcome.ACCEPTED
    assert reasons(rig).count("ChangeStarted") == 1


def test_a_long_pause_is_followed_by_the_roll_back_and_is_no_failure_of_it() -> None:
    rig = rig_of(CAP)
    until(rig, "Verifying")
    held = dict(rig.in_force)
    rig.refuses = lambda _: True  # nothing is pushed while it is paused
    rig.fault = lambda seen: replace(seen, is_paused=True)
    rig.run(1)
    assert (rig.state.mood, rig.in_force) == ("RollingBack", held)
    rig.refuses = lambda _: False
    rig.fault = lambda seen: seen
    rig.turn()
    assert rig.in_force == {}
    rig.turn()
    assert rig.state.history[-1].outcome is Outcome.ROLLED_BACK
    assert "RollbackFailed" not in reasons(rig)


def test_traffic_that_dries_up_gives_no_verdict_and_no_change() -> None:
    rig = rig_of(CAP)
    rig.load = lambda _: Load(rate=0.02, prompt=200, output=200) if rig.in_force else CAP.load
    rig.run(1.5)
    ended = rig.state.history[0]
    assert ended.outcome is Outcome.ROLLED_BACK
    assert "no verdict within 60 minutes" in ended.reason


def test_a_freeze_of_ten_minutes_takes_a_change_back_and_a_shorter_one_does_not() -> None:
    rig = rig_of(CAP)
    until(rig, "Verifying")
    rig.fault = lambda seen: replace(seen, samples=(), lack_of_metrics="NoSeries")
    for _ in range(8):
        rig.turn()
    assert rig.state.mood == "Verifying"
    rig.run(0.1)
    assert rig.state.history[-1].outcome is Outcome.ROLLED_BACK


def test_a_loss_of_five_points_is_taken_back_before_the_arm_is_full() -> None:
    scenario = SCENARIOS[Symptom.SPIKY_STREAMS]
    rig = rig_of(scenario, tuning={**TUNING, "minRequests": 2000})
    healthy = rig.surface
    for _ in range(120):
        rig.surface = replace(healthy, per_token_s=healthy.per_token_s * (3 if rig.in_force else 1))
        rig.turn()
        if rig.state.history:
            break
    ended = rig.state.history[-1]
    assert "fell by" in ended.reason
    assert ended.measured_after["requests"] < 2000


def test_preemptions_that_triple_are_taken_back_at_once() -> None:
    rig = rig_of(CAP)
    until(rig, "Settling")
    rig.surface = replace(rig.surface, kv_tokens=20_000)
    rig.run(0.3)
    assert "preemptions" in rig.state.history[-1].reason


def test_a_change_that_pods_do_not_take_up_is_taken_back_after_a_minute() -> None:
    rig = rig_of(CAP)
    rig.refuses = bool
    rig.run(0.5)
    ended = rig.state.history[0]
    assert ended.outcome is Outcome.ROLLED_BACK
    assert "not every pod" in ended.reason


def test_a_failed_roll_back_stops_everything_and_says_so_until_a_person_acts() -> None:
    rig = rig_of(CAP)
    until(rig, "Verifying")
    rig.fault = with_fleet(is_agreed=False, crashes=1)
    rig.run(1)
    assert rig.state.mood == Mood.HALTED
    assert reasons(rig).count("RollbackFailed") == 1
    rig.fault = lambda seen: seen
    rig.run(2)
    assert rig.state.mood == Mood.HALTED
    rig.fault = lambda seen: replace(seen, fingerprint="2")
    rig.run(0.2)
    assert rig.state.mood != Mood.HALTED


def test_what_was_measured_under_another_spec_is_no_ground_for_a_change() -> None:
    rig = rig_of(CAP, tuning={**TUNING, "mode": "Observe"})
    rig.run(0.5)
    assert rig.state.baseline.windows
    rig.fault = lambda seen: replace(seen, fingerprint="2")
    rig.turn()
    assert rig.state.baseline.windows == 0
    assert rig.state.growing.windows <= 1


def test_a_clock_that_was_set_back_does_no_harm() -> None:
    rig = rig_of(CAP)
    until(rig, "Verifying")
    since = rig.state.current.phase_since if rig.state.current else 0
    rig.now -= 10_000
    rig.turn()
    assert rig.state.current is not None
    assert rig.state.current.phase_since >= since
