"""SPEED-LEAF: compiled leaves."""

import functools
import linecache
import os
import re

import cloudpickle
import numpy as np
import pytest
from numba import boolean, float32, float64, int8, int32, int64, njit, uint8, uint32, uint64
from numba import types as nb

from simpler_ref import ContinuousTensor, DataType, TaskError, Worker, WorkerLostError, leaf
from simpler_ref import TensorArgType as T
from simpler_ref.callables.leaves import Leaf
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import scalar_to_uint64
from tests.support import Gate, make_args, tasks_given, wait_until

compiled_only = pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
MODES = pytest.mark.parametrize("mode", ["process", "thread"])
WHEN = pytest.mark.parametrize("late", [False, True], ids=["before", "after"])


@pytest.fixture
def mode():
    return "process"


@pytest.fixture
def w(mode):
    with Worker(3, num_sub_workers=1, child_mode=mode) as made:
        yield made


def task(*values, tag=T.INOUT):
    """Return arguments: arrays and tensors, then scalars."""
    tensors = [v for v in values if isinstance(v, (np.ndarray, ContinuousTensor))]
    return make_args(*((v, tag) for v in tensors), scalars=values[len(tensors) :])


def run(w, handle, *values, tag=T.INOUT):
    """Run one task."""
    w.run(lambda orch, *_: orch.submit_sub(handle, task(*values, tag=tag)))


def leaf_of(parameters, *lines):
    """Return a leaf with these parameters, annotated with their types, and these lines."""
    text = f"def made({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)
    names = {}
    exec(text, names)
    names["made"].__annotations__ = parameters
    return leaf(names["made"])


@functools.cache
def put_as(kind):
    """Return the leaf that puts a number of a type into an array of float32."""
    return leaf_of({"a": float32[:], "n": kind}, "a[0] = n")


@leaf
def put(a: int64[:], n: int):
    a[0] = n


@leaf
def touch(a: int32[:], b: int32[:, :], n: int):
    a[0] += 1
    b[0, 0] += n


def source_line(function, words):
    """Return the number of a line of a function."""
    first = function.__code__.co_firstlineno
    lines = linecache.getlines(function.__code__.co_filename)[first - 1 :]
    return first + next(i for i, line in enumerate(lines) if words in line)


# ---------------------------------------------------------------- 1: the same results
@leaf
def axpy(x: float32[:], y: float32[:], factor: float):
    for i in range(len(y)):
        y[i] += factor * x[i]


@MODES
@WHEN
@pytest.mark.spec("SPEED-LEAF-1")
def test_a_leaf_leaves_what_the_plain_function_would(mode, late):
    with Worker(3, num_sub_workers=2, child_mode=mode) as w:
        if late:
            w.start()
        handle = w.register(axpy)
        x = w.share(np.linspace(-3, 5, 100, dtype=np.float32))
        y = w.share(np.arange(100, dtype=np.float32))
        expected = y.copy()
        for _ in range(5):
            run(w, handle, x, y, -0.75)
            axpy.py_func(x, expected, -0.75)
        np.testing.assert_allclose(y, expected, rtol=1e-6)


ELEMENT_TYPES = ["float32", "int32", "int16", "int8", "uint8", "int64", "uint64", "uint16"]
ELEMENT_TYPES += ["uint32", "bool"]


@pytest.mark.spec("SPEED-LEAF-1")
def test_every_element_type_comes_as_itself(w):
    pairs = [(w.share(VALUES.astype(name)), w.empty(7, name)) for name in ELEMENT_TYPES]
    names = [f"{which}{i}" for i in range(len(pairs)) for which in "ab"]
    lines = [f"    b{i}[k] = a{i}[6 - k]" for i in range(len(pairs))]
    reverse = leaf_of(dict.fromkeys(names, np.ndarray), "for k in range(7):", *lines)
    run(w, w.register(reverse), *(array for pair in pairs for array in pair))
    for a, b in pairs:
        assert b.tolist() == a[::-1].tolist(), a.dtype


ELEMENT_TYPES = ["float32", "int32", "int16", "int8", "uint8", "int64", "uint64", "uint16"]
ELEMENT_TYPES += ["uint32", "bool"]
VALUES = np.array([0, 1, -1, 100, 0.5, 1 << 31, -(1 << 62)]).astype(np.int64)


@pytest.mark.spec("SPEED-LEAF-1")
def test_an_array_of_one_to_five_dimensions_has_its_shape(w):
    @leaf
    def shapes_of(a, b, c, d, e, sizes):
        a[3] = b[1, 2] = c[1, 0, 2] = d[2, 0, 1, 0] = e[1, 0, 2, 0, 1] = len(e.shape)
        for i, size in enumerate(a.shape + b.shape + c.shape + d.shape + e.shape):
            sizes[i] = size

    handle = w.register(shapes_of)
    shapes = [(7,), (2, 3), (2, 3, 4), (3, 1, 2, 2), (2, 1, 3, 2, 2)]
    sizes, arrays = w.empty(15, np.int64), [w.empty(shape, np.int32) for shape in shapes]
    for _ in range(2):  # the first settles the types, the second finds the code
        sizes[:] = 0
        for a in arrays:
            a[:] = 0
        run(w, handle, *arrays, sizes)
        assert sizes.tolist() == [size for shape in shapes for size in shape]
        assert [np.flatnonzero(a == 5).tolist() for a in arrays] == [[3], [5], [14], [10], [21]]
        assert [a.sum() for a in arrays] == [5] * 5
    assert shapes_of.kinds is None, "the worker's copy was settled"


