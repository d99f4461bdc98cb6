"""Endpoints in small: the real directory, links' and sessions' real parts, and messages in any order.

What is made up here is what stands around them: sockets, processes and the engine. The mailbox of a link
is a list in which each job is its own ticket. Each link, each session, and the worker of this machine is
a coroutine that stops before each message, and one of them goes on at a time: a schedule says which. A
session may be lost at any message.
"""

from __future__ import annotations

import ctypes
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import greenlet
import numpy as np

from simpler_ref.calls import tasks as calls
from simpler_ref.errors import RemoteError, TaskError, TransferError, WorkerLostError
from simpler_ref.jit import layout as L
from simpler_ref.model.config import CallConfig
from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.remote.connection import Order
from simpler_ref.remote.controls import InnerCallable
from simpler_ref.remote.copies import Copies
from simpler_ref.remote.directory import HOME, CopyPlan, Plan, uses_of
from simpler_ref.remote.frames import OwnFrameType
from simpler_ref.remote.limits import (
    COUNTERS,
    REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_WRITE,
)
from simpler_ref.remote.link_tasks import LinkTask, LinkTasks, RunTasks
from simpler_ref.remote.parent_memory import Homing, Missing, ParentMemory
from simpler_ref.remote.parent_tensors import ParentTensors
from simpler_ref.remote.session_tasks import SessionTasks
from simpler_ref.remote.side_by_side import SideBySide
from simpler_ref.remote.task_messages import DONE, Run
from simpler_ref.remote.tasks import (
    RemoteTaskArgsWire,
    RemoteTensorSidecar,
    TaskPayloadWire,
    encode_task_payload,
)

from .endpoints import validate
from .raw_session import SESSION

DIGEST = bytes(32)
SIZE = 8
ENDPOINTS, TENSORS = 2, 2
MASK = (1 << 62) - 1
INPUT, INOUT, EXISTING = (TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING)
TAGS = {"": INPUT, "!": INOUT, "=": EXISTING}


class Lost(WorkerLostError):
    """The session of a link has died."""


class Fault(Exception):
    """What a task raises."""


def result(index, values):
    return hash((index, *values)) & MASK


# ---------------------------------------------------------------- programs
class Task:
    """A task, where it runs, and its tensors: `x` reads x, `x!` updates it, `x=` writes it."""

    def __init__(self, where, *uses):
        self.where = where
        self.tags = {"xy".index(use[0]): TAGS[use[1:]] for use in uses}
        self.reads = [one for one, tag in self.tags.items() if tag != EXISTING]
        self.writes = [one for one, tag in self.tags.items() if tag != INPUT]
        self._text = f"{'here' if where == HOME else where}: {' '.join(uses)}"

    def __repr__(self):
        return self._text


def is_ordered(program):
    """Say whether edges order all that could race: each writer and those that read what was before."""
    before, last, readers = [], {}, {}
    for index, task in enumerate(program):
        ancestors = set()
        for tensor in task.reads:
            if tensor in last:
                ancestors |= {last[tensor], *before[last[tensor]]}
        for tensor in task.writes:
            if not readers.get(tensor, set()) | {last.get(tensor, -1)} <= ancestors | {-1}:
                return False
        before.append(ancestors)
        for tensor in task.writes:
            last[tensor], readers[tensor] = index, set()
        for tensor in set(task.reads) - set(task.writes):
            readers.setdefault(tensor, set()).add(index)
    return True


def drawn(random, length):
    """Return a random program that is ordered."""
    while True:
        program = []
        for _ in range(length):
            chosen = random.sample(range(TENSORS), random.randint(1, TENSORS))
            where = random.choice([*range(ENDPOINTS)] * 2 + [HOME])
            uses = ["xy"[one] + random.choice(["", "!", "!", "="]) for one in chosen]
            program.append(Task(where, *uses))
        if is_ordered(program):
            return program


def sequentially(program):
    """Return the values that tensors have after each task, the first ones before all."""
    history = [list(range(1, TENSORS + 1))]
    for index, task in enumerate(program):
        values = list(history[-1])
        written = result(index, [values[tensor] for tensor in task.reads])
        for tensor in task.writes:
            values[tensor] = written
        history.append(values)
    return history


