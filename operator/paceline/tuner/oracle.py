"""How near the tuner comes to the best static setting: every setting of a grid, and the tuner.

The settings that the tuner ends with are run like those of the grid, from a cold start under the
same load, so both figures are of the same kind. Another seed than the tuner's own gives the load.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from paceline.tuner.scenarios import Scenario
from paceline.tuner.simulated import SimulatedTuning, goodput_of

WARM_UP_S, MEASURED_S = 60.0, 360.0
_FURTHER = 100
"""From the seed of the load that is tuned under to that of the settings' runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One scenario.

    Attributes:
        best: the best setting of the grid, and its goodput.
        first: goodput of the manifest's own settings.
        last: settings that the tuner ended with, and their goodput.
        settled_s: simulated time until its last accepted change was verified.
        num_changes, num_kept: changes made, and those that stayed.
    """

    symptom: str
    first: float
    best: tuple[Mapping[str, Any], float]
    last: tuple[Mapping[str, Any], float]
    settled_s: float
    num_changes: int
    num_kept: int

    @property
    def share(self) -> float:
        """The tuner's goodput over the best one's."""
        return self.last[1] / self.best[1] if self.best[1] else 1.0


def compare(scenario: Scenario, tuned_s: float, seed: int) -> Comparison:
    """Tune for so much simulated time, then run the grid.

    Args:
        scenario: a load that settings can cure.
        tuned_s: simulated seconds that the tuner has.
        seed: of the load that is tuned under.
    """
    tuning = SimulatedTuning(spec=scenario.manifest(), engine=scenario.engine(seed))
    tuning.run(tuned_s)
    last = _in_force(tuning)
    grid = [
        dict(zip(scenario.grid, values, strict=True)) for values in product(*scenario.grid.values())
    ]
    runs = _Runs(scenario, seed + _FURTHER)
    found = [(settings, runs.goodput(settings)) for settings in grid]
    return Comparison(
        symptom=scenario.symptom.value,
        first=runs.goodput({}),
        best=max(found, key=lambda item: item[1]),
        last=(last, runs.goodput(last)),
        settled_s=tuning.settled_s,
        num_changes=tuning.num_changes,
        num_kept=tuning.reasons().count("ChangeAccepted"),
    )


def table(found: list[Comparison]) -> str:
    """A row for each scenario, as Markdown."""
    lines = [
        "| symptom | at first | best static | tuner | of best | changes (kept) | settled after |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {item.symptom} | {item.first:.2f} | {item.best[1]:.2f} ({_text(item.best[0])}) "
        f"| {item.last[1]:.2f} ({_text(item.last[0])}) | {item.share:.1%} "
        f"| {item.num_changes} ({item.num_kept}) | {item.settled_s:.0f} s |"
        for item in found
    ]
    return "\n".join(lines)


def _in_force(tuning: SimulatedTuning) -> dict[str, Any]:
    """What a restart would begin with: the overlay, without a change that is in flight."""
    change = tuning.state.current
    open_ = change.setting if change is not None and change.is_in_flight else ""
    return {item.name: item.value for item in tuning.state.overlay if item.name != open_}


class _Runs:
    """Goodput of settings that stay; the same settings are run once. Mutable: it remembers."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario, self._seed = scenario, seed
        self._known: dict[str, float] = {}

    def goodput(self, settings: Mapping[str, Any]) -> float:
        engine = self._scenario.engine(self._seed, **settings)
        key = repr(engine.settings)
        if key not in self._known:
            self._known[key] = goodput_of(engine, WARM_UP_S, MEASURED_S)
        return self._known[key]


def _text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it was"
