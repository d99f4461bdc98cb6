"""What an orchestration function meets in compiled code: the same names, over the same kernels.

The types are values of a few words: an Orchestrator is the address of its call's words, a handle its
two callable words, a tensor its five wire words. Only `TaskArgs` is memory of its own, because two
names may mean the same one.

The submit kernels are compiled once and cached; they are called by their address, so that compiling
a function takes none of them in. The steps around them are helpers over integers, cached likewise.
What goes wrong, and whatever must wait, is handed to Python (`ask`), where the plain Orchestrator's own
code answers: that is why the errors are the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import default_manager, models
from numba.core.imputils import lower_cast
from numba.experimental import structref
from numba.extending import (
    NativeValue,
    intrinsic,
    overload,
    overload_attribute,
    overload_method,
    register_model,
    typeof_impl,
    unbox,
)

from ...jit import entries, kernel
from ...jit import layout as L
from ...jit.atomics import now_ns
from ...jit.cache import KernelCache
from ...jit.leaves import as_float
from ...model.arguments import TaskArgs
from ...model.enums import DataType, TensorArgType, to_dtype
from ...model.tensor import END_OF_ADDRESSES, FIRST_ADDRESS, ContinuousTensor

# ---------------------------------------------------------------- the words of one call
S_MEM = 0
"""Address of the engine's words, and how many there are."""
S_MEM_WORDS = 1
S_LOOKED = 2
"""When Python last looked for signals, ns."""
S_ROOM = 3
"""Workers of each pool."""
S_SPANS = 5
"""Pairs (start, end) of memory that the workers see."""
S_FIRST_SPAN = 6
MAX_SPANS = 24
STATE_WORDS = S_FIRST_SPAN + 2 * MAX_SPANS

LOOK_EVERY = 1024
"""Tasks after which the clock is read, …"""
LOOK_NS = 20_000_000
"""… and time after which Python then looks for signals."""

# what Python is asked for
(
    ASK_SIGNALS,
    ASK_RETRY_SUBMIT,
    ASK_RETRY_ALLOC,
    ASK_HANDLE,
    ASK_VISIBLE,
    ASK_CONTIGUOUS,
    ASK_SHAPE,
    ASK_TAG,
    ASK_DTYPE,
    ASK_INDEX,
    ASK_SCALAR,
    ASK_NUMPY,
    ASK_PLACE,
    ASK_GROUP,
    ASK_NAMED,
    ASK_OPEN_SCOPE,
    ASK_END_SCOPE,
    ASK_LEAVE_SCOPE,
    ASK_LATE_TENSOR,
) = range(19)

B_BLOCK, B_CAPACITY, B_OWNED, B_INLINE = range(4)
"""A TaskArgs' own words: where its arguments stand, words they may take, what it frees, room in it."""
FROM_ARRAY = 1 << 24
"""Set beside the tag of a tensor that was an array: submit sees that its memory is shared."""
INLINE = 48
"""Words of arguments that a TaskArgs holds without memory of its own: nine tensors, some scalars."""
INPUT, OUTPUT, TAGS, DTYPES = L.INPUT, L.OUTPUT, len(TensorArgType), len(DataType)
TENSOR_WORDS, TENSOR_KIND, MEMBER_WORDS = L.TENSOR_WORDS, L.TENSOR_KIND, L.MEMBER_WORDS
SCALAR_WORDS, SCALAR_BITS, SCALAR_KIND = L.SCALAR_WORDS, L.SCALAR_BITS, L.SCALAR_KIND
DIM_LIMIT = 1 << 32


class Refused(Exception):
    """Compiled code was refused something; `boundary.errors` has the reason."""


ANSWERS = f"{__package__}.boundary"
"""The module that has `answer` and `errors`."""


# ---------------------------------------------------------------- memory and calls
@intrinsic
def peek(typingctx, address):
    """Read the word at an address."""

    def codegen(context, builder, sig, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, typ=ir.IntType(64))

    return types.int64(types.int64), codegen


@intrinsic
def poke(typingctx, address, value):
    """Write the word at an address."""

    def codegen(context, builder, sig, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def pointer_to(typingctx, address):
    """Return an address as a pointer, for `numba.carray`."""

    def codegen(context, builder, sig, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


def _words(context, builder, address, count):
    """Return words at an address as an array that nobody counts references of."""
    view = context.make_array(kernel.WORDS)(context, builder)
    word = ir.IntType(64)
    context.populate_array(
        view,
        data=builder.inttoptr(address, word.as_pointer()),
        shape=cgutils.pack_array(builder, [count]),
        strides=cgutils.pack_array(builder, [ir.Constant(word, 8)]),
        itemsize=ir.Constant(word, 8),
        meminfo=None,
    )
    return view._getvalue()


def _call_entry(name, *arguments):
    """Return an intrinsic that calls an entry of the engine: `arguments` are INT, or WORDS.

    Of an array the intrinsic takes the address; the engine's comes from the call's words.
    """
    entry = getattr(entries, name)
    kernel.bind(entry)
    symbol = f"simpler_ref_{name}"
    llvm.add_symbol(symbol, kernel.address_of(entry))
    given = (kernel.WORDS, *arguments)

    def codegen(context, builder, sig, args):
        word = ir.IntType(64)
        state = builder.inttoptr(args[0], word.as_pointer())
        engine, size = (
            builder.load(builder.gep(state, [ir.Constant(word, at)]), typ=word)
            for at in (S_MEM, S_MEM_WORDS)
        )
        plenty = ir.Constant(word, 1 << 40)  # an entry reads as many as the counts say
        actual = [_words(context, builder, engine, size)]
        for kind, value in zip(arguments, args[1:], strict=True):
            actual.append(
                _words(context, builder, value, plenty) if kind is kernel.WORDS else value
            )
        function = cgutils.get_or_insert_function(
            builder.module, context.call_conv.get_function_type(types.int64, given), symbol
        )
        _, answer = context.call_conv.call_function(builder, function, types.int64, given, actual)
        return answer

    integers = (types.int64,) * (1 + len(arguments))
    parameters = ", ".join(f"a{i}" for i in range(len(integers)))
    source = f"def call(typingctx, {parameters}):\n    return answer(*integers), codegen\n"
    names = {"answer": types.int64, "integers": integers, "codegen": codegen}
    exec(source, names)
    return intrinsic(names["call"])


_INT, _WORDS = kernel.INT, kernel.WORDS
FIVE = types.UniTuple(types.int64, 5)
call_submit = _call_entry("submit_words", _INT, _INT, _INT, _WORDS)
call_alloc = _call_entry("alloc_words", _WORDS)
call_open_scope = _call_entry("open_scope")
call_close_scope = _call_entry("close_scope")


@intrinsic
def _ask(typingctx, what, a, b, address, count):
    """Have Python's `boundary.answer` do something, with the GIL; its answer, or -1.

    If it raised, the exception stands in `errors` under the thread's number. C calls alone see to
    that, since any line of Python might be where the next signal strikes.
    """

    def codegen(context, builder, sig, args):
        api = context.get_python_api(builder)
        gil = api.gil_ensure()
        result = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(64), -1))
        here = api.import_module(context.insert_const_string(builder.module, ANSWERS))
        function = api.object_getattr_string(here, "answer")
        given = [api.long_from_longlong(value) for value in args]
        answer = api.call_function_objargs(function, given)
        with builder.if_else(cgutils.is_not_null(builder, answer)) as (fine, raised):
            with fine:
                builder.store(api.long_as_longlong(answer), result)
                api.decref(answer)
            with raised:
                slots = [cgutils.alloca_once(builder, api.pyobj) for _ in range(3)]
                api.err_fetch(*slots)
                normalize = ir.FunctionType(ir.VoidType(), [api.pyobjptr] * 3)
                builder.call(api._get_function(normalize, "PyErr_NormalizeException"), slots)
                kind, value, trace = (builder.load(slot) for slot in slots)
                with builder.if_then(cgutils.is_not_null(builder, trace)):
                    attach = ir.FunctionType(ir.IntType(32), [api.pyobj] * 2)
                    function_ = api._get_function(attach, "PyException_SetTraceback")
                    builder.call(function_, [value, trace])
                    api.decref(trace)
                table = api.object_getattr_string(here, "errors")
                ident = cgutils.get_or_insert_function(
                    builder.module, ir.FunctionType(ir.IntType(64), []), "pthread_self"
                )
                number = api.long_from_longlong(builder.call(ident, []))
                api.dict_setitem(table, number, value)
                for one in (number, table, kind, value):
                    api.decref(one)
        for one in (*given, function, here):
            api.decref(one)
        api.gil_release(gil)
        return builder.load(result)

    return types.int64(*[types.int64] * 5), codegen


