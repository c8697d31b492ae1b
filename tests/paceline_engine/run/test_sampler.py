"""Tokens are drawn from the distribution that the parameters describe, and from nothing else."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import AddedRequest, StepPlan
from paceline_engine.core.request import SamplingParams
from paceline_engine.run.batch import Batch, SampledRows
from paceline_engine.run.sampler import Sampled, Sampler, cut_rows_for

VOCAB = 24
EOS = 2


def batch_of(
    params: list[SamplingParams], prompt: list[int], outputs: list[int], vocab: int = VOCAB
) -> tuple[Batch, SampledRows]:
    """A batch whose slots all hold the same tokens, and rows that sample in each."""
    limits = EngineLimits(
        num_blocks=4,
        block_size=16,
        max_model_len=48,
        max_slots=len(params),
        max_step_tokens=64,
        vocab_size=vocab,
        eos_token_ids=(EOS,),
        cache_root=b"",
    )
    batch = Batch(limits, engine_seed=5)
    known = np.array(prompt + outputs, dtype=np.int32)
    count = len(params)
    plan = StepPlan(
        step_id=1,
        added=tuple(
            AddedRequest(
                slot=slot,
                request_id=slot,
                epoch=0,
                token_ids=known,
                num_prompt_tokens=len(prompt),
                num_computed_tokens=0,
                params=each,
            )
            for slot, each in enumerate(params)
        ),
        slots=np.arange(count, dtype=np.int32),
        starts=np.zeros(count, dtype=np.int32),
        num_tokens=np.full(count, len(known), dtype=np.int32),
        num_drafts=np.zeros(count, dtype=np.int32),
        samples=np.ones(count, dtype=np.bool_),
        epochs=np.zeros(count, dtype=np.int32),
        request_ids=np.arange(count, dtype=np.int64),
    )
    batch.apply(plan)
    return batch, batch.sampled_rows(plan)


def draw(
    params: list[SamplingParams],
    logits: Tensor,
    prompt: tuple[int, ...] = (5, 6),
    outputs: tuple[int, ...] = (),
    slice_rows: int = 1000,
    impl: str = "cpu",
) -> Sampled:
    """One token for each of params, all from the same logits [vocab] or from [n, vocab]."""
    batch, rows = batch_of(params, list(prompt), list(outputs), logits.shape[-1])
    table = logits if logits.dim() == 2 else logits.expand(len(params), -1).contiguous()
    before = table.clone()
    scratch_bytes = slice_rows * 32 * logits.shape[-1]
    result = Sampler(batch, logits.shape[-1], scratch_bytes, impl).sample(table, rows)
    assert torch.equal(table.nan_to_num(), before.nan_to_num())
    return result


def some_logits(vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 1.5


def expect_distribution(tokens: np.ndarray, probabilities: Tensor) -> None:
    """Chi-square over the tokens that may occur; those that may not must not."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = probabilities.double().numpy() * len(tokens)
    assert counts[expected == 0].sum() == 0
    likely = expected >= 5
    seen = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    if wanted[-1] < 1:
        seen, wanted = seen[:-1], wanted[:-1]
    wanted *= seen.sum() / wanted.sum()
    assert stats.chisquare(seen, wanted).pvalue > 1e-4


DRAWS = 2000
LOGITS = some_logits()


def kept_softmax(scaled: Tensor, kept: Tensor) -> Tensor:
    return torch.softmax(scaled.masked_fill(~kept, float("-inf")), dim=-1)


def top_p_kept(scaled: Tensor, top_p: float) -> Tensor:
    order = scaled.argsort(descending=True)
    probabilities = torch.softmax(scaled, -1)[order]
    kept = torch.zeros_like(scaled, dtype=torch.bool)
    kept[order[(probabilities.cumsum(0) - probabilities) < top_p]] = True
    return kept


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_temperature_scales_the_distribution(temperature: float) -> None:
    drawn = draw([SamplingParams(temperature=temperature)] * DRAWS, LOGITS)
    expect_distribution(drawn.tokens, torch.softmax(LOGITS / temperature, -1))


def test_top_k_keeps_the_k_best() -> None:
    drawn = draw([SamplingParams(top_k=5)] * DRAWS, LOGITS)
    expect_distribution(drawn.tokens, kept_softmax(LOGITS, LOGITS.topk(5)[0][-1] <= LOGITS))


def test_top_p_keeps_the_smallest_set_that_holds_it() -> None:
    drawn = draw([SamplingParams(top_p=0.7)] * DRAWS, LOGITS)
    expect_distribution(drawn.tokens, kept_softmax(LOGITS, top_p_kept(LOGITS, 0.7)))


@pytest.mark.parametrize("impl", ["cpu", "torch"])
@pytest.mark.parametrize("top_k", [0, 5])
def test_the_best_token_is_kept_however_small_top_p_is(impl: str, top_k: int) -> None:
    drawn = draw([SamplingParams(top_p=1e-300, top_k=top_k)] * 3, LOGITS, impl=impl)
    assert drawn.tokens.tolist() == [int(LOGITS.argmax())] * 3


