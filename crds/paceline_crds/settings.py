"""Every setting of the engine, declared once.

The CRD's schema, the flags of `paceline serve`, the body of the live settings API, the tuner's
grid and the reference in `docs/settings.md` are all generated from this model.
"""

from enum import StrEnum
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from paceline_crds import speculation
from paceline_crds.knob import ChangeClass, Knob
from paceline_crds.quantities import Quantity
from paceline_crds.tenants import Tenants

LIVE = ChangeClass.LIVE
RESTART = ChangeClass.RESTART


class DType(StrEnum):
    """Number format of activations; `Auto` is chosen by a measurement on the machine."""

    AUTO = "Auto"
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"


class KvCacheDType(StrEnum):
    """Number format of the KV cache; `Auto` follows `dtype`."""

    AUTO = "Auto"
    FP8 = "FP8"


class SchedulingPolicy(StrEnum):
    """Order in which waiting requests are admitted and running ones get budget."""

    FCFS = "Fcfs"
    PRIORITY = "Priority"
    FAIR = "Fair"


class Batching(StrEnum):
    """`Static` runs one batch to its end before the next; it exists to be compared with."""

    CONTINUOUS = "Continuous"
    STATIC = "Static"


class SpeculativeMethod(StrEnum):
    """Proposer of draft tokens."""

    NONE = "None"
    NGRAM = "Ngram"
    SUFFIX = "Suffix"
    DRAFT_MODEL = "DraftModel"
    EAGLE = "Eagle"
    MTP = "Mtp"


