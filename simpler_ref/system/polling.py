"""How to wait for a descriptor; `select.select` refuses those from 1024 on."""

from __future__ import annotations

import select
from collections.abc import Iterable

_MOST_MS = 2**31 - 1


def wait_readable(descriptors: Iterable[int], most_s: float | None = None) -> bool:
    """Wait until one of them can be read, or is at its end, for some seconds at most; return whether."""
    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
    return bool(poll.poll(None if most_s is None else min(most_s * 1000, _MOST_MS)))