SCALARS = [
    (int, -5),
    (int, (1 << 63) - 1),
    (float, -2.75),
    (bool, True),
    (bool, 256),
    (np.float32, np.float32(1.5)),
    (float32, np.float32(-0.25)),
    (np.float64, 1e30),
    (np.int8, -1),
    (int8, 127),
    (np.int16, -32768),
    (int32, -(1 << 31)),
    (np.uint8, 3),
    (uint8, 255),
    (np.uint16, 65535),
    (uint32, (1 << 32) - 1),
    (np.uint64, (1 << 64) - 1),
    (uint64, 1 << 63),
    (boolean, False),
    (np.bool_, True),
    (float64, float("inf")),
]


@pytest.mark.spec("SPEED-LEAF-1")
def test_every_kind_of_number_comes_as_itself(w):
    names = [f"n{i}" for i in range(len(SCALARS))]
    notes = dict(zip(names, (kind for kind, _ in SCALARS), strict=True))
    lines = [f"out[{2 * i}], out[{2 * i + 1}] = {name}, {name} > 0" for i, name in enumerate(names)]
    handle = w.register(leaf_of({"out": np.ndarray} | notes, *lines))
    out = w.empty(2 * len(SCALARS), np.float32)
    for _ in range(2):
        out[:] = 7
        run(w, handle, out, *(value for _, value in SCALARS))
        for i, (kind, value) in enumerate(SCALARS):
            seen = bool(value) if kind in (bool, boolean, np.bool_) else value
            assert out[2 * i : 2 * i + 2].tolist() == [np.float32(seen), seen > 0], kind


@pytest.mark.spec("SPEED-LEAF-1")
def test_an_array_without_elements_is_no_trouble(w):
    @leaf
    def fill(a, b, sizes):
        sizes[0] = len(a)
        sizes[1] = b.shape[1]
        for i in range(len(a)):
            a[i] = 1

    handle = w.register(fill)
    sizes = w.empty(2, np.int64)
    for nothing in (w.empty(0, np.int32), ContinuousTensor.make(0, (0,), DataType.INT32)):
        for _ in range(2):
            sizes[:] = -1
            run(w, handle, nothing, w.empty((0, 5), np.uint8), sizes)
            assert sizes.tolist() == [0, 5]


@leaf
def times_three(a: int64[:]):
    a[0] = 3 * a[0] % 1_000_003


@MODES
@pytest.mark.spec("SPEED-LEAF-1")
def test_tasks_of_leaves_and_of_python_callables_take_turns(mode):
    def plus_one(args):
        args.tensor(0).numpy()[0] += 1

    with Worker(3, num_sub_workers=2, child_mode=mode) as w:
        quick, slow = w.register(times_three), w.register(plus_one)
        a = w.share(np.ones(1, np.int64))

        def orch_fn(orch, *_):
            for i in range(60):
                orch.submit_sub(quick if i * i % 5 < 3 else slow, task(a))

        w.run(orch_fn)
        expected = 1
        for i in range(60):
            expected = 3 * expected % 1_000_003 if i * i % 5 < 3 else expected + 1
        assert a[0] == expected


@MODES
@pytest.mark.spec("SPEED-LEAF-1")
def test_a_leaf_may_allocate_call_compiled_functions_and_close_over_numbers(w):
    factor, offset = 3, 0.5

    @njit
    def cube(x):
        return x * x * x

    @njit
    def descend(n):
        return 1 if n <= 1 else n * descend(n - 1)

    @leaf
    def busy(a: float32[:], n: int):
        temporary = np.ones(n) * factor
        more = [cube(value) for value in temporary]
        a[0] = np.sum(np.array(more)) + offset + descend(5)

    w.start()
    handle, a = w.register(busy), w.empty(1, np.float32)
    for n in (0, 1, 1000, 3):
        run(w, handle, a, n)
        assert a[0] == 27 * n + 0.5 + 120


@MODES
@pytest.mark.spec("SPEED-LEAF-1")
def test_the_members_of_a_group_can_be_leaves(mode):
    with Worker(3, num_sub_workers=3, child_mode=mode) as w:
        handle = w.register(put)
        row = w.share(np.zeros(3, np.int64))
        for start in range(5):
            members = [task(row[n : n + 1], start + n) for n in range(3)]
            w.run(lambda orch, *_, members=members: orch.submit_sub_group(handle, members))
            assert row.tolist() == [start, start + 1, start + 2]


