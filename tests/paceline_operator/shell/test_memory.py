"""What is remembered between reconciles: failures in a row, and fights over a child."""

from paceline_operator.decide.actions import Apply, PatchSettings
from paceline_operator.shell.memory import Memory

MANIFEST = {"kind": "Service", "metadata": {"name": "demo"}, "spec": {"a": 1}}
APPLY = Apply(manifest=MANIFEST, uid="u1", resource_version="5")


def test_a_single_conflict_is_no_failure_a_second_one_is() -> None:
    memory = Memory("u1")
    memory.refused(APPLY, 409, "Conflict", "changed")
    assert memory.shown_failures() == ()
    memory.refused(APPLY, 409, "Conflict", "changed")
    (told,) = memory.shown_failures()
    assert (told.action, told.target, told.times) == ("Apply", "Service/demo", 2)
    memory.succeeded(APPLY, 1.0)
    assert memory.shown_failures() == ()


def test_what_a_plan_does_not_want_any_more_has_not_failed() -> None:
    memory = Memory("u1")
    memory.refused(APPLY, 403, "Forbidden", "no")
    memory.keep_only([PatchSettings(pod="p", pod_uid="u", changes={}, revision=1)])
    assert memory.shown_failures() == ()


def test_the_same_content_written_again_counts_for_ten_minutes() -> None:
    memory = Memory("u1")
    for moment in (0.0, 100.0, 200.0):
        memory.succeeded(APPLY, moment)
    assert memory.rewrites(200.0) == {"Service/demo": 2}
    assert memory.rewrites(750.0) == {"Service/demo": 1}
    assert memory.rewrites(900.0) == {}


def test_new_content_is_no_rewrite() -> None:
    memory = Memory("u1")
    memory.succeeded(APPLY, 0.0)
    other = {**MANIFEST, "spec": {"a": 2}}
    memory.succeeded(Apply(manifest=other, uid="u1", resource_version="6"), 1.0)
    assert memory.rewrites(1.0) == {}


def test_status_counts_as_rewritten_where_somebody_else_had_changed_it() -> None:
    memory = Memory("u1")
    ours, theirs = {"replicas": 1}, {"replicas": 7}
    memory.wrote_status({}, ours, 0.0)
    memory.wrote_status(ours, {"replicas": 2}, 1.0)
    assert memory.rewrites(2.0) == {}, "it was ours to change"
    memory.wrote_status(theirs, ours, 3.0)
    assert memory.rewrites(4.0) == {"LLMDeployment/status": 1}
    memory.status = None
    memory.wrote_status(theirs, ours, 5.0)
    assert memory.rewrites(6.0) == {"LLMDeployment/status": 1}, "nobody knows whose it was"
