"""The words of one worker: its mailboxes, their contents, and the words beside them.

Rule     SCHED-MAIL-5, FLOW-ARGS-4, FLOW-LAYOUT-3, FLOW-SCALAR-1, FLOW-VIEW-1, FLOW-VIEW-2, FLOW-VIEW-3,
         FLOW-ENV-3
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ...jit import layout as L
from ...model.arguments import TaskArgs
from ...model.config import RUNTIME_ENV_SIZE, CallConfig, read_config
from ...model.enums import TensorArgType
from ...model.scalars import as_float, as_it_went_in
from ...model.tensor import ContinuousTensor
from ...model.wire import COUNTS_BYTES, SCALAR_BYTES, TAG_AT, TENSOR_BYTES, without_tag
from ...system.values import position
from . import flag_at, trace_size, word_at
from .layouts import Layouts

if TYPE_CHECKING:
    from ..memory import Engine

_DECODED = struct.Struct("<iiq")  # what the kernel `decode` notes: the counts, where scalars begin
_WORD = struct.Struct("<Q")
_STATE = struct.Struct("<i")
_CONTROL_ARGS = struct.Struct("<3Q")
_CONTROL_NAMES = struct.Struct(f"{L.CONTROL_NAME_SIZE}s{L.CALLABLE_HASH_DIGEST_BYTES}s")
_TENSORS_AT = L.MAILBOX_OFF_ARGS + COUNTS_BYTES


_ENV_AT = L.WORD * (L.W_ENV - L.W_MAILBOX)
_DECODED_AT = L.WORD * (L.W_COUNTS - L.W_MAILBOX)


def env_beside(box: Any) -> bytes:
    """Return the `RuntimeEnv` beside a mailbox, as it travels; empty where nothing is beside it."""
    return bytes(box[_ENV_AT : _ENV_AT + RUNTIME_ENV_SIZE])


def identity_in(box: memoryview) -> bytes:
    """Return what a task in a mailbox has beside its arguments: digest, configuration, `RuntimeEnv`."""
    start = L.MAILBOX_OFF_CONFIG
    return digest_in(box) + bytes(box[start : start + L.CALL_CONFIG_SIZE]) + env_beside(box)


# ---------------------------------------------------------------- the arguments of a task
class ReceivedArgs(TaskArgs):
    """The arguments of the running task: what `decode` has found in its mailbox.

    They are valid only during the call: a callable copies those that it keeps.
    """

    __slots__ = ("_box",)

    _box: Any
    _layouts: ClassVar[Layouts | None] = None
    """Those of the engine; see `received_from`."""

    def _decoded(self) -> tuple[int, int, int]:
        """Return the numbers of tensors and scalars, and where the scalars begin."""
        if self._box is None:
            raise RuntimeError(
                "these TaskArgs belong to a task that has ended; copy what you need while it runs"
            )
        decoded: tuple[int, int, int] = _DECODED.unpack_from(self._box, _DECODED_AT)
        if decoded[2] < 0:
            raise RuntimeError(malformed(self._box))
        return decoded

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`."""
        tensors, _, _ = self._decoded()
        if type(i) is not int or not 0 <= i < tensors:
            i = position("tensor", i, tensors)
        start = _TENSORS_AT + i * TENSOR_BYTES
        wire = bytes(self._box[start : start + TENSOR_BYTES])
        return ContinuousTensor._from_wire(wire, self._layouts)

    def _scalar(self, i: int) -> tuple[bytes, int]:
        """Return the 64 bits of a scalar, and its kind from beside the mailbox."""
        _, scalars, start = self._decoded()
        if type(i) is not int or not 0 <= i < scalars:
            i = position("scalar", i, scalars)
        start += i * SCALAR_BYTES
        kind = self._box[L.MAILBOX_SIZE + i]
        return bytes(self._box[start : start + SCALAR_BYTES]), kind

    def _all_scalars(self) -> list[tuple[bytes, int]]:
        return [self._scalar(i) for i in range(self.scalar_count())]

    def scalar_words(self) -> list[int]:
        """Return the scalars as the words that a kernel gets."""
        return [int.from_bytes(raw, "little") for raw, _ in self._all_scalars()]

    def scalar(self, i: int) -> int | float:
        """Return scalar `i` as it was added; see `TaskArgs.scalar`."""
        return as_it_went_in(*self._scalar(i))

    def scalar_float(self, i: int) -> float:
        """Return scalar `i` as a float; see `TaskArgs.scalar_float`."""
        return as_float(*self._scalar(i))

    def config(self) -> CallConfig:
        """Return the configuration that the task was submitted with."""
        self._decoded()
        start = L.MAILBOX_OFF_CONFIG
        return read_config(
            bytes(self._box[start : start + L.CALL_CONFIG_SIZE]), env_beside(self._box)
        )

    def tag(self, i: int) -> TensorArgType:
        """Refuse: there are no tags here."""
        raise RuntimeError("tags are read by submit and do not travel to the worker")

    def tensor_count(self) -> int:
        """Return the number of tensors."""
        return self._decoded()[0]

    def scalar_count(self) -> int:
        """Return the number of scalars."""
        return self._decoded()[1]

    def __len__(self) -> int:
        tensors, scalars, _ = self._decoded()
        return tensors + scalars

    def _refuse(self, *_: Any, **__: Any) -> None:
        """Refuse: they are those of a running task."""
        raise RuntimeError("the arguments of a running task cannot be changed")

    add_tensor: Any = _refuse
    add_scalar: Any = _refuse
    set_tag: Any = _refuse
    dump: Any = _refuse
    clear: Any = _refuse


