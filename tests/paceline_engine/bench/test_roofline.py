"""The bound of a step is what it cannot do without, and the share is that bound beside its time."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.bench import roofline
from paceline_engine.bench.roofline import StepShape, attention_work, step_work, typical
from paceline_engine.bench.workloads import Vocabulary, Workload
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.families import load_config
from paceline_engine.testing.tiny_model import TinyModel
from paceline_kernels import ops


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def config(folder: Path) -> ModelConfig:
    return load_config(folder)


def shape(
    new: list[int], context: list[int], num_logits: int = 1, forward_s: float = 1.0
) -> StepShape:
    return StepShape(
        new=np.array(new), context=np.array(context), num_logits=num_logits, forward_s=forward_s
    )


def test_attention_counts_the_keys_that_each_query_sees(config: ModelConfig) -> None:
    # Two new tokens behind eight see 9 and 10 keys; a decode of five sees five.
    work = attention_work(config, shape([2, 1], [10, 5]), kv_element_bytes=2)
    assert work.flops == 4 * config.q_size * (9 + 10 + 5)
    assert work.num_bytes == 2 * config.kv_size * 2 * (10 + 5)


def test_a_step_reads_its_weights_once_and_multiplies_for_each_token(config: ModelConfig) -> None:
    one, many = (step_work(config, shape([n], [n], 0), 4, 2) for n in (1, 100))
    hidden, layers = config.hidden_size, config.num_layers
    weights = 2 * config.q_size + 2 * config.kv_size + 3 * config.intermediate_size
    attention = [attention_work(config, shape([n], [n]), 4) for n in (1, 100)]
    assert one.num_bytes - layers * attention[0].num_bytes == 2 * layers * weights * hidden
    assert many.num_bytes - layers * attention[1].num_bytes == 2 * layers * weights * hidden
    assert many.flops - layers * attention[1].flops == 200 * layers * weights * hidden
    with_head = step_work(config, shape([1], [1], 1), 4, 2)
    head = config.vocab_size * hidden
    assert with_head.flops - one.flops == 2 * head
    assert with_head.num_bytes - one.num_bytes == 2 * head


def test_the_slower_of_the_two_bounds_counts(config: ModelConfig) -> None:
    work = attention_work(config, shape([1], [100]), 2)
    assert work.seconds(1e30, 2.0) == work.num_bytes / 2
    assert work.seconds(4.0, 1e30) == work.flops / 4


def test_the_typical_step_lies_in_the_middle_of_the_time() -> None:
    steps = [shape([1], [1], forward_s=each) for each in (1.0, 9.0, 1.0, 2.0, 1.0)]
    assert typical(steps).forward_s == 9.0
    assert typical([replace(step, forward_s=1.0) for step in steps]).forward_s == 1.0


@pytest.mark.slow
def test_a_run_tells_its_share_and_that_of_attention(folder: Path) -> None:
    if ops.cpu_unavailable_reason() is not None:
        pytest.skip("needs a C++ compiler")
    words, rng = Vocabulary.random_ids(3, 500), np.random.default_rng(1)
    items = tuple(words.item(Random(at), "some", int(rng.integers(4, 60)), 6) for at in range(5))
    some = Workload(name="some", seed=1, items=items)
    settings = EngineSettings(dtype="Float32", num_kv_blocks=64)
    (line,) = roofline.measure(folder, settings, [some])
    assert line["workload"] == "some"
    assert line["steps"] >= 6
    assert 0 < line["roofline_share"] <= line["forward_share"]
    attention = line["attention"]
    assert attention["roofline_us"] > 0
    assert attention["us"] > 0
    assert attention["context_tokens"] >= attention["new_tokens"] >= attention["rows"]


def test_drafts_are_refused(folder: Path) -> None:
    settings = EngineSettings(speculative_method="Ngram", speculative_num_tokens=2)
    with pytest.raises(ValueError, match="without drafts"):
        next(roofline.measure(folder, settings, []))
