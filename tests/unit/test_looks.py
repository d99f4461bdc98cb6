"""What threads see, and whom they choose, against plain definitions, after each step of a random play."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit.dispatch import DEFER, NO_WORKER
from simpler_ref.jit.kernel import INTERPRETED

from ..ahead_model import AheadModel
from ..kernels import kernels as k
from ..property.test_random_ahead import play
from ..support import FAILED, PENDING, READY, RUNNING, Driver

pytestmark = pytest.mark.kernels
NEVER_NS = 1 << 60
KEY = 0x7000_0000


class Looks(AheadModel):
    """A play that looks at everything after each step, but while an answer is half written."""

    def __init__(self, program, *, workers, next_level, **how):
        super().__init__(program, workers=workers, next_level=next_level, **how)
        self.pools = {
            L.NEXT_LEVEL: range(next_level),
            L.SUB: range(next_level, next_level + workers),
        }

    def scheduler_steps(self):
        yield "pass", self.run_pass
        if self.driver.mem[L.PREDISPATCH_AFTER] > self.driver.mem[L.READY_ORDER]:
            yield "the pause is over", self.end_pause

    def run_pass(self):
        mem = self.driver.mem
        hints = any(k.has_candidate(mem, kind) for kind in self.pools)
        to_be_told = (
            self.cancelled and not self.told
        )  # who cancels has a pass follow, see `hand_over`
        may_find_something = hints or to_be_told or k.has_work(mem)
        assert self.driver.run_pass() == 0 or may_find_something

    # ------------------------------------------------------------ plain definitions
    def given_to(self, worker):
        return len(self.driver.frames(worker))

    def unanswered(self, worker):
        """Return how many of a worker's tasks it has not answered."""
        states = [self.driver.mailbox_state(worker, f)[0] for f in self.driver.frames(worker)]
        return states.count(L.TASK_READY)

    @property
    def reserve(self):
        return int(self.driver.mem[L.DEPTH]) // L.RESERVES

    def waiting(self):
        """Return the numbers of the tasks that wait for others, in no frame."""
        slots = [(number, self.slots[number]) for number in range(len(self.works))]
        pending = [(n, slot) for n, slot in slots if self.state(n) == PENDING]
        mem = self.driver.mem
        return [n for n, slot in pending if mem[slot + L.S_MEMBERS] or not mem[slot + L.S_FRAME]]

    def waits_for(self, number):
        """Return the producers of a task that are not done, in the order of its edges."""
        edges = self.driver.edges(self.slots[number])
        return [
            edge.producer
            for edge in edges
            if edge.consumer != L.NONE
            and self.driver.state(edge.producer) in (PENDING, READY, RUNNING)
        ]

    def waits_for_no_frame(self, number):
        """Say whether a producer was a group, which counts to the end, or has failed in no frame."""
        before = self.works[number].producers
        return any(self.works[one].members or self.state(one) == FAILED for one in before)

    # ------------------------------------------------------------ comparisons
    def look(self, rng):
        if self.ends or self.torn:
            return
        mem = self.driver.mem
        left = [self.unanswered(worker) for worker in self.all]
        given = [self.given_to(worker) for worker in self.all]
        busy = sum(map(bool, given))
        assert mem[L.BUSY] == busy
        assert mem[L.UNCOLLECTED] == sum(self.driver.word(w, L.W_COLLECTED) for w in self.all)
        assert [bool(k.has_reserve(mem, w)) for w in self.all] == [n > self.reserve for n in left]
        short = [n <= self.reserve for n in left]
        assert bool(k.runs_low(mem)) == any(map(min, short, map(bool, given)))
        waiting = self.waiting()
        assert mem[L.WIRING_PUSHED] - mem[L.DEALT] == len(waiting)
        some_idle = mem[L.DEPTH] > 1 and 0 < busy < len(self.all)
        may_miss = mem[L.MAY_MOVE] != 0 or (some_idle and bool(waiting))
        assert bool(k.may_miss_an_end(mem)) == may_miss
        self.look_at_turns()
        for number in set(waiting) - set(map(self.driver.id, self.driver.wiring_queue())):
            unsent = [one for one in self.waits_for(number) if not k.is_in_frame(mem, one)]
            found = mem[self.slots[number] + L.S_UNSENT]
            assert found == len(unsent) or self.waits_for_no_frame(number)
        asleep = {worker: rng.random() < 0.5 for worker in self.all}
        for worker in self.all:
            self.driver.set_parked(worker, asleep[worker])
        for number in waiting[-2:]:
            self.look_for_somebody_free(number, asleep)
            self.look_where_to_go_ahead(number, asleep)
        for kind in (L.NEXT_LEVEL, L.SUB):
            self.look_for_a_worker(kind, asleep)
        for worker in self.all:
            self.driver.set_parked(worker, False)

    def look_at_turns(self):
        for worker in self.all:
            for place, slot in enumerate(self.driver.all_given(worker)):
                if self.driver.mem[slot + L.S_MEMBERS] == 0:
                    assert k.turn_of(self.driver.mem, slot) == place + 1

    def look_for_somebody_free(self, number, asleep):
        mem, slot = self.driver.mem, self.slots[number]
        pool = self.pools[int(mem[slot + L.S_CALLABLE]) >> L.WORD_KIND & 0xF]
        waits = bool(self.waits_for(number))
        assert bool(k.has_to_wait(mem, slot)) == waits
        idle = [worker for worker in pool if not self.given_to(worker)]
        free = any(not asleep[worker] for worker in idle)
        if not free and idle:
            free = not waits or len(idle) == len(pool)
        assert bool(k.is_any_worker_free(mem, slot)) == free

    def may_have(self, kind):
        """Return the workers of a pool that may be given one more task."""
        depth = int(self.driver.mem[L.DEPTH])
        return [w for w in self.pools[kind] if self.driver.usable(w) and self.given_to(w) < depth]

    def look_for_a_worker(self, kind, asleep):
        mem, fit = self.driver.mem, self.may_have(kind)
        idle = [worker for worker in fit if not self.given_to(worker)]
        awake = [worker for worker in idle if not asleep[worker]]
        at_work = sorted(fit, key=self.given_to)
        for hold_ns, held_since in ((0, 0), (NEVER_NS, 0), (NEVER_NS, 1), (1, 1)):
            mem[L.DEFER_NS], mem[L.DEFERRED_SINCE + kind] = hold_ns, held_since
            if awake:
                choice = awake[0]
            elif not idle:
                choice = at_work[0] if at_work else NO_WORKER
            else:
                choice = DEFER if hold_ns == NEVER_NS and mem[L.BUSY] else idle[0]
            assert k.pick_worker(mem, kind) == choice
        mem[L.DEFER_NS] = mem[L.DEFERRED_SINCE + kind] = 0

    def look_where_to_go_ahead(self, number, asleep):
        mem, slot = self.driver.mem, self.slots[number]
        if not k.may_predispatch(mem, slot):
            return
        kind = int(mem[slot + L.S_CALLABLE]) >> L.WORD_KIND & 0xF
        owner = (int(mem[slot + L.S_CALLABLE]) >> L.WORD_WORKER & L.WORKER_MASK) - 1
        turns = [(k.turn_of(mem, s), self.driver.worker_of(s)) for s in self.waits_for(number)]
        latest = max((turn for turn, _ in turns), default=0)
        last = [worker for turn, worker in turns if turn == latest][-1:]
        fit = [worker for worker in self.may_have(kind) if owner in (-1, worker)]
        starts = {worker: max(self.given_to(worker), latest) for worker in fit}
        sleepers = [worker for worker in fit if not self.given_to(worker) and asleep[worker]]
        others = [worker for worker in fit if worker not in sleepers]
        best = min((starts[worker] for worker in others), default=int(mem[L.DEPTH]))
        equals = [worker for worker in others if starts[worker] == best]
        choice = next((worker for worker in equals if [worker] == last), (*equals, NO_WORKER)[0])
        if sleepers and latest < best:
            choice = NO_WORKER
        assert k.pick_for_candidate(mem, slot, kind) == choice


