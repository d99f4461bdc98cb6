"""Calling compiled leaves: functions of which a kernel knows only the address of their code.

A leaf takes the address of an args blob and returns OK, or another number if it was compiled for other
arguments. It has the calling convention of compiled functions, so an exception that it raises propagates
through the calling kernel to Python.
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

if INTERPRETED:

    def address_of(mem, i):
        return mem.__array_interface__["data"][0] + 8 * int(i)

    def call_leaf(leaf, args):
        raise NotImplementedError("interpreted leaves are called by Python")

    def pointer(address):
        raise NotImplementedError("interpreted code has no pointers")

    def as_float(bits, kind):
        raise NotImplementedError("interpreted leaves are called by Python")

    def as_single(bits, kind):
        raise NotImplementedError("interpreted leaves are called by Python")

else:
    from llvmlite import ir

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
    def single_of(typingctx, bits):
        """Return the lower half of bits as a 32-bit float."""

        def codegen(context, builder, sig, args):
            low = builder.trunc(args[0], ir.IntType(32))
            return builder.bitcast(low, ir.FloatType())

        return signature(types.float32, types.int64), codegen

    @numba.njit(nogil=True, error_model="numpy")
    def as_float(bits, kind):
        """Return a scalar as a float; bits without a kind count as one.

        Rule     FLOW-SCALAR-2, -3
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
    def call_leaf(typingctx, leaf, args):
        """Call the leaf at an address with the args blob at another; propagate its exceptions."""

        def codegen(context, builder, sig, values):
            takes = (types.int64,)
            kind = context.call_conv.get_function_type(types.int64, takes)
            function = builder.inttoptr(values[0], kind.as_pointer())
            status, answer = context.call_conv.call_function(
                builder, function, types.int64, takes, [values[1]]
            )
            with cgutils.if_unlikely(builder, status.is_error):
                context.call_conv.return_status_propagate(builder, status)
            return answer

        return signature(types.int64, types.int64, types.int64), codegen


def address_of_leaf(compiled: Any) -> int:
    """Return the address of a function that was compiled for one 64-bit integer."""
    (result,) = compiled.overloads.values()
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address
