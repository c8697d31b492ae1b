from paceline_operator.decide.tuning import watch
from paceline_operator.decide.tuning.symptom import Finding, Symptom
from paceline_operator.decide.tuning.watch import Seen

KV = Symptom.KV_PRESSURE


def after(*shown: bool | None) -> tuple[Seen, ...]:
    seen: tuple[Seen, ...] = ()
    for index, one in enumerate(shown):
        evidence = {"kvUsageP95": 0.95123456 if one else 0.5}
        finding = Finding(symptom=KV, is_shown=one, evidence=evidence)
        seen = watch.advance(seen, [finding], 120 * index)
    return seen


def test_a_symptom_holds_after_three_windows_in_a_row() -> None:
    assert watch.held(after(True, True)) == frozenset()
    assert watch.held(after(True, True, True)) == {KV}


def test_one_window_without_it_begins_the_count_anew() -> None:
    assert watch.held(after(True, True, False, True, True)) == frozenset()


def test_a_symptom_that_holds_goes_after_three_calm_windows_in_a_row() -> None:
    held = (True, True, True)
    assert watch.held(after(*held, False, False)) == {KV}
    assert watch.held(after(*held, False, False, True, False, False)) == {KV}
    assert after(*held, False, False, False) == ()


def test_a_window_that_says_nothing_changes_nothing_and_is_marked() -> None:
    one = after(True, True, None, True)
    assert watch.held(one) == {KV}
    assert not after(True, True, None)[0].is_evaluated
    assert after(None)[0].shown == 0


def test_it_remembers_when_it_began_and_what_it_was_told_by() -> None:
    one = after(False, True, True, True)[0]
    assert one.since == 120
    assert one.evidence == {"kvUsageP95": 0.9512}
