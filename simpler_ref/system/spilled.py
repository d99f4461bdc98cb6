"""Memory that is in a file, for bytes that main memory has no room for."""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref

import numpy as np

from .regions import map_file, unmap
from .types import Array


def spilled(nbytes: int) -> Array:
    """Return bytes of a file without a name, which is gone with the array, or with this process.

    The file is in the folder for temporary files, which the variable TMPDIR names. All of its blocks are
    there before the array is: to write it cannot fail.

    Raises
    ------
    OSError
        There is no room.
    """
    with tempfile.TemporaryFile(prefix="simpler-") as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)
        address = map_file(file.fileno(), nbytes)
    owner = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(owner, unmap, address, nbytes).atexit = False
    array: Array = np.frombuffer(memoryview(owner), np.uint8)
    return array
