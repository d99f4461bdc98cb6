"""A small second reader of the vectors: Python's standard library and the page docs/vectors.md.

It computes bytes, hashids, producers and ring offsets in its own way and compares them with the
files beside it. Numbers that stand for names it takes from enums.json. It has no workers, so it
leaves scheduler.json alone.

    python spec/vectors/check.py
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
FORMAT = 1


def to_bytes(spelled):
    """`ff00 00*6`: groups of hex digits, a group may be repeated."""
    groups = (group.partition("*") for group in spelled.split())
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in groups)


def same(found, expected, what=""):
    if found != expected:
        raise SystemExit(f"{what}: found {found}, the file has {expected}")


def refused(call, *args):
    """Return the words with which something was refused."""
    try:
        call(*args)
    except ValueError as error:
        return str(error)
    raise SystemExit(f"{args} should be refused")


# ---------------------------------------------------------------- layouts
WIDTHS = {"u8": "B", "char": "s", "i32": "i", "u32": "I", "u64": "Q", "ContinuousTensor": "40s"}
ENUMS = {case["name"]: case for case in json.loads((FOLDER / "enums.json").read_text())["cases"]}
DTYPES = ENUMS["DataType"]["values"]
KNOBS = [
    "block_dim",
    "aicpu_thread_num",
    "enable_l2_swimlane",
    "enable_dump_tensor",
    "enable_pmu",
    "enable_dep_gen",
    "enable_scope_stats",
]


def tensor(value):
    shapes = value["shapes"] + [0] * (5 - len(value["shapes"]))
    numbers = len(value["shapes"]), DTYPES[value["dtype"]], value["child_memory"]
    return struct.pack("<Q5I I B ? 6x", int(value["data"], 16), *shapes, *numbers)


def config(value):
    knobs = [value.get(name, 3 if name == "aicpu_thread_num" else 0) for name in KNOBS]
    prefix = value.get("output_prefix", "").encode()
    for name, number in zip(KNOBS, knobs, strict=True):
        if not 0 <= number < 1 << 31 or (name == "enable_l2_swimlane" and number > 4):
            raise ValueError(name)
    if len(prefix) > 1023 or (any(knobs[2:]) and not prefix):
        raise ValueError("output_prefix")
    return struct.pack("<7i1024s", *knobs, prefix)


def arguments(value):
    tensors = [tensor(one) for one in value["tensors"]]
    scalars = [int(one, 16).to_bytes(8, "little") for one in value["scalars"]]
    counts = struct.pack("<ii", len(tensors), len(scalars))
    return counts, b"".join(tensors), b"".join(scalars)


def counts_of(blob, room):
    tensors, scalars = struct.unpack_from("<ii", blob)
    needed = 8 + 40 * tensors + 8 * scalars
    if tensors < 0 or scalars < 0 or needed > room:
        raise ValueError(f"{tensors} {scalars} {needed} {room}")


def payload_of(raw):
    if len(raw) < 16 or struct.unpack_from("<4sBBHQ", raw) != (b"SPYC", 1, 1, 0, len(raw) - 16):
        raise ValueError("HASHID_DESCRIPTOR_MISMATCH")
    return raw[16:]


def put(image, size):
    """Return the bytes of an image in a memory that holds nothing else."""
    memory = bytearray(size)
    for at, spelled in image.items():
        raw = to_bytes(spelled)
        memory[int(at) : int(at) + len(raw)] = raw
    return bytes(memory)


def check_struct(case):
    """Fields follow each other without an overlap and end within the size."""
    end = 0
    for name, field in sorted(case["fields"].items(), key=lambda item: item[1]["offset"]):
        base, _, count = field["type"].rstrip("]").partition("[")
        same(field["offset"] >= end, True, name)
        end = field["offset"] + struct.calcsize("<" + WIDTHS[base]) * int(count or 1)
    same(end <= case["size"], True, case["name"])


def scalar(case):
    if case["from"] == "integer":
        if not -(1 << 63) <= int(case["value"]) < 1 << 64:
            raise ValueError(case["value"])
        return int(case["value"]) % (1 << 64)
    form = {"float64": "<d", "float32": "<f"}[case["from"]]
    return int.from_bytes(struct.pack(form, float(case["value"])), "little")


def check_scalar(case):
    same(f"0x{scalar(case):x}", case["bits"])


def check_scalar_refused(case):
    refused(scalar, case | {"from": "integer"})


def check_tensor(case):
    same(tensor(case["value"]), to_bytes(case["bytes"]))


def check_config(case):
    same(config(case["value"]), to_bytes(case["bytes"]))


def check_config_refused(case):
    same(refused(config, case["value"]), case["names"])


def check_blob(case):
    same(b"".join(arguments(case["value"])), to_bytes(case["bytes"]))
    counts_of(to_bytes(case["bytes"]), 15024)


def check_blob_refused(case):
    numbers = "{tensors} {scalars} {needed} {room}".format(**case["error"])
    same(refused(counts_of, to_bytes(case["bytes"]), case["error"]["room"]), numbers)


def check_chip_arguments(case):
    counts, tensors, scalars = arguments(case["value"])
    same(tensors.ljust(5120, b"\0") + scalars.ljust(1024, b"\0") + counts, put(case["image"], 6152))


def check_task_frame(case):
    head = struct.pack("<iiQ", ENUMS["MailboxState"]["values"]["TASK_READY"], 0, 0)
    frame = head + config(case["config"]) + bytes(4) + to_bytes(case["digest"])
    frame += b"".join(arguments(case["value"]))
    same(frame.ljust(16384, b"\0"), put(case["image"], 16384))


def check_control_frame(case):
    state = ENUMS["MailboxState"]["values"]["CONTROL_REQUEST"]
    command = ENUMS["ControlCommand"]["values"][case["command"]]
    numbers = [int(one, 16) for one in case["arguments"]]
    frame = struct.pack("<iiQ3Q", state, 0, command, *numbers).ljust(1072, b"\0")
    frame += case["payload_name"].encode().ljust(32, b"\0") + to_bytes(case["digest"])
    same(frame.ljust(16384, b"\0"), put(case["image"], 16384))


def check_error_message(case):
    raw = f"ValueError: {case['message']}".encode()
    kept = raw[:255].decode(errors="ignore").encode() + b"\0"
    same(kept, to_bytes(case["image"]["16128"]))


def check_envelope(case):
    payload = to_bytes(case["payload"])
    head = struct.pack("<4sBBHQ", b"SPYC", 1, 1, 0, len(payload))
    same(head + payload, to_bytes(case["bytes"]))
    same(payload_of(to_bytes(case["bytes"])), payload)


def check_envelope_refused(case):
    same(refused(payload_of, to_bytes(case["bytes"])), case["error"])


# ---------------------------------------------------------------- descriptors
def u32(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return u32(len(raw)) + raw


def sha(raw):
    return text(hashlib.sha256(raw).digest())


def imported(module, qualname):
    for name in (module, qualname):
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError("HASHID_DESCRIPTOR_MISMATCH")
    return u32(1, 3) + text(module) + text(qualname)


def digest_of(hashid):
    prefix, digits = hashid[:7], hashid[7:]
    if prefix != "sha256:" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError("HASHID_FORMAT_INVALID")
    return bytes.fromhex(digits)


def identified(case, descriptor):
    same(descriptor, to_bytes(case["descriptor"]))
    same("sha256:" + hashlib.sha256(descriptor).hexdigest(), case["hashid"])
    same(digest_of(case["hashid"]), to_bytes(case["digest"]))


def check_chip(case):
    directions = ENUMS["ArgDirection"]["values"]
    schema = u32(1, len(case["signature"]), *(directions[one] for one in case["signature"]))
    strings = text(case["target_arch"]) + text(case["platform"]) + text(case["runtime"])
    identified(case, u32(1, 1) + strings + sha(to_bytes(case["blob"])) + sha(schema))


def check_python_serialized(case):
    identified(case, u32(1, 2, 1, 1) + sha(to_bytes(case["payload"])))


def check_python_import(case):
    identified(case, imported(case["module"], case["qualname"]))


def check_import_refused(case):
    same(refused(imported, case["module"], case["qualname"]), case["error"])


def check_hashid_refused(case):
    same(refused(digest_of, case["hashid"]), case["error"])


# ---------------------------------------------------------------- remote messages
DIGEST = "target_registry:RemoteRegistryTarget callable_kind:CallableKind digest:raw32"
BUFFER = "owner_endpoint_id:i32 buffer_id:u64 generation:u64"
USE = "access_flags:access transport_profile:text128"
ROUTE = f"remote_addr:u64 rkey_or_token:u64 ub_ldst_va:u64 {USE}"
DESCRIBED = "transport_descriptor:blob4096 :zero"
FORMS = {
    "hello": "session_id:u64 endpoint_id:i32 protocol_version:u32 comm_profile:text1024"
    " feature_flags:u64 ready_state:ReadyState",
    "completion": "sequence:u64 error_code:i32 error_message:text4096",
    "control": "control_name:ControlName control_version:some32 command_bytes:blob16777216",
    "control_reply": "sequence:u64 control_name:ControlName control_version:u32 error_code:i32"
    " error_message:text4096 result_bytes:blob16777216",
    "register_callable": DIGEST + " payload_version:some32 payload:blob16777216",
    "digest_callable": DIGEST,
    "chip_callable": "descriptor_bytes:blob4096 blob_location:ChipCallableBlobLocation blob_size:u64"
    " blob_sha256:raw32 inline_blob:blob16777216 staged_blob_token:blob1024 :zero",
    "export_request": f"{BUFFER} offset:u64 nbytes:some64 {USE} :zero",
    "export_result": f"{BUFFER} address_space:shared offset:u64 nbytes:u64 export_id:some64 {ROUTE}"
    f" {DESCRIBED}",
    "import_request": "importer_endpoint_id:i32 requested_access_flags:access"
    " export_desc:export_result :zero",
    "import_result": f"importer_endpoint_id:i32 {BUFFER} import_id:u64 address_space:shared offset:u64"
    f" nbytes:u64 {ROUTE} import_descriptor:blob4096 :zero",
    "release_import": f"importer_endpoint_id:i32 {BUFFER} import_id:u64 :zero",
}
TITLES = {
    "register_callable": "REGISTER_CALLABLE",
    "digest_callable": "DIGEST_CALLABLE",
    "export_request": "EXPORT_BUFFER",
    "export_result": "EXPORT_BUFFER result",
    "import_request": "IMPORT_BUFFER",
    "import_result": "IMPORT_BUFFER result",
}
NUMBERS = {
    "u32": "I",
    "some32": "I",
    "access": "I",
    "zero": "I",
    "i32": "i",
    "u64": "Q",
    "some64": "Q",
}


def members(kind):
    """Return the numbers of an enumeration by name, of `shared` those that an export can have."""
    if kind == "shared":
        return {name: members("RemoteAddressSpace")[name] for name in ("REMOTE_WINDOW", "UB_LDST")}
    if kind in ENUMS:
        return ENUMS[kind]["values"]
    cases = json.loads((FOLDER / "remote.json").read_text())["cases"]
    return next((case["values"] for case in cases if case.get("enum") == kind), {})


def split(kind):
    """Return a field's type and its limit: `text128` is a text of at most 128 bytes."""
    base = kind.rstrip("0123456789")
    return (base, int(kind[len(base) :])) if base in ("text", "blob", "raw") else (kind, 0)


