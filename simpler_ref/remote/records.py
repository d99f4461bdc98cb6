"""The trace of a session: the messages that begin, fetch and end it, and what both sides note.

A trace of the session's Worker goes into a file without a name at the endpoint. From there it comes,
piece by piece, as answers of the session's mover, into a file beside that of the parent's trace. Each
answer says what the clock of the endpoint is, which the link notes. Who reads the file checks it.

    session: Worker ──► file ──► mover          link: asks every 0.2 s ──► file ──► Trace
                                   └──── piece, clock ────┘    └─ NOTED_CLOCK ──► parent's trace

Rule     REMOTE-HEALTH-4, SEE-REMOTE-1, SEE-REMOTE-2, SEE-REMOTE-6
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Annotated

from ..jit import layout as L
from .fields import Message, Uint64, blob, text
from .limits import MAX_ERROR_BYTES

PIECE = 1 << 18
"""The most bytes of records that travel at once."""


# ---------------------------------------------------------------- messages
class TraceDetail(enum.IntEnum):
    """What a session shall note."""

    OFF = 0
    TASKS = 1
    ALL = 2


@dataclass(frozen=True)
class TraceRequest:
    """A trace of the session's Worker begins, or is to end; a second OFF lets its records go."""

    detail: TraceDetail


@dataclass(frozen=True)
class TraceAnswer:
    """The key by which records are asked for; at the end how many bytes there are; or what is wrong."""

    sequence: Uint64
    key: Uint64 = 0
    size: Uint64 = 0
    error: Annotated[str, text(MAX_ERROR_BYTES)] = ""


@dataclass(frozen=True)
class RecordsRequest:
    """Asks for the bytes of the records from one on."""

    offset: Uint64


@dataclass(frozen=True)
class RecordsAnswer:
    """The time by the clock of the session, and bytes."""

    time_ns: Uint64
    data: Annotated[bytes, blob(PIECE)]


TRACE = Message("TRACE", TraceRequest)
TRACE_ANSWER = Message("TRACE answer", TraceAnswer)
RECORDS = Message("RECORDS", RecordsRequest)
RECORDS_ANSWER = Message("RECORDS answer", RecordsAnswer)


# ---------------------------------------------------------------- notes
Note = tuple[int, int, int, int]
"""What, task, time and value, as journals have them."""


def frame_word(kind: int, number: int, session: int, *, sent: bool) -> int:
    """Return the first word of a note about a frame; `number` is that of the one that asks."""
    operand = kind | (L.FRAME_SENT if sent else 0)
    operand |= (number & L.FRAME_NUMBER) << 9 | (session & L.FRAME_SESSION) << 40
    return L.NOTED_FRAME | operand << 8


def moved_word(address: str, *, stored: bool) -> int:
    """Return the first word of a note about a tensor that was moved from or to a mover."""
    return L.NOTED_MOVED | (int(stored) | peer_of(address) << 1) << 8


def peer_of(address: str) -> int:
    """Return what notes name a mover by."""
    digest = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & L.MOVED_PEER


def clock_note(asked_ns: int, there_ns: int, came_ns: int) -> Note:
    """Return how far another clock was ahead between question and answer: plus or minus half the time."""
    when, half = (asked_ns + came_ns) // 2, max(0, (came_ns - asked_ns + 1) // 2)
    return L.NOTED_CLOCK | half << 8, 0, when, there_ns - when
