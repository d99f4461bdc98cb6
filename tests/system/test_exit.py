"""The end: close, exit without close, forgotten Workers, forks of the program, and what is printed."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest

from simpler_ref import TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED

from .programs import (
    Concurrently,
    Fork,
    Program,
    check_program,
    dies,
    eventually,
    run_program,
    terminate,
)
from .test_failures import args_of, assert_works, mark, only

QUIET = ("-W", "error", "-X", "dev")
"""Warnings are errors, and Python looks harder."""

USE = """
def touch(args):
    args.tensor(0).numpy()[0] += 1

def use(w):
    w.init()
    x = w.share(np.zeros(1, np.int32))
    h = w.register(touch)
    def graph(orch, args, config):
        a = TaskArgs()
        a.add_tensor(x, T.INOUT)
        orch.submit_sub(h, a)
    w.run(graph)
    assert x[0] == 1
"""


# ---------------------------------------------------------------- exit
@pytest.mark.spec("ORCH-RUN-9")
@pytest.mark.parametrize(
    "ending",
    [
        "",
        "del w",
        "w.close()",
        "w.close(); w.close()",
        "keep = w.share(np.ones(9)); w.close(); assert keep.sum() == 9",
        "w.self = w; del w",
        "import atexit; atexit.register(w.close)",
        "w2 = Worker(level=3, num_sub_workers=2); use(w2)",
    ],
)
def test_a_program_may_end_without_close_and_says_nothing(ending):
    source = f"{USE}\nw = Worker(level=3, num_sub_workers=2)\nuse(w)\n{ending}\n"
    assert check_program(source, *QUIET) == ""


@pytest.mark.parametrize(
    "body, code, last",
    [
        ("raise ValueError('unhandled')", 1, "ValueError: unhandled"),
        ("sys.exit(5)", 5, ""),
        ("w.run(lambda *_: sys.exit(6))", 6, ""),
        ("w.run(lambda *_: 1 / 0)", 1, "ZeroDivisionError: division by zero"),
        ("with w2: w2.run(lambda *_: sys.exit(7))", 7, ""),
        ("import atexit; atexit.register(lambda: 1 / 0)", 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_the_exit_code_is_the_programs_own(body, code, last):
    source = f"{USE}\nw = Worker(level=3, num_sub_workers=2)\nuse(w)\n"
    got, out, err = run_program(f"{source}w2 = Worker(level=3, num_sub_workers=1)\n{body}", *QUIET)
    assert (got, out) == (code, "")
    assert err.strip().endswith(last)
    assert "resource_tracker" not in err
    assert "leaked" not in err


@pytest.mark.parametrize(
    "moment", ["before init", "after init", "after start", "in a run", "in one run after the other"]
)
def test_a_program_may_end_at_any_stage(moment):
    source = {
        "before init": "w = Worker(level=3, num_sub_workers=2)",
        "after init": "w = Worker(level=3, num_sub_workers=2); w.init()",
        "after start": "w = Worker(level=3, num_sub_workers=2); w.init(); w.start()",
        "in a run": """
            w = Worker(level=3, num_sub_workers=2)
            h = w.register(lambda: say("busy") or time.sleep(0.2))
            w.init()
            w.start()
            run = lambda: w.run(lambda orch, *_: orch.submit_sub(h))
            threading.Thread(target=run, daemon=True).start()
            while not w._life.running:
                time.sleep(0.001)
        """,
        "in one run after the other": """
            w = Worker(level=3, num_sub_workers=2)
            h = w.register(lambda: None)
            w.init()
            def work():
                while True:
                    w.run(lambda orch, *_: orch.submit_sub(h))
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.3)
        """,
    }[moment]
    code, _, err = run_program(source, *QUIET)
    assert (code, err) == (0, "")


def test_a_program_without_stdin_stdout_and_stderr_works():
    source = USE + "w = Worker(level=3, num_sub_workers=2); use(w); w.close(); os._exit(9)"
    for closed in ("0", "1", "2", "012"):
        script = f"for fd in {closed!r}: os.close(int(fd))\n"
        code, _, _ = run_program(script + "sys.stdout = sys.stderr = None\n" + source)
        assert code == 9, closed


def test_a_broken_stdout_harms_nobody_but_the_one_who_prints():
    check_program(
        USE
        + """
class Broken:
    def write(self, text): return len(text)
    def flush(self): raise OSError("broken")

