"""REMOTE-BUF: commands about buffers; spec/vectors/remote.json has their bytes."""

import dataclasses
import struct

import pytest

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.remote import buffers
from simpler_ref.remote_l3_protocol import RemoteAddressSpace
from tests.remote_messages import MESSAGES

from .test_frame import blob, refuse, written_as

WINDOW = RemoteAddressSpace.REMOTE_WINDOW
EXPORTED = wire.ExportBufferResult(2, 7, 5, WINDOW, 16, 64, 9, 0x10, 0x20, 0x30, 3, "shm", b"how")
VALUES = {
    "export_request": wire.ExportBufferRequest(2, 7, 5, 16, 64, 3, "shm"),
    "export_result": EXPORTED,
    "import_request": wire.ImportBufferRequest(4, 1, EXPORTED),
    "import_result": wire.ImportBufferResult(
        4, 2, 7, 5, 6, WINDOW, 16, 64, 0x10, 0x20, 0x30, 3, "shm", b"how"
    ),
    "release_import": wire.ReleaseImportRequest(4, 2, 7, 5, 6),
}
ASKED = "requested_access_flags"
OWNER, IMPORTER = "live owner buffer identity", "live imported buffer identity"


def refuse_with(words, message, **wrong):
    """Require that the encoder refuses a value in a field; the vectors have bytes that are refused."""
    _, encode, _ = MESSAGES[message]
    refuse(words, encode, dataclasses.replace(VALUES[message], **wrong))


@pytest.mark.spec("REMOTE-BUF-1", "REMOTE-BUF-2", "REMOTE-BUF-3", "REMOTE-BUF-4", "REMOTE-BUF-5")
@pytest.mark.parametrize(
    ("message", "words", "field", "values"),
    [
        ("export_request", "EXPORT_BUFFER.nbytes", "nbytes", (0,)),
        ("export_request", "EXPORT_BUFFER.access_flags", "access_flags", (0, 4)),
        ("export_result", "result.address_space", "address_space", (0, 1, 2, 5)),
        ("export_result", "result.export_id", "export_id", (0,)),
        ("export_result", "result.access_flags", "access_flags", (0,)),
        ("import_request", IMPORTER, "importer_endpoint_id", (-1,)),
        ("import_request", f"IMPORT_BUFFER.{ASKED}", ASKED, (0, 4)),
        ("import_result", IMPORTER, "importer_endpoint_id", (-1,)),
        ("import_result", IMPORTER, "import_id", (0,)),
        ("import_result", "IMPORT_BUFFER result.address_space", "address_space", (2,)),
        ("release_import", IMPORTER, "importer_endpoint_id", (-1,)),
        ("release_import", IMPORTER, "import_id", (0,)),
    ],
)
def test_a_field_whose_value_means_nothing_is_refused(message, words, field, values):
    for value in values:
        refuse_with(words, message, **{field: value})


@pytest.mark.spec("REMOTE-BUF-3")
def test_an_import_of_what_is_no_export_or_for_more_access_is_refused():
    _, encode, _ = MESSAGES["import_request"]
    wrong = dataclasses.replace(EXPORTED, export_id=0)
    refuse("IMPORT_BUFFER.export_desc.export_id", encode, wire.ImportBufferRequest(4, 1, wrong))
    to_read = dataclasses.replace(EXPORTED, access_flags=wire.REMOTE_BUFFER_ACCESS_READ)
    for access in (wire.REMOTE_BUFFER_ACCESS_WRITE, wire.REMOTE_BUFFER_ACCESS_READ_WRITE):
        words = f"{access} is asked for, 1 is exported"
        refuse(words, encode, wire.ImportBufferRequest(4, access, to_read))


@pytest.mark.spec("REMOTE-BUF-6")
@pytest.mark.parametrize(
    ("message", "words"),
    [
        *(("export_request", OWNER), ("export_result", OWNER)),
        *(("import_result", IMPORTER), ("release_import", IMPORTER)),
    ],
)
def test_a_buffer_that_is_not_live_is_refused(message, words):
    for wrong in ({"owner_endpoint_id": -1}, {"buffer_id": 0}, {"generation": 0}):
        refuse_with(words, message, **wrong)


@pytest.mark.spec("REMOTE-BUF-6")
@pytest.mark.parametrize("message", ["export_request", "export_result", "import_result"])
def test_a_part_of_a_buffer_ends_within_64_bits(message):
    _, encode, decode = MESSAGES[message]
    last = dataclasses.replace(VALUES[message], offset=(1 << 64) - 65)
    assert decode(encode(last)) == last
    words = "offset 18446744073709551552 \\+ nbytes 64 do not fit 64 bits"
    refuse_with(words, message, offset=(1 << 64) - 64)


@pytest.mark.spec("REMOTE-BUF-7")
def test_memory_is_asked_for_by_size_and_named_by_identity():
    written_as(buffers.ALLOC, buffers.AllocRequest(8), struct.pack("<Q", 8))
    refuse("nbytes", buffers.ALLOC.decode, bytes(8))
    written_as(buffers.IDENTITY, buffers.BufferIdentity(2, 7, 5), struct.pack("<iQQ", 2, 7, 5))
    refuse(OWNER, buffers.IDENTITY.decode, struct.pack("<iQQ", 2, 0, 5))
    copy = struct.pack("<iQQQQ", 2, 7, 5, 16, 3) + blob(b"abc")
    written_as(buffers.COPY, buffers.CopyRequest(2, 7, 5, 16, 3, b"abc"), copy)
    refuse("data", buffers.COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 16, 4) + blob(b"abc"))
    refuse("64 bits", buffers.COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 2**64 - 1, 4) + blob(b""))
