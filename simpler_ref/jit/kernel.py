"""The `kernel` decorator: one function, compiled or interpreted, with a cache that cannot go stale.

Numba's own cache goes by the time stamp of the *calling* file. A kernel here inlines constants and
callees from other files of this package (every offset in `layout`), so an old layout could survive in a
cached caller. This package's cache (see `cache`) is stamped with a digest of all sources in
`simpler_ref/jit` instead: a change in any of them has all kernels compiled again.

Numba would optimise and compile each kernel by itself, once more inside every caller, and again inside
the callers of those. Here numba types a kernel once and makes LLVM's code of it, a `_Part`; the entries,
with the parts of all kernels that they call, are a `_Unit`, which LLVM optimises and compiles as a whole.
It knows all callers then, and decides what to inline.

With ``NUMBA_DISABLE_JIT=1`` the decorator returns the function itself.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba import typeof
from numba.core import compiler_lock, config, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, Flags, PassManager, compile_extra
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.core.typed_passes import (
    AnnotateTypes,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode

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
_OPTIONS = {
    "nopython": True,
    "nogil": True,
    "boundscheck": None,
    "error_model": "numpy",
    "_nrt": False,
}
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
    """Make `func` a kernel: compiled as a part of the entries that call it, without the GIL."""
    return func if INTERPRETED else cast(F, _Kernel(func))


# ---------------------------------------------------------------- how kernels are compiled
class _Library(JITCodeLibrary):
    """Code that is linked as it was made: LLVM sees it first when the whole unit is there."""

    def add_llvm_module(self, module):
        module.data_layout = self._codegen._data_layout
        self._final_module.link_in(module)


class _Part(_Library):
    """The code of one kernel, for units to link; there is no machine code of it alone."""

    def finalize(self):
        self._finalized = True


class _Unit(_Library):
    """The code of some entries and, once, of each kernel that they call."""

    def finalize(self):
        """Link all parts, then optimise and compile the whole."""
        parts, missing = {}, self._linking_libraries
        while missing:
            part = missing.pop()
            if part not in parts:
                parts[part] = None
                missing = missing + part._linking_libraries
        self._linking_libraries = list(parts)
        super().finalize()

    def _optimize_final_module(self):
        for function in self._final_module.functions:
            if function.linkage == binding.Linkage.linkonce_odr:
                function.linkage = "internal"  # so that LLVM knows all of its callers
        super()._optimize_final_module()


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Makes LLVM code: of a kernel for a part of its own, of an entry for the unit that it is given."""

    _name = "kernel_lowering"

    def run_pass(self, state):
        is_part = state.library is None
        if is_part:
            state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        if is_part:
            name = object()  # by which callers find it
            state["cr"] = state["cr"]._replace(cfunc=name)
            state.targetctx.insert_user_function(name, state["cr"].fndesc, [state.library])
        return True


class _Pipeline(CompilerBase):
    """What numba does with a kernel, which has no closures, generators or calls to inline."""

    PASSES = (
        *(TranslateByteCode, FixupArgs, IRProcessing, ReconstructSSA),
        *(NopythonTypeInference, PreLowerStripPhis, IRLegalization, AnnotateTypes),
        *(_Lowering, NoPythonBackend),
    )

    def define_pipelines(self):
        made = PassManager("kernels")
        for one in self.PASSES:
            made.add_pass(one, "")
        made.finalize()
        return [made]


class _Kernel(CPUDispatcher):
    """A function that other kernels call, compiled for each combination of types, not of values."""

    def __init__(self, func):
        options = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        super().__init__(func, targetoptions=options, pipeline_class=_Pipeline)

    def get_call_template(self, args, kws):
        return super().get_call_template([types.unliteral(one) for one in args], kws)

    def add_overload(self, made):
        made.fndesc.typemap = made.fndesc.calltypes = None
        self.overloads[tuple(made.signature.args)] = made._replace(type_annotation=None)


class _Entry:
    """A kernel that Python calls.

    Attributes
    ----------
    call
        It, once it is bound: what Python calls.
    for_c : int
        Its address for C; 0 unless it takes only integers.
    """

    call: Any
    for_c: int

    def __init__(
        self, func: Callable[..., Any], signature: tuple[Any, ...], stamp: str, nogil: bool
    ) -> None:
        self.py_func = func
        self.entry_signature = signature
        self.stamp = f"{stamp} {nogil}"
        self._options = _OPTIONS | {
            "nogil": nogil,
            "no_cfunc_wrapper": any(one is not INT for one in signature),
        }

    def lower(self, unit: _Unit) -> Any:
        """Add it to a unit; return its description and environment."""
        flags = Flags()
        cpu_target.options.parse_as_flags(flags, self._options)
        context = cpu_target.typing_context, cpu_target.target_context
        made = compile_extra(
            *context,
            self.py_func,
            args=self.entry_signature,
            return_type=None,
            flags=flags,
            locals={},
            library=unit,
            pipeline_class=_Pipeline,
        )
        made.fndesc.typemap = made.fndesc.calltypes = None
        return made.fndesc, made.environment

    def take(self, library: Any, fndesc: Any, environment: Any) -> None:
        """Find it in compiled code."""
        self.call = cpu_target.target_context.get_executable(library, fndesc, environment)
        self.for_c = library.get_pointer_to_function(fndesc.llvm_cfunc_wrapper_name)


