"""FLOW-SCALAR: what a scalar was added as."""

import ctypes
import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType, scalar_to_uint64
from tests.support import make_args, received

INTEGERS = [
    *((0, 0), (7, 7), (-1, -1), (-(1 << 63), -(1 << 63)), ((1 << 64) - 1, (1 << 64) - 1)),
    *((True, 1), (np.bool_(True), 1), (np.int8(-3), -3), (np.uint64(1 << 63), 1 << 63)),
    *((ctypes.c_int(-4), -4), (ctypes.c_uint64(5), 5), (TensorArgType.INOUT, 2)),
    *((np.array(-9), -9), (ctypes.c_bool(True), 1)),
]
FLOATS = [
    *((2.5, 2.5), (-0.0, -0.0), (float("-inf"), float("-inf")), (5e-324, 5e-324)),
    *((np.float64(0.1), 0.1), (np.float32(0.1), float(np.float32(0.1))), (np.float16(0.5), 0.5)),
    *((ctypes.c_float(1.5), 1.5), (ctypes.c_double(0.1), 0.1), (np.array(3.0), 3.0)),
    *((np.ones(4, np.float32).mean(), 1.0), (np.array(0.25, np.float32), 0.25)),
]
BITS = [scalar_to_uint64(one) for one in (2.5, -1, 7, -1.5)]
ALL = [value for value, _ in INTEGERS + FLOATS] + BITS
SEEN = [seen for _, seen in INTEGERS + FLOATS] + [int(one) for one in BITS]
AS_FLOATS = [float(seen) for _, seen in INTEGERS + FLOATS]
AS_FLOATS += [struct.unpack("<d", one.to_bytes(8, "little"))[0] for one in BITS]


SIGNED = [-1, ctypes.c_int32(-1), np.int8(-1), np.int64(-1)]


def shown(values):
    """Return values in a form in which 1, 1.0 and -0.0 are not the same."""
    return repr([float(v) if isinstance(v, float) else int(v) for v in values])


def require_all(args):
    """Fail unless these are the scalars of ALL, once or several times."""
    count = args.scalar_count()
    assert count and count % len(ALL) == 0
    assert shown(args.scalar(i) for i in range(count)) == shown(SEEN * (count // len(ALL)))
    assert shown(map(args.scalar_float, range(count))) == shown(AS_FLOATS * (count // len(ALL)))


@pytest.mark.spec("FLOW-SCALAR-1", "FLOW-BUILD-3")
def test_a_scalar_comes_back_as_it_was_added(mode):
    args = make_args(scalars=ALL)
    require_all(args)
    assert [scalar_to_uint64(one) for one in SIGNED] == [-1 % 2**64] * len(SIGNED)
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        handle = w.register(require_all)
        w.run(lambda orch, *_: orch.submit_sub(handle, args))
        w.run(lambda orch, given, _: require_all(given), args)


@pytest.mark.spec("FLOW-SCALAR-1")
@given(st.lists(st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)))
def test_every_number_of_64_bits_comes_back(values):
    args = make_args(scalars=values)
    assert shown(args.scalar(i) for i in range(len(values))) == shown(values)
    floats = [args.scalar_float(i) for i in range(len(values))]
    assert shown(floats) == shown([float(value) for value in values])


@pytest.mark.spec("FLOW-SCALAR-1")
def test_a_blob_made_by_hand_has_unsigned_integers_and_floats_by_their_bits():
    box = bytearray(L.MAILBOX_SIZE)
    struct.pack_into("<iiqd", box, L.MAILBOX_OFF_ARGS, 0, 2, -1, 2.5)
    view = received(box)
    assert (view.scalar(0), view.scalar(1)) == ((1 << 64) - 1, 0x4004000000000000)
    assert view.scalar_float(1) == 2.5


@pytest.mark.spec("FLOW-BUILD-5")
def test_what_is_no_number_of_64_bits_is_refused_and_nothing_was_added():
    args = make_args(scalars=[1])
    for value, words in (
        *(("5", "scalar '5' is a str"), (b"5", "scalar b'5' is a bytes"), (None, "is a NoneType")),
        *((1 + 2j, r"scalar \(1\+2j\) is a complex"), (Decimal("2.5"), "scalar Deci.* a Decimal")),
        *((np.longdouble(1), "is a longdouble"), ([1], r"scalar \[1\] is a list")),
        (np.ones(1), "has 1 dimensions.*pass the array as a tensor"),
        (ctypes.c_char(b"a"), "scalar b'a' is a bytes"),
    ):
        for take in (args.add_scalar, scalar_to_uint64):
            with pytest.raises(TypeError, match=words):
                take(value)
    assert (args.scalar_count(), args.scalar(0)) == (1, 1)


@pytest.mark.spec("FLOW-SCALAR-1")
def test_values_keep_it_in_groups_and_in_bulk(mode):
    def one_kind(args):
        i = args.scalar(0)
        assert shown([args.scalar(1), args.scalar_float(1)]) == shown([SEEN[i], AS_FLOATS[i]])

    with Worker(3, num_sub_workers=2, child_mode=mode) as w:
        everything, one = w.register(require_all), w.register(one_kind)

        def same_as(expected):
            def body(args):
                assert shown([args.scalar(0)]) == shown([expected[args.scalar(1)]])

            return body

        def orch_fn(orch, *_):
            orch.submit_sub_group(everything, [make_args(scalars=ALL), make_args(scalars=ALL)])
            orch.submit_sub(everything, make_args(scalars=ALL + 40 * ALL))
            orch.submit_sub_many(everything, scalars=ALL, count=3)
            for i, value in enumerate(ALL):
                orch.submit_sub_many(one, scalars=[i, value], count=1)
            for dtype in (np.int8, np.uint16, np.float16, np.float32, np.float64, np.bool_):
                column = np.array([1, 0, 1], dtype)
                expected = column.astype(float) if column.dtype.kind == "f" else column.astype(int)
                same = w.register(same_as(expected.tolist()))
                orch.submit_sub_many(same, scalars=[column, np.arange(3)])

        w.run(orch_fn)
