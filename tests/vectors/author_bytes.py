"""Writes layouts.json, enums.json and descriptors.json: numbers by hand, bytes from the field tables.

Nothing here comes from the package: offsets, types and values are those of the rules, written down
once more, and `image` puts each value where its table says.
"""

from __future__ import annotations

import hashlib
import struct

from .reader import spell

WIDTHS = {"u8": 1, "char": 1, "i32": 4, "u32": 4, "u64": 8, "ContinuousTensor": 40}

# ---------------------------------------------------------------- the tables: name → (offset, type)
TENSOR = {
    "data": (0, "u64"),
    "shapes": (8, "u32[5]"),
    "ndims": (28, "u32"),
    "dtype": (32, "u8"),
    "child_memory": (33, "u8"),
    "padding": (34, "u8[6]"),
}
CONFIG = {
    "block_dim": (0, "i32"),
    "aicpu_thread_num": (4, "i32"),
    "enable_l2_swimlane": (8, "i32"),
    "enable_dump_tensor": (12, "i32"),
    "enable_pmu": (16, "i32"),
    "enable_dep_gen": (20, "i32"),
    "enable_scope_stats": (24, "i32"),
    "output_prefix": (28, "char[1024]"),
}
CHIP = {
    "tensors_": (0, "ContinuousTensor[128]"),
    "scalars_": (5120, "u64[128]"),
    "tensor_count_": (6144, "i32"),
    "scalar_count_": (6148, "i32"),
}
TASK_FRAME = {
    "state": (0, "i32"),
    "error": (4, "i32"),
    "command": (8, "u64"),
    "config": (16, "u8[1052]"),
    "digest": (1072, "u8[32]"),
    "args": (1104, "u8[15024]"),
    "error_message": (16128, "char[256]"),
}
CONTROL_FRAME = {
    "state": (0, "i32"),
    "error": (4, "i32"),
    "command": (8, "u64"),
    "arguments": (16, "u64[3]"),
    "result": (40, "u64"),
    "payload_name": (1072, "char[32]"),
    "digest": (1104, "u8[32]"),
    "error_message": (16128, "char[256]"),
}
ENVELOPE = {
    "magic": (0, "char[4]"),
    "version": (4, "u8"),
    "serializer": (5, "u8"),
    "flags": (6, "u8[2]"),
    "payload_size": (8, "u64"),
}
BLOB_HEAD = {"tensor_count": (0, "i32"), "scalar_count": (4, "i32")}
DTYPES = [
    "FLOAT32",
    "FLOAT16",
    "INT32",
    "INT16",
    "INT8",
    "UINT8",
    "BFLOAT16",
    "INT64",
    "UINT64",
    "UINT16",
    "UINT32",
    "BOOL",
]
SIZES = (4, 2, 4, 2, 1, 1, 2, 8, 8, 2, 4, 1)
COMMANDS = [
    "MALLOC",
    "FREE",
    "COPY_TO",
    "COPY_FROM",
    "PREPARE",
    "REGISTER",
    "UNREGISTER",
    "ALLOC_DOMAIN",
    "RELEASE_DOMAIN",
    "COMM_INIT",
    "PY_REGISTER",
    "PY_UNREGISTER",
]
DIRECTIONS = ("SCALAR", "IN", "OUT", "INOUT")


# ---------------------------------------------------------------- values to bytes
def width_of(kind):
    base, _, count = kind.rstrip("]").partition("[")
    return WIDTHS[base] * int(count or 1)


def image(size, table, values):
    """Return `size` bytes with each value at its field's place; bytes are put there as they are."""
    made = bytearray(size)
    for name, value in values.items():
        offset, kind = table[name]
        raw = encode(kind, value)
        assert len(raw) <= width_of(kind)
        made[offset : offset + len(raw)] = raw
    return bytes(made)


def encode(kind, value):
    if isinstance(value, bytes):
        return value
    base = kind.partition("[")[0]
    numbers = value if isinstance(value, list) else [value]
    signed = base == "i32"
    return b"".join(number.to_bytes(WIDTHS[base], "little", signed=signed) for number in numbers)


