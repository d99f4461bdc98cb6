"""Helpers: an engine driven by hand, step by step, and gates between a test and its workers."""

from __future__ import annotations

import os
import select
import signal
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from simpler_ref.engine.memory import Engine
from simpler_ref.engine.structures import digest_of, small_engine
from simpler_ref.engine.view.mailbox import ReceivedArgs
from simpler_ref.engine.view.slots import SlotView, edges_of, read_slot, tensors_at
from simpler_ref.jit import layout as L
from simpler_ref.stepping import Steps
from simpler_ref.system import regions
from simpler_ref.task_interface import ContinuousTensor, DataType, TaskArgs, TaskState
from simpler_ref.task_interface import TensorArgType as T

from .kernels import compiled_steps, kernels


class Terminated(BaseException):
    """What the handler of `terminated_after` raises."""


@contextmanager
def terminated_after(seconds: float) -> Iterator[None]:
    """Have a signal handler raise `Terminated` on this thread after some time.

    The signal is sent to this thread. One for the whole process may reach another thread, that of a
    test's time limit for instance, and interpreted kernels, which block signals, could then be cut.
    """

    def terminate(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGALRM, terminate)
    to = threading.get_ident(), signal.SIGALRM
    timer = threading.Timer(seconds, signal.pthread_kill, to)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGALRM, before)


