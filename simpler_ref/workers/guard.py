"""With ``check=True``: whether an INPUT of a task has changed while it ran, by its bytes.

This finds writes that no array refuses: by ctypes or C, through an address, in compiled code.

Rule     SEE-INPUT-1, SEE-INPUT-3
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine.view.mailbox import MailboxView, ReceivedArgs
from ..errors import HazardError
from ..model.tensor import ContinuousTensor, DescribedTensor, share_bytes, view_memory
from ..model.wire import span_of
from ..system.types import Array, address_of

MOST_COPIED = 1 << 20
"""Bytes of a tensor that is copied; of a larger one the sum of each piece is kept."""
PIECE = 1 << 16
KIND = "write to INPUT"


class Input(NamedTuple):
    """A tensor that a task must not write."""

    name: str
    """What messages call it."""
    array: Array
    remedy: str


Seen = tuple[Input, Array]
"""An input as it was before the task: its bytes, or the sums of its pieces."""


class Guard:
    """Compares the inputs of one worker's tasks."""

    def __init__(self, mailbox: MailboxView) -> None:
        self._mailbox = mailbox

    def around(self, leaf: Callable[[ReceivedArgs], Any]) -> Callable[[ReceivedArgs], Any]:
        """Return a leaf that does not let its task change an INPUT."""

        def guarded(args: ReceivedArgs) -> Any:
            tensors = [args.tensor(i) for i in range(args.tensor_count())]
            inputs = [
                Input(f"tensor {i}", _bytes_of(one), "Tag it INOUT")
                for i, one in enumerate(tensors)
                if one.is_read_only
            ]
            if not inputs:
                return leaf(args)
            written = (one for one in tensors if not one.is_read_only and not one.child_memory)
            seen = look(inputs, [_bytes_of(one) for one in written if one.data and one.nbytes()])
            result = leaf(args)
            self.require_unchanged(seen)
            return result

        return guarded

    def require_unchanged(self, seen: Sequence[Seen]) -> None:
        """Raise a HazardError if a task, which has ended, has left an input with other bytes.

        Its message has to fit the few bytes that a mailbox has for it.
        """
        for (name, array, remedy), before in seen:
            places, some = np.flatnonzero(before != _sums(array)), ""
            if not len(places) or self._mailbox.engine.view.is_unordered(*_span(array)):
                continue  # in the second case others may write there meanwhile
            first, last = int(places[0]), int(places[-1])
            if array.nbytes > MOST_COPIED:
                ends, some = np.cumsum([len(one) for one in pieces(array)]), "some of "
                first, last = int(ends[first - 1]) if first else 0, int(ends[last]) - 1
            raise HazardError(
                f"{KIND}: {some}bytes {first} to {last} of {name} ({array.nbytes} bytes) changed while "
                f"the task ran. {remedy} if the task writes there; else the program does, or another "
                "task that reads it",
                kind=KIND,
            )


# ---------------------------------------------------------------- before and after
def look(inputs: Sequence[Input], others: Sequence[Array]) -> list[Seen]:
    """Return inputs as they are; without those that share bytes with what the task may write."""
    return [
        (one, _sums(one.array))
        for one in inputs
        if one.array.nbytes and not any(share_bytes(one.array, other) for other in others)
    ]


def _sums(array: Array) -> Array:
    if array.nbytes <= MOST_COPIED:
        return np.frombuffer(array.tobytes(), np.uint8)
    return np.array([zlib.crc32(one) for one in pieces(array)])


def pieces(array: Array) -> Iterator[Any]:
    """Yield the bytes of an array in C order, without a copy if it is contiguous."""
    if array.flags.c_contiguous:
        octets = array.reshape(-1).view(np.uint8)
        yield from (octets[at : at + PIECE] for at in range(0, len(octets), PIECE))
        return
    rows = max(1, PIECE * len(array) // array.nbytes)
    yield from (array[at : at + rows].tobytes() for at in range(0, len(array), rows))


# ---------------------------------------------------------------- where bytes are
def _bytes_of(tensor: ContinuousTensor) -> Array:
    if isinstance(tensor, DescribedTensor):
        array = tensor.numpy()
        return array if array.ndim else array.reshape(1)
    return view_memory(tensor.data, (tensor.nbytes(),), np.dtype(np.uint8))


def _span(array: Array) -> tuple[int, int]:
    """Return the lowest address of an array, and that past the highest."""
    below, extent = span_of((array.dtype, array.shape, array.strides))
    low = address_of(array) - below
    return low, low + extent
