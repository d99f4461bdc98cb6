"""REMOTE-FRAME, REMOTE-CALL, REMOTE-BUF: what spec/vectors/remote.json does not show of them."""

import dataclasses
import inspect
import re
import struct

import pytest

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.remote import tasks
from simpler_ref.task_interface import ContinuousTensor
from tests.remote_messages import MESSAGES
from tests.spec_rules import tables

HEADER = wire.FrameHeader(wire.FrameType.COMPLETION, 1 << 63, -2, 7)
HELLO = wire.HelloPayload(5, -1, 1, "ü", 6, wire.ReadyState.READY)
LISTED = {
    name: values
    for group in ("REMOTE-FRAME", "REMOTE-TASK", "REMOTE-CALL")
    for table in tables(group)
    for name, values in (row[:2] for row in table)
    if hasattr(wire, name)
}
"""The enumerations of the tables, and their values as text."""


def blob(raw):
    return struct.pack("<I", len(raw)) + raw


def refuse(words, call, *args):
    with pytest.raises(ValueError, match=f"^remote_wire: .*{words}"):
        call(*args)


def written_as(message, value, raw):
    """Require that a message is these bytes, and is no others."""
    assert (message.encode(value), message.decode(raw)) == (raw, value)
    for wrong in (*(raw[:end] for end in range(len(raw))), raw + b"x"):
        refuse("", message.decode, wrong)


@pytest.mark.spec("REMOTE-FRAME-2", "REMOTE-FRAME-9", "REMOTE-TASK-3", "REMOTE-CALL-1")
@pytest.mark.parametrize("name", LISTED)
def test_the_enumerations_have_the_values_of_the_table(name):
    found, last = {}, 0
    for one in LISTED[name].split(", "):  # A 1, B, C 3
        member, _, number = one.partition(" ")
        last = found[member] = int(number) if number else last + 1
    assert {one.name: int(one) for one in getattr(wire, name)} == found


# ---------------------------------------------------------------- limits
TEXT = "x".__mul__
EXPORT = wire.ExportBufferResult(1, 2, 3, wire.RemoteAddressSpace.UB_LDST, 0, 0, 1)
STAGED = wire.RemoteChipCallablePayload(
    b"", wire.ChipCallableBlobLocation.STAGED_BLOB, 0, bytes(32), b"", b"x"
)


def task_with(**args):
    return wire.TaskPayloadWire(bytes(32), args=wire.RemoteTaskArgsWire(**args))


def with_field(value, name, make=bytes):
    """Return what makes messages with another value of a field, of so many bytes."""
    return lambda n: dataclasses.replace(value, **{name: make(n)})


AT_LIMIT = {
    "MAX_FRAME_PAYLOAD_BYTES": (
        "frame",
        lambda n: wire.Frame(HEADER._replace(payload_bytes=n), bytes(n)),
    ),
    "MAX_INLINE_PAYLOAD_BYTES": ("task", lambda n: task_with(inline_payload=bytes(n))),
    "MAX_STRING_BYTES": ("hello", with_field(HELLO, "comm_profile", TEXT)),
    "MAX_ERROR_BYTES": ("completion", lambda n: wire.CompletionPayload(0, 1, "x" * n)),
    "MAX_TENSORS": (
        "task",
        lambda n: task_with(
            tensor_metadata=(ContinuousTensor(),) * n, remote_desc=(wire.RemoteTensorSidecar(),) * n
        ),
    ),
    "MAX_SCALARS": ("task", lambda n: task_with(scalars=(1,) * n)),
    "MAX_TRANSPORT_PROFILE_BYTES": ("export_result", with_field(EXPORT, "transport_profile", TEXT)),
    "MAX_TRANSPORT_DESCRIPTOR_BYTES": ("export_result", with_field(EXPORT, "transport_descriptor")),
    "MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES": ("chip_callable", with_field(STAGED, "descriptor_bytes")),
    "MAX_STAGED_BLOB_TOKEN_BYTES": ("chip_callable", with_field(STAGED, "staged_blob_token")),
}


def limits():
    for names, values in tables("REMOTE-FRAME")[2]:
        yield from zip(names.replace("`", "").split(", "), map(int, values.split(",")), strict=True)


