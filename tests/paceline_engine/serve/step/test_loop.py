"""What may wait is done between requests; a turn that plans nothing is no progress."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_crds.phases import StartupPhase
from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.core.scheduler import Scheduler
from paceline_engine.serve.health import alive
from paceline_engine.serve.step.assembly import assemble
from paceline_engine.serve.step.engine_client import Startup
from paceline_engine.serve.step.messages import Submit
from paceline_engine.testing.fake_engine import FakeEngine

REQUEST = Request(
    request_id=1,
    external_id="one",
    prompt_token_ids=(3, 4, 5),
    params=SamplingParams(max_tokens=4, ignore_eos=True),
    arrival_s=0.0,
)


class WithSpareWork(FakeEngine):
    """A runner with work that may wait.

    Attributes:
        left: pieces of it.
    """

    left = 3

    def do_spare_work(self) -> bool:
        """Do a piece."""
        self.left -= 1
        return self.left > 0


def test_pieces_are_done_one_a_turn_while_nobody_waits(tmp_path: Path) -> None:
    runner = WithSpareWork(tmp_path, EngineSettings().booted())
    loop = assemble(runner, clock=lambda: 0.0, publish=lambda message: None)
    loop.handle(Submit(REQUEST))
    while loop.turn():
        assert runner.left == 3  # a request is there
    assert runner.left == 2
    assert loop.wait_s() == 0.0
    loop.handle(Submit(replace(REQUEST, request_id=2, external_id="two")))
    loop.turn()
    assert runner.left == 2
    while loop.turn():
        pass
    assert runner.left == 1
    loop.turn()
    assert runner.left == 0
    assert loop.wait_s() != 0.0
    loop.turn()
    assert runner.left == 0  # done is done


def test_turns_that_plan_nothing_are_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not "running 0, waiting 6" for minutes with green probes.
    seconds = itertools.count(100)
    runner = FakeEngine(tmp_path, EngineSettings().booted())
    loop = assemble(runner, clock=lambda: float(next(seconds)), publish=lambda message: None)
    monkeypatch.setattr(Scheduler, "plan", lambda scheduler, now: None)
    loop.handle(Submit(REQUEST))
    assert not loop.turn()
    woken = loop.heartbeat
    assert woken.has_work
    while (now := float(next(seconds))) < woken.last_progress_s + 40:
        assert not loop.turn()
        assert loop.heartbeat == woken
    verdict = alive(Startup(phase=StartupPhase.READY, progress=1.0), loop.heartbeat, now, 30.0)
    assert (verdict.ok, verdict.reason) == (False, "Hung")


def test_each_finished_step_is_progress_while_work_goes_on(tmp_path: Path) -> None:
    now = 0.0
    loop = assemble(
        FakeEngine(tmp_path, EngineSettings().booted()),
        clock=lambda: now,
        publish=lambda message: None,
    )
    loop.handle(Submit(REQUEST))
    steps = []
    while True:
        now += 10.0
        if not loop.turn():
            break
        steps.append((now, loop.heartbeat.last_progress_s))
    assert len(steps) == 4
    assert all(at == progress for at, progress in steps)


@pytest.mark.parametrize(("overlap", "num_steps"), [(False, 1), (True, 2)])
def test_the_heartbeat_gives_every_step_on_its_way_its_time(
    tmp_path: Path, overlap: bool, num_steps: int
) -> None:
    # Else a long step would count as hung by the time that a short one behind it takes.
    runner = FakeEngine(tmp_path, EngineSettings(overlap=overlap).booted())
    loop = assemble(runner, clock=lambda: 0.0, publish=lambda message: None)
    loop.handle(Submit(REQUEST))
    loop.turn()
    assert loop.heartbeat.predicted_step_s == num_steps * 1.0  # what an engine guesses at first
    while loop.turn():
        pass
    loop.close()
    assert not loop.heartbeat.has_work
