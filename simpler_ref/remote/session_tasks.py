"""What a session runs: tasks and their tensors, lists of tasks, calls; alone, or side by side.

Rule     CALL-FAR-1, -12; ORCH-CHECK-7; REMOTE-ARGS-3; REMOTE-MEM-3, -4; REMOTE-COPY-2, -13;
         REMOTE-AHEAD-7 to -9; REMOTE-FAIL-1, -2; REMOTE-LIST-1; SPEED-LIST-1, -6
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
from .far_leaves import LeafTasks
from .far_side import FarCalls
from .frames import (
    TASK_FRAMES,
    CompletionPayload,
    Frame,
    FrameType,
    OwnFrameType,
    encode_completion,
)
from .limits import (
    MAX_STRING_BYTES,
    REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_READ_WRITE,
    REMOTE_BUFFER_ACCESS_WRITE,
)
from .list_runs import Lists
from .lists import LIST_OPENED, OPEN_LIST, RUN_LIST, ListOpened
from .lookout import Lookout
from .manifest import Manifest
from .mover import Mover
from .reports import report_of
from .session_frames import SessionFrames
from .stores import Stores
from .task_messages import FailedTasks, ReceivedTask, add_scalars, copy_at, receive_task
from .windows import Refusal

FRAMES = (
    *TASK_FRAMES,
    *(OwnFrameType.TASK_CALL, OwnFrameType.VALUE_TAKEN),
    *(OwnFrameType.OPEN_COPIES, OwnFrameType.OPEN_LIST),
)
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
    """Runs the tasks, lists of tasks and calls that the frames of a session bring, and answers them.

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
    dispatcher, copies, stores, mover, lists
        The session's callables, copies of tensors, buffers, transfers, and lists of tasks.
    """

    def __init__(
        self,
        manifest: Manifest,
        frames: SessionFrames,
        inner: Any,
        dispatcher: Dispatcher,
        copies: Copies,
        stores: Stores,
        mover: Mover,
        lists: Lists,
    ) -> None:
        self._session_id, self._frames, self._inner = manifest.session_id, frames, inner
        self._has_several = manifest.worker.get("num_sub_workers", 1) > 1 and not inner.check
        self._dispatcher, self._copies, self._stores = dispatcher, copies, stores
        self._lists, self._failed = lists, FailedTasks()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        """Wakes this thread when tensors of a task have been fetched."""
        self._calls = FarCalls(inner._stream, dispatcher, copies, mover)
        self._leaves = LeafTasks(
            inner._stream,
            copies,
            self._failed,
            ThreadPoolExecutor(FETCHERS, "simpler-fetch"),
            partial(os.eventfd_write, self._bell, 1),
        )
        self._descriptors = *frames.descriptors(), self._bell
        self._lookout = Lookout(
            partial(wait_readable, frames.descriptors()), self._calls.stop_waiting
        )

    def end(self) -> None:
        """End the threads; the one that looks out has seen that the session ends, too. Forget values."""
        self._lookout.end(lambda: None)
        self._lists.close()
        self._leaves.end()
        self._calls.close()

    def counts(self) -> dict[str, int]:
        """Return how many values of calls are kept, and where they came from."""
        return self._calls.counts()

    # ------------------------------------------------------------ frames
    def serve(self, frame: Frame) -> None:
        """Serve one of `FRAMES`."""
        kind = frame.header.frame_type
        if kind in TASK_FRAMES:
            self._serve_task(frame)
        elif kind == OwnFrameType.TASK_CALL:
            self._begin_call(frame)
        elif kind == OwnFrameType.VALUE_TAKEN:
            self._calls.forget_value(frame.payload)
        elif kind == OwnFrameType.OPEN_LIST:
            self._frames.send(kind, self._open_list(frame))
        else:
            answer = self._wanted(frame.header.sequence, frame.payload, self._copies.open)
            self._frames.send(kind, answer)

    def _serve_task(self, frame: Frame) -> None:
        """Run a task, or a list of them, and send its outcome; or have it run beside other ones."""
        outcome: int | None = L.SUCCESS
        sequence, text = frame.header.sequence, ""
        is_list = frame.header.frame_type == OwnFrameType.RUN_LIST
        try:
            outcome = (self._run_list if is_list else self._take_up)(frame)
        except BaseException as error:
            if self._frames.over:
                raise
            outcome, text = outcome_of(error), report_of(error)
        if outcome is not None:
            self._failed.note(sequence, outcome)
            self._complete(CompletionPayload(sequence, outcome, text))

    def _begin_call(self, frame: Frame) -> None:
        """Begin a call; if that cannot be done, answer why."""
        try:
            self._calls.begin(frame.payload, frame.header.sequence)
        except BaseException as error:
            if self._frames.over:
                raise
            self._answer(self._calls.failure(error, frame.header.sequence))

    def _complete(self, end: CompletionPayload) -> None:
        """Send how a task has ended."""
        raw = encode_completion(end.sequence, end.error_code, end.error_message)
        self._frames.send(FrameType.COMPLETION, raw)
        fail_point("completed")

    def _answer(self, answer: bytes) -> None:
        self._frames.send(OwnFrameType.TASK_CALL, answer)
        fail_point("completed")

    # ------------------------------------------------------------ those that run side by side
    @property
    def _is_busy(self) -> bool:
        return bool(self._calls.running) or self._leaves.is_busy

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

    def wait_for_room(self) -> bool:
        """Wait until one may have ended, whose tensors need not stay; return False if none runs."""
        if not self._is_busy:
            return False
        self._wait(for_frames=False)
        self._answer_ended()
        return True

    def _wait(self, for_frames: bool) -> None:
        """Wait until one may have ended, or go on, or a frame is there."""
        if self._calls.running or self._leaves.has_calls:
            self._calls.wait(self._lookout if for_frames else None, self._leaves.has_news)
        else:
            wait_readable(self._descriptors if for_frames else self._descriptors[1:])

    def _answer_ended(self) -> None:
        if self._calls.running or self._leaves.has_calls:
            for answer in self._calls.answers():
                self._answer(answer)
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        for end in self._leaves.ends():
            self._complete(end)

    # ------------------------------------------------------------ one task
    def _take_up(self, frame: Frame) -> int | None:
        """Run a task, unless one that it waits for has failed, and return its outcome.

        Those for sub workers, if there are several, run while the session serves other frames: it is None
        then. Others run alone, which costs less.
        """
        task = receive_task(frame)
        if self._failed.has_any(task.told.after):
            return L.SKIPPED
        fail_point("decoded")
        target = self._dispatcher.find(task.read.task.callable_digest)
        if self._has_several and self._leaves.takes(task, target):
            self._leaves.begin(task, target)
            return None
        self._settle()
        return self._run(task, target)

    def _run(self, task: ReceivedTask, target: Any) -> int:
        """Run a task that no other one runs beside, and return SUCCESS, or SKIPPED."""
        told, tensors = task.told, task.tensors
        if self._failed.has_any(told.after):
            return L.SKIPPED
        if told.run:
            self._copies.begin(told.run)
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

    def _run_list(self, frame: Frame) -> int:
        """Carry a task list out, and return its outcome."""
        self._lists.run(RUN_LIST.decode(frame.payload))
        return L.SUCCESS

    def _open_list(self, frame: Frame) -> bytes:
        """Make room for a replay of a task list, and return the answer."""
        text = ""
        try:
            self._settle()
            self._lists.open(OPEN_LIST.decode(frame.payload))
        except BaseException as error:
            if self._frames.over:
                raise
            text = cut_utf8(describe_exception(error), MAX_STRING_BYTES).decode()
        return LIST_OPENED.encode(ListOpened(frame.header.sequence, text))

    # ------------------------------------------------------------ their tensors
    def open_early(self, key: int, question: bytes) -> bytes:
        """Answer OPEN_COPIES on the mover's thread, while the main thread runs a task."""
        if key != self._session_id:
            raise Refusal("it is not from the parent of this session")
        return self._wanted(0, question, self._copies.open_early)

    def _wanted(
        self, sequence: int, question: bytes, opened: Callable[[ComingCopies], list[int]]
    ) -> bytes:
        """Make room for what the parent is about to store."""
        wanted: list[int] = []
        text = ""
        fail_point("coming")
        try:
            wanted = opened(OPEN_COPIES.decode(question))
        except BaseException as error:
            if self._frames.over:
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
        tags = [_TAGS[one] for one in rights] if self._inner.check else [_READ] * len(rights)
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
                array = self._copies.empty(max(1, desc.nbytes))
                begin = desc.inline_payload_offset
                raw = wire.inline_arena[begin : begin + desc.nbytes]
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
