"""What the frame of a task says, and the arguments that it makes.

Rule     REMOTE-TASK-8
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from ..model.tensor import ContinuousTensor, DescribedTensor
from .after import TASK_AFTER
from .copies import TASK_COPIES, CopiedTensor, TaskCopies
from .frames import Frame, FrameType, OwnFrameType
from .layouts import read_layout
from .tasks import TASK_MORE, MoreOfTask, TaskPayloadWire, decode_task_payload

MOST_KEPT_BYTES = 4096
"""Of a task that is read once if it is repeated."""


class ReadTask(NamedTuple):
    """What the part of a frame says that is the same wherever its copies are."""

    more: MoreOfTask
    task: TaskPayloadWire
    sizes: list[int]
    """The bytes of each tensor."""
    is_configured: bool
    """Whether its configuration is another one than that of a run without."""


@dataclass(frozen=True)
class ReceivedTask:
    """A task as its frame has it: what the session is to do with copies, and the rest as bytes."""

    sequence: int
    is_plain: bool
    copies: TaskCopies
    after: Sequence[int] = ()

    @property
    def raw(self) -> bytes:
        """What `read` reads."""
        return self.copies.more

    def read(self) -> ReadTask:
        """Return what it says beside its copies."""
        return read_task(self.is_plain, self.raw)

    def tensors(self, count: int) -> Sequence[CopiedTensor]:
        """Return what is said of the copies of its tensors."""
        return self.copies.tensors or (CopiedTensor(),) * count


class TaskEnd(NamedTuple):
    """How a task has ended: what the COMPLETION says."""

    sequence: int
    outcome: int
    text: str = ""


def receive_task(frame: Frame) -> ReceivedTask:
    """Return the task of a frame."""
    kind, payload, sequence = frame.header.frame_type, frame.payload, frame.header.sequence
    if kind == OwnFrameType.TASK_COPIES:
        return ReceivedTask(sequence, False, TASK_COPIES.decode(payload))
    if kind == OwnFrameType.TASK_AFTER:
        told = TASK_AFTER.decode(payload)
        return ReceivedTask(sequence, False, told, told.after)
    return ReceivedTask(sequence, kind == FrameType.TASK, TaskCopies(0, payload, ()))


def read_task(is_plain: bool, raw: bytes) -> ReadTask:
    """Return what the frame of a task says: a TASK is plain, others have more."""
    return (_read if len(raw) > MOST_KEPT_BYTES else _read_small)(is_plain, raw)


def _read(is_plain: bool, raw: bytes) -> ReadTask:
    more = MoreOfTask(raw, b"", b"") if is_plain else TASK_MORE.decode(raw)
    task = decode_task_payload(more.task)
    sizes = [one.nbytes() for one in task.args.tensors]
    return ReadTask(more, task, sizes, bool(more.env) or task.config != CallConfig())


_read_small = lru_cache(maxsize=256)(_read)
"""The same for those that are often repeated."""


def copy_at(address: int, tensor: ContinuousTensor, layout: str) -> ContinuousTensor:
    """Return a tensor whose copy is at an address."""
    if layout:
        return DescribedTensor(address, read_layout(layout, tensor.nbytes()))
    return ContinuousTensor(address, tensor.shapes, tensor.dtype)


def add_scalars(args: TaskArgs, read: ReadTask) -> None:
    """Add the scalars of a task to its arguments, behind the tensors."""
    scalars = read.task.args.scalars
    kinds = read.more.kinds or bytes((L.RAW,)) * len(scalars)
    if scalars:
        args._scalars = [
            word.to_bytes(8, "little") + kind.to_bytes(8, "little")
            for word, kind in zip(scalars, kinds, strict=True)
        ]
