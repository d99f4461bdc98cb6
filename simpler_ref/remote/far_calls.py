"""Calls in frames: the call of a function at an endpoint, and what it has returned or raised.

A call travels as a worker of this machine gets it: codes of its arguments, words, and one pickle of all
else. Bytes of more than `MOST_INLINE_KEPT` travel beside the frame, as copies of tensors do.

Rule     CALL-FAR-5; REMOTE-TASK-9, -10
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from .copies import MOST_DROPPED
from .fields import (
    POSITIVE,
    Blob,
    Exactly,
    Int32,
    Many,
    Message,
    Octets,
    Positive,
    ShortText,
    Uint32,
    Uint64,
)
from .limits import MAX_TENSORS

MOST_INLINE = 1 << 16
"""Of a value that a session need not keep."""
MOST_INLINE_KEPT = 1 << 18
"""Of what travels in a frame, whether it is kept or not."""
MOST_IN_FRAME = 4 << 20
"""Of all such bytes in one frame together."""
ANY_SUB_WORKER = -1
InFrame = Annotated[bytes, Blob(MOST_INLINE_KEPT)]


class Room:
    """What still fits into a frame, of bytes that may travel beside it."""

    def __init__(self) -> None:
        self._left = MOST_IN_FRAME

    def takes(self, nbytes: int) -> bool:
        """Say whether some bytes travel in the frame; then they do."""
        fits = nbytes <= min(MOST_INLINE_KEPT, self._left)
        if fits:
            self._left -= nbytes
        return fits


@dataclass(frozen=True)
class Piece:
    """Bytes: in the frame, or so many in a window, or in a copy, that has a key.

    A value with a key is kept by the session, which may have it already; then it need not come again.
    """

    data: InFrame = b""
    key: Uint64 = 0
    nbytes: Uint64 = 0


PIECE = Message("TASK_CALL.piece", Piece)


@dataclass(frozen=True)
class FarArray:
    """An array of a call: a copy, the versions that the call reads and makes (0: none), its layout.

    `data` is the version that it reads, if the session does not have it and it is short.
    """

    key: Uint64
    reads: Uint64
    makes: Uint64
    nbytes: Uint64
    layout: ShortText
    data: InFrame = b""


ARRAY = Message("TASK_CALL.arrays", FarArray)


@dataclass(frozen=True)
class FarCall:
    """A call; see `calls.forms` for its codes.

    Attributes
    ----------
    run : int
        Which run, or stream of calls, of the parent: copies of an earlier one are stale.
    digest : bytes
        Of the function.
    sub_worker : int
        The only one that may run it, or `ANY_SUB_WORKER`.
    named : int
        How many arguments, the last ones, have names.
    codes, kinds, words : bytes
        A byte for each argument; for each of those that are words the kind, and eight bytes.
    arrays : sequence of FarArray
        In the order of the arguments.
    items : Piece
        Names, and values that are pickled.
    values : sequence of Piece
        The values of calls that are more than a word, in the order of the arguments.
    dropped : sequence of int
        Copies that the session forgets before.
    """

    run: Uint64
    digest: Annotated[bytes, Exactly(32)]
    sub_worker: Int32
    named: Uint32
    codes: Octets
    kinds: Octets
    words: Octets
    arrays: Annotated[Sequence[FarArray], Many(ARRAY, MAX_TENSORS)] = ()
    items: Annotated[Piece, PIECE] = Piece()
    values: Annotated[Sequence[Piece], Many(PIECE, MAX_TENSORS)] = ()
    dropped: Annotated[Sequence[int], Many(POSITIVE, MOST_DROPPED)] = ()


@dataclass(frozen=True)
class FarOutcome:
    """What became of a call.

    Attributes
    ----------
    sequence : int
        Of the frame that asked.
    kind, word : int
        Of the value; if `kind` is that of an error the three texts say which.
    value : Piece
        Of a value that is more than a word: its block.
    text, trace, exception : bytes
        What was raised: described, its traceback, and as a block; empty where that cannot be sent.
    written : sequence of bytes
        The arrays that the call has written, in the order of the call; those that are longer are empty,
        and the parent fetches them.
    """

    sequence: Uint64
    kind: Uint32
    word: Uint64 = 0
    value: Annotated[Piece, PIECE] = Piece()
    text: Octets = b""
    trace: Octets = b""
    exception: Octets = b""
    written: Annotated[Sequence[bytes], Many(Blob(MOST_INLINE_KEPT), MAX_TENSORS)] = ()


@dataclass(frozen=True)
class TakenValue:
    """The window of a value that the parent has by now."""

    key: Positive


FAR_CALL = Message("TASK_CALL", FarCall)
FAR_OUTCOME = Message("TASK_CALL answer", FarOutcome)
VALUE_TAKEN = Message("VALUE_TAKEN", TakenValue)
