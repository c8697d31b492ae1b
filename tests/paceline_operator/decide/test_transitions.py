"""What status and events make of verdicts."""

from dataclasses import replace

from paceline_operator.decide import conditions, transitions
from paceline_operator.decide.conditions import Facts, Refusal, Verdict
from paceline_operator.decide.failures import Failure, FailureReason
from paceline_operator.decide.rollout import Stage
from paceline_operator.decide.settings_push import Agreement

GOOD = Facts(
    replicas=2,
    num_pods=2,
    num_ready=2,
    num_serving=2,
    agreement=Agreement.AGREED,
    model_name="demo",
)
BROKEN = Failure(reason=FailureReason.OUT_OF_MEMORY, message="9 GB wanted")


def ready(facts: Facts = GOOD) -> Verdict:
    return next(item for item in conditions.verdicts(facts) if item.type == "Ready")


def test_a_time_of_transition_changes_with_the_status_alone() -> None:
    first = transitions.as_status([ready()], [], 1, 100.0)
    again = transitions.as_status([ready()], first, 2, 200.0)
    assert again[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert again[0]["observedGeneration"] == 2
    lost = transitions.as_status([ready(replace(GOOD, num_ready=1))], again, 2, 300.0)
    assert lost[0]["lastTransitionTime"] > first[0]["lastTransitionTime"]


def test_events_are_for_transitions_and_each_reason_once() -> None:
    before = transitions.as_status(conditions.verdicts(GOOD), [], 1, 100.0)
    assert transitions.events(conditions.verdicts(GOOD), before) == ()
    broken = conditions.verdicts(replace(GOOD, num_ready=1, failure=BROKEN))
    (event,) = transitions.events(broken, before)
    assert (event.type, event.reason) == ("Warning", "OutOfMemory")


def test_stages_that_alternate_for_each_pod_make_one_event() -> None:
    rolling = replace(GOOD, stage=Stage.ROLLING_OUT, num_old=1)
    before = transitions.as_status(conditions.verdicts(rolling), [], 1, 100.0)
    draining = conditions.verdicts(replace(rolling, stage=Stage.DRAINING))
    assert transitions.events(draining, before) == ()


def test_children_that_come_into_being_make_no_event_of_their_own() -> None:
    empty = replace(GOOD, replicas=0, num_pods=0, num_ready=0, num_serving=0)
    before = transitions.as_status(
        conditions.verdicts(replace(empty, missing=("Service/demo",))), [], 1, 100.0
    )
    assert transitions.events(conditions.verdicts(empty), before) == ()


def test_a_message_is_never_longer_than_the_schema_allows() -> None:
    refusal = Refusal(reason="InvalidSpec", message="x" * 100_000)
    made = conditions.verdicts(replace(GOOD, refusal=refusal))
    shown = transitions.as_status(made, [], 1, 0.0)
    assert max(len(item["message"]) for item in shown) == transitions.LONGEST_MESSAGE
