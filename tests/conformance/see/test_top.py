"""SEE-TOP: what a running Worker does."""

import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import TensorArgType as T
from simpler_ref import Worker
from simpler_ref.engine.view import slots
from simpler_ref.jit import layout as L
from simpler_ref.workers import top
from simpler_ref.workers.top import NoAnswerError, Row, SilentError, ask

from ...kernels import kernels
from ...support import Gate, updates, wait_until
from ...system.programs import Concurrently, Fork
from .conftest import increase, main, make, wait_at_gate


@contextlib.contextmanager
def in_background(w, build, gate):
    """Run an orchestration function on a thread of its own; open the gate at the end."""
    with Concurrently(lambda: w.run(build)):
        try:
            yield
        finally:
            gate[0] = 1


def names_of(pid):
    """Return the names of the sockets on which a process answers."""
    name = top.NAME.format(pid=pid)
    shown = Path("/proc/net/unix").read_text().split()
    return [name] if name.replace("\0", "@") in shown else []


def until(ask_again, is_it):
    """Return what is asked for, once it is as expected."""
    found = []
    wait_until(lambda: found.append(ask_again()) or is_it(found[-1]))
    return found[-1]


def are_running(one, number=1):
    return sum(row.state == "running" for row in one.workers) == number


# ---------------------------------------------------------------- what it tells
@pytest.mark.spec("SEE-TOP-1", "SEE-TOP-8")
def test_it_tells_what_each_worker_runs_and_what_waits(mode):
    with Worker(level=3, num_sub_workers=2, child_mode=mode, heap_ring_size=1 << 20) as w:
        waits, good = w.register(wait_at_gate), w.register(increase)
        gate, x, y = w.zeros(1, np.int64), w.zeros(8, np.int64), w.zeros(8, np.int64)

        def build(orch, args, config):
            buffer = orch.alloc((1024,), np.uint8)
            orch.submit_sub(waits, make((gate, T.INPUT), (x, T.INOUT), (buffer, T.INPUT)))
            orch.submit_sub(waits, make((gate, T.INPUT), (y, T.INOUT)))
            for _ in range(3):
                orch.submit_sub(good, make((x, T.INOUT)))
            orch.submit_sub(good, make((gate, T.INPUT)))

        with in_background(w, build, gate):
            drains = "waits for its tasks"
            first = until(w.top, lambda one: are_running(one, 2) and one.program == drains)
            later = w.top()
        pids = w.worker_pids() if mode == "process" else [None, None]
        assert (w.top().program, w.top().ended, w.top().submitted) == ("no run", 0, 0)
        assert [row.state for row in w.top().workers] == ["idle", "idle"]
    assert [row.name for row in later.workers] == ["sub_worker 0", "sub_worker 1"]
    assert [row.pid for row in later.workers] == pids
    assert [row.function for row in later.workers] == ["wait_at_gate"] * 2
    assert sorted(row.task for row in later.workers) == [1, 2]
    assert [row.queue for row in later.workers] == [0, 0]
    times = [(a.running_s, b.running_s) for a, b in zip(first.workers, later.workers, strict=True)]
    assert all(0 <= a <= b for a, b in times)
    assert (later.for_inputs, later.for_worker) == (3, 1)
    assert (later.ended, later.submitted) == (0, 6)
    ring = later.rings[0]
    assert (ring.tasks, ring.used, ring.size) == (later.alive, 1024, 1 << 20)
    assert later.alive == 7 and (later.pid, later.level) == (os.getpid(), 3)


def stay(gate):
    while gate[0] == 0:
        pass


@pytest.mark.spec("SEE-TOP-1")
def test_the_queue_of_a_worker_has_what_it_was_given_and_what_waits_for_it():
    with Worker(num_sub_workers=2, mailbox_depth=2, child_mode="thread") as w:
        gate, task = w.zeros(1, np.int64), sr.task(stay, workers=[1])
        futures = [task(gate) for _ in range(5)]
        mine = ("running", 4)
        one = until(w.top, lambda one: (one.workers[1].state, one.workers[1].queue) == mine)
        gate[0] = 1
        assert [future.result() for future in futures] == [None] * 5
    assert one.workers[0] == Row("sub_worker 0", None, "idle")
    assert (one.program, one.workers[1].function) == ("calls", "stay")
    assert (one.ended, one.submitted) == (0, 5)


