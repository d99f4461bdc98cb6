"""What is drawn of frames and of tensors that were moved: where, when, and with which text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .tasks import moved

if TYPE_CHECKING:
    from .reader import Trace

FRAMES = {
    1: "HELLO",
    2: "TASK",
    3: "CONTROL",
    4: "CONTROL_REPLY",
    5: "COMPLETION",
    7: "SHUTDOWN",
    64: "TASK",
    65: "COUNTERS",
    66: "TASK",
    67: "OPEN_COPIES",
    68: "CALL",
    69: "VALUE_TAKEN",
    70: "TRACE",
    72: "TASK",
    73: "PART",
    74: "STOP_PART",
}
"""Names of frames, by their types."""


class Mark(NamedTuple):
    """A frame, which begins when it ends, or a tensor that was moved."""

    lane: int
    begin: int
    end: int
    text: str


def marks(trace: Trace) -> Iterator[Mark]:
    """Yield the frames and transfers of a trace.

    Rule     SEE-REMOTE-2
    """
    for row in trace.frames:
        name = FRAMES.get(int(row["type"]), f"frame {row['type']}")
        text = f"{name} {'sent' if row['sent'] else 'received'}, {row['nbytes']} bytes"
        yield Mark(int(row["lane"]), int(row["time"]), int(row["time"]), text)
    for row in trace.moves:
        one = trace.transfer(row)
        yield Mark(int(row["lane"]), one.begin, one.end, moved(one))
