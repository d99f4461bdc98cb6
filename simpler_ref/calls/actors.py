"""Actors: objects that live in one worker, whose methods the program and its tasks call.

    the program    a call for that worker, which overwrites one byte that all calls of the actor have in
                   common: so they run one after another, in order, and one that fails keeps no other
                   from being made
    a task         a plain call, in the actor's own worker or with threads as workers; in another process
                   a request to the *door* of the actor's process, a socket with a thread behind it

A worker never waits for another one that way: the thread answers whatever the worker does. A method runs
while no other one of the same actor does, whoever has called them.

Rule     CALL-ACTOR-1
"""

from __future__ import annotations

import errno
import functools
import inspect
import itertools
import os
import pickle
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError, connection
from typing import Any, TypeAlias

import numpy as np

from ..callables.pickling import ByAddress, pickled
from ..errors import WorkerLostError
from ..jit import layout as L
from ..system.regions import is_private
from ..system.types import Array
from ..workers import loop
from . import outcomes
from .futures import Future, ended
from .inside import NESTED
from .sending import Unchanging
from .signatures import Mode, Out, Parameter, Signature
from .stream import Stream
from .tasks import Task, here

_Door: TypeAlias = "tuple[str, bytes] | None"
_numbers = itertools.count(1)
_actors: weakref.WeakValueDictionary[int, Actor] = weakref.WeakValueDictionary()
"""Those of the program."""
_objects: weakref.WeakValueDictionary[int, _Object] = weakref.WeakValueDictionary()
"""What they are handles of, as far as that is in this process."""
_HEAD = (
    Parameter("_order_of_actor", inspect.Parameter.POSITIONAL_ONLY, Mode.OUT),
    Parameter("_number_of_actor", inspect.Parameter.POSITIONAL_ONLY, Mode.VALUE),
)


class _Object:
    """The object of an actor, in its worker, and the lock of the thread that calls a method."""

    def __init__(self, value: Any) -> None:
        self.value, self.lock = value, threading.RLock()


def make_actor(order: Out, number: int, kind: Any, args: Any, kwargs: Any) -> Any:
    """Make the object of an actor, in its worker, and return the door of its process."""
    here.actors[number] = _objects[number] = _Object(kind(*args, **kwargs))
    return _door()


def end_actor(order: Out, number: int) -> None:
    here.actors.pop(number, None)
    _objects.pop(number, None)  # the traceback of an error may still refer to it


class _Method(Unchanging):
    """Calls a method of an actor."""

    def __init__(self, kind: str, name: str) -> None:
        self._kind, self._name = kind, name
        self.__name__ = self.__qualname__ = f"{kind}.{name}"

    def __reduce__(self) -> Any:
        return _Method, (self._kind, self._name)

    def __call__(self, order: Array | None, number: int, /, *args: Any, **kwargs: Any) -> Any:
        """Run in the worker of the actor."""
        found = _objects.get(number)
        if found is None:
            raise _gone(self._kind, number)
        with found.lock:
            return getattr(found.value, self._name)(*args, **kwargs)


def _gone(kind: str, number: int) -> WorkerLostError:
    return WorkerLostError(
        f"{kind} {number} is gone, and what it knew: it was ended, or the worker died in which it lived; "
        "make another actor"
    )


