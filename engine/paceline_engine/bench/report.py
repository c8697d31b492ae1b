"""What the answers of a run say: throughput and percentiles, as a row and as a table."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from paceline_engine.bench.client import Answer, Load, Mode
from paceline_engine.bench.workloads import Workload
from paceline_engine.percentiles import spread


def row_of(
    workload: Workload, load: Load, answers: Sequence[Answer], *, client_cpu_s: float
) -> dict[str, Any]:
    """One run as a JSON-ready row.

    Latencies count from the moment a request was due (arrival), not from when the client came
    round to sending it, so a client that falls behind shows.
    """
    good = [answer for answer in answers if _is_good(answer)]
    failed = [answer.error or "no tokens" for answer in answers if not _is_good(answer)]
    duration_s = max((answer.end_s for answer in good), default=0.0)
    prompt = sum(a.num_prompt_tokens or len(a.item.prompt_token_ids) for a in good)
    output = sum(a.num_output_tokens or len(a.token_times_s) for a in good)
    events = sum(len(answer.token_times_s) for answer in good)
    row: dict[str, Any] = {
        "workload": workload.name,
        "seed": workload.seed,
        "mode": load.mode.value,
        "rate": load.rate if load.mode is Mode.POISSON else None,
        "concurrency": load.concurrency if load.mode is Mode.CLOSED else None,
        "requests": len(answers),
        "errors": len(failed),
        "error_sample": failed[:2],
        "wrong_lengths": sum(a.num_output_tokens not in {0, a.item.max_tokens} for a in good),
        "duration_s": round(duration_s, 3),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "cached_tokens": sum(answer.num_cached_tokens for answer in good),
        "requests_per_s": _rate(len(good), duration_s),
        "output_tokens_per_s": _rate(output, duration_s),
        "total_tokens_per_s": _rate(prompt + output, duration_s),
        "events_per_token": round(events / output, 3) if output else None,
        "client_cpu_s": round(client_cpu_s, 2),
    }
    groups = sorted({answer.item.group for answer in good})
    row |= _latencies(good)
    if len(groups) > 1:
        row["groups"] = {
            group: _latencies([a for a in good if a.item.group == group]) for group in groups
        }
    if {"steady", "big"} <= set(groups):
        row["itl_under_prefill_ms"] = _gaps_under_prefill(good)
    return row


def _is_good(answer: Answer) -> bool:
    return not answer.error and bool(answer.token_times_s)


def _rate(count: int, duration_s: float) -> float | None:
    return round(count / duration_s, 2) if duration_s else None


def _gaps(answer: Answer) -> list[float]:
    times = answer.token_times_s
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _latencies(answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "ttft_ms": spread([a.token_times_s[0] - a.due_s for a in answers]),
        "itl_ms": spread([gap for answer in answers for gap in _gaps(answer)]),
        "e2e_ms": spread([answer.end_s - answer.due_s for answer in answers]),
    }


def _gaps_under_prefill(answers: Sequence[Answer]) -> dict[str, Any]:
    """Gaps of the steady streams that overlap a long prompt's prefill, and how many those are."""
    prefills = [(a.sent_s, a.token_times_s[0]) for a in answers if a.item.group == "big"]
    steady = [a for a in answers if a.item.group == "steady"]
    total, inside = 0, []
    for answer in steady:
        for start, end in zip(answer.token_times_s, answer.token_times_s[1:], strict=False):
            total += 1
            if any(start < until and end > since for since, until in prefills):
                inside.append(end - start)
    covered = min((a.end_s for a in steady), default=0.0) >= max(end for _, end in prefills)
    return {
        "share_of_gaps": round(len(inside) / total, 4) if total else 0.0,
        "steady_outlives_prefills": covered,
        "gaps": spread(inside),
    }


_COLUMNS = (
    ("workload", "workload"),
    ("mode", "mode"),
    ("req", "requests"),
    ("err", "errors"),
    ("s", "duration_s"),
    ("out tok/s", "output_tokens_per_s"),
    ("total tok/s", "total_tokens_per_s"),
    ("ttft p50", "ttft_ms.p50"),
    ("p99", "ttft_ms.p99"),
    ("itl p50", "itl_ms.p50"),
    ("p99", "itl_ms.p99"),
    ("max", "itl_ms.max"),
    ("e2e p50", "e2e_ms.p50"),
    ("p99", "e2e_ms.p99"),
)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned text; latencies in milliseconds."""
    lines = [[title for title, _ in _COLUMNS]]
    lines += [[_cell(row, path) for _, path in _COLUMNS] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cell(row: Mapping[str, Any], path: str) -> str:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, float):
        return f"{value:.1f}"
    return "-" if value is None else str(value)
