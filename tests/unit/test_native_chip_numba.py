"""Kernels from Python functions."""

import numpy as np
import pytest

from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.native_chip import (
    ChipCallable,
    ChipError,
    ChipWorker,
    In,
    InOut,
    KernelCompileError,
    Out,
    Scalar,
    core_kernel,
)
from simpler_ref.task_interface import CallConfig
from tests.chip_kernels import D, host_args

compiled = pytest.mark.skipif(INTERPRETED, reason="NUMBA_DISABLE_JIT=1: nothing can be compiled")


def add(x, y, out, n, block_idx, block_dim):
    for i in range(block_idx, n, block_dim):
        out[i] = x[i] + y[i]


ADD = {"x": In("float32"), "y": In("float32"), "out": Out("float32"), "n": Scalar("int64")}


@pytest.fixture
def run():
    """Give a function that runs a kernel on a chip."""
    prepared = []

    def run(kernel, *arrays, scalars=(), **config):
        if kernel not in prepared:
            chip.prepare(len(prepared), ChipCallable.from_kernel(kernel))
            prepared.append(kernel)
        args = host_args(*arrays, scalars=scalars)
        chip.run_args(prepared.index(kernel), args, CallConfig(**config))

    with ChipWorker() as chip:
        yield run


@pytest.fixture(scope="module")
def adder():
    return core_kernel(**ADD)(add)


@compiled
@pytest.mark.parametrize(("count", "block_dim"), [(1, 0), (5, 1), (1001, 7), (1001, 24)])
def test_a_kernel_from_python_does_what_numpy_does(run, adder, count, block_dim):
    x = np.arange(count, dtype=np.float32)
    y, out = np.full(count, 0.5, np.float32), np.zeros(count, np.float32)
    run(adder, x, y, out, scalars=[count], block_dim=block_dim)
    assert np.array_equal(out, x + y)


@compiled
def test_a_kernel_gets_every_kind_of_argument(run):
    @core_kernel(
        scale=Scalar("float64"),
        table=InOut("int32", ndim=2),
        shift=Scalar("float32"),
        small=Scalar("int8"),
        flag=Scalar(bool),
        flat=In("uint8"),
        out=Out("float32"),
    )
    def mix(block_idx, scale, table, shift, small, flag, flat, out):
        if block_idx > 0:
            return 0
        rows, columns = table.shape
        for i in range(rows):
            for j in range(columns):
                table[i, j] += 10 * i + j
        out[0], out[1], out[2], out[3] = scale, shift, small, 1.0 if flag else 0.0
        out[4], out[5] = flat.size, flat[flat.size - 1]
        out[6] = np.sin(scale)
        return 0

    assert mix.signature == (D.SCALAR, D.INOUT, *[D.SCALAR] * 3, D.IN, D.OUT)
    table, out = np.ones((3, 4), np.int32), np.zeros(7, np.float32)
    flat = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    run(mix, table, flat, out, scalars=[2.5, np.float32(0.25), -3, True])
    assert np.array_equal(table, 1 + 10 * np.arange(3)[:, None] + np.arange(4))
    assert np.allclose(out, [2.5, 0.25, -3, 1, 24, 23, np.sin(2.5)])


@compiled
def test_parameters_may_have_the_names_that_the_caller_of_a_kernel_uses(run):
    @core_kernel(words=In("float32"), args=Scalar("int64"), kernel=Out("float32"))
    def scaled(words, args, kernel):
        for i in range(words.size):
            kernel[i] = args * words[i]

    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run(scaled, x, y, scalars=[3])
    assert y.tolist() == (3 * x).tolist()


@compiled
def test_a_tensor_the_kernel_was_not_compiled_for_is_refused(run, adder):
    @core_kernel(x=InOut("float32", ndim=2))
    def square(x):
        x[0, 0] = 1

    x = np.zeros(8, np.float32)
    with pytest.raises(ChipError, match="got a tensor 1 of another element type"):
        run(adder, x, x.astype(np.int32), x, scalars=[8])
    with pytest.raises(ChipError, match="got a tensor 0 of other dimensions"):
        run(square, x)


@compiled
def test_a_kernel_returns_an_error_code_or_raises(run):
    @core_kernel(code=Scalar("int64"))
    def refuse(code):
        if code == 7:
            raise ValueError("seven")
        return code

    run(refuse, scalars=[0])
    with pytest.raises(ChipError, match="returned error -3"):
        run(refuse, scalars=[-3])
    with pytest.raises(ChipError, match="raised an exception"):
        run(refuse, scalars=[7])


def copies_a_row(x):
    x[0] = x[1]


@compiled
@pytest.mark.parametrize(
    ("arguments", "function", "words"),
    [
        ({"x": In("float32")}, lambda x: x.nothing, "numba cannot compile"),
        ({"x": Scalar("float64")}, lambda x: x, "returns float64"),
        ({"x": InOut("float32", 2)}, copies_a_row, "A kernel cannot allocate"),
    ],
)
def test_what_numba_refuses_is_said(arguments, function, words):
    with pytest.raises(KernelCompileError, match=words):
        core_kernel(**arguments)(function)


def test_descriptions_must_match_the_parameters():
    for arguments, words in (
        ({}, "x, y, out, n have no description"),
        ({**ADD, "z": In("int8")}, "z are described and are no parameters"),
        ({**ADD, "block_idx": Scalar("int64")}, "block_idx are described"),
        ({**ADD, "x": "float32"}, "x must be described"),
    ):
        with pytest.raises(TypeError, match=words):
            core_kernel(**arguments)(add)
    for make, kind, words in (
        (lambda: In("float16"), TypeError, "FLOAT16"),
        (lambda: In("complex64"), TypeError, "complex64"),
        (lambda: In("float32", ndim=6), ValueError, "ndim is 6"),
        (lambda: Scalar("complex128"), TypeError, "complex128"),
    ):
        with pytest.raises(kind, match=words):
            make()


@pytest.mark.kernels
@pytest.mark.skipif(not INTERPRETED, reason="compilation is on")
def test_without_compilation_there_is_a_clear_error():
    with pytest.raises(KernelCompileError, match="NUMBA_DISABLE_JIT is set"):
        core_kernel(**ADD)(add)