# ---------------------------------------------------------------- helpers: compiled once, cached
_STAMP = kernel.STAMP + hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
"""Compiled helpers are good for as long as this file and the kernels are what they were."""

part = numba.njit(nogil=True, error_model="numpy")
"""A small step, compiled into those that take it."""


def _call_at(name, address, result, arguments):
    """Return an intrinsic that calls machine code at an address, and passes on what it raises."""
    symbol = f"simpler_ref_{name}"
    llvm.add_symbol(symbol, address)

    def codegen(context, builder, sig, args):
        kind = context.call_conv.get_function_type(result, arguments)
        function = cgutils.get_or_insert_function(builder.module, kind, symbol)
        status, answer = context.call_conv.call_function(builder, function, result, arguments, args)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return answer

    parameters = ", ".join(f"a{i}" for i in range(len(arguments)))
    space = {"answer": result(*arguments), "codegen": codegen}
    exec(f"def {name}(typingctx, {parameters}):\n    return answer, codegen\n", space)
    return intrinsic(space[name])


def helper(*arguments):
    """Make a step that is compiled once, cached on disk and called by its address.

    Without `arguments`, all parameters are integers.
    """

    def wrap(function):
        count = function.__code__.co_argcount
        given = arguments or (types.int64,) * count
        dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
        dispatcher._cache = KernelCache(function, _STAMP)
        dispatcher.compile(given)
        result = dispatcher.overloads[given]
        address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
        return _call_at(function.__name__, address, result.signature.return_type, given)

    return wrap


@helper()
def ask(what, a, b, address, count):
    """Have Python do something; see `_ask`."""
    return _ask(what, a, b, address, count)


@part
def ask_about(what, a, b, words):
    """Ask Python about some words, which the caller keeps meanwhile."""
    if ask(what, a, b, words.ctypes.data, words.size) < 0:
        raise Refused


@part
def argument_words(counts):
    """Return the words of some tensors and scalars."""
    return (counts & 0xFFFFFFFF) * TENSOR_WORDS + (counts >> 32) * SCALAR_WORDS


@part
def tag_at(block, t):
    """Return the tag of the tensor at word `t` of some arguments."""
    return peek(block + 8 * (t + TENSOR_KIND)) >> L.TENSOR_TAG_SHIFT & 0xFF


@helper()
def require_visible(state, address, nbytes):
    """Refuse memory that a worker process could not see.

    Rule     SPEED-ORCH-3
    """
    spans = peek(state + 8 * S_SPANS)
    span = state + 8 * S_FIRST_SPAN
    for _ in range(spans):
        if peek(span) <= address and address + nbytes <= peek(span + 8):
            return
        span += 16
    if ask(ASK_VISIBLE, address, nbytes, 0, 0) < 0:
        raise Refused


@part
def bytes_at(block, t):
    """Return the bytes of the tensor at word `t`."""
    kind = peek(block + 8 * (t + TENSOR_KIND)) & 0xFF
    count = L.DTYPE_SIZES[kind]
    for d in range(peek(block + 8 * (t + L.TENSOR_DIMS)) >> 32):
        word = peek(block + 8 * (t + L.TENSOR_SHAPE + (d >> 1)))
        count *= word >> (32 * (d & 1)) & 0xFFFFFFFF
    return count


@part
def check_arrays(state, block):
    """Refuse arguments with an array in memory of this process alone."""
    for i in range(peek(block) & 0xFFFFFFFF):
        t = 1 + i * TENSOR_WORDS
        kind = block + 8 * (t + TENSOR_KIND)
        if peek(kind) & FROM_ARRAY:
            require_visible(state, peek(block + 8 * (t + L.TENSOR_DATA)), bytes_at(block, t))
            poke(kind, peek(kind) & ~FROM_ARRAY)


@helper()
def look_for_signals(state):
    """Let Python run its signal handlers, if that is due.

    Rule     SPEED-ORCH-12
    """
    now = now_ns()
    if now - peek(state + 8 * S_LOOKED) > LOOK_NS:
        poke(state + 8 * S_LOOKED, now)
        if ask(ASK_SIGNALS, 0, 0, 0, 0) < 0:
            raise Refused


