"""Calls in the link of an endpoint: to its session, with what they need, and back with what they made.

A link gets calls as a worker of this machine does. It sends the session the function once, then for each
call what that does not have; and it is the link that leaves the value where the future finds it.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterable, Sequence
from ctypes import memmove
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..callables.identity import CallableKind, build_python_serialized_descriptor
from ..callables.payloads import pack_payload, serialize_for_endpoints, why_not_serialised
from ..calls import outcomes
from ..calls.forms import INNER_VALUE, VALUE, Form, form_of
from ..calls.sending import Payload, number_in
from ..calls.tasks import Task
from ..engine.view.blocks import Blocks, data_of, set_value_key
from ..engine.view.layouts import Layouts
from ..engine.view.mailbox import CallWords, ReceivedArgs, call_words
from ..errors import ControlError, TaskError, TransferError
from ..jit import layout as L
from ..model.tensor import view_memory
from ..model.wire import SHAPE_AT
from ..system.types import Array, address_of
from .callable_target import RemoteCallable, by_name
from .callables import RemoteRegistryTarget, encode_register_callable_command
from .copies import MOST_DROPPED, ComingCopy, CopiedTensor, window_key
from .counters import TASKS, UNMOVED, UNMOVED_NS
from .dispatcher import PAYLOAD_VERSION
from .fail_points import fail_point
from .far_arrays import copied_layout, is_whole, layout_of
from .far_calls import (
    ANY_SUB_WORKER,
    FAR_CALL,
    FAR_OUTCOME,
    VALUE_TAKEN,
    FarArray,
    FarCall,
    FarOutcome,
    Piece,
    Room,
    TakenValue,
)
from .frames import ControlName, OwnFrameType
from .kept_values import MOST_KEPT, PART_KEPT, KnownValues
from .layouts import layout_text
from .lookout import Lookout
from .mover import new_key
from .requests import PickledRegistration, Registration

if TYPE_CHECKING:
    from .link import Link


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
            found = by_name(target)
            if isinstance(found, RemoteCallable):
                named = _command(CallableKind.PYTHON_IMPORT, found.descriptor, found.descriptor)
        raw = serialize_for_endpoints(task.on(()))  # a copy: no module there has it under its name
        name: str = task.__qualname__
        if why := why_not_serialised(raw):
            return cls(name, named, b"", why)
        descriptor = build_python_serialized_descriptor(raw)
        serialized = _command(CallableKind.PYTHON_SERIALIZED, descriptor, pack_payload(raw))
        return cls(name, named, serialized)


class Plan(NamedTuple):
    """What the program has decided about a call, behind its other scalars.

    `home` is the endpoint that it was submitted to, `sub_worker` the only one of it that may run it;
    `arrays` are key and versions of each, in two words.
    """

    run: int
    home: int
    sub_worker: int
    dropped: Sequence[int]
    arrays: Sequence[tuple[int, int]]

    def words(self) -> list[int]:
        """Return it as words; the last one is how many there are before it."""
        told = [self.run, self.home, self.sub_worker, len(self.dropped), *self.dropped]
        for one in self.arrays:
            told += one
        return [*told, len(told)]

    @classmethod
    def take(cls, words: list[int], kinds: list[int]) -> Plan:
        """Take it out of the scalars of a call, where a block of data may follow it."""
        end = len(words) - (kinds[len(words) - 1] == L.PAYLOAD)
        start = end - 1 - words[end - 1]
        run, home, sub_worker, count, *rest = words[start : end - 1]
        del words[start:end], kinds[start:end]
        arrays = list(zip(rest[count::2], rest[count + 1 :: 2], strict=True))
        return cls(run, home, sub_worker, rest[:count], arrays)


def _bytes_of(array: Array) -> bytes:
    """Return the bytes of an array that has no gaps, as they are in memory."""
    octets = view_memory(address_of(array), (array.nbytes,), np.dtype(np.uint8))
    return octets.tobytes()


def _command(kind: CallableKind, descriptor: bytes, payload: bytes) -> bytes:
    registry = RemoteRegistryTarget.REMOTE_TASK_DISPATCHER
    digest = sha256(descriptor).digest()
    return encode_register_callable_command(registry, kind, digest, PAYLOAD_VERSION, payload)


class OfCalls(PickledRegistration):
    """The one callable of a stream at endpoints: links find the function of each call."""

    is_of_calls = True

    def inside_for(self, link: Link) -> AtLink:
        """Return what a link runs calls with."""
        return AtLink(link)


class _Array(NamedTuple):
    """An array of a call: its memory, and what the session is told."""

    view: Array
    far: FarArray


class _Beside:
    """What travels beside a call, because it is too long for the frame, or not at all: it is there.

    `coming` are copies, and from which address; `values` those that the session keeps from now on: their
    blocks and sizes; `passing` those that are for the call alone; `packed` has the owners of memory.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.coming: dict[int, tuple[ComingCopy, int]] = {}
        self.values: dict[int, tuple[int, int]] = {}
        self.passing: list[int] = []
        self.packed: list[Any] = []

    def add(self, key: int, version: int, memory: Array) -> None:
        """Have memory stored as a version of a copy before the call."""
        self.packed.append(memory)
        self.coming[key] = ComingCopy(key, version, memory.nbytes), address_of(memory)

    def piece(self, data: memoryview, key: int = 0) -> Piece:
        """Return bytes as they travel; with a key, the session keeps them under it."""
        if self.room.takes(data.nbytes):
            return Piece(bytes(data), key, data.nbytes if key else 0)
        key = key or new_key()
        self.add(key, 1, np.frombuffer(data, np.uint8))
        return Piece(b"", key, data.nbytes)


