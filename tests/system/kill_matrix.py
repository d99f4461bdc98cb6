"""Kills one kind of worker at every fail point: a program, run by test_kill_matrix.py.

    SIMPLER_REF_FAIL_POINTS=1 python -m tests.system.kill_matrix KIND [REPEATS]

With more than one repeat there are more cells: all with deeper mailboxes, and all of compiled leaves.

It prints a line for each cell of the matrix, ``ok CELL`` or ``FAILED CELL: why``. Each cell has Workers
of its own, and must leave no process, thread, descriptor or shared memory behind.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import mmap
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np
import psutil
from numba import int64

from simpler_ref import (
    CallableError,
    TaskArgs,
    TaskError,
    Worker,
    WorkerLostError,
    WorkerStartError,
    leaf,
)
from simpler_ref import TensorArgType as T
from simpler_ref.jit import fail_points
from simpler_ref.jit import layout as L
from simpler_ref.jit.entries import entries
from simpler_ref.workers.kinds import NestedWorker, WorkerKind

from ..segments import segments

CELL_DEADLINE_S = 60.0
"""A guard against hangs: the program dumps its stacks and ends when a cell takes longer."""

KINDS = ("sub_worker", "leaf", "custom_worker", "child_worker", "sub_below", "chip_worker")

UNDONE = ("received", "calling", "called", "before_done")
"""Points at which a task has not been answered."""
DONE = ("done", "parked")
"""Points at which it has."""
AMONG = {"called": 0, "before_done": 0, "done": 1, "received": 1, "calling": 1}
"""Points that a worker passes as it ends its first task, and which of its tasks is lost there."""
STARTING = ("before_ready", "ready")
CONTROL = ("control", "before_control_done", "control_done")

NUMBER = {name: number for number, name in fail_points.FAIL_NAMES.items()}


def shared_words(count: int) -> np.ndarray:
    """Return zeros that every process forked from here on shares."""
    return np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)


def wait_until(condition: Callable[[], object]) -> None:
    while not condition():  # the cell's deadline is the guard
        time.sleep(0.001)


def arm_at(mem, start: int, pid: int, point: str | int) -> None:
    """Let a worker die at a point; it sleeps now, so that it has the next task before it parks again."""
    process = psutil.Process(pid)
    wait_until(lambda: mem[start + L.W_PARKED] and process.status() == psutil.STATUS_SLEEPING)
    mem[start + L.W_FAIL] = NUMBER.get(point, point)


def mark(args):
    args.tensor(0).numpy()[args.scalar(0)] += 1


def hold(args):
    """Say that the task has begun, and wait until it may go on."""
    words = args.tensor(0).numpy()
    words[HELD] = 1
    wait_until(lambda: words[GO])
    words[0] += 1


HELD, GO = 6, 7
"""Words of a row, beside the one that is marked."""


def to(marks, index, tag=T.NO_DEP) -> TaskArgs:
    """Return arguments for `mark`: a row of its own, for a chip copies what it is given."""
    args = TaskArgs()
    args.add_tensor(marks[index], tag)
    args.add_scalar(0)
    return args


class Refused(AssertionError):
    """A cell did not do what it must."""


def expect(kind, function, *words) -> BaseException:
    """Call a function that must raise; look for words in the message."""
    try:
        function()
    except kind as error:
        for word in words:
            if not re.search(word, str(error), re.DOTALL):
                raise Refused(f"{word!r} is not in {type(error).__name__}: {error}") from error
        return error
    raise Refused(f"no {kind}")


# ---------------------------------------------------------------- the kinds
class Rig:
    """A Worker with a pool of one kind, whose members can be told where to die.

    `first` is the index of the pool's first worker among all workers of `w`.
    """

    label: str
    first = 0
    pinned = True
    depth = 1

    def __init__(self, members: int):
        self.members = members
        self.rows = shared_words(64).reshape(8, 8)
        self.marks = self.rows[:, 0]
        self.w = self.make(members)
        self.w.init()
        self.task = self.w.register(self.old())
        self.hold = self.w.register(self.waiting()) if self.depth > 1 else None
        self.late_target = self.late()
        self.late_handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.w.close()

    # what differs
    def make(self, members: int) -> Worker:
        raise NotImplementedError

    def old(self):
        return mark

    def late(self):
        return lambda args: mark(args)

    def waiting(self):
        return hold

    def submit(self, orch, handle, member: int, args: TaskArgs) -> None:
        orch.submit_next_level(handle, args, worker=member)

    def group(self, orch, handle, args: list[TaskArgs]) -> None:
        orch.submit_next_level_group(handle, args, workers=list(range(len(args))))

    # what does not
    @property
    def mem(self):
        return self.w._session.engine.mem

    def words_of(self, member: int) -> int:
        return int(self.mem[L.A_WORKERS]) + (self.first + member) * int(self.mem[L.WORKER_STRIDE])

    def arm(self, member: int, point: str) -> None:
        arm_at(self.mem, self.words_of(member), self.pid(member), point)

    def arm_start(self, member: int, point: str) -> None:
        self.mem[L.START_FAIL] = self.first + member + 1 << 8 | NUMBER[point]

    def pid(self, member: int) -> int:
        return self.w._session.manager.pids[self.first + member]

    def known_dead(self, member: int) -> bool:
        manager = self.w._session.manager
        return manager is None or self.first + member in manager.dead or manager.lost

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
            done = self.marks[: self.members] - before
            if not (done == 1).all():
                raise Refused(f"the next run did {done.tolist()} instead of ones")
        mem = self.mem
        if mem[L.LIVE] or mem[L.BUSY] or mem[L.SCOPE_DEPTH] or mem[L.NEXT_TASK_ID]:
            raise Refused("the engine is not as empty as it was")
        for member in range(self.members):
            w = self.words_of(member)
            if mem[w + L.W_USABLE] != L.ALIVE or mem[w + L.W_CLAIM] or mem[w + L.W_MEMBER]:
                raise Refused(f"member {member} is not free")

    def lost_words(self, member: int, pid: int) -> list[str]:
        place = rf"level {self.w.level} {self.label} {member}\b.*\(pid {pid}\), task 0 \(.*\)"
        return [place, "killed by SIGKILL before the task was done"]


class SubRig(Rig):
    label = "sub_worker"
    pinned = False

    def make(self, members):
        return Worker(level=3, num_sub_workers=members, mailbox_depth=self.depth)

    def submit(self, orch, handle, member, args):
        orch.submit_sub(handle, args)

    def group(self, orch, handle, args):
        orch.submit_sub_group(handle, args)


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


class CustomRig(Rig):
    label = "custom_worker"

    def make(self, members):
        self.known = shared_words(8)
        w = Worker(level=3, mailbox_depth=self.depth)
        for member in range(members):
            w.add_next_level(Counting(self.known, member))
        return w


class NestedRig(Rig):
    """A level 4 Worker over level 3 Workers with a sub worker each; the Workers die."""

    label = "child_worker"

    def make(self, members):
        w = Worker(level=4, mailbox_depth=self.depth)
        self.inner = []
        for _ in range(members):
            inner = Worker(level=3, num_sub_workers=1)
            w.add_worker(inner)
            self.inner.append(inner)
        self.below = [inner.register(mark) for inner in self.inner]
        return w

    def old(self):
        below = self.below

        def orchestrate(orch, args, config):
            mine = next(h for h in below if orch._worker._registry.is_live(h))
            orch.submit_sub(mine, to([args.tensor(0)], 0))

        return orchestrate

    def late(self):
        def late(orch, args, config):
            args.tensor(0).numpy()[args.scalar(0)] += 1

        return late

    def waiting(self):
        return lambda orch, args, config: hold(args)


class Trapped(NestedWorker):
    """A nested Worker that can have one of its own workers die while it starts."""

    def __init__(self, inner, trap):
        super().__init__(inner)
        self.trap = trap

    def start(self, mailbox):
        self.inner._initialise()
        self.inner._session.engine.mem[L.START_FAIL] = self.trap[0]
        self.trap[0] = 0
        super().start(mailbox)


class BelowRig(Rig):
    """A level 4 Worker over one level 3 Worker, whose sub workers die."""

    label = "child_worker"

    def make(self, members):
        self.trap = shared_words(2)  # what START_FAIL shall be below; the victim's pid
        self.inner = Worker(level=3, num_sub_workers=members)
        self.handle = self.inner.register(mark)
        w = Worker(level=4)
        w.add_next_level(Trapped(self.inner, self.trap))
        return w

    def words_of(self, member):
        return int(self.mem[L.A_WORKERS])

    def old(self):
        inner, handle, subs = self.inner, self.handle, self.members
        state = {}

        def orchestrate(orch, args, config):
            """Scalars: what to do, to which sub worker, with which number."""
            marks = args.tensor(0).numpy()
            what, sub, point = (args.scalar(i) for i in range(3))
            mem = orch._mem
            manager = inner._session.manager
            before, marks[7, 7] = marks[7, 7], manager.pids[sub]
            if what == 1:  # let it die at a point of a task
                start = int(mem[L.A_WORKERS]) + sub * int(mem[L.WORKER_STRIDE])
                arm_at(mem, start, manager.pids[sub], point)
            elif what == 2:  # kill it, and let its successor die as it starts
                os.kill(manager.pids[sub], signal.SIGKILL)
                wait_until(lambda: sub in manager.dead)
                mem[L.START_FAIL] = sub + 1 << 8 | point
                return
            elif what == 3:  # let it die as a callable is registered
                start = int(mem[L.A_WORKERS]) + sub * int(mem[L.WORKER_STRIDE])
                arm_at(mem, start, manager.pids[sub], point)
                try:
                    state["late"] = inner.register(lambda args: mark(args))
                finally:
                    wait_until(lambda: sub in manager.dead)
                return
            elif what == 4:  # wait until the death of the last one is known
                wait_until(lambda: sub in manager.dead or manager.pids[sub] != before)
                return
            for handle_ in (handle, state.get("late") if what == 5 else None):
                if handle_ is not None:
                    members = [to(marks, m) for m in range(subs)]
                    if subs == 1:
                        orch.submit_sub(handle_, members[0])
                    else:
                        orch.submit_sub_group(handle_, members)

        return orchestrate

    def late(self):
        def late(orch, args, config):
            args.tensor(0).numpy()[args.scalar(0)] += 1

        return late

    def ask(self, what=0, sub=0, point=0):
        def graph(orch, _args, _config):
            args = TaskArgs()
            args.add_tensor(self.rows, T.NO_DEP)
            for value in (what, sub, point):
                args.add_scalar(value)
            orch.submit_next_level(self.task, args)

        return graph

    def assert_works(self):
        before = self.marks[: self.members].copy()
        self.w.run(self.ask())
        done = self.marks[: self.members] - before
        if not (done == 1).all():
            raise Refused(f"the next run did {done.tolist()} instead of ones")


class ChipRig(Rig):
    label = "chip_worker"

    def make(self, members):
        return Worker(level=3, device_ids=list(range(members)), mailbox_depth=self.depth)

    def old(self):
        return chip_callable("old")

    def late(self):
        return chip_callable("late")


@functools.cache
def chip_callable(name: str):
    from simpler_ref import task_interface as t
    from simpler_ref.native_chip import ChipCallable, CoreCallable, compile_kernel

    source = """
        #include "simpler_kernel.h"
        int32_t simpler_kernel(const SimplerCoreArgs *args)
        {
            if (args->block_idx == 0)
                ((int64_t *)args->tensors[0].data)[args->scalars[0]] += 1;
            return 0;
        }
    """
    core = CoreCallable.build([t.ArgDirection.INOUT, t.ArgDirection.SCALAR], compile_kernel(source))
    return ChipCallable.from_kernel(core, config_name=name)


RIGS = {
    "sub_worker": SubRig,
    "leaf": LeafRig,
    "custom_worker": CustomRig,
    "child_worker": NestedRig,
    "chip_worker": ChipRig,
}


def deeper(rig_type: type[Rig], depth: int) -> type[Rig]:
    """Return the same kind of rig, whose workers can be given several tasks at once."""
    return type(f"{rig_type.__name__}{depth}", (rig_type,), {"depth": depth})


# ---------------------------------------------------------------- the cells
def dies_in_a_task(rig_type, point):
    """A task whose worker dies before its answer is lost, with all that names it."""
    with rig_type(2 if rig_type.pinned else 1) as rig:
        victim = rig.members - 1
        rig.w.start()
        rig.register_late()
        pid = rig.pid(victim)
        rig.arm(victim, point)
        words = rig.lost_words(victim, pid)
        error = expect(WorkerLostError, lambda: rig.w.run(rig.one(victim)), *words)
        assert_names(error, rig.first + victim, pid)
        if not rig.known_dead(victim):
            raise Refused("the error came before the death was known")
        rig.assert_works()
        if rig.pid(victim) == pid:
            raise Refused("nobody took its place")


def assert_names(error, worker, pid):
    found = (error.task, error.worker, error.pid, error.status)
    if found != (0, worker, pid, -signal.SIGKILL):
        raise Refused(f"task, worker, pid, status are {found}")


def dies_after_a_task(rig_type, point):
    """A task that was answered is done, whatever becomes of its worker."""
    with rig_type(2 if rig_type.pinned else 1) as rig:
        victim = rig.members - 1
        rig.w.start()
        rig.register_late()
        pid = rig.pid(victim)
        rig.arm(victim, point)
        rig.w.run(rig.one(victim))
        if rig.marks[victim] != 1:
            raise Refused("the task is not done")
        wait_until(lambda: rig.known_dead(victim))
        rig.assert_works()
        if rig.pid(victim) == pid:
            raise Refused("nobody took its place")


def dies_among_its_tasks(rig_type, point, lost):
    """Of the tasks a worker was given, those it had ended are done, and all others are lost."""
    with rig_type(1) as rig:
        rig.w.start()
        rig.register_late()
        pid = rig.pid(0)

        def graph(orch, _args, _config):
            rig.submit(orch, rig.hold, 0, to(rig.rows, 0))
            for row in (1, 2):
                rig.submit(orch, rig.task, 0, to(rig.rows, row))
            start = rig.words_of(0)
            wait_until(lambda: rig.rows[0, HELD] and rig.mem[start + L.W_GIVEN] == 3)
            rig.mem[start + L.W_FAIL] = NUMBER[point]
            rig.rows[0, GO] = 1

        words = [rf"{rig.label} 0\b.*\(pid {pid}\), task {lost} \(.*\)", "killed by SIGKILL"]
        error = expect(WorkerLostError, lambda: rig.w.run(graph), *words)
        found = (error.task, error.worker, error.pid, error.status)
        if found != (lost, rig.first, pid, -signal.SIGKILL):
            raise Refused(f"task, worker, pid, status are {found}")
        if rig.marks[:3].tolist() != [1, 0, 0]:
            raise Refused(f"the tasks did {rig.marks[:3].tolist()}")
        rig.assert_works()
        if rig.pid(0) == pid:
            raise Refused("nobody took its place")


def dies_as_it_waits_ahead(rig_type):
    """A worker dies that was given a task ahead of time, while what that waits for still runs."""
    with rig_type(2) as rig:
        rig.mem[L.SPIN_NS] = 10**10  # a worker that sleeps is given no such task
        rig.w.start()
        rig.register_late()
        victims = []

        def graph(orch, _args, _config):
            rig.submit(orch, rig.hold, 0, to(rig.rows, 0, T.INOUT))
            wait_until(lambda: rig.rows[0, HELD])
            victims.append(int(rig.mem[rig.words_of(0) + L.W_GIVEN] != 0))
            rig.mem[rig.words_of(victims[0]) + L.W_FAIL] = NUMBER["waiting"]
            for _ in range(2):
                rig.submit(orch, rig.task, 0, to(rig.rows, 0, T.INPUT))
            wait_until(lambda: rig.known_dead(victims[0]))
            rig.rows[0, GO] = 1

        error = expect(WorkerLostError, lambda: rig.w.run(graph), "task 2", "killed by SIGKILL")
        if (error.task, error.worker) != (2, rig.first + victims[0]):
            raise Refused(f"task {error.task} of worker {error.worker}")
        if rig.marks[0] != 2:
            raise Refused(f"the tasks did {rig.marks[0]}")
        rig.assert_works()


def dies_as_it_wakes(rig_type):
    """A worker dies when it has cleared the park word and not yet woken the Scheduler thread.

    The orchestration function stays away, so nobody else runs the pass that what waits needs.
    """
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
            if not rig.known_dead(victim):
                raise Refused("it did not wake anybody")

        rig.w.run(graph)
        rig.assert_works()


def dies_in_a_group(rig_type, point):
    """One member's worker dies: one error, which names it; the others are done or skipped."""
    with rig_type(3) as rig:
        rig.w.start()
        rig.register_late()
        victim, pids = 1, [rig.pid(m) for m in range(3)]
        rig.arm(victim, point)
        if point in UNDONE:
            words = [
                f"{rig.label} {victim}.*{pids[victim]}",
                r"task 0 \(.*\), member \d",
                "SIGKILL",
            ]
            error = expect(WorkerLostError, lambda: rig.w.run(rig.all()), *words)
            assert_names(error, rig.first + victim, pids[victim])
        else:
            rig.w.run(rig.all())
            if rig.marks[:3].tolist() != [1, 1, 1]:
                raise Refused(f"the members did {rig.marks[:3].tolist()}")
            wait_until(lambda: rig.known_dead(victim))
        if rig.marks[:3].max() > 1:
            raise Refused("a member ran twice")
        rig.assert_works()
        now = [rig.pid(m) for m in range(3)]
        if [a == b for a, b in zip(now, pids, strict=True)] != [True, False, True]:
            raise Refused(f"pids {pids} became {now}")