class _Compiled:
    """Entries that are compiled together, and kept on disk in one file.

    What LLVM does with a kernel, it does once, although many entries call it.

    Rule     SPEED-KEEP-1, SPEED-KEEP-2, SPEED-KEEP-7
    """

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries
        parts = (
            sys.implementation.cache_tag,
            cpu_target.target_context.codegen().magic_tuple(),
            *(
                (
                    one.stamp,
                    one.py_func.__module__,
                    one.py_func.__qualname__,
                    one.py_func.__code__.co_code,
                    one.entry_signature,
                )
                for one in entries
            ),
        )
        self._key = hashlib.sha256(repr(parts).encode()).digest()
        self._name = f"kernels-{self._key.hex()[:20]}.nbc"

    def read(self) -> bytes | None:
        """Return what is on disk; None if there is nothing, or it is damaged."""
        with contextlib.suppress(OSError):
            contents = cache.read(self._name)
            digest, payload = contents[:_DIGEST], contents[_DIGEST:]
            if digest == hashlib.sha256(self._key + payload).digest():
                return payload
            self._tell_damage()
        return None

    def _tell_damage(self) -> None:
        text = f"{cache.folder() / self._name} is damaged; what is damaged is compiled again"
        cache.tell("damaged", text)

    def bind(self, payload: bytes | None) -> None:
        """Make the entries callable, from what is on disk, or by compiling them."""
        if payload is None or not self._load(payload):
            with compiler_lock.global_compiler_lock, _no_garbage_collection():
                self._compile()

    def _load(self, payload: bytes) -> bool:
        context = cpu_target.target_context
        rtsys.initialize(context)  # the functions that wrappers call
        try:
            code, described = pickle.loads(payload)
            library = context.codegen().unserialize_library(code)
            for one, its in zip(self._entries, described, strict=True):
                one.take(library, *its)
        except Exception:
            self._tell_damage()
            return False
        return True

    def _compile(self) -> None:
        unit = _Unit(cpu_target.target_context.codegen(), "kernels")
        unit.enable_object_caching()
        described = [one.lower(unit) for one in self._entries]
        unit.finalize()
        for one, its in zip(self._entries, described, strict=True):
            one.take(unit, *its)
        if unit.has_dynamic_globals:  # addresses of this process
            return
        try:
            payload = dumps((_without_ir(unit, described), described))
            cache.write(self._name, hashlib.sha256(self._key + payload).digest() + payload)
        except (OSError, MemoryError) as error:
            reason = f"{type(error).__name__}: {error}"
            cache.tell(
                "not kept",
                f"compiled kernels cannot be kept, so every start compiles them again ({reason}); "
                "name a folder of your own in XDG_CACHE_HOME",
            )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep the collector from a third of the time: compiling makes millions of objects that stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _without_ir(unit, described):
    """Return the machine code of a unit as numba reads it, with the names of symbols instead of their IR.

    LLVM's IR is twice as long as the machine code, would be read at each start and stay in memory, and
    would serve only to inline kernels into callers compiled later. They call their addresses.
    """
    names = [
        name
        for fndesc, _environment in described
        for name in (fndesc.llvm_cpython_wrapper_name, fndesc.llvm_cfunc_wrapper_name)
        if unit.get_pointer_to_function(name)
    ]
    lines = [f'@"{name}" = available_externally global i8 0' for name in names]
    named = binding.parse_assembly("\n".join(lines)).as_bitcode()
    return unit.name, "object", (unit._get_compiled_object(), named)


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
        return cast(F, _Entry(func, signature, stamp, nogil))

    return wrap


def entry_of(kernel: F, *signature: Any, nogil: bool) -> F:
    """Make a kernel one that Python calls, as it is; see `entry`."""
    return entry(*signature, nogil=nogil)(kernel if INTERPRETED else cast(Any, kernel).py_func)


def bind(functions: Sequence[F], announce: Callable[[], None] = lambda: None) -> list[F]:
    """Return the cheapest ways to call some entries from Python: without a look-up of argument types.

    They are read from disk, or compiled together, after `announce` was called. Arguments must have the
    declared types; numba's unboxing rejects others with a TypeError.
    """
    if INTERPRETED:
        return list(functions)
    entries = cast(Sequence[_Entry], functions)
    compiled = _Compiled(entries)
    payload = compiled.read()
    if payload is None:
        announce()
    compiled.bind(payload)
    return [one.call for one in entries]


def c_address_of(func: Callable[..., Any]) -> int:
    """Return the address of a bound entry that takes and returns integers, for C."""
    return cast(_Entry, func).for_c
