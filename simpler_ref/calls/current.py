"""Which Worker a call goes to, and whether this thread runs a task."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class _Here(threading.local):
    """What is true of this thread."""

    in_task = False
    mailbox: Any = None
    """That of the worker, in a worker."""


here = _Here()
opened: list[Any] = []
"""The streams of the open Workers, or their entrances, the innermost one last."""


class Entrance:
    """A Worker in whose with block the program is; its first use opens it.

    Rule     ORCH-RUN-2
    """

    def __init__(self, worker: Any) -> None:
        self._worker = weakref.ref(worker)  # one that is forgotten is closed

    def open(self) -> None:
        """Open the Worker."""
        worker = self._worker()
        if worker is not None:
            worker._open()

    def stream(self) -> Any:
        """Return the stream of the Worker, opened for it; None if it has none."""
        worker = self._worker()
        return None if worker is None else worker._stream_for_calls()


def enter(stream: Any, entrance: Entrance | None = None) -> None:
    """Make a stream the one that calls go to, or put it in the place of its Worker's entrance."""
    if entrance in opened:
        opened[opened.index(entrance)] = stream
    else:
        opened.append(stream)


def leave(stream: Any) -> None:
    """Undo `enter`."""
    if stream in opened:
        opened.remove(stream)


def current() -> Any:
    """Return the stream of the innermost open Worker; None without one, and inside a task."""
    if not opened or here.in_task:
        return None
    innermost = opened[-1]
    return _first_stream() if type(innermost) is Entrance else innermost


def _first_stream() -> Any:
    for one in reversed(tuple(opened)):
        stream = one.stream() if type(one) is Entrance else one
        if stream is not None:
            return stream
    return None


os.register_at_fork(after_in_child=opened.clear)