def dies_as_it_starts(rig_type, point, again):
    """A start that fails says so, and the next one works; `again`: the start of a successor."""
    with rig_type(2) as rig:
        if again:
            rig.w.start()
            rig.register_late()
            rig.kill_idle(1)
        rig.arm_start(1, point)
        try:
            rig.w.run(rig.all())
        except WorkerStartError as error:
            for word in (f"{rig.label} 1", r"\(pid \d+\)", "killed by SIGKILL"):
                if not re.search(word, str(error)):
                    raise Refused(f"{word!r} is not in {error}") from error
        except WorkerLostError as error:
            if point == "before_ready":
                raise Refused("it was never ready, and had a task") from error
        else:
            if point == "before_ready":
                raise Refused("nobody noticed")
        wait_until(lambda: rig.w._needs_start or rig.known_dead(1) or point == "ready")
        while True:
            try:
                rig.assert_works()
                break
            except WorkerLostError:  # it was ready, and its death not known yet
                if point != "ready":
                    raise


def dies_in_a_control_request(rig_type, point, victim):
    """A registration is all or nothing."""
    with rig_type(3) as rig:
        rig.w.start()
        pid = rig.pid(victim)
        rig.arm(victim, point)
        if point == "control_done":  # it had answered
            rig.register_late()
        else:
            error = expect(
                CallableError,
                rig.register_late,
                "REGISTER_PARTIAL_FAILURE",
                f"pid {pid}",
                "SIGKILL",
            )
            if not isinstance(error.__cause__, WorkerLostError):
                raise Refused(f"the cause is {error.__cause__!r}")
            if isinstance(rig, CustomRig):
                kept = 1 if rig.hold is None else 2
                left = [m for m in range(3) if m != victim and rig.known[m] != kept]
                if left:
                    raise Refused(f"the members {left} did not forget it: {rig.known[:3]}")
        wait_until(lambda: rig.known_dead(victim))
        rig.register_late()  # with those that live
        rig.assert_works()
        if rig.pid(victim) == pid:
            raise Refused("nobody took its place")


