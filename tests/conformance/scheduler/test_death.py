"""SCHED-DEATH: processes that die."""

import os
import re
import signal
import threading
import time

import numpy as np
import psutil
import pytest

from simpler_ref import TaskError, Worker, WorkerLostError
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import (
    COMPLETED,
    FAILED,
    READY,
    RUNNING,
    Gate,
    make_args,
    reads,
    sample,
    wait_until,
)
from tests.system.programs import Concurrently, Fork

KEY = 0x7000_0000
FEW_S = 5.0
"""A guard: how long a task waits to hear of a death that happens at once."""


@pytest.mark.spec("SCHED-DEATH-1")
@pytest.mark.parametrize(
    ("status", "words"),
    [(-signal.SIGKILL, "SIGKILL"), (-signal.SIGUSR1, "SIGUSR1"), (7, "exited with status 7")],
)
def test_a_worker_that_dies_in_a_task_fails_it_and_says_which_and_how(status, words):
    with Worker(3, num_sub_workers=1) as w:
        quick = w.register(lambda: None)

        @w.register
        def last():
            if status < 0:
                os.kill(os.getpid(), -status)
            os._exit(status)

        w.start()
        [pid] = w.worker_pids()
        with pytest.raises(WorkerLostError) as failure:
            w.run(lambda orch, *_: [orch.submit_sub(one) for one in (quick, last)])
        error = failure.value
        assert isinstance(error, TaskError)
        assert (error.task, error.worker, error.pid, error.status) == (1, 0, pid, status)
        who = rf"sub_worker 0 \(pid {pid}\), task 1 \(.*last\)"
        assert re.search(f"{who}.*{words}", str(error))


@pytest.mark.spec("SCHED-DEATH-1")
@pytest.mark.parametrize("orch", ["submits", "looks on"])
def test_a_death_is_known_while_the_task_of_another_worker_goes_on(orch):
    """No other event comes that could bring it to light: the other task waits to hear of it."""
    with Gate() as started, Gate() as heard, Worker(3, num_sub_workers=2) as w:
        in_time = w.share(np.zeros(1, np.int64))

        def wait_to_hear():
            started.open(1)
            in_time[0] = heard.opens(FEW_S)

        die = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
        wait, nothing = w.register(wait_to_hear), w.register(lambda: None)

        def orch_fn(this, *_):
            this.submit_sub(wait)
            started.wait()
            this.submit_sub(die)
            if orch == "looks on":
                wait_until(lambda: this._mem[L.RUN_ERROR] != 0)
            else:
                with pytest.raises(WorkerLostError):
                    while True:
                        this.submit_sub(nothing)
                        time.sleep(0.01)
            heard.open()

        with pytest.raises(WorkerLostError):
            w.run(orch_fn)
        assert in_time[0], f"the death was not known after {FEW_S} s"


@pytest.mark.spec("SCHED-DEATH-2")
@pytest.mark.parametrize("admitted", ["before", "after", "after a pass"])
def test_a_worker_that_dies_idle_or_before_it_is_admitted_gets_no_task(make_driver, admitted):
    driver = make_driver(usable=False)
    driver.k.set_usable(driver.mem, 1, 1)
    if admitted == "before":
        driver.k.set_usable(driver.mem, 0, 1)
    driver.kill(0)
    if admitted != "after":
        driver.run_pass()
    if admitted != "before":
        driver.k.set_usable(driver.mem, 0, 1)
    driver.settle()
    slots = [driver.submit() for _ in range(3)]
    driver.finish_everything()
    assert [driver.worker_of(slot) for slot in slots] == [1, 1, 1]
    assert driver.states(*slots) == [COMPLETED] * 3


@pytest.mark.spec("SCHED-DEATH-2")
def test_without_a_live_worker_of_its_type_a_task_fails_instead_of_waiting(make_driver):
    driver = make_driver(sub=2, next_level=1)
    waiting = [driver.submit() for _ in range(4)]
    dependent, other = driver.submit(reads(KEY)), driver.start(kind=L.NEXT_LEVEL)
    assert driver.states(*waiting) == [RUNNING, RUNNING, READY, READY]
    for worker in (1, 2):
        driver.kill(worker)
    driver.settle()
    assert driver.states(*waiting, dependent) == [FAILED] * 5
    assert driver.state(other) == RUNNING, "a worker of the other type goes on"
    driver.finish_everything()
    assert driver.state(other) == COMPLETED


