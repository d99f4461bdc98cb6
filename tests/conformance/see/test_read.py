"""SEE-READ: reading a trace."""

import numpy as np
import pytest

from simpler_ref import TensorArgType as T
from simpler_ref import Trace, Worker
from simpler_ref.jit import layout as L
from simpler_ref.trace.tables import EDGE, TASK, critical_path

from .conftest import chain, increase, main, make


@pytest.mark.spec("SEE-READ-1")
def test_a_trace_has_tables(chained):
    trace = chained
    assert len(trace.tasks) == 5 and len(trace.ran) == 4 and len(trace.runs) == 1
    assert set(trace.arguments["task"].tolist()) == {1, 2, 3, 4, 5}
    opened = trace.scopes["opened"].tolist()
    assert opened == [True, False] and (np.diff(trace.scopes["time"]) > 0).all()
    assert trace.held["bytes"].tolist()[0] == L.HEAP_ALIGN and trace.held["bytes"][-1] == 0
    ends = trace.waits["end"] >= trace.waits["begin"]
    assert ends.all() and trace.orch_waits()["for the end of the run"] > 0


@pytest.mark.spec("SEE-READ-1")
def test_waits_for_room_and_the_memory_of_rings_are_there(traced):
    def small(orch, handle, x):
        for _ in range(20):  # each buffer fills the ring
            with orch.scope():
                buffer = orch.alloc((2048,), np.int64)
                orch.submit_sub(handle, make((buffer, T.INOUT)))

    trace = traced(small, heap_ring_size=1 << 14)
    assert trace.orch_waits()["for room"] > 0
    assert trace.held["bytes"].max() == 1 << 14 and set(trace.held["ring"].tolist()) == {1}


@pytest.mark.spec("SEE-READ-1")
def test_a_task_is_found_by_number_and_by_id_and_run(path):
    with Worker(level=3, num_sub_workers=1, trace=path, child_mode="thread") as w:
        handle, x = w.register(increase), w.zeros(8, np.int64)
        for _ in range(3):
            w.run(lambda orch, args, config: chain(orch, handle, x))
        w.run(lambda orch, args, config: None)
    trace = Trace.open(path)
    one = trace.find(2, 1)
    assert (one.number, one.id, one.run) == (8, 2, 1)
    assert trace.task(8).name == "task 2 (increase)"
    with pytest.raises(KeyError, match="has the tasks 1 to 15, and no 16"):
        trace.task(16)
    for run in (-5, -1, 4, 99):
        with pytest.raises(KeyError, match=f"the trace has runs 0 to 3, and no run {run}"):
            trace.find(0, run)
    for task in (-1, 5, 15, 99999):
        with pytest.raises(KeyError, match=f"run 1 has tasks 0 to 4, and no task {task}'"):
            trace.find(task, 1)
    with pytest.raises(KeyError, match="run 3 has no tasks, and no task 0"):
        trace.find(0, 3)


@pytest.mark.spec("SEE-READ-1")
def test_sums_are_those_of_the_tables_and_functions_of_the_same_name_are_added_up(path):
    with Worker(num_sub_workers=2, trace=path) as w:
        one, other = (w.register(f) for f in (lambda args: None, lambda args: args and None))

        def orch_fn(orch, args, config):
            orch.alloc((8,), np.int64)
            for handle in (one, other, other):
                orch.submit_sub(handle)

        w.run(orch_fn)
    trace = Trace.open(path)
    spans = trace.ran["end"] - trace.ran["begin"]
    assert list(trace.functions().values()) == [(3, int(spans.sum()), int(spans.max()))]
    busy = trace.busy()
    assert list(busy) == ["sub_worker 0", "sub_worker 1"]
    assert sum(busy.values()) == pytest.approx(spans.sum() / (trace.end - trace.start))
    rows = trace.tasks[~trace.tasks["buffer"]]
    waited, buffers = sum(trace.reasons().values()), trace.tasks["buffer"].sum()
    assert buffers == 1 and waited == int((rows["begun"] - rows["submitted"]).sum())


@pytest.mark.spec("SEE-READ-1")
def test_the_critical_path_is_the_longest_chain():
    tasks = np.zeros(5, TASK)
    tasks["begun"], tasks["ended"] = 100, [110, 150, 120, 101, 130]
    edges = np.zeros(5, EDGE)
    edges["consumer"], edges["producer"] = [3, 4, 4, 5, 5], [1, 2, 3, 3, 1]
    assert critical_path(tasks, edges) == [1, 3, 5]  # 10 + 20 + 30, and not 50 + 1
    tasks["ended"][3] = 120
    assert critical_path(tasks, edges) == [2, 4]
    edges["kind"][1] = L.OWED_MEMORY
    assert (critical_path(tasks, edges), critical_path(tasks[:0], edges[:0])) == ([1, 3, 5], [])


@pytest.mark.spec("SEE-EXPORT-1")
def test_the_command_prints_a_summary_and_writes_a_page(traced, path, tmp_path, capsys):
    traced(chain)
    assert main(["trace", path]) == 0
    shown = capsys.readouterr().out
    assert "4 tasks (0 failed), 1 buffers" in shown and "dropped" not in shown
    assert f"written: {path}.html" in shown and (tmp_path / "a.trace.html").exists()
    assert main(["trace", path, "--why", "1"]) == 0
    assert capsys.readouterr().out.startswith("task 1 (increase)\n")
    assert main(["trace", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["trace", path, "--why", "99"]) == 1
    assert "run 0 has tasks 0 to 4, and no task 99\n" in capsys.readouterr().err
    assert main(["trace", path, "--why", "1", "--run", "1"]) == 1
    assert "the trace has only run 0, and no run 1\n" in capsys.readouterr().err
    assert main(["trace", path, "--run", "7"]) == 2
    assert "--run is the run of the task of --why: give both" in capsys.readouterr().err


@pytest.mark.spec("SEE-EXPORT-1", "SEE-NOTE-3")
def test_dropped_notes_are_counted_in_the_summary(path):
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        handle, x = w.register(increase), w.zeros(8, np.int64)
        mem = w._life.live().engine.mem
        at = int(mem[L.A_JOURNALS])
        with w.trace(path):  # notes that are dropped after the last one that was written count, too
            mem[at + L.J_DROPPED] += 7
            assert mem[at + L.J_TAKEN] == mem[at + L.J_PUSHED], "nothing else is to be written"
        assert Trace.open(path).dropped == 7
        with w.trace(path):
            mem[at + L.J_TAKEN] -= L.BIG_JOURNAL - 8  # as if all but eight notes stood there
            w.run(lambda orch, args, config: chain(orch, handle, x))
            dropped = int(mem[at + L.J_DROPPED])
    trace = Trace.open(path)
    assert trace.dropped == dropped > 0
    assert f"{dropped} notes were dropped" in trace.summary()
