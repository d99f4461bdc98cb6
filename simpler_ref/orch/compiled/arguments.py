"""`TaskArgs` in compiled code: those that are built there, and those of the task that runs it."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, overload_method

from ...jit import layout as L
from ...jit.leaves import as_float
from ...jit.submit import argument_words, scalars_in, tensors_in
from ...model.arguments import READ_ONLY, TENSOR_AFTER_SCALAR, TaskArgs
from ...model.enums import TensorArgType
from ...model.wire import counts_of
from . import machine as M
from .kinds import (
    B_BLOCK,
    B_CAPACITY,
    INLINE,
    TENSOR_WORDS,
    ArgsType,
    ReceivedType,
    TensorType,
    complaint,
    inside,
    keep,
    task_args,
    tensor_maker,
)
from .machine import (
    FIVE,
    INT,
    ask,
    ask_about,
    helper,
    part,
    peek,
    poke,
    set_word,
    word_at,
    words_at,
)
from .steps import FROM_ARRAY
from .tensors import describe, dtype_of, five, require_dims, whole

TAGS, TAG_SHIFT, SCALAR_WORDS = len(TensorArgType), L.TENSOR_TAG_SHIFT, L.SCALAR_WORDS
ONE_SCALAR = counts_of(0, 1)


@part
def address_of(block, i):
    """Return the address of word `i` of the arguments in a block, which begins with their counts."""
    return block + L.WORD * (1 + i)


# ---------------------------------------------------------------- what is refused
@part
def check_tag(tag):
    """Refuse a number that is no tag."""
    if not 0 <= tag < TAGS:
        ask(M.ASK_TAG, tag, 0, 0, 0)
    return tag


@part
def check_index(i, count, what):
    """Refuse an index that is out of range; `what` says of what."""
    if not 0 <= i < count:
        ask(M.ASK_INDEX, i, count, what, 0)


@helper()
def refuse_late_tensor():
    """Refuse a tensor after a scalar."""
    raise RuntimeError(TENSOR_AFTER_SCALAR)


@part
def check_reads(tag):
    """Refuse a tag of a read-only array that lets a task write it.

    Rule     ORCH-MISUSE-13
    """
    if check_tag(tag) not in (L.INPUT, L.NO_DEP):
        refuse_writes()
    return tag


@helper()
def refuse_writes():
    """Refuse to let a task write a read-only array."""
    raise ValueError(READ_ONLY)


@helper(FIVE, FIVE, INT, INT)
def require_contiguous(sizes, strides, ndims, itemsize):
    """Refuse an array with gaps: whose elements do not follow each other, as numpy has it."""
    step, good, empty = itemsize, True, False
    for d in range(ndims - 1, -1, -1):
        empty = empty or sizes[d] == 0
        good = good and (sizes[d] == 1 or strides[d] == step)
        step *= sizes[d]
    if not good and not empty:
        ask_about(M.ASK_CONTIGUOUS, ndims, 0, np.array((sizes, strides)))


# ---------------------------------------------------------------- building them
@overload(TaskArgs)
def _task_args():
    return lambda: task_args(0, INLINE)


@helper()
def grow(box):
    """Give a TaskArgs four times the room."""
    size = 1 + peek(box + B_CAPACITY)
    words, before = np.empty(4 * size, np.int64), words_at(peek(box + B_BLOCK), size)
    for k in range(size):
        words[k] = before[k]
    poke(box + B_BLOCK, words.ctypes.data)
    poke(box + B_CAPACITY, len(words) - 1)
    keep(box, words)


@part
def block_for(box, words):
    """Return the block of a TaskArgs that has room for that many words more."""
    counts = peek(peek(box + B_BLOCK))
    if argument_words(tensors_in(counts), scalars_in(counts)) + words > peek(box + B_CAPACITY):
        grow(box)
    return peek(box + B_BLOCK)


@part
def push_tensor(block, first, second, third, fourth, fifth):
    """Append a tensor, its tag in the last word."""
    counts = peek(block)
    if scalars_in(counts) != 0:
        refuse_late_tensor()
    at = address_of(block, counts * TENSOR_WORDS)
    poke(at, first)
    set_word(at, 1, second)
    set_word(at, 2, third)
    set_word(at, 3, fourth)
    set_word(at, 4, fifth)
    poke(block, counts + 1)


def _require_tag(tag):
    if isinstance(tag, (types.Omitted, types.IntEnumMember, types.Integer, TensorArgType)):
        return
    raise complaint(f"a tag must be a TensorArgType, not {tag}")


@intrinsic
def data_of(typingctx, array):
    """Return the address of an array's first element."""

    def codegen(context, builder, sig, args):
        view = context.make_array(array)(context, builder, args[0])
        return builder.ptrtoint(view.data, ir.IntType(64))

    return types.int64(array), codegen


