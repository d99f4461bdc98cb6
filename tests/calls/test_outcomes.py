"""What a task returns or raises arrives in the program with its value, its type and its own memory."""

import collections
import dataclasses
import enum
import gc
import itertools
import math
import struct
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from simpler_ref.calls import outcomes
from simpler_ref.calls.outcomes import BLOCK, decode_block, decode_word, encode, write

LARGE = outcomes.COPIED_BELOW
GUARD = 0xA5


def decode(kind, word, block=None, keep=None):
    """Return the value of an outcome, and whether it refers to the block."""
    return decode_block(block, keep) if kind == BLOCK else (decode_word(kind, word), False)


def written(value) -> tuple[int, int, memoryview]:
    """Return kind, word and block of a value; all bytes around the block are as before."""
    outcome = encode(value)
    assert -1 << 63 <= outcome.word < 1 << 63
    memory = np.full(outcome.nbytes + 256, GUARD, np.uint8)
    start = -memory.ctypes.data % 64 + 64
    block = memoryview(memory)[start : start + outcome.nbytes]
    write(outcome.parts, block)
    assert (memory[:start] == GUARD).all() and (memory[start + outcome.nbytes :] == GUARD).all()
    return outcome.kind, outcome.word, block


def through(value):
    """Return what the program gets if a task returns a value."""
    kind, word, block = written(value)
    result, kept = decode(kind, word, block)
    assert not kept
    block[:] = bytes(len(block))  # the result does not depend on it
    return result


