"""Long values of calls that endpoints keep: what a session has, and what the link knows that it has.

A value has a key from the session whose call has returned it; the program's machine notes that in the
block of the value, too. A session keeps values, also those that were made elsewhere, until its link says
which to forget: so the link always knows what need not move again.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calls.futures import Lease
from ..engine.view.blocks import value_key
from ..system.types import Array
from .fail_points import fail_point
from .far_calls import MOST_INLINE
from .limits import REMOTE_BUFFER_ACCESS_READ
from .mover import Mover
from .windows import Window

if TYPE_CHECKING:
    from ..calls.stream import Stream

MOST_KEPT = 256 << 20
"""Bytes of values that an endpoint keeps, if its calls have four times as many for values."""
PART_KEPT = 4
_LOOKS = 4
"""Values of which a link looks, with each call, whether they are still needed."""


def new_value_key() -> int:
    """Return a key for a value, which fits a word of shared memory."""
    return secrets.randbits(63) or new_value_key()


# ---------------------------------------------------------------- at the session
class KeptValues:
    """The values that a session keeps, by their keys.

    A value is a block of its calls, or bytes where these have no room.

    Rule     CALL-KEEP-1, -3, -4
    """

    def __init__(self, stream_of: Callable[[], Stream], mover: Mover) -> None:
        self._stream_of, self._mover = stream_of, mover
        self._values: dict[int, tuple[Lease | bytes, int]] = {}
        self._windows = set[int]()
        self._counts = dict.fromkeys(("hits", "stored", "dropped"), 0)

    def find(self, key: int) -> Lease | bytes | None:
        """Return a value that is here, as an argument of a call."""
        found = self._values.get(key)
        self._counts["hits"] += found is not None
        return None if found is None else found[0]

    def store(self, key: int, data: Any) -> Lease | bytes:
        """Keep a value that has come from the parent."""
        self._counts["stored"] += 1
        return self._keep(key, self._in_memory(data), len(data))

    def _in_memory(self, data: Any) -> Lease | bytes:
        try:
            return self._stream_of().put(data)
        except MemoryError:
            return bytes(data)

    def keep(self, key: int, block: memoryview, lease: Lease, shows: bool) -> None:
        """Keep a value that a call has returned; the parent may fetch it if the session shows it."""
        self._keep(key, lease, len(block))
        if shows:
            address = np.frombuffer(block, np.uint8).ctypes.data
            self._mover.offer(Window(key, address, len(block), REMOTE_BUFFER_ACCESS_READ))
            self._windows.add(key)

    def _keep(self, key: int, value: Lease | bytes, nbytes: int) -> Lease | bytes:
        self._values[key] = value, nbytes
        fail_point("kept")
        return value

    def forget(self, keys: Iterable[int]) -> None:
        """Forget values; calls that have them as arguments hold them."""
        for key in keys:
            self._counts["dropped"] += self._values.pop(key, None) is not None
            if key in self._windows:
                self._windows.remove(key)
                self._mover.withdraw(key)
            fail_point("forgot")

    def clear(self) -> None:
        """Forget all values: the session ends."""
        self._values.clear()

    def counts(self) -> dict[str, int]:
        """Return how many values there are, and where they came from."""
        held = sum(nbytes for _, nbytes in self._values.values())
        told = {f"values_{name}": count for name, count in self._counts.items()}
        return {"values": len(self._values), "value_bytes": held, **told}


# ---------------------------------------------------------------- at the link
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
