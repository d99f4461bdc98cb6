"""Endpoints in small that are sent tasks ahead: links' and sessions' real parts, frames in any order.

`copy_model` has all but this: each session is an actor of its own, which serves its frames in order, and
a link may have sent it several. What is made up is the mailbox, in which each job is its own ticket.
"""

from __future__ import annotations

import ctypes
from collections import deque
from contextlib import suppress
from types import SimpleNamespace

from simpler_ref.errors import RemoteError, TaskError, TransferError
from simpler_ref.jit import layout as L
from simpler_ref.model.config import CallConfig
from simpler_ref.model.enums import DataType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.remote.after import FailedTasks
from simpler_ref.remote.connection import Order
from simpler_ref.remote.counters import COUNTERS
from simpler_ref.remote.directory import HOME
from simpler_ref.remote.frames import (
    FEATURES,
    FrameType,
    OwnFrameType,
    decode_completion,
    encode_completion,
)
from simpler_ref.remote.link_tasks import LinkTasks, _Task
from simpler_ref.remote.session_tasks import SessionTasks
from simpler_ref.remote.tasks import (
    TASK_MORE,
    MoreOfTask,
    RemoteTaskArgsWire,
    RemoteTensorSidecar,
    TaskPayloadWire,
    encode_task_payload,
)

from . import copy_model
from .copy_model import INOUT, SIZE, Lost, result
from .raw_session import SESSION

DIGEST = bytes(32)


class Fault(Exception):
    """What a task raises."""


# ---------------------------------------------------------------- a session
class Served(SessionTasks):
    """The tasks of a session, from the frames of its inbox; `of` has its windows and its copies."""

    def __init__(self, play, of):
        super().__init__(
            session_id=SESSION,
            has_several=False,
            is_over=lambda: self.over,
            inner=self,
            failed=FailedTasks(),
            dispatcher=SimpleNamespace(find=lambda _digest: "target"),
            copies=of.copies,
            stores=None,
            served=SimpleNamespace(
                answer_all=lambda: True, settle=lambda: None, complete=self._complete
            ),
            leaves=None,
            parts=None,
        )
        self.play, self.of = play, of
        self.inbox, self.outbox = deque(), deque()
        self.is_busy = self.check = False
        self.over = ""

    def live(self):
        """Serve frames until the link has no more."""
        with suppress(Lost):
            while not self.over:
                frame = self._next() if self.served.answer_all() else None
                if frame is None:
                    continue
                if frame.header.frame_type == OwnFrameType.OPEN_COPIES:
                    self._send(frame.header.frame_type, self.open_copies(frame))
                else:
                    self.serve(frame)

    def _next(self):
        self.is_busy = False
        self.play.actors.point()
        self._require_alive()
        if not self.inbox:
            self.over = "closed by its parent"
            return None
        self.is_busy = True
        return self.of.hear(self.inbox.popleft())

    def _send(self, kind, payload):
        self.play.actors.point()
        self._require_alive()
        self.outbox.append((kind, payload))
        if kind == FrameType.COMPLETION:
            done = decode_completion(payload)
            assert (
                self.play.lost or done.error_code != L.TASK_FAILURE or "Fault" in done.error_message
            )

    def _complete(self, end):
        self._send(FrameType.COMPLETION, encode_completion(*end))

    def _require_alive(self):
        if self.of.is_lost:
            self.over = "killed"
            raise Lost("the session has died")

    def run(self, _target, args, _config):
        """Be the inner Worker: run a task, which its scalar names."""
        play, index = self.play, args.scalar(0)
        task = play.program[index]
        numbers = {
            tensor: ctypes.c_int64.from_address(args.tensor(i).data)
            for i, tensor in enumerate(task.tags)
        }
        written = result(index, [numbers[tensor].value for tensor in task.reads])
        self.play.actors.point()
        self._require_alive()
        if index in play.faults:
            raise Fault(index)
        for tensor in task.writes:
            numbers[tensor].value = written
        self.play.actors.point()
        self._require_alive()
        play.has_run.append(index)
        for tensor in task.writes:
            play.made[tensor].append(written)


# ---------------------------------------------------------------- a link
class Stored:
    """What is stored on a link's other thread: a future."""

    def __init__(self, link, act):
        self.link, self.act = link, act
        self.is_done, self.error = False, None

    def done(self):
        return self.is_done

    def exception(self):
        while not self.is_done:
            self.link.waits_for = self
            self.link.play.actors.point()
        self.link.waits_for = None
        return self.error


