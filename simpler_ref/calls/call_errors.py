"""The errors of calls that have failed: what happened, at which worker, and the story."""

from __future__ import annotations

from typing import Any

from ..engine.view import CallView
from ..engine.view.blocks import data_of
from ..errors import (
    HazardError,
    TaskCancelledError,
    TaskError,
    TaskTimeoutError,
    WorkerLostError,
    tell,
)
from ..jit import layout as L
from ..workers.failures import describe_lost, story_of_call, story_of_item
from ..workers.session import Session
from . import limits, outcomes
from .forms import key_of


class CallErrors:
    """Makes the errors of a stream's calls.

    Attributes
    ----------
    limits : dict
        The time limits of functions, by their blocks.
    places : dict
        With ``check=True``: where the calls of slots were submitted.
    why_stranded : BaseException or None
        Why there are no workers.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.limits: dict[int, float] = {}
        self.places: dict[int, str] = {}
        self.why_stranded: BaseException | None = None

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
        tell(error, story_of_call(self._session, slot, error, place))
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
            where = f"{self._note(worker, details)}, {what}"
            limit = self.limits.get(key_of(call.key))
            if limit is None or code != -limits.SIGNAL:
                said = self._session.kinds[worker].last_words()
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
        tell(error, f"{story_of_item(self._session, error)}\n{origin}")
        return error

    def _raised(
        self, block: memoryview, worker: int, what: str, details: dict[str, Any]
    ) -> BaseException:
        """Return what a task has raised."""
        where = f"{self._note(worker, details)}, {what}"
        return outcomes.decode_error(block, where, **details)

    def _note(self, worker: int, details: dict[str, Any]) -> str:
        """Add a worker and its process to the attributes of an error; return what messages call it."""
        manager = self._session.manager
        details |= {"worker": worker, "pid": None if manager is None else manager.pids.get(worker)}
        return f"worker {worker}" if manager is None else manager.name(worker)
