from functools import lru_cache

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline_crds import metrics
from paceline_crds.metrics import METRICS
from paceline_engine.core.snapshot import StatsSnapshot
from paceline_engine.serve.metrics import ServingFacts, render
from paceline_engine.testing.metrics_page import complaints
from paceline_engine.testing.story import Story

FACTS = ServingFacts(model_name='org/demo "v1"', engine="0", unix_s=1.5e9)


@pytest.fixture
def story() -> Story:
    story = Story(slo_ttft_ms=1000, slo_itl_ms=100)
    story.recorder.attach(lambda: (4, 3, 2, 1), lambda: {"Memory": 1})
    story.run(1, [0.5, 0.625, 2.625], computed=4)
    story.arrive(2, tenant='te"n\\ant')
    return story


def page(story: Story, facts: ServingFacts = FACTS) -> str:
    return render(story.stats, facts).decode()


@lru_cache(maxsize=4)
def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    labels |= {"model_name": FACTS.model_name, "engine": FACTS.engine}
    return samples(text)[name, tuple(sorted(labels.items()))]


def test_every_series_of_ours_carries_model_and_engine(story):
    for name, labels in samples(page(story)):
        if ":" in name:
            assert {"model_name", "engine"} <= {label for label, _ in labels}, name


def test_names_are_not_changed_on_the_way(story):
    text = page(story)
    # Of an engine, of policy Fair, and of a host tier.
    absent = {metrics.STARTUP_SECONDS, metrics.KV_DIVERGENCE, metrics.TENANT_VIRTUAL_TOKENS}
    absent |= {metrics.OFFLOAD_SKIPPED, metrics.OFFLOAD_USAGE, metrics.OFFLOAD_BLOCKS}
    for metric in METRICS.values():
        if metric.name not in absent:
            assert f"# TYPE {metric.name} {metric.kind.value}\n" in text


def test_buckets_are_cumulative_and_end_with_the_count(story):
    text = page(story)
    assert value(text, "vllm:inter_token_latency_seconds_bucket", le="0.1") == 0
    assert value(text, "vllm:inter_token_latency_seconds_bucket", le="0.15") == 1
    assert value(text, "vllm:inter_token_latency_seconds_bucket", le="2.5") == 2
    assert value(text, "vllm:inter_token_latency_seconds_bucket", le="+Inf") == 2
    assert value(text, "vllm:inter_token_latency_seconds_count") == 2
    assert value(text, "vllm:inter_token_latency_seconds_sum") == 2.125


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
        ("vllm:time_per_output_token_seconds_sum", "vllm:inter_token_latency_seconds_sum"),
        ("vllm:time_per_output_token_seconds_count", "vllm:inter_token_latency_seconds_count"),
    ],
)
def test_old_names_show_the_new_values(story, old, new):
    text = page(story)
    assert value(text, old) == value(text, new) > 0


def test_bounds_that_dashboards_of_vllm_use_are_all_there():
    """Quantiles of a mixed fleet need common edges."""
    itl = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
    ttft = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    latency = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
    for name, edges in (
        (metrics.ITL, (*itl, 40, 80)),
        (metrics.TTFT, (*ttft, 20, 40, 80, 160, 640, 2560)),
        (metrics.E2E, (*latency, 1920, 7680)),
        (metrics.ITERATION_TOKENS, (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 16384)),
    ):
        assert set(edges) <= set(METRICS[name].buckets), name
        assert list(METRICS[name].buckets) == sorted(METRICS[name].buckets)


def test_serving_facts_are_on_the_page(story):
    facts = ServingFacts(
        model_name=FACTS.model_name,
        is_draining=True,
        startup_seconds={"Loading": 1.5},
        unix_s=1.5e9,
    )
    text = page(story, facts)
    assert value(text, "paceline:draining") == 1
    assert value(text, "paceline:startup_seconds", phase="Loading") == 1.5
    adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert value(text, "vllm:lora_requests_info", **adapters) == 1.5e9


def test_the_page_tells_a_restart_of_the_process(story):
    assert ("process_start_time_seconds", ()) in samples(page(story))


def test_labels_with_quotes_survive(story):
    series = {"tenant": 'te"n\\ant', "kind": "prompt"}
    assert value(page(story), "paceline:served_tokens_total", **series) == 0


def test_an_engine_that_has_said_nothing_yet_has_a_page():
    text = render(StatsSnapshot(), FACTS).decode()
    assert value(text, "vllm:inter_token_latency_seconds_count") == 0


def test_promtool_finds_nothing_but_the_two_things_that_are_meant(story, require_program):
    assert complaints(page(story), require_program("promtool")) == []
