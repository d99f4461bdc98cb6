"""How a run that fails ends, the error that it raises, and the stories of tasks in errors.

Each failure makes a run end sooner. What the engine knows of a task is always told: state, worker, what
it waited for and what waits for it. Its line is known with ``check=True``.

Rule     FAIL-OUTCOME-2, ORCH-RUN-3, ORCH-RUN-4, ORCH-RUN-7, ORCH-RUN-8, ORCH-TELL-1, ORCH-FAIL-4,
         ORCH-FAIL-5, SEE-STORY-1, SEE-STORY-3, FLOW-FAIL-1, FLOW-FAIL-4
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.introspection import listed
from ..engine.memory import PARK_NS
from ..engine.view import FirstFailure
from ..engine.view.slots import Others, call_story
from ..errors import RemoteTraceback, TaskError, WorkerLostError, describe_status, origin_of, tell
from ..jit import layout as L
from ..system.signals import Failures, until_done
from .reports import read_error
from .session import Session


# ---------------------------------------------------------------- the end of a run
def drain(session: Session, failures: Failures = ()) -> None:
    """End every scope and wait until every task is reclaimed; a failure cancels what can be."""
    mem, kernels = session.engine.mem, session.engine.kernels
    kernels.finish_run(mem, bool(failures))
    while kernels.help_scheduler(mem, 0, -1, -1, PARK_NS) != L.OK:
        session.look(failures)


def end_early(session: Session, failures: Failures) -> Failures:
    """End a run that has failed; return all of its failures.

    The first one cancels, each further one kills the busy workers.
    """
    manager = session.manager

    def end(failures: Failures) -> None:
        if len(failures) > 1 and manager is not None:
            manager.kill_busy()
        drain(session, failures)

    failures = until_done(end, failures, session.pid)
    if manager is not None:
        manager.rescind_idle()
    return failures


def recover(session: Session) -> None:
    """Finish the last run if signals cut its end short; the second asked to kill busy workers."""
    engine = session.engine
    if engine.view.next_task_id or engine.view.scope_depth:
        signals = InterruptedError("a signal"), InterruptedError("and one more")
        *_, failure = end_early(session, signals)
        engine.kernels.end_run(engine.mem)
        if failure not in signals:
            raise failure


# ---------------------------------------------------------------- errors
def read_failure(session: Session) -> TaskError:
    """Return the exception for the first failure of a run, with the story of its task."""
    failed = session.engine.view.first_failure()
    error = _describe_failure(session, failed)
    tell(error, story_of_failure(session, failed))
    return error


def _describe_failure(session: Session, failed: FirstFailure) -> TaskError:
    manager, level = session.manager, session.options.level
    task, worker = failed.task, failed.worker
    name = session.registry.name(failed.callable)
    details: dict[str, Any] = {"task": task, "callable_name": name}
    if worker < 0 or (manager is None and failed.outcome == L.ENDPOINT_FAILURE):
        first = session.engine.view.pool(failed.pool).start
        return WorkerLostError(
            f"level {level} {session.kinds[first].label}: task {task} ({name}) cannot run: the workers "
            "it needs have died; the next run starts new ones",
            **details,
        )
    details |= {"worker": worker, "pid": manager.pids.get(worker) if manager else None}
    what = f"task {task} ({name})" + (f", member {failed.member}" if failed.member >= 0 else "")
    where = f"level {level} {session.worker_name(worker)}, {what}"
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
    ended = f"was {describe_status(code)}" if code < 0 else describe_status(code)
    what = f"the worker {ended} before the task was done"
    if said:
        what = f"lost before the task was done: {said}"
    return WorkerLostError(f"{where}: {what}{before}; {after}", status=code, **details)


# ---------------------------------------------------------------- stories
Called = Callable[[int, "int | None"], str]
"""Says what messages call a task, from its id and the index of its callable."""


def story_of_failure(session: Session, failed: FirstFailure) -> str:
    """Return the story of the task that failed first in a run."""
    registry, story = session.registry, failed.story

    def called(task: int, index: int | None) -> str:
        return f"task {task} ({'buffer' if index is None else registry.name(index)})"

    what = called(failed.task, failed.callable)
    where = "" if failed.worker < 0 else session.worker_name(failed.worker)
    state = f"was {story.state.name}" + (f" on {where}" if where else "")
    lines = [f"{what} {state}", *_neighbours(story.needed, story.needing, called, "task")]
    return _story(session, lines, session.orch._place_of(failed.task))


def story_of_call(session: Session, slot: int, error: BaseException, place: str) -> str:
    """Return the story of a call that has failed by itself; `place` is its line, if that is known."""
    story, origin = call_story(session.engine.mem, slot), origin_of(error)
    lines = [
        _ran(session, origin),
        *_neighbours(story.needed, story.needing, lambda task, _index: f"call {task}", "call"),
    ]
    return _story(session, lines, place)


def story_of_item(session: Session, error: BaseException) -> str:
    """Return the story of the call in which an item of `map` has failed, and others have not."""
    return _story(session, [_ran(session, origin_of(error))])


def _ran(session: Session, origin: TaskError | RemoteTraceback) -> str:
    """Return on which worker a call failed."""
    what = f"call {origin.task} ({origin.callable_name})"
    if origin.worker is None:
        return f"{what} never began"
    return f"{what} was RUNNING on {session.worker_name(origin.worker)}"


def _neighbours(needed: Others, needing: Others, called: Called, noun: str) -> list[str]:
    before, after = (
        listed([called(*one) for one in others.first], others.number)
        for others in (needed, needing)
    )
    return [
        f"it had waited for {before}" if before else f"it waited for no {noun}",
        f"waiting for it: {after}" if after else f"no {noun} waits for it",
    ]


def _story(session: Session, lines: list[str], place: str = "") -> str:
    if place:
        lines = [*lines, f"submitted at {place}"]
    if (path := session.recorder.path) is not None:
        lines = [*lines, f"the trace in {path} says when it did what"]
    return "\n".join(f"  {line}" for line in lines)
