"""The tasks and calls of a link: it has the session run them, and sends some before their turn.

A link with several mailbox frames sees the tasks that follow. Those that wait for no other worker go to
the session before the current one has ended, also if they come while that runs. The session runs tasks
of runs in the order in which they come, and skips those that wait for one that has failed; calls run side
by side. So the session finds its next task waiting, and its way there costs nothing while another runs.

    mailbox ──read──▶ task ──store what is missing──▶ RUN ─ ─ ─▶ session
       ▲                                                           │
       └────────end──── answer ◀───settle, oldest first ◀─ ─ ─ ─ ─ ┘

`RunTasks` makes tasks of runs of what is in the mailbox, `CallTasks` makes calls. A call
is a task with a value, which the link leaves where the future finds it. The session gets a function once,
then for each call what it does not have.

A long value has a key from the session whose call has returned it; the program's machine notes that in
the block of the value, too. A session keeps values, also those that were made elsewhere, until its link
says which to forget: so the link always knows what need not move again.

Rule     REMOTE-LINK-3, REMOTE-LINK-4, REMOTE-LINK-5, REMOTE-AHEAD-1, REMOTE-AHEAD-2,
         REMOTE-AHEAD-4, REMOTE-AHEAD-6, REMOTE-AHEAD-7, REMOTE-AHEAD-8, REMOTE-FAIL-1, REMOTE-FAIL-2,
         CALL-FAR-1, CALL-FAR-2, CALL-FAR-3, CALL-FAR-5, CALL-FAR-6, CALL-KEEP-1, CALL-KEEP-3,
         CALL-KEEP-4, SPEED-LIST-6
"""

from __future__ import annotations

import pickle
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import memmove, string_at
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..callables.identity import CallableKind, build_python_serialized_descriptor
from ..callables.pickling import pack_payload, serialize, why_not_serialised
from ..calls import outcomes
from ..calls.arguments import key_of
from ..calls.sending import Payload, number_in
from ..calls.tasks import Task
from ..engine.view.blocks import Blocks, data_of, set_value_key, value_key
from ..engine.view.layouts import Layouts
from ..engine.view.mailbox import ReceivedArgs, call_words, digest_in
from ..errors import ControlError, TaskError, TransferError
from ..jit import layout as L
from ..model.tensor import view_memory
from ..model.wire import SHAPE_AT, TENSOR, bytes_of, has_layout
from ..system.types import Array, address_of
from . import callables
from . import task_messages as messages
from .copies import SOURCE_LOST, CopiedTensor, window_key
from .directory import Plan
from .frames import ControlName, OwnFrameType
from .limits import LATE_TASKS, MOST_INLINE, TASK_NS, TASKS
from .link_frames import LinkFrames
from .lists import REPLAY, Replay
from .mover import Span
from .parent_memory import Homing, Missing, ParentMemory, mover_of
from .spec import RemoteWorkerSpec
from .tasks import copied_layout, is_whole, layout_of, layout_text

MOST_KEPT = 256 << 20
"""Bytes of values that an endpoint keeps, if its calls have four times as many for values."""
PART_KEPT = 4
_LOOKS = 4
"""Values of which a link looks, for each call, whether they are still needed."""


