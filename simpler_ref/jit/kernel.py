"""The `kernel` decorator: one function, compiled or interpreted, with a cache that cannot go stale.

Numba keeps compiled code on disk and decides by the *calling* file's time stamp whether it is still
good. A kernel here inlines constants and callees from other files of this package (every offset in
`layout`), so that rule would let an old layout survive in a cached caller. What is kept here (see
`cache`) is stamped with a digest of all sources in `simpler_ref/jit` instead: change one byte of any
of them and every compiled kernel is compiled anew.

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
"""True in tests that let processes die at numbered places; see `fail_points`."""
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
    """Compiles a kernel for its callers alone: they make machine code of it, as a part of theirs.

    numba would optimise and translate every function, together with all that it calls, for itself.
    Entries call some hundred kernels, many levels deep, so that takes several times as long.
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
    """Return what numba calls a dispatcher, for callers that are compiled and for no others."""
    options = {**_OPTIONS, "forceinline": inlined, "pipeline_class": _InsideOnly}
    dispatcher = numba.njit(nogil=True, **options)(func)
    template = dispatcher.get_call_template

    def for_any_value(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        """Keep numba from compiling a kernel anew for each constant that a caller writes down."""
        plain = {name: unliteral(kind) for name, kind in kws.items()}
        return template(tuple(map(unliteral, args)), plain)

    def add_overload(result: Any) -> None:
        """Note a version under a name of its own, for want of an address."""
        result = result._replace(entry_point=(func, result.signature))
        dispatcher.targetctx.insert_user_function(
            result.entry_point, result.fndesc, [result.library]
        )
        dispatcher.overloads[tuple(result.signature.args)] = result

    dispatcher.get_call_template = for_any_value
    dispatcher.add_overload = add_overload
    return dispatcher


class _Kernel:
    """A kernel that numba is told of when it is first needed, by a caller that is compiled or at all.

    Most processes take the entries from the cache and never come to see what these call.
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
    """Make `func` a kernel whose code stands in each of its callers: it is on the way of every task."""
    return func if INTERPRETED else cast(F, _Kernel(func, inlined=True))


def entry(
    *signature: Any, nogil: bool, stamp: str = STAMP, allocates: bool = False
) -> Callable[[F], F]:
    """Make a kernel that Python calls: compiled for `signature` only, cached on disk.

    `nogil=False` is for short, non-blocking entries, where giving the GIL away would cost more than
    the work; whatever may wait is `nogil=True`. Compilation happens in `bind`, not at import. `stamp`
    says what the code was made from, `allocates` that it makes arrays.
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
    """Let numba load what it knows of numpy without importing ``scipy.linalg`` for it.

    That takes as long as everything else, and all it is for is to find out whether it can be
    imported. Code that uses linear algebra imports it when it is compiled.
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
