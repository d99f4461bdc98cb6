"""The tasks of a link: it has the session run them, and sends those behind the current one ahead of time.

A link with several mailbox frames sees the tasks that follow. Those that wait for no other worker go to
the session before the current one has ended, also if they come while that runs. The session runs tasks
of runs in the order in which they come, and skips those that wait for one that has failed; calls run side
by side. So the session finds its next task waiting, and its way there costs nothing while another runs.

    mailbox ──read──▶ task ──store what is missing──▶ RUN ─ ─ ─▶ session
       ▲                                                           │
       └────────end──── answer ◀───settle, oldest first ◀─ ─ ─ ─ ─ ┘

`TaskReader` makes a task of what is in the mailbox: `RunTasks` those of runs, `link_calls` calls.

Rule     REMOTE-LINK-3, REMOTE-LINK-4, REMOTE-LINK-5, REMOTE-AHEAD-1, REMOTE-AHEAD-2,
         REMOTE-AHEAD-4, REMOTE-AHEAD-6, REMOTE-AHEAD-7, REMOTE-AHEAD-8, REMOTE-FAIL-1, REMOTE-FAIL-2
"""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from ctypes import string_at
from functools import partial
from typing import Any, NamedTuple

from ..engine.view.mailbox import ReceivedArgs, call_words, digest_in
from ..errors import TaskError, TransferError
from ..jit import layout as L
from ..model.wire import SHAPE_AT, TENSOR, bytes_of
from .copies import SOURCE_LOST, CopiedTensor
from .directory import Plan
from .fail_points import fail_point
from .frames import OwnFrameType
from .limits import LATE_TASKS, TASK_NS, TASKS
from .link_frames import LinkFrames
from .lists import REPLAY, Replay
from .parent_memory import Coming, Homing, Missing, ParentMemory, mover_of
from .task_messages import DONE, RUN, Done, Run, TaskMaker, layouts_in


class LinkTask:
    """A task or a call, as its mailbox has it.

    Attributes
    ----------
    reader : TaskReader
        Who has read it.
    run : int
        The run that it is of; 0 if it has no copies.
    tensors : sequence of CopiedTensor
        What the session is told of its copies.
    coming : Coming
        What has to be stored before it.
    done : Done
        What became of it.
    replay : int
        The key of a replay; else 0.
    """

    done: Done
    replay = 0

    def __init__(self, reader: TaskReader, message: Run, coming: Coming) -> None:
        self.reader, self.run, self.tensors = reader, message.run, message.tensors
        self.coming, self.message = coming, message

    def post(self, frames: LinkFrames, memory: ParentMemory, after: Sequence[int]) -> int:
        """Send it, and return the number of its frame; `after` are those that it waits for."""
        raw = RUN.encode(self.message._replace(after=after))
        sequence = frames.post(OwnFrameType.RUN, raw)
        memory.forget(self.message.dropped)
        memory.note([one._replace(makes=0) for one in self.tensors if not one.source], True)
        self.tensors = [one._replace(data=b"") if one.data else one for one in self.tensors]
        del self.message
        return sequence

    def take(self, memory: ParentMemory, answer: bytes) -> None:
        """Read the answer, and note what the session has after that."""
        self.done = DONE.decode(answer)
        memory.note(self.tensors, self.done.outcome == L.SUCCESS)


class Bringing:
    """A task that only brings a tensor home, which is nothing for the session."""

    def __init__(self, plan: Plan, memory: ParentMemory, wire: bytes) -> None:
        self._plan, self._memory, self._wire = plan, memory, wire

    def end(self) -> None:
        """Bring it home."""
        (one,) = self._plan.tensors
        address = int.from_bytes(self._wire[:SHAPE_AT], "little")
        self._memory.bring(Homing(one.key, one.reads, one.reads, address, bytes_of(self._wire)))


class TaskReader(ABC):
    """Reads the tasks of one kind."""

    are_calls = False
    """Whether what was sent ahead may have begun, as the engine sees it."""

    @abstractmethod
    def read(self, args: ReceivedArgs) -> LinkTask | Bringing:
        """Return a task whose turn it is; it may fail."""

    def read_ahead(self, args: ReceivedArgs, after: Sequence[int]) -> LinkTask | Bringing | None:
        """Return a task that can go ahead, if only of some frames; None: it has to wait for its turn."""
        return self.read(args)

    @abstractmethod
    def note_loss(self, error: TransferError) -> None:
        """Note that something could not be moved because somebody is lost."""

    @abstractmethod
    def end(self, task: Any) -> None:
        """Leave what a task has made; raise what it has failed with."""

    def oversee(self, task: Any, sequence: int) -> None:  # noqa: B027 (most need not be)
        """Do what is to be done while the session runs a task, whose frame has a number."""

    def drop(self, task: Any) -> None:  # noqa: B027 (most have made nothing)
        """Let what a task has made go: it was cancelled before its turn."""


