"""With ``check=True``: whether an array changes between the submit of a call that reads it and its start.

Calls wait for each other, and nothing waits for the program: if it fills an array again meanwhile, it
depends on chance what calls read that were submitted before. So each call travels with a sum of every
array that it reads, behind its other scalars, and the worker compares. An array has no sum if a call
before may still write it, nor if its call may be run again, since the first run may have written it.

Rule     SEE-INPUT-6
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import islice

from ..engine.memory import Engine
from ..engine.view.blocks import retries_of
from ..errors import HazardError
from ..jit import layout as L
from ..model.scalars import INTEGER
from ..model.tensor import share_bytes
from ..model.wire import RIGHTS, TAG_AT, TENSOR_BYTES
from ..system.types import Array
from ..workers.guard import MOST_COPIED, pieces
from .arrays import ReceivedArrays

KIND = "write before start"
_NO_SUM = -1
_MANY = 128
"""Up to so many calls that write, an array is looked for among what these write."""


class Sums:
    """The sums of the arrays of a stream's calls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrays = ReceivedArrays(engine)
        self._writers: list[tuple[int, int, list[Array]]] = []
        """Slot and number of calls, and what they write."""
        self._ended = 0
        """How many calls had ended when it was last asked which of those had."""
        self._written: list[Array] = []
        """What the call writes that is about to be submitted."""

    def add(self, counts: int, wire: bytes, key: int) -> tuple[int, bytes]:
        """Return the arguments of a call, with a sum for each array behind them; see `Packed`."""
        tensors = counts & L.LOW_HALF
        self._written = []
        self._forget_ended()
        may_run_again = retries_of(self._engine.mem, key) > 0
        for at in range(0, tensors * TENSOR_BYTES, TENSOR_BYTES):
            rights = RIGHTS[wire[at + TAG_AT]]
            array = self._arrays.array(wire[at : at + TENSOR_BYTES], False)
            if rights & L.TENSOR_WRITE:
                self._written.append(array)
            has_sum = rights & L.TENSOR_READ and not may_run_again and self._is_final(array)
            wire += INTEGER.pack(_sum(array) if has_sum else _NO_SUM, L.SIGNED)
        return counts + (tensors << L.HALF), wire

    def note(self, slot: int) -> None:
        """Note that this call was submitted."""
        if self._written:
            self._writers.append((slot, self._engine.view.next_task_id - 1, self._written))

    def _forget_ended(self) -> None:
        """Forget writers that have ended, if these may be half of them."""
        view = self._engine.view
        if 2 * (view.ended - self._ended) >= len(self._writers) > 0:
            self._ended = view.ended
            self._writers = [one for one in self._writers if view.is_under_way(one[0], one[1])]

    def _is_final(self, array: Array) -> bool:
        """Say whether all calls that write an array have ended."""
        return len(self._writers) <= _MANY and not any(
            share_bytes(array, one) and self._engine.view.is_under_way(slot, number)
            for slot, number, written in self._writers
            for one in written
        )


def _sum(array: Array) -> int:
    """Return a sum of the bytes of an array; of some pieces if it is large."""
    found, step = 0, max(1, -(-array.nbytes // MOST_COPIED))
    for piece in islice(pieces(array), 0, None, step):
        found = zlib.crc32(piece, found)
    return found


def require_unchanged(arrays: Iterable[Array], names: Iterable[str], sums: Sequence[int]) -> None:
    """Refuse a call, which has not begun, if the bytes of its arrays have not the sums they had.

    Raises
    ------
    HazardError
        An array was written.
    """
    for array, name, before in zip(arrays, names, sums, strict=False):
        if before not in (_NO_SUM, _sum(array)):
            raise HazardError(
                f"{KIND}: {name} ({array.nbytes} bytes) was written after the submit of this call and "
                "before its start. If the program does so, let it wait for the call's future first, or "
                "give the call a copy; if another task does so, annotate its parameter with InOut",
                kind=KIND,
            )
