"""No id that points outside of the vocabulary gets as far as a kernel."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import Request, SamplingParams
from paceline_engine.serve.step.assembly import assemble
from paceline_engine.serve.step.messages import FromEngine, Submit, Turn
from paceline_engine.serve.step.token_bounds import refuse_outside
from paceline_engine.testing.fake_engine import FakeEngine

VOCAB_SIZE = 100
GOOD = Request(
    request_id=1,
    external_id="one",
    prompt_token_ids=(0, 99),
    params=SamplingParams(
        stop_token_ids=(0, 99),
        allowed_token_ids=(0, 99),
        logit_bias=((0, 1.0), (99, 1.0)),
        bad_words=((0,), (99, 0)),
    ),
)


def test_ids_up_to_the_last_are_taken() -> None:
    assert refuse_outside(GOOD, VOCAB_SIZE) is None
    assert refuse_outside(replace(GOOD, params=SamplingParams()), VOCAB_SIZE) is None


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE, 2**31 - 1])
def test_an_id_outside_is_refused_by_the_name_of_its_field(wrong: int) -> None:
    params = GOOD.params
    requests = {
        "prompt": replace(GOOD, prompt_token_ids=(1, wrong)),
        "stop_token_ids": replace(GOOD, params=replace(params, stop_token_ids=(wrong,))),
        "allowed_token_ids": replace(GOOD, params=replace(params, allowed_token_ids=(1, wrong))),
        "logit_bias": replace(GOOD, params=replace(params, logit_bias=((wrong, 1.0),))),
        "bad_words": replace(GOOD, params=replace(params, bad_words=((1,), (1, wrong)))),
    }
    for name, request in requests.items():
        refusal = refuse_outside(request, VOCAB_SIZE)
        assert refusal is not None
        assert (refusal.status, refusal.param) == (400, name)
        assert refusal.message == f"{name}: token ids must be in [0, 100), got {wrong}"


def test_the_step_loop_refuses_it_and_computes_nothing(tmp_path: Path) -> None:
    said: list[FromEngine] = []
    runner = FakeEngine(tmp_path, EngineSettings().booted())
    loop = assemble(runner, clock=lambda: 0.0, publish=said.append)
    loop.handle(Submit(replace(GOOD, prompt_token_ids=(runner.limits.vocab_size,))))
    assert not loop.turn()
    turns = [message for message in said if isinstance(message, Turn)]
    (_, refusal), *others = [entry for turn in turns for entry in turn.refused]
    assert (refusal.status, others) == (400, [])
    assert not any(turn.accepted for turn in turns)
