"""A pod with the part of an engine that the operator sees: start, settings, drain."""

from dataclasses import dataclass, field
from typing import Any

from paceline_crds import objective
from paceline_crds.knob import ChangeClass
from paceline_crds.phases import DrainPhase, StartupPhase
from paceline_crds.settings import EngineSettings, border_name, knobs
from paceline_operator.decide.observed import EngineReading
from paceline_operator.testing.store import Refused


@dataclass(slots=True)
class Engine:
    """One engine process. Mutable; owned by a World's pod.

    Attributes:
        ready_at: when its model is loaded.
        failure: (reason, message) if its start fails.
    """

    model: str
    settings: dict[str, Any]
    ready_at: float
    revision: int = 0
    generation: int = 0
    drain_phase: DrainPhase = DrainPhase.SERVING
    refuse_at: float = 0.0
    num_requests: int = 0
    failure: tuple[str, str] | None = None
    is_reachable: bool = True
    changes: list[dict[str, Any]] = field(default_factory=list)

    def is_ready(self, now: float) -> bool:
        """Whether its readiness probe succeeds."""
        return self.is_loaded(now) and self.drain_phase == DrainPhase.SERVING

    def is_loaded(self, now: float) -> bool:
        """Whether the model is loaded."""
        return self.failure is None and now >= self.ready_at

    def patch(self, changes: dict[str, Any], revision: int) -> None:
        """The live settings API's rules.

        Raises:
            Refused: 409 above a boot maximum, 412 for a stale revision.
        """
        differing = {name: value for name, value in changes.items() if self.settings[name] != value}
        if revision < self.revision or (revision == self.revision and differing):
            raise Refused(412, f"revision {revision} is stale")
        for name, knob in knobs().items():
            limit = self.settings.get(border_name(knob.boot_maximum)) if knob.boot_maximum else None
            value = differing.get(border_name(name))
            if limit is not None and value is not None and value > limit:
                raise Refused(409, f"{name} is above {limit}")
        self.settings |= differing
        self.revision = revision
        self.generation += bool(differing)
        self.changes.append(differing)

    def drain(self, propagation_s: float, now: float) -> None:
        """Begin a drain; a second one changes nothing."""
        if self.drain_phase == DrainPhase.SERVING:
            self.drain_phase = DrainPhase.PROPAGATING
            self.refuse_at = now + propagation_s

    def advance(self, now: float) -> None:
        """Move the drain on."""
        if self.drain_phase == DrainPhase.PROPAGATING and now >= self.refuse_at:
            self.drain_phase = DrainPhase.DRAINING
        if self.drain_phase == DrainPhase.DRAINING:
            self.num_requests = max(0, self.num_requests - 1)
            if self.num_requests == 0:
                self.drain_phase = DrainPhase.DRAINED

    def reading(self, pod_uid: str, now: float) -> EngineReading:
        """What its admin port says."""
        if not self.is_reachable or self.failure:
            return EngineReading(pod_uid=pod_uid, read_at=now, is_reachable=False)
        if not self.is_loaded(now):
            return EngineReading(
                pod_uid=pod_uid,
                read_at=now,
                is_reachable=True,
                is_live=True,
                phase=StartupPhase.LOADING,
                model=self.model,
            )
        return EngineReading(
            pod_uid=pod_uid,
            read_at=now,
            is_reachable=True,
            is_ready=self.is_ready(now),
            is_live=True,
            model=self.model,
            phase=StartupPhase.READY,
            drain_phase=self.drain_phase,
            revision=self.revision,
            generation=self.generation,
            settings=dict(self.settings),
            num_requests=self.num_requests,
            capacity={"kvBlocks": 100, "kvTokens": 1600, "maxModelLen": 800},
            memory_plan={"weights": 1000},
        )


def start(arguments: list[str], recorded: dict[str, Any], *, gpus: int, ready_at: float) -> Engine:
    """A process of `paceline serve`: flags, then the device, then live values from the file."""
    from paceline_crds import flags

    given: dict[str, Any] = {}
    by_flag = {flags.flag_of(name): name for name in knobs()}
    model = ""
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag == "--served-model-name":
            model = value
        if flag in by_flag:
            name = by_flag[flag]
            if knobs()[name].change is ChangeClass.LIVE:
                raise AssertionError(f"{flag} is live and may not be in the pod template")
            given[name] = value or "true"
    written = objective.below_boot_maxima(
        {name: int(value) if value.isdigit() else value for name, value in given.items()}, {}
    )
    settings = EngineSettings.model_validate({**given, **written})
    memory = 80_000_000_000 if gpus else None
    booted = objective.for_device(settings, memory).booted()
    shown = booted.on_border()
    for name, knob in knobs().items():
        label = border_name(name)
        if knob.change is not ChangeClass.LIVE or label not in recorded["settings"]:
            continue
        value = recorded["settings"][label]
        limit = shown.get(border_name(knob.boot_maximum)) if knob.boot_maximum else None
        shown[label] = min(value, limit) if limit is not None and value is not None else value
    return Engine(model=model, settings=shown, ready_at=ready_at, revision=recorded["revision"])