@MODES
@pytest.mark.spec("SPEED-LEAF-1")
def test_a_worker_below_runs_leaves_and_two_workers_can_have_the_same(mode):
    @leaf
    def plus(a: int64[:], n: int):
        a[0] += n

    below = Worker(3, num_sub_workers=1, child_mode=mode)
    inner = below.register(plus)

    def forward(orch, args, config):
        for _ in range(3):
            orch.submit_sub(inner, task(args.tensor(0), args.scalar(0)))

    w = Worker(4, num_sub_workers=1, child_mode=mode)
    w.add_worker(below)
    with w, Worker(3, num_sub_workers=1, child_mode=mode) as other:
        down, here, there = w.register(forward), w.register(plus), other.register(plus)
        a = w.share(np.zeros(1, np.int64))

        def orch_fn(orch, *_):
            orch.submit_next_level(down, task(a, 7))
            orch.submit_sub(here, task(a, 100))

        w.run(orch_fn)
        assert a[0] == 121
        b = other.share(np.zeros(1, np.int64))
        run(other, there, b, 5)
        run(w, here, a, -121)
        assert (a[0], b[0]) == (0, 5)


@pytest.mark.spec("SPEED-LEAF-1")
def test_a_task_may_bring_more_arrays_than_a_word_of_a_mask_has_bits_for(w):
    arrays, numbers = [f"a{i}" for i in range(L.MASK_TENSORS + 1)], [f"n{i}" for i in range(9)]
    notes = dict.fromkeys(arrays, uint8[:]) | dict.fromkeys(numbers, int)
    head = f"for i, a in enumerate(({', '.join(arrays)})):"
    many = leaf_of(notes, head, f"    a[0] = ({', '.join(numbers)})[i % 9] + i")
    given = w.share(np.zeros((len(arrays), 1), np.uint8))
    run(w, w.register(many), *given, *(20 * i for i in range(9)))
    assert given[:, 0].tolist() == [20 * (i % 9) + i for i in range(len(given))]


@MODES
@pytest.mark.spec("SPEED-LEAF-1")
def test_a_leaf_goes_when_it_is_unregistered_and_another_may_take_its_place(w):
    a = w.share(np.zeros(1, np.int64))
    w.start()
    for number in range(2):
        handle = w.register(leaf_of({"a": int64[:], "n": int}, f"a[0] = n + {number}"))
        for n in (3, -3):
            run(w, handle, a, n)
            assert a[0] == n + number
        w.unregister(handle)
        with pytest.raises(KeyError, match="not live"):
            run(w, handle, a, 1)


@pytest.mark.spec("SPEED-LEAF-1")
def test_a_successor_of_a_dead_worker_runs_leaves_too(w):
    early, deadly = w.register(put), w.register(lambda: os._exit(3))
    w.start()
    late = w.register(times_three)
    a = w.share(np.zeros(1, np.int64))
    with pytest.raises(TaskError):
        w.run(lambda orch, *_: orch.submit_sub(deadly))
    run(w, early, a, 4)
    assert a[0] == 4
    run(w, late, a)
    assert a[0] == 12


# ---------------------------------------------------------------- 2, 3: the types are settled once
@pytest.mark.spec("SPEED-LEAF-2")
def test_annotations_settle_the_types_at_once():
    @leaf
    def one(a: float32[:, :], n: int, x: float, yes: bool, small: np.int8, wide: nb.uint64):
        pass

    assert [str(kind) for kind in one.kinds] == [
        "array(float32, 2d, C)",
        "int64",
        "float64",
        "bool",
        "int8",
        "uint64",
    ]
    assert "float32" in repr(one)


@pytest.mark.spec("SPEED-LEAF-2")
def test_annotations_may_be_text(w):
    source = (
        "from __future__ import annotations\n"
        "from numba import int64\n"
        "def texts(a: int64[:], n: int):\n    a[0] = n + 1\n"
    )
    module = {}
    exec(source, module)
    texts = leaf(module["texts"])
    assert module["texts"].__annotations__ == {"a": "int64[:]", "n": "int"}
    assert [str(kind) for kind in texts.kinds] == ["array(int64, 1d, C)", "int64"]
    w.start()
    handle = w.register(texts)  # it travels to the worker, where nobody knows those names
    a = w.share(np.zeros(1, np.int64))
    run(w, handle, a, 4)
    assert a[0] == 5
    texts(a, 5)
    assert a[0] == 6


@pytest.mark.spec("SPEED-LEAF-2")
def test_a_call_settles_what_is_not_annotated(w):
    @leaf
    def put(a, n: int, x):
        a[n] = x

    assert put.kinds is None
    put(np.zeros(3, np.int32), 1, 2.5)
    assert [str(kind) for kind in put.kinds] == ["array(int32, 1d, C)", "int64", "float64"]
    with pytest.raises(TypeError, match=r"put: a is a float32 array of 1 dimension.*int32 array"):
        put(np.zeros(3, np.float32), 1, 2.5)
    a = w.share(np.zeros(3, np.int32))
    run(w, w.register(put), a, 2, 7.9)
    assert a.tolist() == [0, 0, 7]


