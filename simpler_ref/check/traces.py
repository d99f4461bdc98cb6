"""Reads a file of scheduler traces, and refuses anything else with the place where it differs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = 1
RINGS, RING_BYTES = 4, 1 << 16
"""What a case has that does not say."""
_ADDRESS = re.compile(r"(?:ring(\d{1,2})\+)?0x([0-9a-fA-F]{1,16})", re.ASCII)


class TraceError(ValueError):
    """A file is no scheduler trace; the text says where it differs from one."""


# ---------------------------------------------------------------- what there is in a file
class _Or(NamedTuple):
    """Null, or this."""

    form: Any


# A tuple has the words that can be there, a range the numbers, a list the form of each element. An
# object may lack the keys with a question mark; with the key * it has names of tasks as keys.
_NUMBER = range(1 << 53)
_WORKER = range(4096)
_POOL = ("NEXT_LEVEL", "SUB")
_MEMBER = {
    "tensors?": [
        {
            "tag": ("INPUT", "OUTPUT", "INOUT", "OUTPUT_EXISTING", "NO_DEP"),
            "data": _ADDRESS,
            "nbytes": _NUMBER,
            "child_memory?": bool,
        }
    ],
    "worker?": _Or(_WORKER),
}
_STATE = ("FREE", "PENDING", "READY", "RUNNING", "COMPLETED", "CONSUMED", "FAILED")
_RUNNING = {
    "member": _Or(_WORKER),
    "worker": _Or(_WORKER),
    "mailbox": ("TASK_READY", "TASK_DONE"),
    "skip": bool,
}
_ERROR = {
    "outcome": ("TASK_FAILURE", "ENDPOINT_FAILURE"),
    "task": str,
    "worker": _Or(range(-1, len(_WORKER))),
    "member": _Or(_WORKER),
}
_THEN = {
    "states": {"*": _STATE},
    "refs": _Or({"*": [_NUMBER]}),
    "running": {"*": [_RUNNING]},
    "error": _Or(_ERROR),
    "refused?": ("FAILED",),
}
_STEPS: dict[str, dict[str, Any]] = {
    "submit": {"task": str, "pool": _POOL, "members?": [_MEMBER], **_MEMBER},
    "alloc": {"task": str, "nbytes": _NUMBER},
    "end": {
        "task": str,
        "outcome": ("SUCCESS", "TASK_FAILURE", "SKIPPED"),
        "member?": _Or(_WORKER),
    },
    "die": {"pool": _POOL, "worker": _WORKER},
    "dispatch": {"pool": _POOL},
    "finish": {"cancel?": bool},
    **{do: {} for do in ("open_scope", "close_scope", "cancel", "reclaim")},
    **{do: {} for do in ("pass", "settle", "wire", "collect")},
}
_CASE = {
    "kind": ("trace",),
    "name": str,
    "why?": str,
    "rules?": [str],
    "next_level": _WORKER,
    "sub": _WORKER,
    "track_reads?": bool,
    "rings?": range(1, 65),
    "ring_bytes?": range(1024, 1 << 47, 1024),
    "steps": [{"do": tuple(_STEPS), "then": _THEN, "*": object}],
}
_FILE = {"format": range(FORMAT, FORMAT + 1), "about?": str, "cases": [_CASE]}


def _require(value: Any, form: Any, where: str) -> None:
    """Refuse a value that has not this form."""
    if isinstance(form, _Or):
        if value is not None:
            _require(value, form.form, where)
    elif isinstance(form, dict):
        _require_keys(value, form, where)
    elif isinstance(form, list):
        if type(value) is not list:
            raise _refusal(value, "a list", where)
        for number, one in enumerate(value):
            _require(one, form[0], f"{where}[{number}]")
    elif isinstance(form, tuple):
        if type(value) is not str or value not in form:
            raise _refusal(value, f"one of {', '.join(form)}", where)
    elif isinstance(form, range):
        if type(value) is not int or value not in form:
            steps = f" in steps of {form.step}" if form.step > 1 else ""
            raise _refusal(value, f"a number from {form[0]} to {form[-1]}{steps}", where)
    elif isinstance(form, re.Pattern):
        if type(value) is not str or not form.fullmatch(value):
            raise _refusal(value, 'an address such as "0x7000" or "ring1+0x400"', where)
    elif not isinstance(value, form):
        raise _refusal(value, "true or false" if form is bool else "a text", where)


def _require_keys(value: Any, form: dict[str, Any], where: str) -> None:
    if type(value) is not dict:
        raise _refusal(value, "an object", where)
    for name in form:
        if name.isidentifier() and name not in value:
            raise TraceError(f"{where} has no {name!r}")
    for name, one in value.items():
        key = next((key for key in (name, f"{name}?", "*") if key in form), None)
        if key is None:
            known = ", ".join(known.rstrip("?") for known in form)
            raise TraceError(f"{where} has {name[:60]!r}; its keys are {known}")
        _require(one, form[key], f"{where}.{name}")


def _refusal(value: object, form: str, where: str) -> TraceError:
    text = repr(value)
    return TraceError(f"{where} is {text[:60] + ' …' * (len(text) > 60)}, not {form}")


# ---------------------------------------------------------------- reading it
def read(path: str | Path) -> list[dict[str, Any]]:
    """Return the cases of a file; they have the keys and types of scheduler traces."""
    octets = Path(path).read_bytes()
    if octets.startswith(b"simpler_ref trace"):
        raise TraceError(
            "it is the trace of a Worker, which says when tasks ran, and not what each pass did: have a "
            "Stepper(record=FILE) take the steps, and look at this one with python -m simpler_ref trace"
        )
    try:
        whole = json.loads(octets.decode())
    except RecursionError:
        raise TraceError("it is nested too deeply") from None
    except ValueError as error:
        raise TraceError(f"it is not JSON: {error}") from None
    _require(whole, _FILE, "file")
    for number, case in enumerate(whole["cases"]):
        pools: dict[str, int] = {}
        for at, step in enumerate(case["steps"]):
            where = f"file.cases[{number}].steps[{at}]"
            words = {key: one for key, one in step.items() if key not in ("do", "then")}
            _require(words, _STEPS[step["do"]], where)
            _require_known(step, pools, case, where)
    return [*whole["cases"]]


def address(spelled: str) -> tuple[int | None, int]:
    """Return the ring, None for memory of users, and the address or offset there."""
    match = _ADDRESS.fullmatch(spelled)
    assert match is not None
    return None if match[1] is None else int(match[1]), int(match[2], 16)


def members(step: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is submitted for each worker."""
    yield from step.get("members", [step])


