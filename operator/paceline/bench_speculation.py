"""`paceline bench speculation MODEL`: what drafts give and cost against no speculation at all."""

import argparse
from typing import Any

from paceline.bench_args import write_line
from paceline.errors import EXIT_START_FAILED, CommandError

PROPOSERS = ("Ngram", "Suffix")
TEXTS = ("repetitive", "free")


def add_command(kinds: Any) -> None:
    """Add the parser."""
    parser = kinds.add_parser(
        "speculation",
        help="acceptance and speed-up of drafts, and what the adaptive number costs",
        description="Load a model with and without speculation into one process and let both "
        "answer the same prompts, in turns step by step. A fixed number of drafts shows what is "
        "accepted, on repetitive text (greedy) and on free text (temperature 0.8); the adaptive "
        "one shows what a server gains or loses. Rounds go on until the 95% interval of the ratio "
        "is narrow enough; how long that may take is printed first. Wants a quiet machine; "
        "asserts nothing about time.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="demo, hf://org/name, a folder")
    add(
        "--proposers",
        nargs="+",
        choices=PROPOSERS,
        default=list(PROPOSERS),
        metavar="NAME",
        help="of the drafts (default Ngram Suffix)",
    )
    add(
        "--texts",
        nargs="+",
        choices=TEXTS,
        default=list(TEXTS),
        metavar="TEXT",
        help="what is answered (default repetitive free)",
    )
    add(
        "--batches",
        type=int,
        nargs="*",
        default=[1, 8, 32, 64],
        metavar="N",
        help="requests at a time with an adaptive number (default 1 8 32 64; empty: none)",
    )
    add(
        "--fixed",
        type=int,
        nargs="*",
        default=[1],
        metavar="N",
        help="requests at a time with --drafts always (default 1; empty: none)",
    )
    add("--drafts", type=int, default=5, metavar="K", help="most draft tokens (default 5)")
    add("--max-tokens", type=int, default=48, metavar="N", help="of each answer (default 48)")
    add("--half-width", type=float, default=0.02, metavar="W", help="to reach (default 0.02)")
    add("--min-rounds", type=int, default=6, metavar="N", help="of each cell (default 6)")
    add("--max-rounds", type=int, default=30, metavar="N", help="of each cell (default 30)")
    add("--seed", type=int, default=1, help="of the prompts (default 1)")
    add(
        "--dtype",
        choices=("Auto", "Float32", "BFloat16"),
        default="Auto",
        help="of both engines (default Auto)",
    )
    add("--json", action="store_true", help="a line of JSON for each row")
    parser.set_defaults(handler=bench_speculation)


def bench_speculation(args: argparse.Namespace) -> int:
    """A line for each proposer, text and batch."""
    from tokenizers import Tokenizer

    from paceline_crds.settings import EngineSettings, SpeculativeMethod
    from paceline_engine.bench import speculation
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store

    if not (args.batches or args.fixed):
        raise CommandError("--batches or --fixed must name a batch, got none")
    if min((*args.batches, *args.fixed, args.drafts, args.min_rounds)) < 1 or args.max_tokens < 16:
        raise CommandError("batches, --drafts and rounds must be >= 1, --max-tokens >= 16")
    plan = speculation.Plan(
        proposers=[SpeculativeMethod(name) for name in args.proposers],
        batches=args.batches,
        fixed_batches=args.fixed,
        texts=args.texts,
        num_drafts=args.drafts,
        max_tokens=args.max_tokens,
        half_width=args.half_width,
        min_rounds=args.min_rounds,
        max_rounds=max(args.min_rounds, args.max_rounds),
        seed=args.seed,
    )
    try:
        folder = store.resolve(args.model, progress=lambda _phase, _share: None)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return speculation.show(
            folder,
            EngineSettings(dtype=args.dtype),
            lambda text: tokenizer.encode(text).ids,
            plan,
            write_line,
            as_json=args.json,
        )
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
