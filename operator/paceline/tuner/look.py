"""A look at engines behind a Prometheus: three windows in a row, and what ails them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from paceline.errors import CommandError
from paceline.tuner import diagnose, fleet
from paceline.tuner.diagnose import Diagnosis, Known
from paceline.tuner.fleet import Fleet
from paceline.tuner.prometheus import Prometheus
from paceline_crds.settings import EngineSettings, border_names
from paceline_crds.spec import LLMDeploymentSpec
from paceline_operator.decide.tuning.policy import Policy, Target, of_spec

WINDOWS = 3
"""In a row; a symptom has to show in all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person says of the engines.

    Attributes:
        window_s: length of a window.
        spec: of their manifest, None if there is none.
        targets_s: latency -> seconds, before the manifest's and those that engines judge by.
        settings: camelCase name -> text, of settings that engines do not export.
    """

    window_s: int
    spec: LLMDeploymentSpec | None = None
    targets_s: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def rules(self, found: Fleet) -> Policy:
        """Targets: those that are asked for, else the manifest's, else those of the engines."""
        rules = of_spec(self.spec) if self.spec is not None else Policy()
        targets = {name: Target(limit_s=limit) for name, limit in found.targets_s.items()}
        targets |= rules.targets
        targets |= {name: Target(limit_s=limit) for name, limit in self.targets_s.items()}
        return replace(rules, targets=targets, window_s=self.window_s)

    def known(self, found: Fleet) -> Known:
        """Settings: those that are named, else those that engines export.

        Raises:
            CommandError: one that is named is no setting, or its value is none of it.
        """
        texts = {
            name: f"{value:g}" if value % 1 else str(int(value))
            for name, value in found.settings.items()
        }
        texts |= self.settings
        names = border_names()
        if unknown := sorted(set(texts) - set(names) - set(found.settings)):
            raise CommandError(
                f"--set: {unknown[0]} is no setting; expected one of {', '.join(names)}"
            )
        try:
            made = EngineSettings.model_validate({k: v for k, v in texts.items() if k in names})
        except ValidationError as error:
            told = error.errors()[0]
            raise CommandError(f"--set {'.'.join(map(str, told['loc']))}: {told['msg']}") from error
        return Known(
            spec=self.spec, settings=made.written_on_border(), is_paceline=found.is_paceline
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was found.

    Attributes:
        estimated: latencies whose shares within their target are estimated from histograms.
    """

    diagnosis: Diagnosis
    estimated: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it, and as the page gets it."""
        return {
            "windows": self.diagnosis.num_windows,
            "recommendations": [asdict(item) for item in self.diagnosis.recommendations],
            "notEvaluated": dict(self.diagnosis.not_evaluated),
            "estimated": list(self.estimated),
        }


def at(prometheus: Prometheus, found: Fleet, asked: Asked, now: float) -> Look:
    """Diagnose engines from the windows up to a time (seconds since the epoch).

    Raises:
        CommandError: the windows hold too few scrapes, a setting that was named is none, or
            Prometheus does not answer.
    """
    rules = asked.rules(found)
    windows = fleet.windows_before(now, asked.window_s, WINDOWS)
    measured = [fleet.measure(prometheus, found, window, rules) for window in windows]
    samples = [sample for sample, _ in measured]
    if lack := fleet.too_few_scrapes(samples):
        raise CommandError(lack)
    return Look(
        diagnosis=diagnose.of(samples, rules, asked.known(found)),
        estimated=tuple(sorted(frozenset[str]().union(*(names for _, names in measured)))),
    )
