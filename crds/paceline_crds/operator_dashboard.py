"""The dashboard of the operator itself: is it acting, does it keep up, what is not served."""

from paceline_crds import operator_metrics as m
from paceline_crds.grafana import OF_OPERATOR, OPERATOR_SELECTOR, Dashboard, Panel, Query, Row


def _series(name: str) -> str:
    return f"{name}{{{OPERATOR_SELECTOR}}}"


def _max(name: str, by: str) -> Query:
    """Standing replicas hold the same cache: their values are no sum."""
    return Query(f"max by ({by}) ({_series(name)})", f"{{{{{by}}}}}")


def _rate(name: str, by: str) -> Query:
    return Query(f"sum by ({by}) (rate({_series(name)}[$__rate_interval]))", f"{{{{{by}}}}}")


def _quantile(quantile: str) -> Query:
    buckets = f"sum by (le) (rate({_series(m.RECONCILE_SECONDS + '_bucket')}[$__rate_interval]))"
    return Query(f"histogram_quantile({quantile}, {buckets})", f"p{quantile[2:]}")


OPERATOR = Dashboard(
    uid="paceline-operator",
    title="Paceline / Operator",
    description="Whether the operator acts and keeps up, and which LLMDeployments are not served.",
    anchor=m.IS_LEADER,
    variables=OF_OPERATOR,
    rows=(
        Row(
            "LLMDeployments",
            (
                Panel(
                    title="By the condition Ready",
                    queries=(_max(m.DEPLOYMENTS, "ready"),),
                    is_stacked=True,
                ),
                Panel(
                    title="Down",
                    queries=(
                        Query(
                            f"max by (deployment_namespace, deployment) "
                            f"({_series(m.DEPLOYMENT_DOWN)})",
                            "{{deployment_namespace}}/{{deployment}}",
                        ),
                    ),
                    help="Failing, and no pod serves: kubectl describe says which pod and why.",
                ),
            ),
        ),
        Row(
            "Work",
            (
                Panel(
                    title="Reconciles by result",
                    queries=(_rate(m.RECONCILES, "result"),),
                    unit="ops",
                    help="failed: an unexpected error, the log has it. refused: the API server or "
                    "an engine said no, the condition Degraded has it.",
                ),
                Panel(
                    title="Duration of a reconcile",
                    queries=tuple(_quantile(quantile) for quantile in ("0.50", "0.99")),
                    unit="s",
                ),
                Panel(
                    title="Waiting or in work",
                    queries=(_max(m.QUEUE_LENGTH, "pod"),),
                    help="A line that stays up: more workers, or an API server that is slow.",
                ),
            ),
        ),
        Row(
            "Process",
            (
                Panel(
                    title="Acts (holds the Lease)",
                    queries=(_max(m.IS_LEADER, "pod"),),
                    help="One line at 1. None: see the alert PacelineOperatorHasNoLeader.",
                ),
                Panel(
                    title="Writes to the API server",
                    queries=(_rate(m.API_WRITES, "kind"),),
                    unit="ops",
                    help="Silent while nothing changes, but for the Lease.",
                ),
                Panel(title="Objects in the cache", queries=(_max(m.OBJECTS, "kind"),)),
            ),
        ),
    ),
)
