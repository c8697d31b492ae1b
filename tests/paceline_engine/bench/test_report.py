"""Figures from answers whose times are known."""

from paceline_engine.bench import report
from paceline_engine.bench.client import Answer, Load, Mode
from paceline_engine.bench.workloads import WorkItem, Workload


def answer(group: str, due_s: float, times_s: list[float], error: str = "") -> Answer:
    item = WorkItem(group=group, prompt_token_ids=(1, 2), prompt="", max_tokens=len(times_s))
    return Answer(
        item=item,
        due_s=due_s,
        sent_s=due_s,
        end_s=times_s[-1],
        status=200,
        error=error,
        token_times_s=times_s,
        num_prompt_tokens=2,
        num_output_tokens=len(times_s),
    )


def row(*answers: Answer) -> dict[str, object]:
    workload = Workload(name="w", seed=1, items=tuple(a.item for a in answers))
    return report.row_of(workload, Load(mode=Mode.SCHEDULE), answers, client_cpu_s=0.5)


def test_latencies_count_from_when_a_request_was_due() -> None:
    got = row(answer("g", 1.0, [1.1, 1.2, 1.4]), answer("g", 0.0, [0.3]))
    assert got["ttft_ms"] == {
        "n": 2,
        "mean": 200.0,
        "p50": 200.0,
        "p90": 280.0,
        "p99": 298.0,
        "max": 300.0,
    }
    itl = got["itl_ms"]
    assert isinstance(itl, dict)
    assert (itl["n"], itl["max"]) == (2, 200.0)
    assert got["output_tokens_per_s"] == round(4 / 1.4, 2)
    assert got["total_tokens_per_s"] == round(8 / 1.4, 2)


def test_failed_requests_count_as_errors_and_not_as_throughput() -> None:
    got = row(answer("g", 0.0, [0.5, 1.0]), answer("g", 0.0, [0.5, 9.0], error="lost"))
    assert (got["errors"], got["error_sample"]) == (1, ["lost"])
    assert got["duration_s"] == 1.0
    assert got["output_tokens"] == 2


def test_groups_are_reported_apart_and_gaps_under_a_prefill_alone() -> None:
    steady = answer("steady", 0.0, [0.1, 0.2, 0.9, 1.0])
    big = answer("big", 0.3, [0.8])
    got = row(steady, big)
    groups = got["groups"]
    assert isinstance(groups, dict)
    assert groups["big"]["ttft_ms"]["p50"] == 500.0
    under = got["itl_under_prefill_ms"]
    assert isinstance(under, dict)
    assert under["share_of_gaps"] == round(1 / 3, 4)
    assert under["gaps"]["max"] == 700.0
    assert under["steady_outlives_prefills"] is True


def test_a_table_aligns_and_shows_what_is_missing() -> None:
    lines = report.table([row(answer("g", 0.0, [0.5]))]).splitlines()
    assert lines[0].split()[:3] == ["workload", "mode", "req"]
    assert "-" in lines[1].split()
