"""What a session runs: tasks and their tensors, calls; alone, or side by side.

A call is packed once, on the parent's machine: the session puts its own function, its copies and its
blocks of values in place of those that the link had, and unpickles nothing.

Rule     CALL-FAR-1, CALL-FAR-5, CALL-FAR-6, CALL-FAR-7, CALL-FAR-8, CALL-KEEP-1, CALL-KEEP-2,
         ORCH-CHECK-7, REMOTE-ARGS-3, REMOTE-MEM-3, REMOTE-MEM-4, REMOTE-COPY-2, REMOTE-AHEAD-7,
         REMOTE-AHEAD-8, REMOTE-AHEAD-9, REMOTE-FAIL-1, REMOTE-FAIL-2
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..callables.runnable import refuse_unrun
from ..calls import outcomes
from ..calls.arguments import ARRAY, INNER_ARRAY, READ_ARRAY, form_of
from ..calls.futures import Future, Lease
from ..calls.signatures import Signature
from ..calls.tasks import Task
from ..engine.view.blocks import data_of
from ..errors import CallableError
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import CallConfig, RuntimeEnv
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor, view_memory
from ..model.wire import SHAPE_AT
from ..system.polling import WaitingThread, wait_readable
from ..system.types import Array, address_of
from ..workers.kinds import as_leaf
from . import limits
from . import task_messages as messages
from .controls import AGREE, Dispatcher, InnerCallable, Stores
from .copies import COMING, CopiedTensor, Copies, outcome_of
from .fleets import Manifest
from .frames import Frame, FrameType, OwnFrameType, encode_completion
from .lists import REPLAY, PlayedPart, Replay, Replaying
from .mover import Mover, Refusal, new_key
from .session_frames import SessionFrames, cut_report
from .side_by_side import SideBySide, Work
from .tasks import RemoteAddressSpace, read_layout, size_of

if TYPE_CHECKING:
    from ..calls.stream import Stream

FRAMES = FrameType.TASK, OwnFrameType.RUN, OwnFrameType.VALUE_TAKEN
"""Those that `SessionTasks` serves."""
MORE_ROOM = "RemoteWorkerSpec(options={'arena_size': …})"
_READ = TensorArgType.INPUT
_TAGS = {
    limits.REMOTE_BUFFER_ACCESS_READ: TensorArgType.INPUT,
    limits.REMOTE_BUFFER_ACCESS_WRITE: TensorArgType.OUTPUT_EXISTING,
    limits.REMOTE_BUFFER_ACCESS_READ_WRITE: TensorArgType.INOUT,
}
"""What tags say of rights."""
_U64 = (1 << 64) - 1
_BLOCK = L.FETCHED | L.VALUE_BLOCK
_KINDS = {L.SIGNED, L.FLOAT64, *range(L.FETCHED, _BLOCK + 1)}
"""Those of words in calls: of nothing else on this machine."""


class LeafArgs(TaskArgs):
    """The arguments of a task that a sub worker runs as a call."""

    __slots__ = ()

    def config(self) -> CallConfig:
        """Return the configuration: that of a run without."""
        return CallConfig()


class RunLeaf:
    """What a sub worker is given for a task: it makes the arguments, and calls the function."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target

    def __call__(
        self, raw: bytes, kinds: bytes, addresses: Sequence[int], layouts: Sequence[str]
    ) -> None:
        """Run a task that a frame has as `raw`, with its copies at some addresses."""
        told, args = messages.read_task(raw).task.args, LeafArgs()
        for address, tensor, layout in zip(addresses, told.tensor_metadata, layouts, strict=True):
            args.add_tensor(messages.copy_at(address, tensor, layout))
        messages.add_scalars(args, told.scalars, kinds)
        refuse_unrun(as_leaf(self.target)(args))


