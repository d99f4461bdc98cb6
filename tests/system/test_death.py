"""Processes die: workers, the fork server, the user's program. Nobody hangs, nobody is left."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import threading
import time

import numpy as np
import psutil
import pytest

import simpler_ref.workers.fork_server
from simpler_ref import TaskArgs, TaskError, Worker, WorkerLostError, WorkerStartError
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L

from ..segments import segments
from ..support import Gate, wait_until
from .programs import Concurrently, Fork, Program, dies, eventually, terminate
from .test_failures import args_of, assert_works, mark, only


def server_of(worker) -> int:
    """Return the process of a Worker's fork server: the parent of its workers."""
    return psutil.Process(worker.worker_pids()[0]).ppid()


def wait_until_seen(worker, count=1):
    """Wait until the Worker knows that so many of its processes have died."""
    eventually(lambda: len(worker.worker_pids()) <= worker.num_sub_workers - count)


class Rig:
    """A Worker with a leaf that says who it is and waits, and one that marks."""

    def __init__(self, workers):
        self.w = Worker(level=3, num_sub_workers=workers)
        self.started, self.go = Gate(), Gate()

    def __enter__(self):
        w = self.w.__enter__()
        self.marks = w.share(np.zeros(8, np.int64))
        self.pid = w.share(np.zeros(1, np.int64))

        def wait_there():
            self.pid[0] = os.getpid()
            self.started.open(1)
            self.go.wait()

        self.busy, self.ok = w.register(wait_there), w.register(mark)
        w.start()
        return self

    def __exit__(self, *error):
        self.w.__exit__(*error)
        self.started.__exit__()
        self.go.__exit__()

    def kill_when_busy(self, number=signal.SIGKILL):
        self.started.wait()
        terminate(int(self.pid[0]), number)


# ---------------------------------------------------------------- a worker
@pytest.mark.spec("SCHED-DEATH-1", "SCHED-DEATH-3")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2, signal.SIGTERM, signal.SIGXCPU])
def test_a_worker_killed_in_a_task_fails_it_and_is_replaced(number):
    with Rig(workers=2) as rig:
        w, before = rig.w, rig.w.worker_pids()
        with (
            Concurrently(lambda: rig.kill_when_busy(number)),
            pytest.raises(WorkerLostError) as caught,
        ):
            w.run(only(rig.busy))
        error = caught.value
        assert isinstance(error, TaskError)
        assert error.status == -number
        assert error.pid == rig.pid[0] == before[error.worker]
        for word in ("task 0", "wait_there", f"sub_worker {error.worker}", f"pid {error.pid}"):
            assert word in str(error)
        assert f"killed by {number.name}" in str(error)
        assert_works(w, rig.ok, rig.marks)
        after = w.worker_pids()
        assert len(after) == 2
        assert error.pid not in after
        assert len(set(after) & set(before)) == 1


@pytest.mark.parametrize("status", [0, 3, 255])
def test_a_leaf_that_ends_its_process_fails_its_task(status):
    with Rig(workers=1) as rig:
        leave = rig.w.register(lambda: os._exit(status))
        for _ in range(3):
            with pytest.raises(WorkerLostError, match=f"exited with status {status}") as caught:
                rig.w.run(only(leave))
            assert caught.value.status == status
            assert_works(rig.w, rig.ok, rig.marks)