def received_from(engine: Engine) -> type[ReceivedArgs]:
    """Return the class of the arguments of an engine's tasks, for one worker.

    A class, not an attribute of each object: most tasks have no layouts.
    """
    attributes = {"__slots__": (), "_layouts": Layouts(engine.mem)}
    return type(ReceivedArgs.__name__, (ReceivedArgs,), attributes)


def malformed(box: memoryview) -> str:
    """Return why `decode` has refused a mailbox."""
    tensors, scalars, _ = _DECODED.unpack_from(box, _DECODED_AT)
    used = COUNTS_BYTES + tensors * TENSOR_BYTES + scalars * SCALAR_BYTES
    return (
        f"the mailbox holds {tensors} tensors and {scalars} scalars, {used} bytes, but has room for "
        f"{L.MAILBOX_ARGS_CAPACITY}"
    )


def call_words(args: ReceivedArgs) -> tuple[list[bytes], list[int], memoryview]:
    """Return the tensors of a call, the words of its scalars, and the kind of each."""
    box = args._box
    _, scalars, end = _DECODED.unpack_from(box, _DECODED_AT)
    wires = [box[at : at + TENSOR_BYTES].tobytes() for at in range(_TENSORS_AT, end, TENSOR_BYTES)]
    words = box[end : end + scalars * SCALAR_BYTES].cast("q").tolist()
    return wires, words, box[L.MAILBOX_SIZE :]


# ---------------------------------------------------------------- other contents of a mailbox
class Request(NamedTuple):
    """A control request, as the worker reads it."""

    command: int
    args: tuple[int, int, int]
    name: str
    """Of the staged payload."""
    digest: bytes


def digest_in(box: memoryview) -> bytes:
    start = L.MAILBOX_OFF_DIGEST
    return bytes(box[start : start + L.CALLABLE_HASH_DIGEST_BYTES])


def read_request(box: memoryview) -> Request:
    (command,) = _WORD.unpack_from(box, L.MAILBOX_OFF_COMMAND)
    args = _CONTROL_ARGS.unpack_from(box, L.MAILBOX_OFF_CONTROL_ARGS)
    name, digest = _CONTROL_NAMES.unpack_from(box, L.MAILBOX_OFF_CONTROL_NAME)
    return Request(command, args, os.fsdecode(name.split(b"\0")[0]), digest)


def write_result(box: memoryview, result: int) -> None:
    _WORD.pack_into(box, L.MAILBOX_OFF_CONTROL_RESULT, result)


def write_message(box: memoryview, message: bytes) -> None:
    """Put an error message into a mailbox; it has fewer bytes than MAILBOX_ERROR_MSG_SIZE."""
    start = L.MAILBOX_OFF_ERROR_MSG
    box[start : start + len(message) + 1] = message + b"\0"


def message_in(box: memoryview) -> bytes:
    """Return the error message that was last put into a mailbox, with what follows its NUL."""
    return bytes(box[L.MAILBOX_OFF_ERROR_MSG : L.MAILBOX_SIZE])


def write_trace(trace: memoryview, raw: bytes) -> None:
    """Put a traceback into a side region, at most TRACE_CAPACITY bytes."""
    trace[: L.WORD] = len(raw).to_bytes(L.WORD, "little")
    trace[L.WORD : L.WORD + len(raw)] = raw