def moves_needed(program):
    """Return how many versions have to move to endpoints: each once to each that has not made it."""
    version, holders, moves = {}, {}, 0
    for index, task in enumerate(program):
        for tensor in task.reads:
            held = holders.setdefault((tensor, version.get(tensor)), {HOME})
            if task.where != HOME and task.where not in held:
                held.add(task.where)
                moves += 1
        for tensor in task.writes:
            version[tensor] = index
            holders[tensor, index] = {task.where}
    return moves


# ---------------------------------------------------------------- actors
class Actors:
    """Coroutines: before each message, one waits until the schedule chooses it."""

    def __init__(self, choose, look):
        self.choose, self.look = choose, look
        self._waiting = {}
        """By name: the coroutine, and what tells whether it has something to do."""
        self.points = 0

    def add(self, name, act, can_go_on):
        self._waiting[name] = greenlet.greenlet(act), can_go_on

    def point(self, can_go_on=lambda: True):
        """Let others go on, until this one is chosen."""
        self._waiting[self._name] = greenlet.getcurrent(), can_go_on
        greenlet.getcurrent().parent.switch()

    def run(self):
        """Let all of them run to their ends; look after each step."""
        while able := [name for name in sorted(self._waiting) if self._waiting[name][1]()]:
            self._name = self.choose(able)
            self._waiting.pop(self._name)[0].switch()
            self.points += 1
            self.look()
        assert not self._waiting, f"{sorted(self._waiting)} wait for ever"


# ---------------------------------------------------------------- sessions and links
class Session:
    """What a session has, and its end of the connection to its link."""

    def __init__(self, play, number):
        self.play, self.number = play, number
        self.address = f"session {number}"
        self.windows, self.is_lost = {}, False
        self.order = Order(1, number)
        self.copies = Copies(self, lambda nbytes: np.zeros(nbytes, np.uint8))
        play.sessions[self.address] = self

    # as a mover
    def offer(self, window):
        self.windows[window.key] = window

    def withdraw(self, key):
        del self.windows[key]

    def fetch_all(self, source, several):
        for one in several:
            self.play.actors.point()
            self.require_alive()
            read(self.play.session_at(source), one.key, one.memory)
            self.play.moved += 1

    def require_alive(self):
        if self.is_lost:
            raise Lost("the session has died")


def read(session, key, address):
    """Copy what is in a window of a session."""
    window = session.windows.get(key)
    if window is None or not window.access & REMOTE_BUFFER_ACCESS_READ:
        raise TransferError("there is no such window", refused=True)
    ctypes.memmove(address, window.address, SIZE)


class LinkMover:
    """The mover of a link, whose moves are those of the play."""

    def __init__(self, play, number):
        self.play, self.number = play, number

    @property
    def session(self):
        return self.play.of_link[self.number]

    def store_all(self, _address, several):
        for one in several:
            self.play.actors.point()
            self.session.require_alive()
            key = self.play.served[self.number].answer(one.key, one.question)
            if int.from_bytes(key, "little"):
                window = self.session.windows[int.from_bytes(key, "little")]
                assert window.access == REMOTE_BUFFER_ACCESS_WRITE
                ctypes.memmove(window.address, one.memory, SIZE)
                self.play.moved += 1

    def fetch_all(self, _address, several):
        (one,) = several
        if self.play.running:
            self.play.actors.point()
        self.session.require_alive()
        read(self.session, one.key, one.memory)


def parent_memory(play, number):
    """Return the parent's memory as a link serves it."""
    return ParentMemory(SESSION, "", LinkMover(play, number))


