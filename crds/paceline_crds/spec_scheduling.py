"""`spec.slo`, `scheduling`, `kvCache` and `speculative`: what the engine's settings fill."""

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from paceline_crds.group import Group, settings_at
from paceline_crds.rules import Rule
from paceline_crds.settings import SpeculativeMethod

Attainment = Annotated[str, StringConstraints(max_length=6, pattern=r"^0\.[5-9][0-9]{0,3}$")]


class SignalTarget(Group):
    """A target and the share of requests that has to meet it."""

    attainment: Attainment | None = None
    """Share of requests that meets the target, 0.5 to 0.9999, as text. Default: "0.99"."""


@settings_at("slo.ttft", required=("target",))
class TtftTarget(SignalTarget):
    """Time to first token."""


@settings_at("slo.itl", required=("target",))
class ItlTarget(SignalTarget):
    """Gap between two tokens of a stream."""


@settings_at("slo.e2e", required=("target",))
class E2eTarget(SignalTarget):
    """Duration of a whole request."""


class Slo(Group):
    """What latency the users need. A request is good when it meets every target given."""

    ttft: TtftTarget | None = None
    """Time to first token."""
    itl: ItlTarget | None = None
    """Gap between two tokens of a stream."""
    e2e: Annotated[E2eTarget | None, Field(alias="e2e")] = None
    """Duration of a whole request."""


@settings_at("scheduling.queue")
class Queue(Group):
    """How many requests may wait, and for how long."""


@settings_at("scheduling")
class Scheduling(Group):
    """Limits in force and what the memory is planned for."""

    queue: Queue | None = None
    """How many requests may wait, and for how long."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.tenants) || (has(self.policy) && self.policy == 'Fair')",
            "scheduling.tenants needs scheduling.policy: Fair; set the policy or remove tenants",
            lambda group: group.given("tenants") is None or group.given("policy") == "Fair",
        ),
    )


@settings_at("kvCache.offload")
class Offload(Group):
    """Where KV blocks go that the device has no room for."""


@settings_at("kvCache")
class KvCache(Group):
    """The KV cache."""

    offload: Offload | None = None
    """Where KV blocks go that the device has no room for."""


def _has_method(group: "Speculative", *methods: SpeculativeMethod) -> bool:
    return group.given("method") in methods


@settings_at("speculative")
class Speculative(Group):
    """Draft tokens that one step verifies together."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.minLookup) || !has(self.maxLookup) || self.minLookup <= self.maxLookup",
            "speculative.minLookup must be <= maxLookup; lower minLookup or raise maxLookup",
            lambda group: (
                group.given("min_lookup") is None
                or group.given("max_lookup") is None
                or group.given("min_lookup") <= group.given("max_lookup")
            ),
        ),
        Rule(
            "!(has(self.minLookup) || has(self.maxLookup)) || "
            "(has(self.method) && self.method == 'Ngram')",
            "speculative.minLookup and maxLookup are for method Ngram; set method: Ngram or "
            "remove them",
            lambda group: (
                (group.given("min_lookup") is None and group.given("max_lookup") is None)
                or _has_method(group, SpeculativeMethod.NGRAM)
            ),
        ),
        Rule(
            "has(self.model) == (has(self.method) && self.method in ['DraftModel', 'Eagle'])",
            "speculative.model and the methods DraftModel and Eagle belong together; give the "
            "draft model's uri with such a method, and only then",
            lambda group: (
                (group.given("model") is not None)
                == _has_method(group, SpeculativeMethod.DRAFT_MODEL, SpeculativeMethod.EAGLE)
            ),
        ),
        Rule(
            "!has(self.numTokens) || self.numTokens == 0 || "
            "(has(self.method) && self.method != 'None')",
            "speculative.numTokens needs a method; set speculative.method or numTokens: 0",
            lambda group: (
                not group.given("num_tokens")
                or group.given("method") not in {None, SpeculativeMethod.NONE}
            ),
        ),
        Rule(
            "!has(self.method) || self.method == 'None' || has(self.numTokens) || "
            "(has(self.bootMaxNumTokens) && self.bootMaxNumTokens > 0)",
            "speculative.method needs numTokens, the most draft tokens of a step; give it (0 turns "
            "them off), or bootMaxNumTokens for a tuner to raise it to",
            lambda group: (
                group.given("method") in {None, SpeculativeMethod.NONE}
                or group.given("num_tokens") is not None
                or bool(group.given("boot_max_num_tokens"))
            ),
        ),
    )
