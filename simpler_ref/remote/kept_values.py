"""The long values of calls that the session of a link keeps, as the link knows.

A value has a key from the session whose call has returned it; the program's machine notes that in the
block of the value, too. A session keeps values, also those that were made elsewhere, until its link says
which to forget: so the link always knows what need not move again.
"""

from __future__ import annotations

from collections import OrderedDict

from ..engine.view.blocks import value_key
from ..system.types import Array
from .limits import MOST_INLINE

MOST_KEPT = 256 << 20
"""Bytes of values that an endpoint keeps, if its calls have four times as many for values."""
PART_KEPT = 4
_LOOKS = 4
"""Values of which a link looks, with each call, whether they are still needed."""


class KnownValues:
    """The values that the session of a link keeps, those used longest ago first.

    Rule     CALL-KEEP-1, -3, -4
    """

    def __init__(self, mem: Array, most: int) -> None:
        self._mem, self._most = mem, most
        self._known: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By key: the block, and how many bytes."""
        self._total = 0
        self._turn: OrderedDict[int, None] = OrderedDict()
        """The same keys, in the order in which they are looked at."""
        self._dropped: list[int] = []

    def key_for(self, block: int, nbytes: int) -> int:
        """Return the key under which a session may keep the value in a block; 0: it is not to."""
        return value_key(self._mem, block) if MOST_INLINE < nbytes <= self._most else 0

    def has(self, key: int, block: int, nbytes: int) -> bool:
        """Say whether the session has a value, which is used now."""
        if key in self._known:
            self._known.move_to_end(key)
        elif key in self._dropped:  # and the session does not know yet
            self._dropped.remove(key)
            self._note(key, block, nbytes)
        return key in self._known

    def add(self, key: int, block: int, nbytes: int) -> None:
        """Note that the session has a value; with the next call it forgets others that are too many."""
        self._note(key, block, nbytes)
        while self._total > self._most:
            self._drop(next(iter(self._known)))

    def _note(self, key: int, block: int, nbytes: int) -> None:
        self._known[key] = block, nbytes
        self._turn[key] = None
        self._total += nbytes

    def _drop(self, key: int) -> None:
        del self._turn[key]
        self._total -= self._known.pop(key)[1]
        self._dropped.append(key)

    def take_dropped(self, most: int, looks: int = _LOOKS) -> list[int]:
        """Return values that the session forgets, among them some that nobody needs any more."""
        for _ in range(min(looks, len(self._turn))):
            key = next(iter(self._turn))
            self._turn.move_to_end(key)
            if value_key(self._mem, self._known[key][0]) != key:
                self._drop(key)
        taken, self._dropped = self._dropped[:most], self._dropped[most:]
        return taken

    def take_all_dropped(self) -> list[int]:
        """Return all values that the session may forget now."""
        return self.take_dropped(len(self._known) + len(self._dropped), len(self._turn))
