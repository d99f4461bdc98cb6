"""Kernels for the cores of a chip from Python functions, compiled by numba ahead of time.

Rule     CHIP-FAULT-1
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numba
import numba.core.types
import numpy as np
from numba import from_dtype
from numba.core import callconv, cgutils, compiler, registry
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from ..jit import layout as L
from ..jit.kernel import INTERPRETED
from ..model.enums import ArgDirection, DataType, get_dtype_name, numpy_dtype, to_dtype
from .abi import KERNEL_SYMBOL, CoreArgsStorage
from .callables import CoreCallable
from .compiler import build_shared_object
from .domain_kernels import PREFIX, provide_symbols
from .errors import KernelCompileError

types: Any = numba.core.types  # whose names mypy does not know

_BLOCK = ("block_idx", "block_dim")
_TENSORS_AT = CoreArgsStorage.tensors.offset // L.WORD
_SCALARS_AT = CoreArgsStorage.scalars.offset // L.WORD
# what a kernel returns for arguments it was not compiled for: see simpler_kernel.h
_WRONG_DTYPE = -1000
_WRONG_NDIMS = -1100
_RAISED = -1200
_WITHOUT_MEMORY = (
    "\nA kernel cannot allocate (NRT is numba's allocator): making an array does, and so does assigning "
    "one slice to another; loop over the elements"
)
_UNCOMPILED = (DataType.FLOAT16, DataType.BFLOAT16)
_ERRORS = "simpler_ref kernel"


class _KernelErrors(callconv.ErrorModel):  # type: ignore[misc]
    """Zero divisors as in C: an integer's is an error, a float's makes an infinity or NaN.

    numba's model "python" raises for both, "numpy" for neither. Both call this with what they would say.
    """

    raise_on_fp_zero_division = False

    def fp_zero_division(self, builder: Any, exc_args: Any = None, loc: Any = None) -> bool:
        if not exc_args or not exc_args[0].startswith("integer "):
            return False
        self.call_conv.return_user_exc(builder, ZeroDivisionError, exc_args, loc)
        return True


callconv.error_models[_ERRORS] = _KernelErrors


@dataclass(frozen=True)
class KernelArgument:
    """One argument of a kernel; `In`, `Out`, `InOut` and `Scalar` make them."""

    direction: ArgDirection
    dtype: np.dtype[Any]
    ndim: int = 1


def _tensor(direction: ArgDirection, dtype: Any, ndim: int) -> KernelArgument:
    kind = to_dtype(dtype)
    if kind in _UNCOMPILED:
        raise TypeError(
            f"numba compiles no kernels for {get_dtype_name(kind)}: describe the tensor as UINT16 on "
            "both sides, or write the kernel in C"
        )
    if not 1 <= ndim <= L.CONTINUOUS_TENSOR_MAX_DIMS:
        raise ValueError(
            f"ndim is {ndim}; give 1 to {L.CONTINUOUS_TENSOR_MAX_DIMS} (1 takes a tensor of any "
            "shape, flattened)"
        )
    return KernelArgument(direction, numpy_dtype(kind), ndim)


def In(dtype: Any, ndim: int = 1) -> KernelArgument:
    """Describe a tensor that a kernel reads. With `ndim` 1, one of any shape arrives flattened."""
    return _tensor(ArgDirection.IN, dtype, ndim)


def Out(dtype: Any, ndim: int = 1) -> KernelArgument:
    """Describe a tensor that a kernel writes, all of it: its old contents are not copied in."""
    return _tensor(ArgDirection.OUT, dtype, ndim)


def InOut(dtype: Any, ndim: int = 1) -> KernelArgument:
    """Describe a tensor that a kernel updates, or writes only in part."""
    return _tensor(ArgDirection.INOUT, dtype, ndim)


def Scalar(dtype: Any) -> KernelArgument:
    """Describe a scalar: an integer, a bool, or a float as `scalar_to_uint64` packs it.

    For ``"float32"`` a task may add a Python float as well as a ``np.float32``; for a float of either
    size it must not add an int, whose bits would be taken for those of a float.
    """
    found = np.dtype(dtype)
    if found.kind not in "iub" and found not in (np.dtype("float32"), np.dtype("float64")):
        raise TypeError(
            f"a scalar cannot be {found}; use an integer type, bool, float32 or float64"
        )
    return KernelArgument(ArgDirection.SCALAR, found)


def core_kernel(
    **arguments: KernelArgument,
) -> Callable[[Callable[..., Any]], CoreCallable]:
    """Compile a Python function to a kernel: ``@core_kernel(x=In("float32"), n=Scalar("int64"))``.

    The function is called once per block, on a thread of the simulated chip, with arrays over device
    memory, with scalars, and with ``block_idx`` and ``block_dim`` where it has parameters of these
    names. It is compiled at once, for this machine, without bounds checks, and cannot allocate, not
    even to assign one slice to another. It returns nothing, or an error code: an int, 0 for success.

    Parameters
    ----------
    **arguments : KernelArgument
        `In`, `Out`, `InOut` or `Scalar` for every other parameter of the function. A task gives
        tensors and scalars in the order of the function's parameters.

    Returns
    -------
    decorator
        Turns the function into a `CoreCallable`.

    Raises
    ------
    TypeError
        The arguments do not match the function's parameters.
    KernelCompileError
        numba or the C compiler refuses; or compilation is switched off (``NUMBA_DISABLE_JIT``).
    """

    def wrap(function: Callable[..., Any]) -> CoreCallable:
        order = _parameters(function, arguments)
        signature = [arguments[name].direction for name in order if name in arguments]
        CoreCallable.build(signature, b"?")  # too many arguments are seen before they are compiled
        name = function.__name__ if function.__name__.isascii() else ""
        return CoreCallable.build(signature, _compile(function, order, arguments), name=name)

    return wrap


def _parameters(function: Callable[..., Any], arguments: dict[str, KernelArgument]) -> list[str]:
    """Return the function's parameters in order, all of which must be accounted for."""
    order = list(inspect.signature(function).parameters)
    undescribed = [name for name in order if name not in arguments and name not in _BLOCK]
    unknown = [name for name in arguments if name not in order or name in _BLOCK]
    wrong = [name for name, what in arguments.items() if not isinstance(what, KernelArgument)]
    for names, problem in (
        (undescribed, "have no description: add In, Out, InOut or Scalar for each"),
        (unknown, "are described and are no parameters of it"),
        (wrong, "must be described by In, Out, InOut or Scalar"),
    ):
        if names:
            raise TypeError(f"kernel {function.__name__}: {', '.join(names)} {problem}")
    return order