# ---------------------------------------------------------------- tasks at sessions and links
class Served(SessionTasks):
    """The tasks of a session, from the frames of its inbox; `of` has its windows and its copies."""

    def __init__(self, play, of):
        self._session_id, self._replaying, self._has_several = SESSION, None, False
        self._frames = self._inner = self
        self.copies, self._bare, self._callees = of.copies, set(), {}
        self.dispatcher = SimpleNamespace(find=lambda _digest: "target")
        self._beside = SideBySide(None, of.copies, None, None)
        self.play, self.of = play, of
        self.inbox, self.outbox = deque(), deque()
        self.check = False
        self.over = ""

    def live(self):
        with suppress(Lost):
            while not self.over:
                frame = self._next() if self.answer_all() else None
                if frame is None:
                    continue
                self.serve(frame)

    def _next(self):
        self.play.actors.point(self.can_go_on)
        self._require_alive()
        if not self.inbox:
            self.over = "closed by its parent"
            return None
        return self.of.order.decode(self.inbox.popleft())

    def can_go_on(self):
        """Say whether there is a frame, or will be none."""
        return bool(self.inbox) or self.of.number in self.play.left or self.of.is_lost

    def send(self, kind, payload):
        self.play.actors.point()
        self._require_alive()
        self.outbox.append((kind, payload))
        if kind == OwnFrameType.DONE:
            done = DONE.decode(payload)
            assert self.play.lost or done.outcome != L.TASK_FAILURE or b"Fault" in done.text

    def has_frame(self):
        return bool(self.inbox)

    def _answer_ended(self):
        for end in self._beside.ends():
            self._tell(end)

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
            play.note_made(tensor, written, index)


class Mailbox:
    """The frames of a link: the jobs that it was given, oldest first."""

    task_number = 0

    def __init__(self, play, depth):
        self.play, self.depth = play, depth
        self.given = []

    def ticket(self, distance, *, may_wait=False):
        if not may_wait:
            return self.given[0]
        if distance >= len(self.given):
            return None
        job, before = self.given[distance], self.given[:distance]
        ends = [self.play.state[one] for one in self.play.needs[job] if one not in before]
        before = [self.play.state[one] for one in self.play.needs[job] if one in before]
        return job if all(ends) and False not in before else None

    @staticmethod
    def place(distance):
        return (distance,)

    def awaits(self, ticket):
        return [one for one in self.play.needs[ticket] if self.play.state[one] is None]

    @staticmethod
    def frame_of(ticket):
        return ticket

    @staticmethod
    def box(frame):
        return frame.to_bytes(4, "little")


class Lacking(Missing):
    """What a session does not have; the play says what travels in frames."""

    def __init__(self, play):
        super().__init__()
        self._play = play

    def take(self, key, version, address, nbytes):
        if self._play.is_in_frame(address):
            self._play.moved += 1
            return ctypes.string_at(address, nbytes)
        self.coming[key] = version, address, nbytes
        return b""


class Tasks(RunTasks):
    """The tasks of a link, whose arguments are those of jobs."""

    def read_ahead(self, args, after):
        return self.read(args)

    def read(self, args):
        play, home = self._frames.play, self._memory
        plan, index = play.jobs[int.from_bytes(args._box, "little")]
        home.begin(plan.run)
        if plan.goes_home:
            (one,) = plan.tensors
            held = next(held for held in play.directory if held.key == one.key)
            tensor = (held.use.start - play.memory.ctypes.data) // SIZE
            address = int.from_bytes(play._tensor(tensor, INOUT)[:SIZE], "little")
            return Homing(one.key, one.reads, one.reads, address, SIZE)
        task = play.program[index]
        wires = [play._tensor(*one) for one in task.tags.items()]
        addresses = [int.from_bytes(wire[:SIZE], "little") for wire in wires]
        missing, layouts = Lacking(play), [""] * len(wires)
        message = self.with_copies(
            message_of(task, index), plan, layouts, missing, lambda i: (addresses[i], SIZE)
        )
        return LinkTask(self, message, missing)


class FakeLink:
    """What `LinkTasks` needs of a link."""

    def __init__(self, play, where, depth):
        self.play, self.where = play, where
        self.place = SimpleNamespace(name=f"session {where}")
        self.mailbox = Mailbox(play, depth)
        self.words = dict.fromkeys(range(len(COUNTERS)), 0)
        self.answers = {}
        self.losses = [0]
        self.tasks = LinkTasks(self, play.homes[where])
        movers = [one.address.encode() for one in play.of_link]
        self.kind = Tasks(self, play.homes[where], movers, None, self.losses)
        self._order = Order(1, where)
        self.most_ahead = 0
        self.session_id = SESSION

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
        while not self.has_answer(asked):
            self.wait_for_answer_or_task()
        return SimpleNamespace(payload=self.answers.pop(asked))

    def has_answer(self, asked):
        while asked not in self.answers and self.session.outbox:
            _kind, payload = self.session.outbox.popleft()
            self.answers[int.from_bytes(payload[:8], "little")] = payload
        return asked in self.answers

    def wait_for_answer_or_task(self, *_place):
        while not self.session.outbox:
            self.play.actors.point(lambda: bool(self.session.outbox) or self.session.of.is_lost)
            self.session.of.require_alive()