@overload_method(ArgsType, "add_tensor")
def _add_tensor(args, tensor, tag=TensorArgType.INPUT):
    _require_tag(tag)
    if isinstance(tensor, TensorType):

        def impl(args, tensor, tag=TensorArgType.INPUT):
            box = inside(args)
            kind = tensor._kind | check_tag(whole(tag)) << TAG_SHIFT
            block = block_for(box, TENSOR_WORDS)
            first, second, third = tensor._first, tensor._second, tensor._third
            push_tensor(block, tensor.data, first, second, third, kind)

        return impl
    if not isinstance(tensor, types.Array):
        raise complaint(f"expected a ContinuousTensor or an array in shared memory, got {tensor}")
    ndim = tensor.ndim
    require_dims(ndim)
    array_kind = dtype_of(types.DType(tensor.dtype))
    itemsize = L.DTYPE_SIZES[array_kind]
    wire_kind, gaps = array_kind | FROM_ARRAY, tensor.layout != "C"
    check = check_tag if tensor.mutable else check_reads

    def impl(args, tensor, tag=TensorArgType.INPUT):
        box, data = inside(args), data_of(tensor)  # first of all, so that no references are counted
        sizes, strides = five(tensor.shape), five(tensor.strides)
        a, b, c, d, e = sizes
        if gaps:
            require_contiguous(sizes, strides, ndim, itemsize)
        if (a | b | c | d | e) >> L.HALF != 0:
            describe(0, sizes, ndim, array_kind)
        kind = wire_kind | check(whole(tag)) << TAG_SHIFT
        block = block_for(box, TENSOR_WORDS)
        push_tensor(block, data, a | b << L.HALF, c | d << L.HALF, e | ndim << L.HALF, kind)

    return impl


@intrinsic
def scalar_bits(typingctx, value):
    """Return the 64 bits that carry a scalar, those of a 32-bit float below."""

    def codegen(context, builder, sig, args):
        if not isinstance(value, types.Float):
            return context.cast(builder, args[0], value, types.int64)
        bits = builder.bitcast(args[0], ir.IntType(value.bitwidth))
        return builder.zext(bits, ir.IntType(64)) if value.bitwidth < 64 else bits

    return types.int64(value), codegen


@overload_method(ArgsType, "add_scalar")
def _add_scalar(args, value):
    numbers = (types.IntEnumMember, types.Integer, types.Boolean)
    if not isinstance(value, numbers) and value not in (types.float64, types.float32):
        raise complaint(f"a scalar must be a number of at most 64 bits, not {value}")
    kind = {types.float64: L.FLOAT64, types.float32: L.FLOAT32}.get(value, L.SIGNED)
    unsigned = isinstance(value, types.Integer) and not value.signed

    def impl(args, value):
        block = block_for(inside(args), SCALAR_WORDS)
        counts, bits = peek(block), scalar_bits(value)
        at = address_of(block, argument_words(tensors_in(counts), scalars_in(counts)))
        set_word(at, L.SCALAR_BITS, bits)
        set_word(at, L.SCALAR_KIND, L.UNSIGNED if unsigned and bits < 0 else kind)
        poke(block, counts + ONE_SCALAR)

    return impl