@pytest.mark.spec("REMOTE-FRAME-3", "REMOTE-FRAME-9")
@pytest.mark.parametrize(("name", "most"), list(limits()))
def test_a_limit_is_reached_and_not_exceeded(name, most):
    assert getattr(wire, name) == most
    message, make = AT_LIMIT[name]
    _, encode, decode = MESSAGES[message]
    assert decode(encode(make(most))) == make(most)
    refuse(str(most), encode, make(most + 1))


# ---------------------------------------------------------------- refusals
WRONG = {"session_id": [-1, 1 << 64, 1.5, "1", None], "protocol_version": [-1, 1 << 32, None]}
WRONG |= {"endpoint_id": [1 << 31, -(1 << 31) - 1, None], "comm_profile": ["\ud800", b"x", None]}
WRONG |= {"ready_state": [0x70, -1, None, "READY"]}


@pytest.mark.spec("REMOTE-FRAME-4")
def test_an_encoder_refuses_what_a_field_cannot_hold_and_names_it():
    for field, values in WRONG.items():
        for value in values:
            hello = dataclasses.replace(HELLO, **{field: value})
            refuse(f"HELLO.{field}: ", wire.encode_hello, hello)
    for field in ("frame_type", "session_id", "endpoint_id", "sequence", "flags"):
        for value in (1 << 64, -(1 << 32), None):
            name = field.removeprefix("frame_")
            refuse(f"frame.{name}: ", wire.encode_frame, HEADER._replace(**{field: value}))
    refuse("frame.flags: 1 is", wire.encode_frame, HEADER._replace(flags=1))
    refuse("CONTROL.control_version: 0", wire.encode_control, wire.ControlName.COMM_INIT, 0)
    refuse("live owner", wire.encode_export_buffer_result, dataclasses.replace(EXPORT, buffer_id=0))
    for value in ("x", 3, None):
        refuse("frame.payload", wire.encode_frame, HEADER, value)
        refuse("CONTROL.command_bytes", wire.encode_control, wire.ControlName.COMM_INIT, 1, value)
    refuse("digest: 33 bytes", wire.encode_digest_callable_command, 1, 1, bytes(33))


@pytest.mark.spec("REMOTE-FRAME-9")
def test_the_module_has_an_encoder_and_a_decoder_of_each_message():
    functions = {name for name in vars(wire) if inspect.isroutine(getattr(wire, name))}
    of = {way: {name.removeprefix(way) for name in functions if name.startswith(way)}
          for way in ("encode_", "decode_")}  # fmt: skip
    parts = {"frame_header", "call_config", "continuous_tensor", "remote_tensor_desc"}
    assert of["decode_"] - of["encode_"] == parts
    assert of["encode_"] - of["decode_"] == set()
    decoders = [one[2] for one in MESSAGES.values()]
    used = {name for name in functions if getattr(wire, name) in decoders}
    assert {f"decode_{name}" for name in of["encode_"]} - used == {"decode_remote_task_args"}
    classes = [getattr(wire, one) for one in vars(wire) if one[0].isupper() and one[1].islower()]
    for one in classes:
        if dataclasses.is_dataclass(one):
            assert one.__dataclass_params__.frozen, one
    assert re.findall(r"\b[A-Z]\w+", " ".join(LISTED)) == [
        *("FrameType", "ControlName", "ReadyState", "RemoteAddressSpace"),
        *("RemoteRegistryTarget", "ChipCallableBlobLocation"),
    ]
    assert issubclass(wire.CallableKind, int)
    assert wire.CALLABLE_HASH_DIGEST_BYTES == 32


@pytest.mark.spec("REMOTE-BUF-7")
def test_memory_is_asked_for_by_size_and_named_by_identity():
    written_as(tasks.ALLOC, 8, struct.pack("<Q", 8))
    refuse("nbytes", tasks.ALLOC.decode, bytes(8))
    written_as(tasks.IDENTITY, tasks.BufferIdentity(2, 7, 5), struct.pack("<iQQ", 2, 7, 5))
    refuse("live owner", tasks.IDENTITY.decode, struct.pack("<iQQ", 2, 0, 5))
    copy = struct.pack("<iQQQQ", 2, 7, 5, 16, 3) + blob(b"abc")
    written_as(tasks.COPY, tasks.CopyRequest(2, 7, 5, 16, 3, b"abc"), copy)
    refuse("data", tasks.COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 16, 4) + blob(b"abc"))
    refuse("64 bits", tasks.COPY.decode, struct.pack("<iQQQQ", 2, 7, 5, 2**64 - 1, 4) + blob(b""))