@part
def fill_outputs(state, slot, block, first, tensors):
    """Write the addresses the runtime chose back into arguments: tensors from `first` of the task."""
    mem = peek(state + 8 * S_MEM)
    at = peek(mem + 8 * (slot + L.S_BODY)) + (tensors + L.MASK_TENSORS - 1) // L.MASK_TENSORS
    for i in range(peek(block) & 0xFFFFFFFF):
        t = 1 + i * TENSOR_WORDS
        if tag_at(block, t) == OUTPUT and peek(block + 8 * t) == 0:
            poke(block + 8 * t, peek(mem + 8 * (at + (first + i) * TENSOR_WORDS)))


@helper()
def submit_one(state, word, block):
    """Submit a task; `block` is the address of its arguments, 0 for none.

    Rule     SPEED-ORCH-4, -5
    """
    counts = 0
    if block != 0:
        check_arrays(state, block)
        counts = peek(block)
    slot = call_submit(state, word, counts, 0, block + 8)
    if slot < 0:
        words = argument_words(counts)
        slot = ask(ASK_RETRY_SUBMIT | -slot << 8, word, counts, block + 8, words)
        if slot < 0:
            raise Refused
    if slot & L.AUTO_OUTPUT != 0 and block != 0:
        fill_outputs(state, slot ^ L.AUTO_OUTPUT, block, 0, counts & 0xFFFFFFFF)
    if peek(peek(state + 8 * S_MEM) + 8 * L.NEXT_TASK_ID) & (LOOK_EVERY - 1) == 0:
        look_for_signals(state)


@part
def has_child_memory(block):
    """Say whether arguments hold a tensor in the memory of a next-level worker."""
    for i in range(peek(block) & 0xFFFFFFFF):
        if peek(block + 8 * (1 + i * TENSOR_WORDS + TENSOR_KIND)) >> 8 & 0xFF != 0:
            return True
    return False


@helper()
def place(state, worker, block):
    """Return the worker a task is for, plus one; 0 for any."""
    room = peek(state + 8 * (S_ROOM + L.NEXT_LEVEL))
    if not -1 <= worker < room and ask(ASK_PLACE, worker, 0, 0, 0) < 0:
        raise Refused
    if worker < 0 and block != 0 and has_child_memory(block):
        if room > 1 and ask(ASK_PLACE, worker, 1, 0, 0) < 0:
            raise Refused
        return 1
    return worker + 1


@helper()
def check_group(state, members, pool):
    """Refuse a group that its pool could never run."""
    room = peek(state + 8 * (S_ROOM + pool))
    if (members < 1 or members > room) and ask(ASK_GROUP, members, pool, 0, 0) < 0:
        raise Refused


@helper(_WORDS, _INT)
def check_workers(workers, members):
    """Refuse workers of a group that do not fit its members."""
    good = len(workers) == members
    for i in range(len(workers)):
        for k in range(i):
            good = good and (workers[i] == -1 or workers[i] != workers[k])
    if not good:
        ask_about(ASK_NAMED, members, 0, workers)


@helper(_INT, _INT, _WORDS, _WORDS)
def submit_group(state, word, blocks, places):
    """Submit a group: the addresses of its members' arguments, and the worker of each plus one."""
    tensors, scalars, members = 0, 0, len(blocks)
    for block in blocks:
        check_arrays(state, block)
        tensors += peek(block) & 0xFFFFFFFF
        scalars += peek(block) >> 32
    at, rest = 0, tensors * TENSOR_WORDS
    table = rest + scalars * SCALAR_WORDS
    words = np.empty(table + members * MEMBER_WORDS, np.int64)
    for i in range(members):
        block = blocks[i]
        own = (peek(block) & 0xFFFFFFFF) * TENSOR_WORDS
        for k in range(own):
            words[at + k] = peek(block + 8 * (1 + k))
        at += own
        for k in range((peek(block) >> 32) * SCALAR_WORDS):
            words[rest] = peek(block + 8 * (1 + own + k))
            rest += 1
        words[table + i * MEMBER_WORDS + L.MEMBER_COUNTS] = peek(block)
        words[table + i * MEMBER_WORDS + L.MEMBER_WORKER] = places[i]
    counts = tensors | scalars << 32
    address = words.ctypes.data
    slot = call_submit(state, word, counts, members, address)
    if slot < 0:
        what = ASK_RETRY_SUBMIT | -slot << 8 | members << 16
        slot = ask(what, word, counts, address, len(words))
        if slot < 0:
            raise Refused
    if slot & L.AUTO_OUTPUT != 0:
        first = 0
        for block in blocks:
            fill_outputs(state, slot ^ L.AUTO_OUTPUT, block, first, tensors)
            first += peek(block) & 0xFFFFFFFF
    look_for_signals(state)
    return words[0] if len(words) > 0 else 0  # holds the words until here


@helper(_INT, FIVE)
def alloc_buffer(state, tensor):
    """Return the wire words of a tensor with the address of a new buffer."""
    _, first, second, third, kind = tensor
    words = np.array((0, first, second, third, kind | OUTPUT << 16))
    slot = call_alloc(state, words.ctypes.data)
    if slot < 0:
        slot = ask(ASK_RETRY_ALLOC | -slot << 8, 0, 0, words.ctypes.data, TENSOR_WORDS)
        if slot < 0:
            raise Refused
    mem = peek(state + 8 * S_MEM)
    if peek(mem + 8 * L.NEXT_TASK_ID) & (LOOK_EVERY - 1) == 0:
        look_for_signals(state)
    at = peek(mem + 8 * (slot + L.S_BODY)) + 1 + L.TENSOR_DATA
    return (peek(mem + 8 * at), first, second, third, kind | words[0])  # the words live until here


@part
def scope_depth(state):
    """Return how many scopes are open, the run's own included."""
    return peek(peek(state + 8 * S_MEM) + 8 * L.SCOPE_DEPTH)


@helper()
def begin_scope(state):
    """Open a scope."""
    if call_open_scope(state) != L.OK and ask(ASK_OPEN_SCOPE, 0, 0, 0, 0) < 0:
        raise Refused


@helper()
def end_scope(state):
    """End the innermost scope."""
    if scope_depth(state) <= 1:
        if ask(ASK_END_SCOPE, 0, 0, 0, 0) < 0:
            raise Refused
        return
    call_close_scope(state)


@helper()
def unwind_to(state, depth):
    """End the scopes down to a depth."""
    while scope_depth(state) >= depth:
        call_close_scope(state)


