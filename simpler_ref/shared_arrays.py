"""Shared memory: for the engine, for the heap rings, and for users' tensors.

A region is an anonymous shared mapping: forked processes share it at the same address, and it has no
name that a killed process could leave behind, holds no descriptor, and is not limited by the size of
``/dev/shm`` (64 MiB in many containers, where touching more would end in SIGBUS). It lives as long as
any array over it does: an array from `Worker.empty` stays valid after the Worker is closed.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .jit.layout import round_up
from .task_interface import Array

PAGE = mmap.PAGESIZE
ARENA_ALIGN = 64
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_HUGEPAGE = 14
_MADV_WIPEONFORK = 18
_MADV_POPULATE_WRITE = 23


def create_region(nbytes: int, *, huge: bool = False) -> Array:
    """Return fresh, zeroed bytes that this process and all it forks from now on share.

    Pages take memory only once they are touched. With `huge` they are huge pages where the system
    allows that for shared memory: the first touch then costs a third, and workers find them mapped.

    Rule     ORCH-FORK-4

    Raises
    ------
    MemoryError
        The address space or the system's limits do not allow a region of this size.
    """
    nbytes = round_up(max(nbytes, 1), PAGE)
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        mapping = mmap.mmap(-1, nbytes, flags=flags)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(
            f"cannot map {nbytes} bytes of shared memory ({error}); ask for less: heap_ring_size, "
            "arena_size and task_window set the sizes"
        ) from error
    if huge:
        with suppress(OSError):  # a kernel without them
            mapping.madvise(_MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def make_private(region: Array, start: int) -> None:
    """Turn the bytes of a region from `start` (page-aligned) on into memory of this process alone.

    They keep their place, so one array spans both parts. A forked child finds zeros there: it can
    neither read nor change what the parent keeps in them. Private memory may use huge pages, which
    shared memory on most systems may not: a fresh 4 KiB page costs more than several tasks.

    Rule     ORCH-INV-3
    """
    address = region.ctypes.data + start
    length = region.nbytes - start
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    got = libc.mmap(
        ctypes.c_void_p(address),
        ctypes.c_size_t(length),
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE,
        -1,
        ctypes.c_long(0),
    )
    if got != address:
        raise MemoryError(f"cannot map {length} private bytes: {os.strerror(ctypes.get_errno())}")
    for advice in (
        _MADV_WIPEONFORK,
        _MADV_HUGEPAGE,
    ):  # a kernel without huge pages refuses the last
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), advice)


# ---------------------------------------------------------------- pages made ahead of their use
_populated: dict[int, int] = {}
"""Arrays whose pages were asked for ahead: address → bytes."""


def populate(address: int, nbytes: int) -> None:
    """Make the pages of some memory, and enter them into this process's page table.

    A kernel older than 5.14 cannot: they are made when they are touched, as ever.

    Rule     SPEED-WAIT-9, -12

    Raises
    ------
    MemoryError
        There is not so much memory.
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
    """In a process just forked, enter the pages of all arrays with `populate` into its page table.

    A page table does not come along with shared memory. Without this the first write of a worker
    would cost a fault for each page, three times as much as the write itself.

    Rule     SPEED-WAIT-9, -12
    """
    for address, nbytes in list(_populated.items()):
        with suppress(MemoryError):  # they are entered one by one, then
            populate(address, nbytes)


class Arena:
    """Memory for users' tensors: first fit over free spans, given back with the last reference.

    Rule     FLOW-NEST-4; FLOW-ARGS-3; ORCH-ARRAY-1 to -3

    Parameters
    ----------
    nbytes : int
        Size of the region; pages are lazy.
    """

    def __init__(self, nbytes: int) -> None:
        self.memory = create_region(nbytes, huge=True)
        self.base: int = self.memory.ctypes.data
        self.size = int(self.memory.nbytes)
        self._free = [(0, self.size)]  # (offset, length), sorted, never adjacent
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()

    def empty(self, shape: int | Sequence[int], dtype: Any, populate: bool = False) -> Array:
        """Return an uninitialised array of the arena; its pages are made at once with `populate`.

        Raises
        ------
        MemoryError
            No free span is long enough; or there is not so much memory.
        TypeError, ValueError
            No dtype, or one of Python objects, which are private to a process; a negative dimension.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"dtype {kind} holds Python objects, which processes cannot share")
        if any(size < 0 for size in sizes):
            raise ValueError(f"shape {sizes} has a negative dimension")
        nbytes = int(np.prod(sizes, dtype=object)) * kind.itemsize
        length = round_up(max(nbytes, 1), ARENA_ALIGN)
        offset = self._take(length)
        # It dies with the last view of it. Views of a slice would keep the whole arena instead.
        owner = np.frombuffer(self.memory.data, np.uint8, length, offset)
        # Finalizers run anywhere, also in a process forked while a thread held the lock: no lock.
        weakref.finalize(owner, self._returned.append, (offset, length)).atexit = False
        if populate:
            self._populate(owner)
        array: Array = np.ndarray(sizes, kind, buffer=owner)
        return array

    @staticmethod
    def _populate(owner: Array) -> None:
        address = owner.ctypes.data
        populate(address, owner.nbytes)
        _populated[address] = owner.nbytes
        weakref.finalize(owner, _populated.pop, address, None).atexit = False

    def _take(self, length: int) -> int:
        with self._lock:
            while self._returned:
                self._give_back(*self._returned.popleft())
            for i, (offset, room) in enumerate(self._free):
                if room >= length:
                    if room == length:
                        del self._free[i]
                    else:
                        self._free[i] = (offset + length, room - length)
                    return offset
            largest = max((room for _, room in self._free), default=0)
        raise MemoryError(
            f"no room for {length} bytes: the arena of {self.size} bytes has a largest free span "
            f"of {largest}; drop arrays no longer needed or give Worker(arena_size=…) a larger value"
        )

    def _give_back(self, offset: int, length: int) -> None:
        i = bisect.bisect(self._free, (offset, length))
        if i < len(self._free) and self._free[i][0] == offset + length:
            length += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == offset:
            start, room = self._free[i - 1]
            self._free[i - 1] = (start, room + length)
        else:
            self._free.insert(i, (offset, length))
