"""`paceline bench`: the scheduler alone, any OpenAI-compatible server under load, FP8 KV."""

import argparse
import json
from typing import Any

from paceline import (
    bench_kv_dtype,
    bench_offload,
    bench_roofline,
    bench_sim,
    bench_speculation,
    bench_tuner,
)
from paceline.arguments import above_zero, positive, seed
from paceline.bench_args import add_admin, add_server, secret_in, vocabulary, write_line
from paceline.errors import EXIT_OK, CommandError

DEFAULT_WORKLOADS = "mixed"


def add_command(commands: Any) -> None:
    """Add the parser of `bench` and of what it measures."""
    parser = commands.add_parser("bench", help="measure the scheduler or a server")
    kinds = parser.add_subparsers(
        title="what to measure", metavar="WHAT", required=True, parser_class=type(parser)
    )
    _add_scheduler(kinds)
    _add_serve(kinds)
    _add_interference(kinds)
    bench_kv_dtype.add_command(kinds)
    bench_offload.add_command(kinds)
    bench_roofline.add_command(kinds)
    bench_speculation.add_command(kinds)
    bench_tuner.add_command(kinds)
    bench_sim.add_commands(kinds)
    shown = kinds.add_parser("workloads", help="list the workloads and what batching can gain")
    shown.add_argument("--seed", type=seed, default=1234, help="of the workloads (default 1234)")
    shown.set_defaults(handler=list_workloads)


def _add_scheduler(kinds: Any) -> None:
    parser = kinds.add_parser("scheduler", help="microseconds a step takes, without a model")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument(
        "--running",
        type=positive,
        nargs="+",
        metavar="N",
        help="numbers of running requests (default 64 256 1024)",
    )
    parser.add_argument(
        "--preemption", action="store_true", help="instead: tokens computed twice in a small pool"
    )
    parser.set_defaults(handler=bench_scheduler)


def _add_serve(kinds: Any) -> None:
    parser = kinds.add_parser(
        "serve",
        help="load on an OpenAI-compatible server",
        description="Drive an OpenAI-compatible server with workloads made here. Latencies are in "
        "milliseconds and count from the moment a request was due.",
    )
    add = parser.add_argument
    add_server(parser)
    add(
        "--workload",
        default=DEFAULT_WORKLOADS,
        metavar="NAME[,NAME]",
        help="`paceline bench workloads` lists them (default mixed)",
    )
    add(
        "--mode",
        choices=("batch", "poisson", "schedule", "closed"),
        default="batch",
        help="all at once, at random times, at the workload's times, or so many at a time "
        "(default batch)",
    )
    add(
        "--rate",
        type=above_zero,
        default=1.0,
        metavar="R",
        help="requests a second, mode poisson (default 1)",
    )
    add(
        "--concurrency",
        type=positive,
        default=16,
        metavar="N",
        help="in flight, mode closed (default 16)",
    )
    add("--as-text", action="store_true", help="send prompts as text (needs --tokenizer)")
    add(
        "--api",
        choices=("completions", "chat"),
        default="completions",
        help="what is asked (default completions)",
    )
    add(
        "--limit",
        type=positive,
        default=0,
        metavar="N",
        help="only the first N requests (default: all)",
    )
    add(
        "--repeats",
        type=positive,
        default=1,
        metavar="N",
        help="rounds over the workloads (default 1)",
    )
    add(
        "--openai-only",
        action="store_true",
        help="leave out ignore_eos and min_tokens, so lengths are the model's",
    )
    add("--extra", default="{}", metavar="JSON", help="further fields of each request (default {})")
    parser.set_defaults(handler=bench_serve)