def message_of(task, index):
    tensors = [ContinuousTensor(0, (1, SIZE), DataType.UINT8) for _ in task.tags]
    beside = [RemoteTensorSidecar() for _ in tensors]
    wire = TaskPayloadWire(DIGEST, CallConfig(), RemoteTaskArgsWire(tensors, beside, [index], b""))
    tags = bytes([3] * len(tensors))
    return Run(encode_task_payload(wire), tags, b"\0")


# ---------------------------------------------------------------- a play
class Play:
    """One time that a program is run, with so many frames at each link; tasks of `faults` raise.

    `choose` returns which actor goes on; `lost` is None, or (session, point): there it dies. Links get
    jobs in order, unless that is `any_order`.
    """

    serve = Served

    def __init__(
        self,
        program,
        choose,
        *,
        depth=1,
        faults=(),
        lost=None,
        any_order=False,
        in_frames=False,
    ):
        self.program, self.lost = program, lost
        self.faults, self.any_order, self._in_frames = faults, any_order, in_frames
        self.sessions = {}
        self.of_link = [Session(self, number) for number in range(ENDPOINTS)]
        self.homes = [parent_memory(self, number) for number in range(ENDPOINTS)]
        self.memory = np.arange(1, TENSORS + 1, dtype=np.int64)
        self.manager = SimpleNamespace(dead={})
        heap = np.zeros(0, np.uint8)
        live = SimpleNamespace(engine=SimpleNamespace(heap=heap), manager=self.manager)
        life = SimpleNamespace(
            live=lambda: live, parent_level=0, options=SimpleNamespace(retries=0)
        )
        self.parent = ParentTensors(life, SimpleNamespace(bring=self._bring, links=list))
        self.directory = self.parent.directory
        self.actors = Actors(choose, self._look)
        self.moved = 0
        """How often something was stored."""
        self.running = True
        self.made = {tensor: [value] for tensor, value in enumerate(self.memory.tolist())}
        """Of each tensor: what it was, and what tasks have written, in their order."""
        self.writers = {}
        """Which task has written each of these."""
        self.has_run = []
        """Indices of the tasks that have run at endpoints."""
        self.queue = {HOME: [], **{number: [] for number in range(ENDPOINTS)}}
        self.jobs, self.needs = [], []
        """Of each job: its plan and its task, and the jobs it waits for."""
        self.state = []
        """Of each job: None before its end, then whether it has succeeded."""
        self.given = set()
        self._submit()
        self.served = [self.serve(self, one) for one in self.of_link]
        self.links = [FakeLink(self, where, depth) for where in range(ENDPOINTS)]
        self.left = set()
        """Links that have ended."""

    def is_in_frame(self, address):
        """Say whether a tensor travels in the frame of the task that reads it: one of them does."""
        return self._in_frames and address == self.memory.ctypes.data

    # ------------------------------------------------------------ what the Orch thread does
    def _tensor(self, tensor, tag):
        address = self.memory.ctypes.data + SIZE * tensor
        return ContinuousTensor(address, (1, SIZE), DataType.UINT8)._tagged(tag)

    def _submit(self):
        writer = {}
        for index, task in enumerate(self.program):
            uses = uses_of([self._tensor(*one) for one in task.tags.items()])
            several, must_wait = self.directory.to_bring_home(uses, task.where)
            assert not must_wait
            for held in several:
                tensor = (held.use.start - self.memory.ctypes.data) // SIZE
                plan = Plan(
                    1, [CopyPlan(held.key, held.version, 0, held.maker + 1)], goes_home=True
                )
                job = self._job(held.maker, plan, None, {writer[tensor]})
                held.holders.add(HOME)
                writer[tensor] = job
            needs = {writer[one] for one in task.reads if one in writer}
            if task.where == HOME:
                job = self._job(HOME, None, index, needs)
                self.directory.note_here(uses)
            else:
                placed = self.directory.place(uses)
                plan = self.directory.plan(1, task.where, placed, len(uses))
                words, kinds = plan.words(), [L.RAW] * len(plan.words())
                assert (Plan.take(words, kinds), words) == (plan, [])
                job = self._job(task.where, plan, index, needs)
                self.directory.note_task(task.where, placed, "handle", task=job)
            for tensor in task.writes:
                writer[tensor] = job

    def _job(self, where, plan, index, needs):
        self.state.append(None)
        self.jobs.append((plan, index))
        self.needs.append(needs)
        self.queue[where].append(len(self.jobs) - 1)
        return len(self.jobs) - 1

    # ------------------------------------------------------------ the run
    def run(self):
        """Run it, and return its failure, if it has failed."""
        self._add_actors()
        self._give()
        self.actors.run()
        self.running = False
        failed = [job for job, state in enumerate(self.state) if not state]
        failure = RemoteError("a task has failed") if failed else None
        return self.parent.end_run(failure, failed)

    def note_made(self, tensor, written, index):
        self.made[tensor].append(written)
        self.writers[written] = index

    def newest(self, tensor):
        """Return what tasks have written since the last one that has ended, and what that has."""
        ended = {self.jobs[job][1] for job, state in enumerate(self.state) if state}
        made = self.made[tensor]
        last = max(i for i, one in enumerate(made) if not i or self.writers[one] in ended)
        return made[last:]

    def _add_actors(self):
        self.actors.add(str(HOME), self._work_here, self._can_work_here)
        for link in self.links:
            there = partial(self._work_there, link), partial(self._can_work_there, link)
            self.actors.add(str(link.where), *there)
        for served in self.served:
            self.actors.add(f"session {served.of.number}", served.live, served.can_go_on)

    def _is_ready(self, job):
        return all(self.state[one] is not None for one in self.needs[job])

    def _may_run(self, job):
        return all(self.state[one] for one in self.needs[job])

    def _give(self):
        """Give links jobs that wait only for those that somebody was given, up to the depth."""
        before = -1
        while before != len(self.given):
            before = len(self.given)
            self.given |= {job for job in self.queue[HOME] if self.needs[job] <= self.given}
            for where, link in enumerate(self.links):
                queue, frames = self.queue[where], link.mailbox.given
                while len(frames) < link.mailbox.depth:
                    able = [job for job in queue if self.needs[job] <= self.given]
                    if not able:
                        break
                    chosen = self.actors.choose(able) if self.any_order else able[0]
                    queue.remove(chosen)
                    frames.append(chosen)
                    self.given.add(chosen)

    # ------------------------------------------------------------ here
    def _can_work_here(self):
        queue = self.queue[HOME]
        return not queue or any(map(self._is_ready, queue))

    def _work_here(self):
        """Run the jobs of this machine as they become ready."""
        queue = self.queue[HOME]
        while queue:
            if ready := list(filter(self._is_ready, queue)):
                job = self.actors.choose(ready) if len(ready) > 1 else ready[0]
                queue.remove(job)
                may_run = self._may_run(job)
                if may_run:
                    self._run_here(self.jobs[job][1])
                self.state[job] = may_run
            self.actors.point(self._can_work_here)

    def _run_here(self, index):
        task = self.program[index]
        written = result(index, [int(self.memory[tensor]) for tensor in task.reads])
        self.actors.point()
        for tensor in task.writes:
            self.memory[tensor] = written
            self.note_made(tensor, written, index)

    # ------------------------------------------------------------ links
    def _can_work_there(self, link):
        given = link.mailbox.given
        return self._is_ready(given[0]) if given else not self.queue[link.where]

    def _work_there(self, link):
        """Run the jobs of a link, in the order in which they stand in its mailbox."""
        given, where = link.mailbox.given, link.where
        try:
            while given or self.queue[where]:
                self._give()
                if given and self._is_ready(given[0]):
                    self.state[given[0]] = self._has_run_well(link, given[0])
                    del given[0]
                self.actors.point(lambda: self._can_work_there(link))
            if where not in self.manager.dead:
                link.tasks.settle_all()
        except Lost:
            self.manager.dead[where] = 9
        finally:
            self.left.add(where)

    def _has_run_well(self, link, job):
        """Have a link run a job, unless it is skipped; say whether it has succeeded."""
        if not self._may_run(job) or link.where in self.manager.dead:
            return False
        try:
            link.tasks.run(link.kind, SimpleNamespace(_box=job.to_bytes(4, "little")))
        except Lost:
            self.manager.dead[link.where] = 9
        except TaskError as error:
            assert "Fault" in str(error) or self.lost is not None, error
        except (RemoteError, TransferError, MemoryError) as error:
            assert self.lost is not None, f"it failed without a loss: {error}"
        else:
            return True
        return False

    def session_at(self, address):
        found = self.sessions[address]
        if found.is_lost:
            raise TransferError("the connection is lost")
        return found

    # ------------------------------------------------------------ loss, and the end
    def _look(self):
        for session in self.of_link:
            validate(session.copies)
        if self.lost is not None and self.actors.points == self.lost[1]:
            self.of_link[self.lost[0]].is_lost = True
        self._give()

    def _bring(self, number, homings):
        if self.of_link[number].is_lost:
            self.manager.dead[number] = 9
            raise WorkerLostError("the session has died")
        return bytes(self.homes[number].bring_newest(one) for one in homings)

    def is_refused(self, tensor):
        """Say whether a task that reads a tensor now is refused."""
        try:
            self.parent.require_not_lost(uses_of([self._tensor(tensor, INPUT)]))
        except RemoteError:
            return True
        return False


