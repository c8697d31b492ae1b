"""Volumes of a pod and where the container sees them; the root file system is read-only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.spec import LLMDeploymentSpec, value_at
from paceline_crds.spec_model import CacheType
from paceline_operator.resources import objects

SETTINGS_FOLDER = "/etc/paceline/settings"
API_KEY_FILE = "/etc/paceline/api-keys/keys"
MODEL_TOKEN_FILE = "/etc/paceline/model-token/token"  # noqa: S105 - a path
CACHE_FOLDER = "/cache"
CACHE_IMAGE_FOLDER = "/cache-image"
MODEL_FOLDER = "/model"


@dataclass(slots=True, kw_only=True)
class Volumes:
    """Volumes with their mounts; mutable while a pod is put together."""

    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, name: str, source: Mapping[str, Any], path: str, *, read_only: bool = False
    ) -> None:
        """One volume and its one mount."""
        self.volumes.append({"name": name, **source})
        mount: dict[str, Any] = {"name": name, "mountPath": path}
        self.mounts.append(mount | {"readOnly": True} if read_only else mount)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlace:
    """Where the engine finds its model.

    Attributes:
        argument: what the engine is told to load.
        cache_folder: where it keeps what it fetches.
        is_offline: everything is there already; nothing is fetched.
    """

    argument: str
    cache_folder: str
    is_offline: bool = False


def hub_environment(spec: LLMDeploymentSpec, place: ModelPlace) -> list[dict[str, Any]]:
    """What an engine is told of the model hub besides where it keeps its files."""
    env = []
    if place.is_offline:
        env.append({"name": "HF_HUB_OFFLINE", "value": "1"})
    if spec.model.token_secret_ref is not None:
        env.append({"name": "HF_TOKEN_PATH", "value": MODEL_TOKEN_FILE})
    return env


def of_model(
    volumes: Volumes, spec: LLMDeploymentSpec, pod_defaults: Mapping[str, Any]
) -> ModelPlace:
    """Mount what the model needs."""
    is_in_image = _cache(volumes, spec, pod_defaults)
    folder = f"{CACHE_IMAGE_FOLDER if is_in_image else CACHE_FOLDER}/models"
    uri = spec.model.uri
    scheme, _, rest = uri.partition("://")
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        volumes.add("model", source, MODEL_FOLDER, read_only=True)
        return ModelPlace(argument=f"{MODEL_FOLDER}/{path}".rstrip("/"), cache_folder=folder)
    if scheme == "oci":
        source_image = {"image": {"reference": rest, "pullPolicy": "IfNotPresent"}}
        volumes.add("model", source_image, MODEL_FOLDER, read_only=True)
        return ModelPlace(argument=MODEL_FOLDER, cache_folder=folder)
    return ModelPlace(argument=uri, cache_folder=folder, is_offline=is_in_image)


def of_secrets(volumes: Volumes, spec: LLMDeploymentSpec, *, with_api_keys: bool) -> None:
    """Mount what clients and the model's origin ask for; the operator never reads it."""
    key = value_at(spec, "service.apiKeySecretRef")
    if key is not None and with_api_keys:
        volumes.add("api-keys", _secret(key, "keys"), "/etc/paceline/api-keys", read_only=True)
    token = spec.model.token_secret_ref
    if token is not None:
        volumes.add(
            "model-token", _secret(token, "token"), "/etc/paceline/model-token", read_only=True
        )


def _secret(reference: Any, path: str) -> dict[str, Any]:
    items = [{"key": reference.key, "path": path}]
    return {"secret": {"secretName": reference.name, "items": items, "defaultMode": 0o440}}


def _cache(volumes: Volumes, spec: LLMDeploymentSpec, pod_defaults: Mapping[str, Any]) -> bool:
    """Mount the cache; returns whether the models lie in an image."""
    cache = spec.model.cache
    if cache is None:
        claim = objects.text(pod_defaults, "cache", "pvc", "claimName")
        limit = objects.at(pod_defaults, "cache", "emptyDir", "sizeLimit")
    else:
        claim = cache.pvc.claim_name if cache.pvc else ""
        limit = cache.empty_dir.size_limit if cache.empty_dir else None
    if claim:
        volumes.add("cache", {"persistentVolumeClaim": {"claimName": claim}}, CACHE_FOLDER)
        return False
    empty = {"sizeLimit": str(limit)} if limit else {}
    volumes.add("cache", {"emptyDir": empty}, CACHE_FOLDER)
    if cache is None or cache.type is not CacheType.IMAGE or cache.image is None:
        return False
    image = {"image": {"reference": cache.image.reference, "pullPolicy": "IfNotPresent"}}
    volumes.add("cache-image", image, CACHE_IMAGE_FOLDER, read_only=True)
    return True
