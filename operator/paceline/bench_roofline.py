"""`paceline bench roofline MODEL`: the share of this machine's roofline that the engine reaches."""

import argparse
import json
from typing import Any

from paceline.arguments import seed
from paceline.bench_args import write_line
from paceline.errors import EXIT_OK, EXIT_START_FAILED, CommandError

WORKLOADS = ("mixed", "single", "decode16", "prefill16")


def add_command(kinds: Any) -> None:
    """Add the parser."""
    parser = kinds.add_parser(
        "roofline",
        help="the share of this machine's roofline reached, whole steps and attention alone",
        description="Run workloads without HTTP and compare each step with the time that this "
        "machine needs at least to read its weights and KV or to multiply; its rates are measured "
        "in the same run.",
    )
    parser.add_argument("model", metavar="MODEL", help="demo, hf://org/name, a folder")
    parser.add_argument(
        "--workload",
        default=",".join(WORKLOADS),
        metavar="NAME[,NAME]",
        help=f"`paceline bench workloads` lists them (default {','.join(WORKLOADS)})",
    )
    parser.add_argument("--seed", type=seed, default=1234, help="of the workloads (default 1234)")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each workload")
    parser.set_defaults(handler=bench_roofline)


def bench_roofline(args: argparse.Namespace) -> int:
    """One line for each workload to stdout."""
    from paceline_crds.settings import EngineSettings
    from paceline_engine.bench import roofline, workloads
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store

    words = workloads.Vocabulary.random_ids()
    try:
        made = [workloads.make(name, words, seed=args.seed) for name in args.workload.split(",")]
        folder = store.resolve(args.model, progress=lambda _phase, _share: None)
        if not args.json:
            write_line(HEAD)
        for line in roofline.measure(folder, EngineSettings(), made):
            write_line(json.dumps(line) if args.json else row_of(line))
    except ValueError as error:
        raise CommandError(str(error)) from error
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
    return EXIT_OK


HEAD = (
    "| workload | output tok/s | all tok/s | share of the roofline | of it in the forward "
    "| machine GFLOP/s, GB/s | attention: rows, new, context | us a layer | roofline us | share |\n"
    + "|---" * 10
    + "|"
)


def row_of(line: dict[str, Any]) -> str:
    """A line of the table, from what `roofline.measure` gives."""
    attention = line["attention"]
    cells = (
        line["workload"],
        line["output_tokens_per_s"],
        line["total_tokens_per_s"],
        f"{line['roofline_share']:.0%}",
        f"{line['forward_share']:.0%}",
        f"{line['machine_gflops']}, {line['machine_gbytes_per_s']}",
        f"{attention['rows']}, {attention['new_tokens']}, {attention['context_tokens']}",
        attention["us"],
        attention["roofline_us"],
        f"{attention['roofline_share']:.0%}",
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"