@helper()
def leave_scope(state, depth):
    """End the scope that a with block opened, and what was left open inside it."""
    if scope_depth(state) < depth and ask(ASK_LEAVE_SCOPE, 0, 0, 0, 0) < 0:
        raise Refused
    unwind_to(state, depth)


@helper()
def check_index(i, count, what):
    """Refuse an index that is out of range; `what` says of what."""
    if not 0 <= i < count and ask(ASK_INDEX, i, count, what, 0) < 0:
        raise Refused


@part
def check_tag(tag):
    """Refuse a number that is no tag."""
    if not 0 <= tag < TAGS and ask(ASK_TAG, tag, 0, 0, 0) < 0:
        raise Refused
    return tag


@helper()
def require_word(word, number, what):
    """Refuse a handle that the pool does not take: its number, and which call it is."""
    if word < 0 and ask(ASK_HANDLE, number, what, 0, 0) < 0:
        raise Refused
    return word


@part
def check_dtype(number):
    """Refuse a number that is no DataType."""
    if not 0 <= number < DTYPES and ask(ASK_DTYPE, number, 0, 0, 0) < 0:
        raise Refused
    return number


@helper(_INT, FIVE, _INT, _INT)
def describe(data, sizes, ndims, kind):
    """Return the five wire words of a tensor."""
    count = L.DTYPE_SIZES[kind & 0xFF]
    good = True
    for size in sizes:
        good = good and 0 <= size < DIM_LIMIT
    if good:
        most = float(count)
        for d in range(ndims):
            most *= sizes[d]
        good = most < 1 << 62
    if not good:
        ask_about(ASK_SHAPE | ndims << 8, data, kind, np.array(sizes))
    first, second, third, fourth, fifth = sizes
    return (data, first | second << 32, third | fourth << 32, fifth | ndims << 32, kind)


@part
def is_contiguous(sizes, strides, ndims, itemsize):
    """Say whether an array's elements follow each other, as numpy has it."""
    step = itemsize
    for d in range(ndims):
        if sizes[d] == 0:
            return True
    for d in range(ndims - 1, -1, -1):
        if sizes[d] != 1:
            if strides[d] != step:
                return False
            step *= sizes[d]
    return True


@helper(FIVE, FIVE, _INT, _INT)
def require_contiguous(sizes, strides, ndims, itemsize):
    """Refuse an array with gaps."""
    if not is_contiguous(sizes, strides, ndims, itemsize):
        ask_about(ASK_CONTIGUOUS, ndims, 0, np.array((sizes, strides)))


# ---------------------------------------------------------------- the types
class Plain(types.Type):  # type: ignore[misc]
    """A type whose values are some words."""

    def __init__(self, name: str, words: int) -> None:
        self.words = words
        super().__init__(name)


class OrchestratorType(Plain):
    """The Orchestrator: the address of the call's words."""

    def __init__(self) -> None:
        super().__init__("Orchestrator", 1)


class HandleType(Plain):
    """A CallableHandle: its number in the call, its words for sub and next-level workers, or -1."""

    def __init__(self) -> None:
        super().__init__("CallableHandle", 3)


class ConfigType(Plain):
    """A CallConfig: the number under which mailboxes get it, and its fields."""

    def __init__(self) -> None:
        super().__init__("CallConfig", 8)


class TensorType(Plain):
    """A ContinuousTensor: its wire words. Dimensions and dtype are known to the compiler, or -1."""

    def __init__(self, ndim: int, dtype: int) -> None:
        self.ndim, self.dtype = ndim, dtype
        what = f"{ndim}d, {DataType(dtype).name}" if dtype >= 0 else f"{ndim}d" if ndim >= 0 else ""
        super().__init__(f"ContinuousTensor({what})", TENSOR_WORDS)

    def unify(self, typingctx, other):
        return TENSOR if isinstance(other, TensorType) else None

    def can_convert_to(self, typingctx, other):
        if isinstance(other, TensorType) and other.dtype < 0 and other.ndim in (-1, self.ndim):
            return numba.core.typeconv.Conversion.safe
        return None


class ReceivedType(Plain):
    """The arguments of a running task: their address. The compiler knows the kinds of its tensors."""

    def __init__(self, kinds: tuple[tuple[int, int], ...], scalars: int) -> None:
        self.kinds, self.scalars = kinds, scalars
        super().__init__(f"ReceivedArgs({kinds}, {scalars})", 1)


ORCHESTRATOR, HANDLE, CONFIG, TENSOR = (
    OrchestratorType(),
    HandleType(),
    ConfigType(),
    TensorType(-1, -1),
)


@register_model(OrchestratorType)
@register_model(HandleType)
@register_model(ConfigType)
@register_model(TensorType)
@register_model(ReceivedType)
class _PlainModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, [(f"w{i}", types.int64) for i in range(fe_type.words)])


class ArgsType(types.StructRef):  # type: ignore[misc]
    """A TaskArgs: counts and words stand at `block`: inside it, or at `owned`, which it frees."""

    def __init__(self, fields):
        super().__init__(fields)
        self.name = "TaskArgs"

    def preprocess_fields(self, fields):
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


default_manager.register(ArgsType, models.StructRefModel)
ARGS = ArgsType(
    [
        ("block", types.int64),
        ("capacity", types.int64),
        ("owned", types.int64),
        ("inline", types.UniTuple(types.int64, 1 + INLINE)),
    ]
)


class Native:
    """A value on its way into compiled code: its type, and its words as bytes."""

    __slots__ = ("numba_type", "raw")

    def __init__(self, numba_type: types.Type, *words: int) -> None:
        self.numba_type = numba_type
        self.raw = b"".join((word & (1 << 64) - 1).to_bytes(8, "little") for word in words)


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
        pointer = c.builder.gep(start, [ir.Constant(word, i)])
        words.append(c.builder.load(pointer, typ=word, align=1))
    c.pyapi.decref(raw)
    return words


@unbox(OrchestratorType)
@unbox(HandleType)
@unbox(ConfigType)
@unbox(TensorType)
@unbox(ReceivedType)
def _unbox_plain(typ, obj, c):
    return NativeValue(cgutils.pack_struct(c.builder, _unbox_words(c, obj, typ.words)))


@unbox(ArgsType)
def _unbox_args(typ, obj, c):
    words = _unbox_words(c, obj, 2)
    sig = typ(types.int64, types.int64)
    adopt = c.context.compile_subroutine(c.builder, adopt_args, sig)
    _, made = c.context.call_internal_no_propagate(c.builder, adopt.fndesc, sig, words)
    return NativeValue(made)