def test_top_p_is_taken_of_what_top_k_left() -> None:
    drawn = draw([SamplingParams(top_k=6, top_p=0.6, temperature=1.3)] * DRAWS, LOGITS)
    scaled = LOGITS / 1.3
    scaled = scaled.masked_fill(scaled < scaled.topk(6)[0][-1], float("-inf"))
    expect_distribution(drawn.tokens, kept_softmax(scaled, top_p_kept(scaled, 0.6)))


def test_min_p_drops_what_is_unlikely_beside_the_best() -> None:
    drawn = draw([SamplingParams(min_p=0.2)] * DRAWS, LOGITS)
    probabilities = torch.softmax(LOGITS, -1)
    kept = probabilities >= 0.2 * probabilities.max()
    expect_distribution(drawn.tokens, kept_softmax(LOGITS, kept))


def test_penalties_lower_tokens_seen() -> None:
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
    drawn = draw([params] * DRAWS, LOGITS, prompt=(5, 6, 6), outputs=(7, 8, 8, 5))
    scores = LOGITS.clone()
    for token in (5, 6, 7, 8):
        scores[token] = scores[token] / 1.3 if scores[token] > 0 else scores[token] * 1.3
    for token, count in {5: 1, 7: 1, 8: 2}.items():
        scores[token] -= 0.4 + 0.3 * count
    expect_distribution(drawn.tokens, torch.softmax(scores, -1))


def test_logit_bias_is_added() -> None:
    params = SamplingParams(logit_bias=((3, 2.0), (4, -100.0)))
    scores = LOGITS.clone()
    scores[3] += 2.0
    scores[4] -= 100.0
    expect_distribution(draw([params] * DRAWS, LOGITS).tokens, torch.softmax(scores, -1))


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [1000, 5000])
def test_wide_nuclei_are_not_cut_to_the_candidates(vocab: int) -> None:
    flat = some_logits(vocab) * 0.1
    drawn = draw([SamplingParams(top_p=0.9)] * 300, flat)
    kept = top_p_kept(flat, 0.9)
    assert kept[torch.from_numpy(drawn.tokens)].all()
    assert len(set(drawn.tokens.tolist())) > 0.7 * vocab * (1 - np.exp(-300 / vocab))
    drawn = draw([SamplingParams(top_k=500)] * 300, flat)
    assert (flat[torch.from_numpy(drawn.tokens)] >= flat.topk(500)[0][-1]).all()
    assert len(set(drawn.tokens.tolist())) > 150


def test_greedy_is_the_best_after_penalties_and_masks() -> None:
    logits = torch.arange(VOCAB, dtype=torch.float32)
    last = VOCAB - 1
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logit_bias=((3, 100.0),)),
        SamplingParams(temperature=0, allowed_token_ids=(4, 9)),
        SamplingParams(temperature=0, bad_words=((last,), (7, last - 1), (6, last - 2))),
        SamplingParams(temperature=0, repetition_penalty=50.0),
        SamplingParams(temperature=0, top_k=1, min_p=0.5, top_p=0.1),
    ]
    drawn = draw(params, logits, prompt=(last, 7), outputs=(6,))
    assert drawn.tokens.tolist() == [last, 3, 9, last - 1, last - 1, last]


def test_no_end_comes_before_min_tokens() -> None:
    logits = torch.zeros(VOCAB)
    logits[EOS], logits[9], logits[11] = 9.0, 8.0, 7.0
    params = [
        SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(9,)),
        SamplingParams(temperature=0, min_tokens=2, ignore_eos=True, stop_token_ids=(9,)),
        SamplingParams(temperature=0, min_tokens=1, stop_token_ids=(9,)),
    ]
    assert draw(params, logits, outputs=(4,)).tokens.tolist() == [11, EOS, EOS]


def test_nan_in_one_row_fails_that_row_alone() -> None:
    logits = some_logits().repeat(4, 1)
    logits[1, 3] = float("nan")
    logits[3, 3] = float("inf")
    params = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(logprobs=2)]
    drawn = draw([*params, SamplingParams(logprobs=1)], logits)
    assert set(drawn.errors) == {1, 3}
    assert drawn.tokens[0] == int(LOGITS.argmax())
    assert set(drawn.logprobs) == {2}


def test_a_request_that_allows_nothing_fails_alone() -> None:
    params = [
        SamplingParams(allowed_token_ids=(4,), bad_words=((4,),)),
        SamplingParams(temperature=0),
    ]
    drawn = draw(params, LOGITS)
    assert set(drawn.errors) == {0}
    assert "allowed" in drawn.errors[0]


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    seeded = SamplingParams(seed=7, top_p=0.9)
    others = [SamplingParams(), SamplingParams(temperature=0), SamplingParams(seed=8)]
    alone = draw([seeded], LOGITS).tokens[0]
    together = draw([*others, seeded, *others], LOGITS, slice_rows=2).tokens[3]
    assert alone == together