class _Sent(NamedTuple):
    """A call that the session has: the number of its frame, and what of it has to come home."""

    sequence: int
    arrays: Sequence[_Array]
    is_typical: bool
    """The session had all that it reads, so how long it takes says how long others will."""


class AtLink:
    """What a link keeps for calls.

    Rule     CALL-FAR-1 to -3, -12; CALL-KEEP-1, -5
    """

    def __init__(self, link: Link) -> None:
        self._link, self._home = link, link.home
        mailbox = link.mailbox
        self._mem = mailbox.engine.mem
        self._call = CallWords(mailbox)
        self._blocks = Blocks(self._mem, mailbox.worker + 1)
        size = link.spec.worker.get("values_size", MOST_KEPT * PART_KEPT)
        self._values = KnownValues(self._mem, min(MOST_KEPT, size // PART_KEPT))
        self._layouts = Layouts(mailbox.engine)
        self._digests: dict[int, tuple[int, bytes]] = {}
        """Number and digest of the functions in blocks."""
        self._sent: dict[int | None, _Sent] = {}
        """The calls behind the current one that the session has, by their tickets."""
        self._refused = set[int | None]()
        """Those that could not be sent ahead."""
        self._bell, self._rope = os.pipe()
        self._lookout = Lookout(mailbox.look_out, self._ring)

    def _ring(self) -> None:
        os.write(self._rope, b"\0")

    def close(self) -> None:
        """End the thread that looks out for calls."""
        self._lookout.end(self._link.mailbox.end_look_out)
        os.close(self._bell)
        os.close(self._rope)

    def forget(self, digest: bytes) -> None:
        """Note that the session has been told to forget a callable."""
        self._digests = {key: one for key, one in self._digests.items() if one[1] != digest}

    # ------------------------------------------------------------ one call
    def run(self, args: ReceivedArgs) -> None:
        """Have the session run a call, and leave its value where the future finds it.

        Rule     CALL-FAR-12
        """
        begun = time.monotonic_ns()
        link = self._link
        try:
            ticket = link.mailbox.ticket(0)
            sent = self._take_sent(ticket)
            if sent is None:
                link.tasks.settle_all()
                sent = self._send(args, ticket)
                # one that was sent ahead has no way there to wait for, so those are counted
                sent = sent._replace(is_typical=False)
            self._send_others_until(sent, type(args))
            self._end(sent, begun)
        except TransferError as error:
            if not error.refused:
                link.give_up(str(error))  # so the call is lost, and may be run again
            raise

    def _take_sent(self, ticket: int | None) -> _Sent | None:
        """Return the current call if it was sent ahead."""
        if ticket in self._refused:
            self._refused.remove(ticket)
            return None
        sent = self._sent.pop(ticket, None)
        if sent is None:  # then the others are no longer in the mailbox
            for one in self._sent.values():
                self._link.receive(one.sequence)
            self._sent.clear()
            self._refused.clear()
        return sent

    def _send_others_until(self, sent: _Sent, kind: type[ReceivedArgs]) -> None:
        """Send the calls that come, until the answer to one that was sent is here, or there is no room.

        Rule     CALL-FAR-12
        """
        link = self._link
        while not link.has_answer(sent.sequence):
            place = self._send_ahead(kind)
            if place is None:
                return
            link.wait_also_for(self._lookout, self._bell, *place)
            if self._lookout.has_rung():
                os.read(self._bell, 1)

    def _send_ahead(self, kind: type[ReceivedArgs]) -> tuple[int, int] | None:
        """Send the calls behind the current one; return the place of the next one, if there is room.

        One that cannot be sent has to wait for its turn, when it may fail.
        """
        mailbox = self._link.mailbox
        for distance in range(1 + len(self._sent) + len(self._refused), mailbox.depth):
            place = mailbox.place(distance)  # before the look whether it is there
            ticket = mailbox.ticket(distance)
            if ticket is None:
                return place
            args = kind.__new__(kind)
            args._box = mailbox.box(mailbox.frame_of(ticket))
            try:
                self._sent[ticket] = self._send(args, ticket)
            except TransferError as error:
                if not error.refused:
                    raise
                self._refused.add(ticket)
            except Exception:
                self._refused.add(ticket)
        return None

    def _send(self, args: ReceivedArgs, ticket: int | None) -> _Sent:
        """Send a call, and before it what the session does not have."""
        link, home = self._link, self._home
        wires, words, bare = call_words(args)
        kinds = list(bare[: len(words)])
        plan = Plan.take(words, kinds)
        home.begin(plan.run)
        self._require_mine(plan)
        form = form_of(words)
        number, digest = self._digests.get(form.key, (0, b""))
        if number != number_in(data_of(self._mem, form.key)):
            digest = self._teach(form.key)
        arrays = [self._array(*one) for one in zip(wires, plan.arrays, strict=True)]
        beside = _Beside(Room())
        call = self._far_call(plan, digest, form, words, kinds, arrays, beside)
        home.store_all(plan.run, beside.coming, self._ask)
        forgotten = self._values.take_dropped(MOST_DROPPED - len(plan.dropped))
        if dropped := [*plan.dropped, *forgotten]:
            call = replace(call, dropped=dropped)
        raw = FAR_CALL.encode(call)
        if ticket is not None:
            link.mailbox.note_sent(ticket)
        sequence = link.post(OwnFrameType.TASK_CALL, raw)
        home.forget(plan.dropped)
        for key, value in beside.values.items():
            self._values.add(key, *value)
        self._tell_to_forget(beside.passing)
        read = [CopiedTensor(one.far.key, one.far.reads) for one in arrays if one.far.reads]
        home.note(read, True)
        return _Sent(sequence, arrays, not (beside.coming or beside.values))

    def _end(self, sent: _Sent, begun: int) -> None:
        """Wait for the answer to a call, and leave its value."""
        answer = FAR_OUTCOME.decode(self._link.receive(sent.sequence).payload)
        succeeded = answer.kind != L.VALUE_ERROR
        try:
            if succeeded:
                self._bring(sent.arrays, answer.written)
        finally:
            self._note_end(sent, succeeded)
        self._count(begun, sent.is_typical)
        self._leave(answer)

    def _note_end(self, sent: _Sent, succeeded: bool) -> None:
        """Note what the session has after a call: what a failed one reads may never have come there."""
        far = [one.far for one in sent.arrays]
        made = [CopiedTensor(one.key, one.reads, one.makes) for one in far if one.makes]
        self._home.note(made, succeeded)
        if not succeeded:
            self._home.forget([one.key for one in far])

    def _require_mine(self, plan: Plan) -> None:
        """Refuse a call for one sub worker of an endpoint that is lost."""
        if plan.sub_worker != ANY_SUB_WORKER and plan.home != self._link.number:
            raise TaskError(
                f"the call is for sub worker {plan.sub_worker} of endpoint {plan.home}, which is lost"
            )

    def _count(self, begun: int, is_typical: bool) -> None:
        words = self._link.words
        words[TASKS] += 1
        if is_typical:
            words[UNMOVED] += 1
            words[UNMOVED_NS] += time.monotonic_ns() - begun

    def _ask(self, raw: bytes) -> bytes:
        return self._link.exchange(OwnFrameType.OPEN_COPIES, raw).payload

    def _teach(self, key: int) -> bytes:
        """Have the session know a function, and return its digest.

        Rule     CALL-FAR-2
        """
        link = self._link
        data = data_of(self._mem, key)
        function: Function = pickle.loads(Payload.from_bytes(data).body)
        ways = [one for one in (function.by_name, function.serialized) if one]
        if function.by_name and not link.spec.serialized:
            ways.remove(function.serialized)
        if not ways:
            raise TypeError(
                f"{function.name} cannot be sent to an endpoint: no module has it by its name, and it "
                f"refers to something that cannot be pickled ({function.why_not})"
            )
        for command in ways:
            one = Registration((link.number,), command)
            try:
                link.ask(ControlName.PREPARE_REGISTER_CALLABLE, one.command)
                link.ask(ControlName.COMMIT_REGISTER_CALLABLE, one.digest_command)
            except ControlError:
                if command is ways[-1]:
                    raise
                continue
            self._digests[key] = number_in(data), one.digest
            return one.digest
        raise AssertionError

    # ------------------------------------------------------------ what it needs
    def _array(self, wire: bytes, words: tuple[int, int]) -> _Array:
        """Return an array of this machine, and what the session is told of it."""
        dtype, shape, strides = layout = layout_of(self._layouts, wire)
        address = int.from_bytes(wire[:SHAPE_AT], "little")
        view = view_memory(address, shape, dtype, strides=strides)
        key, versions = words
        text = layout_text(copied_layout(layout))
        reads, makes = versions >> 32, versions & L.LOW_HALF
        return _Array(view, FarArray(key, reads, makes, view.nbytes, text))

    def _far_call(
        self,
        plan: Plan,
        digest: bytes,
        form: Form,
        words: list[int],
        kinds: list[int],
        arrays: Sequence[_Array],
        beside: _Beside,
    ) -> FarCall:
        """Return a call as it travels; note what moves beside it."""
        short: dict[int, bytes] = {}
        """Of a key that several arrays have, each in a layout of its own, the bytes travel once."""
        for view, far in {one.far.key: one for one in arrays}.values():
            if far.reads and not self._home.has(far.key, far.reads):
                source = (
                    view if is_whole((view.dtype, view.shape, view.strides)) else view.copy("C")
                )
                if beside.room.takes(far.nbytes):
                    short[far.key] = _bytes_of(source)
                else:
                    beside.add(far.key, far.reads, source)
        codes = [*form.inner, *form.codes]
        count = codes.count(VALUE) + codes.count(INNER_VALUE)
        values = [
            self._value(words[at], beside)
            for at in range(form.end, form.end + count)
            if kinds[at] == L.FETCHED | L.VALUE_BLOCK
        ]
        sent = slice(form.end, form.end + count)
        return FarCall(
            plan.run,
            digest,
            plan.sub_worker,
            form.named,
            bytes(codes),
            bytes(kinds[sent]),
            np.array(words[sent], np.int64).tobytes(),
            [replace(far, data=short.pop(far.key, b"")) for _, far in arrays],
            beside.piece(self._items(words, kinds)) if form.has_items else Piece(),
            values,
        )

    def _value(self, offset: int, beside: _Beside) -> Piece:
        """Return the value in a block as it travels: if the session keeps it, by its key alone.

        Rule     CALL-KEEP-1
        """
        block = data_of(self._mem, offset)
        data = block[: outcomes.size_of(block)]
        key = self._values.key_for(offset, data.nbytes)
        if key:
            if key in beside.values or self._values.has(key, offset, data.nbytes):
                return Piece(b"", key, data.nbytes)
            beside.values[key] = offset, data.nbytes
        piece = beside.piece(data, key)
        if piece.key and not key:
            beside.passing.append(piece.key)
        return piece

    def _items(self, words: list[int], kinds: list[int]) -> memoryview:
        """Return the pickle of names and values."""
        if kinds[-1] == L.PAYLOAD:
            return data_of(self._mem, words[-1])
        size = words[-1]
        first = len(words) - 1 - -(-size // L.WORD)
        return memoryview(np.array(words[first:-1], np.int64).tobytes())[:size]

    # ------------------------------------------------------------ what it has made
    def _bring(self, arrays: Sequence[_Array], short: Sequence[bytes]) -> None:
        """Have what was written come home: all of it, or nothing if the endpoint is lost meanwhile.

        What is short has come with the answer.

        Rule     CALL-FAR-3
        """
        made = {one.far.key: one for one in arrays if one.far.makes}
        came = []
        for (view, far), data in zip(made.values(), short, strict=True):
            copy = np.frombuffer(data, np.uint8) if data else np.empty(far.nbytes, np.uint8)
            if not data:
                where = window_key(far.key, far.makes)
                self._home.move_from(where, 0, address_of(copy), far.nbytes)
            came.append((view, copy))
        for view, copy in came:
            if is_whole((view.dtype, view.shape, view.strides)):
                memmove(address_of(view), address_of(copy), view.nbytes)
            else:
                view[...] = np.ndarray(view.shape, view.dtype, copy)

    def _leave(self, answer: FarOutcome) -> None:
        """Leave what the session has answered where the future finds it.

        Rule     CALL-FAR-5, -6
        """
        agreed = self._link.spec.serialized
        if answer.kind == L.VALUE_ERROR:
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
                self._home.move_from(value.key, 0, address, value.nbytes)
            set_value_key(self._mem, block.offset, value.key)
            fail_point("came")
            if self._values.key_for(block.offset, value.nbytes):
                self._values.add(value.key, block.offset, value.nbytes)
                stays = True
            self._call.answer(L.VALUE_BLOCK, block.offset)
        finally:
            if not stays:
                self._tell_to_forget([value.key])

    def _tell_to_forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._link.post(OwnFrameType.VALUE_TAKEN, VALUE_TAKEN.encode(TakenValue(key)))

    def forget_unneeded(self) -> None:
        """Have the session forget the values that nobody needs any more.

        Rule     CALL-KEEP-3
        """
        self._tell_to_forget(self._values.take_all_dropped())

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
