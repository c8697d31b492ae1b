from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pydantic.alias_generators import to_camel

from paceline_crds.knob import ChangeClass
from paceline_crds.settings import EngineSettings, SchedulingPolicy, knobs
from paceline_engine.core.errors import SettingRefused
from paceline_engine.core.live_settings import MAX_REVISION, SettingsBook, parse_changes


def book(**fields: Any) -> SettingsBook:
    return SettingsBook(EngineSettings(**fields), generation=0, revision=7)


def refusal(of: SettingsBook, changes: dict[str, Any], revision: Any = None) -> SettingRefused:
    before = of.state
    with pytest.raises(SettingRefused) as info:
        of.patch(changes, revision)
    assert of.state is before, "a refused change changed something"
    return info.value


def test_a_change_answers_with_what_was_and_what_is():
    change = book().patch({"maxNumSeqs": 64, "schedulingPolicy": "Priority", "sloTtftMs": 500})
    assert (change.generation, change.revision) == (1, 8)
    assert change.old == {"maxNumSeqs": 128, "schedulingPolicy": "Fcfs", "sloTtftMs": None}
    assert change.new == {"maxNumSeqs": 64, "schedulingPolicy": "Priority", "sloTtftMs": 500}


def test_the_new_settings_are_in_force_and_typed():
    of = book()
    of.patch({"schedulingPolicy": "Priority", "watermark": "0.05"})
    assert of.state.settings.scheduling_policy is SchedulingPolicy.PRIORITY
    assert of.state.settings.watermark == "0.05"


@pytest.mark.parametrize(
    "changes",
    [
        {"maxNumSeqs": 0},
        {"maxNumSeqs": 65_537},
        {"maxNumSeqs": "64"},
        {"maxNumSeqs": True},
        {"maxNumSeqs": 64.5},
        {"maxNumSeqs": None},
        {"maxNumSeqs": [64]},
        {"maxNumSeqs": float("nan")},
        {"maxNumSeqs": object()},
        {"schedulingPolicy": "fastest"},
        {"watermark": "1.5"},
        {"prefixCaching": 1},
        {"noSuchSetting": 1},
        {"max_num_seqs": 64},
        {"blockSize": 17},
    ],
    ids=repr,
)
def test_what_is_outside_the_absolute_bounds_is_a_bad_request_that_names_the_field(changes):
    error = refusal(book(), changes)
    assert (error.status, error.field) == (400, next(iter(changes)))
    assert error.field in str(error)


@pytest.mark.parametrize(
    "changes", [{"blockSize": 32}, {"dtype": "Float32"}, {"bootMaxNumSeqs": 512}], ids=repr
)
def test_what_needs_a_restart_is_a_conflict_that_names_field_and_class(changes):
    error = refusal(book(), changes)
    assert (error.status, error.field) == (409, next(iter(changes)))
    assert "restart" in str(error)


def test_drafts_that_nobody_would_propose_are_a_conflict():
    error = refusal(book(boot_max_speculative_num_tokens=4), {"speculativeNumTokens": 2})
    assert (error.status, error.field) == (409, "speculativeNumTokens")
    assert "got 2 with method None" in str(error)


def test_a_value_above_the_boot_maximum_is_a_conflict():
    error = refusal(book(max_num_seqs=100), {"maxNumSeqs": 201})
    assert (error.status, error.field) == (409, "maxNumSeqs")
    assert "bootMaxNumSeqs (200)" in str(error)
    assert "restart" in str(error)


def test_a_value_at_the_boot_maximum_is_taken():
    assert book(max_num_seqs=100).patch({"maxNumSeqs": 200}).new == {"maxNumSeqs": 200}


def test_one_bad_value_refuses_the_good_ones_with_it():
    refusal(book(), {"maxNumSeqs": 64, "watermark": "2"})
    refusal(book(), {"maxNumSeqs": 64, "blockSize": 32})
    refusal(book(), {"maxNumSeqs": 64, "maxNumBatchedTokens": 1_000_000})


def test_a_restart_setting_that_stays_as_it_is_does_not_hinder():
    of = book()
    everything = of.state.settings.on_border() | {"maxNumSeqs": 32}
    assert of.patch(everything).new == {"maxNumSeqs": 32}


def test_an_optional_target_can_be_taken_off():
    of = book(inter_token_target_ms=50)
    assert of.patch({"interTokenTargetMs": None}).new == {"interTokenTargetMs": None}


def test_a_lower_revision_is_refused():
    error = refusal(book(), {"maxNumSeqs": 64}, 6)
    assert (error.status, error.field) == (412, "revision")


def test_an_equal_revision_with_other_content_is_refused():
    error = refusal(book(), {"maxNumSeqs": 64}, 7)
    assert (error.status, error.field) == (412, "maxNumSeqs")


def test_an_equal_revision_with_equal_content_is_the_same_change_once_more():
    of = book()
    first = of.patch({"maxNumSeqs": 64}, 9)
    again = of.patch({"maxNumSeqs": 64}, 9)
    assert (again.generation, again.revision) == (first.generation, 9)
    assert again.new == {}


