"""A Worker's traces: which file, what it is told of the Worker, and ``with w.trace(file)``.

Rule     SEE-FILE-4; SEE-ON-1, -4
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..jit import layout as L
from ..system.signals import MOST_SIGNALS, Failures, until_done
from ..system.values import file_path
from ..trace.recorder import file_of_variable
from .failures import recover
from .life import Life
from .manager import worker_name
from .options import trace_detail
from .session import Session


def file_of(life: Life) -> tuple[str, str] | None:
    """Return the file into which a Worker that is opened is traced, and how; None: it is not."""
    if life.parent_level:
        return None  # its parent has it traced, once it has started
    options = life.options
    if options.trace is not None:
        return options.trace, options.trace_detail
    name = file_of_variable()
    return None if name is None else (name, options.trace_detail)


def describer(life: Life, session: Session) -> Callable[[], dict[str, Any]]:
    """Return what tells a trace of a Worker, and does not keep it: one that is forgotten is closed."""
    worker, resources = weakref.ref(life), weakref.ref(session)

    def told() -> dict[str, Any]:
        life, session = worker(), resources()
        return {} if life is None or session is None else _describe(life, session)

    return told


def _describe(life: Life, session: Session) -> dict[str, Any]:
    """Return what a trace is told of a Worker."""
    functions = {
        str(int.from_bytes(digest[:8], "little") & L.FUNCTION_MASK): name
        for digest, name in life.registry.names().items()
    }
    calls = list(session.call_names.items())
    functions |= {str(key | L.FUNCTION_IS_KEY): name for key, name in calls}
    manager = session.manager
    view, heap = session.engine.view, session.engine.heap
    pids = {} if manager is None else {str(worker): pid for worker, pid in manager.pids.items()}
    return {
        "functions": functions,
        "level": life.options.level,
        "workers": [worker_name(session.kinds, worker) for worker in range(len(session.kinds))],
        "vacant": [worker for worker, kind in enumerate(session.kinds) if kind.is_vacant],
        "pids": pids,
        "rings": view.ring_count,
        "ring_bytes": view.ring_bytes,
        "track_reads": life.options.track_reads,
        "heap": [heap.ctypes.data, heap.ctypes.data + heap.nbytes],
        "layouts": session.engine.layouts.told(),
        "movers": session.endpoints.movers(),
        **session.child_traces.told(),
    }


def begin(life: Life, session: Session, path: str, detail: str) -> None:
    """Begin a trace of a Worker, while no run is in progress; those below it have files beside it."""
    whole = os.path.abspath(path)
    session.recorder.begin(whole, detail)
    session.child_traces.open(whole, detail)
    change_entries(life, session)
    if session.manager is not None:
        session.child_traces.begin(session.manager)


def end(life: Life, session: Session) -> None:
    """End the trace of a Worker, and of those below it."""
    if session.manager is not None:
        session.child_traces.end(session.manager)
    session.recorder.end()
    change_entries(life, session)


def change_entries(life: Life, session: Session) -> None:
    """Let those who submit use entries that note lines, or no longer."""
    session.orch._take_entries()
    if life.stream is not None:
        life.stream.take_entries()


class Tracing:
    """What ``Worker.trace`` returns: a trace is taken in its with block, into `path`.

    Attributes
    ----------
    path : str
        The file.
    """

    def __init__(self, life: Life, path: Any, detail: str) -> None:
        self._life = life
        self.path = os.path.abspath(file_path("file", path))
        self._detail = trace_detail("detail", detail)

    def __enter__(self) -> Tracing:
        self._life.live()
        try:
            self._life.alone(self._begin)
            return self
        except BaseException:  # of a signal: what has begun ends
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failures = until_done(self._end, (), os.getpid(), most=MOST_SIGNALS)
        if failures:
            raise failures[-1]

    def _begin(self, session: Session) -> None:
        life, recorder = self._life, session.recorder
        if recorder.is_on and life.traced_by is not None and life.traced_by() is None:
            end(life, session)  # of a block that a signal has kept from its end
        if recorder.is_on:
            raise RuntimeError(f"this Worker is being traced already, into {recorder.path}")
        recover(session)
        life.start_workers(session)
        life.traced_by = weakref.ref(self)
        begin(life, session, self.path, self._detail)
        recorder.start()

    def _end(self, _failures: Failures) -> None:
        """End the trace, unless that was done, or the Worker is closed, which has ended it."""
        life = self._life
        is_mine = life.traced_by is not None and life.traced_by() is self
        if is_mine and life.session is not None and not life.closed:
            life.alone(lambda session: end(life, session))
            life.traced_by = None
