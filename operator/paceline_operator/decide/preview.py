"""What the operator would create for a manifest that no cluster has seen: `paceline render`.

Everything but what only a server gives: owners need uids, and the digest of the admin token needs
the install's key and the object's uid.
"""

from collections.abc import Mapping
from typing import Any

from paceline_operator.decide import case, children
from paceline_operator.decide.observed import Config, Inputs, Observed
from paceline_operator.render import monitoring, network, pods, settings_map
from paceline_operator.render.settings_map import Recorded
from paceline_operator.resources import parse
from paceline_operator.resources.parse import Refused

FIRST_REVISION = 1


def documents(
    manifest: Mapping[str, Any], inputs: Inputs, config: Config
) -> list[dict[str, Any]] | Refused:
    """Manifests in the order in which they are written, or why nothing would be made.

    Args:
        manifest: an LLMDeployment as a person writes it; its namespace defaults to `default`.
        inputs: what the chart says.
        config: of the operator; PodMonitor and InferencePool appear if their kinds are known.
    """
    document = _as_created(manifest, config)
    result = parse.parse(document)
    if isinstance(result, Refused):
        return result
    wanted = case.of_parsed(result, (), {}, Observed(deployment=document, inputs=inputs))
    identity, template, spec = result.identity, wanted.template, result.deployment.spec
    if template is None:
        return []
    made: list[dict[str, Any] | None] = [
        network.service(identity, spec, None),
        network.policy(
            identity,
            spec,
            None,
            operator_namespace=config.operator_namespace,
            operator_labels=config.operator_labels,
        ),
        pods.deployment(identity, template, wanted.replicas, None),
    ]
    if wanted.values is not None:
        values = settings_map.clamped(wanted.values, template.inputs.boot)
        recorded = Recorded(revision=FIRST_REVISION, values=values)
        made.append(settings_map.config_map(identity, template.hash, recorded, (), None))
    least = children.min_available(None, wanted.replicas, 0)
    if least is not None:
        made.append(monitoring.disruption_budget(identity, least, None))
    for kind, extra in (
        ("PodMonitor", monitoring.pod_monitor(identity, spec, None)),
        ("InferencePool", network.inference_pool(identity, spec, None)),
    ):
        if kind in config.known_kinds:
            made.append(extra)
    return [item for item in made if item is not None]


def _as_created(manifest: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The manifest with the metadata that a server adds, as far as children show it."""
    metadata = dict(manifest.get("metadata") or {})
    metadata.setdefault("namespace", "default")
    metadata["uid"] = ""
    metadata["generation"] = 1
    labels = dict(metadata.get("labels") or {})
    labels.setdefault(parse.INSTANCE_LABEL, config.instance)
    without = {key: value for key, value in manifest.items() if key not in {"status", "metadata"}}
    return {**without, "metadata": {**metadata, "labels": labels}}
