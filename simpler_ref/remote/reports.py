"""Errors as answers have them: type, text and traceback.

Rule     REMOTE-FAIL-2
"""

from __future__ import annotations

from ..workers.reports import cut_traceback, cut_utf8, describe_exception, format_traceback
from .limits import MAX_ERROR_BYTES

_HEADROOM = 16


def report_of(error: BaseException) -> str:
    """Return an exception's type, text and traceback, as much as an answer takes."""
    text = cut_utf8(describe_exception(error), MAX_ERROR_BYTES // 2).decode()
    room = MAX_ERROR_BYTES - len(text.encode()) - 1
    lines = cut_traceback(format_traceback(error), room - _HEADROOM)
    return f"{text}\n{lines.decode(errors='replace')}"


def split_report(text: str) -> tuple[str, str]:
    """Return an exception's type and text, and its traceback."""
    at = text.find("\nTraceback (most recent call last)")
    return (text, "") if at < 0 else (text[:at], text[at + 1 :])
