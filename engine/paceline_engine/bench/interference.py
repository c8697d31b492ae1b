"""`paceline bench interference`: what long prompts do to running streams, by budget and by target.

Against one running Paceline server, in one run: steady streams alone give the p99 gap that targets
are multiples of; then the same streams with a long prompt every three seconds, once under each
token budget and once under each target in milliseconds, taken in turns. Settings change through
the admin port (prefix caching goes off: runs repeat their prompts); those found are put back. The
first run tells how long the whole takes.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from paceline_crds import routes
from paceline_engine.bench import client, report, serve
from paceline_engine.bench.serve import BenchFailed, BenchPlan
from paceline_engine.serve.http_stream import ResponseStream

Emit = Callable[[dict[str, Any]], None]
_BUDGET, _TARGET, _CACHING = "maxNumBatchedTokens", "interTokenTargetMs", "prefixCaching"
_MIN_SHARE = 0.02
MOST_OVER_TARGET = 1.2
LEAST_OF_BEST = 0.95
"""Met: p99 at most so many times the target, at so much of the best budget's throughput."""
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is compared.

    Attributes:
        admin_url, admin_token: of the server's admin port; an empty token if it asks for none.
        budgets: token budgets, each without a target.
        factors: targets, as multiples of the steady p99; each under the largest budget.
        rounds: times that everything is run; medians count.
    """

    admin_url: str
    admin_token: str
    budgets: Sequence[int]
    factors: Sequence[float]
    rounds: int = 1

    @property
    def num_runs(self) -> int:
        """Runs of the workload, those of the steady streams alone included."""
        return self.rounds * (1 + len(self.budgets) + len(self.factors))


def run(plan: BenchPlan, sweep: Sweep, write: Callable[[str], None], *, as_json: bool) -> int:
    """Run the sweep; a line of JSON per run, or a table at the end.

    Returns:
        Exit code: 1 if any request failed.

    Raises:
        BenchFailed: the server or its admin port does not answer as it must.
    """
    rows: list[dict[str, Any]] = []

    def emit(row: dict[str, Any]) -> None:
        rows.append(row)
        if as_json:
            write(json.dumps(row))

    def expect(least_s: float) -> None:
        """Long prompts make runs longer than those of the steady streams alone."""
        minutes = [round(least_s / 60, 1), round(1.5 * least_s / 60, 1)]
        if as_json:
            write(json.dumps({"kind": "plan", "runs": sweep.num_runs, "minutes": minutes}))
        else:
            write(f"{sweep.num_runs} runs, about {minutes[0]} to {minutes[1]} minutes")

    asyncio.run(_sweep(plan, sweep, emit, expect))
    for found in verdicts(rows):
        if as_json:
            write(json.dumps({"kind": "verdict", **found}))
    if not as_json:
        write(table(rows))
    return 1 if any(row["errors"] for row in rows) else 0


async def _sweep(
    plan: BenchPlan, sweep: Sweep, emit: Emit, expect: Callable[[float], None]
) -> None:
    found = await _settings(sweep, {})
    before = {name: found["settings"][name] for name in (_BUDGET, _TARGET, _CACHING)}
    steady, mixed = (serve.workload_of(plan, name) for name in ("steady_only", "interference"))
    largest = max(sweep.budgets)
    try:
        for number in range(sweep.rounds):
            await _change(sweep, {_BUDGET: largest, _TARGET: 0, _CACHING: False})
            error = await client.warm_up(steady, plan.target)
            if error:
                raise BenchFailed(f"{plan.target.url} must answer a short request, got: {error}")
            started = time.monotonic()
            row = await _measure(plan, steady, "steady", 0, number)
            emit(row)
            if not number:
                expect(sweep.num_runs * (time.monotonic() - started))
            p99 = row["p99_ms"]
            for budget in sweep.budgets:
                await _change(sweep, {_BUDGET: budget, _TARGET: 0})
                emit(await _measure(plan, mixed, "budget", budget, number))
            for factor in sweep.factors:
                target = max(1, round(factor * p99))
                await _change(sweep, {_BUDGET: largest, _TARGET: target})
                row = await _measure(plan, mixed, "target", target, number)
                emit(row | {"factor": factor})
    finally:
        await _change(sweep, before)


async def _measure(
    plan: BenchPlan, workload: Any, kind: str, value: int, number: int
) -> dict[str, Any]:
    answers = await client.drive(workload, plan.target, plan.load)
    row = report.row_of(workload, plan.load, answers, client_cpu_s=0.0)
    groups = row.get("groups", {})
    gaps = groups["steady"]["itl_ms"] if groups else row["itl_ms"]
    under = row.get("itl_under_prefill_ms", {})
    within = under.get("gaps") or {}
    return {
        "kind": kind,
        "value": value,
        "round": number,
        "p50_ms": gaps["p50"],
        "p99_ms": gaps["p99"],
        "max_ms": gaps["max"],
        "p99_under_prefill_ms": within.get("p99"),
        "share_under_prefill": under.get("share_of_gaps"),
        "steady_outlives_prefills": under.get("steady_outlives_prefills"),
        "big_ttft_p50_ms": groups["big"]["ttft_ms"]["p50"] if groups else None,
        "total_tokens_per_s": row["total_tokens_per_s"],
        "errors": row["errors"],
    }


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each target against the best static budget that meets what the target's run met.

    Returns:
        factor, target_ms, p99_over_target, best_budget (None: none meets it), throughput_ratio,
        is_met: within `MOST_OVER_TARGET`, and at `LEAST_OF_BEST` if some budget meets it too.
    """
    budgets = {value: _medians(rows, "budget", value) for value in _values(rows, "budget")}
    found = []
    for factor in sorted({row["factor"] for row in rows if row["kind"] == "target"}):
        mine = [row for row in rows if row.get("factor") == factor]
        target = median(row["value"] for row in mine)
        p99 = median(row["p99_ms"] for row in mine)
        speed = median(row["total_tokens_per_s"] for row in mine)
        limit = max(target, p99)
        fit = {value: both[1] for value, both in budgets.items() if both[0] <= limit}
        best = max(fit, key=lambda value: fit[value], default=None)
        share = 1.0 if best is None else speed / fit[best]
        found.append(
            {
                "factor": factor,
                "target_ms": target,
                "p99_ms": p99,
                "p99_over_target": round(p99 / target, 3),
                "best_budget": best,
                "throughput_ratio": None if best is None else round(share, 3),
                "is_met": p99 <= MOST_OVER_TARGET * target and share >= LEAST_OF_BEST,
            }
        )
    return found


