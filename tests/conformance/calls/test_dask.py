"""CALL-DASK: graphs of dask as calls of a Worker."""

import operator
import os
import time

import numpy as np
import pytest

import simpler_ref as sr

dask = pytest.importorskip("dask", reason="dask is not installed")

import dask.array as da  # noqa: E402
from dask._task_spec import Task, TaskRef, convert_legacy_graph  # noqa: E402
from dask.callbacks import Callback  # noqa: E402
from dask.diagnostics import ProgressBar  # noqa: E402
from dask.local import get_sync  # noqa: E402

pytestmark = pytest.mark.spec("CALL-DASK-1")


@pytest.fixture(scope="module")
def w():
    with sr.Worker(num_sub_workers=2, arena_size=1 << 28) as w:
        w.start()
        w.submit(int).result()
        yield w


def increased(x):
    return x + 1


def fail(x):
    raise KeyError(x)


def tree(leaves):
    """Return a graph that adds the numbers below `leaves`, two by two, and the key of the sum."""
    graph = {("leaf", i): (increased, i) for i in range(leaves)}
    level = list(graph)
    while len(level) > 1:
        above = []
        for at in range(0, len(level), 2):
            above.append(("sum", len(graph)))
            graph[above[-1]] = (sum, list(level[at : at + 2]))
        level = above
    return graph, level[0]


