"""REMOTE-BUF: commands about buffers."""

import dataclasses
import struct

import pytest

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.remote.buffers import (
    ALLOC,
    COPY,
    IDENTITY,
    AllocRequest,
    BufferIdentity,
    CopyRequest,
)
from simpler_ref.remote_l3_protocol import RemoteAddressSpace
from tests.remote_messages import MESSAGES

from .test_frame import blob, refuse, written_as

WINDOW = RemoteAddressSpace.REMOTE_WINDOW
REQUEST = wire.ExportBufferRequest(2, 7, 5, 16, 64, 3, "shm")
REQUEST_RAW = struct.pack("<iQQQQI", 2, 7, 5, 16, 64, 3) + blob(b"shm") + bytes(4)
EXPORTED = wire.ExportBufferResult(2, 7, 5, WINDOW, 16, 64, 9, 0x10, 0x20, 0x30, 3, "shm", b"how")
ROUTE = struct.pack("<QQQI", 0x10, 0x20, 0x30, 3) + blob(b"shm") + blob(b"how") + bytes(4)
EXPORTED_RAW = struct.pack("<iQQIQQQ", 2, 7, 5, 3, 16, 64, 9) + ROUTE
IMPORT = wire.ImportBufferRequest(4, 1, EXPORTED)
IMPORT_RAW = struct.pack("<iI", 4, 1) + EXPORTED_RAW + bytes(4)
IMPORTED = wire.ImportBufferResult(
    4, 2, 7, 5, 6, WINDOW, 16, 64, 0x10, 0x20, 0x30, 3, "shm", b"how"
)
IMPORTED_RAW = struct.pack("<iiQQQIQQ", 4, 2, 7, 5, 6, 3, 16, 64) + ROUTE
RELEASE = wire.ReleaseImportRequest(4, 2, 7, 5, 6)
RELEASE_RAW = struct.pack("<iiQQQI", 4, 2, 7, 5, 6, 0)
OWNER, IMPORTER = "live owner buffer identity", "live imported buffer identity"


def requires(message, value, raw):
    _, encode, decode = MESSAGES[message]
    assert encode(value) == raw
    assert decode(raw) == value
    refuse("reserved", decode, raw[:-1] + b"\1")


def both_refuse(words, message, value, raw, at, form, **wrong):
    """Let the encoder refuse a value in a field, and the decoder the same in the bytes."""
    _, encode, decode = MESSAGES[message]
    refuse(words, encode, dataclasses.replace(value, **wrong))
    damaged = bytearray(raw)
    struct.pack_into("<" + form, damaged, at, *wrong.values())
    refuse(words, decode, bytes(damaged))


@pytest.mark.spec("REMOTE-BUF-1")
def test_export_buffer():
    requires("export_request", REQUEST, REQUEST_RAW)
    command = "export_request", REQUEST, REQUEST_RAW
    both_refuse("EXPORT_BUFFER.nbytes", *command, 28, "Q", nbytes=0)
    for access in (0, 4):
        both_refuse("EXPORT_BUFFER.access", *command, 36, "I", access=access)


@pytest.mark.spec("REMOTE-BUF-2")
def test_the_result_of_export_buffer():
    requires("export_result", EXPORTED, EXPORTED_RAW)
    command = "export_result", EXPORTED, EXPORTED_RAW
    for space in (0, 1, 2, 5):
        both_refuse("result.address_space", *command, 20, "I", address_space=space)
    both_refuse("result.export_id", *command, 40, "Q", export_id=0)
    both_refuse("result.access", *command, 72, "I", access=0)


@pytest.mark.spec("REMOTE-BUF-3")
def test_import_buffer():
    requires("import_request", IMPORT, IMPORT_RAW)
    command = "import_request", IMPORT, IMPORT_RAW
    both_refuse(IMPORTER, *command, 0, "i", importer_endpoint_id=-1)
    for access in (0, 4):
        both_refuse("IMPORT_BUFFER.access", *command, 4, "I", access=access)
    to_read = dataclasses.replace(EXPORTED, access=wire.REMOTE_BUFFER_ACCESS_READ)
    raw = wire.encode_import_buffer_request(wire.ImportBufferRequest(4, 1, to_read))
    for access in (wire.REMOTE_BUFFER_ACCESS_WRITE, wire.REMOTE_BUFFER_ACCESS_READ_WRITE):
        wanted = wire.ImportBufferRequest(4, 1, to_read)
        words = f"{access} is asked for, 1 is exported"
        both_refuse(words, "import_request", wanted, raw, 4, "I", access=access)


