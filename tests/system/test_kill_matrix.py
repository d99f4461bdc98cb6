"""Workers are killed at every fail point: the right error, no hang, nothing left behind.

They are sub workers, with compiled tasks or not, or of a kind of one's own.
Fail points exist only where ``SIMPLER_REF_FAIL_POINTS=1`` was set before the import. `make test` runs a
sample of this file with interpreted kernels: each act at each of its points, on the kinds of workers in
turn. `make test-long` has all combinations.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal

import numpy as np
import psutil
import pytest
from numba import int64

from simpler_ref import CallableError, TaskArgs, Worker, WorkerLostError, WorkerStartError, leaf
from simpler_ref import TensorArgType as T
from simpler_ref.engine.view.blocks import Blocks
from simpler_ref.jit import fail_points
from simpler_ref.jit import layout as L
from simpler_ref.workers.kinds import WorkerKind

from ..support import make_args, wait_until
from .workers import mark, shared_words

if not fail_points.FAIL_POINTS:
    reason = "fail points exist with SIMPLER_REF_FAIL_POINTS=1 only"
    pytest.skip(reason, allow_module_level=True)

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(300)]  # they may have to be compiled first

UNDONE = ("received", "calling", "called", "before_done")
"""Points at which a task has not been answered."""
DONE = ("done", "parked")
"""Points at which it has."""
STARTING = ("before_ready", "ready")
CONTROL = ("control", "before_control_done", "control_done")

BLOCKS = ("took_block", "wrote_block")
"""Points of calls whose values take blocks of memory."""

NUMBER = {
    name.removeprefix("FAIL_").lower(): number
    for name, number in vars(fail_points).items()
    if name.startswith("FAIL_") and type(number) is int
}


def arm_at(mem, start: int, pid: int, point: str | int) -> None:
    """Let a worker die at a point; it sleeps now, so that it has the next task before it parks again."""
    process = psutil.Process(pid)
    wait_until(lambda: mem[start + L.W_PARKED] and process.status() == psutil.STATUS_SLEEPING)
    mem[start + L.W_FAIL] = NUMBER.get(point, point)


def hold(args):
    """Say that the task has begun, and wait until it may go on."""
    words = args.tensor(0).numpy()
    words[HELD] = 1
    wait_until(lambda: words[GO])
    words[0] += 1


HELD, GO = 6, 7
"""Words of a row, beside the one that is marked."""


def to(marks, index, tag=T.NO_DEP) -> TaskArgs:
    """Return arguments for `mark`, which counts in a row."""
    return make_args((marks[index], tag), scalars=[0])


# ---------------------------------------------------------------- the kinds
class SubRig:
    """A Worker with sub workers, or with others of one kind, which can be told where to die."""

    label = "sub_worker"
    pinned = False
    depth = 1

    def __init__(self, members: int):
        self.members = members
        self.rows = shared_words(64).reshape(8, 8)
        self.marks = self.rows[:, 0]
        self.w = self.make(members)
        self.w.init()
        self.task = self.w.register(self.old())
        self.late_target = self.late()
        self.late_handle = None

    @classmethod
    def started(cls, members: int = 0) -> SubRig:
        """Return a rig that has started and knows a late callable; by default with few members."""
        rig = cls(members or (2 if cls.pinned else 1))
        rig.w.start()
        rig.register_late()
        return rig

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.w.close()

    # what differs
    def make(self, members: int) -> Worker:
        return Worker(level=3, num_sub_workers=members, mailbox_depth=self.depth)

    def old(self):
        return mark

    def late(self):
        return lambda args: mark(args)

    def submit(self, orch, handle, member: int, args: TaskArgs) -> None:
        orch.submit_sub(handle, args)

    def group(self, orch, handle, args: list[TaskArgs]) -> None:
        orch.submit_sub_group(handle, args)

    # what does not
    @property
    def mem(self):
        return self.w._session.engine.mem

    def words_of(self, member: int) -> int:
        return int(self.mem[L.A_WORKERS]) + member * int(self.mem[L.WORKER_STRIDE])

    def arm(self, member: int, point: str) -> None:
        arm_at(self.mem, self.words_of(member), self.pid(member), point)

    def arm_start(self, member: int, point: str) -> None:
        self.mem[L.START_FAIL] = member + 1 << 8 | NUMBER[point]

    def pid(self, member: int) -> int:
        return self.w._session.manager.pids[member]

    def known_dead(self, member: int) -> bool:
        manager = self.w._session.manager
        return manager is None or member in manager.dead or manager.lost

    def kill_idle(self, member: int) -> None:
        os.kill(self.pid(member), signal.SIGKILL)
        wait_until(lambda: self.known_dead(member))

    def one(self, member: int, handle=None):
        return lambda orch, _a, _c: self.submit(
            orch, handle or self.task, member, to(self.rows, member)
        )

    def all(self, handle=None):
        return lambda orch, _a, _c: self.group(
            orch, handle or self.task, [to(self.rows, m) for m in range(self.members)]
        )

    def register_late(self) -> None:
        self.late_handle = self.w.register(self.late_target)

    def assert_works(self) -> None:
        """See that every member does the old task and one that was registered after the start."""
        if self.late_handle is None:
            self.register_late()
        for handle in (self.task, self.late_handle):
            before = self.marks[: self.members].copy()
            self.w.run(self.all(handle))
            assert (self.marks[: self.members] - before).tolist() == [1] * self.members
        mem = self.mem
        assert not any(mem[word] for word in (L.LIVE, L.BUSY, L.SCOPE_DEPTH, L.NEXT_TASK_ID))
        for member in range(self.members):
            w = self.words_of(member)
            words = [int(mem[w + word]) for word in (L.W_USABLE, L.W_CLAIM, L.W_MEMBER)]
            assert words == [L.ALIVE, 0, 0], f"member {member} is not free"

    def assert_replaced(self, member: int, pid: int) -> None:
        """See that all goes on, with another process for a member."""
        self.assert_works()
        assert self.pid(member) != pid, "nobody took its place"


@leaf
def leaf_mark(words: int64[:], index: int):
    words[index] += 1


@leaf
def late_leaf_mark(words: int64[:], index: int):
    words[index] += 1


class LeafRig(SubRig):
    """Sub workers that run compiled leaves."""

    def old(self):
        return leaf_mark

    def late(self):
        return late_leaf_mark


class Counting(WorkerKind):
    """Counts what it has installed, in shared memory."""

    label = "custom_worker"

    def __init__(self, known, index):
        self.known, self.index = known, index

    def start(self, mailbox):
        self.known[self.index] = 0

    def install(self, target):
        self.known[self.index] += 1
        return target

    def remove(self, installed):
        self.known[self.index] -= 1

    def run(self, callable, view, config):
        callable(view)


class CustomRig(SubRig):
    label = "custom_worker"
    pinned = True

    def make(self, members):
        self.known = shared_words(8)
        w = Worker(level=3, mailbox_depth=self.depth)
        for member in range(members):
            w.add_next_level(Counting(self.known, member))
        return w

    def submit(self, orch, handle, member, args):
        orch.submit_next_level(handle, args, worker=member)

    def group(self, orch, handle, args):
        orch.submit_next_level_group(handle, args, workers=list(range(len(args))))


def deeper(rig_type: type[SubRig], depth: int) -> type[SubRig]:
    """Return the same kind of rig, whose workers can be given several tasks at once."""
    return type(f"{rig_type.__name__}{depth}", (rig_type,), {"depth": depth})


SUBS = [SubRig, LeafRig]
KINDS = [*SUBS, CustomRig]
KINDS += [deeper(kind, 2) for kind in KINDS]

TURNS = itertools.count()


def act(kinds: list[type[SubRig]], points: tuple[str, ...] = (), **more):
    """Run an act in all combinations, but for `make test` once at each point: the others take turns."""
    axes = [*more.values(), kinds]
    cells = []
    for point in points or [None]:
        turn = next(TURNS)
        sampled = tuple(axis[turn % len(axis)] for axis in axes)
        for combination in itertools.product(*axes):
            values = combination if point is None else (*combination, point)
            marks = [] if combination == sampled else [pytest.mark.long]
            name = "-".join(getattr(value, "__name__", str(value)) for value in values)
            cells.append(pytest.param(*values, marks=marks, id=name))
    return pytest.mark.parametrize([*more, "rig_type", *(["point"] if points else [])], cells)


def assert_lost(error, task, worker, pid):
    found = (error.task, error.worker, error.pid, error.status)
    assert found == (task, worker, pid, -signal.SIGKILL)


def assert_words(error, *words):
    for word in words:
        assert re.search(word, str(error), re.DOTALL), word


def test_every_fail_point_has_an_act():
    apart = {"waiting", "waking", "stopping", *BLOCKS}
    assert {*UNDONE, *DONE, *STARTING, *CONTROL} | apart == set(NUMBER)


# ---------------------------------------------------------------- in a task
@act(KINDS, UNDONE)
def test_a_task_whose_worker_dies_before_its_answer_is_lost(rig_type, point):
    with rig_type.started() as rig:
        victim = rig.members - 1
        pid = rig.pid(victim)
        rig.arm(victim, point)
        with pytest.raises(WorkerLostError) as info:
            rig.w.run(rig.one(victim))
        place = rf"level {rig.w.level} {rig.label} {victim}\b.*\(pid {pid}\), task 0 \(.*\)"
        assert_words(info.value, place, "killed by SIGKILL before the task was done")
        assert_lost(info.value, 0, victim, pid)
        assert rig.known_dead(victim), "the error came before the death was known"
        rig.assert_replaced(victim, pid)


@act(KINDS, DONE)
def test_a_task_that_was_answered_is_done_whatever_becomes_of_its_worker(rig_type, point):
    with rig_type.started() as rig:
        victim = rig.members - 1
        pid = rig.pid(victim)
        rig.arm(victim, point)
        rig.w.run(rig.one(victim))
        assert rig.marks[victim] == 1
        wait_until(lambda: rig.known_dead(victim))
        rig.assert_replaced(victim, pid)


@act([deeper(kind, 3) for kind in SUBS])
def test_a_worker_dies_that_was_given_a_task_before_it_is_ready(rig_type):
    with rig_type(2) as rig:
        held = rig.w.register(hold)
        rig.mem[L.SPIN_NS] = 10**10  # a worker that sleeps is given no such task
        rig.w.start()
        rig.register_late()
        victims = []

        def graph(orch, _args, _config):
            rig.submit(orch, held, 0, to(rig.rows, 0, T.INOUT))
            wait_until(lambda: rig.rows[0, HELD])
            victims.append(int(rig.mem[rig.words_of(0) + L.W_GIVEN] != 0))
            rig.mem[rig.words_of(victims[0]) + L.W_FAIL] = NUMBER["waiting"]
            for _ in range(2):
                rig.submit(orch, rig.task, 0, to(rig.rows, 0, T.INPUT))
            wait_until(lambda: rig.known_dead(victims[0]))
            rig.rows[0, GO] = 1

        with pytest.raises(WorkerLostError) as info:
            rig.w.run(graph)
        assert_words(info.value, "task 2", "killed by SIGKILL")
        assert (info.value.task, info.value.worker) == (2, victims[0])
        assert rig.marks[0] == 2
        rig.assert_works()


@act(SUBS)
def test_a_worker_dies_between_clearing_a_park_word_and_waking_the_scheduler(rig_type):
    """The orchestration function stays away, so nobody else runs the pass that what waits needs."""
    with rig_type(2) as rig:
        held = rig.w.register(hold)
        rig.w.start()
        rig.register_late()

        def graph(orch, _args, _config):
            rig.submit(orch, rig.task, 0, to(rig.rows, 0, T.INOUT))
            rig.submit(orch, held, 0, to(rig.rows, 0, T.INOUT))
            rig.submit(orch, rig.task, 1, to(rig.rows, 0, T.INOUT))
            wait_until(lambda: rig.rows[0, HELD] and rig.mem[L.PARK_SCHED] != 0)
            [victim] = [m for m in range(2) if rig.mem[rig.words_of(m) + L.W_GIVEN]]
            rig.mem[rig.words_of(victim) + L.W_FAIL] = NUMBER["waking"]
            rig.rows[0, GO] = 1
            wait_until(lambda: rig.marks[0] == 3)
            assert rig.known_dead(victim), "it did not wake anybody"

        rig.w.run(graph)
        rig.assert_works()


# ---------------------------------------------------------------- in its life
@act(KINDS, STARTING, who=["first", "successor"])
def test_a_start_that_fails_says_so_and_the_next_one_works(rig_type, point, who):
    with rig_type(2) as rig:
        if who == "successor":
            rig.w.start()
            rig.register_late()
            rig.kill_idle(1)
        rig.arm_start(1, point)
        try:
            rig.w.run(rig.all())
        except WorkerStartError as error:
            assert_words(error, f"{rig.label} 1", r"\(pid \d+\)", "killed by SIGKILL")
        except WorkerLostError:
            assert point == "ready", "it was never ready, and had a task"
        else:
            assert point == "ready", "nobody noticed"
        wait_until(lambda: rig.w._life.needs_start or rig.known_dead(1) or point == "ready")
        works_soon(rig, point, WorkerLostError)


def works_soon(rig, point, error):
    """See that all goes on, once the death of a worker that was ready is known."""
    while True:
        try:
            return rig.assert_works()
        except error:
            assert point == "ready"


@act(KINDS, CONTROL, victim=range(3))
def test_a_registration_is_all_or_nothing(rig_type, point, victim):
    with rig_type(3) as rig:
        rig.w.start()
        pid = rig.pid(victim)
        rig.arm(victim, point)
        if point == "control_done":  # it had answered
            rig.register_late()
        else:
            with pytest.raises(CallableError) as info:
                rig.register_late()
            assert_words(info.value, "REGISTER_PARTIAL_FAILURE", f"pid {pid}", "SIGKILL")
            assert isinstance(info.value.__cause__, WorkerLostError)
            if isinstance(rig, CustomRig):
                others = [m for m in range(3) if m != victim]
                assert rig.known[others].tolist() == [1, 1], "they did not forget it"
        wait_until(lambda: rig.known_dead(victim))
        rig.register_late()  # with those that live
        rig.assert_replaced(victim, pid)


@act(KINDS, CONTROL)
def test_a_successor_dies_while_it_is_told_of_what_was_registered(rig_type, point):
    with rig_type.started(2) as rig:
        rig.kill_idle(1)
        rig.arm_start(1, point)
        try:
            rig.w.run(rig.all())
        except (WorkerLostError, WorkerStartError) as error:
            named = f"{rig.label} 1" in str(error) and "SIGKILL" in str(error)
            if point == "control_done":  # it knew all and was to be admitted to the pool
                named = named or "the workers it needs have died" in str(error)
            assert named, error
        else:
            assert point == "control_done", "nobody noticed"
        wait_until(lambda: rig.w._life.needs_start or rig.known_dead(1))
        rig.assert_works()


@act(KINDS)
def test_close_does_not_mind_a_worker_that_dies_as_it_stops(rig_type):
    with rig_type(2) as rig:
        rig.assert_works()
        pids = [rig.pid(m) for m in range(2)]
        rig.arm(1, "stopping")
    assert not any(psutil.pid_exists(pid) for pid in pids)


# ---------------------------------------------------------------- in a call
def blocks_held(w, worker):
    """Return how many blocks of a worker's are in use."""
    mem = w._session.engine.mem
    return sum(int(mem[block]) for block in Blocks(mem, worker + 1))


@pytest.mark.parametrize("point", [*UNDONE, *BLOCKS, *DONE])
@pytest.mark.parametrize("nbytes", [100, 300_000])
def test_a_call_whose_worker_dies_is_lost_or_has_its_value(point, nbytes):
    with Worker(num_sub_workers=1, values_size=1 << 20) as w:
        make = functools.partial(w.submit, np.ones, nbytes, np.uint8)
        kept = make()
        assert kept.result().sum() == nbytes
        held = blocks_held(w, 0)
        for _ in range(5):
            manager, mem = w._session.manager, w._session.engine.mem
            pid = manager.pids[0]
            arm_at(mem, int(mem[L.A_WORKERS]), pid, point)
            future = make()
            if point in DONE:
                assert future.result().sum() == nbytes
                wait_until(manager.known_dead)
                behind = make()
            else:
                behind = make()
                error = future.exception()
                assert isinstance(error, WorkerLostError)
                assert_lost(error, error.task, 0, pid)
            assert behind.result().sum() == nbytes
            del future, behind
            assert w.submit(int, 5).result() == 5
        w.run(lambda orch, args, config: None)
        assert blocks_held(w, 0) == held, "a dead worker has kept memory"
        assert kept.result().sum() == nbytes
