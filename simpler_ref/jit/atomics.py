"""Atomic access to 64-bit words, memory fences, the clock, and the kernel's wait and wake.

Every function has two bodies with one meaning. Compiled, it becomes the LLVM instruction with the
ordering its name states, so that weakly ordered machines are right as well. Interpreted
(``NUMBA_DISABLE_JIT=1``), it works on the numpy view: an aligned 64-bit access is one move, and more
than a plain load or store takes a lock shared by the threads of the process. Between processes only the
order of a store against a later load matters: one side of a mailbox at a time writes its state, so the
lock of one process is enough.

Orderings: `load` acquires, `store` releases, `exchange`, `compare_exchange` and `fetch_add` do
both, and `fence` orders everything before it against everything after it. `load_sc` is for the
pattern "store, then see whether the other side sleeps": after an `exchange` it needs no fence, and
on x86 it costs no more than a plain load.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import platform
import signal
import threading
import time

import numpy as np
from numba.core import cgutils, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from .kernel import BYTES, INT, INTERPRETED, WORDS

CHANGED = 0
"""`futex_wait`: woken, or the word no longer held the expected value."""
TIMED_OUT = 1
"""`futex_wait`: the time was up."""
INTERRUPTED = 2
"""`futex_wait`: a signal arrived."""

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}[platform.machine()]
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_EINTR = 4
_ETIMEDOUT = 110
_CLOCK_MONOTONIC, _CLOCK_COARSE = 1, 6
_SIGKILL = int(signal.SIGKILL)
_CORE_SET_WORDS = 16  # glibc's cpu_set_t

if INTERPRETED:
    _read_modify_write = threading.Lock()
    _libc = ctypes.CDLL(None, use_errno=True)

    class _Timespec(ctypes.Structure):
        _fields_ = [("tv_sec", ctypes.c_int64), ("tv_nsec", ctypes.c_int64)]

    def load(mem, i):
        return int(mem[i])

    def load_sc(mem, i):
        return int(mem[i])

    def store(mem, i, value):
        mem[i] = value

    def exchange(mem, i, value):
        with _read_modify_write:
            old = int(mem[i])
            mem[i] = value
            return old

    def compare_exchange(mem, i, expected, value):
        with _read_modify_write:
            if mem[i] != expected:
                return False
            mem[i] = value
            return True

    def fetch_add(mem, i, value):
        with _read_modify_write:
            old = int(mem[i])
            mem[i] = old + value
            return old

    def fence():
        with _read_modify_write:  # taking a lock is a full barrier on every machine CPython runs on
            pass

    def pause():
        time.sleep(0)  # lets the other threads of the process have the GIL

    def yield_core():
        os.sched_yield()

    def core_here():
        return _libc.sched_getcpu()

    def visit_core(core):
        cores = os.sched_getaffinity(0)
        if core not in cores:
            return False
        try:
            os.sched_setaffinity(0, {core})
            os.sched_setaffinity(0, cores)
        except OSError:
            return False
        return True

    def keep_off_core(thread, core):
        try:
            cores = os.sched_getaffinity(thread)
            if core not in cores:
                return False
            os.sched_setaffinity(thread, cores - {core})
        except OSError:
            return False
        return True

    def let_on_core(core):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(0) | {core})

    def now_ns():
        return time.monotonic_ns()

    def coarse_ns():
        return time.clock_gettime_ns(_CLOCK_COARSE)

    def unlikely(condition):
        return condition

    def stay_aside():
        pass

    def thread_id():
        return threading.get_ident()

    def write_words(mem, i, fd, count):
        try:
            return os.write(fd, mem[i : i + count].tobytes())
        except OSError as error:
            return -int(error.errno or 1)

    def kill_self():
        os.kill(os.getpid(), signal.SIGKILL)

    def _address(mem, i):
        return mem.__array_interface__["data"][0] + 8 * int(i)

    def futex_wait(mem, i, expected, timeout_ns):
        spec = _Timespec(*divmod(int(timeout_ns), 1_000_000_000))
        done = _libc.syscall(
            ctypes.c_long(_SYS_FUTEX),
            ctypes.c_void_p(_address(mem, i)),
            ctypes.c_long(_FUTEX_WAIT),
            ctypes.c_long(int(expected) & 0xFFFFFFFF),
            ctypes.byref(spec) if timeout_ns >= 0 else None,
            None,
            ctypes.c_long(0),
        )
        if done == 0:
            return CHANGED
        error = ctypes.get_errno()
        return {_EINTR: INTERRUPTED, _ETIMEDOUT: TIMED_OUT}.get(error, CHANGED)

    def futex_wake(mem, i):
        _libc.syscall(
            ctypes.c_long(_SYS_FUTEX),
            ctypes.c_void_p(_address(mem, i)),
            ctypes.c_long(_FUTEX_WAKE),
            ctypes.c_long(1 << 30),
            None,
            None,
            ctypes.c_long(0),
        )

    def wire_words(wire):
        return np.frombuffer(wire, np.int64, len(wire) // 8)

    def words_at(address, count):
        return np.frombuffer((ctypes.c_int64 * count).from_address(address), np.int64)

else:
    from llvmlite import ir

    _I64, _I32, _BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)
    _ZERO, _BILLION = ir.Constant(_I64, 0), ir.Constant(_I64, 1_000_000_000)

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
            return intrinsic(typer)

        return wrap

    # ------------------------------------------------------------ words
    @instruction(INT, WORDS, INT)
    def load(context, builder, word):
        """Read a word; what the writer stored before its release is visible afterwards."""
        return builder.load_atomic(word, "acquire", 8, typ=_I64)

    @instruction(INT, WORDS, INT)
    def load_sc(context, builder, word):
        """Read a word after every `exchange` that this thread has made before."""
        return builder.load_atomic(word, "seq_cst", 8, typ=_I64)

    @instruction(types.void, WORDS, INT, INT)
    def store(context, builder, word, value):
        """Write a word; a thread that loads it sees everything written before."""
        builder.store_atomic(value, word, "release", 8)

    @instruction(INT, WORDS, INT, INT)
    def exchange(context, builder, word, value):
        """Write a word and return what it held; a full barrier."""
        return builder.atomic_rmw("xchg", word, value, "seq_cst")

    @instruction(types.boolean, WORDS, INT, INT, INT)
    def compare_exchange(context, builder, word, expected, value):
        """Write `value` if the word holds `expected`; return whether it did. A full barrier."""
        pair = builder.cmpxchg(word, expected, value, "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    @instruction(INT, WORDS, INT, INT)
    def fetch_add(context, builder, word, value):
        """Add to a word and return what it held before; a full barrier."""
        return builder.atomic_rmw("add", word, value, "seq_cst")

    @instruction(types.void)
    def fence(context, builder):
        """Order every access before against every access after, stores against loads included."""
        builder.fence("seq_cst")

    # ------------------------------------------------------------ calls of the system
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
        """Tell the core that this is a spin loop."""
        if platform.machine() == "x86_64":
            _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        elif platform.machine() == "aarch64":
            _call(builder, "llvm.aarch64.isb", ir.VoidType(), ir.Constant(_I32, 15))

    @instruction(types.void)
    def yield_core(context, builder):
        """Let other threads that wait for this core run first."""
        _call(builder, "sched_yield", _I32)

    @instruction(INT)
    def core_here(context, builder):
        """Return the number of the core that this thread runs on."""
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
        """Move this thread to a core now, and keep the set of cores that it may use.

        Returns whether it may run there.
        """
        usual, only = _core_set(builder), _core_set(builder)
        _affinity(builder, "get", _ZERO, usual)  # should it fail, the set is empty
        word, bit = _bit_of(builder, usual, core)
        allowed = builder.icmp_unsigned(
            "!=", builder.and_(builder.load(word, typ=_I64), bit), _ZERO
        )
        with builder.if_then(allowed):
            builder.store(bit, _bit_of(builder, only, core)[0])
            _affinity(builder, "set", _ZERO, only)
            _affinity(builder, "set", _ZERO, usual)
        return allowed

    @instruction(types.boolean, INT, INT)
    def keep_off_core(context, builder, thread, core):
        """Exclude a core from those that a thread may use, if it may use that and another.

        Returns whether this changed anything.
        """
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
        """Let this thread run on one more core."""
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
        """Return the monotonic clock, ns."""
        return _clock(builder, _CLOCK_MONOTONIC)

    @instruction(INT)
    def coarse_ns(context, builder):
        """Return the monotonic clock at its last tick, a few ms ago, ns: in a sixth of the time."""
        return _clock(builder, _CLOCK_COARSE)

    @instruction(INT)
    def thread_id(context, builder):
        """Return what `threading.get_ident` does."""
        return _call(builder, "pthread_self", _I64)

    @instruction(types.boolean, types.boolean)
    def unlikely(context, builder, condition):
        """Return a condition that is hardly ever true: what it guards is kept out of the way."""
        return _call(builder, "llvm.expect.i1", _BIT, condition, ir.Constant(_BIT, 0))

    @instruction(types.void)
    def stay_aside(context, builder):
        """Keep the kernel that calls this out of its callers' code: it is hardly ever run."""
        for attribute in ("noinline", "cold"):
            builder.function.attributes.add(attribute)

    @instruction(INT, WORDS, INT, INT, INT)
    def write_words(context, builder, word, fd, count):
        """Write words to a file; return the bytes written, or minus the number of the error."""
        nbytes = builder.mul(count, ir.Constant(_I64, 8))
        done = _call(builder, "write", _I64, builder.trunc(fd, _I32), word, nbytes)
        error = builder.sext(_error(builder), _I64)
        return builder.select(builder.icmp_signed("<", done, _ZERO), builder.neg(error), done)

    @instruction(types.void)
    def kill_self(context, builder):
        """End this process at once, as a SIGKILL from outside would."""
        pid = _call(builder, "getpid", _I32)
        _call(builder, "kill", _I32, pid, ir.Constant(_I32, _SIGKILL))

    def _futex(builder, word, operation, value, timeout):
        number, operation = ir.Constant(_I64, _SYS_FUTEX), ir.Constant(_I64, operation)
        address = builder.ptrtoint(word, _I64)
        return _call(
            builder, "syscall", _I64, number, address, operation, value, timeout, _ZERO, _ZERO
        )

    @instruction(INT, WORDS, INT, INT, INT)
    def futex_wait(context, builder, word, expected, timeout_ns):
        """Sleep while the low half of the word equals that of `expected`; negative: no time limit.

        Returns CHANGED, TIMED_OUT or INTERRUPTED.
        """
        spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        builder.store(builder.sdiv(timeout_ns, _BILLION), _part(builder, spec, 0))
        builder.store(builder.srem(timeout_ns, _BILLION), _part(builder, spec, 1))
        forever = builder.icmp_signed("<", timeout_ns, _ZERO)
        timeout = builder.select(forever, _ZERO, builder.ptrtoint(spec, _I64))
        expected = builder.and_(expected, ir.Constant(_I64, 0xFFFFFFFF))
        done = _futex(builder, word, _FUTEX_WAIT, expected, timeout)
        error, answer = _error(builder), ir.Constant(_I64, CHANGED)
        for number, meaning in ((_ETIMEDOUT, TIMED_OUT), (_EINTR, INTERRUPTED)):
            is_it = builder.icmp_signed("==", error, ir.Constant(_I32, number))
            answer = builder.select(is_it, ir.Constant(_I64, meaning), answer)
        woken = builder.icmp_signed("==", done, _ZERO)
        return builder.select(woken, ir.Constant(_I64, CHANGED), answer)

    @instruction(types.void, WORDS, INT)
    def futex_wake(context, builder, word):
        """Wake all threads that sleep on the word."""
        _futex(builder, word, _FUTEX_WAKE, ir.Constant(_I64, 1 << 30), _ZERO)

    # ------------------------------------------------------------ words that are not the engine's
    def _words(context, builder, pointer, count):
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

    @instruction(WORDS, BYTES)
    def wire_words(context, builder, wire):
        """Read wire bytes as words, without a copy; they must not be written."""
        source = context.make_array(BYTES)(context, builder, wire)
        count = builder.sdiv(source.nitems, ir.Constant(_I64, 8))
        return _words(context, builder, source.data, count)

    @instruction(WORDS, INT, INT)
    def words_at(context, builder, address, count):
        """Return some words of memory as an array, without a copy."""
        return _words(context, builder, builder.inttoptr(address, _I64.as_pointer()), count)