# ---------------------------------------------------------------- values
@pytest.mark.parametrize("leaves", [1, 2, 7, 3000])
def test_a_tree_gives_what_it_gives_with_dask(w, leaves):
    graph, top = tree(leaves)
    assert w.dask_get(graph, top) == sum(range(leaves)) + leaves
    some = [[key] for key in list(graph)[:: max(1, leaves // 7)]]
    assert w.dask_get(graph, some) == get_sync(graph, some)


@pytest.mark.parametrize(
    ("graph", "keys", "expected"),
    [
        ({"x": 1}, "x", 1),
        ({"x": 1, "y": "x", "z": (increased, "y")}, ["z", ["y", "x"]], (2, (1, 1))),
        ({"x": 1, "y": (sum, ["x", (increased, "x"), 5])}, "y", 8),
        ({"x": (dict, [["a", 1]]), "y": (operator.getitem, "x", "a")}, ["y"], (1,)),
        ({"x": (lambda: (i for i in (1, 2)),), "y": (list, "x")}, "y", [1, 2]),
        ({}, [], ()),
    ],
)
def test_graphs_of_every_form(w, graph, keys, expected):
    for _ in range(3):  # later ones are blocks of several tasks, once something is known of these
        try:
            assert w.dask_get(graph, keys) == expected
        except TypeError as error:
            assert "generator" in str(error)  # which only tasks of one block can pass on


def test_more_blocks_than_a_call_has_arguments(w):
    graph = {("part", i): (np.full, 20_000, i) for i in range(60)}
    graph["all"] = (len, list(graph))
    graph["sums"] = (lambda parts: [int(one[0]) for one in parts], [("part", i) for i in range(60)])
    assert w.dask_get(graph, ["all", "sums"]) == (60, list(range(60)))


# ---------------------------------------------------------------- memory
def about(array):
    return array.ctypes.data, array.flags.writeable, float(array[0])


def test_a_large_array_of_a_graph_is_one_copy(w):
    array = np.arange(100_000.0)
    graph = {"x": array, **{("about", i): (about, "x") for i in range(20)}}
    seen = set(w.dask_get(graph, [("about", i) for i in range(20)]))
    ((address, writeable, first),) = seen
    assert (address != array.ctypes.data, writeable, first) == (True, False, 0.0)
    array[0] = 5
    assert {one[2] for one in w.dask_get(graph, [("about", i) for i in range(20)])} == {5.0}


def doubled_in_place(array):
    array *= 2
    return array


@pytest.mark.parametrize("callbacks", [None, [(None,) * 5]])
def test_tasks_write_what_they_have_made_and_what_is_shared(w, callbacks, tmp_path):
    for size in (10, 100_000):
        graph = {"x": np.ones(size), "y": (np.add, "x", 1), "z": (doubled_in_place, "y")}
        graph["all"] = (lambda *arrays: [float(one.sum()) / len(one) for one in arrays], "y", "z")
        assert w.dask_get(graph, "all", callbacks=callbacks) == [2, 4]
        with pytest.raises(ValueError, match="read-only"):
            w.dask_get({**graph, "z": (doubled_in_place, "x")}, "z", callbacks=callbacks)
        for target in w.zeros(size), np.memmap(tmp_path / "x", float, "w+", shape=2 * size)[size:]:
            da.store(da.ones(size, chunks=size // 2), target, scheduler=w.dask_get, lock=False)
            assert (target == 1).all()


def test_values_are_dropped_as_soon_as_no_task_needs_them():
    with sr.Worker(num_sub_workers=2, values_size=80 << 20) as w:
        graph = {("x", 0): (np.zeros, (4 << 20) // 8)}
        for i in range(1, 60):
            graph["x", i] = (increased, ("x", i - 1))
        assert w.dask_get(graph, ("x", 59))[0] == 59


# ---------------------------------------------------------------- errors and callbacks
def test_an_error_is_that_of_the_task(w):
    graph, top = tree(200)
    graph["bad"] = (fail, top)
    graph["end"] = (increased, "bad")
    with pytest.raises(KeyError) as caught:
        w.dask_get(graph, ["end", ("leaf", 3)])
    assert "in fail" in str(caught.value.__cause__)
    for keys, wrong, text in (
        ("y", {"x": (increased, "y"), "y": (increased, "x")}, "Cycle"),
        ("x", convert_legacy_graph({"x": (increased, "y")}, {"x", "y"}), "Missing"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=text):
            w.dask_get(wrong, keys)
    assert w.dask_get(graph, top) == sum(range(200)) + 200


def test_an_error_cancels_what_has_not_begun(w):
    graph = {("slow", i): (time.sleep, 0.2) for i in range(60)}
    graph["bad"] = (fail, 1)
    start = time.monotonic()
    with pytest.raises(KeyError):
        w.dask_get(graph, ["bad", *graph])
    assert w.dask_get({"x": (increased, 1)}, "x") == 2
    assert time.monotonic() - start < 5


class Seen(Callback):
    def __init__(self):
        self.began, self.ended, self.calls = [], {}, []
        self._start = lambda dsk: self.calls.append("start")
        self._start_state = lambda dsk, state: self.calls.append("start_state")
        self._pretask = lambda key, dsk, state: self.began.append(key)
        self._finish = lambda dsk, state, failed: self.calls.append(f"finish {failed}")

    def _posttask(self, key, value, dsk, state, identity):
        self.ended[key] = value
        assert identity != os.getpid()


def test_callbacks_and_the_progress_bar_see_every_task(w, capsys):
    graph, top = tree(20)
    with Seen() as seen, ProgressBar():
        value = w.dask_get(graph, top)
    assert value == seen.ended[top] == 210
    assert set(seen.began) == set(seen.ended) == set(graph)
    assert seen.calls == ["start", "start_state", "finish False"]
    assert "100% Completed" in capsys.readouterr().out
    graph["bad"] = (fail, top)
    with Seen() as seen, pytest.raises(KeyError):
        w.dask_get(graph, "bad")
    assert seen.calls[-1] == "finish True"
    with pytest.raises(KeyError):
        w.dask_get(graph, "bad", rerun_exceptions_locally=True)
    graph = {"y": Task("y", increased, TaskRef("x"))}
    assert w.dask_get(graph, "y", cache={"x": 1}) == 2


inside = []


def increased_inside(value):
    return inside[0]({"y": (increased, value)}, "y")


def inner(value):
    return dask.delayed(increased)(value).compute(scheduler="sync")


def test_a_graph_within_a_task_and_a_worker_that_cannot(w):
    assert w.dask_get({"x": (inner, 1)}, "x") == 2
    with sr.Worker(3, num_sub_workers=2, child_mode="thread") as threads:
        graph, top = tree(300)
        assert threads.dask_get(graph, top) == sum(range(300)) + 300
        inside.append(threads.dask_get)
        assert threads.dask_get({"x": (increased_inside, 1)}, "x") == 2
    with pytest.raises(RuntimeError, match="closed"):
        threads.dask_get({}, [])
