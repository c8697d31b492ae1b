"""The container of runtime Paceline: its command line, probes and environment.

Only what a running engine cannot change stands in the command line. What it can change lies in the
settings file, which is mounted as a folder so that a new revision reaches the pod.
"""

from typing import Any

from paceline_crds import flags, routes
from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, knobs
from paceline_crds.spec import LLMDeploymentSpec, value_at
from paceline_operator.render import volumes
from paceline_operator.render.names import ADMIN_PORT, ADMIN_PORT_NAME, HTTP_PORT, HTTP_PORT_NAME
from paceline_operator.render.volumes import ModelPlace, Volumes
from paceline_operator.render.waits import Waits

SETTINGS_FILE = "settings.json"
ADMIN_DIGESTS_FILE = "admin-token-sha256"
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - a pod is reached from outside


def model_name(spec: LLMDeploymentSpec) -> str:
    """Name that requests use: as given, else the uri without its scheme and revision."""
    if spec.model.served_name:
        return spec.model.served_name
    scheme, mark, rest = spec.model.uri.partition("://")
    if not mark:
        return spec.model.uri
    return rest.partition("@")[0] if scheme == "hf" else rest


def container(
    spec: LLMDeploymentSpec, settings: EngineSettings, place: ModelPlace, waits: Waits
) -> dict[str, Any]:
    """Name, arguments, ports, probes and environment; `pods` adds the rest."""
    return {
        "name": "engine",
        "args": _arguments(spec, settings, place, waits),
        "ports": [
            {"name": HTTP_PORT_NAME, "containerPort": HTTP_PORT, "protocol": "TCP"},
            {"name": ADMIN_PORT_NAME, "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "env": _environment(spec, place),
        **waits.probes(
            startup=routes.HEALTH_STARTUP, live=routes.HEALTH_LIVE, ready=routes.HEALTH_READY
        ),
    }


def add_volumes(into: Volumes, spec: LLMDeploymentSpec, config_map: str) -> None:
    """The settings and what secrets spec names."""
    source = {"configMap": {"name": config_map, "defaultMode": 0o444}}
    into.add("settings", source, volumes.SETTINGS_FOLDER, read_only=True)
    volumes.of_secrets(into, spec, with_api_keys=True)


def _arguments(
    spec: LLMDeploymentSpec, settings: EngineSettings, place: ModelPlace, waits: Waits
) -> list[str]:
    given = [
        "serve",
        place.argument,
        f"--served-model-name={model_name(spec)}",
        f"--host={_ALL_ADDRESSES}",
        f"--port={HTTP_PORT}",
        f"--admin-host={_ALL_ADDRESSES}",
        f"--admin-port={ADMIN_PORT}",
        f"--admin-token-sha256-file={volumes.SETTINGS_FOLDER}/{ADMIN_DIGESTS_FILE}",
        f"--settings-file={volumes.SETTINGS_FOLDER}/{SETTINGS_FILE}",
        f"--cache-dir={place.cache_folder}",
        f"--propagation-s={waits.propagation_s}",
        f"--sigterm-propagation-s={waits.propagation_s}",
        f"--shutdown-timeout-s={waits.shutdown_s}",
    ]
    if spec.model.revision:
        given.append(f"--revision={spec.model.revision}")
    if value_at(spec, "service.apiKeySecretRef") is not None:
        given.append(f"--api-key-file={volumes.API_KEY_FILE}")
    return [*given, *_settings(settings), *(spec.extra_args or ())]


def _settings(settings: EngineSettings) -> list[str]:
    """Flags for what somebody set and a running engine cannot change."""
    written = []
    for name, knob in knobs().items():
        value = getattr(settings, name)
        if knob.change is ChangeClass.LIVE or name not in settings.model_fields_set:
            continue
        if isinstance(value, bool):
            flag = flags.flag_of(name)
            written.append(flag if value else "--no-" + flag.removeprefix("--"))
        elif value is not None:
            written.append(f"{flags.flag_of(name)}={value}")
    return written


def _environment(spec: LLMDeploymentSpec, place: ModelPlace) -> list[dict[str, Any]]:
    env = [
        {"name": "HOME", "value": volumes.CACHE_FOLDER},
        {"name": "XDG_CACHE_HOME", "value": volumes.CACHE_FOLDER},
        {"name": "PACELINE_CACHE", "value": f"{volumes.CACHE_FOLDER}/paceline"},
        {"name": "HF_HOME", "value": f"{place.cache_folder}/huggingface"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
    ]
    env += volumes.hub_environment(spec, place)
    return env