def tensor_bytes(tensor):
    values = {
        "data": int(tensor["data"], 16),
        "shapes": tensor["shapes"],
        "ndims": len(tensor["shapes"]),
        "dtype": DTYPES.index(tensor["dtype"]),
        "child_memory": int(tensor["child_memory"]),
    }
    return image(40, TENSOR, values)


def config_bytes(config):
    values = {"aicpu_thread_num": 3} | config
    prefix = {"output_prefix": values.pop("output_prefix", "").encode()}
    return image(1052, CONFIG, values | prefix)


def blob_bytes(value):
    tensors, scalars = value["tensors"], value["scalars"]
    head = image(8, BLOB_HEAD, {"tensor_count": len(tensors), "scalar_count": len(scalars)})
    words = b"".join(int(scalar, 16).to_bytes(8, "little") for scalar in scalars)
    return head + b"".join(map(tensor_bytes, tensors)) + words


# ---------------------------------------------------------------- layouts
def case(kind, name, why, rules, **rest):
    return {"kind": kind, "name": name, "why": why, "rules": rules.split(), **rest}


def structure(name, size, table, why, rules):
    fields = {key: {"offset": offset, "type": kind} for key, (offset, kind) in table.items()}
    return case("struct", f"{name} layout", why, rules, struct=name, size=size, fields=fields)


def tensor(data, shapes, dtype, child_memory=False):
    return {
        "data": f"0x{data:x}",
        "shapes": shapes,
        "dtype": dtype,
        "child_memory": child_memory,
    }


MATRIX = tensor(0x1122334455667788, [2, 3], "INT16")
ON_CHIP = tensor(0xFFFF800000000040, [1, 2, 3, 4, 4294967295], "BOOL", True)
NO_MEMORY = tensor(0, [], "FLOAT32")


def structs():
    yield structure(
        "ContinuousTensor", 40, TENSOR, "a tensor as it travels; the padding is zero", "FLOW-ARGS-2"
    )
    yield structure(
        "CallConfig", 1052, CONFIG, "seven knobs and a prefix, without gaps", "FLOW-CONFIG-1"
    )
    yield structure(
        "ChipStorageTaskArgs",
        6152,
        CHIP,
        "arguments at the edge to a chip; entries beyond the counts are undefined",
        "FLOW-EDGE-1",
    )
    yield structure("task frame", 16384, TASK_FRAME, "a mailbox that holds a task", "SCHED-MAIL-1")
    yield structure(
        "control frame",
        16384,
        CONTROL_FRAME,
        "a mailbox that holds a control request: its arguments stand where a task has its "
        "configuration",
        "WM-MAIL-3",
    )
    yield structure("args blob head", 8, BLOB_HEAD, "tensors follow, then scalars", "FLOW-ARGS-2")
    yield structure("payload envelope", 16, ENVELOPE, "the payload follows", "FLOW-PAYLOAD-1")


def scalars():
    for kind, value, raw in (
        ("integer", "0", b"\0" * 8),
        ("integer", "-1", b"\xff" * 8),
        ("integer", "18446744073709551615", b"\xff" * 8),
        ("integer", "-9223372036854775808", b"\0" * 7 + b"\x80"),
        ("float64", "1.5", struct.pack("<d", 1.5)),
        ("float64", "-0.1", struct.pack("<d", -0.1)),
        ("float32", "1.5", struct.pack("<f", 1.5)),
    ):
        yield case(
            "scalar",
            f"the {kind} {value} as a scalar",
            "integers in two's complement, floats as their bits, a 32-bit one in the low half",
            "SCHED-MAIL-5",
            **{"from": kind, "value": value, "bits": f"0x{int.from_bytes(raw, 'little'):x}"},
        )
    for value in (1 << 64, -(1 << 63) - 1):
        yield case(
            "scalar_refused",
            f"{value} is no scalar",
            "it has no 64-bit form, and cutting it would change it",
            "SCHED-MAIL-5",
            value=str(value),
        )