def dies_catching_up(rig_type, point):
    """A successor dies while it is told of what was registered since the start."""
    with rig_type(2) as rig:
        rig.w.start()
        rig.register_late()
        rig.kill_idle(1)
        rig.arm_start(1, point)
        try:
            rig.w.run(rig.all())
        except (WorkerLostError, WorkerStartError) as error:
            named = f"{rig.label} 1" in str(error) and "SIGKILL" in str(error)
            if point == "control_done":  # it knew all and was to be admitted to the pool
                named = named or "the workers it needs have died" in str(error)
            if not named:
                raise Refused(f"the error does not name it: {error}") from error
        else:
            if point != "control_done":
                raise Refused("nobody noticed")
        wait_until(lambda: rig.w._needs_start or rig.known_dead(1))
        rig.assert_works()


def dies_as_it_stops(rig_type):
    """Close does not mind."""
    with rig_type(2) as rig:
        rig.assert_works()
        pids = [rig.pid(m) for m in range(2)]
        rig.arm(1, "stopping")
    if any(psutil.pid_exists(pid) for pid in pids):
        raise Refused("somebody is still there")


def closes_in_a_failure(rig_type, point):
    """Close comes while a death is on its way to be known."""
    with rig_type(2 if rig_type.pinned else 1) as rig:
        victim = rig.members - 1
        rig.w.start()
        rig.arm(victim, point)
        try:
            rig.w.run(rig.one(victim))
        except WorkerLostError:
            if point in DONE:
                raise


