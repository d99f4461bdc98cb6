"""SEE-RACE: races in a trace."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, HazardError, Trace, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.trace.history import all_races
from simpler_ref.trace.tables import TraceFile

from .conftest import begin, bump, chain, main, make, trace_of


def rest(args):
    return None


@pytest.fixture
def traced(path):
    """Return a function that runs an orchestration function on a traced Worker, and reads the trace."""
    return lambda build, **options: trace_of(path, build, rest, (8, 8), **options)


def several(*tasks):
    """Return a function that submits tasks, each given by (index of x, tag) pairs; None drains."""

    def build(orch, handle, x):
        for task in tasks:
            if task is None:
                orch.drain()
            else:
                orch.submit_sub(handle, make(*((x[index], tag) for index, tag in task)))

    return build


WHOLE, LEFT, RIGHT = np.s_[:], np.s_[:, :5], np.s_[:, 4:]
"""LEFT and RIGHT share a column."""


def given_back(orch, handle, x):
    with orch.scope():
        buffer = orch.alloc((8,), np.int64)
    orch.submit_sub(handle, make((buffer, T.INOUT)))


def not_kept(orch, handle, x):
    with orch.scope():
        buffer = orch.alloc((8,), np.int64)
        half = ContinuousTensor.make(buffer.data + 32, (4,), np.int64)
        orch.submit_sub(handle, make((half, T.OUTPUT_EXISTING)))


def views_of_buffer(orch, handle, x):
    buffer = orch.alloc((8,), np.int64)
    half = ContinuousTensor.make(buffer.data + 32, (4,), np.int64)
    orch.submit_sub(handle, make((buffer, T.INOUT)))
    orch.submit_sub(handle, make((half, T.INPUT)))


def group(orch, handle, x):
    orch.submit_sub_group(handle, [make((x[0], T.INPUT)), make((x[1], T.INPUT))])
    orch.submit_sub(handle, make((x[1], T.OUTPUT_EXISTING)))


def many(orch, handle, x):
    orch.submit_sub_many(handle, [x], [T.INPUT])
    orch.submit_sub(handle, make((x[3], T.INOUT)))


FAULTS = {
    "the reader is overtaken": several([(WHOLE, T.INPUT)], [(WHOLE, T.INOUT)]),
    "a mere overwrite": several([(WHOLE, T.INOUT)], [(WHOLE, T.OUTPUT_EXISTING)]),
    "columns that share one": several([(LEFT, T.INOUT)], [(RIGHT, T.INOUT)]),
    "a reversed part of what is written in steps": several(
        [(np.s_[0, 1:6:2], T.INOUT)], [(np.s_[0, 6:1:-1], T.INOUT)]
    ),
    "after a drain": several([(WHOLE, T.INOUT)], None, [(WHOLE, T.INPUT)], [(WHOLE, T.INOUT)]),
    "a buffer after its scope": given_back,
    "a part of a buffer": not_kept,
    "a view of a buffer": views_of_buffer,
    "a member of a group": group,
    "one of many": many,
}
WAR, WAW, RAW = "write after read", "write after write", "read after write"
FOUND = [
    *((WAR, (0, 1)), (WAW, (0, 1)), (WAW, (0, 1)), (WAW, (0, 1)), (WAR, (1, 2))),
    *[("use after scope", (1,))] * 2,
    *((RAW, (1, 2)), (WAR, (0, 1)), (WAR, (3, 8))),
]
"""What is found of each: its kind, and the tasks."""


@pytest.mark.spec("SEE-RACE-1")
@pytest.mark.parametrize(
    ("build", "kind", "tasks"),
    [(build, *found) for build, found in zip(FAULTS.values(), FOUND, strict=True)],
    ids=FAULTS,
)
def test_a_planted_fault_alone_is_found_and_a_checked_worker_refuses_it(traced, build, kind, tasks):
    (race,) = traced(build).races()
    assert (race.kind, race.tasks, race.run, race.more) == (kind, tasks, 0, 0)
    with pytest.raises(HazardError) as caught:
        traced(build, check=True)
    assert (caught.value.kind, caught.value.tasks) == (kind, tasks)


# ---------------------------------------------------------------- no false alarms
def keeps(orch, handle, x):
    """Buffers in scopes, whose memory is used again and again, each kept by who uses it."""
    for _ in range(20):
        with orch.scope():
            buffer = orch.alloc((2048,), np.int64)
            half = ContinuousTensor.make(buffer.data + 1024, (128,), np.int64)
            orch.submit_sub(handle, make((buffer, T.INOUT)))
            orch.submit_sub(handle, make((buffer, T.INPUT), (half, T.NO_DEP)))


ORDERED = {
    "a chain": chain,
    "buffers": keeps,
    "a drain": several([(WHOLE, T.INPUT)], None, [(WHOLE, T.INOUT)], None, [(1, T.INPUT)]),
    "backwards": several([(np.s_[::-2], T.INOUT)], [(np.s_[::2], T.INOUT)]),
    "no_dep": several([(WHOLE, T.NO_DEP)], [(WHOLE, T.INOUT)]),
    "through another": several(
        [(0, T.INPUT), (1, T.INOUT)], [(1, T.INPUT), (2, T.INOUT)], [(2, T.INPUT), (0, T.INOUT)]
    ),
}


@pytest.mark.spec("SEE-RACE-1")
@pytest.mark.parametrize("build", ORDERED.values(), ids=ORDERED)
def test_what_is_ordered_is_not_reported(traced, build):
    assert traced(build, heap_ring_size=1 << 15).races() == []


@pytest.mark.spec("SEE-RACE-1")
def test_runs_among_calls_are_compared_also_views_with_gaps_and_calls_are_not(path):
    bad = several([(LEFT, T.INOUT)], [(RIGHT, T.INOUT)])
    good = several(*([(np.s_[:, i], T.INOUT)] for i in range(8)))
    with Worker(3, num_sub_workers=2, trace=path) as w:
        handle = w.register(rest)
        x, gate = w.zeros((8, 8), np.int64), w.zeros(1)
        for build in (good, bad, good, bad):
            gate[0] = 0
            begin(x, gate)  # so that those below find it alive
            for view in (x[:, 1], x[:, 2], x[::2, ::2], x[::-1, 3:]):
                bump(view)
            gate[0] = 1
            w.run(lambda orch, args, config, build=build: build(orch, handle, x))
    trace = Trace.open(path)
    assert [(one.run, one.kind, one.tasks) for one in all_races(trace)] == [
        (3, "write after write", (0, 1)),
        (7, "write after write", (0, 1)),
    ]
    first = trace.find(2, run=4).dependencies
    told = {(one.kind, one.tensor, one.tag, one.producer_tag) for one in first}
    assert told == {("data", 0, "INOUT", "INOUT")}


def random_tasks(rng):
    places = [WHOLE, 1, np.s_[0:4], np.s_[2:6], np.s_[:, 2], LEFT, RIGHT]
    tags = [T.INPUT, T.INPUT, T.INOUT, T.OUTPUT_EXISTING]
    count = int(rng.integers(2, 5))
    return [
        [(places[rng.integers(7)], tags[rng.integers(4)]) for _ in range(rng.integers(1, 3))]
        for _ in range(count)
    ]


def racing_pairs(graph, tasks):
    """Return the pairs of tasks that share bytes, one writing, without a way along the edges."""
    after = np.eye(len(tasks), dtype=bool)
    for first, second in sorted(graph.pairs, key=lambda pair: pair[1]):
        after[second] |= after[first]
    x = np.zeros((8, 8), np.int64)
    return {
        (first, second)
        for first, second in itertools.combinations(range(len(tasks)), 2)
        if not after[second, first]
        and any(
            not (one[1] == other[1] == T.INPUT) and np.shares_memory(x[one[0]], x[other[0]])
            for one in tasks[first]
            for other in tasks[second]
        )
    }


@pytest.mark.spec("SEE-RACE-1")
def test_random_programs_have_races_where_no_way_leads_along_the_edges(tmp_path):
    rng = np.random.default_rng(5)
    programs = [random_tasks(rng) for _ in range(300)]
    path = str(tmp_path / "random.trace")
    with Worker(3, num_sub_workers=2, trace=path, child_mode="thread") as w:
        handle, x = w.register(rest), w.zeros((8, 8), np.int64)
        expected = []
        for tasks in programs:
            build = several(*tasks)

            def orch_fn(orch, args, config, build=build):
                build(orch, handle, x)

            expected.append(racing_pairs(w.graph(orch_fn), tasks))
            w.run(orch_fn)
    found: list[set[tuple[int, ...]]] = [set() for _ in programs]
    for race in all_races(Trace.open(path)):
        found[race.run].add(race.tasks)
    assert 50 < sum(map(bool, expected)) < 250
    for mine, theirs in zip(found, expected, strict=True):
        assert bool(mine) == bool(theirs) and mine <= theirs


# ---------------------------------------------------------------- what is said
@pytest.mark.spec("SEE-RACE-3")
def test_a_race_names_tasks_lines_bytes_tags_and_a_remedy(traced):
    lines = []

    def build(orch, handle, x):
        lines.append(sys._getframe().f_lineno + 1)
        orch.submit_sub(handle, make((x, T.INPUT)))
        orch.submit_sub(handle, make((x, T.OUTPUT_EXISTING)))

    (race,) = traced(build).races()
    places = tuple(f"{__file__}:{lines[0] + i}" for i in range(2))
    assert race.places == places
    for words in (*places, "task 0 (rest): INPUT of 512 bytes", "task 1 (rest): OUTPUT_EXISTING"):
        assert words in race.text
    assert "Tag the tensor INOUT in both tasks" in race.text
    assert str(race).startswith("run 0: write after read: task 1 (rest) writes 512 bytes")


@pytest.mark.spec("SEE-RACE-3")
def test_a_trace_without_all_tensors_is_refused(traced, path):
    traced(several([(WHOLE, T.INOUT)]), trace_detail="tasks")
    with pytest.raises(ValueError, match="detail='all'"):
        Trace.open(path).races()
    file = TraceFile(path)
    file.dropped[L.JOURNAL_OF_ORCH] = 3
    with pytest.raises(ValueError, match="3 notes about what was submitted were dropped"):
        Trace(file).races()


@pytest.mark.spec("SEE-RACE-3")
def test_the_command_prints_races_and_has_status_1(traced, path, capsys):
    traced(several([(WHOLE, T.INPUT)], [(WHOLE, T.INOUT)]))
    assert main(["trace", path, "--check"]) == 1
    assert capsys.readouterr().out.startswith("run 0: write after read: task 1 (rest)")
    traced(chain)
    assert (main(["trace", path, "--check"]), capsys.readouterr().out) == (0, "no races\n")
