"""The dashboards of the chart, made from the names of `metrics`: a renamed metric cannot be missed.

Panels that use `vllm:` names alone also show pods of runtime VLLM.
"""

from collections.abc import Mapping

from paceline_crds import metrics as m
from paceline_crds.grafana import SELECTOR, Dashboard, Panel, Query, Row
from paceline_crds.operator_dashboard import OPERATOR

_PODS = "namespace,paceline_dev_deployment,pod"
_DEPLOYMENTS = "namespace,paceline_dev_deployment"
_DEPLOYMENT = "{{namespace}}/{{paceline_dev_deployment}}"
_POD = "{{pod}}"


def files() -> Mapping[str, str]:
    """File name without its ending -> JSON."""
    return {board.uid: board.as_json() for board in (SERVING, ENGINE, SETTINGS, OPERATOR)}


def _series(name: str, *matchers: str) -> str:
    return f"{name}{{{','.join((SELECTOR, *matchers))}}}"


def _rate(name: str, by: str, *matchers: str) -> str:
    return f"sum by ({by}) (rate({_series(name, *matchers)}[$__rate_interval]))"


def _sum(name: str, by: str) -> str:
    return f"sum by ({by}) ({_series(name)})"


def _max(name: str, by: str) -> str:
    return f"max by ({by}) ({_series(name)})"


def _share(part: str, whole: str, by: str = _DEPLOYMENTS) -> str:
    """One rate over another; no value where nothing happened, rather than a misleading 0."""
    return f"{_rate(part, by)} / ({_rate(whole, by)} > 0)"


def _mean(histogram: str, by: str = _DEPLOYMENTS) -> str:
    return _share(f"{histogram}_sum", f"{histogram}_count", by)


def _quantile(quantile: str, histogram: str) -> Query:
    buckets = _rate(f"{histogram}_bucket", f"le,{_DEPLOYMENTS}")
    return Query(f"histogram_quantile({quantile}, {buckets})", f"p{quantile[2:]} {_DEPLOYMENT}")


def _latency(title: str, histogram: str, text: str) -> Panel:
    queries = tuple(_quantile(quantile, histogram) for quantile in ("0.50", "0.95", "0.99"))
    return Panel(title=title, queries=queries, unit="s", help=text)


def _good_share() -> str:
    good = _rate(m.SLO_REQUESTS, _DEPLOYMENTS, 'result="good"')
    return f"{good} / ({_rate(m.SLO_REQUESTS, _DEPLOYMENTS)} > 0)"


def _within_target(signal: str) -> str:
    matcher = f'signal="{signal}"'
    within = _rate(m.SLO_OBSERVATIONS, _DEPLOYMENTS, matcher, 'within="1"')
    every = _rate(m.SLO_OBSERVATIONS, _DEPLOYMENTS, matcher, 'within="inf"')
    return f"{within} / ({every} > 0)"


