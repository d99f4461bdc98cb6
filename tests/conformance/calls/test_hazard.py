"""CALL-HAZARD: who waits for whom."""

import numpy as np
import pytest

from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.access_driver import Stream
from tests.support import ignores, overwrites, reads, updates, writes

pytestmark = pytest.mark.kernels

NEEDS, ORDER = L.NEEDS, L.ORDER
AT = 1 << 20


@pytest.fixture
def s():
    """Give a stream, in which everything ends afterwards without leaving anything behind."""
    stream = Stream()
    yield stream
    stream.close()


# ---------------------------------------------------------------- who waits
@pytest.mark.spec("CALL-HAZARD-1")
def test_a_writer_waits_for_all_readers_since_the_last_write(s):
    first = s.submit("first", writes(AT))
    s.finish(first)
    one, two = (s.submit(name, reads(AT)) for name in ("one", "two"))
    assert s.kinds(reads(AT)) == {}
    writer = s.submit("writer", writes(AT))
    assert writer.conflicts == {one: ORDER, two: ORDER}
    assert s.kinds(updates(AT)) == {"writer": NEEDS}, "it has superseded them"
    s.finish(one)
    s.finish(two, fails=True)
    assert s.can_start() == [writer]


@pytest.mark.spec("CALL-HAZARD-1")
def test_a_writer_waits_for_the_writer_before_and_does_not_fail_with_it(s):
    one = s.submit("one", writes(AT, nbytes=16))
    two = s.submit("two", overwrites(AT + 8, nbytes=16))
    assert two.conflicts == {one: ORDER}
    s.finish(one, fails=True)
    assert s.can_start() == [two]


# ---------------------------------------------------------------- failures
@pytest.mark.spec("CALL-HAZARD-4")
def test_a_failed_writer_lets_readers_fail_until_it_is_overwritten(s):
    failed = s.submit("failed", writes(AT, nbytes=16))
    s.finish(failed, fails=True)
    assert s.kinds(reads(AT)) == s.kinds(updates(AT)) == {"failed": NEEDS}
    half = s.submit("half", writes(AT))
    assert (half.conflicts, s.kinds(reads(AT + 8))) == ({}, {"failed": NEEDS})
    whole = s.submit("whole", writes(AT, nbytes=16))
    assert {task.name for task in whole.conflicts} == {"half"}
    assert s.kinds(reads(AT + 8)) == {"whole": NEEDS}
    s.finish(half)
    s.finish(whole, fails=True)
    heir = s.submit("heir", updates(AT, nbytes=16))
    assert (heir.state, s.submit("reader", reads(AT)).conflicts) == (L.FAILED, {heir: NEEDS})


@pytest.mark.spec("CALL-HAZARD-4")
def test_a_writer_waits_until_all_have_ended_that_a_failed_one_waits_for(s):
    """It supersedes their accesses although it fails before they end."""
    reader = s.submit("reader", reads(AT))
    source = s.submit("source", writes(AT + 64))
    poisoned = s.submit("poisoned", writes(AT), reads(AT + 64))
    s.finish(source, fails=True)
    assert poisoned.state == L.FAILED and not poisoned.ended
    writer = s.submit("writer", writes(AT))
    assert (writer.conflicts, s.can_start()) == ({poisoned: ORDER}, [reader])
    s.finish(reader)
    assert s.can_start() == [writer]


@pytest.mark.spec("CALL-HAZARD-4")
@pytest.mark.parametrize("use", [reads, updates], ids=["reads", "updates"])
def test_accesses_that_are_over_are_dropped(s, use):
    most = 0
    for i in range(1000):
        s.finish(s.submit(f"{i}", use(AT + 8 * i), reads(AT - 64)))
        most = max(most, s.accesses)
    assert most <= L.SWEEP_SMALLEST + 1


# ---------------------------------------------------------------- bytes
RECORD = np.dtype([("a", "u1"), ("b", "f8"), ("c", "i4")])


def apart() -> dict[str, list[np.ndarray]]:
    """Return views of arrays that share no byte, by what they are."""
    zeros = np.zeros
    x, y, n, h, a, o = (zeros((64, 96)) for _ in range(6))
    d, z, r, b = zeros(64 * 96), zeros((8, 10), complex), zeros((6, 7), RECORD), zeros((16, 16, 24))
    return {
        "tiles": [x[i : i + 16, j : j + 24] for i in range(0, 64, 16) for j in range(0, 96, 24)],
        "rows": [o[:16], o[16:17], o[17:40], o[40:, :5], o[40:, 5:]],
        "steps": [y[i::2, j::3] for i in range(2) for j in range(3)],
        "nested steps": [n[:, ::2], n[:, 1::4], n[:, 3::4]],
        "diagonal": [d[::97], d[1::97], d[96:-1:97]],
        "parts of tiles": [one for t in (z[:4, :5], z[:4, 5:], z[4:]) for one in (t.real, t.imag)],
        "fields of steps": [r[::2, ::3]["a"], r[1::2]["a"], r[::2, 1::3]["a"], r["b"][:, ::-1]],
        "reversed": [h[:32][::-1], h[:31:-1, 50:], h[:31:-1, 49::-1]],
        "swapped axes": [a[:32, :48].T, a[:32, 48:].T[::-1], a[32:].T],
        "cubes": [
            b[i : i + 8, j : j + 8, k : k + 12] for i in (0, 8) for j in (0, 8) for k in (0, 12)
        ],
    }


