"""Decode graphs on a fake device: the same tokens as without, and nothing else touched."""

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline_crds import metrics
from paceline_crds.settings import DType, EngineSettings
from paceline_engine.core.errors import StartFailed
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.families import load_config
from paceline_engine.run.decode_graphs import DecodeGraphs, GraphLimits, graph_sizes
from paceline_engine.run.kv_cache import allocate_kv_cache
from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.testing.fake_device import FakeDevice
from paceline_engine.testing.runners import load_runner
from paceline_engine.testing.tiny_model import TinyModel
from paceline_kernels.decoder import DecoderBatch
from paceline_kernels.testing.decoders import Row, decoder_batch

BLOCK_SIZE, NUM_BLOCKS, VOCAB = 8, 40, 512
PROMPTS = [
    [int(token) for token in np.random.default_rng(seed).integers(3, 500, length)]
    for seed, length in enumerate((3, 17, 40, 64, 9))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    config = load_config(folder)
    return Decoder.load(
        folder, config, impl="torch", max_positions=128, progress=lambda share: None
    )


def on_device(folder: Path, device: FakeDevice, **settings: object) -> Runner:
    wanted = {"dtype": DType.FLOAT32, "max_num_seqs": 6, "max_num_batched_tokens": 64}
    wanted |= {"max_model_len": 256, "block_size": 8, "num_kv_blocks": 128, **settings}
    return Runner.load(
        folder, EngineSettings(**wanted), lambda phase, share: None, engine_seed=1, device=device
    )


class Rig:
    """A cache that holds one prompt's keys and values, and graphs over it."""

    def __init__(self, decoder: Decoder, *, max_drafts: int = 0, max_rows: int = 6) -> None:
        self.decoder = decoder
        self.kv = allocate_kv_cache(decoder.config, NUM_BLOCKS, BLOCK_SIZE, torch.float32, "torch")
        noise = torch.Generator().manual_seed(1)
        for layer in self.kv:
            for cache in layer[:2]:
                assert cache is not None
                cache[1:].copy_(torch.randn(cache[1:].shape, generator=noise))
        self.graphs = DecodeGraphs(
            FakeDevice(),
            self.forward,
            GraphLimits(
                max_rows=max_rows,
                max_drafts=max_drafts,
                max_model_len=128,
                block_size=BLOCK_SIZE,
                vocab_size=VOCAB,
            ),
        )

    def forward(self, batch: DecoderBatch) -> torch.Tensor:
        return self.decoder.forward(batch, self.kv)[0]

    def snapshot(self) -> list[torch.Tensor]:
        return [cache.clone() for layer in self.kv for cache in layer[:2] if cache is not None]


def step(*rows: Row) -> DecoderBatch:
    """Rows of (blocks, start, tokens), with the logits of every token."""
    return decoder_batch(rows, all_logits=True, block_size=BLOCK_SIZE)


DECODES = step(([3, 4, 5], 17, [9]), ([8], 0, [44]), ([7, 6], 15, [300]))
WITH_DRAFTS = step(([3, 4, 5], 17, [9, 10, 11]), ([8], 6, [44, 45]), ([7, 6], 15, [300]))


@pytest.mark.parametrize(("batch", "max_drafts"), [(DECODES, 0), (DECODES, 2), (WITH_DRAFTS, 2)])
@torch.inference_mode()
def test_a_graph_gives_the_logits_of_the_plain_path_and_writes_the_same(
    decoder: Decoder, batch: DecoderBatch, max_drafts: int
) -> None:
    plain, rig = Rig(decoder), Rig(decoder, max_drafts=max_drafts)
    want = plain.forward(batch)
    while not rig.graphs.is_complete:
        rig.graphs.capture_next()
        got = rig.graphs.run(batch)
        assert got is not None  # the first one serves every step already
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(rig.snapshot(), plain.snapshot(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_padding_writes_nothing_and_leaves_the_null_block_zero(decoder: Decoder) -> None:
    rig = Rig(decoder, max_drafts=2)
    before = rig.snapshot()
    while not rig.graphs.is_complete:
        rig.graphs.capture_next()
    for kept, now in zip(before, rig.snapshot(), strict=True):
        assert torch.equal(kept, now)
    rig.graphs.run(step(([3, 4, 5], 17, [9])))
    for kept, now in zip(before, rig.snapshot(), strict=True):
        assert not now[0].any()
        changed = (kept != now).flatten(2).any(-1).nonzero().tolist()
        assert changed == [[5, 1]]  # position 17 is in the third block


@torch.inference_mode()
def test_a_step_is_not_changed_by_what_an_earlier_one_left_in_the_buffers(
    decoder: Decoder,
) -> None:
    rig = Rig(decoder)
    rig.graphs.capture_next()
    alone = step(([9], 3, [44]))
    first = rig.graphs.run(alone)
    assert first is not None
    first = first.clone()
    rig.graphs.run(DECODES)
    again = rig.graphs.run(alone)
    assert again is not None
    assert torch.equal(first, again)


@torch.inference_mode()
def test_what_no_graph_takes_is_left_to_the_plain_path(decoder: Decoder) -> None:
    rig = Rig(decoder, max_rows=2)
    assert rig.graphs.run(DECODES) is None  # nothing captured
    rig.graphs.capture_next()
    assert rig.graphs.run(DECODES) is None  # three rows
    assert rig.graphs.run(step(([8], 0, [1, 2]))) is None  # a chunk of a prompt
    assert rig.graphs.num_replays == 0


def test_the_sizes_reach_the_boot_maximum_and_end_at_512_rows() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(512)[-1] == 512
    assert len(graph_sizes(512)) < 30


@pytest.mark.parametrize("kv_cache_dtype", ["Auto", "FP8"])
def test_tokens_are_those_of_the_plain_path(folder: Path, kv_cache_dtype: str) -> None:
    device = FakeDevice()
    runner = on_device(folder, device, kv_cache_dtype=kv_cache_dtype)
    assert runner.kernels["attention"] == "torch"
    plain = load_runner(folder, block_size=8, kv_cache_dtype=kv_cache_dtype)
    sessions = [OfflineEngine(runner), OfflineEngine(plain)]
    for session in sessions:
        for prompt in PROMPTS:
            session.submit(prompt, max_tokens=20, ignore_eos=True)
        session.submit(PROMPTS[1], max_tokens=20, ignore_eos=True, temperature=0.8, seed=5)
        session.submit(PROMPTS[2], max_tokens=4, ignore_eos=True, prompt_logprobs=1)
        session.run()
    assert sessions[0].outputs == sessions[1].outputs
    assert runner.num_graph_steps > 10


def test_graphs_are_captured_at_the_start_and_when_idle_alone(folder: Path) -> None:
    device = FakeDevice()
    runner = on_device(folder, device)
    at_start = device.num_captures
    session = OfflineEngine(runner)
    session.submit(PROMPTS[0], max_tokens=10, ignore_eos=True)
    while session.step():
        pass
    assert device.num_captures == at_start
    rests = 1
    while runner.do_spare_work():
        rests += 1
    assert device.num_captures == at_start + rests
    assert rests == len(graph_sizes(runner.limits.max_slots)) - 1
    assert not runner.do_spare_work()


DRAFTS = {"boot_max_speculative_num_tokens": 3, "speculative_min_lookup": 1}
DRAFTS |= {"speculative_method": "Ngram", "speculative_adaptive": False}


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_steps_with_drafts_are_graphs_and_give_the_tokens_of_the_plain_path(
    folder: Path, num_drafts: int
) -> None:
    runner = on_device(folder, FakeDevice(), **DRAFTS)
    plain = load_runner(folder, block_size=8, **DRAFTS)
    live = {"speculative_num_tokens": num_drafts, "max_num_seqs": 6, "max_num_batched_tokens": 64}
    sessions = [OfflineEngine(each, **live) for each in (runner, plain)]
    prompts = [(prompt[:5] * 4)[: 5 + 4 * at] for at, prompt in enumerate(PROMPTS)]
    replayed = []
    for session in sessions:
        for at, prompt in enumerate(prompts):
            params = {"temperature": 0.8, "seed": 5} if at == 2 else {}
            params |= {"allowed_token_ids": (5, 6, 7)} if at % 2 else {}  # these repeat themselves
            session.submit(prompt, max_tokens=24, ignore_eos=True, **params)
        while session.step():
            if session is sessions[0]:
                replayed.append(runner.num_graph_steps)
                if session.num_steps % 8 == 0:  # smaller graphs come in between
                    runner.do_spare_work()
    assert sessions[0].outputs == sessions[1].outputs
    assert sessions[0].value(metrics.SPEC_ACCEPTED) > 0
    # After the prompts, every step was a graph, whatever drafts it had.
    decodes = np.diff(replayed)[3:]
    assert decodes.all()


def test_a_start_captures_a_graph_of_each_width_and_plans_memory_for_all(folder: Path) -> None:
    mib = 1 << 20
    without, device = FakeDevice(graph_bytes=mib), FakeDevice(graph_bytes=mib)
    fewer = on_device(folder, without)
    runner = on_device(folder, device, **DRAFTS)
    sizes = len(graph_sizes(runner.limits.max_slots))
    assert fewer.memory_plan["graphs"] == sizes * mib
    assert runner.memory_plan["graphs"] == 2 * sizes * mib
    assert device.num_captures == without.num_captures + 1
    rests = 1
    while runner.do_spare_work():
        rests += 1
    assert rests == 2 * (sizes - 1)


def test_a_capture_in_the_middle_of_a_step_is_refused(folder: Path) -> None:
    runner = on_device(folder, FakeDevice())
    session = OfflineEngine(runner)
    session.submit(PROMPTS[0], max_tokens=2)
    plan = session.scheduler.plan(0.0)
    assert plan is not None
    runner.forward(plan)
    with pytest.raises(RuntimeError, match="between"):
        runner.do_spare_work()


def test_a_share_of_the_device_becomes_blocks(folder: Path) -> None:
    mib = 1 << 20
    sizes = {"total_bytes": 256 * mib, "others_bytes": 16 * mib, "activation_bytes": 32 * mib}
    settings = {"num_kv_blocks": None, "max_num_seqs": 4096, "gpu_memory_utilization": "0.5"}
    runner = on_device(folder, FakeDevice(**sizes, graph_bytes=mib), **settings)
    plan = runner.memory_plan
    num_graphs = len(graph_sizes(512))
    assert plan["activations"] == 32 * mib
    assert plan["graphs"] == num_graphs * mib
    block = 2 * 2 * 8 * 32 * 4  # keys and values, layers, tokens, width, float32
    assert plan["kv_cache"] == runner.limits.num_blocks * block
    left = 128 * mib - 16 * mib - 32 * mib - num_graphs * mib - plan["kv_cache"]
    assert 0 <= left < block


def test_a_device_too_small_says_what_the_memory_is_for(folder: Path) -> None:
    device = FakeDevice(total_bytes=64 << 20, activation_bytes=63 << 20)
    with pytest.raises(StartFailed, match=r"for a step of 128 tokens and .* for graphs") as failed:
        on_device(folder, device)
    assert failed.value.reason == "OutOfMemory"


def test_a_device_that_cannot_hold_fp8_is_refused_by_its_reason(folder: Path) -> None:
    device = FakeDevice(fp8_refusal="it needs compute capability 8.0, and Old has 7.5")
    with pytest.raises(StartFailed, match=r"FP8 cannot be served here: .*Old has 7\.5") as failed:
        on_device(folder, device, kv_cache_dtype="FP8")
    assert failed.value.reason == "InvalidSettings"
    assert on_device(folder, device).kernels["kv_cache"] == "float32"
