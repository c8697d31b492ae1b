"""Keys and slots of the host tier."""

import pytest

from paceline_engine.core.host_index import HostIndex


def test_the_least_recently_used_block_gives_way() -> None:
    index = HostIndex(2)
    first, second = index.put(b"a"), index.put(b"b")
    assert sorted([first, second]) == [0, 1]
    index.use(b"a")
    index.unpin()
    assert index.put(b"c") == second
    assert b"b" not in index
    assert index.num_used == 2
    index.check()


def test_content_that_is_held_is_not_stored_again_and_stays_longer() -> None:
    index = HostIndex(2)
    index.put(b"a")
    second = index.put(b"b")
    assert index.put(b"a") is None
    assert index.put(b"c") == second


def test_a_slot_that_is_about_to_be_read_is_not_given_away() -> None:
    index = HostIndex(2)
    index.put(b"a")
    second = index.put(b"b")
    assert index.use(b"b") == second
    assert index.put(b"c") != second
    assert index.put(b"d") != second
    index.use(b"d")
    assert index.put(b"e") is None
    with pytest.raises(AssertionError, match="pinned"):
        index.check()
    index.unpin()
    assert index.put(b"e") == second


def test_what_is_forgotten_leaves_its_slot_free() -> None:
    index = HostIndex(3)
    slots = [index.put(key) for key in (b"a", b"b", b"c")]
    index.forget([slots[1], 7])
    assert (b"b" in index, index.num_used) == (False, 2)
    assert index.put(b"d") == slots[1]
    index.clear()
    assert index.num_used == 0
    index.check()


def test_a_tier_of_nothing_takes_nothing() -> None:
    assert HostIndex(0).put(b"a") is None