real, sys.stdout = sys.stdout, Broken()
w = Worker(level=3, num_sub_workers=2)
use(w)
w.close()
sys.stdout = real
""",
        *QUIET,
    )


# ---------------------------------------------------------------- what workers print
def test_what_workers_print_reaches_the_pipe_once():
    out = check_program(
        """
        sys.stdout.write("before;")           # still in the buffer when the workers are forked
        def speak(args):
            print("task", args.scalar(0))     # no flush: stdout is a pipe, so it is buffered
        with Worker(level=3, num_sub_workers=2) as w:
            h = w.register(speak)
            def graph(orch, args, config):
                for i in range(100):
                    a = TaskArgs()
                    a.add_scalar(i)
                    orch.submit_sub(h, a)
            w.run(graph)
            w.run(graph)
        print("after")
        """
    )
    assert out.count("before;") == 1
    words = out.replace("before;", "").split()
    assert words[-1] == "after"
    assert sorted(int(word) for word in words if word.isdigit()) == sorted([*range(100)] * 2)


def test_what_a_worker_prints_arrives_while_the_program_runs():
    with Program(
        """
        w = Worker(level=3, num_sub_workers=1)
        h = w.register(lambda: print("from the worker"))
        w.init()
        w.run(lambda orch, *_: orch.submit_sub(h))
        input()
        """
    ) as program:
        program.wait_for("from the worker")
        program.tell("")
        assert program.finish() == (0, "", "")


def test_stdin_stays_with_the_program():
    with Program(
        """
        with Worker(level=3, num_sub_workers=1) as w:
            h = w.register(lambda: say(f"worker read {sys.stdin.read()!r}"))
            w.run(lambda orch, *_: orch.submit_sub(h))
            say("program read " + input())
        """
    ) as program:
        program.wait_for("worker read ''")
        program.tell("my line")
        assert program.wait_for("program read") == "my line"
        assert program.finish() == (0, "", "")


# ---------------------------------------------------------------- close
@pytest.mark.spec("ORCH-RUN-9")
def test_close_leaves_nothing_but_the_arrays_somebody_holds():
    def shared_bytes():
        with open("/proc/self/maps") as maps:
            spans = [line.split()[0].split("-") for line in maps if line.split()[1][3] == "s"]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    gc.collect()
    before = shared_bytes()
    w = Worker(level=3, num_sub_workers=2, arena_size=1 << 20)
    w.init()
    w.start()
    pids, server = w.worker_pids(), psutil.Process(w.worker_pids()[0]).ppid()
    kept = w.share(np.arange(10))
    w.close()
    w.close()
    assert all(dies(pid) for pid in (*pids, server))
    assert shared_bytes() - before == 1 << 20
    assert kept.tolist() == list(range(10))
    del kept
    assert shared_bytes() == before


def test_a_forgotten_worker_is_closed_at_once():
    w = Worker(level=3, num_sub_workers=2)
    w.init()
    w.start()
    pids, watch = w.worker_pids(), weakref.ref(w)
    gc.disable()
    try:
        del w
        assert watch() is None
        assert all(dies(pid) for pid in pids)
    finally:
        gc.enable()


def test_a_worker_in_a_cycle_is_closed_by_whichever_thread_collects_it():
    for collect in (gc.collect, lambda: _on_a_thread(gc.collect)):
        w = Worker(level=3, num_sub_workers=2)
        w.myself = w
        w.init()
        w.start()
        pids = w.worker_pids()
        gc.disable()
        try:
            del w
            collect()
        finally:
            gc.enable()
        assert all(dies(pid) for pid in pids)


def _on_a_thread(function):
    with Concurrently(function):
        pass


def test_a_worker_collected_by_its_own_monitor_thread_is_closed():
    """Garbage collection may run on any thread: also on the one that close would join."""
    from simpler_ref.workers import manager as worker_manager

    w = Worker(level=3, num_sub_workers=2)
    w.init()
    w.start()
    manager = w._session.manager
    pids, monitor = w.worker_pids(), manager._monitor
    holder = [w]
    del w
    original = worker_manager.WorkerManager._mark_dead

    def drop_it(self, worker, code):
        if holder:
            holder.clear()
        original(self, worker, code)

    manager._mark_dead = drop_it.__get__(manager)
    terminate(pids[0])
    monitor.join(30)
    assert not monitor.is_alive()
    assert all(dies(pid) for pid in pids)
    assert not holder
    assert manager._socket.fileno() == -1
    manager._mark_dead = None


def test_open_and_close_many_times_takes_no_more_of_anything():
    process = psutil.Process()

    def cycle():
        with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16, task_window=1024) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok = w.register(mark)
            w.run(only(ok, args_of((marks, T.INOUT), scalars=[0])))
            assert marks[0] == 1

    def holdings():
        gc.collect()
        return len(process.open_files()), process.num_fds(), process.num_threads()

    for _ in range(10):
        cycle()
    before, rss, maps = holdings(), process.memory_info().rss, len(process.memory_maps(False))
    for _ in range(60):
        cycle()
    assert holdings() == before
    assert process.memory_info().rss - rss < 8 << 20
    assert len(process.memory_maps(False)) - maps < 30
    assert process.children(recursive=True) == []


def test_runs_without_end_take_no_more_memory():
    with Worker(level=3, num_sub_workers=2) as w:
        x = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)

        def graph(orch, args, config):
            for _ in range(5):
                with orch.scope():
                    buffer = orch.alloc(1 << 16, np.uint8)
                    orch.submit_sub(ok, args_of((x, T.INOUT), (buffer, T.INPUT), scalars=[1]))

        w.start()
        everyone = [psutil.Process(pid) for pid in (os.getpid(), *w.worker_pids())]
        for _ in range(200):
            w.run(graph)
        before = [p.memory_info().rss for p in everyone]
        for _ in range(100 if INTERPRETED else 2000):
            w.run(graph)
        after = [p.memory_info().rss for p in everyone]
        assert max(b - a for a, b in zip(before, after, strict=True)) < 4 << 20
        assert x[1] % 5 == 0


def test_a_stop_changes_the_very_word_a_worker_sleeps_on():
    """A worker that has looked for the stop, and is about to sleep, must find its word changed."""
    from ..support import Driver

    driver = Driver(sub=1)
    for state in (L.IDLE, L.INIT_DONE, L.TASK_DONE):
        word = driver._worker(0) + L.W_MAILBOX + L.MAIL_STATE
        driver.mem[word] = state
        driver.k.request_stop(driver.mem, 0)
        assert driver.mem[word] & 0xFFFFFFFF != state
    driver.close()


def test_closing_at_the_worst_moment_stops_the_workers_all_the_same(monkeypatch):
    """Nobody has to be killed: a stop is never lost, whatever the worker is just doing."""
    import simpler_ref.workers.fork_server as fork_server

    reports = []
    handle_death = fork_server._Server.handle_death
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def handle_and_tell(self, pidfd):
        _, pid = self.workers[pidfd]
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        theirs.send(bytes([info.si_status, info.si_code == os.CLD_EXITED]))
        handle_death(self, pidfd)

    monkeypatch.setattr(fork_server._Server, "handle_death", handle_and_tell)
    rng = np.random.default_rng(7)
    for _ in range(60):
        with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16, task_window=256) as w:
            nothing = w.register(lambda: None)

            def graph(orch, args, config):
                for _ in range(rng.integers(4)):
                    orch.submit_sub(args)

            w.run(graph, nothing)
            until = time.perf_counter() + rng.uniform(0, 150e-6)
            while time.perf_counter() < until:
                pass
        reports += [ours.recv(2) for _ in range(2)]
    ours.close()
    theirs.close()
    assert set(reports) == {bytes([0, True])}


# ---------------------------------------------------------------- the program forks
def test_a_fork_of_the_program_leaves_its_worker_alone():
    check_program(
        USE
        + """