@MODES
@WHEN
@pytest.mark.spec("SPEED-LEAF-2")
def test_a_workers_first_task_settles_what_is_not_annotated(w, late):
    @leaf
    def put(a: np.ndarray, n):
        a[0] = n

    if late:
        w.start()
    handle = w.register(put)
    first, other = w.share(np.zeros(2, np.int16)), w.share(np.zeros((2, 2), np.int16))
    for n in (3, 4):
        run(w, handle, first, n)
        assert first.tolist() == [n, 0]
    with pytest.raises(TaskError, match=r"TypeError: leaf .*put: a is a int16 array of 2 dim"):
        run(w, handle, other, 1)
    assert other.tolist() == [[0, 0], [0, 0]]
    run(w, handle, first, 5)
    assert first[0] == 5


@MODES
@pytest.mark.spec("SPEED-LEAF-2")
def test_arguments_for_which_a_leaf_cannot_be_compiled_settle_nothing(w):
    @leaf
    def copy(a, b):
        a[0] = b[0]

    handle = w.register(copy)
    a, b = w.share(np.zeros(1, np.int32)), w.share(np.ones(1, np.int32))
    below = ContinuousTensor.make(b.ctypes.data, (1,), DataType.INT64, child_memory=True)
    with pytest.raises(TaskError, match=r"next-level worker's memory"):
        run(w, handle, a, below)
    if not INTERPRETED:
        with pytest.raises(TaskError, match=r"TypeError: leaf .*copy cannot be compiled"):
            run(w, handle, a, 3)
    run(w, handle, a, b)
    assert a[0] == 1


@compiled_only
@pytest.mark.spec("SPEED-LEAF-2")
def test_a_call_that_cannot_be_compiled_settles_nothing():
    @leaf
    def copy(a, b):
        a[0] = b[0]

    a, b = np.zeros(1, np.int32), np.ones(1, np.int32)
    with pytest.raises(TypeError, match="copy cannot be compiled"):
        copy(a, 3)
    assert copy.kinds is None
    copy(a, b)
    assert a[0] == 1


@MODES
@pytest.mark.spec("SPEED-LEAF-3")
def test_a_scalar_of_a_first_task_is_a_64_bit_integer_or_float_as_it_was_added(w):
    notes = ({"a": float32[:], name: np.ndarray} for name in "nx")
    integers, floats = (w.register(leaf_of(note, f"a[0] = {[*note][1]}")) for note in notes)
    a = w.share(np.zeros(1, np.float32))
    for value in (-3, True, np.int8(5)):
        run(w, integers, a, value)
        assert a[0] == value, value
    with pytest.raises(TaskError, match=r"TypeError: .*n takes int64, and scalar 0 is 2\.5"):
        run(w, integers, a, 2.5)
    for value in (2.5, 3, -1, np.float32(0.25), (1 << 64) - 1):
        run(w, floats, a, value)
        assert a[0] == np.float32(value), value


# ---------------------------------------------------------------- 4: other arguments
WRONG = {
    "one array less": (["a"], [1], r"takes 3 arguments.*has 1 tensors and 1 scalars"),
    "one array more": (["a", "b", "b"], [1], r"has 3 tensors and 1 scalars"),
    "one number less": (["a", "b"], [], r"takes 3 arguments \(a, b, n\)"),
    "one number more": (["a", "b"], [1, 2], r"has 2 tensors and 2 scalars"),
    "nothing": ([], [], r"has 0 tensors and 0 scalars"),
    "a number for an array": (["a"], [1, 2], r"b is a number .*for a int32 array of 2 dimensions"),
    "an array for a number": (["a", "b", "b"], [], r"n is a int32 array .*for a number \(int64\)"),
    "another element type": (["b32f", "b"], [1], r"a is a float32 array.*for a int32 array"),
    "the same size, another type": (["u", "b"], [1], r"a is a uint32 array.*for a int32 array"),
    "fewer dimensions": (["a", "a"], [1], r"b is a int32 array of 1 dim.*of 2 dimensions"),
    "more dimensions": (["b", "b"], [1], r"a is a int32 array of 2 dim.*of 1 dimension"),
}


@MODES
@pytest.mark.spec("SPEED-LEAF-4")
def test_a_task_with_other_arguments_fails_and_the_function_has_not_run(w):
    handle = w.register(touch)
    arrays = {
        "a": w.share(np.zeros(2, np.int32)),
        "b": w.share(np.zeros((2, 2), np.int32)),
        "b32f": w.share(np.zeros(2, np.float32)),
        "u": w.share(np.zeros(2, np.uint32)),
    }
    for what, (names, numbers, words) in WRONG.items():
        with pytest.raises(TaskError, match=f"(?s)TypeError: leaf .*touch.*{words}") as failure:
            run(w, handle, *(arrays[name] for name in names), *numbers)
        assert "TypeError" in failure.value.remote_traceback, what
        assert not any(array.any() for array in arrays.values()), what
        run(w, handle, arrays["a"], arrays["b"], 3)  # the next task is not hurt
        assert (arrays["a"][0], arrays["b"][0, 0]) == (1, 3)
        arrays["a"][:] = arrays["b"][:] = 0


