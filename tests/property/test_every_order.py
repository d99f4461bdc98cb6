"""Tasks that are given ahead of time, in every order of steps: small programs, step by step.

Beside `test_random_ahead`, which plays long programs with dice, this leaves nothing to chance: it goes
through all situations that Orch thread, Scheduler and workers can get into. What a pass does stands here
in steps of their own, in any order: workers do something between them, and an order that no pass has
does no harm. A worker's answer is two stores: it may die, and others may look, in between.

Not in it, but in tests/interleaving: the order of the stores within one such step, workers that sleep,
control requests.

    python -m tests.property.test_every_order TASKS SECONDS [SEED]

plays some larger programs, then draws others of so many tasks, until the time is up.
"""

from __future__ import annotations

import operator
import random
import re
import sys
import time
from typing import NamedTuple

import numpy as np
import pytest

from simpler_ref.jit import layout as L
from tests.ahead_model import FIRST_KEY, AheadModel
from tests.support import overwrites, reads
from tests.walk import live_words, walk

NAMES = "abcdefgh"
CLOCKS = [word + kind for word in (L.DEFERRED_SINCE, L.STUCK_SINCE) for kind in (0, 1)]
"""Words whose values differ from one time to the next, and mean nothing where no worker sleeps."""
BESIDE = ("works", "slots", "last_writer", "at_work", "dead", "cancelled")
BESIDE += ("left", "answers", "ends", "told", "torn", "losing")
"""What the model knows beside the engine."""
all_beside = operator.attrgetter(*BESIDE)


class Task(NamedTuple):
    producers: list[int]
    owner: int
    members: int


def parse(program: str) -> list[Task]:
    """Read a program: ``a@0 b<a c*2<ab`` is a task for worker 0, one behind it, a group behind both."""
    tasks = []
    for word in program.split():
        members, owner, producers = re.fullmatch(
            r"\w(?:\*(\d))?(?:@(\d))?(?:<(\w+))?", word
        ).groups()
        before = [NAMES.index(name) for name in producers or ""]
        tasks.append(Task(before, int(owner or -1), int(members or 0)))
    return tasks


FREEZE = {
    bool: bool,
    list: tuple,
    set: frozenset,
    dict: lambda part: tuple(sorted(part.items())),
}
"""Makes of what a part holds something that is equal for equal parts."""