def _values(rows: Sequence[Mapping[str, Any]], kind: str) -> list[int]:
    return sorted({row["value"] for row in rows if row["kind"] == kind})


def _medians(rows: Sequence[Mapping[str, Any]], kind: str, value: int) -> tuple[float, float]:
    mine = [row for row in rows if (row["kind"], row["value"]) == (kind, value)]
    speed = median(row["total_tokens_per_s"] for row in mine)
    return median(row["p99_ms"] for row in mine), speed


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Runs, then verdicts, as text."""
    head = f"{'':7} {'value':>6} {'itl p50':>8} {'p99':>7} {'max':>7} {'p99 in prefill':>14} "
    lines = [head + f"{'share':>6} {'long ttft':>9} {'tok/s':>7}"]
    for row in rows:
        under, share = row["p99_under_prefill_ms"], row["share_under_prefill"]
        lines.append(
            f"{row['kind']:7} {row['value']:6} {row['p50_ms']:8.1f} {row['p99_ms']:7.1f} "
            f"{row['max_ms']:7.1f} {under or 0:14.1f} {share or 0:6.3f} "
            f"{row['big_ttft_p50_ms'] or 0:9.0f} {row['total_tokens_per_s']:7.1f}"
        )
        if share is not None and (share < _MIN_SHARE or not row["steady_outlives_prefills"]):
            lines.append(
                "        does not count: too few gaps under a prefill, or streams ended "
                "before the last long prompt; raise --steady-tokens"
            )
    for found in verdicts(rows):
        ratio = found["throughput_ratio"]
        lines.append(
            f"target {found['factor']:g} x steady p99 = {found['target_ms']:g} ms: p99 is "
            f"{found['p99_over_target']:.2f} of it; "
            + (
                "no static budget meets that"
                if ratio is None
                else f"{ratio:.2f} of the throughput of budget {found['best_budget']}, "
                "the best that does"
            )
            + ("" if found["is_met"] else ": NOT MET")
        )
    return "\n".join(lines)


async def _change(sweep: Sweep, changes: Mapping[str, Any]) -> None:
    await _settings(sweep, changes)


async def _settings(sweep: Sweep, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Read the live settings, or change some."""
    url = sweep.admin_url.rstrip("/") + routes.ADMIN_SETTINGS
    headers = [(b"content-type", b"application/json")]
    if sweep.admin_token:
        headers.append((b"authorization", b"Bearer " + sweep.admin_token.encode()))
    method, body = ("PATCH", json.dumps(changes).encode()) if changes else ("GET", b"")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            stream = await ResponseStream.open(method, url, headers=headers, body=body)
            await stream.head()
            text = await stream.body()
    except (OSError, ValueError) as error:
        raise BenchFailed(f"{url} must answer, got {error or repr(error)}") from error
    if stream.status != 200:
        raise BenchFailed(f"{method} {url} was refused with {stream.status}: {text.decode()[:300]}")
    answer: dict[str, Any] = json.loads(text)
    return answer
