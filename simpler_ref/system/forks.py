"""What a fork leaves behind: threads of numeric libraries, and locks that other threads have.

In a child, Python makes the locks of its own streams anew, and `logging` those of its handlers. But the
file of a handler stays locked if a thread was just writing to it; and so do the locks of imports, of
numpy's global generator and of numba's compiler. So a fork waits until it has them.

Rule     ORCH-FORK-1, ORCH-FORK-7, ORCH-FORK-8, WM-START-2
"""

from __future__ import annotations

import bisect
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .signals import signals_blocked

# ---------------------------------------------------------------- sizes of thread pools in workers
VARIABLES = {
    "OMP_NUM_THREADS": ("openmp", "openblas", "mkl", "blis", "flexiblas"),
    "OPENBLAS_NUM_THREADS": ("openblas",),
    "MKL_NUM_THREADS": ("mkl",),
    "BLIS_NUM_THREADS": ("blis",),
}
"""The libraries that read each variable, by threadpoolctl's `internal_api`."""

_TOLERANCE = "KMP_DUPLICATE_LIB_OK"

users_variables: dict[str, str] = {}
"""The variables that were set before the first Worker was made, with their values then."""


def set_variables() -> None:
    """Have libraries loaded from now on start with one thread; the user's values stay."""
    for name in VARIABLES:
        if name in os.environ:
            users_variables.setdefault(name, os.environ[name])
        else:
            os.environ[name] = "1"


def limiter() -> Callable[[], None]:
    """Return a function that limits loaded libraries to one thread, or to what the user's variables say.

    It is made before a fork, and called in the child: the look-up of libraries must not meet a lock of
    the loader held by a thread that the child does not have.
    """
    found = _controller()
    pools = [(found.select(internal_api=library), n) for library, n in _threads().items()]

    def limit() -> None:
        for pool, count in pools:
            pool.limit(limits=count)

    return limit


def _threads() -> dict[str, int]:
    """Return how many threads each library has in workers; those are left out that nothing is known of.

    A program may have set a variable when a library was there already, which does not look again.
    """
    found = {library: 1 for libraries in VARIABLES.values() for library in libraries}
    for name, libraries in VARIABLES.items():  # what is for one library comes last, and counts
        if name not in users_variables:
            continue
        said = users_variables[name].partition(",")[0].strip()
        for library in libraries:
            found.pop(library, None)
            if said.isdecimal() and int(said):
                found[library] = int(said)
    return found


def _controller() -> Any:
    tolerance = os.environ.get(_TOLERANCE)
    from threadpoolctl import ThreadpoolController

    if tolerance is None:  # which that module has set
        os.environ.pop(_TOLERANCE, None)
    # An exception of a signal handler would be lost in a function that C calls.
    with warnings.catch_warnings(), signals_blocked():
        warnings.simplefilter("ignore", RuntimeWarning)  # two OpenMP runtimes: no concern here
        return ThreadpoolController()


# ---------------------------------------------------------------- threads that a fork leaves behind
_HARMLESS = "libpython", "libllvmlite", "blas", "workqueue.", "libarrow", "libzmq"
"""Parts of the names of libraries whose threads a forked process can do without: OpenBLAS, numba and
Arrow start them again, LLVM has none of its own, and ZeroMQ's contexts are not used there."""
_NEUTRAL = "libc.", "libc-", "libpthread", "libm.", "librt", "ld-linux", "libstdc++", "libgcc_s"
"""Libraries through which others wait."""
_TELLING = "/proc/self/syscall", "/proc/self/mem"
_OPENMP = "libgomp", "libomp", "libiomp"
"""What is taken for strangers if a system has no such files."""
_SETTLE_S, _LOOKS, _TIMES = 0.005, 100, 3
"""After this many looks at such intervals an idle thread sleeps; one that does not is working."""
_STACK = 1 << 14
"""How many bytes of a thread's stack are looked at: who waits has called few functions."""


def why_not_fork() -> str | None:
    """Say why processes forked from this one could hang; None if they cannot.

    A forked process would wait for a pool of threads that it does not have: of OpenMP, or polars. The
    system does not tell which library a thread belongs to, but the stack of one that sleeps has the
    addresses to which its functions return. So all threads count that are neither Python's nor in a
    library which is known to survive a fork.
    """
    for again in range(_TIMES):  # a thread that begins or ends just now looks strange only once
        if again:
            time.sleep(4 * _SETTLE_S)
        strangers = _strangers()
        if not strangers:
            return None
    names = sorted({re.split("[-.]", name)[0] or "a native library" for name in strangers})
    return (
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} in use: forked workers could wait "
        f"for threads ({len(strangers)} of this process) which a fork leaves behind"
    )


