"""Which Worker a call goes to, and whether this thread runs a task."""

from __future__ import annotations

import os
import threading
from typing import Any


class _Here(threading.local):
    """What is true of this thread."""

    in_task = False
    mailbox: Any = None
    """That of the worker, in a worker."""


here = _Here()
_open: list[Any] = []
"""The streams of the open Workers, the innermost one last."""


def enter(stream: Any) -> None:
    """Make a stream the one that calls go to."""
    _open.append(stream)


def leave(stream: Any) -> None:
    """Undo `enter`."""
    if stream in _open:
        _open.remove(stream)


def current() -> Any:
    """Return the stream of the innermost open Worker; None without one, and inside a task."""
    return _open[-1] if _open and not here.in_task else None


os.register_at_fork(after_in_child=_open.clear)
