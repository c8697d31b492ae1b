"""What the HTTP process and the step process say to each other, and how it looks on the wire.

msgpack of tagged structs, each behind its length (4 bytes, little endian). A step is one message:
arrays travel as bytes, and everything that a step gave to this client is in it.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from paceline_crds.phases import StartupPhase
from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished, Refusal, Request
from paceline_engine.serve.step.engine_client import EngineInfo

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 1 << 30
SOCKET_BUFFER_BYTES = 1 << 20
"""At both ends: a step's message is sent whole although its reader is busy."""


class Start(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first message: what to load.

    Attributes:
        model: URI; model_dir: its folder, empty when the step process has to resolve the URI.
        cache_dir: where fetched models are kept, empty for the store's own default.
        settings: camelCase names and JSON values of those that were set; the device decides on
            the rest. settings_revision: their writer's revision.
        settings_file: live settings to lay over them once loaded, empty for none.
        runner_factory: `module:name` of what makes the runner.
    """

    model: str
    model_dir: str
    model_name: str
    revision: str
    cache_dir: str
    settings: dict[str, Any]
    settings_revision: int
    settings_file: str
    runner_factory: str
    log_level: str


class Submit(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Take this request; answered by `Turn.accepted` or `Turn.refused`."""

    request: Request


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The client of this request went away."""

    request_id: int


class Finish(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The request ends after so many output tokens: at a stop string, or (empty) it had ended."""

    request_id: int
    num_output_tokens: int
    stop: str


class Patch(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Change settings; answered by `Answer` (generation, revision, old, new) or `CallRefused`."""

    call_id: int
    changes: dict[str, Any]
    revision: int | None


class Ask(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A question: `settings`, `requests`, `steps`, `recording` or `reset_prefix_cache`."""

    call_id: int
    what: str
    limit: int = 0


class Stop(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """End the process; whatever still runs is dropped."""


class Progress(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The start goes on. `seconds_by_phase` holds the finished phases."""

    phase: StartupPhase
    progress: float
    seconds_by_phase: dict[str, float]


class Loaded(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The loop steps from now on."""

    info: EngineInfo
    seconds_by_phase: dict[str, float]


class Failed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The process ends: it could not start, or its device is broken."""

    reason: str
    message: str


class Turn(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Everything that one turn of the loop gave to this client.

    Attributes:
        accepted, refused: answers to `Submit`; they come before outputs of the same request.
        request_ids: [m] int64 as bytes; tokens: [m, width] int32 as bytes, -1 padded.
        finished: after the last tokens of these requests.
        stats: a `StatsSnapshot` still encoded, since few of them are read; empty: none.
    """

    accepted: list[int]
    refused: list[tuple[int, Refusal]]
    request_ids: bytes
    tokens: bytes
    width: int
    logprobs: dict[int, list[TokenLogprobs]]
    prompt_logprobs: dict[int, list[TokenLogprobs]]
    finished: list[Finished]
    num_cached_tokens: dict[int, int]
    stats: bytes


class Answer(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The value that a `Patch` or an `Ask` wanted."""

    call_id: int
    value: Any


class CallRefused(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A `Patch` that was not applied (`core.errors.SettingRefused`)."""

    call_id: int
    status: int
    field: str
    message: str


ToEngine = Start | Submit | Abort | Finish | Patch | Ask | Stop
FromEngine = Progress | Loaded | Failed | Turn | Answer | CallRefused

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def frame(message: ToEngine | FromEngine) -> bytes:
    """One message as it goes over the wire."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_to_engine(body: bytes) -> ToEngine:
    """Read a frame's body on the engine's side."""
    return _to_engine.decode(body)


def decode_from_engine(body: bytes) -> FromEngine:
    """Read a frame's body on the client's side."""
    return _from_engine.decode(body)


class FrameBuffer:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add what was read; yields the bodies of the frames that are complete now.

        Raises:
            ValueError: a length beyond `MAX_FRAME_BYTES`: the peer speaks something else.
        """
        self._bytes += data
        start = 0
        while len(self._bytes) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} expected")
            end = start + _LENGTH.size + length
            if end > len(self._bytes):
                break
            yield bytes(self._bytes[start + _LENGTH.size : end])
            start = end
        del self._bytes[:start]
