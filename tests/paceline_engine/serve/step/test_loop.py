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


def test_pieces_are_done_one_a_turn_while_nobody_waits(tmp_path: Path) -> None:
    runner = WithSpareWork(tmp_path, EngineSettings().booted())
    loop = assemble(runner, clock=lambda: 0.0, publish=lambda message: None)
    request = Request(
        request_id=1,
        external_id="one",
        prompt_token_ids=(3, 4, 5),
        params=SamplingParams(max_tokens=4, ignore_eos=True),
        arrival_s=0.0,
    )
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