# ---------------------------------------------------------------- compilation
def _compile(
    function: Callable[..., Any], order: list[str], arguments: dict[str, KernelArgument]
) -> bytes:
    if INTERPRETED:
        raise KernelCompileError(
            f"kernel {function.__name__} cannot be compiled: NUMBA_DISABLE_JIT is set; unset it, or "
            "write the kernel in C"
        )
    provide_symbols()
    try:
        name, objects = _object_code(function, order, arguments)
    except numba.core.errors.NumbaError as error:
        hint = _WITHOUT_MEMORY if "NRT required" in str(error) else ""
        raise KernelCompileError(
            f"numba cannot compile {function.__name__}: {error}{hint}"
        ) from None
    stub = _STUB.format(inner=name, kernel=KERNEL_SYMBOL, raised=_RAISED)
    if PREFIX.encode() in objects:  # a symbol that it refers to
        stub = '#include "simpler_domain_calls.h"\n' + stub
    return build_shared_object({"kernel.o": objects, "stub.c": stub.encode()}, ("-lm",))


_STUB = """
#include "simpler_kernel.h"

/* numba's way to call: result, exception and status go by different doors */
extern int32_t inner(int32_t *result, void **exception, uint64_t args) __asm__("{inner}");

int32_t {kernel}(const SimplerCoreArgs *args)
{{
    int32_t result = 0;
    void *exception = 0;
    return inner(&result, &exception, (uint64_t)args) == 0 ? result : {raised};
}}
"""


def _object_code(
    function: Callable[..., Any], order: list[str], arguments: dict[str, KernelArgument]
) -> tuple[str, bytes]:
    """Return the symbol and the object code of a function that takes a SimplerCoreArgs apart."""
    options = {"error_model": _ERRORS, "_nrt": False, "boundscheck": False}
    kernel = numba.njit(**options)(function)
    kernel_types = tuple(_numba_type(arguments.get(name)) for name in order)
    kernel.compile(kernel_types)
    returns = kernel.overloads[kernel_types].signature.return_type
    if not isinstance(returns, (types.NoneType, types.Integer, types.Boolean)):
        raise KernelCompileError(
            f"kernel {function.__name__} returns {returns}; return nothing, or an error code"
        )
    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model, flags.nrt = _ERRORS, False
    target = registry.cpu_target
    entry = _entry(kernel, order, arguments, isinstance(returns, types.NoneType))
    made = compiler.compile_extra(
        target.typing_context,
        target.target_context,
        entry,
        args=(types.uint64,),
        return_type=types.int32,
        flags=flags,
        locals={},
    )
    module = llvm.parse_assembly(made.library.get_llvm_str())
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="default",
    )
    return made.fndesc.llvm_func_name, machine.emit_object(module)


def _numba_type(argument: KernelArgument | None) -> Any:
    if argument is None:  # block_idx, block_dim
        return types.int64
    element = from_dtype(argument.dtype)
    if argument.direction == ArgDirection.SCALAR:
        return element
    readonly = argument.direction == ArgDirection.IN
    return types.Array(element, argument.ndim, "C", readonly=readonly)


