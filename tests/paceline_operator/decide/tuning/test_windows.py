from paceline_operator.decide.tuning import windows
from paceline_operator.decide.tuning.signals import Window


def due(seen_end: int, now: float) -> tuple[Window, ...]:
    return windows.due(seen_end, now, length_s=120, scrape_s=15.0)


def next_due(now: float) -> float:
    return windows.next_due(now, length_s=120, scrape_s=15.0)


def test_a_window_is_due_two_scrapes_after_its_end() -> None:
    assert due(1200, 1349) == ()
    assert due(1200, 1350) == (Window(start=1200, end=1320),)


def test_a_restarted_operator_asks_for_what_nobody_looked_at() -> None:
    found = due(1200, 1710)
    assert [item.start for item in found] == [1200, 1320, 1440, 1560]


def test_after_a_long_absence_old_windows_are_left_out() -> None:
    found = due(1200, 1_000_000)
    assert len(found) == windows.AT_MOST
    assert found[-1].end <= 1_000_000 - 30


def test_the_first_look_takes_three_windows_so_that_symptoms_can_hold() -> None:
    assert len(due(0, 12_345)) == 3


def test_a_changed_length_of_windows_leaves_no_overlap() -> None:
    assert due(1250, 1500)[0].start == 1320


def test_the_next_one_is_due_when_the_grid_says() -> None:
    assert next_due(1349) == 1
    assert next_due(1350) == 120


def test_pods_count_once_they_were_warm_at_the_start() -> None:
    window = Window(start=1200, end=1320)
    ready = [("b", 1100.0), ("a", 1140.0), ("late", 1141.0)]
    assert windows.pods_of(window, ready, 60) == ("a", "b")