w = Worker(level=3, num_sub_workers=2)
use(w)
x = w.share(np.zeros(1, np.int32))
pids = w.worker_pids()
for how in ("exit", "close", "gc", "run"):
    pid = os.fork()
    if pid == 0:
        if how == "close":
            w.close()
        elif how == "gc":
            del w
            gc.collect()
        elif how == "run":
            for call in (lambda: w.run(lambda *_: None), w.start, lambda: w.empty(1)):
                try:
                    call()
                except RuntimeError as error:
                    assert "belongs to process" in str(error), error
                else:
                    raise SystemExit(3)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0, how
    assert w.worker_pids() == pids
    h = w.register(lambda: None)
    w.unregister(h)
    w.run(lambda *_: None)
    pids = w.worker_pids()
w.close()
"""
    )


def test_a_fork_inside_a_run_leaves_the_run_alone():
    check_program(
        USE
        + """
w = Worker(level=3, num_sub_workers=2)
use(w)
x = w.share(np.zeros(1, np.int32))
h = w.register(touch)
def a(x):
    args = TaskArgs()
    args.add_tensor(x, T.INOUT)
    return args

status_of = {"exit": 0, "return": 4, "raise": 5, "submit": 4, "scope": 4}
for leave in status_of:
    def graph(orch, args, config):
        orch.submit_sub(h, a(x))
        with orch.scope():
            pid = os.fork()
            if pid == 0:
                if leave == "exit":
                    sys.exit(0)
                elif leave == "return":
                    return
                elif leave == "raise":
                    raise ValueError("in the fork")
                elif leave == "submit":
                    orch.submit_sub(h, a(x))
                elif leave == "scope":
                    orch.scope_end()
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == status_of[leave], (leave, status)
            for _ in range(10):
                orch.submit_sub(h, a(x))
        orch.submit_sub(h, a(x))

    x[0] = 0
    me = os.getpid()
    try:
        timing = w.run(graph)
    except RuntimeError as error:
        assert os.getpid() != me, error
        sys.exit(4)
    except ValueError:
        sys.exit(5)
    assert os.getpid() == me
    assert (x[0], timing.tasks) == (12, 12), (leave, x, timing)
