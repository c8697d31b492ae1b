"""The operator's configuration file, which the chart writes from its values. Pure: text in.

Everything has a default, so that an operator on a laptop needs no file. A key that is not known is
refused: a chart and an operator of different versions must not misunderstand each other in silence.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from paceline_operator.resources.parse import DEFAULT_INSTANCE

_LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
NAMESPACE = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Namespace = Annotated[str, Field(pattern=NAMESPACE)]


class InvalidConfig(Exception):
    """The file cannot be used; the message names each key."""


class LogFormat(StrEnum):
    """How lines of the log look."""

    PLAIN = "Plain"
    JSON = "Json"


class LogLevel(StrEnum):
    """Least serious line that is written."""

    DEBUG = "Debug"
    INFO = "Info"
    WARNING = "Warning"


class _Group(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        str_strip_whitespace=True,
    )


class EngineConfig(_Group):
    """What pods are made of where a spec does not say it."""

    image: str = ""
    vllm_image: str = ""
    pod_defaults: Mapping[str, Any] = Field(default_factory=dict)
    """Keys: `render.inputs.POD_DEFAULT_KEYS`."""


class PrometheusConfig(_Group):
    """Where measurements come from; without a url nothing is measured and nothing is tuned."""

    url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    bearer_token_file: str = ""
    ca_file: str = ""


class TuningConfig(_Group):
    """What holds for the tuning of all LLMDeployments together."""

    frozen: bool = False
    """No new change anywhere, and those in flight are taken back; accepted ones stay."""
    max_concurrent: Annotated[int, Field(ge=1, le=1000)] = 5
    """LLMDeployments that may have a change in flight at the same time."""


class AdminTokensConfig(_Group):
    """Files with the master keys of which admin tokens are derived.

    The file of the previous key may be absent: its tokens are accepted too while keys are rotated.
    """

    master_key_file: str = ""
    previous_master_key_file: str = ""


class LeaseConfig(_Group):
    """The lock between replicas: the one that holds it acts."""

    name: Annotated[str, Field(max_length=253)] = ""
    """Empty: no lock. On a laptop one operator runs at a time."""
    duration_s: Annotated[int, Field(ge=2, le=3600, alias="durationSeconds")] = 15


class OperatorConfig(_Group):
    """The whole file.

    Attributes:
        instance: name of the install; it takes the LLMDeployments whose label says so.
        namespace: where the operator runs; empty on a laptop.
        watch_namespaces: namespaces that it looks at; empty: all of them.
        operator_labels: labels of the operator's own pods, for the NetworkPolicies of the engines.
        http_port: port of `/healthz`, `/readyz` and `/metrics`.
        resync_s: all objects are listed again so often.
        workers: deployments that are worked on at the same time.
    """

    instance: Annotated[str, Field(pattern=_LABEL)] = DEFAULT_INSTANCE
    namespace: Annotated[str, Field(pattern=rf"{NAMESPACE}|^$")] = ""
    watch_namespaces: tuple[Namespace, ...] = ()
    operator_labels: Mapping[str, str] = Field(default_factory=dict)
    http_port: Annotated[int, Field(ge=1, le=65535)] = 8080
    resync_s: Annotated[int, Field(ge=10, le=86400, alias="resyncSeconds")] = 300
    workers: Annotated[int, Field(ge=1, le=256)] = 16
    log_format: LogFormat = LogFormat.PLAIN
    log_level: LogLevel = LogLevel.INFO
    engine: EngineConfig = EngineConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    tuning: TuningConfig = TuningConfig()
    admin_tokens: AdminTokensConfig = AdminTokensConfig()
    lease: LeaseConfig = LeaseConfig()


def parse(text: str) -> OperatorConfig:
    """Read the file's text.

    Raises:
        InvalidConfig: it is no YAML, or a key or a value is not one of those above.
    """
    try:
        read = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidConfig(f"the configuration must be YAML: {error}") from error
    if not isinstance(read, Mapping | None):
        raise InvalidConfig(f"the configuration must be a mapping, got a {type(read).__name__}")
    try:
        return OperatorConfig.model_validate(read or {})
    except ValidationError as error:
        raise InvalidConfig("\n".join(_told(problem) for problem in error.errors())) from error


def _told(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}, got {problem['input']!r}; see charts/paceline/README.md"
