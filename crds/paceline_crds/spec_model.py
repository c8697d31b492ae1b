"""`spec.model`: which model, from where, under which name, and where its files are kept."""

import re
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from paceline_crds.fields import ItemName, KeyRef, ObjectName, Quantity, Text
from paceline_crds.group import Group
from paceline_crds.rules import ListType, Rule

_URI = r"^(demo|(hf|pvc|oci|s3)://[^ ]+|file:///[^ ]*)$"  # RE2 and Python read it alike

Uri = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1024),
    Rule(
        f"self.matches('{_URI}')",
        "must be demo, hf://org/name, pvc://claim/path, oci://image, s3://bucket/path or "
        "file:///path; write the model's address in one of these forms",
        lambda uri: re.fullmatch(_URI, uri) is not None,
    ),
]


class CacheType(StrEnum):
    """What kind of volume holds the model's files."""

    PVC = "PVC"
    IMAGE = "Image"
    EMPTY_DIR = "EmptyDir"


class CacheClaim(Group):
    """A PersistentVolumeClaim that keeps downloaded files over restarts of pods."""

    claim_name: ObjectName
    """Name of the claim in the same namespace."""


class CacheImage(Group):
    """An OCI image whose files are mounted as a volume."""

    reference: Text
    """The image, with a tag or digest."""


class CacheEmptyDir(Group):
    """A folder that lives as long as the pod."""

    size_limit: Quantity | None = None
    """Most bytes it may hold."""


class ModelCache(Group):
    """Where a pod keeps the model's files; no HostPath, which the restricted profile forbids."""

    type: CacheType
    """Kind of volume; the member of the same name holds its settings."""
    pvc: CacheClaim | None = None
    """Needed by type PVC."""
    image: CacheImage | None = None
    """Needed by type Image."""
    empty_dir: CacheEmptyDir | None = None
    """Settings of type EmptyDir."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.type == 'PVC') == has(self.pvc)",
            "cache.pvc and type PVC belong together; set both, or neither",
            lambda cache: (cache.type is CacheType.PVC) == (cache.pvc is not None),
        ),
        Rule(
            "(self.type == 'Image') == has(self.image)",
            "cache.image and type Image belong together; set both, or neither",
            lambda cache: (cache.type is CacheType.IMAGE) == (cache.image is not None),
        ),
        Rule(
            "self.type == 'EmptyDir' || !has(self.emptyDir)",
            "cache.emptyDir needs type EmptyDir; change the type or remove emptyDir",
            lambda cache: cache.type is CacheType.EMPTY_DIR or cache.empty_dir is None,
        ),
    )


class LoraAdapter(Group):
    """A LoRA adapter that requests name as their model."""

    name: ItemName
    """Name that requests use."""
    uri: Uri
    """Where its files are."""


class Model(Group):
    """The model and its files."""

    uri: Uri
    """demo, hf://org/name, pvc://claim/path, oci://image, s3://bucket/path or file:///path."""
    revision: (
        Annotated[
            str,
            StringConstraints(
                min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
            ),
        ]
        | None
    ) = None
    """Branch, tag or commit of an hf:// model. Default: its main branch."""
    served_name: (
        Annotated[
            str,
            StringConstraints(
                min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
            ),
        ]
        | None
    ) = None
    """Name that requests use. Default: the uri without its scheme."""
    cache: ModelCache | None = None
    """Where the files are kept. Default: from the chart's pod defaults."""
    token_secret_ref: KeyRef | None = None
    """Secret with the token that downloads the model; it is mounted into the pod as a file."""
    lora_adapters: (
        Annotated[list[LoraAdapter], Field(max_length=64), ListType(("name",))] | None
    ) = None
    """Adapters served beside the model."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.revision) || self.uri.startsWith('hf://')",
            "model.revision is for hf:// models only; remove it, or use an hf:// uri",
            lambda model: model.revision is None or model.uri.startswith("hf://"),
        ),
        Rule(
            "!has(self.revision) || !self.uri.contains('@')",
            "the revision is given twice; write it in model.uri after the @ or in model.revision, "
            "not in both",
            lambda model: model.revision is None or "@" not in model.uri,
        ),
        Rule(
            "!has(self.tokenSecretRef) || !(self.uri == 'demo' || self.uri.startsWith('file://') "
            "|| self.uri.startsWith('pvc://'))",
            "model.tokenSecretRef is for models that are downloaded (hf, oci, s3); remove it",
            lambda model: (
                model.token_secret_ref is None
                or not (model.uri == "demo" or model.uri.startswith(("file://", "pvc://")))
            ),
        ),
    )
