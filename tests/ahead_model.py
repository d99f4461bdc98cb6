"""Orch thread, Scheduler and workers of one engine, and a second opinion on what may happen.

A program is a list of tasks. What each of them waits for is worked out beside the engine, from who wrote
a buffer last. The model offers the steps that can come next; who uses it says which one comes. Parts of a
pass are steps of their own, in any order: workers do something between them, and an order that no pass
has does no harm. A worker's answer is two stores: it may die, and others may look, in between.

It is not the reference model of tests/property: that one says what every word of the engine holds after a
step, this one remembers who has started and ended. So it is small enough to be put back to an earlier
situation a million times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from simpler_ref.jit import layout as L

from .support import COMPLETED, CONSUMED, FAILED, FREE, RUNNING, Driver, member, overwrites, reads

NAMES = "abcdefgh"
FIRST_KEY = 0x1000
Steps = Iterator[tuple[str, Callable[[], object]]]


class Task(NamedTuple):
    """What is submitted. `uses` are a way to use a buffer, e.g. `reads`, and the buffer's number."""

    uses: list[tuple[Callable, int]]
    owner: int = -1
    members: int = 0  # of a group, 0 for a task of its own

    @property
    def producers(self) -> list[int]:
        """The tasks it reads from, if each task writes the buffer of its own number."""
        return [number for how, number in self.uses if how is reads]


def parse(program: str) -> list[Task]:
    """Read a program: ``a@0 b<a c*2<ab`` is a task for worker 0, one behind it, a group behind both."""
    tasks = []
    for word in program.split():
        members, at, producers = re.fullmatch(r"\w(?:\*(\d))?(?:@(\d))?(?:<(\w+))?", word).groups()
        uses = [(reads, NAMES.index(name)) for name in producers or ""]
        uses.append((overwrites, len(tasks)))
        tasks.append(Task(uses, int(at or -1), int(members or 0)))
    return tasks


def draw_program(rng, size: int, workers: int, groups: float, edges: float) -> str:
    """Return a program; how likely a task is a group, and reads from each earlier one, is given."""
    words = []
    for number, name in enumerate(NAMES[:size]):
        where = rng.choice(["", "", *(f"@{worker}" for worker in range(workers))])
        if workers > 1 and rng.random() < groups:
            where = f"*{rng.randint(2, workers)}"
        before = "".join(one for one in NAMES[:number] if rng.random() < edges)
        words.append(name + where + "<" * bool(before) + before)
    return " ".join(words)


class Work(NamedTuple):
    """What has become of a task."""

    producers: frozenset[int]
    members: int = 0
    started: int = 0
    ended: tuple[bool, ...] = ()
    refused: bool = False  # a worker was told not to start it, or died over it

    def went_well(self):
        return self.ended == (True,) * max(1, self.members) and not self.refused


