"""What a plan consists of: each action is one write, in the order in which they are carried out.

`stops_plan` says what happens when a write is refused: if true the rest of the plan is left for the
next reconcile, since it relies on this write; if false the others go on and the failure is shown.
A write that is refused because its object changed meanwhile (409) ends the plan at once, whatever
it is; when that repeats, `stops_plan` says it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Server-side apply of one child, with the operator's field manager.

    With `uid` the object exists: uid and resourceVersion go into the patch as preconditions and
    the apply is forced. Without, it must not exist yet: the apply is not forced, so that it
    conflicts with an object of somebody else instead of taking it over.
    """

    manifest: Mapping[str, Any]
    uid: str | None = None
    resource_version: str | None = None
    is_optional: bool = False
    """Serving does not need it: a refusal does not end the plan."""

    @property
    def stops_plan(self) -> bool:
        """Whether the rest of the plan relies on it."""
        return not self.is_optional

    @property
    def target(self) -> str:
        """`Kind/name`."""
        return f"{self.manifest['kind']}/{self.manifest['metadata']['name']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete one child, with preconditions; an object that has gone already is no failure."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str | None
    stops_plan: ClassVar[bool] = True

    @property
    def target(self) -> str:
        """`Kind/name`."""
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStatus:
    """Replace the whole status; with resourceVersion, so never over a newer object."""

    status: Mapping[str, Any]
    uid: str
    resource_version: str
    stops_plan: ClassVar[bool] = True
    target: ClassVar[str] = "LLMDeployment/status"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToPod:
    """What goes to one pod, and to no other of its name."""

    pod: str
    pod_uid: str

    @property
    def target(self) -> str:
        """`Kind/name`."""
        return f"Pod/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSettings(_ToPod):
    """`PATCH /v1/paceline/settings` of one pod with `{**changes, "revision": revision}`."""

    changes: Mapping[str, Any]
    revision: int
    stops_plan: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPod(_ToPod):
    """`POST /v1/paceline/drain` of one pod."""

    propagation_s: float
    stops_plan: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatePod(_ToPod):
    """Merge-patch annotations of one pod, with its uid; None takes an annotation away."""

    annotations: Mapping[str, str | None]
    stops_plan: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod(_ToPod):
    """Delete one pod, with its uid; its ReplicaSet makes another one."""

    stops_plan: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event on the LLMDeployment, and the same line in the log. A loss is no failure."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str
    stops_plan: ClassVar[bool] = False
    target: ClassVar[str] = "Event"


Action = Apply | Delete | WriteStatus | PatchSettings | DrainPod | AnnotatePod | DeletePod | Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Actions in order, and when to look again even if nothing is heard.

    Attributes:
        requeue_after_s: None: an event or the resync is soon enough.
        asks_readings: whether the next plan needs the engines' answers (False while a deployment
            is paused, deleted or not ours).
    """

    actions: tuple[Action, ...] = ()
    requeue_after_s: float | None = None
    asks_readings: bool = True