def packed(form, value):
    """Return the bytes of a message, field by field."""
    raw = b""
    for field in form.split():
        name, _, kind = field.partition(":")
        base, _ = split(kind)
        one = value.get(name, 0)
        if base in NUMBERS:
            raw += struct.pack("<" + NUMBERS[base], int(one, 16) if isinstance(one, str) else one)
        elif base == "text":
            raw += text(one)
        elif base in ("blob", "raw"):
            raw += text(to_bytes(one)) if base == "blob" else to_bytes(one)
        elif base in FORMS:
            raw += packed(FORMS[base], one)
        else:
            raw += u32(members(kind)[one])
    return raw


def task_bytes(value):
    config = {"aicpu_thread_num": 3} | value["config"]
    raw = to_bytes(value["callable_digest"])
    raw += struct.pack("<7i", *(config.get(name, 0) for name in KNOBS))
    raw += text(config.get("output_prefix", ""))
    raw += u32(len(value["tensors"]), len(value["scalars"]))
    for one in value["tensors"]:
        short = tensor(one["tensor"])
        raw += short[:32] + u32(short[32]) + short[33:34] + bytes(7)
    for one in value["tensors"]:
        raw += b"\1" + packed(REMOTE_DESC, one["desc"]) if one["desc"] else b"\0"
    raw += b"".join(int(one, 16).to_bytes(8, "little") for one in value["scalars"])
    return raw + text(to_bytes(value["inline_payload"]))


