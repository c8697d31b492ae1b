"""The client's half of the conversation with a step loop, whatever carries the messages.

Nothing here waits for a step: answers arrive through `receive`, one message per step, and are
handed to the streams that they belong to.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from paceline_crds.phases import StartupPhase
from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import SettingRefused
from paceline_engine.core.request import Finished, FinishReason, Request
from paceline_engine.core.stats import StatsSnapshot
from paceline_engine.serve.step.engine_client import (
    EngineGone,
    EngineInfo,
    Heartbeat,
    RequestRefused,
    SettingsChange,
    SettingsState,
    Startup,
)
from paceline_engine.serve.step.messages import (
    Abort,
    Answer,
    Ask,
    CallRefused,
    Failed,
    Finish,
    FromEngine,
    Loaded,
    Patch,
    Progress,
    Submit,
    ToEngine,
    Turn,
)
from paceline_engine.serve.step.request_stream import RequestStream


class MessageClient:
    """An `EngineClient` over any transport; transports give `post` and call `receive` and `lose`.

    Attributes:
        startup, info: as in `EngineClient`.
    """

    def __init__(
        self,
        post: Callable[[ToEngine], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.startup = Startup(phase=StartupPhase.SPAWNING)
        self.info: EngineInfo | None = None
        self._post = post
        self._clock = clock
        self._gone: str | None = None
        self._streams: dict[int, RequestStream] = {}
        self._unsettled: set[int] = set()  # have stop strings; the engine was not told what counts
        self._acks: dict[int, tuple[asyncio.Future[None], float]] = {}
        self._calls: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self._num_calls = 0
        self._stats = StatsSnapshot()
        self._stats_encoded = b""

    @property
    def stats(self) -> StatsSnapshot:
        """The latest snapshot, decoded when somebody looks."""
        if self._stats_encoded:
            self._stats = msgspec.msgpack.decode(self._stats_encoded, type=StatsSnapshot)
            self._stats_encoded = b""
        return self._stats

    @property
    def num_open_streams(self) -> int:
        """Requests in the engine, as far as this client knows."""
        return len(self._streams)

    async def submit(self, request: Request) -> RequestStream:
        """Hand over one request; see `EngineClient.submit`.

        A caller that is cancelled meanwhile leaves nothing in the engine.
        """
        self._check_serving()
        stream = RequestStream(request.request_id, len(request.prompt_token_ids))
        ack = asyncio.get_running_loop().create_future()
        self._streams[request.request_id] = stream
        if request.has_stop_strings:
            self._unsettled.add(request.request_id)
        self._acks[request.request_id] = ack, self._clock()
        try:
            self._post(Submit(request))
        except Exception:
            del self._streams[request.request_id], self._acks[request.request_id]
            self._unsettled.discard(request.request_id)
            raise
        try:
            await ack
        except asyncio.CancelledError:
            self.abort(request.request_id)
            raise
        return stream

    def abort(self, request_id: int) -> None:
        """The client went away; see `EngineClient.abort`."""
        if self._is_known(request_id):
            self._unsettled.discard(request_id)
            self._post(Abort(request_id))

    def finish(self, request_id: int, num_output_tokens: int, stop: str) -> None:
        """A stop string was found, or none; see `EngineClient.finish`."""
        if self._is_known(request_id):
            self._unsettled.discard(request_id)
            self._post(Finish(request_id, num_output_tokens, stop))

    def _is_known(self, request_id: int) -> bool:
        """Whether the engine still has something of a request."""
        is_there = request_id in self._streams or request_id in self._unsettled
        return is_there and self._gone is None

    async def settings(self) -> SettingsState:
        """The settings in force."""
        answer = await self._call(lambda call_id: Ask(call_id, "settings"))
        return SettingsState(
            settings=EngineSettings.model_validate(answer["settings"]),
            generation=answer["generation"],
            revision=answer["revision"],
        )

    async def patch_settings(
        self, changes: Mapping[str, Any], revision: int | None
    ) -> SettingsChange:
        """Change live settings; see `EngineClient.patch_settings`."""
        answer = await self._call(lambda call_id: Patch(call_id, dict(changes), revision))
        return SettingsChange(**answer)

    async def requests(self) -> list[dict[str, Any]]:
        """Every request in the engine."""
        found: list[dict[str, Any]] = await self._call(lambda call_id: Ask(call_id, "requests"))
        return found

    async def steps(self, limit: int) -> list[dict[str, Any]]:
        """The last steps, oldest first."""
        found: list[dict[str, Any]] = await self._call(lambda call_id: Ask(call_id, "steps", limit))
        return found

    async def recording(self) -> dict[str, dict[str, list[Any]]]:
        """All that is kept of steps and ended requests, as columns."""
        found: dict[str, dict[str, list[Any]]] = await self._call(
            lambda call_id: Ask(call_id, "recording")
        )
        return found

    async def reset_prefix_cache(self) -> int:
        """Forget unreferenced cached blocks; returns how many."""
        return int(await self._call(lambda call_id: Ask(call_id, "reset_prefix_cache")))

    def watched(self, heartbeat: Heartbeat) -> Heartbeat:
        """A heartbeat that also counts what the loop was sent and has not answered.

        A loop that hangs while it is idle does not know that it has work; its client does.
        """
        waiting = [next(iter(table.values()))[1] for table in (self._acks, self._calls) if table]
        if heartbeat.has_work or not waiting:
            return heartbeat
        return replace(
            heartbeat,
            has_work=True,
            last_progress_s=max(heartbeat.last_progress_s, min(waiting)),
        )

    def end_streams(self, message: str) -> None:
        """End every request here and now: its reader gets this message, the engine an abort."""
        for request_id, stream in list(self._streams.items()):
            self.abort(request_id)
            stream.end(
                Finished(
                    request_id=request_id,
                    reason=FinishReason.ABORT,
                    num_prompt_tokens=stream.num_prompt_tokens,
                    num_output_tokens=0,
                    message=message,
                )
            )
        self._streams.clear()

    def lose(self, reason: str, message: str) -> None:
        """The engine ended: nobody waits for it any longer. The first reason counts."""
        if self._gone is not None:
            return
        self._gone = message
        self.startup = replace(
            self.startup, phase=StartupPhase.FAILED, reason=reason, message=message
        )
        for future, _ in [*self._acks.values(), *self._calls.values()]:
            if not future.done():
                future.set_exception(EngineGone(message))
        for stream in self._streams.values():
            stream.lose(message)
        self._acks.clear()
        self._calls.clear()
        self._streams.clear()
        self._unsettled.clear()

    def receive(self, message: FromEngine) -> None:
        """Take one message of the loop."""
        match message:
            case Turn():
                self._receive_turn(message)
            case Answer(call_id=call_id, value=value):
                future, _ = self._calls.pop(call_id)
                if not future.done():
                    future.set_result(value)
            case CallRefused(call_id=call_id, status=status, field=field, message=text):
                future, _ = self._calls.pop(call_id)
                if not future.done():
                    future.set_exception(SettingRefused(status, field, text))
            case Progress(phase=phase, progress=progress, seconds_by_phase=seconds):
                self.startup = Startup(phase=phase, progress=progress, seconds_by_phase=seconds)
            case Loaded(info=info, seconds_by_phase=seconds):
                self.info = info
                self.startup = Startup(
                    phase=StartupPhase.READY, progress=1.0, seconds_by_phase=seconds
                )
            case Failed(reason=reason, message=text):
                self.lose(reason, text)

    def _receive_turn(self, turn: Turn) -> None:
        for request_id in turn.accepted:
            ack, _ = self._acks.pop(request_id)
            if not ack.done():
                ack.set_result(None)
        for request_id, refusal in turn.refused:
            self._streams.pop(request_id, None)
            self._unsettled.discard(request_id)
            ack, _ = self._acks.pop(request_id)
            if not ack.done():
                ack.set_exception(RequestRefused(refusal))
        streams = self._streams
        for request_id, num_cached_tokens in turn.num_cached_tokens.items():
            if stream := streams.get(request_id):
                stream.start(num_cached_tokens)
        for request_id, entries in turn.prompt_logprobs.items():
            if stream := streams.get(request_id):
                stream.add_prompt_logprobs(entries)
        for request_id, entries in turn.logprobs.items():
            if stream := streams.get(request_id):
                stream.add_logprobs(entries)
        self._receive_tokens(turn)
        for finished in turn.finished:
            if stream := streams.pop(finished.request_id, None):
                stream.end(finished)
        if turn.stats:
            self._stats_encoded = turn.stats

    def _receive_tokens(self, turn: Turn) -> None:
        request_ids, tokens, width = array("q"), array("i"), turn.width
        request_ids.frombytes(turn.request_ids)
        tokens.frombytes(turn.tokens)
        if width == 1:
            for request_id, token in zip(request_ids, tokens, strict=True):
                if token >= 0 and (stream := self._streams.get(request_id)):
                    stream.add_token(token)
            return
        for row, request_id in enumerate(request_ids):
            if stream := self._streams.get(request_id):
                row_tokens = tokens[row * width : (row + 1) * width]
                stream.add_tokens([token for token in row_tokens if token >= 0])

    async def _call(self, make: Callable[[int], ToEngine]) -> Any:
        self._check_serving()
        self._num_calls += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call_id = self._num_calls
        self._calls[call_id] = future, self._clock()
        try:
            self._post(make(call_id))
        except Exception:
            # It was never asked, so nobody waits: the heartbeat must not think so.
            del self._calls[call_id]
            raise
        return await future

    def _check_serving(self) -> None:
        if self._gone is not None:
            raise EngineGone(self._gone)
        if self.startup.phase != StartupPhase.READY:
            raise EngineGone(f"the engine is not ready: {self.startup.phase}")
