"""Which memory workers can see, and which Workers' checks apply on this thread.

Rule     ORCH-MISUSE-2, ORCH-MISUSE-3, FLOW-LAYOUT-1, FLOW-BUILD-5
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..jit import layout as L
from ..system.regions import covers, shared_mappings
from ..system.types import Array
from .enums import DataType, any_dtype, find_dtype, numpy_dtype
from .tensor import END_OF_ADDRESSES, FIRST_ADDRESS, ContinuousTensor, describe
from .wire import CHILD_MEMORY_AT, SHAPE_AT, bytes_below, bytes_of

Visible = Callable[[int, int], str | None]
"""Says why the workers cannot see bytes [address, address + n); None if they can."""

_visibility: list[Visible] = []
_REMEDY = "pass Worker.share(array) or Worker.empty(shape, dtype)"


class _Current(threading.local):
    """The check of the Worker that this thread runs an orchestration function for."""

    check: Visible | None = None
    number = 0
    """Different each time that the check is set; 0 without one."""
    kept: list[Any] | None = None
    """While a graph is recorded: the arrays it refers to."""
    spawned = False
    """Whether a fresh interpreter makes its workers: no address that it refuses exists there."""


current = _Current()
_numbers = itertools.count(1)
_known: dict[int, tuple[Any, ...]] = {}
"""Arrays that were described before, by their ids: a reference, shape, element type, strides of a view,
which check has accepted it, and the tensor."""


def keep_alive(array: Any) -> None:
    """Have the graph that this thread records, if any, keep an array alive."""
    if current.kept is not None:
        current.kept.append(array)


def add_visibility(check: Visible) -> None:
    _visibility.append(check)


def remove_visibility(check: Visible) -> None:
    if check in _visibility:
        _visibility.remove(check)
    _known.clear()


def set_current(
    check: Visible | None, kept: list[Any] | None = None, spawned: bool = False
) -> None:
    """Use only one Worker's check on this thread; arrays that it newly accepts are appended to `kept`.

    If its workers are `spawned`, addresses given by hand are checked, too.
    """
    current.check, current.kept, current.spawned = check, kept, spawned
    current.number = 0 if check is None else next(_numbers)


def forget_visibility() -> None:
    """Forget every check: this process was forked, the Workers are its parent's."""
    current.check = current.kept = None
    current.spawned = False
    _visibility.clear()
    _known.clear()


def is_shared(address: int, nbytes: int) -> bool:
    """Say whether processes forked from this one share some memory with it."""
    if any(check(address, nbytes) is None for check in _visibility):
        return True
    return covers(shared_mappings(), address, nbytes) is not None


def make_tensor(array: Any) -> ContinuousTensor:
    """Describe an array that lives in shared memory: of numpy, torch, or what numpy makes an array of.

    That is what has `__array__`, `__array_interface__` or `__dlpack__`, such as a column of pandas.

    Raises TypeError if it is no array, or its elements are Python objects; ValueError for memory that a
    worker process cannot see.
    """
    if isinstance(array, ContinuousTensor):
        return array
    if isinstance(array, np.ndarray):
        return from_numpy(array)
    if _is_of_torch(array):
        return _from_torch(array)
    if not isinstance(array, np.generic):
        if hasattr(array, "__array__") or hasattr(array, "__array_interface__"):
            return from_numpy(np.asarray(array))
        if hasattr(array, "__dlpack__"):
            return from_numpy(np.from_dlpack(array))
    raise TypeError(
        f"expected a ContinuousTensor or an array in shared memory, got {type(array).__name__}; "
        f"{_REMEDY}"
    )


def as_array(value: Any) -> Array:
    """Return what numpy makes of something, without a copy where it can; of a tensor of torch, too.

    That is its numbers alone, without what gradients need; of bfloat16, if `ml_dtypes` is installed.
    """
    if _is_of_torch(value):
        value = value.detach()
        dtype = None
        if find_dtype(value.dtype) is DataType.BFLOAT16:
            dtype = numpy_dtype(DataType.BFLOAT16)
            value = value.view(sys.modules["torch"].int16)
        found: Array = value.numpy()
        return found if dtype is None else found.view(dtype)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _is_of_torch(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "element_size")


_OF_HOST = 0, L.TENSOR_READ_ONLY
_ONLY_MEMORY = {np.ndarray, np.memmap, np.recarray}


