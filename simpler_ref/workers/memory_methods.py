"""What a Worker has for memory: methods of `Worker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..system.types import Array

if TYPE_CHECKING:
    from .life import Life


class MemoryMethods:
    """Arrays that all workers share, and the memory of chips."""

    _life: Life

    # ------------------------------------------------------------ arrays
    def empty(
        self, shape: int | Sequence[int], dtype: Any = np.float32, *, populate: bool = False
    ) -> Array:
        """Return an uninitialised numpy array that all workers share, also after the start.

        Parameters
        ----------
        shape : int | Sequence[int]
            Elements, per dimension.
        dtype : Any
            What numpy takes for a dtype, but for Python objects.
        populate : bool
            Make the memory now, not page by page as it is touched; workers that are started later map
            it before their first task.

        Raises
        ------
        MemoryError
            The arena is full; or, with `populate`, the system has not so much memory.

        Notes
        -----
        Rule     SPEED-WAIT-9, -12
        """
        return self._fresh(self._life.live().arena.empty(shape, dtype, populate))

    def share(self, array: Any) -> Array:
        """Return a contiguous copy of an array in memory that all workers share.

        Anything is taken that numpy makes an array of, such as a list of numbers or a column of a table.

        Raises
        ------
        TypeError
            Its elements are Python objects, or it has a mask.
        MemoryError
            The arena is full.

        Notes
        -----
        Rule     FLOW-NEST-4; CALL-ARRAY-6
        """
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                "share would lose the mask: share array.filled(value) and the mask apart"
            )
        source = np.asarray(array)
        if source.dtype.hasobject:
            raise TypeError(
                f"the elements of this {type(array).__name__} are Python objects (dtype {source.dtype}), "
                "which processes cannot share: convert them, as with np.asarray(array, float) or "
                "astype('U'), or pass it to tasks as it is, to be copied"
            )
        shared = self.empty(source.shape, source.dtype)
        shared[...] = source
        return shared

    def zeros(self, shape: int | Sequence[int], dtype: Any = float) -> Array:
        """Return an array of zeros that all workers share.

        Its pages take memory only when they are touched.

        Parameters
        ----------
        shape : int | Sequence[int]
            Elements, per dimension.
        dtype : Any
            What numpy takes for a dtype, but for Python objects; float64 by default.

        Raises
        ------
        TypeError, ValueError, MemoryError
            See `empty`.

        Notes
        -----
        Rule     CALL-ARRAY-5
        """
        return self._fresh(self._life.live().arena.zeros(shape, dtype))

    def _fresh(self, array: Array) -> Array:
        """Return an array in memory that was given out anew: what was lost there no longer matters."""
        if self._life.endpoints is not None:
            self._life.endpoints.tensors.forget_lost(array.ctypes.data, array.nbytes)
        return array

    def zeros_like(self, array: Any) -> Array:
        """Return zeros with the shape and the dtype of an array; see `zeros`."""
        source = np.asanyarray(array)
        return self.zeros(source.shape, source.dtype)

    def ones(self, shape: int | Sequence[int], dtype: Any = float) -> Array:
        """Return an array of ones that all workers share; see `zeros`."""
        return self.full(shape, 1, dtype)

    def full(self, shape: int | Sequence[int], value: Any, dtype: Any = None) -> Array:
        """Return an array that all workers share, with one value everywhere.

        Its dtype is that of the value, unless it is given; see `zeros`.
        """
        shared = self.empty(shape, np.asarray(value).dtype if dtype is None else dtype)
        shared[...] = value
        return shared

    # ------------------------------------------------------------ memory of chips
    def malloc(self, size: int, worker_id: int = 0) -> int:
        """Allocate `size` bytes of a chip's memory and return their address there.

        Pass it to tasks as ``ContinuousTensor.make(address, shape, dtype, child_memory=True)``.

        Raises
        ------
        IndexError
            There is no such next-level worker.
        NoMemoryError
            It has no memory of its own.
        ControlError
            It has not enough.

        Notes
        -----
        Rule     WM-CHIP-3
        """
        return self._life.live().chips.malloc(worker_id, size)

    def free(self, ptr: int, worker_id: int = 0) -> None:
        """Give memory of a chip back; see `malloc`."""
        self._life.live().chips.free(worker_id, ptr)

    def copy_to(self, dst: int, src: int, size: int, worker_id: int = 0) -> None:
        """Copy `size` bytes from host address `src` to address `dst` of a chip.

        Raises
        ------
        ValueError
            The host memory is not shared with the chip's process.
        IndexError, ControlError
            See `malloc`.
        """
        self._life.live().chips.copy_to(worker_id, dst, src, size)

    def copy_from(self, dst: int, src: int, size: int, worker_id: int = 0) -> None:
        """Copy `size` bytes from address `src` of a chip to host address `dst`; see `copy_to`."""
        self._life.live().chips.copy_from(worker_id, dst, src, size)
