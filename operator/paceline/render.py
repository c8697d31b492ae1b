"""`paceline render -f manifest.yaml`: what the operator would create, without a cluster."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from paceline.errors import EXIT_OK, CommandError
from paceline_crds import yaml_text

if TYPE_CHECKING:
    from paceline_operator.decide.observed import Inputs

_ENGINE_REPOSITORY = "ghcr.io/paceline/paceline-engine"
_VLLM_IMAGE = ("docker.io/vllm/vllm-openai", "v0.11.0")
_OPTIONAL_KINDS = ("PodMonitor", "InferencePool")
_NOTE = """\
# What the operator creates for this manifest. A cluster adds to it: owners (which need uids) and,
# in the ConfigMap, the digests of the accepted admin tokens.
"""


def add_command(commands: Any) -> None:
    """Add the parser of `render`."""
    parser = commands.add_parser(
        "render",
        help="print what the operator would create",
        description="Print the objects that the operator would create for an LLMDeployment, as "
        "YAML documents in the order in which they are written.",
    )
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="the manifest; - reads standard input"
    )
    parser.add_argument(
        "--values",
        type=Path,
        metavar="FILE",
        help="values of the chart: engine.image, engine.vllmImage and engine.podDefaults are read "
        "(default: those of the chart of this release)",
    )
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="where the manifest names none (default: default)"
    )
    parser.add_argument(
        "--instance",
        default="default",
        metavar="NAME",
        help="name of the install (default default)",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=_OPTIONAL_KINDS,
        help="a kind that the cluster does not know; may be given twice (default: it knows both)",
    )
    parser.set_defaults(handler=render)


def render(args: argparse.Namespace) -> int:
    """Print the documents.

    Raises:
        CommandError: what is wrong with the manifest, as the condition ConfigValid would say it.
    """
    from paceline.run import read_manifest
    from paceline_operator.decide import preview
    from paceline_operator.decide.observed import Config
    from paceline_operator.resources.parse import Refused

    deployment = read_manifest(args.file)
    manifest = deployment.model_dump(mode="json", by_alias=True, exclude_none=True)
    if args.namespace:
        manifest["metadata"].setdefault("namespace", args.namespace)
    config = Config(
        instance=args.instance,
        known_kinds=frozenset(_OPTIONAL_KINDS) - frozenset(args.without),
    )
    found = preview.documents(manifest, inputs_of(_values(args.values)), config)
    if isinstance(found, Refused):
        raise CommandError(f"{args.file}: {found.reason}: {found.message}")
    sys.stdout.write(_NOTE + yaml_text.documents(found))
    return EXIT_OK


def inputs_of(values: Mapping[str, Any]) -> "Inputs":
    """What the chart's values say of pods.

    Args:
        values: as in values.yaml; an image is a text, or has repository and tag or digest. Without
            any they are those of the chart of this release.
    """
    from paceline_engine import release
    from paceline_operator.decide.observed import Inputs

    engine = values.get("engine") or {}
    version = release.version()
    return Inputs(
        engine_image=_image(
            engine.get("image"),
            _ENGINE_REPOSITORY,
            "latest" if version == release.FROM_SOURCE else version,
        ),
        vllm_image=_image(engine.get("vllmImage"), *_VLLM_IMAGE),
        pod_defaults=engine.get("podDefaults") or {},
    )


def _image(value: Any, repository: str, tag: str) -> str:
    """As the chart puts an image together: a digest, else its tag, else that of the release."""
    if value and not isinstance(value, Mapping):
        return str(value)
    given = value or {}
    repository = given.get("repository") or repository
    if given.get("digest"):
        return f"{repository}@{given['digest']}"
    return f"{repository}:{given.get('tag') or tag}"


def _values(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"--values: {file} cannot be read: {error}") from error
    if not isinstance(read, Mapping):
        raise CommandError(f"--values: {file} must be a mapping, got a {type(read).__name__}")
    return read
