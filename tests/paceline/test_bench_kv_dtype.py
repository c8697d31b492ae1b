"""Which of the varied prompts a comparison of KV caches takes."""

from paceline.bench_kv_dtype import DEFAULT_PROMPTS, spread_over
from paceline_engine.bench.prompts import varied_prompts


def test_as_many_prompts_as_asked_are_taken_from_all_over_the_list() -> None:
    texts = [str(number) for number in range(40)]
    assert spread_over(texts, 4) == ["0", "10", "20", "30"]
    assert [len(spread_over(texts, count)) for count in (1, 30, 39, 40)] == [1, 30, 39, 40]
    assert spread_over(texts, 100) == texts


def test_all_there_are_is_the_default() -> None:
    assert len(varied_prompts()) == DEFAULT_PROMPTS
