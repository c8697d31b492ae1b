"""A process that starts again comes back with the settings that somebody else keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.core.errors import StartFailed
from paceline_engine.serve.step import settings_file

BOOTED = EngineSettings(max_num_seqs=8).booted()


def written(tmp_path: Path, body: Any) -> Path:
    file = tmp_path / "settings.json"
    file.write_text(body if isinstance(body, str) else json.dumps(body))
    return file


def laid(tmp_path: Path, **values: Any) -> EngineSettings:
    file = written(tmp_path, {"revision": 7, "settings": values})
    return settings_file.lay_over(BOOTED, file)[0]


def test_the_files_values_win_over_the_flags(tmp_path: Path) -> None:
    file = written(tmp_path, {"revision": 7, "settings": {"maxNumSeqs": 4, "sloTtftMs": None}})
    settings, revision = settings_file.lay_over(BOOTED, file)
    assert (settings.max_num_seqs, settings.slo_ttft_ms, revision) == (4, None, 7)
    assert settings.boot_max_num_seqs == 16


def test_a_value_above_the_boot_maximum_is_lowered_to_it(tmp_path: Path) -> None:
    assert laid(tmp_path, maxNumSeqs=400).max_num_seqs == 16


def test_a_name_of_a_newer_operator_is_ignored(tmp_path: Path) -> None:
    assert laid(tmp_path, fromTheFuture=1, maxNumSeqs=4).max_num_seqs == 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dtype": "Float32"}, "dtype needs a restart"),
        ({"maxNumSeqs": 0}, "maxNumSeqs"),
        ({"watermark": "2"}, "watermark"),
        ({"tenants": [{"name": "a"}, {"name": "a"}]}, "tenants"),
    ],
)
def test_a_value_that_cannot_be_had_ends_the_start(
    tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(StartFailed, match=words) as failed:
        laid(tmp_path, **values)
    assert failed.value.reason == "InvalidSettings"


@pytest.mark.parametrize("body", ["no json", "[]", "{}", '{"revision": "1", "settings": {}}'])
def test_another_format_ends_the_start(tmp_path: Path, body: str) -> None:
    with pytest.raises(StartFailed, match="settings file"):
        settings_file.lay_over(BOOTED, written(tmp_path, body))


def test_a_file_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="cannot be read"):
        settings_file.lay_over(BOOTED, tmp_path / "none")
