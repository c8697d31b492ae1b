from paceline_engine.percentiles import percentile, spread


def test_percentiles_lie_between_the_closest_values() -> None:
    values = [0.0, 1.0, 2.0, 3.0]
    assert percentile(values, 0.5) == 1.5
    assert percentile(values, 0.0) == 0.0
    assert percentile(values, 1.0) == 3.0
    assert percentile([7.0], 0.99) == 7.0


def test_a_spread_is_in_milliseconds_and_there_is_none_of_nothing() -> None:
    assert spread([]) is None
    assert spread([0.003, 0.001, 0.002]) == {
        "n": 3,
        "mean": 2.0,
        "p50": 2.0,
        "p90": 2.8,
        "p99": 2.98,
        "max": 3.0,
    }
