"""SEE-GRAPH: graphs without running."""

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, HazardError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.remote import ProcessFleet

from .conftest import increase, make


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


def program(w, x, y, tag=T.NO_DEP):
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
        orch.submit_sub(w.increase, make((y[4:], T.INPUT), (x, tag)))
        orch.submit_sub_many(w.increase, [y.reshape(2, 4)], [T.INOUT], [np.arange(2)])
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
task 6: increase(INOUT t3 int64[4], 0)
    after task 4: INOUT t3 ← INOUT
task 7: increase(INOUT t3+32 int64[4], 1)
    after task 4: INOUT t3+32 ← OUTPUT_EXISTING
task 8: increase()
"""


@pytest.mark.spec("SEE-GRAPH-1", "SEE-GRAPH-3")
def test_a_graph_has_tasks_tags_and_what_each_waits_for(w, x):
    graph = w.graph(program(w, x, w.zeros(8, np.int64)))
    assert (str(graph), repr(graph)) == (TEXT, "<TaskGraph of 9 tasks and 6 edges>")
    assert graph.pairs == [(0, 1), (1, 2), (2, 3), (4, 5), (4, 6), (4, 7)]
    task = graph.tasks[2]
    assert (task.id, task.name, task.depth, task.is_buffer) == (2, "increase", 1, False)
    assert [one.tag for one in task.arguments] == ["INPUT", "OUTPUT"]
    assert graph.tasks[0].is_buffer and graph.tasks[0].depth == 0
    assert [len(one.members) for one in graph.tasks] == [1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert str(task) == "\n".join(line[4:] for line in TEXT.splitlines()[4:7])


@pytest.mark.spec("SEE-GRAPH-1")
def test_a_function_gets_its_arguments_and_no_task_runs_or_has_memory(w, x):
    def orch_fn(orch, args, config):
        assert (args.tensor(0).data, args.scalar(0), config.block_dim) == (x.ctypes.data, 7, 0)
        orch.submit_sub(w.increase, make((x, T.INOUT)))
        with pytest.raises(ValueError, match="has no memory"):
            orch.alloc((8,), np.int64).numpy()

    assert len(w.graph(orch_fn, make((x, T.INPUT), scalars=[7])).tasks) == 2
    assert not x.any()


@pytest.mark.spec("SEE-GRAPH-3")
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


@pytest.mark.spec("SEE-GRAPH-3")
def test_dot_has_the_tensors_of_edges(w, x, tmp_path):
    w.graph(program(w, x, w.zeros(8, np.int64))).write_dot(tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    assert 't0 [label="task 0 (alloc)", shape=ellipse];' in text
    assert 't1 -> t2 [label="INPUT t0"];' in text
    assert 't0 -> t2 [label="INPUT t0", style=dotted];' in text


# ---------------------------------------------------------------- what does not run
@pytest.mark.spec("SEE-GRAPH-6")
def test_a_drain_is_a_line_the_rest_is_refused_and_the_worker_is_as_before(w, x):
    kept = []

    def orch_fn(orch, fails, config):
        kept.append(orch)
        orch.submit_sub(w.increase, make((x, T.INOUT)))
        orch.drain()
        for ask in (orch.live_tasks, lambda: orch.ring, lambda: orch.malloc(0, 8)):
            with pytest.raises(RuntimeError, match="no meaning in a dry run"):
                ask()
        if fails:
            raise ZeroDivisionError

    assert str(w.graph(orch_fn)).splitlines()[-1] == "drain"
    with pytest.raises(ZeroDivisionError):
        w.graph(orch_fn, True)
    for orch in kept:
        with pytest.raises(RuntimeError, match="run has ended"):
            orch.submit_sub(w.increase, make((x, T.INOUT)))
    assert w.run(lambda orch, *_: orch.submit_sub(w.increase, make((x, T.INOUT)))).tasks == 1
    assert x.tolist() == [1] * 8


@pytest.mark.spec("SEE-GRAPH-6")
def test_a_hazard_is_found_without_running():
    with Worker(3, num_sub_workers=1, check=True, child_mode="thread") as w:
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


@pytest.mark.spec("SEE-GRAPH-6")
def test_the_dry_run_of_a_fleet_is_that_of_a_worker_of_this_machine(w):
    texts = []
    with Worker(fleet=ProcessFleet(), endpoints=2, num_sub_workers=1) as far:
        far.increase = far.register(increase)
        for one in (w, far):
            x, y = (one.zeros(8, np.int64) for _ in range(2))
            texts.append(str(one.graph(program(one, x, y, T.INPUT))))
            assert not x.any() and not y.any()
    assert texts[0] == texts[1]