def _add_interference(kinds: Any) -> None:
    parser = kinds.add_parser(
        "interference",
        help="what long prompts do to running streams, by budget and by target",
        description="Needs a Paceline server and its admin port; settings are put back at the end.",
    )
    add_server(parser)
    add = parser.add_argument
    add_admin(parser)
    add(
        "--budgets",
        type=positive,
        nargs="+",
        default=[64, 128, 256, 512, 2048],
        metavar="N",
        help="token budgets of a step (default 64 128 256 512 2048)",
    )
    add(
        "--factors",
        type=above_zero,
        nargs="+",
        default=[1.5, 2.0, 3.0],
        metavar="F",
        help="targets, as multiples of an undisturbed step (default 1.5 2 3)",
    )
    add(
        "--rounds",
        type=positive,
        default=1,
        metavar="N",
        help="of everything; medians count (default 1)",
    )
    parser.set_defaults(handler=bench_interference)


def bench_scheduler(args: argparse.Namespace) -> int:
    """Measure the scheduler alone."""
    from paceline_engine.bench import preemption, scheduler

    if args.preemption:
        preemption.show(write_line, as_json=args.json)
    else:
        scheduler.show(write_line, args.running or scheduler.SIZES, as_json=args.json)
    return EXIT_OK


def bench_serve(args: argparse.Namespace) -> int:
    """Measure a server."""
    from paceline_engine.bench import serve
    from paceline_engine.bench.client import Api, Load, Mode, Target
    from paceline_engine.bench.workloads import NAMES

    names = args.workload.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise CommandError(f"--workload must be among {', '.join(NAMES)}, got {unknown[0]!r}")
    key = secret_in(args.api_key_file, "--api-key-file")
    try:
        model = args.model or serve.first_model(args.base_url, key)
        plan = serve.BenchPlan(
            target=Target(
                base_url=args.base_url,
                model=model,
                api=Api(args.api),
                api_key=key,
                prompts_as_text=args.as_text,
                exact_lengths=not args.openai_only,
                extra=_object(args.extra),
            ),
            load=Load(mode=Mode(args.mode), rate=args.rate, concurrency=args.concurrency),
            names=names,
            vocabulary=vocabulary(args.tokenizer),
            seed=args.seed,
            steady_tokens=args.steady_tokens,
            limit=args.limit,
            repeats=args.repeats,
        )
        return serve.run(plan, write_line, as_json=args.json)
    except (serve.BenchFailed, ValueError) as error:
        raise CommandError(str(error)) from error


def bench_interference(args: argparse.Namespace) -> int:
    """Measure streams beside long prompts."""
    from paceline_engine.bench import interference, serve
    from paceline_engine.bench.client import Api, Load, Mode, Target

    key = secret_in(args.api_key_file, "--api-key-file")
    try:
        plan = serve.BenchPlan(
            target=Target(
                base_url=args.base_url,
                model=args.model or serve.first_model(args.base_url, key),
                api=Api.COMPLETIONS,
                api_key=key,
            ),
            load=Load(mode=Mode.SCHEDULE),
            names=(),
            vocabulary=vocabulary(args.tokenizer),
            seed=args.seed,
            steady_tokens=args.steady_tokens,
        )
        sweep = interference.Sweep(
            admin_url=args.admin_url,
            admin_token=secret_in(args.admin_token_file, "--admin-token-file"),
            budgets=args.budgets,
            factors=args.factors,
            rounds=args.rounds,
        )
        return interference.run(plan, sweep, write_line, as_json=args.json)
    except (serve.BenchFailed, ValueError) as error:
        raise CommandError(str(error)) from error


def list_workloads(args: argparse.Namespace) -> int:
    """Sizes of the workloads, and how many steps static batching takes for each continuous one."""
    from paceline_engine.bench import workloads

    print(f"{'workload':14} {'requests':>8} {'prompt':>8} {'output':>8}  static/continuous steps")
    for name in workloads.NAMES:
        made = workloads.make(name, workloads.Vocabulary.random_ids(), seed=args.seed)
        lengths = [item.max_tokens for item in made.items]
        ratios = [f"{workloads.ceiling(lengths, slots):.1f} at {slots}" for slots in (16, 32)]
        print(
            f"{name:14} {len(lengths):8} {made.num_prompt_tokens:8} {made.num_output_tokens:8}  "
            + ", ".join(ratios)
        )
    return EXIT_OK


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"--extra must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise CommandError(f"--extra must be a JSON object, got {text!r}")
    return value
