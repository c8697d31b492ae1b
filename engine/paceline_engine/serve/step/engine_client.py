"""How HTTP code speaks to the step loop: a small interface with two implementations.

`socket_client.SocketEngineClient` speaks to the step process, `in_process.InProcessEngineClient`
runs a loop inside the caller for tests. Nothing here waits for a step.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline_crds.phases import StartupPhase
from paceline_engine.core.live_settings import SettingsChange, SettingsState
from paceline_engine.core.plan import TokenLogprobs
from paceline_engine.core.request import Finished, Refusal, Request
from paceline_engine.core.stats import StatsSnapshot

__all__ = [
    "EngineClient",
    "EngineGone",
    "EngineInfo",
    "Heartbeat",
    "OutputDelta",
    "OutputStream",
    "RequestRefused",
    "SettingsChange",
    "SettingsState",
    "Startup",
]


class RequestRefused(Exception):
    """The engine did not take a request; nothing of it is left in the engine."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineGone(Exception):
    """The step process ended or is not up yet; the border answers 503."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelta:
    """What one step (or several, if the reader was slow) gave to one request.

    Attributes:
        token_ids: new output tokens; empty in a first delta that says that the request was
            admitted.
        logprobs: one entry per token if the request asked.
        prompt_logprobs: new entries, in order, for prompt positions 1.. if the request asked.
        num_cached_tokens: known from the first delta on.
        finished: set on the last delta.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    finished: Finished | None = None


class OutputStream(Protocol):
    """Outputs of one accepted request: iterate until a delta carries `finished`."""

    request_id: int

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        """Deltas in order.

        Raises:
            EngineGone: the step process ended before the request did.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Facts about a loaded engine.

    Attributes:
        model: served name; model_dir: folder with weights, tokenizer and config.
        revision: of the weights, as far as known.
        max_model_len, num_blocks, block_size, vocab_size: as in `core.limits.EngineLimits`.
        eos_token_ids: the model's own end tokens.
        memory_plan: name -> bytes or counts, for people and for status.
        kernels: operation -> implementation in use.
        kv_divergence: measure -> value, of logits with an FP8 KV cache from those with a full one;
            empty for a full one.
    """

    model: str
    model_dir: str
    revision: str
    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    kv_cache_dtype: str
    memory_plan: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    kv_divergence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Where the start is.

    Attributes:
        progress: 0..1 within the phase.
        seconds_by_phase: finished phases.
        reason, message: set when phase is FAILED (`core.errors.StartFailed`).
    """

    phase: StartupPhase
    progress: float = 0.0
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Progress of the step loop, for liveness.

    Attributes:
        last_progress_s: monotonic time of the last finished step, or of the last turn when idle.
        has_work: requests are running or waiting.
        predicted_step_s: how long the step in flight is expected to take.
    """

    last_progress_s: float
    has_work: bool
    predicted_step_s: float


class EngineClient(Protocol):
    """All that the HTTP process may ask of the step loop."""

    @property
    def startup(self) -> Startup:
        """Where the start is; FAILED also when the engine ended later."""
        ...

    @property
    def info(self) -> EngineInfo | None:
        """None until startup.phase is READY."""
        ...

    @property
    def heartbeat(self) -> Heartbeat:
        """Progress of the step loop as of now."""
        ...

    @property
    def stats(self) -> StatsSnapshot:
        """The latest snapshot; pushed with every step that finished a request and when idle."""
        ...

    async def submit(self, request: Request) -> OutputStream:
        """Hand over one request.

        Raises:
            RequestRefused: not taken (400, 429, 503).
            EngineGone: no engine behind this client.
        """
        ...

    def abort(self, request_id: int) -> None:
        """The client went away; unknown and finished ids are no error."""
        ...

    def finish(self, request_id: int, num_output_tokens: int, stop: str) -> None:
        """So many output tokens of a request with stop strings count.

        Called once for each that is not aborted: when `stop` was found, which ends it if it has
        not ended, or with an empty `stop` when it has ended without one.
        """
        ...

    async def settings(self) -> SettingsState:
        """The settings in force."""
        ...

    async def patch_settings(
        self, changes: Mapping[str, Any], revision: int | None
    ) -> SettingsChange:
        """Change live settings between two steps, all or nothing.

        Raises:
            SettingRefused: 400, 409 or 412 (`core.errors`).
        """
        ...

    async def requests(self) -> list[dict[str, Any]]:
        """Every request in the engine: ids, state, tokens, and why it waits."""
        ...

    async def steps(self, limit: int) -> list[dict[str, Any]]:
        """The flight recorder: the last steps, oldest first."""
        ...

    async def recording(self) -> dict[str, dict[str, list[Any]]]:
        """All that is kept of steps and ended requests, as columns (`Recorder.recording`)."""
        ...

    async def reset_prefix_cache(self) -> int:
        """Forget unreferenced cached blocks; returns how many."""
        ...

    async def close(self) -> None:
        """End the step loop and free what the client holds."""
        ...
