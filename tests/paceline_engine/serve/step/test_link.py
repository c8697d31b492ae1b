import socket
import time
from collections.abc import Iterator

import pytest

from paceline_engine.serve.step.link import Link, LinkClosed
from paceline_engine.serve.step.messages import (
    Abort,
    Answer,
    FrameBuffer,
    FromEngine,
    Stop,
    decode_from_engine,
    frame,
)


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    engine, client = socket.socketpair()
    link = Link(engine)
    yield link, client
    link.close()
    client.close()


def test_it_never_blocks_on_a_reader_that_does_not_read(pair: tuple[Link, socket.socket]) -> None:
    link, client = pair
    messages: list[FromEngine] = [Answer(i, "x" * 100_000) for i in range(100)]
    for message in messages:
        link.send(message)  # 10 MB, far more than the socket takes
    frames, found = FrameBuffer(), list[FromEngine]()
    while len(found) < len(messages):
        found += map(decode_from_engine, frames.feed(client.recv(1 << 20)))
        assert link.receive(0) == []
    assert found == messages


def test_it_waits_for_a_message_and_gives_all_that_came(pair: tuple[Link, socket.socket]) -> None:
    link, client = pair
    began = time.monotonic()
    assert link.receive(0.02) == []
    assert time.monotonic() - began >= 0.02
    client.sendall(frame(Abort(1)) + frame(Abort(2)) + frame(Stop()))
    assert link.receive(None) == [Abort(1), Abort(2), Stop()]


def test_a_client_that_is_gone_is_told_by_both_ways(pair: tuple[Link, socket.socket]) -> None:
    link, client = pair
    client.close()
    with pytest.raises(LinkClosed):
        link.receive(None)
    with pytest.raises(LinkClosed):
        link.send(Answer(1, None))


def test_the_last_words_are_flushed(pair: tuple[Link, socket.socket]) -> None:
    link, _ = pair
    link.send(Answer(1, "x" * 5_000_000))
    began = time.monotonic()
    link.flush(0.02)  # nobody reads: it gives up in time
    assert time.monotonic() - began < 1.0
