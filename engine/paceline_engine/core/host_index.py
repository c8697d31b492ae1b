"""Which KV blocks the host tier holds: key of the content -> host slot, least recently used first.

Names only: the bytes lie in the runner's store (`run.host_tier`), one row for each slot. A key is
that of the prefix cache, whose root names model, revision, number formats and layout; ranks of a
parallel layout have a store each and the same slots, so the rank needs no place in it.
"""

from collections import OrderedDict
from collections.abc import Iterable


class HostIndex:
    """Keys and slots of one host tier. Mutable; `offload.Offload` owns it.

    A pinned slot is read by the step being planned, so nothing is put in its place: within a step
    the runner stores before it loads.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._keys: dict[int, bytes] = {}
        self._free = list(range(num_slots - 1, -1, -1))
        self._pinned: set[int] = set()

    @property
    def num_used(self) -> int:
        """Slots that hold a block."""
        return len(self._slots)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    def put(self, key: bytes) -> int | None:
        """The slot that content is to be stored in; the least recently used gives way.

        Returns:
            None if it is held already, or if every slot is pinned.
        """
        if key in self._slots:
            self._slots.move_to_end(key)
            return None
        slot = self._free.pop() if self._free else self._evict()
        if slot is not None:
            self._slots[key] = slot
            self._keys[slot] = key
        return slot

    def use(self, key: bytes) -> int:
        """The slot of content that is held, pinned until `unpin`."""
        slot = self._slots[key]
        self._slots.move_to_end(key)
        self._pinned.add(slot)
        return slot

    def unpin(self) -> None:
        """The step is planned."""
        self._pinned.clear()

    def forget(self, slots: Iterable[int]) -> None:
        """What lies in these slots is not known; those that hold nothing are no error."""
        for slot in slots:
            key = self._keys.pop(slot, None)
            if key is not None:
                del self._slots[key]
                self._free.append(slot)

    def clear(self) -> None:
        """Forget everything."""
        self.forget(list(self._keys))

    def _evict(self) -> int | None:
        for key, slot in self._slots.items():
            if slot not in self._pinned:
                del self._slots[key]
                del self._keys[slot]
                return slot
        return None

    def check(self) -> None:
        """Verify the maps against each other, for tests.

        Raises:
            AssertionError: they do not agree.
        """
        assert {slot: key for key, slot in self._slots.items()} == self._keys, "a slot is lost"
        slots = sorted([*self._keys, *self._free])
        assert slots == list(range(self.num_slots)), "slots do not add up"
        assert not self._pinned, "a slot is pinned between two plans"
