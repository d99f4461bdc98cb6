"""FLOW-ID: descriptors and hashids; spec/vectors/descriptors.json has their bytes."""

import hashlib

import pytest

from simpler_ref import Worker
from simpler_ref.callable_identity import (
    build_chip_callable_descriptor,
    build_chip_signature_schema,
    build_python_serialized_descriptor,
    hashid_to_digest,
    parse_python_import_target,
    validate_hashid,
)
from simpler_ref.callables.pickling import serialize
from simpler_ref.errors import CallableError
from simpler_ref.native_chip import ChipCallable, CoreCallable
from simpler_ref.task_interface import ArgDirection as D


def chip():
    signature = [D.IN, D.SCALAR]
    core = CoreCallable.build(signature, b"core")
    return ChipCallable.build(signature, "entry", b"binary", [(0, core)])


@pytest.mark.spec("FLOW-ID-1", "FLOW-ID-2", "FLOW-ID-3")
def test_what_no_descriptor_hashid_or_target_has_is_refused():
    with pytest.raises(CallableError, match="argument 1 has direction 4"):
        build_chip_signature_schema([D.IN, 4])
    with pytest.raises(CallableError, match="no text that UTF-8 has"):
        build_chip_callable_descriptor(target=chip(), platform="\ud800", runtime="r")
    found = build_chip_callable_descriptor(target=chip(), platform="sim", runtime="/r\udcff")
    assert b"\3\0\0\0/r\xff" in found, "a path that is no UTF-8"
    for bad in (None, 7, b"sha256:" + b"a" * 64):
        for check in (validate_hashid, hashid_to_digest):
            with pytest.raises(CallableError, match="HASHID_FORMAT_INVALID"):
                check(bad)
    assert parse_python_import_target("a.b:C.d") == ("a.b", "C.d")
    for target in ("", "module", "module.f", "m:f:g", "m:f g", "m/n:f", "m.:f"):
        with pytest.raises(CallableError, match="HASHID_DESCRIPTOR_MISMATCH"):
            parse_python_import_target(target)


@pytest.mark.spec("FLOW-ID-6")
def test_the_architecture_follows_from_the_platform():
    known = {"a2a3": "a2a3", "a2a3sim": "a2a3", "a5": "a5", "a5sim": "a5"}
    for on, arch in (known | dict.fromkeys(("", "sim", "a2", "a4a5", "A5"), "")).items():
        how = {"target": chip(), "platform": on, "runtime": "r"}
        found = build_chip_callable_descriptor(**how)
        assert found == build_chip_callable_descriptor(**how, target_arch=arch)
    bare = dict.fromkeys(("target_arch", "platform", "runtime"), "")
    found = build_chip_callable_descriptor(target=chip())
    assert found == build_chip_callable_descriptor(target=chip(), **bare)


@pytest.mark.spec("FLOW-ID-1", "FLOW-ID-2")
def test_a_handle_has_the_hashid_of_its_callables_descriptor():
    def function(args):
        return args

    where = {"platform": "a2a3sim", "runtime": "host_build_graph"}
    w = Worker(3, device_ids=[0], **where)
    for callable_, descriptor in (
        (function, build_python_serialized_descriptor(serialize(function))),
        (chip(), build_chip_callable_descriptor(target=chip(), **where)),
    ):
        handle, digest = w.register(callable_), hashlib.sha256(descriptor)
        assert (handle.digest, handle.hashid) == (digest.digest(), f"sha256:{digest.hexdigest()}")
