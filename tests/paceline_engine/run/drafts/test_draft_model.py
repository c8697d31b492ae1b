"""A draft model changes no token, keeps its KV right, and computes nothing unasked."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.numpy import load_file, save_file

from paceline_crds import metrics
from paceline_engine.core.errors import StartFailed
from paceline_engine.run.drafts import draft_model
from paceline_engine.run.drafts.draft_model import DraftModelProposer
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.run.single_row import SingleRow
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel, write_draft_model

MAX_TOKENS = 24
SMALL_POOL = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture(scope="module")
def draft(folder: Path) -> Path:
    return write_draft_model(folder.with_name("draft"), folder, noise=0.06)


def drafting(folder: Path, draft: Path, **settings: Any) -> Runner:
    settings = {"speculative_adaptive": False, "boot_max_speculative_num_tokens": 12} | settings
    return load_runner(
        folder, speculative_method="DraftModel", speculative_model=str(draft), **settings
    )


@pytest.fixture(scope="module")
def runner(folder: Path, draft: Path) -> Runner:
    return drafting(folder, draft)


@pytest.fixture(scope="module")
def small(folder: Path, draft: Path) -> Runner:
    return drafting(folder, draft, num_kv_blocks=SMALL_POOL, max_num_seqs=8)


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, 500, length).tolist()


def one(runner: Runner, tokens: list[int], num_drafts: int, **params: Any) -> OfflineEngine:
    session = OfflineEngine(runner, speculative_num_tokens=num_drafts)
    session.submit(tokens, **{"max_tokens": MAX_TOKENS, "ignore_eos": True, **params})
    session.run()
    return session


def change_drafts(session: OfflineEngine, num_drafts: int) -> None:
    scheduler = session.scheduler
    settings = scheduler.settings.model_copy(update={"speculative_num_tokens": num_drafts})
    scheduler.apply_settings(settings)


def assert_draft_kv_is_right(runner: Runner) -> None:
    """Whatever counts as known equals what the draft model computes from the start.

    Raises:
        AssertionError: a guess, or somebody else's text, lies where known tokens should.
    """
    proposer, batch = runner._proposer, runner._batch
    assert isinstance(proposer, DraftModelProposer)
    for slot in np.flatnonzero(proposer._kv.known).tolist():
        known = int(proposer._kv.known[slot])
        row = SingleRow(
            proposer._decoder,
            known,
            block_size=batch.block_size,
            impl=runner.kernels["attention"],
            dtype=torch.float32,
        )
        row.logits(batch.token_ids[slot, :known].tolist(), chunk=64)
        table = batch.block_tables[slot, : -(-known // batch.block_size)].tolist()
        for layer, alone in zip(proposer._caches, row.kv, strict=True):
            for cache, right in ((layer.k_cache, alone.k_cache), (layer.v_cache, alone.v_cache)):
                ours, theirs = (kv.flatten(0, 1)[:known] for kv in (cache[table], right[1:]))
                torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)


LIVE = st.fixed_dictionaries(
    {},
    optional={
        "speculative_num_tokens": st.sampled_from([0, 1, 3, 12]),
        "max_num_batched_tokens": st.sampled_from([9, 24, 64, 2048]),
        "max_num_seqs": st.integers(1, 8),
        "prefix_caching": st.booleans(),
        "overlap": st.booleans(),
    },
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # whose prefix it shares
        st.integers(0, 60),  # how much of it
        st.integers(1, 20),  # tokens of its own
        st.sampled_from([{}, {}, {"speculates": False}, {"temperature": 1.0, "seed": 5}]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(requests=REQUESTS, changes=st.lists(LIVE, min_size=1, max_size=6), data=st.data())
def test_whatever_the_schedule_each_request_gets_its_own_tokens(
    runner: Runner, small: Runner, requests: list[Any], changes: list[dict[str, Any]], data: Any
) -> None:
    texts = [
        prompt(shared, 10 + family) + prompt(own, 100 + number)
        for number, (family, shared, own, _) in enumerate(requests)
    ]
    kinds = [kind for *_, kind in requests]
    session = OfflineEngine(small, watermark="0", speculative_num_tokens=3)
    for _ in range(500):  # it believes that outputs are short, and lets too many in
        session.expected.observe(0, 1000)
    for text, kind in zip(texts, kinds, strict=True):
        session.submit(text, max_tokens=MAX_TOKENS, **kind)
    for change in changes:
        settings_now = session.scheduler.settings.model_copy(update=change)
        session.scheduler.apply_settings(settings_now)
        for _ in range(data.draw(st.integers(1, 8))):
            session.step()
        assert_draft_kv_is_right(small)
    session.run()
    assert_draft_kv_is_right(small)
    for number, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        assert (
            session.outputs[number] == one(runner, text, 0, ignore_eos=False, **kind).outputs[0]
        ), f"request {number} has other tokens"


def test_a_copy_of_the_target_drafts_what_the_target_says(folder: Path) -> None:
    runner = drafting(folder, folder)
    for params in ({}, {"temperature": 1.0, "top_p": 0.9, "seed": 3}, {"repetition_penalty": 1.3}):
        session = one(runner, prompt(30), 5, **params)
        assert session.value(metrics.SPEC_ACCEPTED) == session.value(metrics.SPEC_DRAFT_TOKENS)
        assert session.num_steps == 1 + -(-(MAX_TOKENS - 1) // 6)
        assert session.outputs == one(runner, prompt(30), 0, **params).outputs


def test_nothing_is_computed_while_no_drafts_are_asked_for(runner: Runner) -> None:
    session = OfflineEngine(runner, speculative_num_tokens=0)
    session.submit(prompt(40), max_tokens=100)
    for _ in range(10):
        session.step()
    slot = 0
    assert runner._proposer._kv.known[slot] == 0  # type: ignore[union-attr]
    change_drafts(session, 4)
    session.step()
    assert runner._proposer._kv.known[slot] >= 48, "caught up at once"  # type: ignore[union-attr]
    session.step()
    assert session.value(metrics.SPEC_DRAFT_TOKENS) == 4


def test_blocks_that_never_had_draft_kv_are_filled_when_they_are_hit(folder: Path) -> None:
    runner = drafting(folder, folder)
    text = prompt(64)
    session = OfflineEngine(runner, speculative_num_tokens=0)
    session.submit(text, max_tokens=1)
    session.run()
    change_drafts(session, 5)
    session.submit([*text, *prompt(5, seed=2)], max_tokens=MAX_TOKENS)
    session.run()
    assert session.cached[1] == 64
    assert session.value(metrics.SPEC_ACCEPTED) == session.value(metrics.SPEC_DRAFT_TOKENS) > 0
    assert_draft_kv_is_right(runner)


def test_who_is_far_behind_catches_up_in_pieces_while_others_get_drafts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "MAX_CATCH_UP_TOKENS", 20)
    runner = drafting(folder, folder)
    session = OfflineEngine(runner, speculative_num_tokens=2)
    session.submit(prompt(8), max_tokens=60)
    session.submit(prompt(100, seed=2), max_tokens=60)
    seen = []
    for _ in range(9):
        session.step()
        seen.append(tuple(runner._proposer._kv.known[:2].tolist()))  # type: ignore[union-attr]
    assert [later[1] - before[1] for before, later in pairwise(seen[:3])] == [20, 20]
    assert all(later[0] > before[0] for before, later in pairwise(seen))
    assert seen[-1][1] > 100
    session.run()
    assert session.value(metrics.SPEC_ACCEPTED) == session.value(metrics.SPEC_DRAFT_TOKENS)


def test_drafts_reach_up_to_the_longest_request_and_no_further(folder: Path) -> None:
    runner = drafting(folder, folder, num_kv_blocks=6)
    assert runner.limits.max_model_len == 80
    session = one(runner, prompt(30), 12, max_tokens=1000)
    assert len(session.outputs[0]) == 50
    assert session.value(metrics.SPEC_ACCEPTED) > 40


def test_nan_of_the_draft_model_gives_no_drafts(folder: Path, tmp_path: Path) -> None:
    broken = write_draft_model(tmp_path / "broken", folder, noise=0.0)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][:] = np.nan
    save_file(weights, broken / "model.safetensors")
    runner = drafting(folder, broken)
    session = one(runner, prompt(10), 4)
    assert session.outputs == one(runner, prompt(10), 0).outputs
    assert session.value(metrics.SPEC_DRAFT_TOKENS) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cpp_compiler")
def test_an_fp8_cache_gives_the_tokens_it_gives_without_drafts(folder: Path, draft: Path) -> None:
    """One request at a time: FP8's roundings may differ with the number of rows (room's page)."""
    runner = drafting(folder, draft, kv_cache_dtype="FP8")
    assert all(layer.k_cache.dtype == torch.float8_e4m3fn for layer in runner.kv_layers)
    for seed in range(4):
        session = one(runner, prompt(30 + seed, seed), 4)
        plain = one(runner, prompt(30 + seed, seed), 0)
        same = sum(a == b for a, b in zip(session.outputs[0], plain.outputs[0], strict=True))
        assert same >= MAX_TOKENS - 8
        assert session.value(metrics.SPEC_ACCEPTED) > 0


def test_every_layer_under_a_block_id_is_listed_and_paid_for(runner: Runner, folder: Path) -> None:
    own, plain = runner, load_runner(folder)
    assert len(own.kv_layers) == 2 * len(plain.kv_layers) == 4
    assert own.kv_layers[:2] == own.kv
    assert own.memory_plan["kv_cache"] == 2 * plain.memory_plan["kv_cache"]
    assert own.memory_plan["drafts"] > 0
    assert own.limits.cache_root != plain.limits.cache_root
    assert all(len(layer.k_cache) == own.limits.num_blocks for layer in own.kv)
    assert all(len(layer.k_cache) > own.limits.num_blocks for layer in own.kv_layers[2:])


def _other_vocabulary(folder: Path) -> None:
    shutil.rmtree(folder)
    TinyModel(vocab_size=400).write(folder)


def _other_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    text = path.read_text()
    path.write_text(text.replace('"content": "<|im_start|>"', '"content": "<|begin|>"'))


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_other_vocabulary, "has a vocabulary of 400, the target of 512"),
        (_other_tokens, "numbers its tokens otherwise"),
        (_no_tokenizer, "numbers its tokens otherwise"),
    ],
)
def test_a_model_of_another_tokenizer_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    other = write_draft_model(tmp_path / "other", folder, noise=0.0)
    change(other)
    with pytest.raises(StartFailed, match=why) as refused:
        drafting(folder, other)
    assert refused.value.reason == "UnsupportedModel"
    assert "speculativeModel" in str(refused.value)
