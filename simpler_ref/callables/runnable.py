"""What is known of callables before they run: whether a call runs them, and whether they are compiled.

A worker drops what a function returns. A call of a generator or coroutine function only makes an object
to iterate or await, so the body would never run, without an error.

Rule     FLOW-REG-8
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..system.values import flag

if TYPE_CHECKING:
    from ..engine.view.mailbox import ReceivedArgs

_CACHE = type(functools.lru_cache(lambda: None))
_UNDONE = types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType
_UNRUN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_KINDS = (
    (inspect.isgeneratorfunction, "a generator function", "list({}(args))"),
    (inspect.iscoroutinefunction, "a coroutine function", "asyncio.run({}(args))"),
    (
        inspect.isasyncgenfunction,
        "an async generator function",
        "asyncio.run(consume({}(args))), where consume goes through it",
    ),
)
"""What a call does not run, and what a task does with it."""


def require_runnable(what: str, target: Any) -> None:
    """Refuse a callable whose call would not run its body; `what` names the receiver in the message.

    Looks through partials, methods and objects with ``__call__``, not through wrappers made with
    `functools.wraps`.
    """
    function = target.__func__ if type(target) is types.MethodType else target
    if type(function) is types.FunctionType and not function.__code__.co_flags & _UNRUN:
        return  # the usual case, in each run
    if found := _never_run(target):
        kind, remedy = found
        name = getattr(target, "__name__", None) or type(target).__name__
        raise TypeError(
            f"{what} expects a function that runs when it is called; {name} is {kind}: a call only "
            f"makes an object, and its body would never run. Pass a function that runs it, such as "
            f"def task(args): {remedy.format(name)}"
        )


def refuse_unrun(result: Any) -> None:
    """Refuse the result of a task if it is work that was not done."""
    if isinstance(result, _UNDONE):
        if not isinstance(result, types.AsyncGeneratorType):
            result.close()
        kind = type(result).__name__.replace("_", " ")
        raise TypeError(
            f"the task returned a {kind}, {result.__qualname__}, which nobody runs: iterate or await "
            "it in the task"
        )


def takes_arguments(target: Callable[..., Any]) -> bool:
    """Say whether something can be called with arguments by position; yes, if that is not known."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD for p in parameters)


def _never_run(target: Any) -> tuple[str, str] | None:
    """Return the kind of a callable whose call would not run it, and the remedy."""
    while True:
        if isinstance(target, functools.partial):
            target = target.func
        elif isinstance(target, (staticmethod, classmethod, types.MethodType)):
            target = target.__func__
        elif isinstance(target, _CACHE):
            target = target.__wrapped__
        elif isinstance(getattr(target, "py_func", None), types.FunctionType):
            target = target.py_func  # compiled by numba, or to be
        else:
            break
    for is_kind, kind, remedy in _KINDS:
        if is_kind(target):
            return kind, remedy
    if not isinstance(target, (type, types.FunctionType)):
        call = inspect.getattr_static(type(target), "__call__", None)
        if call is not None and not isinstance(call, types.WrapperDescriptorType):
            return _never_run(call)
    return None


# ---------------------------------------------------------------- compiled tasks, without the compiler
OPTIONS = frozenset({"fastmath", "error_model", "boundscheck", "parallel"})
"""Those of `numba.njit` that compiled tasks may have."""
_FAST = ("fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc")


class CompiledCallable:
    """A function that workers run compiled: `leaves.Leaf`, which has these methods."""

    address: int
    """Address of the code that a worker's loop calls, 0 before it is compiled."""
    compile: Callable[[], None]
    run_task: Callable[[ReceivedArgs], None]


def require_options(options: Mapping[str, Any]) -> None:
    """Refuse values that `numba.njit` would refuse at the first call, or take for others."""
    for name, value in options.items():
        if name == "error_model":
            if value not in ("python", "numpy"):
                raise ValueError(f"error_model={value!r:.60}: it is 'python' or 'numpy'")
        elif name == "fastmath" and isinstance(value, (set, dict)):
            if unknown := set(value).difference(_FAST):
                raise ValueError(f"fastmath has no {unknown.pop()!r}; it has {', '.join(_FAST)}")
        elif (name, type(value)) not in (("parallel", dict), ("boundscheck", type(None))):
            flag(name, value)
