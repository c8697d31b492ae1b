"""The tuner of one deployment without a cluster: what `status` and ConfigMaps are elsewhere.

It decides and does no I/O: readings and samples come in, orders for engines and lines for people go
out. `local` drives it over processes, `simulated` over the simulator.

A setting that a person changes through an engine's API meanwhile counts as written in the
manifest: it is pinned, and the tuner begins to measure anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline_crds import resolve
from paceline_crds.knob import ChangeClass
from paceline_crds.objective import Resolved
from paceline_crds.settings import EngineSettings, border_names, knobs
from paceline_crds.source import Source
from paceline_crds.spec import LLMDeploymentSpec
from paceline_operator.decide.tuning import asking, dials, machine, policy, windows
from paceline_operator.decide.tuning.observation import Fleet, Note, Observation
from paceline_operator.decide.tuning.policy import Policy, Target
from paceline_operator.decide.tuning.signals import MIN_SCRAPES, Sample, Window
from paceline_operator.decide.tuning.state import State
from paceline_operator.resources import overlay
from paceline_operator.resources.overlay import Wanted

_TARGETS = {"ttft": "sloTtftMs", "itl": "sloItlMs", "e2e": "sloE2eMs"}
_MOST_SCRAPE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an engine says is in force.

    Attributes:
        settings: camelCase name -> JSON value.
    """

    engine: str
    revision: int
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A change to send to an engine."""

    engine: str
    changes: Mapping[str, Any]
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """What a person says, where a cluster has annotations."""

    is_frozen: bool = False
    approve: str = ""
    reject: str = ""


NOTHING_SAID = Controls()


class Session:
    """Mutable.

    Attributes:
        policy: rules; targets are those that engines have in force.
        state: what `status.tuning` is in a cluster.
    """

    def __init__(self, spec: LLMDeploymentSpec) -> None:
        rules = policy.of_spec(spec)
        scrape_s = min(_MOST_SCRAPE_S, rules.window_s / (2 * MIN_SCRAPES))
        # Restarts for a setting are what a person does here: they are advice.
        self.policy: Policy = replace(rules, scrape_s=scrape_s, allow_restart=False)
        self.state = State()
        self._spec = spec
        self._base: Resolved = resolve.resolve(spec)
        self._by_hand: dict[str, Any] = {}
        self._own: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._revision = 0

    def due(self, now: float) -> tuple[Window, ...]:
        """Windows that can be read by now and have not been."""
        rules = self.policy
        return windows.due(
            self.state.seen_until, now, length_s=rules.window_s, scrape_s=rules.scrape_s
        )

    def turn(
        self,
        readings: Sequence[Reading],
        samples: Sequence[Sample],
        fleet: Fleet,
        now: float,
        controls: Controls = NOTHING_SAID,
    ) -> tuple[Note, ...]:
        """One step of the machine; `orders` then says what engines have to be told.

        Args:
            readings: of the engines that are ready and answered.
            samples: windows that were due, oldest first.
            fleet: the engines; whether they agree is found out here.
            now: seconds since the epoch.
            controls: what a person says.
        """
        if not readings and not self._own:
            return ()  # nothing is known of them so far
        self._learn(readings)
        wanted = self._wanted()
        self._tell(wanted)
        # Values count, not revisions: who refused a change has what a roll-back of it wants.
        is_agreed = len(readings) == fleet.num_ready and not any(
            _differing(self._told, item.settings) for item in readings
        )
        said = readings[0].settings if readings else self._told
        seen = Observation(
            policy=self.policy,
            dials=dials.of(self._spec, self._base, wanted.settings, said),
            fleet=replace(fleet, is_agreed=is_agreed),
            samples=tuple(samples),
            fingerprint=self._fingerprint(),
            overlay_kept=frozenset(item.name for item in wanted.kept),
            is_frozen=controls.is_frozen,
            approve=controls.approve,
            reject=controls.reject,
        )
        self.state, notes = machine.step(self.state, seen, now)
        self._tell(self._wanted())
        return notes

    def orders(self, readings: Sequence[Reading]) -> list[Order]:
        """Engines whose settings are not the wanted ones, and what to tell them."""
        made = []
        for item in readings:
            changes = _differing(self._told, item.settings)
            if changes or item.revision != self._revision:
                made.append(Order(engine=item.engine, changes=changes, revision=self._revision))
        return made

    def kept(self) -> list[tuple[str, str]]:
        """Dotted field of a manifest and value: what the tuner has found and would be lost."""
        names = border_names()
        return [
            (f"spec.{knobs()[names[item.name]].spec}", _yaml(item.value))
            for item in self.state.overlay
            if not self._is_in_flight(item.name)
        ]

    # -- inside ------------------------------------------------------------------------------

    def _is_in_flight(self, name: str) -> bool:
        change = self.state.current
        return change is not None and change.is_in_flight and change.setting == name

    def _learn(self, readings: Sequence[Reading]) -> None:
        """What engines have that nobody here told them: their start values, a person's changes."""
        if not self._own and readings:
            self._own = {
                name: readings[0].settings[name] for name in border_names(ChangeClass.LIVE)
            }
            self._told = dict(self._own)
            self._revision = max(item.revision for item in readings)
            self._follow_targets()
            return
        newest = max(readings, key=lambda item: item.revision, default=None)
        if newest is None or newest.revision <= self._revision:
            return
        self._revision = newest.revision
        changed = _differing(self._told, newest.settings)
        by_person = {name: newest.settings[name] for name in changed}
        if not by_person:
            return
        self._by_hand |= by_person
        self._own |= by_person
        self._told |= by_person
        names = {border_names()[name]: value for name, value in by_person.items()}
        settings = self._base.settings.model_copy(
            update={
                name: getattr(_settings_with(name, value), name) for name, value in names.items()
            }
        )
        sources = {**self._base.sources, **dict.fromkeys(names, Source.SPEC)}
        self._base = Resolved(settings=settings, sources=sources)
        self._follow_targets()

    def _follow_targets(self) -> None:
        """Engines judge by the targets they have in force."""
        targets = {}
        for name, label in _TARGETS.items():
            if limit_ms := self._own[label]:
                old = self.policy.targets.get(name, Target(limit_s=0.0))
                targets[name] = replace(old, limit_s=limit_ms / 1000)
        self.policy = replace(self.policy, targets=targets)

    def _wanted(self) -> Wanted:
        return overlay.lay_over(self._base, self.state.overlay, self._spec)

    def _tell(self, wanted: Wanted) -> None:
        shown = wanted.settings.on_border()
        told = self._own | {item.name: shown[item.name] for item in wanted.kept}
        if told != self._told:
            self._told = told
            self._revision += 1

    def _fingerprint(self) -> str:
        written = self._spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return asking.fingerprint({**written, "byHand": self._by_hand})


def _settings_with(name: str, value: Any) -> Any:
    """A setting's JSON value as the type that it has within."""
    return EngineSettings.model_validate({name: value})


def _differing(told: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if said.get(name) != value}


def _yaml(value: str) -> str:
    return f'"{value}"' if "." in value else value
