"""Requests that end in one step, together, each in its own way."""

from paceline_engine.core.request import FinishReason
from paceline_engine.testing.fake_runner import solo_tokens
from paceline_engine.testing.trial import Trial


def stopping_after(trial: Trial, prompt: list[int], num_tokens: int) -> int:
    """A token that the request samples as its so-manieth, and not before."""
    tokens, _ = solo_tokens(trial.request(prompt, max_tokens=num_tokens), trial.limits)
    assert tokens[-1] not in tokens[:-1]
    return tokens[-1]


def test_requests_that_end_in_one_step_end_each_in_their_own_way() -> None:
    trial = Trial()
    stop = stopping_after(trial, [1] * 9, 4)
    stops = trial.submit([1] * 9, max_tokens=20, stop_token_ids=(stop,))
    goes_on = trial.submit([2] * 20, max_tokens=20)
    ends = trial.submit([3] * 30, max_tokens=4)
    outputs = None
    for _ in range(4):
        trial.plan()
        outputs = trial.apply()
    assert outputs is not None
    first, second = outputs.finished
    assert (first.request_id, first.reason, first.stop_token_id) == (
        stops,
        FinishReason.STOP,
        stop,
    )
    assert (second.request_id, second.reason, second.stop_token_id) == (
        ends,
        FinishReason.LENGTH,
        None,
    )
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (9, 30)
    assert trial.scheduler.num_running == 1
    trial.run()
    assert goes_on in trial.finished
    trial.assert_all_solo()


def test_blocks_of_all_that_end_in_a_step_are_held_while_a_later_one_uses_them() -> None:
    trial = Trial(max_plans=2, prefix_caching=False)
    stop = stopping_after(trial, [1] * 9, 4)
    for _ in range(3):
        trial.submit([1] * 9, max_tokens=20, stop_token_ids=(stop,))
    while not trial.finished:
        trial.step()
    assert len(trial.finished) == 3
    active, _, _, held = trial.scheduler.usage()
    assert (active, held) == (0, 3 * 2)
    trial.run()
    trial.assert_all_solo()


def test_a_request_that_ends_while_it_waits_leaves_the_others_in_their_order() -> None:
    trial = Trial(max_num_seqs=1)
    ids = [trial.submit([number] * 5, max_tokens=3) for number in range(4)]
    trial.step()
    finished = trial.abort(ids[2])
    assert finished is not None
    assert (finished.reason, finished.num_output_tokens) == (FinishReason.ABORT, 0)
    trial.run()
    assert list(trial.finished) == [ids[2], ids[0], ids[1], ids[3]]
