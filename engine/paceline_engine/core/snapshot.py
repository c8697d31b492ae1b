"""What the recorder knows at one moment, as plain data: it travels to the HTTP process by message.

Families and label names are those of `paceline_crds.metrics`; exporters and reports read this and
nothing else, so a scrape and a simulator's report give the same figures.
"""

from dataclasses import dataclass, field

from paceline_crds.metrics import METRICS

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramData:
    """Counts per bucket (not cumulative; the last one is beyond every bound) and the sum."""

    counts: list[int]
    sum: float

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSnapshot:
    """All counters, gauges and histograms of one engine.

    Attributes:
        now_s: monotonic time of the snapshot.
        values: family -> label values, in the order of the family's labels -> value. Counters and
            gauges; a family without labels has the key ().
        histograms: family -> data.
    """

    now_s: float = 0.0
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, HistogramData] = field(default_factory=dict)

    def value(self, family: str, /, **labels: str) -> float:
        """A counter's or gauge's value, 0 if it has no such series (yet)."""
        key = tuple(labels[label] for label in METRICS[family].labels)
        return self.values.get(family, {}).get(key, 0.0)

    def histogram(self, name: str) -> HistogramData:
        """A histogram, an empty one if nothing was recorded (yet)."""
        found = self.histograms.get(name)
        if found is None:
            found = HistogramData(counts=[0] * (len(METRICS[name].buckets) + 1), sum=0.0)
        return found
