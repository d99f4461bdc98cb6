"""SPEED-LEAF: compiled leaves."""

import functools
import linecache
import os
import re

import numpy as np
import pytest
from numba import float32, int32, int64
from numba import types as nb

from simpler_ref import ContinuousTensor, DataType, TaskError, Worker, WorkerLostError, leaf
from simpler_ref import TensorArgType as T
from simpler_ref.callables.leaves import Leaf
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import scalar_to_uint64
from tests.support import Gate, make_args, sample, tasks_given, wait_until

compiled_only = pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")


HOW = pytest.mark.parametrize(("mode", "late"), [("process", True), ("thread", False)])
"""How workers run, and whether a leaf is registered after the start."""


@pytest.fixture(params=["process", pytest.param("thread", marks=pytest.mark.long)])
def w(request):
    """Give a Worker that is not started: leaves are compiled here, once."""
    with Worker(3, num_sub_workers=1, child_mode=request.param) as made:
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


@HOW
@pytest.mark.spec("SPEED-LEAF-1")
def test_a_leaf_leaves_what_the_plain_function_would_also_among_python_callables(mode, late):
    def plus_one(args):
        args.tensor(0).numpy()[...] += 1

    with Worker(3, num_sub_workers=2, child_mode=mode) as w:
        if late:
            w.start()
        quick, slow = w.register(axpy), w.register(plus_one)
        x = w.share(np.linspace(-3, 5, 100, dtype=np.float32))
        y = w.share(np.arange(100, dtype=np.float32))
        expected = y.copy()

        def orch_fn(orch, *_):
            for i in range(60):
                if i * i % 5 < 3:
                    orch.submit_sub(quick, task(x, y, -0.75))
                    axpy.py_func(x, expected, -0.75)
                else:
                    orch.submit_sub(slow, task(y))
                    expected[...] += 1

        w.run(orch_fn)
        np.testing.assert_allclose(y, expected, rtol=1e-5)


ELEMENT_TYPES = ["float32", "int32", "int16", "int8", "uint8", "int64", "uint64", "uint16"]
ELEMENT_TYPES += ["uint32", "bool"]
VALUES = np.array([0, 1, -1, 100, 0.5, 1 << 31, -(1 << 62)]).astype(np.int64)


@pytest.mark.spec("SPEED-LEAF-1")
@pytest.mark.parametrize("types", sample([ELEMENT_TYPES[::2], ELEMENT_TYPES[1::2]], 1), ids=str)
def test_every_element_type_comes_as_itself(w, types):
    pairs = [(w.share(VALUES.astype(name)), w.empty(7, name)) for name in types]
    names = [f"{which}{i}" for i in range(len(pairs)) for which in "ab"]
    lines = [f"    b{i}[k] = a{i}[6 - k]" for i in range(len(pairs))]
    reverse = leaf_of(dict.fromkeys(names, np.ndarray), "for k in range(7):", *lines)
    run(w, w.register(reverse), *(array for pair in pairs for array in pair))
    for a, b in pairs:
        assert b.tolist() == a[::-1].tolist(), a.dtype


# ---------------------------------------------------------------- 2, 3: the types are settled once
@pytest.mark.spec("SPEED-LEAF-2")
def test_annotations_settle_the_types_at_once_and_may_be_text(w):
    source = (
        "from __future__ import annotations\n"
        "from numba import int64\n"
        "def texts(a: int64[:, :], n: int, x: float, yes: bool):\n    a[0, 0] = n + 1\n"
    )
    module = {}
    exec(source, module)
    texts = leaf(module["texts"])
    assert module["texts"].__annotations__["n"] == "int"
    kinds = ["array(int64, 2d, C)", "int64", "float64", "bool"]
    assert [str(kind) for kind in texts.kinds] == kinds
    w.start()
    handle = w.register(texts)  # it travels to the worker, where nobody knows those names
    a = w.share(np.zeros((1, 1), np.int64))
    run(w, handle, a, 4, 0.5, True)
    assert a[0] == 5


@pytest.mark.spec("SPEED-LEAF-2")
def test_a_call_settles_what_is_not_annotated(w):
    @leaf
    def put(a, n: int, x):
        a[n] = x

    if not INTERPRETED:
        with pytest.raises(TypeError, match="put cannot be compiled"):
            put(np.zeros(3, np.int32), 1, np.zeros(2, np.int32))
    assert put.kinds is None, "what cannot be compiled settles nothing"
    put(np.zeros(3, np.int32), 1, 2.5)
    assert [str(kind) for kind in put.kinds] == ["array(int32, 1d, C)", "int64", "float64"]
    with pytest.raises(TypeError, match=r"put: a is a float32 array of 1 dimension.*int32 array"):
        put(np.zeros(3, np.float32), 1, 2.5)
    a = w.share(np.zeros(3, np.int32))
    run(w, w.register(put), a, 2, 7.9)
    assert a.tolist() == [0, 0, 7]


