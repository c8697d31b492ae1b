"""The table of promises in e2e/README.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "e2e" / "README.md"
TESTS = ("e2e/journeys", "tests")


def test_every_test_in_the_table_exists() -> None:
    _, _, below = README.read_text(encoding="utf-8").partition("## What each promise is shown by")
    rows = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    numbers = [int(found[1]) for row in rows if (found := re.match(r"\| (\d+)\.", row))]
    assert numbers == [*range(1, 12), *range(19, 31)], "each rule and each pitfall once"
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    assert named
    defined = {
        name
        for folder in TESTS
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
    }
    assert named <= defined, f"no such test: {sorted(named - defined)}"
