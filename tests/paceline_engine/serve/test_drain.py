import pytest

from paceline_crds.phases import DrainPhase
from paceline_engine.serve.drain import Drain


@pytest.fixture
def drain() -> Drain:
    return Drain(shutdown_timeout_s=30.0)


def test_a_serving_server_is_ready_and_keeps_connections(drain: Drain) -> None:
    assert drain.advance(0.0, 5) is DrainPhase.SERVING
    assert drain.is_ready
    assert drain.accepts_new
    assert not drain.closes_connections
    assert not drain.may_exit


def test_a_post_goes_through_both_phases_and_stays_drained(drain: Drain) -> None:
    drain.post(100.0, propagation_s=5.0)
    assert drain.advance(104.9, 2) is DrainPhase.PROPAGATING
    assert not drain.is_ready
    assert drain.accepts_new
    assert drain.closes_connections
    assert drain.advance(105.0, 2) is DrainPhase.DRAINING
    assert not drain.accepts_new
    assert drain.advance(9_999.0, 1) is DrainPhase.DRAINING, (
        "no signal: running ones have all the time"
    )
    assert not drain.is_cut_short
    assert drain.advance(10_000.0, 0) is DrainPhase.DRAINED
    assert drain.advance(20_000.0, 0) is DrainPhase.DRAINED
    assert not drain.may_exit, "a process that ended would be restarted"


def test_a_second_post_changes_nothing(drain: Drain) -> None:
    drain.post(0.0, propagation_s=5.0)
    drain.post(4.0, propagation_s=500.0)
    assert drain.advance(5.0, 1) is DrainPhase.DRAINING


def test_a_prestop_hook_is_phase_1_and_sigterm_ends_it(drain: Drain) -> None:
    drain.announce(0.0)
    drain.announce(1.0)
    assert drain.advance(9_999.0, 0) is DrainPhase.PROPAGATING, (
        "the hook says how long, by its duration"
    )
    assert (drain.is_ready, drain.accepts_new, drain.closes_connections) == (False, True, True)
    drain.terminate(10_000.0)
    assert drain.advance(10_000.0, 1) is DrainPhase.DRAINING
    drain.advance(10_001.0, 0)
    assert drain.may_exit


def test_a_post_gives_the_hooks_phase_1_an_end(drain: Drain) -> None:
    drain.announce(0.0)
    drain.post(100.0, propagation_s=5.0)
    assert drain.advance(104.0, 0) is DrainPhase.PROPAGATING
    assert drain.advance(105.0, 0) is DrainPhase.DRAINED


def test_a_hook_after_a_drain_changes_nothing(drain: Drain) -> None:
    drain.post(0.0, propagation_s=0.0)
    assert drain.advance(0.0, 0) is DrainPhase.DRAINED
    drain.announce(1.0)
    assert drain.advance(2.0, 0) is DrainPhase.DRAINED


def test_sigterm_starts_phase_2_at_once(drain: Drain) -> None:
    drain.terminate(0.0)
    assert drain.advance(0.0, 1) is DrainPhase.DRAINING
    assert not drain.accepts_new
    assert not drain.may_exit
    drain.advance(1.0, 0)
    assert drain.may_exit


def test_sigterm_with_its_own_propagation_time_keeps_accepting() -> None:
    drain = Drain(shutdown_timeout_s=30.0, sigterm_propagation_s=3.0)
    drain.terminate(0.0)
    assert drain.advance(2.9, 0) is DrainPhase.PROPAGATING
    assert drain.accepts_new
    assert drain.advance(3.0, 1) is DrainPhase.DRAINING
    assert drain.seconds_left(3.0) == 30.0


def test_ctrl_c_skips_the_propagation_time() -> None:
    drain = Drain(shutdown_timeout_s=30.0, sigterm_propagation_s=3.0)
    drain.interrupt(0.0)
    assert drain.phase is DrainPhase.DRAINING


def test_sigterm_after_the_post_ends_phase_1(drain: Drain) -> None:
    drain.post(0.0, propagation_s=60.0)
    drain.terminate(1.0)
    assert drain.phase is DrainPhase.DRAINING
    assert drain.seconds_left(1.0) == 30.0


def test_sigterm_when_drained_exits_at_once(drain: Drain) -> None:
    drain.post(0.0, propagation_s=0.0)
    assert drain.advance(0.0, 0) is DrainPhase.DRAINED
    drain.terminate(5.0)
    assert drain.may_exit


def test_running_requests_are_cut_when_the_grace_is_over(drain: Drain) -> None:
    drain.terminate(0.0)
    drain.advance(29.9, 3)
    assert not drain.is_cut_short
    drain.advance(30.0, 3)
    assert drain.is_cut_short


@pytest.mark.parametrize("first", ["terminate", "interrupt"])
@pytest.mark.parametrize("second", ["terminate", "interrupt"])
def test_a_second_signal_ends_the_wait(drain: Drain, first: str, second: str) -> None:
    getattr(drain, first)(0.0)
    assert not drain.is_cut_short
    getattr(drain, second)(1.0)
    assert drain.is_cut_short
    assert drain.advance(1.0, 1) is DrainPhase.DRAINING


@pytest.mark.parametrize("first", ["terminate", "interrupt", "hang_up"])
def test_a_closed_terminal_drains_and_is_never_a_second_signal(drain: Drain, first: str) -> None:
    getattr(drain, first)(0.0)
    drain.hang_up(1.0)
    assert drain.advance(1.0, 1) is DrainPhase.DRAINING
    assert not drain.is_cut_short
    drain.advance(2.0, 0)
    assert drain.may_exit


def test_a_second_signal_in_phase_1_ends_that_too() -> None:
    drain = Drain(shutdown_timeout_s=30.0, sigterm_propagation_s=60.0)
    drain.terminate(0.0)
    drain.terminate(1.0)
    assert drain.advance(1.0, 0) is DrainPhase.DRAINED
    assert drain.may_exit