class AheadModel:
    """One engine and its actors. No step waits for anything.

    The first `at_once` tasks are there from the start. If `scoped`, each task has a scope of its own, so
    that it is gone when it is done. If `coarse`, a worker runs and answers a task in one step, and a task
    that is submitted is wired at once. Of mishaps (fail, back, die, cancel) so many may happen.
    """

    def __init__(
        self,
        program: Sequence[Task],
        *,
        workers=2,
        depth=2,
        window=8,
        scoped=False,
        at_once=0,
        coarse=False,
        **mishaps: int,
    ):
        self.driver = Driver(depth=depth, sub=workers, window=window)
        self.driver.mem[L.DEFER_NS] = 0
        self.all = range(workers)
        self.program, self.scoped, self.coarse = program, scoped, coarse
        self.works: list[Work] = []
        self.slots: list[int] = []
        self.last_writer: dict[int, int] = {}
        self.at_work: dict[int, int] = {}  # worker → the task it has started
        self.answers: dict[int, int] = {}  # worker → what it is about to answer
        self.ends: dict[int, tuple[int, int]] = {}  # worker → the W_ENDED it will write, and how
        self.dead: set[int] = set()
        self.left = mishaps
        self.cancelled = False
        self.told = False  # the workers have been told of the cancel
        self.losing = False  # deaths are noted, and what the dead had is still to be lost
        self.torn = False  # a worker has died between its two stores
        self.ahead = 0  # how often a task that was given ahead has started
        for _ in range(at_once):
            self.submit_next()
        self.wire()

    # ------------------------------------------------------------ what can happen next
    def steps(self) -> Steps:
        yield from self.orch_steps()
        yield from self.scheduler_steps()
        for worker in self.all:
            for what, step in self.worker_steps(worker):
                yield f"worker {worker} {what}", step

    def orch_steps(self) -> Steps:
        if len(self.works) < len(self.program) and self.may_submit():
            yield f"submit task {len(self.works)}", self.submit_next
        if self.left.get("cancel"):
            yield "cancel", self.request_cancel
        elif self.cancelled and not self.told and not self.losing:
            yield "tell of the cancel", self.tell

    def scheduler_steps(self) -> Steps:
        mem, x = self.driver.mem, self.driver.x
        if self.losing:
            yield "lose what the dead had", self.lose
            return
        if mem[L.DEATHS] != mem[L.DEATHS_SEEN]:
            yield "note deaths", self.note_deaths
        if mem[L.WIRING_TAKEN] != mem[L.WIRING_PUSHED]:
            yield "wire", self.wire
        yield "dispatch", self.dispatch
        for worker in self.all:
            if self.driver.word(worker, L.W_GIVEN):
                yield (
                    f"collect from {worker}",
                    lambda worker=worker: x.collect_from(mem, worker, worker),
                )
        if mem[L.PREDISPATCH_AFTER] > mem[L.READY_ORDER]:
            yield "the pause is over", self.end_pause

    def worker_steps(self, worker) -> Steps:
        if worker in self.dead:
            return
        if worker in self.ends:
            yield "shows its end", lambda: self.show(worker)
        elif worker in self.answers:
            yield "answers", lambda: self.post(worker, self.answers.pop(worker))
        elif worker in self.at_work:
            yield from self.end_steps(worker)
        elif self.task_at(worker) is not None:
            turn = self.may_start(worker)
            if turn == L.OK and self.coarse:
                for what, step in self.end_steps(worker):
                    yield f"starts and {what}", lambda step=step: (self.start(worker), step())
            elif turn == L.OK:
                yield "starts", lambda: self.start(worker)
            elif turn != L.WOULD_BLOCK:
                yield "will not start", lambda: self.answers.update({worker: turn})
            elif self.left.get("back"):
                yield "has waited", lambda: self.lose_patience(worker)
        if self.left.get("die"):
            yield "dies", lambda: self.kill(worker)

    def end_steps(self, worker) -> Steps:
        yield "is done", lambda: self.post(worker, L.SUCCESS)
        if self.left.get("fail"):
            yield "fails", lambda: self.fail(worker)

    # ------------------------------------------------------------ steps of the Orch thread
    def may_submit(self):
        return not self.driver.mem[L.RUN_ERROR] and not self.cancelled

    def submit_next(self):
        """Submit the next task, and work out what it waits for."""
        driver, number = self.driver, len(self.works)
        task = self.program[number]
        if self.scoped:
            driver.reclaim()
            driver.open_scope()
        args, producers, written = [], set(), []
        for how, key in task.uses:
            args.append(how(FIRST_KEY + 8 * key))
            if how is not overwrites and key in self.last_writer:
                producers.add(self.last_writer[key])
            if how is not reads:
                written.append(key)
        if task.members:
            rest = [member() for _ in range(task.members - 1)]
            slot = driver.submit_group(member(*args), *rest)
        else:
            slot = driver.submit(*args, owner=task.owner)
        self.works.append(Work(frozenset(producers), task.members))
        self.slots.append(slot)
        assert driver.id(slot) == number
        self.last_writer |= dict.fromkeys(written, number)
        if self.scoped:
            driver.close_scope()
        if self.coarse:
            self.wire()

    def request_cancel(self):
        self.left["cancel"] -= 1
        self.cancelled = True
        self.driver.mem[L.CANCEL] = 1

    def tell(self):
        self.told = True
        self.driver.finish_run(cancel=True)

    # ------------------------------------------------------------ steps of the Scheduler
    def wire(self):
        mem, x = self.driver.mem, self.driver.x
        while (slot := x.pop_wiring(mem)) != L.NONE:
            x.wire(mem, slot)

    def dispatch(self):
        mem, x = self.driver.mem, self.driver.x
        x.dispatch(mem, L.SUB)
        if mem[L.UNCOLLECTED]:
            x.set_idle(mem)

    def note_deaths(self):
        mem, x = self.driver.mem, self.driver.x
        mem[L.DEATHS_SEEN] = mem[L.DEATHS]
        x.note_deaths(mem)
        x.collect(mem)
        self.losing = True

    def lose(self):
        self.driver.x.lose_tasks(self.driver.mem)
        self.losing = False

    def end_pause(self):
        self.driver.mem[L.PREDISPATCH_AFTER] = 0

    # ------------------------------------------------------------ steps of a worker
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
        ahead = self.driver.frame_word(worker, L.W_WAITS) != 0
        assert not (ahead and self.told), "what was given ahead starts in a cancelled run"
        self.ahead += ahead
        number = self.task_at(worker)
        work = self.works[number]
        for one in work.producers:
            assert self.works[one].went_well(), f"task {number} starts before task {one} is done"
        assert work.started < max(1, work.members), f"task {number} starts twice"
        assert not work.refused or work.members, f"task {number} starts after it was refused"
        self.works[number] = work._replace(started=work.started + 1)
        self.at_work[worker] = number

    def lose_patience(self, worker):
        self.left["back"] -= 1
        self.answers[worker] = L.RETURNED

    def fail(self, worker):
        self.left["fail"] -= 1
        self.post(worker, L.TASK_FAILURE)

    def post(self, worker, outcome):
        """Let a worker answer; the second of its two stores, W_ENDED, waits for `show`."""
        mem, place = self.driver.mem, self.driver._frame(worker, None) + L.W_ENDED
        before = int(mem[place])
        if worker in self.at_work:
            number = self.at_work.pop(worker)
            work = self.works[number]
            self.works[number] = work._replace(ended=(*work.ended, outcome == L.SUCCESS))
        elif outcome == L.SKIPPED:
            self._refuse(self.task_at(worker))
        self.driver.post_done(worker, outcome=outcome)
        self.ends[worker] = place, int(mem[place])
        mem[place] = before
        if self.coarse:
            self.show(worker)

    def show(self, worker):
        place, word = self.ends.pop(worker)
        self.driver.mem[place] = word

    def kill(self, worker):
        self.left["die"] -= 1
        self.torn |= self.ends.pop(worker, None) is not None
        driver = self.driver
        for slot, frame in zip(driver.all_given(worker), driver.frames(worker), strict=True):
            if driver.mailbox_state(worker, frame)[0] == L.TASK_READY:  # it has not answered it
                self._refuse(driver.id(slot))
        self.dead.add(worker)
        self.answers.pop(worker, None)
        self.at_work.pop(worker, None)
        driver.kill(worker)

    def _refuse(self, number):
        self.works[number] = self.works[number]._replace(refused=True)

    # ------------------------------------------------------------ what must hold
    def state(self, number):
        """Return the state of a task, FREE if it is gone."""
        mem, slot = self.driver.mem, self.slots[number]
        return int(mem[slot + L.S_STATE]) if mem[slot + L.S_ID] == number else L.FREE

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
        well, mem = [work.went_well() for work in self.works], self.driver.mem
        assert (mem[L.COMPLETED_COUNT], mem[L.FAILED_COUNT]) == (
            well.count(True),
            well.count(False),
        )
        for number, work in enumerate(self.works):
            fate = number, work, self.state(number)
            assert fate[-1] in (COMPLETED if well[number] else FAILED, CONSUMED, FREE), fate
            if not all(well[one] for one in work.producers):
                assert not work.started, fate
            elif not self.dead and not self.cancelled and not work.members:
                assert work.started == 1, fate

    def finish(self):
        """Let everybody go on until nothing can, without a mishap; then all is as it was before."""
        self.left = {"back": 1 << 60}
        if self.losing:
            self.lose()
        if self.cancelled and not self.told:
            self.tell()
        for _ in range(100_000):
            steps = [step for worker in self.all for _, step in self.worker_steps(worker)]
            for step in steps:
                step()
            if not self.driver.run_pass() and not steps:
                break
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
        left = (L.BUSY, L.UNCOLLECTED, L.RETIRING, L.CONSUMED_HEAD, L.AFFINITY + L.SUB)
        assert [int(mem[word]) for word in left] == [0] * len(left)
        assert driver.ready_queue(L.SUB) == []
        if not self.cancelled:  # hints at tasks that were cancelled may stay
            assert mem[L.CANDIDATES_HEAD + L.SUB] == mem[L.CANDIDATES_TAIL + L.SUB]
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