def test_what_depends_on_a_lost_task_does_not_run_and_the_other_worker_goes_on():
    with Rig(workers=2) as rig:
        a = rig.w.empty(1, np.int64)

        def graph(orch, args, config):
            lost = TaskArgs()
            lost.add_tensor(a, T.OUTPUT_EXISTING)
            orch.submit_sub(rig.lost, lost)
            orch.submit_sub(rig.ok, args_of((rig.marks, T.NO_DEP), (a, T.INPUT), scalars=[1]))
            for _ in range(200):
                orch.submit_sub(rig.ok, args_of((rig.marks, T.NO_DEP), scalars=[2]))

        rig.lost = rig.w.register(lambda args: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(WorkerLostError) as caught:
            rig.w.run(graph)
        assert caught.value.task == 0
        assert rig.marks[1] == 0
        assert_works(rig.w, rig.ok, rig.marks)


@pytest.mark.spec("SCHED-DEATH-2")
def test_a_worker_killed_while_idle_is_replaced_at_the_next_run():
    with Rig(workers=2) as rig:
        for round_ in range(5):
            victim = rig.w.worker_pids()[round_ % 2]
            terminate(victim)
            wait_until_seen(rig.w)
            assert_works(rig.w, rig.ok, rig.marks)
            assert len(rig.w.worker_pids()) == 2
            assert victim not in rig.w.worker_pids()


def test_workers_killed_together_are_all_replaced():
    with Rig(workers=4) as rig:
        before = rig.w.worker_pids()
        for pid in before:
            terminate(pid)
        wait_until_seen(rig.w, 4)
        assert_works(rig.w, rig.ok, rig.marks)
        assert len(rig.w.worker_pids()) == 4
        assert not set(before) & set(rig.w.worker_pids())


@pytest.mark.spec("SCHED-DEATH-2")
def test_tasks_fail_when_every_worker_dies_in_the_run():
    with Rig(workers=2) as rig:
        die = rig.w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))

        def graph(orch, args, config):
            for _ in range(50):
                orch.submit_sub(die)

        with pytest.raises(TaskError):
            rig.w.run(graph)
        assert_works(rig.w, rig.ok, rig.marks)

        def while_nothing_runs(orch, args, config):
            for pid in rig.w.worker_pids():
                terminate(pid)
            wait_until_seen(rig.w, 2)
            orch.submit_sub(rig.ok, args_of((rig.marks, T.NO_DEP), scalars=[3]))

        with pytest.raises(TaskError, match=r"level 3 sub_worker.*workers it needs have died"):
            rig.w.run(while_nothing_runs)
        assert_works(rig.w, rig.ok, rig.marks)


def test_deaths_at_random_moments_never_hang_a_run():
    rng = np.random.default_rng(11)
    with Rig(workers=3) as rig:
        count = 60
        marks = rig.w.empty(count, np.int64)

        def graph(orch, args, config):
            for i in range(count):
                orch.submit_sub(rig.ok, args_of((marks, T.NO_DEP), scalars=[i]))

        for _ in range(60):
            pids = rig.w.worker_pids()
            victims = rng.choice(pids, size=min(len(pids), rng.integers(1, 4)), replace=False)
            pause = float(rng.uniform(0, 2e-3))

            def terminate_them(victims=victims, pause=pause):
                time.sleep(pause)
                for pid in victims:
                    terminate(int(pid))

            marks[:] = 0
            with Concurrently(terminate_them), contextlib.suppress(TaskError):
                rig.w.run(graph)
                assert (marks == 1).all()
        assert_works_eventually(rig)


def assert_works_eventually(rig):
    """A worker may have been killed a moment ago, unseen as yet: one run may still meet it."""
    while True:
        try:
            return assert_works(rig.w, rig.ok, rig.marks)
        except WorkerLostError:
            continue


def test_a_stopped_worker_does_not_keep_close_waiting_for_ever(monkeypatch):
    monkeypatch.setattr(simpler_ref.workers.fork_server, "GRACE_S", 0.2)
    with Rig(workers=2) as rig:
        pid = rig.w.worker_pids()[0]
        terminate(pid, signal.SIGSTOP)
    assert dies(pid)


def test_a_stopped_worker_continues_its_task_when_it_may():
    with Rig(workers=1) as rig:

        def stop_and_continue():
            rig.kill_when_busy(signal.SIGSTOP)
            rig.go.open()
            eventually(lambda: psutil.Process(int(rig.pid[0])).status() == psutil.STATUS_STOPPED)
            terminate(int(rig.pid[0]), signal.SIGCONT)

        with Concurrently(stop_and_continue):
            rig.w.run(only(rig.busy))


# ---------------------------------------------------------------- the fork server
def test_a_killed_fork_server_takes_its_workers_with_it_and_both_are_replaced():
    with Rig(workers=2) as rig:
        for _ in range(2):
            pids, server = rig.w.worker_pids(), server_of(rig.w)
            terminate(server)
            assert all(dies(pid) for pid in pids)
            wait_until_seen(rig.w, 2)
            assert_works(rig.w, rig.ok, rig.marks)
            assert not {server, *pids} & {server_of(rig.w), *rig.w.worker_pids()}


def test_a_fork_server_killed_in_a_run_fails_it_and_the_next_run_has_another():
    with Rig(workers=2) as rig:
        server = server_of(rig.w)

        def kill_it():
            rig.started.wait()
            terminate(server)

        with Concurrently(kill_it), pytest.raises(WorkerLostError, match="SIGKILL"):
            rig.w.run(only(rig.busy))
        assert_works(rig.w, rig.ok, rig.marks)


