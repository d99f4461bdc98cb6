"""Tasks that are given ahead of time: whatever the workers do, and in whatever order, none starts early.

A test plays Orch thread, Scheduler and workers. What each task waits for is worked out beside the engine
from who wrote a buffer last.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from tests.support import (
    COMPLETED,
    CONSUMED,
    FAILED,
    PENDING,
    RUNNING,
    Driver,
    member,
    overwrites,
    reads,
    updates,
)

FIRST_KEY = 0x1000


@dataclass
class Work:
    """A task, and what has become of it."""

    producers: set[int]
    members: int = 0  # of a group, 0 for a task of its own
    started: int = 0
    ended: list[bool] = field(default_factory=list)
    refused: bool = False  # a worker was told not to start it, or died over it

    def went_well(self):
        return self.ended == [True] * max(1, self.members)


class Play:
    """One engine, all its actors, and a second opinion on what may happen."""

    def __init__(self, seed: int, depth: int):
        self.rng = random.Random(seed)
        self.workers = self.rng.randint(1, 3)
        extra = self.rng.randint(0, 1)
        self.driver = Driver(depth=depth, sub=self.workers, next_level=extra, window=512)
        self.pools = {L.NEXT_LEVEL: range(extra), L.SUB: range(extra, extra + self.workers)}
        self.all = range(extra + self.workers)
        self.speeds = [self.rng.choice([1, 1, 5, 20]) for _ in self.all]
        self.patience = self.rng.choice([0.02, 0.1, 0.3])
        self.driver.mem[L.HOLD_NS] = 0
        self.works: list[Work] = []
        self.slots: list[int] = []
        self.last_writer: dict[int, int] = {}
        self.at_work: dict[int, int] = {}  # worker → the task it has started
        self.dead: set[int] = set()
        self.cancelled = False
        self.ahead = 0

    # ------------------------------------------------------------ Orch thread
    def submit(self):
        if self.driver.mem[L.RUN_ERROR] or self.cancelled or len(self.works) == 400:
            return
        rng = self.rng
        keys = rng.sample(range(6), rng.randint(1, 3))
        args, producers, written = [], set(), []
        for key in keys:
            how = rng.choice([reads, reads, updates, overwrites])
            args.append(how(FIRST_KEY + 8 * key))
            if how is not overwrites and key in self.last_writer:
                producers.add(self.last_writer[key])
            if how is not reads:
                written.append(key)
        kind = rng.choice([k for k, pool in self.pools.items() if pool])
        pool = self.pools[kind]
        number = len(self.works)
        if rng.random() < 0.1:
            count = rng.randint(1, len(pool))
            rest = [member() for _ in range(count - 1)]
            slot = self.driver.submit_group(member(*args), *rest, kind=kind)
            self.works.append(Work(producers, members=count))
        else:
            owner = rng.choice(pool) if rng.random() < 0.2 else -1
            slot = self.driver.submit(*args, kind=kind, owner=owner)
            self.works.append(Work(producers))
        self.slots.append(slot)
        assert self.driver.id(slot) == number
        for key in written:
            self.last_writer[key] = number

    def pass_(self):
        if self.rng.random() < 0.2:
            self.driver.mem[L.AHEAD_AFTER] = 0  # it need not wait before it tries again
        self.driver.run_pass()
        for worker in self.all:
            self.ahead += sum(
                self.driver.state(s) == PENDING for s in self.driver.all_given(worker)
            )
        if not self.cancelled:
            self.check_order()

    def check_order(self):
        """A task is done after those that it waits for, and not before."""
        states = [self.driver.state(slot) for slot in self.slots]
        for number, work in enumerate(self.works):
            if states[number] in (RUNNING, COMPLETED):
                assert {states[one] for one in work.producers} <= {COMPLETED, CONSUMED}, number
                assert self.driver.fanin(self.slots[number]) == 0

    # ------------------------------------------------------------ workers
    def task_at(self, worker):
        if worker in self.dead or self.driver.mailbox_state(worker)[0] != L.TASK_READY:
            return None
        return self.driver.id(self.driver.frame_word(worker, L.W_SLOT))

    def work(self, worker):
        """Let a worker take its next step: start what it is at, answer it, or wait."""
        number = self.task_at(worker)
        if number is None:
            return
        work = self.works[number]
        if worker in self.at_work:
            well = self.rng.random() > 0.02
            del self.at_work[worker]
            work.ended.append(well)
            self.driver.post_done(worker, None if well else ValueError(f"task {number}"))
            return
        turn = self.driver.x.may_start(self.driver.mem, worker)
        if turn == L.OK:
            for one in work.producers:
                assert self.works[one].went_well(), (
                    f"task {number} starts before task {one} is done"
                )
            work.started += 1
            assert work.started <= max(1, work.members), f"task {number} starts twice"
            assert not work.refused or work.members
            self.at_work[worker] = number
        elif turn == L.SKIPPED:
            work.refused = True
            self.driver.post_done(worker, outcome=L.SKIPPED)
        elif turn == L.GIVEN_BACK or self.rng.random() < self.patience:
            self.driver.post_done(worker, outcome=L.GIVEN_BACK)

    def kill(self, worker):
        if worker in self.dead:
            return
        driver = self.driver
        for slot, frame in zip(driver.all_given(worker), driver.frames(worker), strict=True):
            if driver.mailbox_state(worker, frame)[0] == L.TASK_READY:  # it has not answered it
                self.works[driver.id(slot)].refused = True
        self.dead.add(worker)
        self.at_work.pop(worker, None)
        self.driver.kill(worker)

    def cancel(self):
        if not self.cancelled:
            self.cancelled = True
            self.driver.finish_run(cancel=True)

    # ------------------------------------------------------------ all of it
    def play(self, steps: int):
        odds = [("submit", 6), ("pass", 5), ("work", 12)]
        if self.rng.random() < 0.2:
            odds.append(("kill", 0.05))
        if self.rng.random() < 0.2:
            odds.append(("cancel", 0.1))
        names, weights = zip(*odds, strict=True)
        for step in self.rng.choices(names, weights, k=steps):
            if step == "submit":
                self.submit()
            elif step == "pass":
                self.pass_()
            elif step == "cancel":
                self.cancel()
            else:
                [worker] = self.rng.choices(self.all, self.speeds)
                self.work(worker) if step == "work" else self.kill(worker)
        self.finish()

    def finish(self):
        driver = self.driver
        for _ in range(100_000):
            moved = driver.run_pass()
            busy = [w for w in self.all if self.task_at(w) is not None]
            if not busy and not moved:
                break
            for worker in busy:
                self.work(worker)
        assert [driver.given(w) for w in self.all] == [L.NONE] * len(self.all)
        self.check_ends()
        if not self.cancelled:
            driver.finish_run()
        driver.settle()
        driver.reclaim()
        assert driver.live() == 0
        driver.close()

    def check_ends(self):
        """Each task has run once and well if all that it waits for has; the others have failed."""
        for number, (work, slot) in enumerate(zip(self.works, self.slots, strict=True)):
            if self.cancelled:  # the scope has ended: what is done is gone
                continue
            state = self.driver.state(slot)
            if work.went_well() and not work.refused:
                assert state in (COMPLETED, CONSUMED), (number, work, state)
            elif not self.dead or work.ended.count(False):
                assert state == FAILED, (number, work, state)
            if all(self.works[one].went_well() for one in work.producers) and not self.dead:
                assert work.started == max(1, work.members) or work.members, (number, work)
            elif work.producers and not self.dead:
                assert not work.started, (number, work)


@pytest.mark.parametrize("depth", [2, 3, 6])
@given(seed=st.integers(0, 10**9))
def test_no_task_that_is_given_ahead_starts_early_twice_or_never(depth, seed):
    Play(seed, depth).play(1000)


def test_the_plays_are_about_tasks_given_ahead():
    plays = [Play(seed, 4) for seed in range(5)]
    for one in plays:
        one.play(400)
    assert sum(one.ahead for one in plays) > 50