class EveryOrder(AheadModel):
    """Steps of all actors, for `walk`.

    The first `at_once` tasks are there from the start. If `scoped`, each task has a scope of its own, so
    that it is gone when it is done. If `coarse`, a worker runs and answers a task in one step, and a task
    that is submitted is wired at once. Of mishaps (fail, back, die, cancel) so many may happen.
    """

    def __init__(
        self,
        program: str,
        workers=2,
        depth=2,
        scoped=False,
        at_once=0,
        coarse=False,
        **mishaps: int,
    ):
        super().__init__(depth, workers, window=8)
        self.program, self.scoped, self.coarse = parse(program), scoped, coarse
        self.left = mishaps
        self.answers: dict[int, int] = {}  # worker → what it is about to answer
        self.ends: dict[
            int, tuple[int, int]
        ] = {}  # worker → which W_ENDED it is about to write, how
        self.told = False  # the workers have been told of the cancel
        self.torn = False  # a worker has died between its two stores
        self.losing = False
        self.ahead = 0  # how often a task that was given ahead has started
        self.words = np.union1d(live_words(self.driver), self.keys())
        self.kinds = [type(part) for part in all_beside(self)]
        self.told_apart = np.setdiff1d(self.words, CLOCKS)
        for _ in range(at_once):
            self.submit_next()
        self.wire()

    # ------------------------------------------------------------ going back to where one was
    def keys(self):
        """Return where in the TensorMap the buffers of the program have their places."""
        mem, home = self.driver.mem, self.driver.x.home
        keys = [FIRST_KEY + 8 * number for number in range(len(self.program))]
        places = {home(key, -1, int(mem[L.MAP_MASK])) for key in keys}
        assert len(places) == len(keys), "two of them want the same one"
        return [
            int(mem[L.MAP_BASE]) + place * L.ENTRY_WORDS + word
            for place in places
            for word in range(L.ENTRY_WORDS)
        ]

    def beside(self):
        return tuple([FREEZE[type(part)](part) for part in all_beside(self)])

    def save(self):
        return self.driver.mem[self.words], self.beside()

    def restore(self, saved):
        words, parts = saved
        self.driver.mem[self.words] = words
        for name, part, kind in zip(BESIDE, parts, self.kinds, strict=True):
            setattr(self, name, kind(part))

    def key(self):
        return hash((self.driver.mem[self.told_apart].tobytes(), self.beside()))

    # ------------------------------------------------------------ what can happen next
    def steps(self):
        yield from self.orch_steps()
        yield from self.scheduler_steps()
        for worker in self.all:
            if worker not in self.dead:
                for what, step in self.worker_steps(worker):
                    yield f"worker {worker} {what}", step

    def orch_steps(self):
        if len(self.works) < len(self.program) and self.may_submit():
            yield f"submit {NAMES[len(self.works)]}", self.submit_next
        if self.left.get("cancel"):
            yield "cancel", self.request_cancel
        elif self.cancelled and not self.told and not self.losing:
            yield "tell of the cancel", self.tell

    def scheduler_steps(self):
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

    def worker_steps(self, worker):
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

    def end_steps(self, worker):
        yield "is done", lambda: self.post(worker, L.SUCCESS)
        if self.left.get("fail"):
            yield "fails", lambda: self.fail(worker)

    # ------------------------------------------------------------ steps of the Orch thread
    def submit_next(self):
        number = len(self.works)
        task = self.program[number]
        if self.scoped:
            self.driver.reclaim()
            self.driver.open_scope()
        uses = [(reads, key) for key in task.producers] + [(overwrites, number)]
        self.submit(uses, owner=task.owner, members=task.members)
        if self.scoped:
            self.driver.close_scope()
        if self.coarse:
            self.wire()

    def request_cancel(self):
        self.left["cancel"] -= 1
        self.cancelled = True
        self.driver.x.request_cancel(self.driver.mem)

    def tell(self):
        self.told = True
        self.cancel()

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
    def start(self, worker):
        ahead = self.driver.frame_word(worker, L.W_WAITS) != 0
        assert not (ahead and self.told), "what was given ahead starts in a cancelled run"
        self.ahead += ahead
        super().start(worker)

    def lose_patience(self, worker):
        self.left["back"] -= 1
        self.answers[worker] = L.RETURNED

    def fail(self, worker):
        self.left["fail"] -= 1
        self.post(worker, L.TASK_FAILURE)

    def post(self, worker, outcome):
        """Let a worker answer; the second of its two stores, W_ENDED, waits for `show`."""
        mem = self.driver.mem
        place = self.driver._frame(worker, None) + L.W_ENDED
        before = int(mem[place])
        if worker in self.at_work:
            self.end_task(worker, outcome=outcome)
        else:
            self.decline(worker, outcome)
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
        self.answers.pop(worker, None)
        super().kill(worker)

    def work(self, worker):
        """Let a worker do all that it can: there is nothing else to wait for."""
        turn = self.may_start(worker)
        if turn == L.OK:
            self.start(worker)
            self.end_task(worker)
        else:
            self.decline(worker, L.RETURNED if turn == L.WOULD_BLOCK else turn)

    # ------------------------------------------------------------ what must hold
    def take(self, _, step):
        step()
        self.check_order()

    def end(self):
        """Nothing leads on: everything is done, unless an end that nobody will show is waited for."""
        waiting = [worker for worker in self.all if self.task_at(worker) is not None]
        assert not waiting or self.torn, f"workers {waiting} wait for ever"
        assert len(self.works) == len(self.program) or not self.may_submit()
        before = self.driver.mem[self.words]
        self.finish()
        self.driver.mem[self.words] = before

    def explore(self, most=float("inf")):
        """Go everywhere; return how many situations there are."""
        before = self.driver.words()
        start = self.save()
        found = walk(self, self.take, most)
        self.restore(start)
        changed = np.array(self.driver.changed_since(before))
        assert all(map(self.is_in_a_mailbox, changed)), (
            "words have changed that were not brought back"
        )
        self.driver.close()
        return found

    def is_in_a_mailbox(self, word):
        place = int(word - self.driver.mem[L.A_WORKERS]) % L.WORKER_WORDS
        return L.W_MAILBOX <= place < L.W_TRACE