@pytest.mark.spec("SEE-TOP-1")
def test_it_tells_that_the_program_waits_for_room():
    with Worker(level=3, num_sub_workers=1, heap_ring_size=4096, child_mode="thread") as w:
        waits, gate = w.register(wait_at_gate), w.zeros(1, np.int64)

        def build(orch, args, config):
            for _ in range(2):
                with orch.scope():
                    one = orch.alloc((4096,), np.uint8)
                    orch.submit_sub(waits, make((gate, T.INPUT), (one, T.INPUT)))

        with in_background(w, build, gate):
            one = until(w.top, lambda one: one.program.startswith("waits for room"))
        assert one.program == "waits for room for another task in ring 1"
        assert (one.rings[1].used, one.rings[1].size, w.top().program) == (4096, 4096, "no run")


@pytest.mark.spec("SEE-TOP-1")
def test_a_worker_that_has_died_is_lost():
    with Worker(level=3, num_sub_workers=1) as w:
        w.start()
        (pid,) = w.worker_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: w.top().workers[0].state == "lost")
        assert w.top().workers == (Row("sub_worker 0", pid, "lost"),)


class Changing:
    """An engine's words, which change to those of the next situation after so many reads each."""

    def __init__(self, situations, reads):
        self._situations, self._reads = situations, reads
        self.count = 0

    def item(self, i):
        now = sum(self.count >= one for one in self._reads)
        self.count += 1
        return self._situations[now].item(i)


@pytest.mark.spec("SEE-TOP-1")
def test_what_is_told_of_a_task_is_of_one_task_whenever_the_words_change(one):
    mem, start, mems = one.mem, one._worker(0), []
    for number in range(2):
        one.submit_and_settle(updates(1 << 20 + number), callable=number)
        mems.append(mem.copy())  # it was sent
        kernels.receive(mem, 0)
        mem[start + L.W_SINCE] = 100 + number  # the clock is too coarse for a test
        mems.append(mem.copy())  # it runs
        one.post_done(0)
        mems.append(mem.copy())  # it has ended
        one.settle()
        mems.append(mem.copy())  # it is collected

    def told(words):
        found = slots.running(words, start)
        return found and (found[:2], found[3])

    first, second = ((0, 0), 100), ((1, 1), 101)
    assert [told(words) for words in mems] == [None, first, *[None] * 3, second, None, None]
    whole = Changing([mems[1]], [])
    told(whole)
    most = whole.count + 6  # in the second look, which repeats the first, everything has changed
    reads_before = itertools.combinations_with_replacement(range(most), 4)
    assert {told(Changing(mems[1:6], reads)) for reads in reads_before} == {None, first, second}


# ---------------------------------------------------------------- asking another process
@pytest.mark.spec("SEE-TOP-4")
def test_a_program_that_keeps_the_interpreter_s_lock_is_said_not_to_answer(started):
    us, (out, into) = os.getpid(), os.pipe()

    def look():
        try:
            with pytest.raises(SilentError, match="keeps the lock of the interpreter"):
                while True:
                    ask(us, 0.2)
        finally:
            os.write(into, b"1")

    with Fork(look) as asker:
        ctypes.PyDLL(None).read(out, ctypes.create_string_buffer(1), 1)  # it keeps the lock
        assert asker.wait() == 0
    os.close(out)
    os.close(into)
    assert len(ask(us)) == 1


@pytest.fixture
def started():
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        w.start()
        yield w


@pytest.mark.spec("SEE-TOP-4")
def test_other_users_get_no_answer(started, monkeypatch):
    (name,) = names_of(os.getpid())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        assert json.loads(connection.makefile().read())["pid"] == os.getpid()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        assert connection.recv(1) == b""
    with pytest.raises(NoAnswerError, match=f"belongs to user {me}, and this is user {me + 1}"):
        ask(os.getpid())