@pytest.mark.parametrize("impl", ["cpu", "torch"])
@pytest.mark.parametrize(
    "fields", [{}, {"top_p": 0.9}, {"presence_penalty": 1.0}, {"top_k": 900, "min_tokens": 3}]
)
def test_a_seed_belongs_to_its_row_whoever_stands_before_it(
    fields: dict[str, Any], impl: str
) -> None:
    # Rows of each kind are drawn apart; a place among them is no place in the batch.
    flat = torch.zeros(1000)
    seeded = SamplingParams(seed=7, **fields)
    others = [
        SamplingParams(seed=8),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.5),
        SamplingParams(frequency_penalty=0.5),
    ]
    alone = draw([seeded], flat, impl=impl).tokens[0]
    together = draw([*others, seeded, *others], flat, impl=impl).tokens[len(others)]
    assert alone == together


def test_seed_choice_and_position_each_give_other_noise() -> None:
    flat = torch.zeros(5000)
    base = SamplingParams(seed=7)
    first = draw([base, SamplingParams(seed=7, choice=1), SamplingParams(seed=-1)], flat).tokens
    later = draw([base], flat, outputs=(3,)).tokens
    assert len({*first.tolist(), *later.tolist()}) == 4


def test_requests_without_a_seed_differ_from_each_other() -> None:
    flat = torch.zeros(5000)
    assert len(set(draw([SamplingParams()] * 50, flat).tokens.tolist())) > 45


def test_every_implementation_draws_the_same_tokens() -> None:
    logits = some_logits(3001).mul(2).repeat(8, 1) + some_logits(8, seed=1).unsqueeze(1)
    params = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.3, top_p=0.9),
        SamplingParams(seed=3, top_k=40),
        SamplingParams(seed=4, top_k=700, top_p=0.8),
        SamplingParams(seed=5, min_p=0.05),
        SamplingParams(seed=6, top_p=0.99, temperature=1.8),
        SamplingParams(seed=7, presence_penalty=1.0, min_p=0.01, top_p=0.5),
        SamplingParams(temperature=0),
    ]
    for position in range(6):
        drawn = [
            draw(params, logits, outputs=(9,) * position, impl=impl, slice_rows=rows).tokens
            for impl, rows in (("cpu", 1000), ("torch", 1000), ("torch", 2))
        ]
        assert drawn[0].tolist() == drawn[1].tolist() == drawn[2].tolist()


@pytest.mark.slow
def test_what_stays_on_a_device_gives_the_same_tokens_and_logprobs() -> None:
    logits = some_logits(900).mul(2).repeat(7, 1) + some_logits(7, seed=1).unsqueeze(1)
    params = [
        SamplingParams(seed=1, logprobs=2),
        SamplingParams(seed=2, temperature=0.3, top_p=0.9),
        SamplingParams(seed=4, top_k=700, top_p=0.8, logprobs=1),
        SamplingParams(seed=5, min_p=0.05),
        SamplingParams(seed=6, top_p=0.99, temperature=1.8),
        SamplingParams(seed=7, presence_penalty=1.0, min_p=0.01, top_p=0.5),
        SamplingParams(temperature=0),
    ]
    want = draw(params, logits, outputs=(9,), impl="torch")
    for slice_rows in (1000, 2):
        got = draw(params, logits, outputs=(9,), impl="triton", slice_rows=slice_rows)
        assert got.tokens.tolist() == want.tokens.tolist()
        assert got.logprobs == want.logprobs


def test_rows_are_cut_in_slices_that_fit_the_scratch_memory() -> None:
    assert cut_rows_for(1000, 64_000, "triton") == 2
    assert cut_rows_for(1000, 10, "triton") == 1
    assert cut_rows_for(1000, 64_000, "torch") == 2
    assert cut_rows_for(1000, 64_000, "cpu") > 4096


def test_logprobs_are_the_models_own_whatever_was_masked() -> None:
    params = [
        SamplingParams(temperature=0, logprobs=3, allowed_token_ids=(9,)),
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(temperature=0.1, logprobs=5, presence_penalty=1.0),
    ]
    drawn = draw(params, LOGITS)
    expected = torch.log_softmax(LOGITS, -1)
    masked, best, _ = (drawn.logprobs[place] for place in range(3))
    assert masked.token_id == 9
    assert masked.logprob == pytest.approx(float(expected[9]), abs=1e-5)
    assert masked.rank == int((expected > expected[9]).sum()) + 1
    assert list(masked.top_ids) == expected.topk(3).indices.tolist()
    assert masked.top_logprobs == pytest.approx(expected.topk(3).values.tolist(), abs=1e-5)
    assert (best.rank, best.top_ids) == (1, ())
    assert [len(drawn.logprobs[place].top_ids) for place in range(3)] == [3, 0, 5]


def test_logprobs_do_not_depend_on_how_many_were_asked() -> None:
    few = draw([SamplingParams(temperature=0, logprobs=1)], LOGITS).logprobs[0]
    many = draw([SamplingParams(temperature=0, logprobs=9)], LOGITS).logprobs[0]
    assert (few.logprob, few.top_ids[0], few.top_logprobs[0]) == (
        many.logprob,
        many.top_ids[0],
        many.top_logprobs[0],
    )
