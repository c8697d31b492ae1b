"""A folder is made once, whole or not at all, whoever else wants it or is killed."""

import threading
from pathlib import Path

import pytest

from paceline_engine.core.errors import StartFailed
from paceline_engine.model.made_once import made_once


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    builds = []
    inside, go_on, has_waited = threading.Event(), threading.Event(), threading.Event()

    def build() -> None:
        folder = tmp_path / "models" / "one"
        with made_once(folder, waiting=has_waited.set) as (folder, building):
            if building is not None:
                inside.set()
                go_on.wait(10)
                (building / "file").write_text("x")
                builds.append(folder)

    threads = [threading.Thread(target=build) for _ in range(3)]
    threads[0].start()
    assert inside.wait(10)
    for thread in threads[1:]:
        thread.start()
    assert has_waited.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert builds == [tmp_path / "models" / "one"]
    assert (builds[0] / "file").read_text() == "x"


def test_what_a_killed_builder_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left, others = tmp_path / ".one-abcd1234", tmp_path / ".one-more-abcd1234"
    for folder in (left, others):
        folder.mkdir()
    with made_once(tmp_path / "one") as (_, building):
        assert building is not None
    assert not left.exists()
    assert others.exists()


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    with (
        pytest.raises(StartFailed, match=r"taken.*--cache-dir") as refused,
        made_once(taken / "models" / "one"),
    ):
        pass
    assert refused.value.reason == "DownloadFailed"
    with (
        pytest.raises(StartFailed, match="No space left"),
        made_once(tmp_path / "models" / "one"),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")
    assert not [path for path in (tmp_path / "models").iterdir() if path.is_dir()]


def test_who_waits_for_another_builder_can_be_stopped(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    with made_once(tmp_path / "one") as (_, building):
        assert building is not None
        with pytest.raises(Stopped), made_once(tmp_path / "one", waiting=stop):
            pass
    assert (tmp_path / "one").is_dir()