class _Sent(NamedTuple):
    """A task that the session has: which one of this worker, and the number of its frame.

    Without a task it could not go ahead, and others behind it could.
    """

    ticket: int | None
    sequence: int = 0
    task: LinkTask | None = None


class LinkTasks:
    """The tasks of one session, in the order in which it gets them."""

    def __init__(self, frames: LinkFrames, memory: ParentMemory) -> None:
        self._frames, self._memory = frames, memory
        self._sent: deque[_Sent] = deque()

    def run(self, kind: TaskReader, args: ReceivedArgs) -> None:
        """Have the session run the current task."""
        try:
            self._run(kind, args)
        except TransferError as error:
            if not error.refused:
                kind.note_loss(error)
            raise

    def _run(self, kind: TaskReader, args: ReceivedArgs) -> None:
        begun = time.monotonic_ns()
        ticket = self._frames.mailbox.ticket(0)
        while self._sent and self._sent[0].ticket != ticket:
            self._drop()  # the run was cancelled before its turn
        task = self._sent[0].task if self._sent else None
        if self._sent and task is None:
            self._sent.popleft()
        if task is None:
            found = kind.read(args)
            if isinstance(found, Bringing):
                self._sent.appendleft(_Sent(ticket))
                self._send_ahead(kind, type(args))
                self._sent.popleft()
                found.end()
                return
            task = found
            self._store_in_turn(task)
            begun = time.monotonic_ns()
            self._sent.appendleft(self._post(ticket, task))
        kind.oversee(task, self._sent[0].sequence)
        self._send_until_answered(kind, type(args), self._sent[0].sequence)
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
        frame = self._frames.receive(self._sent[0].sequence, number)
        self._sent.popleft()
        task.take(self._memory, frame.payload)

    def _drop(self) -> None:
        """Wait for the end of the oldest task, which was sent in vain."""
        task = self._sent[0].task
        if task is None:
            self._sent.popleft()
        else:
            self._settle(task)
            task.reader.drop(task)

    # ------------------------------------------------------------ ahead of time
    def _send_until_answered(
        self, kind: TaskReader, args: type[ReceivedArgs], sequence: int
    ) -> None:
        """Send the tasks that come, until the answer to a frame is here, or there is no room."""
        frames = self._frames
        place = self._send_ahead(kind, args)
        while place is not None and not frames.has_answer(sequence):
            frames.wait_for_answer_or_task(*place)
            place = self._send_ahead(kind, args)

    def _send_ahead(self, kind: TaskReader, args: type[ReceivedArgs]) -> tuple[int, int] | None:
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
                self._sent.append(self._post(ticket, task, after))
                fail_point("ahead")
            elif after:
                return place
            else:
                self._sent.append(_Sent(ticket))
        return None

    def _frames_of(self, tickets: list[int]) -> list[int] | None:
        """Return the numbers of the frames of tasks; None if the session cannot be told to wait for one.

        One that brings a tensor home is none of the session's.
        """
        if not tickets:
            return []
        sent = {one.ticket: one.sequence for one in self._sent if one.task is not None}
        if not sent.keys() >= set(tickets):
            return None
        return [sent[one] for one in tickets]

    def _look(
        self, kind: TaskReader, made: type[ReceivedArgs], box: Any, after: Sequence[int]
    ) -> LinkTask | None:
        """Return a task that can go ahead; None if it has to wait for its turn, when it may also fail."""
        args = made.__new__(made)
        args._box = box
        try:
            task = kind.read_ahead(args, after)
            if task is None or isinstance(task, Bringing):
                return None
            self._memory.store_all(task.run, task.coming)
        except TransferError as error:
            if not error.refused:
                raise
            return None
        except Exception:
            return None
        return task

    # ------------------------------------------------------------ one task
    def _store_in_turn(self, task: LinkTask) -> None:
        """Store it; if there is no room beside what runs there, once that has ended."""
        store = partial(self._memory.store_all, task.run, task.coming)
        try:
            store()
        except MemoryError:
            if not self._sent:
                raise
            for one in self._sent:
                if one.task is not None:
                    self._frames.wait_for_answer_to(one.sequence)
            store()

    def _post(self, ticket: int | None, task: LinkTask, after: Sequence[int] = ()) -> _Sent:
        """Send a task to the session; `after` are the numbers of the frames that it waits for."""
        if ticket is not None and task.reader.are_calls:
            self._frames.mailbox.note_sent(ticket)
        return _Sent(ticket, task.post(self._frames, self._memory, after), task)


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

    `movers` and `losses` are those of the link. No task of a callable that is not `known` to the session
    is sent ahead, and none of a list.
    """

    def __init__(
        self, frames: LinkFrames, memory: ParentMemory, maker: TaskMaker, movers: Any, losses: Any
    ) -> None:
        self._frames, self._memory, self._maker = frames, memory, maker
        self._movers, self._losses = movers, losses
        self.known: set[bytes] = set()
        self.lists: set[bytes] = set()
        """Digests of callables, and of lists."""

    def note_loss(self, error: TransferError) -> None:
        """Count it, unless it is the session of this link that is lost."""
        self._frames.end_if_lost()
        self._losses[0] += 1

    def end(self, task: Any) -> None:
        """Raise what a task has failed with."""
        done: Done = task.done
        if done.outcome == L.SUCCESS:
            return
        if done.outcome == SOURCE_LOST:
            self._losses[0] += 1
        text, trace = (raw.decode(errors="replace") for raw in (done.text, done.trace))
        raise TaskError(f"{self._frames.place.name}: {text}", remote_traceback=trace)

    def read_ahead(self, args: ReceivedArgs, after: Sequence[int]) -> LinkTask | Bringing | None:
        """Return a task that can go ahead: one of a callable that the session knows."""
        if digest_in(args._box) not in self.known:
            return None
        return self.read(args)

    def read(self, args: ReceivedArgs) -> LinkTask | Bringing:
        """Return a task, with what the session needs for it."""
        if self.lists and digest_in(args._box) in self.lists:
            return self._read_replay(args)
        wires, scalars, kinds = call_words(args)
        words, named = (
            [word & 0xFFFF_FFFF_FFFF_FFFF for word in scalars],
            list(kinds[: len(scalars)]),
        )
        if not any(TENSOR.unpack(wire)[-1] & L.TENSOR_COPIED for wire in wires):
            return LinkTask(self, self._maker.make(args, wires, words, bytes(named)), {})
        plan, memory = Plan.take(words, named), self._memory
        memory.begin(plan.run)
        if plan.goes_home:
            return Bringing(plan, memory, wires[0])
        message = self._maker.make(args, wires, words, bytes(named))
        missing = self._missing(plan, wires)
        tensors = self.copied(plan, layouts_in(args, wires), missing.short)
        told = message._replace(run=plan.run, tensors=tensors, dropped=plan.dropped)
        return LinkTask(self, told, missing.coming)

    def copied(
        self, plan: Plan, layouts: Sequence[str], short: dict[int, bytes]
    ) -> list[CopiedTensor]:
        """Return what the session is told of a task's copies, with those that travel in the frame."""
        sources = {one.source for one in plan.tensors}
        movers = {one: mover_of(self._movers, one) for one in sources}
        return [
            CopiedTensor(key, reads, makes, movers[source], layout, short.pop(key, b""))
            for (key, reads, makes, source), layout in zip(plan.tensors, layouts, strict=True)
        ]

    def _missing(self, plan: Plan, wires: Sequence[bytes]) -> Missing:
        """Return the versions that a task reads, the parent has and the session has not."""
        missing = Missing()
        for one, wire in zip(plan.tensors, wires, strict=True):
            if self._memory.lacks(one) and one.key not in missing.short:
                nbytes = bytes_of(wire)
                if nbytes:
                    at = int.from_bytes(wire[:SHAPE_AT], "little")
                    missing.add(one.key, one.reads, at, nbytes)
        return missing

    # ------------------------------------------------------------ replays of a part of a list
    def _read_replay(self, args: ReceivedArgs) -> LinkTask:
        _, (address, nbytes), _ = call_words(args)
        told: Planned = pickle.loads(string_at(address, nbytes))
        plan = Plan(told.run, ())
        if told.words:
            plan = Plan.take(told.words, [L.RAW] * len(told.words))
        self._memory.begin(plan.run)
        missing = self._missing(plan, told.wires)
        tensors = self.copied(plan, [""] * len(told.wires), missing.short)
        movers = [mover_of(self._movers, one + 1) for one in told.places]
        replay = REPLAY.encode(Replay(told.digest, told.part, told.key, movers, told.scalars))
        message = Run(b"", run=plan.run, tensors=tensors, dropped=plan.dropped, replay=replay)
        task = LinkTask(self, message, missing.coming)
        task.replay = told.key
        return task

    def oversee(self, task: LinkTask, sequence: int) -> None:
        """Have the session end a replay if the run is over for others.

        Rule     SPEED-LIST-6
        """
        frames, memory = self._frames, self._memory
        while task.replay and not frames.has_answer_soon(sequence):
            if frames.mailbox.is_run_over:
                with suppress(TransferError):  # it has not begun, or has ended by now
                    memory.mover.ask(memory.address, task.replay, b"")
