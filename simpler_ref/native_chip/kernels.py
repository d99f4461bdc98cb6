"""Kernels for the cores of a chip: from C, by the system's compiler, and from Python functions, by numba.

In Python they reach communication domains as C does by `simpler_domain.h`: `domain_rank` and others.

Rule     CHIP-FAULT-1, WM-DOMAIN-9, WM-DOMAIN-11
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numba.core.types
import numpy as np
from numba import from_dtype
from numba.core import callconv, compiler, registry
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numba.np.numpy_support import as_dtype

from ..jit import layout as L
from ..jit.kernel import INTERPRETED
from ..model.enums import ArgDirection, DataType, get_dtype_name, numpy_dtype, to_dtype
from .abi import INCLUDE_DIR, KERNEL_SYMBOL, CoreCallable
from .chip_worker import _shim

types: Any = numba.core.types  # whose names mypy does not know

_BLOCK = ("block_idx", "block_dim")
_WITHOUT_MEMORY = (
    "\nA kernel cannot allocate (NRT is numba's allocator): making an array does, and so does assigning "
    "one slice to another; loop over the elements"
)
_UNCOMPILED = (DataType.FLOAT16, DataType.BFLOAT16)
_ERRORS = "simpler_ref kernel"


# ---------------------------------------------------------------- kernels from C
class KernelCompileError(RuntimeError):
    """A kernel could not be compiled, or there is no compiler."""


_FLAGS = ("-shared", "-fPIC", "-O2", "-Wl,--no-undefined")


def compile_kernel(c_source: str, *, extra_flags: Sequence[str] = ()) -> bytes:
    """Return the bytes of a shared object, compiled from C.

    A core kernel defines ``int32_t simpler_kernel(const SimplerCoreArgs *args)``, an orchestration
    function ``int32_t any_name(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)``; both
    include ``simpler_kernel.h``.

    Parameters
    ----------
    c_source : str
        The text of the source.
    extra_flags : Sequence[str]
        More flags for the compiler, ``-lm`` say. ``$CC`` names another compiler than ``cc``.

    Raises KernelCompileError with the compiler's complaints, or if there is none.
    """
    if not isinstance(c_source, str):
        raise TypeError(f"c_source must be a str, got {type(c_source).__name__}")
    return build_shared_object({"kernel.c": c_source.encode()}, extra_flags)


def build_shared_object(files: dict[str, bytes], extra_flags: Sequence[str] = ()) -> bytes:
    """Return the bytes of a shared object made of sources and object files, by name."""
    try:
        with tempfile.TemporaryDirectory(prefix="simpler-kernel-") as folder:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            _run_compiler(folder, [*files, *extra_flags])
            return Path(folder, "kernel.so").read_bytes()
    except OSError as error:
        raise KernelCompileError(
            f"the compiler's files cannot be written ({error}): name a folder with room for them in "
            "the environment variable TMPDIR"
        ) from None


def _run_compiler(folder: str, arguments: Sequence[str]) -> None:
    compiler = shlex.split(os.environ.get("CC") or "cc")
    command = [*compiler, *_FLAGS, f"-I{INCLUDE_DIR}", "-o", "kernel.so", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise KernelCompileError(
            f"the C compiler {compiler[0]!r} cannot be run ({error.strerror}): install one, or "
            "name it in the environment variable CC"
        ) from None
    if done.returncode != 0:
        raise KernelCompileError(
            f"{shlex.join(command)} failed:\n{(done.stderr or done.stdout).strip()}"
        )


# ---------------------------------------------------------------- kernels from Python
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


def core_kernel(**arguments: KernelArgument) -> Callable[[Callable[..., Any]], CoreCallable]:
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
    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model, flags.nrt = _ERRORS, False
    target = registry.cpu_target
    kinds = tuple(_numba_type(arguments.get(name)) for name in order)
    try:
        made = compiler.compile_extra(
            target.typing_context, target.target_context, function, kinds, None, flags, {}
        )
    except numba.core.errors.NumbaError as error:
        hint = _WITHOUT_MEMORY if "NRT required" in str(error) else ""
        raise KernelCompileError(
            f"numba cannot compile {function.__name__}: {error}{hint}"
        ) from None
    returns = types.unliteral(made.signature.return_type)
    if not isinstance(returns, (types.NoneType, types.Integer, types.Boolean)):
        raise KernelCompileError(
            f"kernel {function.__name__} returns {returns}; return nothing, or an error code"
        )
    objects = _object_code(made.library.get_llvm_str())
    stub = _stub(made.fndesc.llvm_func_name, returns, order, arguments)
    if PREFIX.encode() in objects:  # a symbol that it refers to
        stub = '#define SIMPLER_CALL\n#include "simpler_domain.h"\n' + stub
    return build_shared_object({"kernel.o": objects, "stub.c": stub.encode()}, ("-lm",))


def _numba_type(argument: KernelArgument | None) -> Any:
    if argument is None:  # block_idx, block_dim
        return types.int64
    element = from_dtype(argument.dtype)
    if argument.direction == ArgDirection.SCALAR:
        return element
    readonly = argument.direction == ArgDirection.IN
    return types.Array(element, argument.ndim, "C", readonly=readonly)


def _object_code(assembly: str) -> bytes:
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="default",
    )
    code: bytes = machine.emit_object(llvm.parse_assembly(assembly))
    return code


_STUB = """
#include <string.h>
#include "simpler_kernel.h"

