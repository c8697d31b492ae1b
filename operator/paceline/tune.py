"""`paceline tune --prometheus URL -l MATCHERS`: what ails a fleet; it changes nothing."""

import argparse
import json
import ssl
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.arguments import text_in
from paceline.errors import EXIT_OK, CommandError
from paceline.flag_values import pair_of
from paceline_crds import durations

if TYPE_CHECKING:
    from paceline.tuner.fleet import Fleet
    from paceline.tuner.look import Asked, Look
    from paceline_crds.spec import LLMDeploymentSpec

_LATENCIES = ("ttft", "itl", "e2e")


def add_command(commands: Any) -> None:
    """Add the parser of `tune`."""
    parser = commands.add_parser(
        "tune",
        help="diagnose a fleet from its Prometheus",
        description="Diagnose engines with vLLM's metrics from a Prometheus that scrapes them: "
        "symptoms that three windows in a row show, each with its evidence and the change to make. "
        "Nothing is changed; that is done by the operator, or by `paceline run` here.",
    )
    add = parser.add_argument
    add("--prometheus", required=True, metavar="URL", help="such as http://localhost:9090")
    add(
        *("--selector", "-l"),
        required=True,
        metavar="MATCHERS",
        help='the engines, such as \'namespace="models",pod=~"chat-.*"\'',
    )
    add(
        "-f",
        "--file",
        metavar="FILE",
        help="their LLMDeployment: targets, bounds, what is pinned (default: unknown)",
    )
    for name in _LATENCIES:
        add(
            f"--slo-{name}",
            type=_seconds,
            metavar="TIME",
            help=f"target of {name}, such as 500ms (default: the manifest's, else the engines')",
        )
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting that engines do not export, as vLLM's (maxNumSeqs=256; default: unknown)",
    )
    add("--window", type=_seconds, default=120.0, metavar="TIME", help="of each (default 120s)")
    add("--at", type=_moment, metavar="TIME", help="end of the last window (default: now)")
    add(
        "--bearer-token-file",
        type=Path,
        metavar="FILE",
        help="a token for Prometheus (default: none)",
    )
    add(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="authority of Prometheus' certificate (default: the system's)",
    )
    add("--json", action="store_true", help="the diagnosis as JSON")
    add(
        "--serve",
        type=_address,
        metavar="[HOST:]PORT",
        help="show it on a page there until Ctrl-C; HOST is 127.0.0.1 (default: print it)",
    )
    parser.set_defaults(handler=tune)


def _seconds(text: str) -> float:
    try:
        return durations.parse_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"a time such as 500ms or 2m is needed, got {text!r}"
        ) from error


def _address(text: str) -> tuple[str, int]:
    from paceline.serve import port

    host, _, number = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", port(number)


def _moment(text: str) -> float:
    try:
        return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"a time such as 2026-01-31T10:00:00Z is needed, got {text!r}"
        ) from error


def tune(args: argparse.Namespace) -> int:
    """Diagnose once, or serve the page that does so while somebody looks."""
    from paceline.tuner import fleet, look
    from paceline.tuner.prometheus import Prometheus

    asked = _asked(args)
    token = _token_in(args.bearer_token_file)
    ca_file = _authority(args.ca_file)
    with closing(Prometheus(args.prometheus, token=token, ca_file=ca_file)) as prometheus:
        if args.serve is not None:
            from paceline.tuner import page

            page.serve(prometheus, args.selector, asked, address=args.serve, at=args.at)
            return EXIT_OK
        now = args.at or time.time()
        found = fleet.find(prometheus, args.selector, asked.window_s, now)
        seen = look.at(prometheus, found, asked, now)
    if args.json:
        print(json.dumps({"engines": list(found.engines), **seen.as_json()}, indent=1))
    else:
        print("\n".join(_lines(found, seen, asked)))
    return EXIT_OK


def _asked(args: argparse.Namespace) -> "Asked":
    from paceline.tuner.look import Asked

    if args.window < 1:
        raise CommandError(f"--window must be >= 1s, got {args.window:g} s")
    if args.serve is not None and args.json:
        raise CommandError("--json prints one diagnosis and --serve shows a page; choose one")
    targets = {name: getattr(args, f"slo_{name}") for name in _LATENCIES}
    return Asked(
        window_s=int(args.window),
        spec=_spec(args.file),
        targets_s={name: limit for name, limit in targets.items() if limit},
        settings=dict(map(pair_of, args.set)),
    )


def _spec(file: str | None) -> "LLMDeploymentSpec | None":
    if not file:
        return None
    from paceline.run import read_manifest

    return read_manifest(file).spec


def _token_in(file: Path | None) -> str:
    token = text_in(file, "--bearer-token-file").strip() if file else ""
    if file and (not token or not token.isascii() or any(c.isspace() for c in token)):
        raise CommandError(f"--bearer-token-file: {file} must hold one token and nothing else")
    return token


def _authority(file: Path | None) -> str:
    """The file's path, tried here: what reads it later tells neither its name nor its flag."""
    if file is None:
        return ""
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:  # that of ssl among them
        raise CommandError(
            f"--ca-file: {file} must hold certificates as PEM, got: {error.strerror or error}"
        ) from error
    return str(file)


def _lines(found: "Fleet", seen: "Look", asked: "Asked") -> list[str]:
    from paceline.tuner.look import WINDOWS

    diagnosis, known = seen.diagnosis, asked.known(found)
    engines = f"{len(found.engines)} engine{'s' * (len(found.engines) != 1)}"
    lines = [f"{engines}, {diagnosis.num_windows} of {WINDOWS} windows of {asked.window_s} s"]
    if diagnosis.num_windows < WINDOWS:
        lines.append("a symptom has to show in three windows in a row: wait, or shorten --window")
    elif not diagnosis.recommendations:
        lines.append("nothing is wrong, as far as it could be evaluated")
    for item in diagnosis.recommendations:
        figures = ", ".join(f"{name} {value:g}" for name, value in item.evidence.items())
        lines += ["", f"{item.symptom}: {item.text}", f"  evidence  {figures}"]
        lines.append(f"  change    {item.change}")
        if item.flag:
            lines.append(f"  or        vllm serve {item.flag}")
    if seen.estimated:
        shares = f"shares within the targets of {', '.join(seen.estimated)}"
        lines += ["", f"estimated from histograms: {shares}"]
    if diagnosis.not_evaluated:
        lines += ["", "not evaluated:"]
        lines += [f"  {name}: needs {lack}" for name, lack in diagnosis.not_evaluated.items()]
    missing = [name for name in ("maxNumSeqs", "maxNumBatchedTokens") if name not in known.settings]
    if missing and known.spec is None:
        told = " ".join(f"--set {name}=N" for name in missing)
        lines.append(f"these engines do not export {' and '.join(missing)}; name them: {told}")
    return lines
