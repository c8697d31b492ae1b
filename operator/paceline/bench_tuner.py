"""`paceline bench tuner`: the tuner over the simulator against the best static settings."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from paceline.arguments import above_zero, seed
from paceline.errors import EXIT_OK, CommandError

DEFAULT_TUNED_S = 900.0
DEFAULT_SEED = 1


def add_command(kinds: Any) -> None:
    """Add the parser of `bench tuner`."""
    parser = kinds.add_parser(
        "tuner",
        help="the tuner in the simulator against the best static settings",
        description="For each simulated load that settings can cure: tune it, run the settings "
        "that the tuner ends with and every setting of a grid from a cold start, and compare "
        "goodput. Minutes; nothing but this process is measured.",
    )
    parser.add_argument(
        "--scenario", metavar="SYMPTOM[,SYMPTOM]", help="only these (default: all that are curable)"
    )
    parser.add_argument(
        "--tuned-s",
        type=above_zero,
        default=DEFAULT_TUNED_S,
        metavar="S",
        help=f"simulated seconds that the tuner has (default {DEFAULT_TUNED_S:g})",
    )
    parser.add_argument(
        "--seed",
        type=seed,
        default=DEFAULT_SEED,
        help=f"of the load, which is another draw where settings are compared (default "
        f"{DEFAULT_SEED})",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each scenario")
    parser.set_defaults(handler=bench_tuner)


def bench_tuner(args: argparse.Namespace) -> int:
    """Compare and print."""
    from paceline.tuner import oracle
    from paceline.tuner.scenarios import SCENARIOS

    curable = {symptom.value: item for symptom, item in SCENARIOS.items() if item.grid}
    wanted = args.scenario.split(",") if args.scenario else list(curable)
    if unknown := [name for name in wanted if name not in curable]:
        raise CommandError(f"--scenario must be among {', '.join(curable)}, got {unknown[0]!r}")
    found = []
    for name in wanted:
        compared = oracle.compare(curable[name], args.tuned_s, args.seed)
        found.append(compared)
        if args.json:
            print(json.dumps({**asdict(compared), "share": compared.share}), flush=True)
    if not args.json:
        print(oracle.table(found))
    return EXIT_OK
