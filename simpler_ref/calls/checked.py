"""With ``check=True``: what the program does with arrays of calls that it has not waited for.

Nothing makes the program wait for a call before it uses an array again. If it fills the array, it
depends on chance what calls read that were submitted before; if a call writes it, also what the program
finds there. Two things tell of that:

- Each call travels with a *sum* of every array that it reads, behind its other scalars, and its worker
  compares (`inside.GuardedInside`). An array has no sum if a call before may still write it, nor if its
  call may be run again: the first run may have written it.
- The whole pages of an array that a call writes are closed to the program's process, until it has waited
  for the call (`src/touch.c`). Workers have mappings of their own. A system call that meets closed pages
  fails with ``EFAULT``.

Rule     SEE-INPUT-6, SEE-INPUT-7
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import zlib
from collections import deque
from itertools import islice
from types import FrameType
from typing import NamedTuple

from ..engine.memory import Engine
from ..engine.shared_arrays import Arena
from ..engine.view.blocks import retries_of
from ..errors import HazardError
from ..jit import layout as L
from ..model.scalars import INTEGER
from ..model.tensor import share_bytes
from ..model.wire import RIGHTS, TAG_AT, TENSOR_BYTES
from ..orch.checked import caller, is_ours
from ..system.types import Array
from ..workers.guard import MOST_COPIED, pieces
from . import quick
from .arguments import ReceivedArrays

KIND = "write before start"
NO_SUM = -1
_TOUCH = "touch while written"
_MANY = 128
"""Up to so many calls that write, an array is looked for among what these write."""
_CLOSED = 128
"""So many arrays may be closed at once; `src/touch.c` knows it by this name."""


def sum_of(array: Array) -> int:
    """Return a sum of the bytes of an array; of some pieces if it is large."""
    found, step = 0, max(1, -(-array.nbytes // MOST_COPIED))
    for piece in islice(pieces(array), 0, None, step):
        found = zlib.crc32(piece, found)
    return found


class Sums:
    """The sums of the arrays of a stream's calls, and which of these arrays the program must not touch.

    The arena of the arrays is there if workers have mappings of their own.
    """

    def __init__(self, engine: Engine, arena: Arena | None) -> None:
        self._engine = engine
        self._arena = arena if quick.is_possible() else None
        self.errors: deque[HazardError] = deque()
        """Of touches where nothing could be raised: by other threads, while code of this package runs."""
        self._arrays = ReceivedArrays(engine)
        self._writers: list[tuple[int, int, list[Array]]] = []
        """Slot and number of calls, and what they write."""
        self._ended = 0
        """How many calls had ended when it was last asked which of those had."""
        self._written: list[Array] = []
        """What the call writes that is about to be submitted."""

    def add(self, counts: int, wire: bytes, key: int) -> tuple[int, bytes]:
        """Return the arguments of a call, with a sum for each array behind them; see `Packed`."""
        tensors, view = counts & L.LOW_HALF, self._engine.view
        self._written = []
        if 2 * (view.ended - self._ended) >= len(self._writers) > 0:  # half of them may have ended
            self._ended = view.ended
            self._writers = [one for one in self._writers if view.is_under_way(one[0], one[1])]
        self.raise_touched()
        may_run_again = retries_of(self._engine.mem, key) > 0
        for at in range(0, tensors * TENSOR_BYTES, TENSOR_BYTES):
            rights = RIGHTS[wire[at + TAG_AT]]
            array = self._arrays.array(wire[at : at + TENSOR_BYTES], False)
            if rights & L.TENSOR_WRITE:
                self._written.append(array)
            found = NO_SUM
            if rights & L.TENSOR_READ and not may_run_again and self._is_final(array):
                self.open_ended()  # now, since who writes it may have ended just before
                found = sum_of(array)
            wire += INTEGER.pack(found, L.SIGNED)
        return counts + (tensors << L.HALF), wire

    def note(self, slot: int, place: str) -> None:
        if self._written:
            number = self._engine.view.next_task_id - 1
            self._writers.append((slot, number, self._written))
            for array in self._written:
                self._close(array, slot, number, place)

    def raise_touched(self) -> None:
        if self.errors:
            raise self.errors.popleft()

    def _is_final(self, array: Array) -> bool:
        """Say whether all calls that write an array have ended."""
        return len(self._writers) <= _MANY and not any(
            share_bytes(array, one) and self._engine.view.is_under_way(slot, number)
            for slot, number, written in self._writers
            for one in written
        )

    # ------------------------------------------------------------ pages that are closed
    def _close(self, array: Array, slot: int, number: int, place: str) -> None:
        """Close the whole pages of an array until a call has ended; not those of one with gaps."""
        if self._arena is None:
            return
        first, last = self._arena.pages_of(array)
        about = f"array of shape {array.shape}, which call {number} of this Worker writes ({place})"
        with _lock:
            if first < last and _free and array.flags.forc:
                one = _free.popleft()
                _pages[one] = _Pages(first, last, slot, number, about, self)
                _library().simpler_ref_close_pages(one, first, last)

    def open_ended(self) -> None:
        """Let the program touch what calls have written that have ended."""
        if not _pages:
            return
        view = self._engine.view
        with _lock:
            mine = {one: pages for one, pages in _pages.items() if pages.owner is self}
            ended = [one for one, on in mine.items() if not view.is_under_way(on.slot, on.number)]
            opened = [mine.pop(one) for one in ended]
            for one in ended:
                _open(one)
            for one, (first, last, *_) in mine.items() if opened else ():
                if any(first < pages.end and pages.start < last for pages in opened):
                    _library().simpler_ref_close_pages(one, first, last)


class _Pages(NamedTuple):
    """The pages of an array that a call writes."""

    start: int
    end: int
    slot: int
    number: int
    about: str
    owner: Sums


_pages: dict[int, _Pages] = {}
"""All that are closed, by their numbers in `src/touch.c`."""
_free = deque(range(_CLOSED))
_lock = threading.RLock()
"""Held while pages are closed or opened."""


def _open(one: int) -> None:
    _library().simpler_ref_open_pages(one)
    del _pages[one]
    _free.append(one)


def _report(address: int, by_main_thread: int, frame: FrameType | int, line: int) -> None:
    """Report a touch: raise, in the program's code on the main thread, or keep it for who waits next."""
    for pages in list(_pages.values()):
        if pages.start <= address < pages.end:
            places = [caller()] if by_main_thread else []
            if isinstance(frame, FrameType):
                there = f"{frame.f_code.co_filename}:{line}"
                places = [there, *(f"before {one}" for one in places if not one.startswith(there))]
            place = f" ({', '.join(places)})" if places else ""
            error = HazardError(
                f"{_TOUCH}: the program has touched an {pages.about}, before it has waited for "
                f"that{place}; ask for the call's result() first, or have Worker.wait(array) wait",
                kind=_TOUCH,
                tasks=(pages.number,),
            )
            if by_main_thread and _may_raise():
                raise error
            pages.owner.errors.append(error)
            return


def _may_raise() -> bool:
    """Say whether an error would reach the program: not from our own code, nor from a finalizer."""
    now: FrameType | None = sys._getframe(2)
    while now is not None and not is_ours(now) and now.f_code.co_name != "__del__":
        now = now.f_back
    return now is None


def _open_all() -> None:
    """Open all in a process just forked: its mappings are as they were, and it may be a worker."""
    global _lock
    _lock = threading.RLock()  # another thread may have had it
    for one in list(_pages):
        _open(one)


@functools.cache
def _library() -> ctypes.PyDLL:
    library = quick.library()
    library.simpler_ref_close_pages.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    library.simpler_ref_tell_touches.argtypes = (ctypes.py_object,)
    library.simpler_ref_tell_touches(_report)
    os.register_at_fork(after_in_child=_open_all)
    return library
