"""Points at which a link or a session dies, so that tests see that everybody else notices.

A point is before or after a call of one of their functions, which is wrapped for that: in the process of
the test, from which links are forked, and in the sessions that these start.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

LINK = {
    "started": ("after", "link_frames", "LinkFrames._start_session"),
    "greeted": ("after", "link_frames", "LinkFrames._greet"),
    "encoded": ("before", "link_frames", "LinkFrames._send"),
    "sent": ("after", "link_frames", "LinkFrames._send"),
    "answered": ("after", "link_frames", "LinkFrames._take_answer"),
    "prepared": ("before", "link", "Link._commit"),
    "committed": ("after", "link", "Link._commit"),
    "stopping": ("before", "link", "Link.stop"),
}
SESSION = {
    "opened": ("after", "session", "Session.open"),
    "announced": ("before", "session_frames", "SessionFrames.greet"),
    "welcomed": ("after", "session_frames", "SessionFrames.greet"),
    "received": ("before", "session", "Session._serve"),
    "decoded": ("after", "task_messages", "read_task"),
    "ran": ("before", "side_by_side", "SideBySide._settle"),
    "completed": ("after", "session_tasks", "SessionTasks._tell"),
    "asked": ("before", "session", "Session._serve_control"),
    "obeyed": ("after", "session", "obey"),
    "replied": ("after", "session", "Session._serve_control"),
    "moving": ("before", "mover", "Mover._serve_one"),
    "closing": ("before", "session", "Session.close"),
}
COPIES = {
    "storing": ("before", "mover", "Mover.store_all"),
    "stored": ("after", "mover", "Mover.store_all"),
    "bringing": ("before", "parent_memory", "ParentMemory.bring"),
    "brought": ("after", "parent_memory", "ParentMemory.bring"),
    "coming": ("before", "session_tasks", "SessionTasks.answer"),
    "taken": ("after", "copies", "Copies.take"),
    "settled": ("after", "copies", "Copies.settle"),
}
"""Of both: where copies of the parent's tensors move."""
AHEAD = {
    "ahead": ("after", "link_tasks", "LinkTasks._look"),
    "queued": ("after", "session_frames", "SessionFrames.next_frame"),
}
"""Of the one and of the other: a task was sent before the one in front of it has ended."""
VALUES = {
    "kept": ("after", "copies", "Copies.keep"),
    "forgot": ("after", "copies", "Copies._drop_value"),
    "came": ("after", "link_tasks", "CallTasks._fetch"),
}
"""Of a session that keeps a value, or has forgotten some; of a link that has a value."""
POINTS = {**LINK, **SESSION, **COPIES, **AHEAD, **VALUES}


def is_there(point, owner, result):
    """Say whether a process is at a point once the function has returned something."""
    if point == "ahead":  # there is one that goes ahead
        return result is not None
    return point != "queued" or bool(owner._waiting)


def arm(point, folder, monkeypatch):
    """Let the first to come to a point die there; return the file that is gone then."""
    once = folder / "once"
    once.touch()
    wrap(point, once, monkeypatch.setattr)
    command = [sys.executable, __file__, point, str(once)]
    monkeypatch.setattr("simpler_ref.remote.fleets.this_python", lambda: command)
    return once


def wrap(point, once, setattr):
    """Wrap the function of a point in this process."""
    when, module, name = POINTS[point]
    owner = importlib.import_module(f"simpler_ref.remote.{module}")
    *names, last = name.split(".")
    for one in names:
        owner = getattr(owner, one)
    function = getattr(owner, last)

    @functools.wraps(function)
    def wrapped(*args, **named):
        if when == "before":
            die(once)
        result = function(*args, **named)
        if when == "after" and is_there(point, args[:1] and args[0], result):
            die(once)
        return result

    setattr(owner, last, wrapped)


def die(once):
    """Die, and remove the file, if nobody has yet."""
    with suppress(FileNotFoundError):
        os.unlink(once)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)
    from simpler_ref.endpoint import main
    from tests import fail_points

    fail_points.wrap(*sys.argv[1:3], setattr)
    sys.exit(main(sys.argv[sys.argv.index("simpler_ref.endpoint") + 1 :]))