SERVING = Dashboard(
    uid="paceline-serving",
    title="Paceline / Serving",
    description="What users get: traffic, latency, targets, failures.",
    anchor=m.RUNNING,
    rows=(
        Row(
            "Traffic",
            (
                Panel(
                    title="Ended requests",
                    queries=(Query(_rate(m.SUCCESS, "finished_reason"), "{{finished_reason}}"),),
                    unit="reqps",
                    is_stacked=True,
                ),
                Panel(
                    title="Tokens",
                    queries=(
                        Query(_rate(m.PROMPT_TOKENS, _DEPLOYMENTS), f"prompt {_DEPLOYMENT}"),
                        Query(_rate(m.GENERATION_TOKENS, _DEPLOYMENTS), f"output {_DEPLOYMENT}"),
                    ),
                    help="Tokens per second. Prompt tokens count when their prompt is done.",
                ),
                Panel(
                    title="Running and waiting",
                    queries=(
                        Query(_sum(m.RUNNING, _DEPLOYMENTS), f"running {_DEPLOYMENT}"),
                        Query(_sum(m.WAITING, _DEPLOYMENTS), f"waiting {_DEPLOYMENT}"),
                    ),
                ),
            ),
        ),
        Row(
            "Latency",
            (
                _latency("Time to first token", m.TTFT, "From arrival to the first token."),
                _latency("Between tokens", m.ITL, "Between two steps that gave a request tokens."),
                _latency("Whole request", m.E2E, "From arrival to the end."),
            ),
        ),
        Row(
            "Targets",
            (
                Panel(
                    title="Requests that met every target",
                    queries=(Query(_good_share(), _DEPLOYMENT),),
                    unit="percentunit",
                    help="Empty where spec.slo sets no target, or where no request ended.",
                ),
                Panel(
                    title="Targets in force",
                    queries=(
                        Query(
                            _max(m.SLO_TARGET, f"signal,{_DEPLOYMENTS}"),
                            f"{{{{signal}}}} {_DEPLOYMENT}",
                        ),
                    ),
                    unit="s",
                ),
                _latency("Wait before the first step", m.QUEUE_TIME, "Arrival to admission."),
            ),
        ),
        Row(
            "Where a request's time goes",
            (
                Panel(
                    title="Mean by part",
                    queries=(
                        Query(_mean(m.QUEUE_TIME), f"queue {_DEPLOYMENT}"),
                        Query(_mean(m.PREFILL_TIME), f"prefill {_DEPLOYMENT}"),
                        Query(_mean(m.DECODE_TIME), f"decode {_DEPLOYMENT}"),
                    ),
                    unit="s",
                    is_stacked=True,
                ),
                Panel(
                    title="Mean length",
                    queries=(
                        Query(_mean(m.REQUEST_PROMPT_TOKENS), f"prompt {_DEPLOYMENT}"),
                        Query(_mean(m.REQUEST_GENERATION_TOKENS), f"output {_DEPLOYMENT}"),
                    ),
                    help="Tokens of a finished request.",
                ),
            ),
        ),
    ),
)

