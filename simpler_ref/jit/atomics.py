"""Atomic access to 64-bit words, memory fences, the clock, and the kernel's wait and wake.

Every function has two bodies with one meaning. Compiled, it becomes the LLVM instruction with the
ordering its name states (`compiler`), so that weakly ordered machines are right as well. Interpreted
(``NUMBA_DISABLE_JIT=1``), it is what stands here, and works on the numpy view: an aligned 64-bit access
is one move, and more than a plain load or store takes a lock shared by the threads of the process.
Between processes only the order of a store against a later load matters: one side of a mailbox at a time
writes its state, so the lock of one process is enough.

Orderings: `load` acquires, `store` releases, `exchange`, `compare_exchange` and `fetch_add` do
both, and `fence` orders everything before it against everything after it. `load_sc` is for the
pattern "store, then see whether the other side sleeps": after an `exchange` it needs no fence, and
on x86 it costs no more than a plain load.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
import time

import numpy as np

from .constants import INTERRUPTED, OK, TIMED_OUT

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}[platform.machine()]
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_EINTR = 4
_ETIMEDOUT = 110
_CLOCK_MONOTONIC, _CLOCK_COARSE = 1, 6
_SIGKILL = int(signal.SIGKILL)

_read_modify_write = threading.Lock()
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_int64), ("tv_nsec", ctypes.c_int64)]


def load(mem, i):
    """Read a word; what the writer stored before its release is visible afterwards."""
    return int(mem[i])


def load_sc(mem, i):
    """Read a word after every `exchange` that this thread has made before."""
    return int(mem[i])


def store(mem, i, value):
    """Write a word; a thread that loads it sees everything written before."""
    mem[i] = value


def exchange(mem, i, value):
    """Write a word and return what it held; a full barrier."""
    with _read_modify_write:
        old = int(mem[i])
        mem[i] = value
        return old


def compare_exchange(mem, i, expected, value):
    """Write `value` if the word holds `expected`; return whether it did. A full barrier."""
    with _read_modify_write:
        if mem[i] != expected:
            return False
        mem[i] = value
        return True


def fetch_add(mem, i, value):
    """Add to a word and return what it held before; a full barrier."""
    with _read_modify_write:
        old = int(mem[i])
        mem[i] = old + value
        return old


def fence():
    """Order every access before against every access after, stores against loads included."""
    with _read_modify_write:  # taking a lock is a full barrier on every machine CPython runs on
        pass


def pause():
    """Tell the core that this is a spin loop."""
    time.sleep(0)  # lets the other threads of the process have the GIL


def yield_core():
    """Let other threads that wait for this core run first."""
    os.sched_yield()


def core_here():
    """Return the number of the core that this thread runs on."""
    return _libc.sched_getcpu()


def visit_core(core):
    """Move this thread to a core now, and keep the set of cores that it may use.

    Returns whether it may run there.
    """
    cores = os.sched_getaffinity(0)
    if core not in cores:
        return False
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(0, cores)
    except OSError:
        return False
    return True


def allow_core(thread, core, allowed):
    """Let a thread, 0: this one, use a core or not, but for its last; return whether that changed."""
    try:
        cores = os.sched_getaffinity(thread)
        if (core in cores) == (allowed != 0):
            return False
        os.sched_setaffinity(thread, cores ^ {core})
    except OSError:
        return False
    return True


def now_ns():
    """Return the monotonic clock, ns."""
    return time.monotonic_ns()


def coarse_ns():
    """Return the monotonic clock at its last tick, a few ms ago, ns: in a sixth of the time."""
    return time.clock_gettime_ns(_CLOCK_COARSE)


def unlikely(condition):
    """Return a condition that is hardly ever true: what it guards is kept out of the way."""
    return condition


def stay_aside():
    """Keep the kernel that calls this out of its callers' code: it is hardly ever run."""


def thread_id():
    """Return what `threading.get_ident` does."""
    return threading.get_ident()


def write_words(mem, i, fd, count):
    """Write words to a file; return the bytes written, or minus the number of the error."""
    try:
        return os.write(fd, mem[i : i + count].tobytes())
    except OSError as error:
        return -int(error.errno or 1)


def kill_self():
    """End this process at once, as a SIGKILL from outside would."""
    os.kill(os.getpid(), signal.SIGKILL)


def address_of(mem, i):
    return mem.__array_interface__["data"][0] + 8 * int(i)


def futex_wait(mem, i, expected, timeout_ns):
    """Sleep while the low half of the word equals that of `expected`; negative: no time limit.

    Returns OK if it was woken, or the word held something else; TIMED_OUT; or INTERRUPTED by a signal.
    """
    spec = _Timespec(*divmod(int(timeout_ns), 1_000_000_000))
    done = _libc.syscall(
        ctypes.c_long(_SYS_FUTEX),
        ctypes.c_void_p(address_of(mem, i)),
        ctypes.c_long(_FUTEX_WAIT),
        ctypes.c_long(int(expected) & 0xFFFFFFFF),
        ctypes.byref(spec) if timeout_ns >= 0 else None,
        None,
        ctypes.c_long(0),
    )
    if done == 0:
        return OK
    error = ctypes.get_errno()
    return {_EINTR: INTERRUPTED, _ETIMEDOUT: TIMED_OUT}.get(error, OK)


def futex_wake(mem, i):
    """Wake all threads that sleep on the word."""
    _libc.syscall(
        ctypes.c_long(_SYS_FUTEX),
        ctypes.c_void_p(address_of(mem, i)),
        ctypes.c_long(_FUTEX_WAKE),
        ctypes.c_long(1 << 30),
        None,
        None,
        ctypes.c_long(0),
    )


def words_at(address, count):
    """Return some words of memory as an array, without a copy."""
    return np.frombuffer((ctypes.c_int64 * count).from_address(address), np.int64)


def run_leaf(mem, i, leaf, args, layouts):
    """Call the leaf at an address with the args blob at another; see `leaves`.

    Returns  what it does; or RAISED, and numba's address of the error, if that is not Python's, in a word
    """
    raise NotImplementedError("interpreted tasks are called by Python, and it has no pointers")