REMOTE_DESC = (
    "address_space:RemoteAddressSpace owner_endpoint_id:i32 buffer_id:u64 offset:u64 nbytes:u64"
    " remote_addr:u64 rkey_or_token:u64 generation:u64 inline_payload_offset:u64"
    " inline_payload_len:u64 :zero :zero"
)


def cut(raw, size):
    """Return so many bytes and the rest."""
    if size > len(raw):
        raise ValueError("bytes are expected")
    return raw[:size], raw[size:]


def unpacked(form, raw, title):
    """Return the fields of a message and what follows it; a ValueError names what is wrong."""
    value = {}
    for field in form.split():
        name, _, kind = field.partition(":")
        where = f"{title}.{name or 'reserved'}"
        base, most = split(kind)
        if base in FORMS:
            value[name], raw = unpacked(FORMS[base], raw, TITLES[base])
            require_message(base, value[name])
            continue
        form = NUMBERS.get(base, "I")
        size = most if base == "raw" else struct.calcsize("<" + form)
        one, raw = cut(raw, size)
        if base != "raw":
            (one,) = struct.unpack("<" + form, one)
        if base in ("text", "blob"):
            if one > most:
                raise ValueError("too long")
            one, raw = cut(raw, one)
            try:
                one = one.decode() if base == "text" else one
            except UnicodeDecodeError:
                raise ValueError("UTF-8") from None
        wrong = {
            "zero": one != 0,
            "some32": one == 0,
            "some64": one == 0,
            "access": one not in (1, 2, 3),
        }
        known = members(kind)
        if wrong.get(base) or (known and one not in known.values()):
            raise ValueError(where)
        value[name] = one
    return value, raw