class EngineSettings(BaseModel):
    """Settings of one engine. Attributes are snake_case, names on every border camelCase.

    A value of None means "not pinned": the engine derives it at start (see each help text).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, strict=False
    )

    dtype: Annotated[DType, Knob(change=RESTART, spec="dtype")] = Field(
        default=DType.AUTO,
        description="Number format of activations and KV cache. On a CPU BFloat16 rounds the KV "
        "cache, and activations only where its bfloat16 units measure faster; Auto is Float32 "
        "(tokens of float32) unless they do.",
    )
    max_model_len: Annotated[
        int | None, Knob(change=RESTART, unit="tokens", spec="maxModelLen")
    ] = Field(
        default=None,
        ge=8,
        le=10_000_000,
        description="Longest request, prompt plus output. Default: the model's own, capped to what "
        "the KV cache holds.",
    )
    tensor_parallel_size: Annotated[
        int, Knob(change=RESTART, unit="devices", spec="tensorParallelSize")
    ] = Field(default=1, ge=1, le=64, description="Devices that share one copy of the model.")
    batching: Annotated[Batching, Knob(change=RESTART)] = Field(
        default=Batching.CONTINUOUS,
        description="Static batching exists for comparison: a batch runs to its end before the "
        "next one starts.",
    )

    scheduling_policy: Annotated[SchedulingPolicy, Knob(change=LIVE, spec="scheduling.policy")] = (
        Field(
            default=SchedulingPolicy.FCFS,
            description="Who is admitted first and served first when the budget is short.",
        )
    )
    max_num_batched_tokens: Annotated[
        int,
        Knob(
            change=LIVE,
            unit="tokens",
            spec="scheduling.maxNumBatchedTokens",
            boot_maximum="boot_max_num_batched_tokens",
            tunable=True,
        ),
    ] = Field(
        default=2048,
        ge=1,
        le=1_048_576,
        description="Token budget of one step, prompts and outputs together.",
    )
    max_num_seqs: Annotated[
        int,
        Knob(
            change=LIVE,
            unit="requests",
            spec="scheduling.maxNumSeqs",
            boot_maximum="boot_max_num_seqs",
            tunable=True,
        ),
    ] = Field(default=128, ge=1, le=65_536, description="Requests that run at the same time.")
    boot_max_num_batched_tokens: Annotated[
        int | None, Knob(change=RESTART, unit="tokens", spec="scheduling.bootMaxNumBatchedTokens")
    ] = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Largest token budget that memory is planned for. Default: twice "
        "maxNumBatchedTokens.",
    )
    boot_max_num_seqs: Annotated[
        int | None, Knob(change=RESTART, unit="requests", spec="scheduling.bootMaxNumSeqs")
    ] = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Most running requests that memory is planned for. Default: twice maxNumSeqs.",
    )
    overlap: Annotated[bool, Knob(change=LIVE, spec="scheduling.overlap")] = Field(
        default=False,
        description="Plan a step while the one before is computed, and take its results late. The "
        "tokens are the same; a request that arrives may wait a step longer, and one that ends by "
        "a stop computes a token too many. Steps with drafts never overlap.",
    )
    inter_token_target_ms: Annotated[
        int | None, Knob(change=LIVE, unit="ms", spec="scheduling.interTokenTargetMs", tunable=True)
    ] = Field(
        default=None,
        ge=0,
        le=600_000,
        description="Target for the gap between two tokens of a stream; prefill is kept to what "
        "fits; 0 = off. Default: the target of slo.itl, else off.",
    )
    long_prefill_tokens: Annotated[
        int | None,
        Knob(change=LIVE, unit="tokens", spec="scheduling.longPrefillTokens", tunable=True),
    ] = Field(
        default=None,
        ge=0,
        le=1_048_576,
        description="Most prompt tokens that one request computes in a step while others run; 0 "
        "turns the cap off. Default: half of the token budget.",
    )
    priority_aging_s: Annotated[int, Knob(change=LIVE, unit="s", spec="scheduling.aging")] = Field(
        default=30,
        ge=0,
        le=86_400,
        description="Under policy Priority a waiting request gains one priority level each so many "
        "seconds; 0 turns aging off.",
    )
    tenants: Annotated[Tenants | None, Knob(change=LIVE, spec="scheduling.tenants")] = Field(
        default=None,
        description="Tenants of policy Fair, as a list of {name, weight, maxSeqs, budgetShare}. "
        "Whoever is not in it has weight 1 and no caps. While there is one, tenants do not share "
        "cached prefixes unless a request names a cache_salt.",
    )
    trust_tenant_header: Annotated[
        bool, Knob(change=RESTART, spec="scheduling.trustTenantHeader")
    ] = Field(
        default=False,
        description="Let the header X-Paceline-Tenant name the tenant of a request, instead of its "
        "API key; for a gateway that sets it.",
    )
    watermark: Annotated[str, Knob(change=LIVE, spec="scheduling.watermark", tunable=True)] = Field(
        default="0.01",
        max_length=6,
        pattern=r"^0(\.[0-9]{1,4})?$",
        description="Share of the KV blocks that admission leaves free for running requests.",
    )
    queue_max_requests: Annotated[
        int, Knob(change=LIVE, unit="requests", spec="scheduling.queue.maxRequests")
    ] = Field(
        default=1024,
        ge=0,
        le=1_000_000,
        description="Waiting requests beyond which new ones are refused with 503 and Retry-After.",
    )
    queue_max_tokens: Annotated[
        int, Knob(change=LIVE, unit="tokens", spec="scheduling.queue.maxTokens")
    ] = Field(
        default=4_000_000,
        ge=0,
        le=1_000_000_000,
        description="Waiting prompt tokens beyond which new requests are refused with 503.",
    )
    queue_timeout_s: Annotated[
        int, Knob(change=LIVE, unit="s", spec="scheduling.queue.timeout")
    ] = Field(
        default=600,
        ge=0,
        le=86_400,
        description="A request that has not started after so long is answered with 408; 0 = never.",
    )

    kv_cache_dtype: Annotated[
        KvCacheDType, Knob(change=RESTART, spec="kvCache.dtype", tunable=True)
    ] = Field(default=KvCacheDType.AUTO, description="Number format of the KV cache.")
    gpu_memory_utilization: Annotated[
        str, Knob(change=RESTART, spec="kvCache.gpuMemoryUtilization", tunable=True)
    ] = Field(
        default="0.92",
        max_length=6,
        pattern=r"^(0\.[0-9]{1,4}|1(\.0{1,4})?)$",
        description="Share of the device's memory that the engine may use. On a CPU: of the memory "
        "that is free at start, at most 4 GiB of it for KV.",
    )
    block_size: Annotated[int, Knob(change=RESTART, unit="tokens", spec="kvCache.blockSize")] = (
        Field(default=16, ge=8, le=128, multiple_of=8, description="Tokens in one KV block.")
    )
    num_kv_blocks: Annotated[int | None, Knob(change=RESTART, unit="blocks")] = Field(
        default=None,
        ge=2,
        le=100_000_000,
        description="Number of KV blocks, instead of what the memory plan gives.",
    )
    prefix_caching: Annotated[
        bool, Knob(change=LIVE, spec="kvCache.prefixCaching", flag="--enable-prefix-caching")
    ] = Field(default=True, description="Reuse the KV blocks of equal prompt prefixes.")
    kv_offload_host_memory: Annotated[
        Quantity | None, Knob(change=RESTART, unit="bytes", spec="kvCache.offload.hostMemory")
    ] = Field(
        default=None,
        description="Host memory for KV blocks that the device gives away, such as 16Gi; needs "
        "prefixCaching. They come back where that is faster than to compute them.",
    )

    speculative_method: Annotated[
        SpeculativeMethod, Knob(change=RESTART, spec="speculative.method")
    ] = Field(default=SpeculativeMethod.NONE, description="Proposer of draft tokens.")
    speculative_model: Annotated[str | None, Knob(change=RESTART, spec="speculative.model")] = (
        Field(
            default=None,
            min_length=1,
            max_length=1024,
            pattern=r"^((hf|file)://\S+|[^:\s]+)$",
            description="The model that drafts, for methods DraftModel and Eagle: hf://org/name "
            "or a folder where the engine runs. Its tokens are those of the served model.",
        )
    )
    speculative_num_tokens: Annotated[
        int,
        Knob(
            change=LIVE,
            unit="tokens",
            spec="speculative.numTokens",
            boot_maximum="boot_max_speculative_num_tokens",
            tunable=True,
        ),
    ] = Field(default=0, ge=0, le=32, description="Most draft tokens of a request in a step.")
    boot_max_speculative_num_tokens: Annotated[
        int | None, Knob(change=RESTART, unit="tokens", spec="speculative.bootMaxNumTokens")
    ] = Field(
        default=None,
        ge=0,
        le=32,
        description="Most draft tokens that memory is planned for. Default: speculativeNumTokens.",
    )
    speculative_adaptive: Annotated[bool, Knob(change=LIVE, spec="speculative.adaptive")] = Field(
        default=True,
        description="Draft as many tokens, up to speculativeNumTokens, as pay by the goodput "
        "measured, none included. Off: always as many as there are.",
    )
    speculative_min_lookup: Annotated[
        int, Knob(change=RESTART, unit="tokens", spec="speculative.minLookup")
    ] = Field(
        default=2,
        ge=1,
        le=64,
        description="Shortest suffix of the context that method Ngram looks up in it.",
    )
    speculative_max_lookup: Annotated[
        int, Knob(change=RESTART, unit="tokens", spec="speculative.maxLookup")
    ] = Field(
        default=4,
        ge=1,
        le=64,
        description="Longest suffix of the context that method Ngram looks up in it.",
    )

    slo_ttft_ms: Annotated[int | None, Knob(change=LIVE, unit="ms", spec="slo.ttft.target")] = (
        Field(default=None, ge=1, le=86_400_000, description="Target of time to first token.")
    )
    slo_itl_ms: Annotated[int | None, Knob(change=LIVE, unit="ms", spec="slo.itl.target")] = Field(
        default=None,
        ge=1,
        le=86_400_000,
        description="Target of the gap between two tokens: the 99th percentile of a request's own.",
    )
    slo_e2e_ms: Annotated[int | None, Knob(change=LIVE, unit="ms", spec="slo.e2e.target")] = Field(
        default=None,
        ge=1,
        le=86_400_000,
        alias="sloE2eMs",
        description="Target of a whole request's duration.",
    )

    @model_validator(mode="after")
    def _boot_maxima_bound_the_limits(self) -> "EngineSettings":
        for name, knob in knobs().items():
            if not knob.boot_maximum:
                continue
            value, boot = getattr(self, name), getattr(self, knob.boot_maximum)
            if boot is not None and value > boot:
                raise ValueError(
                    f"{to_camel(name)} must be <= {to_camel(knob.boot_maximum)} ({boot}), got "
                    f"{value}; raise {to_camel(knob.boot_maximum)}, which needs a restart"
                )
        return self

    @model_validator(mode="after")
    def _speculation_is_whole(self) -> "EngineSettings":
        is_said = "speculative_num_tokens" in self.model_fields_set  # 0, too: drafts are off
        # The operator leaves live settings out of the flags, and pins the maximum that follows.
        speculation.check(
            self.speculative_method,
            model=self.speculative_model,
            num_tokens=self.speculative_num_tokens,
            is_planned=is_said or self.boot_max_speculative_num_tokens is not None,
            lookups=(self.speculative_min_lookup, self.speculative_max_lookup),
        )
        return self

    @property
    def step_target_ms(self) -> int | None:
        """What a step should take at most while streams run; None = no target."""
        own = self.inter_token_target_ms
        return (self.slo_itl_ms if own is None else own) or None

    def booted(self) -> "EngineSettings":
        """Every boot maximum resolved, as an engine has them once it runs."""
        update: dict[str, Any] = {}
        for name, knob in knobs().items():
            if knob.boot_maximum and getattr(self, knob.boot_maximum) is None:
                factor = 1 if name == "speculative_num_tokens" else 2
                update[knob.boot_maximum] = factor * getattr(self, name)
        return self.model_copy(update=update)

    def on_border(self) -> dict[str, Any]:
        """Names in camelCase and JSON values, as the live settings API shows them."""
        return self.model_dump(mode="json", by_alias=True)

    def written_on_border(self) -> dict[str, Any]:
        """The same of those alone that were set: what is left out stays for a device to decide."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


@cache
def border_name(name: str) -> str:
    """The setting's one name outside of Python: `max_num_seqs` -> `maxNumSeqs`."""
    return EngineSettings.model_fields[name].alias or to_camel(name)


@cache
def border_names(change: ChangeClass | None = None) -> dict[str, str]:
    """Name on a border -> snake_case, of one change class or all. Shared: not to be changed."""
    return {
        border_name(name): name
        for name, knob in knobs().items()
        if change is None or knob.change is change
    }


@cache
def knobs() -> dict[str, Knob]:
    """snake_case name -> metadata, in declaration order. Shared: not to be changed."""
    return {
        name: next(item for item in field.metadata if isinstance(item, Knob))
        for name, field in EngineSettings.model_fields.items()
    }
