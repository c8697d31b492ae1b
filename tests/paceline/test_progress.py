"""The start of the replicas on a terminal and in a file."""

from paceline.progress import Progress, line


def test_a_phase_is_told_in_words_with_its_progress() -> None:
    assert line([{"phase": "Loading", "progress": 0.42}]) == "loading weights 42%"
    assert line([{"phase": "Ready", "progress": 1.0}]) == "ready"
    assert line([None]) == "starting a process"


def test_several_replicas_share_a_line() -> None:
    got = line([{"phase": "Ready"}, {"phase": "Fetching", "progress": 0.0}])
    assert got == "replica 0: ready; replica 1: fetching the model"


def test_a_terminal_sees_every_change_in_place() -> None:
    written: list[str] = []
    progress = Progress(written.append, is_terminal=True)
    for text in ("loading weights 1%", "loading weights 1%", "loading weights 2%"):
        progress.show(text)
    progress.end()
    assert written == ["\r\x1b[2Kloading weights 1%", "\r\x1b[2Kloading weights 2%", "\n"]


def test_a_file_gets_one_line_for_each_phase() -> None:
    written: list[str] = []
    progress = Progress(written.append, is_terminal=False)
    for text in ("loading weights 1%", "loading weights 2%", "ready"):
        progress.show(text)
    progress.end()
    assert written == ["loading weights\n", "ready\n"]