def require_message(kind, value):
    """Refuse what the fields of a message must not have together."""
    is_imported = kind in ("import_result", "release_import")
    dead = value.get("owner_endpoint_id", 0) < 0 or 0 in (
        value.get("buffer_id"),
        value.get("generation"),
    )
    if is_imported and (dead or value["import_id"] == 0 or value["importer_endpoint_id"] < 0):
        raise ValueError("live imported buffer identity")
    if kind == "import_request" and value["importer_endpoint_id"] < 0:
        raise ValueError("live imported buffer identity")
    if dead:
        raise ValueError("live owner buffer identity")
    if value.get("offset", 0) + value.get("nbytes", 0) >= 1 << 64:
        raise ValueError("do not fit 64 bits")
    if (
        kind == "import_request"
        and value["requested_access_flags"] & ~(value["export_desc"]["access_flags"])
    ):
        raise ValueError("is asked for")
    if kind == "chip_callable":
        inline, size = value["blob_location"] == 1, len(value["inline_blob"])
        if bool(size) != inline or bool(value["staged_blob_token"]) == inline:
            raise ValueError("give exactly the one")
        if inline and value["blob_size"] != size:
            raise ValueError("CHIP_CALLABLE.blob_size")


def read_frame(raw):
    head, payload = cut(raw, 40)
    magic, version, kind, _, _, _, size, flags = struct.unpack("<4sIIQiQII", head)
    checks = {
        "frame.magic": magic == b"SLR3",
        "frame.version": version == 1,
        "frame.flags": flags == 0,
        "payload too long": size <= 1 << 24,
        "frame.type": 1 <= kind <= 7,
        "is announced": size == len(payload),
    }
    for name, right in checks.items():
        if not right:
            raise ValueError(name)


