"""REMOTE-BUF: commands about buffers; spec/vectors/remote.json has their bytes."""

import dataclasses
import struct

import pytest

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.remote import tasks
from simpler_ref.remote_l3_protocol import RemoteAddressSpace
from tests.remote_messages import MESSAGES

from .test_frame import blob, refuse, written_as

WINDOW = RemoteAddressSpace.REMOTE_WINDOW
EXPORTED = wire.ExportBufferResult(2, 7, 5, WINDOW, 16, 64, 9, 0x10, 0x20, 0x30, 3, "shm", b"how")
VALUES = {
    "export_request": wire.ExportBufferRequest(2, 7, 5, 16, 64, 3, "shm"),
    "export_result": EXPORTED,
    "import_request": wire.ImportBufferRequest(4, 2, EXPORTED),
    "import_result": wire.ImportBufferResult(
        4, 2, 7, 5, 6, WINDOW, 16, 64, 0x10, 0x20, 0x30, 3, "shm", b"how"
    ),
    "release_import": wire.ReleaseImportRequest(4, 2, 7, 5, 6),
}
ASKED = "requested_access_flags"
OWNER, IMPORTER = "live owner buffer identity", "live imported buffer identity"


TO_READ = dataclasses.replace(EXPORTED, access_flags=wire.REMOTE_BUFFER_ACCESS_READ)
END = r"offset 18446744073709551552 \+ nbytes 64 do not fit 64 bits"


@pytest.mark.spec("REMOTE-BUF-1", "REMOTE-BUF-2", "REMOTE-BUF-3")
@pytest.mark.spec("REMOTE-BUF-4", "REMOTE-BUF-5", "REMOTE-BUF-6")
@pytest.mark.parametrize(
    ("message", "words", "field", "values"),
    [
        ("export_request", "EXPORT_BUFFER.nbytes", "nbytes", (0,)),
        ("export_request", "EXPORT_BUFFER.access_flags", "access_flags", (0, 4)),
        ("export_request", OWNER, "owner_endpoint_id", (-1,)),
        ("export_request", END, "offset", ((1 << 64) - 64,)),
        ("export_result", "result.address_space", "address_space", (0, 1, 2, 5)),
        ("export_result", "result.export_id", "export_id", (0,)),
        ("export_result", "result.access_flags", "access_flags", (0,)),
        ("export_result", OWNER, "buffer_id", (0,)),
        ("export_result", END, "offset", ((1 << 64) - 64,)),
        ("import_request", IMPORTER, "importer_endpoint_id", (-1,)),
        ("import_request", f"IMPORT_BUFFER.{ASKED}", ASKED, (0, 4)),
        ("import_request", "2 is asked for, 1 is exported", "export_desc", (TO_READ,)),
        ("import_result", IMPORTER, "importer_endpoint_id", (-1,)),
        ("import_result", IMPORTER, "import_id", (0,)),
        ("import_result", "IMPORT_BUFFER result.address_space", "address_space", (2,)),
        ("import_result", IMPORTER, "generation", (0,)),
        ("import_result", END, "offset", ((1 << 64) - 64,)),
        ("release_import", IMPORTER, "importer_endpoint_id", (-1,)),
        ("release_import", IMPORTER, "import_id", (0,)),
        ("release_import", IMPORTER, "buffer_id", (0,)),
    ],
)
def test_a_field_whose_value_means_nothing_is_refused(message, words, field, values):
    """An encoder refuses it; the vectors have such bytes, which decoders refuse."""
    _, encode, _ = MESSAGES[message]
    for value in values:
        refuse(words, encode, dataclasses.replace(VALUES[message], **{field: value}))


@pytest.mark.spec("REMOTE-BUF-7")
def test_memory_is_asked_for_by_size_and_named_by_identity():
    written_as(tasks.ALLOC, tasks.AllocRequest(8), struct.pack("<Q", 8))
    refuse("nbytes", tasks.ALLOC.decode, bytes(8))
    written_as(tasks.IDENTITY, tasks.BufferIdentity(2, 7, 5), struct.pack("<iQQ", 2, 7, 5))
    refuse(OWNER, tasks.IDENTITY.decode, struct.pack("<iQQ", 2, 0, 5))
    copy = struct.pack("<iQQQQ", 2, 7, 5, 16, 3) + blob(b"abc")
    written_as(tasks.COPY, tasks.CopyRequest(2, 7, 5, 16, 3, b"abc"), copy)
    refuse("data", tasks.COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 16, 4) + blob(b"abc"))
    refuse("64 bits", tasks.COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 2**64 - 1, 4) + blob(b""))
