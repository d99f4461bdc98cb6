"""FLOW-ID: descriptors and hashids.

The expected values are derived here, in a few lines, from the tables of the rules.
"""

import hashlib
import struct

import pytest

from simpler_ref import CallConfig, Worker
from simpler_ref.callable_identity import (
    build_chip_callable_descriptor,
    build_python_import_descriptor,
    build_python_serialized_descriptor,
    build_signature_schema,
    compute_callable_hashid,
    hashid_to_digest,
    parse_python_import_target,
    validate_hashid,
)
from simpler_ref.callables.payloads import serialize
from simpler_ref.errors import CallableError
from simpler_ref.native_chip import ChipCallable, CoreCallable
from simpler_ref.task_interface import ArgDirection as D


def u32(*values):
    return b"".join(struct.pack("<I", value) for value in values)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return u32(len(raw)) + raw


def sha(raw):
    return hashlib.sha256(raw).digest()


def chip(name="entry", directions=(D.IN, D.SCALAR)):
    core = CoreCallable.build(directions, b"core")
    return ChipCallable.build(directions, name, b"binary", [(0, core)])


def expected_chip(target, arch, on, runtime):
    schema = u32(1, target.sig_count, *(int(target.sig(i)) for i in range(target.sig_count)))
    return (
        u32(1, 1) + text(arch) + text(on) + text(runtime)
        + text(sha(target.to_bytes())) + text(sha(schema))
    )  # fmt: skip


@pytest.mark.spec("FLOW-ID-1")
@pytest.mark.parametrize("directions", [(), (D.IN,), (D.SCALAR, D.IN, D.OUT, D.INOUT)])
def test_the_descriptor_of_a_chip_callable(directions):
    target = chip(directions=directions)
    found = build_chip_callable_descriptor(target=target, platform="sim", runtime="r")
    assert found == expected_chip(target, "", "sim", "r")
    found = build_chip_callable_descriptor(target=target, platform="sim", runtime="/r\udcff")
    assert text(b"/r\xff") in found, "a path that is no UTF-8"
    for direction in (-1, 4, 1 << 32):
        with pytest.raises(CallableError, match=f"argument 1 has direction {direction}"):
            build_signature_schema([D.IN, direction])
    with pytest.raises(CallableError, match="no text that UTF-8 has"):
        build_chip_callable_descriptor(target=target, platform="\ud800", runtime="r")


@pytest.mark.spec("FLOW-ID-1", "FLOW-ID-2")
def test_a_handle_has_the_hashid_of_its_callables_descriptor():
    def function(args):
        return args

    w = Worker(3, device_ids=[0], platform="a2a3sim", runtime="host_build_graph")
    target = chip()
    for callable_, descriptor in (
        (function, u32(1, 2, 1, 1) + text(sha(serialize(function)))),
        (target, expected_chip(target, "a2a3", "a2a3sim", "host_build_graph")),
    ):
        handle = w.register(callable_)
        assert handle.digest == sha(descriptor)
        assert handle.hashid == "sha256:" + sha(descriptor).hex()


@pytest.mark.spec("FLOW-ID-6")
def test_the_architecture_follows_from_the_platform():
    target = chip()
    known = {"a2a3": "a2a3", "a2a3sim": "a2a3", "a5": "a5", "a5sim": "a5"}
    for on, arch in (known | dict.fromkeys(("", "sim", "a2", "a4a5", "A5"), "")).items():
        found = build_chip_callable_descriptor(target=target, platform=on, runtime="r")
        assert found == expected_chip(target, arch, on, "r")
    found = build_chip_callable_descriptor(target=target)
    assert found == expected_chip(target, "", "", ""), "both are empty if they are not given"
    with Worker(3) as w:
        assert w.register(target).digest == sha(found)


@pytest.mark.spec("FLOW-ID-2")
def test_a_digest_is_the_bytes_of_its_hashid_and_what_is_no_hashid_is_refused():
    raw = bytes(range(0, 256, 8))
    digits = raw.hex()
    assert validate_hashid("sha256:" + digits) == "sha256:" + digits
    assert hashid_to_digest("sha256:" + digits) == raw
    wrong = ["", "sha256:", digits, "sha256:" + digits.upper(), "sha256:" + "g" * 64, None, 7]
    wrong += ["sha256:" + digits[1:], f"sha256:{digits}a", f"sha256:{digits}\n"]
    wrong += [f"SHA256:{digits}", f"sha512:{digits}", f" sha256:{digits}", b"sha256:" + b"a" * 64]
    for bad in wrong:
        for check in (validate_hashid, hashid_to_digest):
            with pytest.raises(CallableError, match="HASHID_FORMAT_INVALID") as caught:
                check(bad)
            assert caught.value.code == "HASHID_FORMAT_INVALID"
            assert isinstance(caught.value, ValueError)


@pytest.mark.spec("FLOW-ID-3")
def test_what_cannot_be_imported_is_refused_and_a_target_has_exactly_one_colon():
    parsed = parse_python_import_target("package.module:Kind.method")
    assert parsed == ("package.module", "Kind.method")
    wrong = [(module, "f") for module in ("", ".m", "m.", "m..n", "m:n", "m/n")]
    wrong += [("m", name) for name in ("", "f.<locals>.g", "f:g", "f g", "1f", "<lambda>")]
    for module, name in wrong:
        with pytest.raises(CallableError, match="HASHID_DESCRIPTOR_MISMATCH"):
            build_python_import_descriptor(module, name)
    for target in ("", "module", "module.f", *(":".join(both) for both in wrong)):
        with pytest.raises(CallableError, match="HASHID_DESCRIPTOR_MISMATCH"):
            parse_python_import_target(target)


@pytest.mark.spec("FLOW-ID-4")
def test_a_change_of_any_field_gives_another_hashid():
    def of(target=None, on="sim", runtime="r", arch="a"):
        descriptor = build_chip_callable_descriptor(
            target=target or chip(), platform=on, runtime=runtime, target_arch=arch
        )
        return compute_callable_hashid(descriptor)

    found = [
        *(of(), of(on="sim2"), of(runtime="r2"), of(arch="a2"), of(chip("other"))),
        *(of(chip(directions=(D.OUT, D.SCALAR))), of(on="simr", runtime="")),
        of(on="", runtime="simr"),
        compute_callable_hashid(build_python_serialized_descriptor(b"x")),
        compute_callable_hashid(build_python_import_descriptor("a", "bc")),
        compute_callable_hashid(build_python_import_descriptor("ab", "c")),
    ]
    assert len(set(found)) == len(found)
    assert of() == of()


@pytest.mark.spec("FLOW-ID-5")
def test_a_frame_has_the_digest_and_no_number(driver):
    for index in (3, 9, 15):
        slot = driver.start(callable=index)
        box = driver.mailbox(driver.worker_of(slot)).tobytes()
        assert box[8:16] == bytes(8)
        assert box[1072:1104] == driver.digest(index)
        assert box[16:1068] == CallConfig().to_bytes(), "else every frame is the same"
        assert box[1068:1072] + box[1104:1112] == bytes(12)
        driver.finish(slot)
