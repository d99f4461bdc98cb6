"""Compiling kernels with numba and LLVM; see `kernel`.

Numba would optimise and compile each kernel by itself, once more inside every caller, and again inside
the callers of those. Here numba types a kernel once and makes LLVM's code of it, a `_Part`; the entries,
with the parts of all kernels that they call, are a `_Unit`, which LLVM optimises and compiles as a whole.
It knows all callers then, and decides what to inline.

Two thirds of the time are numba's, which is Python, and the rest LLVM's. So all entries are two units,
each made by a process: what workers and the Scheduler do, and what the Orch thread does. They meet in the
Scheduler's pass, which is an entry of the first one, called by its symbol.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, compiler_lock, config, types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import CompilerBase, PassManager
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typed_passes import (
    AnnotateTypes,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode

from .instructions import INSTRUCTIONS, INT, WORDS, instruction, words_of

_TYPES = {"w": WORDS, "b": WORDS, "i": INT}
"""What an entry takes, by the letters that `kernel` has for it."""
_OPTIONS = {
    "nopython": True,
    "nogil": True,
    "boundscheck": None,
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""No kernel allocates, so none counts references: `_nrt=False` saves an atomic addition per array use."""
_known: dict[Callable[..., Any], Any] = {}


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
    """Makes LLVM code of a kernel, for a part of its own."""

    _name = "kernel_lowering"

    def run_pass(self, state):
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
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
        super().__init__(func, targetoptions=dict(_OPTIONS), pipeline_class=_Pipeline)

    def get_call_template(self, args, kws):
        return super().get_call_template([types.unliteral(one) for one in args], kws)

    def add_overload(self, made):
        made.fndesc.typemap = made.fndesc.calltypes = None
        self.overloads[tuple(made.signature.args)] = made._replace(type_annotation=None)


def compile_part(entries: Sequence[Any], elsewhere: Sequence[Any] = ()) -> bytes:
    """Return the code of some entries, by their symbols, with that of all kernels that they call.

    What is `elsewhere` is called by its symbol: then this process compiles nothing else.
    """
    with compiler_lock.global_compiler_lock, _no_garbage_collection(), _remembered_types():
        _know([one.py_func for one in entries], elsewhere)
        unit = _Unit(_codegen(), "kernels")
        unit.enable_object_caching()
        for one in {one.symbol: one for one in entries}.values():
            _add(unit, one)
        unit.finalize()
        assert not unit.has_dynamic_globals, "addresses of this process"
        code: bytes = unit._get_compiled_object()
        return code


def _codegen() -> JITCPUCodegen:
    """Return LLVM for any processor of this kind, not for that of this machine."""
    usual = config.CPU_NAME, config.CPU_FEATURES
    try:
        config.CPU_NAME, config.CPU_FEATURES = "", ""
        return JITCPUCodegen("kernels")
    finally:
        config.CPU_NAME, config.CPU_FEATURES = usual


def _called_by(functions: Sequence[Callable[..., Any]]) -> Iterator[Callable[..., Any]]:
    """Go through functions, and all that they call: by its name, or by that of its module."""
    found, missing = set(INSTRUCTIONS), [*functions]
    while missing:
        one: Any = missing.pop()
        if one in found:
            continue
        found.add(one)
        yield one
        names = one.__code__.co_names
        named = [one.__globals__.get(name) for name in names]
        for module in [module for module in named if isinstance(module, ModuleType)]:
            named += [vars(module).get(name) for name in names]
        missing += [other for other in named if isinstance(other, FunctionType)]


def _know(functions: Sequence[Callable[..., Any]], elsewhere: Sequence[Any]) -> None:
    """Have numba compile functions and what they call, or call what is `elsewhere`."""
    context = cpu_target.typing_context
    context.refresh()
    if not _known:
        for plain, made in INSTRUCTIONS.items():
            context.insert_global(plain, context.resolve_value_type(made))
    for one in [one for one in elsewhere if one.py_func not in _known]:
        made = _by_symbol(one)
        context.refresh()
        context.insert_global(one.py_func, context.resolve_value_type(made))
    by_symbol = {one.py_func for one in elsewhere}
    for function in _called_by(functions):
        if function not in _known:
            _known[function] = made = _Kernel(function)
            if function not in by_symbol:
                context.insert_global(function, types.Dispatcher(made))


def _by_symbol(entry: Any) -> Any:
    """Return what kernels call for an entry that is compiled elsewhere."""

    @instruction(INT, WORDS)
    def call(context, builder, mem):
        array = context.make_array(WORDS)(context, builder, mem)
        word = ir.IntType(64)
        given = cgutils.alloca_once(builder, word, 2)
        builder.store(builder.ptrtoint(array.data, word), given)
        builder.store(array.nitems, builder.gep(given, [word(1)]))
        kind = ir.FunctionType(word, [given.type])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, entry.symbol), [given]
        )

    return call


def _add(unit: _Unit, entry: Any) -> None:
    """Add the function that Python calls: it takes the address of words, and calls a kernel with them."""
    context = cpu_target.target_context
    wanted = tuple(_TYPES[one] for one in entry.entry_signature)
    dispatcher = _known[entry.py_func]
    dispatcher.compile(wanted)
    made = dispatcher.overloads[wanted]
    module = context.create_module("entry")
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(word, [word.as_pointer()]), entry.symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    at, arguments = 0, []
    for kind in wanted:
        read = [builder.load(builder.gep(function.args[0], [word(at + i)])) for i in range(2)]
        if kind is INT:
            arguments.append(read[0])
        else:
            start = builder.inttoptr(read[0], word.as_pointer())
            arguments.append(words_of(context, builder, start, read[1]))
        at += 1 if kind is INT else 2
    callee = context.declare_function(module, made.fndesc)
    answer = made.fndesc.restype
    _, value = context.call_conv.call_function(builder, callee, answer, wanted, arguments)
    builder.ret(word(0) if answer == types.none else context.cast(builder, value, answer, INT))
    unit.add_linking_library(made.library)
    unit.add_ir_module(module)


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


@contextlib.contextmanager
def _remembered_types() -> Iterator[None]:
    """Have numba find the type of an operation once: it tries all candidates wherever one stands.

    That was a quarter of numba's time.
    """
    plain = types.Function.get_call_type
    found: dict[Any, Any] = {}

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        key = self, tuple(args), tuple(kws.items())
        if key not in found:
            found[key] = plain(self, context, args, kws)
        return found[key]

    types.Function.get_call_type = get_call_type  # type: ignore[method-assign]
    try:
        yield
    finally:
        del types.Function.get_call_type
