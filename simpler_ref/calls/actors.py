"""Actors: objects that live in one worker, whose methods the program calls.

Each call of a method is a call for that worker, and overwrites one byte that all calls of the actor have
in common: so they run one after another, in order, and one that fails keeps no other from being made.

Rule     CALL-ACTOR-1
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import WorkerLostError
from ..system.types import Array
from .current import here
from .futures import Future
from .sending import Unchanging
from .signatures import Mode, Parameter, Signature
from .stream import Stream
from .tasks import Task

_numbers = itertools.count(1)
_HEAD = (
    Parameter("_order_of_actor", inspect.Parameter.POSITIONAL_ONLY, Mode.OUT),
    Parameter("_number_of_actor", inspect.Parameter.POSITIONAL_ONLY, Mode.VALUE),
)


class _Make(Unchanging):
    """Makes the object of an actor."""

    __qualname__ = "make an actor"

    def __call__(self, order: Array, number: int, /, kind: Any, args: Any, kwargs: Any) -> None:
        """Run in the worker of the actor."""
        here.actors[number] = kind(*args, **kwargs)


class _Drop(Unchanging):
    """Forgets the object of an actor."""

    __qualname__ = "end an actor"

    def __call__(self, order: Array, number: int, /) -> None:
        """Run in the worker of the actor."""
        here.actors.pop(number, None)


class _Method(Unchanging):
    """Calls a method of an actor."""

    def __init__(self, kind: str, name: str) -> None:
        self._kind, self._name = kind, name
        self.__name__ = self.__qualname__ = f"{kind}.{name}"

    def __reduce__(self) -> Any:
        return _Method, (self._kind, self._name)

    def __call__(self, order: Array | None, number: int, /, *args: Any, **kwargs: Any) -> Any:
        """Run in the worker of the actor."""
        if number not in here.actors:
            raise WorkerLostError(
                f"{self._kind} {number} is gone, and what it knew: the worker died in which it lived; "
                "make another actor"
            )
        return getattr(here.actors[number], self._name)(*args, **kwargs)


class Actor:
    """An object in a worker; see `Worker.actor`. Its methods return futures."""

    def __init__(
        self,
        stream: Stream,
        order: Array,
        kind: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._stream, self._order, self._kind = stream, order, kind
        self._number = next(_numbers)
        self._worker = self._number % stream.workers
        self._methods: dict[str, Task] = {}
        self._has_ended = False
        make = [
            Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, Mode.VALUE)
            for name in ("kind", "args", "kwargs")
        ]
        self._submit(self._task(_Make(), make), kind, args, kwargs).result()

    def _task(self, function: Any, parameters: Any) -> Task:
        signature = Signature.like((*_HEAD, *parameters))
        return Task(function, signature, workers=(self._worker,))

    def _submit(self, task: Task, *args: Any, **kwargs: Any) -> Future:
        return self._stream.submit(task, (self._order, self._number, *args), kwargs)

    def __getattr__(self, name: str) -> Callable[..., Future]:
        """Return a method, whose calls run in the worker.

        Raises
        ------
        AttributeError
            The class has no such method.
        RuntimeError
            The actor was ended.
        """
        task = self._methods.get(name)
        if task is None:
            if name.startswith("__") or not callable(getattr(self._kind, name, None)):
                raise AttributeError(
                    f"{self._kind.__qualname__} has no method {name!r}; an attribute stays in the worker:"
                    " give the class a method that returns it"
                )
            made = _Method(self._kind.__qualname__, name)
            task = self._methods[name] = self._task(made, _parameters_of(self._kind, name))
        if self._has_ended:
            raise RuntimeError(f"{self!r} was ended")

        def method(*args: Any, **kwargs: Any) -> Future:
            return self._submit(task, *args, **kwargs)

        return method

    def end(self) -> None:
        """Wait for its calls, and forget the object; a ``with`` block does so at its end."""
        if not self._has_ended and not self._stream.is_gone:
            self._has_ended = True
            self._submit(self._task(_Drop(), ())).result()

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __reduce__(self) -> Any:
        return _ActorInTask, (self._kind.__qualname__, self._number, self._worker)

    def __repr__(self) -> str:
        return f"<{self._kind.__qualname__} {self._number} in sub worker {self._worker}>"


class _ActorInTask:
    """An actor in a task of its own worker, where a method is a plain call with a future."""

    def __init__(self, kind: str, number: int, worker: int) -> None:
        self._about = kind, number, worker

    def __reduce__(self) -> Any:
        return _ActorInTask, self._about

    def __getattr__(self, name: str) -> Callable[..., Future]:
        kind, number, worker = self._about
        if name.startswith("__"):
            raise AttributeError(name)
        if number not in here.actors:
            raise RuntimeError(
                f"{kind} {number} lives in sub worker {worker}, and this task runs in another one: call "
                f"its methods in the program, or the task under @task(workers={worker})"
            )
        called = _Method(kind, name)

        def method(*args: Any, **kwargs: Any) -> Future:
            parameters = _parameters_of(type(here.actors[number]), name)
            task = Task(called, Signature.like((*_HEAD, *parameters)))
            made: Future = here.nested.submit(task, (None, number, *args), kwargs)
            return made

        return method


def _parameters_of(kind: type, name: str) -> tuple[Parameter, ...]:
    """Return the parameters of a method, without the object, if it writes an array; else any.

    So wrong arguments of most methods are the errors of the methods themselves.
    """
    anything = Signature.any().parameters
    try:
        parameters = Signature.of(getattr(kind, name)).parameters
    except TypeError:  # of native code
        return anything
    if all(one.mode is Mode.VALUE for one in parameters):
        return anything
    has_object = not isinstance(inspect.getattr_static(kind, name), (staticmethod, classmethod))
    return parameters[has_object:]


def make(
    stream: Any, zeros: Any, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Actor:
    """Return an actor; see `Worker.actor`."""
    if not isinstance(kind, type):
        raise TypeError(
            f"an actor is an object of a class, got {kind!r:.60}: pass the class itself"
        )
    if callable(getattr(kind, "end", None)):
        raise TypeError(
            f"{kind.__qualname__} has a method end, which of an actor ends the actor: call it otherwise"
        )
    if not isinstance(stream, Stream):
        raise RuntimeError("actors are made in the program, not inside a task")
    return Actor(stream, zeros(1, np.int8), kind, args, kwargs)
