"""Orch thread, Scheduler and workers of one engine, and a second opinion on what may happen.

What each task waits for is worked out beside the engine, from who wrote a buffer last. Who uses the model
says what happens, and in which order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simpler_ref.jit import layout as L

from .support import (
    COMPLETED,
    CONSUMED,
    FAILED,
    FREE,
    PENDING,
    RUNNING,
    Driver,
    member,
    overwrites,
    reads,
)

FIRST_KEY = 0x1000


class Work(NamedTuple):
    """A task, and what has become of it."""

    producers: frozenset[int]
    members: int = 0  # of a group, 0 for a task of its own
    started: int = 0
    ended: tuple[bool, ...] = ()
    refused: bool = False  # a worker was told not to start it, or died over it

    def went_well(self):
        return self.ended == (True,) * max(1, self.members) and not self.refused


class AheadModel:
    """One engine and its actors. No step waits for anything."""

    def __init__(self, depth: int, sub: int, next_level: int = 0, window: int = 16):
        self.driver = Driver(depth=depth, sub=sub, next_level=next_level, window=window)
        self.pools = {L.NEXT_LEVEL: range(next_level), L.SUB: range(next_level, next_level + sub)}
        self.all = range(next_level + sub)
        self.driver.mem[L.DEFER_NS] = 0
        self.works: list[Work] = []
        self.slots: list[int] = []
        self.last_writer: dict[int, int] = {}
        self.at_work: dict[int, int] = {}  # worker → the task it has started
        self.dead: set[int] = set()
        self.cancelled = False

    # ------------------------------------------------------------ Orch thread
    def submit(self, uses: Iterable[tuple], *, kind=L.SUB, owner=-1, members=0):
        """Submit a task; `uses` are a way to use a buffer, e.g. `reads`, and the buffer's number."""
        args, producers, written = [], set(), []
        for how, key in uses:
            args.append(how(FIRST_KEY + 8 * key))
            if how is not overwrites and key in self.last_writer:
                producers.add(self.last_writer[key])
            if how is not reads:
                written.append(key)
        number = len(self.works)
        if members:
            rest = [member() for _ in range(members - 1)]
            slot = self.driver.submit_group(member(*args), *rest, kind=kind)
        else:
            slot = self.driver.submit(*args, kind=kind, owner=owner)
        self.works.append(Work(frozenset(producers), members))
        self.slots.append(slot)
        assert self.driver.id(slot) == number
        self.last_writer |= dict.fromkeys(written, number)

    def may_submit(self):
        return not self.driver.mem[L.RUN_ERROR] and not self.cancelled

    def cancel(self):
        self.cancelled = True
        self.driver.finish_run(cancel=True)

    # ------------------------------------------------------------ workers
    def task_at(self, worker):
        """Return the task that a worker is at, or None."""
        if worker in self.dead or self.driver.mailbox_state(worker)[0] != L.TASK_READY:
            return None
        return self.driver.id(self.driver.frame_word(worker, L.W_SLOT))

    def may_start(self, worker):
        """Return what the worker finds: OK, WOULD_BLOCK, or what it answers instead of starting."""
        return self.driver.may_start(worker)

    def start(self, worker):
        """Let a worker start the task it is at."""
        number = self.task_at(worker)
        work = self.works[number]
        for one in work.producers:
            assert self.works[one].went_well(), f"task {number} starts before task {one} is done"
        assert work.started < max(1, work.members), f"task {number} starts twice"
        assert not work.refused or work.members, f"task {number} starts after it was refused"
        self.works[number] = work._replace(started=work.started + 1)
        self.at_work[worker] = number

    def end_task(self, worker, error=None, outcome=L.SUCCESS):
        """Let a worker answer the task that it has started."""
        number = self.at_work.pop(worker)
        work = self.works[number]
        well = error is None and outcome == L.SUCCESS
        self.works[number] = work._replace(ended=(*work.ended, well))
        self.driver.post_done(worker, error, outcome)

    def decline(self, worker, answer):
        """Let a worker answer SKIPPED or RETURNED to the task it is at."""
        if answer == L.SKIPPED:
            self._refuse(self.task_at(worker))
        self.driver.post_done(worker, outcome=answer)

    def kill(self, worker):
        driver = self.driver
        for slot, frame in zip(driver.all_given(worker), driver.frames(worker), strict=True):
            if driver.mailbox_state(worker, frame)[0] == L.TASK_READY:  # it has not answered it
                self._refuse(driver.id(slot))
        self.dead.add(worker)
        self.at_work.pop(worker, None)
        driver.kill(worker)

    def _refuse(self, number):
        self.works[number] = self.works[number]._replace(refused=True)

    # ------------------------------------------------------------ what must hold
    def state(self, number):
        """Return the state of a task, FREE if it is gone."""
        mem, slot = self.driver.mem, self.slots[number]
        return int(mem[slot + L.S_STATE]) if mem[slot + L.S_ID] == number else L.FREE

    def given_ahead(self):
        """Return how many tasks stand in frames before they are ready."""
        given = [slot for worker in self.all for slot in self.driver.all_given(worker)]
        return sum(self.driver.state(slot) == PENDING for slot in given)

    def check_order(self):
        """A task is done after those that it waits for, and not before."""
        states = [self.state(number) for number in range(len(self.works))]
        for number, work in enumerate(self.works):
            if states[number] in (RUNNING, COMPLETED):
                before = {states[one] for one in work.producers}
                assert before <= {COMPLETED, CONSUMED, FREE}, f"task {number} comes too early"
                assert self.driver.fanin(self.slots[number]) == 0, f"task {number} waits"

    def check_ends(self):
        """Each task has run once and well if all that it waits for has; the others have failed."""
        well = [work.went_well() for work in self.works]
        mem = self.driver.mem
        assert (mem[L.COMPLETED_COUNT], mem[L.FAILED_COUNT]) == (
            well.count(True),
            well.count(False),
        )
        for number, work in enumerate(self.works):
            fate = number, work, self.state(number)
            end = COMPLETED if well[number] else FAILED
            assert fate[-1] in (end, CONSUMED, FREE), fate
            if not all(well[one] for one in work.producers):
                assert not work.started, fate
            elif not self.dead and not self.cancelled and not work.members:
                assert work.started == 1, fate

    def finish(self):
        """Let everybody go on until nothing can; then all is as it was before."""
        for _ in range(100_000):
            moved = self.driver.run_pass()
            busy = [worker for worker in self.all if self.task_at(worker) is not None]
            if not busy and not moved:
                break
            for worker in busy:
                self.work(worker)
        self.check_ends()
        self.check_empty()

    def check_empty(self):
        """When a run has ended, the engine is as it was before: nothing is left in any place."""
        driver, mem = self.driver, self.driver.mem
        if not self.cancelled:
            driver.finish_run()
        driver.settle()
        driver.reclaim()
        assert driver.live() == 0, f"{driver.live()} tasks are never let go"
        left = (L.BUSY, L.UNCOLLECTED, L.RETIRING, L.CONSUMED_HEAD, L.AFFINITY, L.AFFINITY + 1)
        assert [int(mem[word]) for word in left] == [0] * len(left)
        assert driver.ready_queue(L.SUB) == driver.ready_queue(L.NEXT_LEVEL) == []
        if not self.cancelled:  # hints at tasks that were cancelled may stay
            assert all(
                mem[L.CANDIDATES_HEAD + kind] == mem[L.CANDIDATES_TAIL + kind] for kind in range(2)
            )
        for worker in self.all:
            assert driver.given(worker) == L.NONE
            if worker not in self.dead:
                self._check_idle(worker)

    def _check_idle(self, worker):
        """A worker waits for the frame that is filled next, and all that were filled are answered."""
        driver = self.driver
        at = driver.word(worker, L.W_AT)
        assert (driver.word(worker, L.W_HEAD), driver.word(worker, L.W_TAIL)) == (at, at)
        assert self.task_at(worker) is None
        for frame in range(int(driver.mem[L.DEPTH])):
            filled = driver.frame_word(worker, L.W_FILLED, frame)
            assert driver.frame_word(worker, L.W_ENDED, frame) >> 2 == filled, (worker, frame)
            assert driver.frame_word(worker, L.W_SLOT, frame) == L.NONE