@lower_cast(TensorType, TensorType)
def _same_tensor(context, builder, fromty, toty, val):
    return val


@intrinsic(prefer_literal=True)
def _word(typingctx, value, at):
    """Return a word of a plain value."""
    index = at.literal_value

    def codegen(context, builder, sig, args):
        return builder.extract_value(args[0], index)

    return types.int64(value, at), codegen


def _maker(made):
    """Return an intrinsic that makes a plain value of a tuple of words."""

    @intrinsic
    def make(typingctx, words):
        def codegen(context, builder, sig, args):
            parts = cgutils.unpack_tuple(builder, args[0], made.words)
            return cgutils.pack_struct(builder, parts)

        return made(types.UniTuple(types.int64, made.words)), codegen

    return make


_makers: dict[TensorType, object] = {}


def tensor_maker(ndim, dtype):
    """Return the intrinsic that makes tensors of a kind."""
    made = TensorType(ndim, dtype)
    if made not in _makers:
        _makers[made] = _maker(made)
    return _makers[made]


# ---------------------------------------------------------------- ContinuousTensor
def _shape_of(shape):
    """Return the number of dimensions of a shape's type, or say what a shape must be."""
    if isinstance(shape, types.Integer):
        return 1
    if isinstance(shape, types.BaseTuple) and all(isinstance(d, types.Integer) for d in shape):
        if len(shape) > L.CONTINUOUS_TENSOR_MAX_DIMS:
            raise complaint(
                f"a tensor has at most {L.CONTINUOUS_TENSOR_MAX_DIMS} dimensions, this one has "
                f"{len(shape)}; reshape it"
            )
        return len(shape)
    raise complaint(f"a shape must be a tuple of integers here, not {shape}")


def complaint(words):
    """Return the error for what cannot be compiled, marked so that `explain` finds the words."""
    return numba.TypingError(f"[[{words}]]")


@intrinsic
def five(typingctx, shape):
    """Return a shape, or strides, padded to five integers."""
    ndim = 1 if isinstance(shape, types.Integer) else len(shape)

    def codegen(context, builder, sig, args):
        parts, kinds = [args[0]], [shape]
        if not isinstance(shape, types.Integer):
            parts, kinds = cgutils.unpack_tuple(builder, args[0], ndim), list(shape)
        zero = ir.Constant(ir.IntType(64), 0)
        given = [
            context.cast(builder, part, kind, types.int64)
            for part, kind in zip(parts, kinds, strict=True)
        ]
        return cgutils.pack_array(builder, given + [zero] * (5 - ndim))

    return FIVE(shape), codegen


def _kind_of(dtype):
    """Return the number of a dtype that the compiler knows, else -1."""
    if isinstance(dtype, types.StringLiteral):
        given = dtype.literal_value
    elif isinstance(dtype, types.NumberClass):
        given = numba.np.numpy_support.as_dtype(dtype.instance_type)
    elif isinstance(dtype, types.DType):
        given = numba.np.numpy_support.as_dtype(dtype.dtype)
    elif isinstance(dtype, (types.IntEnumMember, types.Integer)):
        return -1
    else:
        raise complaint(
            f"a dtype must be a DataType or a numpy dtype here, such as np.float32, not {dtype}"
        )
    try:
        return int(to_dtype(given))
    except TypeError as error:
        raise complaint(str(error)) from None


@intrinsic
def whole(typingctx, value):
    """Return the integer of a bool, an enum's member or an integer; also one given by default."""

    def codegen(context, builder, sig, args):
        if isinstance(value, types.Omitted):
            return context.get_constant(types.int64, int(value.value))
        return context.cast(builder, args[0], value, types.int64)

    return types.int64(value), codegen


@intrinsic
def dtype_number(typingctx, dtype):
    """Return the number of a dtype."""
    known = _kind_of(dtype)

    def codegen(context, builder, sig, args):
        if known >= 0:
            return context.get_constant(types.int64, known)
        return context.cast(builder, args[0], dtype, types.int64)

    return types.int64(dtype), codegen


def make_tensor(data, shapes, dtype, child_memory=False):
    """Stand for `ContinuousTensor.make`, whose class compiled code does not know."""
    raise NotImplementedError


@overload(ContinuousTensor)
@overload(make_tensor)
def _make_tensor(data, shapes, dtype, child_memory=False):
    ndim, kind = _shape_of(shapes), _kind_of(dtype)
    make = tensor_maker(ndim, kind)

    def impl(data, shapes, dtype, child_memory=False):
        number = check_dtype(dtype_number(dtype)) | whole(child_memory) << 8
        return make(describe(np.int64(data), five(shapes), ndim, number))

    return impl


@overload_attribute(TensorType, "data")
def _data(tensor):
    return lambda tensor: _word(tensor, 0)


@overload_attribute(TensorType, "ndims")
def _ndims(tensor):
    return lambda tensor: _word(tensor, 3) >> 32


@intrinsic
def _as_dtype(typingctx, number):
    """Return a number as a member of DataType."""
    return types.IntEnumMember(DataType, types.int64)(types.int64), lambda _c, _b, _s, args: args[0]


@overload_attribute(TensorType, "dtype")
def _dtype(tensor):
    return lambda tensor: _as_dtype(_word(tensor, 4) & 0xFF)


@overload_attribute(TensorType, "child_memory")
def _child_memory(tensor):
    return lambda tensor: _word(tensor, 4) >> 8 & 0xFF != 0


@overload_attribute(TensorType, "shapes")
def _shapes(tensor):
    if tensor.ndim < 0:
        raise complaint(
            "the compiler does not know how many dimensions a tensor taken from TaskArgs has; keep "
            "the tensor that was added, and read shapes from that"
        )
    if tensor.ndim == 0:
        return lambda tensor: ()
    parts = ", ".join(
        f"_word(tensor, {1 + (d >> 1)}) >> {32 * (d & 1)} & 0xFFFFFFFF" for d in range(tensor.ndim)
    )
    return eval(f"lambda tensor: ({parts},)", {"_word": _word})


@overload_method(TensorType, "nbytes")
def _nbytes(tensor):
    def impl(tensor):
        count = L.DTYPE_SIZES[_word(tensor, 4) & 0xFF]
        for d in range(_word(tensor, 3) >> 32):
            word = _word(tensor, 1)
            if d > 3:
                word = _word(tensor, 3)
            elif d > 1:
                word = _word(tensor, 2)
            count *= word >> (32 * (d & 1)) & 0xFFFFFFFF
        return count

    return impl


