"""Workloads are the same for everybody, and as large as they say."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from paceline_engine.bench import workloads
from paceline_engine.bench.workloads import NAMES, Vocabulary, Workload


def letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:04d}")


def write_tokenizer(folder: Path, mark: str = "\u0120") -> Path:
    pieces = {"<s>": 0, "Upper": 1, mark + "x": 2}
    pieces |= {mark + letters(k): k + 3 for k in range(200)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": pieces}}))
    return folder


def sizes(workload: Workload) -> tuple[int, int, int]:
    return len(workload.items), workload.num_prompt_tokens, workload.num_output_tokens


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_workload_every_time(name: str) -> None:
    vocabulary = Vocabulary.random_ids()
    assert workloads.make(name, vocabulary) == workloads.make(name, vocabulary)
    assert workloads.make(name, vocabulary, seed=1) != workloads.make(name, vocabulary)


def test_sizes_are_those_that_published_figures_were_measured_with() -> None:
    vocabulary = Vocabulary.random_ids()
    got = {name: sizes(workloads.make(name, vocabulary)) for name in NAMES}
    assert got["single"] == (1, 64, 256)
    assert got["decode16"] == (16, 16 * 32, 16 * 128)
    assert got["prefill16"] == (16, 16 * 512, 16)
    assert got["interference"] == (22, 16 * 32 + 6 * 1500, 16 * 400 + 6 * 8)
    assert got["steady_only"] == (16, 16 * 32, 16 * 400)
    assert got["shared_prefix"][0] == 48
    assert got["mixed"][0] == 64


def test_mixed_has_long_tails_within_its_bounds() -> None:
    made = workloads.make("mixed", Vocabulary.random_ids())
    prompts = sorted(len(item.prompt_token_ids) for item in made.items)
    outputs = sorted(item.max_tokens for item in made.items)
    assert 100 < prompts[32] < 300
    assert prompts[-1] <= 1500
    assert 25 < outputs[32] < 100
    assert outputs[-1] <= 400
    arrivals = [item.arrival_s for item in made.items]
    assert arrivals == sorted(arrivals)


def test_the_steady_streams_are_the_same_with_and_without_the_long_prompts() -> None:
    vocabulary = Vocabulary.random_ids()
    both = workloads.make("interference", vocabulary).items
    assert workloads.make("steady_only", vocabulary).items == both[:16]


def test_shared_prompts_begin_alike_and_go_on_differently() -> None:
    items = workloads.make("shared_prefix", Vocabulary.random_ids()).items
    assert len({item.prompt_token_ids[:800] for item in items}) == 1
    assert len({item.prompt_token_ids[800:] for item in items}) == len(items)


def test_steady_tokens_stretch_the_steady_streams_alone() -> None:
    made = workloads.make("interference", Vocabulary.random_ids())
    longer = workloads.with_steady_tokens(made, 900)
    assert {item.max_tokens for item in longer.items if item.group == "steady"} == {900}
    assert {item.max_tokens for item in longer.items if item.group == "big"} == {8}


@pytest.mark.parametrize("mark", ["\u0120", "\u2581"])
def test_words_of_a_tokenizer_are_lower_case_and_have_a_space(tmp_path: Path, mark: str) -> None:
    vocabulary = Vocabulary.from_tokenizer(write_tokenizer(tmp_path, mark))
    assert vocabulary.words[0] == (" aaaa", 3)
    assert len(vocabulary.words) == 200


def test_text_and_ids_of_a_prompt_agree(tmp_path: Path) -> None:
    pieces = {f"\u0120{letters(k)}": k for k in range(150)}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="\u0120aaaa"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = workloads.make("decode16", Vocabulary.from_tokenizer(tmp_path))
    for item in made.items:
        assert tuple(tokenizer.encode(item.prompt).ids) == item.prompt_token_ids


@pytest.mark.parametrize("text", ["{", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {}}}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Vocabulary.from_tokenizer(tmp_path)


def test_an_unknown_workload_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="one of mixed, interference"):
        workloads.make("big", Vocabulary.random_ids())


def test_static_batching_waits_for_the_longest_of_each_batch() -> None:
    lengths = [1, 9, 1, 1]
    assert workloads.steps(lengths, 2, is_static=True) == 10
    assert workloads.steps(lengths, 2, is_static=False) == 9
    assert workloads.steps(lengths, 1, is_static=True) == 12
    assert workloads.steps(lengths, 1, is_static=False) == 12


def test_a_heavy_tail_leaves_room_for_an_order_of_magnitude() -> None:
    made = workloads.make("heavy_tail", Vocabulary.random_ids())
    assert workloads.ceiling([item.max_tokens for item in made.items], 32) > 15
