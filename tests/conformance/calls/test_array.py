"""CALL-ARRAY: arrays."""

import array
import mmap
import time

import numpy as np
import psutil
import pytest

import simpler_ref as sr
from simpler_ref.jit import layout as L
from simpler_ref.workers import processes

from .tasks import fill, total, update


@sr.task
def describe(x: sr.In):
    return x.dtype, x.shape, x.strides, x.copy()


RECORD = np.dtype([("a", np.int32), ("b", np.float64, (2,))])
ARRAYS = {
    "float64": np.linspace(0, 1, 7),
    "longdouble": np.array([1, 2], np.longdouble),
    "datetime": np.array(["2026-11-23", "NaT"], "datetime64[s]"),
    "text": np.array(["a", "bcd"]),
    "record": np.array([(1, (2.0, 3.0)), (4, (5.0, 6.0))], RECORD),
    "big endian": np.arange(5, dtype=">i4"),
    "six dimensions": np.arange(64, dtype=np.float16).reshape(2, 2, 2, 2, 2, 2),
    "number": np.array(3.5),
    "empty": np.zeros((3, 0), np.float64),
}


@pytest.mark.spec("CALL-ARRAY-1")
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_of_any_type_are_arguments(w, array):
    shared = w.share(array)
    dtype, shape, _, contents = describe(shared).result()
    assert (dtype, shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(contents, array)
    other = w.empty(array.shape, array.dtype)
    fill(other, shared).result()
    np.testing.assert_array_equal(other, array)


BASE = np.arange(6.0)


@pytest.mark.spec("CALL-ARRAY-1")
@pytest.mark.parametrize(
    "array",
    [BASE, BASE[::2], BASE.reshape(2, 3).T[1:], np.frombuffer(b"12345678")],
    ids=["own", "view", "view of a view", "of bytes"],
)
def test_private_arrays_are_copied_to_be_read_and_refused_to_be_written(w, array, monkeypatch):
    """That memory is private is seen without a look at all mappings."""
    assert describe(w.zeros(3)).result()[1] == (3,)
    monkeypatch.setattr(processes, "shared_mappings", None)  # a thousand times as long
    assert np.array_equal(describe(array).result()[3], array)
    with pytest.raises(ValueError, match=r"private to this process|is read-only"):
        fill(array, array)


@pytest.mark.spec("CALL-ARRAY-1")
def test_memory_that_others_have_shared_is_passed_as_it_is():
    with mmap.mmap(-1, 64) as shared:
        x = np.frombuffer(shared, np.float64)
        view = np.frombuffer(memoryview(shared)[16:], np.float64)
        with sr.Worker(num_sub_workers=1):
            fill(x[:2], np.ones(2)).result()
            fill(view[:2], np.full(2, 2.0)).result()
        assert x.tolist() == [1, 1, 2, 2, 0, 0, 0, 0]
        del x, view


@pytest.mark.spec("CALL-ARRAY-1")
def test_there_are_always_numbers_for_more_layouts(w):
    x = w.share(np.arange(1000.0))
    first, mem = describe(x[:10]), w._life.live().engine.mem
    mem[L.LAYOUTS_USED] = L.LAYOUTS_CAPACITY - 40  # as if there had been thousands of them
    for i, one in enumerate([describe(x[:: i + 1]) for i in range(20)]):
        np.testing.assert_array_equal(one.result()[3], x[:: i + 1])
    np.testing.assert_array_equal(first.result()[3], x[:10])
    assert int(mem[L.LAYOUTS_USED]) < L.LAYOUTS_CAPACITY // 2


@pytest.mark.spec("CALL-ARRAY-8")
@pytest.mark.parametrize("write", [lambda x: fill(x, 7), update, lambda x: update(x=x)])
@pytest.mark.parametrize("cut", [lambda x: x[:], lambda x: x[::2], lambda x: np.broadcast_to(x, 6)])
def test_read_only_arrays_are_refused_where_the_task_writes(w, write, cut):
    x = w.zeros(6)
    read_only = cut(x)
    read_only.setflags(write=False)
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^x: this array .* is read-only.*annotate x with In"):
            write(read_only)
    assert describe(read_only).result()[1] == read_only.shape
    assert not x.any()
    write(x).result()
    assert x.all()


@pytest.mark.spec("CALL-ARRAY-8")
def test_numbers_and_values_of_calls_are_refused_where_the_task_writes_but_not_none(w):
    """A task would change a copy, and nobody would see that."""
    x, value, fetched = w.zeros(3), w.submit(np.ones, 3), w.submit(np.ones, 3)
    assert fetched.result().tolist() == [1, 1, 1]
    update(x).result()  # from then on it is a usual call
    told = r"^x: .*the value of a call.*share\(future.result"
    plain = 3, 2.5, True, np.float64(2), np.int32(1), 1 << 70, "text"
    for wrong, words in [*((one, "^x: .* array") for one in plain), (value, told), (fetched, told)]:
        for write in (update, lambda one: update(x=one), lambda one: fill(one, 1.0)):
            with pytest.raises(TypeError, match=words):
                write(wrong)
    assert value.result().tolist() == [1, 1, 1] and x.tolist() == [1, 1, 1]
    for _ in range(3):
        found = update_if_any(), update_if_any(None), update_if_any(x)
        assert [one.result() for one in found] == [True, True, False]


@pytest.mark.spec("CALL-ARRAY-8")
def test_numbers_for_in_arrive_as_they_are(w):
    @sr.task
    def same(x: sr.In):
        return x

    for one in (3, 2.5, True, None, np.float64(2), np.int16(1), np.zeros(2)[1]):
        found = same(one).result()
        assert (type(found), found) == (type(one), one)


@sr.task
def update_if_any(x: sr.InOut = None):
    if x is not None:
        x += 1
    return x is None


@pytest.mark.spec("CALL-ARRAY-8")
def test_that_an_array_became_read_only_is_noticed_and_that_it_is_no_longer(w):
    x = w.zeros(4)
    for step in range(1, 4):
        update(x).result()
        x.setflags(write=False)
        describe(x).result()
        for _ in range(2):
            with pytest.raises(ValueError, match=r"x: this array of shape \(4,\) is read-only"):
                update(x)
        with pytest.raises(ValueError, match="is read-only"):
            update(x.view())
        x.setflags(write=True)
        assert x.tolist() == [step] * 4


@pytest.mark.spec("CALL-ARRAY-5")
@pytest.mark.parametrize("dtype", ["f8", "i1", "c16", "M8[s]", "U3", "i4,f8", "?"])
def test_arrays_of_one_value_whatever_was_in_their_memory(w, dtype):
    for _ in range(2):
        x, expected = w.zeros((3, 5), dtype), np.zeros((3, 5), dtype)
        assert x.dtype == expected.dtype and x.tobytes() == expected.tobytes()
        x.view(np.uint8)[:] = 0xFF
        del x
    like = w.zeros_like(np.ones((2, 3), dtype))
    assert like.dtype == dtype and like.shape == (2, 3) and like.tobytes() == bytes(like.nbytes)
    assert describe(w.ones((2, 3))).result()[:2] == (np.float64, (2, 3))
    assert w.ones(3, int).tolist() == [1, 1, 1]
    assert w.full(2, 5).tolist() == [5, 5] and w.full(2, 5).dtype == np.int64
    assert w.full((2, 2), [1, 2], "f4").tolist() == [[1, 2], [1, 2]]


@pytest.mark.spec("CALL-ARRAY-5")
def test_zeros_over_memory_that_was_used_and_in_fresh_memory_which_they_do_not_touch():
    with sr.Worker(num_sub_workers=1, child_mode="thread", arena_size=1 << 29) as w:
        w.full(100, 7.0)
        assert not w.zeros(1000).any()
        assert w.zeros(0).shape == (0,) and w.zeros(()).shape == ()
        before, x = psutil.Process().memory_info().rss, w.zeros(1 << 25)
        assert psutil.Process().memory_info().rss - before < 1 << 26
        assert x[0] == x[-1] == 0


@pytest.mark.spec("CALL-ARRAY-5")
def test_what_cannot_be_shared_is_refused_with_the_remedy():
    with sr.Worker(num_sub_workers=1, child_mode="thread", arena_size=1 << 16) as w:
        for wrong in (np.array([None, 1]), ["a", None], np.array([{}])):
            with pytest.raises(TypeError, match=r"Python objects.*astype"):
                w.share(wrong)
        with pytest.raises(TypeError, match="filled"):
            w.share(np.ma.array([1, 2], mask=[True, False]))
        with pytest.raises(MemoryError, match=r"arena of 65536 bytes .* Worker\(arena_size=…\)"):
            w.share(np.zeros(1 << 16))
        with pytest.raises(TypeError, match="Python objects"):
            w.zeros(3, object)
        with pytest.raises(ValueError, match="negative"):
            w.zeros(-1)
        assert w.share([1, 2]).tolist() == [1, 2]


# ---------------------------------------------------------------- arrays that the program has dropped
@sr.task
def increase_later(x: sr.InOut):
    time.sleep(0.1)
    x += 1


@pytest.mark.spec("CALL-VALUE-4", "ORCH-ARRAY-4")
@pytest.mark.parametrize("depth", [1, 8])
def test_calls_have_their_arrays_although_the_program_has_dropped_them(depth):
    with sr.Worker(num_sub_workers=2, mailbox_depth=depth) as w:
        made = [w.full(9, i) for i in range(100)] + [w.submit(np.full, 9, i) for i in range(100)]
        found = [total(made.pop(0) if i < 100 else made.pop(0).result()) for i in range(200)]
        assert [one.result() for one in found] == [9 * i for i in range(100)] * 2
        assert list(w.map(total, (w.full(9, i) for i in range(100)))) == [9 * i for i in range(100)]
        done = increase_later(w.zeros(100))
        others = [w.full(100, 5) for _ in range(3)]
        done.result()
        assert [one.tolist() for one in others] == [[5] * 100] * 3, "it writes where its own was"


class Column:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values)


@pytest.mark.spec("CALL-ARRAY-8")
def test_what_numpy_makes_an_array_of_is_an_array_for_in(w):
    @sr.task
    def looked(x: sr.In):
        return type(x), x.tolist()

    x = w.zeros(2)
    fill(x, 2)
    given = [[1, 2], (1.5, 2), range(3), array.array("d", [1, 2]), Column([3]), Column(x)]
    given += [[x, x], [w.submit(abs, -3)], memoryview(b"ab"), memoryview(x)]
    found = [[1, 2], [1.5, 2], [0, 1, 2], [1, 2], [3], [2, 2]]
    found += [[[2, 2], [2, 2]], [3], [97, 98], [2, 2]]
    assert [looked(one).result() for one in given] == [(np.ndarray, one) for one in found]
    for wrong in ({}, "text", {1, 2}):
        with pytest.raises(TypeError, match="x: expected"):
            total(wrong).result()
    for wrong in ([[1], [1, 2]], [{}], [None]):
        with pytest.raises((TypeError, ValueError), match="x: numpy"):
            total(wrong).result()
    with pytest.raises(TypeError, match="x: expected"):
        fill([1, 2], 3)
