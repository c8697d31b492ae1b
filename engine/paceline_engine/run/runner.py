"""The runner: a step plan in, tokens out. Owns weights, KV cache and the persistent batch."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline_crds.settings import EngineSettings
from paceline_engine.core.arrays import Int32
from paceline_engine.core.limits import EngineLimits
from paceline_engine.core.plan import StepPlan, StepResult, TokenLogprobs
from paceline_engine.model import store
from paceline_engine.model.decoder import Decoder
from paceline_engine.run.batch import Batch, SampledRows
from paceline_engine.run.device import Device, find_device
from paceline_engine.run.drafts.choice import proposer_for
from paceline_engine.run.drafts.proposer import ComputedStep, Proposer
from paceline_engine.run.host_tier import HostTier, copy
from paceline_engine.run.load import LoadedModel, load_model
from paceline_engine.run.memory_plan import SCRATCH_BYTES
from paceline_engine.run.prompt_logprobs import gather_prompt_logprobs, rows_that_ask
from paceline_engine.run.sampler import Sampler, slice_rows_for
from paceline_engine.run.verification import Yielded, verify
from paceline_kernels.decoder import DecoderBatch


@dataclass(slots=True, kw_only=True)
class _InFlight:
    """A step between `forward` and `sample`."""

    plan: StepPlan
    inputs: DecoderBatch
    sampled: SampledRows
    logits: Tensor
    hidden: Tensor | None
    result: StepResult


class Runner:
    """Computes steps of one model, one at a time, in the order of their plans.

    Attributes:
        limits: what the scheduler needs to know.
        settings: booted, with the number format that `Auto` became.
        memory_plan: bytes by use.
        kernels: operation -> implementation that runs it.
        decoder, kv: the model and its cache, for measurements on them.
        kv_layers: every KV layer under the pool's block ids, the target's first, then draft ones;
            whoever copies a block copies it in all of them.
        kv_divergence: measure -> value, of logits with an FP8 KV cache from those with a full one;
            empty for a full one.
    """

    def __init__(self, loaded: LoadedModel, engine_seed: int) -> None:
        self.limits: EngineLimits = loaded.limits
        self.settings: EngineSettings = loaded.settings
        self.memory_plan: dict[str, int] = loaded.memory.by_use()
        self.kernels: dict[str, str] = loaded.kernels
        divergence = loaded.kv_divergence
        self.kv_divergence: dict[str, float] = divergence.by_measure() if divergence else {}
        self.decoder: Decoder = loaded.decoder
        self.kv = loaded.kv
        self.kv_layers = loaded.kv_layers
        self._batch = Batch(loaded.limits, engine_seed)
        vocab_size = loaded.limits.vocab_size
        self._sampler = Sampler(self._batch, vocab_size, SCRATCH_BYTES, loaded.sampler_impl)
        self._slice_rows = slice_rows_for(vocab_size, SCRATCH_BYTES)
        self._graphs = loaded.graphs
        self._sampler_impl = loaded.sampler_impl
        self._proposer = proposer_for(loaded, self._batch, self._sampler)
        num_host_blocks = loaded.limits.num_host_blocks
        self._host_tier = HostTier(loaded.kv_layers, num_host_blocks) if num_host_blocks else None
        self._in_flight: _InFlight | None = None

    @classmethod
    def load(
        cls,
        model_dir: Path,
        settings: EngineSettings,
        progress: Callable[[str, float], None],
        *,
        engine_seed: int | None = None,
        device: Device | None = None,
        draft_dir: Path | None = None,
    ) -> "Runner":
        """Load weights, choose kernels, plan memory, make the KV cache.

        Args:
            model_dir: of `model.store.resolve`.
            settings: as the user gave them.
            progress: called with (phase, share done).
            engine_seed: noise of requests without a seed; None draws one.
            device: None takes the CUDA device, or the host where there is none.
            draft_dir: of the draft model, if the settings ask for one; None: where the store puts
                `speculativeModel`.

        Raises:
            StartFailed: with one of its reasons.
        """
        seed = secrets.randbits(63) if engine_seed is None else engine_seed
        if draft_dir is None and settings.speculative_model is not None:
            draft_dir = store.resolve(settings.speculative_model, progress=progress)
        loaded = load_model(model_dir, settings, progress, device or find_device(), draft_dir)
        return cls(loaded, seed)

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Follow the plan's changes and compute its tokens up to the logits."""
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight.plan.step_id} was not sampled yet")
        copies = copy(self._host_tier, plan)
        started = time.perf_counter()
        batch = self._batch
        batch.apply(plan)
        sampled = batch.sampled_rows(plan)
        inputs = batch.inputs(plan, sampled.inputs)
        launched = time.perf_counter()
        asks = bool(rows_that_ask(plan, batch).size)
        keep = self._proposer is not None and self._proposer.needs_hidden
        logits, hidden = self._compute(inputs, keep_hidden=asks or keep)
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        if asks and hidden is not None:
            prompt_logprobs = gather_prompt_logprobs(
                plan, batch, hidden, self._host_logits, self._slice_rows
            )
        done = time.perf_counter()
        result = StepResult(
            step_id=plan.step_id,
            tokens=np.full((len(plan.slots), 1), -1, dtype=np.int32),
            prompt_logprobs=prompt_logprobs,
            host_ms=(launched - started) * 1e3,
            device_ms=(done - launched) * 1e3,
            store_ms=copies.store_ms,
            load_ms=copies.load_ms,
        )
        self._in_flight = _InFlight(
            plan=plan,
            inputs=inputs,
            sampled=sampled,
            logits=logits,
            hidden=hidden if keep else None,
            result=result,
        )

    def _compute(self, inputs: DecoderBatch, *, keep_hidden: bool) -> tuple[Tensor, Tensor | None]:
        """By a graph where one takes the step, else launch by launch."""
        if self._graphs is not None and not keep_hidden:
            logits = self._graphs.run(inputs)
            if logits is not None:
                return logits, None
        device = self.kv[0].k_cache.device
        return self.decoder.forward(inputs.to(device), self.kv, keep_hidden=keep_hidden)

    def _host_logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden).cpu()

    @property
    def num_graph_steps(self) -> int:
        """Steps that a captured graph computed."""
        return self._graphs.num_replays if self._graphs is not None else 0

    @torch.inference_mode()
    def do_spare_work(self) -> bool:
        """Do one piece of work that may wait: capture a graph. Called when no request is there.

        Returns:
            Whether more is left.
        """
        if self._in_flight is not None:
            raise RuntimeError("do_spare_work() between forward() and sample()")
        if self._graphs is None or self._graphs.is_complete:
            return False
        self._graphs.capture_next()
        return not self._graphs.is_complete

    @torch.inference_mode()
    def sample(self) -> StepResult:
        """Choose the tokens of the last forward, keep them for the next plan, propose drafts."""
        if self._in_flight is None:
            raise RuntimeError("sample() needs a forward() before it")
        started = time.perf_counter()
        step, self._in_flight = self._in_flight, None
        plan, result, yielded = step.plan, step.result, None
        if step.sampled.slots.size:
            sampled = self._sampler.sample(step.logits, step.sampled)
            yielded = verify(plan, step.sampled, sampled, self._sampler_impl)
            width = yielded.tokens.shape[1]
            result.tokens = np.full((len(plan.slots), width), -1, dtype=np.int32)
            result.tokens[yielded.rows] = yielded.tokens
            result.errors, result.logprobs = yielded.errors, yielded.logprobs
            self._batch.append_tokens(*yielded.newest())
        proposing = time.perf_counter()
        if self._proposer is not None:
            self._proposer.follow(
                ComputedStep(plan=plan, inputs=step.inputs, hidden=step.hidden, yielded=yielded)
            )
            if plan.max_drafts and yielded is not None:
                result.drafts = self._propose(self._proposer, plan, yielded)
        ended = time.perf_counter()
        result.propose_ms = (ended - proposing) * 1e3
        result.host_ms += (ended - started) * 1e3
        return result

    def _propose(self, proposer: Proposer, plan: StepPlan, yielded: Yielded) -> Int32 | None:
        wants = np.flatnonzero(self._batch.params.speculates[yielded.slots] & (yielded.counts > 0))
        if not wants.size:
            return None
        lengths = yielded.starts + yielded.counts
        drafts = np.full((len(plan.slots), plan.max_drafts), -1, dtype=np.int32)
        drafts[yielded.rows[wants]] = proposer.propose(
            yielded.slots[wants], lengths[wants], plan.max_drafts
        )
        return drafts