PROGRAMS = [
    ("a@0 b@1<a c@0 d@1 e<b", {"coarse": True, "at_once": 5, "fail": 1, "back": 1}),
    ("a@0 b@1<a c@2<b d@1 e@1", {"coarse": True, "workers": 3, "at_once": 3, "fail": 1}),
    ("a@0 b@1<a c@0<b d@1 e@1", {"coarse": True, "at_once": 3, "back": 1}),
    ("a@0 b@1<a c@1 d@1 e<b", {"coarse": True, "at_once": 2, "back": 1}),
    ("a@0 b@1<a c@0<b", {"fail": 1, "back": 1}),
    ("a b<a c<b", {"scoped": True, "fail": 1, "back": 1}),
    ("a@0 b@1<a c<b", {"workers": 3, "at_once": 3, "die": 2}),
    ("a b<a c<a d<bc", {"at_once": 4, "back": 1}),
    ("a@0 b@1<a c*2<b d<c", {"at_once": 4, "fail": 1, "back": 1}),
    ("a@0 b*2 c<b d@1<c", {"at_once": 4, "die": 1}),
    ("a*2 b@1<a c<b", {"fail": 1}),
    ("a@0 b@1<a c@0<b", {"at_once": 2, "cancel": 1}),
    ("a@0 b@1<a c<b d@0", {"depth": 3, "at_once": 4, "fail": 1, "die": 1}),
]


@pytest.mark.parametrize(("program", "how"), PROGRAMS)
def test_whatever_the_order_no_task_starts_early_twice_or_never(program, how):
    model = EveryOrder(program, **how)
    model.explore()
    assert model.ahead > 0


# ---------------------------------------------------------------- more than a test has time for
LARGER = [
    ("a@0 b@1<a c@0<b d@1 e@1", {"at_once": 3, "back": 1}),
    ("a@0 b@1<a c@0 d@1 e<b", {"at_once": 5, "fail": 1, "back": 1, "die": 1}),
    ("a b<a c<a d<bc e<d", {"at_once": 5, "fail": 1, "back": 1}),
    ("a@0 b@1<a c<b", {"workers": 3, "fail": 1, "back": 1, "die": 2}),
]
MISHAPS = ["fail", "fail", "back", "back", "die", "cancel"]


def draw(rng, size):
    """Return a program, and how it is played."""
    workers = rng.choice([2, 2, 3])
    words = []
    for number, name in enumerate(NAMES[:size]):
        where = rng.choice(["", "", *(f"@{worker}" for worker in range(workers))])
        before = [one for one in NAMES[:number] if rng.random() < 0.5]
        words.append(
            name + ("*2" if rng.random() < 0.1 else where) + "<" * any(before) + "".join(before)
        )
    mishaps = [rng.choice(MISHAPS) for _ in range(rng.choice([1, 1, 2]))]
    how = {one: 1 if one == "cancel" else mishaps.count(one) for one in mishaps}
    how |= {"workers": workers, "depth": rng.choice([2, 2, 3]), "scoped": rng.random() < 0.3}
    how |= {"at_once": rng.randint(0, size), "coarse": rng.random() < 0.7}
    return " ".join(words), how


def explored(program, how, most=float("inf")):
    """Return how many situations there are in a program."""
    try:
        return EveryOrder(program, **how).explore(most)
    except AssertionError:
        print(program, how)
        raise


def main(size, seconds, seed=0, most=100_000):
    until = time.monotonic() + seconds
    for program, how in LARGER:
        print(program, how, explored(program, how), "situations", flush=True)
    rng = random.Random(seed)
    found = []
    while time.monotonic() < until:
        found.append(explored(*draw(rng, size), most))
    given_up = sum(one > most for one in found)
    print(f"{len(found)} programs, {sum(found)} situations; {given_up} programs were not finished")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