class Storer:
    """The other thread of a link."""

    def __init__(self, link):
        self.link, self.todo = link, deque()
        self.is_busy = False

    def submit(self, function, *args):
        self.todo.append(Stored(self.link, lambda: function(*args)))
        self.link.play.early += 1
        return self.todo[-1]

    def live(self):
        while self.todo or self.link.where not in self.link.play.left:
            if self.todo:
                self.is_busy = True
                one = self.todo.popleft()
                try:
                    one.act()
                except Exception as error:
                    one.error = error
                one.is_done, self.is_busy = True, False
            self.link.play.actors.point()


class Args:
    """The arguments of a job: its number."""

    _box: bytes

    @classmethod
    def of(cls, job):
        made = cls()
        made._box = job.to_bytes(4, "little")
        return made


class Mailbox:
    """The frames of a link: the jobs that it was given, oldest first."""

    task_number = 0

    def __init__(self, play, depth):
        self.play, self.depth = play, depth
        self.given = []

    def ticket(self, _distance):
        return self.given[0]

    def ticket_behind(self, distance):
        if distance >= len(self.given):
            return None
        job, before = self.given[distance], self.given[:distance]
        ends = [self.play.state[one] for one in self.play.needs[job] if one not in before]
        before = [self.play.state[one] for one in self.play.needs[job] if one in before]
        return job if all(ends) and False not in before else None

    def awaits(self, ticket):
        return [one for one in self.play.needs[ticket] if self.play.state[one] is None]

    @staticmethod
    def frame_of(ticket):
        return ticket

    @staticmethod
    def box(frame):
        return frame.to_bytes(4, "little")


class Tasks(LinkTasks):
    """The tasks of a link, whose arguments are those of jobs."""

    def _read(self, args):
        play = self._link.play
        plan, index = play.jobs[int.from_bytes(args._box, "little")]
        self._home.begin(plan.run)
        if plan.goes_home:
            (one,) = plan.tensors
            held = next(held for held in play.directory if held.key == one.key)
            tensor = (held.start - play.memory.ctypes.data) // SIZE
            return _Task([play._tensor(tensor, INOUT)], b"", plan, [])
        task = play.program[index]
        wires = [play._tensor(*one) for one in task.tags.items()]
        return _Task(wires, payload_of(task, index), plan, self._copied(plan, [""] * len(wires)))


class FakeLink:
    """What `LinkTasks` needs of a link."""

    def __init__(self, play, where, depth):
        self.play, self.where = play, where
        self.place_name = f"session {where}"
        self.mailbox = Mailbox(play, depth)
        self.words = dict.fromkeys(range(len(COUNTERS)), 0)
        self.answers = {}
        self.is_waiting = False
        self.losses = [0]
        self.tasks = Tasks(self, play.homes[where], SimpleNamespace(has_more=True), FEATURES)
        self.tasks.digests = {b""}
        self._order = Order(1, where)
        self.mover_of = play._mover_of
        self.most_ahead = 0
        self.session_id = SESSION
        self.storer = self.tasks._storer = Storer(self)
        self.waits_for = None

    def note_all_moved(self):
        pass

    @property
    def session(self):
        return self.play.served[self.where]

    def post(self, kind, payload):
        self.play.actors.point()
        self.session.of.require_alive()
        self.session.inbox.append(self._order.encode(kind, payload))
        return self._order.sent

    def receive(self, asked, _number=0):
        self.most_ahead = max(self.most_ahead, len(self.tasks._sent))
        while asked not in self.answers:
            while not self.session.outbox:
                self.is_waiting = True
                self.play.actors.point()
                self.is_waiting = False
                self.session.of.require_alive()
            _kind, payload = self.session.outbox.popleft()
            self.answers[int.from_bytes(payload[:8], "little")] = payload
        return SimpleNamespace(payload=self.answers.pop(asked))

    def exchange(self, kind, payload):
        self.tasks.settle_all()
        return self.receive(self.post(kind, payload))