@pytest.mark.parametrize("depth", [2, 4, 9])
@settings(max_examples=10 if INTERPRETED else 30)
@given(seed=st.integers(0, 10**9))
def test_looks_and_choices_agree_with_what_there_is(depth, seed):
    play(seed, depth, 80, Looks)


TIMES = st.sampled_from([0, 3, 5, 8])


@given(since=st.tuples(TIMES, TIMES), told=TIMES)
def test_the_group_that_waits_longest_is_the_first_of_which_somebody_is_told(since, told):
    driver = Driver()
    driver.mem[L.STUCK_SINCE : L.STUCK_SINCE + 2] = since
    driver.mem[L.STUCK_TOLD] = told
    assert k.stuck_since(driver.mem) == min((one for one in since if one > told), default=0)
    driver.close()


PLACES = st.tuples(st.booleans(), st.sampled_from([0, 1, 2]), st.booleans())
"""Of a worker: whether it sleeps, the core it says it is on (0: none), whether it has a task."""


@given(places=st.lists(PLACES, min_size=1, max_size=4), cores=st.integers(1, 5))
def test_who_is_where_is_what_the_workers_say(places, cores):
    driver = Driver(sub=len(places))
    mem, workers = driver.mem, range(len(places))
    mem[L.CORES] = cores
    here = k.core_here() + 1
    for worker, (asleep, core, at_work) in enumerate(places):
        driver.set_parked(worker, asleep)
        mem[driver._worker(worker) + L.W_CORE] = core and here + core - 1
        mem[driver._worker(worker) + L.W_GIVEN] = at_work
    awake = [not asleep for asleep, *_ in places]
    for worker in workers:
        others = [one for one in workers if one != worker]
        assert bool(k.has_free_core(mem, worker)) == (cores > 1 + sum(awake[o] for o in others))
        for core in (1, 2):
            beside = any(awake[o] and places[o][1] == core for o in others)
            assert bool(k.shares_core(mem, worker, here + core - 2)) == beside
    if k.core_here() + 1 == here:
        elsewhere = any(core == 2 and at_work for _, core, at_work in places)
        assert bool(k.is_one_at_work_elsewhere(mem)) == elsewhere
    driver.close()


