"""What is wanted of one deployment: the same shape for a good spec and for a bad one.

A spec that cannot be served leaves the last good template in place: its replicas and its recorded
settings are managed on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.settings import border_name
from paceline_crds.spec import LLMDeploymentSpec, Runtime, value_at
from paceline_crds.spec_pods import GPU_RESOURCE, RolloutStrategy
from paceline_operator.decide import pin
from paceline_operator.decide.conditions import Refusal
from paceline_operator.decide.observed import EngineReading, Object, Observed
from paceline_operator.render import inputs, paceline, settings_map, waits
from paceline_operator.render.pods import Template
from paceline_operator.render.settings_map import Recorded, Values
from paceline_operator.render.waits import Waits
from paceline_operator.resources import objects
from paceline_operator.resources.overlay import Wanted
from paceline_operator.resources.parse import Identity, Parsed, Refused

MAX_REPLICAS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is wanted.

    Attributes:
        hash: of the wanted template, empty if there is none.
        template: to render its Deployment from; None leaves the Deployment as it stands.
        spec: None if it cannot be served.
        values: live settings as wanted; None where there is no settings API.
        engine_decided: settings (snake_case) that nobody sets and an engine decides.
        refusal: why the wanted template cannot be rendered.
        raised: boot maxima that spec went above.
        in_template: snake_case name -> value, of what new pods are needed for.
    """

    identity: Identity
    hash: str
    template: Template | None
    spec: LLMDeploymentSpec | None
    replicas: int
    strategy: RolloutStrategy = RolloutStrategy.AUTO
    waits: Waits
    values: Values | None
    wanted: Wanted | None = None
    engine_decided: frozenset[str] = frozenset()
    refusal: Refusal | None = None
    raised: tuple[str, ...] = ()
    in_template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """Name that engines have to give, empty if it is not known."""
        return paceline.model_name(self.spec) if self.spec else ""

    @property
    def is_adopted(self) -> bool:
        """The spec is good, but the template cannot be rendered."""
        return self.spec is not None and self.template is None


_DEFAULT_WAITS = Waits(
    propagation_s=waits.DEFAULT_PROPAGATION_S,
    shutdown_s=waits.DEFAULT_SHUTDOWN_S,
    progress_deadline_s=waits.DEFAULT_PROGRESS_DEADLINE_S,
    idle_timeout_s=waits.DEFAULT_IDLE_TIMEOUT_S,
)


def gpu_resource(result: Parsed | Refused) -> str:
    """The device resource that a pod may lack room for."""
    named = (
        value_at(result.deployment.spec, "resources.gpuResource")
        if isinstance(result, Parsed)
        else None
    )
    return named or GPU_RESOURCE


def of_parsed(
    parsed: Parsed,
    deployments: Sequence[Object],
    readings: Mapping[str, Sequence[EngineReading]],
    observed: Observed,
) -> Case:
    """A spec that can be served."""
    spec = parsed.deployment.spec
    choice = pin.choose(parsed, deployments, readings, observed.inputs)
    turned = {item.name for item in choice.wanted.kept}
    decided = frozenset(
        name
        for name in inputs.decided_by_engine(spec, parsed.base)
        if border_name(name) not in turned
    )
    values = None
    if spec.runtime is not Runtime.VLLM:
        values = settings_map.live_values(choice.wanted.settings, without=decided)
    in_template: dict[str, Any] = {}
    if choice.template is not None:
        in_template = inputs.boot_values(choice.template.settings)
    strategy = spec.rollout.strategy if spec.rollout else None
    return Case(
        identity=parsed.identity,
        hash=choice.hash,
        template=choice.template,
        spec=spec,
        replicas=spec.replicas,
        strategy=strategy or RolloutStrategy.AUTO,
        waits=waits.of_spec(spec),
        values=values,
        wanted=choice.wanted,
        engine_decided=decided,
        raised=choice.raised,
        in_template=in_template,
    )


def of_refused(
    refused: Refused, deployments: Sequence[Object], maps: Mapping[str, Recorded], document: Object
) -> Case:
    """A spec that cannot: the last good template, if there ever was one."""
    last = objects.text(document, "status", "wantedHash")
    ordered = pin.in_order(deployments, last)
    digest = pin.hash_of(ordered[0]) if ordered else ""
    present = objects.whole(ordered[0], "spec", "replicas") if ordered else 0
    wanted = objects.at(document, "spec", "replicas")
    is_count = isinstance(wanted, int) and not isinstance(wanted, bool)
    replicas = wanted if is_count and 0 <= wanted <= MAX_REPLICAS else present
    recorded = maps.get(digest)
    return Case(
        identity=refused.identity,
        hash=digest,
        template=None,
        spec=None,
        replicas=replicas if ordered else 0,
        waits=_DEFAULT_WAITS,
        values=recorded.values if recorded else None,
        refusal=Refusal(reason=refused.reason.value, message=refused.message),
    )
