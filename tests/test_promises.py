"""Tables that say which test shows what name tests that exist."""

import re
from pathlib import Path

from paceline_operator.decide.tuning.symptom import Symptom

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "e2e" / "README.md"
TUNER = ROOT / "operator" / "paceline_operator" / "decide" / "tuning" / "README.md"
TESTS = ("e2e/journeys", "tests")


def defined() -> set[str]:
    """Names of all tests."""
    return {
        name
        for folder in TESTS
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
    }


def test_every_test_in_the_table_exists() -> None:
    _, _, below = README.read_text(encoding="utf-8").partition("## What each promise is shown by")
    rows = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    numbers = [int(found[1]) for row in rows if (found := re.match(r"\| (\d+)\.", row))]
    assert numbers == [*range(1, 12), *range(19, 31)], "each rule and each pitfall once"
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    assert named
    assert named <= defined(), f"no such test: {sorted(named - defined())}"


def test_every_symptom_and_guard_rail_of_the_tuner_names_tests_that_exist() -> None:
    text = TUNER.read_text(encoding="utf-8")
    symptoms, _, guards = text.partition("## Guard-rails")
    shown = "".join(line for line in symptoms.splitlines() if line.startswith("| "))
    assert [name for name in Symptom if name.value not in shown] == []
    rails = [line for line in guards.splitlines() if line.startswith("| ")][1:]
    assert all("`test_" in line for line in rails)
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named <= defined(), f"no such test: {sorted(named - defined())}"
