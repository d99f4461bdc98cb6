"""Callable identity against digests worked out by hand."""

from __future__ import annotations

import hashlib
import mmap
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import callable_identity as ci
from simpler_ref.callable_identity import CallableHandle, CallableKind, TargetNamespace
from simpler_ref.callables.payloads import serialize, why_not_serialisable
from simpler_ref.errors import CallableError


def u32(value):
    return bytes([value & 255, value >> 8 & 255, value >> 16 & 255, value >> 24])


def sized(raw):
    return u32(len(raw)) + raw


def hashid(raw):
    return "sha256:" + hashlib.sha256(raw).hexdigest()


SERIALIZED = {
    b"": "sha256:c21825d03efccf6731b73e6ad21b93696920ec30c5251d97a8784daf002bef7b",
    b"payload": "sha256:5e794ee9ba96ef37daf06c032f0f766d2a038202c8c6546c18e11a250fd6837c",
}
OS_PATH_JOIN = "sha256:2d8202926b0a71a50e8767c0bb4ae583f48cf0208a7020e42fb07d458e9beb25"


@pytest.mark.parametrize("payload", SERIALIZED)
def test_the_hashid_of_a_serialized_callable_is_the_one_sha256sum_gives(payload):
    descriptor = ci.build_python_serialized_descriptor(payload)
    assert ci.compute_callable_hashid(descriptor) == SERIALIZED[payload]


def test_the_hashid_of_an_imported_callable_is_the_one_sha256sum_gives():
    descriptor = ci.build_python_import_descriptor("os.path", "join")
    assert ci.compute_callable_hashid(descriptor) == OS_PATH_JOIN


@given(payload=st.binary(max_size=200))
def test_a_serialized_callable_is_named_by_the_digest_of_its_payload(payload):
    expected = u32(1) + u32(2) + u32(1) + u32(1) + sized(hashlib.sha256(payload).digest())
    descriptor = ci.build_python_serialized_descriptor(payload)
    assert descriptor == expected
    assert len(descriptor) == 52
    assert ci.compute_callable_hashid(descriptor) == hashid(expected)


@pytest.mark.parametrize(
    ("module", "qualname"),
    [("os.path", "join"), ("module", "Class.method"), ("größe", "länge"), ("a", "b")],
)
def test_an_imported_callable_is_named_by_module_and_qualname(module, qualname):
    expected = u32(1) + u32(3) + sized(module.encode()) + sized(qualname.encode())
    descriptor = ci.build_python_import_descriptor(module, qualname)
    assert descriptor == expected
    assert ci.compute_callable_hashid(descriptor) == hashid(expected)


@pytest.mark.parametrize(
    ("module", "qualname"),
    [
        ("", "f"),
        ("m", ""),
        ("m", "f.<locals>.g"),
        ("m", "<lambda>"),
        (".m", "f"),
        ("m", "f."),
        ("m:n", "f"),
        ("m", "f:g"),
        ("m n", "f"),
        ("m", "1f"),
    ],
)
def test_what_cannot_be_imported_by_name_is_refused(module, qualname):
    with pytest.raises(CallableError, match="HASHID_DESCRIPTOR_MISMATCH") as refusal:
        ci.build_python_import_descriptor(module, qualname)
    assert refusal.value.code == "HASHID_DESCRIPTOR_MISMATCH"


def test_module_and_qualname_cannot_be_confused():
    one = ci.build_python_import_descriptor("ab", "c")
    other = ci.build_python_import_descriptor("a", "bc")
    assert one != other


@given(raw=st.binary(min_size=32, max_size=32))
def test_a_hashid_stands_for_32_bytes(raw):
    text = "sha256:" + raw.hex()
    assert ci.validate_hashid(text) == text
    assert ci.hashid_to_digest(text) == raw