w.close()
"""
    )


def test_multiprocessing_works_beside_a_worker():
    check_program(
        USE
        + """
import multiprocessing
context = multiprocessing.get_context("fork")
def square(n):
    return n * n
w = Worker(level=3, num_sub_workers=2)
use(w)
with context.Pool(2) as pool:
    assert pool.map(square, range(10)) == [n * n for n in range(10)]
    w.run(lambda *_: None)
    pool.close()
    pool.join()
queue = context.Queue()
child = context.Process(target=lambda: queue.put(w.worker_pids is not None))
child.start()
assert queue.get()
child.join()
assert child.exitcode == 0
w.close()
""",
        "-W",
        "error",
    )


def test_a_fork_can_have_a_worker_of_its_own():
    check_program(
        USE
        + """
w = Worker(level=3, num_sub_workers=2)
use(w)
pid = os.fork()
if pid == 0:
    os.closerange(3, 1000)                     # as a daemon does
    mine = Worker(level=3, num_sub_workers=2)
    use(mine)
    mine.close()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
w.run(lambda *_: None)
w.close()
"""
    )


def test_a_fork_while_another_thread_is_busy_with_the_worker_can_go_on():
    """Locks held by threads that do not exist in the fork must not be waited for."""
    with Worker(level=3, num_sub_workers=1) as w:
        array = w.share(np.zeros(5))
        held, release = threading.Event(), threading.Event()

        def hold():
            with w._life.lock, w._session.arena._lock:
                held.set()
                release.wait(30)

        def in_the_fork():
            nonlocal array
            del array
            w.close()

        with Concurrently(hold):
            held.wait(30)
            with Fork(in_the_fork) as fork:
                assert fork.wait() == 0
            release.set()
        assert w.run(lambda *_: None).tasks == 0


def test_processes_of_a_leaf_are_its_own_affair():
    check_program(
        """
        import subprocess
        def start():
            assert subprocess.run(["true"]).returncode == 0
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        with Worker(level=3, num_sub_workers=2) as w:
            h = w.register(start)
            def graph(orch, args, config):
                for _ in range(4):
                    orch.submit_sub(h)
            w.run(graph)
        """
    )


# ---------------------------------------------------------------- signals and children of the program
def test_the_programs_own_handlers_and_waits_do_not_disturb():
    check_program(
        USE
        + """
seen = []
signal.signal(signal.SIGCHLD, lambda *_: seen.append(os.waitpid(-1, os.WNOHANG)))
signal.signal(signal.SIGTERM, lambda *_: seen.append("TERM"))
w = Worker(level=3, num_sub_workers=2)
use(w)
x = w.share(np.zeros(1, np.int32))
child = os.fork()
if child == 0:
    os._exit(3)
while not seen:
    time.sleep(0.001)
assert (child, 3 << 8) in seen, seen
die = w.register(lambda: os.kill(os.getpid(), signal.SIGTERM))   # not the program's handler
try:
    w.run(lambda orch, *_: orch.submit_sub(die))
except WorkerLostError as error:
    assert error.status == -signal.SIGTERM
else:
    sys.exit(1)
assert "TERM" not in seen
w.close()
""",
        *QUIET,
    )


@pytest.mark.parametrize("how", ["signal.SIG_IGN", "lambda *_: os.wait()"])
def test_a_program_that_takes_all_dead_children_takes_ours_too(how):
    check_program(
        USE
        + f"""
signal.signal(signal.SIGCHLD, {how})
for _ in range(3):
    w = Worker(level=3, num_sub_workers=2)
    use(w)
    w.close()