@MODES
@pytest.mark.spec("SPEED-LEAF-4")
def test_memory_of_another_worker_and_a_tensor_without_dimensions_are_refused(w):
    handle = w.register(touch)
    a, b = w.share(np.zeros(2, np.int32)), w.share(np.zeros((1, 1), np.int32))
    there = ContinuousTensor.make(a.ctypes.data, (2,), DataType.INT32, child_memory=True)
    with pytest.raises(TaskError, match=r"ValueError: .*next-level worker's memory"):
        run(w, handle, there, b, 1)
    with pytest.raises(TaskError, match=r"TypeError: .*at least one dimension"):
        run(w, handle, ContinuousTensor.make(a.ctypes.data, (), DataType.INT32), b, 1)
    assert not a.any()
    run(w, handle, a, b, 1)
    assert a.tolist() == [1, 0]


@MODES
@pytest.mark.spec("SPEED-LEAF-11")
def test_a_tensor_without_memory_fails_its_task_and_the_function_has_not_run(w):
    handle = w.register(touch_all)
    a = w.share(np.zeros(2, np.int32))
    b, none = w.share(np.zeros((1, 1), np.int32)), w.share(np.zeros(0, np.int32))
    for data in (0, 8, 4095, 1 << 47, 0x7FF9 << 48, 0x7FFF << 48, (1 << 64) - 8):
        wrong = ContinuousTensor.make(data, (1, 1), DataType.INT32)
        with pytest.raises(TaskError, match=r"ValueError") as failure:
            run(w, handle, a, wrong, none, tag=T.NO_DEP)
        assert not isinstance(failure.value, WorkerLostError)
        assert not a.any()
    run(w, handle, a, b, ContinuousTensor.make(0, (0,), DataType.INT32), tag=T.NO_DEP)
    assert (a.tolist(), b.tolist()) == ([1, 0], [[1]])


@leaf
def touch_all(a: int32[:], b: int32[:, :], none: int32[:]):
    a[0] += 1
    b[0, 0] += 1
    a[1] = len(none)


WRONG_SCALARS = {
    np.int8: (128, 1.0, 1 << 63),
    np.uint8: (-1, 255.0),
    np.int32: (1 << 31, float("nan")),
    np.uint16: (1 << 16, np.float32(1)),
    np.int64: (2.5, (1 << 64) - 1),
    np.uint64: (-1, 0.0),
    np.bool_: (1.0,),
}
RIGHT_SCALARS = {np.int8: -128, np.uint8: 255, np.int32: -5, np.uint16: 9}
RIGHT_SCALARS |= {np.int64: -7, np.uint64: 1 << 63, np.bool_: 1}


@MODES
@pytest.mark.spec("SPEED-LEAF-4")
def test_a_scalar_that_cannot_be_of_its_type_is_refused(w):
    a = w.share(np.zeros(1, np.float32))
    handles = {kind: w.register(put_as(kind)) for kind in WRONG_SCALARS}
    for kind, handle in handles.items():
        for value in WRONG_SCALARS[kind]:
            a[0] = 77
            words = rf"TypeError: .*n takes \w+, and scalar 0 is {re.escape(repr(value))}"
            if isinstance(value, np.float32):
                words = "TypeError: .*scalar 0 is 1.0"
            with pytest.raises(TaskError, match=words):
                run(w, handle, a, value)
            assert a[0] == 77
        run(w, handle, a, RIGHT_SCALARS[kind])
        assert a[0] == RIGHT_SCALARS[kind]


@MODES
@pytest.mark.spec("SPEED-LEAF-10")
def test_any_number_is_converted_for_a_parameter_that_is_a_float(w):
    a = w.share(np.zeros(1, np.float32))
    for handle in [w.register(put_as(kind)) for kind in (float, np.float32)]:
        for value in (3, -1, 2.5, np.float32(0.1), (1 << 64) - 1, True, -0.0, float("inf"), 1e30):
            for _ in range(2):
                a[0] = 77
                run(w, handle, a, value)
                assert a.tobytes() == np.array([value], np.float64).astype(np.float32).tobytes()


@MODES
@pytest.mark.spec("SPEED-LEAF-10")
def test_bits_without_a_kind_are_taken_for_the_type_of_the_parameter(w):
    given = {float: 2.5, np.float32: np.float32(0.25), int: -3, np.uint16: 9, np.bool_: True}
    a = w.share(np.zeros(1, np.float32))
    handles = {kind: w.register(put_as(kind)) for kind in given}
    for kind, value in given.items():
        for _ in range(2):
            a[0] = 77
            run(w, handles[kind], a, scalar_to_uint64(value))
            assert a[0] == value, kind
    for kind, value, words in [
        (np.uint16, 1 << 16, r"n takes uint16, and scalar 0 is 0x10000,"),
        (np.float32, 1.0, r"n takes float32, and scalar 0 is 0x3ff0000000000000,"),
    ]:
        with pytest.raises(TaskError, match=words):
            run(w, handles[kind], a, scalar_to_uint64(value))


