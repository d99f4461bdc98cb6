"""REMOTE-FRAME: frames as bytes; spec/vectors/remote.json has those of more messages."""

import dataclasses
import inspect
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.remote import fields, frames, tasks
from simpler_ref.task_interface import ContinuousTensor
from tests.remote_messages import MESSAGES, VALID
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


def sized(payload_bytes):
    return HEADER._replace(payload_bytes=payload_bytes)


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


def numbers(values):
    """Return the numbers of `A 1, B, C 3` by name."""
    found, last = {}, 0
    for one in values.split(", "):
        name, _, number = one.partition(" ")
        last = int(number) if number else last + 1
        found[name] = last
    return found


@pytest.mark.spec("REMOTE-FRAME-1")
def test_a_frame_is_a_header_of_40_bytes_and_its_payload():
    rows = tables("REMOTE-FRAME")[0]
    forms = {"char[4]": "4s", "u32": "I", "u64": "Q", "i32": "i"}
    form = "<" + "".join(forms[row[1]] for row in rows)
    assert struct.calcsize(form) == wire.FRAME_HEADER_BYTES == 40
    assert [row[0] for row in rows] == [
        *("magic", "version", "type", "session_id", "endpoint_id", "sequence"),
        *("payload_bytes", "flags"),
    ]
    raw = struct.pack(form, b"SLR3", 1, 5, 1 << 63, -2, 7, 3, 0) + b"abc"
    assert wire.encode_frame(HEADER, b"abc") == raw
    assert wire.decode_frame(raw) == wire.Frame(sized(3), b"abc")
    assert wire.decode_frame_header(raw[:40]) == sized(3)
    assert (wire.MAGIC, wire.PROTOCOL_VERSION) == (b"SLR3", 1)


@pytest.mark.spec("REMOTE-FRAME-2", "REMOTE-FRAME-9", "REMOTE-TASK-3")
@pytest.mark.parametrize("name", ["FrameType", "ControlName", "ReadyState", "RemoteAddressSpace"])
def test_the_enumerations_have_the_values_of_the_table(name):
    values = LISTED[name]
    assert {one.name: int(one) for one in getattr(wire, name)} == numbers(values)


# ---------------------------------------------------------------- limits
X, BIG = b"x", bytes(wire.MAX_FRAME_PAYLOAD_BYTES + 1)
TEXT = "x".__mul__
EXPORT = wire.ExportBufferResult(1, 2, 3, wire.RemoteAddressSpace.UB_LDST, 0, 0, 1)
STAGED = wire.RemoteChipCallablePayload(
    b"", wire.ChipCallableBlobLocation.STAGED_BLOB, 0, bytes(32), b"", X
)


def task_with(**args):
    return wire.TaskPayloadWire(bytes(32), args=wire.RemoteTaskArgsWire(**args))


def with_field(value, name, make=bytes):
    """Return what makes messages with another value of a field, of so many bytes."""
    return lambda n: dataclasses.replace(value, **{name: make(n)})