ENGINE = Dashboard(
    uid="paceline-engine",
    title="Paceline / Engine",
    description="Why it is as fast as it is: steps, memory, queue, caches, speculation.",
    anchor=m.RUNNING,
    rows=(
        Row(
            "Steps",
            (
                _latency("Step time", m.STEP_DURATION, "From its plan to its result."),
                Panel(
                    title="Where step time goes",
                    queries=(
                        Query(_rate(m.STEP_SECONDS, f"part,{_PODS}"), f"{{{{part}}}} {_POD}"),
                    ),
                    unit="percentunit",
                    is_stacked=True,
                    help="Seconds per second. Part device is the device's busy share.",
                ),
                Panel(
                    title="Token budget used",
                    queries=(Query(_mean(m.STEP_BUDGET_USED), _DEPLOYMENT),),
                    unit="percentunit",
                    help="Near 1: steps are full, a larger maxNumBatchedTokens may help.",
                ),
                Panel(
                    title="Steps and tokens per step",
                    queries=(
                        Query(_rate(m.STEPS, _DEPLOYMENTS), f"steps/s {_DEPLOYMENT}"),
                        Query(_mean(m.ITERATION_TOKENS), f"tokens per step {_DEPLOYMENT}"),
                    ),
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel(
                    title="KV blocks in use",
                    queries=(Query(_max(m.KV_USAGE, _PODS), _POD),),
                    unit="percentunit",
                ),
                Panel(
                    title="KV blocks by state",
                    queries=(Query(_sum(m.BLOCKS, "state"), "{{state}}"),),
                    is_stacked=True,
                    help="Cached blocks are free for whoever needs them.",
                ),
                Panel(
                    title="Preemptions",
                    queries=(Query(_rate(m.PREEMPTIONS, _PODS), _POD),),
                    help="Per second. Each one computes its request's tokens again.",
                ),
                Panel(
                    title="Wasted tokens",
                    queries=(
                        Query(_rate(m.RECOMPUTED, _DEPLOYMENTS), f"recomputed {_DEPLOYMENT}"),
                        Query(_rate(m.DISCARDED, _DEPLOYMENTS), f"discarded {_DEPLOYMENT}"),
                    ),
                    help="Per second.",
                ),
            ),
        ),
        Row(
            "Queue",
            (
                Panel(
                    title="Waiting, by what for",
                    queries=(Query(_sum(m.WAITING_BY_REASON, "reason"), "{{reason}}"),),
                    is_stacked=True,
                ),
                Panel(
                    title="Oldest waiting request",
                    queries=(Query(_max(m.OLDEST_WAITING, _PODS), _POD),),
                    unit="s",
                ),
                Panel(
                    title="Tokens by tenant",
                    queries=(Query(_rate(m.SERVED_TOKENS, "tenant,kind"), "{{tenant}} {{kind}}"),),
                    is_stacked=True,
                    help="Per second.",
                ),
                Panel(
                    title="Requests by tenant",
                    queries=(
                        Query(_sum(m.TENANT_REQUESTS, "tenant,state"), "{{tenant}} {{state}}"),
                    ),
                    is_stacked=True,
                ),
            ),
        ),
        Row(
            "Caches and speculation",
            (
                Panel(
                    title="Prompt tokens found in the prefix cache",
                    queries=(Query(_share(m.PREFIX_HITS, m.PREFIX_QUERIES), _DEPLOYMENT),),
                    unit="percentunit",
                ),
                Panel(
                    title="Prompts with a shared head",
                    queries=(Query(_share(m.PROMPT_HEADS_SHARED, m.PROMPT_HEADS), _DEPLOYMENT),),
                    unit="percentunit",
                    help="How much a prefix cache could find, whether it is on or not.",
                ),
                Panel(
                    title="Accepted draft tokens",
                    queries=(Query(_share(m.SPEC_ACCEPTED, m.SPEC_DRAFT_TOKENS), _DEPLOYMENT),),
                    unit="percentunit",
                ),
                Panel(
                    title="Speculation's goodput",
                    queries=(Query(_max(m.SPECULATION_GOODPUT, _PODS), _POD),),
                    help="Accepted draft tokens per extra millisecond.",
                ),
            ),
        ),
    ),
)

SETTINGS = Dashboard(
    uid="paceline-settings",
    title="Paceline / Settings and targets",
    description="What was changed, whether all replicas have it, and what it did.",
    anchor=m.SETTINGS_REVISION,
    rows=(
        Row(
            "Effect",
            (
                Panel(
                    title="Good requests",
                    queries=(
                        Query(_rate(m.SLO_REQUESTS, _DEPLOYMENTS, 'result="good"'), _DEPLOYMENT),
                    ),
                    unit="reqps",
                    help="Goodput: ended requests per second that met every target.",
                ),
                Panel(
                    title="Requests within a target",
                    queries=tuple(
                        Query(_within_target(signal), f"{signal} {_DEPLOYMENT}")
                        for signal in m.SLO_SIGNALS
                    ),
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            "Settings",
            (
                Panel(
                    title="Numbers in force",
                    queries=(
                        Query(
                            _max(m.SETTING, f"name,{_DEPLOYMENTS}"), f"{{{{name}}}} {_DEPLOYMENT}"
                        ),
                    ),
                    help="Absent: not pinned, the engine decides.",
                ),
                Panel(
                    title="Revision by pod",
                    queries=(Query(_max(m.SETTINGS_REVISION, _PODS), _POD),),
                    help="Pods of one deployment agree when their lines meet.",
                ),
                Panel(
                    title="Changes applied since the start",
                    queries=(Query(_max(m.SETTINGS_GENERATION, _PODS), _POD),),
                ),
            ),
        ),
        Row(
            "Life of pods",
            (
                Panel(
                    title="Start by phase",
                    queries=(
                        Query(_max(m.STARTUP_SECONDS, f"phase,{_PODS}"), f"{{{{phase}}}} {_POD}"),
                    ),
                    unit="s",
                    is_stacked=True,
                ),
                Panel(title="Draining", queries=(Query(_max(m.DRAINING, _PODS), _POD),)),
            ),
        ),
    ),
)
