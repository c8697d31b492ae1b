"""Signals from scrapes that are kept, in the units of those that a Prometheus answers."""

from collections.abc import Mapping
from typing import Any

import pytest

from paceline_crds import metrics
from paceline_operator.decide.tuning import readings
from paceline_operator.decide.tuning.readings import Scrape
from paceline_operator.decide.tuning.signals import Problem, Sample, Signal, Window
from paceline_operator.decide.tuning.terms import PROCESS_START, SERIES, TERMS

WINDOW = Window(start=100, end=140)
TIMES = (100, 110, 120, 130, 140, 150)


def page(**series: float | Mapping[tuple[str, str], float]) -> dict[str, Any]:
    made: dict[str, Any] = {metrics.RUNNING: {(): 1.0}}
    for name, value in series.items():
        key = getattr(metrics, name, name)
        made[key] = {(): value} if isinstance(value, float | int) else value
    return made


def scrapes(pages: Mapping[int, dict[str, Any]], engine: str = "a") -> list[Scrape]:
    return [Scrape(engine=engine, at=at, page=found) for at, found in pages.items()]


def sample(found: list[Scrape], *engines: str) -> Sample:
    return readings.measured(found, WINDOW, engines or ("a",))


def growing(name: str, values: Mapping[int, float]) -> list[Scrape]:
    return scrapes({at: page(**{name: value}) for at, value in values.items()})


def test_every_signal_has_a_term() -> None:
    assert set(TERMS) == set(Signal)
    assert metrics.RUNNING in SERIES


def test_an_increase_begins_where_the_last_window_ended() -> None:
    values = dict(zip(TIMES, (5.0, 7.0, 7.0, 9.0, 12.0, 99.0), strict=True))
    assert sample(growing("PREEMPTIONS", values)).get(Signal.PREEMPTIONS) == 7


def test_two_windows_lose_nothing_between_them() -> None:
    values = {at: float(at) for at in range(95, 200, 10)}
    found = growing("PREEMPTIONS", values)
    later = readings.measured(found, Window(start=140, end=180), ("a",))
    both = [item.get(Signal.PREEMPTIONS) for item in (sample(found), later)]
    assert both == [40, 40]


def test_a_counter_that_began_anew_counts_from_zero_and_a_restart_is_told() -> None:
    found = scrapes(
        {
            at: page(PREEMPTIONS=count, **{PROCESS_START: start})
            for at, count, start in ((100, 50.0, 1.0), (120, 52.0, 1.0), (140, 3.0, 2.0))
        }
    )
    assert sample(found).get(Signal.PREEMPTIONS) == 5
    assert sample(found).get(Signal.RESTARTS) == 1


def test_what_nobody_exports_is_missing_and_no_zero() -> None:
    found = sample(growing("PREEMPTIONS", dict.fromkeys(TIMES, 0.0)))
    assert found.get(Signal.PREEMPTIONS) == 0
    assert found.get(Signal.FINISHED) is None
    assert found.get(Signal.TTFT) is None


def test_gauges_are_of_the_window_alone() -> None:
    values = dict(zip(TIMES, (90.0, 1.0, 2.0, 3.0, 6.0, 90.0), strict=True))
    waiting = sample(growing("WAITING", values))
    assert waiting.get(Signal.WAITING) == 3
    assert waiting.get(Signal.LEAST_WAITING) == 1
    usage = sample(growing("KV_USAGE", values))
    assert usage.get(Signal.KV_USAGE_P95) == pytest.approx(5.55)


def test_engines_are_added_up_and_a_missing_one_is_told() -> None:
    both = [
        *scrapes({at: page(PREEMPTIONS=float(at)) for at in TIMES}),
        *scrapes({at: page(PREEMPTIONS=2.0 * at) for at in TIMES}, "b"),
    ]
    assert sample(both, "a", "b").get(Signal.PREEMPTIONS) == 120
    assert sample(both, "a", "b").problem is None
    assert sample(both, "a", "b", "c").problem is Problem.PODS_MISSING
    assert sample(both, "c").problem is Problem.NO_SERIES
    assert sample(both[:3], "a").problem is Problem.SCRAPE_TOO_SLOW


def test_labels_that_are_not_asked_for_do_not_count_twice() -> None:
    at_start = {(("finished_reason", "stop"),): 1.0, (("finished_reason", "error"),): 0.0}
    at_end = {(("finished_reason", "stop"),): 9.0, (("finished_reason", "error"),): 2.0}
    found = sample(scrapes({100: page(SUCCESS=at_start), 140: page(SUCCESS=at_end)}))
    assert (found.get(Signal.FINISHED), found.get(Signal.ERRORS)) == (10, 2)


def test_a_quantile_lies_within_its_bucket() -> None:
    def buckets(*counts: float) -> Mapping[Any, float]:
        return {(("le", le),): n for le, n in zip(("0.1", "0.2", "+Inf"), counts, strict=True)}

    def itl(*counts: float) -> Sample:
        name = f"{metrics.ITL}_bucket"
        pages = {100: {name: buckets(0, 0, 0)}, 140: {name: buckets(*counts)}}
        return sample(scrapes({at: {**page(), **found} for at, found in pages.items()}))

    assert itl(0, 10, 10).get(Signal.ITL_P50) == pytest.approx(0.15)
    assert itl(10, 10, 10).get(Signal.ITL_P50) == pytest.approx(0.05)
    assert itl(0, 0, 10).get(Signal.ITL_P50) == 0.2
    assert itl(0, 0, 0).get(Signal.ITL_P50) is None


def test_the_last_scrape_before_what_is_kept_stays() -> None:
    kept = readings.forget(growing("WAITING", dict.fromkeys(TIMES, 0.0)), 120)
    assert [scrape.at for scrape in kept] == [120, 130, 140, 150]
