"""The tasks of a session, and their tensors: how they come to run on its inner Worker.

Rule     ORCH-CHECK-7; REMOTE-ARGS-3; REMOTE-MEM-3, -4; REMOTE-COPY-2; REMOTE-AHEAD-7 to -9;
         REMOTE-FAIL-1, -2; REMOTE-PART-1; SPEED-PARTS-1, -6
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import RuntimeEnv
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor
from ..workers.reports import cut_utf8, describe_exception
from .buffers import RemoteAddressSpace
from .copies import (
    OPEN_COPIES,
    WANTED_COPIES,
    ComingCopies,
    Copies,
    WantedCopies,
    outcome_of,
)
from .dispatcher import Dispatcher, InnerCallable
from .fail_points import fail_point
from .frames import CompletionPayload, Frame, OwnFrameType
from .limits import (
    MAX_STRING_BYTES,
    REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_READ_WRITE,
    REMOTE_BUFFER_ACCESS_WRITE,
)
from .part_runs import Parts
from .parts import PART_RUN
from .reports import report_of
from .served import Served
from .stores import Stores
from .task_messages import RUN, FailedTasks, ReceivedTask, add_scalars, copy_at, receive_task
from .windows import Refusal

if TYPE_CHECKING:
    from .far_leaves import LeafTasks


_READ = TensorArgType.INPUT
_TAGS = {
    REMOTE_BUFFER_ACCESS_READ: TensorArgType.INPUT,
    REMOTE_BUFFER_ACCESS_WRITE: TensorArgType.OUTPUT_EXISTING,
    REMOTE_BUFFER_ACCESS_READ_WRITE: TensorArgType.INOUT,
}
"""What tags say of rights."""


@dataclass(eq=False)
class SessionTasks:
    """Runs the tasks, and the parts of graphs, that the frames of a session bring.

    Attributes
    ----------
    session_id : int
        The session's number, which only its parent knows.
    has_several : bool
        Whether sub workers can run tasks side by side.
    is_over : Callable
        Says whether the session ends: an error is about that then, and no task's.
    inner : Worker
        What runs them, one by one.
    failed : FailedTasks
        Which ones have failed.
    dispatcher, copies, stores : Dispatcher, Copies, Stores
        The session's callables, copies of tensors, and buffers.
    served, leaves, parts : Served, LeafTasks, Parts
        What sends outcomes; what runs tasks side by side, and parts of graphs.
    """

    session_id: int
    has_several: bool
    is_over: Callable[[], object]
    inner: Any
    failed: FailedTasks
    dispatcher: Dispatcher
    copies: Copies
    stores: Stores
    served: Served
    leaves: LeafTasks
    parts: Parts

    def serve(self, frame: Frame) -> None:
        """Run a task, or a part of a graph, and send its outcome; or have it run beside other ones."""
        outcome: int | None = L.SUCCESS
        sequence, text = frame.header.sequence, ""
        is_part = frame.header.frame_type == OwnFrameType.RUN_PART
        try:
            outcome = (self._run_part if is_part else self._take_up)(frame)
        except BaseException as error:
            if self.is_over():
                raise
            outcome, text = outcome_of(error), report_of(error)
        if outcome is not None:
            self.failed.note(sequence, outcome)
            self.served.complete(CompletionPayload(sequence, outcome, text))

    def _take_up(self, frame: Frame) -> int | None:
        """Run a task, unless one that it waits for has failed, and return its outcome.

        Those for sub workers, if there are several, run while the session serves other frames: it is None
        then. Others run alone, which costs less.
        """
        task = receive_task(frame)
        if self.failed.has_any(task.told.after):
            return L.SKIPPED
        fail_point("decoded")
        target = self.dispatcher.find(task.read.task.callable_digest)
        if self.has_several and self.leaves.takes(task, target):
            self.leaves.begin(task, target)
            return None
        self.served.settle()
        return self._run(task, target)

    def _run(self, task: ReceivedTask, target: Any) -> int:
        """Run a task that no other one runs beside, and return SUCCESS, or SKIPPED."""
        told, tensors = task.told, task.tensors
        if self.failed.has_any(told.after):
            return L.SKIPPED
        if told.run:
            self.copies.begin(told.run)
            self.copies.drop(told.dropped)
        addresses = self.copies.take(tensors, task.read.sizes)
        fail_point("taken")
        succeeded = False
        try:
            args, after, kept = self._arguments(task, addresses)
            config = None
            if task.is_configured:
                config = copy(task.read.task.config)
                if told.env:
                    config.runtime_env = RuntimeEnv.from_bytes(told.env)
            function = target.submit if isinstance(target, InnerCallable) else target
            self.inner.run(function, args, config)
            fail_point("ran")
            del kept
            for put_back in after:
                put_back()
            succeeded = True
        finally:
            self.copies.settle(tensors, succeeded)
        fail_point("settled")
        return L.SUCCESS

    def _run_part(self, frame: Frame) -> int:
        """Run a part of a graph, and return its outcome."""
        told = RUN.decode(frame.payload)
        asked = PART_RUN.decode(told.task)
        self.served.settle()
        self.copies.begin(told.run)
        self.copies.drop(told.dropped)
        self.parts.run(told, asked)
        return L.SUCCESS

    # ------------------------------------------------------------ their tensors
    def open_copies(self, frame: Frame) -> bytes:
        """Make room for what the parent is about to store."""
        return self._wanted(frame.header.sequence, frame.payload, self.copies.open)

    def open_early(self, key: int, question: bytes) -> bytes:
        """Do the same on the mover's thread, while the main thread runs a task."""
        if key != self.session_id:
            raise Refusal("it is not from the parent of this session")
        return self._wanted(0, question, self.copies.open_early)

    def _wanted(
        self, sequence: int, question: bytes, opened: Callable[[ComingCopies], list[int]]
    ) -> bytes:
        wanted: list[int] = []
        text = ""
        fail_point("coming")
        try:
            wanted = opened(OPEN_COPIES.decode(question))
        except BaseException as error:
            if self.is_over():
                raise
            told = str(error) if isinstance(error, MemoryError) else ""  # the link raises one, too
            text = cut_utf8(told or describe_exception(error), MAX_STRING_BYTES).decode()
        return WANTED_COPIES.encode(WantedCopies(sequence, tuple(wanted), text))

    def _arguments(
        self, task: ReceivedTask, addresses: Sequence[int]
    ) -> tuple[TaskArgs, list[Callable[[], None]], list[Any]]:
        """Return the arguments with tensors of this machine, what to do after the task, what to keep.

        `addresses` has those of copies, and 0 for other tensors.

        The sub workers of an inner Worker with ``check=True`` see to it that a task keeps to its rights.
        """
        wire = task.read.task.args
        rights = task.told.rights or bytes((REMOTE_BUFFER_ACCESS_READ_WRITE,)) * len(wire.tensors)
        tags = [_TAGS[one] for one in rights] if self.inner.check else [_READ] * len(rights)
        args, after, kept = TaskArgs(), [], []
        for i, (tensor, beside) in enumerate(zip(wire.tensors, wire.sidecars, strict=True)):
            if addresses[i]:
                args.add_tensor(copy_at(addresses[i], tensor, task.tensors[i].layout), tags[i])
                continue
            desc = beside.desc
            if desc is None:
                raise ValueError(f"tensor {i} says not where its memory is")
            if desc.nbytes != tensor.nbytes():
                raise ValueError(
                    f"tensor {i} has {tensor.nbytes()} bytes, its descriptor {desc.nbytes}"
                )
            if desc.address_space == RemoteAddressSpace.HOST_INLINE:
                array = self.copies.empty(max(1, desc.nbytes))
                begin = desc.inline_payload_offset
                raw = wire.inline_arena[begin : begin + desc.nbytes]
                array[: desc.nbytes] = np.frombuffer(raw, np.uint8)
                kept.append(array)
                address = array.ctypes.data
            elif desc.address_space == RemoteAddressSpace.REMOTE_DEVICE:
                address = self.stores.address_of(desc)
            else:
                address, put_back = self.stores.fetch(desc, rights[i])
                after.append(put_back)
            args.add_tensor(ContinuousTensor(address, tensor.shapes, tensor.dtype), tags[i])
        add_scalars(args, wire.scalars, task.told.kinds)
        return args, after, kept
