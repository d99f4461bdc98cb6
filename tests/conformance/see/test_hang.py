"""SEE-HANG: when nothing moves."""

import contextlib
import faulthandler
import logging
import os
import resource
import signal

import numpy as np
import pytest

from simpler_ref import RingFullError, Worker
from simpler_ref import TensorArgType as T

from ...support import wait_until
from ...system.programs import Concurrently, Fork
from .conftest import begin, bump, increase, make, wait_at_gate


@contextlib.contextmanager
def heard(gate):
    """Listen to the log: yield the lines of each report, and open the gate at the first one."""
    log, handler, reports = logging.getLogger("simpler_ref"), logging.Handler(), []

    def emit(record):
        if record.getMessage().startswith("no task has ended"):
            reports.append(record.getMessage().splitlines())
            gate[0] = 1

    handler.emit = emit
    log.addHandler(handler)
    try:
        yield reports
    finally:
        log.removeHandler(handler)


@pytest.fixture
def waiting():
    """Return a Worker that reports at once, its handles, and memory: a gate and two arrays."""
    with Worker(level=3, num_sub_workers=1, child_mode="thread", hang_report_s=0.0) as w:
        waits, good = w.register(wait_at_gate), w.register(increase)
        yield w, waits, good, w.zeros(1, np.int64), w.zeros((2, 8), np.int64)


def chain(orch, waits, good, gate, x, length=2):
    orch.submit_sub(waits, make((gate, T.INPUT), (x, T.INOUT)))
    for _ in range(length):
        orch.submit_sub(good, make((x, T.INOUT)))


@pytest.mark.spec("SEE-HANG-1")
def test_the_report_names_what_each_of_eight_tasks_waits_for_and_counts_the_others(waiting):
    w, waits, good, gate, (x, y) = waiting

    def orchestrate(orch, args, config):
        chain(orch, waits, good, gate, x)
        for _ in range(8):
            orch.submit_sub(good, make((y, T.INOUT)))

    with heard(gate) as reports:
        w.run(orchestrate)
    report = reports[0]
    assert report[:5] == [
        "no task has ended for 0 s:",
        f"  task 0 (wait_at_gate) is RUNNING on {w._life.session.manager.name(0)}",
        "  task 1 (increase) is PENDING: it waits for task 0 (wait_at_gate) (RUNNING)",
        "  task 2 (increase) is PENDING: it waits for task 1 (increase) (PENDING)",
        "  task 3 (increase) is READY: it waits for a free worker",
    ]
    assert len(report) == 1 + 8 + 1 + 1 and report[-2] == "  and 3 more"


@pytest.mark.spec("SEE-HANG-2")
def test_a_ring_that_stays_full_tells_for_whom_its_oldest_memory_is_kept():
    options = {"num_sub_workers": 1, "heap_ring_size": 4096, "alloc_timeout_s": 0.2}
    with Worker(level=3, child_mode="thread", **options) as w:
        waits, gate = w.register(wait_at_gate), w.zeros(1, np.int64)

        def in_one_scope(orch, args, config):
            for _ in range(5):
                orch.alloc((1024,), np.uint8)

        def for_a_consumer(orch, args, config):
            with orch.scope():
                one = orch.alloc((4096,), np.uint8)
                orch.submit_sub(waits, make((gate, T.INPUT), (one, T.INPUT)))
            try:
                with orch.scope():
                    orch.alloc((4096,), np.uint8)
            finally:
                gate[0] = 1

        stories = []
        for orchestrate in (in_one_scope, for_a_consumer):
            with pytest.raises(RingFullError, match="HeapRing exhausted: ring ") as caught:
                w.run(orchestrate)
            assert caught.value.__notes__ == [caught.value.story]
            stories.append(caught.value.story.splitlines())
        name = w._life.session.manager.name(0)
    assert stories[0] == [
        "  ring 0: the oldest memory of 1024 bytes is that of task 0 (buffer), COMPLETED",
        "  it is kept by its scope, which is open: a cycle, since that ends only when the "
        "orchestration function goes on, which waits for room in this ring",
    ]
    assert stories[1] == [
        "  ring 1: the oldest memory of 4096 bytes is that of task 0 (buffer), COMPLETED",
        f"  it is kept for task 1 (wait_at_gate), which is RUNNING on {name}",
    ]


