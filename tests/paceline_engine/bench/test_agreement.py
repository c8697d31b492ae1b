"""When a simulated figure agrees with an engine's."""

import pytest

from paceline_engine.bench import agreement


def row(ttft: float, itl: float = 10.0, rate: float = 100.0) -> dict[str, object]:
    both = {"p50": ttft, "p99": 2 * ttft}
    return {
        "ttft_ms": both,
        "itl_ms": {"p50": itl, "p99": 2 * itl},
        "output_tokens_per_s": rate,
    }


def test_a_figure_agrees_within_a_tenth_or_within_the_engines_own_spread():
    engine = [row(80.0), row(100.0), row(160.0)]
    verdicts = {}
    for value in (100.0, 109.0, 159.0, 161.0, 41.0, 39.0):
        line = agreement.lines_of(engine, [row(value)])[0]
        verdicts[value] = line["agrees"]
        assert (line["engine"], line["engine_max"]) == (100.0, 160.0)
        assert line["engine_spread"] == pytest.approx(0.6)
        assert line["off"] == pytest.approx(value / 100 - 1)
    assert verdicts == {
        100.0: True,
        109.0: True,
        159.0: True,
        161.0: False,
        41.0: True,
        39.0: False,
    }
    assert agreement.lines_of([row(1.0, rate=50.0)], [row(1.0, rate=45.5)])[4]["agrees"]
    assert not agreement.lines_of([row(1.0, rate=50.0)], [row(1.0, rate=44.0)])[4]["agrees"]


def test_error_and_spread_both_stand_in_the_table():
    lines: list[str] = []
    found = agreement.lines_of([row(80.0), row(100.0), row(160.0)], [row(150.0)] * 3)
    agreement.show("mixed", found, lines.append)
    assert lines[0].split() == ["mixed", "engine", "[min..max]", "spread", "simulated", "off"]
    assert lines[1].split("ms")[1].split() == [
        *("100.0", "[80.0..160.0]", "60.0%", "150.0", "+50.0%", "agrees")
    ]
