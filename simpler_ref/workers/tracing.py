"""A Worker's traces: which file, and ``with w.trace(file)``.

Rule     SEE-FILE-4, SEE-ON-1, SEE-ON-4
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from ..system.signals import MOST_SIGNALS, Failures, until_done
from ..system.values import file_path
from ..trace.recorder import file_of_variable
from .life import Life
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

    def __exit__(self, *_: object) -> None:
        failures = until_done(self._end, (), os.getpid(), most=MOST_SIGNALS)
        if failures:
            raise failures[-1]

    def _begin(self, session: Session) -> None:
        life, recorder = self._life, session.recorder
        if recorder.is_on and life.traced_by is not None and life.traced_by() is None:
            end(life, session)  # of a block that a signal has kept from its end
        if recorder.is_on:
            raise RuntimeError(f"this Worker is being traced already, into {recorder.path}")
        life.prepare(session)
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
