"""What callables and handles are made into where they travel."""

import mmap
import pickle
import threading

import numpy as np
import pytest

from simpler_ref.callable_identity import CallableHandle, CallableKind, TargetNamespace
from simpler_ref.callables.pickling import serialize, why_not_serialised
from simpler_ref.errors import CallableError

HASHID = "sha256:" + "0123456789abcdef" * 4


def imported(name=None, hashid=HASHID):
    return CallableHandle(hashid, CallableKind.PYTHON_IMPORT, TargetNamespace.LOCAL_PYTHON, name)


# ---------------------------------------------------------------- handles
def test_handles_are_checked_told_apart_and_arrive_as_themselves():
    with pytest.raises(CallableError, match="HASHID_FORMAT_INVALID"):
        imported(hashid="sha256:")
    with pytest.raises(ValueError, match="9"):
        CallableHandle(HASHID, 9, TargetNamespace.LOCAL_PYTHON)
    with pytest.raises(ValueError, match="9"):
        CallableHandle(HASHID, CallableKind.PYTHON_IMPORT, 9)
    one, other = imported("f"), imported("f")
    assert len({one, other}) == 2
    assert "f" in repr(one)
    handle = imported("f")
    wire = pickle.dumps(handle)
    assert pickle.loads(wire) is handle
    del handle
    gone = pickle.loads(wire)
    assert (gone.hashid, gone.name) == (HASHID, "f")
    assert pickle.loads(wire) is gone


# ---------------------------------------------------------------- serialised functions
def shared_words():
    return np.frombuffer(mmap.mmap(-1, 4096), np.int64)


def setter(target):
    return lambda: target.__setitem__(0, 1)


def test_what_is_serialised_is_equal_if_its_arrays_are_and_what_cannot_be_says_why():
    first, second = shared_words(), shared_words()  # equal contents
    assert serialize(setter(first)) == serialize(setter(first))
    assert serialize(setter(first)) != serialize(setter(second))
    assert serialize(setter(np.zeros(4))) == serialize(setter(np.zeros(4)))

    lock = threading.Lock()
    locked = lambda: lock.locked()  # noqa: E731
    assert serialize(locked) != serialize(locked)
    assert "lock" in why_not_serialised(serialize(locked))


@pytest.mark.parametrize("part", [slice(None, None, 2), slice(None, None, -1), slice(3, 40, 5)])
def test_a_closure_over_a_part_of_a_shared_array_writes_to_that_array(part):
    array = shared_words()
    pickle.loads(serialize(setter(array[part])))()
    assert np.flatnonzero(array).tolist() == [range(512)[part][0]]
