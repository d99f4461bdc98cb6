"""Workers beside those of with blocks: for scripts, and for programs of other libraries.

Rule     CALL-MAP-1
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from .calls import mapping
from .calls.tasks import current, here, leave
from .worker import Worker
from .workers import processes


def worker_apart(**options: Any) -> Worker:
    """Return an open Worker that gets no calls of tasks.

    It is closed with the program, or once nothing refers to it.
    """
    if options.get("start_method") is None and processes.why_not_fork():
        options["start_method"] = "spawn"  # as a Worker chooses, who says so, too
    worker = Worker(**options)
    worker.init()
    if here.nested is None:  # a task uses the workers only of those that it has entered
        leave(worker)
    atexit.register(_close_if_there, weakref.ref(worker))
    return worker


def _close_if_there(reference: weakref.ref[Worker]) -> None:
    if (worker := reference()) is not None:
        worker.close()


class Kept:
    """A Worker that is made when it is first asked for, and kept for who asks for the same again."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Have none: in a forked process it is the parent's."""
        self._worker: Worker | None = None
        self._options: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, **options: Any) -> Worker:
        """Return the one with these options; it takes the place of one with others."""
        with self._lock:
            worker = self._worker
            if worker is None or worker._life.closed or self._options != options:
                worker = self._worker = worker_apart(**options)
                self._options = options
            return worker

    def close(self) -> None:
        """Close it, if there is one, as the end of the program does."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


_of_scripts = Kept()


def map(
    function: Any,
    /,
    *iterables: Iterable[Any],
    chunksize: int | None = None,
    timeout: float | None = None,
) -> mapping.Results | Iterator[Any]:
    """Call a function for each item, in the innermost open Worker; see `Worker.map`.

    Without one, as in a script, in a Worker with a sub worker for each core, which is made at the first
    such call and closed with the program.
    """
    stream = current() or _of_scripts.get()._stream()
    return mapping.results(stream, function, iterables, chunksize=chunksize, timeout=timeout)