@helper()
def check_memory(data, kind, nbytes):
    """Refuse to look at a tensor without host memory."""
    nowhere = nbytes > 0 and (data < FIRST_ADDRESS or data >= END_OF_ADDRESSES)
    if (kind >> 8 & 0xFF != 0 or nowhere) and ask(ASK_NUMPY, data, kind, 0, 0) < 0:
        raise Refused


@overload_method(TensorType, "numpy")
def _numpy(tensor):
    if tensor.dtype < 0 or tensor.ndim < 0:
        raise complaint(
            "the compiler does not know this tensor's dtype and dimensions: give a numpy dtype, such as "
            "np.float32, where it is made, and do not take it from TaskArgs"
        )
    if tensor.dtype == DataType.BFLOAT16:
        raise complaint("numpy has no bfloat16: view the memory as UINT16")
    dtype = np.dtype(DataType(tensor.dtype).name.lower())

    def impl(tensor):
        check_memory(_word(tensor, 0), _word(tensor, 4), tensor.nbytes())
        return numba.carray(pointer_to(_word(tensor, 0)), tensor.shapes, dtype)

    return impl


# ---------------------------------------------------------------- TaskArgs
def _free_owned(context, module):
    """Return the destructor of a TaskArgs: it frees the memory it has grown into, if there is any."""
    word, size = ir.IntType(64), context.get_value_type(types.uintp)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, size, cgutils.voidptr_t])
    function = cgutils.get_or_insert_function(module, kind, "simpler_ref_free_task_args")
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        builder = ir.IRBuilder(function.append_basic_block())
        fields = builder.bitcast(function.args[0], word.as_pointer())
        owned = builder.load(builder.gep(fields, [ir.Constant(word, B_OWNED)]), typ=word)
        free = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
        free = cgutils.get_or_insert_function(module, free, "free")
        builder.call(free, [builder.inttoptr(owned, cgutils.voidptr_t)])
        builder.ret_void()
    return function


@intrinsic
def new_args(typingctx):
    """Return an empty TaskArgs."""

    def codegen(context, builder, sig, args):
        word = ir.IntType(64)
        size = context.get_constant(types.uintp, 8 * (B_INLINE + 1 + INLINE))
        destructor = _free_owned(context, builder.module)
        made = context.make_helper(builder, ARGS)
        made.meminfo = context.nrt.meminfo_alloc_dtor(builder, size, destructor)
        data = context.nrt.meminfo_data(builder, made.meminfo)
        fields = builder.bitcast(data, word.as_pointer())
        inline = builder.gep(fields, [ir.Constant(word, B_INLINE)])
        zero = ir.Constant(word, 0)
        contents = (builder.ptrtoint(inline, word), ir.Constant(word, INLINE), zero, zero)
        for at, value in enumerate(contents):
            builder.store(value, builder.gep(fields, [ir.Constant(word, at)]))
        return made._getvalue()

    return ARGS(), codegen


@intrinsic
def box_of(typingctx, args):
    """Return the address of a TaskArgs' own words (B_…)."""

    def codegen(context, builder, sig, given):
        fields = structref._Utils(context, builder, ARGS).get_data_pointer(given[0])
        return builder.ptrtoint(fields, ir.IntType(64))

    return types.int64(args), codegen


def adopt_args(block, capacity):
    """Return a TaskArgs over a block that Python made."""
    args = new_args()
    box = box_of(args)
    poke(box, block)
    poke(box + 8 * B_CAPACITY, capacity)
    return args


def _libc(name, *arguments):
    """Return an intrinsic that calls a function of the C library over words."""

    def codegen(context, builder, sig, args):
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * len(arguments))
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    space = {"answer": types.int64(*arguments), "codegen": codegen}
    exec(f"def {name}(typingctx, size):\n    return answer, codegen\n", space)
    return intrinsic(space[name])


malloc, free = _libc("malloc", types.int64), _libc("free", types.int64)


@helper()
def grow(box):
    """Give a TaskArgs twice the room."""
    capacity = peek(box + 8 * B_CAPACITY)
    block = malloc(8 * (1 + 2 * capacity))
    if block == 0:
        raise MemoryError("no room for the arguments of a task")
    old = peek(box)
    for k in range(1 + capacity):
        poke(block + 8 * k, peek(old + 8 * k))
    free(peek(box + 8 * B_OWNED))
    poke(box + 8 * B_OWNED, block)
    poke(box + 8 * B_CAPACITY, 2 * capacity)
    poke(box, block)


@overload(TaskArgs)
def _task_args():
    return lambda: new_args()


@helper()
def refuse_late_tensor():
    """Refuse a tensor after a scalar."""
    if ask(ASK_LATE_TENSOR, 0, 0, 0, 0) < 0:
        raise Refused


@intrinsic
def data_of(typingctx, array):
    """Return the address of an array's first element."""

    def codegen(context, builder, sig, args):
        view = context.make_array(array)(context, builder, args[0])
        return builder.ptrtoint(view.data, ir.IntType(64))

    return types.int64(array), codegen


@part
def is_full(box, words):
    """Say whether a TaskArgs has no room for so many words more."""
    return argument_words(peek(peek(box))) + words > peek(box + 8)


@part
def push_tensor(box, first, second, third, fourth, fifth):
    """Append a tensor, its tag in the last word."""
    block = peek(box)
    counts = peek(block)
    if counts >> 32 != 0:
        refuse_late_tensor()
    at = block + 8 * (1 + counts * TENSOR_WORDS)
    poke(at, first)
    poke(at + 8, second)
    poke(at + 16, third)
    poke(at + 24, fourth)
    poke(at + 32, fifth)
    poke(block, counts + 1)


def _require_tag(tag):
    if isinstance(tag, (types.Omitted, types.IntEnumMember, types.Integer, TensorArgType)):
        return
    raise complaint(f"a tag must be a TensorArgType, not {tag}")