def tensors():
    for value, name, why in (
        (MATRIX, "a matrix", "unused dimensions are zero"),
        (ON_CHIP, "five dimensions on a chip", "every field with a byte of its own set"),
        (NO_MEMORY, "a number without memory yet", "no dimensions: one element"),
    ):
        raw = spell(tensor_bytes(value))
        yield case("tensor", name, why, "FLOW-ARGS-2", value=value, bytes=raw)
    for dtype in DTYPES:
        value = tensor(0x1000, [8], dtype)
        yield case(
            "tensor",
            f"a row of {dtype}",
            "the element type is one byte",
            "FLOW-ARGS-2",
            value=value,
            bytes=spell(tensor_bytes(value)),
        )


def configs():
    for name, why, value in (
        ("a default configuration", "aicpu_thread_num is 3, all else zero", {}),
        (
            "every field of a configuration",
            "each number tells which field it is; the prefix ends with zeros",
            {
                "block_dim": 1,
                "aicpu_thread_num": 2,
                "enable_l2_swimlane": 3,
                "enable_dump_tensor": 4,
                "enable_pmu": 5,
                "enable_dep_gen": 6,
                "enable_scope_stats": 7,
                "output_prefix": "/out/ü",
            },
        ),
        (
            "the longest prefix",
            "1023 bytes: one is left for the zero at the end",
            {"output_prefix": "p" * 1023},
        ),
        (
            "the largest block_dim",
            "numbers are 32-bit and not negative",
            {"block_dim": 2147483647},
        ),
    ):
        raw = spell(config_bytes(value))
        yield case("config", name, why, "FLOW-CONFIG-1", value=value, bytes=raw)
    for name, value, at in (
        ("a prefix that is too long", {"output_prefix": "p" * 1024}, "output_prefix"),
        ("a negative number", {"block_dim": -1}, "block_dim"),
        ("a swimlane level that does not exist", {"enable_l2_swimlane": 5}, "enable_l2_swimlane"),
    ):
        why = "the error names the field"
        yield case("config_refused", name, why, "FLOW-CONFIG-1", value=value, names=at)
    for field in list(CONFIG)[2:7]:
        yield case(
            "config_refused",
            f"{field} without a prefix",
            "a diagnostic needs output_prefix; the error says so",
            "FLOW-CONFIG-3",
            value={field: 1},
            names="output_prefix",
        )


BLOBS = (
    ("no arguments", "two counts and nothing else", [], []),
    ("two scalars", "the first scalar stands at 8", [], ["0x1", "0xffffffffffffffff"]),
    ("two tensors", "the second one stands at 48", [MATRIX, ON_CHIP], []),
    ("tensors and scalars", "8 + 40·2 + 8·3 bytes", [MATRIX, NO_MEMORY], ["0x7", "0x0", "0x9"]),
)


def blobs():
    for name, why, of_tensors, of_scalars in BLOBS:
        value = {"tensors": of_tensors, "scalars": of_scalars}
        raw = spell(blob_bytes(value))
        yield case("blob", name, why, "FLOW-ARGS-2 SCHED-MAIL-5", value=value, bytes=raw)
    for t, s, why in (
        (-1, 0, "a negative count of tensors"),
        (0, -1, "a negative count of scalars"),
        (-1, 5, "a negative count whose bytes would come out at 8"),
        (376, 0, "one tensor more than there is room for"),
        (0, 1878, "one scalar more than there is room for"),
        (375, 3, "each count fits, both together do not"),
        (2147483647, 2147483647, "counts whose bytes do not fit 32 bits"),
    ):
        yield case(
            "blob_refused",
            f"{t} tensors and {s} scalars",
            f"{why}; the error has both numbers",
            "SCHED-MAIL-6 FLOW-VIEW-3",
            bytes=spell(image(8, BLOB_HEAD, {"tensor_count": t, "scalar_count": s})),
            error={"tensors": t, "scalars": s, "needed": 8 + 40 * t + 8 * s, "room": 15024},
        )


