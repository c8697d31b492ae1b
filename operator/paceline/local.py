"""What a manifest means on this machine. Pure: from a deployment to a plan, or to its problems.

Every field of the resource is honoured, refused by name, or listed as ignored; none is passed over
in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import serve
from paceline.errors import CommandError
from paceline.flag_values import flags_for
from paceline.parser import Parser
from paceline_crds import resolve, support
from paceline_crds.errors import InvalidSettings
from paceline_crds.llmdeployment import LLMDeployment
from paceline_crds.settings import EngineSettings, border_names, knobs
from paceline_crds.spec import LLMDeploymentSpec, Runtime, value_at
from paceline_crds.spec_network import DEFAULT_PORT
from paceline_crds.unsupported import unsupported

DEFAULT_SHUTDOWN_TIMEOUT_S = 120.0
_LOCAL_SCHEMES = ("hf", "file")

HONOURED = (
    "model.uri",
    "model.revision",
    "model.servedName",
    "runtime",
    "extraArgs",
    "env",
    "objective",
    "replicas",
    "service.port",
    "service.apiKeySecretRef",
    "drain.shutdownTimeoutSeconds",
    "tuning.mode",
    "tuning.allowLive",
    "tuning.bounds",
    "tuning.window",
    "tuning.minRequests",
    "tuning.cooldown",
    "slo.ttft.attainment",
    "slo.itl.attainment",
    "slo.e2e.attainment",
)
"""Beside the fields of settings, which are flags; a value that cannot be had is refused."""

IGNORED = (
    "image",
    "resources",
    "rollout",
    "gateway",
    "monitoring",
    "podTemplate",
    "paused",
    "model.cache",
    "model.tokenSecretRef",
    "service.type",
    "drain.preStopSeconds",
    "tuning.allowRestart",
    "tuning.maintenanceWindows",
)
"""They say something about a cluster."""

_HINTS = {
    "model.tokenSecretRef": " (set HF_TOKEN here)",
    "tuning.allowRestart": " (what needs a restart is told as advice here)",
}

_OWNED_BY_RUN = (
    "host",
    "port",
    "admin_host",
    "admin_port",
    "admin_token_file",
    "admin_token_sha256_file",
    "tuning_file",
    "settings_revision",
    "settings_file",
    "served_name",
    "revision",
    "shutdown_timeout_s",
    "api_key_file",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """What `paceline run` starts.

    Attributes:
        name: of the deployment.
        model_name: under which clients ask for the model.
        port: of the endpoint.
        arguments: of `paceline serve`, without what differs between replicas and without settings.
        settings: pinned by spec or given by the objective.
        env: additions to the environment of each replica.
        ignored: dotted fields that mean nothing here.
    """

    name: str
    model_name: str
    port: int
    num_replicas: int
    arguments: tuple[str, ...]
    settings: Mapping[str, Any]
    env: Mapping[str, str]
    ignored: tuple[str, ...]

    def serve_arguments(self, settings: Mapping[str, Any] | None = None) -> list[str]:
        """Arguments of one `paceline serve`; other settings instead of the plan's if given."""
        return [*self.arguments, *flags_for(self.settings if settings is None else settings)]


def plan_of(
    deployment: LLMDeployment,
    *,
    environ: Mapping[str, str],
    api_key_file: str = "",
    port: int | None = None,
) -> LocalPlan:
    """Decide what runs here.

    Args:
        deployment: a valid manifest.
        environ: where variables with `valueFrom` are taken from, since Secrets are not here.
        api_key_file: stands in for `service.apiKeySecretRef`.
        port: instead of `service.port`.

    Raises:
        CommandError: one line for each field that this machine or this release cannot honour.
    """
    spec = deployment.spec
    env, env_problems = _environment(spec, environ)
    settings, settings_problems = _settings(spec)
    problems = _not_here(spec, api_key_file) + support.not_supported(spec)
    problems += env_problems + settings_problems + _wrong_extra_args(spec.extra_args or ())
    if problems:
        lines = "\n".join(_once_per_field(problems))
        raise CommandError(f"{deployment.metadata.name} cannot run on this machine:\n{lines}")
    model_name = spec.model.served_name or serve.default_name(spec.model.uri)
    return LocalPlan(
        name=deployment.metadata.name or "",
        model_name=model_name,
        port=port if port is not None else (value_at(spec, "service.port") or DEFAULT_PORT),
        num_replicas=spec.replicas,
        arguments=_arguments(spec, model_name, api_key_file),
        settings={
            name: getattr(settings, name) for name in knobs() if name in settings.model_fields_set
        },
        env=env,
        ignored=tuple(
            path + _HINTS.get(path, "") for path in IGNORED if value_at(spec, path) is not None
        ),
    )