def _require_known(
    step: dict[str, Any], pools: dict[str, int], case: dict[str, Any], where: str
) -> None:
    """Refuse tasks, workers and rings that there are not; `pools` has how many workers are for a task."""
    workers = case[step["pool"].lower()] if "pool" in step else 0
    if step["do"] in ("submit", "alloc"):
        if step["task"] in pools:
            raise TraceError(f"{where}: there is a task {step['task']!r} before")
        pools[step["task"]] = workers
    then = step["then"]
    named = [(task, row) for task, rows in then["running"].items() for row in rows]
    named += [(then["error"]["task"], then["error"])] if then["error"] else []
    refs = then["refs"] or {}
    unknown = {step.get("task"), *then["states"], *refs, *(task for task, _ in named)}
    unknown -= {None, *pools}
    if unknown:
        raise TraceError(f"{where}: no task {min(unknown)!r} was submitted")
    for task, one in [*named, *((None, one) for one in members(step))]:
        most = workers if task is None else pools[task]
        if one.get("worker") is not None and one["worker"] >= most:
            raise TraceError(f"{where}: there is no worker {one['worker']}, only {most}")
    if any(len(pair) != 2 for pair in refs.values()):
        raise TraceError(f"{where}.then.refs: each task has two numbers, total and released")
    if "members" in step and (not step["members"] or {"tensors", "worker"} & set(step)):
        raise TraceError(f"{where}: a group has members, which have the tensors and workers")
    for one in members(step):
        for tensor in one.get("tensors", []):
            if (address(tensor["data"])[0] or 0) >= case.get("rings", RINGS):
                raise TraceError(f"{where}: there is no ring for {tensor['data']}")