def read_task(raw):
    """Check a TASK from its front to its end."""
    raw = cut(raw, 32)[1]
    knobs, raw = cut(raw, 28)
    value, raw = unpacked("output_prefix:text1024", raw, "TASK.config")
    try:
        config(dict(zip(KNOBS, struct.unpack("<7i", knobs), strict=True)) | value)
    except ValueError:
        raise ValueError("TASK.config") from None
    counts, raw = cut(raw, 8)
    tensors, scalars = struct.unpack("<II", counts)
    if max(tensors, scalars) > 4096:
        raise ValueError("are allowed")
    for i in range(tensors):
        one, raw = cut(raw, 44)
        require_tensor(struct.unpack("<Q5IIIB7s", one), f"TASK.args.tensor_metadata[{i}]")
    descs = []
    for i in range(tensors):
        where = f"TASK.args.remote_desc[{i}]"
        present, raw = cut(raw, 1)
        if present[0] > 1:
            raise ValueError(where + ".present")
        if present[0]:
            desc, raw = unpacked(REMOTE_DESC.removesuffix(" :zero :zero"), raw, where)
            flags, raw = cut(raw, 8)
            if any(flags):
                raise ValueError(where + ".flags")
            descs.append(desc)
    raw = cut(raw, 8 * scalars)[1]
    value, raw = unpacked("inline_payload:blob1048576", raw, "TASK.args")
    for desc in descs:
        require_desc(desc, len(value["inline_payload"]))
    if raw:
        raise ValueError("follow its end")


def require_tensor(fields, where):
    data, *shape, ndims, dtype, child, rest = fields
    if data:
        raise ValueError(where + ".data")
    if ndims > 5 or any(shape[ndims:]):
        raise ValueError(where + ".shapes")
    if dtype not in DTYPES.values():
        raise ValueError(where + ".dtype")
    if child > 1 or any(rest):
        raise ValueError("child_memory")


def require_desc(desc, arena):
    inline = desc["inline_payload_offset"], desc["inline_payload_len"]
    if desc["address_space"] != 1:
        if any(inline):
            raise ValueError("its inline fields must be 0")
        require_message("", desc)
        return
    handle = ("buffer_id", "offset", "remote_addr", "rkey_or_token", "generation")
    if any(desc[name] for name in handle) or desc["owner_endpoint_id"] not in (0, -1):
        raise ValueError("is inline and has a buffer")
    if desc["inline_payload_len"] != desc["nbytes"]:
        raise ValueError("are inline, the tensor has")
    if sum(inline) > arena:
        raise ValueError("are not within the inline arena")


def read_message(kind, raw):
    if kind == "frame":
        return read_frame(raw)
    if kind == "task":
        return read_task(raw)
    value, rest = unpacked(FORMS[kind], raw, TITLES.get(kind, kind.upper()))
    require_message(kind, value)
    if rest:
        raise ValueError("follow its end")
    return None


def check_wire_enum(case):
    same(case["type"], "u32")
    first = min(case["values"].values())
    same(list(case["values"].values()), [first + i for i in range(len(case["values"]))])


def check_limits(case):
    limits = case["values"]
    found = {int(field.split(":text")[1]) for field in FORMS["hello"].split() if ":text" in field}
    same(found, {limits["MAX_STRING_BYTES"]})
    found = {
        int(field.split(":text")[1]) for field in FORMS["completion"].split() if ":text" in field
    }
    same(found, {limits["MAX_ERROR_BYTES"]})


def check_frame(case):
    kind = members("FrameType")[case["frame_type"]]
    numbers = int(case["session_id"], 16), case["endpoint_id"], int(case["sequence"], 16)
    payload = to_bytes(case["payload"])
    raw = struct.pack("<4sIIQiQII", b"SLR3", 1, kind, *numbers, len(payload), 0) + payload
    same(raw, to_bytes(case["bytes"]), case["name"])
    read_frame(raw)