static inline double as_double(uint64_t bits)
{{
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
}}

/* What fits 32 bits is a float; a double that would is 0 or tiny. */
static inline float as_float(uint64_t bits)
{{
    const uint32_t low = (uint32_t)bits;
    float number;
    memcpy(&number, &low, sizeof number);
    return bits >> 32 ? (float)as_double(bits) : number;
}}

/* numba's way to call: result, exception and status go by different doors; an array is its fields */
extern int32_t inner({parameters}) __asm__("{inner}");

int32_t {kernel}(const SimplerCoreArgs *args)
{{
    {result} result = 0;
    void *exception = 0;
    {checks}
    return inner({values}) == 0 ? (int32_t)result : SIMPLER_KERNEL_RAISED;
}}
"""
_FROM_WORD = {"float": "as_float", "double": "as_double"}


def _stub(inner: str, returns: Any, order: list[str], arguments: dict[str, KernelArgument]) -> str:
    """Return the C of what takes a SimplerCoreArgs apart, and calls the function that numba has made."""
    result = _in_c(np.dtype("int64") if returns == types.none else as_dtype(returns))
    passed, checks = [(f"{result} *", "&result"), ("void **", "&exception")], []
    tensors, scalars = itertools.count(), itertools.count()
    for name in order:
        argument = arguments.get(name)
        if argument is None:
            passed.append(("int64_t", f"args->{name}"))
        elif argument.direction == ArgDirection.SCALAR:
            kind = _in_c(argument.dtype)
            passed.append((kind, f"{_FROM_WORD.get(kind, '')}(args->scalars[{next(scalars)}])"))
        else:
            i = next(tensors)
            wrong = f"if (args->tensors[{i}].{{}} != {{}}) return SIMPLER_KERNEL_WRONG_{{}} - {i};"
            checks.append(wrong.format("dtype", int(to_dtype(argument.dtype)), "DTYPE"))
            if argument.ndim > 1:
                checks.append(wrong.format("ndims", argument.ndim, "NDIMS"))
            passed += _fields_of_array(f"args->tensors[{i}]", argument)
    parameters, values = zip(*passed, strict=True)
    return _STUB.format(
        parameters=", ".join(parameters),
        inner=inner,
        kernel=KERNEL_SYMBOL,
        result=result,
        checks="\n    ".join(checks),
        values=", ".join(values),
    )


def _in_c(dtype: np.dtype[Any]) -> str:
    named = {"float32": "float", "float64": "double", "bool": "_Bool"}
    return named.get(dtype.name, f"{dtype.name}_t")


def _fields_of_array(tensor: str, argument: KernelArgument) -> list[tuple[str, str]]:
    """Return the fields of numba's array over a tensor, as pairs of type and value in C."""
    sizes = [f"(int64_t){tensor}.shapes[{d}]" for d in range(argument.ndim)]
    if argument.ndim == 1:
        sizes = [f"(int64_t)simpler_elements(&{tensor})"]
    width = str(argument.dtype.itemsize)
    strides = [" * ".join([width, *sizes[d + 1 :]]) for d in range(argument.ndim)]
    return [
        *[("void *", "0")] * 2,  # what has allocated it, and what it is part of
        *[("int64_t", " * ".join(sizes)), ("int64_t", width)],
        ("void *", f"(void *){tensor}.data"),
        *[("int64_t", one) for one in (*sizes, *strides)],
    ]


# ---------------------------------------------------------------- domains, for kernels in Python
PREFIX = "simpler_call_"
"""Of the symbols that a kernel refers to if it uses a domain."""

