"""What a step of the tuner may look at, beside its own state and the time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_operator.decide.tuning.dials import Dials
from paceline_operator.decide.tuning.policy import Policy
from paceline_operator.decide.tuning.signals import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The pods of one deployment.

    Attributes:
        replicas: wanted; num_pods, num_ready: of the wanted template.
        is_rolling_out: pods of another template are there, or some of this one are missing.
        is_agreed: every counted pod has read back the settings that are wanted.
        num_others: pods of other templates that take requests.
        crashes: restarts of the pods' containers, all together.
        is_out_of_memory: the last of them ended for lack of memory.
    """

    replicas: int = 1
    num_pods: int = 1
    num_ready: int = 1
    num_others: int = 0
    is_rolling_out: bool = False
    is_agreed: bool = True
    crashes: int = 0
    is_out_of_memory: bool = False

    @property
    def num_serving(self) -> int:
        """Pods that share the requests."""
        return self.num_ready + self.num_others


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that a step may look at.

    Attributes:
        samples: windows that were due, oldest first.
        fingerprint: tells a spec that was changed, replicas and `paused` aside.
        overlay_kept: names of overlay entries that hold over the present base.
        lack_of_metrics: why no sample came (reason of MetricsAvailable), empty if all is well.
        approve, reject: ids that a person wrote into annotations.
        is_frozen: a person's annotation; is_operator_frozen: the whole operator.
        may_start: fewer changes are in flight in the whole operator than it allows.
    """

    policy: Policy
    dials: Dials
    fleet: Fleet = field(default_factory=Fleet)
    samples: tuple[Sample, ...] = ()
    fingerprint: str = ""
    overlay_kept: frozenset[str] = frozenset()
    lack_of_metrics: str = ""
    lack_text: str = ""
    is_paused: bool = False
    is_frozen: bool = False
    is_operator_frozen: bool = False
    may_start: bool = True
    approve: str = ""
    reject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What happened, told once: an event and a line of the log.

    Attributes:
        asks_for: id of the change that a person may approve or reject, empty if nobody is asked.
    """

    reason: str
    message: str
    is_bad: bool = False
    asks_for: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
