"""An `EngineClient` that plays a script: tests of the HTTP border decide every delta."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline_crds.phases import StartupPhase
from paceline_crds.settings import EngineSettings
from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished, FinishReason, Refusal, Request
from paceline_engine.core.stats import StatsSnapshot
from paceline_engine.serve.step.engine_client import (
    EngineInfo,
    Heartbeat,
    OutputDelta,
    RequestRefused,
    SettingsChange,
    SettingsState,
    Startup,
)

Play = Callable[[Request], AsyncIterator[OutputDelta]]


class ScriptedStream:
    """Outputs of one request, from its script."""

    def __init__(self, request_id: int, deltas: AsyncIterator[OutputDelta]) -> None:
        self.request_id = request_id
        self._deltas = deltas

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        """The script itself."""
        return self._deltas


class ScriptedEngine:
    """Plays `play` for every request and notes what the border did.

    Attributes:
        refuse: says why a request is not taken, None takes it.
        submitted: every request.
        running: ids that have neither ended nor been aborted or finished.
        aborted: ids, in order.
        finished: (id, number of output tokens, stop string), in order.
        current: the settings in force.
    """

    def __init__(self, model_dir: Path, play: Play, *, max_model_len: int = 512) -> None:
        self.startup = Startup(phase=StartupPhase.READY, progress=1.0)
        self.info: EngineInfo | None = EngineInfo(
            model="tiny",
            model_dir=str(model_dir),
            revision="",
            max_model_len=max_model_len,
            num_blocks=64,
            block_size=16,
            vocab_size=512,
            eos_token_ids=(2,),
            dtype="Float32",
            kv_cache_dtype="Float32",
        )
        self.heartbeat = Heartbeat(last_progress_s=0.0, has_work=False, predicted_step_s=0.0)
        self.stats = StatsSnapshot()
        self.play = play
        self.refuse: Callable[[Request], Refusal | None] = lambda _: None
        self.submitted: list[Request] = []
        self.running: set[int] = set()
        self.aborted: list[int] = []
        self.finished: list[tuple[int, int, str]] = []
        self.current = EngineSettings()

    async def submit(self, request: Request) -> ScriptedStream:
        """Take a request, or raise what `refuse` says."""
        refusal = self.refuse(request)
        if refusal is not None:
            raise RequestRefused(refusal)
        self.submitted.append(request)
        self.running.add(request.request_id)
        return ScriptedStream(request.request_id, self._played(request))

    def abort(self, request_id: int) -> None:
        """Note it."""
        self.aborted.append(request_id)
        self.running.discard(request_id)

    def finish(self, request_id: int, num_output_tokens: int, stop: str) -> None:
        """Note it."""
        self.finished.append((request_id, num_output_tokens, stop))
        self.running.discard(request_id)

    async def settings(self) -> SettingsState:
        """The settings in force."""
        return SettingsState(settings=self.current, generation=1, revision=0)

    async def patch_settings(
        self, changes: Mapping[str, Any], revision: int | None
    ) -> SettingsChange:
        """Not part of any script."""
        raise NotImplementedError

    async def requests(self) -> list[dict[str, Any]]:
        """Ids that run."""
        return [{"id": request_id} for request_id in sorted(self.running)]

    async def steps(self, limit: int) -> list[dict[str, Any]]:  # noqa: ARG002 - the protocol's
        """None: there are no steps."""
        return []

    async def recording(self) -> dict[str, dict[str, list[Any]]]:
        """Nothing was recorded."""
        return {"requests": {}, "steps": {}}

    async def reset_prefix_cache(self) -> int:
        """There is no cache."""
        return 0

    async def close(self) -> None:
        """Nothing to end."""

    async def _played(self, request: Request) -> AsyncIterator[OutputDelta]:
        async for delta in self.play(request):
            if delta.finished is not None:
                self.running.discard(request.request_id)
            yield delta


def ending(
    request: Request,
    reason: FinishReason,
    num_output_tokens: int,
    *,
    stop_token_id: int | None = None,
    message: str = "",
) -> Finished:
    """How a request of a script ends."""
    return Finished(
        request_id=request.request_id,
        reason=reason,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_output_tokens=num_output_tokens,
        stop_token_id=stop_token_id,
        message=message,
    )


def saying(token_ids: Iterable[int], *, width: int = 1, num_cached_tokens: int = 0) -> Play:
    """A script that gives these tokens, `width` per delta, up to max_tokens.

    Log-probabilities, where asked for, are -1 for every token and -1, -2, ... for the candidates
    0, 1, ...; prompt tokens come before the first output, two to a delta.
    """
    tokens = list(token_ids)

    async def play(request: Request) -> AsyncIterator[OutputDelta]:
        params = request.params
        if params.prompt_logprobs is not None:
            entries = _logged(request.prompt_token_ids[1:], params.prompt_logprobs)
            for start in range(0, len(entries), 2):
                yield OutputDelta(token_ids=[], prompt_logprobs=entries[start : start + 2])
        given = tokens[: params.max_tokens]
        for start in range(0, len(given), width):
            part = given[start : start + width]
            yield OutputDelta(
                token_ids=part,
                logprobs=[] if params.logprobs is None else _logged(part, params.logprobs),
                num_cached_tokens=num_cached_tokens,
            )
        yield OutputDelta(token_ids=[], finished=ending(request, FinishReason.LENGTH, len(given)))

    return play


def _logged(token_ids: Iterable[int], num_top: int) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=-1.0,
            rank=1,
            top_ids=tuple(range(num_top)),
            top_logprobs=tuple(-1.0 - i for i in range(num_top)),
        )
        for token_id in token_ids
    ]
