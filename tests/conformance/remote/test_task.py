"""REMOTE-TASK: tasks in frames; spec/vectors/remote.json has the bytes of TASK."""

import dataclasses
import json
import math
import struct

import numpy as np
import pytest

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.errors import RemoteError, TransferError
from simpler_ref.remote import copies, limits, task_messages
from simpler_ref.remote.copies import CopiedTensor, Copies, outcome_of
from simpler_ref.remote.frames import OwnFrameType
from simpler_ref.remote.task_messages import RUN, Run
from simpler_ref.remote.tasks import layout_text, read_layout
from simpler_ref.remote_l3_protocol import RemoteAddressSpace, RemoteTensorDesc, RemoteTensorSidecar
from simpler_ref.task_interface import CallConfig, ContinuousTensor, DataType
from tests.endpoints import store

from .test_frame import blob, refuse, written_as

BUFFER = RemoteTensorDesc(RemoteAddressSpace.REMOTE_DEVICE, 2, 7, 64, 24, 0x1000, 0x33, 5)
INLINE = RemoteTensorDesc(RemoteAddressSpace.HOST_INLINE)
PLAIN = ContinuousTensor.make(0, (2, 3), DataType.INT32)


def args_with(desc=None, **fields):
    beside = RemoteTensorSidecar(desc is not None, desc)
    return dataclasses.replace(wire.RemoteTaskArgsWire((PLAIN,), (beside,)), **fields)


@pytest.mark.spec("REMOTE-TASK-1")
def test_the_path_in_a_task_need_not_be_utf_8_and_its_configuration_is_allowed():
    task = wire.TaskPayloadWire(bytes(32), CallConfig(output_prefix="/\udcff"))
    assert blob(b"/\xff") in wire.encode_task_payload(task)
    assert wire.decode_task_payload(wire.encode_task_payload(task)) == task
    task = wire.TaskPayloadWire(bytes(32), CallConfig(enable_pmu=1))
    refuse("TASK.config: .*output_prefix", wire.encode_task_payload, task)


@pytest.mark.spec("REMOTE-TASK-2")
def test_arguments_that_a_frame_cannot_describe_are_refused():
    for tensor in (
        ContinuousTensor.make(4096, (1,), DataType.INT8),
        ContinuousTensor.make(0, (2,), np.dtype("i4"), strides=(8,)),
        np.zeros(3),
    ):
        args = args_with(tensor_metadata=(tensor,))
        refuse(r"TASK.args.tensor_metadata\[0\]", wire.encode_remote_task_args, args)
    args = args_with(remote_desc=())
    refuse("0 sidecars for 1 tensors", wire.encode_remote_task_args, args)
    args = args_with(remote_desc=(RemoteTensorSidecar(True, None),))
    refuse("contradicts desc=None", wire.encode_remote_task_args, args)


@pytest.mark.spec("REMOTE-TASK-2")
def test_a_tensor_of_contradictory_bytes_is_refused():
    form, right = struct.Struct("<Q5IIIB7s"), (0, 2, 3, 0, 0, 0, 2, DataType.INT32, 0, bytes(7))
    raw = wire.encode_remote_task_args(args_with())
    assert wire.decode_remote_task_args(raw).tensor_metadata == (PLAIN,)
    for at, value, words in (
        (0, 1, "0x1 is not 0"),
        (3, 1, "are not 2 dimensions and zeros after them"),
        (6, 6, "are not 6 dimensions and zeros after them"),
        (7, 12, "12 is not a DataType"),
        (8, 2, "child_memory 2 must be 0 or 1"),
        (9, b"\1" + bytes(6), "after it must be 0"),
    ):
        wrong = form.pack(*right[:at], value, *right[at + 1 :])
        refuse(words, wire.decode_remote_task_args, raw.replace(form.pack(*right), wrong))


