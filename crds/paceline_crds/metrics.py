"""Every metric of the engine, declared once: name, type, labels, help, bucket bounds.

Names that begin with `vllm:` have vLLM's types, labels and bucket bounds (some edges are added,
none is taken away), so dashboards, autoscalers and routers made for it work as they are. Ours begin
with `paceline:`. Each series also carries `model_name` and `engine`. No bound depends on a setting.
"""

from dataclasses import dataclass
from enum import StrEnum

COMMON_LABELS = ("model_name", "engine")

FINISHED_REASONS = ("stop", "length", "abort", "error", "timeout")
SLO_SIGNALS = ("ttft", "itl", "e2e")
SLO_RESULTS = ("good", "bad")
SLO_FACTORS = (0.5, 0.8, 1.0, 1.25, 2.0)
"""Multiples of a target at which observations are counted."""
SLO_WITHIN = ("0.5", "0.8", "1", "1.25", "2", "inf")
BLOCK_STATES = ("active", "cached", "free")
STEP_PARTS = ("schedule", "host", "device", "apply")
TOKEN_KINDS = ("prompt", "generation")
REQUEST_STATES = ("running", "waiting")

_ITL = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_LATENCY = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_STEP_TOKENS = tuple(float(n) for n in (1, *(2**i for i in range(3, 15)), 32768))
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
_COPY_BYTES = (
    1e5,
    *(m * 1e6 for m in (1.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0)),
    1e9,
)
_USAGE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)


