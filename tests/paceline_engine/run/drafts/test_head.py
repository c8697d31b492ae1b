"""What a head guesses depends on the text alone: not on chunks, hits, preemption or neighbours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline_crds import metrics
from paceline_engine.core.errors import StartFailed
from paceline_engine.core.plan import StepPlan, StepResult
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.testing.draft_heads import ONE_LAYER, write_eagle_head, write_mtp_model
from paceline_engine.testing.runners import load_runner

BLOCK_SIZE = 8
SETTINGS: dict[str, Any] = {
    "speculative_num_tokens": 4,
    "speculative_adaptive": False,
    "block_size": BLOCK_SIZE,
    "max_num_seqs": 8,
}
METHODS = ["Eagle", "Mtp"]


def load(tmp: Path, method: str, *, num_tokens: int = 0, **settings: Any) -> Runner:
    model = tmp / "model"
    if method == "Mtp":
        write_mtp_model(model, num_tokens=num_tokens)
    else:
        ONE_LAYER.write(model)
        write_eagle_head(tmp / "head", model, num_tokens=num_tokens)
        settings["speculative_model"] = str(tmp / "head")
    return load_runner(model, speculative_method=method, **SETTINGS, **settings)


@pytest.fixture(scope="module", params=METHODS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return load(tmp_path_factory.mktemp("heads"), request.param)


Guesses = dict[int, list[int]]
"""Tokens that were known -> what was guessed behind them."""


class Listening:
    """A runner that keeps the drafts that it gave, by request and by known tokens."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._plan: StepPlan | None = None
        self.limits, self.settings = runner.limits, runner.settings
        self.drafts: dict[int, Guesses] = {}

    def forward(self, plan: StepPlan) -> None:
        self._plan = plan
        self._runner.forward(plan)

    def sample(self) -> StepResult:
        result, plan = self._runner.sample(), self._plan
        if result.drafts is not None and plan is not None:
            new = np.count_nonzero(result.tokens >= 0, axis=1)
            known = plan.starts + plan.num_tokens - plan.num_drafts + new
            rows = zip(plan.request_ids.tolist(), known.tolist(), result.drafts, strict=True)
            for number, length, drafts in rows:
                if drafts[0] >= 0:
                    self.drafts.setdefault(number, {})[length] = drafts.tolist()
        return result

    def do_spare_work(self) -> bool:
        return self._runner.do_spare_work()


class Told:
    """An engine and what its head guessed."""

    def __init__(self, runner: Runner, **settings: Any) -> None:
        self.listening: Any = Listening(runner)
        self.engine = OfflineEngine(self.listening, **settings)

    def run(self, *prompts: list[int], **params: Any) -> list[Guesses]:
        numbers = [self.engine.submit(prompt, **{"max_tokens": 30, **params}) for prompt in prompts]
        self.engine.run()
        return [self.listening.drafts[number] for number in numbers]


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 500, length).tolist()


def alone(runner: Runner, prompt: list[int], **params: Any) -> Guesses:
    return Told(runner, prefix_caching=False).run(prompt, **params)[0]


def test_many_guesses_hold_and_some_do_not(runner: Runner) -> None:
    told = Told(runner)
    told.run(*(text(seed, 20) for seed in range(4)))
    accepted, drafted = (
        told.engine.value(name) for name in (metrics.SPEC_ACCEPTED, metrics.SPEC_DRAFT_TOKENS)
    )
    assert 0.2 * drafted < accepted < drafted


def test_a_prompt_in_chunks_gives_the_guesses_of_a_whole_one(runner: Runner) -> None:
    prompt = text(1, 45)
    whole = alone(runner, prompt)
    chunked = Told(runner, prefix_caching=False, max_num_batched_tokens=9)
    assert chunked.run(prompt) == [whole]
    assert chunked.engine.num_steps > len(whole) + 3


def test_neighbours_change_no_guess(runner: Runner) -> None:
    prompts = [text(seed, 11 + 7 * seed) for seed in range(5)]
    assert Told(runner).run(*prompts) == [alone(runner, prompt) for prompt in prompts]


def test_a_prefix_hit_gives_the_guesses_of_a_computed_prompt(runner: Runner) -> None:
    """Others went on otherwise behind the block that both have: its last entry would be theirs."""
    common = text(2, 4 * BLOCK_SIZE)
    first, second = common + text(3, 9), common + text(4, 9)
    told = Told(runner)
    told.run(first)
    assert told.run(second) == [alone(runner, second)]
    assert told.engine.cached[1] == 3 * BLOCK_SIZE


def test_two_prompts_that_begin_alike_in_one_step_give_their_own_guesses(runner: Runner) -> None:
    common = text(5, 4 * BLOCK_SIZE)
    prompts = [common + text(6, 9), common + text(7, 9)]
    told = Told(runner, long_prefill_tokens=0)
    assert told.run(*prompts) == [alone(runner, prompt) for prompt in prompts]
    assert told.engine.cached[1] > 0


def test_requests_that_were_preempted_go_on_with_the_same_guesses(
    tmp_path: Path, runner: Runner
) -> None:
    method = runner.settings.speculative_method.value
    small = load(tmp_path, method, num_kv_blocks=16)
    told = Told(small, watermark="0")
    for _ in range(500):  # it believes that outputs are short
        told.engine.expected.observe(0, 1000)
    prompts = [text(seed, 20) for seed in range(10, 14)]
    found = told.run(*prompts)
    assert told.engine.num_returns > 0
    for guesses, prompt in zip(found, prompts, strict=True):
        wanted = alone(runner, prompt)
        # Drafts that found no block were left out, so steps may have stood elsewhere.
        both = wanted.keys() & guesses.keys()
        assert len(both) > len(wanted) / 2
        assert all(guesses[length] == wanted[length] for length in both)


@pytest.mark.parametrize("method", METHODS)
def test_a_head_with_a_part_of_the_vocabulary_guesses_nothing_else(
    tmp_path: Path, method: str
) -> None:
    runner = load(tmp_path, method, num_tokens=200)
    told = Told(runner)
    (drafts,) = told.run(text(1, 20))
    assert max(max(row) for row in drafts.values()) < 200
    assert max(told.engine.outputs[0]) >= 200


def test_its_layer_is_in_the_bytes_of_a_block(tmp_path: Path, runner: Runner) -> None:
    plain = load_runner(ONE_LAYER.write(tmp_path), block_size=BLOCK_SIZE)
    assert runner.memory_plan["kv_cache"] == 2 * plain.memory_plan["kv_cache"]
    assert len(runner.kv_layers) == 2


def test_a_start_without_what_the_method_needs_is_refused(tmp_path: Path) -> None:
    plain = ONE_LAYER.write(tmp_path / "plain")
    three = replace(ONE_LAYER, num_layers=3).write(tmp_path / "three")
    for settings, said in (
        ({"speculative_method": "Mtp"}, "num_nextn_predict_layers"),
        (
            {"speculative_method": "Eagle", "speculative_model": str(three)},
            "a head of 3 decoder layers",
        ),
        ({"speculative_method": "Eagle", "speculative_model": str(plain)}, "fc.weight is missing"),
    ):
        with pytest.raises(StartFailed, match=said):
            load_runner(plain, **settings, **SETTINGS)