def message_bytes(kind, value):
    return task_bytes(value) if kind == "task" else packed(FORMS[kind], value)


def check_message(case):
    raw = message_bytes(case["kind"], case["value"])
    same(raw, to_bytes(case["bytes"]), case["name"])
    read_message(case["kind"], raw)


def check_message_refused(case):
    same(
        refused(read_message, case["message"], to_bytes(case["bytes"])), case["names"], case["name"]
    )


globals().update({f"check_{kind}": check_message for kind in ("task", *FORMS)})


# ---------------------------------------------------------------- rings
class Ring:
    """Claims in their order, each as [start, bytes, bytes skipped before it, live]."""

    def __init__(self, size):
        self.size, self.claims, self.next = size, [], 0

    def held(self):
        return sum(size + skipped for _, size, skipped, _ in self.claims)

    def claim(self, nbytes):
        """Return the new claim, or why there is none."""
        size = (nbytes + 1023) // 1024 * 1024
        if size > self.size:
            return "TOO_LARGE"
        start, skipped = self.next, 0
        if size and self.held() == 0:
            start = 0
        elif size and start + size > self.size:
            start, skipped = 0, self.size - start
        if self.held() + size + skipped > self.size:
            return "FULL"
        self.next = start + size
        self.claims.append([start, size, skipped, True])
        return self.claims[-1]

    def release(self, claim):
        claim[3] = False
        while self.claims and not self.claims[0][3]:
            del self.claims[0]

    def picture(self):
        for start, size, skipped, _ in self.claims:
            if size + skipped:
                return self.held(), self.next, (start - skipped) % self.size
        return 0, None, None


def check_ring(case):
    rings = [Ring(case["ring_bytes"]) for _ in range(case["rings"])]
    live, ids = {}, 0  # task → (id, ring, claim)
    for step in case["steps"]:
        found = {}
        if step["do"] == "release":
            _, index, claim = live.pop(step["task"])
            rings[index].release(claim)
        else:
            index = min(step["depth"], case["rings"] - 1)
            oldest = min([number for number, _, _ in live.values()], default=ids)
            if "window" in case and ids - oldest >= case["window"]:
                claim = "FULL"
            else:
                claim = rings[index].claim(step["nbytes"])
            if isinstance(claim, str):
                found = {"refused": claim}
            else:
                live[step["task"]] = ids, index, claim
                place = f"ring{index}+0x{claim[0]:x}" if step["nbytes"] else None
                end = claim[0] + claim[1] if rings[index].held() else None
                found = {"id": ids, "ring": index, "address": place, "end": end}
                ids += 1
        held, top, tail = zip(*(ring.picture() for ring in rings), strict=True)
        found |= {"held": list(held), "top": list(top), "tail": list(tail)}
        same(found, step["then"], f"{case['name']}: {step['do']} {step['task']}")


# ---------------------------------------------------------------- tag walks
class Task:
    """A live task: whom it depends on, what keeps it, where its slab is."""

    def __init__(self, name, ring, claim):
        self.name, self.ring, self.claim = name, ring, claim
        self.producers, self.keeps, self.keys = [], [], []
        self.total, self.released, self.done = 1, 0, False


