"""Errors of calls that nobody asks for: each is logged once, when nobody can ask any more."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from contextlib import suppress

from ..errors import RemoteTraceback, TaskCancelledError, origin_of
from ..workers.reports import describe_exception

log = logging.getLogger("simpler_ref")

_KEPT = 64
"""How many of the last failures are kept although their futures are gone: somebody may still ask for
calls that failed with them."""

_MOST_SILENT = 1024


class Unasked:
    """The error of a call, until somebody asks for it, or for that of a call that failed with it.

    Rule     CALL-FAIL-7
    """

    def __init__(self, error: BaseException, shown: list[str]) -> None:
        cause = error.__cause__ if isinstance(error.__cause__, RemoteTraceback) else None
        where = f"{cause.where}: " if cause is not None and cause.where else ""
        self._text = where + describe_exception(error)
        self._trace = "" if cause is None else cause.text.rstrip()
        self._shown = shown
        """The traceback of this stream that was logged last: calls that fail for one reason share it."""
        self.asked = False

    def __del__(self) -> None:
        if not self.asked:
            with suppress(Exception):  # at the end of the interpreter
                log.error(
                    "a call failed, and nobody has asked for its result: %s%s",
                    self._text,
                    self._traceback(),
                )

    def _traceback(self) -> str:
        if not self._trace:
            return ""
        if self._shown == [self._trace]:
            return " (its traceback is that of the call logged before)"
        self._shown[:] = [self._trace]
        return f"\n{self._trace}"


class Failures:
    """The failures of a stream."""

    def __init__(self) -> None:
        self._all: weakref.WeakValueDictionary[int, Unasked] = weakref.WeakValueDictionary()
        self._last: deque[Unasked] = deque(maxlen=_KEPT)
        self._shown: list[str] = []
        self._noted = 0
        self.silent: deque[int] = deque(maxlen=_MOST_SILENT)
        """The numbers of calls whose errors are not told."""
        self.taken = 0
        """How many failed calls were looked at."""

    def note(self, error: BaseException) -> Unasked | None:
        """Return what is to be told that somebody asks for an error; None of a cancelled call."""
        origin = origin_of(error)
        if isinstance(origin, TaskCancelledError):
            return None
        found = self._all.get(origin.task)
        if found is None:
            found = self._all[origin.task] = Unasked(error, self._shown)
            found.asked = origin.task in self.silent
            self._last.append(found)
            self._noted += 1
        return found

    def forget(self, others: int) -> None:
        """Log all that can: the stream has ended. There were `others` that nobody has looked at."""
        unseen = self.taken + others - self._noted
        if unseen > 0:
            log.error("%d more calls failed, and nobody has asked for their results", unseen)
        self._all.clear()
        self._last.clear()
        self.silent.clear()
        self._noted = self.taken = 0