""",
        *QUIET,
    )


# ---------------------------------------------------------------- more than one
def test_two_workers_at_once_do_not_know_of_each_other():
    with Worker(level=3, num_sub_workers=2) as a:
        ok_a = a.register(mark)
        a.start()
        with Worker(level=3, num_sub_workers=2) as b:
            ok_b = b.register(mark)
            marks_a, marks_b = a.share(np.zeros(4, np.int64)), b.share(np.zeros(4, np.int64))
            for _ in range(50):
                assert_works(a, ok_a, marks_a)
                assert_works(b, ok_b, marks_b)
            terminate(b.worker_pids()[0])
            assert_works(a, ok_a, marks_a)
            eventually(lambda: len(b.worker_pids()) == 1)
            assert_works(b, ok_b, marks_b)
            server = psutil.Process(a.worker_pids()[0]).ppid()
            terminate(server)
            eventually(lambda: not a.worker_pids())
            assert_works(b, ok_b, marks_b)
            assert_works(a, ok_a, marks_a)
        assert_works(a, ok_a, marks_a)


def test_an_orch_function_may_run_another_worker():
    with Worker(level=3, num_sub_workers=1) as a, Worker(level=3, num_sub_workers=1) as b:
        marks_a, marks_b = a.share(np.zeros(4, np.int64)), b.share(np.zeros(4, np.int64))
        ok_a, ok_b = a.register(mark), b.register(mark)

        def inner(orch, args, config):
            orch.submit_sub(ok_b, args_of((marks_b, T.INOUT), scalars=[1]))

        def outer(orch, args, config):
            orch.submit_sub(ok_a, args_of((marks_a, T.INOUT), scalars=[1]))
            b.run(inner)
            orch.submit_sub(ok_a, args_of((marks_a[:], T.INOUT), scalars=[1]))

        a.run(outer)
        assert (marks_a[1], marks_b[1]) == (2, 1)


def test_workers_of_many_threads_run_at_the_same_time():
    def life(seed):
        rng = np.random.default_rng(seed)
        for _ in range(4):
            with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 20) as w:
                ok = w.register(mark)
                w.start()
                for _ in range(30):
                    x = w.share(np.zeros(2, np.int64))  # a new array: asks whose it is

                    def graph(orch, args, config):
                        for _ in range(rng.integers(1, 5)):
                            orch.submit_sub(*args)

                    w.run(graph, (ok, args_of((x, T.INOUT), scalars=[1])))

                    def in_the_run(orch, args, config):
                        handle, x = args
                        orch.submit_sub(handle, args_of((x[1:], T.INOUT), scalars=[0]))

                    w.run(in_the_run, (ok, x))
                    assert x[1] > 1

    threads = [Concurrently(lambda seed=seed: life(seed)) for seed in range(4)]
    for thread in threads:
        thread.__enter__()
    for thread in threads:
        thread.__exit__(None)


def test_a_worker_lives_on_any_thread_and_may_change_threads():
    with Worker(level=3, num_sub_workers=2) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)
        _on_a_thread(lambda: assert_works(w, ok, marks))
        assert_works(w, ok, marks)
        terminate(w.worker_pids()[0])
        eventually(lambda: len(w.worker_pids()) == 1)
        _on_a_thread(lambda: assert_works(w, ok, marks))
        with pytest.raises(TaskError):
            w.run(only(w.register(lambda: 1 / 0)))

    def whole_life():
        with Worker(level=3, num_sub_workers=2) as mine:
            marks = mine.share(np.zeros(4, np.int64))
            assert_works(mine, mine.register(mark), marks)

    _on_a_thread(whole_life)


def test_the_program_starts_no_process_but_the_fork_server_and_the_workers():
    with Worker(level=3, num_sub_workers=3) as w:
        w.start()
        tree = [p.pid for p in psutil.Process().children(recursive=True)]
        server = psutil.Process(w.worker_pids()[0]).ppid()
        assert sorted(tree) == sorted([server, *w.worker_pids()])
        assert psutil.Process(server).num_threads() == 1


def test_no_process_keeps_descriptors_of_a_worker_that_is_not_its_own():
    def descriptors(pid):
        return sorted(
            link.split(":")[0] for link in map(link_of, Path(f"/proc/{pid}/fd").iterdir())
        )

    def link_of(descriptor):
        try:
            return os.readlink(descriptor)
        except FileNotFoundError:  # closed since it was listed
            return "closed"

    with Worker(level=3, num_sub_workers=1) as first:
        first.start()
        alone = descriptors(psutil.Process(first.worker_pids()[0]).ppid())
        with Worker(level=3, num_sub_workers=1) as second:
            second.start()
            server = psutil.Process(second.worker_pids()[0]).ppid()
            assert descriptors(server) == alone
            assert len(descriptors(second.worker_pids()[0])) == len(alone) - 3
            with Fork(signal.pause) as fork:
                left = len(alone) - 3 + 1  # and its lifeline
                eventually(lambda: len(descriptors(fork.pid)) == left)
                assert "socket" not in descriptors(fork.pid)
