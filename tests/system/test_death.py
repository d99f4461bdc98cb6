"""The user's program dies, or workers cannot be started. Nobody hangs, nobody is left."""

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
from simpler_ref import TensorArgType as T
from simpler_ref import Worker, WorkerStartError

from ..segments import segments
from ..support import Gate, make_args, wait_until
from .programs import Fork, dies, in_a_fork
from .workers import Bench, assert_works, mark, only, rounds, shared_words


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
                        orch.submit_sub(args, make_args((buffer, T.INOUT), scalars=[50]))

            for _ in range(rng.integers(1, 4)):
                w.run(graph, nap)
                time.sleep(rng.uniform(0, 1e-3))


@pytest.mark.spec("SCHED-DEATH-4")
@rounds(8, 300)
def test_when_the_program_is_killed_at_any_moment_everybody_ends(rounds):
    rng = np.random.default_rng(3)
    named = segments()
    for _ in range(rounds):
        with Fork(program_at_work) as program:
            time.sleep(rng.uniform(0, 0.12))
            program.kill()
            assert program.wait() == -signal.SIGKILL
            assert program.everybody_ends()
    wait_until(lambda: segments() <= named)


def test_a_program_that_becomes_another_one_takes_its_workers_with_it():
    pids, ready = shared_words(2), Gate()

    def program():
        with Bench(workers=2) as bench:
            pids[:] = bench.pids
            ready.open(1)
            os.execvp("sleep", ["sleep", "1000"])

    with ready, Fork(program) as fork:
        ready.wait()
        assert all(dies(pid) for pid in pids.tolist())
        assert psutil.Process(fork.pid).name() == "sleep"


# ---------------------------------------------------------------- a start that fails
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


@pytest.mark.parametrize("what", ["a process", "simpler-monitor", "simpler-scheduler"])
def test_a_start_that_lacks_a_process_or_thread_says_so_and_can_be_repeated(
    monkeypatch, capfd, what
):
    def no_process(self, worker):
        raise OSError(errno.EAGAIN, "no more processes")

    def no_thread(self, start=threading.Thread.start):
        if self.name == what:
            raise RuntimeError("can't start new thread")
        start(self)

    with Worker(level=3, num_sub_workers=2) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)
        with monkeypatch.context() as patch:
            if what == "a process":
                patch.setattr(simpler_ref.workers.fork_server._Server, "fork", no_process)
                with pytest.raises(WorkerStartError, match="has ended; it says on stderr why"):
                    w.run(only(ok))
                assert "no more processes" in capfd.readouterr().err
            else:
                patch.setattr(threading.Thread, "start", no_thread)
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    w.start()
            assert psutil.Process().children() == []
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

    in_a_fork(program)
