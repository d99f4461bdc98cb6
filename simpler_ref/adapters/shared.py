"""Arrays within pickles that workers find in shared memory, in the place of a copy in each pickle."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ..callables.pickling import ArgumentPickler, Reducers
from ..model.tensor import view_memory
from ..model.visibility import is_shared
from ..system.types import Array


def _view(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, mode: str
) -> Array:
    """Return, in a worker, an array over the memory of one that is shared."""
    array = view_memory(address, shape, dtype, strides=strides)
    if mode == "c":
        return np.array(array)
    array.flags.writeable = mode in ("r+", "w+")
    return array


class SharedArrays:
    """The arrays of some pickles for the workers of this machine, each copied once.

    Pickles have the addresses, since no task is to write there. The copies last as long as this, and as
    calls that were submitted by then; an array must not change meanwhile.

    Parameters
    ----------
    stream : Stream
        That of the workers.
    least : float
        In bytes: smaller arrays are pickled, unless they are shared already.
    mode : str
        As that of `numpy.memmap`: "r", for arrays that tasks cannot write; "r+"; "c", for copies.
    """

    def __init__(self, stream: Any, least: float, mode: str = "r") -> None:
        self._session = stream._session
        self._least, self._mode = least, mode
        self._copies: dict[int, tuple[weakref.ref[Any], Array]] = {}
        """By the ids of the arrays that they are copies of."""
        self.reducers: Reducers = {np.ndarray: self.reduce, np.memmap: self.reduce}
        self._lock = threading.Lock()

    def pickle(self, value: Any) -> bytes:
        """Return a value as bytes, for a call that is submitted before this is given up."""
        with self._lock:
            pickler = ArgumentPickler(self._session.inherited, self.reducers)
            return pickler.as_bytes(value, (value,))

    def reduce(self, array: Any) -> Any:
        """Return how an array is pickled."""
        if array.dtype.hasobject or not array.nbytes:
            return array.__reduce_ex__(5)
        if self._is_shared(array):
            mode = self.mode_of_shared(array)
        elif array.nbytes < self._least:
            return self.reduce_small(array)
        else:
            array, mode = self._copy(array), self._mode
        address = array.__array_interface__["data"][0]
        return _view, (address, array.shape, array.strides, array.dtype, mode)

    def _is_shared(self, array: Any) -> bool:
        """Say whether workers see an array; the system is asked if that may be, for milliseconds."""
        low, high = byte_bounds(array)
        if any(start <= low < end for start, end in self._session.own_memory):
            return True
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        is_numpys = root.flags.owndata or array.nbytes < self._least
        return not is_numpys and is_shared(low, high - low)

    def mode_of_shared(self, array: Any) -> str:
        """Return the mode of an array that is shared already."""
        return "r"

    def reduce_small(self, array: Any) -> Any:
        """Return how an array is pickled that is not shared."""
        return array.__reduce_ex__(5)

    def _copy(self, array: Any) -> Array:
        """Return the copy of an array."""
        key, copies = id(array), self._copies
        of, copy = copies.get(key, (None, array))
        if of is None or of() is not array:
            copy = self._session.arena.copy(array)
            copies[key] = weakref.ref(array, lambda _: copies.pop(key, None)), copy
        return copy
