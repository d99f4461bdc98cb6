"""Asks the package what remote.json expects of it: the messages of remote level 3 Workers."""

import re

import pytest

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.task_interface import CallConfig

from ..remote_messages import MESSAGES
from .package_bytes import tensor_of, to_bytes

BLOBS = {
    *("payload", "command_bytes", "result_bytes", "digest", "descriptor_bytes"),
    *("blob_sha256", "inline_blob", "staged_blob_token"),
    *("transport_descriptor", "import_descriptor", "callable_digest", "inline_payload"),
}
ENUMS = {"ready_state": wire.ReadyState, "control_name": wire.ControlName}
ENUMS |= {"target_registry": wire.RemoteRegistryTarget, "callable_kind": wire.CallableKind}
ENUMS |= {"blob_location": wire.ChipCallableBlobLocation, "address_space": wire.RemoteAddressSpace}


def plain(name, value):
    """Return the value of a field as the package has it."""
    if name == "export_desc":
        return made(wire.ExportBufferResult, value)
    if name in BLOBS:
        return to_bytes(value)
    if name in ENUMS:
        return ENUMS[name][value]
    is_number = isinstance(value, str) and value.startswith("0x")
    return int(value, 16) if is_number else value


def made(kind, value):
    return kind(**{name: plain(name, one) for name, one in value.items()})


def task_of(value):
    sidecars = [d["desc"] and made(wire.RemoteTensorDesc, d["desc"]) for d in value["tensors"]]
    args = wire.RemoteTaskArgsWire(
        tuple(tensor_of(one["tensor"]) for one in value["tensors"]),
        tuple(wire.RemoteTensorSidecar(desc is not None, desc) for desc in sidecars),
        tuple(int(one, 16) for one in value["scalars"]),
        to_bytes(value["inline_payload"]),
    )
    config = CallConfig(**value["config"])
    return wire.TaskPayloadWire(to_bytes(value["callable_digest"]), config, args)


def check_message(case):
    kind, encode, decode = MESSAGES[case["kind"]]
    value = task_of(case["value"]) if case["kind"] == "task" else made(kind, case["value"])
    raw = to_bytes(case["bytes"])
    assert (encode(value), decode(raw)) == (raw, value)


for _name in MESSAGES.keys() - {"frame"}:
    globals()[f"check_{_name}"] = check_message


def check_frame(case):
    header = wire.FrameHeader(
        wire.FrameType[case["frame_type"]],
        int(case["session_id"], 16),
        case["endpoint_id"],
        int(case["sequence"], 16),
    )
    payload, raw = to_bytes(case["payload"]), to_bytes(case["bytes"])
    assert wire.encode_frame(header, payload) == raw
    sized = header._replace(payload_bytes=len(payload))
    assert wire.decode_frame(raw) == wire.Frame(sized, payload)
    assert wire.decode_frame_header(raw[:40]) == sized


def check_message_refused(case):
    _, _, decode = MESSAGES[case["message"]]
    with pytest.raises(ValueError, match="^remote_wire: .*" + re.escape(case["names"])):
        decode(to_bytes(case["bytes"]))


def check_wire_enum(case):
    assert case["type"] == "u32"
    assert {one.name: int(one) for one in getattr(wire, case["enum"])} == case["values"]


def check_limits(case):
    assert {name: getattr(wire, name) for name in case["values"]} == case["values"]