@overload_method(ArgsType, "add_tensor")
def _add_tensor(args, tensor, tag=TensorArgType.INPUT):
    _require_tag(tag)
    if isinstance(tensor, TensorType):

        def impl(args, tensor, tag=TensorArgType.INPUT):
            box = box_of(args)
            kind = _word(tensor, 4) | check_tag(whole(tag)) << 16
            if is_full(box, TENSOR_WORDS):
                grow(box)
            first, second = _word(tensor, 0), _word(tensor, 1)
            push_tensor(box, first, second, _word(tensor, 2), _word(tensor, 3), kind)

        return impl
    if not isinstance(tensor, types.Array):
        raise complaint(f"expected a ContinuousTensor or an array in shared memory, got {tensor}")
    ndim = tensor.ndim
    if ndim > L.CONTINUOUS_TENSOR_MAX_DIMS:
        raise complaint(
            f"a tensor has at most {L.CONTINUOUS_TENSOR_MAX_DIMS} dimensions, this one has {ndim}; "
            "reshape it"
        )
    array_kind = _kind_of(types.DType(tensor.dtype))
    itemsize = L.DTYPE_SIZES[array_kind]
    wire_kind, gaps = array_kind | FROM_ARRAY, tensor.layout != "C"

    def impl(args, tensor, tag=TensorArgType.INPUT):
        box, data = box_of(args), data_of(tensor)  # first of all, so that no references are counted
        sizes, strides = five(tensor.shape), five(tensor.strides)
        a, b, c, d, e = sizes
        if gaps:
            require_contiguous(sizes, strides, ndim, itemsize)
        if (a | b | c | d | e) >> 32 != 0:
            describe(0, sizes, ndim, array_kind)
        kind = wire_kind | check_tag(whole(tag)) << 16
        if is_full(box, TENSOR_WORDS):
            grow(box)
        push_tensor(box, data, a | b << 32, c | d << 32, e | ndim << 32, kind)

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
        box = box_of(args)
        if is_full(box, SCALAR_WORDS):
            grow(box)
        block = peek(box)
        counts = peek(block)
        at = block + 8 * (1 + argument_words(counts))
        bits = scalar_bits(value)
        poke(at + 8 * SCALAR_BITS, bits)
        poke(at + 8 * SCALAR_KIND, L.UNSIGNED if unsigned and bits < 0 else kind)
        poke(block, counts + (1 << 32))

    return impl


@overload_method(ArgsType, "clear")
def _clear(args):
    return lambda args: poke(peek(box_of(args)), 0)


@overload_method(ArgsType, "tag")
def _tag(args, i):
    def impl(args, i):
        check_index(i, peek(peek(box_of(args))) & 0xFFFFFFFF, 1)
        return tag_at(peek(box_of(args)), 1 + i * TENSOR_WORDS)

    return impl


@overload_method(ArgsType, "set_tag")
def _set_tag(args, i, tag):
    _require_tag(tag)

    def impl(args, i, tag):
        check_index(i, peek(peek(box_of(args))) & 0xFFFFFFFF, 1)
        at = peek(box_of(args)) + 8 * (1 + i * TENSOR_WORDS + TENSOR_KIND)
        poke(at, peek(at) & ~(0xFF << 16) | check_tag(whole(tag)) << 16)

    return impl


# ---------------------------------------------------------------- what TaskArgs and ReceivedArgs share
@overload_method(ReceivedType, "_address")
def _received_address(args):
    return lambda args: _word(args, 0)


@overload_method(ArgsType, "_address")
def _args_address(args):
    return lambda args: peek(box_of(args))


@overload_method(ArgsType, "tensor_count")
@overload_method(ReceivedType, "tensor_count")
def _tensor_count(args):
    return lambda args: peek(args._address()) & 0xFFFFFFFF


@overload_method(ArgsType, "scalar_count")
@overload_method(ReceivedType, "scalar_count")
def _scalar_count(args):
    return lambda args: peek(args._address()) >> 32


@overload(len)
def _len(args):
    if isinstance(args, (ArgsType, ReceivedType)):
        return lambda args: (peek(args._address()) & 0xFFFFFFFF) + (peek(args._address()) >> 32)
    return None


@part
def scalar_at(block, i):
    """Return the address of scalar `i` of some arguments."""
    counts = peek(block)
    check_index(i, counts >> 32, 2)
    return block + 8 * (1 + argument_words(counts & 0xFFFFFFFF) + i * SCALAR_WORDS)


@helper()
def integer_at(block, i):
    """Return scalar `i` of some arguments; refuse one that is no signed 64-bit integer.

    Rule     SPEED-ORCH-13
    """
    at = scalar_at(block, i)
    bits, kind = peek(at + 8 * SCALAR_BITS), peek(at + 8 * SCALAR_KIND)
    good = kind == L.SIGNED or (kind <= L.UNSIGNED and bits >= 0)
    if not good and ask(ASK_SCALAR, bits, i, kind, 0) < 0:
        raise Refused
    return bits


@helper()
def float_at(block, i):
    """Return scalar `i` of some arguments as a float."""
    at = scalar_at(block, i)
    return as_float(peek(at + 8 * SCALAR_BITS), peek(at + 8 * SCALAR_KIND))


@overload_method(ArgsType, "scalar")
@overload_method(ReceivedType, "scalar")
def _scalar(args, i):
    return lambda args, i: integer_at(args._address(), i)


@overload_method(ArgsType, "scalar_float")
@overload_method(ReceivedType, "scalar_float")
def _scalar_float(args, i):
    return lambda args, i: float_at(args._address(), i)


@helper()
def tensor_at(block, i):
    """Return the wire words of tensor `i`, without its tag."""
    check_index(i, peek(block) & 0xFFFFFFFF, 0)
    at = block + 8 * (1 + i * TENSOR_WORDS)
    kind = peek(at + 32) & L.TENSOR_KIND_MASK
    return (peek(at), peek(at + 8), peek(at + 16), peek(at + 24), kind)


@overload_method(ArgsType, "tensor")
def _tensor(args, i):
    make = tensor_maker(-1, -1)
    return lambda args, i: make(tensor_at(peek(box_of(args)), i))


@overload_method(ReceivedType, "tensor", prefer_literal=True)
def _received_tensor(args, i):
    kinds = set(args.kinds)
    if isinstance(i, types.IntegerLiteral) and 0 <= i.literal_value < len(args.kinds):
        kinds = {args.kinds[i.literal_value]}
    make = tensor_maker(*kinds.pop()) if len(kinds) == 1 else tensor_maker(-1, -1)
    return lambda args, i: make(tensor_at(args._address(), i))


# ---------------------------------------------------------------- CallConfig
def _config_field(name, at):
    @overload_attribute(ConfigType, name)
    def _field(config):
        return lambda config: _word(config, at)


