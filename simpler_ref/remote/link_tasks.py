"""The tasks of a link: it has the session run them, and sends those behind the current one ahead of time.

A link with several mailbox frames sees the tasks that follow. Those that wait for no other worker go to
the session before the current one has ended; it runs them in the order in which they come, and skips
those that wait for one that has failed. So the session finds its next task waiting, and its way there
costs nothing while another one runs.

Rule     REMOTE-LINK-3 to -5; REMOTE-AHEAD-1, -2, -4, -6 to -8; REMOTE-FAIL-1, -2
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.view.mailbox import ReceivedArgs, call_words, digest_in
from ..errors import RemoteError, TaskError, TransferError
from ..jit import layout as L
from ..model.wire import TENSOR, bytes_of
from .copies import SOURCE_LOST, ComingCopy, CopiedTensor
from .counters import TASKS, UNMOVED, UNMOVED_NS
from .fail_points import fail_point
from .frames import CompletionPayload, OwnFrameType, decode_completion
from .home import Coming, Home, Plan
from .task_messages import RUN, Run, TaskMaker, layouts_in

if TYPE_CHECKING:
    from .link import Link


class _Task(NamedTuple):
    """A task as its mailbox has it."""

    wires: list[bytes]
    plan: Plan | None
    message: Run = Run(b"")
    """Empty if the task only brings a tensor home."""

    @property
    def goes_home(self) -> bool:
        return self.plan is not None and self.plan.goes_home

    @property
    def addresses(self) -> list[int]:
        return [int.from_bytes(wire[:8], "little") for wire in self.wires]

    @property
    def sizes(self) -> list[int]:
        return [bytes_of(wire) for wire in self.wires]


class _Sent(NamedTuple):
    """A task that the session has: which one of this worker, and the number of its frame."""

    ticket: int | None
    sequence: int
    copied: Sequence[CopiedTensor]


class _Early(NamedTuple):
    """What is stored for a task before its turn, on another thread."""

    coming: list[ComingCopy]
    stored: Future[None]


def ask_for_copies(link: Link, question: bytes) -> bytes:
    """Return what the session of a link answers to OPEN_COPIES, when it has no other task."""
    return link.exchange(OwnFrameType.OPEN_COPIES, question).payload


def require_done(link: Link, done: CompletionPayload) -> None:
    """Raise what a task of a link's session has failed with."""
    if not done.error_code:
        return
    from .reports import split_report

    if done.error_code == SOURCE_LOST:
        link.losses[0] += 1
    text, trace = split_report(done.error_message)
    raise TaskError(f"{link.place.name}: {text}", remote_traceback=trace)


