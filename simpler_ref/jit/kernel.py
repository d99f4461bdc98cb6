"""The `kernel` decorator: one function, compiled or interpreted, with a cache that cannot go stale.

Numba's own cache goes by the time stamp of the *calling* file. A kernel here inlines constants and
callees from other files of this package (every offset in `layout`), so an old layout could survive in a
cached caller. This package's cache (see `cache`) is stamped with a digest of all sources in
`simpler_ref/jit` instead: a change in any of them has all kernels compiled again.

With ``NUMBA_DISABLE_JIT=1`` the decorator returns the function itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba import typeof
from numba.core import config, types
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from . import cache

FAIL_POINTS: bool = os.environ.get("SIMPLER_REF_FAIL_POINTS", "") == "1"
"""True in tests that let processes die at fail points; see `fail_points`."""
INTERPRETED: bool = bool(config.DISABLE_JIT)
"""True when ``NUMBA_DISABLE_JIT=1``: the kernels then run as plain Python."""

F = TypeVar("F", bound=Callable[..., Any])

WORDS: Any = types.Array(types.int64, 1, "C")
BYTES: Any = typeof(b"")
INT = types.int64


_DIGEST = hashlib.sha256().digest_size
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
    """A kernel that Python calls: compiled for one signature, or read from disk, when it is first bound.

    Rule     SPEED-KEEP-1, -2, -7
    """

    def __init__(
        self, func: Callable[..., Any], signature: tuple[Any, ...], stamp: str, **options: Any
    ) -> None:
        self.py_func = func
        self.entry_signature = signature
        self._stamp = f"{stamp} {options}"
        self._options = options
        self._found: bytes | None = None

    @functools.cached_property
    def compiled(self) -> Any:
        found = self._load()
        if found is None:
            dispatcher = numba.njit(**self._options)(self.py_func)
            dispatcher.compile(self.entry_signature)
            found = dispatcher.overloads[self.entry_signature]
            self._save(found)
        return found

    def _file(self) -> tuple[str, bytes]:
        """Return the name of the file on disk and its key."""
        function = self.py_func
        name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        parts = (
            self._stamp,
            sys.implementation.cache_tag,
            cpu_target.target_context.codegen().magic_tuple(),
            function.__module__,
            function.__qualname__,
            function.__code__.co_code,
            self.entry_signature,
        )
        key = hashlib.sha256(repr(parts).encode()).digest()
        return f"{name[:100]}-{key.hex()[:20]}.nbc", key

    def is_cached(self) -> bool:
        """Read the file; say whether it exists and is intact."""
        if self._found is None:
            name, key = self._file()
            with contextlib.suppress(OSError):
                contents = cache.read(name)
                digest, payload = contents[:_DIGEST], contents[_DIGEST:]
                if digest == hashlib.sha256(key + payload).digest():
                    self._found = payload
                else:
                    self._tell_damage()
        return self._found is not None

    def _tell_damage(self) -> None:
        text = f"{cache.folder() / self._file()[0]} is damaged; what is damaged is compiled again"
        cache.tell("damaged", text)

    def _load(self) -> Any:
        """Return the compiled function, None if there is none on disk that can be used."""
        if not self.is_cached():
            return None
        payload, self._found = cast(bytes, self._found), None
        context = cpu_target.target_context
        rtsys.initialize(context)  # the functions that wrappers call
        try:
            return CompileResult._rebuild(context, *pickle.loads(payload))
        except Exception:
            self._tell_damage()
            return None

    def _save(self, compiled: Any) -> None:
        """Write the compiled function, if possible."""
        if compiled.library.has_dynamic_globals:  # addresses of this process
            return
        name, key = self._file()
        try:
            payload = dumps(_without_ir(*compiled._reduce()))
            cache.write(name, hashlib.sha256(key + payload).digest() + payload)
        except (OSError, MemoryError) as error:
            reason = f"{type(error).__name__}: {error}"
            cache.tell(
                "not kept",
                f"compiled kernels cannot be kept, so every start compiles them again ({reason}); "
                "name a folder of your own in XDG_CACHE_HOME",
            )


def _without_ir(library, fndesc, *others):
    """Return the parts of a compiled function with the names of its symbols instead of their IR.

    LLVM's IR is twice as long as the machine code, would be read at each start and stay in memory, and
    would serve only to inline the function into callers compiled later. They call its address.
    """
    name, kind, (code, _) = library
    symbols = (
        fndesc.llvm_func_name,
        fndesc.llvm_cpython_wrapper_name,
        fndesc.llvm_cfunc_wrapper_name,
    )
    lines = [f'@"{symbol}" = available_externally global i8 0' for symbol in symbols]
    named = binding.parse_assembly("\n".join(lines)).as_bitcode()
    return (name, kind, (code, named)), fndesc, *others


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
    return INTERPRETED or cast(_Entry, func).is_cached()
