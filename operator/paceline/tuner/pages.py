"""An engine's metrics as the tuner reads them: from the text of `/metrics`, or from a snapshot."""

from itertools import accumulate
from typing import TYPE_CHECKING

from paceline_crds.metrics import METRICS
from paceline_operator.decide.tuning.readings import Labels, Page
from paceline_operator.decide.tuning.terms import PROCESS_START, SERIES

if TYPE_CHECKING:
    from paceline_engine.core.snapshot import StatsSnapshot

_COMMON = frozenset({"model_name", "engine"})
"""Labels that are the same for all series of one engine."""


def of_text(text: str) -> Page:
    """The samples of a page that signals are made of.

    Raises:
        ValueError: it is no page in the Prometheus text format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    page: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in SERIES:
                own = ((k, v) for k, v in sample.labels.items() if k not in _COMMON)
                page.setdefault(sample.name, {})[tuple(sorted(own))] = float(sample.value)
    return page


def of_snapshot(snapshot: "StatsSnapshot", started_s: float) -> Page:
    """The same samples of a simulated engine that began at `started_s`."""
    page: dict[str, dict[Labels, float]] = {PROCESS_START: {(): started_s}}
    for name, values in snapshot.values.items():
        if name in SERIES:
            labels = METRICS[name].labels
            page[name] = {
                tuple(sorted(zip(labels, key, strict=True))): value for key, value in values.items()
            }
    for name, data in snapshot.histograms.items():
        counts = list(accumulate(data.counts))
        bounds = (*map(str, METRICS[name].buckets), "+Inf")
        if f"{name}_bucket" in SERIES:
            page[f"{name}_bucket"] = {
                (("le", bound),): float(count) for bound, count in zip(bounds, counts, strict=True)
            }
        for ending, value in (("sum", data.sum), ("count", float(counts[-1]))):
            if f"{name}_{ending}" in SERIES:
                page[f"{name}_{ending}"] = {(): value}
    return page