@overload_method(ArgsType, "clear")
def _clear(args):
    return lambda args: poke(args.block, 0)


@part
def tensor_address(block, i, what):
    """Return the address of tensor `i`; `what` says what it is refused as if there is none."""
    check_index(i, tensors_in(peek(block)), what)
    return address_of(block, i * TENSOR_WORDS)


@part
def kind_at(block, i):
    """Return the address of the word of tensor `i` that has its tag."""
    return tensor_address(block, i, 1) + L.WORD * L.TENSOR_KIND


@overload_method(ArgsType, "tag")
def _tag(args, i):
    return lambda args, i: peek(kind_at(args.block, i)) >> TAG_SHIFT & 0xFF


@overload_method(ArgsType, "set_tag")
def _set_tag(args, i, tag):
    _require_tag(tag)

    def impl(args, i, tag):
        at = kind_at(args.block, i)
        poke(at, peek(at) & ~(0xFF << TAG_SHIFT) | check_tag(whole(tag)) << TAG_SHIFT)

    return impl


# ---------------------------------------------------------------- reading them
@overload_method(ArgsType, "tensor_count")
@overload_method(ReceivedType, "tensor_count")
def _tensor_count(args):
    return lambda args: tensors_in(peek(args.block))


@overload_method(ArgsType, "scalar_count")
@overload_method(ReceivedType, "scalar_count")
def _scalar_count(args):
    return lambda args: scalars_in(peek(args.block))


@overload(len)
def _len(args):
    if isinstance(args, (ArgsType, ReceivedType)):
        return lambda args: args.tensor_count() + args.scalar_count()
    return None


@part
def scalar_at(block, i):
    """Return bits and kind of scalar `i` of some arguments."""
    counts = peek(block)
    check_index(i, scalars_in(counts), 2)
    at = address_of(block, argument_words(tensors_in(counts), i))
    return word_at(at, L.SCALAR_BITS), word_at(at, L.SCALAR_KIND)


@helper()
def integer_at(block, i):
    """Return scalar `i` of some arguments; refuse one that is no signed 64-bit integer.

    Rule     SPEED-ORCH-13
    """
    bits, kind = scalar_at(block, i)
    if kind != L.SIGNED and (kind > L.UNSIGNED or bits < 0):
        ask(M.ASK_SCALAR, bits, i, kind, 0)
    return bits


@helper()
def float_at(block, i):
    """Return scalar `i` of some arguments as a float."""
    bits, kind = scalar_at(block, i)
    return as_float(bits, kind)


@overload_method(ArgsType, "scalar")
@overload_method(ReceivedType, "scalar")
def _scalar(args, i):
    return lambda args, i: integer_at(args.block, i)


@overload_method(ArgsType, "scalar_float")
@overload_method(ReceivedType, "scalar_float")
def _scalar_float(args, i):
    return lambda args, i: float_at(args.block, i)


@helper()
def tensor_at(block, i):
    """Return the wire words of tensor `i`, without its tag."""
    at = tensor_address(block, i, 0)
    return (
        peek(at),
        word_at(at, 1),
        word_at(at, 2),
        word_at(at, 3),
        word_at(at, 4) & L.TENSOR_KIND_MASK,
    )


@overload_method(ArgsType, "tensor")
@overload_method(ReceivedType, "tensor", prefer_literal=True)
def _tensor(args, i):
    kinds = set(args.kinds) if isinstance(args, ReceivedType) else set()
    if kinds and isinstance(i, types.IntegerLiteral) and 0 <= i.literal_value < len(args.kinds):
        kinds = {args.kinds[i.literal_value]}
    make = tensor_maker(*kinds.pop()) if len(kinds) == 1 else tensor_maker(-1, -1)
    return lambda args, i: make(tensor_at(args.block, i))
