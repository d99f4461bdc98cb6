"""Overlaps of views against sets of bytes; streams of tasks against all their accesses so far."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, HazardError, TaskArgs, TensorArgType
from simpler_ref.engine.view.layouts import Layouts
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.orch.checked import HOST, CheckedTensor, History, Lineage, _tensor_of, share
from simpler_ref.task_interface import TensorArgType as T
from tests.access_driver import READING, WRITING, Stream, Task, k, octets
from tests.support import reads, small_engine, unmap, writes

pytestmark = pytest.mark.kernels
RECORD = np.dtype([("a", "f4"), ("b", "i8"), ("c", "u1")])
ARRAYS = [np.zeros((12, 16)), np.zeros((6, 5, 8), np.complex128), np.zeros((10, 8), RECORD)]
ARRAYS += [np.zeros(60, np.int16), np.zeros((4, 3, 4, 5), np.uint8)]
TAGS = [T.INPUT, T.INPUT, T.INOUT, T.OUTPUT, T.OUTPUT_EXISTING]
AT = 1 << 20
MORE = 1 if INTERPRETED else 4
"""How many times as many examples as elsewhere."""


# ---------------------------------------------------------------- views
@pytest.fixture(scope="module")
def layouts():
    """Give the layouts of an engine: the only reference to its memory, which the last test keeps."""
    engine = small_engine()
    made = Layouts(engine.mem)
    unmap(engine)
    yield made
    made._mem = None


def extent(layouts, view):
    """Return lowest address, address past the highest and layout, as `extent_of` does."""
    mem = layouts._mem
    if int(mem[L.LAYOUTS_USED]) > L.LAYOUTS_CAPACITY // 2:
        layouts.reset()
    at = int(mem[L.A_LAYOUTS]) + layouts.number(view.dtype, view.shape, view.strides)
    low = view.__array_interface__["data"][0] - int(mem[at + L.LAYOUT_BELOW])
    nbytes = int(mem[at + L.LAYOUT_EXTENT])
    return low, low + nbytes, L.NONE if mem[at + L.LAYOUT_RUN] == nbytes else at


@st.composite
def slices(draw, size, steps):
    """Return a slice of an axis that is not empty."""
    start, step = draw(st.integers(0, size - 1)), draw(st.sampled_from(steps))
    return slice(start, draw(st.integers(start + 1, size)) if step > 0 else None, step)


@st.composite
def views(draw, array, steps=(1, 1, 2, 3, -1, -2)):
    """Return a view of an array: sliced, transposed, one of its fields or parts, reshaped if possible."""
    if array.dtype.names and draw(st.booleans()):
        array = array[draw(st.sampled_from(array.dtype.names))]
    elif array.dtype.kind == "c" and draw(st.booleans()):
        array = draw(st.sampled_from([array.real, array.imag]))
    elif array.flags.c_contiguous and draw(st.integers(0, 3)) == 0:
        array = array.reshape(array.shape[0] // 2, -1)
    for _ in range(draw(st.integers(1, 2))):
        array = array[tuple(draw(slices(size, steps)) for size in array.shape)]
    return array.transpose(draw(st.permutations(range(array.ndim))))


@st.composite
def tiles(draw, array):
    """Return a tile of an array."""
    return array[tuple(draw(slices(size, (1,))) for size in array.shape)]


PAIRS = st.sampled_from(ARRAYS).flatmap(lambda array: st.tuples(views(array), views(array)))


@settings(max_examples=50 * MORE)
@given(pair=PAIRS)
def test_views_overlap_if_and_only_if_they_share_a_byte_and_cover_bytes_they_have(layouts, pair):
    one, other = pair
    at = [*extent(layouts, one), *extent(layouts, other)]
    shared = not octets(one).isdisjoint(octets(other))
    assert bool(k.overlap(layouts._mem, *at)) == shared
    assert bool(k.overlap(layouts._mem, *at[3:], *at[:3])) == shared
    if k.covers(layouts._mem, *at):
        assert octets(other) <= octets(one)
    if k.covers(layouts._mem, *at[3:], *at[:3]):
        assert octets(one) <= octets(other)


@settings(max_examples=30 * MORE)
@given(
    pair=st.sampled_from(ARRAYS[:1] + ARRAYS[3:]).flatmap(
        lambda array: st.tuples(tiles(array), tiles(array))
    )
)
def test_a_tile_covers_a_tile_if_and_only_if_it_has_its_bytes(layouts, pair):
    one, other = pair
    covers = k.covers(layouts._mem, *extent(layouts, one), *extent(layouts, other))
    assert bool(covers) == (octets(other) <= octets(one))


@settings(max_examples=30 * MORE)
@given(
    shapes=st.lists(
        st.tuples(
            st.integers(0, 40),
            st.lists(st.tuples(st.integers(1, 6), st.integers(-20, 20)), min_size=1, max_size=4),
        ),
        min_size=2,
        max_size=2,
    ),
    item=st.sampled_from([1, 2, 4]),
)
def test_views_of_any_strides_that_share_a_byte_overlap(layouts, shapes, item):
    memory, kind = np.zeros(1000, np.uint8), np.dtype(f"u{item}")
    made = [
        np.ndarray([n for n, _ in axes], kind, memory, 400 + start, [step for _, step in axes])
        for start, axes in shapes
    ]
    one, other = made
    at = [extent(layouts, view) for view in made]
    assert [low for low, _, _ in at] == [min(octets(view)) for view in made]
    assert [high for _, high, _ in at] == [max(octets(view)) + 1 for view in made]
    if not octets(one).isdisjoint(octets(other)):
        assert k.overlap(layouts._mem, *at[0], *at[1])
    if k.covers(layouts._mem, *at[0], *at[1]):
        assert octets(other) <= octets(one)


# ---------------------------------------------------------------- grids and cells
@pytest.fixture
def s():
    """Give a stream, in which everything ends afterwards without leaving anything behind."""
    stream = Stream()
    yield stream
    stream.close()


# ---------------------------------------------------------------- reads of the same bytes
def test_readers_of_memory_that_is_given_back_are_forgotten_and_no_others(s):
    for i in range(3):
        s.submit(f"half {i}", reads(AT, nbytes=32))
        s.submit(f"whole {i}", reads(AT, nbytes=64))
    s.reclaim(k.forget_range(s.mem, AT, AT + 32))
    assert s.accesses == 3
    assert s.kinds(writes(AT)).keys() == {f"whole {i}" for i in range(3)}
    s.submit("half", reads(AT, nbytes=32))
    assert s.kinds(writes(AT)).keys() == {"half", *(f"whole {i}" for i in range(3))}


def test_a_write_does_not_wait_for_what_the_last_one_of_the_same_bytes_waits_for(s):
    old = s.submit("old", reads(AT, nbytes=64))
    source = s.submit("source", writes(AT + 128))
    first = s.submit("first", writes(AT + 8), reads(AT + 128))
    assert first.conflicts.keys() == {old, source}
    new = s.submit("new", reads(AT, nbytes=64))
    second = s.submit("second", writes(AT + 8))
    assert second.conflicts == {new: L.ORDER, first: L.ORDER}
    assert s.kinds(writes(AT + 8, nbytes=4)).keys() == {"old", "new", "second"}
    s.finish(source, fails=True)
    assert (first.state, s.can_start()) == (L.FAILED, [old])
    s.finish(old)
    assert s.can_start() == [second]


# ---------------------------------------------------------------- streams
def overlapping(task: Task, tags, places) -> bool:
    return not task.bytes(tags).isdisjoint(places)


def is_source(stream: Stream, other: Task, task: Task) -> bool:
    """Say whether a task reads from a tensor that another one writes and no write covers since."""
    first, end = stream.tasks.index(other) + 1, stream.tasks.index(task)
    since = [(tag, places) for one in stream.tasks[first:end] for tag, places in one.uses]
    return any(
        tag in WRITING
        and not task.bytes(READING).isdisjoint(places)
        and not any(later in WRITING and places <= cover for later, cover in since)
        for tag, places in other.uses
    )


def check_conflicts(stream: Stream, task: Task, *, exact: bool) -> None:
    """Compare what a new task waits for with every earlier access; `exact`: every cover is noticed."""
    read, written = task.bytes(READING), task.bytes(WRITING)
    reached, todo = set(), list(task.conflicts)
    while todo:
        other = todo.pop()
        if other not in reached:
            reached.add(other)
            todo += other.conflicts
    for other in stream.tasks[: stream.tasks.index(task)]:
        needs = overlapping(other, WRITING, read)
        waits = needs or overlapping(other, READING + WRITING, written)
        if waits and other.state in (L.PENDING, L.READY, L.RUNNING):
            assert other in reached
        source = other.state != L.COMPLETED and is_source(stream, other, task)
        assert source <= (other in task.needs) <= (source if exact else needs)
        if other in task.conflicts:
            assert waits
            assert other.state != L.COMPLETED


def check_start(stream: Stream, task: Task) -> None:
    """Look whether a task that starts now could meet one that runs or has yet to, or read nothing."""
    read, written = task.bytes(READING), task.bytes(WRITING)
    sources = {}
    for other in stream.tasks[: stream.tasks.index(task)]:
        if overlapping(other, WRITING, read) or overlapping(other, READING + WRITING, written):
            assert other.state in (L.COMPLETED, L.FAILED)
        sources.update(dict.fromkeys(other.bytes(WRITING), other))
    assert all(sources[at].state == L.COMPLETED for at in read if at in sources)


@settings(max_examples=20 * MORE)
@given(data=st.data(), exact=st.booleans())
def test_tasks_of_a_stream_never_meet_and_never_read_what_failed(data, exact):
    arrays = data.draw(st.sampled_from([ARRAYS[:1], ARRAYS[2:3], ARRAYS[3:4], ARRAYS[2:4]]))
    kind = tiles if exact else views
    pool = data.draw(st.lists(st.sampled_from(arrays).flatmap(kind), min_size=2, max_size=8))
    pool += arrays
    use = st.tuples(st.sampled_from(TAGS), st.sampled_from(range(len(pool))))
    with closing(Stream()) as stream:
        for i in range(data.draw(st.integers(1, 25))):
            chosen = data.draw(st.lists(use, min_size=1, max_size=3))
            task = stream.submit(f"{i}", *((tag, pool[which]) for tag, which in chosen))
            check_conflicts(stream, task, exact=exact)
            if data.draw(st.integers(0, 3)) == 0:
                stream.reclaim(k.drop_over(stream.mem, L.NONE))
            for _ in range(data.draw(st.integers(0, 2))):
                ready = stream.can_start()
                running = [one for one in stream.tasks if one.state == L.RUNNING]
                if ready and data.draw(st.booleans()):
                    task = data.draw(st.sampled_from(ready))
                    check_start(stream, task)
                    stream.start(task)
                elif running:
                    task = data.draw(st.sampled_from(running))
                    stream.finish(task, fails=data.draw(st.integers(0, 3)) == 0)


# ---------------------------------------------------------------- hazards that are told
def tensor(tag, start, end):
    return CheckedTensor(tag, HOST, start, end)


@pytest.mark.parametrize("seed", range(20))
def test_a_lineage_has_what_can_be_reached_in_any_order_of_questions(seed):
    rng, count = np.random.default_rng(seed), 60
    order, reached = [], np.eye(count, dtype=bool)
    for task in range(count):
        first = rng.choice(task, min(task, int(rng.integers(3))), replace=False).tolist()
        for producer in first:
            reached[task] |= reached[producer]
        order.append(tuple(first))
    for task in rng.integers(count, size=10).tolist():
        lineage = Lineage(order, [task])
        for place in rng.permutation(count).tolist():
            assert (place in lineage) == reached[task, place]


def test_a_plan_changes_nothing_until_it_is_added_and_a_refused_one_nothing():
    history = History()
    for _ in range(2):
        plan = history.plan("a", "here", [tensor(L.INOUT, 100, 200)])
        assert (plan.task.number, plan.task.turn) == (0, 0)
    history.add(plan, [])
    for _ in range(2):
        with pytest.raises(HazardError, match="write after write"):
            history.plan("b", "there", [tensor(L.OUTPUT_EXISTING, 150, 160)])


# ---------------------------------------------------------------- bytes of views
STEPS = [step for step in range(-3, 4) if step]
SIZE = 9


def described(view):
    """Return a view as a checked submit gets it."""
    args = TaskArgs()
    made = ContinuousTensor.make(view.ctypes.data, view.shape, view.dtype, strides=view.strides)
    args.add_tensor(made, TensorArgType.INOUT)
    return _tensor_of(args._tensors[0], HOST)


def slices_of(size):
    ends = st.none() | st.integers(0, size - 1)
    made = st.builds(slice, ends, ends, st.sampled_from(STEPS))
    return made.filter(lambda one: len(range(*one.indices(size))) > 0)


def cuts(*sizes):
    """Give functions that take a view of an array, some of a row or column or turned."""
    parts = st.tuples(*map(slices_of, sizes))
    lines = st.tuples(st.integers(0, sizes[0] - 1), slices_of(sizes[1]))
    return st.one_of(
        st.builds(lambda part: lambda x: x[part], parts),
        st.builds(lambda part: lambda x: x[part].T, parts),
        st.builds(lambda line: lambda x: x[line], lines),
        st.builds(lambda part: lambda x: x.reshape(-1)[part], slices_of(sizes[0] * sizes[1])),
    )


@given(one=cuts(4, 6), other=cuts(4, 6))
def test_views_of_two_dimensions_share_what_their_elements_do(one, other):
    numbers = np.arange(24, dtype=np.int16).reshape(4, 6)
    array = np.zeros_like(numbers)
    mine, theirs = described(one(array)), described(other(array))
    wanted = not set(one(numbers).flat).isdisjoint(other(numbers).flat)
    assert share(mine, theirs) == share(theirs, mine) == wanted
