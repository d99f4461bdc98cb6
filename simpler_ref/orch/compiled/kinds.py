"""The types, in compiled code, of what an orchestration function holds.

Their values are a few words: an Orchestrator is the address of its call's words, a handle its two
callable words, a tensor its five wire words. Only `TaskArgs` is memory of its own, because two names may
mean the same one.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.experimental import structref
from numba.extending import (
    NativeValue,
    intrinsic,
    lower_cast,
    make_attribute_wrapper,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from ...jit import layout as L
from ...model.config import CallConfig
from ...model.enums import DataType
from .machine import FIVE, WORDS

TENSOR_WORDS = L.TENSOR_WORDS
INLINE = 48
"""Words of arguments that a TaskArgs holds without memory of its own: nine tensors, some scalars."""


class Plain(types.Type):  # type: ignore[misc]
    """A type whose values are some words; a name without underscore is an attribute of Python's, too."""

    words: tuple[str, ...] = ()


class OrchestratorType(Plain):
    """The Orchestrator: the address of the call's words."""

    words = ("_call",)


class HandleType(Plain):
    """A CallableHandle: its number in the call, its words for sub and next-level workers, or -1."""

    words = ("_number", "_sub", "_next_level")


class ConfigType(Plain):
    """A CallConfig: the number under which mailboxes get it, and its fields."""

    words = ("_number", *CallConfig._FIELDS)


class TensorType(Plain):
    """A ContinuousTensor: its wire words. Dimensions and dtype are known to the compiler, or -1."""

    words = ("data", "_first", "_second", "_third", "_kind")

    def __init__(self, ndim: int, dtype: int) -> None:
        self.ndim, self.dtype = ndim, dtype
        what = f"{ndim}d, {DataType(dtype).name}" if dtype >= 0 else f"{ndim}d" if ndim >= 0 else ""
        super().__init__(f"ContinuousTensor({what})")

    def unify(self, typingctx, other):
        """Return what tensors of two kinds are: one of which nothing is known."""
        return TENSOR if isinstance(other, TensorType) else None

    def can_convert_to(self, typingctx, other):
        """Say that a tensor is also one of which less is known."""
        if isinstance(other, TensorType) and other.dtype < 0 and other.ndim in (-1, self.ndim):
            return numba.core.typeconv.Conversion.safe
        return None


class ReceivedType(Plain):
    """The arguments of a running task: their address. The compiler knows the kinds of its tensors."""

    words = ("block",)

    def __init__(self, kinds: tuple[tuple[int, int], ...], scalars: int) -> None:
        self.kinds = kinds
        super().__init__(f"ReceivedArgs({kinds}, {scalars})")


ORCHESTRATOR, HANDLE = OrchestratorType("Orchestrator"), HandleType("CallableHandle")
CONFIG, TENSOR = ConfigType("CallConfig"), TensorType(-1, -1)


class _PlainModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, dmm, fe_type):
        words = [(name.strip("_"), types.int64) for name in fe_type.words]
        super().__init__(dmm, fe_type, words)


@structref.register
class ArgsType(types.StructRef):  # type: ignore[misc]
    """A TaskArgs: counts and words are at `block`, inside it or in an array that has grown."""

    def __init__(self, fields):
        super().__init__(fields)
        self.name = "TaskArgs"


ARGS = ArgsType(
    [
        ("inline", types.UniTuple(types.int64, 1 + INLINE)),
        ("block", types.int64),
        ("capacity", types.int64),
        ("grown", WORDS),
    ]
)


B_BLOCK, B_CAPACITY, B_GROWN = (L.WORD * (1 + INLINE + at) for at in range(3))
"""Offsets of the fields after the words inside a TaskArgs, in bytes."""


@intrinsic
def inside(typingctx, args):
    """Return the address of a TaskArgs' fields, of which the first are the words inside it."""

    def codegen(context, builder, sig, given):
        meminfo = context.make_helper(builder, args, given[0]).meminfo
        return builder.ptrtoint(context.nrt.meminfo_data(builder, meminfo), ir.IntType(64))

    return types.int64(args), codegen


