"""`paceline draft`: a draft model cut out of the model that it drafts for."""

import argparse
from pathlib import Path
from typing import Any

from paceline.arguments import positive
from paceline.bench_args import write_line
from paceline.errors import EXIT_OK, EXIT_START_FAILED, CommandError


def add_command(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "draft",
        help="cut a draft model out of a model",
        description="Write a model folder with the embedding, the first layers, the last one and "
        "the head of MODEL, for --speculative-method draft-model --speculative-model OUT. Any "
        "small model with the same tokenizer serves better; this is for models that have none.",
    )
    parser.add_argument("model", metavar="MODEL", help="demo, hf://org/name, a folder")
    parser.add_argument("--layers", type=positive, required=True, metavar="N", help="that it keeps")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="is made")
    parser.set_defaults(handler=draft)


def draft(args: argparse.Namespace) -> int:
    """Cut, and say which layers stayed."""
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import cut, store

    try:
        target = store.resolve(args.model, progress=lambda _phase, _share: None)
        kept = cut.cut_draft_model(target, args.out, args.layers)
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
    except FileExistsError as error:
        raise CommandError(f"--out must be a new folder, {args.out} is there already") from error
    except ValueError as error:
        raise CommandError(f"--layers: {error}") from error
    write_line(f"{args.out}: layers {', '.join(str(layer) for layer in kept)} of {target}")
    return EXIT_OK
