"""Calls in messages: what a RUN says of the call of a function, and what that has returned or raised.

A call travels as a worker of this machine gets it: codes of its arguments, words, and one pickle of all
else. Bytes of more than `MOST_INLINE_KEPT` travel beside the frame, as copies of tensors do.

Rule     CALL-FAR-5; REMOTE-TASK-9, -10
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from .fields import (
    Blob,
    Exactly,
    InFrame,
    Int32,
    Many,
    Message,
    Octets,
    Positive,
    Uint32,
    Uint64,
)
from .limits import MAX_TENSORS, MOST_IN_FRAME, MOST_INLINE_KEPT

ANY_SUB_WORKER = -1


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


PIECE = Message("CALL.piece", Piece)


@dataclass(frozen=True)
class Call:
    """A call; see `calls.forms` for its codes. Its arrays are the tensors of the RUN, in their order.

    Attributes
    ----------
    digest : bytes
        Of the function.
    sub_worker : int
        The only one that may run it, or `ANY_SUB_WORKER`.
    named : int
        How many arguments, the last ones, have names.
    codes, words : bytes
        A byte for each argument; eight bytes for each of those that are words, whose kinds the RUN has.
    items : Piece
        Names, and values that are pickled.
    values : sequence of Piece
        The values of calls that are more than a word, in the order of the arguments.
    """

    digest: Annotated[bytes, Exactly(32)]
    sub_worker: Int32
    named: Uint32
    codes: Octets
    words: Octets
    items: Annotated[Piece, PIECE] = Piece()
    values: Annotated[Sequence[Piece], Many(PIECE, MAX_TENSORS)] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes
    ----------
    sequence : int
        Of the RUN.
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


CALL = Message("CALL", Call)
OUTCOME = Message("OUTCOME", Outcome)
VALUE_TAKEN = Message("VALUE_TAKEN", TakenValue)
