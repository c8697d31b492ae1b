"""What other settings would have done to a recorded load: the same requests, simulated twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.random import default_rng
from pydantic import ValidationError

from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, border_name, knobs
from paceline_engine.core.errors import SettingRefused
from paceline_engine.core.live_settings import parse_changes
from paceline_engine.core.step_features import StepFeatures
from paceline_engine.sim.arrivals import OpenLoop
from paceline_engine.sim.jitter import Jitter
from paceline_engine.sim.limits import limits_of
from paceline_engine.sim.recording import BadRecording, Recording, recorded_row
from paceline_engine.sim.report import row_of
from paceline_engine.sim.simulator import Simulator
from paceline_engine.sim.step_cost import Fit, fit

_UNKNOWN = frozenset(
    {
        "dtype",
        "kv_cache_dtype",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "speculative_model",
    }
)
"""Settings that change a step's time or the number of blocks in a way that no recording tells."""
NO_OVERLAP = (
    "overlap is not simulated: steps follow one another, and no cost model says what planning one "
    "while another is computed would save; leave it out"
)
NO_HOST_TIER = (
    "kvOffloadHostMemory is not simulated: no cost model says what copies to the host take; leave "
    "it out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer.

    Attributes:
        rows: figures of the recorded run, of its simulation, and of that with the change.
        simulators: of the latter two, finished.
        notes: what a reader should know: the fit's error, maxima that had to be raised.
    """

    rows: tuple[dict[str, Any], ...]
    simulators: tuple[Simulator, ...]
    notes: tuple[str, ...]


def fit_of(recording: Recording) -> Fit:
    """The cost model of the recorded machine.

    Raises:
        BadRecording: too few steps.
    """
    steps = recording.steps
    try:
        return fit([step.sizes for step in steps], [step.cycle_ms for step in steps])
    except ValueError as error:
        raise BadRecording(str(error)) from error


def answer(recording: Recording, changes: Mapping[str, Any], *, seed: int) -> WhatIf:
    """Simulate a recording as it was and with changed settings, both under the same cost model.

    Args:
        recording: of an engine.
        changes: camelCase name -> JSON value; none: only how faithful the simulation is.
        seed: of the jitter of steps, the same in both.

    Raises:
        BadRecording: it holds too few steps.
        SettingRefused: a value out of bounds, or a setting whose effect cannot be known from it.
    """
    runs = [("as it was", recording.settings)]
    notes: list[str] = []
    if changes:  # before the fit: a wrong name is told whatever the recording holds
        settings, notes = changed(recording.settings, changes)
        runs.append((_title(changes), settings))
    fitted = fit_of(recording)
    notes = [_about(fitted), *notes, *_overlapping(recording)]
    notes += [*_offloading(recording), *_beyond(recording, runs[-1][1])]
    simulators = [replay(recording, settings, fitted, seed=seed) for _, settings in runs]
    rows = [recorded_row(recording)]
    rows += [
        row_of(sim, f"simulated, {name}") for sim, (name, _) in zip(simulators, runs, strict=True)
    ]
    return WhatIf(rows=tuple(rows), simulators=tuple(simulators), notes=tuple(notes))


def replay(recording: Recording, settings: EngineSettings, fitted: Fit, *, seed: int) -> Simulator:
    """The recorded requests at their recorded times under these settings, to their end."""
    sim = Simulator(
        settings,
        limits_of(settings),
        fitted.cost,
        OpenLoop(recording.requests),
        jitter=Jitter(fitted.ratios, default_rng(seed)),
    )
    sim.run()
    return sim


def changed(
    settings: EngineSettings, changes: Mapping[str, Any]
) -> tuple[EngineSettings, list[str]]:
    """Settings with a change, as after a restart; and what had to change with it.

    Raises:
        SettingRefused: see `answer`.
    """
    update = parse_changes(changes)
    notes: list[str] = []
    if "overlap" in update:
        raise SettingRefused(400, "overlap", NO_OVERLAP)
    if "kv_offload_host_memory" in update:
        raise SettingRefused(400, "kvOffloadHostMemory", NO_HOST_TIER)
    for name in update:
        if name in _UNKNOWN:
            raise SettingRefused(
                400,
                border_name(name),
                f"what {border_name(name)} does to a step's time or to the number of blocks is not "
                "in a recording; set numKvBlocks for another number of blocks, or record such an "
                "engine",
            )
    for name, knob in knobs().items():
        boot, value = knob.boot_maximum, update.get(name)
        if boot and value is not None and boot not in update and value > getattr(settings, boot):
            update[boot] = value
            notes.append(f"{border_name(boot)} is raised to {value}, which needs a restart")
    size, blocks = update.get("block_size"), settings.num_kv_blocks
    if size and blocks and "num_kv_blocks" not in update:
        update["num_kv_blocks"] = max(2, blocks * settings.block_size // size)
    restart = [
        border_name(name)
        for name in update
        if knobs()[name].change is not ChangeClass.LIVE and border_name(name) in changes
    ]
    if restart:
        notes.append(f"{', '.join(restart)} cannot change while an engine runs; it needs a restart")
    try:
        return EngineSettings.model_validate(settings.model_dump() | update), notes
    except ValidationError as error:
        raise SettingRefused(400, "", error.errors()[0]["msg"]) from error


def _title(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes.items())


def _about(fitted: Fit) -> str:
    return (
        f"steps fitted to {fitted.num_steps}: half within {100 * fitted.median_error:.1f}% of "
        f"their time, nine in ten within {100 * fitted.p90_error:.1f}%"
    )


def _overlapping(recording: Recording) -> list[str]:
    """Such an engine plans a step before the one that it follows has ended."""
    if not recording.settings.overlap:
        return []
    note = (
        "recorded with overlap, which is not simulated: requests are planned up to a step earlier "
        "than there, and one that ends by a stop computes no token too many"
    )
    return [note]


def _offloading(recording: Recording) -> list[str]:
    """Blocks that came back from the host are computed again in a simulation."""
    if recording.settings.kv_offload_host_memory is None:
        return []
    note = (
        "recorded with kvOffloadHostMemory, which is not simulated: what the host gave back is "
        "computed there, and the time of copies counts as time of the steps that made them"
    )
    return [note]


def _beyond(recording: Recording, settings: EngineSettings) -> list[str]:
    """Steps may become larger than any that was recorded: then the model is guessing."""
    largest = max(_tokens([step.sizes for step in recording.steps]))
    if settings.max_num_batched_tokens > recording.settings.max_num_batched_tokens and (
        settings.max_num_batched_tokens > 2 * largest
    ):
        return [f"times of steps with more than {largest} tokens, the most recorded, are guessed"]
    return []


def _tokens(sizes: Sequence[StepFeatures]) -> list[int]:
    return [one.num_tokens for one in sizes]
