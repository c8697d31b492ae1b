"""`LLMDeployment.spec`: what a platform engineer writes."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from paceline_crds.fields import Text
from paceline_crds.flags import flag_of
from paceline_crds.group import Group, settings_at
from paceline_crds.knob import ChangeClass, Knob
from paceline_crds.objective import Objective
from paceline_crds.rules import ListType, Rule
from paceline_crds.settings import EngineSettings, border_name, knobs
from paceline_crds.spec_model import Model
from paceline_crds.spec_network import Gateway, Monitoring, Service
from paceline_crds.spec_pods import Drain, EnvVar, PodTemplate, Resources, Rollout
from paceline_crds.spec_scheduling import KvCache, Scheduling, Slo, Speculative
from paceline_crds.spec_tuning import Tuning


class Runtime(StrEnum):
    """Which engine the pods run."""

    PACELINE = "Paceline"
    VLLM = "VLLM"


def value_at(spec: Any, path: str) -> Any:
    """The value at a dotted camelCase path below spec, or None where any part is absent."""
    value = spec
    for part in path.split("."):
        if value is None:
            return None
        group: type[Group] = type(value)
        value = getattr(value, _attribute(group, part))
    return value


@cache
def _attribute(group: type[Group], alias: str) -> str:
    """Python's name of a field; asked for a hundred times in a reconcile."""
    return next(name for name, field in group.model_fields.items() if field.alias == alias)


def _tuner_stays_below_boot_maxima() -> tuple[Rule, ...]:
    return tuple(
        _bounds_rule(name, knob.boot_maximum)
        for name, knob in knobs().items()
        if knob.tunable and knob.boot_maximum
    )


def _bounds_rule(name: str, boot_name: str) -> Rule:
    most = f"tuning.bounds.{border_name(name)}.max"
    boot = knobs()[boot_name].spec

    def holds(spec: Any) -> bool:
        wanted, limit = value_at(spec, most), value_at(spec, boot)
        return wanted is None or limit is None or wanted <= limit

    return Rule(
        f"!{_cel(most)}.hasValue() || !{_cel(boot)}.hasValue() || "
        f"{_cel(most)}.value() <= {_cel(boot)}.value()",
        f"{most} must be <= {boot}; lower the tuner's bound, or raise {boot} (which replaces the "
        "pods)",
        holds,
    )


def immutable_rules(declared: Mapping[str, Knob]) -> tuple[Rule, ...]:
    """A transition rule for each setting that never changes; a manifest alone cannot break it."""
    return tuple(
        Rule(
            _unchanged(knob.spec),
            f"{knob.spec} is immutable; keep its value, or create another LLMDeployment",
            lambda _: True,
        )
        for knob in declared.values()
        if knob.change is ChangeClass.IMMUTABLE and knob.spec
    )


def _unchanged(path: str) -> str:
    """CEL: both absent, or both there and equal; comparing optionals exceeds the cost limit."""
    parts = path.split(".")
    heads = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]

    def there(whole: str) -> str:
        return "(" + " && ".join(f"has({whole}.{head})" for head in heads) + ")"

    return (
        f"{there('self')} == {there('oldSelf')} && "
        f"(!{there('self')} || !{there('oldSelf')} || self.{path} == oldSelf.{path})"
    )


def _cel(path: str) -> str:
    return "self.?" + path.replace(".", ".?")


def _flags_with_a_place_in_spec() -> tuple[str, ...]:
    taken = []
    for name, knob in knobs().items():
        if not knob.spec:
            continue
        flag = flag_of(name)
        taken.append(flag)
        if EngineSettings.model_fields[name].annotation is bool:
            taken.append("--no-" + flag.removeprefix("--"))
    return tuple(taken)


_TAKEN = _flags_with_a_place_in_spec()

ExtraArg = Annotated[
    str,
    StringConstraints(min_length=3, max_length=512, pattern=r"^--[a-z0-9][a-z0-9-]*(=.*)?$"),
]


@settings_at("")
class LLMDeploymentSpec(Group):
    """What is wanted. A field that is absent is not pinned: objective, tuner or engine fill it."""

    model: Model
    """The model and its files."""
    runtime: Runtime | None = None
    """Engine of the pods; changing it rolls out. Default: Paceline."""
    image: Text | None = None
    """Image of the engine. Default: from the chart."""
    resources: Resources | None = None
    """What each pod asks of its node."""
    extra_args: Annotated[list[ExtraArg], Field(max_length=32), ListType()] | None = None
    """Further flags of the engine, each as --name or --name=value."""
    env: Annotated[list[EnvVar], Field(max_length=64), ListType(("name",))] | None = None
    """Environment of the engine's container."""
    objective: Objective | None = None
    """What matters most; gives the starting values of settings that spec does not pin."""
    slo: Slo | None = None
    """What latency the users need."""
    scheduling: Scheduling | None = None
    """Limits in force and what the memory is planned for."""
    kv_cache: KvCache | None = None
    """The KV cache."""
    speculative: Speculative | None = None
    """Draft tokens that one step verifies together."""
    tuning: Tuning | None = None
    """What the tuner may do."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Number of pods. Leave it out where a scaler owns it."""
    rollout: Rollout | None = None
    """How pods are replaced."""
    drain: Drain | None = None
    """How a pod ends."""
    service: Service | None = None
    """The Service in front of the pods."""
    gateway: Gateway | None = None
    """Routing by the Gateway API."""
    monitoring: Monitoring | None = None
    """How metrics reach Prometheus."""
    pod_template: PodTemplate | None = None
    """The part of the pod template that users own."""
    paused: bool | None = None
    """Whether the operator writes nothing but status. Default: false."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *_tuner_stays_below_boot_maxima(),
        *immutable_rules(knobs()),
        Rule(
            "!has(self.extraArgs) || self.extraArgs.all(arg, !(arg.split('=', 2)[0] in "
            f"[{', '.join(repr(flag) for flag in _TAKEN)}]))",
            "spec.extraArgs must not carry a flag that has a field of its own in spec; set the "
            "field and remove the flag",
            lambda spec: not any(arg.split("=", 1)[0] in _TAKEN for arg in spec.extra_args or ()),
        ),
        Rule(
            "!has(self.runtime) || self.runtime != 'VLLM' || "
            "self.?scheduling.?policy.orValue('Fcfs') != 'Fair'",
            "scheduling.policy Fair needs runtime Paceline; change the policy or the runtime",
            lambda spec: (
                spec.runtime is not Runtime.VLLM or value_at(spec, "scheduling.policy") != "Fair"
            ),
        ),
    )