class LinkTasks:
    """The tasks of one session, in the order in which it gets them."""

    def __init__(self, link: Link, home: Home, maker: TaskMaker) -> None:
        self._link, self._home, self._maker = link, home, maker
        self._sent: deque[_Sent] = deque()
        self._early: _Early | None = None
        self._storer: ThreadPoolExecutor | None = None

    def run(self, args: ReceivedArgs) -> None:
        """Have the session run the current task."""
        try:
            self._run(args)
        except TransferError as error:
            if not error.refused:
                self._link.end_if_lost()
                self._link.losses[0] += 1
            raise

    def _run(self, args: ReceivedArgs) -> None:
        begun = time.monotonic_ns()
        ticket = self._link.mailbox.ticket(0)
        while self._sent and self._sent[0].ticket != ticket:
            self._settle()  # the run was cancelled before its turn
        if not self._sent:
            task = self._read(args)
            if task.goes_home:
                self._send_ahead(type(args))
                self._bring(task)
                return
            self._store(task)
            begun = time.monotonic_ns()
            self._post(ticket, task)
        self._send_ahead(type(args))
        unmoved = self._home.has_all(self._sent[0].copied)
        done = self._settle(self._link.mailbox.task_number)
        words = self._link.words
        words[TASKS] += 1
        if unmoved:
            words[UNMOVED] += 1
            words[UNMOVED_NS] += time.monotonic_ns() - begun
        require_done(self._link, done)

    def settle_all(self) -> None:
        """Wait for what was sent or stored ahead in vain: of a cancelled run."""
        while self._sent:
            self._settle()
        self._end_early()

    def close(self) -> None:
        """End the thread that stores, once the mover is closed."""
        if self._storer is not None:
            self._storer.shutdown()

    def _settle(self, number: int = 0) -> CompletionPayload:
        """Wait for the end of the oldest task that the session has, and note what it has made.

        `number` is that of the task in a trace, unless it was sent in vain.
        """
        sent = self._sent[0]
        frame = self._link.receive(sent.sequence, number)
        self._sent.popleft()
        done = decode_completion(frame.payload)
        self._home.note(sent.copied, not done.error_code)
        return done

    # ------------------------------------------------------------ ahead of time
    def _send_ahead(self, kind: type[ReceivedArgs]) -> None:
        """Send the tasks that come next, up to one that has to wait for its turn."""
        mailbox = self._link.mailbox
        for distance in range(max(1, len(self._sent)), mailbox.depth):
            ticket = mailbox.ticket_behind(distance)
            if ticket is None:
                return
            after = self._frames_of(mailbox.awaits(ticket))
            if after is None:
                return
            task = self._look(kind, mailbox.box(mailbox.frame_of(ticket)))
            if task is None:
                return
            self._post(ticket, task, after)
            fail_point("ahead")

    def _frames_of(self, tickets: list[int]) -> list[int] | None:
        """Return the numbers of the frames of tasks; None if the session cannot be told to wait for one.

        One that brings a tensor home is none of the session's.
        """
        if not tickets:
            return []
        sent = {one.ticket: one.sequence for one in self._sent}
        if not sent.keys() >= set(tickets):
            return None
        return [sent[one] for one in tickets]

    def _look(self, kind: type[ReceivedArgs], box: Any) -> _Task | None:
        """Return a task that can go ahead; None if it has to wait for its turn, when it may also fail.

        What the session needs for the first one is stored meanwhile.
        """
        if digest_in(box) not in self._link.digests:
            return None
        args = kind.__new__(kind)
        args._box = box
        try:
            task = self._read(args)
        except (ValueError, RemoteError):
            return None
        if task.goes_home:
            return None
        if self._early is not None and self._early.stored.done():
            self._end_early()
        missing = self._missing(task)
        if missing and self._early is None:
            self._store_early(task, missing)
        return None if missing else task

    def _missing(self, task: _Task) -> Coming:
        if task.plan is None:
            return {}
        return self._home.missing(task.plan, task.addresses, task.sizes)

    def _store_early(self, task: _Task, missing: Coming) -> None:
        """Begin to store what a task needs, while others run."""
        assert task.plan is not None
        if self._storer is None:
            self._storer = ThreadPoolExecutor(1, "simpler-store")
        ask = partial(self._home.ask, self._link.session_id)
        stored = self._storer.submit(self._home.store_all, task.plan.run, missing, ask)
        self._early = _Early([one for one, _address in missing.values()], stored)
        fail_point("early")

    def _end_early(self) -> None:
        """Wait for what is stored early; if that fails, the task's turn will show why."""
        if self._early is None:
            return
        early, self._early = self._early, None
        if early.stored.exception() is None:
            self._home.note_stored(early.coming)
        self._link.note_all()

    # ------------------------------------------------------------ one task
    def _read(self, args: ReceivedArgs) -> _Task:
        wires, scalars, kinds = call_words(args)
        if not wires and not scalars:
            return _Task(wires, None, self._maker.make(args, wires, scalars, b""))
        words = [word & 0xFFFF_FFFF_FFFF_FFFF for word in scalars]
        plan = None
        if any(TENSOR.unpack(wire)[-1] & L.TENSOR_COPIED for wire in wires):
            plan = Plan.from_words(words[-1 - words[-1] : -1])
            del words[-1 - words[-1] :]
            if plan.run != self._home.run:
                self._end_early()
            self._home.begin(plan.run)
            if plan.goes_home:
                return _Task(wires, plan)
        message = self._maker.make(args, wires, words, bytes(kinds[: len(words)]))
        if plan is not None:
            copied = self._copied(plan, layouts_in(args, wires))
            message = message._replace(run=plan.run, tensors=copied, dropped=plan.dropped)
        return _Task(wires, plan, message)

    def _bring(self, task: _Task) -> None:
        assert task.plan is not None
        (one,) = task.plan.tensors
        self._home.bring(one.key, one.reads, task.addresses[0], task.sizes[0])

    def _store(self, task: _Task) -> None:
        """Store what the session needs of the parent's memory."""
        self._end_early()
        missing = self._missing(task)
        if missing:
            assert task.plan is not None
            self._home.store_all(task.plan.run, missing, partial(ask_for_copies, self._link))
            self._home.note_stored(one for one, _address in missing.values())

    def _post(self, ticket: int | None, task: _Task, after: Sequence[int] = ()) -> None:
        """Send a task to the session; `after` are the numbers of the frames that it waits for."""
        message = task.message._replace(after=after)
        sequence = self._link.post(OwnFrameType.RUN, RUN.encode(message))
        self._sent.append(_Sent(ticket, sequence, message.tensors))

    def _copied(self, plan: Plan, layouts: list[str]) -> list[CopiedTensor]:
        """Return what the session is told of a task's copies."""
        mover_of = self._link.mover_of
        return [
            CopiedTensor(one.key, one.reads, one.makes, mover_of(one.source), layout)
            for one, layout in zip(plan.tensors, layouts, strict=True)
        ]
