"""Whether a process may be traced by one that is not its parent."""

from __future__ import annotations

import ctypes

_PR_SET_PTRACER = 0x59616D61
_ANYBODY = ctypes.c_ulong(-1)


def allow_tracing() -> None:
    """Let anybody of this user trace this process; Yama, where it is on, lets none but its parents."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
