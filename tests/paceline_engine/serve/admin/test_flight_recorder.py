from dataclasses import asdict
from itertools import pairwise

from paceline_engine.core.step_record import StepRecord
from paceline_engine.serve.admin.flight_recorder import chrome_trace, rows


def test_rows_are_camel_cased_and_a_trace_covers_each_part_in_order() -> None:
    record = StepRecord(
        step_id=3,
        planned_s=10.0,
        applied_s=10.02,
        budget_tokens=64,
        num_preempted=2,
        plan_ms=1.0,
        forward_ms=12.0,
        sample_ms=3.0,
        apply_ms=4.0,
    )
    (row,) = rows([asdict(record)])
    assert (row["stepId"], row["numPreempted"], row["forwardMs"]) == (3, 2, 12.0)
    events = chrome_trace([row])["traceEvents"]
    step = next(event for event in events if event["name"] == "step 3")
    assert (step["ts"], step["dur"]) == (9.999e6, 20_000.0)
    parts = [event for event in events if event.get("tid") == 2]
    assert [event["name"] for event in parts] == ["plan", "forward", "sample", "apply"]
    assert parts[1]["ts"] == parts[0]["ts"] + parts[0]["dur"]
    assert sum(event["dur"] for event in parts) == step["dur"]


def test_in_a_trace_steps_that_overlap_lie_in_two_lanes() -> None:
    """Step 1 is planned while step 0 runs, and so on: spans of one lane must not overlap."""
    records = [
        StepRecord(
            step_id=number,
            planned_s=max(0.0, 0.01 * (number - 1)),
            applied_s=0.01 * (number + 1),
            budget_tokens=64,
            queued_ms=10.0 if number else 0.0,
            forward_ms=9.0,
            sample_ms=1.0,
        )
        for number in range(6)
    ]
    events = chrome_trace(rows(list(map(asdict, records))))["traceEvents"]
    parts = [event["name"] for event in events if event.get("tid") in (2, 4)]
    assert parts == [
        *("plan", "forward", "sample", "apply"),
        *(("plan", "queued", "forward", "sample", "apply") * 5),
    ]
    for lane in (1, 3):
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("tid") == lane]
        assert len(spans) == 3
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
