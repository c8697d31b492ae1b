import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_a_program_that_is_there_is_found(require_program):
    assert require_program("sh").endswith("/sh")


@pytest.mark.parametrize(
    ("value", "outcome"), [("all", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_missing_program_skips_by_name_and_fails_a_complete_run(
    require_program, monkeypatch, value, outcome
):
    monkeypatch.setenv("PACELINE_REQUIRE", value)
    with pytest.raises(outcome, match="no-such-program"):
        require_program("no-such-program")


def test_what_else_could_be_installed_is_left_out_the_same_way(leave_out, monkeypatch):
    monkeypatch.setenv("PACELINE_REQUIRE", "all")
    with pytest.raises(pytest.fail.Exception, match="needs a compiler"):
        leave_out("needs a compiler")


@pytest.mark.slow
@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("all", "1 failed")])
def test_what_needs_the_cpp_kernels_is_left_out_where_nothing_can_compile(
    tmp_path, required, outcome
):
    of_kernels = "paceline_kernels/test_sampling.py::test_only_the_named_rows_are_sampled"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{TESTS}/{of_kernels}"],
        check=False,
        cwd=TESTS.parent,
        env={**os.environ, "PATH": str(tmp_path), "PACELINE_REQUIRE": required},
        capture_output=True,
        text=True,
    )
    assert outcome in done.stdout
    assert "needs the C++ kernels: impl 'cpu' needs a C++ compiler" in done.stdout
