"""What a session runs: tasks and their tensors, calls; alone, or side by side.

Rule     CALL-FAR-1, ORCH-CHECK-7, REMOTE-ARGS-3, REMOTE-MEM-3, REMOTE-MEM-4, REMOTE-COPY-2,
         REMOTE-AHEAD-7, REMOTE-AHEAD-8, REMOTE-AHEAD-9, REMOTE-FAIL-1, REMOTE-FAIL-2
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import RuntimeEnv
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor
from ..system.polling import wait_readable
from ..system.types import Array
from ..workers.reports import cut_utf8, describe_exception
from .buffers import RemoteAddressSpace
from .copies import OPEN_COPIES, WANTED_COPIES, Copies, WantedCopies, outcome_of
from .dispatcher import Dispatcher, InnerCallable
from .fail_points import fail_point
from .frames import TASK_FRAMES, Frame, OwnFrameType
from .limits import (
    MAX_STRING_BYTES,
    REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_READ_WRITE,
    REMOTE_BUFFER_ACCESS_WRITE,
)
from .manifest import Manifest
from .session_calls import SessionCalls, end_of_call, failure_of
from .session_frames import SessionFrames
from .side_by_side import End, SideBySide, completion
from .stores import Stores
from .task_messages import (
    VALUE_TAKEN,
    FailedTasks,
    ReceivedTask,
    Run,
    add_scalars,
    copy_at,
    read_run,
    receive_task,
)
from .waiting_thread import WaitingThread
from .windows import Refusal

FRAMES = (*TASK_FRAMES, OwnFrameType.VALUE_TAKEN)
"""Those that `SessionTasks` serves."""
FETCHERS = 4
"""Threads that fetch what tasks read from other endpoints."""
_READ = TensorArgType.INPUT
_TAGS = {
    REMOTE_BUFFER_ACCESS_READ: TensorArgType.INPUT,
    REMOTE_BUFFER_ACCESS_WRITE: TensorArgType.OUTPUT_EXISTING,
    REMOTE_BUFFER_ACCESS_READ_WRITE: TensorArgType.INOUT,
}
"""What tags say of rights."""


class SessionTasks:
    """Runs the tasks and calls that the frames of a session bring, and answers them.

    A call begins when its frame comes, and so does a task that may run beside others; they are answered
    when they have ended. Meanwhile the main thread, which this is for, looks for other frames.

    Parameters
    ----------
    manifest
        What the parent has handed over.
    frames
        From the parent, and to it.
    inner : Worker
        What runs all of it.
    dispatcher, copies, stores
        The session's callables, copies of tensors, and buffers.
    """

    def __init__(
        self,
        manifest: Manifest,
        frames: SessionFrames,
        inner: Any,
        dispatcher: Dispatcher,
        copies: Copies,
        stores: Stores,
    ) -> None:
        self._session_id, self._frames, self._inner = manifest.session_id, frames, inner
        self._has_several = manifest.worker.get("num_sub_workers", 1) > 1 and not inner.check
        self._dispatcher, self._copies, self._stores = dispatcher, copies, stores
        self._failed = FailedTasks()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        """Wakes this thread when tensors of a task have been fetched."""
        self._calls = SessionCalls(inner._stream, dispatcher, copies)
        self._beside = SideBySide(
            inner._stream,
            copies,
            self._failed,
            ThreadPoolExecutor(FETCHERS, "simpler-fetch"),
            partial(os.eventfd_write, self._bell, 1),
        )
        self._descriptors = *frames.descriptors(), self._bell
        self._lookout = WaitingThread(
            partial(wait_readable, frames.descriptors()), self._beside.stop_waiting
        )

    def end(self) -> None:
        """End the threads; the one that looks out has seen that the session ends, too. Forget values."""
        self._lookout.end(lambda: None)
        self._beside.end()
        self._copies.forget_values()

    # ------------------------------------------------------------ frames
    def serve(self, frame: Frame) -> None:
        """Serve one of `FRAMES`."""
        kind = frame.header.frame_type
        if kind == OwnFrameType.VALUE_TAKEN:
            self._copies.drop([VALUE_TAKEN.decode(frame.payload).key])
        else:
            self._serve_task(frame)

    def _serve_task(self, frame: Frame) -> None:
        """Run a task, and send its outcome; or have it run beside other ones."""
        sequence = frame.header.sequence
        try:
            end = self._take_up(frame)
        except BaseException as error:
            if self._frames.over:
                raise
            end = completion(sequence, outcome_of(error), error)
        if end is not None:
            self._failed.note(sequence, end.outcome)
            self._tell(end)

    def _tell(self, end: End) -> None:
        self._frames.send(end.kind, end.payload)
        fail_point("completed")

    # ------------------------------------------------------------ those that run side by side
    @property
    def _is_busy(self) -> bool:
        return self._beside.is_busy

    def answer_all(self) -> bool:
        """Answer what has ended; if no frame is there, wait for others to end.

        Returns whether there is a frame, or nothing to wait for.
        """
        if not self._is_busy:
            return True
        self._answer_ended()
        if not self._is_busy or self._frames.has_frame():
            return True
        self._wait(for_frames=True)
        return False

    def _settle(self) -> None:
        """Answer all, and serve no frame before: what comes next runs alone."""
        while self._is_busy and not self._frames.over:
            self._answer_ended()
            if self._is_busy:
                self._wait(for_frames=False)

    def memory(self, nbytes: int) -> Array:
        """Return memory that tasks see, if need be once those that run have made room."""
        while True:
            try:
                return self._copies.empty(nbytes)
            except MemoryError:
                if not self._is_busy:
                    raise
            self._wait(for_frames=False)
            self._answer_ended()

    def _wait(self, for_frames: bool) -> None:
        """Wait until one may have ended, or go on, or a frame is there."""
        if self._beside.has_calls:
            self._beside.wait(self._lookout if for_frames else None)
        else:
            wait_readable(self._descriptors if for_frames else self._descriptors[1:])

    def _answer_ended(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        for end in self._beside.ends():
            self._tell(end)

    # ------------------------------------------------------------ one task
    def _take_up(self, frame: Frame) -> End | None:
        """Run a task, unless one that it waits for has failed, and return its end.

        Calls run while the session serves other frames, and so do tasks for sub workers, if there are
        several: it is None then. Others run alone, which costs less.
        """
        sequence, told = frame.header.sequence, read_run(frame)
        if told.run:
            self._copies.begin(told.run)
        if told.call:
            return self._begin_call(sequence, told)
        self._copies.put(told.tensors)
        task = receive_task(sequence, told)
        if self._failed.has_any(told.after):
            return completion(sequence, L.SKIPPED)
        fail_point("decoded")
        target = self._dispatcher.find(task.read.task.callable_digest)
        if self._has_several and self._beside.takes(task, target):
            self._beside.begin_task(task, target)
            return None
        self._settle()
        return completion(sequence, self._run(task, target))

    def _begin_call(self, sequence: int, told: Run) -> End | None:
        try:
            self._beside.begin(self._calls.work(sequence, told))
        except BaseException as error:
            if self._frames.over:
                raise
            return end_of_call(failure_of(error, sequence))
        return None

    def _run(self, task: ReceivedTask, target: Any) -> int:
        """Run a task that no other one runs beside, and return SUCCESS, or SKIPPED."""
        told, tensors = task.told, task.tensors
        if self._failed.has_any(told.after):
            return L.SKIPPED
        self._copies.drop(told.dropped)
        addresses = self._copies.take(tensors, task.read.sizes)
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
            self._inner.run(function, args, config)
            fail_point("ran")
            del kept
            for put_back in after:
                put_back()
            succeeded = True
        finally:
            self._copies.settle(tensors, succeeded)
        fail_point("settled")
        return L.SUCCESS

    # ------------------------------------------------------------ their tensors
    def open_copies(self, key: int, question: bytes) -> bytes:
        """Make room for what the parent is about to store; the thread of the mover is told that."""
        if key != self._session_id:
            raise Refusal("it is not from the parent of this session")
        wanted: list[int] = []
        text = ""
        fail_point("coming")
        try:
            wanted = self._copies.open(OPEN_COPIES.decode(question))
        except BaseException as error:
            if self._frames.over:
                raise
            told = str(error) if isinstance(error, MemoryError) else ""  # the link raises one, too
            text = cut_utf8(told or describe_exception(error), MAX_STRING_BYTES).decode()
        return WANTED_COPIES.encode(WantedCopies(tuple(wanted), text))

    def _arguments(
        self, task: ReceivedTask, addresses: Sequence[int]
    ) -> tuple[TaskArgs, list[Callable[[], None]], list[Any]]:
        """Return the arguments with tensors of this machine, what to do after the task, what to keep.

        `addresses` has those of copies, and 0 for other tensors.

        The sub workers of an inner Worker with ``check=True`` see to it that a task keeps to its rights.
        """
        wire = task.read.task.args
        rights = task.told.rights or bytes((REMOTE_BUFFER_ACCESS_READ_WRITE,)) * len(
            wire.tensor_metadata
        )
        tags = [_TAGS[one] for one in rights] if self._inner.check else [_READ] * len(rights)
        args, after, kept = TaskArgs(), [], []
        for i, (tensor, beside) in enumerate(
            zip(wire.tensor_metadata, wire.remote_desc, strict=True)
        ):
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
                array = self._copies.empty(max(1, desc.nbytes))
                begin = desc.inline_payload_offset
                raw = wire.inline_payload[begin : begin + desc.nbytes]
                array[: desc.nbytes] = np.frombuffer(raw, np.uint8)
                kept.append(array)
                address = array.ctypes.data
            elif desc.address_space == RemoteAddressSpace.REMOTE_DEVICE:
                address = self._stores.address_of(desc)
            else:
                address, put_back = self._stores.fetch(desc, rights[i])
                after.append(put_back)
            args.add_tensor(ContinuousTensor(address, tensor.shapes, tensor.dtype), tags[i])
        add_scalars(args, wire.scalars, task.told.kinds)
        return args, after, kept
