"""A worker's end of its mailboxes: the view of one, and the arguments that stand in it."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from ..engine.memory import Engine
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from ..model.enums import TensorArgType
from ..model.scalars import as_float, as_it_went_in
from ..model.tensor import ContinuousTensor
from ..model.wire import COUNTS_BYTES, SCALAR_BYTES, TENSOR_BYTES

_COUNTS = struct.Struct("<ii")
_TENSORS_AT = L.MAILBOX_OFF_ARGS + COUNTS_BYTES


class ReceivedArgs(TaskArgs):
    """The arguments of the running task, read where the mailbox has them.

    They are valid during the call: what a callable wants to keep, it copies.

    Rule     FLOW-VIEW-1 to -3; FLOW-SCALAR-1 to -3; SCHED-MAIL-5, -6
    """

    __slots__ = ("_box",)

    _box: Any

    def _counts(self) -> tuple[int, int]:
        if self._box is None:
            raise RuntimeError(
                "these TaskArgs belong to a task that has ended; copy what you need while it runs"
            )
        tensors, scalars = _COUNTS.unpack_from(self._box, L.MAILBOX_OFF_ARGS)
        used = COUNTS_BYTES + tensors * TENSOR_BYTES + scalars * SCALAR_BYTES
        if tensors < 0 or scalars < 0 or used > L.MAILBOX_ARGS_CAPACITY:
            raise RuntimeError(
                f"the mailbox holds {tensors} tensors and {scalars} scalars, {used} bytes, but has "
                f"room for {L.MAILBOX_ARGS_CAPACITY}"
            )
        return tensors, scalars

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`."""
        tensors, _ = self._counts()
        if not 0 <= i < tensors:
            raise IndexError(f"tensor index {i} is out of range: there are {tensors}")
        start = _TENSORS_AT + i * TENSOR_BYTES
        return ContinuousTensor._from_wire(bytes(self._box[start : start + TENSOR_BYTES]))

    def _scalar(self, i: int) -> tuple[bytes, int]:
        """Return the 64 bits of a scalar, and its kind from beside the mailbox; RAW without that."""
        tensors, scalars = self._counts()
        if not 0 <= i < scalars:
            raise IndexError(f"scalar index {i} is out of range: there are {scalars}")
        start = _TENSORS_AT + tensors * TENSOR_BYTES + i * SCALAR_BYTES
        kind = self._box[L.MAILBOX_SIZE + i] if len(self._box) > L.MAILBOX_SIZE else L.RAW
        return bytes(self._box[start : start + SCALAR_BYTES]), kind

    def _all_scalars(self) -> list[tuple[bytes, int]]:
        return [self._scalar(i) for i in range(self.scalar_count())]

    def scalar(self, i: int) -> int | float:
        """Return scalar `i` as it was added; see `TaskArgs.scalar`."""
        return as_it_went_in(*self._scalar(i))

    def scalar_float(self, i: int) -> float:
        """Return scalar `i` as a float; see `TaskArgs.scalar_float`."""
        return as_float(*self._scalar(i))

    def config(self) -> CallConfig:
        """Return the configuration that the task was submitted with."""
        self._counts()
        start = L.MAILBOX_OFF_CONFIG
        return CallConfig.from_bytes(bytes(self._box[start : start + L.CALL_CONFIG_SIZE]))

    def tag(self, i: int) -> TensorArgType:
        """Refuse: there are no tags here."""
        raise RuntimeError("tags are read by submit and do not travel to the worker")

    def tensor_count(self) -> int:
        """Return the number of tensors."""
        return self._counts()[0]

    def scalar_count(self) -> int:
        """Return the number of scalars."""
        return self._counts()[1]

    def __len__(self) -> int:
        return sum(self._counts())

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("the arguments of a running task cannot be changed")

    add_tensor: Any = _refuse
    add_scalar: Any = _refuse
    set_tag: Any = _refuse
    clear: Any = _refuse


class MailboxView(NamedTuple):
    """A worker's words: its mailboxes and what lies beside them."""

    engine: Engine
    worker: int

    @property
    def start(self) -> int:
        """First word of the worker."""
        mem = self.engine.mem
        return int(mem[L.A_WORKERS] + self.worker * mem[L.WORKER_STRIDE])

    @property
    def depth(self) -> int:
        """How many frames there are: tasks that the worker may be given at once."""
        return int(self.engine.mem[L.DEPTH])

    @property
    def served(self) -> int:
        """Number of the frame that the worker is at, as it sees it."""
        return int(self.engine.mem[self.start + L.W_AT]) // L.WORKER_WORDS

    @property
    def awaited(self) -> int:
        """Number of the frame that the worker waits for when it has no task, as its parent sees it."""
        return int(self.engine.mem[self.start + L.W_TAIL]) // L.WORKER_WORDS

    def box(self, frame: int) -> memoryview:
        """Return the mailbox of a frame, `MAILBOX_SIZE` bytes, and the kinds of its task's scalars."""
        return self._octets(frame, L.W_MAILBOX, L.W_TRACE)

    def trace(self, frame: int) -> memoryview:
        """Return the side region of a frame, for tracebacks."""
        return self._octets(frame, L.W_TRACE, L.WORKER_WORDS)

    def _octets(self, frame: int, first: int, end: int) -> memoryview:
        view = self.engine.mem.view(np.uint8)
        start = self.start + frame * L.WORKER_WORDS
        octets: memoryview = view[8 * (start + first) : 8 * (start + end)].data
        return octets

    def address(self, frame: int, offset: int) -> int:
        """Return the address of a byte of a frame's mailbox."""
        base: int = self.engine.mem.ctypes.data
        return base + 8 * (self.start + frame * L.WORKER_WORDS + L.W_MAILBOX) + offset

    def add_device_time(self, ns: int) -> None:
        """Count time that a chip spent on a task."""
        self.engine.mem[self.start + L.W_DEVICE_NS] += ns


def digest_in(box: memoryview, offset: int = L.MAILBOX_OFF_DIGEST) -> bytes:
    """Return the digest that stands in a mailbox."""
    return bytes(box[offset : offset + L.CALLABLE_HASH_DIGEST_BYTES])