def test_a_stopped_fork_server_does_not_keep_close_waiting_for_ever(monkeypatch):
    monkeypatch.setattr(simpler_ref.workers.processes, "GRACE_S", -1.8)
    with Rig(workers=2) as rig:
        pids = [server_of(rig.w), *rig.w.worker_pids()]
        terminate(pids[0], signal.SIGSTOP)
    assert all(dies(pid) for pid in pids)


# ---------------------------------------------------------------- the program
def program_at_work():
    """Open a Worker and run graphs for ever, with failures and pauses in between."""
    rng = np.random.default_rng()
    while True:
        with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 20) as w:
            nap = w.register(lambda args: time.sleep(args.scalar(0) / 1e6))

            def graph(orch, args, config):
                for _ in range(rng.integers(10)):
                    with orch.scope():
                        buffer = orch.alloc(1000, np.uint8)
                        orch.submit_sub(args, args_of((buffer, T.INOUT), scalars=[50]))

            for _ in range(rng.integers(1, 4)):
                w.run(graph, nap)
                time.sleep(rng.uniform(0, 1e-3))


@pytest.mark.spec("SCHED-DEATH-4")
def test_when_the_program_is_killed_at_any_moment_everybody_ends():
    rng = np.random.default_rng(3)
    named = segments()
    for _ in range(60):
        with Fork(program_at_work) as program:
            time.sleep(rng.uniform(0, 0.12))
            program.kill()
            assert program.wait() == -signal.SIGKILL
            assert program.everybody_ends()
    wait_until(lambda: segments() <= named)


def hang_in_a_task():
    with Worker(level=3, num_sub_workers=2) as w:
        w.run(only(w.register(lambda: time.sleep(1000))))


@pytest.mark.spec("SCHED-DEATH-4")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_when_the_program_dies_of_a_signal_busy_workers_end_too(number):
    with Fork(hang_in_a_task) as program:
        children = psutil.Process(program.pid)
        eventually(lambda: len(children.children(recursive=True)) == 3)
        program.kill(number)
        assert program.wait() == -number
        assert program.everybody_ends()


def test_a_signal_to_the_whole_process_group_ends_everybody():
    with Program(
        """
        with Worker(level=3, num_sub_workers=2) as w:
            h = w.register(lambda: (say("busy"), time.sleep(1000)))
            w.run(lambda orch, args, config: orch.submit_sub(h))
        """
    ) as program:
        program.wait_for("busy")
        program.signal_group(signal.SIGTERM)
        assert program.finish()[0] == -signal.SIGTERM
        assert program.everybody_ends()


def test_a_process_forked_behind_pythons_back_keeps_no_worker_alive():
    """It holds copies of every descriptor, so that none of them reads end-of-file."""
    with Program(
        """
        import ctypes
        w = Worker(level=3, num_sub_workers=2)
        w.init()
        w.start()
        if ctypes.PyDLL(None).fork() == 0:
            while True:
                time.sleep(1)
        say("pids " + " ".join(map(str, w.worker_pids())))
        signal.pause()
        """
    ) as program:
        pids = [int(word) for word in program.wait_for("pids").split()]
        program.process.kill()
        assert all(dies(pid) for pid in pids)
        program.signal_group(signal.SIGKILL)
        assert program.everybody_ends()


def test_a_program_that_becomes_another_one_takes_its_workers_with_it():
    with Program(
        """
        w = Worker(level=3, num_sub_workers=2)
        w.init()
        w.start()
        pids = " ".join(map(str, w.worker_pids()))
        os.execv(sys.executable, [sys.executable, "-c", f"print('pids {pids}', flush=True); input()"])
        """
    ) as program:
        pids = [int(word) for word in program.wait_for("pids").split()]
        assert len(pids) == 2
        assert all(dies(pid) for pid in pids)
        program.tell("")
        assert program.finish()[0] == 0


