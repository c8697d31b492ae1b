"""`paceline bench what-if`: what a change was predicted to do, against what it did.

In each round an engine runs a workload as it is, and its recording is replayed with the change,
as `paceline sim --replay FILE --set NAME=VALUE` does; then the engine gets the change and runs the
same workload. Nothing of the second run is known to the prediction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_engine.bench import agreement, serve
from paceline_engine.bench.recorded import RecordedEngine, Run
from paceline_engine.bench.serve import BenchFailed, BenchPlan
from paceline_engine.core.errors import SettingRefused
from paceline_engine.sim import recording, what_if
from paceline_engine.sim.recording import BadRecording


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of which engine.

    Attributes:
        bench: target, vocabulary, seed, rounds (`repeats`).
        runs: workloads, each a question of its own.
        changes: live settings, camelCase name -> JSON value.
        admin_url: base of the engine's admin port; admin_token: empty if it asks for none.
    """

    bench: BenchPlan
    runs: Sequence[Run]
    changes: Mapping[str, Any]
    admin_url: str
    admin_token: str = ""


def run(plan: Question, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run all of it; minutes. The engine's settings are put back at the end.

    Args:
        plan: what is run.
        say: told where it is.

    Returns:
        JSON-ready: `changes`, and for each workload `before` (the engine as it was against the
        simulation of it) and `after` (with the change, against the prediction).

    Raises:
        BenchFailed: the server or its admin port does not answer, a request failed, or what the
            change does cannot be known from a recording.
    """
    serve.check(plan.bench)
    engine = RecordedEngine(plan.bench, plan.admin_url, plan.admin_token)
    engine.warm_up(plan.runs[0])
    found = engine.settings()
    if unknown := sorted(set(plan.changes) - set(found)):
        raise BenchFailed(f"--set: {unknown[0]} is no setting")
    back = {name: found[name] for name in plan.changes}
    rounds: dict[str, list[tuple[dict[str, Any], ...]]] = {one.name: [] for one in plan.runs}
    try:
        for number in range(plan.bench.repeats):
            for one in plan.runs:
                say(f"round {number + 1} of {plan.bench.repeats}: {one.name}")
                rounds[one.name].append(_round(engine, one, plan.changes, back, number))
    finally:
        engine.change(back)
    return {
        "rounds": plan.bench.repeats,
        "changes": dict(plan.changes),
        "from": back,
        "compared": {name: _compared(rows) for name, rows in rounds.items()},
    }


def _round(
    engine: RecordedEngine,
    one: Run,
    changes: Mapping[str, Any],
    back: Mapping[str, Any],
    seed: int,
) -> tuple[dict[str, Any], ...]:
    """Rows: recorded, its simulation, predicted with the change, measured with it."""
    engine.change(back)
    before = engine.record(one)
    try:
        answer = what_if.answer(before, changes, seed=seed)
    except (BadRecording, SettingRefused) as error:
        raise BenchFailed(str(error)) from error
    engine.change(changes)
    after = recording.recorded_row(engine.record(one))
    return (*answer.rows, after)


def _compared(rows: Sequence[tuple[dict[str, Any], ...]]) -> dict[str, list[dict[str, Any]]]:
    was, simulated, predicted, measured = zip(*rows, strict=True)
    return {
        "before": agreement.lines_of(was, simulated),
        "after": agreement.lines_of(measured, predicted),
    }


def show(result: dict[str, Any], write: Callable[[str], None]) -> None:
    """The result as text."""
    new = ", ".join(f"{name}={value}" for name, value in result["changes"].items())
    old = ", ".join(f"{name}={value}" for name, value in result["from"].items())
    for name, parts in result["compared"].items():
        write(f"\n{name}: the engine as it was ({old}), and its simulation")
        agreement.show("", parts["before"], write)
        write(f"\n{name}: with {new}, and what was predicted of it")
        agreement.show("", parts["after"], write)