GOOD = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "bad",
    [
        "",
        GOOD[7:],
        GOOD[:-1],
        GOOD + "0",
        GOOD.upper(),
        GOOD.replace("a", "A", 1),
        "sha512:" + GOOD[7:],
        " " + GOOD,
        GOOD + "\n",
        GOOD.replace("0", "g", 1),
        None,
        7,
        GOOD.encode(),
    ],
)
def test_anything_else_is_no_hashid(bad):
    for check in (ci.validate_hashid, ci.hashid_to_digest):
        with pytest.raises(CallableError, match="HASHID_FORMAT_INVALID") as refusal:
            check(bad)
        assert refusal.value.code == "HASHID_FORMAT_INVALID"
        assert isinstance(refusal.value, ValueError)


def test_a_handle_tells_what_it_is_and_cannot_be_changed():
    handle = CallableHandle(
        GOOD, CallableKind.PYTHON_SERIALIZED, TargetNamespace.LOCAL_PYTHON, "my_function"
    )
    assert handle.hashid == GOOD
    assert handle.digest == bytes.fromhex(GOOD[7:])
    assert (handle.kind, handle.target_namespace) == (2, 2)
    assert "my_function" in repr(handle)
    for name in ("hashid", "digest", "kind", "target_namespace", "name"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(handle, name, getattr(handle, name))
        with pytest.raises(AttributeError, match="cannot be changed"):
            delattr(handle, name)


def test_a_handle_with_a_bad_hashid_kind_or_namespace_is_refused():
    with pytest.raises(CallableError, match="HASHID_FORMAT_INVALID"):
        CallableHandle("sha256:", CallableKind.PYTHON_IMPORT, TargetNamespace.LOCAL_PYTHON)
    with pytest.raises(ValueError, match="9"):
        CallableHandle(GOOD, 9, TargetNamespace.LOCAL_PYTHON)
    with pytest.raises(ValueError, match="9"):
        CallableHandle(GOOD, CallableKind.PYTHON_IMPORT, 9)


def test_two_handles_of_one_callable_are_two_handles():
    one, other = (
        CallableHandle(GOOD, CallableKind.PYTHON_IMPORT, TargetNamespace.LOCAL_PYTHON)
        for _ in range(2)
    )
    assert one != other
    assert len({one, other}) == 2


def shared_words():
    return np.frombuffer(mmap.mmap(-1, 4096), np.int64)


def setter(target):
    return lambda: target.__setitem__(0, 1)


def test_closures_over_different_shared_arrays_are_different_callables():
    first, second = shared_words(), shared_words()  # equal contents
    assert serialize(setter(first)) == serialize(setter(first))
    assert serialize(setter(first)) != serialize(setter(second))


def test_closures_over_equal_private_arrays_are_the_same_callable():
    assert serialize(setter(np.zeros(4))) == serialize(setter(np.zeros(4)))


def test_what_cannot_be_serialised_is_known_by_its_registration_alone():
    lock = threading.Lock()
    locked = lambda: lock.locked()  # noqa: E731
    assert serialize(locked) != serialize(locked)


def test_why_a_callable_cannot_be_serialised_is_said():
    lock = threading.Lock()
    assert "lock" in why_not_serialisable(lambda: lock.locked())


@pytest.mark.parametrize("part", [slice(None, None, 2), slice(None, None, -1), slice(3, 40, 5)])
def test_a_closure_over_a_part_of_a_shared_array_writes_to_that_array(part):
    array = shared_words()
    pickle.loads(serialize(setter(array[part])))()
    assert np.flatnonzero(array).tolist() == [range(512)[part][0]]


def test_a_handle_that_travels_arrives_as_itself():
    handle = CallableHandle(GOOD, CallableKind.PYTHON_IMPORT, TargetNamespace.LOCAL_PYTHON, "f")
    assert pickle.loads(pickle.dumps(handle)) is handle
    wire = pickle.dumps(handle)
    del handle
    gone = pickle.loads(wire)
    assert (gone.hashid, gone.name) == (GOOD, "f")
    assert pickle.loads(wire) is gone
