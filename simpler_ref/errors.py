"""The exceptions a user can catch.

Wherever programs match on a built-in type (`RuntimeError` for a failed task, `KeyError` for a foreign
handle, …), the class here derives from it.

Rule     CALL-CANCEL-2, CALL-LIMIT-1, FAIL-TYPE-1, FAIL-TYPE-2, FAIL-CODE-1, ORCH-CHECK-1, SEE-STORY-3,
         FLOW-HANDLE-6, FLOW-REG-5, WM-CTRL-6
"""

from __future__ import annotations

import concurrent.futures.process
import signal
from typing import Any

_PRINTS_NOTES = hasattr(BaseException, "add_note")
"""Whether Python prints notes below a message, as it does since 3.11."""


class RemoteTraceback(Exception):
    """Where a task has raised an exception; the cause of the exception in the program.

    ``task``, ``callable_name``, ``worker``, ``pid`` and ``story`` are those of a `TaskError`.

    Attributes
    ----------
    where : str
        Which task of which worker, as messages name it.
    text : str
        The traceback in the worker.
    """

    task = -1
    callable_name = story = ""
    worker: int | None = None
    pid: int | None = None

    def __init__(self, text: str, *, where: str = "", **of_task: Any) -> None:
        super().__init__(text)
        self.text, self.where = text, where
        vars(self).update(of_task)

    def __str__(self) -> str:
        story = f"\n{self.story}" if self.story else ""
        return f'{self.where}\n"""\n{self.text}{story}"""'


def origin_of(error: BaseException) -> Any:
    """Return what has `task`, `worker` and `story` of the error of a call: its cause, or itself.

    It is the cause if the task has raised the error, which then is as the task has made it.
    """
    cause = error.__cause__
    return cause if isinstance(cause, RemoteTraceback) and cause.where else error


def tell(error: BaseException, story: str) -> None:
    """Add to the story of an error.

    In the cause, it follows the traceback of the worker. That of an error of this package is one note,
    which Python prints below the message; before 3.11 it does not, and the cause has it, too.
    """
    if not story:
        return
    origin = origin_of(error)
    before = getattr(origin, "story", "")
    story = f"{before}\n{story}" if before else story
    if isinstance(origin, (RemoteTraceback, TaskError, RingFullError)):
        origin.story = story
    if origin is not error:
        return
    notes = [one for one in getattr(error, "__notes__", ()) if not before or one != before]
    vars(error)["__notes__"] = [*notes, story]
    if not _PRINTS_NOTES:
        error.__cause__ = error.__cause__ or RemoteTraceback("")
        if isinstance(error.__cause__, RemoteTraceback):
            error.__cause__.story = story


class TaskError(RuntimeError):
    """A task of a run failed, or a call with what cannot be raised in the program itself.

    `Worker.run` raises it, or the next submit; `Future.result` raises it for a worker that was lost, and
    for an exception that ends programs or loops, or whose type the program does not know.

    Attributes
    ----------
    task : int
        The task's id in its run.
    callable_name : str
        What it was running.
    worker : int | None
        Index of the worker that ran it; None if it never ran.
    pid : int | None
        That worker's process.
    remote_traceback : str
        The traceback in the worker, as text; empty if there is none.
    story : str
        Its state, what it waited for and what waits for it; its line and its times, if those are known.
        It is a note of the exception, which Python prints below the message.
    """

    task = -1
    callable_name = story = ""
    worker: int | None = None
    pid: int | None = None

    def __init__(self, message: str, *, remote_traceback: str = "", **of_task: Any) -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback
        vars(self).update(of_task)
        if remote_traceback:
            self.__cause__ = RemoteTraceback(remote_traceback, **of_task)


class WorkerLostError(TaskError, concurrent.futures.process.BrokenProcessPool):
    """The process that ran a task died before it had done it.

    Attributes
    ----------
    status : int
        Its wait status, as `os.waitstatus_to_exitcode` gives it: negative for a signal.
    """

    def __init__(self, message: str, *, status: int = 0, **details: Any) -> None:
        super().__init__(message, **details)
        self.status = status


class TaskTimeoutError(WorkerLostError, TimeoutError):
    """A call ran longer than the time limit of its task, and was ended with its worker.

    Attributes
    ----------
    limit : float
        The time limit, in seconds.
    """

    def __init__(self, message: str, *, limit: float = 0.0, **details: Any) -> None:
        super().__init__(message, **details)
        self.limit = limit


class TaskCancelledError(TaskError, concurrent.futures.CancelledError):
    """A call was cancelled before it began, or one that it needs."""


class ControlError(RuntimeError):
    """A worker refused a control request, such as to install a callable or to allocate memory.

    Attributes
    ----------
    remote_traceback : str
        The traceback in the worker, as text; empty if there is none.
    """

    def __init__(self, message: str, *, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.__cause__ = RemoteTraceback(remote_traceback)


class NoMemoryError(ControlError, IndexError):
    """A worker has no memory of its own, so there is none to allocate, free or copy."""


class ControlTimeoutError(ControlError, TimeoutError):
    """A control request was not carried out within the Worker's `py_control_timeout_s`."""


class RemoteError(RuntimeError):
    """An endpoint could not be started or reached, or has refused a request."""


class RingFullError(RuntimeError):
    """A ring had no room for a request within the Worker's `alloc_timeout_s`.

    Attributes
    ----------
    story : str
        Which task holds the oldest memory and why, and what others wait for; a note of the exception.
    """

    story = ""


class TransferError(RuntimeError):
    """Bytes could not be moved between two sessions.

    Attributes
    ----------
    refused : bool
        Whether the other session refused it; otherwise the connection is lost, or there is none.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class HazardError(RuntimeError):
    """Tasks would race for the same memory: nothing makes one wait for the other.

    Only Workers with ``check=True`` look for it.

    Attributes
    ----------
    kind : str
        ``"write after read"``, ``"write after write"``, ``"read after write"``, ``"use after scope"``,
        ``"write to INPUT"``, ``"write before start"`` or ``"touch while written"``.
    tasks : tuple[int, ...]
        The ids of the tasks in their run, the one that was submitted last at the end.
    places : tuple[str, ...]
        The file and line that submitted each of them.
    """

    kind = ""
    tasks: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    def __init__(self, message: str, **about: Any) -> None:
        super().__init__(message)
        vars(self).update(about)


class WorkerStartError(concurrent.futures.process.BrokenProcessPool):
    """A worker process ended, or did not answer, while it was being started."""


class CallableError(ValueError):
    """A callable, descriptor or hashid is not acceptable.

    Attributes
    ----------
    code : str
        One of the names of the callable identity document, e.g. ``HASHID_FORMAT_INVALID``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        return ": ".join(self.args)


class CallableTypeError(CallableError, TypeError):
    """A callable has the wrong type for this Worker: at level 2, one that is no ChipCallable."""


class HandleMutatedError(CallableError, RuntimeError):
    """A handle was changed after `register` had returned it."""


class NoPythonWorkerError(CallableError, RuntimeError):
    """A Python callable is registered with a Worker that has started without workers to run it."""


class LocalSlotExhaustedError(RuntimeError):
    """No target-local slot is left for another callable (``LOCAL_SLOT_EXHAUSTED``)."""

    code = "LOCAL_SLOT_EXHAUSTED"


def describe_status(status: int) -> str:
    """Say how a process ended: ``killed by SIGKILL`` or ``exited with status 3``."""
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exited with status {status}"
