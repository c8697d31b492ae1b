"""The LLMDeployment resource, and how a manifest is read."""

import json
import re
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, ValidationError

from paceline_crds import manifest, problems, schema
from paceline_crds.errors import InvalidManifest
from paceline_crds.fields import Labels
from paceline_crds.group import Group
from paceline_crds.rules import Rule
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.status import LLMDeploymentStatus

GROUP = "paceline.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
SHORT_NAME = "llmdep"
MAX_NAME_LENGTH = 52
"""Children add a hash of ten characters and a dash, and a label's value ends at 63."""


class Metadata(Group):
    """The part of ObjectMeta that people write, and what the server adds to it."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Name of the deployment; unique in its namespace."""
    generate_name: Annotated[str, StringConstraints(max_length=253)] | None = None
    """Beginning of a name that the server completes."""
    namespace: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Namespace; on one machine it has no meaning."""
    labels: Labels | None = None
    """Labels; `paceline.dev/operator` picks the install that takes the object."""
    annotations: Annotated[dict[str, str], Field(max_length=256)] | None = None
    """Annotations."""
    uid: str | None = None
    """Set by the server."""
    resource_version: str | None = None
    """Set by the server."""
    generation: int | None = None
    """Set by the server; grows with each change of spec."""
    creation_timestamp: str | None = None
    """Set by the server."""
    deletion_timestamp: str | None = None
    """Set by the server."""
    deletion_grace_period_seconds: int | None = None
    """Set by the server."""
    finalizers: list[str] | None = None
    """Set by other controllers."""
    owner_references: list[dict[str, Any]] | None = None
    """Set by other controllers."""
    managed_fields: list[dict[str, Any]] | None = None
    """Set by the server."""


_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_RULE = Rule(
    f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && self.metadata.name.matches('{_NAME}')",
    f"metadata.name must be at most {MAX_NAME_LENGTH} characters of a-z, 0-9 and -, beginning "
    "with a letter and not ending with -, since names of children are made of it; choose "
    "another name",
    lambda whole: (
        whole.metadata.name is not None
        and len(whole.metadata.name) <= MAX_NAME_LENGTH
        and re.fullmatch(_NAME, whole.metadata.name) is not None
    ),
)


class LLMDeployment(Group):
    """One model, served: what is wanted and what is there."""

    api_version: Literal["paceline.dev/v1alpha1"]
    """Version of the schema."""
    kind: Literal["LLMDeployment"]
    """Kind of the object."""
    metadata: Metadata
    """Name, labels and what the server adds."""
    spec: LLMDeploymentSpec
    """What is wanted."""
    status: LLMDeploymentStatus | None = None
    """What is there; written by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)


def loads(text: str) -> LLMDeployment:
    """Read a manifest, as strict as `kubectl apply --validate=strict`.

    Raises:
        InvalidManifest: with one sentence for each problem.
    """
    return parse(manifest.read(text))


def parse(document: dict[str, Any], *, strict: bool = True) -> LLMDeployment:
    """Check a document that is already in memory.

    Args:
        document: JSON values.
        strict: refuse unknown fields; otherwise ignore them (an object of a newer schema).

    Raises:
        InvalidManifest: with one sentence for each problem.
    """
    if (got := document.get("kind")) != KIND:
        raise InvalidManifest([f"kind must be {KIND}, got {got!r}; write kind: {KIND}"])
    try:
        return LLMDeployment.model_validate_json(
            json.dumps(document), extra="forbid" if strict else "ignore"
        )
    except ValidationError as error:
        raise InvalidManifest(problems.sentences(error, _schema())) from error


def unknown_fields(document: dict[str, Any]) -> tuple[str, ...]:
    """Paths below spec that this release does not know, such as `spec.kvCache.tiers`.

    The server drops what its definition does not know, so there is one only under a newer
    definition, or in an object that was stored under one.
    """
    without = {key: value for key, value in document.items() if key != "status"}
    try:
        LLMDeployment.model_validate_json(json.dumps(without), extra="forbid")
    except ValidationError as error:
        return tuple(
            problems.path_of(item["loc"])
            for item in error.errors()
            if item["type"] == "extra_forbidden" and item["loc"][0] == "spec"
        )
    return ()


@cache
def _schema() -> dict[str, Any]:
    return schema.structural(LLMDeployment)
