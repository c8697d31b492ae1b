"""The settings that a running engine can change, as its ConfigMap has them and as they are pushed.

One ConfigMap per template hash, owned by that hash's Deployment and clamped to the boot maxima of
that hash, so that pods of an old template never get a value that their memory was not planned for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, border_name, knobs
from paceline_operator.render import hash as template_hash
from paceline_operator.render import names, pods
from paceline_operator.render.paceline import ADMIN_DIGESTS_FILE, SETTINGS_FILE
from paceline_operator.resources import objects
from paceline_operator.resources.parse import Identity

Values = Mapping[str, Any]
"""camelCase name -> JSON value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a ConfigMap says."""

    revision: int
    values: Values


def live_values(settings: EngineSettings, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Every setting that a running engine can change; null where nobody pins it.

    All of them, also those at their default: what a person takes out of spec has to go back.

    Args:
        settings: as wanted.
        without: snake_case names that the engine decides.
    """
    shown = settings.on_border()
    return {
        border_name(name): shown[border_name(name)]
        for name, knob in knobs().items()
        if knob.change is ChangeClass.LIVE and name not in without
    }


def clamped(values: Values, boot: Mapping[str, int]) -> dict[str, Any]:
    """The values with none above its boot maximum.

    Args:
        values: camelCase names.
        boot: camelCase name of a boot maximum -> value; an unknown one clamps nothing.
    """
    lowered = dict(values)
    for name, knob in knobs().items():
        label = border_name(name)
        most = boot.get(border_name(knob.boot_maximum)) if knob.boot_maximum else None
        # What a ConfigMap holds may have been written by hand: a text stays as it is.
        if most is not None and isinstance(lowered.get(label), int):
            lowered[label] = min(lowered[label], most)
    return lowered


def config_map(
    identity: Identity,
    digest: str,
    recorded: Recorded,
    admin_digests: tuple[str, ...],
    owner: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The ConfigMap of a hash.

    Args:
        identity: of the LLMDeployment.
        digest: the template's hash.
        recorded: clamped already.
        admin_digests: SHA-256 of the accepted admin tokens, hex.
        owner: reference to the hash's Deployment.
    """
    body = {"revision": recorded.revision, "settings": recorded.values}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.child(identity.name, digest),
            "namespace": identity.namespace,
            "labels": {**names.labels(identity.name, identity.instance), names.HASH_LABEL: digest},
            **pods.owned_by(owner),
        },
        "data": {
            SETTINGS_FILE: template_hash.canonical_json(body),
            ADMIN_DIGESTS_FILE: "".join(f"{line}\n" for line in admin_digests),
        },
    }


def read(item: objects.Object) -> Recorded | None:
    """What a ConfigMap in the cluster says, None if it says nothing of use."""
    try:
        body = json.loads(objects.text(item, "data", SETTINGS_FILE))
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    return Recorded(
        revision=objects.whole(body, "revision"), values=objects.mapping(body, "settings")
    )


def owner_reference(deployment: objects.Object) -> dict[str, Any]:
    """A Deployment in the cluster as controller."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": objects.name(deployment),
        "uid": objects.uid(deployment),
        "controller": True,
        "blockOwnerDeletion": False,
    }


def owned(manifest: Mapping[str, Any], deployment: objects.Object) -> dict[str, Any]:
    """A ConfigMap that was rendered before its Deployment was made, with it as controller."""
    metadata = {**manifest["metadata"], **pods.owned_by(owner_reference(deployment))}
    return {**manifest, "metadata": metadata}
