"""Reasons of conditions and events that no other decision has a word for already.

The others are those of Stage, Agreement, FailureReason and ConfigReason, and the tuner's own. A
constant is part of the API: people and programs compare it, so a released one never changes.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Constants, by the condition that they are told with first."""

    ALL_PODS_READY = "AllPodsReady"
    PODS_NOT_READY = "PodsNotReady"
    CHILDREN_PENDING = "ChildrenPending"
    SCALED_TO_ZERO = "ScaledToZero"
    WRONG_MODEL = "WrongModel"
    SERVING = "Serving"
    NO_POD_READY = "NoPodReady"
    PAUSED = "Paused"
    WAITING_FOR_OLD_CHILDREN = "WaitingForOldChildren"
    PROGRESS_DEADLINE = "ProgressDeadlineExceeded"
    VALID = "Valid"
    CACHED = "Cached"
    FETCHING = "Fetching"
    NOT_STARTED = "NotStarted"
    AS_EXPECTED = "AsExpected"
    TEMPLATE_VERSION_UNKNOWN = "TemplateVersionUnknown"
    CHILD_CONTENDED = "ChildContended"
    KIND_MISSING = "KindMissing"
    DEFINITION_OLDER = "DefinitionOlder"
    DEFINITION_NEWER = "DefinitionNewer"
    MEASURED = "Measured"
    NOT_EVALUATED = "NotEvaluated"
    NOT_CONFIGURED = "NotConfigured"
    PROMETHEUS_UNREACHABLE = "PrometheusUnreachable"
    QUERY_FAILED = "QueryFailed"
    NO_TARGET = "NoTarget"
    TARGETS_MET = "TargetsMet"
    TARGET_MISSED = "TargetMissed"
    BOOT_MAXIMUM_RAISED = "BootMaximumRaised"
    OVERLAY_DROPPED = "OverlayDropped"
