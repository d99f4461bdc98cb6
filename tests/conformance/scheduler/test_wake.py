"""SCHED-WAKE: parking and waking."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from simpler_ref import Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import (
    COMPLETED,
    DEADLINE_S,
    READY,
    RUNNING,
    Driver,
    make_args,
    reads,
    wait_until,
    writes,
)

KEY = 0x7000
NEVER_NS = 1 << 60
ALWAYS_ACTIVE = -1
"""A timer for the Scheduler thread: it is on duty each time it parks."""
EACH_PARK_WORD = pytest.mark.parametrize(
    "word", [L.PARK_ORCH, L.PARK_SCHED], ids=["Orch thread", "Scheduler"]
)


class Parked(Driver):
    """A driver with a Scheduler thread, which never wakes by itself once it has parked."""

    def __init__(self, timer_ns=NEVER_NS, **size):
        super().__init__(**size)
        self.mem[L.PARK_NS] = NEVER_NS
        self.thread = threading.Thread(target=self.k.scheduler_loop, args=(self.mem, timer_ns))

    def park(self):
        """Start the thread, and come back when it has parked."""
        self.thread.start()
        wait_until(lambda: self.mem[L.PARK_SCHED] != 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.thread.is_alive():
            self.k.stop_scheduler(self.mem)
            self.thread.join(DEADLINE_S)
            assert not self.thread.is_alive()
        self.close()


@contextmanager
def draining(driver):
    """Drain on another thread meanwhile, which parks without spinning; in the end it has drained."""
    driver.mem[[L.PARK_NS, L.SPIN_NS]] = NEVER_NS, 0
    with ThreadPoolExecutor(1) as threads:
        drained = threads.submit(driver.k.help_scheduler, driver.mem, 0, -1, -1, L.NONE, NEVER_NS)
        yield
        assert drained.result(2 * DEADLINE_S) == L.OK


def finish(driver, slot):
    """Answer a task as its worker does, which then says so."""
    driver.post_done(driver.worker_of(slot))
    driver.x.announce_done(driver.mem, driver.worker_of(slot))


@pytest.mark.spec("SCHED-WAKE-1")
@EACH_PARK_WORD
def test_a_worker_says_that_it_has_answered_before_it_waits_for_more(driver, word):
    driver.mem[L.SPIN_NS] = 0
    driver.start()
    driver.mem[word] = L.ACTIVE
    assert driver.k.finish_and_receive(driver.mem, 0, 0) == L.PARK
    assert driver.mailbox_state(0) == (L.TASK_DONE, 0)
    assert driver.mem[word] == 0, "woken, though the worker has not parked yet"


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.kernels
def test_a_completion_that_nobody_collects_wakes_a_scheduler_that_is_off_duty():
    with Parked() as driver:
        slot = driver.start()
        driver.park()
        finish(driver, slot)
        assert driver.mem[L.PARK_SCHED] == L.STANDBY, "the Orch thread may be running passes"
        assert driver.state(slot) == RUNNING
        driver.x.announce_uncollected(driver.mem, 0)
        wait_until(lambda: driver.state(slot) == COMPLETED)


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.kernels
def test_a_cancel_is_acted_on_though_the_scheduler_thread_sleeps():
    with Parked(ALWAYS_ACTIVE, sub=1) as driver:
        running, *waiting = [driver.submit() for _ in range(4)]
        driver.run_pass()
        driver.park()
        driver.finish_run(cancel=True)
        with draining(driver):
            wait_until(lambda: READY not in driver.states(*waiting))
            assert driver.given(0) == running
            finish(driver, running)


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.kernels
@pytest.mark.parametrize("event", ["completion", "death", "pass of the other thread"])
def test_each_event_wakes_an_orch_thread_that_drains(event):
    with Parked(sub=1) as driver:
        slot = driver.start()
        driver.finish_run()
        with draining(driver):
            wait_until(lambda: driver.mem[L.PARK_ORCH] != 0)
            if event == "completion":
                finish(driver, slot)
            elif event == "death":
                driver.kill(0)
            else:
                driver.post_done(0)  # its worker has not said so yet
                driver.thread.start()
        assert driver.live() == 0


@pytest.mark.spec("SCHED-WAKE-2")
@pytest.mark.parametrize("what", ["a mailbox to set idle", "a death"])
def test_the_look_before_parking_sees_work_of_which_nobody_is_told(driver, what):
    """What else there may be, tests/property/test_random_graphs.py compares after each step."""
    slot = driver.start()
    if what == "a death":
        driver.mem[L.DEATHS] += 1
    else:
        driver.answer_task(slot)
    assert driver.x.has_work(driver.mem)
    driver.settle()
    assert not driver.x.has_work(driver.mem), "and when it is done, there is nothing left"


@pytest.mark.spec("SCHED-WAKE-2")
@pytest.mark.kernels
def test_the_scheduler_thread_does_not_sleep_on_work_that_came_before_it_parked():
    """It finds the pass taken, announces that it parks, and looks again: nobody will wake it."""
    with Parked(ALWAYS_ACTIVE, sub=1) as driver:
        assert driver.x.try_lock(driver.mem)
        driver.submit()
        driver.park()
        driver.x.unlock(driver.mem)
        wait_until(lambda: driver.mem[L.BUSY] == 1)


@pytest.mark.spec("SCHED-WAKE-2")
@pytest.mark.parametrize("what", ["a wiring entry", "a consumed task"])
def test_a_draining_thread_does_not_sleep_on_work_that_came_before_it_parked(make_driver, what):
    driver = make_driver(sub=1)
    slot = driver.submit()
    driver.finish_run()
    if what == "a consumed task":
        driver.finish(slot)
        assert driver.consumed_list() == [slot]
    assert driver.x.try_lock(driver.mem)
    with draining(driver):
        wait_until(lambda: driver.mem[L.PARK_ORCH] != 0)
        driver.x.unlock(driver.mem)
        if what == "a wiring entry":
            wait_until(lambda: driver.mem[L.BUSY] == 1)
            finish(driver, slot)


def status(thread, name):
    """Return what the kernel tells of a thread."""
    with open(f"/proc/self/task/{thread.native_id}/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(name))


def asleep(thread):
    return status(thread, "State") == "S"


@pytest.mark.spec("SCHED-WAKE-3")
@pytest.mark.kernels
@pytest.mark.parametrize("timer_ns", [ALWAYS_ACTIVE, NEVER_NS], ids=["active", "standby"])
def test_a_parked_scheduler_thread_and_a_parked_worker_sleep_until_they_are_woken(timer_ns):
    with Parked(timer_ns) as driver:
        driver.park()
        driver.mem[L.SPIN_NS] = 0
        worker = threading.Thread(target=driver.x.park_and_receive, args=(driver.mem, 0))
        worker.start()
        try:
            wait_until(lambda: driver.word(0, L.W_PARKED) == 1)
            for thread in (driver.thread, worker):
                wait_until(lambda thread=thread: asleep(thread))
                before = int(status(thread, "voluntary_ctxt_switches"))
                threading.Event().wait(0.1)
                times_asleep = int(status(thread, "voluntary_ctxt_switches")) - before
                assert times_asleep <= 1, "it looks again and again"
        finally:
            driver.k.request_stop(driver.mem, 0)
            worker.join(DEADLINE_S)


@pytest.mark.spec("SCHED-WAKE-3", "SCHED-WAKE-5")
@pytest.mark.parametrize("workers", [1, 6, pytest.param(24, marks=pytest.mark.long)])
def test_every_graph_finishes_with_waits_that_never_time_out(monkeypatch, workers):
    """The orchestration function drains at times, and at others looks on until all is done."""
    for name in (
        *("engine.memory.PARK_NS", "engine.memory.TIMER_NS", "orch.orchestrator.PARK_NS"),
        *("workers.session.PARK_NS", "workers.manager.PARK_NS"),
    ):
        monkeypatch.setattr(f"simpler_ref.{name}", NEVER_NS)
    rng = random.Random(workers)
    with Worker(3, num_sub_workers=workers) as w:
        buffers = [w.share(np.zeros(1, np.int64)) for _ in range(6)]
        expected = np.zeros((6, 1), np.int64)
        assert w._session.engine.mem[L.PARK_NS] == NEVER_NS

        @w.register
        def add_one(args):
            for i in range(args.tensor_count()):
                args.tensor(i).numpy()[...] += 1

        def orch_fn(orch, *_):
            for _ in range(100):
                chosen = rng.sample(range(6), rng.randint(1, 3))
                expected[chosen] += 1
                orch.submit_sub(add_one, make_args(*[(buffers[i], T.INOUT) for i in chosen]))
                if rng.random() < 0.05:
                    os.sched_yield()
                if rng.random() < 0.1:
                    wait_until(lambda: np.array_equal(buffers, expected))
                if rng.random() < 0.2:
                    orch.drain()
                    assert np.array_equal(buffers, expected)

        for _ in range(5):
            w.run(orch_fn)
            assert np.array_equal(buffers, expected)


class Sleeper(threading.Thread):
    """A thread that sleeps on a word which has a value, until it is woken; but no longer than 5 s."""

    def __init__(self, driver, word, value=0):
        super().__init__()
        self.driver, self.word, self.value = driver, word, value
        self.start()
        wait_until(lambda: asleep(self))

    def run(self):
        driver, limit_ns = self.driver, 5 * 10**9
        self.end = driver.x.futex_wait(driver.mem, self.word, self.value, limit_ns)

    def was_woken(self):
        self.join(DEADLINE_S)
        return self.end == L.OK

    def sleeps_on(self):
        """Say whether it is still asleep, and wake it."""
        self.join(0.1)
        alive = self.is_alive()
        self.driver.x.futex_wake(self.driver.mem, self.word)
        self.join(DEADLINE_S)
        return alive


@pytest.mark.spec("SCHED-WAKE-4")
@EACH_PARK_WORD
def test_who_has_not_announced_to_park_is_not_woken(driver, word):
    """A thread sleeps on the park word without having said so: no event may end its sleep."""
    sleeper = Sleeper(driver, word)
    finish(driver, driver.start())
    driver.x.announce_uncollected(driver.mem, 0)
    driver.x.notify(driver.mem, word)
    driver.k.submit_and_pass(driver.mem, L.SUB << L.WORD_KIND, 0, 0, b"")
    assert sleeper.sleeps_on()


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

        def cpu_s():
            return sum(sum(one.cpu_times()[:2]) for one in family)

        before = cpu_s()
        threading.Event().wait(0.5)
        used = cpu_s() - before
        assert used <= 0.03, f"{used} s in half a second: one process that spins would use 0.5"


@pytest.mark.spec("SCHED-WAKE-7")
@pytest.mark.parametrize(
    "why",
    ["nobody waits", "who waits is in a frame", "nobody is idle", "one frame each", "nothing"],
)
def test_an_end_may_stay_unseen_while_a_task_waits_and_one_of_several_is_idle(make_driver, why):
    driver = make_driver(sub=2, depth=1 if why == "one frame each" else 2)
    if why != "who waits is in a frame":
        driver.mem[L.PREDISPATCH_AFTER] = 1 << 40  # nothing is given ahead
    driver.start(writes(KEY))
    if why == "nobody is idle":
        driver.start()
    if why != "nobody waits":
        driver.start(reads(KEY))
    driver.settle()
    assert driver.x.may_miss_an_end(driver.mem) == (why == "nothing")


@pytest.mark.spec("SCHED-WAKE-4")
@pytest.mark.parametrize(
    ("word", "event"),
    [(L.PARK_ORCH, "a death"), (L.PARK_SCHED, "a death"), (L.PARK_SCHED, "the end")],
)
def test_a_death_and_the_end_wake_a_sleeper_whose_park_word_was_cleared(driver, word, event):
    driver.mem[word] = L.ACTIVE
    sleeper = Sleeper(driver, word, L.ACTIVE)
    driver.mem[word] = 0  # as a waker does first
    if event == "a death":
        driver.kill(0)
    else:
        driver.k.stop_scheduler(driver.mem)
    assert sleeper.was_woken()
