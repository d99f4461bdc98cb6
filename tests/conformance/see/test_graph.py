"""SEE-GRAPH: graphs without running."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, HazardError, TaskArgs, Worker, orchestration
from simpler_ref import TensorArgType as T
from simpler_ref.engine.view.slots import find, look_at
from tests.by_hand import ByHand

from .conftest import increase, make


class Below:
    """A worker of the next level that does nothing."""

    def run(self, callable_, view, config):
        return None


@pytest.fixture(scope="module")
def w():
    with Worker(3, num_sub_workers=2, heap_ring_size=1 << 16) as made:
        made.increase = made.register(increase)
        made.start()
        yield made


@pytest.fixture
def x(w):
    return w.zeros(8, np.int64)


def numbers(count):
    return ContinuousTensor.make(0, (count,), np.int64)


def program(w, x, y):
    """Return an orchestration function with all that a run may have."""

    def orch_fn(orch, args, config):
        buffer = orch.alloc((8,), np.int64)
        first = make((x, T.INPUT), (buffer, T.INOUT))
        for value in (3, 0.5, 1 << 40):
            first.add_scalar(value)
        orch.submit_sub(w.increase, first)
        with orch.scope():
            second = make((buffer, T.INPUT), (numbers(4), T.OUTPUT))
            orch.submit_sub(w.increase, second)
            orch.submit_sub(w.increase, make((second.tensor(1), T.INOUT)))
        orch.submit_sub_group(w.increase, [make((y, T.INOUT)), make((y[4:], T.OUTPUT_EXISTING))])
        orch.submit_sub(w.increase, make((y[4:], T.INPUT), (x, T.NO_DEP)))
        orch.submit_sub(w.increase)

    return orch_fn


TEXT = """\
task 0: alloc t0 int64[8]
task 1: increase(INPUT t1 int64[8], INOUT t0 int64[8], 3, 0.5, …)
    after task 0: INOUT t0 ← alloc
scope:
    task 2: increase(INPUT t0 int64[8], OUTPUT t2 int64[4])
        after task 1: INPUT t0 ← INOUT
        keeps task 0: memory of t0
    task 3: increase(INOUT t2 int64[4])
        after task 2: INOUT t2 ← OUTPUT
task 4: increase, a group
    (INOUT t3 int64[8])
    (OUTPUT_EXISTING t3+32 int64[4])
task 5: increase(INPUT t3+32 int64[4], NO_DEP t1 int64[8])
    after task 4: INPUT t3+32 ← OUTPUT_EXISTING
