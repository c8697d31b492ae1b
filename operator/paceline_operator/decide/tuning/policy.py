"""What the tuner may and shall do: `spec.tuning`, `spec.slo` and the operator's own limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_crds import durations
from paceline_crds.spec import LLMDeploymentSpec, Runtime, value_at
from paceline_crds.spec_tuning import MaintenanceWindow, TuningMode
from paceline_operator.render.monitoring import DEFAULT_INTERVAL

ATTAINMENT = 0.99
"""Share of requests that has to meet a target where spec does not say another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What users need of one latency.

    Attributes:
        limit_s: seconds.
        attainment: share of requests that has to be within.
    """

    limit_s: float
    attainment: float = ATTAINMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of one deployment.

    Attributes:
        targets: `ttft`, `itl`, `e2e` -> target, of those that are set.
        window_s, scrape_s: length of a measurement, and time between scrapes.
        min_requests: finished requests that each arm of a comparison needs.
        warm_up_s: a pod is not measured for so long after it became ready.
        max_arm_s: an arm that is not full by then gives no verdict.
        live_budget, restart_budget: changes a day.
        changes_live: engines take settings while they run; stock vLLM takes all at its start.
    """

    mode: TuningMode = TuningMode.AUTO
    allow_live: bool = True
    allow_restart: bool = False
    targets: Mapping[str, Target] = field(default_factory=dict)
    window_s: int = 120
    scrape_s: float = 15.0
    min_requests: int = 2000
    warm_up_s: int = 60
    max_arm_s: int = 3600
    live_cooldown_s: int = 900
    restart_cooldown_s: int = 21_600
    live_budget: int = 12
    restart_budget: int = 2
    max_rollbacks: int = 3
    maintenance_windows: tuple[MaintenanceWindow, ...] = ()
    changes_live: bool = True

    @property
    def has_targets(self) -> bool:
        """Whether goodput is requests within targets; else it is output tokens."""
        return bool(self.targets)

    @property
    def can_judge(self) -> bool:
        """Whether goodput is measured: stock vLLM does not count requests within targets."""
        return self.changes_live or not self.has_targets

    @property
    def warm_up(self) -> int:
        """Seconds after readiness that do not count; at most a window, where those are short."""
        return min(self.warm_up_s, self.window_s)


def of_spec(spec: LLMDeploymentSpec) -> Policy:
    """The rules that a manifest gives."""
    tuning = spec.tuning
    is_vllm = spec.runtime is Runtime.VLLM
    mode = tuning.mode if tuning else None
    cooldown_s = _seconds(tuning.cooldown) if tuning and tuning.cooldown else None
    interval = value_at(spec, "monitoring.podMonitor.interval") or DEFAULT_INTERVAL
    defaults = Policy()
    return Policy(
        mode=mode or (TuningMode.PROPOSE if is_vllm else TuningMode.AUTO),
        allow_live=tuning.allow_live is not False if tuning else True,
        allow_restart=bool(tuning.allow_restart) if tuning else False,
        targets=_targets(spec),
        window_s=int(_seconds(tuning.window)) if tuning and tuning.window else defaults.window_s,
        scrape_s=_seconds(interval),
        min_requests=(tuning.min_requests if tuning else None) or defaults.min_requests,
        live_cooldown_s=defaults.live_cooldown_s if cooldown_s is None else int(cooldown_s),
        restart_cooldown_s=defaults.restart_cooldown_s if cooldown_s is None else int(cooldown_s),
        maintenance_windows=tuple(tuning.maintenance_windows or ()) if tuning else (),
        changes_live=not is_vllm,
    )


def _targets(spec: LLMDeploymentSpec) -> dict[str, Target]:
    found = {}
    for name in ("ttft", "itl", "e2e"):
        limit = value_at(spec, f"slo.{name}.target")
        if limit is not None:
            share = value_at(spec, f"slo.{name}.attainment")
            found[name] = Target(
                limit_s=_seconds(limit), attainment=float(share) if share else ATTAINMENT
            )
    return found


def _seconds(text: str) -> float:
    return durations.parse_ms(text) / 1000
