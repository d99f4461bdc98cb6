"""Calls in the link of an endpoint: to its session, with what they need, and back with what they made.

A link gets calls as a worker of this machine does. It sends the session the function once, then for each
call what that does not have; and it is the link that leaves the value where the future finds it. See
`link_tasks` for when.

A long value has a key from the session whose call has returned it; the program's machine notes that in
the block of the value, too. A session keeps values, also those that were made elsewhere, until its link
says which to forget: so the link always knows what need not move again.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from ctypes import memmove
from typing import Any, NamedTuple

import numpy as np

from ..callables.identity import CallableKind, build_python_serialized_descriptor
from ..callables.payloads import pack_payload, serialize_for_endpoints, why_not_serialised
from ..calls import outcomes
from ..calls.forms import key_of
from ..calls.sending import Payload, number_in
from ..calls.tasks import Task
from ..engine.view.blocks import Blocks, data_of, set_value_key, value_key
from ..engine.view.layouts import Layouts
from ..engine.view.mailbox import CallWords, ReceivedArgs, call_words
from ..errors import ControlError, TaskError, TransferError
from ..jit import layout as L
from ..model.tensor import view_memory
from ..model.wire import SHAPE_AT
from ..system.types import Array, address_of
from . import callables
from . import task_messages as messages
from .copies import MOST_DROPPED, ComingCopy, CopiedTensor, window_key
from .directory import Plan
from .fail_points import fail_point
from .frames import ControlName, OwnFrameType
from .limits import MOST_INLINE
from .link_frames import LinkFrames
from .link_tasks import LinkTask, TaskReader
from .parent_memory import Missing, ParentMemory
from .spec import RemoteWorkerSpec
from .tasks import copied_layout, is_whole, layout_of, layout_text
from .windows import Span, new_key

MOST_KEPT = 256 << 20
"""Bytes of values that an endpoint keeps, if its calls have four times as many for values."""
PART_KEPT = 4
_LOOKS = 4
"""Values of which a link looks, with each call, whether they are still needed."""


class KnownValues:
    """The values that the session of a link keeps, those used longest ago first.

    Rule     CALL-KEEP-1, CALL-KEEP-3, CALL-KEEP-4
    """

    def __init__(self, mem: Array, most: int) -> None:
        self._mem, self._most = mem, most
        self._known: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By key: the block, and how many bytes."""
        self._total = 0
        self._turn: OrderedDict[int, None] = OrderedDict()
        """The same keys, in the order in which they are looked at."""
        self._dropped: list[int] = []

    def key_for(self, block: int, nbytes: int) -> int:
        """Return the key under which a session may keep the value in a block; 0: it is not to."""
        return value_key(self._mem, block) if MOST_INLINE < nbytes <= self._most else 0

    def has(self, key: int, block: int, nbytes: int) -> bool:
        """Say whether the session has a value, which is used now."""
        if key in self._known:
            self._known.move_to_end(key)
        elif key in self._dropped:  # and the session does not know yet
            self._dropped.remove(key)
            self._note(key, block, nbytes)
        return key in self._known

    def add(self, key: int, block: int, nbytes: int) -> None:
        """Note that the session has a value; with the next call it forgets others that are too many."""
        self._note(key, block, nbytes)
        while self._total > self._most:
            self._drop(next(iter(self._known)))

    def _note(self, key: int, block: int, nbytes: int) -> None:
        self._known[key] = block, nbytes
        self._turn[key] = None
        self._total += nbytes

    def _drop(self, key: int) -> None:
        del self._turn[key]
        self._total -= self._known.pop(key)[1]
        self._dropped.append(key)

    def take_dropped(self, most: int, looks: int = _LOOKS) -> list[int]:
        """Return values that the session forgets, among them some that nobody needs any more."""
        for _ in range(min(looks, len(self._turn))):
            key = next(iter(self._turn))
            self._turn.move_to_end(key)
            if value_key(self._mem, self._known[key][0]) != key:
                self._drop(key)
        taken, self._dropped = self._dropped[:most], self._dropped[most:]
        return taken

    def take_all_dropped(self) -> list[int]:
        """Return all values that the session may forget now."""
        return self.take_dropped(len(self._known) + len(self._dropped), len(self._turn))


class AnsweredError(Exception):
    """A call has failed, and its future will find why."""


