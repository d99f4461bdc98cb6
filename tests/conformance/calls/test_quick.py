"""CALL-QUICK: usual calls, which need no Python around them, do what all others do."""

import gc
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import simpler_ref as sr
from simpler_ref.calls import quick
from simpler_ref.calls.stream import Stream
from simpler_ref.jit.kernel import INTERPRETED
from tests.support import wait_until

from ...system.programs import Concurrently
from .tasks import calls_counted, counting, same, update

native_only = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels have no address")


def described(args):
    """Return the types and contents of arguments."""
    return [
        (one.dtype.str, one.shape, one.size and one.strides, one.flags.writeable, one.tobytes())
        if isinstance(one, np.ndarray)
        else (type(one), repr(one))
        for one in args
    ]


@sr.task
def of_three(a, b, c):
    return described((a, b, c))


@sr.task
def none():
    """Return None."""


@sr.task
def of_rest(a, b=True, *rest):
    return a, b, described(rest)


@sr.task
def named_only(a, *, b=2):
    return a, b


@pytest.fixture
def one_worker():
    """Give a Worker with one worker that counts the calls that Python has run in it."""
    with counting("run") as w:
        yield w


@pytest.fixture
def refuse_others(monkeypatch):
    """Return what makes all other calls an error from then on, and the fetching of other values."""

    def refuse(*_):
        raise AssertionError("not usual")

    def begin(w):
        monkeypatch.setattr(w._life.stream, "_pack", refuse)
        monkeypatch.setattr(Stream, "_fetch", refuse)

    return begin


PLAIN = [
    "",
    "text",
    "\ud800",
    b"bytes",
    (),
    (1, "a", None),
    [1.5, [True, (b"", 1 << 70)]],
    {"a": {2: ["b"]}},
]


# ---------------------------------------------------------------- without Python
@native_only
@pytest.mark.spec("CALL-QUICK-3")
def test_usual_calls_are_packed_by_native_code(w, refuse_others):
    x = w.share(np.arange(12.0).reshape(3, 4))
    first = (
        (update, x, 2),
        (same, x[1:, ::2]),
        (none,),
        (same, 1),
        (of_rest, 1),
        (of_three, 1, x, 2),
    )
    for task, *args in first:
        task(*args).result()
    fetched = [same(one) for one in (1, 0.5, None, True)]
    assert [one.result() for one in fetched] == [1, 0.5, None, True]
    refuse_others(w)
    made = [update(x, n) for n in (1, 0.5, True)]
    made += [same(one) for one in (0, -1.5, None, False, x[:2, ::2], (1 << 63) - 1, -1 << 63)]
    made += [none(), w.submit(same, 1)]
    made += [same(made[0]), update(x, made[3]), w.submit(same, same(none()))]
    made += [same(one) for one in fetched]
    made += [of_rest(1), of_rest(1, 2.5), of_rest(1, 2, x, made[0]), of_rest(*range(15))]
    made += [same(one) for one in PLAIN] + [of_three("a", x, (1, 2)), of_rest(1, "b", made[0], [])]
    for unusual in "text" * 200, 1 << 63, np.float64(1), [x], {1}, x[::-1], [same]:
        with pytest.raises(AssertionError, match="not usual"):
            same(unusual)
    for unusual in ({"value": 1}, same), ({"b": 1, "a": 2}, of_rest), ({"a": 1}, named_only):
        with pytest.raises(AssertionError, match="not usual"):
            unusual[1](**unusual[0])
    with pytest.raises(AssertionError, match="not usual"):
        of_rest(*range(16))
    del made


@native_only
@pytest.mark.spec("CALL-QUICK-3")
def test_values_that_are_numbers_are_fetched_by_native_code(one_worker, refuse_others):
    values = [0, -7, 2.5, float("inf"), None, True, False, 1 << 62]
    values += [np.float64(0.1), np.int64(-3), np.bool_(True)]
    values += PLAIN
    assert [same(one).result() for one in values] == values
    made = [same(one) for one in values]
    same("last").result()  # the worker has ended the others before
    refuse_others(one_worker)
    for value, one in zip(values, made, strict=True):
        got = one.result()
        assert (got, type(got)) == (value, type(value))


