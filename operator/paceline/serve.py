"""`paceline serve MODEL`: one engine behind an OpenAI-compatible endpoint."""

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.arguments import Add
from paceline.errors import EXIT_START_FAILED, CommandError
from paceline_crds import flags
from paceline_crds.errors import InvalidSettings

if TYPE_CHECKING:
    from paceline_engine.serve.config import ServeConfig

MAX_PORT = 65_535
CACHE_DEFAULT = "(default: $PACELINE_CACHE, else ~/.cache/paceline)"
_LOOPBACK_ONLY = "(default: no token; the port then stays on loopback)"


def add_command(commands: Any) -> None:
    """Add the parser of `serve`."""
    parser = commands.add_parser(
        "serve",
        help="serve one model",
        description="Serve one model over HTTP. MODEL is demo, hf://org/name, a folder with "
        "safetensors, or a .gguf file.",
    )
    add_arguments(parser)
    parser.set_defaults(handler=serve)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the server's own flags, and a flag for each setting."""
    parser.add_argument("model", metavar="MODEL", help="demo, hf://org/name, a folder or a .gguf")
    own = parser.add_argument_group("server")

    def add(flag: str, **options: Any) -> None:  # one that is not given leaves nothing behind
        own.add_argument(flag, default=argparse.SUPPRESS, **options)

    _add_endpoint(add)
    _add_admin(add)
    _add_life(add)
    own.add_argument("--exit-with-parent", type=int, default=0, help=argparse.SUPPRESS)
    flags.add_setting_flags(parser)


def _add_endpoint(add: Add) -> None:
    add("--host", metavar="ADDRESS", help="address of the endpoint (default 127.0.0.1)")
    add("--port", type=port, metavar="PORT", help="its port, 0 for a free one (default 8000)")
    add(
        "--served-model-name",
        dest="served_name",
        metavar="NAME",
        help="name that requests use (default: MODEL)",
    )
    add(
        "--revision",
        metavar="REVISION",
        help="branch, tag or commit of an hf:// model (default: main)",
    )
    add(
        "--cache-dir",
        type=Path,
        metavar="FOLDER",
        help=f"where fetched models are kept {CACHE_DEFAULT}",
    )
    add(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="accepted keys: a key or name:sha256 each (default: none is asked for)",
    )
    add("--metrics-require-key", action="store_true", help="ask for a key at /metrics too")
    add("--strict", action="store_true", help="an unknown field of a request is an error")
    add(
        "--trust-request-chat-template",
        action="store_true",
        help="let requests bring their own chat template",
    )


def _add_admin(add: Add) -> None:
    add("--admin-host", metavar="ADDRESS", help="address of the admin port (default 127.0.0.1)")
    add("--admin-port", type=port, metavar="PORT", help="the admin port (default 8001)")
    add(
        "--admin-token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the admin token {_LOOPBACK_ONLY}",
    )
    add(
        "--admin-token-sha256-file",
        type=Path,
        metavar="FILE",
        help=f"file with one or two SHA-256 digests of accepted admin tokens {_LOOPBACK_ONLY}",
    )
    add(
        "--tuning-file",
        type=Path,
        metavar="FILE",
        help="a tuner's state, to be shown on the admin page (default: none)",
    )
    add(
        "--settings-revision",
        type=_revision,
        metavar="N",
        help="revision of the settings that these flags give; a PATCH with a lower one is refused "
        "(default 0)",
    )
    add(
        "--settings-file",
        type=Path,
        metavar="FILE",
        help="JSON with live settings and their revision, laid over these flags at the start "
        "(default: none)",
    )


def _add_life(add: Add) -> None:
    add(
        "--propagation-s",
        type=seconds,
        metavar="S",
        help="how long a drain begun by POST still accepts requests while it is not ready, where "
        "the POST names no time (default 5)",
    )
    add(
        "--sigterm-propagation-s",
        type=seconds,
        metavar="S",
        help="the same of a drain begun by SIGTERM (default 0: a pod's preStop hook was that time)",
    )
    add(
        "--shutdown-timeout-s",
        type=seconds,
        metavar="S",
        help="how long running requests may go on after SIGTERM or Ctrl-C (default 30)",
    )
    add(
        "--min-hang-s",
        type=seconds,
        metavar="S",
        help="shortest time without a finished step after which liveness fails (default 30)",
    )
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="least severity that is logged (default info)",
    )


def port(text: str) -> int:
    """A port number, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"a port must be 0 to {MAX_PORT}, got {text!r}")
    return int(text)


def _revision(text: str) -> int:
    from paceline_engine.core.live_settings import MAX_REVISION

    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > MAX_REVISION:
        raise argparse.ArgumentTypeError(
            f"a whole number from 0 to {MAX_REVISION} is needed, got {text!r}"
        )
    return int(text)


def seconds(text: str) -> float:
    """A time in seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"seconds must be 0 to 86400, got {text!r}")
    return value


def config_of(args: argparse.Namespace) -> "ServeConfig":
    """What the server is started with.

    Raises:
        CommandError: flags that exclude each other.
    """
    from paceline_engine.serve.config import ServeConfig

    try:
        settings = flags.settings_from_args(args)
    except InvalidSettings as error:
        raise CommandError(str(error)) from error
    model: str = args.model
    own = {
        name: getattr(args, name)
        for name in ServeConfig.__dataclass_fields__
        if name not in {"model", "settings"} and hasattr(args, name)
    }
    if own.get("revision"):
        if not model.startswith("hf://") or "@" in model:
            raise CommandError(
                "--revision is for hf:// models without an @revision of their own, got "
                f"{model!r}; remove it"
            )
        model = f"{model}@{own['revision']}"
    own["served_name"] = own.get("served_name") or default_name(args.model)
    return ServeConfig(model=model, settings=settings, **own)


def default_name(uri: str) -> str:
    """Name of a model that was given none: the uri without its scheme and revision."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    return rest.partition("@")[0] if scheme == "hf" else rest


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal; returns the server's exit code."""
    config = config_of(args)
    if args.exit_with_parent:
        end_with_parent(args.exit_with_parent)
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.serve import lifecycle

    try:
        return lifecycle.serve(config)
    except StartFailed as error:
        code = lifecycle.EXIT_USAGE if error.reason == "InvalidSettings" else EXIT_START_FAILED
        raise CommandError(f"cannot start: {error}", code) from error


def end_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGTERM when the parent ends, so that no replica outlives its owner.

    Raises:
        CommandError: the parent has gone already.
    """
    from paceline_engine import parent

    parent.end_with_parent(signal.SIGTERM)
    if os.getppid() != parent_pid:
        raise CommandError(f"the owner of this replica (process {parent_pid}) has ended")