@given(
    busy=st.integers(0, 3),
    cores=st.integers(1, 3),
    words=st.fixed_dictionaries(
        {
            L.STUCK_SINCE: st.sampled_from([0, 0, 0, 5]),
            L.STUCK_SINCE + 1: st.sampled_from([0, 0, 0, 5]),
            L.AFFINITY + L.SUB: st.booleans(),
            L.AFFINITY + L.NEXT_LEVEL: st.booleans(),
            L.ORCH_KEEPS: st.sampled_from([-1, 0, 1, 2, L.KEEPS]),
        }
    ),
    is_elsewhere=st.booleans(),
    waited=st.sampled_from([0, L.KEEP_NS - 1, L.KEEP_NS]),
)
@settings(max_examples=100)
def test_a_core_is_kept_while_an_answer_may_be_near(busy, cores, words, is_elsewhere, waited):
    driver = Driver()
    mem = driver.mem
    for word, value in words.items():
        mem[word] = value
    mem[L.BUSY], mem[L.CORES] = busy, cores
    mem[driver._worker(1) + L.W_CORE], mem[driver._worker(1) + L.W_GIVEN] = 1000, is_elsewhere
    stuck = words[L.STUCK_SINCE], words[L.STUCK_SINCE + 1]
    ready = words[L.AFFINITY + L.SUB], words[L.AFFINITY + L.NEXT_LEVEL]
    keeps = left = int(mem[L.ORCH_KEEPS])
    may_be_near = busy <= cores and not any(stuck) and any(ready)
    if may_be_near and keeps <= 0:
        left += 1
    elif may_be_near and is_elsewhere and waited == L.KEEP_NS:
        left = keeps - 1 or 1 - L.KEEPS_OFF
    kept = may_be_near and keeps > 0 and is_elsewhere and waited < L.KEEP_NS
    assert (bool(k.keeps_core(mem, waited)), mem[L.ORCH_KEEPS]) == (kept, left)
    driver.close()
