"""Reads spec/vectors/*.json, and refuses what docs/vectors.md does not describe.

A shape says what may stand somewhere: a type; a list with the shape of its items; a dict with the
shape under each key, `key?` for one that may be missing; `EACH` for names that are free; a tuple of
the strings that are allowed; `Or` of shapes; or one of the spellings below.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from ..spec_rules import SPEC

FOLDER = SPEC / "vectors"
FORMAT = 1


class Malformed(ValueError):
    """A file, or a part of it, is not what the format says."""


class Spelling(NamedTuple):
    """Strings of one form."""

    what: str
    form: re.Pattern[str]


class Or(NamedTuple):
    """Any of some shapes; None is the shape of null."""

    shapes: tuple[Any, ...]


EACH = "*"
HEX = Spelling("a 64-bit number in hex", re.compile(r"0x[0-9a-f]{1,16}"))
DECIMAL = Spelling("a number in decimal", re.compile(r"-?[0-9]+"))
BYTES = Spelling("bytes", re.compile(r"(?:(?:[0-9a-f]{2})+(?:\*[1-9][0-9]*)?(?: |$))*"))
PLACE = Spelling("an address", re.compile(r"0x[0-9a-f]{1,16}|ring[0-3]\+0x[0-9a-f]{1,16}"))
TYPE = Spelling("a type", re.compile(r"(u8|i32|u32|u64|char|ContinuousTensor)(\[[0-9]+\])?"))
RULE = Spelling("a rule", re.compile(r"[A-Z]+-[A-Z]+-[0-9]+"))
CASE = {"name": str, "why": str, "rules": [RULE]}

TAGS = ("INPUT", "OUTPUT", "INOUT", "OUTPUT_EXISTING", "NO_DEP")
STATES = ("FREE", "PENDING", "READY", "RUNNING", "COMPLETED", "CONSUMED", "FAILED")
POOLS = ("NEXT_LEVEL", "SUB")
COUNT_ERROR = {"tensors": int, "scalars": int, "needed": int, "room": int}

TENSOR = {"data": HEX, "shapes": [int], "dtype": str, "child_memory": bool}
CONFIG = {EACH: Or((int, str))}
ARGUMENTS = {"tensors": [TENSOR], "scalars": [HEX]}
IMAGE = {EACH: BYTES}

LAYOUTS = {
    "struct": {"struct": str, "size": int, "fields": {EACH: {"offset": int, "type": TYPE}}},
    "scalar": {"from": ("integer", "float64", "float32"), "value": str, "bits": HEX},
    "scalar_refused": {"value": DECIMAL},
    "tensor": {"value": TENSOR, "bytes": BYTES},
    "config": {"value": CONFIG, "bytes": BYTES},
    "config_refused": {"value": CONFIG, "names": str},
    "blob": {"value": ARGUMENTS, "bytes": BYTES},
    "blob_refused": {"bytes": BYTES, "error": COUNT_ERROR},
    "chip_arguments": {"value": ARGUMENTS, "image": IMAGE},
    "task_frame": {"digest": BYTES, "config": CONFIG, "value": ARGUMENTS, "image": IMAGE},
    "control_frame": {
        "command": str,
        "arguments": [HEX],
        "payload_name": str,
        "digest": BYTES,
        "image": IMAGE,
    },
    "error_message": {"message": str, "image": IMAGE},
    "envelope": {"payload": BYTES, "bytes": BYTES},
    "envelope_refused": {"bytes": BYTES, "error": str},
}
ENUMS = {
    "enum": {"enum": str, "type": TYPE, "values": {EACH: int}},
    "constants": {"values": {EACH: int}},
    "element_sizes": {"values": {EACH: int}},
}
IDENTIFIED = {"descriptor": BYTES, "hashid": str, "digest": BYTES}
DESCRIPTORS = {
    "chip": {
        "target_arch": str,
        "platform": str,
        "runtime": str,
        "blob": BYTES,
        "signature": [("SCALAR", "IN", "OUT", "INOUT")],
        **IDENTIFIED,
    },
    "python_serialized": {"payload": BYTES, **IDENTIFIED},
    "python_import": {"module": str, "qualname": str, **IDENTIFIED},
    "import_refused": {"module": str, "qualname": str, "error": str},
    "hashid_refused": {"hashid": str, "error": str},
}

MESSAGES = (
    *("hello", "task", "completion", "control", "control_reply", "register_callable"),
    *("digest_callable", "chip_callable", "export_request", "export_result", "import_request"),
    *("import_result", "release_import"),
)
"""Their fields are those of the package's types, and of those in check.py."""
REMOTE = {
    "wire_enum": ENUMS["enum"],
    "limits": {"values": {EACH: int}},
    "frame": {
        "frame_type": str,
        "session_id": HEX,
        "endpoint_id": int,
        "sequence": HEX,
        "payload": BYTES,
        "bytes": BYTES,
    },
    **{name: {"value": dict, "bytes": BYTES} for name in MESSAGES},
    "message_refused": {"message": ("frame", *MESSAGES), "bytes": BYTES, "names": str},
}