def chips():
    for name, why, of_tensors, of_scalars in BLOBS:
        raw = blob_bytes({"tensors": of_tensors, "scalars": of_scalars})
        split = 8 + 40 * len(of_tensors)
        parts = {0: raw[8:split], 5120: raw[split:], 6144: raw[:8]}
        yield case(
            "chip_arguments",
            f"{name}, for a chip",
            f"the same entries at fixed places, the counts at the end; as a blob: {why}",
            "FLOW-EDGE-1",
            value={"tensors": of_tensors, "scalars": of_scalars},
            image={str(at): spell(part) for at, part in parts.items() if part},
        )


DIGEST = bytes(range(1, 33))


def frames():
    value = {"tensors": [MATRIX, ON_CHIP], "scalars": ["0x7"]}
    config = {"block_dim": 24}
    yield case(
        "task_frame",
        "a task in a mailbox",
        "TASK_READY and no error, 0 where a request has its command; what lies behind the blob is "
        "undefined",
        "SCHED-MAIL-1 WM-MAIL-1 FLOW-ID-5",
        digest=spell(DIGEST),
        config=config,
        value=value,
        image={
            "0": spell((1).to_bytes(4, "little") + bytes(4)),
            "8": spell(bytes(8)),
            "16": spell(config_bytes(config)),
            "1072": spell(DIGEST),
            "1104": spell(blob_bytes(value)),
        },
    )
    yield case(
        "control_frame",
        "a registration in a mailbox",
        "CONTROL_REQUEST; the name of the staged payload ends with zeros, the digest follows it",
        "WM-MAIL-3",
        command="PY_REGISTER",
        arguments=["0x123", "0x0", "0xffffffffffffffff"],
        payload_name="/proc/1/fd/7",
        digest=spell(DIGEST),
        image={
            "0": spell((4).to_bytes(4, "little") + bytes(4)),
            "8": spell((10).to_bytes(8, "little")),
            "16": spell(b"\x23\x01" + bytes(6) + bytes(8) + b"\xff" * 8),
            "1072": spell(b"/proc/1/fd/7".ljust(32, b"\0")),
            "1104": spell(DIGEST),
        },
    )
    for name, text, kept in (
        ("a short message", "no root of -1", b"ValueError: no root of -1"),
        ("a message that is cut", "x" * 300, b"ValueError: " + b"x" * 243),
        ("a message cut before a letter", "x" * 242 + "ü", b"ValueError: " + b"x" * 242),
    ):
        yield case(
            "error_message",
            name,
            "type and text of the exception, at most 255 bytes, never half a letter, then a zero; "
            "what follows is undefined",
            "SCHED-MAIL-7",
            message=text,
            image={"16128": spell(kept + b"\0")},
        )


def envelopes():
    def envelope(payload, **fields):
        values = {"magic": b"SPYC", "version": 1, "serializer": 1, "payload_size": len(payload)}
        return image(16, ENVELOPE, values | fields) + payload

    for name, payload in (("an empty payload", b""), ("a payload", b"pickled bytes\0\xff")):
        yield case(
            "envelope",
            name,
            "sixteen bytes, then the payload as it is",
            "FLOW-PAYLOAD-1",
            payload=spell(payload),
            bytes=spell(envelope(payload)),
        )
    good = envelope(b"abc")
    for name, raw in (
        ("nothing at all", b""),
        ("a head cut off", good[:15]),
        ("another magic", envelope(b"abc", magic=b"SPYX")),
        ("another version", envelope(b"abc", version=2)),
        ("another serializer", envelope(b"abc", serializer=2)),
        ("a flag", envelope(b"abc", flags=b"\1\0")),
        ("a byte too few", good[:-1]),
        ("a byte too many", good + b"x"),
        ("an announced size that overflows", envelope(b"abc", payload_size=(1 << 64) - 1)),
    ):
        yield case(
            "envelope_refused",
            f"{name} in an envelope",
            "found before anything is unpickled",
            "FLOW-PAYLOAD-2",
            bytes=spell(raw),
            error="HASHID_DESCRIPTOR_MISMATCH",
        )


