"""SEE-NOTE: what is noted."""

import mmap

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import TensorArgType as T
from simpler_ref import Trace, Worker, leaf
from simpler_ref.jit import layout as L

from ...kernels import kernels as k
from .conftest import chain, increase, make, trace_of

HEADS = ("submitted", "ready", "sent", "begun", "ended", "collected", "freed")


@pytest.mark.spec("SEE-NOTE-2")
def test_workers_note_function_outcome_and_times_of_tasks_and_members(traced, mode):
    def build(orch, handle, x):
        chain(orch, handle, x)
        orch.submit_sub_group(handle, [make((x[:4], T.INOUT)), make((x[4:], T.INOUT))])

    trace = traced(build, child_mode=mode)
    assert sorted(trace.ran["task"].tolist()) == [1, 2, 3, 5, 6, 6]
    assert set(trace.ran["worker"][trace.ran["task"] == 6].tolist()) == {0, 1}
    assert {trace.function_name(int(one)) for one in trace.ran["function"]} == {"increase"}
    assert set(trace.ran["outcome"].tolist()) == {L.SUCCESS}
    assert (trace.ran["begin"] > 0).all() and (trace.ran["end"] >= trace.ran["begin"]).all()


@leaf
def compiled(x):
    x[0] += 1


@pytest.mark.spec("SEE-NOTE-2")
@pytest.mark.parametrize(("mode", "depth"), [("process", 4), ("thread", 1)])
def test_compiled_tasks_are_noted_likewise(path, mode, depth):
    def build(orch, handle, x):
        for _ in range(5):
            orch.submit_sub(handle, make((x, T.INOUT)))

    trace = trace_of(path, build, compiled, child_mode=mode, mailbox_depth=depth)
    assert sorted(trace.ran["task"].tolist()) == [1, 2, 3, 4, 5]
    assert {trace.function_name(int(one)) for one in trace.ran["function"]} == {"compiled"}


@pytest.mark.spec("SEE-NOTE-2")
def test_each_step_of_a_task_has_its_time(chained):
    rows = chained.tasks
    tasks = rows[~rows["buffer"]]
    assert len(rows) == 5 and len(tasks) == 4
    times = np.stack([tasks[name] for name in HEADS])
    assert (times > 0).all() and (np.diff(times, axis=0) >= 0).all()
    assert set(tasks["outcome"].tolist()) == {1}


@sr.task
def update(y: sr.InOut, x: sr.In, gate: sr.In):
    while gate[0] == 0:
        pass


@sr.task
def pass_on(value, x: sr.Out):
    return value


@pytest.mark.spec("SEE-NOTE-2")
def test_dependencies_of_calls_are_noted_with_the_tensor_that_each_is_owed_to(path, tmp_path):
    with Worker(num_sub_workers=1, trace=path, child_mode="thread") as w:
        gate, x, y = w.zeros(1, np.int64), w.zeros((4, 4)), w.zeros((4, 4))
        first = update(y, x, gate)  # the others are submitted while it runs
        update(x[1], y[::2, ::2], gate)  # reads what the first updates, overwrites what it reads
        update(y[::-1, 1::2], x[0], gate)  # backwards: its first element comes last
        pass_on(pass_on(first, y[3]), x[:, 3])
        gate[0] = 1
    trace = Trace.open(path)
    found = {
        (number, trace.task(number).id, one.task, one.kind, one.tensor, one.tag, one.producer_tag)
        for number in range(2, 6)
        for one in trace.task(number).dependencies
    }
    assert {one[1:] for one in found} == {
        (1, 1, "data", 1, "INPUT", "INOUT"),
        (2, 1, "data", 0, "INOUT", "INOUT"),
        (3, 1, "order", 0, "OUTPUT_EXISTING", "INOUT"),
        (3, 1, "future", -1, "", ""),
        (3, 3, "order", 0, "OUTPUT_EXISTING", "INOUT"),
        (4, 1, "order", 0, "OUTPUT_EXISTING", "INPUT"),
        (4, 2, "order", 0, "OUTPUT_EXISTING", "INOUT"),
        (4, 3, "order", 0, "OUTPUT_EXISTING", "INPUT"),
        (4, 4, "future", -1, "", ""),
    }
    assert "INPUT ← INOUT), until" in trace.task(2).why()
    trace.write_dot(tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    assert 't1 -> t2 [label="INPUT 1"];' in text and 't1 -> t4 [label="value"];' in text


@pytest.mark.spec("SEE-NOTE-3")
def test_without_a_trace_journals_are_empty_and_their_pages_untouched():
    with Worker(level=3, num_sub_workers=1) as w:
        handle, x = w.register(increase), w.zeros(8, np.int64)
        w.run(lambda orch, args, config: chain(orch, handle, x))
        mem = w._session.engine.mem
        first, count = int(mem[L.A_JOURNALS]), L.JOURNALS_OF_WORKERS + 1
        for number in range(count):
            assert mem[k.journal_at(mem, number) + L.J_PUSHED] == 0
        end = k.journal_at(mem, count)
        start, page = mem.ctypes.data + first * L.WORD, mmap.PAGESIZE
        with open("/proc/self/pagemap", "rb") as pages:
            pages.seek(start // page * 8)
            entries = np.frombuffer(pages.read((end - first) * L.WORD // page * 8), np.uint64)
        present = int((entries >> np.uint64(63)).sum())
        assert present <= 2 * count, "only the heads of journals are there"
