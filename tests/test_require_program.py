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