_number, _signed, _status = types.uint64, types.int64, types.int32
_SIGNATURES = {
    "rank": _number(_number),
    "size": _number(_number),
    "base": _number(_number, _number),
    "peer": _number(_number, _number, _number, _number),
    "copy": types.void(_number, _number, _number),
    "notify": _status(_number, _number, _number, _signed),
    "wait": _status(_number, _number, _signed, _number),
    "barrier": _status(_number, _number),
}
_rank, _size, _base, _peer, _copy, _notify, _wait, _barrier = (
    types.ExternalFunction(PREFIX + name, signature) for name, signature in _SIGNATURES.items()
)
OUTSIDE = -1302
"""What `put` and others return if a rank does not exist, or memory is outside of the own window."""

_OPTIONS = {"error_model": "numpy", "_nrt": False, "boundscheck": False}
_within_kernels = numba.njit(**_OPTIONS)


@functools.cache
def provide_symbols() -> None:
    """Tell the compiler where the functions are, for the copy of a kernel that it keeps here."""
    for name in _SIGNATURES:
        function = getattr(_shim(), PREFIX + name)
        llvm.add_symbol(PREFIX + name, ctypes.cast(function, ctypes.c_void_p).value)


def _require_contiguous(array: Any) -> None:
    if not isinstance(array, types.Array) or array.layout != "C":
        raise TypingError(f"memory of a domain is a contiguous array, not {array}")


@intrinsic  # type: ignore[untyped-decorator]
def _address(_: Any, array: Any) -> Any:
    _require_contiguous(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = make_array(array)(context, builder, value=args[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.uint64))

    return types.uint64(array), generate


@intrinsic  # type: ignore[untyped-decorator]
def _moved(_: Any, array: Any, address: Any) -> Any:
    """Return an array like another one, at another address."""
    _require_contiguous(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = make_array(array)(context, builder, value=args[0])
        made.data = builder.inttoptr(args[1], made.data.type)
        return made._getvalue()

    return array(array, types.uint64), generate


@_within_kernels
def domain_rank(ctx):  # type: ignore[no-untyped-def]
    """Return the rank of this chip."""
    return _signed(_rank(ctx))


@_within_kernels
def domain_size(ctx):  # type: ignore[no-untyped-def]
    """Return the number of ranks."""
    return _signed(_size(ctx))


@_within_kernels
def domain_base(ctx, rank):  # type: ignore[no-untyped-def]
    """Return the address of a rank's window, 0 if there is no such rank."""
    return _base(ctx, rank)


@numba.njit(inline="always", **_OPTIONS)  # without memory of its own a function returns no array
def peer(ctx, rank, array):  # type: ignore[no-untyped-def]
    """Return the array that a rank has where this one has `array`, in its window.

    There must be such a rank, and `array` must be in the own window: else an access fails the task.
    """
    return _moved(array, _peer(ctx, rank, _address(array), array.size * array.itemsize))


@_within_kernels
def put(ctx, rank, to, source):  # type: ignore[no-untyped-def]
    """Copy all of `source` to where a rank has `to`, an array in the own window; return a status."""
    nbytes = source.size * source.itemsize
    there = _peer(ctx, rank, _address(to), nbytes)
    if there == 0 or nbytes > to.size * to.itemsize:
        return _status(OUTSIDE)
    _copy(there, _address(source), nbytes)
    return _status(0)


@_within_kernels
def get(ctx, rank, to, source):  # type: ignore[no-untyped-def]
    """Copy all that a rank has where this one has `source`, in its window, to `to`; return a status."""
    nbytes = source.size * source.itemsize
    there = _peer(ctx, rank, _address(source), nbytes)
    if there == 0 or nbytes > to.size * to.itemsize:
        return _status(OUTSIDE)
    _copy(_address(to), there, nbytes)
    return _status(0)


@_within_kernels
def notify(ctx, rank, signals, i, add=1):  # type: ignore[no-untyped-def]
    """Add to element `i` of the int32 array that a rank has where this one has `signals`, and wake it.

    The array is in the window, and zero at first. Returns a status.
    """
    if i < 0 or i >= signals.size or signals.itemsize != 4:
        return _status(OUTSIDE)
    return _notify(ctx, rank, _address(signals) + _number(4 * i), add)


@_within_kernels
def wait(ctx, signals, i, at_least, timeout_ns=0):  # type: ignore[no-untyped-def]
    """Wait until element `i` of an int32 array in the own window is at least so much; return a status.

    `timeout_ns` 0 is the domain's deadline.
    """
    if i < 0 or i >= signals.size or signals.itemsize != 4:
        return _status(OUTSIDE)
    return _wait(ctx, _address(signals) + _number(4 * i), at_least, timeout_ns)


@_within_kernels
def barrier(ctx, timeout_ns=0):  # type: ignore[no-untyped-def]
    """Wait until one block of every rank is here; return a status.

    `timeout_ns` 0 is the domain's deadline.
    """
    return _barrier(ctx, timeout_ns)
