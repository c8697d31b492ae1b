"""`paceline bench sim`: an engine against its simulation, on loads that the fit has not seen.

In each round the engine runs the workloads for the fit, then the others; after each run its
recording gives what its own clock saw. The simulator gets the step times of the first and the
*plan* of the others: arrivals and lengths as the client means to send them, nothing measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.random import default_rng

from paceline_engine.bench import agreement, serve
from paceline_engine.bench.client import Load, Mode
from paceline_engine.bench.recorded import RecordedEngine, Run
from paceline_engine.bench.serve import BenchPlan
from paceline_engine.bench.workloads import Workload
from paceline_engine.sim import recording, report, what_if, workload
from paceline_engine.sim.arrivals import OpenLoop
from paceline_engine.sim.jitter import Jitter
from paceline_engine.sim.recording import RecordedStep, Recording
from paceline_engine.sim.requests import SimRequest
from paceline_engine.sim.simulator import Simulator
from paceline_engine.sim.step_cost import Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is run where.

    Attributes:
        bench: target, vocabulary, seed, rounds (`repeats`).
        fit: workloads whose steps the cost model is fitted to; compared: the others.
        admin_url: base of the engine's admin port; admin_token: empty if it asks for none.
    """

    bench: BenchPlan
    fit: Sequence[Run]
    compared: Sequence[Run]
    admin_url: str
    admin_token: str = ""


def planned(made: Workload, load: Load) -> list[SimRequest]:
    """The requests of a workload as the client will send them."""
    asked = [workload.from_item(item) for item in made.items]
    if load.mode is Mode.BATCH:
        return [replace(one, arrival_s=0.0) for one in asked]
    rate = load.rate if load.mode is Mode.POISSON else 1.0
    moved = [replace(one, arrival_s=one.arrival_s / rate) for one in asked]
    return sorted(moved, key=lambda one: one.arrival_s)


def simulated(found: Recording, fitted: Fit, requests: list[SimRequest], seed: int) -> Simulator:
    """One simulated run on the engine that was recorded."""
    sim = Simulator(
        found.settings,
        found.limits,
        fitted.cost,
        OpenLoop(requests),
        jitter=Jitter(fitted.ratios, default_rng(seed)),
    )
    sim.run()
    return sim


def run(plan: Comparison, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run all of it; minutes.

    The fit's workloads are run again in each round: a machine that has become slower is slower for
    both sides.

    Args:
        plan: what is run.
        say: told where it is.

    Returns:
        JSON-ready: `fit`, and for each compared workload its lines.

    Raises:
        BenchFailed: the server or its admin port does not answer, or a request failed.
    """
    serve.check(plan.bench)
    engine = RecordedEngine(plan.bench, plan.admin_url, plan.admin_token)
    engine.warm_up(plan.fit[0])
    steps: list[RecordedStep] = []
    rows: dict[str, list[dict[str, Any]]] = {run.name: [] for run in plan.compared}
    for number in range(plan.bench.repeats):
        for one in plan.fit:
            say(f"round {number + 1} of {plan.bench.repeats}: {one.name}, for the fit")
            found = engine.record(one)
            steps += found.steps
        for one in plan.compared:
            say(f"round {number + 1} of {plan.bench.repeats}: {one.name}")
            rows[one.name].append(recording.recorded_row(engine.record(one)))
    fitted = what_if.fit_of(replace(found, steps=tuple(steps)))
    compared = {}
    for one in plan.compared:
        requests = planned(one.made(plan.bench), one.load)
        sims = [
            report.row_of(simulated(found, fitted, requests, seed), "simulated")
            for seed in range(plan.bench.repeats)
        ]
        compared[one.name] = agreement.lines_of(rows[one.name], sims)
    return {
        "rounds": plan.bench.repeats,
        "fit": {
            "workloads": [one.name for one in plan.fit],
            "steps": fitted.num_steps,
            "median_error": round(fitted.median_error, 4),
            "p90_error": round(fitted.p90_error, 4),
        },
        "compared": compared,
    }


def show(result: dict[str, Any], write: Callable[[str], None]) -> None:
    """The result as text."""
    fitted = result["fit"]
    write(
        f"fitted to {fitted['steps']} steps of {', '.join(fitted['workloads'])}: half within "
        f"{100 * fitted['median_error']:.1f}%, nine in ten within {100 * fitted['p90_error']:.1f}%"
    )
    for name, lines in result["compared"].items():
        agreement.show(name, lines, write)
