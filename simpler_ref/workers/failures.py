"""The error that a failed run raises, from the first failure that the Scheduler noted."""

from __future__ import annotations

from typing import Any

from ..engine.view import FirstFailure
from ..errors import TaskError, WorkerLostError, describe_status, tell
from ..jit import layout as L
from .reports import read_error
from .session import Session
from .story import story_of_failure


def read_failure(session: Session) -> TaskError:
    """Return the exception for the first failure of a run, with the story of its task.

    Rule     ORCH-FAIL-4, -5; FLOW-FAIL-1, -4; FAIL-OUTCOME-2
    """
    failed = session.engine.view.first_failure()
    error = _describe_failure(session, failed)
    tell(error, story_of_failure(session, failed))
    return error


def _describe_failure(session: Session, failed: FirstFailure) -> TaskError:
    manager, level = session.manager, session.options.level
    task, worker = failed.task, failed.worker
    name = session.registry.name(failed.callable)
    details: dict[str, Any] = {"task": task, "callable_name": name}
    if worker < 0 or manager is None:
        first = session.engine.view.pool(failed.pool).start
        return WorkerLostError(
            f"level {level} {session.kinds[first].label}: task {task} ({name}) cannot run: the workers "
            "it needs have died; the next run starts new ones",
            **details,
        )
    details |= {"worker": worker, "pid": manager.pids.get(worker)}
    what = f"task {task} ({name})" + (f", member {failed.member}" if failed.member >= 0 else "")
    where = f"level {level} {manager.name(worker)}, {what}"
    if failed.outcome == L.ENDPOINT_FAILURE:
        before = session.watch().ran_before(worker)
        kind = session.kinds[worker]
        return describe_lost(
            where, failed.exit_code, details, before, kind.successor, kind.last_words()
        )
    message, trace = read_error(failed.message, failed.trace)
    return TaskError(f"{where}: {message}", remote_traceback=trace, **details)


def describe_lost(
    where: str,
    code: int | None,
    details: dict[str, Any],
    before: str = "",
    after: str = "the next run starts a new one",
    said: str = "",
) -> WorkerLostError:
    """Return the error for a worker that has died or, without a code, does not answer."""
    if code is None:
        return WorkerLostError(f"{where}: the worker has not answered a control request", **details)
    if said:
        return WorkerLostError(
            f"{where}: lost before the task was done: {said}{before}; {after}",
            status=code,
            **details,
        )
    ended = f"was {describe_status(code)}" if code < 0 else describe_status(code)
    return WorkerLostError(
        f"{where}: the worker {ended} before the task was done{before}; {after}",
        status=code,
        **details,
    )
