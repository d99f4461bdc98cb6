"""Which memory workers can see, and which Workers' checks apply on this thread."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..system.mappings import covers, shared_mappings
from ..system.types import Array
from .enums import to_dtype
from .tensor import ContinuousTensor

Visible = Callable[[int, int], str | None]
"""Says why the workers cannot see bytes [address, address + n); None if they can."""

_visibility: list[Visible] = []


class _Current(threading.local):
    """The check of the Worker that this thread runs an orchestration function for."""

    check: Visible | None = None
    number = 0
    """Different each time that the check is set; 0 without one."""
    kept: list[Any] | None = None
    """While a graph is recorded: the arrays it refers to."""


current = _Current()
_numbers = itertools.count(1)
_known: dict[
    int, tuple[weakref.ref[Any], tuple[int, ...], Any, Visible | None, ContinuousTensor]
] = {}


def keep_alive(array: Any) -> None:
    """Have the graph that this thread records, if any, keep an array alive."""
    if current.kept is not None:
        current.kept.append(array)


def add_visibility(check: Visible) -> None:
    """Add a check for shared memory (each open Worker does)."""
    _visibility.append(check)


def remove_visibility(check: Visible) -> None:
    """Remove a check, and forget the arrays that it accepted."""
    if check in _visibility:
        _visibility.remove(check)
    _known.clear()


def set_current(
    check: Visible | None, kept: list[Any] | None = None
) -> tuple[Visible | None, list[Any] | None]:
    """Use only one Worker's check on this thread; return the values set before.

    Arrays that `check` newly accepts are appended to `kept`.
    """
    before = current.check, current.kept
    current.check, current.kept = check, kept
    current.number = 0 if check is None else next(_numbers)
    return before


def forget_visibility() -> None:
    """Forget every check: this process was forked, the Workers are its parent's."""
    current.check = current.kept = None
    _visibility.clear()
    _known.clear()


def is_shared(address: int, nbytes: int) -> bool:
    """Say whether processes forked from this one share some memory with it."""
    if any(check(address, nbytes) is None for check in _visibility):
        return True
    return covers(shared_mappings(), address, nbytes) is not None


def make_tensor(array: Any) -> ContinuousTensor:
    """Describe an array (numpy, or a torch CPU tensor) that lives in shared memory.

    Raises
    ------
    TypeError
        Not an array, or an element type that cannot be passed.
    ValueError
        Not contiguous, more than five dimensions, or memory that a worker process cannot see.

    Notes
    -----
    Rule     FLOW-BUILD-5; ORCH-MISUSE-2, -3
    """
    if isinstance(array, ContinuousTensor):
        return array
    if isinstance(array, np.ndarray):
        return _from_numpy(array)
    if hasattr(array, "data_ptr") and hasattr(array, "element_size"):
        return _from_torch(array)
    raise TypeError(
        f"expected a ContinuousTensor or an array in shared memory, got {type(array).__name__}; "
        "pass Worker.share(array) or Worker.empty(shape, dtype)"
    )


def _from_numpy(array: Array) -> ContinuousTensor:
    known = _known.get(id(array))
    if known is not None:
        reference, shape, dtype, voucher, tensor = known
        if (
            reference() is array
            and array.shape == shape
            and array.dtype is dtype
            and current.check in (None, voucher)
        ):
            return tensor
    if not array.flags.c_contiguous:
        raise not_contiguous(array.shape, array.strides)
    kind = to_dtype(array.dtype)
    address: int = array.__array_interface__["data"][0]
    voucher = require_visible(address, array.nbytes)
    keep_alive(array)
    tensor = ContinuousTensor(address, array.shape, kind)
    key = id(array)
    reference = weakref.ref(array, lambda _: _known.pop(key, None))
    _known[key] = (reference, array.shape, array.dtype, voucher, tensor)
    return tensor


def not_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> ValueError:
    """Return the exception for an array with gaps."""
    return ValueError(
        f"an array of shape {shape} and strides {strides} is not contiguous; "
        "pass Worker.share(array), which makes a contiguous copy"
    )


def _from_torch(tensor: Any) -> ContinuousTensor:
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device} is not host memory; pass a CPU tensor")
    if not tensor.is_contiguous():
        raise ValueError("a torch tensor must be contiguous; call .contiguous().share_memory_()")
    nbytes = tensor.numel() * tensor.element_size()
    remedy = "call .share_memory_() before forked workers start, or pass Worker.share(tensor)"
    require_visible(tensor.data_ptr(), nbytes, remedy)
    keep_alive(tensor)
    return ContinuousTensor(tensor.data_ptr(), tuple(tensor.shape), to_dtype(tensor.dtype))


def require_visible(
    address: int,
    nbytes: int,
    remedy: str = "pass Worker.share(array) or Worker.empty(shape, dtype)",
) -> Visible | None:
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


def invisible(
    address: int,
    nbytes: int,
    why: str,
    remedy: str = "pass Worker.share(array) or Worker.empty(shape, dtype)",
) -> ValueError:
    """Return the exception for memory that a worker process could not see.

    Rule     ORCH-MISUSE-2
    """
    return ValueError(
        f"a worker process cannot see the {nbytes} bytes at {address:#x}: {why}; {remedy}"
    )


class Doubts:
    """Arrays added to a TaskArgs outside of a run: the Worker of each run checks them."""

    __slots__ = ("_settled", "spans")

    def __init__(self, *spans: tuple[int, int]) -> None:
        self.spans = spans
        self._settled = -1

    def and_of(self, address: int, nbytes: int) -> Doubts:
        """Return these, and one more array."""
        return Doubts(*self.spans, (address, nbytes))

    def settle(self) -> None:
        """Check them with the Worker of the current run, once in each run.

        Raises
        ------
        ValueError
            Its workers cannot see some of the memory.
        """
        if self._settled != current.number:
            for address, nbytes in self.spans:
                require_visible(address, nbytes)
            self._settled = current.number