def layouts():
    about = "Where every field of the structures stands that cross a boundary, and values as bytes."
    parts = (structs, scalars, tensors, configs, blobs, chips, frames, envelopes)
    return {"format": 1, "about": about, "cases": [one for part in parts for one in part()]}


# ---------------------------------------------------------------- enumerations
def numbered(words, first=0):
    return {name: number for number, name in enumerate(words.split(), first)}


def enums():
    described = (
        ("DataType", "u8", numbered(" ".join(DTYPES)), "FLOW-ARGS-2"),
        (
            "TensorArgType",
            "i32",
            numbered("INPUT OUTPUT INOUT OUTPUT_EXISTING NO_DEP"),
            "ORCH-TAG-1 ORCH-TAG-8",
        ),
        ("ArgDirection", "i32", numbered(" ".join(DIRECTIONS)), "FLOW-ID-1"),
        ("WorkerType", "i32", numbered("NEXT_LEVEL SUB"), "WM-POOL-1"),
        (
            "TaskState",
            "i32",
            numbered("FREE PENDING READY RUNNING COMPLETED CONSUMED FAILED"),
            "ORCH-STATE-1",
        ),
        (
            "MailboxState",
            "i32",
            numbered("IDLE TASK_READY TASK_DONE SHUTDOWN CONTROL_REQUEST CONTROL_DONE INIT_DONE"),
            "SCHED-MAIL-2 WM-MAIL-3 WM-LOOP-1",
        ),
        (
            "CallableKind",
            "u32",
            numbered("CHIP_CALLABLE PYTHON_SERIALIZED PYTHON_IMPORT", 1),
            "FLOW-ID-1",
        ),
        (
            "TargetNamespace",
            "i32",
            numbered("LOCAL_CHIP LOCAL_PYTHON REMOTE_TASK_DISPATCHER", 1),
            "FLOW-HANDLE-1",
        ),
        ("ControlCommand", "u64", numbered(" ".join(COMMANDS)), "WM-MAIL-3"),
    )
    cases = [
        case("enum", name, "the numbers travel", rules, enum=name, type=kind, values=values)
        for name, kind, values, rules in described
    ]
    cases.append(
        case(
            "element_sizes",
            "bytes of one element",
            "by element type",
            "ORCH-AUTO-3",
            values=dict(zip(DTYPES, SIZES, strict=True)),
        )
    )
    constants = {
        "MAX_RING_DEPTH": (4, "ORCH-RING-2"),
        "MAX_SCOPE_DEPTH": (64, "ORCH-SCOPE-3"),
        "HEAP_ALIGN": (1024, "ORCH-RING-4"),
        "DEFAULT_HEAP_RING_SIZE": (1073741824, "ORCH-RING-2"),
        "CONTINUOUS_TENSOR_MAX_DIMS": (5, "ORCH-MISUSE-3"),
        "CHIP_MAX_TENSOR_ARGS": (128, "FLOW-EDGE-3"),
        "CHIP_MAX_SCALAR_ARGS": (128, "FLOW-EDGE-3"),
        "MAX_REGISTERED_CALLABLE_IDS": (4096, "FLOW-REG-6"),
        "MAILBOX_SIZE": (16384, "SCHED-MAIL-1"),
        "MAILBOX_ERROR_MSG_SIZE": (256, "SCHED-MAIL-7"),
        "MAILBOX_ARGS_CAPACITY": (15024, "ORCH-MISUSE-5"),
        "CALLABLE_HASH_DIGEST_BYTES": (32, "FLOW-ID-2"),
    }
    cases.append(
        case(
            "constants",
            "constants",
            "sizes and limits that both sides of a boundary must agree on",
            " ".join(sorted({rule for _, rule in constants.values()})),
            values={name: value for name, (value, _) in constants.items()},
        )
    )
    about = "Numbers that stand for names, and limits."
    return {"format": 1, "about": about, "cases": cases}


