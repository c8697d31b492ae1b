"""`paceline sim`: capacity questions, policies side by side, and what other settings would do."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.arguments import Add, not_negative, positive, seed
from paceline.errors import EXIT_OK, CommandError
from paceline.flag_values import changes_of
from paceline_crds import flags
from paceline_crds.settings import SpeculativeMethod, knobs

DEFAULT_REQUESTS = 2000
DEFAULT_RATE = 4.0
_SIMULATED_METHODS = (SpeculativeMethod.NONE, SpeculativeMethod.NGRAM, SpeculativeMethod.SUFFIX)
_POLICIES = ("Continuous", "Static", "DualTrack", "Fair")


def add_command(commands: Any) -> None:
    """Add the parser of `sim`."""
    parser = commands.add_parser(
        "sim",
        help="simulate an engine under load, or replay a recording with other settings",
        description="Run the scheduler that serves under a model of how long steps take: fitted to "
        "a recording of an engine (GET /v1/paceline/recording), or of a device. With --replay the "
        "recorded requests come again, as they were and with the settings of --set.",
    )
    _add_load(parser.add_argument)
    _add_machine(parser.add_argument)
    _add_output(parser.add_argument)
    flags.add_setting_flags(parser)
    parser.set_defaults(handler=simulate)


def _add_load(add: Add) -> None:
    add(
        "--workload",
        default="chat",
        metavar="NAME",
        help="`--workload list` lists them (default chat)",
    )
    add("--requests", type=positive, metavar="N", help=f"how many (default {DEFAULT_REQUESTS})")
    add(
        "--rate",
        type=not_negative,
        default=DEFAULT_RATE,
        metavar="R",
        help=f"requests a second on average, 0: all at once (default {DEFAULT_RATE:g})",
    )
    add(
        "--concurrency",
        type=positive,
        metavar="N",
        help="so many clients that wait, in place of --rate (default: none)",
    )
    add(
        "--policy",
        default="Continuous",
        metavar="NAME[,NAME]",
        help=f"of {', '.join(_POLICIES)}; several are compared (default Continuous)",
    )
    add("--seed", type=seed, default=1234, help="of lengths, arrivals and jitter (default 1234)")


def _add_machine(add: Add) -> None:
    add("--device", default="h100", metavar="NAME", help="a device profile (default h100)")
    add("--model-shape", default="llama-3.1-8b", metavar="NAME", help="default llama-3.1-8b")
    add(
        "--fit",
        type=Path,
        metavar="FILE",
        help="step times of this recording (default: of --device)",
    )
    add(
        "--replay",
        type=Path,
        metavar="FILE",
        help="requests and steps of this recording (default: none)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="with --replay: a setting to try, as in a manifest (maxNumBatchedTokens=4096; "
        "default: as recorded)",
    )


def _add_output(add: Add) -> None:
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="write the course of the runs as SVG (default: none)",
    )
    add("--json", action="store_true", help="a line of JSON for each run")


def simulate(args: argparse.Namespace) -> int:
    """Answer one question."""
    if args.workload == "list":
        from paceline_engine.sim import workload

        print("\n".join(workload.NAMES))
        return EXIT_OK
    if args.plot and (args.plot.is_dir() or not args.plot.absolute().parent.is_dir()):
        raise CommandError(f"--plot must be a file in a folder that exists, got {args.plot}")
    if args.replay:
        return _replay(args)
    if args.set:
        raise CommandError("--set belongs to --replay; without a recording, use the flags")
    return _run(args)


def _replay(args: argparse.Namespace) -> int:
    from paceline_engine.core.errors import SettingRefused
    from paceline_engine.core.live_settings import parse_changes
    from paceline_engine.sim import recording, what_if

    given = [flags.flag_of(name) for name in knobs() if hasattr(args, name)]
    if given:
        raise CommandError(f"{given[0]} belongs to a run without --replay; use --set NAME=VALUE")
    changes = changes_of(args.set)
    try:
        parse_changes(changes)  # first: a short recording must not hide a wrong name
        found = recording.load(args.replay)
        answer = what_if.answer(found, changes, seed=args.seed)
    except (recording.BadRecording, SettingRefused) as error:
        raise CommandError(str(error)) from error
    names = [str(row["run"]) for row in answer.rows[1:]]
    _show(args, answer.rows, answer.notes)
    _plot(args, [(n, s.timeline.points) for n, s in zip(names, answer.simulators, strict=True)])
    return EXIT_OK


def _run(args: argparse.Namespace) -> int:
    from paceline_engine.sim import report, workload

    policies = args.policy.split(",")
    unknown = [name for name in policies if name not in _POLICIES]
    if unknown:
        raise CommandError(f"--policy must be among {', '.join(_POLICIES)}, got {unknown[0]!r}")
    if args.workload not in workload.NAMES:
        raise CommandError(
            f"--workload must be one of {', '.join(workload.NAMES)}, got {args.workload!r}"
        )
    rows, courses, notes = [], [], []
    for policy in policies:
        sim, note = _simulator(args, policy)
        started_s = time.process_time()
        sim.run()
        took_s = time.process_time() - started_s
        row = report.row_of(sim, policy)
        row["simulated_requests_per_minute"] = round(60 * row["requests"] / max(took_s, 1e-9))
        rows.append(row)
        courses.append((policy, sim.timeline.points))
        notes.append(
            f"{policy}: {took_s:.1f} s of one core for {row['requests']:,} requests; {note}"
        )
    _show(args, rows, notes)
    _plot(args, courses)
    return EXIT_OK


def _simulator(args: argparse.Namespace, policy: str) -> tuple[Any, str]:
    """A simulator with its load, and what its step times come from."""
    from numpy.random import default_rng

    from paceline_crds.errors import InvalidSettings
    from paceline_engine.core.errors import StartFailed
    from paceline_engine.core.unsupported import refuse_at_start
    from paceline_engine.sim import device, recording, what_if, workload
    from paceline_engine.sim.arrivals import ClosedLoop, OpenLoop
    from paceline_engine.sim.jitter import Jitter
    from paceline_engine.sim.limits import limits_of
    from paceline_engine.sim.simulator import Policy, Simulator
    from paceline_engine.sim.step_cost import StepCost

    load = workload.make(
        args.workload,
        default_rng(args.seed),
        count=args.requests or (DEFAULT_REQUESTS if args.workload in workload.MIXES else None),
        rate=0.0 if args.concurrency else args.rate,
    )
    arrivals = ClosedLoop(load, args.concurrency) if args.concurrency else OpenLoop(load)
    jitter: Jitter | None = None
    cost: StepCost
    try:
        settings = flags.settings_from_args(args)
        refuse_at_start(settings)
        if settings.speculative_method not in _SIMULATED_METHODS:
            raise CommandError(
                f"speculativeMethod {settings.speculative_method} cannot be simulated: the time "
                "that its model takes is not known here; simulate Ngram or Suffix"
            )
        if settings.overlap:
            raise CommandError(what_if.NO_OVERLAP)
        if settings.kv_offload_host_memory is not None:
            raise CommandError(what_if.NO_HOST_TIER)
        if args.fit:
            found = recording.load(args.fit)
            fitted = what_if.fit_of(found)
            cost, blocks = fitted.cost, found.limits.num_blocks
            jitter = Jitter(fitted.ratios, default_rng(args.seed + 1))
            note = f"step times of {args.fit}"
        else:
            shape = _named(device.MODELS, args.model_shape, "--model-shape")
            machine = _named(device.DEVICES, args.device, "--device")
            cost = device.RooflineCost(shape, machine)
            blocks = settings.num_kv_blocks or device.num_kv_blocks(
                shape,
                machine,
                block_size=settings.block_size,
                memory_share=float(settings.gpu_memory_utilization),
            )
            note = f"step times of a roofline, {args.model_shape} on {args.device}"
        limits = limits_of(settings, settings.num_kv_blocks or blocks)
        sim = Simulator(settings, limits, cost, arrivals, policy=Policy(policy), jitter=jitter)
    except (InvalidSettings, StartFailed, recording.BadRecording, ValueError) as error:
        raise CommandError(str(error)) from error
    return sim, f"{note}, {limits.num_blocks - 1:,} KV blocks"


def _named(table: Any, name: str, flag: str) -> Any:
    if name not in table:
        raise CommandError(f"{flag} must be one of {', '.join(table)}, got {name!r}")
    return table[name]


def _show(args: argparse.Namespace, rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    from paceline_engine.sim import report

    if args.json:
        for row in rows:
            print(json.dumps(row))
        return
    print(report.table(rows))
    for note in notes:
        print(note)
    sys.stdout.flush()


def _plot(args: argparse.Namespace, courses: Sequence[tuple[str, Any]]) -> None:
    from paceline_engine.sim import plot

    if args.plot:
        args.plot.write_text(plot.svg(courses), encoding="utf-8")
