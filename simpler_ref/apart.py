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
from .calls.current import current, here, leave
from .worker import Worker
from .workers import processes

_of_scripts: Worker | None = None
_lock = threading.Lock()


def worker_apart(**options: Any) -> Worker:
    """Return an open Worker that gets no calls of tasks.

    It is closed with the program, or once nothing refers to it.
    """
    if options.get("start_method") is None and processes.why_not_fork():
        options["start_method"] = "spawn"  # as a Worker chooses, who says so, too
    worker = Worker(**options)
    worker.init()
    if here.nested is None:  # a task uses the workers only of those that it has entered
        leave(worker._life.stream)
    atexit.register(_close_if_there, weakref.ref(worker))
    return worker


def _close_if_there(reference: weakref.ref[Worker]) -> None:
    if (worker := reference()) is not None:
        worker.close()


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
    stream = current() or _script_worker()._stream()
    return mapping.results(stream, function, iterables, chunksize=chunksize, timeout=timeout)


def _script_worker() -> Worker:
    global _of_scripts
    with _lock:
        if _of_scripts is None or _of_scripts._life.closed:
            _of_scripts = worker_apart()
        return _of_scripts


def _begin_anew() -> None:
    """In a forked process: the Worker is its parent's."""
    global _of_scripts, _lock
    _of_scripts, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