# ---------------------------------------------------------------- 5: exceptions
@leaf
def choosy(a: int64[:], n: int):
    if n == 1:
        raise ValueError("n is", n)
    if n == 2:
        raise LookupError("not there")
    if n == 3:
        raise RuntimeError
    if n == 4:
        raise Ours("it is ours")
    a[0] = n


class Ours(Exception):
    """An exception that Python does not know."""


@MODES
@WHEN
@pytest.mark.spec("SPEED-LEAF-5")
def test_what_a_leaf_raises_fails_its_task_and_the_next_ones_run(w, late):
    expected = {
        1: (r"ValueError: \('n is', (1|np.int64\(1\))\)", 'raise ValueError("n is", n)'),
        2: ("LookupError: not there", 'raise LookupError("not there")'),
        3: ("RuntimeError", "raise RuntimeError"),
        4: ("Ours: it is ours", 'raise Ours("it is ours")'),
    }
    if late:
        w.start()
    handle = w.register(choosy)
    a = w.share(np.zeros(1, np.int64))
    for round_ in range(2):
        for n, (words, line) in expected.items():
            with pytest.raises(TaskError, match=rf"sub_worker 0.*\(choosy\): {words}") as failure:
                run(w, handle, a, n)
            trace = failure.value.remote_traceback
            number = source_line(choosy.py_func, line)
            assert f'{os.path.basename(__file__)}", line {number}, in choosy' in trace
            assert line in trace
            assert re.search(words, trace)
            run(w, handle, a, 100 * round_ + 10 + n)
            assert a[0] == 100 * round_ + 10 + n


@MODES
@pytest.mark.spec("SPEED-LEAF-5")
@pytest.mark.parametrize("depth", [1, 3])
def test_an_exception_among_leaves_that_follow_each_other_fails_its_own_task_only(mode, depth):
    with Gate() as go, Worker(3, num_sub_workers=1, child_mode=mode, mailbox_depth=depth) as w:
        handle, hold = w.register(choosy), w.register(go.wait)
        rows = [w.share(np.zeros(1, np.int64)) for _ in range(9)]

        def orch_fn(orch, *_):
            orch.submit_sub(hold)
            for n, row in enumerate(rows):
                orch.submit_sub(handle, task(row, 2 if n in (4, 6) else 10 + n))
            go.open(1)

        with pytest.raises(TaskError, match=r"task 5 \(choosy\): LookupError: not there"):
            w.run(orch_fn)
        seen = [int(row[0]) for row in rows]
        assert seen == [0 if n in (4, 6) else 10 + n for n in range(9)]


@MODES
@compiled_only
@pytest.mark.spec("SPEED-LEAF-5")
def test_what_compiled_code_raises_by_itself_keeps_type_and_text(w):
    @leaf(boundscheck=True)
    def trouble(a: int64[:], n: int):
        a[0] = 10 // n
        a[n] = 1

    handle = w.register(trouble)
    a = w.share(np.zeros(2, np.int64))
    with pytest.raises(TaskError, match=r"\(.*trouble\): ZeroDivisionError: "):
        run(w, handle, a, 0)
    with pytest.raises(TaskError, match=r"\(.*trouble\): IndexError: .*out of bounds"):
        run(w, handle, a, 5)
    run(w, handle, a, 1)
    assert a.tolist() == [10, 1]


# ---------------------------------------------------------------- 6: without the interpreter
@compiled_only
@pytest.mark.spec("SPEED-LEAF-6")
def test_leaves_that_follow_each_other_are_run_in_one_call(monkeypatch):
    """The worker's Python code asks for them once: all others are run by the same call."""
    with Worker(3, num_sub_workers=1, child_mode="thread", mailbox_depth=16) as w, Gate() as go:
        hold, handle = w.register(go.wait), w.register(times_three)
        a = w.share(np.ones(1, np.int64))
        run(w, handle, a)
        kernels = w._session.engine.kernels
        calls, entry = [], kernels.run_leaves

        def hold_then_many(orch, *_):
            orch.submit_sub(hold)
            for _ in range(15):
                orch.submit_sub(handle, task(a, tag=T.NO_DEP))
            wait_until(lambda: tasks_given(w) == 16)
            go.open(1)

        monkeypatch.setattr(kernels, "run_leaves", lambda *args: calls.append(1) or entry(*args))
        w.run(hold_then_many)
        assert a[0] == pow(3, 1 + 15, 1_000_003)
        assert calls == [1]