class Kind(StrEnum):
    """Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family.

    Attributes:
        name: as scraped; counters end in `_total`.
        labels: besides the common ones.
        buckets: upper bounds of a histogram, ascending, without infinity.
        alias_of: the family whose values this one repeats under an old name.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    alias_of: str = ""


def _gauge(name: str, text: str, *labels: str, alias_of: str = "") -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=text, labels=labels, alias_of=alias_of)


def _counter(name: str, text: str, *labels: str, alias_of: str = "") -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=text, labels=labels, alias_of=alias_of)


def _histogram(name: str, text: str, buckets: tuple[float, ...], alias_of: str = "") -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, help=text, buckets=buckets, alias_of=alias_of)


RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
SUCCESS = "vllm:request_success_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
SPEC_DRAFTS = "vllm:spec_decode_num_drafts_total"
SPEC_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
SPEC_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
CACHE_CONFIG = "vllm:cache_config_info"
EXTERNAL_QUERIES = "vllm:external_prefix_cache_queries_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
OFFLOAD_STORE_BYTES = "vllm:kv_offload_store_bytes_total"
OFFLOAD_STORE_TIME = "vllm:kv_offload_store_time_total"
OFFLOAD_STORE_SIZE = "vllm:kv_offload_store_size"
OFFLOAD_LOAD_BYTES = "vllm:kv_offload_load_bytes_total"
OFFLOAD_LOAD_TIME = "vllm:kv_offload_load_time_total"
OFFLOAD_LOAD_SIZE = "vllm:kv_offload_load_size"
OFFLOAD_SKIPPED = "vllm:kv_offload_stores_skipped_total"
OFFLOAD_USAGE = "vllm:kv_offload_cpu_cache_usage_perc"
LORA_REQUESTS = "vllm:lora_requests_info"
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E = "vllm:e2e_request_latency_seconds"
QUEUE_TIME = "vllm:request_queue_time_seconds"
PREFILL_TIME = "vllm:request_prefill_time_seconds"
DECODE_TIME = "vllm:request_decode_time_seconds"
INFERENCE_TIME = "vllm:request_inference_time_seconds"
REQUEST_PROMPT_TOKENS = "vllm:request_prompt_tokens"
REQUEST_GENERATION_TOKENS = "vllm:request_generation_tokens"
REQUEST_MAX_TOKENS = "vllm:request_params_max_tokens"
REQUEST_MAX_GENERATION = "vllm:request_max_num_generation_tokens"
REQUEST_PREEMPTIONS = "vllm:request_num_preemptions"
ITERATION_TOKENS = "vllm:iteration_tokens_total"

RECOMPUTED = "paceline:recomputed_tokens_total"
OFFLOAD_SAVED = "paceline:kv_offload_saved_tokens_total"
OFFLOAD_BLOCKS = "paceline:kv_offload_blocks"
DISCARDED = "paceline:discarded_tokens_total"
BLOCKS = "paceline:kv_blocks"
BLOCK_SHARES = "paceline:kv_blocks_share"
KV_USAGE_HISTOGRAM = "paceline:kv_cache_usage"
STEP_SECONDS = "paceline:step_seconds_total"
STEP_DURATION = "paceline:step_duration_seconds"
STEP_BUDGET_USED = "paceline:step_budget_used"
STEPS = "paceline:steps_total"
WAITING_BY_REASON = "paceline:requests_not_admitted"
OLDEST_WAITING = "paceline:oldest_waiting_seconds"
SERVED_TOKENS = "paceline:served_tokens_total"
TENANT_REQUESTS = "paceline:tenant_requests"
TENANT_VIRTUAL_TOKENS = "paceline:tenant_virtual_tokens"
TENANT_YIELDS = "paceline:tenant_yields_total"
TENANT_REFUSED = "paceline:tenant_refused_total"
PROMPT_HEADS = "paceline:prompt_heads_total"
PROMPT_HEADS_SHARED = "paceline:prompt_heads_shared_total"
SLO_REQUESTS = "paceline:slo_requests_total"
SLO_OBSERVATIONS = "paceline:slo_observations_total"
SLO_TARGET = "paceline:slo_target_seconds"
SLO_REVISION = "paceline:slo_revision"
SETTING = "paceline:setting"
SETTINGS_INFO = "paceline:settings_info"
SETTINGS_GENERATION = "paceline:settings_generation"
SETTINGS_REVISION = "paceline:settings_revision"
SPECULATION_GOODPUT = "paceline:speculation_goodput"
STARTUP_SECONDS = "paceline:startup_seconds"
KV_DIVERGENCE = "paceline:kv_cache_divergence"
DRAINING = "paceline:draining"

_ALL = (
    _gauge(RUNNING, "Requests that hold a place in the batch."),
    _gauge(WAITING, "Requests that wait, preempted ones included."),
    _gauge(KV_USAGE, "Share of the KV blocks that requests refer to; 1 is full."),
    _counter(PREEMPTIONS, "Preemptions."),
    _counter(
        PROMPT_TOKENS, "Prompt tokens of requests whose prompt is done, cached ones included."
    ),
    _counter(GENERATION_TOKENS, "Output tokens that clients get."),
    _counter(SUCCESS, "Ended requests by reason.", "finished_reason"),
    _counter(PREFIX_QUERIES, "Prompt tokens looked up in the prefix cache at first admission."),
    _counter(PREFIX_HITS, "Prompt tokens found in the prefix cache at first admission."),
    _counter(
        EXTERNAL_QUERIES,
        "Prompt tokens looked up in the host tier at first admission: those that the device lacks.",
    ),
    _counter(EXTERNAL_HITS, "Prompt tokens loaded from the host tier at first admission."),
    _counter(OFFLOAD_STORE_BYTES, "Bytes of KV blocks copied to the host tier."),
    _counter(OFFLOAD_STORE_TIME, "Seconds that copies to the host tier took."),
    _histogram(OFFLOAD_STORE_SIZE, "Bytes copied to the host tier in one step.", _COPY_BYTES),
    _counter(OFFLOAD_LOAD_BYTES, "Bytes of KV blocks loaded from the host tier."),
    _counter(OFFLOAD_LOAD_TIME, "Seconds that loads from the host tier took."),
    _histogram(OFFLOAD_LOAD_SIZE, "Bytes loaded from the host tier in one step.", _COPY_BYTES),
    _counter(
        OFFLOAD_SKIPPED,
        "Evicted KV blocks that were not stored: to copy them costs more than to compute them.",
    ),
    _gauge(OFFLOAD_USAGE, "Share of the host tier that holds KV blocks; absent without one."),
    _counter(SPEC_DRAFTS, "Drafts, one per request and step that had draft tokens."),
    _counter(SPEC_DRAFT_TOKENS, "Draft tokens."),
    _counter(SPEC_ACCEPTED, "Draft tokens that were accepted."),
    _gauge(
        *(CACHE_CONFIG, "Facts of the KV cache; always 1."),
        *("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
        "gpu_memory_utilization",
    ),
    _gauge(
        *(LORA_REQUESTS, "Adapters in use; the value is the Unix time of this answer."),
        *("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
    ),
    _histogram(TTFT, "From arrival to the first token.", _TTFT),
    _histogram(ITL, "Between two steps that gave a request tokens.", _ITL),
    _histogram(TPOT, "Mean time per output token of a finished request.", _ITL),
    _histogram(E2E, "From arrival to the end of a request.", _LATENCY),
    _histogram(QUEUE_TIME, "From arrival to the first admission.", _LATENCY),
    _histogram(PREFILL_TIME, "From the first admission to the first token.", _LATENCY),
    _histogram(DECODE_TIME, "From the first to the last token.", _LATENCY),
    _histogram(INFERENCE_TIME, "From the first admission to the last token.", _LATENCY),
    _histogram(REQUEST_PROMPT_TOKENS, "Prompt tokens of a finished request.", _TOKENS),
    _histogram(REQUEST_GENERATION_TOKENS, "Output tokens of a finished request.", _TOKENS),
    _histogram(REQUEST_MAX_TOKENS, "max_tokens of a finished request.", _TOKENS),
    _histogram(
        REQUEST_MAX_GENERATION, "Output tokens that a finished request could have had.", _TOKENS
    ),
    _histogram(
        REQUEST_PREEMPTIONS,
        "Preemptions of a finished request.",
        (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    ),
    _histogram(
        ITERATION_TOKENS, "Tokens computed in a step, drafts and recompute included.", _STEP_TOKENS
    ),
    _gauge("vllm:gpu_cache_usage_perc", "Old name of kv_cache_usage_perc.", alias_of=KV_USAGE),
    _counter(
        "vllm:gpu_prefix_cache_queries_total",
        "Old name of prefix_cache_queries_total.",
        alias_of=PREFIX_QUERIES,
    ),
    _counter(
        "vllm:gpu_prefix_cache_hits_total",
        "Old name of prefix_cache_hits_total.",
        alias_of=PREFIX_HITS,
    ),
    _gauge("vllm:gpu_prefix_cache_hit_rate", "Prefix hits per query since the start."),
    _histogram(
        "vllm:time_per_output_token_seconds",
        "Old name of inter_token_latency_seconds.",
        _ITL,
        alias_of=ITL,
    ),
    _counter(RECOMPUTED, "Tokens computed again because preemption took their blocks."),
    _counter(
        OFFLOAD_SAVED,
        "Tokens of preempted requests that were loaded from the host tier, not computed again.",
    ),
    _gauge(OFFLOAD_BLOCKS, "KV blocks of the host tier by state; absent without one.", "state"),
    _counter(DISCARDED, "Tokens computed but given to nobody: behind a stop, or void."),
    _gauge(BLOCKS, "KV blocks by state; active includes those that a step still uses.", "state"),
    _gauge(BLOCK_SHARES, "Share of the KV blocks by state; the three add up to 1.", "state"),
    _histogram(KV_USAGE_HISTOGRAM, "Share of active KV blocks, once per step.", _USAGE),
    _counter(STEPS, "Steps."),
    _counter(
        STEP_SECONDS,
        "Where the time of steps went; the rate of part device is its busy share.",
        "part",
    ),
    _histogram(STEP_DURATION, "A step from its plan to its result.", _STEP),
    _histogram(STEP_BUDGET_USED, "Computed tokens of a step over the token budget.", _USAGE),
    _gauge(WAITING_BY_REASON, "Requests that wait, by what they wait for.", "reason"),
    _gauge(OLDEST_WAITING, "Age of the request that has waited longest since its arrival."),
    _counter(SERVED_TOKENS, "Tokens served to a tenant.", "tenant", "kind"),
    _gauge(TENANT_REQUESTS, "Requests of a tenant.", "tenant", "state"),
    _gauge(
        TENANT_VIRTUAL_TOKENS,
        "Cost of what was computed for a tenant over its weight, under policy Fair: who waits with "
        "the least is served next.",
        "tenant",
    ),
    _counter(TENANT_YIELDS, "Running requests preempted for a tenant that got less.", "tenant"),
    _counter(TENANT_REFUSED, "Requests refused with 429: their tenant filled the queue.", "tenant"),
    _counter(PROMPT_HEADS, "Requests whose prompt is long enough to have a head."),
    _counter(PROMPT_HEADS_SHARED, "Requests whose head was seen before another continuation."),
    _counter(SLO_REQUESTS, "Ended requests that met every target that is set, or not.", "result"),
    _counter(
        SLO_OBSERVATIONS,
        "Requests whose signal was at most so many times its target; inf counts all.",
        *("signal", "within"),
    ),
    _gauge(SLO_TARGET, "Targets in force; absent when none is set.", "signal"),
    _gauge(SLO_REVISION, "Generation of the settings that last changed a target."),
    _gauge(SETTING, "Numeric settings in force; absent when not pinned.", "name"),
    _gauge(
        *(SETTINGS_INFO, "Settings in force that are words; always 1."),
        *("dtype", "kv_cache_dtype", "scheduling_policy", "speculative_method", "batching"),
    ),
    _gauge(SETTINGS_GENERATION, "Changes of settings that this engine has applied."),
    _gauge(SETTINGS_REVISION, "Revision of the settings, given by who writes them."),
    _gauge(SPECULATION_GOODPUT, "Accepted draft tokens per extra millisecond, measured."),
    _gauge(STARTUP_SECONDS, "How long each phase of the start took.", "phase"),
    _gauge(
        KV_DIVERGENCE,
        "How far logits with an FP8 KV cache part from those with a full one, measured at the "
        "start; absent for a full one.",
        "measure",
    ),
    _gauge(DRAINING, "1 while the engine is being emptied to stop."),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
