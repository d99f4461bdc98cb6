"""REMOTE-CALL: commands about callables; spec/vectors/remote.json has their bytes."""

from dataclasses import replace

import pytest

from simpler_ref import remote_l3_protocol as wire

from .test_frame import LISTED, numbers, refuse

DIGEST = bytes(range(32))
NAMED = (wire.RemoteRegistryTarget.INNER_L3_WORKER, wire.CallableKind.PYTHON_IMPORT, DIGEST)
HERE = wire.ChipCallableBlobLocation.INLINE_BLOB
INLINE = wire.RemoteChipCallablePayload(b"about", HERE, 3, DIGEST, b"abc")
STAGED = wire.RemoteChipCallablePayload(
    b"", wire.ChipCallableBlobLocation.STAGED_BLOB, 1 << 40, DIGEST, b"", b"token"
)


@pytest.mark.spec("REMOTE-CALL-1")
@pytest.mark.parametrize("kind", [wire.RemoteRegistryTarget, wire.ChipCallableBlobLocation])
def test_the_enumerations_have_the_values_of_the_table(kind):
    assert {one.name: int(one) for one in kind} == numbers(LISTED[kind.__name__])


@pytest.mark.spec("REMOTE-CALL-2", "REMOTE-CALL-3")
@pytest.mark.parametrize("at, field", [(0, "target_registry"), (1, "callable_kind"), (2, "digest")])
def test_what_no_registry_kind_or_digest_is_is_refused(at, field):
    for value in (0, 4, None, b"x" * 33):
        named = [*NAMED[:at], value, *NAMED[at + 1 :]]
        refuse(field, wire.encode_digest_callable_command, *named)
        refuse(field, wire.encode_register_callable_command, *named, 1, b"")
    refuse("payload_version: 0", wire.encode_register_callable_command, *NAMED, 0, b"")


@pytest.mark.spec("REMOTE-CALL-4")
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (replace(INLINE, staged_blob_token=b"t"), "INLINE_BLOB with a blob of 3 bytes and a"),
        (replace(INLINE, inline_blob=b"", blob_size=0), "give exactly the one"),
        (replace(INLINE, blob_size=4), "blob_size: 4, but the blob has 3 bytes"),
        (replace(STAGED, inline_blob=b"abc"), "STAGED_BLOB with a blob of 3 bytes"),
        (replace(STAGED, staged_blob_token=b""), "give exactly the one"),
    ],
)
def test_a_chip_callable_has_either_its_blob_or_a_token(payload, words):
    refuse(words, wire.encode_remote_chip_callable_payload, payload)