AT_LIMIT = {
    "MAX_FRAME_PAYLOAD_BYTES": ("frame", lambda n: wire.Frame(sized(n), bytes(n))),
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
    longer = without_limits(encode, make(most + 1), name)
    refuse(str(most), decode, longer)


def without_limits(encode, value, name):
    """Return the bytes of a message as an encoder without this limit would make them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (fields, frames, tasks):
            patch.setattr(module, name, 1 << 40, raising=False)
        patch.setattr(fields, "_refuse_size", lambda *_: None)
        patch.setattr(tasks, "_require_counts", lambda *_: None)
        return encode(value)


@pytest.mark.spec("REMOTE-FRAME-3")
def test_errors_and_payloads_that_are_too_long_say_whose_they_are():
    text = "x" * (wire.MAX_ERROR_BYTES + 1)
    refuse("completion error message too long: 4097", wire.encode_completion, 0, 1, text)
    reply, name = wire.encode_control_reply, wire.ControlName.COMM_INIT
    refuse("control reply error message too long: 4097", reply, 0, name, 1, 1, text)
    name, most = wire.ControlName.COPY_TO_REMOTE, wire.MAX_FRAME_PAYLOAD_BYTES - 12
    assert len(wire.encode_control(name, 1, BIG[:most])) == wire.MAX_FRAME_PAYLOAD_BYTES
    refuse("payload too long", wire.encode_control, name, 1, BIG[: most + 1])
    for _, _, decode in MESSAGES.values():
        refuse("", decode, BIG + X * 40)


# ---------------------------------------------------------------- refusals
@pytest.mark.spec("REMOTE-FRAME-4", "REMOTE-FRAME-6", "REMOTE-FRAME-7", "REMOTE-FRAME-8")
@pytest.mark.parametrize("name", VALID)
@given(data=st.data())
def test_a_message_survives_its_bytes_and_is_refused_with_fewer_or_more(name, data):
    _, encode, decode = MESSAGES[name]
    value = data.draw(VALID[name])
    raw = encode(value)
    assert (decode(raw), decode(memoryview(raw))) == (value, value)
    refuse("", decode, raw[: data.draw(st.integers(0, len(raw) - 1))])
    refuse("", decode, raw + data.draw(st.binary(min_size=1, max_size=9)))


WRONG = {"u64": [-1, 1 << 64, 1.5, "1", None], "u32": [-1, 1 << 32, None]}
WRONG |= {"i32": [1 << 31, -(1 << 31) - 1, None], "text": ["\ud800", b"x", None]}
WRONG |= {"blob": ["x", 3, None], "enum": [0x70, -1, None, "READY"]}


@pytest.mark.spec("REMOTE-FRAME-4")
@pytest.mark.parametrize(
    ("field", "kind"),
    [
        *(("session_id", "u64"), ("endpoint_id", "i32"), ("protocol_version", "u32")),
        *(("comm_profile", "text"), ("feature_flags", "u64"), ("ready_state", "enum")),
    ],
)
def test_an_encoder_refuses_what_a_field_cannot_hold_and_names_it(field, kind):
    for value in WRONG[kind]:
        hello = dataclasses.replace(HELLO, **{field: value})
        refuse(f"HELLO.{field}: ", wire.encode_hello, hello)


@pytest.mark.spec("REMOTE-FRAME-4")
def test_an_encoder_refuses_a_frame_that_is_none():
    for value in WRONG["enum"]:
        refuse("frame.type", wire.encode_frame, HEADER._replace(frame_type=value))
    for field in ("session_id", "endpoint_id", "sequence"):
        for value in (1 << 64, -(1 << 32), None):
            refuse(f"frame.{field}: ", wire.encode_frame, HEADER._replace(**{field: value}))
    refuse("frame.flags: 1", wire.encode_frame, HEADER._replace(flags=1))
    refuse("CONTROL.control_version: 0", wire.encode_control, wire.ControlName.COMM_INIT, 0)
    for value in WRONG["blob"]:
        refuse("frame.payload", wire.encode_frame, HEADER, value)
        refuse("CONTROL.command_bytes", wire.encode_control, wire.ControlName.COMM_INIT, 1, value)


@pytest.mark.spec("REMOTE-FRAME-4")
def test_a_decoder_names_the_field_and_where_it_begins():
    raw = wire.encode_hello(HELLO)
    refuse("HELLO.ready_state at byte 30: 2 is not one of NOT_READY 0, READY 1", wire.decode_hello,
           raw[:-4] + struct.pack("<I", 2))  # fmt: skip
    refuse("HELLO.ready_state at byte 30: 4 bytes are expected, 3 are", wire.decode_hello, raw[:-1])
    refuse("HELLO at byte 34: 1 bytes follow its end", wire.decode_hello, raw + X)
    frame = wire.encode_frame(HEADER)
    for at, name in ((0, "magic"), (4, "version"), (8, "type"), (36, "flags")):
        wrong = frame[:at] + b"\x77" + frame[at + 1 :]
        refuse(f"frame.{name} at byte {at}: ", wire.decode_frame, wrong)


# ---------------------------------------------------------------- payloads
@pytest.mark.spec("REMOTE-FRAME-5")
def test_strings_are_utf_8_after_a_length_in_bytes():
    raw = wire.encode_completion(0, 0, "aü€")
    assert raw[12:] == blob("aü€".encode()) == b"\6\0\0\0a\xc3\xbc\xe2\x82\xac"
    refuse("byte 17 is not part of any UTF-8 text", wire.decode_completion,
           raw[:16] + b"a\xff\xbc\xe2\x82\xac")  # fmt: skip
    refuse("9 bytes are expected", wire.decode_completion, raw[:12] + b"\x09" + raw[13:])


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