def sample(values: Iterable, count: int = 5) -> list:
    """Return parameters of a test: so many, spread evenly, for `make test`, all others marked `long`."""
    values = list(values)
    chosen = {i * len(values) // count for i in range(count)} if count < len(values) else None
    return [
        value if chosen is None or i in chosen else pytest.param(value, marks=pytest.mark.long)
        for i, value in enumerate(values)
    ]


DEADLINE_S = 30.0
"""A guard against hangs: no test asserts how long anything takes."""

FREE, PENDING, READY, RUNNING, COMPLETED, CONSUMED, FAILED = TaskState


# ---------------------------------------------------------------- tensors with tags
class Arg(NamedTuple):
    """A tensor of bytes and its tag, on its way into submit."""

    tag: int
    data: int
    nbytes: int = 8
    child_memory: bool = False

    def wire(self) -> bytes:
        shape = (self.nbytes,)
        tensor = ContinuousTensor.make(self.data, shape, DataType.UINT8, self.child_memory)
        return tensor._wires[self.tag]


def reads(data: int, **more) -> Arg:
    return Arg(T.INPUT, data, **more)


def writes(data: int, **more) -> Arg:
    return Arg(T.OUTPUT, data, **more)


def updates(data: int, **more) -> Arg:
    return Arg(T.INOUT, data, **more)


def overwrites(data: int, **more) -> Arg:
    return Arg(T.OUTPUT_EXISTING, data, **more)


def ignores(data: int, **more) -> Arg:
    return Arg(T.NO_DEP, data, **more)


def auto(nbytes: int) -> Arg:
    """Return an OUTPUT that the runtime shall provide."""
    return Arg(T.OUTPUT, 0, nbytes)


class Member(NamedTuple):
    """One member of a group."""

    args: tuple[Arg, ...] = ()
    scalars: tuple[int, ...] = ()
    worker: int = -1


def raw_scalar(bits: int) -> bytes:
    """Return a scalar on its way into submit of which nobody says what it is."""
    return struct.pack("<Qq", bits, L.RAW)


def member(*args: Arg, scalars: Iterable[int] = (), worker: int = -1) -> Member:
    """Return a member of a group, for `Driver.submit_group`."""
    return Member(args, tuple(scalars), worker)


# ---------------------------------------------------------------- an engine by hand
def unmap(engine: Engine) -> None:
    """Give an engine's memory back, although somebody may still refer to the engine."""
    engine.mem = engine.heap = engine.view = engine.layouts = None


class Edge(NamedTuple):
    producer: int
    next: int
    consumer: int


def received(octets: bytes) -> ReceivedArgs:
    """Return a worker's view of a mailbox with these bytes, as far as they go."""
    words = np.zeros(L.WORKER_WORDS, np.int64)
    box = words[L.W_MAILBOX : L.W_TRACE].view(np.uint8)
    box[: len(octets)] = np.frombuffer(octets, np.uint8)
    kernels.decode(words, 0)
    view = ReceivedArgs.__new__(ReceivedArgs)
    view._box = box.data
    return view


class Driver(Steps):
    """An engine moved by hand, whose tasks are known by their slots, and that tests look into.

    A run is open and all workers are usable and awake, unless told otherwise. `k` are the entries
    of the package, `x` those of tests/kernels.py.
    """

    def __init__(
        self, engine: Engine | None = None, *, run: bool = True, usable: bool = True, **size
    ):
        engine = engine or small_engine(**size)
        engine.steps = SimpleNamespace(**vars(engine.steps) | compiled_steps())
        super().__init__(engine)
        self.engine, self.mem, self.k, self.x = self._engine, self._mem, self._kernels, kernels
        for worker in range(self._view.workers):
            self.k.set_usable(self.mem, worker, usable)
        if run:
            self.begin_run()

    def _slot(self, task: int) -> int:
        return task

    _task = _slot

    def close(self) -> None:
        unmap(self.engine)
        self.__dict__.clear()

    # ------------------------------------------------------------ Orch thread
    def begin_run(self) -> None:
        assert self.k.begin_run(self.mem) == L.OK

    def end_run(self) -> None:
        """Reset everything, as the end of the drain does."""
        self.k.end_run(self.mem)

    def open_scope(self) -> int:
        return self.k.open_scope(self.mem)

    def close_scope(self) -> int:
        return self.k.close_scope(self.mem)

    def try_submit(
        self,
        args: Iterable[Arg] = (),
        scalars: Iterable[int] = (),
        *,
        callable: int = 0,
        kind: int = L.SUB,
        owner: int = -1,
        config: int = 0,
    ) -> int:
        """Submit without a pass; return what the kernel returned, AUTO_OUTPUT included."""
        tensors = [arg.wire() for arg in args]
        values = [raw_scalar(value) for value in scalars]
        counts = len(tensors) | len(values) << 32
        wire = b"".join(tensors + values)
        word = callable | kind << L.WORD_KIND | config << L.WORD_CONFIG
        word |= owner + 1 << L.WORD_WORKER
        return self._steps.submit_task(self.mem, word, counts, 0, wire)

    def submit(self, *args: Arg, scalars: Iterable[int] = (), **more) -> int:
        """Submit without a pass; return the slot."""
        code = self.try_submit(args, scalars, **more)
        assert code >= 0, code
        return code & ~L.AUTO_OUTPUT

    def try_submit_group(
        self, *members: Member, callable: int = 0, kind: int = L.SUB, config: int = 0
    ) -> int:
        """Submit a group without a pass; return what the kernel returned."""
        tensors = [arg.wire() for member in members for arg in member.args]
        values = [raw_scalar(value) for member in members for value in member.scalars]
        table = [
            struct.pack("<iiQ", len(member.args), len(member.scalars), member.worker + 1)
            for member in members
        ]
        counts = len(tensors) | len(values) << 32
        word = callable | kind << L.WORD_KIND | config << L.WORD_CONFIG
        wire = b"".join(tensors + values + table)
        return self._steps.submit_task(self.mem, word, counts, len(members), wire)

    def submit_group(self, *members: Member, **more) -> int:
        """Submit a group without a pass; return the slot."""
        code = self.try_submit_group(*members, **more)
        assert code >= 0, code
        return code & ~L.AUTO_OUTPUT

    def try_alloc(self, nbytes: int) -> int:
        return int(self.k.alloc_buffer(self.mem, auto(nbytes).wire()))

    def alloc(self, nbytes: int) -> int:
        slot = self.try_alloc(nbytes)
        assert slot >= 0, slot
        return slot

    def start(self, *args: Arg, **more) -> int:
        """Submit a task and run a pass, which dispatches it if it can; return the slot."""
        slot = self.submit(*args, **more)
        self.run_pass()
        return slot

    # ------------------------------------------------------------ workers
    def _worker(self, worker: int) -> int:
        return self.workers[worker]._words.start

    def word(self, worker: int, offset: int) -> int:
        """Return a word of a worker, e.g. ``driver.word(0, L.W_CLAIM)``."""
        return int(self.mem[self._worker(worker) + offset])

    # its frames: the first one has number 0
    def frames(self, worker: int) -> list[int]:
        """Return the frames that hold the tasks a worker was given, oldest first."""
        head = self.word(worker, L.W_HEAD) // L.WORKER_WORDS
        depth = int(self.mem[L.DEPTH])
        return [(head + i) % depth for i in range(self.word(worker, L.W_GIVEN))]

    def at(self, worker: int) -> int:
        """Return the frame that a worker serves or waits for, as it sees it."""
        return self.workers[worker]._words.served

    def _frame(self, worker: int, frame: int | None) -> int:
        """Return where a frame begins, by default the one that the worker is at."""
        frame = self.at(worker) if frame is None else frame
        return self._worker(worker) + frame * L.WORKER_WORDS

    def frame_word(self, worker: int, offset: int, frame: int | None = None) -> int:
        """Return a word of a frame, e.g. ``driver.frame_word(0, L.W_SKIP)``."""
        return int(self.mem[self._frame(worker, frame) + offset])

    def all_given(self, worker: int) -> list[int]:
        """Return the slots a worker was given and has not been seen to end, oldest first."""
        return self.workers[worker]._words.given_slots()

    def given(self, worker: int) -> int:
        """Return the oldest slot a worker was given, NONE if it is idle."""
        return next(iter(self.all_given(worker)), L.NONE)

    def member(self, worker: int) -> int:
        """Return which member of a group a worker has as its oldest task, -1 for none."""
        for frame in self.frames(worker):
            return self.frame_word(worker, L.W_MEMBER, frame) - 1
        return -1

    def members(self, slot: int) -> dict[int, int]:
        """Return which member of a group each worker has: worker → member."""
        workers = range(self._view.workers)
        return {w: self.member(w) for w in workers if self.given(w) == slot}

    def worker_of(self, slot: int) -> int:
        """Return the worker a slot runs or ran on."""
        return int(self.mem[slot + L.S_WORKER])

    def set_parked(self, worker: int, parked: bool) -> None:
        self.mem[self._worker(worker) + L.W_PARKED] = int(parked)

    def usable(self, worker: int) -> bool:
        return bool(self.mem[self._worker(worker) + L.W_USABLE])

    def mailbox(self, worker: int, frame: int | None = None) -> np.ndarray:
        """Return the bytes of a mailbox, not a copy; by default where the worker is at."""
        start = 8 * (self._frame(worker, frame) + L.W_MAILBOX)
        return self.mem.view(np.uint8)[start : start + L.MAILBOX_SIZE]

    def mailbox_state(self, worker: int, frame: int | None = None) -> tuple[int, int]:
        """Return (state, error) of a mailbox."""
        word = self.frame_word(worker, L.W_MAILBOX + L.MAIL_STATE, frame)
        return word & 0xFFFFFFFF, word >> 32

    def trace(self, worker: int, frame: int | None = None) -> np.ndarray:
        """Return the bytes of a frame's traceback region, not a copy."""
        start = 8 * (self._frame(worker, frame) + L.W_TRACE)
        return self.mem.view(np.uint8)[start : start + 8 * L.TRACE_WORDS]

    def may_start(self, worker: int) -> int:
        """Ask as a worker about the task that it is at."""
        return self.x.may_start(self.mem, self._frame(worker, None))

    def post_done(
        self, worker: int, error: BaseException | None = None, outcome: int = L.SUCCESS
    ) -> None:
        """Answer the task that a worker is at, as its process would."""
        if error is not None or outcome == L.SUCCESS:
            self.workers[worker].answer(error)
        else:
            self.x.post_done(self.mem, worker, outcome)

    def answer_task(self, slot: int, error: BaseException | None = None) -> None:
        """Answer a RUNNING task as its worker would, and run a pass."""
        self.post_done(self.worker_of(slot), error)
        self.run_pass()

    def submit_and_settle(self, *args: Arg, **more) -> int:
        """Submit, then run passes until nothing moves; return the slot."""
        slot = self.submit(*args, **more)
        self.settle()
        return slot

    def answer_and_settle(self, worker: int, *answer, **more) -> None:
        """Answer as `post_done` does, then run passes until nothing moves."""
        self.post_done(worker, *answer, **more)
        self.settle()

    def finish(self, slot: int, error: BaseException | None = None) -> None:
        """Bring a task that can run to its end: dispatch it, answer it, collect it."""
        self.settle()
        assert self.state(slot) == RUNNING, self.state(slot)
        self.answer_and_settle(self.worker_of(slot), error)

    def finish_everything(self) -> list[int]:
        """Play all workers until none is busy; return the ids in order of completion."""
        order = []
        self.settle()
        while busy := [worker for worker in self.workers if worker.tasks()]:
            order.append(busy[0].tasks()[0])
            busy[0].answer()
            self.settle()
        return order

    # ------------------------------------------------------------ looking in
    def view(self, slot: int) -> SlotView:
        return read_slot(self.engine.mem, slot)

    def state(self, slot: int) -> TaskState:
        return self.view(slot).state

    def states(self, *slots: int) -> list[TaskState]:
        return [self.state(slot) for slot in slots]

    def refs(self, slot: int) -> tuple[int, int]:
        """Return (fanout_total, fanout_released)."""
        view = self.view(slot)
        return view.fanout_total, view.fanout_released

    def id(self, slot: int) -> int:
        return self.view(slot).task_id

    def live(self) -> int:
        return self._view.live

    def fanin(self, slot: int) -> int:
        """Return the live fan-in, as far as wired (0 before)."""
        return int(self.mem[slot + L.S_FANIN])

    def counts(self, slot: int) -> tuple[int, int]:
        """Return (tensors, scalars)."""
        word = int(self.mem[slot + L.S_COUNTS])
        return word & 0xFFFFFFFF, word >> 32

    def _tensors_at(self, slot: int) -> int:
        return tensors_at(int(self.mem[slot + L.S_BODY]), self.counts(slot)[0])

    def argument_words(self, slot: int) -> list[int]:
        """Return what a slot stores of its arguments: five words per tensor, then the scalars' bits."""
        tensors, scalars = self.counts(slot)
        at = self._tensors_at(slot)
        words = self.mem[at : at + 5 * tensors + L.SCALAR_WORDS * scalars].tolist()
        return words[: 5 * tensors] + words[5 * tensors + L.SCALAR_BITS :: L.SCALAR_WORDS]

    def address(self, slot: int, tensor: int = 0) -> int:
        return self.argument_words(slot)[5 * tensor + L.TENSOR_DATA]

    def edges(self, slot: int) -> list[Edge]:
        named = [L.EDGE_PRODUCER, L.EDGE_NEXT, L.EDGE_CONSUMER]
        return [Edge(*(edge[k] for k in named)) for edge in edges_of(self.mem, slot)]

    def lookup(self, data: int, owner: int = -1) -> int:
        """Return the slot a key leads to, or NONE."""
        return self.k.map_lookup(self.mem, data, owner)

    def map_entries(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return what the TensorMap holds: (address, owner) → (slot, slot of the slab or NONE)."""
        found = self._view.map_entries()
        assert len(found) == self.map_count(), "a key stands twice"
        return found

    def map_count(self) -> int:
        return self._view.buffers_known

    def ring_word(self, ring: int, field: int) -> int:
        """Return a word of a ring, e.g. ``driver.ring_word(0, L.R_TOP)``."""
        return int(self.mem[L.RING_BLOCK + ring * L.LINE + field])

    def held(self, ring: int) -> int:
        return self.ring_word(ring, L.R_TOP) - self.ring_word(ring, L.R_TAIL)

    def words(self) -> np.ndarray:
        return self.mem.copy()

    def changed_since(self, before: np.ndarray) -> list[int]:
        """Return the offsets of the words that differ from an earlier copy."""
        return np.flatnonzero(self.mem != before).tolist()

    digest = staticmethod(digest_of)


# ---------------------------------------------------------------- between a test and its workers
class Gate:
    """A counter that forked workers share with the test: one side waits, the other lets it pass.

    Make it before the Worker starts, and capture it in the worker's function.
    """

    def __init__(self):
        self._fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)

    def open(self, times: int = 1 << 32) -> None:
        """Let that many waits pass, by default all there will ever be."""
        os.eventfd_write(self._fd, times)

    def wait(self) -> None:
        """Wait until the other side opened, and use one of its openings up."""
        assert self.opens(DEADLINE_S), "nobody opened the gate in time"
        os.eventfd_read(self._fd)

    def opens(self, within_s: float = 0.0) -> bool:
        """Say whether a wait would pass, now or within a time; nothing is used up."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._fd)


def wait_until(condition) -> None:
    """Wait until something that cannot be waited for otherwise has come true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.001)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let all threads of a process stand still: a signal alone may come after what they do next."""
    os.kill(pid, signal.SIGSTOP)
    try:
        tasks = Path(f"/proc/{pid}/task")
        wait_until(lambda: all(state_of(thread) == "T" for thread in tasks.iterdir()))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(thread: Path) -> str:
    """Return the letter that the system has for the state of a thread, a folder below /proc."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def make_args(*tensors, scalars: Iterable = ()) -> TaskArgs:
    """Return TaskArgs from ``(tensor, tag)`` pairs and scalars."""
    args = TaskArgs()
    for tensor, tag in tensors:
        args.add_tensor(tensor, tag)
    for value in scalars:
        args.add_scalar(value)
    return args


def key(address: int, nbytes: int = 8) -> ContinuousTensor:
    """Return a tensor whose address serves as a dependency key only: nobody touches its memory."""
    return ContinuousTensor.make(address, (nbytes,), DataType.UINT8)


@contextmanager
def no_passes(mem):
    """Keep every thread of a Worker from running a scheduler pass, by holding the pass."""
    wait_until(lambda: kernels.try_lock(mem))
    try:
        yield
    finally:
        kernels.unlock(mem)


def tasks_given(w, worker: int = 0) -> int:
    """Return how many tasks a worker of a started Worker has been given and has not been seen to end."""
    mem = w._session.engine.mem
    return int(mem[int(mem[L.A_WORKERS]) + worker * int(mem[L.WORKER_STRIDE]) + L.W_GIVEN])


def inside(address: int, nbytes: int, base: int, size: int) -> bool:
    """Say whether bytes [address, address + n) are within [base, base + size)."""
    return base <= address and address + nbytes <= base + size


def shared_pages():
    """Return the bytes of shared memory that the system has for this process and its workers."""
    return sum(512 * os.fstat(one.fd).st_blocks for one in regions._owners if one._fd >= 0)


def shared_spans(pid):
    """Return start → (offset, device, inode, path) of the shared mappings of a process."""
    rows = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {int(r[0].split("-")[0], 16): tuple(r[2:]) for r in rows if r[1] == "rw-s"}