def same(a, b) -> bool:
    """Say whether two values have the same types and contents."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype.hasobject:
            return all(same(x, y) for x, y in zip(a.ravel(), b.ravel(), strict=True))
        return a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b


class Colour(enum.IntEnum):
    RED = 1


class Metres(float):
    pass


NAN = struct.unpack("d", struct.pack("Q", 0xFFF0_0000_0000_BEEF))[0]
SMALL = [None, False, True, 0, -1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.5, math.inf, math.nan, NAN]
SMALL += [np.float64(-2.5), np.int64(-(2**63)), np.bool_(True), np.bool_(False)]


@pytest.mark.parametrize("value", SMALL, ids=repr)
def test_a_small_value_is_one_word(value):
    outcome = encode(value)
    assert not outcome.parts and not outcome.nbytes
    assert outcome.kind not in (outcomes.BLOCK, outcomes.ERROR)
    for word in (outcome.word, np.int64(outcome.word)):
        result, kept = decode(outcome.kind, word)
        assert same(result, value) and not kept


# ---------------------------------------------------------------- arrays
MANY = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
RECORD = np.dtype([("a", "i1"), ("b", ">f8", 2), ("c", "U3")], align=True)
ARRAYS = {
    "plain": MANY,
    "axes permuted": MANY.transpose(1, 0, 2),
    "broadcast": np.broadcast_to(np.arange(3.0), (4, 3)),
    "no dimension": np.array(7.5),
    "no element": np.zeros((3, 0, 2)),
    "no element, strided": np.zeros((4, 4))[::2, 4:],
    "from bytes": np.frombuffer(b"abcdefgh", np.int32),
    "big endian": np.arange(4, dtype=">u2"),
    "long double": np.arange(3, dtype=np.longdouble),
    "complex": np.arange(3)[::-1] * 1j,
    "dates": np.array(["2026-11-23", "NaT"], "M8[s]"),
    "text": np.array(["ab", "", "long\N{GREEK SMALL LETTER PI}"]),
    "void": np.array([b"abc", b"def"], "V3"),
    "empty text": np.zeros(3, "U0"),
    "empty records": np.zeros(3, []),
    "empty fields": np.zeros((2, 3), [("a", "S0")])[:, ::2],
    "records": np.ones(3, RECORD),
    "a field": np.ones(3, RECORD)["b"],
    "unaligned": np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float64),
    "objects": np.array([1, "two", None, (3,)], object),
    "records with objects": np.array([(1, "x")], [("n", "i4"), ("o", object)]),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a list"])
def test_an_array_comes_back_as_a_writable_value(array, inside):
    result = through([array])[0] if inside else through(array)
    assert same(result, array)
    assert result.flags.writeable and result.flags.aligned
    assert not np.shares_memory(result, array)
    assert not array.flags.fnc or result.flags.fnc, "the order of the elements in memory is kept"


@pytest.mark.parametrize("n", [4, LARGE], ids=["small", "large"])
def test_arrays_that_come_back_are_independent(n):
    argument = np.arange(2 * n)
    whole = argument[::2]
    outcomes = written([whole, whole[1:], {"again": whole.copy()}, whole]), written([whole])
    argument = argument.copy()
    whole[:] = -3  # another task overwrites it
    (a, b, c, again), _ = decode(*outcomes[0], object())
    (other,), _ = decode(*outcomes[1], object())
    assert again is a, "what is returned twice is one array still"
    b[:], c["again"][:], other[:] = -1, -2, -4
    assert same(a, argument[::2])
    several = (a, b, c["again"], other)
    assert not any(np.shares_memory(x, y) for x, y in itertools.combinations(several, 2))


def kept_block(value):
    kind, word, block = written(value)
    keep = np.zeros(1)
    result, kept = decode(kind, word, block, keep)
    return result, kept, weakref.ref(keep), block


def test_a_large_array_refers_to_the_block_and_keeps_it():
    result, kept, alive, block = kept_block({"large": np.arange(LARGE)})
    assert kept
    assert np.shares_memory(result["large"], np.asarray(block))
    part = result["large"][5:7].reshape(2, 1)
    del result
    gc.collect()
    assert alive() is not None and part.tolist() == [[5], [6]]
    part[:] = 9
    del part
    assert alive() is None
    values = [np.arange(5), np.zeros(LARGE + 1, np.uint8), np.frombuffer(bytes(8 * LARGE))]
    (small, a, b), kept, alive, _ = kept_block(values)
    for array in a, b:
        assert array.flags.writeable and array.ctypes.data % outcomes.ALIGNMENT == 0
        array += 1
    del a, array
    assert kept and alive() is not None and b[0] == 1
    del b
    assert alive() is None and small.tolist() == [0, 1, 2, 3, 4], "a small one does not keep it"


# ---------------------------------------------------------------- other objects
Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Fit:
    weights: np.ndarray
    name: str = "fit"


OTHERS = ["", "text", b"", b"raw", bytearray(b"raw"), (), [], {}, {1, 2}, frozenset("ab"), range(3)]
OTHERS += [b"x" * 100_000, bytearray(b"y" * 100_000), ["z" * 5000], list(range(10_000))]
OTHERS += [{"a": np.arange(3), "b": [np.zeros((2, 2)).T, (None, 1.5)]}, Pair(1, np.arange(2))]
OTHERS += [Colour.RED, np.dtype("f4"), int, math.sqrt, Path("x"), Metres(2.0), 1j, 2**63, 10**40]
OTHERS += [-(2**63) - 1, np.int32(3), np.uint64(2**64 - 1), np.float32(0.5)]


@pytest.mark.parametrize(
    "value", OTHERS, ids=lambda value: f"{type(value).__name__} {str(value)[:12]!r}"
)
def test_other_objects_survive(value):
    assert encode(value).kind == outcomes.BLOCK
    assert same(through(value), value)


def test_objects_with_arrays_and_containers_that_contain_themselves_survive():
    fit = through(Fit(np.arange(4)))
    assert fit.name == "fit" and fit.weights.tolist() == [0, 1, 2, 3]
    value: list = [1]
    value.append(value)
    result = through(value)
    assert result[1] is result and result[0] == 1


def test_what_cannot_be_pickled_is_refused_with_its_type_and_a_remedy():
    inside = {"a": [np.zeros(3), threading.Lock()]}
    said = "return this {}, .*cannot.*return numbers, arrays or other picklable values"
    for value in (threading.Lock(), (i for i in ()), inside):
        with pytest.raises(TypeError, match=said.format(type(value).__name__)):
            encode(value)
        assert same(through([1, MANY]), [1, MANY]), "later values are not affected"
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match=r"cannot be pickled .*recursion"):
        encode(deep)
