"""CALL-COMPILED: compiled tasks."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.calls import compiled
from simpler_ref.jit.kernel import INTERPRETED

from .tasks import calls_counted, counting, update, without_worker
from .tasks import total as python_total

compiled_only = pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")


@sr.task(compiled=True)
def axpy(y: sr.InOut, x: sr.In, a: float):
    for i in range(x.size):
        y[i] += a * x[i]


@sr.task(compiled=True)
def same(value):
    return value


@sr.task(compiled=True)
def total(x: sr.In):
    value = 0.0
    for one in x.flat:
        value += one
    return value


@sr.task(compiled=True)
def half(x: sr.In, i: int, up: bool):
    if i < 0:
        raise IndexError("i is negative")
    return x[i] / 2 if up else -x[i] / 2


@pytest.fixture(scope="module", params=["process", pytest.param("thread", marks=pytest.mark.long)])
def w(request):
    """Give an open Worker with one worker, in which each type is compiled once for all tests."""
    if request.param is None:
        yield None
        return
    with counting("_learn", child_mode=request.param) as w:
        yield w


@without_worker
@pytest.mark.spec("CALL-COMPILED-1")
def test_without_a_worker_a_call_runs_here(w):
    x, y = np.ones(3), np.zeros(3)
    assert axpy(y, x, 2) is None
    assert (y.tolist(), total(x)) == ([2, 2, 2], 3)
    with pytest.raises(IndexError, match="negative"):
        half(x, -1, True)
    with pytest.raises(TypeError, match="half: i "):
        half(x, 0.5, True)


@pytest.mark.spec("CALL-COMPILED-1")
def test_a_compiled_task_is_called_as_any_other(w):
    x, y = w.share(np.arange(5.0)), w.share(np.zeros(5))
    calls = [axpy(y, x, 0.5) for _ in range(10)]
    calls.append(axpy(a=1, x=x, y=y))
    assert ([one.result() for one in calls], y.tolist()) == ([None] * 11, [0, 6, 12, 18, 24])
    assert total(y).result() == w.submit(total, y).result() == 60
    inside = sr.task(lambda x: (total(x).result(), same(2).result()))
    assert inside(y).result() == (60, 2)


@pytest.mark.spec("CALL-COMPILED-1", "CALL-SENT-2")
def test_one_that_goes_by_content_has_its_defaults_inside_another_and_in_a_map(w):
    line = sr.task(compiled=True)(lambda x, by=2.0, plus=1: by * x + plus)
    calls = lambda: (line(3), line(3, plus=5), line(by=4.0, x=3), line(3, 4.0, 5))  # noqa: E731
    inside = sr.task(lambda: [one.result() for one in calls()])
    assert inside().result() == [7, 11, 13, 17]
    assert list(w.map(line, [3])) == [7]


@compiled_only
@pytest.mark.spec("CALL-COMPILED-1", "CALL-COMPILED-4")
def test_calls_after_the_first_need_no_interpreter(w):
    x, y = w.share(np.arange(5.0)), w.share(np.zeros(5))
    axpy(y, x, 0.5).result()
    total(x).result()
    half(x, 2, True).result()
    before = calls_counted().result()
    for k in range(20):
        axpy(y, x, k).result()
        axpy(y[1:], x[1:], 1).result()
        assert total(x).result() == 10
        assert half(x, k % 5, k % 2 == 0).result() == (k % 5) / (2 if k % 2 == 0 else -2)
    assert calls_counted().result() == before


@pytest.mark.slow("compiles for ten types")
@compiled_only
@pytest.mark.spec("CALL-COMPILED-1")
def test_types_in_turn_are_all_compiled_once_even_if_more_than_are_kept(w, monkeypatch):
    square = w.share(np.arange(16.0).reshape(4, 4))
    arrays = [square, square.T, square[:, 1:3], square[::-1], square[0]]
    arrays += [w.share(square.astype(np.int16)), w.share(np.array(7.0))]
    for one in arrays:
        assert total(one).result() == float(one.sum(dtype=np.float64))
    before = calls_counted().result()
    for one in 2 * arrays:
        assert total(one).result() == float(one.sum(dtype=np.float64))
    assert calls_counted().result() == before
    monkeypatch.setattr(compiled, "_MOST_ENTRIES", 1)
    first = sr.task(compiled=True)(lambda x: x.flat[0])
    with sr.Worker(num_sub_workers=1, child_mode="thread") as other:
        square = other.share(square)
        for one in 3 * (square, square[0], square.T):
            assert first(one).result() == square[0, 0]


@sr.task(compiled=True)
def fill(x: sr.Out, value):
    x[...] = value


@pytest.mark.spec("CALL-COMPILED-4")
def test_arrays_are_the_callers_own_views(w):
    grid = w.share(np.zeros((6, 8)))
    fill(grid[1:5:2, 6:1:-2], 3).result()
    expected = np.zeros((6, 8))
    expected[1:5:2, 6:1:-2] = 3
    assert grid.tolist() == expected.tolist()
    grid[:] = 1
    assert total(np.broadcast_to(grid[:1], (4, 8))).result() == 32
    first = sr.task(compiled=True)(lambda x: x[0])
    for one in (np.array([3 + 4j]), np.array(["2024-02-28"], "M8[s]")):
        assert first(w.share(one)).result() == one[0], "elements are whatever numba knows"


@compiled_only
@pytest.mark.spec("CALL-COMPILED-4", "CALL-COMPILED-6")
def test_a_function_that_writes_what_it_only_reads_is_not_compiled(w):
    @sr.task(compiled=True)
    def cheat(x: sr.In):
        x[0] = 1

    x = w.share(np.zeros(3))
    with pytest.raises(TypeError, match="readonly"):
        cheat(x).result()
    with pytest.raises(TypeError, match="cheat cannot be compiled"):
        cheat.code.run_here(cheat.signature, (x,), {})
    assert not x.any()


@pytest.mark.spec("CALL-COMPILED-4")
def test_numbers_become_what_the_annotations_say_or_are_refused_by_name(w):
    x = w.share(np.array([2.0, 4.0]))
    for i, up in ((1, True), (np.int8(1), np.bool_(True)), (True, 1), (same(1), same(True))):
        assert half(x, i, up).result() == 2
    y = w.share(np.zeros(2))
    for a in (1, 1.0, True, np.float32(1), np.int64(1), same(1), same(True)):
        axpy(y, x, a).result()
    assert y.tolist() == [14, 28]
    for wrong in (0.5, "1", None, 1 << 63):
        with pytest.raises((TypeError, OverflowError), match="half: i ") as caught:
            half(x, wrong, True)
        assert (caught.type is OverflowError) == (wrong == 1 << 63)
    with pytest.raises(TypeError, match="axpy: a takes a number of type float, not 1j"):
        axpy(x, x, 1j)
    with pytest.raises(TypeError, match=r"half: i .* not 0\.5"):
        half(x, same(0.5), True).result()
    assert half(x, 0, True).result() == 1


@pytest.mark.spec("CALL-COMPILED-4")
def test_values_arrive_as_from_any_task(w):
    @sr.task(compiled=True)
    def pair(x: sr.In):
        return x.size, x * 2

    @sr.task(compiled=True)
    def high():
        return np.uint64(1) << np.uint64(63)

    @sr.task(compiled=True)
    def single(x: sr.In):
        return x[0]

    x = w.share(np.arange(3.0))
    for _ in range(3):
        size, twice = pair(x).result()
        assert (size, twice.tolist(), int(high().result())) == (3, [0, 2, 4], 1 << 63)
        for number in (np.float32(0.1), np.int8(-5), np.bool_(True)):
            assert single(w.share(np.array([number]))).result() == number
        assert (same("text").result(), same((1, 2.5)).result()) == ("text", (1, 2.5))


@compiled_only
@pytest.mark.spec("CALL-COMPILED-6")
def test_what_numba_cannot_compile_fails_the_call_and_says_why(w):
    @sr.task(compiled=True)
    def wrong(x: sr.In):
        return x.nothing()

    x = w.share(np.zeros(3))
    for _ in range(2):
        with pytest.raises(TypeError, match=r"wrong cannot be compiled.*nothing"):
            wrong(x).result()
    with pytest.raises(TypeError, match="cannot be compiled"):
        total(w.share(np.zeros(3, ">f8"))).result()
    with pytest.raises(TypeError, match="cannot be compiled"):
        same(object()).result()
    assert total(x).result() == 0


@pytest.mark.spec("CALL-COMPILED-6")
def test_what_cannot_be_a_compiled_task_is_refused_at_once():
    for wrong in (len, lambda *args: None, lambda *, a: None):
        with pytest.raises(TypeError, match="compiled task"):
            sr.task(compiled=True)(wrong)
    with pytest.raises(TypeError, match="no option 'fastmath'"):
        sr.task(fastmath=True)
    for wrong in (3, "x", None):
        with pytest.raises(TypeError, match=f"compiled={wrong!r} is neither True nor False"):
            sr.task(compiled=wrong)
    for options, kind, words in (
        ({"fast": True}, TypeError, "no option 'fast'"),
        ({"boundscheck": 3}, TypeError, "boundscheck"),
        ({"parallel": 3}, TypeError, "parallel"),
        ({"fastmath": "fast"}, TypeError, "fastmath"),
        ({"fastmath": {"no_such_flag"}}, ValueError, "fastmath"),
        ({"error_model": "x"}, ValueError, "error_model"),
        ({"error_model": []}, ValueError, "error_model"),
        ({"timeout": 2.5}, ValueError, r"no time limit, got timeout=2\.5"),
        ({"timeout": 0}, ValueError, "positive number of seconds"),
    ):
        with pytest.raises(kind, match=words):
            sr.task(compiled=True, **options)
    sr.task(compiled=True, boundscheck=None, parallel={"fusion": True}, fastmath={"nnan"})


@pytest.mark.spec("CALL-COMPILED-6")
def test_an_exception_in_compiled_code_is_that_of_its_call(w):
    x, y = w.share(np.ones(3)), w.share(np.zeros(3))
    half(x, 0, True).result()
    for _ in range(2):
        future = half(x, -1, True)
        after = axpy(y, x, future)
        with pytest.raises(IndexError, match="i is negative") as caught:
            future.result()
        story = str(caught.value.__cause__)
        assert "test_compiled.py" in story and "in half" in story
        with pytest.raises(IndexError):
            after.result()
        assert half(x, 0, True).result() == 0.5


@pytest.mark.spec("CALL-COMPILED-1")
@pytest.mark.parametrize(
    "mode, depth", [("process", 16), pytest.param("thread", 1, marks=pytest.mark.long)]
)
def test_compiled_tasks_and_others_wait_for_each_other(mode, depth):
    with sr.Worker(num_sub_workers=2, child_mode=mode, mailbox_depth=depth) as w:
        x, y = w.share(np.zeros(1000)), w.share(np.zeros(1000))
        sums = []
        for _ in range(50):
            update(x, 1)
            axpy(y, x, 2)
            sums.append((total(y), python_total(y)))
        for k, (one, other) in enumerate(sums):
            assert one.result() == other.result() == 1000 * (k + 1) * (k + 2)
        y[:] = 0
        axpy(y, x, python_total(x))
        update(y, total(x))
        assert python_total(y).result() == 1000 * (50 * 50000 + 50000)


raise_signal = ctypes.CDLL(None)["raise"]
raise_signal.argtypes = [ctypes.c_int]
raise_signal.restype = ctypes.c_int


@sr.task(compiled=True, retries=1)
def end_until(x: sr.InOut, run: int):
    x[0] += 1
    if x[0] < run:
        raise_signal(9)
    return x[0]


@compiled_only
@pytest.mark.spec("CALL-COMPILED-6", "CALL-FAIL-4", "CALL-LIMIT-3")
def test_a_compiled_call_whose_worker_died_fails_alone_or_is_run_again():
    with sr.Worker(num_sub_workers=1, mailbox_depth=4, arena_size=1 << 28) as w:
        x, y = w.share(np.zeros(1)), w.share(np.zeros(1))
        assert end_until(x, 2).result() == 2
        with pytest.raises(sr.WorkerLostError):
            end_until(y, 3).result()
        assert y[0] == 2
        assert python_total(x).result() == 2, "others go on"
