"""`paceline bench kv-dtype MODEL`: what an FP8 KV cache costs and gives on a model."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.arguments import positive, text_in
from paceline.errors import EXIT_OK, EXIT_START_FAILED, CommandError

DEFAULT_PROMPTS = 40
_MAX_PROMPT_TOKENS = 1024


def add_command(kinds: Any) -> None:
    """Add the parser."""
    parser = kinds.add_parser(
        "kv-dtype",
        help="an FP8 KV cache against a full one: blocks, perplexity, divergence, greedy tokens",
        description="Load a model twice, with a full and with an FP8 KV cache, and compare: blocks "
        "in the same memory, perplexity and divergence on a text, greedy continuations of varied "
        "prompts alone and in one batch.",
    )
    parser.add_argument("model", metavar="MODEL", help="demo, hf://org/name, a folder")
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        metavar="FILE",
        help="text whose perplexity is taken, may be repeated (default: the texts of the start)",
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=64, metavar="N", help="of each output (default 64)"
    )
    parser.add_argument(
        "--prompts",
        type=positive,
        default=DEFAULT_PROMPTS,
        metavar="N",
        help=f"how many are continued, at most {DEFAULT_PROMPTS} (default {DEFAULT_PROMPTS})",
    )
    parser.add_argument(
        "--dtype",
        choices=("Float32", "BFloat16"),
        default="Float32",
        help="of the full cache (default Float32)",
    )
    parser.set_defaults(handler=bench_kv_dtype)


def bench_kv_dtype(args: argparse.Namespace) -> int:
    """One JSON object to stdout."""
    from tokenizers import Tokenizer

    from paceline_crds.settings import EngineSettings
    from paceline_engine.bench import kv_dtype
    from paceline_engine.bench.prompts import varied_prompts
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.model import store
    from paceline_engine.run.calibration_text import TEXTS

    try:
        folder = store.resolve(args.model, progress=lambda _phase, _share: None)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        prompts = spread_over(varied_prompts(), args.prompts)
        texts = [text_in(path, "--text") for path in args.text or ()] or list(TEXTS)
        figures = kv_dtype.measure(
            folder,
            EngineSettings(dtype=args.dtype),
            tokenizer.encode("\n".join(texts)).ids,
            [tokenizer.encode(prompt).ids[:_MAX_PROMPT_TOKENS] for prompt in prompts],
            max_tokens=args.max_tokens,
        )
    except StartFailed as error:
        raise CommandError(f"{error.reason}: {error}", EXIT_START_FAILED) from error
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return EXIT_OK


def spread_over(texts: Sequence[str], count: int) -> list[str]:
    """So many of the texts, or all if there are fewer, at even distances from the first on."""
    count = min(count, len(texts))
    return [texts[at * len(texts) // count] for at in range(count)]
