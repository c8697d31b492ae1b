"""A cluster in memory whose pods answer load by a formula, so that plan() tunes them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from paceline_operator.decide.actions import Plan
from paceline_operator.decide.observed import Measured, Observed
from paceline_operator.decide.tuning import asking, policy
from paceline_operator.decide.tuning.asking import Question
from paceline_operator.decide.tuning.signals import Sample
from paceline_operator.resources import objects, parse
from paceline_operator.resources.parse import Parsed
from paceline_operator.testing import surface as surfaces
from paceline_operator.testing.engine import Engine
from paceline_operator.testing.surface import Knobs, Load, Surface
from paceline_operator.testing.world import World

Tamper = Callable[[Measured], Measured]


class TunedWorld(World):
    """One LLMDeployment under load. Mutable.

    Attributes:
        load, surface: what its pods are asked for, and how they answer.
        tamper: changes what Prometheus says.
        asked: every question so far.
    """

    def __init__(self, spec: Mapping[str, Any], load: Load, surface: Surface, **rest: Any) -> None:
        self.load = load
        self.surface = surface
        self.tamper: Tamper = lambda measured: measured
        self.asked: list[Question] = []
        self._random = Random(1)  # noqa: S311 - a test's noise
        super().__init__(spec, load_s=1.0, **rest)

    def observe(self) -> Observed:
        """With the windows that are due."""
        seen = super().observe()
        due = asking.questions(seen.deployment, seen.pods, self.now)
        self.asked += due
        samples = tuple(sample for question in due if (sample := self._answer(question)))
        return replace(seen, measured=self.tamper(Measured(samples=samples, lack="", text="")))

    def run(self, seconds: float) -> None:
        """Reconcile whenever the operator asks for it, for so long."""
        until = self.now + seconds
        while self.now < until:
            plan = self.reconcile()
            self.tick(self._pause(plan))

    def setting(self, name: str) -> Any:
        """Of the first pod's engine (camelCase)."""
        return self._engine_in_force().settings[name]

    def tuning(self, *path: str) -> Any:
        """Within status.tuning."""
        return objects.at(self.status, "tuning", *path)

    @staticmethod
    def _pause(plan: Plan) -> float:
        wait = plan.requeue_after_s
        return 60.0 if wait is None else max(1.0, min(60.0, wait))

    def _engine_in_force(self) -> Engine:
        return next(iter(self.engines.values()))

    def _answer(self, question: Question) -> Sample | None:
        if not question.pods:
            return question.nothing()
        parsed = parse.parse(self.document)
        assert isinstance(parsed, Parsed)
        rules = policy.of_spec(parsed.deployment.spec)
        found = surfaces.point(self.surface, self._knobs(), self.load, rules)
        return surfaces.sample(
            *(self.surface, found, self.load, rules, question.window, question.pods, self._random)
        )

    def _knobs(self) -> Knobs:
        settings = self._engine_in_force().settings
        budget = float(settings["maxNumBatchedTokens"])
        cap = settings["longPrefillTokens"]
        return Knobs(
            seqs=float(settings["maxNumSeqs"]),
            budget=budget,
            long_cap=float(cap) if cap is not None else budget / 2,
            watermark=float(settings["watermark"]),
        )
