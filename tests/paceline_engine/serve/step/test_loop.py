"""What may wait is done between requests, never while one is there."""

from dataclasses import replace
from pathlib import Path

from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.serve.step.assembly import assemble
from paceline_engine.serve.step.messages import Submit
from paceline_engine.testing.fake_engine import FakeEngine


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


def a_request() -> Request:
    return Request(
        request_id=1,
        external_id="one",
        prompt_token_ids=(3, 4, 5),
        params=SamplingParams(max_tokens=4, ignore_eos=True),
        arrival_s=0.0,
    )


def test_pieces_are_done_one_a_turn_while_nobody_waits(tmp_path: Path) -> None:
    runner = WithSpareWork(tmp_path, EngineSettings().booted())
    loop = assemble(runner, clock=lambda: 0.0, publish=lambda message: None)
    request = a_request()
    loop.handle(Submit(request))
    while loop.turn():
        assert runner.left == 3  # a request is there
    assert runner.left == 2
    assert loop.wait_s() == 0.0
    loop.handle(Submit(replace(request, request_id=2, external_id="two")))
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


def test_each_finished_step_is_progress_while_work_goes_on(tmp_path: Path) -> None:
    now = 0.0
    loop = assemble(
        FakeEngine(tmp_path, EngineSettings().booted()),
        clock=lambda: now,
        publish=lambda message: None,
    )
    loop.handle(Submit(a_request()))
    steps = []
    while True:
        now += 10.0
        if not loop.turn():
            break
        steps.append((now, loop.heartbeat.last_progress_s))
    assert len(steps) == 4
    assert all(at == progress for at, progress in steps)
