import re

from paceline_crds.metrics import METRICS, Kind
from paceline_operator.decide.tuning import queries
from paceline_operator.decide.tuning.queries import Scope
from paceline_operator.decide.tuning.signals import Signal

TEXT = queries.sample(queries.pods("models", ["chat-1", "chat-0"]), 120)


def test_every_signal_is_asked_for_once() -> None:
    assert re.findall(r'"signal", "(\w+)"', TEXT) == [
        *dict.fromkeys(re.findall(r'"signal", "(\w+)"', TEXT))
    ]
    assert set(re.findall(r'"signal", "(\w+)"', TEXT)) == set(Signal)


def test_every_selector_names_the_namespace_the_pods_and_the_window() -> None:
    ranges = re.findall(r"\{([^{}]*)\}\[(\w+)\]", TEXT)
    assert len(ranges) > len(Signal)
    assert {window for _, window in ranges} == {"120s"}
    scope = 'namespace="models",pod=~"chat-0|chat-1"'
    assert all(matchers.startswith(scope) for matchers, _ in ranges)
    assert "model_name" not in TEXT


def test_duplicates_go_before_engines_are_added_up() -> None:
    added_up = re.findall(r"(?:sum|avg|min|count)(?: by \([^)]*\))? \(?\((\S+ \S+ \S+)", TEXT)
    added_up += re.findall(r"(?:sum|avg|min|count)\((\S+ \S+ \S+)", TEXT)
    assert len(added_up) > 40
    assert {text for text in added_up if not text.startswith("max by (namespace,")} <= {
        "sum by (namespace,"
    }


def test_every_metric_exists() -> None:
    series = {
        metric.name + ending
        for metric in METRICS.values()
        for ending in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
    }
    asked = set(re.findall(r"(?:vllm|paceline):\w+", TEXT))
    assert asked
    assert asked <= series


def test_names_of_pods_are_no_patterns() -> None:
    assert 'pod=~"a\\\\.b"' in queries.pods("models", ["a.b"]).matchers


def test_another_fleet_is_told_by_other_labels() -> None:
    text = queries.sample(Scope(matchers='job="vllm"', identity=("instance",)), 60)
    assert "max by (instance) (count_over_time(vllm:num_requests_running{job=" in text