class Actor:
    """An object in a worker; see `Worker.actor`. Its methods return futures."""

    _has_ended = True

    def __init__(
        self, stream: Any, zeros: Any, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not isinstance(kind, type):
            raise TypeError(
                f"an actor is an object of a class, got {kind!r:.60}: pass the class itself"
            )
        if callable(getattr(kind, "end", None)):
            raise TypeError(
                f"{kind.__qualname__} has a method end, which of an actor ends the actor: call it "
                "otherwise"
            )
        if not isinstance(stream, Stream):
            raise RuntimeError("actors are made in the program, not inside a task")
        self._stream, self._order, self._kind = stream, zeros(1, np.int8), kind
        number = next(_numbers)
        self._worker = _least_busy(stream, number)
        # a worker, where a task has a Worker with actors, has those of its own Worker as well
        self._number = number + (os.getpid() << 32 if loop.in_worker else 0)
        self._methods: dict[str, Task] = {}
        self._door = self._submit(self._task(make_actor), kind, args, kwargs).result()
        self._has_ended = self._was_pickled = False
        _actors[self._number] = self

    def _task(self, function: Any, signature: Signature | None = None) -> Task:
        signature = signature or Signature.of(function)
        return Task(function, signature, workers=(self._worker,))

    def _submit(self, task: Task, /, *args: Any, **kwargs: Any) -> Future:
        return self._stream.submit(task, (self._order, self._number, *args), kwargs)

    def __getattr__(self, name: str) -> Callable[..., Future]:
        """Return a method, whose calls run in the worker."""
        task = self._methods.get(name)
        if task is None:
            if name.startswith("__") or not callable(getattr(self._kind, name, None)):
                raise AttributeError(
                    f"{self._kind.__qualname__} has no method {name!r}; an attribute stays in the worker:"
                    " give the class a method that returns it"
                )
            made = _Method(self._kind.__qualname__, name)
            task = self._methods[name] = self._task(made, _signature_of(self._kind, name))
        if self._has_ended:
            raise RuntimeError(f"{self!r} was ended")
        return functools.partial(self._submit, task)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{self._kind.__qualname__}.{name} stays in the worker: give the class a method that "
                "sets it"
            )
        super().__setattr__(name, value)

    def end(self) -> None:
        """Wait for its calls, and forget the object; a ``with`` block does so at its end."""
        if not self._has_ended and not self._stream.is_gone:
            self._drop().result()

    def _drop(self) -> Future:
        self._has_ended = True
        return self._submit(self._task(end_actor))

    def __del__(self) -> None:
        if not self._has_ended and not self._was_pickled and not self._stream.is_gone:
            with suppress(Exception):  # in a run, which takes no calls, it stays until the end
                self._drop().be_silent()

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __reduce__(self) -> Any:
        self._was_pickled = True  # somebody else may call it later
        return _arrive, (self._kind.__qualname__, self._number, self._door)

    def __repr__(self) -> str:
        return f"<{self._kind.__qualname__} {self._number} in sub worker {self._worker}>"


def _least_busy(stream: Stream, number: int) -> int:
    """Return the sub worker for a new actor: of those with the fewest, one that has nothing to do."""
    found = [reference() for reference in _actors.valuerefs()]  # others may be made meanwhile
    mine = [one for one in found if one is not None and one._stream is stream]
    actors = Counter(one._worker for one in mine if not one._has_ended)
    workers = stream.workers
    view = stream._engine.view
    tasks = [view.given(one) for one in view.pool(L.SUB)]
    tasks = tasks or [0] * workers  # at endpoints nobody knows
    return min(range(workers), key=lambda i: (actors[i], tasks[i], (i - number) % workers))


# ---------------------------------------------------------------- in tasks
def _arrive(kind: str, number: int, door: _Door) -> Any:
    """Return an actor in the program, and in a task what it has in its place."""
    found = _actors.get(number) if here.nested is None else None
    return _ActorInTask(kind, number, door) if found is None else found


class _ActorInTask:
    """An actor in a task, where a method is called at once, and its future has ended."""

    def __init__(self, kind: str, number: int, door: _Door) -> None:
        self._about = kind, number, door

    def __reduce__(self) -> Any:
        return _arrive, self._about

    def __getattr__(self, name: str) -> Callable[..., Future]:
        if name.startswith("__"):
            raise AttributeError(name)
        return functools.partial(_call_from_task, *self._about, name)


def _call_from_task(
    kind: str, number: int, door: _Door, name: str, /, *args: Any, **kwargs: Any
) -> Future:
    request = kind, number, name, args, kwargs
    if number in _objects or door is None:
        return _call(*request)
    sent = pickled(request, _reduce)
    try:
        answer = _ask(door, sent)
    except (EOFError, OSError):
        return ended(None, _gone(kind, number))
    value, error = pickle.loads(answer)
    if error is not None:
        error = outcomes.decode_error(memoryview(error), f"{kind}.{name}")
    return ended(value, error)