def require_only_memory(array: Array) -> None:
    """Refuse arrays that are more than their memory, which is all that a task would see of them."""
    if type(array) not in _ONLY_MEMORY:
        parts = "x.data and x.mask" if isinstance(array, np.ma.MaskedArray) else "np.asarray(x)"
        raise TypeError(
            f"of this {type(array).__name__} a task would see the memory alone, and not what makes it "
            f"more than an array: pass {parts}"
        )


def from_numpy(array: Array) -> ContinuousTensor:
    """Describe an array of numpy; see `make_tensor`."""
    known = _known.get(id(array))
    if known is not None:
        reference, shape, dtype, strides, voucher, tensor = known
        check = current.check
        if (
            reference() is array
            and array.shape == shape
            and array.dtype is dtype
            and (strides is None or array.strides == strides)
            and (check is voucher or check in (None, voucher))  # the first is quick
        ):
            return tensor  # type: ignore[no-any-return]
    require_only_memory(array)
    address: int = array.__array_interface__["data"][0]
    kind, strides = find_dtype(array.dtype), None
    if kind is None or not array.flags.c_contiguous or array.ndim > L.CONTINUOUS_TENSOR_MAX_DIMS:
        strides = array.strides
        tensor = describe(address, array.shape, any_dtype(array.dtype), strides)
    else:
        tensor = ContinuousTensor(address, array.shape, kind)
    voucher = require_visible(*tensor._span())
    keep_alive(array)
    key = id(array)
    reference = weakref.ref(array, lambda _: _known.pop(key, None))
    _known[key] = reference, array.shape, array.dtype, strides, voucher, tensor
    return tensor


def _from_torch(tensor: Any) -> ContinuousTensor:
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device} is not host memory; pass a CPU tensor")
    kind, shape = find_dtype(tensor.dtype), tuple(tensor.shape)
    if kind is not None and tensor.is_contiguous() and len(shape) <= L.CONTINUOUS_TENSOR_MAX_DIMS:
        made = ContinuousTensor(tensor.data_ptr(), shape, kind)
    else:
        strides = [step * tensor.element_size() for step in tensor.stride()]
        made = describe(tensor.data_ptr(), shape, any_dtype(tensor.dtype), strides)
    remedy = "call .share_memory_() before forked workers start, or pass Worker.share(tensor)"
    require_visible(*made._span(), remedy)
    keep_alive(tensor)
    return made


def require_visible(address: int, nbytes: int, remedy: str = _REMEDY) -> Visible | None:
    """Return the check that accepts some memory; None if no Worker is open yet."""
    checks = list(_visibility) if current.check is None else [current.check]
    why = ""
    for check in checks:
        reason = check(address, nbytes)
        if reason is None:
            return check
        why = reason
    if not checks and covers(shared_mappings(), address, nbytes) is not None:
        return None
    raise invisible(address, nbytes, why or "it is private to this process", remedy)


def require_wires_visible(wires: Iterable[bytes]) -> None:
    """Refuse tensors of the host, addresses given by hand included, that spawned workers do not have."""
    for wire in wires:
        address = int.from_bytes(wire[:SHAPE_AT], "little")
        if wire[CHILD_MEMORY_AT] in _OF_HOST and FIRST_ADDRESS <= address < END_OF_ADDRESSES:
            require_visible(address - bytes_below(wire), bytes_of(wire))


def invisible(address: int, nbytes: int, why: str, remedy: str = _REMEDY) -> ValueError:
    return ValueError(
        f"a worker process cannot see the {nbytes} bytes at {address:#x}: {why}; {remedy}"
    )


@dataclass
class Doubts:
    """What a submit has to look at in a TaskArgs."""

    spans: tuple[tuple[int, int], ...] = ()
    """Arrays added outside of a run: the Worker of each run checks them."""
    has_layouts: bool = False
    """Some tensors are described by layouts, to which the engine gives numbers."""
    is_remote: bool = False
    """Some are in the memory of endpoints."""
    _settled: int = field(default=-1, init=False)

    def settle(self) -> None:
        """Check them with the Worker of the current run, once in each run."""
        if self._settled != current.number:
            for address, nbytes in self.spans:
                require_visible(address, nbytes)
            self._settled = current.number
