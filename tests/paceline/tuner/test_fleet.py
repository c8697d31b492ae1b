import pytest

from paceline.errors import CommandError
from paceline.tuner import fleet
from paceline_operator.decide.tuning.signals import Sample, Signal, Window


@pytest.mark.parametrize(
    "selector",
    [
        'namespace="models",pod=~"chat-.*"',
        '{namespace="models", pod=~"chat-.*"}',
        "namespace=models,pod=~chat-.*",
    ],
)
def test_a_selector_is_written_as_in_promql_or_plainly(selector: str) -> None:
    assert fleet.matchers(selector) == 'namespace="models",pod=~"chat-.*"'


@pytest.mark.parametrize("selector", ["", "{}", "models", "a==b", 'a="b" c="d"', 'a="b'])
def test_what_is_no_selector_is_refused_with_an_example(selector: str) -> None:
    with pytest.raises(CommandError, match="for example --selector"):
        fleet.matchers(selector)


def test_windows_follow_each_other_up_to_now() -> None:
    made = fleet.windows_before(1000.7, 30, 3)
    assert [(window.start, window.end) for window in made] == [(910, 940), (940, 970), (970, 1000)]


def test_a_share_within_a_target_is_linear_within_a_bucket() -> None:
    counts = [(0.1, 10.0), (0.2, 20.0), (float("inf"), 40.0)]
    assert fleet.share_up_to(counts, 0.1) == 0.25
    assert fleet.share_up_to(counts, 0.15) == pytest.approx(0.375)
    assert fleet.share_up_to(counts, 5.0) == 0.5
    assert fleet.share_up_to([], 0.1) is None
    assert fleet.share_up_to([(float("inf"), 0.0)], 0.1) is None


def test_windows_with_too_few_scrapes_say_what_to_do() -> None:
    def sample(scrapes: float) -> Sample:
        values = {Signal.SCRAPES: scrapes}
        return Sample(window=Window(start=0, end=30), pods=("a",), values=values)

    assert "holds 2 scrapes and needs 4" in fleet.too_few_scrapes([sample(1), sample(2)])
    assert fleet.too_few_scrapes([sample(1), sample(4)]) == ""