@pytest.mark.spec("SEE-TOP-4")
def test_a_socket_of_another_process_is_not_taken_for_that_of_a_program():
    with Fork(signal.pause) as other, socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(top.NAME.format(pid=other.pid))
        impostor.listen()
        with pytest.raises(NoAnswerError, match=f"process {other.pid} has no open Worker"):
            ask(other.pid)


@pytest.mark.spec("SEE-TOP-4")
def test_a_process_that_has_the_name_for_a_moment_is_waited_for(started, caplog):
    started.close()
    with socket.socket(socket.AF_UNIX) as forked, Worker(level=3, child_mode="thread") as w:
        forked.bind(top.NAME.format(pid=os.getpid()))
        timer = threading.Timer(0.01, forked.close)
        timer.start()
        w.start()
        timer.join()
        assert len(ask(os.getpid())) == 1
    assert not caplog.records


@pytest.mark.spec("SEE-TOP-4")
def test_what_cannot_be_shown_is_an_error_that_says_so(capsys):
    with Fork(lambda: None) as gone:
        ended = gone.pid
        assert gone.wait() == 0
    with Worker(level=3, num_sub_workers=1) as w:
        expected = "has no open Worker whose workers are started"
        w.init()
        with pytest.raises(NoAnswerError, match=expected):
            ask(os.getpid())
        w.start()
        here = os.getpid()
        remedy = f"process {here}, above it, has one: `python -m simpler_ref top {here}`"
        (pid,) = w.worker_pids()
        assert main(["top", str(pid), "--once"]) == 1
        assert remedy in capsys.readouterr().err
    assert main(["top", str(os.getpid())]) == 1
    assert expected in capsys.readouterr().err
    assert main(["top", str(ended)]) == 1
    assert f"there is no process {ended}" in capsys.readouterr().err
    assert main(["top", "1", "--interval", "0"]) == 2
    assert "is no number of seconds above 0" in capsys.readouterr().err


# ---------------------------------------------------------------- what it leaves
def answering_threads():
    return [one.name for one in threading.enumerate()].count("simpler-top")


@pytest.mark.spec("SEE-TOP-4", "SEE-TOP-1")
def test_it_is_there_while_a_worker_is_open_and_shows_one_after_another(capsys):
    us = os.getpid()
    first, second = (Worker(level=3, num_sub_workers=i, child_mode="thread") for i in (1, 2))
    with first, second:
        first.init()
        assert not names_of(us) and not answering_threads()
        first.start()
        second.start()
        (name,) = names_of(us)
        assert (answering_threads(), [len(one.workers) for one in ask(us)]) == (1, [1, 2])
        assert main(["top", str(us), "--once"]) == 0
        assert capsys.readouterr().out == f"{first.top()}\n\n{second.top()}\n"
        first.close()
        assert names_of(us) == [name] and len(ask(us)) == 1
    assert not names_of(us) and not answering_threads()
    with pytest.raises(NoAnswerError):
        ask(us)


@pytest.mark.spec("SEE-TOP-4")
def test_a_forked_process_neither_answers_nor_keeps_the_socket():
    us = os.getpid()
    with Gate() as done, Worker(level=3, num_sub_workers=1) as w:
        w.start()
        (_name,) = names_of(us)

        def child():
            assert not names_of(os.getpid()) and not top._open and not answering_threads()
            assert len(ask(us)) == 1
            with Worker(level=3, num_sub_workers=1) as own:
                own.start()
                (one,) = ask(os.getpid())
                assert one.pid == os.getpid()
            done.open(1)
            signal.pause()

        with Fork(child):
            done.wait()
            w.close()
            assert not names_of(us)


