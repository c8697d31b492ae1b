"""How near simulated figures come to an engine's: its median, its own spread, and a verdict."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

TOLERANCE = 0.1
_FIGURES = (
    ("TTFT p50, ms", "ttft_ms", "p50"),
    ("TTFT p99, ms", "ttft_ms", "p99"),
    ("ITL p50, ms", "itl_ms", "p50"),
    ("ITL p99, ms", "itl_ms", "p99"),
    ("output tokens/s", "output_tokens_per_s", ""),
)


def lines_of(
    engine: Sequence[Mapping[str, Any]], sims: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Figures of one workload: the engine's runs, the median of the simulated ones, and a verdict.

    The spread is how far the engine's own runs lie from their median, at most. A figure agrees if
    it is within a tenth of that median, or within the spread where this is larger.

    Args:
        engine: rows in the form of `sim.report.row_of`.
        sims: the same.
    """
    lines = []
    for title, name, part in _FIGURES:
        runs = sorted(_figure(row, name, part) for row in engine)
        middle, value = median(runs), median(_figure(row, name, part) for row in sims)
        off = value / middle - 1 if middle else 0.0
        spread = max(runs[-1] / middle - 1, 1 - runs[0] / middle) if middle else 0.0
        lines.append(
            {
                "figure": title,
                "engine": round(middle, 2),
                "engine_min": runs[0],
                "engine_max": runs[-1],
                "engine_spread": round(spread, 4),
                "simulated": round(value, 2),
                "off": round(off, 4),
                "agrees": abs(off) <= max(TOLERANCE, spread),
            }
        )
    return lines


def _figure(row: Mapping[str, Any], name: str, part: str) -> float:
    value = row[name]
    return float(value[part] if part else value)


def show(name: str, lines: Sequence[Mapping[str, Any]], write: Callable[[str], None]) -> None:
    """The lines of one workload as text."""
    heads = f"{'engine':>10}  {'[min..max]':20}{'spread':>8}{'simulated':>11}{'off':>8}"
    write(f"\n{name:18}{heads}")
    for line in lines:
        ends = f"[{line['engine_min']:.1f}..{line['engine_max']:.1f}]"
        write(
            f"  {line['figure']:16}{line['engine']:10.1f}  {ends:20}"
            f"{100 * line['engine_spread']:7.1f}%{line['simulated']:11.1f}"
            f"{100 * line['off']:+7.1f}%  {'agrees' if line['agrees'] else 'DIFFERS'}"
        )
