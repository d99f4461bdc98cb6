"""Which Worker a call goes to, and what a worker keeps for its tasks.

Rule     CALL-STREAM-1, CALL-WORKER-1, ORCH-RUN-2
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NoReturn

from ..workers import loop


class _Here(threading.local):
    """What is true of this thread."""

    nested: Any = None
    """In a task: what takes its calls."""
    mailbox: Any = None
    """That of the worker, in a worker."""
    actors: Any = MappingProxyType({})
    """In a worker: the objects of its actors, by their numbers."""
    enclosed: Sequence[Any] = ()
    """What the arguments that are unpickled have within them."""


here = _Here()


def take_calls_of_tasks(stream: Any) -> None:
    """Have a stream take the calls of this worker's tasks, also of the threads that they start."""
    (_Here if loop.in_worker == os.getpid() else here).nested = stream


opened: list[weakref.ref[Any]] = []
"""The Workers that are open, or in whose with blocks the program is, the innermost one last; the first
use of one of these opens it."""
_of_context: ContextVar[tuple[weakref.ref[Any], ...]] = ContextVar("simpler_ref", default=())
"""Those of them that this thread, or this coroutine, has opened; some may be closed."""


def enter(worker: Any) -> None:
    """Make a Worker the one that calls go to, unless the program is in its block."""
    reference = weakref.ref(worker)  # one that is forgotten is closed
    if reference not in opened:
        opened.append(reference)
        _of_context.set((*_of_context.get(), reference))


def leave(worker: Any = None) -> None:
    """Undo `enter`, also for Workers that are closed."""
    for reference in opened[:]:
        entered = reference()
        if entered is None or entered is worker or entered._life.closed:
            with suppress(ValueError):  # another thread was faster
                opened.remove(reference)
    _of_context.set(tuple(_own()))


def current() -> Any:
    """Return the stream of the innermost open Worker, None without one; in a task, what is in its place.

    One that this thread or coroutine has opened comes before those of others. A task has only those.
    """
    nested = here.nested
    if nested is not None:
        return (_first_stream(_own()) if _of_context.get() else None) or nested
    if not opened:
        return None
    innermost = opened[-1]()
    stream = None if innermost is None else innermost._life.stream
    if len(opened) == 1 and stream is not None:
        return stream
    return _first_stream([*opened, *_own()])


def is_own(life: Any) -> bool:
    """Say whether this thread or coroutine has opened the Worker of a life."""
    return any((worker := one()) is not None and worker._life is life for one in _own())


def _own() -> list[weakref.ref[Any]]:
    return [one for one in _of_context.get() if one in opened]


def _first_stream(candidates: Sequence[weakref.ref[Any]]) -> Any:
    """Return the stream of the last one that is not closed, and that has one."""
    for reference in reversed(candidates):
        worker = reference()
        if worker is None or worker._life.closed:  # a signal has come before `leave`
            leave()
        elif (stream := worker._stream_for_calls()) is not None:
            return stream
    return None


os.register_at_fork(after_in_child=opened.clear)


# ---------------------------------------------------------------- what a worker keeps
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
