"""CALL-VALUE: arguments and values."""

import builtins
import gc
import mmap
import os
import resource
import sys
import threading

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.engine.view import blocks
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.system import regions
from tests.support import shared_pages, wait_until

from ...system.programs import Fork
from .tasks import MODES, fill, same, update, wait_at


@sr.task
def cheat(x: sr.In):
    x[0] = 1


@pytest.mark.spec("CALL-VALUE-1", "CALL-VALUE-2")
def test_arrays_are_the_callers_own_and_those_that_are_only_read_cannot_be_written(w):
    x = w.share(np.arange(6, dtype=np.float32).reshape(2, 3))
    y = w.share(np.zeros((2, 3), np.float32))
    update(x, 2.0).result()
    fill(y, x).result()
    assert y.tolist() == x.tolist() == [[2, 3, 4], [5, 6, 7]]
    for call in (update, fill):
        with pytest.raises(TypeError, match="x"):
            call([1, 2], 2)
    with pytest.raises(ValueError, match="read-only"):
        cheat(x).result()
    read = sr.task(lambda x: (x.flags.writeable, float(x.sum())))
    assert read(y).result() == (False, 27), "without annotation, too"


VALUES = [None, True, False, 0, -1, 1 << 62, -(1 << 63), 1 << 63, 1 << 200]
VALUES += [0.5, float("inf"), -0.0, 1j, "", "text", "long " * 1000, b"\0\1"]
VALUES += [(1, [2, {"three": 3.0}]), {"a": None}, range(3), int]


@pytest.mark.spec("CALL-VALUE-2")
def test_values_arrive_equal_and_of_the_same_type(w):
    for value in VALUES:
        got = same(value).result()
        assert got == value and type(got) is type(value)
    first, second = same([VALUES, VALUES]).result()
    assert first == second == VALUES
    for size in (0, 1, 100, 10_000, 1_000_000):
        private = np.arange(size, dtype=np.float64)
        got = same(private).result()
        assert (got == private).all() and got.dtype == np.float64 and got.flags.writeable
        assert not np.shares_memory(got, private)


@pytest.mark.spec("CALL-VALUE-2")
@pytest.mark.parametrize(
    "args", [{"b": threading.Lock()}, {"a": 1, "b": [threading.Lock()]}], ids=len
)
def test_an_argument_that_cannot_be_pickled_is_named(w, args):
    with pytest.raises(TypeError, match=r"^b: this l\w+ cannot be pickled .*_thread.lock.*; pass"):
        w.submit(lambda a=0, **more: a, **args)
    with pytest.raises(TypeError, match=r"^value: this lock "):
        same(threading.Lock())


@pytest.mark.spec("CALL-VALUE-2")
def test_an_argument_that_is_returned_comes_back_as_a_copy(w):
    @sr.task
    def part(x: sr.In):
        return x[2:4]

    x = w.share(np.arange(6, dtype=np.float32))
    got = part(x).result()
    x[:] = 0
    assert got.tolist() == [2, 3]
    got[:] = 9
    assert not x.any()


def arange(n):
    """Return a square of numbers, each time the same."""
    return np.arange(n * n).reshape(n, n)


@sr.task
def add_to(given, number=1):
    """Return the sum of an array, and the array, which is written then."""
    before = int(given.sum())
    given += number
    return before, given


@pytest.mark.spec("CALL-VALUE-2")
@pytest.mark.parametrize("n", [10, 200, 600])
def test_a_task_may_write_what_another_has_returned(w, n):
    right = int(arange(n).sum())
    value = w.submit(arange, n)
    for number in (0, 1):
        for before, written in (add_to(value, number).result() for _ in range(4)):
            assert before == right and (written == arange(n) + number).all()
    twice = sr.task(lambda one, other: (add_to.py_func(one), other.sum()))
    assert twice(value, value).result()[1] == right, "each is a copy"
    within = sr.task(lambda given: add_to.py_func(given["x"])[0])
    assert [within({"x": value}).result() for _ in range(3)] == [right] * 3

    def fails(given):
        given[...] = 0
        raise ValueError(given)

    assert isinstance(w.submit(fails, value).exception(), ValueError)
    assert (value.result() == arange(n)).all() and add_to(value).result()[0] == right