def test_a_higher_revision_that_changes_nothing_moves_the_revision_alone():
    of = book()
    change = of.patch({"maxNumSeqs": 128}, 12)
    assert (change.generation, change.revision, change.new) == (0, 12, {})


def test_a_stale_writer_hears_that_it_is_stale_before_it_hears_of_conflicts():
    assert refusal(book(), {"blockSize": 32}, 3).status == 412


@pytest.mark.parametrize("revision", [-1, "8", 8.0, True, 2**53, 10**30])
def test_a_revision_must_be_a_number(revision):
    error = refusal(book(), {"maxNumSeqs": 64}, revision)
    assert (error.status, error.field) == (400, "revision")


def test_no_revision_comes_after_the_last_one():
    of = book()
    of.patch({}, MAX_REVISION)
    error = refusal(of, {"maxNumSeqs": 64})
    assert (error.status, error.field) == (409, "revision")
    assert of.state.revision == MAX_REVISION


LIVE = [to_camel(name) for name, knob in knobs().items() if knob.change is ChangeClass.LIVE]
ANY_VALUE = st.one_of(
    st.none(),
    st.integers(-1, 600),
    st.sampled_from(["Fcfs", "Priority", "Fair", "0.01", "0.5", "x"]),
    st.booleans(),
)


class Writers(RuleBasedStateMachine):
    """Several writers push changes with any revisions; the book never steps back."""

    def __init__(self) -> None:
        super().__init__()
        self.book = SettingsBook(EngineSettings())
        self.seen = self.book.state
        self.refused_with: set[int] = set()

    @rule(
        changes=st.dictionaries(st.sampled_from([*LIVE, "blockSize"]), ANY_VALUE, max_size=3),
        revision=st.one_of(st.none(), st.integers(0, 12)),
    )
    def patch(self, changes, revision):
        before = self.book.state
        try:
            change = self.book.patch(changes, revision)
        except SettingRefused as error:
            self.refused_with.add(error.status)
            assert self.book.state is before
            return
        after = self.book.state
        border = after.settings.on_border()
        assert all(border[name] == value for name, value in changes.items())
        assert after.generation - before.generation == (before.settings != after.settings)
        assert change.revision == (before.revision + 1 if revision is None else revision)

    @invariant()
    def refusals_have_one_of_three_reasons(self):
        assert self.refused_with <= {400, 409, 412}

    @invariant()
    def generation_and_revision_never_fall(self):
        now = self.book.state
        assert now.revision >= self.seen.revision
        assert now.generation >= self.seen.generation
        self.seen = now

    @invariant()
    def settings_are_valid_as_a_whole(self):
        fields = self.book.state.settings.model_dump()
        assert EngineSettings.model_validate(fields) == self.book.state.settings


Writers.TestCase.settings = hypothesis_settings(max_examples=25, stateful_step_count=15)
TestWriters = pytest.mark.slow(Writers.TestCase)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"maxNumSeqs": "8"},
            'maxNumSeqs must be an integer from 1 to 65536 (requests), got "8"',
        ),
        (
            {"longPrefillTokens": -1},
            "longPrefillTokens must be an integer from 0 to 1048576 or null (tokens), got -1",
        ),
        (
            {"watermark": "2"},
            'watermark must be a decimal below 1 as text, such as "0.01", got "2"',
        ),
    ],
)
def test_a_wrong_value_is_told_what_was_expected_and_what_was_found(change, message):
    with pytest.raises(SettingRefused) as refused:
        parse_changes(change)
    assert str(refused.value) == message


def test_tenants_change_live_and_null_takes_them_away() -> None:
    book = SettingsBook(EngineSettings())
    change = book.patch({"schedulingPolicy": "Fair", "tenants": [{"name": "gold", "weight": 3}]})
    full = {"name": "gold", "weight": 3, "maxSeqs": None, "budgetShare": "1"}
    assert (change.old["tenants"], change.new["tenants"]) == (None, [full])
    again = book.patch({"tenants": [full]})
    assert (again.old, again.new) == ({}, {})
    assert book.patch({"tenants": None}).new == {"tenants": None}


@pytest.mark.parametrize(
    "tenants",
    [
        "gold",
        [{"name": "gold", "weight": 0}],
        [{"name": "gold", "weight": "3"}],
        [{"name": "_other"}],
        [{"name": "gold"}, {"name": "gold"}],
        [{"name": "gold", "budgetShare": 0.5}],
        [{"name": f"t{number}"} for number in range(65)],
    ],
)
def test_tenants_that_cannot_be_are_refused_whole(tenants: object) -> None:
    book = SettingsBook(EngineSettings())
    with pytest.raises(SettingRefused) as refused:
        book.patch({"maxNumSeqs": 5, "tenants": tenants})
    assert (refused.value.status, refused.value.field) == (400, "tenants")
    assert book.state.settings.max_num_seqs == 128
