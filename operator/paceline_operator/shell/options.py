"""The command line, and how it changes what the configuration file says."""

import argparse
import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from paceline_operator.resources import config
from paceline_operator.resources.config import InvalidConfig, LogLevel, OperatorConfig
from paceline_operator.shell.errors import StartRefused


class Reach(StrEnum):
    """How admin ports are reached."""

    AUTO = "auto"
    POD_NETWORK = "pod-network"
    PORT_FORWARD = "port-forward"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m paceline_operator",
        description="Serve LLMDeployments of a Kubernetes cluster: in it, as the chart installs "
        "it, or on a laptop with the person's own kubeconfig.",
    )
    add = made.add_argument
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="what the chart writes; options win over it (default: none)",
    )
    add(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="a namespace to look at; may be given again (default: all)",
    )
    add("--instance", metavar="NAME", help="name of this install (default: default)")
    add(
        "--engine-image",
        metavar="IMAGE",
        help="image of engines where a spec names none (default: none)",
    )
    add(
        "--master-key-file",
        type=Path,
        metavar="FILE",
        help="key that admin tokens come from; needed (default: what --config names)",
    )
    add("--port", type=int, metavar="N", help="of /healthz, /readyz, /metrics (default 8080)")
    add("--workers", type=int, metavar="N", help="deployments worked on at once (default 16)")
    add(
        "--log-level",
        choices=[level.value for level in LogLevel],
        help="least severity that is logged (default Info)",
    )
    add(
        "--engines",
        type=Reach,
        choices=list(Reach),
        default=Reach.AUTO,
        help="how admin ports are reached: in the pods' network, or by port-forward "
        "(default auto: the former in a pod, the latter elsewhere)",
    )
    return made


def read(arguments: argparse.Namespace) -> OperatorConfig:
    """The configuration with the options over it.

    Raises:
        StartRefused: something is wrong with either.
    """
    try:
        text = arguments.config.read_text(encoding="utf-8") if arguments.config else ""
        found = config.parse(text)
        return OperatorConfig.model_validate(_overlaid(found, arguments))
    except (OSError, UnicodeDecodeError, InvalidConfig, ValueError) as error:
        where = f"{arguments.config}: " if arguments.config else ""
        raise StartRefused(f"{where}{error}") from error


def uses_port_forward(reach: Reach) -> bool:
    """Whether engines are reached through the API server."""
    if reach is Reach.AUTO:
        return "KUBERNETES_SERVICE_HOST" not in os.environ
    return reach is Reach.PORT_FORWARD


def _overlaid(found: OperatorConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    body = found.model_dump(by_alias=True)
    given = {
        "instance": arguments.instance,
        "watchNamespaces": tuple(arguments.namespace) or None,
        "httpPort": arguments.port,
        "workers": arguments.workers,
        "logLevel": arguments.log_level,
    }
    body |= {key: value for key, value in given.items() if value is not None}
    if arguments.engine_image:
        body["engine"]["image"] = arguments.engine_image
    if arguments.master_key_file:
        body["adminTokens"]["masterKeyFile"] = str(arguments.master_key_file)
    return body
