"""Thread pools of numeric libraries: how large they are in workers, and whether they survive a fork."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from .signals import signals_blocked

_VARIABLES = {
    "OMP_NUM_THREADS": ("openmp", "openblas", "mkl", "blis", "flexiblas"),
    "OPENBLAS_NUM_THREADS": ("openblas",),
    "MKL_NUM_THREADS": ("mkl",),
    "BLIS_NUM_THREADS": ("blis",),
}
"""Who reads each variable, by threadpoolctl's `internal_api`."""

_TOLERANCE = "KMP_DUPLICATE_LIB_OK"

_users: set[str] = set()
"""Variables that were set before the first Worker was made."""


def set_variables() -> None:
    """Have libraries that are loaded from now on start with one thread; what the user has set stays.

    Rule     ORCH-FORK-1
    """
    _users.update(name for name in _VARIABLES if name in os.environ)
    for name in _VARIABLES:
        os.environ.setdefault(name, "1")


def users_variables() -> set[str]:
    """Return which variables the user has set himself."""
    return set(_users)


def take_over(users: set[str]) -> None:
    """In a fresh interpreter: tell the user's variables from those that its parent has set."""
    _users.clear()
    _users.update(users)


def limiter() -> Callable[[], None]:
    """Return what gives libraries that are loaded one thread each, unless the user has set a variable.

    It is made before a process forks another, and called in that one: the libraries are looked up while
    no lock of the loader can be held by a thread that is not there.

    Rule     ORCH-FORK-7
    """
    left = {library for name in _users for library in _VARIABLES[name]}
    chosen = {library for libraries in _VARIABLES.values() for library in libraries} - left
    controller = _controller(_loaded()).select(internal_api=sorted(chosen))

    def limit() -> None:
        controller.limit(limits=1)

    return limit


@functools.lru_cache(maxsize=1)
def _controller(_at: tuple[int, int]) -> Any:
    """Find the libraries that are loaded at a time; that takes a millisecond."""
    tolerance = os.environ.get(_TOLERANCE)
    from threadpoolctl import ThreadpoolController

    if tolerance is None:  # which that module has set for everybody
        os.environ.pop(_TOLERANCE, None)
    # An exception of a signal handler would be lost in a function that C calls.
    with warnings.catch_warnings(), signals_blocked():
        warnings.simplefilter("ignore", RuntimeWarning)  # two OpenMP runtimes: not our business
        return ThreadpoolController()


# ---------------------------------------------------------------- which libraries are loaded
class _Image(ctypes.Structure):
    """What the loader tells of a library: `dl_phdr_info`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("base", "name", "headers")),
        ("header_count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
        ("unloads", ctypes.c_ulonglong),
    ]


_Look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Image), ctypes.c_size_t, ctypes.c_void_p)


def _loaded() -> tuple[int, int]:
    """Return how many libraries this process has loaded and unloaded: it changes whenever they do."""
    counts = []

    def look(image: Any, _size: int, _data: object) -> int:
        counts.append((int(image[0].loads), int(image[0].unloads)))
        return 1  # the counts are the same for each library: one is enough

    with signals_blocked():  # see `_controller`
        ctypes.CDLL(None).dl_iterate_phdr(_Look(look), None)
    return counts[0]


# ---------------------------------------------------------------- threads that a fork leaves behind
_OPENMP = ("libgomp", "libomp", "libiomp")
_SETTLE_S, _LOOKS = 0.005, 100
"""A thread that looks for work has gone to sleep after some looks at such intervals, or works."""


def why_not_fork() -> str | None:
    """Say why processes forked from this one could hang; None if nothing speaks against it.

    A forked process would wait for a pool of OpenMP threads of which it has none. OpenBLAS ends its own
    threads before a fork, and makes them anew. Nothing tells whose a thread is. But OpenBLAS's sleep on
    a word of that library's own; so where OpenMP is loaded, all others count as its threads that are
    neither those nor Python's.

    Rule     WM-START-2
    """
    openmp, openblas = _openmp_and_openblas(_loaded())
    if not openmp or not _threads_of_libraries():
        return None
    for look in range(_LOOKS):
        if look:
            time.sleep(_SETTLE_S)
        waits = [_sleeps_on(thread) for thread in _threads_of_libraries()]
        strangers = sum(
            not any(start <= word < end for start, end in openblas.values()) for word in waits
        )
        if 0 not in waits:
            break
    if not strangers:
        return None
    names = " and ".join(
        sorted({os.path.basename(path).split("-")[0].split(".")[0] for path in openmp})
    )
    return (
        f"{names} is in use: forked workers would wait for its threads ({strangers} of this process), "
        "which a fork leaves behind"
    )


def _threads_of_libraries() -> set[int]:
    """Return the threads of this process that are not Python's."""
    ours = {thread.native_id for thread in threading.enumerate()} | {os.getpid()}
    return {int(name) for name in os.listdir("/proc/self/task")} - ours


def _sleeps_on(thread: int) -> int:
    """Return the address of the word that a thread waits for; 0 if it runs, or that cannot be told."""
    try:
        with open(f"/proc/self/task/{thread}/syscall") as file:
            words = file.read().split()
        return int(words[1], 16)
    except (OSError, ValueError, IndexError):
        return 0


_Images = dict[str, tuple[int, int]]


@functools.lru_cache(maxsize=1)
def _openmp_and_openblas(_at: tuple[int, int]) -> tuple[_Images, _Images]:
    """Return where the libraries of either kind stand that are loaded at a time."""
    with open("/proc/self/maps") as file:
        maps = file.read()
    return _images(maps, *_OPENMP), _images(maps, "blas")


def _images(maps: str, *parts: str) -> _Images:
    """Return where libraries stand whose file names contain one of `parts`: path → (start, end)."""
    found: _Images = {}
    last = ""
    for line in maps.splitlines():
        span, _, _, _, _, *rest = line.split(maxsplit=5)
        start, end = (int(number, 16) for number in span.split("-"))
        path = rest[0] if rest else ""
        if not path and last in found and found[last][1] == start:
            path = last  # its data that begins as zeros
        elif not any(part in os.path.basename(path) for part in parts):
            path = ""
        if path:
            found[path] = found.get(path, (start, end))[0], end
        last = path
    return found
