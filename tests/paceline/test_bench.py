"""What is asked of `paceline bench` before anything is measured."""

from pathlib import Path

import pytest

from paceline import bench_sim, cli
from paceline.errors import CommandError


@pytest.mark.parametrize("flag", ["--api-key-file", "--admin-token-file"])
def test_a_file_without_a_secret_is_told_under_its_own_flag(tmp_path: Path, flag: str) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# nothing but a comment\n", encoding="utf-8")
    args = cli.build_parser().parse_args(["bench", "sim", "--model", "m", flag, str(empty)])
    with pytest.raises(CommandError, match=f"^{flag}: .*empty must hold a line"):
        args.handler(args)


def test_workloads_carry_their_rate():
    runs = bench_sim.runs_of("shared_prefix@0.6,interference", 8)
    assert [(run.name, run.rate, run.limit) for run in runs] == [
        ("shared_prefix", 0.6, 8),
        ("interference", 0.0, 8),
    ]


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ("nothing", "must be among"),
        ("mixed@0", "a number > 0"),
        ("mixed@x", "a number > 0"),
        ("mixed,mixed@2", "once"),
    ],
)
def test_a_wrong_workload_is_told_before_anything_runs(workload: str, told: str) -> None:
    with pytest.raises(CommandError, match=told):
        bench_sim.runs_of(workload, 8)


@pytest.mark.parametrize("change", ["maxNumSeqs", "maxNumSeqs=0", "nothing=1"])
def test_a_wrong_change_is_told_before_anything_runs(change: str) -> None:
    args = cli.build_parser().parse_args(["bench", "what-if", "--model", "m", "--set", change])
    with pytest.raises(CommandError, match="--set"):
        args.handler(args)