def _strangers() -> list[str]:
    """Return the libraries of threads that a fork may break."""
    can_tell = all(map(os.path.exists, _TELLING))
    for look in range(_LOOKS if can_tell else 1):
        if look:
            time.sleep(_SETTLE_S)
        threads = _threads_of_libraries()
        if not threads:
            return []
        stacks = [_stack(thread) for thread in threads]
        if all(stacks):
            break
    code = _code()
    owners = [_owner(stack, code) for stack in stacks]
    if not can_tell:
        owners = [name for _, _, name in code if name.startswith(_OPENMP)]
    return [name for name in owners if not any(part in name for part in _HARMLESS)]


def _threads_of_libraries() -> set[int]:
    ours = {thread.native_id for thread in threading.enumerate()} | {os.getpid()}
    return {int(name) for name in os.listdir("/proc/self/task")} - ours


def _stack(thread: int) -> bytes:
    """Return the top of the stack of a thread that sleeps; else nothing, or if that cannot be told."""
    try:
        with open(f"/proc/self/task/{thread}/syscall") as file:
            at = int(file.read().split()[-2], 16)
        with open("/proc/self/mem", "rb", 0) as memory:  # unlike a pointer it may lead nowhere
            return os.pread(memory.fileno(), _STACK, at)
    except (OSError, ValueError, IndexError):
        return b""


def _code() -> list[tuple[int, int, str]]:
    found = []
    python = os.path.realpath(sys.executable)
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode, _, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            if "x" in mode and path:
                start, end = (int(number, 16) for number in span.split("-"))
                is_python = path[0] == python or "/lib-dynload/" in path[0]
                name = "libpython" if is_python else os.path.basename(path[0])
                found.append((start, end, name))
    return found


def _owner(stack: bytes, code: list[tuple[int, int, str]]) -> str:
    """Return the name of the library in which a thread waits; empty if none is found.

    A harmless one comes first: some words are what functions that have returned left there.
    """
    starts, found = [start for start, _, _ in code], []
    for word in memoryview(stack)[: len(stack) // 8 * 8].cast("Q"):
        at = bisect.bisect(starts, word) - 1
        if at >= 0 and word < code[at][1] and not code[at][2].startswith((*_NEUTRAL, "[")):
            found.append(code[at][2])
    harmless = [name for name in found if any(part in name for part in _HARMLESS)]
    return (harmless or found or [""])[0]


# ---------------------------------------------------------------- locks
PATIENCE_S = 5.0
"""How long to wait: a thread may have one for long, and tasks need not use it."""


@contextmanager
def fork_locks_taken() -> Iterator[None]:
    """Fork in this block, and leave it in the child, too."""
    deadline = time.monotonic() + PATIENCE_S
    held: list[Any] = []
    try:
        while True:
            for lock in _locks():
                if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    held.append(lock)
            if not _others_import() or time.monotonic() > deadline:
                break
            _release(held)
            time.sleep(0.001)
        yield
    finally:
        _release(held)


def _release(held: list[Any]) -> None:
    while held:
        with suppress(RuntimeError):  # it was made anew in the child
            held.pop().release()


def _locks() -> Iterator[Any]:
    """Yield them; who has a later one may want an earlier one only if that is its own."""
    if (numba := sys.modules.get("numba.core.compiler_lock")) is not None:
        yield numba.global_compiler_lock._lock
    if (random := sys.modules.get("numpy.random.mtrand")) is not None:
        yield random._rand._bit_generator.lock
    yield logging._lock  # type: ignore[attr-defined]
    for handler in list(logging._at_fork_reinit_lock_weakset):  # type: ignore[attr-defined]
        if handler.lock is not None:
            yield handler.lock


def _others_import() -> bool:
    imports = sys.modules["_frozen_importlib"]
    locks = [reference() for reference in list(imports._module_locks.values())]
    owners = {lock.owner for lock in locks if lock is not None}
    return bool(owners - {None, threading.get_ident()})
