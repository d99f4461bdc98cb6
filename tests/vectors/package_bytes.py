"""Asks the package what layouts.json, enums.json and descriptors.json expect of it."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import callable_identity as identity
from simpler_ref import task_interface as ti
from simpler_ref.callable_identity import CallableKind, TargetNamespace
from simpler_ref.callables import pickling
from simpler_ref.errors import CallableError
from simpler_ref.jit import layout as L
from simpler_ref.jit.structures import CALL_CONFIG
from simpler_ref.native_chip import ChipStorageTaskArgs
from simpler_ref.native_chip.abi import ContinuousTensorStorage
from simpler_ref.task_interface import ArgDirection, CallConfig, ContinuousTensor, DataType
from simpler_ref.workers.kinds import SubWorker
from simpler_ref.workers.manager import ThreadManager
from simpler_ref.workers.reports import write_error

from ..support import DEADLINE_S, Driver, raw_scalar, received

WIDTHS = {"u8": 1, "char": 1, "i32": 4, "u32": 4, "u64": 8, "ContinuousTensor": 40}


def to_bytes(spelled):
    """Return the bytes that groups of hex digits spell: `ff00 00*6` is ff and seven zeros."""
    groups = (group.partition("*") for group in spelled.split())
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in groups)


def width_of(kind):
    base, _, count = kind.rstrip("]").partition("[")
    return WIDTHS[base] * int(count or 1)


# ---------------------------------------------------------------- structures
def of_ctypes(kind):
    fields = {name: getattr(kind, name) for name, _ in kind._fields_}
    return ctypes.sizeof(kind), {name: (f.offset, f.size) for name, f in fields.items()}


COUNTS = {"tensor_count": (0, 4), "scalar_count": (4, 4)}
MESSAGE = (L.MAILBOX_OFF_ERROR_MSG, L.MAILBOX_ERROR_MSG_SIZE)
HEAD = {
    "state": (L.MAILBOX_OFF_STATE, 4),
    "error": (L.MAILBOX_OFF_STATE + 4, 4),
    "command": (L.MAILBOX_OFF_COMMAND, 8),
}
STRUCTS = {
    "ContinuousTensor": of_ctypes(ContinuousTensorStorage),
    "CallConfig": (
        CALL_CONFIG.size,
        {one.name: (CALL_CONFIG.offsets[one.name], one.size) for one in CALL_CONFIG.members},
    ),
    "ChipStorageTaskArgs": of_ctypes(ChipStorageTaskArgs),
    "task frame": (
        L.MAILBOX_SIZE,
        {
            **HEAD,
            "config": (L.MAILBOX_OFF_CONFIG, L.CALL_CONFIG_SIZE),
            "digest": (L.MAILBOX_OFF_DIGEST, L.CALLABLE_HASH_DIGEST_BYTES),
            "args": (L.MAILBOX_OFF_ARGS, L.MAILBOX_ARGS_CAPACITY),
            "error_message": MESSAGE,
        },
    ),
    "control frame": (
        L.MAILBOX_SIZE,
        {
            **HEAD,
            "arguments": (L.MAILBOX_OFF_CONTROL_ARGS, 24),
            "result": (L.MAILBOX_OFF_CONTROL_RESULT, 8),
            "payload_name": (L.MAILBOX_OFF_CONTROL_NAME, L.CONTROL_NAME_SIZE),
            "digest": (L.MAILBOX_OFF_CONTROL_DIGEST, L.CALLABLE_HASH_DIGEST_BYTES),
            "error_message": MESSAGE,
        },
    ),
}


def check_struct(case):
    name = case["struct"]
    found = {key: (f["offset"], width_of(f["type"])) for key, f in case["fields"].items()}
    if name in STRUCTS:
        assert (case["size"], found) == STRUCTS[name]
    elif name == "args blob head":
        assert (case["size"], found) == (8, COUNTS)
        assert L.WORD * (L.MAIL_TENSORS - L.MAIL_COUNTS) == 8, "the tensors follow"
    else:
        assert name == "payload envelope"
        raw = pickling.pack_payload(b"xyz")
        assert case["size"] == len(raw) - 3
        there = {key: raw[at : at + width] for key, (at, width) in found.items()}
        assert there == {
            "magic": b"SPYC",
            "version": b"\1",
            "serializer": b"\1",
            "flags": b"\0\0",
            "payload_size": (3).to_bytes(8, "little"),
        }


# ---------------------------------------------------------------- values
NUMBERS = {"integer": int, "float64": float, "float32": np.float32}


def check_scalar(case):
    assert ti.scalar_to_uint64(NUMBERS[case["from"]](case["value"])) == int(case["bits"], 16)


def check_scalar_refused(case):
    with pytest.raises(OverflowError):
        ti.scalar_to_uint64(int(case["value"]))


def tensor_of(value):
    shapes, dtype = value["shapes"], DataType[value["dtype"]]
    return ContinuousTensor.make(int(value["data"], 16), shapes, dtype, value["child_memory"])


def check_tensor(case):
    raw, wanted = to_bytes(case["bytes"]), tensor_of(case["value"])
    assert wanted._wire == raw
    read = ContinuousTensor._from_wire(raw)
    assert (read.data, read.shapes) == (wanted.data, tuple(case["value"]["shapes"]))
    assert (read.dtype, read.child_memory) == (wanted.dtype, wanted.child_memory)


def check_config(case):
    raw, wanted = to_bytes(case["bytes"]), CallConfig(**case["value"])
    assert wanted.to_bytes() == raw
    read = CallConfig.from_bytes(raw)
    assert [getattr(read, name) for name in CallConfig._NAMES] == [
        getattr(wanted, name) for name in CallConfig._NAMES
    ]


def check_config_refused(case):
    with pytest.raises(ValueError, match=case["names"]):
        CallConfig(**case["value"]).to_bytes()


# ---------------------------------------------------------------- the mailbox
def wire_of(value):
    tensors = b"".join(tensor_of(one)._wires[L.NO_DEP] for one in value["tensors"])
    return tensors + b"".join(raw_scalar(int(one, 16)) for one in value["scalars"])


def dispatched(value, digest=None, config=None):
    """Return what a worker finds in its mailbox for a task with these arguments."""
    driver = Driver(sub=1)
    try:
        if digest is not None:
            driver._view.write_digest(0, digest)
        driver.engine.view.write_config(0, (config or CallConfig()).to_bytes())
        counts = len(value["tensors"]) | len(value["scalars"]) << 32
        assert driver.x.submit_task(driver.mem, L.SUB << L.WORD_KIND, counts, 0, wire_of(value)) > 0
        driver.settle()
        return driver.mailbox(0).tobytes()
    finally:
        driver.close()


def check_blob(case):
    raw, value = to_bytes(case["bytes"]), case["value"]
    assert dispatched(value)[L.MAILBOX_OFF_ARGS :][: len(raw)] == raw
    view = received(bytes(L.MAILBOX_OFF_ARGS) + raw.ljust(L.MAILBOX_ARGS_CAPACITY, b"\0"))
    assert view.tensor_count() == len(value["tensors"])
    assert view.scalar_count() == len(value["scalars"])
    for i, tensor in enumerate(value["tensors"]):
        assert view.tensor(i) == tensor_of(tensor)
    assert [view.scalar(i) for i in range(view.scalar_count())] == [
        int(scalar, 16) for scalar in value["scalars"]
    ]


def check_blob_refused(case):
    raw, error = to_bytes(case["bytes"]), case["error"]
    view = received(bytes(L.MAILBOX_OFF_ARGS) + raw.ljust(L.MAILBOX_ARGS_CAPACITY, b"\0"))
    words = "{tensors} tensors and {scalars} scalars, {needed} bytes.*{room}".format(**error)
    for look in (len, lambda v: v.tensor_count(), lambda v: v.tensor(0), lambda v: v.scalar(0)):
        with pytest.raises(RuntimeError, match=f"holds {words}$"):
            look(view)


def check_chip_arguments(case):
    """What stands in the structure after its fields were given the values one by one."""
    made = ChipStorageTaskArgs()
    tensors, scalars = case["value"]["tensors"], case["value"]["scalars"]
    made.tensor_count_, made.scalar_count_ = len(tensors), len(scalars)
    for i, tensor in enumerate(tensors):
        made.tensors_[i] = ContinuousTensorStorage.from_buffer_copy(tensor_of(tensor)._wire)
    for i, scalar in enumerate(scalars):
        made.scalars_[i] = int(scalar, 16)
    require_image(bytes(made), case["image"])


def require_image(memory, image):
    for at, spelled in image.items():
        raw = to_bytes(spelled)
        assert memory[int(at) :][: len(raw)] == raw, f"at {at}"


def check_task_frame(case):
    config = CallConfig(**case["config"])
    box = dispatched(case["value"], to_bytes(case["digest"]), config)
    require_image(box, case["image"])
    at = L.MAILBOX_OFF_CONFIG
    assert repr(CallConfig.from_bytes(box[at : at + L.CALL_CONFIG_SIZE])) == repr(config)


def check_control_frame(case):
    """What a worker finds that is asked to do something by the manager of its Worker."""
    driver = Driver(sub=1)
    manager = ThreadManager(driver.engine, [SubWorker()], DEADLINE_S, DEADLINE_S)

    def worker():
        assert driver.k.park_and_receive(driver.mem, 0) == L.CONTROL
        seen = driver.mailbox(0).tobytes()
        driver.mem[L.SPIN_NS] = 0
        assert driver.k.finish_control_and_receive(driver.mem, 0, 0) == L.PARK
        return seen

    with ThreadPoolExecutor(1) as threads:
        answering = threads.submit(worker)
        manager.control(
            0,
            getattr(L, f"CTRL_{case['command']}"),
            tuple(int(one, 16) for one in case["arguments"]),
            name=case["payload_name"],
            digest=to_bytes(case["digest"]),
        )
        require_image(answering.result(DEADLINE_S), case["image"])
    driver.close()


def check_error_message(case):
    box, trace = bytearray(L.MAILBOX_SIZE), bytearray(8 * L.TRACE_WORDS)
    write_error(memoryview(box), memoryview(trace), ValueError(case["message"]))
    require_image(box, case["image"])


# ---------------------------------------------------------------- payloads
def check_envelope(case):
    payload, raw = to_bytes(case["payload"]), to_bytes(case["bytes"])
    assert pickling.pack_payload(payload) == raw
    assert pickling.parse_python_callable_payload(raw) == payload


def check_envelope_refused(case):
    require_refusal(case, pickling.parse_python_callable_payload, to_bytes(case["bytes"]))


def require_refusal(case, call, *args):
    with pytest.raises(CallableError) as caught:
        call(*args)
    assert caught.value.code == case["error"]


# ---------------------------------------------------------------- enumerations
ENUMS = {
    kind.__name__: {one.name: int(one) for one in kind}
    for kind in (
        *(DataType, ti.TensorArgType, ArgDirection, ti.WorkerType, ti.TaskState, ti.MailboxState),
        *(CallableKind, TargetNamespace),
    )
}
ENUMS["ControlCommand"] = {
    name.removeprefix("CTRL_"): value for name, value in vars(L).items() if name.startswith("CTRL_")
}
FIELD_TYPES = {
    "DataType": ContinuousTensorStorage.dtype.size,
    "ControlCommand": L.MAILBOX_OFF_CONFIG - L.MAILBOX_OFF_COMMAND,
    "CallableKind": len(identity.build_python_import_descriptor("m", "q")[4:8]),
}
"""Bytes of those that have a field of their own; the others are 32-bit numbers."""


def check_enum(case):
    assert ENUMS[case["enum"]] == case["values"]
    assert width_of(case["type"]) == FIELD_TYPES.get(case["enum"], 4)


def check_constants(case):
    assert {name: getattr(L, name) for name in case["values"]} == case["values"]


def check_element_sizes(case):
    assert {one.name: ti.get_element_size(one) for one in DataType} == case["values"]


# ---------------------------------------------------------------- descriptors
class Target:
    """What a chip callable's descriptor asks for."""

    def __init__(self, blob, signature):
        self.blob, self.signature = blob, signature
        self.sig_count = len(signature)

    def sig(self, i):
        return ArgDirection[self.signature[i]]

    def to_bytes(self):
        return self.blob


def require_identity(case, descriptor):
    assert descriptor == to_bytes(case["descriptor"])
    assert identity.compute_callable_hashid(descriptor) == case["hashid"]
    assert identity.validate_hashid(case["hashid"]) == case["hashid"]
    assert identity.hashid_to_digest(case["hashid"]) == to_bytes(case["digest"])


def check_chip(case):
    descriptor = identity.build_chip_callable_descriptor(
        target=Target(to_bytes(case["blob"]), case["signature"]),
        target_arch=case["target_arch"],
        platform=case["platform"],
        runtime=case["runtime"],
    )
    require_identity(case, descriptor)


def check_python_serialized(case):
    payload = to_bytes(case["payload"])
    require_identity(case, identity.build_python_serialized_descriptor(payload))


def check_python_import(case):
    descriptor = identity.build_python_import_descriptor(case["module"], case["qualname"])
    require_identity(case, descriptor)


def check_import_refused(case):
    call = identity.build_python_import_descriptor
    require_refusal(case, call, case["module"], case["qualname"])


def check_hashid_refused(case):
    require_refusal(case, identity.validate_hashid, case["hashid"])
    require_refusal(case, identity.hashid_to_digest, case["hashid"])
