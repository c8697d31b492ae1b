"""`paceline bench sim`: an engine against its simulation, on loads that the fit has not seen.

The engine runs the workloads for the fit, then the others, in rounds; after each run its recording
gives what its own clock saw. The simulator gets the step times of the first and the *plan* of the
others: arrivals and lengths as the client means to send them, nothing that was measured in them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import httpx
from numpy.random import default_rng

from paceline_crds import routes
from paceline_engine.bench import client, serve
from paceline_engine.bench.client import Load, Mode
from paceline_engine.bench.serve import BenchFailed, BenchPlan
from paceline_engine.bench.workloads import Workload
from paceline_engine.sim import recording, report, what_if, workload
from paceline_engine.sim.arrivals import OpenLoop
from paceline_engine.sim.jitter import Jitter
from paceline_engine.sim.recording import BadRecording, Recording
from paceline_engine.sim.requests import SimRequest
from paceline_engine.sim.simulator import Simulator
from paceline_engine.sim.step_cost import Fit

TOLERANCE = 0.1
_SCHEDULED = frozenset({"interference", "steady_only"})
"""Workloads whose arrivals are seconds; those of the others come at the rate, or all at once."""
_FIGURES = (
    ("TTFT p50, ms", "ttft_ms", "p50"),
    ("TTFT p99, ms", "ttft_ms", "p99"),
    ("ITL p50, ms", "itl_ms", "p50"),
    ("ITL p99, ms", "itl_ms", "p99"),
    ("output tokens/s", "output_tokens_per_s", ""),
)
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is run where.

    Attributes:
        bench: target, vocabulary, workloads to compare, their rate, rounds (`repeats`).
        fit_names: workloads whose steps the cost model is fitted to.
        admin_url: base of the engine's admin port; admin_token: empty if it asks for none.
    """

    bench: BenchPlan
    fit_names: Sequence[str]
    admin_url: str
    admin_token: str = ""


class _Admin:
    """What is asked of the admin port. Mutable: it remembers how far it has read."""

    def __init__(self, plan: Comparison) -> None:
        token = plan.admin_token
        self._url = plan.admin_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._read_until_s = float("-inf")

    def forget(self) -> None:
        """Empty the prefix cache, so that a run does not profit from the one before."""
        self._ask("POST", routes.ADMIN_RESET_PREFIX_CACHE)

    def new(self) -> Recording:
        """What was recorded since the last call."""
        body = self._ask("GET", routes.ADMIN_RECORDING)
        try:
            found = recording.read(body, after_s=self._read_until_s)
        except BadRecording as error:
            raise BenchFailed(str(error)) from error
        self._read_until_s = found.last_arrival_s
        return found

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        try:
            answer = httpx.request(
                method, self._url + path, headers=self._headers, timeout=_TIMEOUT_S
            )
            answer.raise_for_status()
            body: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise BenchFailed(
                f"the admin port must answer {path}, got {error}; check --admin-url and "
                "--admin-token-file"
            ) from error
        return body


def load_of(plan: BenchPlan, name: str) -> Load:
    """How the requests of one workload are sent."""
    mode = Mode.SCHEDULE if name in _SCHEDULED else Mode.POISSON
    return replace(plan.load, mode=mode)


def planned(made: Workload, load: Load) -> list[SimRequest]:
    """The requests of a workload as the client will send them."""
    rate = load.rate if load.mode is Mode.POISSON else 1.0
    asked = [workload.from_item(item) for item in made.items]
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


def lines_of(
    engine: Sequence[dict[str, Any]], sims: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Figures of one workload: the engine's runs, the median of the simulated ones, and a verdict.

    A figure agrees if it is within a tenth of the engine's median, or among the engine's runs.
    """
    lines = []
    for title, name, part in _FIGURES:
        runs = sorted(_figure(row, name, part) for row in engine)
        middle, value = median(runs), median(_figure(row, name, part) for row in sims)
        off = value / middle - 1 if middle else 0.0
        lines.append(
            {
                "figure": title,
                "engine": middle,
                "engine_min": runs[0],
                "engine_max": runs[-1],
                "simulated": round(value, 2),
                "off": round(off, 4),
                "agrees": abs(off) <= TOLERANCE or runs[0] <= value <= runs[-1],
            }
        )
    return lines


def _figure(row: dict[str, Any], name: str, part: str) -> float:
    value = row[name]
    return float(value[part] if part else value)


def run(plan: Comparison) -> dict[str, Any]:
    """Run all of it; minutes.

    Returns:
        JSON-ready: `fit`, and for each workload name its lines.

    Raises:
        BenchFailed: the server or its admin port does not answer, or a request failed.
    """
    serve.check(plan.bench)
    admin = _Admin(plan)
    target = plan.bench.target

    def drive(name: str) -> Recording:
        made = serve.workload_of(plan.bench, name)
        admin.forget()
        answers = asyncio.run(client.drive(made, target, load_of(plan.bench, name)))
        failed = [answer.error for answer in answers if answer.error]
        if failed:
            raise BenchFailed(f"{name}: {len(failed)} requests failed: {failed[0]}")
        return admin.new()

    asyncio.run(client.warm_up(serve.workload_of(plan.bench, plan.fit_names[0]), target))
    admin.new()
    steps = [drive(name) for name in plan.fit_names]
    every_step = tuple(step for part in steps for step in part.steps)
    fitted = what_if.fit_of(replace(steps[0], steps=every_step))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.bench.names}
    for _ in range(plan.bench.repeats):
        for name in plan.bench.names:
            rows[name].append(recording.recorded_row(drive(name)))
    compared = {}
    for name in plan.bench.names:
        requests = planned(serve.workload_of(plan.bench, name), load_of(plan.bench, name))
        sims = [
            report.row_of(simulated(steps[0], fitted, requests, seed), "simulated")
            for seed in range(plan.bench.repeats)
        ]
        compared[name] = lines_of(rows[name], sims)
    return {
        "fit": {
            "workloads": list(plan.fit_names),
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
        write(f"\n{name:18}{'engine':>10}  {'[min..max]':20}{'simulated':>10}{'off':>8}")
        for line in lines:
            spread = f"[{line['engine_min']:.1f}..{line['engine_max']:.1f}]"
            write(
                f"  {line['figure']:16}{line['engine']:10.1f}  {spread:20}"
                f"{line['simulated']:10.1f}{100 * line['off']:+7.1f}%"
                f"  {'agrees' if line['agrees'] else 'DIFFERS'}"
            )
