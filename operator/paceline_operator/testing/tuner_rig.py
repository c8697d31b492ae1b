"""The tuner over a formula: time, pods that take settings up, faults, and a state that is written.

Each turn the state goes through the text of its status, as if the operator had been killed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from paceline_crds import resolve
from paceline_crds.objective import Resolved
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.status_tuning import OverlayEntry
from paceline_operator.decide.tuning import codec, dials, machine, policy, windows
from paceline_operator.decide.tuning.dials import Dials
from paceline_operator.decide.tuning.observation import Fleet, Note, Observation
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample
from paceline_operator.decide.tuning.state import Phase, State
from paceline_operator.resources import overlay
from paceline_operator.resources.overlay import Wanted
from paceline_operator.testing import surface as surfaces
from paceline_operator.testing.surface import Knobs, Load, Point, Surface

START = 1_800_000_000
Override = Callable[[Observation], Observation]


def _same(seen: Observation) -> Observation:
    return seen


@dataclass(slots=True, kw_only=True)
class TunerRig:
    """One deployment. Mutable.

    Attributes:
        spec: as a manifest has it.
        load: what users do at a time (seconds since the start).
        fault: changes what the tuner observes.
        refuses: engines do not take settings up.
        is_killed: the next turn ends before its state is written.
        serialises: whether the next state goes through its text; else it is kept as it is.
        status: the tuner's state as status has it.
        in_force: camelCase name -> value that the engines have.
        notes: everything that was told.
    """

    spec: LLMDeploymentSpec
    load: Callable[[float], Load]
    surface: Surface = field(default_factory=Surface)
    seed: int = 0
    turn_s: int = 60
    fault: Override = _same
    refuses: Callable[[Mapping[str, str]], bool] = lambda _: False
    is_killed: Callable[[], bool] = lambda: False
    now: int = START
    status: dict[str, Any] = field(default_factory=dict)
    in_force: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    serialises: Callable[[], bool] = lambda: True
    random: Random = field(init=False)
    policy: Policy = field(init=False)
    _base: Resolved = field(init=False)
    _state: State | None = None
    _laid: dict[tuple[OverlayEntry, ...], tuple[Wanted, Dials]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)  # noqa: S311 - a test's noise
        self.policy = policy.of_spec(self.spec)
        self._base = resolve.resolve(self.spec)

    @property
    def state(self) -> State:
        """As it reads in status."""
        if self._state is None:
            self._state = codec.decode(self.status)
        return self._state

    def run(self, hours: float) -> State:
        """Let time pass."""
        for _ in range(int(hours * 3600 / self.turn_s)):
            self.turn()
        return self.state

    def turn(self) -> tuple[Note, ...]:
        """One look: what was wanted reaches the engines, then the tuner decides."""
        self.now += self.turn_s
        before = self.state
        wanted, turned = self.laid_over(before.overlay)
        asked = {item.name: item.value for item in wanted.kept}
        if not self.refuses(asked):
            self.in_force = asked
        seen = Observation(
            policy=self.policy,
            dials=turned,
            fleet=Fleet(is_agreed=self.in_force == asked),
            samples=self._samples(before),
            fingerprint="1",
            overlay_kept=frozenset(item.name for item in wanted.kept),
        )
        after, notes = machine.step(before, self.fault(seen), self.now)
        if self.is_killed():
            return ()
        if self.serialises():
            self.status = json.loads(json.dumps(codec.encode(after)))
            after = codec.decode(self.status)
        self._state = after
        self.notes += notes
        return notes

    def laid_over(self, entries: tuple[OverlayEntry, ...]) -> tuple[Wanted, Dials]:
        """The settings under an overlay, and the dials as they stand then."""
        key = tuple(item.model_copy(update={"since": None}) for item in entries)
        if key not in self._laid:
            wanted = overlay.lay_over(self._base, entries, self.spec)
            self._laid[key] = wanted, dials.of(self.spec, self._base, wanted.settings, {})
        return self._laid[key]

    def point(self, at: float | None = None) -> Point:
        """The steady state under what is in force."""
        load = self.load((self.now if at is None else at) - START)
        return surfaces.point(self.surface, self.knobs(), load, self.policy)

    def goodput(self) -> float:
        """What users get now."""
        load = self.load(self.now - START)
        return self.point().goodput(self.policy.has_targets, load.output)

    def knobs(self, **changed: float) -> Knobs:
        """Settings in force."""
        settings = self._base.settings
        budget = float(self.in_force.get("maxNumBatchedTokens", settings.max_num_batched_tokens))
        cap = self.in_force.get("longPrefillTokens", settings.long_prefill_tokens)
        made = Knobs(
            seqs=float(self.in_force.get("maxNumSeqs", settings.max_num_seqs)),
            budget=budget,
            long_cap=float(cap) if cap is not None else budget / 2,
            watermark=float(self.in_force.get("watermark", settings.watermark)),
        )
        return replace(made, **changed)

    def _samples(self, state: State) -> tuple[Sample, ...]:
        rules = self.policy
        due = windows.due(
            state.seen_until, self.now, length_s=rules.window_s, scrape_s=rules.scrape_s
        )
        made = []
        for window in due:
            load = self.load(window.start - START)
            found = surfaces.point(self.surface, self.knobs(), load, rules)
            made.append(
                surfaces.sample(self.surface, found, load, rules, window, ("a",), self.random)
            )
        return tuple(made)


def is_in_flight(state: State) -> bool:
    """Whether a change has touched anything and has not ended."""
    return state.current is not None and state.current.phase is not Phase.PROPOSED
