"""One applied step, as the counters and the flight recorder see it."""

from dataclasses import dataclass

from paceline_engine.core.step_features import StepFeatures


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One applied step, for counters and for the flight recorder. Mutable slots: one per step.

    Attributes:
        planned_s, applied_s: monotonic times of plan and result.
        budget_tokens: the token budget in force (the governor's, if it set one).
        num_prefill_tokens, num_decode_tokens, num_draft_tokens: computed tokens; they add up to
            all of the step. A row at the end of its known tokens is decode (its drafts apart).
        num_drafts: rows with draft tokens; num_accepted_tokens: drafts that held.
        kv_tokens_read, attention_pairs, num_sampled: as in `step_features.StepFeatures`.
        generation: of the settings in force; filled in by the recorder.
        num_preempted: requests preempted while this step was planned.
        num_recomputed_tokens: tokens that requests which came back with this step had computed
            before and lost; this step and later ones compute them again.
        num_stored_blocks, num_loaded_blocks: KV blocks copied to the host tier and back; store_ms,
            load_ms: how long that took, apart from all other times.
        predicted_ms: what the cost model said; host_ms, device_ms: from the result.
        plan_ms, forward_ms, sample_ms, apply_ms: where the time went, as the step loop measured it.
        queued_ms: from its plan to its start, where it was planned while the step before it ran.
        error: why the step failed; empty when it did not.
        blocks_active, blocks_cached, blocks_free, num_running, num_waiting: filled in by the
            recorder.
    """

    step_id: int
    planned_s: float
    applied_s: float
    budget_tokens: int
    num_rows: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_draft_tokens: int = 0
    num_drafts: int = 0
    num_accepted_tokens: int = 0
    kv_tokens_read: int = 0
    attention_pairs: int = 0
    num_sampled: int = 0
    num_preempted: int = 0
    num_recomputed_tokens: int = 0
    num_stored_blocks: int = 0
    num_loaded_blocks: int = 0
    store_ms: float = 0.0
    load_ms: float = 0.0
    predicted_ms: float | None = None
    host_ms: float = 0.0
    device_ms: float = 0.0
    plan_ms: float = 0.0
    queued_ms: float = 0.0
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    apply_ms: float = 0.0
    error: str = ""
    blocks_active: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    num_running: int = 0
    num_waiting: int = 0
    generation: int = 0

    @property
    def num_tokens(self) -> int:
        """All tokens that the step computed."""
        return self.num_prefill_tokens + self.num_decode_tokens + self.num_draft_tokens

    @property
    def features(self) -> StepFeatures:
        """The sizes of the step, for cost models."""
        return StepFeatures(
            num_rows=self.num_rows,
            num_prefill_tokens=self.num_prefill_tokens,
            num_decode_tokens=self.num_decode_tokens + self.num_draft_tokens,
            kv_tokens_read=self.kv_tokens_read,
            attention_pairs=self.attention_pairs,
            num_sampled=self.num_sampled,
        )
