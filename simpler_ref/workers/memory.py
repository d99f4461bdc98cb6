"""Memory of a Worker: which tasks may use it, and the methods of `Worker` for it.

Rule     CALL-ARRAY-5, ORCH-ARRAY-4, SPEED-WAIT-9, FLOW-NEST-4, WM-CTRL-6, WM-CHIP-3
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.memory import PARK_NS, Engine
from ..jit import layout as L
from ..model.visibility import as_array
from ..system.types import Array
from .life import Life

# ---------------------------------------------------------------- tasks that use memory
OTHERS_S = 0.001
"""How long a thread sleeps that is not the one whose run it waits for."""


class MemoryUsers:
    """The tasks that may use memory which the program has dropped.

    Attributes
    ----------
    patience_s : float
        How long to wait for room.
    """

    def __init__(self, life: Life, engine: Engine) -> None:
        self._life, self._view = life, engine.view
        self._help, self._mem = engine.kernels.help_scheduler, engine.mem
        self.patience_s = life.options.alloc_timeout_s

    @property
    def submitted(self) -> int:
        """How many tasks were ever submitted."""
        return self._view.ever_submitted

    def unended(self) -> Sequence[int] | None:
        """Return the numbers of those that have not ended; None if all count until the end of the run.

        What other machines have made of the program's memory comes home at the end of a run.
        """
        if self._life.running and self._life.endpoints.are_there:
            return None
        return self._view.unended()

    def wait(self) -> bool:
        """Wait a while until a task has ended; return False if that is of no use."""
        life, unended = self._life, self.unended()
        if unended is None or not len(unended):
            return False
        ended = self._view.ended
        if not life.running:
            if life.stream is None:
                return False
            life.stream.wait_for_end(ended, PARK_NS)
        elif life.is_in_own_run():
            if self._help(self._mem, -1, ended + 1, -1, PARK_NS) in (L.TIMED_OUT, L.INTERRUPTED):
                life.live().look()
        else:
            time.sleep(OTHERS_S)
        return True


# ---------------------------------------------------------------- methods of Worker
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
        """
        return self._fresh(self._life.live().arena.empty(shape, dtype, populate))

    def share(self, array: Any) -> Array:
        """Return a contiguous copy of an array in memory that all workers share.

        Its columns are contiguous if those of the array are, as numpy and LAPACK would have it.
        Anything is taken that numpy makes an array of, such as a list of numbers or a column of a table.

        Raises
        ------
        TypeError
            Its elements are Python objects, or it has a mask.
        MemoryError
            The arena is full.
        """
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                "share would lose the mask: share array.filled(value) and the mask apart"
            )
        source = as_array(array)
        if source.dtype.hasobject:
            raise TypeError(
                f"the elements of this {type(array).__name__} are Python objects (dtype {source.dtype}), "
                "which processes cannot share: convert them, as with np.asarray(array, float) or "
                "astype('U'), or pass it to tasks as it is, to be copied"
            )
        return self._fresh(self._life.live().arena.copy(source))

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
        """
        return self._fresh(self._life.live().arena.zeros(shape, dtype))

    def _fresh(self, array: Array) -> Array:
        """Return an array in memory that was given out anew: what was lost there no longer matters."""
        self._life.endpoints.forget_lost(array.ctypes.data, array.nbytes)
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
        shared = self.empty(shape, as_array(value).dtype if dtype is None else dtype)
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