# ---------------------------------------------------------------- one worker
class MailboxView:
    """A worker's words: its mailboxes and the words beside them."""

    def __init__(self, engine: Engine, worker: int) -> None:
        self.engine, self.worker = engine, worker
        mem = engine.mem
        self.start: int = mem.item(L.A_WORKERS) + worker * mem.item(L.WORKER_STRIDE)
        """First word of the worker."""
        self.depth: int = mem.item(L.DEPTH)
        """How many frames there are: tasks that the worker may have at once."""
        self.leaf_word, self.thread_word = self.start + L.W_LEAF, self.start + L.W_THREAD
        """Offsets of words that the loop itself writes: where it clears them, it must make no call."""

    def _word(self, field: int) -> int:
        return int(self.engine.mem.item(self.start + field))

    def _frame(self, frame: int) -> int:
        return self.start + frame * L.WORKER_WORDS

    # ------------------------------------------------------------ frames
    @property
    def served(self) -> int:
        """Number of the worker's current frame, as the worker sees it."""
        return self._word(L.W_AT) // L.WORKER_WORDS

    @property
    def awaited(self) -> int:
        """Number of the frame that the worker waits for when it has no task, as its parent sees it."""
        return self._word(L.W_TAIL) // L.WORKER_WORDS

    def box(self, frame: int) -> memoryview:
        """Return the mailbox of a frame, `MAILBOX_SIZE` bytes, and the words beside it."""
        return self._octets(frame, L.W_MAILBOX, L.W_TRACE)

    def trace(self, frame: int) -> memoryview:
        """Return the side region of a frame, for tracebacks."""
        return self._octets(frame, L.W_TRACE, L.WORKER_WORDS)

    def _octets(self, frame: int, first: int, end: int) -> memoryview:
        start = self._frame(frame)
        octets: memoryview = self.engine.mem[start + first : start + end].view(np.uint8).data
        return octets

    def addresses(self, frame: int) -> tuple[int, int]:
        """Return the addresses of the arguments and of the configuration in a frame's mailbox."""
        word = self._frame(frame) + L.W_MAILBOX
        box: int = self.engine.mem.ctypes.data + L.WORD * word
        return box + L.MAILBOX_OFF_ARGS, box + L.MAILBOX_OFF_CONFIG

    # ------------------------------------------------------------ as the parent sees it
    @property
    def state(self) -> int:
        """State of the mailbox that the worker waits for when it has no task."""
        return int(_STATE.unpack_from(self.box(self.awaited))[0])

    def put_request(self, command: int, args: tuple[int, ...], name: str, digest: bytes) -> None:
        """Put a control request with at most three arguments into the mailbox, which is claimed."""
        box = self.box(self.awaited)
        _WORD.pack_into(box, L.MAILBOX_OFF_COMMAND, command)
        _CONTROL_ARGS.pack_into(box, L.MAILBOX_OFF_CONTROL_ARGS, *(*args, 0, 0, 0)[:3])
        write_result(box, 0)
        _CONTROL_NAMES.pack_into(box, L.MAILBOX_OFF_CONTROL_NAME, name.encode(), digest)

    def result(self) -> int:
        """Return the result of the control request that was answered last."""
        box = self.box(self.awaited)
        return int(_WORD.unpack_from(box, L.MAILBOX_OFF_CONTROL_RESULT)[0])

    def report(self) -> tuple[bytes, bytes]:
        """Return the message and traceback that a worker without a task has written."""
        frame = self.awaited
        box, trace = self.box(frame), self.trace(frame)
        size = trace_size(int.from_bytes(trace[: L.WORD], "little"))
        return message_in(box), bytes(trace[L.WORD : L.WORD + size])

    @property
    def has_begun(self) -> bool:
        """Whether the worker has begun a task or a request, and not answered it; also of a dead one."""
        return self._word(L.W_SINCE) > 0

    given: int = word_at(L.W_GIVEN)
    """How many tasks the worker was sent that are not collected."""

    def given_slots(self) -> list[int]:
        """Return the slots of the tasks that the worker was sent, oldest first, while nothing moves."""
        mem, first = self.engine.mem, self._word(L.W_HEAD) // L.WORKER_WORDS
        frames = [self._frame((first + i) % self.depth) for i in range(self.given)]
        return [int(mem[frame + L.W_SLOT]) for frame in frames]

    def oldest_task(self) -> tuple[int, int, int] | None:
        """Return the worker's oldest task, the index of its callable and, of a call, its function's key.

        None if it has none; a task that has just ended may be None or another one.
        """
        mem, view = self.engine.mem, self.engine.view
        at = self.start + self._word(L.W_HEAD) + L.W_SLOT
        slot = int(mem[at]) if self.given and at < len(mem) else L.NONE
        return (*view.task_of(slot), view.key_of(slot)) if view.is_slot(slot) else None

    def ran_last(self) -> tuple[int, int] | None:
        """Return the task that the worker ended last, and the index of its callable."""
        word = self._word(L.W_RAN)
        return ((word >> L.RAN_TASK) - 1, word & L.CALLABLE_MASK) if word else None

    # ------------------------------------------------------------ as the worker itself sees it
    @property
    def slot(self) -> int:
        """The current task's slot, by which blocks know a call."""
        mem = self.engine.mem
        return mem.item(self.start + mem.item(self.start + L.W_AT) + L.W_SLOT)

    def answer(self, kind: int, value: int) -> None:
        mem = self.engine.mem
        at = self.start + mem.item(self.start + L.W_AT)
        mem[at + L.W_VALUE] = value
        mem[at + L.W_KIND] = kind

    def note_code(self, key: int, address: int) -> None:
        self.engine.kernels.note_code(self.engine.mem, self.worker, key, address)

    def add_device_time(self, ns: int) -> None:
        self.engine.mem[self.start + L.W_DEVICE_NS] += ns

    task_number: int = word_at(L.W_NUMBER)
    """Number of the current task in the trace."""
    member: int = word_at(L.W_MEMBER)
    """Which member of a group the current task is, plus 1; 0 for a single task."""
    is_skipped: bool = flag_at(L.W_SKIP)
    """Whether the worker was told that it need not start the current task."""

    def note(self, what: int, task: int, time: int, value: int) -> None:
        journal = L.JOURNALS_OF_WORKERS + self.worker
        self.engine.kernels.note(self.engine.mem, journal, what, task, time, value)

    def take_dump_marks(self) -> list[tuple[int, int, bytes]]:
        """Return what is to be dumped of the current task: numbers of tensors, when, and the tensors.

        Afterwards the tensors in the mailbox are as always.
        """
        box, found = self.box(self.served), []
        _, _, end = _DECODED.unpack_from(box, _DECODED_AT)
        for start in range(_TENSORS_AT, end, TENSOR_BYTES):
            wire = bytes(box[start : start + TENSOR_BYTES])
            if stages := wire[TAG_AT]:
                index = int.from_bytes(wire[TAG_AT + 2 : TAG_AT + 4], "little")
                wire = without_tag(wire)
                box[start : start + TENSOR_BYTES] = wire
                found.append((index, stages, wire))
        return found

    def settle_in(self, home: int | None, thread: int) -> None:
        """Note the worker's home core, for when it shares another, None for none, and its thread."""
        self.engine.mem[self.start + L.W_HOME] = 0 if home is None else home + 1
        self.engine.mem[self.start + L.W_THREAD] = thread

    def ticket(self, distance: int, *, may_wait: bool = False) -> int | None:
        """Return what no other task of the worker has of the one so far behind its current one.

        None if that is not there, or cannot start yet; if it `may_wait`, then only for tasks in front of
        it, see `awaits`. See `frame_of` for where it is.
        """
        look = self.engine.kernels.task_ahead
        found = int(look(self.engine.mem, self.worker, distance, int(may_wait)))
        return None if found == L.NONE else found

    def note_sent(self, ticket: int) -> None:
        """Note that a call was sent on, so that it may have begun, though it is not the current one."""
        self.engine.mem[self._frame(self.frame_of(ticket)) + L.W_SENT] = ticket >> L.HALF

    def place(self, distance: int) -> tuple[int, int]:
        """Return the number of the frame so far behind the current one, and how often it was filled."""
        frame = (self.served + distance) % self.depth
        return frame, int(self.engine.mem[self._frame(frame) + L.W_FILLED])

    def look_out(self, frame: int, filled: int) -> None:
        """Sleep until a frame was filled again, see `place`; or return early.

        It is for a second thread, and `end_look_out` wakes that.
        """
        self.engine.kernels.look_out(self.engine.mem, self.worker, frame, filled)

    def end_look_out(self) -> None:
        self.engine.kernels.end_look_out(self.engine.mem, self.worker)

    def awaits(self, ticket: int) -> list[int]:
        """Return the tickets of the tasks in front of one that it waits for, and that have not ended."""
        mem, start = self.engine.mem, self.start
        frame = self._frame(self.frame_of(ticket))
        first, found = frame + L.W_WAIT_FOR, []
        for at in range(first, first + 2 * mem.item(frame + L.W_WAITS), 2):
            place, count = mem.item(at), mem.item(at + 1)
            is_here = start <= place < start + mem.item(L.WORKER_STRIDE)
            if is_here and mem.item(place) >> 2 < count:
                found.append(count << L.HALF | (place - start) // L.WORKER_WORDS)
        return found

    @staticmethod
    def frame_of(ticket: int) -> int:
        return ticket & L.LOW_HALF


CALL_PLACES = (
    *(L.LAYOUTS_EPOCH, L.W_AT, L.W_MAILBOX, L.W_VALUE, L.W_KIND),
    *(L.MAILBOX_OFF_ARGS, L.MAILBOX_SIZE),
)
"""Where native code finds the call that a worker runs.

The word of the memory that has the epoch of layouts; of the worker: the offset of its current frame; of
the frame: mailbox, value and its kind; and the bytes of the mailbox before the arguments, and the kinds.
"""