class KnownValues:
    """The values that the session of a link keeps, those used longest ago first."""

    def __init__(self, mem: Array, most: int) -> None:
        self._mem, self._most = mem, most
        self._known: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By key: the block, and how many bytes."""
        self._total = self._looks = 0

    def key_for(self, block: int, nbytes: int) -> int:
        """Return the key under which a session may keep the value in a block; 0: it is not to."""
        return value_key(self._mem, block) if MOST_INLINE < nbytes <= self._most else 0

    def has(self, key: int) -> bool:
        """Say whether the session has a value, which is used now."""
        if key in self._known:
            self._known.move_to_end(key)
        return key in self._known

    def add(self, key: int, block: int, nbytes: int) -> None:
        """Note that the session has a value from now on."""
        self._known[key] = block, nbytes
        self._total += nbytes

    def take_dropped(self, looks: int = _LOOKS) -> list[int]:
        """Return those that the session forgets: too many, or needed by nobody when this looked.

        It looks at all once it was allowed to look at as many.
        """
        self._looks += looks
        dropped = []
        if self._looks >= len(self._known):
            self._looks, mem = 0, self._mem
            dropped = [key for key, (at, _) in self._known.items() if value_key(mem, at) != key]
        for key in dropped:
            self._total -= self._known.pop(key)[1]
        while self._total > self._most:
            key, (_, nbytes) = self._known.popitem(last=False)
            self._total -= nbytes
            dropped.append(key)
        return dropped


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
        named = b""
        for target in (task, task.py_func):
            found = callables.by_name(target)
            if isinstance(found, callables.RemoteCallable):
                named = callables.registering(
                    CallableKind.PYTHON_IMPORT, found.descriptor, found.descriptor
                )
        copy = task.on(())  # no module there has it under its name
        raw = serialize(copy, to_endpoints=True)
        name: str = task.__qualname__
        if why := why_not_serialised(raw):
            return cls(name, named, b"", why)
        descriptor = build_python_serialized_descriptor(raw)
        serialized = callables.registering(
            CallableKind.PYTHON_SERIALIZED, descriptor, pack_payload(raw)
        )
        return cls(name, named, serialized)


# ---------------------------------------------------------------- what is under way
class LinkTask:
    """A task or a call, as its mailbox has it, then as the session has it.

    Until it is sent, it has the message, and what is missing for it. `tensors` is what the session is
    told of its copies, `arrays` are those of a call, `replay` is the key of a replay, or 0.
    """

    sequence = 0
    """The number of its frame."""
    done: messages.Done

    def __init__(
        self,
        reader: Reader,
        message: messages.Run,
        missing: Missing,
        arrays: Sequence[Array] = (),
        replay: int = 0,
    ) -> None:
        self.reader, self.message, self.missing = reader, message, missing
        self.tensors, self.arrays, self.replay = message.tensors, arrays, replay


class TaskReader:
    """What `RunTasks` and `CallTasks` have in common; `movers` is that of the link."""

    are_calls = False
    """Whether what was sent ahead may have begun, as the engine sees it."""

    def __init__(self, frames: LinkFrames, memory: ParentMemory, movers: Any) -> None:
        self._frames, self._memory, self._movers = frames, memory, movers

    def behind(self, task: LinkTask) -> None:
        """Do what follows a task that has been sent, and is there from now on."""

    def drop(self, task: LinkTask) -> None:
        """Let what a task has made go: it was cancelled before its turn."""

    def with_copies(
        self,
        message: messages.Run,
        plan: Plan,
        layouts: Sequence[str],
        missing: Missing,
        place: Callable[[int], tuple[int, int]],
    ) -> messages.Run:
        """Return a message with what the session is told of copies.

        A version that the task reads, the parent has and the session has not is in it, or among what is
        missing. `place` returns address and bytes of a tensor.
        """
        tensors, seen = [], set()
        for i, (one, layout) in enumerate(zip(plan.tensors, layouts, strict=True)):
            data = b""
            if self._memory.lacks(one) and one.key not in seen:
                data = missing.take(one.key, one.reads, *place(i))
            seen.add(one.key)
            mover = mover_of(self._movers, one.source)
            tensors.append(CopiedTensor(one.key, one.reads, one.makes, mover, layout, data))
        return message._replace(run=plan.run, tensors=tensors, dropped=plan.dropped)


class LinkTasks:
    """The tasks of one session, in the order in which it gets them."""

    def __init__(self, frames: LinkFrames, memory: ParentMemory) -> None:
        self._frames, self._memory = frames, memory
        self._sent: deque[tuple[int | None, LinkTask | None]] = deque()
        """What the session has: which one of this worker. None: it could not go ahead, others could."""

    def run(self, kind: Reader, args: ReceivedArgs) -> None:
        try:
            self._run(kind, args)
        except TransferError as error:
            if not error.refused:
                kind.note_loss(error)
            raise

    def _run(self, kind: Reader, args: ReceivedArgs) -> None:
        begun = time.monotonic_ns()
        ticket = self._frames.mailbox.ticket(0)
        while self._sent and self._sent[0][0] != ticket:
            self._drop()  # the run was cancelled before its turn
        task = self._sent[0][1] if self._sent else None
        if self._sent and task is None:
            self._sent.popleft()
        if task is None:
            found = kind.read(args)
            if isinstance(found, Homing):
                self._sent.appendleft((ticket, None))
                self._send_ahead(kind, type(args))
                self._sent.popleft()
                self._memory.bring(found)
                return
            task = found
            self._store_in_turn(task)
            begun = time.monotonic_ns()
            self._post(ticket, task)
            self._sent.appendleft((ticket, task))
        self._oversee(task)
        self._send_until_answered(kind, type(args), task.sequence)
        self._settle(task, self._frames.mailbox.task_number)
        words = self._frames.words
        words[TASKS] += 1
        took_ns = time.monotonic_ns() - begun
        words[TASK_NS] += (took_ns - words[TASK_NS]) // min(words[TASKS], LATE_TASKS)
        task.reader.end(task)

    def settle_all(self) -> None:
        """Wait for what was sent ahead in vain: of a cancelled run."""
        while self._sent:
            self._drop()

    def _settle(self, task: LinkTask, number: int = 0) -> None:
        """Wait for the end of the oldest task that the session has, and note what it has made.

        `number` is that of the task in a trace, unless it was sent in vain.
        """
        frame = self._frames.receive(task.sequence, number)
        self._sent.popleft()
        task.done = messages.DONE.decode(frame.payload)
        self._memory.note(task.tensors, task.done.outcome == L.SUCCESS)

    def _drop(self) -> None:
        """Wait for the end of the oldest task, which was sent in vain."""
        task = self._sent[0][1]
        if task is None:
            self._sent.popleft()
        else:
            self._settle(task)
            task.reader.drop(task)

    # ------------------------------------------------------------ ahead of time
    def _send_until_answered(self, kind: Reader, args: type[ReceivedArgs], sequence: int) -> None:
        """Send the tasks that come, until the answer to a frame is here, or there is no room."""
        frames = self._frames
        place = self._send_ahead(kind, args)
        while place is not None and not frames.has_answer(sequence):
            frames.wait_for_answer_or_task(*place)
            place = self._send_ahead(kind, args)

    def _send_ahead(self, kind: Reader, args: type[ReceivedArgs]) -> tuple[int, int] | None:
        """Send the tasks that come next, up to one that has to wait for its turn.

        Returns the place of that one, or where the next one will be, if there is room.
        """
        mailbox = self._frames.mailbox
        for distance in range(max(1, len(self._sent)), mailbox.depth):
            place = mailbox.place(distance)  # before the look whether it is there
            ticket = mailbox.ticket(distance, may_wait=True)
            after = None if ticket is None else self._frames_of(mailbox.awaits(ticket))
            if ticket is None or after is None:
                return place
            task = self._look(kind, args, mailbox.box(mailbox.frame_of(ticket)), after)
            if task is not None:
                self._post(ticket, task, after)
            elif after:
                return place
            self._sent.append((ticket, task))
        return None

    def _frames_of(self, tickets: list[int]) -> list[int] | None:
        """Return the numbers of the frames of tasks; None if the session cannot be told to wait for one.

        One that brings a tensor home is none of the session's.
        """
        if not tickets:
            return []
        sent = {ticket: task.sequence for ticket, task in self._sent if task is not None}
        if not sent.keys() >= set(tickets):
            return None
        return [sent[one] for one in tickets]

    def _look(
        self, kind: Reader, made: type[ReceivedArgs], box: Any, after: Sequence[int]
    ) -> LinkTask | None:
        """Return a task that can go ahead; None if it has to wait for its turn, when it may also fail."""
        args = made.__new__(made)
        args._box = box
        try:
            task = kind.read_ahead(args, after)
            if task is None or isinstance(task, Homing):
                return None
            self._memory.store_all(task.message.run, task.missing.coming)
        except TransferError as error:
            if not error.refused:
                raise
            return None
        except Exception:
            return None
        return task

    # ------------------------------------------------------------ one task
    def _oversee(self, task: LinkTask) -> None:
        """Have the session end a replay if the run is over for others."""
        frames, memory = self._frames, self._memory
        while task.replay and not frames.has_answer_soon(task.sequence):
            view = frames.mailbox.engine.view
            if view.has_failed or view.is_cancelled:
                with suppress(TransferError):  # it has not begun, or has ended by now
                    memory.mover.ask(memory.address, task.replay, b"")

    def _store_in_turn(self, task: LinkTask) -> None:
        """Store it; if there is no room beside what runs there, once that has ended."""
        store = partial(self._memory.store_all, task.message.run, task.missing.coming)
        try:
            store()
        except MemoryError:
            if not self._sent:
                raise
            for _, one in self._sent:
                if one is not None:
                    self._frames.wait_for_answer_to(one.sequence)
            store()

    def _post(self, ticket: int | None, task: LinkTask, after: Sequence[int] = ()) -> None:
        """Send a task to the session; `after` are the numbers of the frames that it waits for."""
        memory = self._memory
        if ticket is not None and task.reader.are_calls:
            self._frames.mailbox.note_sent(ticket)
        raw = messages.RUN.encode(task.message._replace(after=after))
        task.sequence = self._frames.post(OwnFrameType.RUN, raw)
        memory.forget(task.message.dropped)
        memory.note([one._replace(makes=0) for one in task.tensors if not one.source], True)
        task.reader.behind(task)
        task.tensors = [one._replace(data=b"") if one.data else one for one in task.tensors]
        del task.message, task.missing


# ---------------------------------------------------------------- tasks of runs
class Planned(NamedTuple):
    """A replay of a part of a list, as the program tells its link, which reads it at an address.

    `run` is as in a plan. `wires` and `words` are the tensors of the task, and its scalars, which are the
    plan; `scalars` are those of the replay, and `places` the endpoints of all parts.
    """

    run: int
    wires: Sequence[bytes]
    words: list[int]
    digest: bytes
    part: int
    key: int
    places: Sequence[int]
    scalars: bytes


class RunTasks(TaskReader):
    """The tasks of runs.

    `losses` is that of the link. No task of a callable that is not `known` to the session is sent ahead,
    and none of a list.
    """

    def __init__(
        self,
        frames: LinkFrames,
        memory: ParentMemory,
        movers: Any,
        maker: messages.TaskMaker,
        losses: Any,
    ) -> None:
        super().__init__(frames, memory, movers)
        self._maker, self._losses = maker, losses
        self.known: set[bytes] = set()
        self.lists: set[bytes] = set()
        """Digests of callables, and of lists."""

    def note_loss(self, error: TransferError) -> None:
        """Count what could not be moved for a loss, unless the session of this link is lost."""
        self._frames.end_if_lost()
        self._losses[0] += 1

    def end(self, task: LinkTask) -> None:
        done = task.done
        if done.outcome == L.SUCCESS:
            return
        if done.outcome == SOURCE_LOST:
            self._losses[0] += 1
        text, trace = (raw.decode(errors="replace") for raw in (done.text, done.trace))
        raise TaskError(f"{self._frames.place.name}: {text}", remote_traceback=trace)

    def read_ahead(self, args: ReceivedArgs, after: Sequence[int]) -> LinkTask | Homing | None:
        """Return a task that can go ahead: one of a callable that the session knows."""
        return self.read(args) if digest_in(args._box) in self.known else None

    def read(self, args: ReceivedArgs) -> LinkTask | Homing:
        """Return a task, with what the session needs for it."""
        if self.lists and digest_in(args._box) in self.lists:
            return self._read_replay(args)
        wires, scalars, kinds = call_words(args)
        words = [word & 0xFFFF_FFFF_FFFF_FFFF for word in scalars]
        named, missing = list(kinds[: len(scalars)]), Missing()
        if not any(TENSOR.unpack(wire)[-1] & L.TENSOR_COPIED for wire in wires):
            return LinkTask(self, self._maker.make(args, wires, words, bytes(named)), missing)
        plan = Plan.take(words, named)
        self._memory.begin(plan.run)
        if plan.goes_home:
            (one,) = plan.tensors
            return Homing(one.key, one.reads, one.reads, *_place_of(wires, 0))
        message = self._maker.make(args, wires, words, bytes(named))
        layouts = [
            layout_text(layout_of(args._layouts, one)) if has_layout(one) else "" for one in wires
        ]
        place = partial(_place_of, wires)
        message = self.with_copies(message, plan, layouts, missing, place)
        return LinkTask(self, message, missing)

    # ------------------------------------------------------------ replays of a part of a list
    def _read_replay(self, args: ReceivedArgs) -> LinkTask:
        _, (address, nbytes), _ = call_words(args)
        told: Planned = pickle.loads(string_at(address, nbytes))
        plan, missing = Plan(told.run, ()), Missing()
        if told.words:
            plan = Plan.take(told.words, [L.RAW] * len(told.words))
        self._memory.begin(plan.run)
        movers = [mover_of(self._movers, one + 1) for one in told.places]
        replay = REPLAY.encode(Replay(told.digest, told.part, told.key, movers, told.scalars))
        message, place = messages.Run(b"", replay=replay), partial(_place_of, told.wires)
        message = self.with_copies(message, plan, [""] * len(told.wires), missing, place)
        return LinkTask(self, message, missing, replay=told.key)


def _place_of(wires: Sequence[bytes], i: int) -> tuple[int, int]:
    return int.from_bytes(wires[i][:SHAPE_AT], "little"), bytes_of(wires[i])


# ---------------------------------------------------------------- calls
class CallTasks(TaskReader):
    """The calls of a link."""

    are_calls = True

    def __init__(
        self,
        frames: LinkFrames,
        memory: ParentMemory,
        movers: Any,
        spec: RemoteWorkerSpec,
        number: int,
    ) -> None:
        super().__init__(frames, memory, movers)
        self._spec, self._number = spec, number
        mailbox = frames.mailbox
        self._mem = mailbox.engine.mem
        self._call = mailbox
        self._blocks = Blocks(self._mem, mailbox.worker + 1)
        size = spec.worker.get("values_size", MOST_KEPT * PART_KEPT)
        self.values = KnownValues(self._mem, min(MOST_KEPT, size // PART_KEPT))
        self._layouts = Layouts(self._mem)
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
        self._memory.begin(plan.run)
        self._require_mine(plan)
        digest = self._digest_of(key_of(words[0]))
        layouts = [layout_of(self._layouts, wire) for wire in wires]
        arrays = [
            view_memory(_place_of(wires, i)[0], shape, dtype, strides=strides)
            for i, (dtype, shape, strides) in enumerate(layouts)
        ]
        missing = Missing()

        def place(i: int) -> tuple[int, int]:
            return missing.pack(arrays[i] if _is_whole(arrays[i]) else arrays[i].copy("C"))

        texts = [layout_text(copied_layout(layout)) for layout in layouts]
        told = self.with_copies(messages.Run(b""), plan, texts, missing, place)
        items = messages.Piece()
        if kinds[-1] == L.PAYLOAD:
            del kinds[-1]
            items = missing.piece(data_of(self._mem, words.pop()))
        values = [
            self._value(word, missing)
            for word, kind in zip(words, kinds, strict=True)
            if kind == L.FETCHED | L.VALUE_BLOCK
        ]
        only = messages.ANY_SUB_WORKER if plan.only is None else plan.only[1]
        call = messages.Call(digest, only, np.array(words, np.int64).tobytes(), items, values)
        message = told._replace(kinds=bytes(kinds), call=messages.CALL.encode(call))
        return LinkTask(self, message, missing, arrays)

    def _require_mine(self, plan: Plan) -> None:
        if plan.only is not None and plan.only[0] != self._number:
            raise TaskError(
                f"the call is for sub worker {plan.only[1]} of endpoint {plan.only[0]}, which is lost"
            )

    def _digest_of(self, key: int) -> bytes:
        """Return the digest of a function, which the session knows by then."""
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
    def _value(self, offset: int, missing: Missing) -> messages.Piece:
        """Return the value in a block as it travels: if the session keeps it, by its key alone."""
        block = data_of(self._mem, offset)
        data = block[: outcomes.size_of(block)]
        key = self.values.key_for(offset, data.nbytes)
        if key:
            if key in missing.values or self.values.has(key):
                return messages.Piece(b"", key, data.nbytes)
            missing.values[key] = offset, data.nbytes
        piece = missing.piece(data, key)
        if piece.key and not key:
            missing.passing.append(piece.key)
        return piece

    def behind(self, task: LinkTask) -> None:
        """Note which values the session has now; it forgets others, and those for the call alone."""
        for key, value in task.missing.values.items():
            self.values.add(key, *value)
        self.tell_to_forget([*task.missing.passing, *self.values.take_dropped()])

    # ------------------------------------------------------------ what it has made
    def end(self, task: LinkTask) -> None:
        """Have what was written come home, and leave the value where the future finds it."""
        if task.done.outcome == L.SUCCESS:
            self._bring(task)
        self._leave(task.done)

    def drop(self, task: LinkTask) -> None:
        """Have the session forget what it has returned."""
        if task.done.value.key:
            self.tell_to_forget([task.done.value.key])

    def _bring(self, task: LinkTask) -> None:
        """Have what was written come home: all of it, or nothing if the endpoint is lost meanwhile.

        What is short has come with the answer.
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
        self._memory.mover.fetch_all(self._memory.address, [Span(key, address, nbytes)])

    def _leave(self, answer: messages.Done) -> None:
        """Leave what the session has answered where the future finds it."""
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
            if self.values.key_for(block.offset, value.nbytes):
                self.values.add(value.key, block.offset, value.nbytes)
                stays = True
            self._call.answer(L.VALUE_BLOCK, block.offset)
        finally:
            if not stays:
                self.tell_to_forget([value.key])

    def tell_to_forget(self, keys: Sequence[int]) -> None:
        if keys:
            self._frames.post(OwnFrameType.VALUE_TAKEN, np.array(keys, "<u8").tobytes())

    def forget_unneeded(self) -> None:
        self.tell_to_forget(self.values.take_dropped(looks=1 << 62))

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


def _is_whole(array: Array) -> bool:
    return is_whole((array.dtype, array.shape, array.strides))


Reader = RunTasks | CallTasks