@pytest.mark.spec("REMOTE-TASK-3", "REMOTE-TASK-4")
def test_a_tensor_is_either_inline_or_in_a_live_buffer():
    places = (
        "owner_endpoint_id",
        "buffer_id",
        "offset",
        "remote_addr",
        "rkey_or_token",
        "generation",
    )
    for name in places:
        args = args_with(dataclasses.replace(INLINE, **{name: 1}))
        refuse("is inline and has a buffer", wire.encode_remote_task_args, args)
    args = args_with(dataclasses.replace(BUFFER, inline_payload_offset=1))
    refuse("its inline fields must be 0", wire.encode_remote_task_args, args)


@pytest.mark.spec("REMOTE-TASK-14")
def test_a_run_has_these_bytes():
    none, one = copies.CopiedTensor(), copies.CopiedTensor(7, 2, 3, "tcp://a:1", "[1]", b"x")
    told = Run(b"task", b"\1\2\3", b"\0", b"env", 5, (none, one), (9,), (4, 6), b"call", b"replay")
    raw = b"".join(len(part).to_bytes(4, "little") + part for part in told[:4])
    raw += struct.pack("<QI3Q3I", 5, 2, 0, 0, 0, 0, 0, 0)
    raw += struct.pack("<3QI9sI3sIc", 7, 2, 3, 9, b"tcp://a:1", 3, b"[1]", 1, b"x")
    raw += struct.pack("<IQI2QI4sI6s", 1, 9, 2, 4, 6, 4, b"call", 6, b"replay")
    written_as(RUN, told, raw)
    refuse("", RUN.decode, raw[:-16] + bytes(8) + raw[-8:])
    assert OwnFrameType.RUN == 64


@pytest.mark.spec("REMOTE-TASK-7")
def test_a_version_that_is_stored_has_room_once_unless_it_is_here():
    kept, offered = store()
    assert copies.COMING.pack(5, 7, 2, 64) == struct.pack("<4Q", 5, 7, 2, 64)
    windows = [kept.open(5, 7, 2, 64) for _ in range(2)]
    assert windows == [*offered] * 2 == [copies.window_key(7, 2)] * 2
    kept.take([CopiedTensor(7, 2)], [64])
    assert kept.open(5, 7, 2, 64) == 0
    with pytest.raises(RemoteError, match="nothing orders the two"):
        kept.open(5, 7, 1, 64)


LAYOUTS = [("f8", (3, 4), (32, 8)), ("f8", (3, 4), (8, 24)), ("c16", (), ())]
LAYOUTS += [("M8[us]", (0, 3), (24, 8)), ([("a", "<i4"), ("b", "<f8", (2,))], (5,), (20,))]
LAYOUTS += [("i4", (1, 2, 1, 2, 1, 2, 1), (32, 16, 16, 8, 8, 4, 4))]


@pytest.mark.spec("REMOTE-TASK-8")
def test_a_layout_without_gaps_travels_as_text():
    for dtype, shape, strides in LAYOUTS:
        layout = np.dtype(dtype), shape, strides
        nbytes, text = np.dtype(dtype).itemsize * math.prod(shape), layout_text(layout)
        assert json.loads(text)[1:] == [list(shape), list(strides)]
        assert read_layout(text, nbytes) == layout
        with pytest.raises(ValueError, match="no layout of"):
            read_layout(text, nbytes + 1)
    for step in (16, -8, 0):
        with pytest.raises(TypeError, match="give a contiguous array"):
            layout_text((np.dtype("f8"), (4,), (step,)))
    aligned = np.dtype([("a", "i4"), ("b", "f8")], align=True)
    assert read_layout(layout_text((aligned, (2,), (16,))), 32)[0] == aligned


