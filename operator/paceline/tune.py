"""`paceline tune --prometheus URL -l MATCHERS`: what ails a fleet; it changes nothing."""

import argparse
import json
import ssl
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.arguments import text_in
from paceline.errors import EXIT_OK, CommandError
from paceline.flag_values import pair_of
from paceline_crds import durations

if TYPE_CHECKING:
    from paceline.tuner.diagnose import Diagnosis, Known
    from paceline.tuner.fleet import Fleet
    from paceline_crds.spec import LLMDeploymentSpec
    from paceline_operator.decide.tuning.policy import Policy

_WINDOWS = 3
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
    parser.set_defaults(handler=tune)


def _seconds(text: str) -> float:
    try:
        return durations.parse_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"a time such as 500ms or 2m is needed, got {text!r}"
        ) from error


def _moment(text: str) -> float:
    try:
        return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"a time such as 2026-01-31T10:00:00Z is needed, got {text!r}"
        ) from error


def tune(args: argparse.Namespace) -> int:
    """Diagnose once."""
    from paceline.tuner import diagnose, fleet
    from paceline.tuner.prometheus import Prometheus

    if args.window < 1:
        raise CommandError(f"--window must be >= 1s, got {args.window:g} s")
    spec = _spec(args.file)
    token = _token_in(args.bearer_token_file)
    ca_file = _authority(args.ca_file)
    window_s, now = int(args.window), args.at or time.time()
    with closing(Prometheus(args.prometheus, token=token, ca_file=ca_file)) as prometheus:
        found = fleet.find(prometheus, args.selector, window_s, now)
        rules = _rules(args, spec, found)
        windows = fleet.windows_before(now, window_s, _WINDOWS)
        measured = [fleet.measure(prometheus, found, window, rules) for window in windows]
    samples = [sample for sample, _ in measured]
    if lack := fleet.too_few_scrapes(samples):
        raise CommandError(lack)
    known = _known(args, spec, found)
    diagnosis = diagnose.of(samples, rules, known)
    estimated = sorted(frozenset[str]().union(*(names for _, names in measured)))
    if args.json:
        print(json.dumps(_as_json(found, diagnosis, estimated), indent=1))
    else:
        print("\n".join(_lines(found, diagnosis, estimated, known, window_s)))
    return EXIT_OK


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


def _rules(args: argparse.Namespace, spec: "LLMDeploymentSpec | None", found: "Fleet") -> "Policy":
    """Targets: of the flags, else the manifest's, else those that engines judge by."""
    from paceline_operator.decide.tuning.policy import Policy, Target, of_spec

    rules = of_spec(spec) if spec is not None else Policy()
    targets = {name: Target(limit_s=limit) for name, limit in found.targets_s.items()}
    targets |= rules.targets
    for name in _LATENCIES:
        if limit := getattr(args, f"slo_{name}"):
            targets[name] = Target(limit_s=limit)
    return replace(rules, targets=targets, window_s=int(args.window))


def _known(args: argparse.Namespace, spec: "LLMDeploymentSpec | None", found: "Fleet") -> "Known":
    from pydantic import ValidationError

    from paceline.tuner.diagnose import Known
    from paceline_crds.settings import EngineSettings, border_names

    texts = {
        name: f"{value:g}" if value % 1 else str(int(value))
        for name, value in found.settings.items()
    }
    texts |= dict(map(pair_of, args.set))
    names = border_names()
    if unknown := sorted(set(texts) - set(names) - set(found.settings)):
        raise CommandError(f"--set: {unknown[0]} is no setting; expected one of {', '.join(names)}")
    try:
        made = EngineSettings.model_validate({k: v for k, v in texts.items() if k in names})
    except ValidationError as error:
        told = error.errors()[0]
        raise CommandError(f"--set {'.'.join(map(str, told['loc']))}: {told['msg']}") from error
    return Known(spec=spec, settings=made.written_on_border(), is_paceline=found.is_paceline)


def _lines(
    found: "Fleet", diagnosis: "Diagnosis", estimated: Sequence[str], known: "Known", window_s: int
) -> list[str]:
    engines = f"{len(found.engines)} engine{'s' * (len(found.engines) != 1)}"
    lines = [f"{engines}, {diagnosis.num_windows} of {_WINDOWS} windows of {window_s} s"]
    if diagnosis.num_windows < _WINDOWS:
        lines.append("a symptom has to show in three windows in a row: wait, or shorten --window")
    elif not diagnosis.recommendations:
        lines.append("nothing is wrong, as far as it could be evaluated")
    for item in diagnosis.recommendations:
        figures = ", ".join(f"{name} {value:g}" for name, value in item.evidence.items())
        lines += ["", f"{item.symptom}: {item.text}", f"  evidence  {figures}"]
        lines.append(f"  change    {item.change}")
        if item.flag:
            lines.append(f"  or        vllm serve {item.flag}")
    if estimated:
        lines += [
            "",
            f"estimated from histograms: shares within the targets of {', '.join(estimated)}",
        ]
    if diagnosis.not_evaluated:
        lines += ["", "not evaluated:"]
        lines += [f"  {name}: needs {lack}" for name, lack in diagnosis.not_evaluated.items()]
    missing = [name for name in ("maxNumSeqs", "maxNumBatchedTokens") if name not in known.settings]
    if missing and known.spec is None:
        told = " ".join(f"--set {name}=N" for name in missing)
        lines.append(f"these engines do not export {' and '.join(missing)}; name them: {told}")
    return lines


def _as_json(found: "Fleet", diagnosis: "Diagnosis", estimated: Sequence[str]) -> dict[str, Any]:
    return {
        "engines": list(found.engines),
        "windows": diagnosis.num_windows,
        "recommendations": [asdict(item) for item in diagnosis.recommendations],
        "notEvaluated": dict(diagnosis.not_evaluated),
        "estimated": list(estimated),
    }