@pytest.mark.spec("CALL-VALUE-2")
@pytest.mark.skipif(INTERPRETED, reason="interpreted workers make no arrays in blocks")
def test_a_process_that_a_task_forks_ends_if_there_is_no_memory_for_its_arrays():
    def refuse(address, nbytes):
        raise MemoryError

    def fork(n):
        array = arange(n)
        regions.make_private = refuse
        child = os.fork()
        if child == 0:
            array[:] = 0
            os._exit(0)
        return array, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with sr.Worker(num_sub_workers=1) as w:
        w.submit(arange, 200).result()
        array, status = w.submit(fork, 200).result()
    assert status == 1 and (array == arange(200)).all()


@pytest.mark.spec("CALL-VALUE-2")
def test_what_the_program_writes_into_a_result_is_not_seen_by_a_task_that_has_it(w, gate):
    def read(given, begins: sr.Out, gate: sr.In):
        begins[0] = 1
        wait_at(gate)
        return int(given.sum())

    begins, value = w.zeros(1), w.submit(arange, 600)
    found = w.submit(read, value, begins, gate)
    wait_until(lambda: begins[0])
    value.result()[...] = 0
    gate[0] = 1
    assert found.result() == arange(600).sum()


@pytest.mark.spec("CALL-VALUE-2")
def test_a_process_that_a_task_forks_keeps_what_the_task_has_got(tmp_path):
    def fork(given, go, out):
        if os.fork() == 0:
            wait_until(go.exists)
            out.with_suffix(".new").write_text(str(given.sum()))
            out.with_suffix(".new").rename(out)
            os._exit(0)

    go, out = tmp_path / "go", tmp_path / "out"
    with sr.Worker(num_sub_workers=1) as w:
        w.submit(fork, w.submit(arange, 600), go, out).result()
        for _ in range(8):
            w.submit(np.ones, (600, 600)).result()
        go.touch()
        wait_until(out.exists)
    assert out.read_text() == str(arange(600).sum())


@pytest.mark.spec("CALL-VALUE-2")
def test_what_a_task_writes_is_its_own_where_the_system_tells_nothing_of_pages():
    def hide():
        tells = builtins.open

        def opens(name, *args):
            if "pagemap" in str(name):
                raise FileNotFoundError(name)
            return tells(name, *args)

        builtins.open = opens

    with sr.Worker(num_sub_workers=1, initializer=hide) as w:
        value = w.submit(arange, 600)
        for _ in range(3):
            assert add_to(value).result()[0] == arange(600).sum()


@pytest.mark.spec("CALL-VALUE-4")
def test_a_large_array_that_is_no_value_takes_no_room():
    def objects():
        made = np.empty(1 << 17, object)
        made[0] = threading.Lock()
        return made

    with sr.Worker(num_sub_workers=1, values_size=1 << 24) as w:
        parts = []
        for _ in range(20):
            w.submit(np.ones, 1 << 17).result()
            assert isinstance(w.submit(objects).exception(), TypeError)
            parts.append(w.submit(lambda: np.ones(1 << 17)[:5]))
        w.wait()
        assert len(w.submit(np.ones, 10 << 20, np.uint8).result()) == 10 << 20
        assert all(one.result().tolist() == [1] * 5 for one in parts)


@pytest.mark.spec("CALL-VALUE-4")
def test_values_that_nobody_keeps_or_only_the_garbage_collector_finds_take_no_memory(mode):
    gc.disable()
    try:
        with sr.Worker(num_sub_workers=1, child_mode=mode, values_size=1 << 22) as w:
            for size in [*range(1 << 16, 1 << 21, 1 << 17)] * 2:
                assert w.submit(np.ones, size, np.uint8).result().all()
            for i in range(20):  # there is room for three of these
                array = same(np.full(1 << 18, i, np.float32)).result()
                assert array[0] == array[-1] == i
            for _ in range(2000):
                same("dropped" * 100)
            for _ in range(100):
                cycle = [w.submit(np.ones, 1 << 17, np.uint8).result()]
                cycle.append(cycle)
    finally:
        gc.enable()


@pytest.mark.spec("CALL-VALUE-4")
def test_a_value_outlives_its_future_and_its_worker():
    with sr.Worker(num_sub_workers=1, child_mode="thread") as w:
        big = same(np.full(1 << 18, 7, np.float32)).result()
        gc.collect()
        others = [same(np.full(1 << 18, i, np.float32)).result() for i in range(5)]
        w.run(lambda orch, args, config: None)
        kept = same("kept")
    assert (big == 7).all()
    assert ([int(one[5]) for one in others], kept.result()) == ([0, 1, 2, 3, 4], "kept")