def _arguments(spec: LLMDeploymentSpec, model_name: str, api_key_file: str) -> tuple[str, ...]:
    """Of `paceline serve`, without what differs between replicas and without settings."""
    timeout_s = value_at(spec, "drain.shutdownTimeoutSeconds")
    timeout_s = DEFAULT_SHUTDOWN_TIMEOUT_S if timeout_s is None else float(timeout_s)
    arguments = [spec.model.uri, "--served-model-name", model_name]
    arguments += ["--shutdown-timeout-s", f"{timeout_s:g}"]
    if spec.model.revision:
        arguments += ["--revision", spec.model.revision]
    if api_key_file:
        arguments += ["--api-key-file", api_key_file]
    return (*arguments, *(spec.extra_args or ()))


def _settings(spec: LLMDeploymentSpec) -> tuple[EngineSettings, list[str]]:
    """What spec pins and its objective gives, and what is wrong or not built of it."""
    problems = []
    try:
        settings = resolve.settings_of(spec)
    except InvalidSettings as error:
        problems = [f"spec: {line}" for line in str(error).splitlines()]
        settings = EngineSettings()
    return settings, problems + [_in_spec(name, text) for name, text in unsupported(settings)]


def _not_here(spec: LLMDeploymentSpec, api_key_file: str) -> list[str]:
    problems = []
    scheme = spec.model.uri.partition("://")[0] if "://" in spec.model.uri else ""
    if scheme and scheme not in _LOCAL_SCHEMES:
        problems.append(
            f"spec.model.uri must be demo, hf:// or file:/// here, got {spec.model.uri}; "
            f"{scheme}:// models are for clusters"
        )
    if spec.runtime is Runtime.VLLM:
        problems.append(
            "spec.runtime must be Paceline here, got VLLM, which runs in clusters; remove it"
        )
    if spec.replicas < 1:
        problems.append(f"spec.replicas must be >= 1 here, got {spec.replicas}; raise it")
    if value_at(spec, "service.apiKeySecretRef") is not None and not api_key_file:
        problems.append(
            "spec.service.apiKeySecretRef names a Secret, and there are none on this machine; "
            "give the keys with --api-key-file FILE"
        )
    return problems


def _environment(
    spec: LLMDeploymentSpec, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    env: dict[str, str] = {}
    problems = []
    for variable in spec.env or ():
        if variable.value is not None:
            env[variable.name] = variable.value
        elif variable.name in environ:
            env[variable.name] = environ[variable.name]
        else:
            problems.append(
                f"spec.env[{variable.name}].valueFrom names an object of a cluster; set "
                f"{variable.name} in this shell, or give a value"
            )
    return env, problems


def _in_spec(name: str, text: str) -> str:
    """A sentence about a setting, about its place in spec."""
    setting = border_names().get(name)
    place = knobs()[setting].spec if setting else ""
    return f"spec.{place}{text.removeprefix(name)}" if place else text


def _once_per_field(problems: Sequence[str]) -> list[str]:
    """The first sentence of each field: two owners may refuse the same one."""
    seen: dict[str, str] = {}
    for problem in problems:
        seen.setdefault(problem.partition(" ")[0], problem)
    return list(seen.values())


def _wrong_extra_args(extra_args: Sequence[str]) -> list[str]:
    if not extra_args:
        return []
    parser = Parser(prog="paceline serve", add_help=False)
    serve.add_arguments(parser)
    try:
        given = parser.parse_args(["model", *extra_args])
    except CommandError as error:
        return [f"spec.extraArgs: {str(error).partition('; `')[0]}"]
    return [
        f"spec.extraArgs must not carry --{name.replace('_', '-')}; `paceline run` sets it itself"
        for name in _OWNED_BY_RUN
        if hasattr(given, name)
    ]
