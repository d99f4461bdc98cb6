"""Communication domains for kernels that are written in Python; `simpler_domain.h` has the same for C.

For use in functions under `core_kernel`. `ctx` is the `device_ctx` of a `ChipDomainContext`, which a task
adds as a scalar (``Scalar("uint64")``). Arrays are contiguous. An array in the own window stands for its
place in the windows of all ranks. What returns a status returns 0, or an error for the kernel to return::

    status = barrier(ctx)
    if status != 0:
        return status

One block of each rank may wait, so launch one block: ``CallConfig(block_dim=1)``.

Rule     WM-DOMAIN-9, WM-DOMAIN-11
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import llvmlite.binding as llvm
import numba
import numba.core.types
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from .chip_worker import _shim

types: Any = numba.core.types

PREFIX = "simpler_call_"
"""Of the symbols that a kernel refers to if it uses a domain."""

_number, _signed, _status = types.uint64, types.int64, types.int32
_SIGNATURES = {
    "rank": _number(_number),
    "size": _number(_number),
    "base": _number(_number, _number),
    "peer": _number(_number, _number, _number, _number),
    "copy": types.void(_number, _number, _number),
    "notify": _status(_number, _number, _number, _signed),
    "wait": _status(_number, _number, _signed, _number),
    "barrier": _status(_number, _number),
}
_rank, _size, _base, _peer, _copy, _notify, _wait, _barrier = (
    types.ExternalFunction(PREFIX + name, signature) for name, signature in _SIGNATURES.items()
)
OUTSIDE = -1302
"""What `put` and others return if a rank does not exist, or memory is outside of the own window."""

_OPTIONS = {"error_model": "numpy", "_nrt": False, "boundscheck": False}
_within_kernels = numba.njit(**_OPTIONS)


@functools.cache
def provide_symbols() -> None:
    """Tell the compiler where the functions are, for the copy of a kernel that it keeps here."""
    for name in _SIGNATURES:
        function = getattr(_shim(), PREFIX + name)
        llvm.add_symbol(PREFIX + name, ctypes.cast(function, ctypes.c_void_p).value)


def _require_contiguous(array: Any) -> None:
    if not isinstance(array, types.Array) or array.layout != "C":
        raise TypingError(f"memory of a domain is a contiguous array, not {array}")


@intrinsic  # type: ignore[untyped-decorator]
def _address(_: Any, array: Any) -> Any:
    """Return where an array begins."""
    _require_contiguous(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = make_array(array)(context, builder, value=args[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.uint64))

    return types.uint64(array), generate


@intrinsic  # type: ignore[untyped-decorator]
def _moved(_: Any, array: Any, address: Any) -> Any:
    """Return an array like another one, at another address."""
    _require_contiguous(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = make_array(array)(context, builder, value=args[0])
        made.data = builder.inttoptr(args[1], made.data.type)
        return made._getvalue()

    return array(array, types.uint64), generate


@_within_kernels
def domain_rank(ctx):  # type: ignore[no-untyped-def]
    """Return the rank of this chip."""
    return _signed(_rank(ctx))


@_within_kernels
def domain_size(ctx):  # type: ignore[no-untyped-def]
    """Return the number of ranks."""
    return _signed(_size(ctx))


@_within_kernels
def domain_base(ctx, rank):  # type: ignore[no-untyped-def]
    """Return the address of a rank's window, 0 if there is no such rank."""
    return _base(ctx, rank)


@numba.njit(inline="always", **_OPTIONS)  # without memory of its own a function returns no array
def peer(ctx, rank, array):  # type: ignore[no-untyped-def]
    """Return the array that a rank has where this one has `array`, in its window.

    There must be such a rank, and `array` must be in the own window: else an access fails the task.
    """
    return _moved(array, _peer(ctx, rank, _address(array), array.size * array.itemsize))


@_within_kernels
def put(ctx, rank, to, source):  # type: ignore[no-untyped-def]
    """Copy all of `source` to where a rank has `to`, an array in the own window; return a status."""
    nbytes = source.size * source.itemsize
    there = _peer(ctx, rank, _address(to), nbytes)
    if there == 0 or nbytes > to.size * to.itemsize:
        return _status(OUTSIDE)
    _copy(there, _address(source), nbytes)
    return _status(0)


@_within_kernels
def get(ctx, rank, to, source):  # type: ignore[no-untyped-def]
    """Copy all that a rank has where this one has `source`, in its window, to `to`; return a status."""
    nbytes = source.size * source.itemsize
    there = _peer(ctx, rank, _address(source), nbytes)
    if there == 0 or nbytes > to.size * to.itemsize:
        return _status(OUTSIDE)
    _copy(_address(to), there, nbytes)
    return _status(0)


@_within_kernels
def notify(ctx, rank, signals, i, add=1):  # type: ignore[no-untyped-def]
    """Add to element `i` of the int32 array that a rank has where this one has `signals`, and wake it.

    The array is in the window, and zero at first. Returns a status.
    """
    if i < 0 or i >= signals.size or signals.itemsize != 4:
        return _status(OUTSIDE)
    return _notify(ctx, rank, _address(signals) + _number(4 * i), add)


@_within_kernels
def wait(ctx, signals, i, at_least, timeout_ns=0):  # type: ignore[no-untyped-def]
    """Wait until element `i` of an int32 array in the own window is at least so much; return a status.

    `timeout_ns` 0 is the domain's deadline.
    """
    if i < 0 or i >= signals.size or signals.itemsize != 4:
        return _status(OUTSIDE)
    return _wait(ctx, _address(signals) + _number(4 * i), at_least, timeout_ns)


@_within_kernels
def barrier(ctx, timeout_ns=0):  # type: ignore[no-untyped-def]
    """Wait until one block of every rank is here; return a status.

    `timeout_ns` 0 is the domain's deadline.
    """
    return _barrier(ctx, timeout_ns)
