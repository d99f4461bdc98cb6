"""`args_dump/`: what tasks read before they ran, and what they wrote: a manifest and the bytes.

Rule     FLAG-DUMP-1 to -4
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ...jit import layout as L
from .run import READS, WRITES, FlaggedRun, Task, Tensor

BIN = "args.bin"
BEFORE, AFTER = "before_dispatch", "after_completion"
WITHOUT_BYTES = 3
"""The level at which only types and shapes are written."""
_SCALARS = {L.SIGNED: "INT64", L.FLOAT64: "FLOAT64"}
Entry = dict[str, Any]


def arguments(run: FlaggedRun, level: int, dumped: str | None) -> dict[str, Any]:
    """Return the manifest. The bytes of tensors are in a file; those of scalars are added to them."""
    entries = list(_tensors_noted(run)) if level == WITHOUT_BYTES else list(_tensors_dumped(run))
    for entry, octets in _scalars(run):
        if dumped is not None:
            with open(dumped, "ab") as file:
                entry["bin_offset"] = file.tell()
                entry["bin_size"] = file.write(octets)
        entries.append(entry)
    return manifest(level, entries, run.dropped)


def manifest(level: int, entries: list[Entry], dropped: int) -> dict[str, Any]:
    """Return the manifest of some entries."""
    tensors = sum(one["kind"] == "tensor" for one in entries)
    return {
        "dump_tensor_level": level,
        "bin_file": None if level == WITHOUT_BYTES else BIN,
        "bin_format": "little-endian elements, row by row",
        "total_args": len(entries),
        "total_tensors": tensors,
        "total_scalars": len(entries) - tensors,
        "truncated_args": sum(one["truncated"] for one in entries),
        "dropped": dropped,
        "args": entries,
    }


def _tensors_noted(run: FlaggedRun) -> Iterator[Entry]:
    """Yield entries for all tensors of tasks, as submit noted them."""
    for task in run.tasks.values():
        if task.is_buffer:
            continue
        for tensor in task.tensors.values():
            if tensor.tag in READS or tensor.tag not in WRITES:
                yield tensor_entry(*_ids(run, task), tensor, BEFORE)
            if tensor.tag in WRITES:
                yield tensor_entry(*_ids(run, task), tensor, AFTER)


def _tensors_dumped(run: FlaggedRun) -> Iterator[Entry]:
    """Yield entries for the tensors that workers have written into the file."""
    for worker in range(run.workers):
        for what, number, at, nbytes in run.of_worker(worker, L.NOTED_DUMPED).tolist():
            operand = what >> 8
            task = run.tasks.get(number)
            tensor = None if task is None else task.tensors.get(operand & 0xFFFF)
            if operand & L.DUMPED_SCALAR or task is None or tensor is None:
                continue
            stage = AFTER if operand & L.DUMPED_AFTER else BEFORE
            entry = tensor_entry(*_ids(run, task), tensor, stage)
            entry["bin_offset"], entry["bin_size"] = at, nbytes
            entry["truncated"] = nbytes < tensor.item * math.prod(tensor.shape)
            yield entry


def _scalars(run: FlaggedRun) -> Iterator[tuple[Entry, bytes]]:
    """Yield entries for the scalars that workers have noted, and their bytes."""
    for worker in range(run.workers):
        for what, number, value, kind in run.of_worker(worker, L.NOTED_DUMPED).tolist():
            operand = what >> 8
            task = run.tasks.get(number)
            if operand & L.DUMPED_SCALAR and task is not None:
                entry = blank_entry(*_ids(run, task), operand & 0xFFFF, BEFORE)
                entry |= {"role": "input", "kind": "scalar", "dtype": _SCALARS.get(kind, "UINT64")}
                yield entry, value.to_bytes(L.WORD, "little", signed=True)


def _ids(run: FlaggedRun, task: Task) -> tuple[int, int]:
    return task.id, run.functions.get(task.function, -1)


def tensor_entry(task: int, function: int, tensor: Tensor, stage: str) -> Entry:
    """Return the entry of a tensor, without bytes; `task` and `function` are numbers."""
    entry = blank_entry(task, function, tensor.index, stage)
    entry["role"] = "inout" if tensor.tag == "INOUT" else "input" if stage == BEFORE else "output"
    entry["dtype"], entry["is_contiguous"] = tensor.dtype, tensor.is_contiguous
    entry["shape"], entry["strides"] = list(tensor.shape), list(tensor.strides)
    entry["start_offset"] = tensor.start
    return entry


def blank_entry(task: int, function: int, index: int, stage: str) -> Entry:
    """Return an entry of which no more is known than whose argument it is."""
    return {
        "task_id": f"{task:#x}",
        "func_id": function,
        "role": "",
        "stage": stage,
        "arg_index": index,
        "kind": "tensor",
        "dtype": "",
        "shape": [],
        "strides": [],
        "start_offset": 0,
        "is_contiguous": True,
        "truncated": False,
        "overwritten": False,
        "bin_offset": 0,
        "bin_size": 0,
    }
