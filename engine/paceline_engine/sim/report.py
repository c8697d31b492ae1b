"""What a run says: one row of figures per run, as JSON, and rows side by side as a table.

Counts come from the recorder's snapshot, as a scrape would give them; latencies from the ledger, so
that percentiles are not those of coarse buckets.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline_crds import metrics
from paceline_engine.core.snapshot import StatsSnapshot
from paceline_engine.percentiles import SHARES, spread
from paceline_engine.sim.ledger import FineHistogram, Ledger, Served
from paceline_engine.sim.simulator import Simulator


def row_of(sim: Simulator, name: str) -> dict[str, Any]:
    """The figures of a run so far, JSON-ready. Rates are from the first arrival to the last end."""
    stats, ledger = sim.snapshot(), sim.ledger
    ended = [served for served in ledger.served if not math.isnan(served.end_s)]
    start_s = min((served.arrival_s for served in ledger.served), default=sim.now)
    end_s = max((served.end_s for served in ended), default=sim.now)
    duration_s = max(end_s - start_s, 1e-9)
    row: dict[str, Any] = {"run": name, "duration_s": round(duration_s, 3)}
    row |= _counts(ledger, stats)
    output_tokens = stats.value(metrics.GENERATION_TOKENS)
    prompt_tokens = stats.value(metrics.PROMPT_TOKENS)
    row |= {
        "requests_per_s": round(row["completed"] / duration_s, 3),
        "output_tokens_per_s": round(output_tokens / duration_s, 2),
        "total_tokens_per_s": round((output_tokens + prompt_tokens) / duration_s, 2),
    }
    row |= _goodput(stats, duration_s)
    row |= {
        "ttft_ms": spread([s.first_token_s - s.arrival_s for s in ended if _has_token(s)]),
        "itl_ms": spread_of(ledger.gaps),
        "e2e_ms": spread([s.end_s - s.arrival_s for s in ended if _has_token(s)]),
    }
    row |= _engine_side(stats)
    groups = sorted({served.group for served in ended} | {served.tenant for served in ended})
    groups = [group for group in groups if group]
    if len(groups) > 1:
        row["groups"] = {group: _group(ended, group) for group in groups}
    return row


def _has_token(served: Served) -> bool:
    return not math.isnan(served.first_token_s)


def _counts(ledger: Ledger, stats: StatsSnapshot) -> dict[str, Any]:
    reasons = Counter(served.reason or "running" for served in ledger.served)
    completed = reasons["stop"] + reasons["length"]
    return {
        "requests": len(ledger.served),
        "completed": completed,
        "ended": dict(sorted(reasons.items())),
        "prompt_tokens": int(stats.value(metrics.PROMPT_TOKENS)),
        "output_tokens": int(stats.value(metrics.GENERATION_TOKENS)),
    }


def _goodput(stats: StatsSnapshot, duration_s: float) -> dict[str, Any]:
    """Requests a second that met every target; without targets there is none to report."""
    good = stats.value(metrics.SLO_REQUESTS, result="good")
    bad = stats.value(metrics.SLO_REQUESTS, result="bad")
    if not good + bad:
        return {"goodput_per_s": None, "slo_attainment": None}
    return {
        "goodput_per_s": round(good / duration_s, 3),
        "slo_attainment": round(good / (good + bad), 4),
    }


def _engine_side(stats: StatsSnapshot) -> dict[str, Any]:
    kv, fill = (
        stats.histogram(name) for name in (metrics.KV_USAGE_HISTOGRAM, metrics.STEP_BUDGET_USED)
    )
    queries = stats.value(metrics.PREFIX_QUERIES)
    hits = stats.value(metrics.PREFIX_HITS)
    return {
        "steps": int(stats.value(metrics.STEPS)),
        "preemptions": int(stats.value(metrics.PREEMPTIONS)),
        "recomputed_tokens": int(stats.value(metrics.RECOMPUTED)),
        "kv_usage_mean": round(kv.sum / kv.count, 4) if kv.count else None,
        "step_fill_mean": round(fill.sum / fill.count, 4) if fill.count else None,
        "prefix_hit_share": round(hits / queries, 4) if queries else None,
    }


def _group(ended: Sequence[Served], group: str) -> dict[str, Any]:
    mine = [served for served in ended if group in {served.group, served.tenant}]
    return {
        "requests": len(mine),
        "output_tokens": sum(served.num_output_tokens for served in mine),
        "ttft_ms": spread([s.first_token_s - s.arrival_s for s in mine if _has_token(s)]),
        "e2e_ms": spread([s.end_s - s.arrival_s for s in mine if _has_token(s)]),
    }


def spread_of(histogram: FineHistogram) -> dict[str, float] | None:
    """As `percentiles.spread`, of a fine histogram."""
    count = histogram.count
    if not count:
        return None
    row: dict[str, float] = {"n": count, "mean": round(1e3 * histogram.total_s / count, 2)}
    row |= {name: round(1e3 * histogram.quantile(at), 2) for name, at in SHARES.items()}
    return row | {"max": round(1e3 * histogram.max_s, 2)}


_LINES = (
    ("requests", "requests"),
    ("completed", "completed"),
    ("duration, s", "duration_s"),
    ("requests/s", "requests_per_s"),
    ("output tokens/s", "output_tokens_per_s"),
    ("goodput, requests/s", "goodput_per_s"),
    ("share within SLO", "slo_attainment"),
    ("TTFT p50, ms", "ttft_ms", "p50"),
    ("TTFT p99, ms", "ttft_ms", "p99"),
    ("ITL p50, ms", "itl_ms", "p50"),
    ("ITL p99, ms", "itl_ms", "p99"),
    ("ITL max, ms", "itl_ms", "max"),
    ("E2E p50, ms", "e2e_ms", "p50"),
    ("E2E p99, ms", "e2e_ms", "p99"),
    ("steps", "steps"),
    ("preemptions", "preemptions"),
    ("recomputed tokens", "recomputed_tokens"),
    ("KV use, mean", "kv_usage_mean"),
    ("step fill, mean", "step_fill_mean"),
    ("prefix hits", "prefix_hit_share"),
)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Runs side by side, a figure per line; lines that no run has a value for are left out."""
    lines = [["", *(str(row["run"]) for row in rows)]]
    for title, *path in (*_LINES, *_group_lines(rows)):
        cells = [_cell(_value(row, path)) for row in rows]
        if set(cells) != {"-"}:
            lines.append([title, *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(rows) + 1)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _group_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """What groups and tenants saw, where a run has several."""
    for group in sorted({name for row in rows for name in row.get("groups", {})}):
        yield f"{group}: output tokens", "groups", group, "output_tokens"
        yield f"{group}: TTFT p50, ms", "groups", group, "ttft_ms", "p50"
        yield f"{group}: TTFT p99, ms", "groups", group, "ttft_ms", "p99"


def _value(row: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = row
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
