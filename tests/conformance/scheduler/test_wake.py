"""SCHED-WAKE: parking and waking."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

import simpler_ref.engine.memory
import simpler_ref.engine.scheduler
import simpler_ref.orch.room
import simpler_ref.workers.ending
import simpler_ref.workers.manager
from simpler_ref import Worker, WorkerKind
from simpler_ref.jit import layout as L
from simpler_ref.jit.atomics import CHANGED, TIMED_OUT
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import TensorArgType as T
from tests.by_hand import ByHand
from tests.support import (
    COMPLETED,
    DEADLINE_S,
    FAILED,
    READY,
    RUNNING,
    Driver,
    Member,
    make_args,
    reads,
    wait_until,
    writes,
)

NEVER_NS = 1 << 60
ALWAYS_ACTIVE = -1
"""A timer for the Scheduler thread: it is on duty each time it parks."""


class Parked:
    """A driver whose Scheduler thread is real, parked, and never wakes by itself."""

    def __init__(self, timer_ns=ALWAYS_ACTIVE, **size):
        self.driver = Driver(**size)
        self.driver.mem[L.PARK_NS] = NEVER_NS
        self.thread = threading.Thread(
            target=self.driver.k.scheduler_loop, args=(self.driver.mem, timer_ns)
        )

    def park(self):
        """Start the thread, and come back when it has parked."""
        self.thread.start()
        self.wait_until_parked()
        return self.driver

    def wait_until_parked(self):
        wait_until(lambda: self.driver.mem[L.PARK_SCHED] != 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.thread.is_alive():
            self.driver.k.stop_scheduler(self.driver.mem)
            self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        self.driver.close()


def asleep(thread):
    """Say whether a thread that waits in a kernel has really gone to sleep."""
    with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "S"


# ---------------------------------------------------------------- what wakes
@pytest.mark.spec("SCHED-WAKE-1")
def test_a_completion_wakes_the_scheduler():
    with Parked() as parked:
        slot = parked.driver.submit()
        parked.driver.run_pass()
        driver = parked.park()
        driver.post_done(driver.worker_of(slot))
        driver.x.announce_done(driver.mem, 0)
        wait_until(lambda: driver.state(slot) == COMPLETED)


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.parametrize("word", [L.PARK_ORCH, L.PARK_SCHED], ids=["Orch thread", "Scheduler"])
def test_a_worker_says_that_it_has_answered_before_it_waits_for_more(driver, word):
    driver.mem[L.SPIN_NS] = 0
    driver.submit()
    driver.run_pass()
    driver.mem[word] = L.ACTIVE
    assert driver.k.finish_and_receive(driver.mem, 0, 0) == L.PARK
    assert driver.mailbox_state(0) == (L.TASK_DONE, 0)
    assert driver.mem[word] == 0, "woken, though the worker has not parked yet"


@pytest.mark.spec("SCHED-WAKE-1")
def test_a_completion_that_nobody_collects_wakes_a_scheduler_that_is_off_duty():
    with Parked(timer_ns=NEVER_NS) as parked:
        slot = parked.driver.submit()
        parked.driver.run_pass()
        driver = parked.park()
        driver.post_done(driver.worker_of(slot))
        driver.x.announce_done(driver.mem, 0)
        assert driver.mem[L.PARK_SCHED] == L.STANDBY, "the Orch thread may be running passes"
        assert driver.state(slot) == RUNNING
        driver.x.announce_uncollected(driver.mem, 0)
        wait_until(lambda: driver.state(slot) == COMPLETED)


@pytest.mark.spec("SCHED-WAKE-1", "SCHED-MAIL-8")
def test_a_worker_that_parks_beside_its_answer_says_that_nobody_has_collected_it():
    with Parked(timer_ns=NEVER_NS, sub=1) as parked, ThreadPoolExecutor(1) as threads:
        parked.driver.mem[L.SPIN_NS] = 0
        slot = parked.driver.submit()
        parked.driver.run_pass()
        driver = parked.park()
        driver.post_done(0)
        worker = threads.submit(driver.x.park_and_receive, driver.mem, 0)
        wait_until(lambda: driver.state(slot) == COMPLETED)
        driver.k.request_stop(driver.mem, 0)
        assert worker.result(DEADLINE_S) == L.STOP


@pytest.mark.spec("SCHED-WAKE-1", "SCHED-DEATH-2")
@pytest.mark.parametrize("timer_ns", [ALWAYS_ACTIVE, NEVER_NS], ids=["active", "standby"])
def test_a_dead_worker_wakes_the_scheduler(timer_ns):
    with Parked(timer_ns) as parked:
        slot = parked.driver.submit()
        parked.driver.run_pass()
        driver = parked.park()
        driver.kill(driver.worker_of(slot))
        wait_until(lambda: driver.state(slot) == FAILED)


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.parametrize("timer_ns", [ALWAYS_ACTIVE, NEVER_NS], ids=["active", "standby"])
def test_a_submit_that_cannot_run_the_pass_itself_wakes_the_scheduler(timer_ns):
    with Parked(timer_ns) as parked:
        driver = parked.park()
        assert driver.x.try_lock(driver.mem)
        driver.k.submit_and_pass(driver.mem, L.SUB << 32, 0, b"")
        driver.x.unlock(driver.mem)  # whoever held it had already wired
        wait_until(lambda: driver.mem[L.BUSY] == 1)


@pytest.mark.spec("SCHED-WAKE-1")
def test_a_submit_runs_the_pass_itself_if_it_can(driver):
    slot = driver.k.submit_and_pass(driver.mem, L.SUB << 32, 0, b"")
    assert driver.state(slot) == RUNNING


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.parametrize("timer_ns", [ALWAYS_ACTIVE, NEVER_NS], ids=["active", "standby"])
def test_a_request_to_end_wakes_the_scheduler(timer_ns):
    with Parked(timer_ns) as parked:
        driver = parked.park()
        driver.k.stop_scheduler(driver.mem)
        parked.thread.join(DEADLINE_S)
        assert not parked.thread.is_alive()


@pytest.mark.spec("SCHED-WAKE-1")
def test_a_cancel_is_acted_on_though_the_scheduler_thread_sleeps():
    with Parked(sub=1) as parked:
        running = parked.driver.submit()
        waiting = [parked.driver.submit() for _ in range(3)]
        parked.driver.run_pass()
        driver = parked.park()
        driver.finish_run(cancel=True)
        with ThreadPoolExecutor(1) as threads:  # the Orch thread, which drains
            drained = threads.submit(driver.k.help_scheduler, driver.mem, 0, -1, -1, NEVER_NS)
            wait_until(lambda: all(driver.state(slot) != READY for slot in waiting))
            assert driver.given(0) == running
            driver.post_done(0)
            driver.x.announce_done(driver.mem, 0)
            assert drained.result(DEADLINE_S) == L.OK


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.parametrize("event", ["completion", "death", "pass of the other thread"])
def test_each_event_wakes_an_orch_thread_that_drains(event):
    driver = Driver(sub=1)
    driver.mem[L.PARK_NS] = NEVER_NS
    driver.mem[L.SPIN_NS] = 0
    slot = driver.submit()
    driver.run_pass()
    driver.finish_run()
    with ThreadPoolExecutor(1) as threads:
        drained = threads.submit(driver.k.help_scheduler, driver.mem, 0, -1, -1, NEVER_NS)
        wait_until(lambda: driver.mem[L.PARK_ORCH] != 0)
        if event == "completion":
            driver.post_done(0)
            driver.x.announce_done(driver.mem, 0)
        elif event == "death":
            driver.kill(0)
        else:
            driver.post_done(0)  # its worker has not said so yet
            scheduler = threading.Thread(
                target=driver.k.scheduler_loop, args=(driver.mem, NEVER_NS)
            )
            scheduler.start()
        assert drained.result(DEADLINE_S) == L.OK
        if event == "pass of the other thread":
            driver.k.stop_scheduler(driver.mem)
            scheduler.join(DEADLINE_S)
    assert driver.live() == 0
    assert slot
    driver.close()


# ---------------------------------------------------------------- check, announce, check again
def pending_work(driver, what):
    """Bring work about of which nobody is told."""
    slot = driver.submit()
    if what == "a wiring entry":
        return
    driver.run_pass()
    if what == "a completion":
        driver.post_done(driver.worker_of(slot))
    elif what == "a mailbox to set idle":
        driver.post_done(driver.worker_of(slot))
        driver.run_pass()
    elif what == "a death":
        driver.mem[L.DEATHS] += 1
    elif what == "a ready task and an idle worker":
        driver.submit()
        driver.submit()
        driver.run_pass()
        driver.post_done(0)
        driver.x.scheduler_pass(driver.mem)  # it dispatches before it collects
        driver.x.set_idle(driver.mem)
        assert driver.ready_queue()
    else:
        assert what == "a ready task of a cancelled run"
        driver.submit()
        driver.submit()
        driver.run_pass()
        driver.finish_run(cancel=True)
        assert driver.ready_queue()


@pytest.mark.spec("SCHED-WAKE-2")
@pytest.mark.parametrize(
    "what",
    [
        "a wiring entry",
        "a completion",
        "a mailbox to set idle",
        "a death",
        "a ready task and an idle worker",
        "a ready task of a cancelled run",
    ],
)
def test_the_look_before_parking_sees(driver, what):
    assert not driver.x.has_work(driver.mem)
    pending_work(driver, what)
    assert driver.x.has_work(driver.mem)
    driver.settle()
    assert not driver.x.has_work(driver.mem), "and when it is done, there is nothing left"


@pytest.mark.spec("SCHED-WAKE-2")
def test_the_scheduler_thread_does_not_sleep_on_work_that_came_before_it_parked():
    """It finds the pass taken, announces that it parks, and looks again: nobody will wake it."""
    with Parked(sub=1) as parked:
        driver = parked.driver
        assert driver.x.try_lock(driver.mem)
        driver.submit()
        parked.park()
        driver.x.unlock(driver.mem)
        wait_until(lambda: driver.mem[L.BUSY] == 1)


@pytest.mark.spec("SCHED-WAKE-2")
@pytest.mark.parametrize("what", ["a wiring entry", "a consumed task"])
def test_a_draining_thread_does_not_sleep_on_work_that_came_before_it_parked(what):
    driver = Driver(sub=1)
    driver.mem[L.PARK_NS] = NEVER_NS
    driver.mem[L.SPIN_NS] = 0
    slot = driver.submit()
    driver.finish_run()
    if what == "a consumed task":
        driver.run_pass()
        driver.post_done(0)
        driver.settle()
        assert driver.consumed_list() == [slot]
    assert driver.x.try_lock(driver.mem)
    with ThreadPoolExecutor(1) as threads:
        drained = threads.submit(driver.k.help_scheduler, driver.mem, 0, -1, -1, NEVER_NS)
        wait_until(lambda: driver.mem[L.PARK_ORCH] != 0)
        driver.x.unlock(driver.mem)
        if what == "a wiring entry":
            wait_until(lambda: driver.mem[L.BUSY] == 1)
            driver.post_done(0)
            driver.x.announce_done(driver.mem, 0)
        assert drained.result(DEADLINE_S) == L.OK
    driver.close()


def submit_many(driver, count):
    for number in range(count):
        if number % L.WIRING_CAPACITY == 0:
            driver.run_pass()
        driver.submit()
    driver.run_pass()


@pytest.mark.spec("SCHED-WAKE-2")
def test_no_completion_is_missed_at_whatever_moment_of_falling_asleep_it_comes():
    """Nobody but the Scheduler thread runs passes, and nothing but a wake ends its sleep."""
    rounds = 100 if INTERPRETED else 20_000
    with Parked(sub=1, window=1 << 15) as parked:
        submit_many(parked.driver, rounds)
        driver = parked.park()
        with ThreadPoolExecutor(1) as threads:
            worker = threads.submit(driver.x.answer_after_a_while, driver.mem, 0, rounds)
            assert worker.result(2 * DEADLINE_S) == L.OK
        wait_until(lambda: driver.mem[L.COMPLETED_COUNT] == rounds)


@pytest.mark.spec("SCHED-WAKE-2", "ORCH-DRAIN-1")
@pytest.mark.parametrize("scheduler_thread", [False, True], ids=["alone", "beside the other"])
@pytest.mark.parametrize("goal", ["everything reclaimed", "everything terminal"])
def test_no_completion_is_missed_by_an_orch_thread_that_drains(scheduler_thread, goal):
    rounds = 100 if INTERPRETED else 20_000
    with Parked(sub=1, window=1 << 15) as parked:
        driver = parked.driver
        driver.mem[L.SPIN_NS] = 0
        submit_many(driver, rounds)
        if scheduler_thread:
            parked.park()
        live, ended = -1, rounds
        if goal == "everything reclaimed":
            driver.finish_run()
            live, ended = 0, -1
        with ThreadPoolExecutor(2) as threads:
            worker = threads.submit(driver.x.answer_after_a_while, driver.mem, 0, rounds)
            drain = threads.submit(driver.k.help_scheduler, driver.mem, live, ended, -1, NEVER_NS)
            assert worker.result(2 * DEADLINE_S) == L.OK
            assert drain.result(2 * DEADLINE_S) == L.OK
        assert driver.mem[L.COMPLETED_COUNT] == rounds


@pytest.mark.spec("SCHED-WAKE-2", "SCHED-WAKE-3")
@pytest.mark.parametrize("timer_ns", [ALWAYS_ACTIVE, NEVER_NS], ids=["active", "standby"])
@pytest.mark.parametrize("spin_ns", [0, 20_000])
def test_no_submit_is_missed_though_the_orch_thread_does_not_come_back(timer_ns, spin_ns):
    """It submits, and stays away until the tasks are done; workers and Scheduler park all the time."""
    rounds = 20 if INTERPRETED else 600
    rng = random.Random(0)
    submitted = 0
    with Parked(timer_ns, sub=2, window=1 << 15) as parked, ThreadPoolExecutor(2) as threads:
        parked.driver.mem[L.SPIN_NS] = spin_ns
        parked.driver.mem[L.DEFER_NS] = 0
        driver = parked.park()
        workers = [threads.submit(driver.x.serve, driver.mem, worker) for worker in (0, 1)]
        try:
            for _ in range(rounds):
                for _ in range(rng.randint(1, 4)):
                    driver.k.submit_and_pass(driver.mem, L.SUB << 32, 0, b"")
                    submitted += 1
                wait_until(lambda goal=submitted: driver.mem[L.COMPLETED_COUNT] == goal)
        finally:
            for worker in (0, 1):
                driver.k.request_stop(driver.mem, worker)
        assert sum(worker.result(DEADLINE_S) for worker in workers) == submitted


# ---------------------------------------------------------------- no poll saves a wake
def times_asleep(thread):
    """Return how often a thread has gone to sleep so far."""
    with open(f"/proc/self/task/{thread.native_id}/status") as status:
        (line,) = [line for line in status if line.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])


def assert_that_it_sleeps_on(thread):
    wait_until(lambda: asleep(thread))
    before = times_asleep(thread)
    threading.Event().wait(0.1)
    assert times_asleep(thread) - before <= 1, "it looks again and again"


@pytest.mark.spec("SCHED-WAKE-3")
@pytest.mark.parametrize("timer_ns", [ALWAYS_ACTIVE, NEVER_NS], ids=["active", "standby"])
def test_a_parked_scheduler_thread_sleeps_until_it_is_woken(timer_ns):
    with Parked(timer_ns) as parked:
        parked.park()
        assert_that_it_sleeps_on(parked.thread)


@pytest.mark.spec("SCHED-WAKE-3")
def test_a_parked_worker_sleeps_until_it_is_woken(driver):
    driver.mem[L.SPIN_NS] = 0
    worker = threading.Thread(target=driver.x.park_and_receive, args=(driver.mem, 0))
    worker.start()
    try:
        wait_until(lambda: driver.word(0, L.W_PARKED) == 1)
        assert_that_it_sleeps_on(worker)
    finally:
        driver.k.request_stop(driver.mem, 0)
        worker.join(DEADLINE_S)


@pytest.fixture
def no_timeouts(monkeypatch):
    """Let no wait of the parent end because its time is up."""
    modules = (simpler_ref.workers.ending, simpler_ref.orch.room, simpler_ref.workers.manager)
    for module in modules:
        monkeypatch.setattr(module, "PARK_NS", NEVER_NS)
    monkeypatch.setattr(simpler_ref.engine.memory, "PARK_NS", NEVER_NS)
    monkeypatch.setattr(simpler_ref.engine.scheduler, "TIMER_NS", NEVER_NS)


def add_one(args):
    for i in range(args.tensor_count()):
        args.tensor(i).numpy()[...] += 1


@pytest.mark.spec("SCHED-WAKE-3", "SCHED-WAKE-5")
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_every_graph_finishes_with_waits_that_never_time_out(no_timeouts, workers):
    tasks, runs = (12, 2) if INTERPRETED else (100, 30)
    rng = random.Random(workers)
    with Worker(3, num_sub_workers=workers) as w:
        handle = w.register(add_one)
        buffers = [w.share(np.zeros(1, np.int64)) for _ in range(6)]
        expected = np.zeros(6, np.int64)
        assert w._session.engine.mem[L.PARK_NS] == NEVER_NS

        def orch_fn(orch, *_):
            for _ in range(tasks):
                chosen = rng.sample(range(6), rng.randint(1, 3))
                expected[chosen] += 1
                orch.submit_sub(handle, make_args(*[(buffers[i], T.INOUT) for i in chosen]))
                if rng.random() < 0.05:
                    os.sched_yield()
                if rng.random() < 0.2:
                    orch.drain()
                    assert [int(b[0]) for b in buffers] == expected.tolist()

        for _ in range(runs):
            w.run(orch_fn)
            assert [int(b[0]) for b in buffers] == expected.tolist()


@pytest.mark.spec("SCHED-WAKE-3")
def test_a_graph_finishes_while_the_orch_function_is_busy_elsewhere(no_timeouts):
    runs, length = (1, 5) if INTERPRETED else (20, 20)
    with Worker(3, num_sub_workers=2) as w:
        handle = w.register(add_one)
        chains = [w.share(np.zeros(1, np.int64)) for _ in range(3)]

        def orch_fn(orch, *_):
            goal = int(chains[0][0]) + length
            for _ in range(length):
                for chain in chains:
                    orch.submit_sub(handle, make_args((chain, T.INOUT)))
            wait_until(lambda: all(chain[0] >= goal for chain in chains))

        for _ in range(runs):
            w.run(orch_fn)
        assert [int(chain[0]) for chain in chains] == [runs * length] * 3


# ---------------------------------------------------------------- nobody else is woken
@pytest.mark.spec("SCHED-WAKE-4")
@pytest.mark.parametrize("word", [L.PARK_ORCH, L.PARK_SCHED], ids=["Orch thread", "Scheduler"])
def test_who_has_not_announced_to_park_is_not_woken(driver, word):
    """A thread sleeps on the park word without having said so: no event may end its sleep."""
    answers = []
    sleeper = threading.Thread(
        target=lambda: answers.append(driver.x.futex_wait(driver.mem, word, 0, 300_000_000))
    )
    sleeper.start()
    wait_until(lambda: asleep(sleeper))
    slot = driver.submit()
    driver.run_pass()
    driver.post_done(driver.worker_of(slot))
    driver.x.announce_done(driver.mem, 0)
    driver.x.announce_uncollected(driver.mem, 0)
    driver.x.notify(driver.mem, word)
    driver.k.submit_and_pass(driver.mem, L.SUB << 32, 0, b"")
    sleeper.join(DEADLINE_S)
    assert answers == [TIMED_OUT]


@pytest.mark.spec("SCHED-WAKE-4")
def test_a_worker_that_has_not_announced_to_park_is_not_woken(driver):
    word = driver._worker(0) + L.W_MAILBOX
    answers = []
    sleeper = threading.Thread(
        target=lambda: answers.append(driver.x.futex_wait(driver.mem, word, 0, 300_000_000))
    )
    sleeper.start()
    wait_until(lambda: asleep(sleeper))
    slot = driver.submit()
    driver.run_pass()
    assert driver.worker_of(slot) == 0
    sleeper.join(DEADLINE_S)
    assert answers == [TIMED_OUT]


@pytest.mark.spec("SCHED-WAKE-4")
def test_notify_takes_the_announcement_back_and_wakes(driver):
    word = L.PARK_SCHED
    for announced in (L.ACTIVE, L.STANDBY, L.TIMED):
        driver.mem[word] = announced
        answers = []
        sleeper = threading.Thread(
            target=lambda a=announced, found=answers: found.append(
                driver.x.futex_wait(driver.mem, word, a, -1)
            )
        )
        sleeper.start()
        wait_until(lambda t=sleeper: asleep(t))
        driver.x.notify(driver.mem, word)
        sleeper.join(DEADLINE_S)
        assert answers == [CHANGED]
        assert driver.mem[word] == 0
    before = driver.words()
    driver.x.notify(driver.mem, word)
    assert driver.changed_since(before) == []


@pytest.mark.spec("SCHED-WAKE-4")
def test_a_completion_wakes_one_thread_and_the_draining_one_first(driver):
    driver.mem[L.PARK_ORCH] = driver.mem[L.PARK_SCHED] = L.ACTIVE
    driver.x.announce_done(driver.mem, 0)
    assert (driver.mem[L.PARK_ORCH], driver.mem[L.PARK_SCHED]) == (0, L.ACTIVE)
    driver.x.announce_done(driver.mem, 0)
    assert driver.mem[L.PARK_SCHED] == 0
    driver.mem[L.PARK_SCHED] = L.STANDBY
    driver.x.announce_done(driver.mem, 0)
    assert driver.mem[L.PARK_SCHED] == L.STANDBY


# ---------------------------------------------------------------- spin briefly, then sleep
@pytest.mark.spec("SCHED-WAKE-5")
def test_an_idle_worker_uses_no_cpu():
    with Worker(3, num_sub_workers=4) as w:
        handle = w.register(lambda: None)
        w.run(lambda orch, *_: [orch.submit_sub(handle) for _ in range(20)])
        mem = w._session.engine.mem
        words = [int(mem[L.A_WORKERS]) + i * L.WORKER_WORDS + L.W_PARKED for i in range(4)]
        wait_until(lambda: mem[words].all() and mem[L.PARK_SCHED] != 0)
        family = [psutil.Process(pid) for pid in w.worker_pids()]
        family.append(family[0].parent())
        assert len({one.pid for one in family}) == 5
        before = [one.cpu_times()[:2] for one in family]
        threading.Event().wait(0.5)
        after = [one.cpu_times()[:2] for one in family]
        used = sum(map(sum, after)) - sum(map(sum, before))
        assert used <= 0.03, f"{used} s in half a second: one process that spins would use 0.5"


@pytest.mark.spec("SCHED-WAKE-5")
def test_many_more_workers_than_cores_stay_live():
    workers = 6 if INTERPRETED else 24
    with Worker(3, num_sub_workers=workers) as w:
        counts = w.share(np.zeros((workers, 1), np.int64))
        chains = [w.share(row) for row in counts]
        handle = w.register(add_one)

        def orch_fn(orch, *_):
            for _ in range(10):
                for chain in chains:
                    orch.submit_sub(handle, make_args((chain, T.INOUT)))

        w.run(orch_fn)
        assert [int(chain[0]) for chain in chains] == [10] * workers


# ---------------------------------------------------------------- a submit without a pass
@pytest.mark.spec("SCHED-WAKE-1")
def test_each_submit_runs_a_pass_though_all_workers_are_at_work():
    with ByHand() as hand:
        for _ in range(5):
            hand.orch.submit_sub(hand.sub)
            assert hand.mem[L.WIRING_TAKEN] == hand.mem[L.WIRING_PUSHED]


@pytest.mark.spec("SCHED-WAKE-6")
@pytest.mark.parametrize(
    "what", ["a worker has died", "a group", "a task is held", "none of these"]
)
def test_one_of_many_runs_a_pass_for_a_group_while_a_task_is_held_and_after_a_death(what):
    driver = Driver(sub=2, next_level=1)
    head = driver.submit(writes(0x7000))
    driver.submit()
    driver.submit(kind=L.NEXT_LEVEL)
    driver.settle()
    driver.mem[L.DEFERRED_SINCE] = what == "a task is held"
    if what == "a worker has died":
        driver.kill(int(driver.mem[L.POOL_FIRST + L.NEXT_LEVEL]))
    if what == "a group":
        slot = driver.submit_group(Member([]), Member([]))
    else:
        slot = driver.submit(reads(0x7000))
    driver.x.pass_in_bulk(driver.mem, slot)
    assert bool(driver.wiring_queue()) == (what == "none of these")
    assert driver.state(head) == RUNNING
    driver.close()


# ---------------------------------------------------------------- the orchestration function stays away
class Plain(WorkerKind):
    """Calls Python functions, as a next-level worker, so that tasks can say which one they want."""

    def run(self, callable, view, config):
        callable(view)


class Away:
    """A Worker with two workers, and a program whose orchestration function submits and then waits.

    Worker 0 ends a short task and goes on to one that does not end by itself; what waits for the short
    one is for worker 1, which is idle.
    """

    def __init__(self, depth, bulk):
        self.w = Worker(level=4, mailbox_depth=depth)
        for _ in range(2):
            self.w.add_next_level(Plain())
        self.w.init()
        self.cells = self.w.share(np.zeros((4, 8), np.int64))
        self.bulk = bulk
        self.handles = [self.w.register(one) for one in (self.short, self.service, self.after)]

    @staticmethod
    def short(args):
        cell = args.tensor(0).numpy()
        wait_until(lambda: cell[1])
        cell[0] = 1

    @staticmethod
    def service(args):
        cell = args.tensor(0).numpy()
        cell[0] = 1
        wait_until(lambda: cell[1])

    @staticmethod
    def after(args):
        args.tensor(1).numpy()[0] = 1

    def submit(self, orch, number, worker, *tensors):
        handle = self.handles[number]
        if not self.bulk:
            orch.submit_next_level(handle, make_args(*tensors), worker=worker)
            return
        columns = [[tensor] for tensor, _ in tensors]
        tags = [tag for _, tag in tensors]
        orch.submit_next_level_many(handle, columns, tags, workers=worker)

    def run(self, starts_at):
        """Let the short task end once all is submitted, and wait for the one behind it."""
        x, y, gate = self.cells[:3]

        def orchestrate(orch, *_):
            self.submit(orch, 0, 0, (x, T.OUTPUT_EXISTING))
            self.submit(orch, 1, 0, (gate, T.NO_DEP))
            self.submit(orch, 2, 1, (x, T.INPUT), (y, T.OUTPUT_EXISTING))
            try:
                starts_at(self.w._session.engine.mem)
                x[1] = 1
                wait_until(lambda: y[0])
            finally:
                x[1] = gate[1] = 1

        self.w.run(orchestrate)
        assert x[0] == y[0] == 1

    def __enter__(self):
        self.w.start()
        return self

    def __exit__(self, *_):
        self.w.close()


@pytest.mark.spec("SCHED-WAKE-7", "SPEED-MANY-8")
@pytest.mark.parametrize("depth", [1, 2, 16])
@pytest.mark.parametrize("bulk", [False, True], ids=["one by one", "many at once"])
@pytest.mark.parametrize("when", ["at once", "when the Scheduler thread sleeps"])
def test_a_ready_task_starts_on_an_idle_worker_though_the_orchestration_function_stays_away(
    depth, bulk, when
):
    def starts_at(mem):
        if when != "at once":
            wait_until(lambda: mem[L.PARK_SCHED] != 0)

    with Away(depth, bulk) as away:
        away.run(starts_at)


@pytest.mark.spec("SCHED-WAKE-7")
def test_a_worker_that_goes_on_looking_for_tasks_says_that_its_answer_is_uncollected():
    away = Away(depth=1, bulk=False)
    away.w._session.engine.mem[L.SPIN_NS] = NEVER_NS
    with away:
        away.run(lambda mem: None)


def give_nothing_ahead(driver):
    driver.mem[L.PREDISPATCH_AFTER] = 1 << 40


@pytest.mark.spec("SCHED-WAKE-7")
@pytest.mark.parametrize(
    "why",
    ["nobody waits", "who waits is in a frame", "nobody is idle", "one frame each", "nothing"],
)
def test_an_end_may_stay_unseen_while_a_task_waits_and_one_worker_of_several_is_idle(why):
    driver = Driver(sub=2, depth=1 if why == "one frame each" else 2)
    if why != "who waits is in a frame":
        give_nothing_ahead(driver)
    driver.submit(writes(0x7000))
    driver.settle()
    if why == "nobody is idle":
        driver.submit()
    driver.settle()
    if why != "nobody waits":
        driver.submit(reads(0x7000))
    driver.settle()
    assert driver.x.may_miss_an_end(driver.mem) == (why == "nothing")
    driver.close()


@pytest.mark.spec("SCHED-WAKE-7")
@pytest.mark.parametrize("how", ["one of many", "alone"])
def test_a_submit_gives_the_scheduler_thread_a_clock_while_an_end_may_stay_unseen(how):
    with Parked(timer_ns=NEVER_NS, sub=2, depth=2) as parked:
        give_nothing_ahead(parked.driver)
        parked.driver.submit(writes(0x7000))
        parked.driver.settle()
        parked.driver.set_parked(1, True)
        driver = parked.park()
        assert driver.mem[L.PARK_SCHED] == L.STANDBY
        slot = driver.submit(reads(0x7000))
        if how == "alone":
            driver.x.pass_after_submit(driver.mem)
        else:
            driver.x.pass_in_bulk(driver.mem, slot)
        wait_until(lambda: driver.mem[L.PARK_SCHED] == L.TIMED)
        left_out = driver.mem[L.WIRING_PUSHED] - driver.mem[L.WIRING_TAKEN]
        assert left_out == (how == "one of many"), "the thread was asked for no pass"


@pytest.mark.spec("SCHED-WAKE-3", "SCHED-WAKE-7")
def test_a_clock_is_given_back_when_no_end_can_stay_unseen_any_more():
    with Parked(timer_ns=200 * 10**6, sub=2, depth=2) as parked:
        driver = parked.driver
        give_nothing_ahead(driver)
        driver.submit(writes(0x7000))
        driver.settle()
        driver.submit(reads(0x7000))
        parked.park()
        assert driver.mem[L.PARK_SCHED] == L.TIMED
        driver.submit()  # now both workers are busy

        def sleeps_without():
            driver.x.orch_pass(driver.mem)  # the Orch thread still comes
            return driver.mem[L.PARK_SCHED] in (L.STANDBY, L.ACTIVE)

        wait_until(sleeps_without)


# ---------------------------------------------------------------- a waker that dies
@pytest.mark.spec("SCHED-WAKE-8")
@pytest.mark.parametrize("word", [L.PARK_ORCH, L.PARK_SCHED], ids=["Orch thread", "Scheduler"])
def test_a_death_wakes_a_sleeper_whose_park_word_was_cleared(driver, word):
    assert slept_through(driver, word, lambda: driver.kill(0)) == CHANGED


@pytest.mark.spec("SCHED-WAKE-8")
def test_the_end_wakes_a_scheduler_thread_whose_park_word_was_cleared(driver):
    stop = lambda: driver.k.stop_scheduler(driver.mem)  # noqa: E731
    assert slept_through(driver, L.PARK_SCHED, stop) == CHANGED


def slept_through(driver, word, event):
    """Let a thread fall asleep on a park word, clear the word as a waker does, and have an event.

    Returns how the thread's sleep ended.
    """
    answers = []
    driver.mem[word] = L.ACTIVE
    sleeper = threading.Thread(
        target=lambda: answers.append(driver.x.futex_wait(driver.mem, word, L.ACTIVE, 5 * 10**9))
    )
    sleeper.start()
    wait_until(lambda: asleep(sleeper))
    driver.mem[word] = 0
    event()
    sleeper.join(DEADLINE_S)
    return answers[0]
