"""Compiled orchestration: a function that submits tasks, as native code.

`orchestration` makes of a function ``fn(orch, args, config)`` an object that is used like it. When a
Worker runs it, it is compiled by numba for the types that arrive, and calls the submit kernels
directly.

`source`      what is changed about the function before that
`front`       what the Orchestrator can do in it; `arguments` and `tensors`: `TaskArgs` and tensors
`steps`       what these do to the graph
`kinds`       the types of all of them
`machine`     how compiled code reaches memory, kernels and Python
`boundary`    how values get in, and how Python is asked to wait or to raise

With ``NUMBA_DISABLE_JIT=1`` the function itself runs.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from ...callables.runnable import require_runnable
from ...errors import OrchestrationError
from ...jit.kernel import INTERPRETED
from ...model.config import CallConfig
from ..orchestrator import Orchestrator


class Version(NamedTuple):
    """A compiled form of a function."""

    dispatcher: Any
    """What numba has made: it compiles for each combination of types that arrives."""
    parameters: list[int]
    """Which of the names from around the function it takes as arguments."""
    found: Any
    """What those names meant, to be kept: what is built in is known by its id."""
    entries: dict[Any, Callable[..., Any]]
    """Its native code by the kinds of arguments: numba takes 50 µs to find it."""

    def call(self, given: list[Any]) -> Any:
        """Run it with values in the form that compiled code takes."""
        from . import kinds

        found = kinds.kind_of(tuple(given))
        if found in self.entries:
            return self.entries[found](*given)
        result = self.dispatcher(*given)
        code = None if found is None else kinds.code_for(self.dispatcher, given)
        if code is not None:
            self.entries[found] = code
        return result


Versions = dict[tuple[Any, ...], Version]
"""Compiled forms of a function, by what is built into them."""
_versions: dict[tuple[types.CodeType, int], Versions] = {}
"""Those of all functions: one that is defined again, as in a loop, is not compiled again."""
_lock = threading.Lock()
OrchFunction = Callable[[Orchestrator, Any, CallConfig], Any]


def orchestration(function: OrchFunction) -> Orchestration:
    """Compile an orchestration function: ``@orchestration`` above ``def fn(orch, args, config)``.

    The result is given to `Worker.run`, or registered for a nested Worker, like any such function.
    It is compiled when it is first run with arguments of some types, which takes a few seconds.

    Compiled are loops, arithmetic, slices of arrays, tuples, `TaskArgs`, `ContinuousTensor.make`, and
    of the Orchestrator `submit_*`, `alloc`, `scope`, `scope_begin`, `scope_end` and `live_tasks`; calls
    go to functions made with ``numba.njit``. Arguments, and what the function takes from around it,
    are numbers, arrays, handles, tensors, `TaskArgs`, `CallConfig` and tuples of them, read anew at
    each run; lists become tuples. Integers have 64 bits.

    Rule     SPEED-ORCH-1, -9

    Raises
    ------
    TypeError
        `function` is no plain function of three parameters.
    """
    return Orchestration(function)


class Orchestration:
    """An orchestration function that is compiled when it runs; see `orchestration`.

    Rule     SPEED-ORCH-6, -11

    Attributes
    ----------
    py_func : Callable
        The function as it was written.
    """

    __name__: str

    def __init__(self, function: OrchFunction) -> None:
        if not isinstance(function, types.FunctionType):
            raise TypeError(
                f"orchestration expects a function made with def, got {type(function).__name__}"
            )
        require_runnable("orchestration", function)
        parameters = inspect.signature(function).parameters.values()
        if [one.kind for one in parameters] != [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 3:
            raise TypeError(
                f"{function.__name__} must have three parameters, orch, args and config: Worker.run "
                "calls it with them"
            )
        self.py_func = function
        functools.update_wrapper(self, function)
        self._source: Any = None
        self._versions: Versions = _versions.setdefault(
            (function.__code__, id(function.__globals__)), {}
        )

    def __repr__(self) -> str:
        return f"<orchestration {self.__name__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return orchestration, (self.py_func,)

    def __call__(
        self, orch: Orchestrator, args: Any = None, config: CallConfig | None = None
    ) -> Any:
        """Run it: compiled over an Orchestrator, else as it was written.

        Raises
        ------
        OrchestrationError
            It cannot be compiled for these arguments; the message has the line and the reason.
        """
        if INTERPRETED or not isinstance(orch, Orchestrator) or orch._in_python:
            return self.py_func(orch, args, config)
        orch._require_mine()
        from . import boundary

        call, calls = boundary.Call(orch), boundary.calls
        compiled, captured = self._version()
        given = [call.orchestrator(), call.native(args), call.native(config)]
        given += [call.native(value) for value in captured]
        outer, calls.answer = calls.answer, call.answer
        depth = orch._depth()
        try:
            result = self._run(compiled, given)
            error = calls.take_error()
            if error is not None and not isinstance(error, Exception):
                raise error  # a KeyboardInterrupt that `except Exception` has taken
            return result
        except BaseException as raised:
            while orch._depth() > depth:
                orch._close_scope()
            if isinstance(raised, boundary.Refused):
                error = calls.take_error()
                if error is not None:
                    raise error from error.__cause__
            raise
        finally:
            calls.answer = outer
            call.give_back()

    def _version(self) -> tuple[Version, list[Any]]:
        """Return the version for what the function takes from around it now, and its values.

        Rule     SPEED-ORCH-7, -11
        """
        from . import front, source

        with _lock:
            if self._source is None:
                self._source = source.Source(self.py_func)
            found = self._source.look()
            key = tuple(one.key() if one else None for one in found)
            if key not in self._versions:
                made, parameters = self._source.build(found, front.REPLACED)
                dispatcher: Any = front.compiler(made)  # type: ignore[no-untyped-call]
                self._versions[key] = Version(dispatcher, parameters, found, {})
            version = self._versions[key]
            return version, [found[i].thing for i in version.parameters]

    def _run(self, version: Version, given: list[Any]) -> Any:
        from numba.core.errors import NumbaError

        try:
            return version.call(given)
        except NumbaError as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> OrchestrationError:
        """Put what numba says on a page into the line and the reason.

        Rule     SPEED-ORCH-10
        """
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        filename, function = self.py_func.__code__.co_filename, self.py_func
        lines = [int(n) for n in re.findall(rf'File "{re.escape(filename)}", line (\d+)', text)]
        if not lines and getattr(error, "loc", None) is not None:
            lines = [error.loc.line]  # type: ignore[attr-defined]
        line = lines[-1] if lines else function.__code__.co_firstlineno
        return OrchestrationError(_reason(text), filename=filename, lineno=line)


def _reason(text: str) -> str:
    """Return the one or two lines of numba's words that say what is wrong."""
    ours = re.findall(r"\[\[(.*?)\]\]", text, re.DOTALL)
    if ours:
        return " ".join(ours[-1].split())
    unknown = re.search(r"Untyped global name '(.*?)'", text)
    if unknown:
        return (
            f"{unknown[1]} has no compiled form: a function must be made with numba.njit, anything "
            "else passed as an argument"
        )
    lines = [line.strip(" -") for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(_NOISE)]
    return told[0] if told else "numba cannot compile it"


_NOISE = (
    "Failed in nopython mode pipeline",
    "During: ",
    "File ",
    "There are ",
    "Overload",
    "Rejected",
    "raised from",
)