# ---------------------------------------------------------------- Orchestrator
@intrinsic
def block_of(typingctx, args):
    """Return the address of a task's arguments, 0 for none."""
    if isinstance(args, ReceivedType):
        raise complaint("these TaskArgs are those of a running task; build new ones")
    if not isinstance(args, (types.NoneType, types.Omitted, ArgsType)):
        raise complaint(f"args must be a TaskArgs or None, got {args}")

    def codegen(context, builder, sig, given):
        if not isinstance(args, ArgsType):
            return context.get_constant(types.int64, 0)
        word = ir.IntType(64)
        fields = structref._Utils(context, builder, ARGS).get_data_pointer(given[0])
        return builder.load(builder.bitcast(fields, word.as_pointer()), typ=word)

    return types.int64(args), codegen


@intrinsic
def config_number(typingctx, config):
    """Return the number of a configuration."""
    if not isinstance(config, (types.NoneType, types.Omitted, ConfigType)):
        raise complaint(f"config must be a CallConfig or None, got {config}")

    def codegen(context, builder, sig, args):
        if not isinstance(config, ConfigType):
            return context.get_constant(types.int64, 0)
        return builder.extract_value(args[0], 0)

    return types.int64(config), codegen


def _require_handle(what, handle):
    if not isinstance(handle, HandleType):
        raise complaint(
            f"{what} expects a CallableHandle returned by Worker.register, got {handle}; write handle "
            "= worker.register(function) outside of the orchestration function"
        )


SUB, NEXT_LEVEL = L.SUB, L.NEXT_LEVEL


@overload_method(OrchestratorType, "submit_sub")
def _submit_sub(orch, handle, args=None):
    _require_handle("submit_sub", handle)

    def impl(orch, handle, args=None):
        word = require_word(_word(handle, 1), _word(handle, 0), 0)
        submit_one(_word(orch, 0), word, block_of(args))

    return impl


@overload_method(OrchestratorType, "submit_next_level")
def _submit_next_level(orch, handle, args=None, config=None, worker=-1):
    _require_handle("submit_next_level", handle)

    def impl(orch, handle, args=None, config=None, worker=-1):
        state, block = _word(orch, 0), block_of(args)
        word = require_word(_word(handle, 2), _word(handle, 0), 1)
        word |= place(state, whole(worker), block) << L.WORD_WORKER
        word |= config_number(config) << L.WORD_CONFIG
        submit_one(state, word, block)

    return impl


def _require_members(args_list):
    if isinstance(args_list, ArgsType):
        raise complaint("args_list must be a list of TaskArgs, one for each member")
    inner = args_list.types if isinstance(args_list, types.BaseTuple) else [args_list.dtype]
    if not all(isinstance(one, ArgsType) for one in inner):
        raise complaint(f"args_list must hold TaskArgs, not {args_list}")


@overload_method(OrchestratorType, "submit_sub_group")
def _submit_sub_group(orch, handle, args_list):
    _require_handle("submit_sub_group", handle)
    _require_members(args_list)

    def impl(orch, handle, args_list):
        state, members = _word(orch, 0), len(args_list)
        check_group(state, members, SUB)
        word = require_word(_word(handle, 1), _word(handle, 0), 2)
        blocks, places = np.empty(members, np.int64), np.zeros(members, np.int64)
        for i in range(members):
            blocks[i] = peek(box_of(args_list[i]))
        submit_group(state, word, blocks, places)

    return impl


@overload_method(OrchestratorType, "submit_next_level_group")
def _submit_next_level_group(orch, handle, args_list, config=None, workers=None):
    _require_handle("submit_next_level_group", handle)
    _require_members(args_list)
    if workers is None or isinstance(workers, (types.NoneType, types.Omitted)):
        named = numba.njit(lambda workers, members: np.full(members, -1))
    else:
        named = numba.njit(lambda workers, members: np.array(workers))

    def impl(orch, handle, args_list, config=None, workers=None):
        state, members = _word(orch, 0), len(args_list)
        check_group(state, members, NEXT_LEVEL)
        chosen = named(workers, members)
        check_workers(chosen, members)
        word = require_word(_word(handle, 2), _word(handle, 0), 3)
        word |= config_number(config) << L.WORD_CONFIG
        blocks, places = np.empty(members, np.int64), np.empty(members, np.int64)
        for i in range(members):
            blocks[i] = peek(box_of(args_list[i]))
            places[i] = place(state, chosen[i], blocks[i])
        submit_group(state, word, blocks, places)

    return impl


@overload_method(OrchestratorType, "alloc")
def _alloc(orch, shape, dtype):
    ndim, kind = _shape_of(shape), _kind_of(dtype)
    make = tensor_maker(ndim, kind)

    def impl(orch, shape, dtype):
        words = describe(0, five(shape), ndim, check_dtype(dtype_number(dtype)))
        return make(alloc_buffer(_word(orch, 0), words))

    return impl


@overload_method(OrchestratorType, "scope_begin")
def _scope_begin(orch):
    return lambda orch: begin_scope(_word(orch, 0))


@overload_method(OrchestratorType, "scope_end")
def _scope_end(orch):
    return lambda orch: end_scope(_word(orch, 0))


@overload_method(OrchestratorType, "_enter_scope")
def _enter_scope(orch):
    def impl(orch):
        begin_scope(_word(orch, 0))
        return scope_depth(_word(orch, 0))

    return impl


@overload_method(OrchestratorType, "_leave_scope")
def _leave_scope(orch, depth):
    return lambda orch, depth: leave_scope(_word(orch, 0), depth)


@overload_method(OrchestratorType, "_unwind_scope")
def _unwind_scope(orch, depth):
    """End the scope of a with block that an exception has left, unless none was (depth 0)."""

    def impl(orch, depth):
        if depth > 0:
            unwind_to(_word(orch, 0), depth)

    return impl


@overload_method(OrchestratorType, "live_tasks")
def _live_tasks(orch):
    return lambda orch: peek(peek(_word(orch, 0) + 8 * S_MEM) + 8 * L.LIVE)


for _at, _name in enumerate(
    (
        "block_dim",
        "aicpu_thread_num",
        "enable_l2_swimlane",
        "enable_dump_tensor",
        "enable_pmu",
        "enable_dep_gen",
        "enable_scope_stats",
    )
):
    _config_field(_name, 1 + _at)

REPLACED = {ContinuousTensor.make: make_tensor}
"""What stands in compiled code for something that it does not know."""


def compiler(function):
    """Return numba's dispatcher for an orchestration function, rewritten."""
    return numba.njit(nogil=True, boundscheck=True)(function)
