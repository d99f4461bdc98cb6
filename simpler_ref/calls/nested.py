"""Calls that a task makes: each runs at once, in the task's own worker, as a part of the task.

So nothing waits for a worker that waits itself, however deep they are, and a function that makes calls
and asks for their results works in a task as in the program. Time limits, retries and workers are those
of the outermost task. `NestedStream` is in the place of a Worker's stream.

Rule     CALL-STREAM-1, CALL-STREAM-5
"""

from __future__ import annotations

import concurrent.futures
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from cloudpickle import cloudpickle

from ..errors import TaskError
from ..system.regions import is_private
from ..workers.manager import Terminated
from ..workers.reports import describe_exception
from .call_errors import Unretrieved
from .futures import Future
from .outcomes import ENDS_LOOPS
from .sending import signature_of
from .signatures import Mode, Signature
from .tasks import Task

_UNCHANGING = frozenset(
    (type(None), bool, int, float, complex, str, bytes, range, np.bool_, np.int64, np.float64)
)


class NestedStream:
    """The calls of tasks."""

    def submit(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future:
        """Run a call, and return its future, which has the value or the error.

        Raises
        ------
        TypeError, ValueError
            The arguments do not fit the task's parameters; an array that it writes is read-only.
        """
        given: Sequence[Any] = args
        if (
            kwargs
            or len(args) != task.signature.taken_as_given
            or not _UNCHANGING.issuperset(map(type, args))
        ):
            given, kwargs = _received(task.signature, args, kwargs)
        # No function of its own for this: with a frame less, a recursion can be deeper. The traceback of
        # an error has this frame, which must not have the future: it would not die, and nobody would log
        # an error that nobody asks for.
        try:
            value = final(task.run(*given, **kwargs))
        except Terminated:
            raise
        except (*ENDS_LOOPS, SystemExit) as ends:  # must end neither a loop nor the whole task
            text = f"a call in this task: {describe_exception(ends)}"
            return ended(None, TaskError(text), cause=ends)
        except Exception as error:
            return ended(None, error)
        return ended(value, None)

    def task_of(self, function: Any) -> Task:
        """Return a task for a plain function."""
        return Task(function, signature_of(function))

    def results(
        self, task: Task, rows: Iterable[Any], *, star: bool, timeout: float | None
    ) -> Iterator[Any]:
        """Call a task for each item whose result is asked for; see `Worker.map`."""
        start = time.monotonic()

        def call(row: Any) -> Any:
            if timeout is not None and time.monotonic() - start > timeout:
                raise concurrent.futures.TimeoutError(
                    f"a result of map in this task was asked for {timeout} s after the call of map"
                )
            return self.submit(task, tuple(row) if star else (row,), {}).result()

        return _Results(map(call, rows))


class _Results(Iterator[Any]):
    """The results of `map` in a task: each call is made when its result is asked for."""

    def __init__(self, results: Iterator[Any]) -> None:
        self._results = results

    def __next__(self) -> Any:
        return next(self._results)

    def close(self) -> None:
        """Call nothing more."""
        self._results = iter(())

    cancel = close


def _received(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that a task gets by position, and those that it gets by name."""
    bound, names = signature.flatten(signature.bind(args, kwargs))
    values = [_as_argument(parameter.name, parameter.mode, one) for parameter, one in bound]
    first_named = len(values) - len(names)
    return values[:first_named], dict(zip(names, values[first_named:], strict=True))


def ended(value: Any, error: Exception | None, *, cause: BaseException | None = None) -> Future:
    """Return the future of a call that has ended; an error may have got a cause."""
    made: Future = object.__new__(Future)
    made._stream, made._slot, made._value = None, 0, value
    if error is not None:
        if cause is not None:
            error.__cause__ = cause
        made._error, made._unretrieved = error, Unretrieved(error, -1, [])
    return made


def final(value: Any) -> Any:
    """Return what a task has returned; of the future of a call that it has made, the value."""
    return value.result() if type(value) is Future else value


def _as_argument(name: str, mode: Mode, value: Any) -> Any:
    """Return what a task gets of an argument: what it must not write is a copy, or a read-only array."""
    value = final(value)
    if type(value) in _UNCHANGING:
        return value
    if not isinstance(value, np.ndarray):
        try:
            return pickle.loads(pickle.dumps(value, 5))
        except Exception:
            return pickle.loads(cloudpickle.dumps(value))
    if mode in (Mode.OUT, Mode.INOUT):
        if not value.flags.writeable:
            raise ValueError(
                f"{name}: the task writes this array, and it is read-only; pass a copy"
            )
        return value
    if mode is Mode.VALUE and is_private(value):
        return value.copy()
    view = value.view()
    view.flags.writeable = False
    return view


NESTED = NestedStream()
