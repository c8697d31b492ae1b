"""`paceline bench sim` and `bench what-if`: how far the simulator can be trusted, measured."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from paceline import bench_args
from paceline.arguments import positive
from paceline.errors import EXIT_OK, CommandError
from paceline.flag_values import changes_of

DEFAULT_FIT = "mixed,decode16,prefill16"
DEFAULT_COMPARED = "shared_prefix@0.6,interference,heavy_tail@3"
DEFAULT_CHANGED = "shared_prefix@0.6,interference,mixed@0.6"


def add_commands(kinds: Any) -> None:
    """Add both parsers."""
    _add_sim(kinds)
    _add_what_if(kinds)


def _add_sim(kinds: Any) -> None:
    parser = kinds.add_parser(
        "sim",
        help="a running engine against its simulation",
        description="Fit step times to some workloads on a running engine, then compare others "
        "with their simulation: medians and ranges of all rounds, by the engine's own clock. "
        "Prints a report; it asserts nothing.",
    )
    _add_rounds(parser, DEFAULT_COMPARED)
    add = parser.add_argument
    add(
        "--fit",
        default=DEFAULT_FIT,
        metavar="NAME[@RATE],...",
        help=f"for the fit, in each round (default {DEFAULT_FIT}: all at once)",
    )
    add(
        "--fit-limit",
        type=positive,
        default=16,
        metavar="N",
        help="of each (default 16)",
    )
    parser.set_defaults(handler=bench_sim)


def _add_what_if(kinds: Any) -> None:
    parser = kinds.add_parser(
        "what-if",
        help="what a change of settings was predicted to do, against what it does",
        description="Record a workload on a running engine, predict from the recording what the "
        "settings of --set would have done, then set them and run the same: medians and ranges of "
        "all rounds. Settings are put back at the end. Prints a report; it asserts nothing.",
    )
    _add_rounds(parser, DEFAULT_CHANGED)
    parser.add_argument(
        "--set",
        action="append",
        required=True,
        metavar="NAME=VALUE",
        help="a live setting, as in a manifest (maxNumBatchedTokens=128)",
    )
    parser.set_defaults(handler=bench_what_if)


def _add_rounds(parser: Any, default: str) -> None:
    bench_args.add_server(parser)
    bench_args.add_admin(parser)
    add = parser.add_argument
    add(
        "--workload",
        default=default,
        metavar="NAME[@RATE],...",
        help="what is compared, at so many requests a second; without a rate all at once, or as "
        f"the workload says (default {default})",
    )
    add("--rounds", type=positive, default=5, metavar="N", help="over all (default 5)")
    add(
        "--limit",
        type=positive,
        default=64,
        metavar="N",
        help="requests of each (default 64)",
    )


def bench_sim(args: argparse.Namespace) -> int:
    """Compare an engine with its simulation."""
    from paceline_engine.bench import simulator

    fit, compared = runs_of(args.fit, args.fit_limit), runs_of(args.workload, args.limit)

    def measure(bench: Any, token: str) -> dict[str, Any]:
        plan = simulator.Comparison(
            bench=bench, fit=fit, compared=compared, admin_url=args.admin_url, admin_token=token
        )
        return simulator.run(plan, _progress)

    return _report(args, measure, simulator.show)


def bench_what_if(args: argparse.Namespace) -> int:
    """Compare a prediction with what came."""
    from paceline_engine.bench import what_if
    from paceline_engine.core.errors import SettingRefused
    from paceline_engine.core.live_settings import parse_changes

    runs, changes = runs_of(args.workload, args.limit), changes_of(args.set)
    try:
        parse_changes(changes)
    except SettingRefused as error:
        raise CommandError(f"--set: {error}") from error

    def measure(bench: Any, token: str) -> dict[str, Any]:
        plan = what_if.Question(
            bench=bench, runs=runs, changes=changes, admin_url=args.admin_url, admin_token=token
        )
        return what_if.run(plan, _progress)

    return _report(args, measure, what_if.show)


def runs_of(text: str, limit: int) -> list[Any]:
    """`shared_prefix@0.6,interference` as runs.

    Raises:
        CommandError: an unknown workload, one that stands there twice, or a rate that is no
            positive number.
    """
    from paceline_engine.bench.recorded import Run
    from paceline_engine.bench.workloads import NAMES

    runs: list[Run] = []
    for part in text.split(","):
        name, has_rate, written = part.partition("@")
        if name not in NAMES:
            raise CommandError(f"workloads must be among {', '.join(NAMES)}, got {name!r}")
        if any(run.name == name for run in runs):
            raise CommandError(f"a workload may stand there once, got {name!r} again")
        try:
            rate = float(written) if has_rate else 0.0
        except ValueError:
            rate = -1.0
        if has_rate and not 0 < rate < float("inf"):
            raise CommandError(f"a rate must be a number > 0, as mixed@0.5, got {part!r}")
        runs.append(Run(name=name, rate=rate, limit=limit))
    return runs


def _report(
    args: argparse.Namespace,
    measure: Callable[[Any, str], dict[str, Any]],
    show: Callable[[dict[str, Any], Callable[[str], None]], None],
) -> int:
    from paceline_engine.bench import serve
    from paceline_engine.bench.client import Load, Target

    key = bench_args.secret_in(args.api_key_file, "--api-key-file")
    token = bench_args.secret_in(args.admin_token_file, "--admin-token-file")
    try:
        model = args.model or serve.first_model(args.base_url, key)
        bench = serve.BenchPlan(
            target=Target(base_url=args.base_url, model=model, api_key=key),
            load=Load(),
            names=(),
            vocabulary=bench_args.vocabulary(args.tokenizer),
            seed=args.seed,
            steady_tokens=args.steady_tokens,
            repeats=args.rounds,
        )
        result = measure(bench, token)
    except (serve.BenchFailed, ValueError) as error:
        raise CommandError(str(error)) from error
    if args.json:
        bench_args.write_line(json.dumps(result))
    else:
        show(result, bench_args.write_line)
    return EXIT_OK


def _progress(text: str) -> None:
    """To standard error: the report alone is the output."""
    print(text, file=sys.stderr, flush=True)
