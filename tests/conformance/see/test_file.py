"""SEE-FILE: the file."""

import logging
import os
import resource
import signal
import threading

import numpy as np
import pytest

from simpler_ref import Trace, Worker
from simpler_ref.jit import layout as L
from simpler_ref.trace import TraceFileError
from simpler_ref.trace.tables import TraceFile

from ...kernels import kernels as k
from ...system.programs import Fork
from .conftest import chain, increase


def many_buffers(orch, args, config):
    for _ in range(20_000):
        with orch.scope():
            orch.alloc((4,), np.int64)


def fill_and_die(path):
    w = Worker(level=3, num_sub_workers=1, child_mode="thread", trace=path)
    w.init()
    w.run(many_buffers)
    w._session.recorder._plain.ask_collector(w._session.engine.mem)
    while os.path.getsize(path) < 1_000_000:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.spec("SEE-FILE-4")
def test_the_collector_writes_whenever_a_quarter_has_filled(driver, tmp_path):
    mem, total = driver.mem, 1000
    at = k.journal_at(mem, 0)
    mem[at + L.J_MASK] = 63
    k.begin_trace(mem, L.TRACE_ALL)
    with open(tmp_path / "notes", "wb") as file:
        thread = threading.Thread(target=k.collector_loop, args=(mem, file.fileno()))
        thread.start()
        for number in range(total):
            while mem[at + L.J_PUSHED] - mem[at + L.J_TAKEN] > 63:
                pass  # another thread has to make room, though nobody asks it to
            k.note(mem, 0, L.NOTED_HELD, number, 0, 0)
        k.ask_collector(mem)
        thread.join(30)
    assert not thread.is_alive()
    notes = np.fromfile(tmp_path / "notes", np.int64).reshape(-1, 4)
    mine = notes[notes[:, 0] == L.NOTED_HELD]
    assert mine[:, 1].tolist() == list(range(total)) and mem[at + L.J_DROPPED] == 0
    chunks = notes[notes[:, 0] & 0xFF == L.NOTED_CHUNK]
    assert chunks[:, 1].sum() == total and chunks[:, 1].max() <= 64


@pytest.mark.spec("SEE-FILE-4")
def test_the_file_of_a_killed_program_is_read_as_far_as_it_goes(path):
    with Fork(lambda: fill_and_die(path)) as program:
        assert program.wait() == -signal.SIGKILL
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 11)
    trace = Trace.open(path)
    assert not trace.is_whole and len(trace.tasks) > 100
    assert "the file was cut off" in trace.summary()


@pytest.mark.spec("SEE-FILE-4")
def test_an_empty_file_and_what_is_no_path_is_refused(path):
    open(path, "wb").close()
    with pytest.raises(TraceFileError, match="is empty"):
        TraceFile(path)
    for wrong in (3, None, b"trace"):
        with pytest.raises(TypeError, match=f"path={wrong!r} is no path of a file"):
            TraceFile(wrong)


@pytest.mark.spec("SEE-FILE-4")
def test_a_file_that_cannot_grow_ends_the_trace_with_a_warning_and_no_task(caplog, path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        handle, x = w.register(increase), w.zeros(8, np.int64)
        with caplog.at_level(logging.WARNING, "simpler_ref"):
            try:
                with w.trace(path):
                    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 64, hard))
                    w.run(lambda orch, args, config: chain(orch, handle, x))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        w.run(lambda orch, args, config: chain(orch, handle, x))
        assert x[0] == 6
    assert "a.trace ends here: it cannot be written: File too large" in caplog.text
