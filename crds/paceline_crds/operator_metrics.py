"""Every metric of the operator, declared once. Its series carry no label of a model or an engine.

A scrape by the chart's monitors adds `namespace`, which is the operator's own; labels about an
LLMDeployment are therefore called otherwise.
"""

from paceline_crds.metrics import Kind, Metric

RECONCILE_RESULTS = ("unchanged", "written", "refused", "conflict", "gone", "failed")
READY_STATUSES = ("True", "False", "Unknown")

RECONCILES = "paceline_operator_reconciles_total"
RECONCILE_SECONDS = "paceline_operator_reconcile_seconds"
QUEUE_LENGTH = "paceline_operator_queue_length"
IS_LEADER = "paceline_operator_is_leader"
API_WRITES = "paceline_operator_api_writes_total"
OBJECTS = "paceline_operator_objects"
DEPLOYMENTS = "paceline_operator_deployments"
DEPLOYMENT_DOWN = "paceline_operator_deployment_down"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_ALL = (
    Metric(
        name=RECONCILES,
        kind=Kind.COUNTER,
        help="Looks at LLMDeployments by what came of them.",
        labels=("result",),
    ),
    Metric(
        name=RECONCILE_SECONDS,
        kind=Kind.HISTOGRAM,
        help="Duration of one look at one LLMDeployment, its writes included.",
        buckets=_SECONDS,
    ),
    Metric(
        name=QUEUE_LENGTH,
        kind=Kind.GAUGE,
        help="LLMDeployments that wait to be looked at now, or are being looked at.",
    ),
    Metric(name=IS_LEADER, kind=Kind.GAUGE, help="1 while this replica acts."),
    Metric(
        name=API_WRITES,
        kind=Kind.COUNTER,
        help="Write requests sent to the API server.",
        labels=("kind",),
    ),
    Metric(name=OBJECTS, kind=Kind.GAUGE, help="Objects in the cache.", labels=("kind",)),
    Metric(
        name=DEPLOYMENTS,
        kind=Kind.GAUGE,
        help="LLMDeployments by the status of their condition Ready.",
        labels=("ready",),
    ),
    Metric(
        name=DEPLOYMENT_DOWN,
        kind=Kind.GAUGE,
        help="1 for each LLMDeployment with a failure (Degraded) of which no pod can serve.",
        labels=("deployment_namespace", "deployment"),
    ),
)

OPERATOR_METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
