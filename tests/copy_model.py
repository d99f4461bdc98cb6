"""Endpoints in small: the real directory, links' and sessions' copies, and messages in any order.

What is made up here is what stands around them: sockets, processes and the engine. Each link, and the
worker of this machine, is a thread that stops before each message, and one of them goes on at a time: a
schedule says which. A session is asked by one link after another, and may be lost at any message; a frame
may come twice.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from simpler_ref.errors import RemoteError, TransferError, WorkerLostError
from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.remote.connection import Order
from simpler_ref.remote.copies import (
    OPEN_COPIES,
    TASK_COPIES,
    WANTED_COPIES,
    CopiedTensor,
    Copies,
    TaskCopies,
    WantedCopies,
)
from simpler_ref.remote.directory import HOME, uses_of
from simpler_ref.remote.frames import OwnFrameType
from simpler_ref.remote.home import CopyPlan, Home, Plan
from simpler_ref.remote.limits import REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_WRITE
from simpler_ref.remote.parent_tensors import ParentTensors

SIZE = 8
MASK = (1 << 62) - 1
INPUT, INOUT, EXISTING = (
    TensorArgType.INPUT,
    TensorArgType.INOUT,
    TensorArgType.OUTPUT_EXISTING,
)
TAGS = {"": INPUT, "!": INOUT, "=": EXISTING}


class Lost(WorkerLostError):
    """The session of a link has died."""


def result(index, values):
    """Return what a task writes."""
    return hash((index, *values)) & MASK


# ---------------------------------------------------------------- programs
class Task:
    """A task, where it runs, and its tensors: `x` reads x, `x!` updates it, `x=` writes it."""

    def __init__(self, where, *uses):
        self.where = where
        self.tags = {"xyz".index(use[0]): TAGS[use[1:]] for use in uses}
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


def drawn(random, length, endpoints=2, tensors=2, most=2):
    """Return a random program that is ordered; a task uses `most` tensors at most."""
    while True:
        program = []
        for _ in range(length):
            chosen = random.sample(range(tensors), random.randint(1, most))
            where = random.choice([*range(endpoints)] * 2 + [HOME])
            uses = ["xyz"[one] + random.choice(["", "!", "!", "="]) for one in chosen]
            program.append(Task(where, *uses))
        if is_ordered(program):
            return program


def sequentially(program, tensors):
    """Return the values that tensors have after each task, the first ones before all."""
    history = [list(range(1, tensors + 1))]
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
    """Threads of which one runs at a time: before each message it waits until the schedule chooses it."""

    def __init__(self, choose):
        self.choose = choose
        self._waiting = {}
        self._back = threading.Semaphore(0)
        self.points = 0
        self.at_point = lambda: None
        self.errors = []

    def add(self, name, act):
        """Add one."""

        def run():
            own.acquire()
            try:
                act()
            except BaseException as error:
                self.errors.append(error)
            finally:
                self._back.release()

        own = threading.Semaphore(0)
        self._waiting[name] = own
        threading.Thread(target=run, daemon=True).start()

    @property
    def now(self):
        """Name of the one that runs."""
        return self._now[0]

    def point(self):
        """Let others go on, until this one is chosen."""
        name, own = self._now
        self._waiting[name] = own
        self._back.release()
        assert own.acquire(timeout=60)

    def run(self, can_go):
        """Let all of them run to their ends; `can_go` says whether one that waits has something to do."""
        while able := [name for name in sorted(self._waiting) if can_go(name)]:
            name = self.choose(able)
            self._now = name, self._waiting.pop(name)
            self._now[1].release()
            assert self._back.acquire(timeout=60)
            self.points += 1
            self.at_point()
        assert not self._waiting, f"{sorted(self._waiting)} wait for ever"


# ---------------------------------------------------------------- sessions and links
class Weak(np.ndarray):
    """An array of which a set knows how many there are."""

    __hash__ = object.__hash__


class Session:
    """What a session has, and its end of the connection to its link."""

    def __init__(self, play, number):
        self.play, self.number = play, number
        self.address = f"session {number}.{next(play.births)}"
        self.windows, self.is_lost = {}, False
        self.order = Order(1, number)
        self.copies = Copies(self, self._empty)
        self._arrays = weakref.WeakSet()
        play.sessions[self.address] = self

    def _empty(self, nbytes):
        if len(self._arrays) == self.play.room:
            raise MemoryError("the session has no room")
        array = np.zeros(nbytes, np.uint8).view(Weak)
        self._arrays.add(array)
        return array

    # as a mover
    def move(self, key, address):
        before = self.windows[key]
        ctypes.memmove(address, before.address, before.nbytes)
        self.windows[key] = replace(before, address=address)

    def offer(self, window):
        self.windows[window.key] = window

    def withdraw(self, key):
        del self.windows[key]

    def fetch(self, source, key, offset, address, nbytes):
        self.play.actors.point()
        self.require_alive()
        read(self.play.session_at(source), key, address)
        self.play.moved += 1

    def require_alive(self):
        if self.is_lost:
            raise Lost("the session has died")

    def hear(self, raw):
        """Return the payload of a frame, which may come a second time: then it is refused."""
        frame = self.order.decode(raw)
        if self.play.twice:
            before = self.order.received
            try:
                self.order.decode(raw)
            except ValueError:
                assert self.order.received == before
            else:
                raise AssertionError("a frame was taken twice")
        return frame


def read(session, key, address):
    """Copy what is in a window of a session."""
    window = session.windows.get(key)
    if window is None or not window.access & REMOTE_BUFFER_ACCESS_READ:
        raise TransferError("there is no such window", refused=True)
    ctypes.memmove(address, window.address, SIZE)


class LinkHome(Home):
    """A `Home` whose moves are those of the play."""

    def __init__(self, play, number):
        super().__init__("", None, 1.0)
        self.play, self.number = play, number

    @property
    def session(self):
        return self.play.of_link[self.number]

    def move_to(self, key, offset, address, nbytes):
        self.play.actors.point()
        self.session.require_alive()
        window = self.session.windows.get(key)
        if window is None or window.access != REMOTE_BUFFER_ACCESS_WRITE:
            raise TransferError("there is no such window", refused=True)
        ctypes.memmove(window.address, address, SIZE)
        self.play.moved += 1

    def move_all_to(self, several):
        for one in several:
            self.move_to(one.key, 0, one.memory, one.nbytes)

    def move_from(self, key, offset, address, nbytes):
        if self.play.running:
            self.play.actors.point()
        self.session.require_alive()
        read(self.session, key, address)

    def take_window(self, key, address, nbytes):
        try:
            self.move_from(key, 0, address, nbytes)
        except TransferError as error:
            if not error.refused:
                raise
            return False
        return True


# ---------------------------------------------------------------- a play
class Play:
    """One time that a program is run.

    `choose` returns which actor goes on; `lost` is None, or (session, point): there it dies. `room` is
    for how many tensors a session has memory.
    """

    def __init__(
        self, program, choose, *, endpoints=2, tensors=2, lost=None, twice=False, room=None
    ):
        self.program, self.lost, self.twice, self.room = program, lost, twice, room
        self.births = itertools.count()
        self.sessions = {}
        self.of_link = [Session(self, number) for number in range(endpoints)]
        self.homes = [LinkHome(self, number) for number in range(endpoints)]
        self.orders = [Order(1, number) for number in range(endpoints)]
        self.memory = np.arange(1, tensors + 1, dtype=np.int64)
        self.manager = SimpleNamespace(dead={})
        heap = np.zeros(0, np.uint8)
        live = SimpleNamespace(engine=SimpleNamespace(heap=heap), manager=self.manager)
        life = SimpleNamespace(live=lambda: live, parent_level=0)
        self.parent = ParentTensors(life, self._bring)
        self.directory = self.parent.directory
        self.actors = Actors(choose)
        self.actors.at_point = self._maybe_lose
        self.moved = 0
        self.running = True
        self.made = {tensor: [value] for tensor, value in enumerate(self.memory.tolist())}
        """Of each tensor: what it was, and what tasks have written, in their order."""
        self.queue = {HOME: [], **{number: [] for number in range(endpoints)}}
        self.state = []
        """Of each job: None before its end, then whether it has succeeded."""
        self.needs = []
        self._inside = set()
        """Places whose job has begun."""
        self._submit()

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
                tensor = (held.start - self.memory.ctypes.data) // SIZE
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
                placed = self.directory.place(task.where, uses, "handle")
                plans = self.directory.plans(placed, len(uses))
                plan = Plan(1, plans, self.directory.take_dropped(task.where))
                assert Plan.from_words(plan.words()[:-1]) == plan
                job = self._job(task.where, plan, index, needs)
                self.directory.note_task(placed, [use.start for use in uses])
            for tensor in task.writes:
                writer[tensor] = job

    def _job(self, where, plan, index, needs):
        number = len(self.state)
        self.state.append(None)
        self.needs.append(needs)
        self.queue[where].append((number, plan, index))
        return number

    # ------------------------------------------------------------ the run
    def run(self):
        """Run it, and return its failure, if it has failed."""
        self._add_actors()
        self.actors.run(self._can_go)
        self.running = False
        for error in self.actors.errors:
            raise error
        failure = None if all(self.state) else RemoteError("a task has failed")
        return self.parent.end_run(failure)

    def _add_actors(self):
        for where in self.queue:
            self.actors.add(str(where), lambda where=where: self._serve(where))

    def _can_go(self, name):
        where = int(name)
        if where in self._inside or not self.queue[where]:
            return True
        return any(self._is_ready(job) for job, _, _ in self.queue[where])

    def _is_ready(self, job):
        return all(self.state[one] is not None for one in self.needs[job])

    def _serve(self, where):
        """Run the jobs of one place as they become ready."""
        while self.queue[where]:
            ready = [one for one in self.queue[where] if self._is_ready(one[0])]
            if not ready:
                self.actors.point()
                continue
            job = self.actors.choose(ready) if len(ready) > 1 else ready[0]
            self.queue[where].remove(job)
            self._inside.add(where)
            self._run_job(where, *job)
            self._inside.discard(where)
            self.actors.point()

    def _run_job(self, where, job, plan, index):
        succeeded = False
        try:
            if all(self.state[one] for one in self.needs[job]) and where not in self.manager.dead:
                if where == HOME:
                    self._run_here(index)
                elif plan.goes_home:
                    self._bring_by_task(where, plan)
                else:
                    self._run_there(where, plan, index)
                succeeded = True
        except Lost:
            self.manager.dead[where] = 9
        except (RemoteError, TransferError) as error:
            assert self.lost is not None, f"it failed without a loss: {error}"
        self.state[job] = succeeded

    def _run_here(self, index):
        task = self.program[index]
        written = result(index, [int(self.memory[tensor]) for tensor in task.reads])
        self.actors.point()
        for tensor in task.writes:
            self.memory[tensor] = written
            self.made[tensor].append(written)

    def _bring_by_task(self, where, plan):
        (one,) = plan.tensors
        self.homes[where].begin(plan.run)
        held = next(held for held in self.directory if held.key == one.key)
        self.homes[where].bring(one.key, one.reads, held.start, held.nbytes)

    def _run_there(self, where, plan, index):
        """Do what a link and its session do for a task."""
        task, home, order = self.program[index], self.homes[where], self.orders[where]
        home.begin(plan.run)
        movers = [self._mover_of(one.source) for one in plan.tensors]
        copied = [
            CopiedTensor(one.key, one.reads, one.makes, mover)
            for one, mover in zip(plan.tensors, movers, strict=True)
        ]
        addresses = [self.memory.ctypes.data + SIZE * tensor for tensor in task.tags]

        def ask(raw):
            self.actors.point()
            session = self.of_link[where]
            session.require_alive()
            frame = session.hear(order.encode(OwnFrameType.OPEN_COPIES, raw))
            wanted = session.copies.open(OPEN_COPIES.decode(frame.payload))
            return WANTED_COPIES.encode(WantedCopies(frame.header.sequence, tuple(wanted)))

        home.store_all(plan.run, home.missing(plan, addresses, [SIZE] * len(addresses)), ask)
        told = TaskCopies(plan.run, b"", tuple(copied), tuple(plan.dropped))
        self.actors.point()
        session = self.of_link[where]
        session.require_alive()
        frame = session.hear(order.encode(OwnFrameType.TASK_COPIES, TASK_COPIES.encode(told)))
        try:
            self._in_session(session, TASK_COPIES.decode(frame.payload), index)
        except Lost:
            raise
        except (RemoteError, TransferError):
            home.note(copied, False)
            raise
        self.actors.point()
        session.require_alive()
        home.note(copied, True)

    def _in_session(self, session, told, index):
        task = self.program[index]
        session.copies.begin(told.run)
        session.copies.drop(told.dropped)
        found = session.copies.take(told.tensors, [SIZE] * len(told.tensors))
        numbers = {
            tensor: ctypes.c_int64.from_address(address)
            for tensor, address in zip(task.tags, found, strict=True)
        }
        written = result(index, [numbers[tensor].value for tensor in task.reads])
        self.actors.point()
        session.require_alive()
        for tensor in task.writes:
            numbers[tensor].value = written
        self.actors.point()
        session.require_alive()
        for tensor in task.writes:
            self.made[tensor].append(written)
        session.copies.settle(told.tensors, True)

    def _mover_of(self, source):
        return "" if not source else self.of_link[source - 1].address

    def session_at(self, address):
        found = self.sessions[address]
        if found.is_lost:
            raise TransferError("the connection is lost")
        return found

    # ------------------------------------------------------------ loss, and the end
    def _maybe_lose(self):
        if self.lost is not None and self.actors.points == self.lost[1]:
            self.of_link[self.lost[0]].is_lost = True

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
