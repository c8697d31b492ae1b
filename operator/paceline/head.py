"""`paceline head`: train a draft head for a model on the model's own outputs."""

import argparse
import math
from pathlib import Path
from typing import Any

from paceline.arguments import Add, above_zero, positive, seed
from paceline.bench_args import write_line
from paceline.errors import EXIT_OK, EXIT_START_FAILED, CommandError

MORE_TO_DO = 75
"""Exit code of a training that stopped for time: the same command goes on (EX_TEMPFAIL)."""


def add_command(commands: Any) -> None:
    """Add the parser of `head` and of its two steps."""
    parser = commands.add_parser("head", help="train a draft head on a model's own outputs")
    steps = parser.add_subparsers(
        title="what to do", metavar="STEP", required=True, parser_class=type(parser)
    )
    _add_record(steps)
    _add_train(steps)


def _add_record(steps: Any) -> None:
    parser = steps.add_parser(
        "record",
        help="answers of the model, with its hidden states",
        description="Let the model answer prompts, every second one greedily, and write the "
        "answers with the hidden states to files of a few megabytes. What is there already is "
        "kept, so an interrupted recording goes on with the same command.",
    )
    add = parser.add_argument
    _add_model(add)
    add("--out", type=Path, required=True, metavar="DIR", help="of the pieces")
    add("--pieces", type=positive, default=36, metavar="N", help="files (default 36)")
    add("--texts", type=positive, default=16, metavar="N", help="answers of a file (default 16)")
    add("--max-tokens", type=positive, default=128, metavar="N", help="of an answer (default 128)")
    add(
        "--temperature",
        type=above_zero,
        default=0.8,
        metavar="T",
        help="of the answers that are not greedy (default 0.8)",
    )
    add("--seed", type=seed, default=1, help="of prompts and answers (default 1)")
    parser.set_defaults(handler=record)


def _add_train(steps: Any) -> None:
    parser = steps.add_parser(
        "train",
        help="a head from recorded answers",
        description="Train an EAGLE head, or a layer for multi-token prediction, on what `paceline "
        "head record` wrote, and write a folder that the engine loads: for Eagle the head "
        "(speculativeModel), for Mtp the whole model with the layer. Exits with "
        f"{MORE_TO_DO} if --max-minutes ended it early; the same command goes on.",
    )
    add = parser.add_argument
    _add_model(add)
    add("--data", type=Path, required=True, metavar="DIR", help="what was recorded")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the head")
    add("--work", type=Path, metavar="DIR", help="state of the training (default: OUT.training)")
    add("--form", choices=("Eagle", "Mtp"), default="Eagle", help="default Eagle")
    add("--epochs", type=positive, default=6, metavar="N", help="default 6")
    add(
        "--vocabulary",
        type=positive,
        default=8192,
        metavar="N",
        help="tokens that the head may guess, the most frequent ones: its projection is most of "
        "what a guess costs (default 8192)",
    )
    add(
        "--learning-rate",
        type=above_zero,
        default=1e-3,
        metavar="R",
        help="highest (default 0.001)",
    )
    add("--threads", type=positive, default=1, metavar="N", help="of torch (default 1)")
    add(
        "--max-minutes",
        type=above_zero,
        default=math.inf,
        metavar="M",
        help="stop behind the epoch in which they passed (default inf: never)",
    )
    add("--seed", type=seed, default=1, help="of the order of texts (default 1)")
    parser.set_defaults(handler=train)


def _add_model(add: Add) -> None:
    add("model", metavar="MODEL", help="demo, hf://org/name, a folder")


def record(args: argparse.Namespace) -> int:
    """Write what is missing of the pieces."""
    from tokenizers import Tokenizer

    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store
    from paceline_engine.train import recording

    plan = recording.RecordPlan(
        num_texts=args.texts,
        num_pieces=args.pieces,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
    )
    try:
        folder = store.resolve(args.model, progress=lambda _phase, _share: None)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        recording.record(
            folder, lambda text: tokenizer.encode(text).ids, args.out, plan, write_line
        )
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
    return EXIT_OK


def train(args: argparse.Namespace) -> int:
    """Train until done or out of time."""
    import torch

    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store
    from paceline_engine.train import job
    from paceline_engine.train.trainer import TrainPlan

    torch.set_num_threads(args.threads)
    try:
        is_done = job.run(
            job.TrainJob(
                model=store.resolve(args.model, progress=lambda _phase, _share: None),
                data=args.data,
                out=args.out,
                work=args.work or args.out.with_name(args.out.name + ".training"),
                form=job.HeadForm(args.form),
                num_tokens=args.vocabulary,
                max_s=60 * args.max_minutes,
                plan=TrainPlan(
                    epochs=args.epochs, learning_rate=args.learning_rate, seed=args.seed
                ),
            ),
            write_line,
        )
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
    except (ValueError, FileNotFoundError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK if is_done else MORE_TO_DO