def _entry(
    kernel: Any, order: list[str], arguments: dict[str, KernelArgument], returns_nothing: bool
) -> Callable[..., Any]:
    """Write the function that reads the words of a SimplerCoreArgs and calls the kernel."""
    lines = [f"words = a(args, (int64({ctypes.sizeof(CoreArgsStorage) // L.WORD}),))"]
    values = {"block_idx": "int64(words[0] & LOW)", "block_dim": "int64(words[0] >> HALF)"}
    tensors = scalars = 0
    names: dict[str, Any] = _tools()
    names["a"] = names["array"](types.Array(types.uint64, 1, "C", readonly=True))
    for name in order:
        argument = arguments.get(name)
        if argument is None:
            continue
        if argument.direction == ArgDirection.SCALAR:
            names[f"s{scalars}"] = names["bits"](argument.dtype)
            values[name] = f"s{scalars}(words[{_SCALARS_AT + scalars}])"
            scalars += 1
        else:
            names[f"a{tensors}"] = names["array"](_numba_type(argument))
            lines += _tensor_lines(tensors, argument)
            values[name] = f"x{tensors}"
            tensors += 1
    call = f"kernel({', '.join(values[name] for name in order)})"
    lines += [call, "return int32(0)"] if returns_nothing else [f"return int32({call})"]
    names["kernel"] = kernel
    source = "def entry(args):\n" + "".join(f"    {line}\n" for line in lines)
    exec(source, names)
    made: Callable[..., Any] = names["entry"]
    return made


def _tensor_lines(i: int, argument: KernelArgument) -> list[str]:
    at = _TENSORS_AT + i * L.TENSOR_WORDS
    shape, dims = at + L.TENSOR_SHAPE, range(L.CONTINUOUS_TENSOR_MAX_DIMS)
    sizes = [f"int64(words[{shape + d // 2}] {'>> HALF' if d % 2 else '& LOW'})" for d in dims]
    lines = [
        f"if words[{at + L.TENSOR_KIND}] & BYTE != {int(to_dtype(argument.dtype))}:",
        f"    return int32({_WRONG_DTYPE - i})",
        f"n{i} = int64(words[{at + L.TENSOR_DIMS}] >> HALF)",
    ]
    if argument.ndim == 1:
        lines.append(f"size{i} = int64(1)")
        for d, size in enumerate(sizes):
            lines += [f"if n{i} > {d}:", f"    size{i} *= {size}"]
        wanted = f"(size{i},)"
    else:
        lines += [f"if n{i} != {argument.ndim}:", f"    return int32({_WRONG_NDIMS - i})"]
        wanted = "(" + ", ".join(sizes[: argument.ndim]) + ")"
    return [*lines, f"x{i} = a{i}(words[{at + L.TENSOR_DATA}], {wanted})"]


def _tools() -> dict[str, Any]:
    """Return the names that the source of an entry uses."""

    def bits(dtype: np.dtype[Any]) -> Any:
        """Make a function that converts the bits of a 64-bit word to a value."""
        wanted = _numba_type(KernelArgument(ArgDirection.SCALAR, dtype))

        @intrinsic  # type: ignore[untyped-decorator]
        def read(_: Any, word: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                if not isinstance(wanted, types.Float):
                    return context.cast(builder, args[0], types.uint64, wanted)
                if wanted is types.float64:
                    return builder.bitcast(args[0], context.get_value_type(wanted))
                # what fits 32 bits is a float32; a float64 that would is 0 or below 1e-313
                single, double = map(context.get_value_type, (types.float32, types.float64))
                low = builder.trunc(args[0], cgutils.ir.IntType(32))
                high = builder.lshr(args[0], cgutils.ir.Constant(args[0].type, 32))
                return builder.select(
                    builder.icmp_unsigned("==", high, cgutils.ir.Constant(high.type, 0)),
                    builder.bitcast(low, single),
                    builder.fptrunc(builder.bitcast(args[0], double), single),
                )

            return wanted(types.uint64), generate

        return read

    def array(wanted: Any) -> Any:
        """Make a function that returns an array over memory at an address."""
        shape_type = types.UniTuple(types.int64, wanted.ndim)

        @intrinsic  # type: ignore[untyped-decorator]
        def view(_: Any, address: Any, shape: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                made = make_array(wanted)(context, builder)
                sizes = cgutils.unpack_tuple(builder, args[1], wanted.ndim)
                width = context.get_constant(types.intp, wanted.dtype.bitwidth // 8 or 1)
                strides = [width]
                for size in reversed(sizes[1:]):
                    strides.insert(0, builder.mul(strides[0], size))
                data = builder.inttoptr(args[0], made.data.type)
                populate_array(made, data, sizes, strides, width, None)
                return made._getvalue()

            return wanted(types.uint64, shape_type), generate

        return view

    return {
        "bits": bits,
        "array": array,
        "int32": types.int32,
        "int64": types.int64,
        "LOW": np.uint64(0xFFFFFFFF),
        "BYTE": np.uint64(0xFF),
        "HALF": np.uint64(32),
    }