@pytest.mark.spec("SCHED-DEATH-3")
def test_a_dead_worker_is_replaced_at_the_next_run():
    with Worker(3, num_sub_workers=3) as w:
        pid = w.share(np.zeros(1, np.int64))
        note = w.register(lambda: pid.__setitem__(0, os.getpid()))
        die = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
        w.start()
        ourselves = psutil.Process()

        def held():
            return ourselves.num_fds(), len(ourselves.memory_maps(grouped=False))

        fds, maps = held()
        for when in ("in a task", "between runs") * 2:
            alive = set(w.worker_pids())
            if when == "in a task":
                with pytest.raises(WorkerLostError):
                    w.run(lambda orch, *_: orch.submit_sub(die))
            else:
                os.kill(w.worker_pids()[1], signal.SIGKILL)
            wait_until(lambda: len(w.worker_pids()) == 2)
            w.run(lambda orch, *_: orch.submit_sub(note))
            now = set(w.worker_pids())
            assert len(now) == 3
            assert len(now & alive) == 2, "one successor, the others stay"
            assert pid[0] in now
            children = psutil.Process(now.pop()).parent().children()
            assert {child.pid for child in children} == set(w.worker_pids()), "no zombie is left"
            assert psutil.STATUS_ZOMBIE not in {child.status() for child in children}
        assert held()[0] == fds
        assert held()[1] <= maps + 8, "nothing that grows with the dead"


@pytest.mark.spec("SCHED-DEATH-3")
def test_a_death_that_is_reported_late_does_not_hit_the_successor(monkeypatch):
    """The monitor thread is held up where it reports a death; meanwhile the next run begins."""
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(lambda: None)
        w.start()
        kernels = w._session.engine.kernels
        reported = kernels.report_death

        def slowly(*args):
            time.sleep(0.2)
            return reported(*args)

        monkeypatch.setattr(kernels, "report_death", slowly)
        for _ in range(2):
            os.kill(w.worker_pids()[0], signal.SIGKILL)
            wait_until(lambda: not w.worker_pids())
            w.run(lambda orch, *_: orch.submit_sub(handle))


@pytest.mark.spec("SCHED-DEATH-4")
@pytest.mark.parametrize("method", sample(["fork", "spawn"], 1))
@pytest.mark.parametrize("how", sample(["SIGKILL", "SIGTERM", "os._exit", "SIGHUP"], 2))
def test_when_the_parent_dies_every_process_it_started_ends(how, method):
    """One of its workers is busy, the others are idle."""

    def program():
        w = Worker(3, num_sub_workers=3, start_method=method)
        w.init()
        handle = w.register(lambda: (busy.open(1), threading.Event().wait()))

        def orch_fn(orch, *_):
            orch.submit_sub(handle)
            if how == "os._exit":
                busy.wait()
                os._exit(0)
            threading.Event().wait()

        w.run(orch_fn)

    with Gate() as busy, Fork(program) as fork:
        if how != "os._exit":
            busy.wait()
            fork.kill(signal.Signals[how])
        fork.wait()
        assert fork.everybody_ends()


@pytest.mark.spec("SCHED-DEATH-5")
@pytest.mark.parametrize("method", sample(["fork", "spawn"], 1))
@pytest.mark.parametrize("who", sample(["below", "worker", "fork server"], 2))
def test_a_run_ends_when_all_processes_below_a_killed_one_have_ended(who, method):
    level3 = Worker(3, num_sub_workers=1, start_method=method)
    level4, w = Worker(4, start_method=method), Worker(5, start_method=method)
    level4.add_worker(level3)
    w.add_worker(level4)

    @level3.register
    def count_for_long(args):
        array, end = args.tensor(0).numpy(), time.monotonic() + 60
        while time.monotonic() < end:
            array[0] += 1

    @level4.register
    def below(orch, args, config):
        orch.submit_sub(count_for_long, make_args((args.tensor(0), T.INOUT)))

    @w.register
    def above(orch, args, config):
        orch.submit_next_level(below, make_args((args.tensor(0), T.INOUT)))

    with w:
        array = w.zeros(1)
        w.start()
        child = psutil.Process(w.worker_pids()[0])
        others = child.children(recursive=True)
        victim = {"worker": child, "fork server": child.parent(), "below": others[1]}[who]

        def kill():
            wait_until(lambda: array[0] > 0)
            victim.kill()

        with Concurrently(kill), pytest.raises(TaskError):
            w.run(lambda orch, *_: orch.submit_next_level(above, make_args((array, T.INOUT))))
        array[0] = 0
        time.sleep(0.01)
        assert array[0] == 0
        w.run(lambda *_: None)
