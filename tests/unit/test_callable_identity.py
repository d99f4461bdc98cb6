"""What callables and handles are made into where they travel."""

from __future__ import annotations

import mmap
import pickle
import threading

import numpy as np
import pytest

from simpler_ref import callable_identity as ci
from simpler_ref.callable_identity import CallableHandle, CallableKind, TargetNamespace
from simpler_ref.callables.payloads import serialize, why_not_serialisable
from simpler_ref.errors import CallableError

HASHID = "sha256:" + "0123456789abcdef" * 4
BY_SHA256SUM = {
    ci.build_python_serialized_descriptor(b""): "c21825d03efccf6731b73e6ad21b9369"
    "6920ec30c5251d97a8784daf002bef7b",
    ci.build_python_serialized_descriptor(b"payload"): "5e794ee9ba96ef37daf06c032f0f766d"
    "2a038202c8c6546c18e11a250fd6837c",
    ci.build_python_import_descriptor("os.path", "join"): "2d8202926b0a71a50e8767c0bb4ae583"
    "f48cf0208a7020e42fb07d458e9beb25",
}


def imported(name=None, hashid=HASHID):
    return CallableHandle(hashid, CallableKind.PYTHON_IMPORT, TargetNamespace.LOCAL_PYTHON, name)


def test_a_hashid_is_what_sha256sum_says_of_the_descriptor():
    found = {one: ci.compute_callable_hashid(one) for one in BY_SHA256SUM}
    assert found == {one: f"sha256:{digest}" for one, digest in BY_SHA256SUM.items()}


# ---------------------------------------------------------------- handles
def test_a_handle_with_a_bad_hashid_kind_or_namespace_is_refused():
    with pytest.raises(CallableError, match="HASHID_FORMAT_INVALID"):
        imported(hashid="sha256:")
    with pytest.raises(ValueError, match="9"):
        CallableHandle(HASHID, 9, TargetNamespace.LOCAL_PYTHON)
    with pytest.raises(ValueError, match="9"):
        CallableHandle(HASHID, CallableKind.PYTHON_IMPORT, 9)


def test_two_handles_of_one_callable_are_two_handles():
    one, other = imported("f"), imported("f")
    assert len({one, other}) == 2
    assert "f" in repr(one)


def test_a_handle_that_travels_arrives_as_itself():
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


def test_closures_are_the_same_callable_if_their_arrays_are_and_shared_ones_are_never_equal():
    first, second = shared_words(), shared_words()  # equal contents
    assert serialize(setter(first)) == serialize(setter(first))
    assert serialize(setter(first)) != serialize(setter(second))
    assert serialize(setter(np.zeros(4))) == serialize(setter(np.zeros(4)))


def test_what_cannot_be_serialised_says_why_and_is_known_by_its_registration_alone():
    lock = threading.Lock()
    locked = lambda: lock.locked()  # noqa: E731
    assert serialize(locked) != serialize(locked)
    assert "lock" in why_not_serialisable(locked)


@pytest.mark.parametrize("part", [slice(None, None, 2), slice(None, None, -1), slice(3, 40, 5)])
def test_a_closure_over_a_part_of_a_shared_array_writes_to_that_array(part):
    array = shared_words()
    pickle.loads(serialize(setter(array[part])))()
    assert np.flatnonzero(array).tolist() == [range(512)[part][0]]