RINGS = {
    "ring": {
        "rings": int,
        "ring_bytes": int,
        "window?": int,
        "steps": [
            {
                "do": ("alloc", "release"),
                "task": str,
                "nbytes?": int,
                "depth?": int,
                "then": {
                    "refused?": ("FULL", "TOO_LARGE"),
                    "id?": int,
                    "ring?": int,
                    "address?": Or((PLACE, None)),
                    "end?": Or((int, None)),
                    "held": [int],
                    "top": [Or((int, None))],
                    "tail": [Or((int, None))],
                },
            }
        ],
    }
}

MEMBER = {
    "tensors?": [{"tag": TAGS, "data": PLACE, "nbytes": int, "child_memory?": bool}],
    "worker?": int,
}
SUBMIT = {"do": ("submit",), "task": str, "pool": POOLS, **MEMBER, "members?": [MEMBER]}
ALLOC = {"do": ("alloc",), "task": str, "nbytes": int}
SCOPE = {"do": ("open_scope", "close_scope")}
REFS = {EACH: [int]}
MAP = [[Or((PLACE, int, str))]]


def then(step: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return step | {"then": expected}


FOUND = {
    "producers": [str],
    "waits_for": [str],
    "keeps": [str],
    "addresses": [PLACE],
    "map": MAP,
    "refs": REFS,
}
WALKS = {
    "walk": {
        "steps": [
            Or(
                (
                    then(SUBMIT, FOUND),
                    then(ALLOC, FOUND),
                    then(SCOPE, {"map": MAP, "refs": REFS}),
                    then({"do": ("finish",), "task": str}, {"map": MAP, "refs": REFS}),
                )
            )
        ]
    }
}

AT_WORK = {
    "member": Or((int, None)),
    "worker": Or((int, None)),
    "mailbox": ("TASK_READY", "TASK_DONE"),
    "skip": bool,
}
ERROR = {
    "outcome": ("TASK_FAILURE", "ENDPOINT_FAILURE"),
    "task": str,
    "worker": Or((int, None)),
    "member": Or((int, None)),
}
PICTURE = {
    "refused?": ("FAILED",),
    "states": {EACH: STATES},
    "refs": REFS,
    "running": {EACH: [AT_WORK]},
    "error": Or((None, ERROR)),
}
OUTCOMES = ("SUCCESS", "TASK_FAILURE", "SKIPPED")
SCHEDULER = {
    "trace": {
        "next_level": int,
        "sub": int,
        "steps": [
            Or(
                (
                    then(SUBMIT, PICTURE),
                    then(ALLOC, PICTURE),
                    then(SCOPE, PICTURE),
                    then({"do": ("pass", "settle", "cancel", "reclaim")}, PICTURE),
                    then(
                        {"do": ("end",), "task": str, "member?": int, "outcome": OUTCOMES}, PICTURE
                    ),
                    then({"do": ("die",), "pool": POOLS, "worker": int}, PICTURE),
                )
            )
        ],
    }
}

FILES = {
    "layouts": LAYOUTS,
    "enums": ENUMS,
    "descriptors": DESCRIPTORS,
    "remote": REMOTE,
    "tag-walks": WALKS,
    "rings": RINGS,
    "scheduler": SCHEDULER,
}
"""Per file, the shape of each kind of case."""


# ---------------------------------------------------------------- shapes
def require(value: Any, shape: Any, where: str) -> None:
    """Refuse a value that has another shape."""
    if isinstance(shape, Or):
        require_any(value, shape.shapes, where)
    elif isinstance(shape, Spelling):
        if not isinstance(value, str) or not shape.form.fullmatch(value):
            raise Malformed(f"{where}: {value!r} is not {shape.what}")
    elif isinstance(shape, tuple):
        if value not in shape:
            raise Malformed(f"{where}: {value!r} is none of {shape}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise Malformed(f"{where}: {value!r} is no list")
        for i, item in enumerate(value):
            require(item, shape[0], f"{where}[{i}]")
    elif isinstance(shape, dict):
        require_object(value, shape, where)
    elif shape is None:
        if value is not None:
            raise Malformed(f"{where}: {value!r} is not null")
    elif type(value) is not shape:
        raise Malformed(f"{where}: {value!r} is no {shape.__name__}")


def require_any(value: Any, shapes: tuple[Any, ...], where: str) -> None:
    problems = []
    for shape in shapes:
        try:
            return require(value, shape, where)
        except Malformed as problem:
            problems.append(str(problem))
    raise Malformed("; or ".join(problems))


def require_object(value: Any, shape: dict[str, Any], where: str) -> None:
    if not isinstance(value, dict):
        raise Malformed(f"{where}: {value!r} is no object")
    if EACH in shape:
        for key, item in value.items():
            require(item, shape[EACH], f"{where}.{key}")
        return
    keys = {key.removesuffix("?"): key for key in shape}
    if unknown := value.keys() - keys.keys():
        raise Malformed(f"{where}: unknown keys {sorted(unknown)}")
    if missing := {key for key in shape if not key.endswith("?")} - value.keys():
        raise Malformed(f"{where}: missing keys {sorted(missing)}")
    for key, item in value.items():
        require(item, shape[keys[key]], f"{where}.{key}")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Malformed(f"a key stands twice among {[key for key, _ in pairs]}")
    return made


# ---------------------------------------------------------------- files
def parse(name: str, text: str) -> dict[str, Any]:
    """Return a file's contents once they are found to be right."""
    whole, shapes = json.loads(text, object_pairs_hook=_no_key_twice), FILES[name]
    cases = whole.get("cases", []) if isinstance(whole, dict) else []
    require(whole, {"format": int, "about": str, "cases": [dict]}, name)
    if whole["format"] != FORMAT:
        raise Malformed(f"{name}: format {whole['format']}; this is a reader of format {FORMAT}")
    for i, case in enumerate(cases):
        where = f"{name}[{i}]"
        require(case.get("kind"), tuple(shapes), f"{where}.kind")
        require(case, {"kind": str, **CASE, **shapes[case["kind"]]}, where)
    names = [case["name"] for case in cases]
    if len(set(names)) != len(names):
        raise Malformed(f"{name}: two cases have the same name")
    return whole


def read(name: str) -> dict[str, Any]:
    """Return the contents of a file of spec/vectors."""
    return parse(name, (FOLDER / f"{name}.json").read_text())


# ---------------------------------------------------------------- bytes
def to_bytes(spelled: str) -> bytes:
    """Return the bytes that groups of hex digits spell: `ff00 00*6` is ff and seven zeros."""
    groups = (group.partition("*") for group in spelled.split())
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in groups)


def spell(raw: bytes) -> str:
    """Spell bytes: eight to a group, equal groups counted, and so are the zeros of an all-zero one."""
    groups = [raw[i : i + 8].hex() for i in range(0, len(raw), 8)]
    spelled: list[list[Any]] = []
    for group in groups:
        if spelled and spelled[-1][0] == group:
            spelled[-1][1] += 1
        else:
            spelled.append([group, 1])
    return " ".join(_counted(group, times) for group, times in spelled)


def _counted(group: str, times: int) -> str:
    if not group.strip("0"):
        group, times = "00", times * len(group) // 2
    return group if times == 1 else f"{group}*{times}"
