"""Arrays of calls: as the tensors that travel, and back as arrays over the same memory."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from ..engine.memory import Engine
from ..engine.view.layouts import Layouts
from ..jit import layout as L
from ..model.tensor import ContinuousTensor, view_memory
from ..model.visibility import make_tensor
from ..model.wire import TENSOR, has_layout, layout_number
from ..system.types import Array
from ..workers.session import Session

_MOST_VIEWS = 4096


class _Sent(NamedTuple):
    """An array that was an argument before."""

    array: Any
    """A weak reference."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    wire: bytes

    def describes(self, array: Any) -> bool:
        """Say whether it is this array, and as it was."""
        return (
            self.array() is array
            and self.shape == array.shape
            and self.strides == array.strides
            and self.dtype is array.dtype
        )


class SentArrays:
    """The arrays that a program passes, as tensors: each is looked at once, unless it changes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layouts = Layouts(session.engine)
        self._known: dict[int, _Sent] = {}
        self._lock = threading.Lock()

    def wire(self, array: Any) -> bytes:
        """Return the tensor for an array.

        Raises
        ------
        TypeError, ValueError
            It is no array, its elements are Python objects, or the workers cannot see its memory.

        Notes
        -----
        Rule     CALL-ARRAY-1 to -3
        """
        known = self._known.get(id(array))
        if known is not None and known.describes(array):
            return known.wire
        if not isinstance(array, np.ndarray):
            return make_tensor(array)._wire
        key = id(array)
        forget = self._known.pop
        with self._lock:  # a layout gets its number once, and numbers are forgotten together
            wire = self._describe(array)
            reference = weakref.ref(array, lambda _: forget(key, None))
            self._known[key] = _Sent(reference, array.shape, array.strides, array.dtype, wire)
        return wire

    def _describe(self, array: Array) -> bytes:
        address: int = array.__array_interface__["data"][0]
        low, high = np.lib.array_utils.byte_bounds(array)
        if array.dtype.hasobject:
            raise TypeError(f"workers cannot read elements of type {array.dtype}, Python objects")
        why = self._session.why_invisible(low, high - low) if high > low else None
        if why is not None:
            raise ValueError(
                f"workers cannot see this array of shape {array.shape}: {why}; pass Worker.share(array)"
            )
        number = self._layouts.number(array.dtype, array.shape, array.strides)
        return TENSOR.pack(address, number, 0, 0, 0, 0, 0, L.TENSOR_DESCRIBED, False)

    def forget(self) -> None:
        """Forget all arrays: no call that has them may still run."""
        with self._lock:
            self._known.clear()
            self._layouts.reset()


class ReceivedArrays:
    """The arrays of the calls that a worker runs."""

    def __init__(self, engine: Engine) -> None:
        self._layouts = Layouts(engine)
        self._views: dict[tuple[bytes, bool], Array] = {}
        self._epoch = -1

    def array(self, wire: bytes, writeable: bool) -> Array:
        """Return the array of a tensor, a new one each time: its shape is the task's own."""
        if self._layouts.epoch != self._epoch:
            self._epoch = self._layouts.epoch
            self._views.clear()
        view = self._views.get((wire, writeable))
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            view = self._views[wire, writeable] = self._make(wire)
            view.flags.writeable = writeable
        mine: Array = view.view()
        return mine

    def _make(self, wire: bytes) -> Array:
        if not has_layout(wire):
            return ContinuousTensor._from_wire(wire).numpy()
        dtype, shape, strides = self._layouts.read(layout_number(wire))
        return view_memory(TENSOR.unpack(wire)[0], shape, dtype, strides=strides)
