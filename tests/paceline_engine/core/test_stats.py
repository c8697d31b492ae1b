import msgspec
import pytest

from paceline_crds import metrics
from paceline_crds.metrics import METRICS, Kind
from paceline_crds.settings import EngineSettings
from paceline_engine.core.request import FinishReason
from paceline_engine.core.snapshot import StatsSnapshot
from paceline_engine.core.stats import StepRecord
from paceline_engine.testing.story import Story


def test_every_counter_and_every_label_is_there_from_the_start():
    stats = Story().stats
    for metric in METRICS.values():
        if metric.kind is Kind.HISTOGRAM and not metric.alias_of:
            assert stats.histogram(metric.name).counts == [0] * (len(metric.buckets) + 1)
        if metric.kind is Kind.COUNTER and not metric.alias_of:
            assert stats.values[metric.name], metric.name
            assert set(stats.values[metric.name].values()) == {0.0}, metric.name
    assert len(stats.values[metrics.SLO_OBSERVATIONS]) == 18
    assert len(stats.values[metrics.SLO_REQUESTS]) == 2
    assert len(stats.values[metrics.SUCCESS]) == len(FinishReason)


def test_reasons_of_the_contract_are_those_of_requests():
    assert set(metrics.FINISHED_REASONS) == {reason.value for reason in FinishReason}


def test_latencies_of_one_request_are_measured_from_the_right_moments():
    story = Story()
    story.arrive(1, now=10.0)
    story.admit(1, 0, now=10.5)
    story.tokens(12.0, s0=1)
    story.tokens(12.25, s0=1)
    story.tokens(13.0, s0=1)
    story.finish(1, 3, 13.0)
    assert story.total(metrics.QUEUE_TIME) == 0.5
    assert story.total(metrics.PREFILL_TIME) == 1.5
    assert story.total(metrics.TTFT) == 2.0
    assert story.total(metrics.DECODE_TIME) == 1.0
    assert story.total(metrics.INFERENCE_TIME) == 2.5
    assert story.total(metrics.E2E) == 3.0
    assert story.total(metrics.TPOT) == 0.5
    assert story.total(metrics.ITL) == 1.0
    assert story.count(metrics.ITL) == 2


def test_n_requests_of_m_tokens_give_n_times_m_minus_one_gaps():
    story = Story()
    for request in range(3):
        story.arrive(request)
        story.admit(request, request)
    for step in range(7):
        story.tokens(1.0 + step, s0=1, s1=1, s2=1)
    for request in range(3):
        story.finish(request, 7, 7.0, FinishReason.LENGTH)
    assert story.count(metrics.ITL) == 3 * 6
    assert story.stats.value(metrics.GENERATION_TOKENS) == 21
    assert story.stats.value(metrics.PROMPT_TOKENS) == 15
    for name in (
        *(metrics.TTFT, metrics.E2E, metrics.QUEUE_TIME, metrics.PREFILL_TIME),
        *(metrics.DECODE_TIME, metrics.INFERENCE_TIME, metrics.TPOT),
        *(metrics.REQUEST_PROMPT_TOKENS, metrics.REQUEST_GENERATION_TOKENS),
    ):
        assert story.count(name) == 3, name


def test_an_accepted_run_of_drafts_is_one_gap():
    story = Story()
    story.arrive(1)
    story.admit(1, 0)
    story.tokens(1.0, s0=1)
    story.tokens(2.0, s0=4)
    story.finish(1, 5, 2.0)
    assert story.count(metrics.ITL) == 1
    assert story.stats.value(metrics.GENERATION_TOKENS) == 5


def test_first_and_later_tokens_of_one_step_are_told_apart():
    story = Story()
    for request in (0, 1, 2):
        story.arrive(request)
    story.admit(0, 2)
    story.admit(1, 0)
    story.tokens(1.0, s2=1)
    story.tokens(1.5, s0=1)
    story.admit(2, 1)
    story.tokens(2.0, s0=1, s1=1, s2=1)
    assert (story.count(metrics.TTFT), story.total(metrics.TTFT)) == (3, 1.0 + 1.5 + 2.0)
    assert (story.count(metrics.ITL), story.total(metrics.ITL)) == (2, 1.0 + 0.5)


def test_a_value_on_a_bound_is_within_it():
    story = Story()
    story.run(1, [0.25])
    bounds = METRICS[metrics.TTFT].buckets
    assert story.stats.histogram(metrics.TTFT).counts[bounds.index(0.25)] == 1