@compiled_only
@pytest.mark.spec("SPEED-LEAF-6")
def test_in_threads_two_leaves_run_at_the_same_time():
    """Each waits for the other: with the GIL, or one after the other, neither would end."""

    @leaf
    def meet(mine: int64[:], other: int64[:], out: int64[:]):
        patience = 2_000_000_000
        mine[0] = 1
        while other[0] == 0 and patience > 0:
            patience -= 1
            out[0] = patience
        mine[0] = 2
        while other[0] == 1 and patience > 0:
            patience -= 1
            out[0] = patience

    with Worker(3, num_sub_workers=2, child_mode="thread") as w:
        handle = w.register(meet)
        words = [w.share(np.zeros(1, np.int64)) for _ in range(4)]
        mine, other, *outs = words

        def orch_fn(orch, *_):
            for a, b, out in ((mine, other, outs[0]), (other, mine, outs[1])):
                orch.submit_sub(handle, task(a, b, out, tag=T.NO_DEP))

        w.run(orch_fn)
        assert all(out[0] > 0 for out in outs), "they have met"


# ---------------------------------------------------------------- 7: compiled when registered
@compiled_only
@WHEN
@pytest.mark.spec("SPEED-LEAF-7")
def test_a_leaf_that_cannot_be_compiled_is_refused_when_it_is_registered(w, late):
    @leaf
    def bad(a: int64[:]):
        a[0] = 1
        a.no_such_thing()

    if late:
        w.start()
    with pytest.raises(TypeError, match=r"bad cannot be compiled: .*no_such_thing") as refusal:
        w.register(bad)
    # numba points at the line of the statement, by a path that may be relative
    assert re.search(rf"{os.path.basename(__file__)}\", line \d+", str(refusal.value))
    assert refusal.value.__cause__ is not None
    good = leaf_of({"a": int64[:]}, "a[0] = 1")
    handle = w.register(good)
    assert good.address != 0, "it is compiled already"
    a = w.share(np.zeros(1, np.int64))
    run(w, handle, a)
    assert a[0] == 1


@compiled_only
@pytest.mark.spec("SPEED-LEAF-7")
def test_an_array_after_a_number_cannot_be_compiled(w):
    @leaf
    def mixed(n: int, a: int64[:]):
        a[0] = n

    with pytest.raises(TypeError, match=r"mixed cannot be compiled: the tensors .* come first"):
        w.register(mixed)


# ---------------------------------------------------------------- 8: what is no leaf
@pytest.mark.spec("SPEED-LEAF-8")
@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (len, "expects a plain function, got builtin_function_or_method"),
        (Leaf, "expects a plain function, got type"),
        (3, "expects a plain function, got int"),
        (axpy, "expects a plain function, got Leaf"),
        (axpy.__call__, "expects a plain function, got method"),
        (lambda *arrays: None, r"\*arrays cannot be a parameter"),
        (lambda a, *, n: None, r"n cannot be a parameter"),
        (lambda a, **more: None, r"\*\*more cannot be a parameter"),
    ],
    ids=["builtin", "class", "number", "leaf", "method", "star", "keyword", "double star"],
)
def test_what_is_no_plain_function_of_positions_is_refused(thing, words):
    with pytest.raises(TypeError, match=words):
        leaf(thing)


@pytest.mark.spec("SPEED-LEAF-8")
@pytest.mark.parametrize(
    "note",
    [
        nb.float32[::1, :],
        nb.Array(nb.unicode_type, 1, "C"),
        nb.Array(nb.int64, 0, "C"),
        nb.complex64,
        nb.unicode_type,
        np.float16,
        str,
        list,
        None,
        [1],
        np.zeros(1),
        "no_such_name",
        3,
    ],
    ids=repr,
)
def test_an_annotation_that_names_no_type_a_task_can_bring_is_refused(note):
    def wrong(first, second):
        pass

    wrong.__annotations__ = {"second": note}
    with pytest.raises(TypeError, match=r"leaf .*wrong: .*(of second|no_such_name)"):
        leaf(wrong)


@pytest.mark.spec("SPEED-LEAF-8")
def test_an_unknown_option_is_refused():
    for option in ("nogil", "cache", "forceobj", "no_such_option"):
        with pytest.raises(TypeError, match=f"leaf has no option '{option}'"):
            leaf(**{option: True})(lambda a: None)
    with pytest.raises(TypeError, match="boundscheck=3 is neither True nor False"):
        leaf(boundscheck=3)(lambda a: None)


# ---------------------------------------------------------------- 9: called here
@pytest.mark.spec("SPEED-LEAF-9")
def test_a_leaf_that_is_called_runs_here_at_once():
    @leaf
    def put(a, n):
        """Put a number."""
        a[0] = n
        return n + 1

    a = np.zeros(2, np.int32)
    assert put(a, 3) == 4
    assert a.tolist() == [3, 0]
    assert (put.__name__, put.__doc__) == ("put", "Put a number.")
    assert (put.address != 0) == (not INTERPRETED)
    for wrong, words in [
        ((a,), "takes 2 arguments, got 1"),
        ((a, 1, 2), "takes 2 arguments, got 3"),
        ((a, 1.5), r"n is a number \(float64\), but .* a number \(int64\)"),
        ((np.array(1), 1), "at least one dimension"),
        ((a.astype(np.int64), 1), "a is a int64 array"),
        ((a.reshape(1, 2), 1), "a is a int32 array of 2 dimensions"),
        ((a, "1"), "arrays and numbers, not str"),
        (([0], 1), "arrays and numbers, not list"),
    ]:
        with pytest.raises(TypeError, match=words):
            put(*wrong)
    assert a.tolist() == [3, 0]
    assert put(a, True) == 2, "what fits is converted"


