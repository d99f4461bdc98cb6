"""Which memory of this process is shared with the processes it forks."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

_libc = ctypes.CDLL(None)
PRIVATE = "it is private to this process"


def is_private(array: Any) -> bool:
    """Say whether an array's memory is private for certain, since numpy or Python has allocated it.

    It takes a microsecond; to look through the mappings takes a thousand.
    """
    owner = array
    while isinstance(owner, np.ndarray):
        if owner.flags.owndata:
            return True
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return isinstance(owner, bytes | bytearray)


def shared_mappings() -> list[tuple[int, int, str]]:
    """Return (start, end, identity) of this process's shared, writable mappings, sorted."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode, offset, device, inode, *_ = line.split(maxsplit=5)
            if mode[3] == "s" and mode[1] == "w":
                start, end = (int(part, 16) for part in span.split("-"))
                found.append((start, end, f"{device} {inode} {int(offset, 16) - start}"))
    return found


def has_memory(address: int, nbytes: int) -> bool:
    """Say whether there is memory of this process at all bytes [address, address + n)."""
    begin = address - address % mmap.PAGESIZE
    pages = -(-(address + nbytes - begin) // mmap.PAGESIZE)
    resident = ctypes.create_string_buffer(pages)
    return not _libc.mincore(
        ctypes.c_void_p(begin), ctypes.c_size_t(pages * mmap.PAGESIZE), resident
    )


def covers(mappings: list[tuple[int, int, str]], address: int, nbytes: int) -> set[str] | None:
    """Return the identities of the mappings that contain bytes [address, address + n), or None.

    Rule     ORCH-MISUSE-2
    """
    identities = set()
    at = address
    for start, end, identity in mappings:
        if start <= at < end:
            identities.add(identity)
            at = end
            if at >= address + nbytes:
                return identities
    return None
