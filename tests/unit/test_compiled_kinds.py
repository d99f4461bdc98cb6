"""How compiled orchestration finds the code for the values it is given: by their kinds."""

import collections
import itertools

import numba
import numpy as np
import pytest

from simpler_ref.jit.kernel import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")

Pair = collections.namedtuple("Pair", ["a", "b"])
SQUARE = np.zeros((4, 4))
READ_ONLY = np.zeros(4)
READ_ONLY.flags.writeable = False


def values(kinds):
    """Return values of many types, some types more than once, and some values that are equal."""
    tensors = [kinds.Native(kinds.TensorType(ndims, 1), *range(5)) for ndims in (1, 1, 2)]
    return [
        *(0, 1, -1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63) + 1),
        *(True, False, 0.0, 1.0, float("nan"), None, "", "ab"),
        *(SQUARE, SQUARE.T, SQUARE[0], SQUARE[:, 0], SQUARE[:, :2], np.asfortranarray(SQUARE)),
        *(READ_ONLY, np.zeros(4), np.zeros(4, np.float32), np.zeros(0)),
        *(np.zeros(4, np.int64), np.zeros(4, np.uint64), np.zeros(4, bool), np.zeros(())),
        *(np.zeros(2, [("a", "i4")]), np.zeros(2, [("a", "i8")]), np.float32(1), np.int64(1)),
        *tensors,
        *((), (1,), (1, 2), (1, 2.0), (1.0, 2), ((1,), 2), (SQUARE, 1), (SQUARE.T, 1), Pair(1, 2)),
        *((tensors[0], 1), (tensors[1], 1), (tensors[2], 1), (True,), (None, None)),
    ]


def test_values_of_a_kind_have_one_numba_type_and_what_numba_has_to_look_at_has_no_kind():
    from simpler_ref.orch.compiled import kinds

    known = 0
    for a, b in itertools.combinations_with_replacement(values(kinds), 2):
        kind = kinds.kind_of(a)
        if kind is not None and kind == kinds.kind_of(b):
            known += 1
            assert numba.typeof(a) == numba.typeof(b), (a, b)
    assert known > 60
    for value in (1 << 63, np.float32(1), Pair(1, 2), (1, Pair(1, 2)), [1], np.ma.zeros(2)):
        assert kinds.kind_of(value) is None


def test_the_code_that_is_kept_is_that_of_the_types_which_arrive():
    from simpler_ref.orch.compiled import Version, front

    version = Version(front.compiler(lambda x: x), [], None, {})
    for _ in range(3):
        for value in (1, 2.5, True, SQUARE.T, READ_ONLY, (1, 2.5), (2.5, 1)):
            got = version.call([value])
            assert type(got) is type(value)
            assert np.array_equal(got, value)
    assert len(version.entries) == 7
    with pytest.raises(numba.TypingError):
        version.call([object()])


def test_an_error_of_the_code_that_is_kept_is_raised_as_at_the_first_call():
    from simpler_ref.orch.compiled import Version, front

    def fail(x):
        if x > 0:
            raise ValueError("no")
        return x

    version = Version(front.compiler(fail), [], None, {})
    assert version.call([0]) == 0
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            version.call([1])
    assert version.call([-1]) == -1