def payload_of(task, index):
    """Return the TASK_MORE of a task."""
    tensors = [ContinuousTensor(0, (1, SIZE), DataType.UINT8) for _ in task.tags]
    beside = [RemoteTensorSidecar(None) for _ in tensors]
    wire = TaskPayloadWire(DIGEST, CallConfig(), RemoteTaskArgsWire(tensors, beside, [index], b""))
    return TASK_MORE.encode(
        MoreOfTask(encode_task_payload(wire), bytes([3] * len(tensors)), b"\0", b"")
    )


class EarlyHome(copy_model.LinkHome):
    """A home that also asks the mover of its session."""

    def ask(self, session, question):
        self.play.actors.point()
        self.session.require_alive()
        return self.play.served[self.number].open_early(session, question)


# ---------------------------------------------------------------- a play
class AheadPlay(copy_model.Play):
    """One time that a program is run, with so many frames at each link; tasks of `faults` raise."""

    serve = Served

    def __init__(self, program, choose, *, depth, faults=(), **how):
        self.jobs = {}
        self.early = 0
        """How often something was stored before a task's turn."""
        self.given = set()
        self.has_run = []
        """Indices of the tasks that have run at endpoints."""
        self.faults = faults
        super().__init__(program, choose, **how)
        self.homes = [EarlyHome(self, where) for where in range(len(self.of_link))]
        self.served = [self.serve(self, one) for one in self.of_link]
        self.links = [FakeLink(self, where, depth) for where in range(len(self.of_link))]
        self.left = set()
        """Links that have ended."""

    def _job(self, where, plan, index, needs):
        job = super()._job(where, plan, index, needs)
        self.jobs[job] = plan, index
        return job

    def _add_actors(self):
        super()._add_actors()
        for served in self.served:
            self.actors.add(f"session {served.of.number}", served.live)
        for link in self.links:
            self.actors.add(f"storer {link.where}", link.storer.live)

    def _can_go(self, name):
        self._give()
        if name.startswith("session"):
            where = int(name.split()[1])
            served = self.served[where]
            return served.is_busy or bool(served.inbox) or where in self.left or served.of.is_lost
        if name.startswith("storer"):
            storer = self.links[int(name.split()[1])].storer
            return storer.is_busy or bool(storer.todo) or storer.link.where in self.left
        where = int(name)
        if where == HOME:
            return super()._can_go(name)
        link = self.links[where]
        if link.waits_for is not None:
            return link.waits_for.is_done
        if link.is_waiting:
            return bool(link.session.outbox) or link.session.of.is_lost
        given = link.mailbox.given
        return where in self._inside or self._is_ready(given[0]) if given else not self.queue[where]

    def _give(self):
        """Give links jobs that wait only for those that somebody was given: in order, up to the depth."""
        before = -1
        while before != len(self.given):
            before = len(self.given)
            for job, _, _ in self.queue[HOME]:
                if self.needs[job] <= self.given:
                    self.given.add(job)
            for where, link in enumerate(self.links):
                queue, frames = self.queue[where], link.mailbox.given
                for one in queue[:]:
                    if len(frames) < link.mailbox.depth and self.needs[one[0]] <= self.given:
                        queue.remove(one)
                        frames.append(one[0])
                        self.given.add(one[0])

    def _serve(self, where):
        if where == HOME:
            super()._serve(where)
            return
        link = self.links[where]
        given = link.mailbox.given
        try:
            while given or self.queue[where]:
                self._give()
                if given and self._is_ready(given[0]):
                    self._inside.add(where)
                    self.state[given[0]] = self._has_run_well(link, given[0])
                    self._inside.discard(where)
                    del given[0]
                self.actors.point()
            if where not in self.manager.dead:
                self._inside.add(where)
                link.tasks.settle_all()
        except Lost:
            self.manager.dead[where] = 9
        finally:
            self._inside.discard(where)
            self.left.add(where)

    def _has_run_well(self, link, job):
        """Have a link run a job, unless it is skipped; say whether it has succeeded."""
        if not all(self.state[one] for one in self.needs[job]) or link.where in self.manager.dead:
            return False
        try:
            link.tasks.run(Args.of(job))
        except Lost:
            self.manager.dead[link.where] = 9
        except TaskError as error:
            assert "Fault" in str(error) or self.lost is not None, error
        except (RemoteError, TransferError) as error:
            assert self.lost is not None, f"it failed without a loss: {error}"
        else:
            return True
        return False
