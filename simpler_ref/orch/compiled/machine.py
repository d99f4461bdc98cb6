"""Beneath compiled orchestration: memory at an address, machine code from the disk, and Python.

The kernels of submit are compiled once and cached, and so are the helpers over them, the steps of this
folder. All are called by their address, so that compiling a function takes none of them in. What goes
wrong, and whatever must wait, is handed to Python (`ask`), where the plain Orchestrator's own code
answers: that is why the errors are the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...jit import kernel
from ...jit.layout import WORD
from ...jit.leaves import pointer

(
    ASK_SIGNALS,
    ASK_SUBMIT,
    ASK_RETRY,
    ASK_ALLOC,
    ASK_CONTIGUOUS,
    ASK_SHAPE,
    ASK_TAG,
    ASK_DTYPE,
    ASK_INDEX,
    ASK_SCALAR,
    ASK_NUMPY,
) = range(11)
"""What Python is asked for."""
ANSWERS = f"{__package__}.boundary"
"""The module that answers."""


class Refused(Exception):
    """Compiled code was refused something; `boundary.calls.error` is why."""


# ---------------------------------------------------------------- memory
@intrinsic
def peek(typingctx, address):
    """Read the word at an address."""

    def codegen(context, builder, sig, args):
        at = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(at, typ=ir.IntType(64))

    return types.int64(types.int64), codegen


@intrinsic
def poke(typingctx, address, value):
    """Write the word at an address."""

    def codegen(context, builder, sig, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


part = numba.njit(nogil=True, error_model="numpy", forceinline=True)
"""A small step, compiled into those that take it."""


@part
def word_at(address, i):
    """Read word `i` of those at an address."""
    return peek(address + WORD * i)


@part
def set_word(address, i, value):
    """Write word `i` of those at an address."""
    poke(address + WORD * i, value)


@part
def words_at(address, count):
    """Return words at an address as an array without a reference count."""
    return numba.carray(pointer(address), count, np.int64)


# ---------------------------------------------------------------- machine code
_STAMP = kernel.STAMP + "".join(
    hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(Path(__file__).parent.glob("*.py"))
)
"""Compiled helpers are good for as long as this folder and the kernels are what they were."""
INT, WORDS = kernel.INT, kernel.WORDS
FIVE = types.UniTuple(types.int64, 5)


def called(entry):
    """Return an intrinsic that calls an entry by its address, and passes on what it raises."""
    arguments = entry.entry_signature
    result = entry.compiled.signature.return_type
    name = entry.py_func.__name__
    symbol = f"simpler_ref_{name}"
    llvm.add_symbol(symbol, kernel.address_of(entry))

    def codegen(context, builder, sig, args):
        kind = context.call_conv.get_function_type(result, arguments)
        function = cgutils.get_or_insert_function(builder.module, kind, symbol)
        status, answer = context.call_conv.call_function(builder, function, result, arguments, args)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return answer

    parameters = ", ".join(f"a{i}" for i in range(len(arguments)))
    space = {"answer": result(*arguments), "codegen": codegen}
    exec(f"def {name}(typingctx, {parameters}):\n    return answer, codegen\n", space)
    return intrinsic(space[name])


def helper(*arguments):
    """Make a step that is compiled once, cached on disk and called by its address.

    Without `arguments`, all parameters are integers.
    """

    def wrap(function):
        given = arguments or (INT,) * function.__code__.co_argcount
        return called(kernel.entry(*given, nogil=True, stamp=_STAMP, allocates=True)(function))

    return wrap


# ---------------------------------------------------------------- Python
@intrinsic
def _ask(typingctx, what, a, b, address, count):
    """Have Python's `boundary.calls.answer` do something, with the GIL; its answer, or -1.

    If it raised, the exception is in `calls.error`, one for each thread. C calls alone
    see to that, since any line of Python might be where the next signal strikes.
    """

    def codegen(context, builder, sig, args):
        def python(result, name, *given):
            kind = ir.FunctionType(result, [one.type for one in given])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)

        api = context.get_python_api(builder)
        gil = api.gil_ensure()
        result = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(64), -1))
        module = api.import_module(context.insert_const_string(builder.module, ANSWERS))
        calls = api.object_getattr_string(module, "calls")
        function = api.object_getattr_string(calls, "answer")
        given = [api.long_from_longlong(value) for value in args]
        answer = api.call_function_objargs(function, given)
        with builder.if_else(cgutils.is_not_null(builder, answer)) as (fine, raised):
            with fine:
                builder.store(api.long_as_longlong(answer), result)
                api.decref(answer)
            with raised:
                slots = [cgutils.alloca_once(builder, api.pyobj) for _ in range(3)]
                api.err_fetch(*slots)
                python(ir.VoidType(), "PyErr_NormalizeException", *slots)
                kind, value, trace = map(builder.load, slots)
                with builder.if_then(cgutils.is_not_null(builder, trace)):
                    python(ir.IntType(32), "PyException_SetTraceback", value, trace)
                api.object_setattr_string(calls, "error", value)
                for one in (kind, value, trace):
                    api.decref(one)
        for one in (*given, function, calls, module):
            api.decref(one)
        api.gil_release(gil)
        return builder.load(result)

    return types.int64(*[types.int64] * 5), codegen


@helper()
def ask(what, a, b, address, count):
    """Have Python do something; see `_ask`."""
    answer = _ask(what, a, b, address, count)
    if answer < 0:
        raise Refused
    return answer


@part
def ask_about(what, a, b, words):
    """Ask Python about some words, which the caller keeps meanwhile."""
    return ask(what, a, b, words.ctypes.data, words.size)
