"""The stories of tasks that have failed: the last lines of errors.

What the engine knows is always told: state, worker, what a task waited for and what waits for it. Its
line is known with ``check=True``; when it did what, while a trace is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from ..engine.view import FirstFailure
from ..engine.view.stories import Others
from ..errors import RemoteTraceback, TaskError, origin_of
from ..trace.reader import Trace
from .session import Session

MOST_READ = 16 << 20
"""Bytes of a trace that is read for the times of one task; a longer one is only named."""

Called = Callable[[int, "int | None"], str]
"""Says what messages call a task, from its id and the index of its callable."""


def story_of_failure(session: Session, failed: FirstFailure) -> str:
    """Return the story of the task that failed first in a run.

    Rule     SEE-STORY-1, -4, -5
    """
    registry, story = session.registry, failed.story

    def called(task: int, index: int | None) -> str:
        return f"task {task} ({'buffer' if index is None else registry.name(index)})"

    what = called(failed.task, failed.callable)
    where = "" if failed.worker < 0 else session.worker_name(failed.worker)
    state = f"was {story.state.name}" + (f" on {where}" if where else "")
    lines = [f"{what} {state}", *_neighbours(story.needed, story.needing, called, "task")]
    if place := session.orch._place_of(failed.task):
        lines.append(f"submitted at {place}")
    return _indented(lines + _from_trace(session, failed.task))


def story_of_call(session: Session, slot: int, error: BaseException, place: str) -> str:
    """Return the story of a call that has failed by itself; `place` is its line, if that is known.

    Rule     SEE-STORY-2, -4, -5
    """
    story, origin = session.engine.view.call_story(slot), origin_of(error)
    lines = [
        _ran(session, origin),
        *_neighbours(story.needed, story.needing, lambda task, _index: f"call {task}", "call"),
    ]
    if place:
        lines.append(f"submitted at {place}")
    return _indented(lines + _from_trace(session, origin.task))


def story_of_item(session: Session, error: BaseException) -> str:
    """Return the story of the call in which an item of `map` has failed, and others have not.

    Rule     SEE-STORY-6
    """
    origin = origin_of(error)
    return _indented([_ran(session, origin), *_from_trace(session, origin.task)])


def _ran(session: Session, origin: TaskError | RemoteTraceback) -> str:
    """Return on which worker a call failed."""
    what = f"call {origin.task} ({origin.callable_name})"
    if origin.worker is None:
        return f"{what} never began"
    return f"{what} was RUNNING on {session.worker_name(origin.worker)}"


def _neighbours(needed: Others, needing: Others, called: Called, noun: str) -> list[str]:
    before = (
        f"it had waited for {_list(needed, called)}"
        if needed.number
        else f"it waited for no {noun}"
    )
    after = (
        f"waiting for it: {_list(needing, called)}" if needing.number else f"no {noun} waits for it"
    )
    return [before, after]


def _list(others: Others, called: Called) -> str:
    named = [called(*one) for one in others.first]
    if others.number > len(named):
        named.append(f"{others.number - len(named)} more")
    return ", ".join(named)


def _from_trace(session: Session, task: int) -> list[str]:
    """Return when a task of the run in progress did what, if a trace is taken.

    Rule     SEE-STORY-5
    """
    path = session.recorder.path
    if path is None:
        return []
    if session.recorder.may_tell() and os.path.getsize(path) <= MOST_READ:
        with suppress(OSError, ValueError, KeyError, IndexError):
            trace = Trace.open(path)
            vars(trace)["whole"] = trace  # the others are not read: it shall take no time
            return trace.find(task, len(trace.runs) - 1).why().splitlines()[1:]
    return [f"the trace in {path} says when it did what"]


def _indented(lines: list[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
