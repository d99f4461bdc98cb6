"""What a worker keeps between its tasks.

Rule     CALL-WORKER-1
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ..callables.runnable import require_runnable
from ..system.values import items
from .current import here


class _Local(threading.local):
    """Attributes of one worker, which runs all of its tasks in one thread.

    Set them in `Worker(initializer=…)` or in a task; later tasks in the same worker find them. Without a
    Worker they are those of the calling thread.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"this worker has no local.{name}: set it in Worker(initializer=...), or earlier in the task"
        )

    def __reduce__(self) -> str:
        return "local"


local = _Local()
"""What a worker keeps between its tasks: an object with attributes, for each worker its own."""


class Initializer:
    """What each sub worker does first: it forgets what it has inherited, and calls the user's function.

    Raises
    ------
    TypeError
        `function` is not callable, or a call would not run it; there are arguments and no function.
    """

    def __init__(self, function: Callable[..., Any] | None, args: Iterable[Any]) -> None:
        self._function = function
        self._args = tuple(items("initargs", args, "arguments"))
        if function is None:
            if self._args:
                raise TypeError("initargs are for an initializer, and there is none")
            return
        if not callable(function):
            raise TypeError(f"initializer={function!r} is not callable")
        require_runnable("initializer", function)

    @property
    def is_given(self) -> bool:
        """Whether there is a function to call."""
        return self._function is not None

    def __call__(self) -> None:
        """Run in a worker, before its first task."""
        vars(local).clear()
        if self._function is not None:
            here.in_task = True  # a task called here is a plain call
            self._function(*self._args)


__all__ = ["local"]
