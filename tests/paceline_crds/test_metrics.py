import re

import pytest

from paceline_crds import metrics
from paceline_crds.metrics import METRICS, Kind, Metric

EVERY = pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)

WHAT_DASHBOARDS_AND_ROUTERS_READ = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:request_num_preemptions",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:cache_config_info",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
    "vllm:gpu_cache_usage_perc",
    "vllm:gpu_prefix_cache_hit_rate",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:time_per_output_token_seconds",
    "vllm:lora_requests_info",
    "vllm:request_max_num_generation_tokens",
    "paceline:slo_requests_total",
    "paceline:slo_observations_total",
    "paceline:slo_revision",
    "paceline:recomputed_tokens_total",
]


@pytest.mark.parametrize("name", WHAT_DASHBOARDS_AND_ROUTERS_READ)
def test_a_name_that_others_read_is_there(name):
    assert name in METRICS


def test_no_name_is_declared_twice():
    assert len(METRICS) == len(metrics._ALL)


def test_every_name_of_the_module_is_declared():
    named = {
        value
        for value in vars(metrics).values()
        if isinstance(value, str) and value.startswith(("vllm:", "paceline:"))
    }
    assert named <= set(METRICS)


@EVERY
def test_a_family_is_well_formed(metric: Metric):
    assert re.fullmatch(r"(vllm|paceline):[a-z0-9_]+", metric.name)
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert "\\" not in metric.help
    assert not set(metric.labels) & {*metrics.COMMON_LABELS, "le"}
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


@EVERY
def test_what_counts_up_says_so(metric: Metric):
    is_exception = metric.name == metrics.ITERATION_TOKENS
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER or is_exception)


@EVERY
def test_an_alias_has_the_shape_of_what_it_repeats(metric: Metric):
    if metric.alias_of:
        meant = METRICS[metric.alias_of]
        assert not meant.alias_of
        assert (metric.kind, metric.labels, metric.buckets) == (
            meant.kind,
            meant.labels,
            meant.buckets,
        )


def test_the_multiples_of_a_target_are_its_labels():
    assert [float(text) for text in metrics.SLO_WITHIN] == [*metrics.SLO_FACTORS, float("inf")]
