"""Which Worker a call goes to, and what a worker keeps for its tasks.

Rule     CALL-STREAM-1, CALL-WORKER-1, ORCH-RUN-2
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
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


opened: list[Any] = []
"""The streams of the open Workers, or Workers that will be opened, the innermost one last."""
_of_context: ContextVar[tuple[weakref.ref[Any], ...]] = ContextVar("simpler_ref", default=())
"""Those of them that this thread, or this coroutine, has opened; some may be closed."""


class UnopenedWorker:
    """A Worker in whose with block the program is; its first use opens it."""

    def __init__(self, worker: Any) -> None:
        self._worker = weakref.ref(worker)  # one that is forgotten is closed
        self.opened: weakref.ref[Any] | None = None
        """The stream that is in its place."""

    @property
    def is_gone(self) -> bool:
        """Whether the Worker was closed, or forgotten."""
        worker = self._worker()
        return worker is None or worker._life.closed

    @property
    def worker_life(self) -> Any:
        """That of the Worker; None if this was forgotten."""
        worker = self._worker()
        return None if worker is None else worker._life

    def open(self) -> None:
        """Open the Worker."""
        worker = self._worker()
        if worker is not None:
            worker._open()

    def stream(self) -> Any:
        """Return the stream of the Worker, opened for it; None if it has none."""
        worker = self._worker()
        return None if worker is None else worker._stream_for_calls()


def enter(stream: Any, worker: UnopenedWorker | None = None) -> None:
    """Make a stream the one that calls go to, or put it in the place of its Worker."""
    if worker is not None and worker in opened:
        opened[opened.index(worker)] = stream
        worker.opened = weakref.ref(stream)
    else:
        opened.append(stream)
        _of_context.set((*_of_context.get(), weakref.ref(stream)))


def leave(stream: Any) -> None:
    """Undo `enter`."""
    if stream in opened:
        opened.remove(stream)
    there = [reference for reference in _of_context.get() if _opened_by(reference) is not None]
    _of_context.set(tuple(there))


def current() -> Any:
    """Return the stream of the innermost open Worker, None without one; in a task, what is in its place.

    One that this thread or coroutine has opened comes before those of others. A task has only those.
    """
    nested = here.nested
    if nested is not None:
        return (_first_stream(_own()) if _of_context.get() else None) or nested
    if not opened:
        return None
    innermost = opened[-1]
    if (
        len(opened) == 1
        and type(innermost) is not UnopenedWorker
        and innermost._life.stream is innermost  # as `is_gone` says, without calling it
    ):
        return innermost
    return _first_stream([*opened, *_own()])


def is_own(life: Any) -> bool:
    """Say whether this thread or coroutine has opened the Worker of a life."""
    return any(one.worker_life is life for one in _own())


def _own() -> list[Any]:
    found = (_opened_by(reference) for reference in _of_context.get())
    return [one for one in found if one is not None]


def _first_stream(candidates: Sequence[Any]) -> Any:
    """Return the last one's, if it is not gone."""
    for one in reversed(candidates):
        if one.is_gone:  # a signal has come before `leave`
            leave(one)
            continue
        stream = one.stream() if type(one) is UnopenedWorker else one
        if stream is not None:
            return stream
    return None


def _opened_by(reference: weakref.ref[Any]) -> Any:
    """Return what is open now of something that was entered; None: nothing."""
    one = reference()
    if type(one) is UnopenedWorker and one.opened is not None:
        one = one.opened()
    return one if one in opened else None


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