@pytest.mark.spec("CALL-VALUE-4")
def test_large_values_that_are_gone_give_their_memory_back(monkeypatch):
    monkeypatch.setattr(blocks, "_MOST_FREE", 0)
    nbytes = 8 << 20
    with sr.Worker(num_sub_workers=1) as w:
        for _ in range(2):
            w.submit(int).result()
            before = shared_pages()
            values = list(w.map(lambda i: np.full(nbytes, i, np.int8), range(4)))
            assert all((one == i).all() for i, one in enumerate(values))
            w.submit(int).result()
            assert shared_pages() > before + 3 * nbytes
            values.clear()
            assert shared_pages() < before + nbytes


@pytest.mark.spec("CALL-VALUE-4")
def test_values_have_as_much_room_as_the_machine_has_memory():
    there = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    with sr.Worker(num_sub_workers=1) as w:
        w.start()
        size = w._life.stream._blocks.nbytes
        assert limited or size >= min(there, 1 << 36) - mmap.PAGESIZE


def rebuild(worker):
    if os.getpid() != worker:
        raise ValueError("not here")


class Homebound:
    """Can be rebuilt in the process that made it only."""

    def __reduce__(self):
        return rebuild, (os.getpid(),)


@pytest.mark.spec("CALL-VALUE-4")
def test_a_value_without_room_or_that_cannot_travel_fails_its_call_and_no_other():
    with sr.Worker(num_sub_workers=1, values_size=1 << 21) as w:
        for make, error, reason in (
            (lambda: np.zeros(1 << 24, np.uint8), MemoryError, "no room"),
            (threading.Lock, TypeError, "cannot be pickled"),
            (lambda: Homebound(), sr.TaskError, "not here"),
        ):
            lost, kept = w.submit(make), same(5)
            w.run(lambda orch, args, config: None)
            with pytest.raises(error, match=reason):
                lost.result()
            assert kept.result() == 5


@pytest.fixture
def in_main():
    """Give a function that runs a cell of a notebook: what it defines is in `__main__`."""
    main = vars(sys.modules["__main__"])
    before = dict(main)
    yield lambda cell: exec(cell, main) or main
    for name in main.keys() - before.keys():
        del main[name]


CLASS = """
class Point:
    unit = {unit!r}
    class Inner: pass
    def __init__(self, x): self.x = x
    def __eq__(self, other): return type(other) is type(self) and other.x == self.x
    __hash__ = None
class Wrong(ValueError):
    def __init__(self, point): super().__init__(point); self.point = point
"""
TASKS = """
import simpler_ref as sr
@sr.task
def same_kind(one, kind): return isinstance(one, kind) and isinstance(one, Point), one.unit, one
@sr.task
def fail(point): raise Wrong(point)
"""


def check_points(w, main, unit):
    point = main["Point"](5)
    for _ in range(2):
        assert main["same_kind"](point, main["Point"]).result() == (True, unit, point)
    again = w.submit(same, w.submit(same, [point, main["Point"].Inner])).result()
    assert again == [point, main["Point"].Inner]
    assert list(w.map(same, [point] * 50)) == [point] * 50
    with pytest.raises(main["Wrong"]) as raised:
        main["fail"](point).result()
    assert raised.value.point == point


@pytest.mark.spec("CALL-VALUE-4")
def test_a_forked_process_that_drops_a_value_leaves_it_to_the_program(w):
    kept = [same(np.full(1 << 18, 7, np.float32)).result()]
    with Fork(lambda: (kept.clear(), gc.collect())) as child:
        assert child.wait() == 0
    others = [same(np.full(1 << 18, i, np.float32)).result() for i in range(4)]
    assert (kept[0] == 7).all() and [int(one[0]) for one in others] == [0, 1, 2, 3]


@pytest.mark.spec("CALL-VALUE-2")
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_instances_of_classes_of_main_travel_whenever_these_are_defined(mode, is_new, in_main):
    main = {} if is_new else in_main(CLASS.format(unit="m")) and in_main(TASKS)
    with sr.Worker(num_sub_workers=2, **mode) as w:
        if is_new:
            w.start()
            main = in_main(CLASS.format(unit="m")) and in_main(TASKS)
        assert list(w.map(same, [main["Point"](1)])) == [main["Point"](1)]
        check_points(w, main, "m")
        in_main(TASKS)
        check_points(w, main, "m")
        in_main(CLASS.format(unit="km"))
        in_main(TASKS)
        check_points(w, main, "km")

        class Local(Exception):
            pass

        def fail():
            raise Local("deep")

        assert isinstance(w.submit(fail).exception(), Local)
        assert w.submit(len, [main["Point"](i) for i in range(10_000)]).result() == 10_000