def _call(
    kind: str, number: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Future:
    """Call a method of an actor of this process, in a task or for one."""
    found = _objects.get(number)
    if found is None:
        return ended(None, _gone(kind, number))
    task = _task_of(found.value.__class__, kind, name)
    return NESTED.submit(task, (None, number, *args), kwargs)


@functools.lru_cache
def _task_of(of: type, kind: str, name: str) -> Task:
    return Task(_Method(kind, name), _signature_of(of, name))


# ---------------------------------------------------------------- from process to process
def _reduce(value: Any) -> Any:
    """Return how a value is pickled: a shared array by its address, and read-only if it is so."""
    reduced = ByAddress()(value)
    is_shared = type(value) is np.ndarray and reduced is not NotImplemented
    return (_read_only, reduced) if is_shared and not value.flags.writeable else reduced


def _read_only(make: Any, args: tuple[Any, ...]) -> Array:
    array: Array = make(*args)
    array.flags.writeable = False
    return array


_PAUSE_S = 0.01
_open: weakref.WeakSet[Any] = weakref.WeakSet()
"""The listener of this process, and its ends of connections of others."""


@functools.cache
def _door() -> _Door:
    """Open the door of this process, and return its address and the key to it; a program has none."""
    if loop.in_worker != os.getpid():
        return None
    address, key = f"\0simpler_ref-{os.urandom(8).hex()}", os.urandom(16)
    listener = connection.Listener(address, "AF_UNIX", authkey=key)
    _open.add(listener)
    _start(_listen, listener)
    return address, key


def _start(function: Any, argument: Any) -> None:
    threading.Thread(target=function, args=(argument,), daemon=True).start()


def _listen(listener: connection.Listener) -> None:
    while True:
        try:
            _start(_answer, listener.accept())
        except (OSError, EOFError, AuthenticationError, RuntimeError) as why:
            if getattr(why, "errno", 0) in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                return  # the task has closed what is not its own: nobody can come any more
            time.sleep(_PAUSE_S)  # there is no descriptor, or no thread


def _answer(asking: Any) -> None:
    """Call methods for a thread of another worker, until that is gone."""
    _open.add(asking)
    with asking, suppress(OSError, EOFError):
        while True:
            request = asking.recv_bytes()
            try:
                kind, number, name, args, kwargs = pickle.loads(request)
                for one in (*args, *kwargs.values()):
                    if isinstance(one, np.ndarray) and is_private(one):
                        # a copy, whose owner would miss what is written
                        one.flags.writeable = False
                answer = pickled((_call(kind, number, name, args, kwargs).result(), None), _reduce)
            except BaseException as error:
                answer = pickle.dumps((None, outcomes.error_block(error)))
            asking.send_bytes(answer)


_connections = threading.local()
"""Those of a thread: its attributes have the addresses of doors as their names."""


def _ask(door: tuple[str, bytes], request: bytes) -> bytes:
    """Return the answer to a request."""
    address, key = door
    asked = vars(_connections).pop(address, None)  # who is interrupted leaves none
    if asked is None:
        asked = connection.Client(address, "AF_UNIX", authkey=key)
    asked.send_bytes(request)
    answer: bytes = asked.recv_bytes()
    vars(_connections)[address] = asked
    return answer


def _forget() -> None:
    """In a forked process: it has doors and connections of its own.

    It must not keep others', which would wait for answers when this process's parent has died.
    """
    for one in list(_open):
        one.close()
    _door.cache_clear()
    vars(_connections).clear()
    _objects.clear()
    _actors.clear()


os.register_at_fork(after_in_child=_forget)


def _signature_of(kind: type, name: str) -> Signature:
    """Return the parameters of a `_Method`: those of a method that writes an array, else any.

    So wrong arguments of most methods are the errors of the methods themselves.
    """
    parameters = anything = Signature.any().parameters
    with suppress(TypeError):  # of native code
        parameters = Signature.of(getattr(kind, name)).parameters
    if all(one.mode is Mode.VALUE for one in parameters):
        parameters = anything
    elif not isinstance(inspect.getattr_static(kind, name), (staticmethod, classmethod)):
        parameters = parameters[1:]  # without the object
    return Signature.like((*_HEAD, *parameters))