# ---------------------------------------------------------------- what the program says of a function
class Function(NamedTuple):
    """How sessions get a function: by name, or serialised; empty where that cannot be, and why not."""

    name: str
    by_name: bytes
    serialized: bytes
    why_not: str = ""

    @classmethod
    def of(cls, task: Task) -> Function:
        """Return that of a task."""
        named = b""
        for target in (task, task.py_func):
            found = callables.by_name(target)
            if isinstance(found, callables.RemoteCallable):
                named = callables.registering(
                    CallableKind.PYTHON_IMPORT, found.descriptor, found.descriptor
                )
        raw = serialize_for_endpoints(task.on(()))  # a copy: no module there has it under its name
        name: str = task.__qualname__
        if why := why_not_serialised(raw):
            return cls(name, named, b"", why)
        descriptor = build_python_serialized_descriptor(raw)
        serialized = callables.registering(
            CallableKind.PYTHON_SERIALIZED, descriptor, pack_payload(raw)
        )
        return cls(name, named, serialized)


def _is_whole(array: Array) -> bool:
    """Say whether all bytes that an array spans are its own."""
    return is_whole((array.dtype, array.shape, array.strides))


class _Beside(Missing):
    """What travels beside a call, because it is too long for the frame, or not at all: it is there.

    `values` are those that the session keeps from now on: their blocks and sizes; `passing` are the keys
    of values for the call alone; `packed` has the owners of memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, tuple[int, int]] = {}
        self.passing: list[int] = []
        self.packed: list[Any] = []

    def piece(self, data: memoryview, key: int = 0) -> messages.Piece:
        """Return bytes as they travel; with a key, the session keeps them under it."""
        if self.room.takes(data.nbytes):
            return messages.Piece(bytes(data), key, data.nbytes if key else 0)
        key = key or new_key()
        memory = np.frombuffer(data, np.uint8)
        self.packed.append(memory)
        self.coming[key] = ComingCopy(key, 1, memory.nbytes), address_of(memory)
        return messages.Piece(b"", key, data.nbytes)


class CallTask(LinkTask):
    """A call: its arrays, and what travels beside it."""

    def __init__(
        self, calls: CallTasks, message: messages.Run, arrays: Sequence[Array], beside: _Beside
    ) -> None:
        super().__init__(calls, message, beside.coming)
        self.arrays, self._calls, self._beside = arrays, calls, beside

    def post(self, frames: LinkFrames, memory: ParentMemory, after: Sequence[int]) -> int:
        """Send it, and return the number of its frame; what it reads is there from now on."""
        dropped, values = self.message.dropped, self._calls.values
        forgotten = values.take_dropped(MOST_DROPPED - len(dropped))
        self.message = self.message._replace(dropped=[*dropped, *forgotten])
        sequence = super().post(frames, memory, after)
        for key, value in self._beside.values.items():
            values.add(key, *value)
        self._calls.tell_to_forget(self._beside.passing)
        return sequence


class CallTasks(TaskReader):
    """The calls of a link.

    Rule     CALL-FAR-1, CALL-FAR-2, CALL-FAR-3, CALL-KEEP-1
    """

    are_calls = True

    def __init__(
        self, frames: LinkFrames, memory: ParentMemory, spec: RemoteWorkerSpec, number: int
    ) -> None:
        self._frames, self.memory, self._spec, self._number = frames, memory, spec, number
        mailbox = frames.mailbox
        self._mem = mailbox.engine.mem
        self._call = CallWords(mailbox)
        self._blocks = Blocks(self._mem, mailbox.worker + 1)
        size = spec.worker.get("values_size", MOST_KEPT * PART_KEPT)
        self.values = KnownValues(self._mem, min(MOST_KEPT, size // PART_KEPT))
        self._layouts = Layouts(mailbox.engine.mem)
        self._digests: dict[int, tuple[int, bytes]] = {}
        """Number and digest of the functions in blocks."""

    def forget(self, digest: bytes) -> None:
        """Note that the session has been told to forget a callable."""
        self._digests = {key: one for key, one in self._digests.items() if one[1] != digest}

    def note_loss(self, error: TransferError) -> None:
        """Give the session up, so that the call is lost, and may be run again."""
        self._frames.give_up(str(error))

    # ------------------------------------------------------------ one call
    def read_ahead(self, args: ReceivedArgs, after: Sequence[int]) -> LinkTask | None:
        """Return a call that can go ahead: one that waits for no other one."""
        return None if after else self.read(args)

    def read(self, args: ReceivedArgs) -> LinkTask:
        """Return a call; the session knows its function by then."""
        wires, words, bare = call_words(args)
        kinds = list(bare[: len(words)])
        plan = Plan.take(words, kinds)
        self.memory.begin(plan.run)
        self._require_mine(plan)
        digest = self._digest_of(key_of(words[0]))
        layouts = [layout_of(self._layouts, wire) for wire in wires]
        arrays = [
            view_memory(int.from_bytes(wire[:SHAPE_AT], "little"), shape, dtype, strides=strides)
            for wire, (dtype, shape, strides) in zip(wires, layouts, strict=True)
        ]
        beside = self._beside(plan, arrays)
        tensors = [
            CopiedTensor(
                *one[:3], "", layout_text(copied_layout(layout)), beside.short.pop(one.key, b"")
            )
            for one, layout in zip(plan.tensors, layouts, strict=True)
        ]
        items = messages.Piece()
        if kinds[-1] == L.PAYLOAD:
            del kinds[-1]
            items = beside.piece(data_of(self._mem, words.pop()))
        values = [
            self._value(word, beside)
            for word, kind in zip(words, kinds, strict=True)
            if kind == L.FETCHED | L.VALUE_BLOCK
        ]
        only = messages.ANY_SUB_WORKER if plan.only is None else plan.only[1]
        told = messages.Call(digest, only, np.array(words, np.int64).tobytes(), items, values)
        call = messages.CALL.encode(told)
        message = messages.Run(
            b"", kinds=bytes(kinds), run=plan.run, tensors=tensors, dropped=plan.dropped, call=call
        )
        return CallTask(self, message, arrays, beside)

    def _require_mine(self, plan: Plan) -> None:
        """Refuse a call for one sub worker of an endpoint that is lost."""
        if plan.only is not None and plan.only[0] != self._number:
            raise TaskError(
                f"the call is for sub worker {plan.only[1]} of endpoint {plan.only[0]}, which is lost"
            )

    def _digest_of(self, key: int) -> bytes:
        """Return the digest of a function, which the session knows by then.

        Rule     CALL-FAR-2
        """
        data = data_of(self._mem, key)
        number, digest = self._digests.get(key, (0, b""))
        if number == number_in(data):
            return digest
        function: Function = pickle.loads(Payload.from_bytes(data).body)
        ways = [one for one in (function.by_name, function.serialized) if one]
        if function.by_name and not self._spec.serialized:
            ways = ways[:1]
        if not ways:
            raise TypeError(
                f"{function.name} cannot be sent to an endpoint: no module has it by its name, and it "
                f"refers to something that cannot be pickled ({function.why_not})"
            )
        for command in ways:
            one = callables.Registration((self._number,), command)
            try:
                self._frames.ask(ControlName.PREPARE_REGISTER_CALLABLE, one.command)
                self._frames.ask(ControlName.COMMIT_REGISTER_CALLABLE, one.digest_command)
            except ControlError:
                if command is ways[-1]:
                    raise
                continue
            self._digests[key] = number_in(data), one.digest
            return one.digest
        raise AssertionError

    # ------------------------------------------------------------ what it needs
    def _beside(self, plan: Plan, arrays: Sequence[Array]) -> _Beside:
        """Return what moves beside a call: so far, versions of its arrays."""
        beside = _Beside()
        # of a key that several arrays have, each in a layout of its own, the bytes travel once
        plans = {one.key: (one, array) for one, array in zip(plan.tensors, arrays, strict=True)}
        for one, array in plans.values():
            if array.nbytes and self.memory.lacks(one):
                source = array if _is_whole(array) else array.copy("C")
                beside.packed.append(source)
                beside.add(one.key, one.reads, address_of(source), source.nbytes)
        return beside

    def _value(self, offset: int, beside: _Beside) -> messages.Piece:
        """Return the value in a block as it travels: if the session keeps it, by its key alone.

        Rule     CALL-KEEP-1
        """
        block = data_of(self._mem, offset)
        data = block[: outcomes.size_of(block)]
        key = self.values.key_for(offset, data.nbytes)
        if key:
            if key in beside.values or self.values.has(key, offset, data.nbytes):
                return messages.Piece(b"", key, data.nbytes)
            beside.values[key] = offset, data.nbytes
        piece = beside.piece(data, key)
        if piece.key and not key:
            beside.passing.append(piece.key)
        return piece

    # ------------------------------------------------------------ what it has made
    def end(self, task: CallTask) -> None:
        """Have what was written come home, and leave the value where the future finds it."""
        if task.done.outcome == L.SUCCESS:
            self._bring(task)
        self._leave(task.done)

    def drop(self, task: CallTask) -> None:
        """Have the session forget what it has returned."""
        if task.done.value.key:
            self.tell_to_forget([task.done.value.key])

    def _bring(self, task: CallTask) -> None:
        """Have what was written come home: all of it, or nothing if the endpoint is lost meanwhile.

        What is short has come with the answer.

        Rule     CALL-FAR-3
        """
        made = {
            one.key: (one, array)
            for one, array in zip(task.tensors, task.arrays, strict=True)
            if one.makes
        }
        came = []
        for (one, array), data in zip(made.values(), task.done.written, strict=True):
            copy = np.frombuffer(data, np.uint8) if data else np.empty(array.nbytes, np.uint8)
            if not data:
                where = window_key(one.key, one.makes)
                self._fetch(where, address_of(copy), copy.nbytes)
            came.append((array, copy))
        for array, copy in came:
            if _is_whole(array):
                memmove(address_of(array), address_of(copy), array.nbytes)
            else:
                array[...] = np.ndarray(array.shape, array.dtype, copy)

    def _fetch(self, key: int, address: int, nbytes: int) -> None:
        self.memory.mover.fetch_all(self.memory.address, [Span(key, address, nbytes)])

    def _leave(self, answer: messages.Done) -> None:
        """Leave what the session has answered where the future finds it.

        Rule     CALL-FAR-5, CALL-FAR-6
        """
        agreed = self._spec.serialized
        if answer.outcome != L.SUCCESS:
            parts = answer.text.decode(errors="replace"), answer.trace.decode(errors="replace")
            report = outcomes.report_block(*parts, answer.exception if agreed else b"")
            self._answer(L.VALUE_ERROR, memoryview(report))
            raise AnsweredError(parts[0])
        if answer.kind < L.VALUE_BLOCK:
            word = answer.word - (answer.word >> 63 << 64)  # a signed integer
            self._call.answer(answer.kind, word)
            return
        if not agreed:
            raise TypeError("the endpoint has not agreed to serialised values, and has sent one")
        value = answer.value
        if not value.key:
            self._answer(L.VALUE_BLOCK, memoryview(value.data))
            return
        stays = False
        try:
            block = self._blocks.take(value.nbytes, self._call.slot)
            if value.data:
                block.data[:] = value.data
            else:
                address = address_of(np.frombuffer(block.data, np.uint8))
                self._fetch(value.key, address, value.nbytes)
            set_value_key(self._mem, block.offset, value.key)
            fail_point("came")
            if self.values.key_for(block.offset, value.nbytes):
                self.values.add(value.key, block.offset, value.nbytes)
                stays = True
            self._call.answer(L.VALUE_BLOCK, block.offset)
        finally:
            if not stays:
                self.tell_to_forget([value.key])

    def tell_to_forget(self, keys: Iterable[int]) -> None:
        """Have the session forget values."""
        for key in keys:
            self._frames.post(
                OwnFrameType.VALUE_TAKEN, messages.VALUE_TAKEN.encode(messages.TakenValue(key))
            )

    def forget_unneeded(self) -> None:
        """Have the session forget the values that nobody needs any more.

        Rule     CALL-KEEP-3
        """
        self.tell_to_forget(self.values.take_all_dropped())

    def _answer(self, kind: int, data: memoryview) -> None:
        block = self._blocks.take(data.nbytes, self._call.slot)
        block.data[:] = data
        set_value_key(self._mem, block.offset, 0)
        self._call.answer(kind, block.offset)

    def answer_failure(self, error: BaseException) -> None:
        """Leave what has gone wrong on the way."""
        if isinstance(error, AnsweredError):
            return
        try:
            self._answer(L.VALUE_ERROR, memoryview(outcomes.error_block(error)))
        except MemoryError:
            self._call.answer(L.VALUE_NO_ROOM, 0)
