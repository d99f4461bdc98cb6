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
"""The libraries that read each variable, by threadpoolctl's `internal_api`."""

_TOLERANCE = "KMP_DUPLICATE_LIB_OK"

_users: dict[str, str] = {}
"""The variables that were set before the first Worker was made, with their values then."""


def set_variables() -> None:
    """Have libraries loaded from now on start with one thread; the user's values stay.

    Rule     ORCH-FORK-1
    """
    for name in _VARIABLES:
        if name in os.environ:
            _users.setdefault(name, os.environ[name])
        else:
            os.environ[name] = "1"


def users_variables() -> dict[str, str]:
    """Return the variables that the user has set, with their values."""
    return dict(_users)


def take_over(users: dict[str, str]) -> None:
    """In a fresh interpreter: note which variables the user, not the parent, has set."""
    _users.clear()
    _users.update(users)


def limiter() -> Callable[[], None]:
    """Return a function that limits loaded libraries to one thread, or to what the user's variables say.

    It is made before a fork, and called in the child: the look-up of libraries must not meet a lock of
    the loader held by a thread that the child does not have.

    Rule     ORCH-FORK-7
    """
    threads = _threads()
    pools = [
        (_controller(_loaded()).select(internal_api=library), count)
        for library, count in threads.items()
    ]

    def limit() -> None:
        for pool, count in pools:
            pool.limit(limits=count)

    return limit


def _threads() -> dict[str, int]:
    """Return how many threads each library has in workers; those are left out that nothing is known of.

    A program may have set a variable when a library was there already, which does not look again.
    """
    found = {library: 1 for libraries in _VARIABLES.values() for library in libraries}
    for name, libraries in _VARIABLES.items():  # what is for one library comes last, and counts
        if name not in _users:
            continue
        said = _users[name].partition(",")[0].strip()
        for library in libraries:
            found.pop(library, None)
            if said.isdecimal() and int(said):
                found[library] = int(said)
    return found


@functools.lru_cache(maxsize=1)
def _controller(_at: tuple[int, int]) -> Any:
    """Find the libraries loaded at a time; that takes a millisecond."""
    tolerance = os.environ.get(_TOLERANCE)
    from threadpoolctl import ThreadpoolController

    if tolerance is None:  # which that module has set
        os.environ.pop(_TOLERANCE, None)
    # An exception of a signal handler would be lost in a function that C calls.
    with warnings.catch_warnings(), signals_blocked():
        warnings.simplefilter("ignore", RuntimeWarning)  # two OpenMP runtimes: no concern here
        return ThreadpoolController()


# ---------------------------------------------------------------- which libraries are loaded
class _Image(ctypes.Structure):
    """A library, as the loader describes it: `dl_phdr_info`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("base", "name", "headers")),
        ("header_count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
        ("unloads", ctypes.c_ulonglong),
    ]


_Look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Image), ctypes.c_size_t, ctypes.c_void_p)


def _loaded() -> tuple[int, int]:
    """Return how many libraries this process has ever loaded and unloaded."""
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
"""After this many looks at such intervals an idle thread sleeps; one that does not is working."""


def why_not_fork() -> str | None:
    """Say why processes forked from this one could hang; None if they cannot.

    A forked process would wait for a pool of OpenMP threads that it does not have. OpenBLAS ends its own
    threads before a fork, and restarts them. The system does not tell which library a thread belongs to,
    but OpenBLAS's threads sleep on a word of that library; so where OpenMP is loaded, all threads count
    as its own that are neither OpenBLAS's nor Python's.

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
            fields = file.read().split()
        return int(fields[1], 16)
    except (OSError, ValueError, IndexError):
        return 0


_Images = dict[str, tuple[int, int]]


@functools.lru_cache(maxsize=1)
def _openmp_and_openblas(_at: tuple[int, int]) -> tuple[_Images, _Images]:
    """Return the addresses of the libraries of either kind loaded at a time."""
    with open("/proc/self/maps") as file:
        maps = file.read()
    return _images(maps, *_OPENMP), _images(maps, "blas")


def _images(maps: str, *parts: str) -> _Images:
    """Return the addresses of libraries whose file names contain one of `parts`: path → (start, end)."""
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
