"""The log of ended requests, and which prefixes its requests share."""

import math

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core import request_log
from paceline_engine.core.request_log import EndedRequest, RequestLog, shared_prefixes
from paceline_engine.testing.trial import Trial, tiny_limits


def ended(arrival_s: float, keys: tuple[bytes, ...] = (), *, prompt: int = 8) -> EndedRequest:
    return EndedRequest(
        arrival_s=arrival_s,
        num_prompt_tokens=prompt,
        num_output_tokens=1,
        max_tokens=1,
        num_cached_tokens=0,
        num_preemptions=0,
        first_token_s=arrival_s + 1,
        end_s=arrival_s + 1,
        reason="length",
        priority=0,
        tenant="",
        generation=0,
        keys=keys,
    )


def test_requests_stand_in_the_order_of_their_arrival():
    log = RequestLog()
    for arrival in (3.0, 1.0, 2.0):
        log.add(ended(arrival))
    assert log.columns(8)["arrival_s"] == [1.0, 2.0, 3.0]


def test_old_requests_make_room_by_number_and_by_keys(monkeypatch):
    monkeypatch.setattr(request_log, "MAX_REQUESTS", 3)
    monkeypatch.setattr(request_log, "MAX_KEYS", 10)
    log = RequestLog()
    for arrival in range(5):
        log.add(ended(float(arrival)))
    assert log.columns(8)["arrival_s"] == [2.0, 3.0, 4.0]
    log.add(ended(5.0, tuple(bytes([i]) for i in range(11))))
    assert log.columns(8)["arrival_s"] == [5.0]


def chains_of(sequences: list[str]) -> list[list[str]]:
    """Keys that name whole prefixes, one per letter."""
    return [[text[: i + 1] for i in range(len(text))] for text in sequences]


@given(st.lists(st.text("ab", max_size=6), max_size=8), st.data())
def test_the_longest_common_prefix_with_an_earlier_one_is_found(texts, data):
    prompts = [data.draw(st.integers(0, len(text))) for text in texts]
    keys = [[key.encode() for key in chain] for chain in chains_of(texts)]
    found = shared_prefixes(keys, prompts)
    for i, (owner, count) in enumerate(found):
        lengths = [
            next((n for n in range(prompts[i], 0, -1) if texts[i][:n] == texts[j][:n]), 0)
            for j in range(i)
        ]
        assert count == max(lengths, default=0)
        if count:
            assert lengths[owner] == count
        else:
            assert owner == -1


def test_a_recording_tells_arrivals_lengths_hits_and_shared_prefixes():
    trial = Trial(tiny_limits(block_size=8))
    trial.submit(range(40), max_tokens=9)
    trial.run()
    trial.now = 50.0
    answered = [*range(40), *trial.outputs[0]]
    trial.submit([*range(20), 90, 91, 92, 93], max_tokens=2, priority=3)
    trial.submit([*answered[:49], 1, 2], max_tokens=2)
    trial.run()
    found = trial.recorder.recording()["requests"]
    assert found["arrival_s"] == [0.0, 50.0, 50.0]
    assert found["num_prompt_tokens"] == [40, 24, 51]
    assert found["num_output_tokens"] == [9, 2, 2]
    assert found["priority"] == [0, 3, 0]
    # The third goes on where the first one's answer ended: its output is part of the prefix.
    assert found["prefix_of"] == [-1, 0, 0]
    assert found["num_prefix_tokens"] == [0, 16, 48]
    assert found["num_cached_tokens"] == [0, 16, 48]


def test_a_request_without_a_token_has_no_first_token():
    trial = Trial()
    trial.abort(trial.submit(range(8), max_tokens=4))
    found = trial.recorder.recording()["requests"]
    assert found["reason"] == ["abort"]
    assert math.isnan(found["first_token_s"][0])


def test_steps_of_a_recording_are_those_of_the_flight_recorder():
    trial = Trial()
    trial.submit(range(30), max_tokens=5)
    trial.run()
    columns = trial.recorder.recording()["steps"]
    rows = trial.recorder.steps(100)
    assert [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ] == rows