def test_gauges_follow_a_request_through_preemption_and_return_to_zero():
    story = Story()

    def gauges() -> tuple[float, float]:
        stats = story.stats
        return stats.value(metrics.RUNNING), stats.value(metrics.WAITING)

    story.arrive(1)
    assert gauges() == (0, 1)
    story.admit(1, 0)
    assert gauges() == (1, 0)
    story.recorder.request_preempted(1, 5)
    assert gauges() == (0, 1)
    story.admit(1, 0)
    story.finish(1, 0, 1.0, FinishReason.ABORT)
    story.arrive(2)
    story.finish(2, 0, 1.0, FinishReason.TIMEOUT)
    assert gauges() == (0, 0)
    assert story.stats.value(metrics.OLDEST_WAITING) == 0


def test_the_oldest_waiting_request_is_found_among_many():
    story = Story()
    for request in range(40):
        story.arrive(request, now=50.0 + request)
    story.admit(0, 0)
    assert story.stats.value(metrics.OLDEST_WAITING) == 100.0 - 51.0


def test_tokens_lost_to_preemption_are_counted_when_they_are_computed_again():
    story = Story()
    story.arrive(1, prompt=32)
    story.admit(1, 0, computed=16)
    story.recorder.request_preempted(1, 40)
    story.admit(1, 0, computed=16)
    assert story.stats.value(metrics.RECOMPUTED) == 24
    story.recorder.request_preempted(1, 20)
    story.admit(1, 0, computed=32)
    assert story.stats.value(metrics.RECOMPUTED) == 24
    assert story.stats.value(metrics.PREEMPTIONS) == 2
    assert story.stats.value(metrics.PREFIX_QUERIES) == 32
    assert story.stats.value(metrics.PREFIX_HITS) == 16


def test_the_gap_across_a_preemption_is_a_gap_that_the_client_saw():
    story = Story()
    story.arrive(1)
    story.admit(1, 0)
    story.tokens(1.0, s0=1)
    story.recorder.request_preempted(1, 5)
    story.admit(1, 3)
    story.tokens(9.0, s3=1)
    assert (story.count(metrics.ITL), story.total(metrics.ITL)) == (1, 8.0)
    assert (story.count(metrics.TTFT), story.count(metrics.QUEUE_TIME)) == (1, 1)


def test_a_request_without_outputs_ends_with_its_prompt():
    story = Story()
    story.arrive(1)
    story.admit(1, 0, now=1.0)
    story.finish(1, 0, 3.0, FinishReason.LENGTH)
    assert story.stats.value(metrics.PROMPT_TOKENS) == 5
    assert story.stats.value(metrics.SERVED_TOKENS, tenant="default", kind="prompt") == 5
    assert (story.count(metrics.E2E), story.count(metrics.TTFT)) == (1, 0)
    assert story.total(metrics.PREFILL_TIME) == 2.0


def test_an_aborted_request_leaves_no_latency_but_is_counted():
    story = Story()
    story.arrive(1)
    story.finish(1, 0, 3.0, FinishReason.ABORT)
    assert story.count(metrics.E2E) == 0
    assert story.stats.value(metrics.SUCCESS, finished_reason="abort") == 1


def test_output_of_a_request_with_stop_strings_counts_when_it_ends():
    story = Story()
    story.arrive(1, has_stop_strings=True)
    story.arrive(2)
    story.admit(1, 0)
    story.admit(2, 1)
    for step in range(4):
        story.tokens(1.0 + step, s0=1, s1=1)
    assert story.stats.value(metrics.GENERATION_TOKENS) == 4
    story.finish(1, 2, 5.0)
    assert story.stats.value(metrics.GENERATION_TOKENS) == 6
    assert story.stats.value(metrics.DISCARDED) == 2
    assert story.stats.value(metrics.SERVED_TOKENS, tenant="default", kind="generation") == 6


def test_a_counter_never_falls_when_a_request_ends_earlier_than_counted():
    story = Story()
    story.run(1, [1.0])
    story.arrive(2)
    story.admit(2, 0)
    for step in range(4):
        story.tokens(2.0 + step, s0=1)
    before = story.stats.value(metrics.GENERATION_TOKENS)
    story.finish(2, 1, 6.0)
    assert story.stats.value(metrics.GENERATION_TOKENS) == before == 5
    story.run(3, [7.0, 8.0, 9.0, 10.0])
    assert story.stats.value(metrics.GENERATION_TOKENS) == 1 + 1 + 4
    assert story.stats.value(metrics.DISCARDED) == 3


def test_tokens_are_charged_to_their_tenants():
    story = Story()
    for request, tenant in enumerate(["red", "blue", ""]):
        story.arrive(request, prompt=request + 1, tenant=tenant)
        story.admit(request, request)
    story.tokens(1.0, s0=1, s1=1, s2=1)
    story.tokens(2.0, s0=3, s1=1)
    served = story.stats.values[metrics.SERVED_TOKENS]
    assert served == {
        ("default", "prompt"): 3,
        ("default", "generation"): 1,
        ("red", "prompt"): 1,
        ("red", "generation"): 4,
        ("blue", "prompt"): 2,
        ("blue", "generation"): 2,
    }