@native_only
@pytest.mark.spec("CALL-QUICK-3")
def test_a_worker_runs_usual_calls_by_native_code(one_worker):
    x = one_worker.share(np.zeros(3))
    tasks = [(same, 1), (same, 0.5), (same, None), (same, x), (update, x, 1), (none,)]
    tasks += [(of_three, "a", x, [1, (2, {"b": None})]), *((same, one) for one in PLAIN)]
    waiting = [same(one) for one in (2, -0.5, None, True, False)]  # fetched only later
    tasks += [(calls_counted,), *((same, one) for one in waiting)]
    for task, *args in tasks:
        task(*args).result()
    before = calls_counted().result()
    for task, *args in 5 * tasks:
        task(*args).result()
    long = "text" * 200
    assert (calls_counted().result(), same(long).result()) == (before, long)
    assert (calls_counted().result(), x.tolist()) == (before + 1, [6, 6, 6])
    assert [one.result() for one in waiting] == [2, -0.5, None, True, False]


# ---------------------------------------------------------------- the same as others
numbers = st.integers(-1 << 65, 1 << 65) | st.floats(allow_nan=False) | st.booleans() | st.none()
others = st.one_of(st.text(max_size=3), st.lists(st.integers(), max_size=2), st.complex_numbers())
types = st.sampled_from(["f8", "f4", "i2", "c16", "M8[us]", "S3", "?", [("a", "i4"), ("b", "f8")]])


