import struct

import msgspec
import pytest

from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished, FinishReason, Refusal, Request, SamplingParams
from paceline_engine.core.snapshot import HistogramData, StatsSnapshot
from paceline_engine.serve.step.messages import (
    MAX_FRAME_BYTES,
    FrameBuffer,
    Patch,
    Submit,
    Turn,
    decode_from_engine,
    decode_to_engine,
    frame,
)

REQUEST = Request(
    request_id=7,
    external_id="cmpl-7",
    prompt_token_ids=(1, 2, 3),
    params=SamplingParams(logit_bias=((5, 1.5),), bad_words=((1, 2),), allowed_token_ids=(4,)),
    deadline_s=12.5,
)
TURN = Turn(
    accepted=[7],
    refused=[(8, Refusal(status=503, message="full", retry_after_s=2))],
    request_ids=b"\x07" + bytes(7),
    tokens=b"\x01\x00\x00\x00",
    width=1,
    logprobs={7: [TokenLogprobs(token_id=1, logprob=-0.5, rank=1, top_ids=(1,))]},
    prompt_logprobs={},
    finished=[
        Finished(request_id=7, reason=FinishReason.STOP, num_prompt_tokens=3, num_output_tokens=1)
    ],
    num_cached_tokens={7: 0},
    stats=b"",
)


def body(data: bytes) -> bytes:
    (one,) = FrameBuffer().feed(data)
    return one


def test_messages_come_back_equal() -> None:
    submit, patch = Submit(REQUEST), Patch(1, {"maxNumSeqs": 8}, None)
    assert decode_to_engine(body(frame(submit))) == submit
    assert decode_to_engine(body(frame(patch))) == patch
    assert decode_from_engine(body(frame(TURN))) == TURN


def test_frames_are_found_however_the_bytes_are_cut() -> None:
    data = frame(TURN) + frame(TURN)
    for size in (1, 3, len(data) // 2, len(data)):
        frames = FrameBuffer()
        bodies = [
            body
            for start in range(0, len(data), size)
            for body in frames.feed(data[start : start + size])
        ]
        assert [decode_from_engine(body) for body in bodies] == [TURN, TURN]


def test_a_length_beyond_reason_is_an_error() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        list(FrameBuffer().feed(struct.pack("<I", MAX_FRAME_BYTES + 1)))


def test_a_snapshot_with_labels_survives_the_wire() -> None:
    snapshot = StatsSnapshot(
        now_s=1.5,
        values={"vllm:request_success_total": {("stop",): 2.0}, "paceline:steps_total": {(): 3.0}},
        histograms={"vllm:iteration_tokens_total": HistogramData(counts=[1, 2], sum=7.0)},
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=StatsSnapshot) == snapshot
