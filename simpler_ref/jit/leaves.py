"""Calling compiled leaves: functions of which a kernel knows only the address of their code.

A leaf takes the addresses of an args blob and of the layouts, and returns OK, or another number if it was
compiled for other arguments. It has the calling convention of compiled functions, so an exception that it
raises propagates through the calling kernel to Python.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
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

    def address_of(mem, i):
        return mem.__array_interface__["data"][0] + 8 * int(i)

    def call_leaf(leaf, args, layouts):
        raise NotImplementedError("interpreted leaves are called by Python")

    def pointer(address):
        raise NotImplementedError("interpreted code has no pointers")

    def as_float(bits, kind):
        raise NotImplementedError("interpreted leaves are called by Python")

    def as_single(bits, kind):
        raise NotImplementedError("interpreted leaves are called by Python")

    def double_of(bits):
        raise NotImplementedError("interpreted tasks are called by Python")

    def bits_of(number):
        raise NotImplementedError("interpreted tasks are called by Python")

    def array_at(kind, data, record):
        raise NotImplementedError("interpreted code has no pointers")

    def fits_layout(record, data, dims, order, align, kind):
        raise NotImplementedError("interpreted code has no pointers")

else:
    from llvmlite import ir
    from numba import carray
    from numba.np import arrayobj

    @intrinsic
    def address_of(typingctx, mem, i):
        """Return the address of a word."""

        def codegen(context, builder, sig, args):
            array_type, array, index = sig.args[0], args[0], args[1]
            view = context.make_array(array_type)(context, builder, array)
            item = cgutils.get_item_pointer(
                context, builder, array_type, view, [index], wraparound=False
            )
            return builder.ptrtoint(item, ir.IntType(64))

        return signature(types.int64, mem, types.int64), codegen

    @intrinsic
    def pointer(typingctx, address):
        """Return an address as a pointer for `numba.carray`."""

        def codegen(context, builder, sig, args):
            return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

        return signature(types.voidptr, types.int64), codegen

    @intrinsic
    def double_of(typingctx, bits):
        """Return bits as a 64-bit float."""

        def codegen(context, builder, sig, args):
            return builder.bitcast(args[0], ir.DoubleType())

        return signature(types.float64, types.int64), codegen

    @intrinsic
    def bits_of(typingctx, number):
        """Return the bits of a 64-bit float."""

        def codegen(context, builder, sig, args):
            return builder.bitcast(args[0], ir.IntType(64))

        return signature(types.int64, types.float64), codegen

    @intrinsic
    def array_at(typingctx, kind, data, record):
        """Return an array over memory, with the sizes and strides of the layout at an address."""
        array = kind.instance_type

        def codegen(context, builder, sig, args):
            words = builder.inttoptr(args[2], ir.IntType(64).as_pointer())
            axis = [
                builder.load(builder.gep(words, [ir.Constant(ir.IntType(64), L.LAYOUT_WORDS + i)]))
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

    @intrinsic
    def single_of(typingctx, bits):
        """Return the lower half of bits as a 32-bit float."""

        def codegen(context, builder, sig, args):
            low = builder.trunc(args[0], ir.IntType(32))
            return builder.bitcast(low, ir.FloatType())

        return signature(types.float32, types.int64), codegen

    @numba.njit(nogil=True, error_model="numpy")
    def as_float(bits, kind):
        """Return a scalar as a float; bits without a kind count as one.

        Rule     FLOW-SCALAR-1
        """
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

    @intrinsic
    def call_leaf(typingctx, leaf, args, layouts):
        """Call the leaf at an address with the args blob at another; propagate its exceptions."""

        def codegen(context, builder, sig, values):
            takes = (types.int64, types.int64)
            kind = context.call_conv.get_function_type(types.int64, takes)
            function = builder.inttoptr(values[0], kind.as_pointer())
            status, answer = context.call_conv.call_function(
                builder, function, types.int64, takes, values[1:]
            )
            with cgutils.if_unlikely(builder, status.is_error):
                context.call_conv.return_status_propagate(builder, status)
            return answer

        return signature(types.int64, types.int64, types.int64, types.int64), codegen


def address_of_leaf(compiled: Any) -> int:
    """Return the address of a leaf, a function that was compiled for two 64-bit integers."""
    (result,) = compiled.overloads.values()
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address