@st.composite
def views(draw):
    """Draw an element type, a shape, and a view of an array that has them."""
    shape = draw(st.lists(st.integers(0, 3), max_size=7))
    steps = [slice(None, None, draw(st.sampled_from([1, 2, -1, -2]))) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    return draw(types), tuple(shape), tuple(steps), tuple(order)


def array_of(w, dtype, shape, steps, order):
    base = w.zeros((*shape, 2), dtype)
    base.view(np.uint8)[...] = (
        np.arange(base.nbytes, dtype=np.uint8).reshape(base.view(np.uint8).shape) % 2
    )
    return base[..., 1][steps].transpose(order)


@pytest.mark.spec("CALL-QUICK-3")
@settings(max_examples=60, deadline=None)
@given(
    given=st.lists(st.one_of(numbers, others, views()), min_size=3, max_size=3),
    again=st.integers(1, 3),
)
def test_arguments_arrive_as_those_of_other_calls(w, given, again):
    args = [array_of(w, *one) if isinstance(one, tuple) else one for one in given]
    wanted = described([read_only(one) for one in args])
    for _ in range(again):
        assert of_three(*args).result() == wanted
    made = [of_three(*args) for _ in range(3)]
    assert [one.result() for one in made] == 3 * [wanted]


class Text(str):
    """A text with attributes."""


class Pair(NamedTuple):
    first: object
    second: object


@sr.task
def with_list(values: sr.In, *rest):
    return type(values), values.sum(), described(rest)


@pytest.mark.spec("CALL-QUICK-3", "CALL-VALUE-2")
def test_what_only_looks_like_plain_values_arrives_as_it_is(w):
    inner, text, counts = [1], Text("a"), Counter("aab")
    text.about = 3
    for _ in range(3):
        first, second = same((inner, inner)).result()
        assert first is second and first == inner and first is not inner
        found = same([text, {"a": counts}, (Pair(1, "b"),)]).result()
        assert [type(found[0]), type(found[1]["a"]), type(found[2][0])] == [Text, Counter, Pair]
        assert (found[0].about, found[1]["a"], found[2]) == (3, counts, (Pair(1, "b"),))
        assert with_list([1, 2], "a", [3]).result() == (np.ndarray, 3, described(("a", [3])))
        x = w.share(np.ones(2))
        later = update(x, 1)
        array, value, name = same((x, same(7), "a")).result()
        assert (array.tolist(), value, name) == ([2, 2], 7, "a")
        later.result()
    endless = [1]
    endless.append(endless)
    found = same(endless).result()
    assert found[1] is found


def read_only(value):
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


@native_only
@pytest.mark.spec("CALL-QUICK-3")
def test_native_code_refuses_while_another_thread_acts_as_the_orch_thread(w):
    same(1).result()
    ended = same(2)
    wait_until(ended.done)
    stream, taken, leave = w._life.stream, threading.Event(), threading.Event()

    def act():
        with stream.mutex.rlock:
            taken.set()
            leave.wait(60)

    with Concurrently(act):
        taken.wait(60)
        refused = stream._quick.call(stream, same, (3,)), stream._quick.take(ended)
        leave.set()
    assert refused[0] is None and not refused[1]
    assert stream._quick.call(stream, same, (3,)).result() == 3
    assert stream._quick.take(ended)
    assert ended.result() == 2


@pytest.mark.spec("CALL-QUICK-3")
def test_arrays_of_which_a_part_is_outside_shared_memory_are_refused_each_time(w):
    first, far = w.empty((2,), np.int64), 1 << 27
    last = w.empty((far,), np.uint8)[-16:].view(np.int64)
    update(as_strided(first, (2,), (far,)), 1).result()
    update(as_strided(last, (2,), (-far,)), 1).result()
    outside = [as_strided(last, (2,), (far,)), as_strided(first, (2,), (-far,))]
    outside += [as_strided(first, (2,), (far,)) for far in (1 << 48, -1 << 48, 1 << 62, -1 << 62)]
    for array in 2 * outside:
        with pytest.raises(ValueError, match="workers cannot see this array"):
            update(array, 1)


@pytest.mark.spec("CALL-QUICK-3")
def test_many_threads_call_wait_and_forget_at_the_same_time(w):
    x, wrong = w.share(np.zeros(8, np.int64)), []

    def work(k):
        for n in range(100):
            update(x[k : k + 1], 1)
            if same(k * 1000 + n).result() != k * 1000 + n:
                wrong.append((k, n))
            if n % 20 == 0:
                gc.collect(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
            for n in range(50):
                future = same(n)
                assert list(pool.map(lambda _, one=future: one.result(), range(4))) == 4 * [n]
    finally:
        sys.setswitchinterval(interval)
    assert same(x).result().tolist() == 8 * [100]
    assert not wrong


@pytest.mark.spec("CALL-STREAM-8", "CALL-QUICK-3")
@pytest.mark.parametrize("value", [3, "text"])
def test_a_signal_handler_may_ask_for_what_is_just_fetched(w, monkeypatch, value):
    handled, dropped = [], []
    future = same(value)
    wait_until(future.done)
    stream = w._life.stream
    decode, drop = stream._copy_outcome, stream._kernels.drop_call

    def interrupted(future, slot):
        monkeypatch.setattr(stream, "_copy_outcome", decode)
        handled.append(future.result())  # as a handler may
        handled.append(same(4).result())
        decode(future, slot)

    class Kernels:
        drop_call = staticmethod(lambda mem, slot: dropped.append(slot) or drop(mem, slot))

        def __getattr__(self, name):
            return getattr(w._life.session.engine.kernels, name)

    slot = future._slot
    monkeypatch.setattr(stream, "_copy_outcome", interrupted)
    monkeypatch.setattr(stream, "_kernels", Kernels())
    stream.fetch(future)
    assert (handled, future.result(), dropped.count(slot)) == ([value, 4], value, 1)
    stream._fetch(future)  # a handler has come before its first line
    assert 0 not in dropped
    assert future.result() == value


# ---------------------------------------------------------------- where that code is not used
@pytest.mark.spec("CALL-QUICK-3")
def test_without_the_native_part_all_calls_work(monkeypatch, tmp_path):
    try:
        with monkeypatch.context() as patch:
            patch.setattr(quick.sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
            quick.is_possible.cache_clear()
            assert not quick.is_possible(), "nor without the GIL"
        monkeypatch.setattr(quick, "LIBRARY", tmp_path / "_quick.so")
        quick.is_possible.cache_clear()
        with sr.Worker(num_sub_workers=1) as w:
            w.start()
            assert isinstance(w._life.stream._quick, quick.Slow)
            x = w.share(np.zeros(3))
            for _ in range(3):
                update(x, 1).result()
            assert [same(one).result() for one in (1, "a", None)] == [1, "a", None]
            assert same(x).result().tolist() == [3, 3, 3]
    finally:
        quick.is_possible.cache_clear()


def depth_of(value):
    return 1 + depth_of(value[-1]) if isinstance(value, list) else 0


@pytest.mark.spec("CALL-QUICK-3")
def test_lists_that_are_in_each_other_many_times_are_not_gone_through_as_often(w):
    value = 1
    for _ in range(9):  # 10**18 numbers, if all were counted
        value = [value] * 100
    assert w.submit(depth_of, value).result(30) == 9
    assert depth_of(w.submit(list, value).result(30)) == 9
