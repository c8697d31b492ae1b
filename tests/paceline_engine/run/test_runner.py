"""Whole runs of tiny models: the tokens of a request are the same whatever ran beside it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from paceline_engine.core.errors import StartFailed
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.testing.oracle import Oracle
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel

FAMILIES = {
    "llama": TinyModel(),
    "mistral": TinyModel(family="mistral", overrides={"sliding_window": 24}),
    "qwen2": TinyModel(family="qwen2", tied=True),
    "qwen3": TinyModel(family="qwen3", num_shards=2),
}
MAX_TOKENS = 20


def prompts(lengths: tuple[int, ...] = (1, 5, 16, 33, 70, 120), seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 500, length).tolist() for length in lengths]


def run_all(runner: Runner, **settings: object) -> list[list[int]]:
    session = OfflineEngine(runner, **settings)
    for prompt in prompts():
        session.submit(prompt, max_tokens=MAX_TOKENS)
    return list(session.run().values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def written(family: str) -> Path:
        path = tmp_path_factory.getbasetemp() / f"tiny-{family}"
        return path if path.is_dir() else FAMILIES[family].write(path)

    return written


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(
    family: str, folder: Callable[[str], Path]
) -> None:
    oracle = Oracle(folder(family))
    expected = [oracle.greedy(prompt, MAX_TOKENS) for prompt in prompts()]
    runner = load_runner(folder(family))
    for prompt, tokens in zip(prompts(), expected, strict=True):
        session = OfflineEngine(runner)
        session.submit(prompt, max_tokens=MAX_TOKENS)
        assert session.run()[0] == tokens
    for budget in (16, 64, 2048):
        for prefix_caching in (True, False):
            got = run_all(runner, max_num_batched_tokens=budget, prefix_caching=prefix_caching)
            assert got == expected, f"budget {budget}, prefix cache {prefix_caching}"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_nearly_always_chooses_float32s_next_token(
    family: str, folder: Callable[[str], Path]
) -> None:
    """Each position's choice after float32's own tokens, so that one parting is counted once.

    Measured with only the KV cache rounded (AVX2): 98.3% to 100%, see engine/README.md.
    """
    exact, rounded = load_runner(folder(family)), load_runner(folder(family), dtype="BFloat16")
    assert rounded.kernels["kv_cache"] == "bfloat16"
    assert exact.kernels["kv_cache"] == "float32"
    rows = [prompt + tokens for prompt, tokens in zip(prompts(), run_all(exact), strict=True)]
    agreed = total = 0
    for row in rows:
        choices = []
        for runner in (exact, rounded):
            session = OfflineEngine(runner, prefix_caching=False)
            number = session.submit(row, max_tokens=1, prompt_logprobs=1)
            session.run()
            entries = session.prompt_logprobs[number]
            choices.append([entry.top_ids[0] for entry in entries])
        agreed += sum(a == b for a, b in zip(*choices, strict=True))
        total += len(choices[0])
    assert agreed / total > 0.95, f"{agreed} of {total}"


@pytest.fixture(scope="module")
def llama(folder: Callable[[str], Path]) -> Runner:
    return load_runner(folder("llama"))


@pytest.fixture(scope="module")
def alone(llama: Runner) -> list[list[int]]:
    outputs = []
    for prompt in prompts():
        session = OfflineEngine(llama, prefix_caching=False)
        session.submit(prompt, max_tokens=MAX_TOKENS)
        outputs.append(session.run()[0])
    return outputs


@pytest.mark.slow
def test_preemption_in_a_small_pool_changes_no_token(
    folder: Callable[[str], Path], alone: list[list[int]]
) -> None:
    runner = load_runner(folder("llama"), num_kv_blocks=11)
    session = OfflineEngine(runner, prefix_caching=False)
    for prompt in prompts():
        session.submit(prompt, max_tokens=100)
    outputs = list(session.run().values())
    assert session.num_returns > 0
    assert [tokens[:MAX_TOKENS] for tokens in outputs] == alone


@pytest.mark.slow
def test_a_prefix_hit_changes_no_token(llama: Runner, alone: list[list[int]]) -> None:
    session = OfflineEngine(llama)
    for _ in range(2):
        for prompt in prompts():
            session.submit(prompt, max_tokens=MAX_TOKENS)
        session.run()
    assert list(session.outputs.values()) == alone + alone
    assert session.cached[11] == 112


@pytest.mark.slow
def test_late_arrivals_change_no_token(llama: Runner, alone: list[list[int]]) -> None:
    session = OfflineEngine(llama, max_num_batched_tokens=48, prefix_caching=False)
    for prompt in prompts():
        session.submit(prompt, max_tokens=MAX_TOKENS)
        session.step()
        session.step()
    assert list(session.run().values()) == alone


@pytest.mark.slow
def test_seeded_tokens_do_not_depend_on_company_chunks_or_preemption(
    folder: Callable[[str], Path], llama: Runner
) -> None:
    def seeded(runner: Runner, **settings: object) -> list[list[int]]:
        session = OfflineEngine(runner, **settings)
        for index, prompt in enumerate(prompts()):
            session.submit(
                prompt, max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=index, min_p=0.01
            )
        return list(session.run().values())

    whole = seeded(llama, prefix_caching=False)
    assert seeded(llama, max_num_batched_tokens=16) == whole
    assert seeded(load_runner(folder("llama"), num_kv_blocks=11)) == whole
    for index, prompt in enumerate(prompts()):
        session = OfflineEngine(llama)
        session.submit(
            prompt, max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=index, min_p=0.01
        )
        assert session.run()[0] == whole[index]


@pytest.mark.slow
def test_logprobs_are_those_of_transformers(folder: Callable[[str], Path], llama: Runner) -> None:
    prompt = prompts()[4]
    session = OfflineEngine(llama, max_num_batched_tokens=16, prefix_caching=False)
    session.submit(prompt, max_tokens=6, logprobs=3, prompt_logprobs=2)
    output = session.run()[0]
    expected = torch.log_softmax(Oracle(folder("llama")).logits(prompt + output), -1)
    prompt_entries, entries = session.prompt_logprobs[0], session.logprobs[0]
    assert [entry.token_id for entry in prompt_entries] == prompt[1:]
    assert [entry.token_id for entry in entries] == output
    for position, entry in enumerate(prompt_entries + entries):
        row = expected[position]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-3)
        assert entry.rank == int((row > row[entry.token_id]).sum()) + 1
        wanted = 2 if position < len(prompt) - 1 else 3
        assert list(entry.top_ids) == row.topk(wanted).indices.tolist()


@pytest.mark.slow
def test_prompt_logprobs_come_once_each_through_preemption_and_cache(
    folder: Callable[[str], Path],
) -> None:
    runner = load_runner(folder("llama"), num_kv_blocks=11)
    session = OfflineEngine(runner, max_num_batched_tokens=24)
    for prompt in prompts():
        session.submit(prompt, max_tokens=MAX_TOKENS, prompt_logprobs=1)
    session.run()
    for request_id, prompt in enumerate(prompts()):
        entries = session.prompt_logprobs.get(request_id, [])
        assert [entry.token_id for entry in entries] == prompt[1:]


def test_only_the_prompt_is_computed_for_max_tokens_zero(llama: Runner) -> None:
    session = OfflineEngine(llama)
    session.submit(prompts()[2], max_tokens=0, prompt_logprobs=1)
    assert session.run() == {0: []}
    assert len(session.prompt_logprobs[0]) == 15


def test_nan_of_one_request_ends_it_alone_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = TinyModel().write(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = np.nan
    save_file(weights, folder / "model.safetensors")
    runner = load_runner(folder, num_kv_blocks=4)
    session = OfflineEngine(runner, prefix_caching=False)
    session.submit([3, 4, 5], max_tokens=3)
    session.submit([3, *[7] * 30], max_tokens=3)
    session.run()
    assert (session.finished[0].reason, session.finished[1].reason) == ("length", "error")
    assert "finite" in session.finished[1].message
    # The blocks full of NaN go to others, who use a part of them.
    for _ in range(3):
        again = session.submit([3, 4, 5], max_tokens=3)
        session.run()
        assert session.outputs[again] == session.outputs[0]


@pytest.mark.parametrize(
    ("settings", "reason", "named"),
    [
        ({"dtype": "Float16"}, "InvalidSettings", "Float16"),
        ({"tensor_parallel_size": 2}, "InvalidSettings", "tensorParallelSize"),
        ({"speculative_method": "Mtp", "speculative_num_tokens": 2}, "InvalidSettings", "nextn"),
        ({"max_model_len": 4096}, "InvalidSettings", "2048"),
        ({"max_model_len": 1024, "num_kv_blocks": 60}, "KVCacheTooSmall", "944"),
    ],
)
def test_settings_that_cannot_be_met_stop_the_start(
    settings: dict[str, object], reason: str, named: str, tmp_path: Path
) -> None:
    folder = TinyModel().write(tmp_path)
    with pytest.raises(StartFailed, match=named) as failed:
        load_runner(folder, **settings)
    assert failed.value.reason == reason


@pytest.mark.usefixtures("cpp_compiler")
def test_a_shape_that_the_fast_kernels_do_not_take_runs_and_says_why(tmp_path: Path) -> None:
    model = TinyModel(head_dim=12, hidden_size=48)
    runner = load_runner(model.write(tmp_path))
    assert runner.kernels["attention"] == "torch"
    assert "head_dim 12" in runner.kernels["reason"]
    session = OfflineEngine(runner)
    session.submit(prompts()[3], max_tokens=4)
    assert len(session.run()[0]) == 4


def test_the_longest_request_is_capped_to_what_the_cache_holds(tmp_path: Path) -> None:
    runner = load_runner(TinyModel().write(tmp_path), num_kv_blocks=5)
    assert runner.limits.max_model_len == 64
    session = OfflineEngine(runner)
    session.submit(prompts()[3], max_tokens=1000, ignore_eos=True)
    assert len(session.run()[0]) == 64 - 33