@pytest.mark.spec("CALL-HAZARD-7")
def test_views_that_share_no_byte_are_independent(s):
    for name, views in apart().items():
        for i, view in enumerate(views):
            assert s.submit(f"{name} {i}", (T.INOUT, view)).conflicts == {}
        for i, view in enumerate(views):
            assert s.kinds((T.INPUT, view)) == {f"{name} {i}": NEEDS}
            assert s.kinds((T.INPUT, view[-1:])) == {f"{name} {i}": NEEDS}


@pytest.mark.spec("CALL-HAZARD-1")
def test_what_is_not_tracked_makes_nobody_wait(s):
    nothing = [ignores(AT), writes(0), reads(0), writes(AT + 32, nbytes=0)]
    nothing += [updates(AT + 4, nbytes=0), (T.INOUT, np.zeros((4, 4))[:, :0])]
    s.submit("first", *nothing)
    assert s.accesses == 0
    s.submit("writer", writes(AT, nbytes=64))
    assert s.kinds(*nothing) == {}


# ---------------------------------------------------------------- references, numbers, searches
@pytest.mark.spec("CALL-HAZARD-7")
def test_a_layout_has_one_number_and_is_read_back_as_it_was(s):
    views = [np.zeros((4, 6))[::2, 1:3], np.zeros(3, RECORD)[::-1], np.zeros((), ">c8")]
    views += [np.zeros((0, 3))]
    views += [np.zeros(5, "M8[us]"), np.zeros((2,) * 9)[..., 0].T]
    numbers = [s.layouts.number(v.dtype, v.shape, v.strides) for v in views * 2]
    assert numbers[: len(views)] == numbers[len(views) :]
    assert len(set(numbers)) == len(views)
    reader = type(s.layouts)(s.engine.mem)
    for _ in range(2):
        for number, v in zip(numbers, views, strict=False):
            assert reader.read(number) == (v.dtype, v.shape, v.strides)
    s.layouts.reset()
    assert s.layouts.number(np.dtype("u1"), (7,), (-1,)) == numbers[0]
    assert reader.read(numbers[0]) == (np.dtype("u1"), (7,), (-1,))


@pytest.mark.spec("CALL-HAZARD-7")
def test_layouts_that_find_no_room_are_refused(s):
    s.mem[L.LAYOUTS_USED] = L.LAYOUTS_CAPACITY - 20
    before = s.mem.copy()
    with pytest.raises(MemoryError, match=r"taken 1048556 of 1048576 words"):
        s.layouts.number(np.dtype("f8"), (3, 4), (64, 8))
    with pytest.raises(TypeError, match="elements of type object"):
        s.layouts.number(np.dtype(object), (3,), (8,))
    assert np.array_equal(s.mem, before)


@pytest.mark.spec("CALL-HAZARD-1")
def test_a_search_may_be_repeated(s):
    s.submit("writer", writes(AT), writes(AT + 8), reads(AT + 16))
    s.submit("reader", reads(AT), reads(AT + 16))
    for _ in range(3):
        assert s.kinds(updates(AT), reads(AT + 8)) == {"writer": NEEDS, "reader": ORDER}
        assert s.kinds(writes(AT), writes(AT + 16)) == {"writer": ORDER, "reader": ORDER}
        assert s.kinds(writes(AT + 16), reads(AT + 8)) == {"writer": NEEDS, "reader": ORDER}
    assert s.accesses == 5
    x = np.zeros((4, 4))
    for name, at in (("one", 0), ("two", 1), ("three", 2)):
        s.submit(name, (T.INOUT, x[0, at : at + 1]))
    for _ in range(2):  # from the same byte on, but other searches
        assert s.kinds((T.INPUT, x[0, :1])) == {"one": NEEDS}
        assert s.kinds((T.INPUT, x[0, :3])) == {"one": NEEDS, "two": NEEDS, "three": NEEDS}
        assert s.kinds((T.INPUT, x[0, :3:2])) == {"one": NEEDS, "three": NEEDS}