@HOW
@pytest.mark.spec("SPEED-LEAF-2")
def test_a_workers_first_task_settles_what_is_not_annotated(mode, late):
    @leaf
    def put(a: np.ndarray, n):
        a[0] = n

    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        if late:
            w.start()
        handle = w.register(put)
        first, other = w.share(np.zeros(2, np.int16)), w.share(np.zeros((2, 2), np.int16))
        if not INTERPRETED:
            with pytest.raises(TaskError, match=r"TypeError: leaf .*put cannot be compiled"):
                run(w, handle, first, first)
        for n in (3, 4):
            run(w, handle, first, n)
            assert first.tolist() == [n, 0]
        with pytest.raises(TaskError, match=r"TypeError: leaf .*put: a is a int16 array of 2 dim"):
            run(w, handle, other, 1)
        assert not other.any()
        run(w, handle, first, 5)
        assert first[0] == 5


@pytest.mark.spec("SPEED-LEAF-2")
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
    "a number for an array": (["a"], [1, 2], r"b is a number .*for a int32 array of 2 dimensions"),
    "an array for a number": (["a", "b", "b"], [], r"n is a int32 array .*for a number \(int64\)"),
    "another element type": (["b32f", "b"], [1], r"a is a float32 array.*for a int32 array"),
    "the same size, another type": (["u", "b"], [1], r"a is a uint32 array.*for a int32 array"),
    "fewer dimensions": (["a", "a"], [1], r"b is a int32 array of 1 dim.*of 2 dimensions"),
    "more dimensions": (["b", "b"], [1], r"a is a int32 array of 2 dim.*of 1 dimension"),
}


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


@pytest.mark.spec("SPEED-LEAF-4")
def test_a_tensor_without_memory_fails_its_task_and_the_function_has_not_run(w):
    handle, a = w.register(touch_all), w.share(np.zeros(2, np.int32))
    b, none = w.share(np.zeros((1, 1), np.int32)), w.share(np.zeros(0, np.int32))
    addresses = (0, 8, 4095, 1 << 47, 0x7FF9 << 48, 0x7FFF << 48, (1 << 64) - 8)
    wrong = [ContinuousTensor.make(data, (1, 1), DataType.INT32) for data in addresses]
    wrong.append(ContinuousTensor.make(b.ctypes.data, (1, 1), DataType.INT32, child_memory=True))
    for one in wrong:
        with pytest.raises(TaskError, match=r"ValueError") as failure:
            run(w, handle, a, one, none, tag=T.NO_DEP)
        assert not isinstance(failure.value, WorkerLostError) and not a.any()
    run(w, handle, a, b, ContinuousTensor.make(0, (0,), DataType.INT32), tag=T.NO_DEP)
    assert (a.tolist(), b.tolist()) == ([1, 0], [[1]])


@leaf
def touch_all(a: int32[:], b: int32[:, :], none: int32[:]):
    a[0] += 1
    b[0, 0] += 1
    a[1] = len(none)


NUMBERS = (3, -1, 2.5, np.float32(0.1), (1 << 64) - 1, True, -0.0, float("inf"), 1e30)
SCALARS = {
    np.int8: ([-128], [128, 1.0, 1 << 63]),
    np.uint8: ([255], [-1, 255.0]),
    np.int16: ([-(1 << 15)], [1 << 15]),
    np.int32: ([-5], [1 << 31, float("nan")]),
    np.uint16: ([9], [1 << 16, np.float32(1)]),
    np.int64: ([-7], [2.5, (1 << 64) - 1]),
    np.uint64: ([1 << 63], [-1, 0.0]),
    np.bool_: ([True], [1.0]),
    float: (NUMBERS, []),
    np.float32: (NUMBERS, []),
}
"""Types of parameters, with what becomes one and what is refused."""
BITS = {float: 2.5, np.float32: np.float32(0.25), np.int64: -3, np.uint16: 9, np.bool_: True}
"""Values whose bits are given, without their kind."""


@pytest.mark.spec("SPEED-LEAF-2", "SPEED-LEAF-4")
def test_a_scalar_becomes_what_its_parameter_is_or_is_refused(w):
    a, handles = w.share(np.zeros(1, np.float32)), {one: w.register(put_as(one)) for one in SCALARS}
    for kind, (right, wrong) in SCALARS.items():
        given = [*((one, one) for one in right)]
        given += [(scalar_to_uint64(BITS[kind]), BITS[kind])] if kind in BITS else []
        for scalar, value in 2 * given:
            a[0] = 77
            run(w, handles[kind], a, scalar)
            assert a.tobytes() == np.array([value], np.float64).astype(np.float32).tobytes(), kind
        a[0] = 77
        for value in wrong:
            said = re.escape(repr(1.0 if isinstance(value, np.float32) else value))
            with pytest.raises(
                TaskError, match=rf"TypeError: .*n takes \w+, and scalar 0 is {said}"
            ):
                run(w, handles[kind], a, value)
            assert a[0] == 77
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


