import re

from paceline_engine.bench import prompts as benchmark
from paceline_engine.train.prompts import QUESTIONS, TOPICS, training_prompts


def test_prompts_are_the_same_for_a_seed_and_go_on_where_fewer_ended() -> None:
    assert training_prompts(1, 30) == training_prompts(1, 60)[:30]
    assert training_prompts(1, 30) != training_prompts(2, 30)


def test_nothing_that_the_benchmark_asks_is_trained_on() -> None:
    texts = "\n".join(training_prompts(1, 600))
    asked = (*benchmark._THINGS, *benchmark._NAMES, *benchmark._CITIES)
    assert [word for word in asked if re.search(rf"\b{word}\b", texts)] == []
    assert not set(TOPICS) & set(benchmark._THINGS)
    assert not set(QUESTIONS) & set(benchmark._ASKED)
