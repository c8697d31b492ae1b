"""`paceline bench speculation MODEL`: what drafts give and cost against no speculation at all."""

import argparse
from typing import Any

from paceline.arguments import Add, above_zero, positive, seed
from paceline.bench_args import write_line
from paceline.errors import EXIT_START_FAILED, CommandError

PROPOSERS = ("Ngram", "Suffix", "DraftModel", "Eagle", "Mtp")
_WITH_A_MODEL = ("DraftModel", "Eagle")
TEXTS = ("repetitive", "free")
MIN_TOKENS = 16
"""Of an answer: how long a round takes is guessed from answers of 8."""


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
    _add_cells(parser.add_argument)
    _add_rounds(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.set_defaults(handler=bench_speculation)


def _add_cells(add: Add) -> None:
    add("model", metavar="MODEL", help="demo, hf://org/name, a folder")
    add(
        "--proposers",
        nargs="+",
        choices=PROPOSERS,
        default=["Ngram", "Suffix"],
        metavar="NAME",
        help="who proposes drafts (default Ngram Suffix)",
    )
    add(
        "--draft-model", metavar="MODEL", help="who drafts, for DraftModel or Eagle (default: none)"
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
        type=positive,
        nargs="*",
        default=[1, 8, 32, 64],
        metavar="N",
        help="requests at a time with an adaptive number (default 1 8 32 64; empty: none)",
    )
    add(
        "--fixed",
        type=positive,
        nargs="*",
        default=[1],
        metavar="N",
        help="requests at a time with --drafts always (default 1; empty: none)",
    )
    add(
        "--drafts",
        type=positive,
        default=5,
        metavar="K",
        help="most draft tokens of a request in a step (default 5)",
    )
    add("--max-tokens", type=positive, default=48, metavar="N", help="of each answer (default 48)")
    add("--seed", type=seed, default=1, help="of the prompts (default 1)")
    add(
        "--dtype",
        choices=("Auto", "Float32", "BFloat16"),
        default="Auto",
        help="of both engines (default Auto)",
    )


def _add_rounds(add: Add) -> None:
    add(
        "--half-width",
        type=above_zero,
        default=0.02,
        metavar="W",
        help="rounds end when half of the ratio's 95%% interval is at most this (default 0.02)",
    )
    add("--min-rounds", type=positive, default=6, metavar="N", help="at least (default 6)")
    add("--max-rounds", type=positive, default=30, metavar="N", help="at most (default 30)")


def bench_speculation(args: argparse.Namespace) -> int:
    """A line for each proposer, text and batch."""
    from tokenizers import Tokenizer

    from paceline_crds.settings import EngineSettings, SpeculativeMethod
    from paceline_engine.bench import speculation
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store

    if not (args.batches or args.fixed):
        raise CommandError("--batches or --fixed must name a batch, got none")
    if args.max_tokens < MIN_TOKENS:
        raise CommandError(f"--max-tokens must be >= {MIN_TOKENS}, got {args.max_tokens}")
    if args.max_rounds < args.min_rounds:
        raise CommandError(
            f"--max-rounds must be >= --min-rounds {args.min_rounds}, got {args.max_rounds}"
        )
    num_models = len({*args.proposers}.intersection(_WITH_A_MODEL))
    if num_models != (args.draft_model is not None):
        raise CommandError(
            "--draft-model and one of the proposers DraftModel and Eagle belong together"
        )
    plan = speculation.Plan(
        proposers=[SpeculativeMethod(name) for name in args.proposers],
        batches=args.batches,
        fixed_batches=args.fixed,
        texts=args.texts,
        num_drafts=args.drafts,
        max_tokens=args.max_tokens,
        half_width=args.half_width,
        min_rounds=args.min_rounds,
        max_rounds=args.max_rounds,
        seed=args.seed,
        draft_model=args.draft_model,
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
