"""The roofline: what bounds which step."""

import pytest

from paceline_engine.core.step_features import StepFeatures
from paceline_engine.sim.device import DEVICES, MODELS, RooflineCost, num_kv_blocks


def decode(rows: int, context: int = 500) -> StepFeatures:
    return StepFeatures(
        num_rows=rows,
        num_prefill_tokens=0,
        num_decode_tokens=rows,
        kv_tokens_read=rows * context,
        attention_pairs=rows * context,
        num_sampled=rows,
    )


def prefill(tokens: int) -> StepFeatures:
    return StepFeatures(
        num_rows=1,
        num_prefill_tokens=tokens,
        num_decode_tokens=0,
        kv_tokens_read=tokens,
        attention_pairs=tokens * (tokens + 1) // 2,
        num_sampled=1,
    )


H100 = RooflineCost(MODELS["llama-3.1-8b"], DEVICES["h100"])


def test_a_few_decodes_cost_what_reading_the_weights_costs():
    weights_ms = 1e3 * H100.model.total_bytes / H100.device.bytes_per_s
    one = H100.predict_ms(decode(1)) - H100.device.step_overhead_ms
    assert one == pytest.approx(weights_ms, rel=0.02)
    assert H100.predict_ms(decode(8)) < 1.1 * H100.predict_ms(decode(1))


def test_a_long_prompt_costs_its_arithmetic():
    took = H100.predict_ms(prefill(8192)) - H100.device.step_overhead_ms
    dense = 1e3 * 2 * H100.model.num_params * 8192 / H100.device.flops_per_s
    assert dense < took < 1.2 * dense


def test_long_contexts_make_decodes_slower():
    longer = H100.predict_ms(decode(64, 16_000)) - H100.predict_ms(decode(64, 500))
    read = 64 * 15_500 * H100.model.kv_token_bytes
    assert longer == pytest.approx(1e3 * read / H100.device.bytes_per_s)


@pytest.mark.parametrize("name", list(MODELS))
def test_shapes_have_about_the_size_of_their_name(name: str):
    size = {"smollm2-135m": 0.135, "llama-3.1-8b": 8.0, "llama-3.1-70b": 70.5}[name]
    model = MODELS[name]
    tied = 1 if name == "smollm2-135m" else 2
    params = model.num_params + tied * model.vocab_size * model.hidden_size
    assert params / 1e9 == pytest.approx(size, rel=0.02)


def test_blocks_fill_what_the_weights_leave():
    blocks = num_kv_blocks(H100.model, H100.device, block_size=16, memory_share=0.92)
    taken = blocks * 16 * H100.model.kv_token_bytes + H100.model.total_bytes
    assert 0.8 < taken / H100.device.memory_bytes < 0.92


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="choose a smaller model"):
        num_kv_blocks(MODELS["llama-3.1-70b"], DEVICES["l4"], block_size=16, memory_share=0.92)
