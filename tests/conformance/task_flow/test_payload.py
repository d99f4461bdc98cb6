"""FLOW-PAYLOAD: callables as bytes."""

import hashlib
import os
import pickle

import cloudpickle
import numpy as np
import pytest

from simpler_ref import Worker
from simpler_ref.callable_identity import build_python_serialized_descriptor
from simpler_ref.callables.pickling import (
    pack_payload,
    parse_python_callable_payload,
    read_payload,
    serialize,
    staged,
)
from simpler_ref.errors import CallableError
from simpler_ref.jit import layout as L
from simpler_ref.workers import manager
from tests.segments import segments
from tests.support import wait_until


def digest_of(payload):
    return hashlib.sha256(build_python_serialized_descriptor(payload)).digest()


class Trap:
    """Unpickling it leaves a mark."""

    sprung = False

    def __reduce__(self):
        return _spring, ()


def _spring():
    Trap.sprung = True
    return lambda: None


@pytest.mark.spec("FLOW-PAYLOAD-1", "FLOW-PAYLOAD-4", "FLOW-REG-2")
def test_a_registration_in_a_running_worker_stages_the_envelope(monkeypatch):
    data = bytes(np.random.default_rng(1).integers(0, 256, 3_000_000, np.uint8))

    def function():
        seen[0] = len(data) + data[7]

    found = []
    monkeypatch.setattr(manager, "staged", lambda raw: found.append(raw) or staged(raw))
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(1, np.int64))
        w.start()
        handle = w.register(function)
        w.run(lambda orch, *_: orch.submit_sub(handle))
        assert seen[0] == len(data) + data[7], "a large one, too"
    (raw,) = found
    assert parse_python_callable_payload(raw) == serialize(function)
    assert digest_of(raw[16:]) == handle.digest
    for made in (function, adding := lambda: lambda: None, adding()):
        assert pickle.loads(serialize(made)).__code__.co_filename == __file__


good = cloudpickle.dumps(Trap())
envelope = pack_payload(good)


@pytest.mark.spec("FLOW-PAYLOAD-2")
def test_what_is_wrong_is_refused_before_anything_is_unpickled():
    for raw in (b"", b"SPYX" + envelope[4:], pack_payload(good + b".")):
        with staged(raw) as name, pytest.raises(CallableError, match="HASHID_DESCRIPTOR_MISMATCH"):
            read_payload(name, len(raw), L.CTRL_PY_REGISTER, digest_of(good))
        assert not Trap.sprung


@pytest.mark.spec("FLOW-PAYLOAD-3")
def test_staged_bytes_have_no_name_in_any_file_system_and_are_gone_afterwards():
    before = segments()
    with staged(b"x" * 1000) as name:
        wait_until(lambda: segments() <= before)  # but for a moment, by others
        assert len(name.encode()) < 32, "with its NUL it fits the mailbox"
        with open(name, "rb") as file:
            assert file.read() == b"x" * 1000
    assert not os.path.exists(name)