# below: through the orchestration function of the Worker in the middle
def below_in_a_task(point, subs):
    with BelowRig(subs) as rig:
        rig.w.run(rig.ask())
        victim = subs - 1
        chain = [
            r"level 4 child_worker 0 level=3 \(pid \d+\), task 0",
            rf": level 3 sub_worker {victim} \(pid \d+\), task 0 \(mark\)",
        ]
        run = lambda: rig.w.run(rig.ask(1, victim, NUMBER[point]))  # noqa: E731
        before = rig.marks[:subs].copy()
        if point in UNDONE:
            error = expect(TaskError, run, *chain, "killed by SIGKILL before the task was done")
            if isinstance(error, WorkerLostError) or f"pid {rig.rows[7, 7]}" not in str(error):
                raise Refused(f"{error!r} does not name process {rig.rows[7, 7]}")
        else:
            run()
            if (rig.marks[:subs] - before).tolist() != [1] * subs:
                raise Refused("the tasks are not done")
            rig.w.run(rig.ask(4, victim))
        rig.assert_works()


def below_as_it_starts(point, again):
    with BelowRig(2) as rig:
        if again:
            rig.w.run(rig.ask())
            rig.w.run(rig.ask(2, 1, NUMBER[point]))
        else:
            rig.trap[0] = 2 << 8 | NUMBER[point]
        chain = [r"child_worker 0 level=3", r"WorkerStartError: sub_worker 1", "SIGKILL"]
        try:
            rig.w.run(rig.ask())
        except WorkerStartError as error:
            if again:
                raise
            if not all(re.search(word, str(error), re.DOTALL) for word in chain):
                raise Refused(f"the chain is broken: {error}") from error
        except TaskError as error:
            if point == "before_ready" and not all(re.search(w, str(error)) for w in chain):
                raise Refused(f"the chain is broken: {error}") from error
        else:
            if point == "before_ready":
                raise Refused("nobody noticed")
        while True:
            try:
                rig.assert_works()
                break
            except TaskError:  # it was ready, and its death not known yet
                if point != "ready":
                    raise