# ---------------------------------------------------------------- side by side
SUB_WORKERS, FETCHERS = 2, 1
"""Each session has these beside its own thread: actors, too."""


class Promise(Future):
    """What another actor does, once: a future of a call, or of a thread."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def do(self):
        try:
            self.set_result(self.act())
        except Exception as error:
            self.set_exception(error)

    def add_done_callback(self, _callback):
        """Tell nobody: the session sees it when it is its turn."""


class Queue:
    """What actors of a session have to do: the calls of its sub workers, or what is to be fetched."""

    ended = 0

    def __init__(self, session):
        self.session, self.todo = session, deque()

    def submit(self, function, *args):
        if isinstance(function, calls.Task):  # a call, as a stream has it
            (positional, _named) = args
            self.todo.append(Promise(lambda: function.py_func(*positional)))
        else:
            self.todo.append(Promise(lambda: function(*args)))
        made = self.todo[-1]
        self.session.promised.append(made)
        return made

    def can_go_on(self):
        """Say whether there is something to do, or will be nothing."""
        return bool(self.todo) or self.session.has_ended

    def live(self):
        point = self.session.play.actors.point
        while self.todo or not self.session.has_ended:
            if self.todo:
                one = self.todo.popleft()
                point()
                one.do()
            point(self.can_go_on)


class SideBySideServed(Served):
    """A session whose tasks are all for its sub workers; it waits where the actors take turns."""

    def __init__(self, play, of):
        super().__init__(play, of)
        self.promised, self.has_ended = [], False
        self.sub_workers, self.fetchers = Queue(self), Queue(self)
        target = InnerCallable("handle", self._run_one)
        self.dispatcher = SimpleNamespace(find=lambda _digest: target)
        self._has_several = True
        fetchers = of.copies, lambda: self.fetchers
        self._beside = SideBySide(self.stream_of, *fetchers, lambda: None)

    def stream_of(self):
        return self.sub_workers

    def _wait(self, for_frames):
        def is_over():
            return any(one.done() for one in self.promised) or (for_frames and bool(self.inbox))

        while not is_over():
            self.play.actors.point(lambda: is_over() or self.of.is_lost)
            self._require_alive()

    def _answer_ended(self):
        self.promised = [one for one in self.promised if not one.done()]
        for end in self._beside.ends():
            self._tell(end)

    def live(self):
        super().live()
        self.has_ended = True

    def _run_one(self, args):
        self.run(None, args, None)


class SideBySidePlay(Play):
    """One time that a program is run, with sub workers that run tasks side by side."""

    serve = SideBySideServed

    def _add_actors(self):
        super()._add_actors()
        for served in self.served:
            several = {
                "sub": (served.sub_workers, SUB_WORKERS),
                "fetcher": (served.fetchers, FETCHERS),
            }
            for kind, (queue, count) in several.items():
                for i in range(count):
                    self.actors.add(f"{kind} {served.of.number} {i}", queue.live, queue.can_go_on)