@pytest.mark.spec("REMOTE-BUF-3")
def test_an_import_of_what_is_no_export_is_refused():
    _, encode, decode = MESSAGES["import_request"]
    wrong = dataclasses.replace(EXPORTED, export_id=0)
    refuse("EXPORT_BUFFER result.export_id", encode, wire.ImportBufferRequest(4, 1, wrong))
    raw = IMPORT_RAW[:48] + bytes(8) + IMPORT_RAW[56:]
    refuse("EXPORT_BUFFER result.export_id at byte 48", decode, raw)


@pytest.mark.spec("REMOTE-BUF-4")
def test_the_result_of_import_buffer():
    requires("import_result", IMPORTED, IMPORTED_RAW)
    command = "import_result", IMPORTED, IMPORTED_RAW
    both_refuse(IMPORTER, *command, 0, "i", importer_endpoint_id=-1)
    both_refuse(IMPORTER, *command, 24, "Q", import_id=0)
    both_refuse("IMPORT_BUFFER result.address_space", *command, 32, "I", address_space=2)


@pytest.mark.spec("REMOTE-BUF-5")
def test_release_import():
    requires("release_import", RELEASE, RELEASE_RAW)
    command = "release_import", RELEASE, RELEASE_RAW
    both_refuse(IMPORTER, *command, 0, "i", importer_endpoint_id=-1)
    both_refuse(IMPORTER, *command, 24, "Q", import_id=0)


NAMING = {
    "export_request": (REQUEST, REQUEST_RAW, 0, OWNER),
    "export_result": (EXPORTED, EXPORTED_RAW, 0, OWNER),
    "import_result": (IMPORTED, IMPORTED_RAW, 4, IMPORTER),
    "release_import": (RELEASE, RELEASE_RAW, 4, IMPORTER),
}


@pytest.mark.spec("REMOTE-BUF-6")
@pytest.mark.parametrize("message", NAMING)
def test_a_buffer_that_is_not_live_is_refused(message):
    value, raw, at, words = NAMING[message]
    command = message, value, raw
    both_refuse(words, *command, at, "i", owner_endpoint_id=-1)
    both_refuse(words, *command, at + 4, "Q", buffer_id=0)
    both_refuse(words, *command, at + 12, "Q", generation=0)


@pytest.mark.spec("REMOTE-BUF-6")
@pytest.mark.parametrize(
    ("message", "at"), [("export_request", 20), ("export_result", 24), ("import_result", 36)]
)
def test_a_part_of_a_buffer_ends_within_64_bits(message, at):
    value, raw, _, _ = NAMING[message]
    _, encode, decode = MESSAGES[message]
    last = dataclasses.replace(value, offset=(1 << 64) - 65)
    assert decode(encode(last)) == last
    words = "offset 18446744073709551552 \\+ nbytes 64 do not fit 64 bits"
    both_refuse(words, message, value, raw, at, "Q", offset=(1 << 64) - 64)


@pytest.mark.spec("REMOTE-BUF-7")
def test_memory_is_asked_for_by_size_and_named_by_identity():
    written_as(ALLOC, AllocRequest(8), struct.pack("<Q", 8))
    refuse("nbytes", ALLOC.decode, bytes(8))
    written_as(IDENTITY, BufferIdentity(2, 7, 5), struct.pack("<iQQ", 2, 7, 5))
    refuse(OWNER, IDENTITY.decode, struct.pack("<iQQ", 2, 0, 5))
    copy = CopyRequest(2, 7, 5, 16, 3, b"abc")
    raw = struct.pack("<iQQQQ", 2, 7, 5, 16, 3) + blob(b"abc")
    written_as(COPY, copy, raw)
    refuse("data", COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 16, 4) + blob(b"abc"))
    refuse("64 bits", COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 2**64 - 1, 4) + blob(b""))
