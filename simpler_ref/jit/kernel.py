"""The `kernel` decorator: one function, compiled or interpreted, with a cache that cannot go stale.

Numba's own cache goes by the time stamp of the *calling* file. A kernel here inlines constants and
callees from other files of this package (every offset in `layout`), so an old layout could survive in a
cached caller. This package's cache (see `cache`) is stamped with a digest of all sources in
`simpler_ref/jit` instead: a change in any of them has all kernels compiled again.

With ``NUMBA_DISABLE_JIT=1`` the decorator returns the function itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba import typeof
from numba.core import config, types

from .cache import KernelCache

FAIL_POINTS: bool = os.environ.get("SIMPLER_REF_FAIL_POINTS", "") == "1"
"""True in tests that let processes die at fail points; see `fail_points`."""
INTERPRETED: bool = bool(config.DISABLE_JIT)
"""True when ``NUMBA_DISABLE_JIT=1``: the kernels then run as plain Python."""

F = TypeVar("F", bound=Callable[..., Any])

WORDS: Any = types.Array(types.int64, 1, "C")
BYTES: Any = typeof(b"")
INT = types.int64


_OPTIONS = {"error_model": "numpy", "_nrt": False}
"""No kernel allocates, so none counts references: `_nrt=False` saves an atomic addition per array use."""


def source_digest() -> str:
    """Return the digest of every source file in this folder, of the compiler and of the machine."""
    h = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        h.update(path.name.encode())
        h.update(path.read_bytes())
    versions = f"{numba.__version__} {llvmlite.__version__} {np.__version__}"
    h.update(f"{versions} {platform.machine()} {FAIL_POINTS}".encode())
    return h.hexdigest()


STAMP = "" if INTERPRETED else source_digest()


def kernel(func: F) -> F:
    """Make `func` a kernel: compiled on first use, as a part of its callers, without the GIL."""
    return func if INTERPRETED else cast(F, numba.njit(nogil=True, **_OPTIONS)(func))


def inlined(func: F) -> F:
    """Make `func` a kernel that numba inlines: one on each task's path, or with few callers."""
    if INTERPRETED:
        return func
    return cast(F, numba.njit(nogil=True, inline="always", **_OPTIONS)(func))


class _Entry:
    """A kernel that Python calls: loaded from the cache when first needed, or compiled."""

    def __init__(
        self, func: Callable[..., Any], signature: tuple[Any, ...], stamp: str, **options: Any
    ) -> None:
        self.py_func = func
        self.entry_signature = signature
        self.cache = KernelCache(func, signature, f"{stamp} {options}")
        self._options = options

    @functools.cached_property
    def compiled(self) -> Any:
        found = self.cache.load()
        if found is None:
            dispatcher = numba.njit(**self._options)(self.py_func)
            dispatcher.compile(self.entry_signature)
            found = dispatcher.overloads[self.entry_signature]
            self.cache.save(found)
        return found


def entry(*signature: Any, nogil: bool, stamp: str = STAMP) -> Callable[[F], F]:
    """Make a kernel that Python calls: compiled for `signature` only, cached on disk.

    `nogil=False` is for short, non-blocking entries, where releasing the GIL would cost more than the
    work; entries that may wait have `nogil=True`. `bind` compiles, not the import. `stamp` is the digest
    of the sources.
    """

    def wrap(func: F) -> F:
        if INTERPRETED:
            func.entry_signature = signature  # type: ignore[attr-defined]
            return func
        return cast(F, _Entry(func, signature, stamp, nogil=nogil, **_OPTIONS))

    return wrap


def entry_of(kernel: F, *signature: Any, nogil: bool) -> F:
    """Make a kernel one that Python calls, as it is; see `entry`."""
    return entry(*signature, nogil=nogil)(kernel if INTERPRETED else cast(Any, kernel).py_func)


def bind(func: F) -> F:
    """Return the cheapest way to call an entry from Python: no look-up of argument types.

    Arguments must have the declared types; numba's unboxing rejects others with a TypeError.
    """
    return func if INTERPRETED else cast(F, cast(_Entry, func).compiled.entry_point)


def c_address_of(func: Callable[..., Any]) -> int:
    """Return the address of an entry that takes and returns integers, for C."""
    compiled = cast(_Entry, func).compiled
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    return address


def is_cached(func: Callable[..., Any]) -> bool:
    """Say whether the cache has an entry, so that `bind` need not compile it."""
    return INTERPRETED or cast(_Entry, func).cache.holds()