class Walk:
    """Tasks by the keys they produce, and by the slabs they own."""

    def __init__(self):
        self.rings = [Ring(1 << 16) for _ in range(4)]
        self.live, self.scopes = {}, [[]]
        self.map, self.slabs = {}, {}

    def take(self, step):
        do, found = step["do"], {}
        if do == "open_scope":
            self.scopes.append([])
        elif do == "close_scope":
            for task in self.scopes.pop():
                self.release(task)
        elif do == "finish":
            self.end(self.live[step["task"]])
        else:
            found = self.submit(step) if do == "submit" else self.alloc(step)
        rows = sorted([data, owner, task.name] for (data, owner), task in self.map.items())
        refs = {task.name: [task.total, task.released] for task in self.live.values()}
        return found | {"map": rows, "refs": refs}

    def add(self, name, sizes):
        """Return a new task, and the address of a slab for each of some sizes."""
        index = min(len(self.scopes) - 1, 3)
        rounded = [(size + 1023) // 1024 * 1024 for size in sizes]
        claim = self.rings[index].claim(sum(rounded))
        task = self.live[name] = Task(name, index, claim)
        self.scopes[-1].append(task)
        starts = [claim[0] + sum(rounded[:i]) for i in range(len(sizes))]
        return task, [
            f"ring{index}+0x{start:x}" if size else "0x0"
            for start, size in zip(starts, sizes, strict=True)
        ]

    def alloc(self, step):
        task, (address,) = self.add(step["task"], [step["nbytes"]])
        task.done, task.released = True, 1
        self.produce(task, (address, -1), slab=True)
        return self.found(task, [address])

    def submit(self, step):
        tensors = [
            (one, member["worker"] if one.get("child_memory") else -1)
            for member in step.get("members", [step])
            for one in member.get("tensors", [])
        ]
        is_auto = [one["tag"] == "OUTPUT" and one["data"] == "0x0" for one, _ in tensors]
        sizes = [one["nbytes"] for (one, _), auto in zip(tensors, is_auto, strict=True) if auto]
        task, slabs = self.add(step["task"], sizes)
        slabs = iter(slabs)
        keys = [
            (next(slabs) if auto else one["data"], owner)
            for (one, owner), auto in zip(tensors, is_auto, strict=True)
        ]
        for (one, _), key in zip(
            tensors, keys, strict=True
        ):  # every look-up comes before every insertion
            if one["tag"] in ("INPUT", "INOUT"):
                self.depend(task.producers, self.map.get(key))
                self.depend(task.keeps, self.slabs.get(key))
        task.keeps = [one for one in task.keeps if one not in task.producers]
        for other in task.producers + task.keeps:
            other.total += 1
        for (one, _), key, auto in zip(tensors, keys, is_auto, strict=True):
            if one["tag"] in ("OUTPUT", "INOUT", "OUTPUT_EXISTING"):
                self.produce(task, key, slab=auto)
        return self.found(task, [data for data, _ in keys])

    @staticmethod
    def depend(tasks, other):
        if other is not None and other not in tasks:
            tasks.append(other)

    def produce(self, task, key, slab):
        if key[0] != "0x0":
            task.keys.append(key)
            self.map[key] = task
            if slab:
                self.slabs[key] = task

    def found(self, task, addresses):
        in_order = [one for one in self.live.values() if one in task.producers]
        return {
            "producers": [one.name for one in in_order],
            "waits_for": [one.name for one in in_order if not one.done],
            "keeps": [one.name for one in self.live.values() if one in task.keeps],
            "addresses": addresses,
        }

    def end(self, task):
        task.done = True
        for other in (*task.producers, *task.keeps, task):
            self.release(other)

    def release(self, task):
        task.released += 1
        if task.done and task.released == task.total + 1:
            del self.live[task.name]
            self.rings[task.ring].release(task.claim)
            for key in task.keys:
                if self.slabs.get(key) is task:
                    del self.slabs[key]
                if self.map.get(key) is task:
                    del self.map[key]
                    if key in self.slabs:
                        self.map[key] = self.slabs[key]


def check_walk(case):
    walk = Walk()
    for number, step in enumerate(case["steps"]):
        same(walk.take(step), step["then"], f"{case['name']}, step {number}")


# ---------------------------------------------------------------- all of it
def main(names):
    for name in names:
        whole = json.loads((FOLDER / f"{name}.json").read_text())
        same(whole["format"], FORMAT, name)
        for case in whole["cases"]:
            globals()["check_" + case["kind"]](case)
        print(f"{name}: {len(whole['cases'])} cases agree")


if __name__ == "__main__":
    main(sys.argv[1:] or ["layouts", "descriptors", "remote", "rings", "tag-walks"])
