"""`paceline bench`: the scheduler alone, any OpenAI-compatible server under load, FP8 KV."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paceline import bench_kv_dtype, bench_speculation, bench_tuner
from paceline.errors import EXIT_OK, CommandError

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8001"
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
    bench_speculation.add_command(kinds)
    bench_tuner.add_command(kinds)
    _add_sim(kinds)
    shown = kinds.add_parser("workloads", help="list the workloads and what batching can gain")
    shown.add_argument("--seed", type=int, default=1234, help="of the workloads (default 1234)")
    shown.set_defaults(handler=list_workloads)


def _add_scheduler(kinds: Any) -> None:
    parser = kinds.add_parser("scheduler", help="microseconds a step takes, without a model")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument(
        "--running",
        type=_positive,
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
    _add_server(parser)
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
        type=float,
        default=1.0,
        metavar="R",
        help="requests a second, mode poisson (default 1)",
    )
    add(
        "--concurrency",
        type=_positive,
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
        type=_positive,
        default=0,
        metavar="N",
        help="only the first N requests (default: all)",
    )
    add(
        "--repeats",
        type=_positive,
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
    _add_server(parser)
    add = parser.add_argument
    add(
        "--admin-url", default=DEFAULT_ADMIN_URL, metavar="URL", help=f"default {DEFAULT_ADMIN_URL}"
    )
    add(
        "--admin-token-file", type=Path, metavar="FILE", help="with the admin token (default: none)"
    )
    add(
        "--budgets",
        type=_positive,
        nargs="+",
        default=[64, 128, 256, 512, 2048],
        metavar="N",
        help="token budgets of a step (default 64 128 256 512 2048)",
    )
    add(
        "--factors",
        type=float,
        nargs="+",
        default=[1.5, 2.0, 3.0],
        metavar="F",
        help="targets, as multiples of an undisturbed step (default 1.5 2 3)",
    )
    add(
        "--rounds",
        type=_positive,
        default=1,
        metavar="N",
        help="of everything; medians count (default 1)",
    )
    parser.set_defaults(handler=bench_interference)


def _add_sim(kinds: Any) -> None:
    parser = kinds.add_parser(
        "sim",
        help="a running engine against its simulation",
        description="Fit step times to some workloads on a running engine, then compare others "
        "with their simulation: medians and ranges of all rounds, by the engine's own clock. "
        "Prints a report; it asserts nothing.",
    )
    _add_server(parser)
    add = parser.add_argument
    add(
        "--admin-url", default=DEFAULT_ADMIN_URL, metavar="URL", help=f"default {DEFAULT_ADMIN_URL}"
    )
    add(
        "--admin-token-file", type=Path, metavar="FILE", help="with the admin token (default: none)"
    )
    add(
        "--fit",
        default="mixed,decode16,prefill16",
        metavar="NAME[,NAME]",
        help="for the fit (default mixed,decode16,prefill16)",
    )
    add(
        "--workload",
        default="shared_prefix,interference,heavy_tail",
        metavar="NAME[,NAME]",
        help="what is compared (default shared_prefix,interference,heavy_tail)",
    )
    add("--rate", type=float, default=1.0, metavar="R", help="requests a second (default 1)")
    add("--rounds", type=_positive, default=5, metavar="N", help="over all workloads (default 5)")
    add("--limit", type=_positive, default=64, metavar="N", help="requests of each (default 64)")
    parser.set_defaults(handler=bench_sim)


def _add_server(parser: Any) -> None:
    """Which server, and what every load on it needs."""
    add = parser.add_argument
    add("--base-url", default=DEFAULT_URL, metavar="URL", help=f"default {DEFAULT_URL}")
    add("--model", default="", metavar="NAME", help="default: the first of /v1/models")
    add(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="prompts of words of this tokenizer.json (default: random token ids)",
    )
    add(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key to send (default: none)",
    )
    add("--seed", type=int, default=1234, help="of the workloads (default 1234)")
    add(
        "--steady-tokens",
        type=_positive,
        default=0,
        metavar="N",
        help="of interference's streams (default: the workload's own)",
    )
    add("--json", action="store_true", help="a line of JSON for each row")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number >= 1 is needed, got {text!r}")
    return int(text)


def bench_scheduler(args: argparse.Namespace) -> int:
    """Measure the scheduler alone."""
    from paceline_engine.bench import preemption, scheduler

    if args.preemption:
        preemption.show(_write_line, as_json=args.json)
    else:
        scheduler.show(_write_line, args.running or scheduler.SIZES, as_json=args.json)
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
    key = _secret_in(args.api_key_file, "--api-key-file")
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
            vocabulary=_vocabulary(args.tokenizer),
            seed=args.seed,
            steady_tokens=args.steady_tokens,
            limit=args.limit,
            repeats=args.repeats,
        )
        return serve.run(plan, _write_line, as_json=args.json)
    except (serve.BenchFailed, ValueError) as error:
        raise CommandError(str(error)) from error


def bench_interference(args: argparse.Namespace) -> int:
    """Measure streams beside long prompts."""
    from paceline_engine.bench import interference, serve
    from paceline_engine.bench.client import Api, Load, Mode, Target

    key = _secret_in(args.api_key_file, "--api-key-file")
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
            vocabulary=_vocabulary(args.tokenizer),
            seed=args.seed,
            steady_tokens=args.steady_tokens,
        )
        sweep = interference.Sweep(
            admin_url=args.admin_url,
            admin_token=_secret_in(args.admin_token_file, "--admin-token-file"),
            budgets=args.budgets,
            factors=args.factors,
            rounds=args.rounds,
        )
        return interference.run(plan, sweep, _write_line, as_json=args.json)
    except (serve.BenchFailed, ValueError) as error:
        raise CommandError(str(error)) from error


def bench_sim(args: argparse.Namespace) -> int:
    """Compare an engine with its simulation."""
    from paceline_engine.bench import serve, simulator
    from paceline_engine.bench.client import Load, Mode, Target
    from paceline_engine.bench.workloads import NAMES

    names, fit_names = args.workload.split(","), args.fit.split(",")
    unknown = [name for name in (*names, *fit_names) if name not in NAMES]
    if unknown:
        raise CommandError(f"workloads must be among {', '.join(NAMES)}, got {unknown[0]!r}")
    key = _secret_in(args.api_key_file, "--api-key-file")
    try:
        model = args.model or serve.first_model(args.base_url, key)
        plan = simulator.Comparison(
            bench=serve.BenchPlan(
                target=Target(base_url=args.base_url, model=model, api_key=key),
                load=Load(mode=Mode.POISSON, rate=args.rate),
                names=names,
                vocabulary=_vocabulary(args.tokenizer),
                seed=args.seed,
                steady_tokens=args.steady_tokens,
                limit=args.limit,
                repeats=args.rounds,
            ),
            fit_names=fit_names,
            admin_url=args.admin_url,
            admin_token=_secret_in(args.admin_token_file, "--admin-token-file"),
        )
        result = simulator.run(plan)
    except (serve.BenchFailed, ValueError) as error:
        raise CommandError(str(error)) from error
    if args.json:
        _write_line(json.dumps(result))
    else:
        simulator.show(result, _write_line)
    return EXIT_OK


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


def _vocabulary(tokenizer: Path | None) -> Any:
    from paceline_engine.bench.workloads import Vocabulary

    return Vocabulary.from_tokenizer(tokenizer) if tokenizer else Vocabulary.random_ids()


def _secret_in(file: Path | None, flag: str) -> str:
    """The first line of a file that is no comment; empty without a file."""
    if file is None:
        return ""
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    given = [line for line in lines if line and not line.startswith("#")]
    if not given:
        raise CommandError(f"{flag}: {file} must hold a line, got an empty file")
    return given[0]


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"--extra must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise CommandError(f"--extra must be a JSON object, got {text!r}")
    return value


def _write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