@intrinsic
def keep(typingctx, box, words):
    """Have the TaskArgs with fields at `box` hold the words that it has grown into."""

    def codegen(context, builder, sig, args):
        at = builder.add(args[0], ir.Constant(ir.IntType(64), B_GROWN))
        at = builder.inttoptr(at, args[1].type.as_pointer())
        context.nrt.incref(builder, WORDS, args[1])
        context.nrt.decref(builder, WORDS, builder.load(at))
        builder.store(args[1], at)
        return context.get_dummy_value()

    return types.void(types.int64, WORDS), codegen


@numba.njit
def task_args(block, capacity):
    """Return a TaskArgs over a block that Python made, or over words inside it (0)."""
    args = structref.new(ARGS)
    args.block = block or inside(args)
    args.capacity = capacity
    return args


@lower_cast(TensorType, TensorType)
def _same_tensor(context, builder, fromty, toty, val):
    return val


@functools.cache
def tensor_maker(ndim, dtype):
    """Return the intrinsic that makes tensors of a kind of their words."""

    @intrinsic
    def make(typingctx, words):
        def codegen(context, builder, sig, args):
            return cgutils.pack_struct(
                builder, cgutils.unpack_tuple(builder, args[0], TENSOR_WORDS)
            )

        return TensorType(ndim, dtype)(FIVE), codegen

    return make


def complaint(words):
    """Return the error for what cannot be compiled, marked so that `_explain` finds the words."""
    return numba.TypingError(f"[[{words}]]")


# ---------------------------------------------------------------- values on their way in
class Native:
    """A value on its way into compiled code: its type, and its words as bytes."""

    __slots__ = ("numba_type", "raw")

    def __init__(self, numba_type: types.Type, *words: int) -> None:
        self.numba_type = numba_type
        self.raw = b"".join((word & (1 << 64) - 1).to_bytes(L.WORD, "little") for word in words)


@typeof_impl.register(Native)
def _typeof(value, context):
    return value.numba_type


def _unbox_words(c, obj, count):
    """Return the words of a `Native`."""
    raw = c.pyapi.object_getattr_string(obj, "raw")
    word = ir.IntType(64)
    start = c.builder.bitcast(c.pyapi.bytes_as_string(raw), word.as_pointer())
    words = []
    for i in range(count):
        at = c.builder.gep(start, [ir.Constant(word, i)])
        words.append(c.builder.load(at, typ=word, align=1))
    c.pyapi.decref(raw)
    return words


def _unbox_plain(typ, obj, c):
    return NativeValue(cgutils.pack_struct(c.builder, _unbox_words(c, obj, len(typ.words))))


for _kind in (OrchestratorType, HandleType, ConfigType, TensorType, ReceivedType):
    register_model(_kind)(_PlainModel)
    unbox(_kind)(_unbox_plain)
    for _name in _kind.words:
        make_attribute_wrapper(_kind, _name.strip("_"), _name)


@unbox(ArgsType)
def _unbox_args(typ, obj, c):
    words = _unbox_words(c, obj, 2)
    sig = typ(types.int64, types.int64)
    adopt = c.context.compile_subroutine(c.builder, task_args.py_func, sig)
    _, made = c.context.call_internal_no_propagate(c.builder, adopt.fndesc, sig, words)
    return NativeValue(made)


def kind_of(value: Any) -> Any:
    """Return something that is equal for values of the same numba type, quickly; None if it is not known.

    The type of a `Native` goes by its id: whoever keeps the code for it keeps the type.
    """
    kind = type(value)
    if kind is Native:
        return id(value.numba_type)
    if kind is tuple:
        kinds = tuple(map(kind_of, value))
        return None if None in kinds else kinds
    if kind is np.ndarray:
        if value.dtype.names is not None:
            return None  # equal ones may differ in their alignment
        flags = value.flags
        layout = flags.c_contiguous, flags.f_contiguous, flags.writeable
        return value.dtype, value.ndim, layout
    if kind is int:
        return int if value.bit_length() < 64 else None
    return kind if kind in (float, bool, str, type(None)) else None


def code_for(dispatcher: Any, given: list[Any]) -> Any:
    """Return the native code that a dispatcher runs with such values, or None if it converts some."""
    found = dispatcher.overloads.get(tuple(map(numba.typeof, given)))
    return None if found is None else found.entry_point
