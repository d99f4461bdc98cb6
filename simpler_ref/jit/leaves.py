"""Calling compiled leaves: functions of which a kernel knows only the address of their code.

A leaf takes the addresses of an args blob and of the layouts, and returns OK, or another number if it was
compiled for other arguments. It has the calling convention of numba's functions: for an exception that it
raises, the calling kernel keeps numba's address (`atomics.run_leaf`), and `raise_error` raises it.

Only who has compiled code imports this module, and with it numba; kernels do not.

Rule     FLOW-SCALAR-1
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import callconv, cgutils, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from . import layout as L
from .kernel import INTERPRETED

KINDS_FROM_ARGS = L.WORD * (L.W_KINDS - L.W_MAILBOX - L.MAIL_COUNTS)
"""Bytes from the args blob of a task to the kinds of its scalars."""
VALUE_FROM_ARGS = L.WORD * (L.W_VALUE - L.W_MAILBOX - L.MAIL_COUNTS)
"""Bytes from the args blob of a call to its value and the kind of that."""
IN_C_ORDER, IN_FORTRAN_ORDER, IN_NO_ORDER = range(3)
"""How the elements of an array follow each other: as those of a contiguous one, or in no such way."""

if INTERPRETED:

    def _is_compiled(*_):
        raise NotImplementedError("interpreted tasks are called by Python, and it has no pointers")

    call_leaf = pointer = as_float = as_single = double_of = bits_of = _is_compiled
    array_at = fits_layout = _is_compiled

else:
    from llvmlite import ir
    from numba import carray
    from numba.np import arrayobj

    from .compiler import INT, call_code, instruction

    _I64 = ir.IntType(64)

    @instruction(types.voidptr, INT)
    def pointer(context, builder, address):
        """Return an address as a pointer for `numba.carray`."""
        return builder.inttoptr(address, ir.IntType(8).as_pointer())

    @instruction(types.float64, INT)
    def double_of(context, builder, bits):
        return builder.bitcast(bits, ir.DoubleType())

    @instruction(INT, types.float64)
    def bits_of(context, builder, number):
        return builder.bitcast(number, _I64)

    @instruction(types.float32, INT)
    def single_of(context, builder, bits):
        """Return the lower half of bits as a 32-bit float."""
        return builder.bitcast(builder.trunc(bits, ir.IntType(32)), ir.FloatType())

    @intrinsic
    def array_at(typingctx, kind, data, record):
        """Return an array over memory, with the sizes and strides of the layout at an address."""
        array = kind.instance_type

        def codegen(context, builder, sig, args):
            words = builder.inttoptr(args[2], _I64.as_pointer())
            axis = [
                builder.load(builder.gep(words, [ir.Constant(_I64, L.LAYOUT_WORDS + i)]))
                for i in range(2 * array.ndim)
            ]
            made = context.make_array(array)(context, builder)
            item = context.get_constant(
                types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype))
            )
            arrayobj.populate_array(
                made,
                data=builder.inttoptr(args[1], made.data.type),
                shape=axis[::2],
                strides=axis[1::2],
                itemsize=item,
                meminfo=None,
            )
            return made._getvalue()

        return signature(array, kind, types.int64, types.int64), codegen

    @numba.njit(nogil=True, error_model="numpy")
    def fits_layout(record, data, dims, order, align, kind):
        """Say whether an array of the layout at an address is one of those that code was compiled for.

        `kind` is the element type, as words of the record; its addresses are multiples of `align`.
        """
        head = carray(pointer(record), L.LAYOUT_WORDS, types.int64)
        if head[L.LAYOUT_DIMS] != dims:
            return False
        words = 2 * (dims + head[L.LAYOUT_LOOPS])
        rest = carray(pointer(record + L.WORD * L.LAYOUT_WORDS), words + len(kind), types.int64)
        for i in range(len(kind)):
            if rest[words + i] != kind[i]:
                return False
        item = head[L.LAYOUT_ITEM]
        in_c, in_fortran, empty = True, True, False
        size, bits = item, data
        for d in range(dims):
            empty |= rest[2 * d] == 0
            if rest[2 * d] != 1:
                in_fortran &= rest[2 * d + 1] == size
                bits |= rest[2 * d + 1]
            size *= rest[2 * d]
        size = item
        for d in range(dims - 1, -1, -1):
            if rest[2 * d] != 1:
                in_c &= rest[2 * d + 1] == size
            size *= rest[2 * d]
        found = IN_NO_ORDER
        if in_c or empty:
            found = IN_C_ORDER
        elif in_fortran:
            found = IN_FORTRAN_ORDER
        return found == order and (bits & (align - 1) == 0 or empty)

    @numba.njit(nogil=True, error_model="numpy")
    def as_float(bits, kind):
        """Return a scalar as a float; bits without a kind count as one."""
        if kind == L.SIGNED:
            return np.float64(bits)
        if kind == L.UNSIGNED:
            return np.float64(np.uint64(bits))
        if kind == L.FLOAT32:
            return np.float64(single_of(bits))
        return double_of(bits)

    @numba.njit(nogil=True, error_model="numpy")
    def as_single(bits, kind):
        """Return a scalar as a 32-bit float; bits without a kind count as one, in the low half."""
        if kind == L.RAW or kind == L.FLOAT32:
            return single_of(bits)
        return np.float32(as_float(bits, kind))

    @instruction(INT, INT, INT, INT)
    def call_leaf(context, builder, leaf, args, layouts):
        """Call the leaf at an address with the args blob at another; propagate its exceptions."""
        status, answer = call_code(context, builder, leaf, args, layouts)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return answer

    @instruction(types.void, INT)
    def _propagate(context, builder, error):
        """Raise an error, of which numba has the description at an address."""
        pointer = builder.inttoptr(error, callconv.excinfo_ptr_t)
        status = context.call_conv._get_return_status(builder, callconv.RETCODE_USEREXC, pointer)
        context.call_conv.return_status_propagate(builder, status)


@functools.cache
def _raiser() -> Callable[[int], None]:
    def raise_error(error):
        _propagate(error)

    return numba.njit("void(int64)")(raise_error)


def raise_error(error: int) -> None:
    _raiser()(error)


def address_of_leaf(compiled: Any) -> int:
    """Return the address of a leaf, a function that was compiled for two 64-bit integers."""
    (result,) = compiled.overloads.values()
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address