@pytest.mark.spec("SPEED-LEAF-9")
def test_a_call_raises_what_the_function_raises():
    a = np.zeros(1, np.int64)
    with pytest.raises(LookupError, match="not there"):
        choosy(a, 2)
    choosy(a, 9)
    assert a[0] == 9


@pytest.mark.spec("SPEED-LEAF-9")
def test_a_leaf_survives_pickling_with_the_types_that_are_settled():
    @leaf(fastmath=True)
    def put(a, n):
        a[0] = n

    again = cloudpickle.loads(cloudpickle.dumps(put))
    assert again.kinds is None
    put(np.zeros(1, np.int16), 1)
    again = cloudpickle.loads(cloudpickle.dumps(put))
    assert again.kinds == put.kinds
    assert (again.address != 0) == (not INTERPRETED)
    a = np.zeros(1, np.int16)
    again(a, 7)
    assert a[0] == 7


# ---------------------------------------------------------------- arrays with layouts
LAYOUTS = {
    "float64": lambda w: w.share(np.arange(6.0)),
    "complex": lambda w: w.share(np.arange(6) * (1 + 2j)),
    "dates": lambda w: w.share(np.arange(6).astype("M8[s]")),
    "steps": lambda w: w.share(np.arange(12, dtype=np.float32))[::2],
    "reversed": lambda w: w.share(np.arange(6, dtype=np.int16))[::-1],
    "a field": lambda w: w.share(np.ones(6, [("n", "i4"), ("x", "f8")]))["x"],
    "unaligned": lambda w: w.share(np.ones(6, "i1,f8"))["f1"],
    "transposed": lambda w: w.share(np.arange(6, dtype=np.float32).reshape(2, 3)).T,
    "of six dimensions": lambda w: w.share(np.arange(6, dtype=np.int8).reshape(1, 1, 2, 3, 1, 1)),
}


@pytest.mark.spec("SPEED-LEAF-12")
@MODES
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_leaf_takes_arrays_of_any_type_and_strides(mode, name):
    @leaf
    def first_to_last(a, b):
        b.flat[0] = a.flat[a.size - 1]

    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        a = LAYOUTS[name](w)
        b = w.share(np.zeros(1, a.dtype))
        handle = w.register(first_to_last)
        w.run(lambda orch, *_: orch.submit_sub(handle, make_args((a, T.INPUT), (b, T.INOUT))))
        assert b[0] == a.flat[-1]


@pytest.mark.spec("SPEED-LEAF-12")
def test_a_leaf_that_is_annotated_takes_other_orders_too():
    @leaf
    def fill(a: float64[:, :], value: float):
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                a[i, j] = value

    with Worker(3, num_sub_workers=1) as w:
        a, handle = w.share(np.zeros((4, 6))), w.register(fill)
        views = [a, a.T, a[:, ::2], a[::-1]]

        def orch_fn(orch, *_):
            for value, view in enumerate(views * 2, 1):
                orch.submit_sub(handle, make_args((view, T.INOUT), scalars=[value]))
                orch.drain()
                assert (view == value).all()

        w.run(orch_fn)
        with pytest.raises(
            TaskError, match=r"a is a float32 array of 2 dimensions, but .* float64"
        ):
            args = make_args((w.share(np.zeros((2, 2), np.float32)), T.INOUT), scalars=[1])
            w.run(lambda orch, *_: orch.submit_sub(handle, args))


@pytest.mark.spec("SPEED-LEAF-12")
@compiled_only
def test_each_order_is_compiled_once_and_then_needs_no_interpreter():
    @leaf
    def total(a, b):
        b[0] += a.sum()

    with Worker(3, num_sub_workers=1, child_mode="thread") as w:
        a, b = w.share(np.ones((4, 6))), w.share(np.zeros(1))
        handle, views = w.register(total), [a, a.T, a[:, ::2]]
        calls, run_task = [], total.run_task
        total.run_task = lambda args: (calls.append(args), run_task(args))[1]

        def orch_fn(orch, *_):
            for view in views * 3:
                orch.submit_sub(handle, make_args((view, T.INPUT), (b, T.INOUT)))
                orch.drain()

        w.run(orch_fn)
        assert b[0] == 3 * (24 + 24 + 12)
        assert len(calls) == len(views)
        w.run(orch_fn)
        assert len(calls) == len(views)


@pytest.mark.spec("SPEED-LEAF-12")
def test_types_that_numba_lacks_are_refused_by_name():
    @leaf
    def first(a):
        return a[0]

    for wrong in (np.ones(3, ">f8"), np.ones(3, np.longdouble)):
        with pytest.raises(TypeError, match=rf"cannot take this array of {wrong.dtype}"):
            first(wrong)
