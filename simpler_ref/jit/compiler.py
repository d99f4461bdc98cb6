"""Compiling kernels with numba and LLVM; see `kernel`.

Numba would optimise and compile each kernel by itself, once more inside every caller, and again inside
the callers of those. Here numba types a kernel once and makes LLVM's code of it, a `_Part`; the entries,
with the parts of all kernels that they call, are a `_Unit`, which LLVM optimises and compiles as a whole.
It knows all callers then, and decides what to inline.

Two thirds of the time are numba's, which is Python, and the rest LLVM's. So all entries are two units,
each made by a process: what workers and the Scheduler do, and what the Orch thread does. They meet in the
Scheduler's pass, which is an entry of the first one, called by its symbol.

What kernels do in place of the functions of `atomics` comes first: the LLVM code of each. Only who
compiles imports this module.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import platform
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
from numba.core.typing.templates import signature
from numba.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode
from numba.extending import intrinsic

from . import atomics
from . import layout as L

WORDS, INT = types.Array(types.int64, 1, "C"), types.int64

_I64, _I32, _BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)
_ZERO, _BILLION = ir.Constant(_I64, 0), ir.Constant(_I64, 1_000_000_000)
_CORE_SET_WORDS = 16  # glibc's cpu_set_t

INSTRUCTIONS: dict[Any, Any] = {}
"""What numba is to call for a function of `atomics`."""


def instruction(result, *takes):
    """Have kernels call what a function emits: its LLVM code, given context, builder and values.

    `takes` are the types of its arguments. If a word is the first, that is WORDS and INT, it gets a
    pointer.
    """

    def wrap(emit):
        of_word = takes[:2] == (WORDS, INT)

        def codegen(context, builder, sig, values):
            if of_word:
                view = context.make_array(WORDS)(context, builder, values[0])
                index = [values[1]]
                word = cgutils.get_item_pointer(
                    context, builder, WORDS, view, index, wraparound=False
                )
                values = [word, *values[2:]]
            made = emit(context, builder, *values)
            return context.get_dummy_value() if made is None else made

        @functools.wraps(emit)
        def typer(typingctx, *_):
            return signature(result, *takes), codegen

        names = list(inspect.signature(emit).parameters)[2:]
        names = ["typingctx", *(["mem", "i", *names[1:]] if of_word else names)]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        typer.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        made = intrinsic(typer)
        if emit.__name__ in vars(atomics):
            INSTRUCTIONS[getattr(atomics, emit.__name__)] = made
        return made

    return wrap


# ---------------------------------------------------------------- words


@instruction(INT, WORDS, INT)
def load(context, builder, word):
    return builder.load_atomic(word, "acquire", 8, typ=_I64)


@instruction(INT, WORDS, INT)
def load_sc(context, builder, word):
    return builder.load_atomic(word, "seq_cst", 8, typ=_I64)


@instruction(types.void, WORDS, INT, INT)
def store(context, builder, word, value):
    builder.store_atomic(value, word, "release", 8)


@instruction(INT, WORDS, INT, INT)
def exchange(context, builder, word, value):
    return builder.atomic_rmw("xchg", word, value, "seq_cst")


@instruction(types.boolean, WORDS, INT, INT, INT)
def compare_exchange(context, builder, word, expected, value):
    pair = builder.cmpxchg(word, expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(pair, 1)


@instruction(INT, WORDS, INT, INT)
def fetch_add(context, builder, word, value):
    return builder.atomic_rmw("add", word, value, "seq_cst")


@instruction(types.void)
def fence(context, builder):
    builder.fence("seq_cst")


# ---------------------------------------------------------------- calls of the system


def _call(builder, name, result, *arguments):
    """Emit a call of a C function, whose parameters have the types of the arguments."""
    kind = ir.FunctionType(result, [one.type for one in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


def _error(builder):
    return builder.load(_call(builder, "__errno_location", _I32.as_pointer()), typ=_I32)


def _part(builder, pair, number):
    """Return where seconds (0) or nanoseconds (1) of a time are."""
    return builder.gep(pair, [ir.Constant(_I32, 0), ir.Constant(_I32, number)])


@instruction(types.void)
def pause(context, builder):
    if platform.machine() == "x86_64":
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif platform.machine() == "aarch64":
        _call(builder, "llvm.aarch64.isb", ir.VoidType(), ir.Constant(_I32, 15))


@instruction(types.void)
def yield_core(context, builder):
    _call(builder, "sched_yield", _I32)


@instruction(INT)
def core_here(context, builder):
    return builder.sext(_call(builder, "sched_getcpu", _I32), _I64)


def _core_set(builder):
    kind = ir.ArrayType(_I64, _CORE_SET_WORDS)
    return cgutils.alloca_once_value(builder, ir.Constant(kind, None))


def _affinity(builder, verb, thread, cores):
    size = ir.Constant(_I64, 8 * _CORE_SET_WORDS)
    thread = builder.trunc(thread, _I32)
    return _call(builder, f"sched_{verb}affinity", _I32, thread, size, cores)


def _bit_of(builder, cores, core):
    """Return where the bit of a core is: a pointer to its word, and a mask."""
    core = builder.and_(core, ir.Constant(_I64, 64 * _CORE_SET_WORDS - 1))
    word = builder.lshr(core, ir.Constant(_I64, 6))
    bit = builder.shl(ir.Constant(_I64, 1), builder.and_(core, ir.Constant(_I64, 63)))
    return builder.gep(cores, [_ZERO, word]), bit


@instruction(types.boolean, INT)
def visit_core(context, builder, core):
    usual, only = _core_set(builder), _core_set(builder)
    _affinity(builder, "get", _ZERO, usual)  # should it fail, the set is empty
    word, bit = _bit_of(builder, usual, core)
    allowed = builder.icmp_unsigned("!=", builder.and_(builder.load(word, typ=_I64), bit), _ZERO)
    with builder.if_then(allowed):
        builder.store(bit, _bit_of(builder, only, core)[0])
        _affinity(builder, "set", _ZERO, only)
        _affinity(builder, "set", _ZERO, usual)
    return allowed


@instruction(types.boolean, INT, INT, INT)
def allow_core(context, builder, thread, core, allowed):
    cores = _core_set(builder)
    _affinity(builder, "get", thread, cores)
    word, bit = _bit_of(builder, cores, core)
    before = builder.load(word, typ=_I64)
    is_in = builder.icmp_unsigned("!=", builder.and_(before, bit), _ZERO)
    wanted = builder.icmp_unsigned("!=", allowed, _ZERO)
    changed = cgutils.alloca_once_value(builder, ir.Constant(_BIT, 0))
    with builder.if_then(builder.icmp_unsigned("!=", is_in, wanted)):
        builder.store(builder.xor(before, bit), word)
        done = _affinity(builder, "set", thread, cores)  # an empty set is refused
        builder.store(builder.icmp_signed("==", done, ir.Constant(_I32, 0)), changed)
    return builder.load(changed)


def _clock(builder, number):
    spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
    _call(builder, "clock_gettime", _I32, ir.Constant(_I32, number), spec)
    seconds = builder.load(_part(builder, spec, 0), typ=_I64)
    rest = builder.load(_part(builder, spec, 1), typ=_I64)
    return builder.add(builder.mul(seconds, _BILLION), rest)


@instruction(INT)
def now_ns(context, builder):
    return _clock(builder, atomics._CLOCK_MONOTONIC)


@instruction(INT)
def coarse_ns(context, builder):
    return _clock(builder, atomics._CLOCK_COARSE)


@instruction(INT)
def thread_id(context, builder):
    return _call(builder, "pthread_self", _I64)


@instruction(types.boolean, types.boolean)
def unlikely(context, builder, condition):
    return _call(builder, "llvm.expect.i1", _BIT, condition, ir.Constant(_BIT, 0))


@instruction(types.void)
def stay_aside(context, builder):
    for attribute in ("noinline", "cold"):
        builder.function.attributes.add(attribute)


@instruction(INT, WORDS, INT, INT, INT)
def write_words(context, builder, word, fd, count):
    nbytes = builder.mul(count, ir.Constant(_I64, 8))
    done = _call(builder, "write", _I64, builder.trunc(fd, _I32), word, nbytes)
    error = builder.sext(_error(builder), _I64)
    return builder.select(builder.icmp_signed("<", done, _ZERO), builder.neg(error), done)


@instruction(types.void)
def kill_self(context, builder):
    pid = _call(builder, "getpid", _I32)
    _call(builder, "kill", _I32, pid, ir.Constant(_I32, atomics._SIGKILL))


def _futex(builder, word, operation, value, timeout):
    number, operation = ir.Constant(_I64, atomics._SYS_FUTEX), ir.Constant(_I64, operation)
    address = builder.ptrtoint(word, _I64)
    return _call(builder, "syscall", _I64, number, address, operation, value, timeout, _ZERO, _ZERO)


@instruction(INT, WORDS, INT, INT, INT)
def futex_wait(context, builder, word, expected, timeout_ns):
    spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
    builder.store(builder.sdiv(timeout_ns, _BILLION), _part(builder, spec, 0))
    builder.store(builder.srem(timeout_ns, _BILLION), _part(builder, spec, 1))
    forever = builder.icmp_signed("<", timeout_ns, _ZERO)
    timeout = builder.select(forever, _ZERO, builder.ptrtoint(spec, _I64))
    expected = builder.and_(expected, ir.Constant(_I64, 0xFFFFFFFF))
    done = _futex(builder, word, atomics._FUTEX_WAIT, expected, timeout)
    error, answer = _error(builder), ir.Constant(_I64, L.OK)
    meanings = {atomics._ETIMEDOUT: L.TIMED_OUT, atomics._EINTR: L.INTERRUPTED}
    for number, meaning in meanings.items():
        is_it = builder.icmp_signed("==", error, ir.Constant(_I32, number))
        answer = builder.select(is_it, ir.Constant(_I64, meaning), answer)
    woken = builder.icmp_signed("==", done, _ZERO)
    return builder.select(woken, ir.Constant(_I64, L.OK), answer)


@instruction(types.void, WORDS, INT)
def futex_wake(context, builder, word):
    _futex(builder, word, atomics._FUTEX_WAKE, ir.Constant(_I64, 1 << 30), _ZERO)


# ---------------------------------------------------------------- words that are not the engine's


def words_of(context, builder, pointer, count):
    view = context.make_array(WORDS)(context, builder)
    context.populate_array(
        view,
        data=builder.bitcast(pointer, _I64.as_pointer()),
        shape=cgutils.pack_array(builder, [count]),
        strides=cgutils.pack_array(builder, [ir.Constant(_I64, 8)]),
        itemsize=ir.Constant(_I64, 8),
        meminfo=None,
    )
    return view._getvalue()


@instruction(WORDS, INT, INT)
def words_at(context, builder, address, count):
    return words_of(context, builder, builder.inttoptr(address, _I64.as_pointer()), count)


@instruction(INT, WORDS, INT)
def address_of(context, builder, word):
    return builder.ptrtoint(word, _I64)


# ---------------------------------------------------------------- compiled leaves
def call_code(context, builder, leaf, args, layouts):
    """Emit a call of a leaf: a compiled function that takes two integers and returns one."""
    kind = context.call_conv.get_function_type(INT, (INT, INT))
    function = builder.inttoptr(leaf, kind.as_pointer())
    return context.call_conv.call_function(builder, function, INT, (INT, INT), [args, layouts])


@instruction(INT, WORDS, INT, INT, INT, INT)
def run_leaf(context, builder, word, leaf, args, layouts):
    status, answer = call_code(context, builder, leaf, args, layouts)
    with cgutils.if_unlikely(builder, status.is_error):
        error = builder.ptrtoint(status.excinfoptr, _I64)
        builder.store(builder.select(status.is_user_exc, error, _ZERO), word)
    return builder.select(status.is_error, ir.Constant(_I64, L.RAISED), answer)


# ---------------------------------------------------------------- units
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
    with compiler_lock.global_compiler_lock, _quickly():
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
        given = cgutils.alloca_once(builder, _I64, 2)
        builder.store(builder.ptrtoint(array.data, _I64), given)
        builder.store(array.nitems, builder.gep(given, [_I64(1)]))
        return _call(builder, entry.symbol, _I64, given)

    return call


def _add(unit: _Unit, entry: Any) -> None:
    """Add the function that Python calls: it takes the address of words, and calls a kernel with them."""
    context = cpu_target.target_context
    wanted = tuple(_TYPES[one] for one in entry.entry_signature)
    dispatcher = _known[entry.py_func]
    dispatcher.compile(wanted)
    made = dispatcher.overloads[wanted]
    module = context.create_module("entry")
    function = ir.Function(module, ir.FunctionType(_I64, [_I64.as_pointer()]), entry.symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    at, arguments = 0, []
    for kind in wanted:
        read = [builder.load(builder.gep(function.args[0], [_I64(at + i)])) for i in range(2)]
        if kind is INT:
            arguments.append(read[0])
        else:
            start = builder.inttoptr(read[0], _I64.as_pointer())
            arguments.append(words_of(context, builder, start, read[1]))
        at += 1 if kind is INT else 2
    callee = context.declare_function(module, made.fndesc)
    answer = made.fndesc.restype
    _, value = context.call_conv.call_function(builder, callee, answer, wanted, arguments)
    builder.ret(_ZERO if answer == types.none else context.cast(builder, value, answer, INT))
    unit.add_linking_library(made.library)
    unit.add_ir_module(module)


@contextlib.contextmanager
def _quickly() -> Iterator[None]:
    """Compile without the garbage collector, and have numba find the type of an operation once.

    The collector took a third of the time: compiling makes millions of objects that stay. Finding types
    was a quarter of numba's: it tries all candidates wherever an operation stands.
    """
    was_enabled = gc.isenabled()
    gc.disable()
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
        if was_enabled:
            gc.enable()
