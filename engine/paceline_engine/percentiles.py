"""Percentiles of latencies as reports tell them, of measured and of simulated runs."""

from collections.abc import Sequence

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks of values in ascending order."""
    at = (len(values) - 1) * share
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def spread(values_s: Sequence[float]) -> dict[str, float] | None:
    """Count, mean, percentiles and maximum in milliseconds; None without values."""
    if not values_s:
        return None
    ordered = sorted(values_s)
    row: dict[str, float] = {"n": len(ordered), "mean": _ms(sum(ordered) / len(ordered))}
    row |= {name: _ms(percentile(ordered, share)) for name, share in SHARES.items()}
    return row | {"max": _ms(ordered[-1])}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)