def below_in_a_control_request(point):
    with BelowRig(2) as rig:
        rig.w.run(rig.ask())
        run = lambda: rig.w.run(rig.ask(3, 1, NUMBER[point]))  # noqa: E731
        if point == "control_done":
            run()
        else:
            expect(TaskError, run, "child_worker 0", "REGISTER_PARTIAL_FAILURE", "SIGKILL")
        rig.assert_works()
        if point == "control_done":
            before = rig.marks[:2].copy()
            rig.w.run(rig.ask(5))
            if (rig.marks[:2] - before).tolist() != [2, 2]:
                raise Refused("the successor does not know what was registered")


def below_as_it_stops():
    with BelowRig(2) as rig:
        rig.w.run(rig.ask(1, 1, NUMBER["stopping"]))
        rig.assert_works()


def cells(kind: str, repeats: int = 1) -> dict[str, Callable[[], None]]:
    """Return the cells of one kind of worker, by name; more of them if each is to be repeated."""
    part = functools.partial
    if kind == "sub_below":
        return cells_below()
    rig = RIGS[kind]
    found = all_cells(rig)
    if kind == "leaf" and repeats == 1:  # what a leaf changes is how a task is run
        found = {name: cell for name, cell in found.items() if name.startswith("task-")}
    if repeats > 1:
        found |= {f"deep-{name}": cell for name, cell in all_cells(deeper(rig, 2)).items()}
    if kind != "chip_worker":  # whose kernels cannot wait for the test
        for point, lost in AMONG.items():
            found[f"among-{point}"] = part(dies_among_its_tasks, deeper(rig, 3), point, lost)
    if not rig.pinned:
        found["ahead-waiting"] = part(dies_as_it_waits_ahead, deeper(rig, 3))
        found["task-waking"] = part(dies_as_it_wakes, rig)
    return found


