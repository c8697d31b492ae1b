"""Which template is wanted: one that a Deployment has already, or a new one.

A Deployment whose pinned inputs render the present spec to its own hash is what the spec means,
whatever the chart says by now. Only when none does has spec changed in what pods are made of; then
the pin moves: inputs are resolved anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from paceline_crds.objective import Resolved
from paceline_crds.settings import border_name, knobs
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.status_tuning import OverlayEntry
from paceline_operator.decide.observed import EngineReading, Inputs, Object
from paceline_operator.render import inputs as render_inputs
from paceline_operator.render import names, pods
from paceline_operator.render.inputs import PinnedInputs
from paceline_operator.render.pods import Template
from paceline_operator.resources import objects, overlay, parse
from paceline_operator.resources.overlay import Wanted
from paceline_operator.resources.parse import Identity, Parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The wanted template.

    Attributes:
        hash: of the template.
        template: None if it is adopted: its pin cannot be rendered by this operator, so it is
            left as it stands.
        wanted: the settings with the overlay that holds.
        raised: boot maxima (camelCase) that spec went above, so that pods are replaced.
    """

    hash: str
    template: Template | None
    wanted: Wanted
    raised: tuple[str, ...] = ()


def choose(
    parsed: Parsed,
    deployments: Sequence[Object],
    readings: Mapping[str, Sequence[EngineReading]],
    inputs: Inputs,
) -> Choice:
    """The template that spec means.

    Args:
        parsed: the deployment.
        deployments: child Deployments that are ours.
        readings: template hash -> what engines of its pods said.
        inputs: what the chart says now; used for a new template alone.
    """
    status = parsed.deployment.status
    last = status.wanted_hash if status else None
    is_remembered = status is not None and status.tuning is not None
    raised: tuple[str, ...] = ()
    for number, child in enumerate(in_order(deployments, last)):
        digest = hash_of(child)
        pinned = render_inputs.decode(objects.annotation(child, names.INPUTS_ANNOTATION))
        if pinned is None:
            if number == 0:
                return Choice(hash=digest, template=None, wanted=parsed.wanted)
            continue
        above = _above(parsed, pinned, readings.get(digest, ()))
        made = None if above else _rendered(parsed, pinned)
        if made is None or made.hash != digest:
            raised = raised or (above if number == 0 else ())
            continue
        entries = parsed.wanted.kept if is_remembered else pinned.overlay
        wanted = overlay.lay_over(parsed.base, _merged(entries, parsed), parsed.deployment.spec)
        moved = render_inputs.with_overlay(pinned, wanted.kept, parsed.deployment.spec.runtime)
        if moved.overlay != pinned.overlay:
            made = _rendered(parsed, moved) or made
        return Choice(hash=made.hash, template=made, wanted=wanted)
    fresh = render_inputs.resolve(
        parsed.deployment.spec,
        parsed.base,
        parsed.wanted.kept,
        engine_image=inputs.engine_image,
        vllm_image=inputs.vllm_image,
        pod_defaults=inputs.pod_defaults,
    )
    # A spec that resolves is never above maxima computed from it; an overlay might be.
    made = _rendered(parsed, fresh) or _rendered(parsed, _without_overlay(fresh))
    digest = made.hash if made else ""
    return Choice(hash=digest, template=made, wanted=parsed.wanted, raised=raised)


def in_order(deployments: Iterable[Object], last: str | None) -> list[Object]:
    """The Deployment wanted last comes first, then the newest."""
    return sorted(
        deployments,
        key=lambda child: (
            hash_of(child) != last,
            -objects.created_at(child),
            objects.name(child),
        ),
    )


def hash_of(child: Object) -> str:
    """Template hash of a child."""
    return objects.labels(child).get(names.HASH_LABEL, "")


def boot_of(child: Object) -> Mapping[str, int]:
    """Boot maxima (camelCase) that a Deployment's pods were started with, as far as pinned."""
    return render_inputs.boot_in(objects.annotation(child, names.INPUTS_ANNOTATION))


@dataclass(frozen=True, slots=True)
class _Recipe:
    """All that a template is made of; equal to another if its texts are."""

    identity: Identity
    spec_text: str
    pinned_text: str
    spec: LLMDeploymentSpec = field(compare=False)
    base: Resolved = field(compare=False)
    pinned: PinnedInputs = field(compare=False)


def _rendered(parsed: Parsed, pinned: PinnedInputs) -> Template | None:
    spec, base = parsed.deployment.spec, parsed.base
    texts = parsed.spec_text, pinned.encode()
    return _made(_Recipe(parsed.identity, *texts, spec, base, pinned))


@lru_cache(maxsize=parse.REMEMBERED)
def _made(recipe: _Recipe) -> Template | None:
    """The template; rendering and hashing it was a quarter of a look that changes nothing."""
    settings = render_inputs.settings_under(recipe.base, recipe.pinned)
    if settings is None:
        return None
    return pods.template(recipe.identity, recipe.spec, settings, recipe.pinned)


def _above(
    parsed: Parsed, pinned: PinnedInputs, readings: Sequence[EngineReading]
) -> tuple[str, ...]:
    """Boot maxima that the wanted values lie above, those an engine derived included."""
    settings, found = parsed.base.settings, []
    for name, knob in knobs().items():
        label = border_name(knob.boot_maximum) if knob.boot_maximum else ""
        if not label or name not in settings.model_fields_set:
            continue
        if getattr(settings, knob.boot_maximum) is not None and label not in pinned.boot:
            continue
        limits = [pinned.boot[label]] if label in pinned.boot else []
        if not limits:
            said = [reading.settings.get(label) for reading in readings if reading.is_reachable]
            limits = [limit for limit in said if isinstance(limit, int)]
        if any(getattr(settings, name) > limit for limit in limits):
            found.append(label)
    return tuple(found)


def _merged(entries: Sequence[OverlayEntry], parsed: Parsed) -> tuple[OverlayEntry, ...]:
    """Entries by name; live ones of a status that is there stay."""
    known = {item.name for item in entries}
    return (*entries, *(item for item in parsed.wanted.kept if item.name not in known))


def _without_overlay(fresh: PinnedInputs) -> PinnedInputs:
    return render_inputs.with_overlay(fresh, (), None)