def test_tenants_beyond_a_bound_share_one_series():
    story = Story()
    for request in range(300):
        story.arrive(request, tenant=f"t{request}")
    served = story.stats.values[metrics.SERVED_TOKENS]
    assert len(served) == 2 * 257
    assert ("_other", "prompt") in served


def test_a_head_counts_as_shared_only_under_another_continuation():
    story = Story()
    for head, whole in ((b"h", b"1"), (b"h", b"1"), (b"h", b"2"), (b"h", b"2"), (b"x", b"3")):
        story.recorder.prompt_head(head, whole)
    assert story.stats.value(metrics.PROMPT_HEADS) == 5
    assert story.stats.value(metrics.PROMPT_HEADS_SHARED) == 2


def test_a_step_is_counted_in_tokens_time_and_blocks():
    story = Story(max_num_batched_tokens=64)
    story.recorder.attach(lambda: (3, 2, 4, 1), lambda: {"Memory": 2})
    story.recorder.step(
        StepRecord(
            step_id=0,
            planned_s=1.0,
            applied_s=1.5,
            budget_tokens=64,
            num_rows=3,
            num_prefill_tokens=20,
            num_decode_tokens=8,
            num_draft_tokens=4,
            num_drafts=2,
            num_accepted_tokens=3,
            host_ms=100.0,
            device_ms=300.0,
        )
    )
    story.recorder.loop_time("schedule", 0.25)
    stats = story.stats
    assert stats.histogram(metrics.ITERATION_TOKENS).sum == 32
    assert stats.histogram(metrics.STEP_BUDGET_USED).sum == 0.5
    assert stats.histogram(metrics.KV_USAGE_HISTOGRAM).sum == 0.4
    assert stats.histogram(metrics.STEP_DURATION).sum == 0.5
    assert stats.value(metrics.STEP_SECONDS, part="device") == 0.3
    assert stats.value(metrics.STEP_SECONDS, part="schedule") == 0.25
    assert stats.value(metrics.SPEC_ACCEPTED) == 3
    assert stats.value(metrics.KV_USAGE) == 0.4
    assert stats.value(metrics.BLOCKS, state="active") == 4
    assert sum(stats.values[metrics.BLOCK_SHARES].values()) == pytest.approx(1.0)
    assert story.recorder.steps(5)[0]["num_tokens"] == 32


def test_a_reason_to_wait_that_is_over_shows_zero():
    story = Story()
    reasons = {"Memory": 2}
    story.recorder.attach(lambda: (0, 0, 10, 0), lambda: reasons)
    assert story.stats.values[metrics.WAITING_BY_REASON] == {("Memory",): 2}
    reasons.clear()
    assert story.stats.values[metrics.WAITING_BY_REASON] == {("Memory",): 0}


def test_the_flight_recorder_keeps_the_last_steps_oldest_first():
    story = Story()
    for step in range(8300):
        story.recorder.step(StepRecord(step_id=step, planned_s=0.0, applied_s=0.0, budget_tokens=1))
    assert [step["step_id"] for step in story.recorder.steps(3)] == [8297, 8298, 8299]
    assert len(story.recorder.steps(9999)) == 8192
    assert story.recorder.steps(0) == []


def test_settings_in_force_are_metrics():
    story = Story()
    changed = EngineSettings(
        max_num_seqs=7,
        watermark="0.05",
        prefix_caching=False,
        kv_offload_host_memory="2Mi",
    )
    story.recorder.settings_applied(changed, generation=3, revision=9)
    stats = story.stats
    assert stats.value(metrics.SETTING, name="maxNumSeqs") == 7
    assert stats.value(metrics.SETTING, name="watermark") == 0.05
    assert stats.value(metrics.SETTING, name="kvOffloadHostMemory") == 2 << 20
    assert stats.value(metrics.SETTING, name="prefixCaching") == 0
    assert ("sloTtftMs",) not in stats.values[metrics.SETTING]
    assert stats.value(metrics.SETTINGS_GENERATION) == 3
    assert stats.value(metrics.SETTINGS_REVISION) == 9


def test_a_snapshot_travels_by_message():
    story = Story(slo_ttft_ms=100)
    story.run(1, [1.0, 2.0])
    stats = story.stats
    message = msgspec.msgpack.encode(stats)
    assert msgspec.msgpack.decode(message, type=StatsSnapshot) == stats