task 6: increase()
"""


@pytest.mark.spec("SEE-GRAPH-1", "SEE-GRAPH-2", "SEE-GRAPH-3")
def test_a_graph_has_tasks_tags_and_what_each_waits_for(w, x):
    graph = w.graph(program(w, x, w.zeros(8, np.int64)))
    assert str(graph) == TEXT
    assert repr(graph) == "<TaskGraph of 7 tasks and 4 edges>"
    assert graph.pairs == [(0, 1), (1, 2), (2, 3), (4, 5)]
    task = graph.tasks[2]
    assert (task.id, task.name, task.depth, task.is_buffer) == (2, "increase", 1, False)
    assert [one.tag for one in task.arguments] == ["INPUT", "OUTPUT"]
    assert graph.tasks[0].is_buffer and graph.tasks[0].depth == 0
    assert [len(one.members) for one in graph.tasks] == [1, 1, 1, 1, 2, 1, 1]
    assert str(task) == "\n".join(line[4:] for line in TEXT.splitlines()[4:7])


@pytest.mark.spec("SEE-GRAPH-1")
def test_a_task_knows_its_line(w, x):
    lines = []

    def orch_fn(orch, args, config):
        lines.append(sys._getframe().f_lineno + 1)
        orch.submit_sub(w.increase, make((x, T.INOUT)))

    graph = w.graph(orch_fn)
    assert graph.tasks[0].line == f"{__file__}:{lines[0]}"
    assert graph.text(lines=True).splitlines()[0].endswith(f"  # test_graph.py:{lines[0]}")
    assert "test_graph" not in str(graph)


@pytest.mark.spec("SEE-GRAPH-1")
def test_no_task_runs_and_no_memory_is_there(w, x):
    def orch_fn(orch, args, config):
        orch.submit_sub(w.increase, make((x, T.INOUT)))
        with pytest.raises(ValueError, match="has no memory"):
            orch.alloc((8,), np.int64).numpy()

    w.graph(orch_fn)
    assert not x.any()


@pytest.mark.spec("SEE-GRAPH-1")
def test_arguments_and_the_configuration_are_passed_on(w, x):
    seen = []

    def orch_fn(orch, args, config):
        seen.append((args.tensor(0).data, args.scalar(0), config.block_dim))

    args = make((x, T.INPUT))
    args.add_scalar(7)
    w.graph(orch_fn, args)
    assert seen == [(x.ctypes.data, 7, 0)]


@pytest.mark.spec("SEE-GRAPH-1")
def test_tasks_submitted_many_at_once_are_there(w, x):
    tensor = ContinuousTensor.make(x.ctypes.data, (8,), np.int64)

    def orch_fn(orch, args, config):
        orch.submit_sub_many(w.increase, [tensor], [T.INOUT], count=3)

    assert w.graph(orch_fn).pairs == [(0, 1), (1, 2)]


@pytest.mark.spec("SEE-GRAPH-1")
def test_compiled_orchestration_is_called_as_python(w, x):
    handle = w.increase

    @orchestration
    def twice(orch, args, config):
        for _ in range(2):
            task = TaskArgs()
            task.add_tensor(args.tensor(0), T.INOUT)
            orch.submit_sub(handle, task)

    assert w.graph(twice, make((x, T.INOUT))).pairs == [(0, 1)]


@pytest.mark.spec("SEE-GRAPH-1", "SEE-GRAPH-2")
def test_memory_of_other_workers_and_named_workers_are_told_apart():
    with Worker(3, num_sub_workers=1, child_mode="thread") as w:
        for _ in range(2):
            w.add_next_level(Below())
        handle = w.register(increase)

        def orch_fn(orch, args, config):
            tensor = ContinuousTensor(4096, (8,), DataType.INT64, child_memory=True)
            for worker in (0, 1, 0):
                orch.submit_next_level(handle, make((tensor, T.INOUT)), worker=worker)
            members = [make((tensor, T.INPUT)), make((tensor, T.INOUT))]
            orch.submit_next_level_group(handle, members, workers=[1, 0])

        assert str(w.graph(orch_fn)) == (
            "task 0: increase(INOUT t0 int64[8]) on worker 0\n"
            "task 1: increase(INOUT t1 int64[8]) on worker 1\n"
            "task 2: increase(INOUT t0 int64[8]) on worker 0\n"
            "    after task 0: INOUT t0 ← INOUT\n"
            "task 3: increase, a group\n"
            "    (INPUT t1 int64[8]) on worker 1\n"
            "    (INOUT t0 int64[8]) on worker 0\n"
            "    after task 1: INPUT t1 ← INOUT\n"
            "    after task 2: INOUT t0 ← INOUT\n"
        )


# ---------------------------------------------------------------- dependencies
def random_tasks(rng, x, steps):
    """Return what random tasks use: views of x, with random tags."""
    tags = [T.INPUT, T.INOUT, T.OUTPUT_EXISTING]
    views = [x, x[2:], x[4:], x[:4]]
    return [
        [(views[rng.integers(4)], tags[rng.integers(3)]) for _ in range(rng.integers(1, 4))]
        for _ in range(steps)
    ]


def random_program(handle, x, seed):
    """Return an orchestration function of random tasks with views of x and buffers."""

    def orch_fn(orch, args, config):
        for i, task in enumerate(random_tasks(np.random.default_rng(seed), x, 40)):
            buffers = [(orch.alloc((4,), np.int64), T.INOUT)] if i % 5 == 0 else []
            orch.submit_sub(handle, make(*task, *buffers))

    return orch_fn


@pytest.mark.spec("SEE-GRAPH-2")
@pytest.mark.parametrize("seed", range(4))
def test_the_edges_are_those_of_a_run_in_which_no_task_ends(seed):
    with ByHand() as run:
        random_program(run.sub, run.worker.zeros(8, np.int64), seed)(run.orch, None, None)
        names = SimpleNamespace(callable_name=str, worker_name=str)
        found = {
            (producer, task)
            for task in range(run.engine.view.next_task_id)
            for producer in look_at(
                run.mem, find(run.mem, task), task, names, lambda: True
            ).producers
        }
        assert len(found) > 40
    with Worker(3, num_sub_workers=2) as w:
        graph = w.graph(random_program(w.register(increase), w.zeros(8, np.int64), seed))
    assert {(e.producer, one.id) for one in graph.tasks for e in one.edges} == found


# ---------------------------------------------------------------- text
@pytest.mark.spec("SEE-GRAPH-3")
def test_the_text_is_the_same_for_other_memory_and_another_worker(w, x):
    before = w.graph(program(w, x, w.zeros(8, np.int64))).text()
    assert w.graph(program(w, w.zeros(8, np.int64), w.zeros(8, np.int64))).text() == before
    with Worker(3, num_sub_workers=2) as other:
        other.increase = other.register(increase)
        arrays = other.zeros(8, np.int64), other.zeros(8, np.int64)
        assert other.graph(program(other, *arrays)).text() == before


@pytest.mark.spec("SEE-GRAPH-3")
def test_memory_that_is_used_again_has_another_name(w, x):
    def orch_fn(orch, args, config):
        for _ in range(2):
            with orch.scope():
                buffer = orch.alloc((8,), np.int64)
                view = ContinuousTensor.make(buffer.data + 16, (2,), np.int64)
                orch.submit_sub(w.increase, make((view, T.INPUT), (buffer, T.NO_DEP)))

    texts = str(w.graph(orch_fn)).splitlines()
    assert [line for line in texts if "increase" in line] == [
        "    task 1: increase(INPUT t0+16 int64[2], NO_DEP t0 int64[8])",
        "    task 3: increase(INPUT t1+16 int64[2], NO_DEP t1 int64[8])",
    ]


@pytest.mark.spec("SEE-GRAPH-4")
def test_a_diff_shows_a_tag_that_was_changed(w, x):
    def with_tag(tag):
        def orch_fn(orch, args, config):
            orch.submit_sub(w.increase, make((x, T.INOUT)))
            orch.submit_sub(w.increase, make((x, tag)))

        return w.graph(orch_fn)

    before, after = with_tag(T.INOUT), with_tag(T.OUTPUT_EXISTING)
    assert before.diff(with_tag(T.INOUT)) == "" == before.diff(str(before))
    changed = [line for line in before.diff(after).splitlines()[3:] if line[0] != " "]
    assert changed == [
        "-task 1: increase(INOUT t0 int64[8])",
        "-    after task 0: INOUT t0 ← INOUT",
        "+task 1: increase(OUTPUT_EXISTING t0 int64[8])",
    ]
    assert before.diff(after) == before.diff(str(after))


@pytest.mark.spec("SEE-GRAPH-5")
def test_dot_has_the_tensors_of_edges(w, x, tmp_path):
    w.graph(program(w, x, w.zeros(8, np.int64))).write_dot(tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    assert 't0 [label="task 0 (alloc)", shape=ellipse];' in text
    assert 't1 -> t2 [label="INPUT t0"];' in text
    assert 't0 -> t2 [label="INPUT t0", style=dotted];' in text


# ---------------------------------------------------------------- what does not run
@pytest.mark.spec("SEE-GRAPH-6")
def test_a_drain_is_a_line_and_the_rest_is_refused(w, x):
    def orch_fn(orch, args, config):
        orch.submit_sub(w.increase, make((x, T.INOUT)))
        orch.drain()
        for ask in (orch.live_tasks, lambda: orch.ring, lambda: orch.malloc(0, 8)):
            with pytest.raises(RuntimeError, match="no meaning in a dry run"):
                ask()

    assert str(w.graph(orch_fn)).splitlines()[-1] == "drain"


@pytest.mark.spec("SEE-GRAPH-6")
def test_the_worker_is_as_before_also_after_an_exception(w, x):
    kept = []

    def bad(orch, args, config):
        kept.append(orch)
        orch.submit_sub(w.increase, make((x, T.INOUT)))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        w.graph(bad)
    with pytest.raises(RuntimeError, match="run has ended"):
        kept[0].submit_sub(w.increase, make((x, T.INOUT)))
    assert w.run(lambda orch, *_: orch.submit_sub(w.increase, make((x, T.INOUT)))).tasks == 1
    assert x.tolist() == [1] * 8


@pytest.mark.spec("SEE-GRAPH-6")
def test_what_no_run_could_submit_is_refused(w):
    with pytest.raises(RuntimeError, match="exceeds per-ring heap size"):
        w.graph(lambda orch, *_: orch.alloc((1 << 20,), np.int64))
    with pytest.raises(TypeError, match="graph expects an orchestration function"):
        w.graph(3)


@pytest.mark.spec("SEE-GRAPH-7")
def test_a_hazard_is_found_without_running():
    with Worker(3, num_sub_workers=1, check=True) as w:
        handle = w.register(increase)
        x, y = w.zeros(8, np.int64), w.zeros(8, np.int64)

        def racing(orch, args, config):
            orch.submit_sub(handle, make((x, T.INPUT), (y, T.INOUT)))
            orch.submit_sub(handle, make((x, T.INOUT)))

        with pytest.raises(HazardError) as caught:
            w.graph(racing)
        assert (caught.value.kind, caught.value.tasks) == ("write after read", (0, 1))
        graph = w.graph(lambda orch, *_: orch.submit_sub(handle, make((x, T.INPUT))))
        assert str(graph) == "task 0: increase(INPUT t0 int64[8])\n"
