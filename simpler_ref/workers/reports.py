"""How a worker reports an exception, and how the parent reads it.

Rule     ORCH-FAIL-5, SCHED-MAIL-7, FLOW-FAIL-1, FLOW-FAIL-2
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from types import TracebackType

from ..engine.view.mailbox import write_message, write_trace
from ..errors import TaskError
from ..jit import layout as L

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in .*\n(?!    )', re.MULTILINE)
"""A frame of a traceback, without its line."""


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this package that lead to the user's function; None if there is none."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace


def without_own_frames(error: BaseException) -> BaseException:
    """Return an error for the program, whose traceback has no frames of this package but the last ones.

    What is neither from the user nor raised on purpose keeps all of them.
    """
    trace = users_frames(error.__traceback__)
    is_meant = type(error).__module__ == TaskError.__module__
    return error if trace is None and not is_meant else error.with_traceback(trace)


def with_sources(trace: str) -> str:
    """Return a worker's traceback with the lines that only the program knows, of a notebook's cells."""

    def add(frame: re.Match[str]) -> str:
        line = linecache.getline(frame[1], int(frame[2])).strip()
        return f"{frame[0]}    {line}\n" if line else frame[0]

    return _FRAME.sub(add, trace)


def cut_utf8(text: str, limit: int) -> bytes:
    """Return at most `limit` bytes of UTF-8, cut between characters."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore").encode()


def describe_exception(exception: BaseException) -> str:
    """Return an exception's type and text; the text of a worker's exception includes the type."""
    try:
        text = str(exception)
    except BaseException as broken:  # a __str__ that raises
        text = f"(its text cannot be shown: {type(broken).__name__})"
    if not isinstance(exception, TaskError):
        text = f"{type(exception).__name__}: {text}"
    return text.replace("\0", "\\0")


def format_traceback(exception: BaseException) -> str:
    """Return an exception with its chain as Python prints it, its own frames from the user's on.

    What this package has raised on purpose, where no function of the user's was running, has none.
    """
    try:
        start = users_frames(exception.__traceback__)
        is_meant = type(exception).__module__ == TaskError.__module__
        if start is None and is_meant and exception.__cause__ is None:
            return ""
        start = start or exception.__traceback__
        lines = traceback.format_exception(type(exception), exception, start)
    except BaseException:
        return describe_exception(exception)
    return "".join(lines).replace("\0", "\\0")


def cut_traceback(lines: str, limit: int) -> bytes:
    """Return at most `limit` bytes of UTF-8: the first stack frames, the deepest one and the text."""
    raw = lines.encode(errors="replace")
    if len(raw) > limit:
        half = limit // 2 - 16
        raw = cut_utf8(lines, half) + b"\n ... (cut) ...\n" + raw[-half:]
    return raw.decode(errors="ignore").encode()


def write_error(box: memoryview, trace: memoryview, exception: BaseException) -> None:
    """Write an exception's type and text into the mailbox and its traceback into the side region.

    If the mailbox is too small for the text of a failure further down, with its chain of names, the whole
    text also precedes the traceback.
    """
    text = describe_exception(exception)
    message = cut_utf8(text, L.MAILBOX_ERROR_MSG_SIZE - 1)
    write_message(box, message)
    head = b""
    if isinstance(exception, TaskError) and len(message) < len(text.encode(errors="replace")):
        head = cut_utf8(text, L.TRACE_CAPACITY // 4) + b"\0"
    lines = format_traceback(exception)
    write_trace(trace, head + cut_traceback(lines, L.TRACE_CAPACITY - len(head)))


def read_error(message: bytes, trace: bytes) -> tuple[str, str]:
    """Return what `write_error` wrote: the text, and the traceback."""
    text = message.split(b"\0", 1)[0].decode(errors="replace")
    lines = trace.decode(errors="replace")
    if "\0" in lines:
        text, lines = lines.split("\0", 1)
    return text, with_sources(lines)