def cells_below() -> dict[str, Callable[[], None]]:
    """Return the cells of the workers of a Worker in the middle."""
    part = functools.partial
    found: dict[str, Callable[[], None]] = {}
    for point in (*UNDONE, *DONE):
        found[f"task-{point}"] = part(below_in_a_task, point, 1)
        found[f"group-{point}"] = part(below_in_a_task, point, 3)
    for point in STARTING:
        found[f"start-{point}"] = part(below_as_it_starts, point, False)
        found[f"restart-{point}"] = part(below_as_it_starts, point, True)
    for point in CONTROL:
        found[f"register-{point}"] = part(below_in_a_control_request, point)
    found["close-stopping"] = below_as_it_stops
    return found


def all_cells(rig: type[Rig]) -> dict[str, Callable[[], None]]:
    """Return the cells of a pool."""
    part = functools.partial
    found: dict[str, Callable[[], None]] = {}
    for point in UNDONE:
        found[f"task-{point}"] = part(dies_in_a_task, rig, point)
    for point in DONE:
        found[f"task-{point}"] = part(dies_after_a_task, rig, point)
    for point in (*UNDONE, *DONE):
        found[f"group-{point}"] = part(dies_in_a_group, rig, point)
        found[f"close-{point}"] = part(closes_in_a_failure, rig, point)
    for point in STARTING:
        found[f"start-{point}"] = part(dies_as_it_starts, rig, point, False)
        found[f"restart-{point}"] = part(dies_as_it_starts, rig, point, True)
    for point in CONTROL:
        found[f"catch_up-{point}"] = part(dies_catching_up, rig, point)
        for victim in (0, 1, 2):
            found[f"register{victim}-{point}"] = part(dies_in_a_control_request, rig, point, victim)
    found["close-stopping"] = part(dies_as_it_stops, rig)
    return found


