"""How long things of a pod may take: its start, its drain, its probes."""

from dataclasses import dataclass
from typing import Any

from paceline_crds import durations
from paceline_crds.spec import LLMDeploymentSpec
from paceline_operator.render.names import HTTP_PORT_NAME

DEFAULT_PROPAGATION_S = 10
DEFAULT_SHUTDOWN_S = 120
DEFAULT_PROGRESS_DEADLINE_S = 30 * 60
DEFAULT_IDLE_TIMEOUT_S = 5 * 60
EXIT_MARGIN_S = 10
"""Between the last answer and the end of the grace period."""
_STARTUP_PERIOD_S = 5
_START_S = 60 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds of one deployment.

    Attributes:
        propagation_s: phase 1 of a drain: still accepting, no longer ready.
        shutdown_s: most time that running requests get.
        progress_deadline_s: without progress for so long a roll-out is called stuck.
        idle_timeout_s: longest wait for a pod to become idle; 0 when it is not waited for.
    """

    propagation_s: int
    shutdown_s: int
    progress_deadline_s: int
    idle_timeout_s: int

    @property
    def grace_period_s(self) -> int:
        """`terminationGracePeriodSeconds`."""
        return self.propagation_s + self.shutdown_s + EXIT_MARGIN_S

    def probes(self, *, startup: str, live: str, ready: str) -> dict[str, Any]:
        """The three probes of a container.

        The start-up probe holds the others back, so liveness is never asked while a model loads.
        It gives up after an hour: the engine ends by itself when its start fails, and a download
        that is killed begins anew. `rollout.progressDeadline` is for the operator alone, else
        changing it would replace the pods. Liveness answers from the heartbeat of the step loop,
        whose threshold scales with the predicted step, so its own period need not.
        """
        return {
            "startupProbe": _probe(
                startup,
                period_s=_STARTUP_PERIOD_S,
                timeout_s=5,
                failures=_START_S // _STARTUP_PERIOD_S,
            ),
            "livenessProbe": _probe(live, period_s=10, timeout_s=10, failures=3),
            "readinessProbe": _probe(ready, period_s=2, timeout_s=5, failures=2),
        }


def of_spec(spec: LLMDeploymentSpec) -> Waits:
    """From spec with its defaults."""
    drain, rollout = spec.drain, spec.rollout
    propagation_s = drain.pre_stop_seconds if drain else None
    shutdown_s = drain.shutdown_timeout_seconds if drain else None
    idle_s = _seconds(rollout.idle_timeout if rollout else None, DEFAULT_IDLE_TIMEOUT_S)
    if rollout is not None and rollout.wait_for_idle is False:
        idle_s = 0
    return Waits(
        propagation_s=DEFAULT_PROPAGATION_S if propagation_s is None else propagation_s,
        shutdown_s=DEFAULT_SHUTDOWN_S if shutdown_s is None else shutdown_s,
        progress_deadline_s=_seconds(
            rollout.progress_deadline if rollout else None, DEFAULT_PROGRESS_DEADLINE_S
        ),
        idle_timeout_s=idle_s,
    )


def _seconds(duration: str | None, default: int) -> int:
    return default if duration is None else durations.parse_ms(duration) // 1000


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
        "successThreshold": 1,
    }