@pytest.mark.spec("SEE-TOP-1")
def test_workers_of_workers_are_below_them(mode):
    with Worker(level=4, num_sub_workers=1, child_mode=mode) as w:
        below = [Worker(level=3, num_sub_workers=1, child_mode=mode) for _ in range(2)]
        inner = [one.register(wait_at_gate) for one in below]
        for one in below:
            w.add_worker(one)
        gate = w.zeros(1, np.int64)
        given = make((gate, T.INPUT))
        outer = w.register(lambda orch, args, config: orch.submit_sub(inner[0], given))

        def build(orch, args, config):
            orch.submit_next_level(outer, make((gate, T.INPUT)), worker=0)

        def is_it(one):
            return (
                one.workers and one.workers[0].children and are_running(one.workers[0].children[0])
            )

        with in_background(w, build, gate):
            one = until(w.top, is_it)
            (asked,) = until(lambda: ask(os.getpid()), lambda found: is_it(found[0]))
    for found in (one, asked):
        assert [len(row.children) for row in found.workers] == [1, 1, 0]
        (first,), (second,) = (row.children for row in found.workers[:2])
        assert (first.level, second.level) == (3, 3)
        assert first.workers[0].function == "wait_at_gate" and are_running(second, 0)
        assert (first.pid == os.getpid()) == (mode == "thread")
        lines = str(found).splitlines()
        assert "  sub_worker 0" in lines[-5]
        at = next(i for i, line in enumerate(lines) if "child_worker 0" in line)
        assert lines[at + 1].startswith("      Worker of level 3, process")
        assert "wait_at_gate" in lines[at + 3]


# ---------------------------------------------------------------- how it is shown
@pytest.mark.spec("SEE-TOP-8", "SEE-TOP-1")
def test_the_table_has_a_line_for_each_worker_also_in_a_notebook():
    workers = (
        Row("sub_worker 0", 12, "running", 3, "increase", 75.5, 2),
        Row("sub_worker 1", None, "idle"),
    )
    numbers = {"ended": 1, "submitted": 4, "for_inputs": 1, "for_worker": 0, "alive": 4}
    of_rings = {"window": 8, "rings": (top.RingRow(4, 1 << 20, 1 << 21),)}
    shown, told = top.Top(7, 3, "a run", workers=workers, **numbers, **of_rings), []
    shown._repr_pretty_(SimpleNamespace(text=told.append), False)
    assert told == [str(shown)]
    assert told[0].splitlines() == [
        "Worker of level 3, process 7: a run, 1 of 4 tasks have ended",
        "  worker           pid  task  function     running  queue",
        "  sub_worker 0      12     3  increase  1 min 15 s      2",
        "  sub_worker 1  thread",
        "  waiting: 1 for inputs, 0 for a free worker",
        "  ring 0: 4 tasks, 1.0 MiB of 2.0 MiB",
        "  window: 4 of 8 tasks",
    ]
    assert top.from_data(json.loads(json.dumps(dataclasses.asdict(shown)))) == shown


def shown_until(turn, ends, pid, monkeypatch, *options):
    """Run the command, with an end after so many tables; return for how long it has slept."""
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == turn:
            ends()

    monkeypatch.setattr(top.time, "sleep", sleep)
    assert main(["top", str(pid), *options]) == 0
    return slept


@pytest.mark.spec("SEE-TOP-4", "SEE-TOP-8")
def test_tables_are_shown_until_the_process_ends_and_nothing_is_left_of_it(monkeypatch, capsys):
    def run():
        with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
            w.start()
            started.open(1)
            signal.pause()

    with Gate() as started, Fork(run) as running:
        started.wait()
        pid = running.pid
        assert names_of(pid)

        def ends():
            running.kill()
            running.wait()

        assert shown_until(3, ends, pid, monkeypatch) == [1.0] * 3
    text = capsys.readouterr().out
    assert text.count(f"Worker of level 3, process {pid}: no run\n") == 3 and "\x1b" not in text
    assert text.splitlines()[-1] == f"there is no process {pid}"
    assert not names_of(pid)


@pytest.mark.spec("SEE-TOP-8")
def test_a_terminal_shows_each_table_in_place_of_the_last_one(started, monkeypatch, capsys):
    us = os.getpid()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert shown_until(2, started.close, us, monkeypatch, "--interval", "2.5") == [2.5, 2.5]
    text = capsys.readouterr().out
    assert text.count("\x1b[H\x1b[JWorker of level 3") == 2
    assert text.endswith(f"process {us} has no open Worker whose workers are started\n")
