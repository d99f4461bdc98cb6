"""What compiled kernels do in place of the functions of `atomics`: the LLVM code of each.

Only who compiles kernels imports this module.
"""

from __future__ import annotations

import functools
import inspect
import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from . import atomics
from . import layout as L

WORDS, INT = types.Array(types.int64, 1, "C"), types.int64

_I64, _I32, _BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)
_ZERO, _BILLION = ir.Constant(_I64, 0), ir.Constant(_I64, 1_000_000_000)
_CORE_SET_WORDS = 16  # glibc's cpu_set_t

INSTRUCTIONS: dict[Any, Any] = {}
"""What numba is to call for a function of `atomics`."""


def instruction(result, *takes):
    """Have kernels call what a function emits: its LLVM code, given context, builder and values.

    `takes` are the types of its arguments. If a word is the first, that is WORDS and INT, it gets a
    pointer.
    """

    def wrap(emit):
        of_word = takes[:2] == (WORDS, INT)

        def codegen(context, builder, sig, values):
            if of_word:
                view = context.make_array(WORDS)(context, builder, values[0])
                index = [values[1]]
                word = cgutils.get_item_pointer(
                    context, builder, WORDS, view, index, wraparound=False
                )
                values = [word, *values[2:]]
            made = emit(context, builder, *values)
            return context.get_dummy_value() if made is None else made

        @functools.wraps(emit)
        def typer(typingctx, *_):
            return signature(result, *takes), codegen

        names = list(inspect.signature(emit).parameters)[2:]
        names = ["typingctx", *(["mem", "i", *names[1:]] if of_word else names)]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        typer.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        made = intrinsic(typer)
        if emit.__name__ in vars(atomics):
            INSTRUCTIONS[getattr(atomics, emit.__name__)] = made
        return made

    return wrap


# ---------------------------------------------------------------- words


@instruction(INT, WORDS, INT)
def load(context, builder, word):
    return builder.load_atomic(word, "acquire", 8, typ=_I64)


@instruction(INT, WORDS, INT)
def load_sc(context, builder, word):
    return builder.load_atomic(word, "seq_cst", 8, typ=_I64)


@instruction(types.void, WORDS, INT, INT)
def store(context, builder, word, value):
    builder.store_atomic(value, word, "release", 8)


@instruction(INT, WORDS, INT, INT)
def exchange(context, builder, word, value):
    return builder.atomic_rmw("xchg", word, value, "seq_cst")


