"""The tuner over the simulator: the machine that tunes, the scheduler that serves, simulated time.

The loop is that of `local`: pages are scraped, windows read, orders obeyed, settings read back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.tuner import pages
from paceline.tuner.session import Controls, Reading, Session
from paceline_crds import metrics
from paceline_crds.spec import LLMDeploymentSpec
from paceline_engine.sim.simulator import Simulator
from paceline_operator.decide.tuning import readings, windows
from paceline_operator.decide.tuning.observation import Fleet, Note
from paceline_operator.decide.tuning.readings import Scrape
from paceline_operator.decide.tuning.signals import Sample
from paceline_operator.decide.tuning.state import Outcome, Phase, State

START = 1_800_000_000
"""Simulated time 0, seconds since the epoch: on the grid of every window."""
_ENGINE = "0"
_BUSY = frozenset({Phase.APPLYING.value, Phase.ROLLING_BACK.value})

Fault = Callable[[Fleet, float], Fleet]


def _healthy(fleet: Fleet, _at_s: float) -> Fleet:
    return fleet


@dataclass(slots=True, kw_only=True)
class SimulatedTuning:
    """One engine and its tuner. Mutable.

    Attributes:
        engine: makes the engine at a time, with its load; called again when it crashes.
        fault: changes what the tuner observes of the engine, at a simulated time.
        controls: what a person says, at a simulated time.
        is_deaf: the engine takes no change up.
        notes: everything that was told, with its simulated time.
    """

    spec: LLMDeploymentSpec
    engine: Simulator
    fault: Fault = _healthy
    controls: Callable[[float], Controls] = lambda _: Controls()
    is_deaf: bool = False
    notes: list[tuple[float, Note]] = field(default_factory=list)
    session: Session = field(init=False)
    _revision: int = 0
    _scrapes: list[Scrape] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = Session(self.spec)

    @property
    def state(self) -> State:
        """What `status.tuning` would be."""
        return self.session.state

    @property
    def num_changes(self) -> int:
        """Changes that were made, whatever became of them."""
        return sum(note.reason == "ChangeStarted" for _, note in self.notes)

    @property
    def settled_s(self) -> float:
        """Simulated time at which the last change that stayed had been verified; 0 for none."""
        ends = [item.ended for item in self.state.history if item.outcome is Outcome.ACCEPTED]
        return max(ends, default=START) - START

    def reasons(self) -> list[str]:
        """Of everything that was told."""
        return [note.reason for _, note in self.notes]

    def run(self, until_s: float, stop: Callable[[State], bool] = lambda _: False) -> State:
        """Let simulated time pass, until then or until a state that was waited for."""
        scrape_s = self.session.policy.scrape_s
        turn = int(self.engine.now / scrape_s)
        while turn * scrape_s < until_s and not stop(self.state):
            turn += 1
            at_s = turn * scrape_s
            self.engine.advance(at_s)
            self._scrape(at_s)
            if self.session.due(START + at_s) or self.state.mood in _BUSY:
                self._turn(at_s)
        return self.state

    def _scrape(self, at_s: float) -> None:
        page = pages.of_snapshot(self.engine.snapshot(), float(START))
        self._scrapes.append(Scrape(engine=_ENGINE, at=START + at_s, page=page))

    def _turn(self, at_s: float) -> None:
        said = self._read()
        fleet = self.fault(Fleet(), at_s)
        said = said[: fleet.num_ready]
        found = self.session.turn(
            said, self._samples(START + at_s), fleet, START + at_s, self.controls(at_s)
        )
        self.notes += [(at_s, note) for note in found]
        for order in () if self.is_deaf else self.session.orders(said):
            self.engine.apply_settings(order.changes, order.revision)
            self._revision = order.revision

    def _read(self) -> list[Reading]:
        settings = self.engine.settings.on_border()
        return [Reading(engine=_ENGINE, revision=self._revision, settings=settings)]

    def _samples(self, now: float) -> Sequence[Sample]:
        rules = self.session.policy
        made = []
        for window in self.session.due(now):
            counted = windows.pods_of(window, [(_ENGINE, START)], rules.warm_up)
            made.append(readings.measured(self._scrapes, window, counted))
        self._scrapes = readings.forget(self._scrapes, self.state.seen_until)
        return made


def goodput_of(engine: Simulator, warm_up_s: float, until_s: float) -> float:
    """Goodput of an engine whose settings stay: good requests a second, or output tokens."""
    engine.advance(warm_up_s)
    before = engine.snapshot()
    engine.advance(until_s)
    after = engine.snapshot()
    good, bad = (
        after.value(metrics.SLO_REQUESTS, result=name)
        - before.value(metrics.SLO_REQUESTS, result=name)
        for name in ("good", "bad")
    )
    if not good + bad:
        name = metrics.GENERATION_TOKENS
        good = after.value(name) - before.value(name)
    return good / (until_s - warm_up_s)
