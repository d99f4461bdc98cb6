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
import os
import platform
import signal
import threading
import time

import numpy as np
from numba.core import cgutils, types
from numba.core.typing.templates import signature
from numba.extending import intrinsic

from .kernel import INTERPRETED

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

    def write_words(mem, fd, i, count):
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

    _I64 = ir.IntType(64)
    _I32 = ir.IntType(32)

    def _pointer(context, builder, array_type, array, index):
        view = context.make_array(array_type)(context, builder, array)
        return cgutils.get_item_pointer(
            context, builder, array_type, view, [index], wraparound=False
        )

    @intrinsic
    def load(typingctx, mem, i):
        """Read a word; what the writer stored before its release is visible afterwards."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.load_atomic(pointer, "acquire", 8, typ=_I64)

        return signature(types.int64, mem, types.int64), codegen

    @intrinsic
    def load_sc(typingctx, mem, i):
        """Read a word after every `exchange` that this thread has made before."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.load_atomic(pointer, "seq_cst", 8, typ=_I64)

        return signature(types.int64, mem, types.int64), codegen

    @intrinsic
    def store(typingctx, mem, i, value):
        """Write a word; a thread that loads it sees everything written before."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            builder.store_atomic(args[2], pointer, "release", 8)
            return context.get_dummy_value()

        return signature(types.void, mem, types.int64, types.int64), codegen

    @intrinsic
    def exchange(typingctx, mem, i, value):
        """Write a word and return what it held; a full barrier."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.atomic_rmw("xchg", pointer, args[2], "seq_cst")

        return signature(types.int64, mem, types.int64, types.int64), codegen

    @intrinsic
    def compare_exchange(typingctx, mem, i, expected, value):
        """Write `value` if the word holds `expected`; return whether it did. A full barrier."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            pair = builder.cmpxchg(pointer, args[2], args[3], "seq_cst", "seq_cst")
            return builder.extract_value(pair, 1)

        return signature(types.boolean, mem, types.int64, types.int64, types.int64), codegen

    @intrinsic
    def fetch_add(typingctx, mem, i, value):
        """Add to a word and return what it held before; a full barrier."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.atomic_rmw("add", pointer, args[2], "seq_cst")

        return signature(types.int64, mem, types.int64, types.int64), codegen

    @intrinsic
    def fence(typingctx):
        """Order every access before against every access after, stores against loads included."""

        def codegen(context, builder, sig, args):
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return signature(types.void), codegen

    @intrinsic
    def pause(typingctx):
        """Tell the core that this is a spin loop."""

        def codegen(context, builder, sig, args):
            if platform.machine() == "x86_64":
                builder.call(_external(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
            elif platform.machine() == "aarch64":
                isb = _external(builder, "llvm.aarch64.isb", ir.VoidType(), [_I32])
                builder.call(isb, [ir.Constant(_I32, 15)])
            return context.get_dummy_value()

        return signature(types.void), codegen

    def _external(builder, name, result, arguments):
        return cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(result, arguments), name
        )

    def _timespec(builder, nanoseconds):
        spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        second = ir.Constant(_I64, 1_000_000_000)
        zero, one = ir.Constant(_I32, 0), ir.Constant(_I32, 1)
        builder.store(builder.sdiv(nanoseconds, second), builder.gep(spec, [zero, zero]))
        builder.store(builder.srem(nanoseconds, second), builder.gep(spec, [zero, one]))
        return spec

    @intrinsic
    def yield_core(typingctx):
        """Let other threads that wait for this core run first."""

        def codegen(context, builder, sig, args):
            builder.call(_external(builder, "sched_yield", _I32, []), [])
            return context.get_dummy_value()

        return signature(types.void), codegen

    @intrinsic
    def core_here(typingctx):
        """Return the number of the core that this thread runs on."""

        def codegen(context, builder, sig, args):
            core = builder.call(_external(builder, "sched_getcpu", _I32, []), [])
            return builder.sext(core, _I64)

        return signature(types.int64), codegen

    _CORE_SET = ir.ArrayType(_I64, _CORE_SET_WORDS)

    def _core_set(builder):
        cores = cgutils.alloca_once(builder, _CORE_SET)
        builder.store(ir.Constant(_CORE_SET, None), cores)
        return cores

    def _affinity(builder, verb, thread, cores):
        call = _external(
            builder, f"sched_{verb}affinity", _I32, [_I32, _I64, _CORE_SET.as_pointer()]
        )
        size = ir.Constant(_I64, 8 * _CORE_SET_WORDS)
        return builder.call(call, [builder.trunc(thread, _I32), size, cores])

    def _bit_of(builder, cores, core):
        """Return where the bit of a core is: a pointer to its word, and a mask."""
        core = builder.and_(core, ir.Constant(_I64, 64 * _CORE_SET_WORDS - 1))
        word = builder.lshr(core, ir.Constant(_I64, 6))
        bit = builder.shl(ir.Constant(_I64, 1), builder.and_(core, ir.Constant(_I64, 63)))
        return builder.gep(cores, [ir.Constant(_I64, 0), word]), bit

    @intrinsic
    def visit_core(typingctx, core):
        """Move this thread to a core now, and keep the set of cores that it may use.

        Returns whether it may run there.
        """

        def codegen(context, builder, sig, args):
            self = ir.Constant(_I64, 0)
            usual, only = _core_set(builder), _core_set(builder)
            _affinity(builder, "get", self, usual)  # should it fail, the set is empty
            word, bit = _bit_of(builder, usual, args[0])
            allowed = builder.icmp_unsigned(
                "!=", builder.and_(builder.load(word, typ=_I64), bit), ir.Constant(_I64, 0)
            )
            with builder.if_then(allowed):
                builder.store(bit, _bit_of(builder, only, args[0])[0])
                _affinity(builder, "set", self, only)
                _affinity(builder, "set", self, usual)
            return allowed

        return signature(types.boolean, types.int64), codegen

    @intrinsic
    def keep_off_core(typingctx, thread, core):
        """Exclude a core from those that a thread may use, if it may use that and another.

        Returns whether this changed anything.
        """

        def codegen(context, builder, sig, args):
            cores = _core_set(builder)
            _affinity(builder, "get", args[0], cores)
            word, bit = _bit_of(builder, cores, args[1])
            before = builder.load(word, typ=_I64)
            changed = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(1), 0))
            allowed = builder.icmp_unsigned("!=", builder.and_(before, bit), ir.Constant(_I64, 0))
            with builder.if_then(allowed):
                builder.store(builder.and_(before, builder.not_(bit)), word)
                done = _affinity(builder, "set", args[0], cores)  # an empty set is refused
                builder.store(builder.icmp_signed("==", done, ir.Constant(_I32, 0)), changed)
            return builder.load(changed)

        return signature(types.boolean, types.int64, types.int64), codegen

    @intrinsic
    def let_on_core(typingctx, core):
        """Let this thread run on one more core."""

        def codegen(context, builder, sig, args):
            self = ir.Constant(_I64, 0)
            cores = _core_set(builder)
            _affinity(builder, "get", self, cores)
            word, bit = _bit_of(builder, cores, args[0])
            builder.store(builder.or_(builder.load(word, typ=_I64), bit), word)
            _affinity(builder, "set", self, cores)
            return context.get_dummy_value()

        return signature(types.void, types.int64), codegen

    def _clock(builder, number):
        """Return what a clock of the system says, ns."""
        spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        clock = _external(builder, "clock_gettime", _I32, [_I32, spec.type])
        builder.call(clock, [ir.Constant(_I32, number), spec])
        zero, one = ir.Constant(_I32, 0), ir.Constant(_I32, 1)
        seconds = builder.load(builder.gep(spec, [zero, zero]), typ=_I64)
        rest = builder.load(builder.gep(spec, [zero, one]), typ=_I64)
        return builder.add(builder.mul(seconds, ir.Constant(_I64, 1_000_000_000)), rest)

    @intrinsic
    def now_ns(typingctx):
        """Return the monotonic clock, ns."""

        def codegen(context, builder, sig, args):
            return _clock(builder, _CLOCK_MONOTONIC)

        return signature(types.int64), codegen

    @intrinsic
    def coarse_ns(typingctx):
        """Return the monotonic clock at its last tick, a few ms ago, ns: in a sixth of the time."""

        def codegen(context, builder, sig, args):
            return _clock(builder, _CLOCK_COARSE)

        return signature(types.int64), codegen

    @intrinsic
    def thread_id(typingctx):
        """Return what `threading.get_ident` does."""

        def codegen(context, builder, sig, args):
            return builder.call(_external(builder, "pthread_self", _I64, []), [])

        return signature(types.int64), codegen

    @intrinsic
    def unlikely(typingctx, condition):
        """Return a condition that is hardly ever true: what it guards is kept out of the way."""

        def codegen(context, builder, sig, args):
            bit = ir.IntType(1)
            expect = _external(builder, "llvm.expect.i1", bit, [bit, bit])
            return builder.call(expect, [args[0], ir.Constant(bit, 0)])

        return signature(types.boolean, types.boolean), codegen

    @intrinsic
    def stay_aside(typingctx):
        """Keep the kernel that calls this out of its callers' code: it is hardly ever run."""

        def codegen(context, builder, sig, args):
            for attribute in ("noinline", "cold"):
                builder.function.attributes.add(attribute)
            return context.get_dummy_value()

        return signature(types.void), codegen

    @intrinsic
    def write_words(typingctx, mem, fd, i, count):
        """Write words to a file; return the bytes written, or minus the number of the error."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[2])
            write = _external(builder, "write", _I64, [_I32, pointer.type, _I64])
            nbytes = builder.mul(args[3], ir.Constant(_I64, 8))
            done = builder.call(write, [builder.trunc(args[1], _I32), pointer, nbytes])
            location = _external(builder, "__errno_location", _I32.as_pointer(), [])
            error = builder.sext(builder.load(builder.call(location, []), typ=_I32), _I64)
            failed = builder.icmp_signed("<", done, ir.Constant(_I64, 0))
            return builder.select(failed, builder.neg(error), done)

        return signature(types.int64, mem, types.int64, types.int64, types.int64), codegen

    @intrinsic
    def kill_self(typingctx):
        """End this process at once, as a SIGKILL from outside would."""

        def codegen(context, builder, sig, args):
            pid = builder.call(_external(builder, "getpid", _I32, []), [])
            kill = _external(builder, "kill", _I32, [_I32, _I32])
            builder.call(kill, [pid, ir.Constant(_I32, _SIGKILL)])
            return context.get_dummy_value()

        return signature(types.void), codegen

    def _futex(builder, pointer, operation, value, timeout):
        call = _external(builder, "syscall", _I64, [_I64] * 7)
        null = ir.Constant(_I64, 0)
        address = builder.ptrtoint(pointer, _I64)
        return builder.call(
            call,
            [
                ir.Constant(_I64, _SYS_FUTEX),
                address,
                ir.Constant(_I64, operation),
                value,
                timeout,
                null,
                null,
            ],
        )

    @intrinsic
    def futex_wait(typingctx, mem, i, expected, timeout_ns):
        """Sleep while the low half of the word equals that of `expected`; negative: no time limit.

        Returns CHANGED, TIMED_OUT or INTERRUPTED.
        """

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            spec = _timespec(builder, args[3])
            forever = builder.icmp_signed("<", args[3], ir.Constant(_I64, 0))
            timeout = builder.select(forever, ir.Constant(_I64, 0), builder.ptrtoint(spec, _I64))
            expected = builder.and_(args[2], ir.Constant(_I64, 0xFFFFFFFF))
            done = _futex(builder, pointer, _FUTEX_WAIT, expected, timeout)
            location = _external(builder, "__errno_location", _I32.as_pointer(), [])
            error = builder.load(builder.call(location, []), typ=_I32)
            code = builder.select(
                builder.icmp_signed("==", error, ir.Constant(_I32, _ETIMEDOUT)),
                ir.Constant(_I64, TIMED_OUT),
                ir.Constant(_I64, CHANGED),
            )
            code = builder.select(
                builder.icmp_signed("==", error, ir.Constant(_I32, _EINTR)),
                ir.Constant(_I64, INTERRUPTED),
                code,
            )
            woken = builder.icmp_signed("==", done, ir.Constant(_I64, 0))
            return builder.select(woken, ir.Constant(_I64, CHANGED), code)

        return signature(types.int64, mem, types.int64, types.int64, types.int64), codegen

    @intrinsic
    def futex_wake(typingctx, mem, i):
        """Wake all threads that sleep on the word."""

        def codegen(context, builder, sig, args):
            pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
            null = ir.Constant(_I64, 0)
            _futex(builder, pointer, _FUTEX_WAKE, ir.Constant(_I64, 1 << 30), null)
            return context.get_dummy_value()

        return signature(types.void, mem, types.int64), codegen

    def _words(context, builder, pointer, count):
        """Return an array of words over memory that is not its own."""
        view = context.make_array(types.Array(types.int64, 1, "C"))(context, builder)
        context.populate_array(
            view,
            data=builder.bitcast(pointer, context.get_data_type(types.int64).as_pointer()),
            shape=cgutils.pack_array(builder, [count]),
            strides=cgutils.pack_array(builder, [ir.Constant(_I64, 8)]),
            itemsize=ir.Constant(_I64, 8),
            meminfo=None,
        )
        return view._getvalue()

    @intrinsic
    def wire_words(typingctx, wire):
        """Read wire bytes as words, without a copy; they must not be written."""
        words = types.Array(types.int64, 1, "C")

        def codegen(context, builder, sig, args):
            source = context.make_array(sig.args[0])(context, builder, args[0])
            count = builder.sdiv(source.nitems, ir.Constant(_I64, 8))
            return _words(context, builder, source.data, count)

        return signature(words, wire), codegen

    @intrinsic
    def words_at(typingctx, address, count):
        """Return some words of memory as an array, without a copy."""
        words = types.Array(types.int64, 1, "C")

        def codegen(context, builder, sig, args):
            return _words(context, builder, builder.inttoptr(args[0], _I64.as_pointer()), args[1])

        return signature(words, types.int64, types.int64), codegen
