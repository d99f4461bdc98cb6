"""How a worker reports an exception, and how the parent reads it."""

from __future__ import annotations

import traceback
from types import TracebackType

from ..engine.view.mailbox import write_message, write_trace
from ..errors import TaskError
from ..jit import layout as L


def cut_utf8(text: str, limit: int) -> bytes:
    """Return at most `limit` bytes of UTF-8, cut between characters."""
    raw = text.encode(errors="replace")
    return raw if len(raw) <= limit else raw[:limit].decode(errors="ignore").encode()


def describe_exception(exception: BaseException) -> str:
    """Return an exception's type and text; the text of a worker's exception includes the type.

    Rule     FLOW-FAIL-1
    """
    try:
        text = str(exception)
    except BaseException as broken:  # a __str__ that raises
        text = f"(its text cannot be shown: {type(broken).__name__})"
    if not isinstance(exception, TaskError):
        text = f"{type(exception).__name__}: {text}"
    return text.replace("\0", "\\0")


def format_traceback(exception: BaseException, start: TracebackType | None) -> str:
    """Return an exception with its chain as Python prints it, its own frames from `start` on."""
    try:
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

    Rule     SCHED-MAIL-7; ORCH-FAIL-5; FLOW-FAIL-2
    """
    text = describe_exception(exception)
    message = cut_utf8(text, L.MAILBOX_ERROR_MSG_SIZE - 1)
    write_message(box, message)
    head = b""
    if isinstance(exception, TaskError) and len(message) < len(text.encode(errors="replace")):
        head = cut_utf8(text, L.TRACE_CAPACITY // 4) + b"\0"
    lines = format_traceback(exception, exception.__traceback__)
    write_trace(trace, head + cut_traceback(lines, L.TRACE_CAPACITY - len(head)))


def read_error(message: bytes, trace: bytes) -> tuple[str, str]:
    """Return what `write_error` wrote: the text, and the traceback."""
    text = message.split(b"\0", 1)[0].decode(errors="replace")
    lines = trace.decode(errors="replace")
    if "\0" in lines:
        text, lines = lines.split("\0", 1)
    return text, lines