@pytest.mark.spec("SPEED-LEAF-4")
def test_what_a_leaf_raises_fails_its_task_and_the_next_ones_run(w):
    expected = {
        1: (r"ValueError: \('n is', (1|np.int64\(1\))\)", 'raise ValueError("n is", n)'),
        2: ("LookupError: not there", 'raise LookupError("not there")'),
        3: ("RuntimeError", "raise RuntimeError"),
        4: ("Ours: it is ours", 'raise Ours("it is ours")'),
    }
    handle, a = w.register(choosy), w.share(np.zeros(1, np.int64))
    for n, (words, line) in expected.items():
        with pytest.raises(TaskError, match=rf"sub_worker 0.*\(choosy\): {words}") as failure:
            run(w, handle, a, n)
        trace = failure.value.remote_traceback
        number = source_line(choosy.py_func, line)
        assert f'{os.path.basename(__file__)}", line {number}, in choosy' in trace
        assert line in trace and re.search(words, trace)
        run(w, handle, a, 10 + n)
        assert a[0] == 10 + n


# ---------------------------------------------------------------- 6: without the interpreter
@leaf
def times_three(a: int64[:]):
    a[0] = 3 * a[0] % 1_000_003


@compiled_only
@pytest.mark.spec("SPEED-LEAF-1")
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
@pytest.mark.spec("SPEED-LEAF-1")
def test_in_threads_two_leaves_run_at_the_same_time():
    """Each waits for the other: with the GIL, or one after the other, neither would end."""

    @leaf
    def meet(mine: int64[:], other: int64[:], out: int64[:]):
        out[0] = 2_000_000_000
        mine[0] = 1
        while other[0] == 0 and out[0] > 0:
            out[0] -= 1

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
@pytest.mark.spec("SPEED-LEAF-7")
def test_a_leaf_that_cannot_be_compiled_is_refused_when_it_is_registered(w):
    @leaf
    def bad(a: int64[:]):
        a[0] = 1
        a.no_such_thing()

    @leaf
    def mixed(n: int, a: int64[:]):
        a[0] = n

    with pytest.raises(TypeError, match=r"mixed cannot be compiled: the tensors .* come first"):
        w.register(mixed)
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


# ---------------------------------------------------------------- 8: what is no leaf
FUNCTIONS = [
    (len, "expects a plain function, got builtin_function_or_method"),
    (Leaf, "expects a plain function, got type"),
    (3, "expects a plain function, got int"),
    (axpy, "expects a plain function, got Leaf"),
    (axpy.__call__, "expects a plain function, got method"),
    (lambda *arrays: None, r"\*arrays cannot be a parameter"),
    (lambda a, *, n: None, r"n cannot be a parameter"),
    (lambda a, **more: None, r"\*\*more cannot be a parameter"),
]
ANNOTATIONS = [nb.float32[::1, :], nb.Array(nb.unicode_type, 1, "C"), nb.Array(nb.int64, 0, "C")]
ANNOTATIONS += [nb.complex64, nb.unicode_type, np.float16, str, list, None, [1], np.zeros(1)]
ANNOTATIONS += ["no_such_name", 3]


@pytest.mark.spec("SPEED-LEAF-7")
def test_what_is_no_function_of_arrays_and_numbers_and_no_option_is_refused():
    for thing, words in FUNCTIONS:
        with pytest.raises(TypeError, match=words):
            leaf(thing)

    def wrong(first, second):
        pass

    for note in ANNOTATIONS:
        wrong.__annotations__ = {"second": note}
        with pytest.raises(TypeError, match=r"leaf .*wrong: .*(of second|no_such_name)"):
            leaf(wrong)
    for option in ("nogil", "cache", "forceobj", "no_such_option"):
        with pytest.raises(TypeError, match=f"leaf has no option '{option}'"):
            leaf(**{option: True})(lambda a: None)
    with pytest.raises(TypeError, match="boundscheck=3 is neither True nor False"):
        leaf(boundscheck=3)(lambda a: None)


# ---------------------------------------------------------------- 9: called here
@pytest.mark.spec("SPEED-LEAF-1")
def test_a_leaf_that_is_called_runs_here_at_once():
    @leaf
    def put(a, n):
        """Put a number."""
        a[0] = n
        return n + 1

    a = np.zeros(2, np.int32)
    assert (put(a, 3), a.tolist()) == (4, [3, 0])
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
        ((np.ones(3, ">f8"), 1), "cannot take this array of >f8"),
    ]:
        with pytest.raises(TypeError, match=words):
            put(*wrong)
    assert a.tolist() == [3, 0]
    assert put(a, True) == 2, "what fits is converted"
    with pytest.raises(LookupError, match="not there"):
        choosy(np.zeros(1, np.int64), 2)


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


@pytest.mark.spec("SPEED-LEAF-2")
@pytest.mark.parametrize("name", sample(LAYOUTS, 3))
def test_a_leaf_takes_arrays_of_any_type_and_strides(w, name):
    @leaf
    def first_to_last(a, b):
        b.flat[0] = a.flat[a.size - 1]

    a = LAYOUTS[name](w)
    b = w.share(np.zeros(1, a.dtype))
    run(w, w.register(first_to_last), a, b)
    assert b[0] == a.flat[-1]
