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
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba import typeof
from numba.core import config, types
from numba.core.compiler import Compiler
from numba.core.types.misc import unliteral

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
"""No kernel allocates, so none counts references: `_nrt` leaves out an atomic add per array use."""


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


class _InsideOnly(Compiler):  # type: ignore[misc]
    """Compiles a kernel only as a part of its callers, without machine code of its own.

    numba would optimise and translate every function by itself, together with all that it calls. Entries
    call some hundred kernels, many levels deep, so that would take several times as long.
    """

    def define_pipelines(self) -> Any:
        state = self.state
        state.flags.no_compile = True
        state.flags.no_cpython_wrapper = True
        state.flags.no_cfunc_wrapper = True
        library = state.targetctx.codegen().create_library(state.func_id.func_qualname)
        library._optimize_final_module = lambda: None
        library._finalize_final_module = lambda: setattr(library, "_finalized", True)
        state.library = library
        return super().define_pipelines()


def _dispatcher(func: Callable[..., Any], inlined: bool) -> Any:
    """Return a numba dispatcher for compiled callers only."""
    options = {**_OPTIONS, "forceinline": inlined, "pipeline_class": _InsideOnly}
    dispatcher = numba.njit(nogil=True, **options)(func)
    template = dispatcher.get_call_template

    def for_any_value(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        """Keep numba from compiling a kernel again for each constant that a caller passes."""
        plain = {name: unliteral(kind) for name, kind in kws.items()}
        return template(tuple(map(unliteral, args)), plain)

    def add_overload(result: Any) -> None:
        """Note a version under a name of its own, since it has no address."""
        result = result._replace(entry_point=(func, result.signature))
        dispatcher.targetctx.insert_user_function(
            result.entry_point, result.fndesc, [result.library]
        )
        dispatcher.overloads[tuple(result.signature.args)] = result

    dispatcher.get_call_template = for_any_value
    dispatcher.add_overload = add_overload
    return dispatcher


class _Kernel:
    """A kernel that makes its numba dispatcher when first needed.

    Most processes load the entries from the cache and never need the kernels that these call.
    """

    def __init__(self, func: Callable[..., Any], inlined: bool) -> None:
        functools.update_wrapper(self, func)
        self._func = func
        self._inlined = inlined

    @functools.cached_property
    def _inside(self) -> Any:
        return _dispatcher(self._func, self._inlined)

    @functools.cached_property
    def _alone(self) -> Any:
        return numba.njit(nogil=True, **_OPTIONS)(self._func)

    @property
    def _numba_type_(self) -> Any:
        return self._inside._numba_type_

    def __call__(self, *args: Any) -> Any:
        return self._alone(*args)


def kernel(func: F) -> F:
    """Make `func` a kernel: compiled on first use, as a part of its callers, without the GIL."""
    return func if INTERPRETED else cast(F, _Kernel(func, inlined=False))


def inlined(func: F) -> F:
    """Make `func` a kernel that is inlined into each caller: it is on the path of every task."""
    return func if INTERPRETED else cast(F, _Kernel(func, inlined=True))


def entry(
    *signature: Any, nogil: bool, stamp: str = STAMP, allocates: bool = False
) -> Callable[[F], F]:
    """Make a kernel that Python calls: compiled for `signature` only, cached on disk.

    `nogil=False` is for short, non-blocking entries, where releasing the GIL would cost more than the
    work; entries that may wait have `nogil=True`. `bind` compiles, not the import. `stamp` is the digest
    of the sources; `allocates` says that the entry makes arrays.
    """

    def wrap(func: F) -> F:
        if INTERPRETED:
            func.entry_signature = signature  # type: ignore[attr-defined]
            return func
        dispatcher = numba.njit(nogil=nogil, **_OPTIONS | {"_nrt": allocates})(func)
        dispatcher._cache = KernelCache(func, stamp)
        dispatcher.entry_signature = signature
        return dispatcher

    return wrap


def bind(func: F) -> F:
    """Return the cheapest way to call an entry from Python: no look-up of argument types.

    Arguments must have the declared types; numba's unboxing rejects others with a TypeError.
    """
    if INTERPRETED:
        return func
    signature = func.entry_signature  # type: ignore[attr-defined]
    func.compile(signature)  # type: ignore[attr-defined]
    return func.get_overload(signature)  # type: ignore[attr-defined]


def address_of(func: Callable[..., Any]) -> int:
    """Return the address of a bound entry's machine code, for compiled code that calls it."""
    result = func.overloads[func.entry_signature]  # type: ignore[attr-defined]
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address


def is_cached(func: Callable[..., Any]) -> bool:
    """Say whether the cache has an entry, so that `bind` need not compile it."""
    if INTERPRETED:
        return True
    dispatcher: Any = func
    codegen = dispatcher.targetctx.codegen()
    return bool(dispatcher._cache.holds(dispatcher.entry_signature, codegen))


@contextlib.contextmanager
def without_scipy() -> Iterator[None]:
    """Let numba load its support for numpy without importing ``scipy.linalg``.

    The import takes as long as everything else, and numba only wants to know whether it works. Code that
    uses linear algebra imports it when it is compiled.
    """
    if INTERPRETED or "numba.np.arraymath" in sys.modules:
        yield
        return
    from numba.np import linalg

    ensure = linalg.ensure_blas
    if importlib.util.find_spec("scipy") is not None:
        linalg.ensure_blas = lambda: None
    try:
        yield
    finally:
        linalg.ensure_blas = ensure
        if arraymath := sys.modules.get("numba.np.arraymath"):
            arraymath.ensure_blas = ensure  # type: ignore[attr-defined]