@pytest.mark.spec("REMOTE-TASK-8")
@pytest.mark.parametrize(
    "text",
    [
        *("x", "[]", '["f8", [2], [8]]', "[1, [2], [8]]", "[\"'f8'\", [2, 1], [8]]"),
        *("[\"'O'\", [2], [8]]", "[\"'f8'\", [-2], [8]]", "[\"'f8'\", [2.0], [8]]"),
        *("[\"'f8'\", [2], [9]]", "[\"__import__('os')\", [2], [8]]", "[\"'f8'\", [true], [8]]"),
        *(f"[\"'f8'\", [{1 << 70}], [8]]", "[\"'f8'\", [2], [-8]]", '["\'f8\'", "2", [8]]'),
    ],
)
def test_a_text_that_is_no_layout_is_refused(text):
    with pytest.raises(ValueError, match="is no layout"):
        read_layout(text, 16)


CALL = task_messages.Call(
    bytes(range(32)),
    task_messages.ANY_SUB_WORKER,
    b"\2" * 8,
    task_messages.Piece(b"abc"),
    (task_messages.Piece(b"", 9, 70000),),
)


@pytest.mark.spec("REMOTE-TASK-9")
def test_a_call_has_these_bytes():
    assert (OwnFrameType.DONE, OwnFrameType.VALUE_TAKEN) == (68, 69)
    expected = struct.pack("<32si", bytes(range(32)), -1) + blob(b"\2" * 8) + blob(b"abc")
    expected += struct.pack("<QQIIQQ", 0, 0, 1, 0, 9, 70000)
    written_as(task_messages.CALL, CALL, expected)


@pytest.mark.spec("REMOTE-TASK-10")
def test_the_end_of_a_task_or_a_call_has_these_bytes():
    value = task_messages.Piece(b"v", 6, 1)
    made = task_messages.Done(4, 3, 2, 1, value, b"t", b"", b"e", (b"w", b""))
    expected = struct.pack("<QIIQ", 4, 3, 2, 1) + blob(b"v") + struct.pack("<QQ", 6, 1)
    expected += blob(b"t") + blob(b"") + blob(b"e") + struct.pack("<I", 2) + blob(b"w") + blob(b"")
    written_as(task_messages.DONE, made, expected)


@pytest.mark.spec("REMOTE-TASK-9")
def test_values_with_keys_may_be_in_frames_and_only_so_much_else():
    most = limits.MOST_INLINE_KEPT
    kept = task_messages.Piece(b"v" * most, 9, most)
    call = CALL._replace(values=(kept, task_messages.Piece(b"", 9, 70000)))
    assert task_messages.CALL.decode(task_messages.CALL.encode(call)) == call
    longer = task_messages.Piece(b"v" * (most + 1), 9, 1)
    with pytest.raises(ValueError, match="too long"):
        task_messages.CALL.encode(call._replace(values=(longer,)))


@pytest.mark.spec("REMOTE-TASK-14")
@pytest.mark.parametrize("refused", [False, True])
def test_what_a_task_cannot_fetch_from_a_lost_endpoint_has_an_error_code(refused):
    class Away:
        """A mover that reaches nobody."""

        address = "here"

        def fetch_all(self, *_what):
            raise TransferError("nobody is there", refused=refused)

    found = Copies(Away(), lambda nbytes: np.zeros(nbytes, np.uint8))
    with pytest.raises((TransferError, RemoteError)) as caught:
        found.take([CopiedTensor(1, 2, 0, "there")], [8])
    assert outcome_of(caught.value) == (1 if refused else 4)


@pytest.mark.spec("REMOTE-FRAME-9")
def test_the_parts_of_a_task_can_be_read_one_by_one():
    desc = wire.RemoteTensorDesc(RemoteAddressSpace.REMOTE_DEVICE, 2, 3, generation=4)
    task = wire.TaskPayloadWire(bytes(32), CallConfig(block_dim=5), args_with(desc))
    reader = wire.Reader(wire.encode_task_payload(task))
    assert reader.take(32) == bytes(32)
    assert wire.decode_call_config(reader) == task.config
    reader.take(8)
    assert wire.decode_continuous_tensor(reader) == PLAIN
    assert reader.take(1) == b"\1"
    assert wire.decode_remote_tensor_desc(reader) == desc
