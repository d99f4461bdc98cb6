"""Shared memory for users' tensors.

Workers have a region at the same address as the user's process, and it has no name that a killed process
could leave behind (`system/regions.py`). It lives as long as any array over it does: an array from
`Worker.empty` stays valid after the Worker is closed.

Arguments of tasks are addresses, and keep nothing alive. A task can use what was made before it was
submitted, and dropped after that: `InUse` keeps it until these tasks have ended.

Rule     CALL-ARRAY-5, ORCH-ARRAY-1, ORCH-ARRAY-2, ORCH-ARRAY-4, ORCH-FORK-4, SPEED-WAIT-9, FLOW-ARGS-3,
         FLOW-NEST-4
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import threading
import time
import weakref
from bisect import bisect, bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..jit.layout import round_up
from ..system import regions
from ..system.regions import PAGE
from ..system.types import Array, address_of
from ..system.values import sizes

ARENA_ALIGN = 64
OTHERS_S = 0.1
"""How long who finds no room waits for memory that another thread takes back just now."""
_MADV_POPULATE_WRITE = 23
_MUCH, _MOST_FREE = 1 << 20, 1 << 28
"""Bytes of an array whose pages may go back to the system, and of such ones that keep theirs."""


# ---------------------------------------------------------------- populated pages
_populated: dict[int, int] = {}
"""Arrays allocated with `populate`: address → bytes."""


def populate(address: int, nbytes: int) -> None:
    """Populate the pages of some memory, in this process's page table too.

    A Linux older than 5.14 cannot: its pages are made when they are first touched.
    """
    first = address // PAGE * PAGE
    length = round_up(address + nbytes, PAGE) - first
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_POPULATE_WRITE):
        code = ctypes.get_errno()
        if code != errno.EINVAL:
            raise MemoryError(
                f"the pages of {nbytes} bytes of shared memory cannot be made "
                f"({os.strerror(code)}); ask for less, or leave populate out"
            )


def populate_again() -> None:
    """In a process just forked, enter the pages of all populated arrays into its page table.

    A fork does not copy the page table of shared memory. Without this the first write of a worker would
    cost a fault for each page, three times as much as the write itself.
    """
    for address, nbytes in list(_populated.items()):
        with suppress(MemoryError):  # faults enter them one by one, then
            populate(address, nbytes)


# ---------------------------------------------------------------- what was dropped
FEW, FEW_BYTES = 16, 1 << 20
"""So much may be in use before it is looked whether its tasks have ended."""


class InUse:
    """What was dropped, until the tasks have ended that may use it. Any thread may call its methods.

    `users` are the tasks of a Worker: how many were ever `submitted`; the sorted numbers of those that
    are `unended()`, None if none of them counts as ended; `wait()` waits a while until one has ended, and
    is False if that is of no use; `patience_s` is how long to wait for room.
    """

    def __init__(self, users: Any = None) -> None:
        self.users = users
        self._waiting: deque[tuple[int, int, int, Any]] = deque()
        """How many tasks came before it, and before it was dropped; its bytes; and it."""
        self.nbytes = 0  # in use
        self._look_at = FEW, FEW_BYTES

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Any]:
        return iter([what for *_, what in list(self._waiting)])

    def now(self) -> int:
        """Return what `keep` is told of something that is made now."""
        return 0 if self.users is None else self.users.submitted

    def keep(self, first: int, nbytes: int, what: Any) -> bool:
        """Keep what was dropped if a task was submitted with it; return False if it is free at once."""
        end = self.now()
        if end == first or self.users is None:
            return False
        self.nbytes += nbytes
        self._waiting.append((first, end, nbytes, what))
        return True

    def has_users(self, first: int) -> bool:
        """Say whether tasks may use something that was made when `now` was `first`."""
        if self.users is None or self.users.submitted == first:
            return False
        unended = self.users.unended()
        return unended is None or bisect_left(unended, first) < len(unended)

    def has_many(self) -> bool:
        """Say whether it is time to look; there is twice as much as the last look has left."""
        count, nbytes = self._look_at
        return len(self._waiting) >= count or self.nbytes >= nbytes

    def look(self) -> Iterator[Any]:
        """Go through what no task uses any more."""
        unended = () if self.users is None else self.users.unended()
        for _ in range(len(self._waiting)):
            if unended is None:
                break
            try:
                first, end, nbytes, what = self._waiting.popleft()
            except IndexError:  # another thread was faster
                break
            if bisect_left(unended, first) < bisect_left(unended, end):
                self._waiting.append((first, end, nbytes, what))
            else:
                self.nbytes -= nbytes
                yield what
        self._look_at = max(FEW, 2 * len(self._waiting)), max(FEW_BYTES, 2 * self.nbytes)


# ---------------------------------------------------------------- the arena
_Span = tuple[int, int, int]
"""Memory of an array: its offset and its length, and how many tasks came before it."""


class _Claim:
    """What memory belongs to while it is taken back."""

    __slots__ = ("__weakref__",)


class _Holder(weakref.ref[Any]):
    """Refers to the array, or the claim, that some memory belongs to."""

    __slots__ = ("span",)
    span: _Span


class _Dropped(deque[_Holder]):
    """Holders of what is gone, in the order in which it went."""

    def __init__(self, base: int, in_use: InUse) -> None:
        super().__init__()
        self._base, self._in_use, self._pid = base, in_use, os.getpid()
        self.with_pages = 0
        """About how many bytes of large arrays the system has not got."""

    def add_large(self, holder: _Holder) -> None:
        """Add that of a large array; the system gets its pages if many are free and no task uses them."""
        offset, length, first = holder.span
        if self._pid == os.getpid() and not self._in_use.has_users(first):
            self.with_pages += length
            if self.with_pages > _MOST_FREE:
                self.with_pages -= length
                regions.give_back(self._base + offset, length)
        self.append(holder)  # at last: from here on others may get the memory


class Arena:
    """Memory for users' tensors: first fit over free spans, freed with the last reference.

    All of it is free, or belongs to a holder. A signal handler may raise in the middle of anything: then
    what memory has just belonged to dies, and it is taken back as that of an array is. So it changes its
    state in stores without a call between, where no handler runs.

    The pages of its `nbytes` are lazy. No two arrays are in the same piece of `align` bytes.
    """

    def __init__(self, nbytes: int, align: int = ARENA_ALIGN) -> None:
        self.memory = regions.create(nbytes, huge=True)
        self._align = align
        self.base: int = self.memory.ctypes.data
        self.size = int(self.memory.nbytes)
        self._free = [(0, self.size)]  # (offset, length), sorted, never adjacent
        self._used = 0
        """Where memory begins that no array has had yet: it is zero."""
        self._holders: dict[int, _Holder] = {}
        """Of all memory that is not free, by its offset."""
        self.in_use = InUse()
        """What was dropped, and tasks may use."""
        self._dropped = _Dropped(self.base, self.in_use)
        """Those whose array, or claim, is gone; perhaps some more than once."""
        self._lock = threading.RLock()
        """Held while what is free changes."""
        self._changed = threading.Condition(self._lock)
        """Told when another thread has taken memory back, if one waits for that."""
        self._waiters = 0
        self._taking_back = 0
        """Threads that take memory back, which is not free before they have done so."""
        self.on_reuse: Callable[[int, int], None] | None = None
        """Told where memory begins and ends that may be given out again, before it is."""

    def close(self) -> None:
        """Close the descriptor; the memory stays as long as an array refers to it."""
        self.in_use.users = None
        regions.release(self.memory)

    def zeros(self, shape: int | Sequence[int], dtype: Any) -> Array:
        """Return an array of zeros; memory that was not used before is not touched."""
        return self.empty(shape, dtype, zero=True)

    def empty(
        self, shape: int | Sequence[int], dtype: Any, populate: bool = False, *, zero: bool = False
    ) -> Array:
        """Return an uninitialised array of the arena; `populate` makes its pages at once.

        Raises
        ------
        MemoryError
            No free span is long enough; or there is too little memory.
        TypeError, ValueError
            No dtype, or one of Python objects, which are private to a process; no shape, or one with a
            negative dimension.
        """
        dims = sizes(shape)
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"dtype {kind} holds Python objects, which processes cannot share")
        if any(size < 0 for size in dims):
            raise ValueError(f"shape {dims} has a negative dimension")
        nbytes = math.prod(dims) * kind.itemsize
        length = round_up(max(nbytes, 1), self._align)
        owner, stale = self._take(length, nbytes)
        if populate:
            self._populate(owner)
        if zero:
            owner[:stale] = 0
        array: Array = np.ndarray(dims, kind, buffer=owner)
        return array

    def copy(self, array: Array) -> Array:
        """Return a copy of an array in the arena, with the order of its elements in memory."""
        fortran = array.flags.fnc
        made = self.empty(array.shape[::-1] if fortran else array.shape, array.dtype)
        made = made.T if fortran else made
        made[...] = array
        return made

    @staticmethod
    def _populate(owner: Array) -> None:
        address = owner.ctypes.data
        populate(address, owner.nbytes)
        _populated[address] = owner.nbytes
        weakref.finalize(owner, _populated.pop, address, None).atexit = False

    def pages_of(self, array: Array) -> tuple[int, int]:
        """Return from where to where pages have nothing but an array without gaps, if it is from here."""
        first = address_of(array)
        end = first + array.nbytes
        if not self.base <= first < end <= self.base + self.size:
            return 0, 0
        holder = self._holders.get(first - self.base)
        owner = None if holder is None else holder()
        if isinstance(owner, np.ndarray) and owner.nbytes == array.nbytes:
            end = round_up(end, self._align)
        return round_up(first, PAGE), end - end % PAGE

    def _take(self, length: int, nbytes: int) -> tuple[Array, int]:
        """Return free memory as an array of some bytes, and how many of it arrays have had before."""
        since, is_full, is_over = time.monotonic(), False, False
        while True:
            if is_full:
                self._find_lost()
            self._take_back(is_full)
            with self._lock:
                found = self._take_free(length, nbytes)
                if found is not None:
                    return found
                if self._taking_back and time.monotonic() < since + OTHERS_S:
                    self._waiters += 1
                    try:
                        self._changed.wait(OTHERS_S)
                    finally:
                        self._waiters -= 1
                    continue
            if is_over:
                raise self._no_room(length)
            # once none is left to wait for, another look: the last one may have ended after this one
            is_over = is_full and not self._wait_for_tasks(since)
            is_full = True

    def _wait_for_tasks(self, since: float) -> bool:
        """Wait until a task has ended which may use memory that was dropped; return False if none may."""
        users = self.in_use.users
        if users is None or not self.in_use:
            return False
        return time.monotonic() < since + users.patience_s and bool(users.wait())

    def _no_room(self, length: int) -> MemoryError:
        largest = max((room for _, room in self._free), default=0)
        dropped = ""
        if self.in_use:
            dropped = (
                f", and tasks that have not ended may use {self.in_use.nbytes} that were dropped"
            )
        return MemoryError(
            f"no room for {length} bytes: the arena of {self.size} bytes has a largest free span "
            f"of {largest}{dropped}; drop arrays no longer needed or give Worker(arena_size=…) a larger "
            "value"
        )

    def _find_lost(self) -> None:
        """Have memory taken back when a signal has cut short what was to do that."""
        with self._lock:
            known = set(map(id, [*self._dropped, *self.in_use]))
            found = [one for one in self._holders.values() if one() is None]
            self._dropped.extend(one for one in found if id(one) not in known)

    def _take_free(self, length: int, nbytes: int) -> tuple[Array, int] | None:
        for i, (offset, room) in enumerate(self._free):
            if room >= length:
                rest = [] if room == length else [(offset + length, room - length)]
                # It dies with the last view of it. Views of a slice would keep the whole arena instead.
                owner = np.frombuffer(self.memory.data, np.uint8, max(nbytes, 1), offset)
                if length >= _MUCH:
                    self._dropped.with_pages = max(0, self._dropped.with_pages - length)
                holder = self._held_by(owner, (offset, length, self.in_use.now()))
                stale = min(max(0, self._used - offset), length)
                used = max(self._used, offset + length)
                self._free[i : i + 1] = rest
                self._holders[offset] = holder
                self._used = used
                return owner, stale
        return None

    def _held_by(self, owner: Any, span: _Span) -> _Holder:
        # `append` runs anywhere, also in a process forked while a thread held the lock: it needs none.
        dropped = self._dropped
        holder = _Holder(owner, dropped.append if span[1] < _MUCH else dropped.add_large)
        holder.span = span
        return holder

    def _take_back(self, looks: bool) -> None:
        """Have the memory of dropped arrays for others; nobody waits here with the lock.

        `looks`: also if few are in use, look whether their tasks have ended.
        """
        while self._dropped or self.in_use.has_many() or (looks and self.in_use):
            with self._lock:
                self._taking_back += 1
            try:
                while self._dropped:
                    self._sort_one()
                if looks or self.in_use.has_many():
                    for holder in self.in_use.look():
                        self._free_one(holder)
                    looks = False
            finally:
                with self._lock:
                    self._taking_back -= 1
                    if self._waiters:
                        self._changed.notify_all()

    def _sort_one(self) -> None:
        try:
            holder = self._dropped.popleft()
        except IndexError:  # another thread was faster
            return
        _, length, first = holder.span
        if not self.in_use.keep(first, length, holder):
            self._free_one(holder)

    def _free_one(self, holder: _Holder) -> None:
        """Make memory free, unless it has been, and may belong to another."""
        offset, length, _ = holder.span
        claim = _Claim()
        with self._lock:
            if self._holders.get(offset) is not holder:
                return
            self._holders[offset] = self._held_by(claim, holder.span)
        if self.on_reuse is not None:
            self.on_reuse(self.base + offset, self.base + offset + length)
        with self._lock:
            self._free_span(offset, length)

    def _free_span(self, offset: int, length: int) -> None:
        free, start, end = self._free, offset, offset + length
        first = last = bisect(free, (offset, length))
        if last < len(free) and free[last][0] == end:
            end += free[last][1]
            last += 1
        if first > 0 and sum(free[first - 1]) == start:
            first -= 1
            start = free[first][0]
        span = start, end - start
        free[first:last] = [span]
        del self._holders[offset]