def test_a_stopped_program_can_go_on():
    with Program(
        """
        with Worker(level=3, num_sub_workers=2) as w:
            h = w.register(lambda: None)
            def graph(orch, args, config):
                for _ in range(10):
                    orch.submit_sub(h)
            w.run(graph)
            say("ready")
            input()
            for _ in range(100):
                w.run(graph)
        """
    ) as program:
        program.wait_for("ready")
        program.signal_group(signal.SIGSTOP)
        eventually(lambda: psutil.Process(program.process.pid).status() == psutil.STATUS_STOPPED)
        program.signal_group(signal.SIGCONT)
        program.tell("")
        assert program.finish() == (0, "", "")
        assert program.everybody_ends()


def test_a_worker_does_not_survive_a_start_that_failed(monkeypatch):

    with Worker(level=3, num_sub_workers=2, start_timeout_s=1.0) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)
        monkeypatch.setattr(simpler_ref.workers.processes, "GRACE_S", 0.1)
        monkeypatch.setattr(simpler_ref.workers.fork_server, "GRACE_S", 0.1)
        with monkeypatch.context() as patch:
            patch.setattr(
                simpler_ref.workers.fork_server, "serve_mailbox", lambda *_, **__: time.sleep(1000)
            )
            with pytest.raises(WorkerStartError, match=r"sub_worker 0 \(pid \d+\).*silent"):
                w.start()
            assert w.worker_pids() == []
        # from here on there is time: a slow machine must not look like a silent worker
        w._session.start_timeout_s = 30.0
        with monkeypatch.context() as patch:
            patch.setattr(
                simpler_ref.workers.fork_server, "serve_mailbox", lambda *_, **__: os._exit(7)
            )
            with pytest.raises(WorkerStartError, match="exited with status 7"):
                w.run(only(ok))
        assert_works(w, ok, marks)


def test_a_dead_worker_whose_successor_fails_to_start_is_no_obstacle_later(monkeypatch):
    with Rig(workers=2) as rig:
        terminate(rig.w.worker_pids()[0])
        wait_until_seen(rig.w)
        with monkeypatch.context() as patch:

            def interrupted(*_):
                raise KeyboardInterrupt

            patch.setattr(rig.w._session.manager, "_wait_ready", interrupted)
            with pytest.raises(KeyboardInterrupt):
                rig.w.run(only(rig.ok, args_of((rig.marks, T.INOUT), scalars=[0])))
        assert rig.marks.tolist() == [0] * 8
        assert_works(rig.w, rig.ok, rig.marks)
        assert len(rig.w.worker_pids()) == 2
        assert rig.w._session.engine.mem[L.LIVE] == 0


def test_a_fork_server_that_cannot_fork_says_so_and_the_next_start_works(monkeypatch, capfd):
    with Worker(level=3, num_sub_workers=2) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)
        with monkeypatch.context() as patch:

            def refuse(self, worker):
                raise OSError(errno.EAGAIN, "no more processes")

            patch.setattr(simpler_ref.workers.fork_server._Server, "fork", refuse)
            with pytest.raises(WorkerStartError, match=r"has ended; it says on stderr why"):
                w.run(only(ok))
            assert "no more processes" in capfd.readouterr().err
        assert_works(w, ok, marks)


def test_a_start_that_lacks_descriptors_leaves_nothing_and_can_be_repeated():
    def program():
        w = Worker(level=3, num_sub_workers=8)  # more than the server has descriptors to give back
        w.init()
        ok = w.register(mark)
        marks = w.share(np.zeros(4, np.int64))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = psutil.Process().num_fds()
        fillers, failed = [], 0
        while not w.worker_pids():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(0))
            for _ in range(failed):
                os.close(fillers.pop())
            with contextlib.suppress(OSError, WorkerStartError):
                w.start()
            for filler in fillers:
                os.close(filler)
            fillers.clear()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if not w.worker_pids():
                failed += 1
                assert psutil.Process().num_fds() == before
                assert psutil.Process().children() == []
        assert failed > 3  # each of them lacked one more
        assert_works(w, ok, marks)
        w.close()

    with Fork(program) as fork:
        assert fork.wait() == 0
        assert fork.everybody_ends()


@pytest.mark.parametrize("name", ["simpler-monitor", "simpler-scheduler"])
def test_a_start_that_lacks_a_thread_leaves_nothing_and_can_be_repeated(monkeypatch, name):
    with Worker(level=3, num_sub_workers=2) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)
        with monkeypatch.context() as patch:
            start = threading.Thread.start

            def refuse(self):
                if self.name == name:
                    raise RuntimeError("can't start new thread")
                start(self)

            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                w.start()
            assert psutil.Process().children() == []
        assert_works(w, ok, marks)
