"""SEE-ON: when a Worker is traced."""

import os

import numpy as np
import pytest

from simpler_ref import Trace, Worker, WorkerLostError

from ...system.programs import Fork
from .conftest import bump, chain, increase


def names(trace):
    return {trace.function_name(int(one)) for one in trace.ran["function"]}


@pytest.mark.spec("SEE-ON-1")
def test_a_block_is_traced_and_nothing_else(path, tmp_path):
    with Worker(num_sub_workers=1) as w:
        x = w.zeros(4)
        bump(x).result()
        with w.trace(path):
            bump(x)
            bump(x)
        bump(x).result()
        second = tmp_path / "b.trace"
        with w.trace(second) as tracing:
            bump(x)
        assert tracing.path == str(second)
        assert x[0] == 5
    assert (len(Trace.open(path).ran), Trace.open(second).ran["task"].tolist()) == (2, [1])


@pytest.mark.spec("SEE-ON-1")
def test_a_trace_that_cannot_be_is_refused_at_once(path, tmp_path):
    with pytest.raises(ValueError, match="trace_detail='most': it is 'all', or 'tasks'"):
        Worker(trace=path, trace_detail="most")
    with pytest.raises(TypeError, match="trace=5 is no path"):
        Worker(trace=5)
    other = tmp_path / "b.trace"
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        handle, x = w.register(increase), w.zeros(8, np.int64)
        with pytest.raises(OSError, match="missing"), w.trace(tmp_path / "missing" / "a"):
            pass

        def orch(orch, args, config):
            with pytest.raises(RuntimeError, match="a run is in progress"), w.trace(other):
                pass
            chain(orch, handle, x)

        with w.trace(path):
            words = r"traced already, into .*a\.trace"
            with pytest.raises(RuntimeError, match=words), w.trace(other):
                pass
            w.run(orch)
    assert not other.exists() and len(Trace.open(path).ran) == 4


@pytest.mark.spec("SEE-ON-1")
def test_a_trace_whose_block_an_interrupt_has_kept_from_its_end_ends_with_the_next(tmp_path):
    with Worker(num_sub_workers=1, child_mode="thread") as w:
        begun = w.trace(tmp_path / "first")
        begun.__enter__()
        del begun  # as an exception does that comes before the block
        with w.trace(tmp_path / "second"):
            w.submit(abs, -1).result()
        assert Trace.open(tmp_path / "second").problems() == []


@pytest.mark.spec("SEE-ON-1")
def test_a_program_is_traced_by_an_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMPLER_REF_TRACE", str(tmp_path / "a.{pid}.trace"))

    def run_twice():
        for _ in range(2):
            with Worker(num_sub_workers=1, child_mode="thread") as w:
                bump(w.zeros(4)).result()

    with Fork(run_twice) as program:
        pid = program.pid
        assert program.wait() == 0
    assert sorted(os.listdir(tmp_path)) == [f"a.{pid}.trace", f"a.{pid}.trace.2"]
    for file in tmp_path.iterdir():
        trace = Trace.open(file)
        assert names(trace) == {"bump"}
        assert trace.task(1).line == f"{__file__}:{run_twice.__code__.co_firstlineno + 3}"


def inner(orch, args, config):
    for _ in range(2):
        orch.alloc((4,), np.int64)


def nest(path, mode):
    """Return a Worker above two others."""
    w = Worker(level=4, trace=path, child_mode=mode)
    for _ in range(2):
        w.add_worker(Worker(level=3))
    return w


@pytest.mark.spec("SEE-ON-4")
def test_a_block_traces_the_child_workers_that_run_already(path, tmp_path, mode):
    with nest(None, mode) as w:
        handle = w.register(inner)

        def orch(orch, args, config):
            orch.submit_next_level(handle, worker=1)

        w.run(orch)
        for number, file in enumerate((path, str(tmp_path / "b.trace"))):
            with w.trace(file):
                for _ in range(number + 1):
                    w.run(orch)
            w.run(orch)
            trace, below = Trace.open(file), Trace.open(f"{file}.1")
            assert [len(one.runs) for one in (trace, below)] == [number + 1] * 2
            assert len(below.tasks) == 2 * (number + 1) and below.is_whole
            assert not len(Trace.open(f"{file}.0").tasks)


@pytest.mark.spec("SEE-ON-4")
def test_a_child_worker_and_its_successor_have_files_beside_that_of_the_parent(path):
    with nest(path, "process") as w:
        fatal, handle = w.register(lambda orch, args, config: os._exit(3)), w.register(inner)
        with pytest.raises(WorkerLostError):
            w.run(lambda orch, args, config: orch.submit_next_level(fatal, worker=1))
        w.run(lambda orch, args, config: orch.submit_next_level(handle, worker=1))
    trace = Trace.open(path)
    assert trace.about["children"] == ["a.trace.0", "a.trace.1", "a.trace.1-2"]
    assert "inner" in names(trace)
    first, second = (Trace.open(f"{path}.1{end}") for end in ("", "-2"))
    assert not first.is_whole and second.is_whole and len(second.tasks) == 2
    assert trace.start < second.start < second.end < trace.end


@pytest.mark.spec("SEE-ON-4")
def test_a_child_worker_that_cannot_be_traced_is_named(path, caplog):
    os.mkdir(f"{path}.1")
    with nest(None, "thread") as w:
        w.start()
        with w.trace(path):
            w.run(lambda orch, args, config: None)
    trace = Trace.open(path)
    assert trace.about["children"] == ["a.trace.0"]
    (name,) = trace.about["untraced"]
    assert name == "child_worker 1 level=3" and "directory" in trace.about["untraced"][name]
    assert "child_worker 1 level=3 is not traced" in caplog.text


@pytest.mark.spec("SEE-ON-1")
def test_with_less_detail_only_what_workers_do_is_noted(traced):
    trace = traced(chain, trace_detail="tasks")
    assert (len(trace.ran), len(trace.edges), len(trace.arguments), len(trace.runs)) == (4, 0, 0, 1)
    assert names(trace) == {"increase"} and not trace.tasks["submitted"].any()
