"""Points at which a test lets a link or a session die, to see that everybody else notices."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

armed = os.environ.get("SIMPLER_REF_FAIL_AT", "")
"""A point's name and, after a colon, a file that whoever dies there removes: it is the only one."""

LINK = ("started", "greeted", "encoded", "sent", "answered", "prepared", "committed", "stopping")
SESSION = (
    "opened",
    "announced",
    "welcomed",
    "received",
    "decoded",
    "ran",
    "completed",
    "asked",
    "obeyed",
    "replied",
    "moving",
    "closing",
)
COPIES = ("opening", "storing", "stored", "bringing", "brought", "coming", "taken", "settled")
"""Of both: where copies of the parent's tensors move."""
AHEAD = ("ahead", "queued")
"""Of the one and of the other: a task was sent before the one in front of it has ended."""
VALUES = ("kept", "forgot", "came")
"""Of a session that keeps a value, or has forgotten some; of a link that has a value."""


def fail_point(name: str) -> None:
    """Die here if a test wants that."""
    if not armed:
        return
    point, _, path = armed.partition(":")
    with suppress(FileNotFoundError):
        if point == name:
            os.unlink(path)
            os.kill(os.getpid(), signal.SIGKILL)