# ---------------------------------------------------------------- the program
def held() -> dict[str, set]:
    fds = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            fds.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except OSError:  # that of the listing
            continue
    return {
        "processes": {p.pid for p in psutil.Process().children(recursive=True)},
        "descriptors": fds,
        "threads": {t.name for t in threading.enumerate()},
        "shared memory": segments(),
    }


def run_cell(cell: Callable[[], None]) -> str:
    """Run one cell; return what is wrong, or nothing."""
    before = held()
    faulthandler.dump_traceback_later(CELL_DEADLINE_S, exit=True)
    try:
        cell()
    except BaseException:
        return traceback.format_exc().replace("\n", "\\n")
    finally:
        faulthandler.cancel_dump_traceback_later()
    for attempt in range(500):
        left = {what: now - before[what] for what, now in held().items() if now - before[what]}
        if not left:
            return ""
        if attempt == 0:
            gc.collect()
        time.sleep(0.01)
    return f"it left behind {left}"


def main(kind: str, repeats: int) -> int:
    assert fail_points.FAIL_POINTS, "set SIMPLER_REF_FAIL_POINTS=1"
    failures = 0
    entries()  # compiled outside of every deadline
    if kind == "chip_worker":
        chip_callable("old"), chip_callable("late")
    for name, cell in cells(kind, repeats).items():
        print(f"cell {name}", flush=True)
        for repeat in range(repeats):  # noqa: B007
            wrong = run_cell(cell)
            if wrong:
                break
        failures += bool(wrong)
        print(f"FAILED {name}: (time {repeat + 1}) {wrong}" if wrong else f"ok {name}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1))