class SessionTasks:
    """Runs the tasks and calls that the frames of a session bring, and answers them.

    A call begins when its frame comes, and so does a task that may run beside others; they are answered
    when they have ended. Meanwhile the main thread, which this is for, looks for other frames.
    The Worker `inner` runs all of it.
    """

    def __init__(self, manifest: Manifest, frames: SessionFrames, inner: Any, mover: Mover) -> None:
        self._mover = mover
        self._replaying: Replaying | None = None
        self._session_id, self._frames, self._inner = manifest.session_id, frames, inner
        self._has_several = manifest.worker.get("num_sub_workers", 1) > 1 and not inner.check
        self.copies = Copies(mover, self._empty)
        self.stores = Stores(manifest.endpoint_id, mover, self._memory)
        self.dispatcher = Dispatcher(manifest.modules, manifest.serialized, inner, self.stores)
        self._callees: dict[InnerCallable, Task] = {}
        self._called: dict[tuple[Any, int], Task] = {}
        self._bare: set[int] = set()
        """The numbers of TASKs, which are answered as the documents say."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        """Wakes this thread when tensors of a task have been fetched."""
        self.stream_of: Callable[[], Stream] = inner._stream
        self._beside = SideBySide(
            inner._stream,
            self.copies,
            partial(ThreadPoolExecutor, 1, "simpler-fetch"),
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
        self.copies.forget_values()

    # ------------------------------------------------------------ frames
    def serve(self, frame: Frame) -> None:
        if frame.header.frame_type == OwnFrameType.VALUE_TAKEN:
            self.copies.drop(np.frombuffer(frame.payload, "<u8").tolist())
            return
        sequence, is_bare = frame.header.sequence, frame.header.frame_type == FrameType.TASK
        if is_bare:
            self._bare.add(sequence)
        try:
            raw = frame.payload
            told = messages.Run(raw) if is_bare else messages.RUN.decode(raw)
            if told.run:
                self.copies.begin(told.run)
            self.copies.put(told.tensors)
            make = self._call if told.call else self._replay if told.replay else self._task
            self._beside.begin(make(sequence, told))
        except BaseException as error:
            if self._frames.over:
                raise
            done = messages.failure_of(error, sequence, outcome_of(error))
            self._beside.note(done)
            self._tell(done)

    def _tell(self, done: messages.Done) -> None:
        """Answer a RUN, or a TASK as the documents have it."""
        if done.sequence in self._bare:
            self._bare.remove(done.sequence)
            text = cut_report(done.text.decode(), done.trace.decode()) if done.text else ""
            told = encode_completion(done.sequence, done.outcome, text)
            self._frames.send(FrameType.COMPLETION, told)
        else:
            self._frames.send(OwnFrameType.DONE, messages.DONE.encode(done))

    def answer_all(self) -> bool:
        """Answer what has ended; if no frame is there, wait for others to end.

        Returns whether there is a frame, or nothing to wait for.
        """
        if not self._beside.is_busy:
            return True
        self._answer_ended()
        if not self._beside.is_busy or self._frames.has_frame():
            return True
        self._wait(for_frames=True)
        return False

    def _empty(self, nbytes: int) -> Array:
        """Return memory that tasks see."""
        try:
            made: Array = self._inner.empty((nbytes,), np.uint8)
        except MemoryError as error:
            raise MemoryError(f"{error}, that of an endpoint by {MORE_ROOM}") from None
        return made

    def _memory(self, nbytes: int) -> Array:
        """Return the same, if need be once tasks that run have made room."""
        while True:
            try:
                return self.copies.empty(nbytes)
            except MemoryError:
                if not self._beside.is_busy:
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
    def _task(self, sequence: int, told: messages.Run) -> Work:
        """Return the work that a task is: for a sub worker if there are several, else a run."""
        read = messages.read_task(told.task)
        tensors = told.tensors or (CopiedTensor(),) * len(read.sizes)
        target = None
        if not self._beside.skips(told):
            target = self.dispatcher.find(read.task.callable_digest)
        config = None
        if read.is_configured or told.env:
            config = copy(read.task.config)
            if told.env:
                config.runtime_env = RuntimeEnv.from_bytes(told.env)
        if (
            self._has_several
            and isinstance(target, InnerCallable)
            and target.is_plain
            and config is None
            and all(one.key for one in tensors)
        ):
            return Work(sequence, told, tensors, read.sizes, partial(self._submit, target, told))
        start = partial(self._run, target, config, read, told)
        return Work(sequence, told, tensors, read.sizes, start, is_alone=True)

    def _submit(
        self, target: InnerCallable, told: messages.Run, addresses: Sequence[int]
    ) -> Future:
        """Give a task to a sub worker, as a call."""
        function = target.target
        callee = self._callees.get(target)
        if callee is None:
            callee = self._callees[target] = Task(RunLeaf(function), Signature.any())
            name = getattr(function, "__qualname__", repr(function))
            callee.__name__ = callee.__qualname__ = name
        layouts = tuple(tensor.layout for tensor in told.tensors)
        args = told.task, told.kinds, tuple(addresses), layouts
        found: Future = self.stream_of().submit(callee, args, {})
        return found

    def _run(
        self,
        target: Any,
        config: CallConfig | None,
        read: messages.ReadTask,
        told: messages.Run,
        addresses: Sequence[int],
    ) -> None:
        args, after, kept = self._arguments(read, told, addresses)
        function = target.submit if isinstance(target, InnerCallable) else target
        self._inner.run(function, args, config)
        del kept
        for put_back in after:
            put_back()

    # ------------------------------------------------------------ calls
    def _call(self, sequence: int, told: messages.Run) -> CallWork:
        """Return the work that a call is.

        What it says of copies and values holds before anything of it may fail: the link knows what is
        here once it has sent the call.
        """
        self.copies.drop(told.dropped)
        call = messages.CALL.decode(told.call)
        values = [self._held(one) for one in call.values]
        items: Any = call.items.data
        if call.items.key:
            items = self.copies.take_stored(call.items.key).data
        made = CallWork(sequence, told, call, items, values, self)
        if (made.form.has_items or call.values) and not self.dispatcher.takes_pickles:
            raise _refusal("arguments that are pickled: pass numbers and arrays in shared memory")
        made.task = self._task_of(call)
        return made

    def _held(self, piece: messages.Piece) -> Lease | bytes:
        """Return a value; one with a key is kept, in a block if there is room for one."""
        key, copies = piece.key, self.copies
        if not key:
            return piece.data
        if not piece.data and (found := copies.find_value(key)) is not None:
            return found
        data: Any = piece.data or copies.take_stored(key).data
        value: Lease | bytes
        try:
            value = self.stream_of().put(data)
        except MemoryError:
            value = bytes(data)
        copies.keep(key, value, len(data), was_stored=True)
        return value

    def _task_of(self, call: messages.Call) -> Task:
        found = self.dispatcher.find(call.digest)
        key = found, call.sub_worker
        task = self._called.get(key)
        if task is None:
            made = found if isinstance(found, Task) else self.stream_of().task_of(found)
            only = () if call.sub_worker == messages.ANY_SUB_WORKER else (call.sub_worker,)
            task = self._called[key] = made.on(only)
        return task

    def outcome(self, future: Future, sequence: int, room: messages.FrameCapacity) -> messages.Done:
        """Return what a call has returned or raised, without unpickling it if it is where it was left."""
        stream = self.stream_of()
        raw = stream.raw_outcome(future)
        if raw is None:
            error = future.exception()
            if error is not None:
                return messages.failure_of(error, sequence)
            found = outcomes.encode(future.result())  # since something else needed the room
            kind, word = found.kind, found.word
            if kind == L.VALUE_BLOCK:
                block = bytearray(found.nbytes)
                outcomes.write(found.parts, memoryview(block))
                return self._block_outcome(stream.put(block), sequence, room)
        else:
            kind, word = raw
            if kind == L.VALUE_ERROR:
                failed = messages.reported(data_of(stream._mem, word), sequence)
                future.exception()  # it was asked for
                return failed
            if kind == L.VALUE_BLOCK:
                return self._block_outcome(stream.leases.begin(word), sequence, room)
        return messages.Done(sequence, L.SUCCESS, kind, word & _U64)

    def _block_outcome(
        self, lease: Lease, sequence: int, room: messages.FrameCapacity
    ) -> messages.Done:
        """Return a value that is a block: a long one is kept until the parent says so."""
        if not self.dispatcher.takes_pickles:
            raise _refusal("values that are pickled: return numbers, or write into arrays")
        block = data_of(self.stream_of()._mem, lease.offset)
        block = block[: outcomes.size_of(block)]
        travels = room.takes(block.nbytes)
        data, key, nbytes = bytes(block) if travels else b"", 0, 0
        if block.nbytes > limits.MOST_INLINE or not travels:
            key, nbytes = new_key() >> 1 or 1, block.nbytes  # it fits a word of shared memory
            address = 0 if travels else address_of(np.frombuffer(block, np.uint8))
            self.copies.keep(key, lease, nbytes, address=address)
        value = messages.Piece(data, key, nbytes)
        return messages.Done(sequence, L.SUCCESS, L.VALUE_BLOCK, 0, value)

    # ------------------------------------------------------------ replays
    def _replay(self, sequence: int, told: messages.Run) -> Work:
        asked = REPLAY.decode(told.replay)
        part = self.dispatcher.find(asked.digest).part(asked.part, self._inner._life)
        start = partial(self._run_replay, part, asked)
        return Work(sequence, told, told.tensors, part.sizes[: part.named], start, is_alone=True)

    def _run_replay(self, part: PlayedPart, asked: Replay, addresses: Sequence[int]) -> None:
        replaying = self._replaying = Replaying(
            part, asked, self.copies, self._mover, addresses, lambda: self._frames.over
        )
        try:
            self._inner.run(replaying.orchestrate)
        finally:
            replaying.end()

    def answer(self, key: int, question: bytes) -> bytes:
        """Answer the parent, on the thread of the mover: a replay ends early, or something is stored.

        For that the answer is the key of its window.
        """
        if self._replaying is not None and self._replaying.cut(key):
            return b""
        if key != self._session_id:
            raise Refusal("it is not from the parent of this session")
        return self.copies.open(*COMING.unpack(question)).to_bytes(8, "little")

    # ------------------------------------------------------------ their tensors
    def _arguments(
        self, read: messages.ReadTask, told: messages.Run, addresses: Sequence[int]
    ) -> tuple[TaskArgs, list[Callable[[], None]], list[Any]]:
        """Return the arguments with tensors of this machine, what to do after the task, what to keep.

        `addresses` has those of copies, and 0 for other tensors.

        The sub workers of an inner Worker with ``check=True`` see to it that a task keeps to its rights.
        """
        wire = read.task.args
        rights = told.rights or bytes((limits.REMOTE_BUFFER_ACCESS_READ_WRITE,)) * len(
            wire.tensor_metadata
        )
        tags = [_TAGS[one] for one in rights] if self._inner.check else [_READ] * len(rights)
        args, after, kept = TaskArgs(), [], []
        for i, (tensor, beside) in enumerate(
            zip(wire.tensor_metadata, wire.remote_desc, strict=True)
        ):
            if addresses[i]:
                layout = told.tensors[i].layout
                if layout or tags[i] is not _READ:
                    args.add_tensor(messages.copy_at(addresses[i], tensor, layout), tags[i])
                else:
                    at = addresses[i].to_bytes(SHAPE_AT, "little")
                    args._tensors.append(at + read.wires[i])
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
                raw = wire.inline_payload[begin : begin + desc.nbytes]
                array[: desc.nbytes] = np.frombuffer(raw, np.uint8)
                kept.append(array)
                address = array.ctypes.data
            elif desc.address_space == RemoteAddressSpace.REMOTE_DEVICE:
                address = self.stores.address_of(desc)
            else:
                address, put_back = self.stores.fetch(desc, rights[i])
                after.append(put_back)
            args.add_tensor(ContinuousTensor(address, tensor.shapes, tensor.dtype), tags[i])
        messages.add_scalars(args, wire.scalars, told.kinds)
        return args, after, kept


class CallWork(Work):
    """A call, with its items and values."""

    task: Task

    def __init__(
        self,
        sequence: int,
        told: messages.Run,
        call: messages.Call,
        items: Any,
        values: Sequence[Lease | bytes],
        tasks: SessionTasks,
    ) -> None:
        self._layouts = [read_layout(one.layout) for one in told.tensors]
        sizes = [size_of(one) for one in self._layouts]
        super().__init__(sequence, told, told.tensors, sizes, self._begin)
        self._items, self._values, self._tasks = items, values, tasks
        self._words = np.frombuffer(call.words, np.int64).tolist()
        self.form = form_of(self._words)
        codes = [*self.form.inner, *self.form.codes]
        arrays = sum(codes.count(one) for one in (ARRAY, READ_ARRAY, INNER_ARRAY))
        shape = len(told.kinds), told.kinds.count(_BLOCK), arrays
        if shape != (len(self._words), len(values), len(told.tensors)) or set(told.kinds) - _KINDS:
            raise ValueError("the words of the call do not fit its arrays and values")

    def _begin(self, addresses: Sequence[int]) -> Future:
        stream, kinds = self._tasks.stream_of(), self.told.kinds
        arrays = [
            (view_memory(address, layout[1], layout[0], strides=layout[2]), _tag(one))
            for one, layout, address in zip(self.tensors, self._layouts, addresses, strict=True)
        ]
        self._leases = [one if isinstance(one, Lease) else stream.put(one) for one in self._values]
        blocks = (one.offset for one in self._leases)
        words = [
            next(blocks) if kind == _BLOCK else word
            for word, kind in zip(self._words, kinds, strict=True)
        ]
        return stream.forward(self.task, arrays, words, kinds, self._items)

    def end_of(self, future: Future) -> messages.Done:
        """Return how it has ended, with what it has returned, raised and written."""
        room = messages.FrameCapacity()
        try:
            outcome = self._tasks.outcome(future, self.sequence, room)
        except Exception as error:
            return messages.failure_of(error, self.sequence)
        if outcome.outcome == L.SUCCESS:
            both = zip(self.tensors, self.sizes, strict=True)
            written = {one.key: size for one, size in both if one.makes}
            data = self._tasks.copies.data
            outcome = outcome._replace(
                written=[data(key) if room.takes(size) else b"" for key, size in written.items()]
            )
        return outcome


def _tag(one: CopiedTensor) -> int:
    if not one.makes:
        return L.INPUT
    return L.INOUT if one.reads else L.OUTPUT_EXISTING


def _refusal(what: str) -> CallableError:
    return CallableError(
        "CALLABLE_KIND_UNSUPPORTED",
        f"this endpoint takes no {what}; or {AGREE}",
    )
