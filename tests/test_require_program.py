import pytest


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
