"""Sources of requests."""

import itertools

import pytest

from paceline_engine.sim.arrivals import ClosedLoop, OpenLoop
from paceline_engine.sim.requests import OUTPUT_TOKEN, SimRequest, continued, prompt


def request(arrival_s: float, number: int = 0) -> SimRequest:
    return SimRequest(
        arrival_s=arrival_s, prompt_token_ids=prompt(number, 4), num_output_tokens=1, max_tokens=1
    )


def test_an_open_stream_gives_its_requests_at_their_times():
    source = OpenLoop([request(1.0), request(2.5)])
    assert source.next_s == 1.0
    assert source.pop().arrival_s == 1.0
    source.ended(9.0)
    assert source.next_s == 2.5
    source.pop()
    assert source.next_s is None


def test_an_open_stream_may_be_endless():
    source = OpenLoop(request(float(n)) for n in itertools.count())
    assert source.next_s == 0.0


def test_arrivals_that_go_back_in_time_are_refused():
    source = OpenLoop([request(2.0), request(1.0)])
    with pytest.raises(ValueError, match="must not go back"):
        source.pop()


def test_a_closed_loop_sends_when_a_client_is_free():
    source = ClosedLoop([request(0.0) for _ in range(4)], 2, think_s=1.0, start_s=5.0)
    assert [source.pop().arrival_s, source.pop().arrival_s] == [5.0, 5.0]
    assert source.next_s is None
    source.ended(7.0)
    source.ended(6.0)
    assert source.next_s == 7.0
    assert [source.pop().arrival_s, source.pop().arrival_s] == [7.0, 8.0]
    source.ended(9.0)
    assert source.next_s is None  # nothing is left to send


def test_prompts_differ_right_behind_what_they_share():
    shared = prompt(0, 32)
    one, other = prompt(1, 40, shared), prompt(2, 40, shared)
    assert one[:32] == other[:32] == shared
    assert one[32] != other[32]
    assert len(one) == 40
    assert prompt(3, 10, shared) == shared[:10]
    assert len(prompt(4, 10_000)) == 10_000


def test_a_continuation_holds_prompt_and_answer():
    first = request(0.0, 7)
    assert continued(first, 6) == (*first.prompt_token_ids, OUTPUT_TOKEN, OUTPUT_TOKEN)
    assert continued(first, 3) == first.prompt_token_ids[:3]
