"""Waiting for descriptors (`select.select` refuses those from 1024 on); who is at the other end."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable

_MOST_MS = 2**31 - 1
_CREDENTIALS = struct.Struct("3i")


def wait_readable(descriptors: Iterable[int], most_s: float | None = None) -> bool:
    """Wait until one of them can be read, or is at its end, for some seconds at most; return whether."""
    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
    return bool(poll.poll(None if most_s is None else min(most_s * 1000, _MOST_MS)))


def other_end(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a connection, as the system knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _group = _CREDENTIALS.unpack(raw)
    return process, user