@pytest.mark.spec("SEE-HANG-1", "SEE-HANG-4")
@pytest.mark.parametrize("asks", [True, False], ids=["result", "callback"])
def test_calls_that_keep_a_thread_waiting_are_named_by_their_functions(asks, caplog, default):
    with Worker(num_sub_workers=1, hang_report_s=0.0) as w:
        gate, x = w.zeros(1, np.int64), w.zeros(8, np.int64)
        first = begin(x, gate)
        last = bump(x)
        wait_until(lambda: first.running() and w.top().workers[0].state == "running")
        signal.raise_signal(signal.SIGQUIT)
        with heard(gate) as reports:
            if not asks:
                last.add_done_callback(lambda _: None)
                wait_until(lambda: reports)
            last.result()
        name = w._life.session.manager.name(0)
    runs, waits = (
        f"  task 0 (begin) is RUNNING on {name}",
        "  task 1 (bump) is PENDING: it waits for task 0 (begin) (RUNNING)",
    )
    assert reports[0][1:3] == [runs, waits]
    assert "@task(timeout=…) ends calls" in reports[0][3]
    texts = [one.getMessage() for one in caplog.records]
    (report,) = [one.splitlines() for one in texts if one.startswith("Worker of level")]
    assert report[2].split()[3:5] == ["0", "begin"]
    assert report[-2:] == [runs, waits]


# ---------------------------------------------------------------- SIGQUIT
@pytest.fixture
def default():
    """Have SIGQUIT end the program, as it is without a handler; check that it does again afterwards."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    yield
    assert signal.signal(signal.SIGQUIT, before) is signal.SIG_DFL


@pytest.mark.spec("SEE-HANG-4")
def test_sigquit_logs_what_workers_do_and_what_waits(default, caplog):
    with Worker(level=3, num_sub_workers=1) as w:
        waits, good = w.register(wait_at_gate), w.register(increase)
        gate, x = w.zeros(1, np.int64), w.zeros(8, np.int64)

        def orchestrate(orch, args, config):
            orch.alloc((1024,), np.uint8)
            chain(orch, waits, good, gate, x, 1)
            while w.top().workers[0].state != "running":
                orch.live_tasks()
            signal.raise_signal(signal.SIGQUIT)
            gate[0] = 1

        w.run(orchestrate)
        name, (pid,) = w._life.session.manager.name(0), w.worker_pids()
    (report,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    head, _, row, *rest = report.splitlines()
    assert head == f"Worker of level 3, process {os.getpid()}: a run, 0 of 2 tasks have ended"
    assert row.split()[:5] == ["sub_worker", "0", str(pid), "1", "wait_at_gate"]
    assert rest == [
        "  waiting: 1 for inputs, 0 for a free worker",
        "  ring 0: 3 tasks, 1024 bytes of 1024.0 MiB",
        "  window: 3 of 2097152 tasks",
        f"  task 1 (wait_at_gate) is RUNNING on {name}",
        "  task 2 (increase) is PENDING: it waits for task 1 (wait_at_gate) (RUNNING)",
    ]


def be_told_to_quit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    logging.root.handlers.clear()  # as in a program that has not set up logging
    with Worker(level=3, num_sub_workers=1) as w:
        w.register(increase)
        w.start()
        assert w.worker_pids()
        for pid in w.worker_pids():
            signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGQUIT)
        w.run(lambda orch, args, config: None)
        signal.raise_signal(signal.SIGQUIT)
        os.write(1, b"alive\n")
        signal.raise_signal(signal.SIGQUIT)


@pytest.mark.spec("SEE-HANG-4")
def test_a_second_sigquit_ends_the_program_and_workers_ignore_it(capfd):
    with Fork(be_told_to_quit) as program:
        assert program.wait() == -signal.SIGQUIT
        assert program.everybody_ends()
    said = capfd.readouterr()
    assert said.out == "alive\n" and said.err.startswith("Worker of level 3, process ")


@pytest.mark.spec("SEE-HANG-4")
def test_sigquit_is_handled_while_a_worker_is_open_that_the_main_thread_started(default):
    with Worker(level=3, child_mode="thread") as first:
        first.start()
        handler = signal.getsignal(signal.SIGQUIT)
        assert handler is not signal.SIG_DFL
        with Worker(level=3, child_mode="thread") as second:
            second.start()
        assert signal.getsignal(signal.SIGQUIT) is handler
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
    with Worker(level=3, child_mode="thread") as w:
        with Concurrently(w.start):
            pass
        assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL


@pytest.mark.spec("SEE-HANG-4")
def test_a_handler_of_the_program_stays(default):
    came = []
    for handler in (lambda number, frame: came.append(number), signal.SIG_IGN):
        signal.signal(signal.SIGQUIT, handler)
        with Worker(level=3, child_mode="thread") as w:
            w.start()
            assert signal.getsignal(signal.SIGQUIT) is handler
            signal.raise_signal(signal.SIGQUIT)
        assert signal.getsignal(signal.SIGQUIT) is handler
    assert came == [signal.SIGQUIT]
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    with open(os.devnull, "w") as file, Worker(level=3, child_mode="thread") as w:
        faulthandler.register(signal.SIGQUIT, file)
        try:
            w.start()
            signal.raise_signal(signal.SIGQUIT)
        finally:
            faulthandler.unregister(signal.SIGQUIT)
