"""What ails a fleet: symptoms that hold, each with a sentence, its evidence and what to change.

The operator's own rules, over windows of the past; nothing is turned. A setting that no engine
exports and nobody names is not guessed: what needs it is listed as not evaluated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline_crds import flags, resolve
from paceline_crds.objective import Resolved
from paceline_crds.settings import EngineSettings, border_names, knobs
from paceline_crds.source import Source
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.spec_tuning import TuningMode
from paceline_operator.decide.tuning import absorb, advice, dials, symptoms
from paceline_operator.decide.tuning import observation as observed
from paceline_operator.decide.tuning.dials import Dials
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample
from paceline_operator.decide.tuning.state import Advice, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the settings.

    Attributes:
        spec: of a manifest; None if there is none.
        settings: camelCase name -> JSON value: exported by engines, or named by a person.
        is_paceline: the engines are Paceline's; else flags of vLLM are told beside the manifest.
    """

    spec: LLMDeploymentSpec | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_paceline: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One symptom.

    Attributes:
        text: one sentence; change: a line of the manifest; flag: of `vllm serve`, if it has one.
        evidence: figures of the last window.
    """

    symptom: str
    text: str
    change: str
    flag: str
    evidence: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        not_evaluated: symptom -> what is missing for it.
        num_windows: that could be used.
    """

    recommendations: tuple[Recommendation, ...]
    not_evaluated: Mapping[str, str]
    num_windows: int


def of(samples: Sequence[Sample], rules: Policy, known: Known) -> Diagnosis:
    """Diagnose.

    Args:
        samples: windows in a row, oldest first; three show a symptom.
        rules: targets.
        known: settings, as far as anybody says them.
    """
    turned = _dials(known)
    seen = observed.Observation(
        # Nobody acts here, whatever the manifest's mode: everything is told as advice.
        policy=replace(rules, mode=TuningMode.OBSERVE),
        dials=turned,
        fleet=observed.Fleet(replicas=len(samples[-1].pods), num_pods=len(samples[-1].pods)),
        samples=tuple(samples),
    )
    state = absorb.absorbed(State(), seen)
    told = {item.symptom: item for item in advice.of(state, seen, samples[-1].window.end)}
    return Diagnosis(
        recommendations=tuple(
            _recommendation(told[item.symptom], item.evidence, known)
            for item in state.symptoms
            if item.holds and item.symptom in told
        ),
        not_evaluated=_not_evaluated(samples[-1], rules, turned),
        num_windows=sum(sample.problem is None for sample in samples),
    )


def _dials(known: Known) -> Dials:
    """Settings as far as they are known."""
    names = border_names()
    given = {names[name]: value for name, value in known.settings.items() if name in names}
    if known.spec is not None:
        base = resolve.resolve(known.spec)
        spec = known.spec
    else:
        base = Resolved(
            settings=EngineSettings(**given), sources=dict.fromkeys(knobs(), Source.DEFAULT)
        )
        spec = LLMDeploymentSpec.model_validate({"model": {"uri": "demo"}})
    made = dials.of(spec, base, base.settings, known.settings)
    if known.is_paceline or known.spec is not None:
        return made
    return {name: dial for name, dial in made.items() if name in known.settings}


def _not_evaluated(sample: Sample, rules: Policy, turned: Dials) -> dict[str, str]:
    found = symptoms.evaluate(sample, rules, dials.caps(turned))
    return {item.symptom.value: item.lack for item in found if item.is_shown is None}


def _recommendation(told: Advice, evidence: Mapping[str, float], known: Known) -> Recommendation:
    return Recommendation(
        symptom=told.symptom.value,
        text=told.text,
        change=told.change,
        flag="" if known.is_paceline else _flag(told.change),
        evidence=evidence,
    )


def _flag(change: str) -> str:
    """The flag that a line of the manifest amounts to, empty if it is about no setting."""
    place, _, value = change.removeprefix("spec.").partition(": ")
    name = next((name for name, knob in knobs().items() if knob.spec == place), "")
    return f"{flags.flag_of(name)} {value.strip(chr(34))}" if name else ""