@instruction(types.boolean, WORDS, INT, INT, INT)
def compare_exchange(context, builder, word, expected, value):
    pair = builder.cmpxchg(word, expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(pair, 1)


@instruction(INT, WORDS, INT, INT)
def fetch_add(context, builder, word, value):
    return builder.atomic_rmw("add", word, value, "seq_cst")


@instruction(types.void)
def fence(context, builder):
    builder.fence("seq_cst")


# ---------------------------------------------------------------- calls of the system


def _call(builder, name, result, *arguments):
    """Emit a call of a C function, whose parameters have the types of the arguments."""
    kind = ir.FunctionType(result, [one.type for one in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


def _error(builder):
    """Emit a look at `errno`."""
    return builder.load(_call(builder, "__errno_location", _I32.as_pointer()), typ=_I32)


def _part(builder, pair, number):
    """Return where seconds (0) or nanoseconds (1) of a time are."""
    return builder.gep(pair, [ir.Constant(_I32, 0), ir.Constant(_I32, number)])


@instruction(types.void)
def pause(context, builder):
    if platform.machine() == "x86_64":
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif platform.machine() == "aarch64":
        _call(builder, "llvm.aarch64.isb", ir.VoidType(), ir.Constant(_I32, 15))


@instruction(types.void)
def yield_core(context, builder):
    _call(builder, "sched_yield", _I32)


@instruction(INT)
def core_here(context, builder):
    return builder.sext(_call(builder, "sched_getcpu", _I32), _I64)


def _core_set(builder):
    kind = ir.ArrayType(_I64, _CORE_SET_WORDS)
    return cgutils.alloca_once_value(builder, ir.Constant(kind, None))


def _affinity(builder, verb, thread, cores):
    size = ir.Constant(_I64, 8 * _CORE_SET_WORDS)
    thread = builder.trunc(thread, _I32)
    return _call(builder, f"sched_{verb}affinity", _I32, thread, size, cores)


def _bit_of(builder, cores, core):
    """Return where the bit of a core is: a pointer to its word, and a mask."""
    core = builder.and_(core, ir.Constant(_I64, 64 * _CORE_SET_WORDS - 1))
    word = builder.lshr(core, ir.Constant(_I64, 6))
    bit = builder.shl(ir.Constant(_I64, 1), builder.and_(core, ir.Constant(_I64, 63)))
    return builder.gep(cores, [_ZERO, word]), bit


@instruction(types.boolean, INT)
def visit_core(context, builder, core):
    usual, only = _core_set(builder), _core_set(builder)
    _affinity(builder, "get", _ZERO, usual)  # should it fail, the set is empty
    word, bit = _bit_of(builder, usual, core)
    allowed = builder.icmp_unsigned("!=", builder.and_(builder.load(word, typ=_I64), bit), _ZERO)
    with builder.if_then(allowed):
        builder.store(bit, _bit_of(builder, only, core)[0])
        _affinity(builder, "set", _ZERO, only)
        _affinity(builder, "set", _ZERO, usual)
    return allowed


@instruction(types.boolean, INT, INT)
def keep_off_core(context, builder, thread, core):
    cores = _core_set(builder)
    _affinity(builder, "get", thread, cores)
    word, bit = _bit_of(builder, cores, core)
    before = builder.load(word, typ=_I64)
    changed = cgutils.alloca_once_value(builder, ir.Constant(_BIT, 0))
    with builder.if_then(builder.icmp_unsigned("!=", builder.and_(before, bit), _ZERO)):
        builder.store(builder.and_(before, builder.not_(bit)), word)
        done = _affinity(builder, "set", thread, cores)  # an empty set is refused
        builder.store(builder.icmp_signed("==", done, ir.Constant(_I32, 0)), changed)
    return builder.load(changed)


@instruction(types.void, INT)
def let_on_core(context, builder, core):
    cores = _core_set(builder)
    _affinity(builder, "get", _ZERO, cores)
    word, bit = _bit_of(builder, cores, core)
    builder.store(builder.or_(builder.load(word, typ=_I64), bit), word)
    _affinity(builder, "set", _ZERO, cores)


def _clock(builder, number):
    """Return what a clock of the system says, ns."""
    spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
    _call(builder, "clock_gettime", _I32, ir.Constant(_I32, number), spec)
    seconds = builder.load(_part(builder, spec, 0), typ=_I64)
    rest = builder.load(_part(builder, spec, 1), typ=_I64)
    return builder.add(builder.mul(seconds, _BILLION), rest)


@instruction(INT)
def now_ns(context, builder):
    return _clock(builder, atomics._CLOCK_MONOTONIC)


@instruction(INT)
def coarse_ns(context, builder):
    return _clock(builder, atomics._CLOCK_COARSE)


@instruction(INT)
def thread_id(context, builder):
    return _call(builder, "pthread_self", _I64)


@instruction(types.boolean, types.boolean)
def unlikely(context, builder, condition):
    return _call(builder, "llvm.expect.i1", _BIT, condition, ir.Constant(_BIT, 0))


@instruction(types.void)
def stay_aside(context, builder):
    for attribute in ("noinline", "cold"):
        builder.function.attributes.add(attribute)


@instruction(INT, WORDS, INT, INT, INT)
def write_words(context, builder, word, fd, count):
    nbytes = builder.mul(count, ir.Constant(_I64, 8))
    done = _call(builder, "write", _I64, builder.trunc(fd, _I32), word, nbytes)
    error = builder.sext(_error(builder), _I64)
    return builder.select(builder.icmp_signed("<", done, _ZERO), builder.neg(error), done)


@instruction(types.void)
def kill_self(context, builder):
    pid = _call(builder, "getpid", _I32)
    _call(builder, "kill", _I32, pid, ir.Constant(_I32, atomics._SIGKILL))


def _futex(builder, word, operation, value, timeout):
    number, operation = ir.Constant(_I64, atomics._SYS_FUTEX), ir.Constant(_I64, operation)
    address = builder.ptrtoint(word, _I64)
    return _call(builder, "syscall", _I64, number, address, operation, value, timeout, _ZERO, _ZERO)


@instruction(INT, WORDS, INT, INT, INT)
def futex_wait(context, builder, word, expected, timeout_ns):
    spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
    builder.store(builder.sdiv(timeout_ns, _BILLION), _part(builder, spec, 0))
    builder.store(builder.srem(timeout_ns, _BILLION), _part(builder, spec, 1))
    forever = builder.icmp_signed("<", timeout_ns, _ZERO)
    timeout = builder.select(forever, _ZERO, builder.ptrtoint(spec, _I64))
    expected = builder.and_(expected, ir.Constant(_I64, 0xFFFFFFFF))
    done = _futex(builder, word, atomics._FUTEX_WAIT, expected, timeout)
    error, answer = _error(builder), ir.Constant(_I64, L.OK)
    meanings = {atomics._ETIMEDOUT: L.TIMED_OUT, atomics._EINTR: L.INTERRUPTED}
    for number, meaning in meanings.items():
        is_it = builder.icmp_signed("==", error, ir.Constant(_I32, number))
        answer = builder.select(is_it, ir.Constant(_I64, meaning), answer)
    woken = builder.icmp_signed("==", done, _ZERO)
    return builder.select(woken, ir.Constant(_I64, L.OK), answer)


@instruction(types.void, WORDS, INT)
def futex_wake(context, builder, word):
    _futex(builder, word, atomics._FUTEX_WAKE, ir.Constant(_I64, 1 << 30), _ZERO)


# ---------------------------------------------------------------- words that are not the engine's


def words_of(context, builder, pointer, count):
    """Return an array of words over memory that is not its own."""
    view = context.make_array(WORDS)(context, builder)
    context.populate_array(
        view,
        data=builder.bitcast(pointer, _I64.as_pointer()),
        shape=cgutils.pack_array(builder, [count]),
        strides=cgutils.pack_array(builder, [ir.Constant(_I64, 8)]),
        itemsize=ir.Constant(_I64, 8),
        meminfo=None,
    )
    return view._getvalue()


@instruction(WORDS, INT, INT)
def words_at(context, builder, address, count):
    return words_of(context, builder, builder.inttoptr(address, _I64.as_pointer()), count)


@instruction(INT, WORDS, INT)
def address_of(context, builder, word):
    return builder.ptrtoint(word, _I64)


# ---------------------------------------------------------------- compiled leaves
def call_code(context, builder, leaf, args, layouts):
    """Emit a call of a leaf: a compiled function that takes two integers and returns one."""
    kind = context.call_conv.get_function_type(INT, (INT, INT))
    function = builder.inttoptr(leaf, kind.as_pointer())
    return context.call_conv.call_function(builder, function, INT, (INT, INT), [args, layouts])


@instruction(INT, WORDS, INT, INT, INT, INT)
def run_leaf(context, builder, word, leaf, args, layouts):
    status, answer = call_code(context, builder, leaf, args, layouts)
    with cgutils.if_unlikely(builder, status.is_error):
        error = builder.ptrtoint(status.excinfoptr, _I64)
        builder.store(builder.select(status.is_user_exc, error, _ZERO), word)
    return builder.select(status.is_error, ir.Constant(_I64, L.RAISED), answer)