# ---------------------------------------------------------------- descriptors
def u32(*numbers):
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return u32(len(raw)) + raw


def sha256(raw):
    return hashlib.sha256(raw).digest()


def identified(kind, name, why, descriptor, **fields):
    digest = sha256(descriptor)
    return case(
        kind,
        name,
        why,
        "FLOW-ID-1 FLOW-ID-2",
        **fields,
        descriptor=spell(descriptor),
        hashid=f"sha256:{digest.hex()}",
        digest=spell(digest),
    )


def chip(name, why, arch, platform, runtime, blob, *signature):
    schema = u32(1, len(signature), *map(DIRECTIONS.index, signature))
    strings = text(arch) + text(platform) + text(runtime)
    descriptor = u32(1, 1) + strings + text(sha256(blob)) + text(sha256(schema))
    return identified(
        "chip",
        name,
        why,
        descriptor,
        target_arch=arch,
        platform=platform,
        runtime=runtime,
        blob=spell(blob),
        signature=list(signature),
    )


def descriptors():
    every = "SCALAR", "IN", "OUT", "INOUT"
    cases = [
        chip("a chip callable", "every direction once", "aarch64", "a2a3", "r", b"blob", *every),
        chip("no arguments", "an empty signature has a schema all the same", "x", "sim", "r", b""),
        chip("where strings end, 1", "lengths keep strings apart", "a", "bc", "d", b"b", "IN"),
        chip("where strings end, 2", "the same letters, cut elsewhere", "ab", "c", "d", b"b", "IN"),
        chip("letters beyond ASCII", "lengths count UTF-8 bytes", "ä", "漢", "/r.so", b"b", "OUT"),
    ]
    for name, payload in (
        ("an empty payload", b""),
        ("a payload", bytes(range(256)) * 2),
    ):
        head = u32(1, 2, 1, 1)
        why = "schema 1, kind 2, payload format 1, serializer 1, then the payload's SHA-256"
        whole = head + text(sha256(payload))
        cases.append(identified("python_serialized", name, why, whole, payload=spell(payload)))
    for module, qualname in (("os.path", "join"), ("a", "B.c"), ("grüße", "ß")):
        why = "both parts as strings"
        whole = u32(1, 3) + text(module) + text(qualname)
        name = f"{module}:{qualname}"
        cases.append(
            identified("python_import", name, why, whole, module=module, qualname=qualname)
        )
    for module, qualname, why in (
        ("", "f", "no module"),
        ("m", "", "no name"),
        ("m", "f.<locals>.g", "a local function"),
        ("m", "<lambda>", "no identifier"),
        (".m", "f", "a relative name"),
        ("m..n", "f", "an empty part"),
        ("m:n", "f", "a second colon"),
        ("m", "1f", "an identifier does not begin with a digit"),
    ):
        cases.append(
            case(
                "import_refused",
                f"“{module}” and “{qualname}”",
                why,
                "FLOW-ID-3",
                module=module,
                qualname=qualname,
                error="HASHID_DESCRIPTOR_MISMATCH",
            )
        )
    for hashid, why in (
        ("", "nothing"),
        ("a" * 64, "no prefix"),
        ("sha256:" + "a" * 63, "a digit too few"),
        ("sha256:" + "a" * 65, "a digit too many"),
        ("sha256:" + "A" * 64, "capital digits"),
        ("sha256:" + "g" * 64, "no hex digits"),
        ("SHA256:" + "a" * 64, "a prefix in capitals"),
        ("sha512:" + "a" * 64, "another hash"),
        (" sha256:" + "a" * 64, "a space before it"),
        ("sha256:" + "a" * 64 + "\n", "a line end after it"),
    ):
        cases.append(
            case(
                "hashid_refused",
                f"no hashid: {why}",
                why,
                "FLOW-ID-2",
                hashid=hashid,
                error="HASHID_FORMAT_INVALID",
            )
        )
    about = "What names a callable: canonical descriptors, their SHA-256, and what is refused."
    return {"format": 1, "about": about, "cases": cases}
