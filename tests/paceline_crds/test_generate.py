"""Generated files are up to date, and a check that fails says what to do."""

from pathlib import Path

import pytest
import yaml

from paceline_crds import flags, generate
from paceline_crds.settings import border_name, knobs

pytestmark = pytest.mark.slow  # the definition is long, and PyYAML writes it in Python


def test_the_committed_files_are_up_to_date() -> None:
    assert generate.differences(generate.ROOT) == ""


def test_the_check_shows_a_difference_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main([], tmp_path) == 0
    assert generate.main(["--check"], tmp_path) == 0
    page = tmp_path / "docs" / "settings.md"
    page.write_text(page.read_text(encoding="utf-8").replace("maxNumSeqs", "maxSeqs"))
    assert generate.main(["--check"], tmp_path) == 1
    told = capsys.readouterr().err
    assert "+| `maxNumSeqs`" in told
    assert "run python -m paceline_crds.generate and commit" in told


def test_the_check_writes_nothing(tmp_path: Path) -> None:
    assert generate.main(["--check"], tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_definition_is_yaml_without_anchors() -> None:
    text = generate.files()["crds/llmdeployments.paceline.dev.yaml"]
    assert yaml.safe_load(text)["metadata"]["name"] == "llmdeployments.paceline.dev"
    assert "&id" not in text


def test_the_reference_has_a_row_for_every_setting() -> None:
    page = generate.files()["docs/settings.md"]
    for name in knobs():
        assert f"| `{border_name(name)}` | `{flags.flag_of(name)}` |" in page
