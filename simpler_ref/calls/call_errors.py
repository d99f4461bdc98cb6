"""The errors of calls that have failed: what happened, at which worker, and the story.

Each error that nobody asks for is logged once, when nobody can ask any more. A program that only submits
never comes to look, so a thread does, once a second.

Rule     CALL-FAIL-7
"""

from __future__ import annotations

import logging
import signal
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from ..engine.view import CallView
from ..engine.view.blocks import data_of
from ..errors import (
    HazardError,
    RemoteTraceback,
    TaskCancelledError,
    TaskError,
    TaskTimeoutError,
    WorkerLostError,
    origin_of,
    tell,
)
from ..jit import layout as L
from ..workers.reports import describe_exception
from ..workers.session import Session, describe_lost, story_of_call
from . import outcomes
from .arguments import key_of

log = logging.getLogger("simpler_ref")

LIMIT_SIGNAL = signal.SIGRTMAX
"""Ends the process of a call that runs too long: nothing else sends it, and no worker handles it."""

LOGGED_AFTER_S = 1.0
"""After how long without anybody who can ask an error is logged."""
_KEPT = 64
"""How many of the last failures are kept although their futures are gone: somebody may still ask for
calls that failed with them."""

_MOST_SILENT = 1024


class CallErrors:
    """Makes the errors of a stream's calls."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.limits: dict[int, float] = {}
        """The time limits of functions, by their blocks."""
        self.places: dict[int, str] = {}
        """With ``check=True``: where the calls of slots were submitted."""
        self.why_stranded: BaseException | None = None
        """Why there are no workers."""
        self._losses: dict[int, tuple[int, int | None, str, str]] = {}
        """By slot: the number of a lost call, and process, name and last words of its worker."""

    def of_call(self, slot: int) -> BaseException:
        """Return the error of a call, with its story or that of the call whose failure it shares."""
        call = self._session.engine.view.call(slot)
        name = self._session.call_names[key_of(call.key)]
        what = f"call {call.task} ({name})"
        if call.value < 0 and call.value != -slot:
            error = self.of_call(-call.value)
            tell(
                error,
                f"  {what} was not made: it needs the result of the call that failed, or an array which "
                "that was to write. Let a call overwrite all of this array, as Out (what the program "
                "writes itself does not count), or use a new array",
            )
            return error
        error = self._describe(slot, call, name, what)
        place = self.places.get(slot, "")
        tell(error, story_of_call(self._session, error, slot, place))
        if isinstance(error, HazardError):  # its worker did not know these
            error.tasks, error.places = (call.task,), (place,)
        return error

    def _describe(self, slot: int, call: CallView, name: str, what: str) -> BaseException:
        details: dict[str, Any] = {"task": call.task, "callable_name": name}
        if call.value == -slot:
            return TaskCancelledError(f"{what} was cancelled", **details)
        if call.kind == L.VALUE_STRANDED:
            why = self.why_stranded
            lost = WorkerLostError(
                f"{what} cannot run: its workers have died, and no others could be started: {why}",
                **details,
            )
            lost.__cause__ = why
            return lost
        if call.kind == L.VALUE_LOST:
            worker, code = call.value >> L.HALF, (call.value & L.LOW_HALF) - L.DEATH_BIAS
            place, said = self._loss_of(slot, call.task, worker, details)
            where = f"{place}, {what}"
            limit = self.limits.get(key_of(call.key))
            if limit is None or code != -LIMIT_SIGNAL:
                return describe_lost(where, code, details, "", "another takes its place", said)
            return TaskTimeoutError(
                f"{where}: it ran longer than its limit of {limit:g} s, and was ended with its worker",
                limit=limit,
                status=code,
                **details,
            )
        if call.kind == L.VALUE_NO_ROOM:
            return TaskError(
                f"{what}: no room for its value; give Worker(values_size=…)", **details
            )
        raised = data_of(self._session.engine.mem, call.value)
        return self._raised(raised, call.worker, what, details)

    def of_item(
        self, block: bytes, worker: int, number: int, name: str, item: int, origin: str
    ) -> BaseException:
        """Return the error of one item of many that were one call; its story ends with its origin."""
        what = f"call {number} ({name}), item {item}"
        details = {"task": number, "callable_name": name}
        error = self._raised(memoryview(block), worker, what, details)
        tell(error, f"{story_of_call(self._session, error)}\n{origin}")
        return error

    def _raised(
        self, block: memoryview, worker: int, what: str, details: dict[str, Any]
    ) -> BaseException:
        where = f"{self._note(worker, details)}, {what}"
        return outcomes.decode_error(block, where, **details)

    def _loss_of(
        self, slot: int, task: int, worker: int, details: dict[str, Any]
    ) -> tuple[str, str]:
        """Return what a worker is called that was lost with a call, and what it has said at last.

        Whoever asks for the error later would be told the process of its successor.
        """
        known, pid, place, said = self._losses.get(slot, (-1, None, "", ""))
        if known != task:
            place, said = self._note(worker, details), self._session.kinds[worker].last_words()
            pid = details["pid"]
            self._losses[slot] = task, pid, place, said
        details |= {"worker": worker, "pid": pid}
        return place, said

    def _note(self, worker: int, details: dict[str, Any]) -> str:
        """Add a worker and its process to the attributes of an error; return what messages call it."""
        manager = self._session.manager
        details |= {"worker": worker, "pid": None if manager is None else manager.pids.get(worker)}
        return f"worker {worker}" if manager is None else manager.name(worker)


# ---------------------------------------------------------------- those that nobody asks for
class Unretrieved:
    """The error of a call, until somebody asks for it, or for that of a call that failed with it."""

    def __init__(self, error: BaseException, task: int, shown: list[str]) -> None:
        self.retrieved = True  # should this be cut short
        self.task = task
        cause = error.__cause__ if isinstance(error.__cause__, RemoteTraceback) else None
        where = f"{cause.where}: " if cause is not None and cause.where else ""
        self._text = where + describe_exception(error)
        self._trace = "" if cause is None else cause.text.rstrip()
        self._shown = shown
        """The traceback of this stream that was logged last: calls that fail for one reason share it."""
        self.retrieved = False
        self.since = time.monotonic()

    def __del__(self) -> None:
        if self.retrieved:
            return
        with suppress(Exception):  # at the end of the interpreter
            trace = self._trace and f"\n{self._trace}"
            if trace and self._shown == [self._trace]:
                trace = " (its traceback is that of the call logged before)"
            elif trace:
                self._shown[:] = [self._trace]
            log.error("a call failed, and nobody has asked for its result: %s%s", self._text, trace)


class Failures:
    """The failures of a stream, which calls these methods, or has them called, with the lock."""

    def __init__(self) -> None:
        self._all: weakref.WeakValueDictionary[int, Unretrieved] = weakref.WeakValueDictionary()
        self._last: deque[Unretrieved] = deque(maxlen=_KEPT)
        self._shown: list[str] = []
        self._taken = self._noted = self._counted = self._noted_silently = 0
        """How many failed calls were looked at; noted; logged only as a number; noted, and not logged."""
        self.silent: deque[int] = deque(maxlen=_MOST_SILENT)
        """The numbers of calls whose errors are not logged."""

    def note(self, error: BaseException) -> Unretrieved | None:
        """Return what is marked when somebody asks for an error; None of a cancelled call."""
        origin = origin_of(error)
        if isinstance(origin, TaskCancelledError):
            return None
        found = self._all.get(origin.task)
        if found is None:
            found = self._all[origin.task] = Unretrieved(error, origin.task, self._shown)
            found.retrieved = origin.task in self.silent
            self._noted_silently += found.retrieved
            self._last.append(found)
            self._noted += 1
        return found

    def look(self, stream: Any) -> None:
        """Note the errors of failed calls whose futures are gone; others keep theirs."""
        slots: list[int] = []
        while slot := stream._kernels.take_failed(stream._mem):
            slots.insert(0, slot)
        for slot in slots:
            self._taken += 1
            future = stream._quick.find(slot)
            if future is None:
                self.note(stream.errors.of_call(slot))
            elif slot not in stream._fetching and stream.has_settled(slot):
                stream._fetch(future)  # which keeps the error, to be logged if nobody asks
            stream._kernels.drop_call(stream._mem, slot)

    def take_old(self, stream: Any) -> list[Unretrieved]:
        """Return what nobody can ask for any more: to let it go logs it."""
        before = time.monotonic() - LOGGED_AFTER_S
        if not self._last or self._last[0].since > before:
            return []
        keep = _causes_of(stream)
        every = [(one, one.since > before or one.task in keep) for one in self._last]
        self._last = deque((one for one, stays in every if stays), maxlen=_KEPT)
        return [one for one, stays in every if not stays]

    def count(self, others: int) -> None:
        """Log how many have failed beyond those noted; there were `others` that nobody has looked at.

        Those that are not to be logged may be among them.
        """
        silent = len(self.silent) - self._noted_silently
        unseen = self._taken + others - self._noted - self._counted - silent
        if unseen > 0:
            self._counted += unseen
            log.error("%d more calls failed, and nobody has asked for their results", unseen)

    def forget(self, others: int) -> None:
        """Log all that can be: the stream has ended."""
        self.count(others)
        self._all.clear()
        self._last.clear()
        self.silent.clear()
        self._taken = self._noted = self._counted = self._noted_silently = 0


def _causes_of(stream: Any) -> set[int]:
    """Return the numbers of calls with which others have failed that have a future."""
    view, found = stream._engine.view, set()
    for future in stream._quick.futures():
        own = slot = future._slot
        while slot:
            has_failed, _, word = view.outcome(slot)
            if not has_failed or word >= 0 or word == -slot:
                break
            slot = -word
        if slot != own:
            found.add(view.call(slot).task)
    return found


class FailureLogger(threading.Thread):
    """Logs the failures of a stream in time, until it ends or the stream is forgotten."""

    def __init__(self, stream: Any) -> None:
        super().__init__(name="simpler_ref-failures", daemon=True)
        self._of, self._has_ended = weakref.ref(stream), threading.Event()
        self.start()

    def run(self) -> None:
        while not self._has_ended.wait(LOGGED_AFTER_S):
            stream = self._of()
            if stream is None:
                return
            try:
                stream.log_failures()
            except Exception:
                log.exception("telling of calls that have failed has failed itself")
            del stream

    def end(self) -> None:
        self._has_ended.set()
        if self is not threading.current_thread():
            self.join(LOGGED_AFTER_S)
