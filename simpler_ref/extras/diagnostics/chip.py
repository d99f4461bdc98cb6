"""The files of a run of the simulated chip, made of what it records.

The chip records structures (`native_chip/src/records.h`): a frame for each wave, that is for the
launches between two barriers. Launches are the tasks of these files, numbered through all waves.

Rule     FLAG-CHIP-1, FLAG-CHIP-2, FLAG-CHIP-5, FLAG-CHIP-6, FLAG-CHIP-8, FLAG-PMU-2
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...jit import layout as L
from ...model.config import CallConfig
from ...model.enums import ArgDirection, DataType, get_element_size
from ...model.wire import row_major
from ...native_chip.abi import ChipError, ChipStatus, CoreArgsStorage
from ...orch.words import require_supported
from ...system.types import Array
from . import files as F
from .probe import CYCLES, HARDWARE, has_hardware, names_of

_ARGS = np.dtype(CoreArgsStorage)
_WAVE = np.dtype(
    [
        *((name, "u8") for name in ("launches", "blocks", "dumps", "heap_before", "heap_after")),
        *(("ran", "i4"), ("counters_error", "i4")),
    ]
)
_LAUNCH = np.dtype(
    [
        *(("begin", "i8"), ("end", "i8"), ("func_id", "i8")),
        *(("directions", "u1", L.CORE_MAX_TENSOR_ARGS), ("args", _ARGS)),
    ]
)
_BLOCK = np.dtype(
    [
        *(("launch", "u4"), ("core", "i4"), ("queued", "i8"), ("begin", "i8")),
        *(("end", "i8"), ("seen", "i8"), ("counts", "u8", 5)),
    ]
)
_DUMP = np.dtype([("launch", "u4"), ("index", "i4"), ("after", "i8"), ("bytes", "u8")])
_NAME_BYTES = 256
MARKED = 1
"""The level at which only marked tensors are dumped."""
_TAGS = {ArgDirection.IN: "INPUT", ArgDirection.OUT: "OUTPUT_EXISTING", ArgDirection.INOUT: "INOUT"}


class _Event(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_uint32), ("config", ctypes.c_uint64))


class Recording(ctypes.Structure):
    """What `pto2_record` takes."""

    _fields_ = (
        ("records", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("counters", ctypes.c_int32),
        ("events", _Event * 4),
    )


class Wave(NamedTuple):
    """The launches between two barriers."""

    head: Any
    launches: Array
    blocks: Array
    dumps: Array
    first: int
    """The number of its first launch."""


class ChipRun(NamedTuple):
    """What a run has recorded."""

    name: str
    """Of the orchestration function."""
    waves: list[Wave]
    """The last one, of launches that never ran, may have none."""

    @classmethod
    def read(cls, raw: bytes) -> ChipRun:
        """Read the file of records, up to the wave of which not all is there: the disk was full."""
        name, at, first = raw[:_NAME_BYTES].partition(b"\0")[0].decode(), _NAME_BYTES, 0
        waves: list[Wave] = []
        while len(raw) - at >= _WAVE.itemsize:
            head = np.frombuffer(raw, _WAVE, 1, at)[0]
            at += _WAVE.itemsize
            parts: list[Array] = []
            for dtype, count in ((_LAUNCH, "launches"), (_BLOCK, "blocks"), (_DUMP, "dumps")):
                if len(raw) - at < int(head[count]) * dtype.itemsize:
                    return cls(name, waves)
                parts.append(np.frombuffer(raw, dtype, int(head[count]), at))
                at += parts[-1].nbytes
            launches, blocks, dumps = parts
            waves.append(Wave(head, launches, blocks, dumps, first))
            first += len(launches)
        return cls(name, waves)

    def launches(self) -> Iterator[tuple[int, Any]]:
        """Yield each launch, with its number."""
        for wave in self.waves:
            yield from enumerate(wave.launches, wave.first)

    def blocks(self) -> Array:
        """Return the blocks that ran, by core, then by time; with the numbers of their launches."""
        each = [wave.blocks.copy() for wave in self.waves]
        for wave, blocks in zip(self.waves, each, strict=True):
            blocks["launch"] += wave.first
        found = np.concatenate(each) if each else np.empty(0, _BLOCK)
        found = found[found["core"] >= 0]
        return found[np.lexsort((found["begin"], found["core"]))]


@contextmanager
def chip_recorded(wire: bytes, what: str) -> Iterator[Recording]:
    """Yield where a run of a chip puts its records, and write the files of its flags after it.

    `wire` is its CallConfig, `what` begins messages. The files are written also if the run fails once it
    has begun: then its error is the one that counts.
    """
    try:
        config = CallConfig.from_bytes(wire[: CallConfig._LAYOUT.size])
        require_supported(config)
    except ValueError as error:
        raise ChipError(f"{what}: {error}", ChipStatus.CONFIG) from None
    folder = Path(config.output_prefix)
    failed = True
    with ExitStack() as files, _refused(what, folder):
        folder.mkdir(parents=True, exist_ok=True)
        records, dumped = files.enter_context(tempfile.TemporaryFile(dir=folder)), -1
        if config.enable_dump_tensor not in (0, F.WITHOUT_BYTES):
            dumped = files.enter_context(tempfile.TemporaryFile(dir=folder)).fileno()
        events = HARDWARE.get(config.enable_pmu, ())
        hardware = bool(events) and has_hardware(config.enable_pmu)
        counting = [_Event(one.kind, one.config) for one in (CYCLES, *events)] if hardware else []
        counters = len(counting) if events else -1
        try:
            yield Recording(records.fileno(), dumped, counters, (_Event * 4)(*counting))
            failed = False
        finally:
            with _refused(what, folder, silent=failed):
                records.seek(0)
                run = ChipRun.read(records.read())
                path = f"/proc/self/fd/{dumped}" if dumped >= 0 else None
                makers: F.Makers = {
                    "enable_l2_swimlane": lambda level: _swimlane(run, level),
                    "enable_dep_gen": lambda _: _dependencies(run),
                    "enable_dump_tensor": lambda n: F.manifest(n, [*_dumped(run, n, path)], 0),
                    "enable_scope_stats": lambda _: _scopes(run, failed),
                    "enable_pmu": lambda event_type: _counted(run, event_type, hardware),
                }
                F.write_all(config, makers, path)
                errors = [int(wave.head["counters_error"]) for wave in run.waves]
                if any(errors):
                    raise OSError(errors[-1], os.strerror(errors[-1]))


@contextmanager
def _refused(what: str, folder: Path, silent: bool = False) -> Iterator[None]:
    """Have errors of files be the chip's."""
    try:
        yield
    except OSError as error:
        if not silent:
            why = f"{what}: the files in {folder} cannot be written: {error.strerror}"
            raise ChipError(why, ChipStatus.SYSTEM) from None


# ---------------------------------------------------------------- what ran when
def _swimlane(run: ChipRun, level: int) -> dict[str, Any]:
    blocks = run.blocks()
    cores = int(blocks["core"].max()) + 1 if len(blocks) else 0
    ran = blocks[["core", "launch", "begin", "end", "queued", "seen"]].tolist()
    phases = (one for turn, wave in enumerate(run.waves) for one in _phases(wave, turn))
    submits = (
        {"submit_idx": i, "task_id": i}
        | {"start_cycles": int(launch["begin"]), "end_cycles": int(launch["end"])}
        for i, launch in run.launches()
    )
    return F.swimlane(level, cores, ran, phases, submits)


def _phases(wave: Wave, turn: int) -> Iterator[dict[str, Any]]:
    """Yield one phase of each kind for a wave: blocks are handed out, and their ends are seen."""
    blocks = wave.blocks[wave.blocks["core"] >= 0]
    for kind, first, last, more in (
        ("dispatch", "queued", "queued", {"pop_hit": len(blocks), "pop_miss": 0}),
        ("complete", "end", "seen", {}),
    ):
        if len(blocks):
            yield {
                "kind": kind,
                "start_cycles": int(blocks[first].min()),
                "end_cycles": int(blocks[last].max()),
                "loop_iter": turn,
                "tasks_processed": len(blocks),
            } | more


def _counted(run: ChipRun, event_type: int, hardware: bool) -> str:
    names = names_of(event_type, hardware)
    functions = [int(launch["func_id"]) for _, launch in run.launches()]
    blocks = run.blocks()
    counts = blocks["counts"][:, : len(names) + 1].tolist()
    rows = (
        (core, launch, functions[launch], mine)
        for (core, launch), mine in zip(blocks[["core", "launch"]].tolist(), counts, strict=True)
    )
    return F.pmu_table(rows, names, event_type)


# ---------------------------------------------------------------- what launches have
def _tensor(launch: Any, i: int) -> F.RunTensor:
    wire = launch["args"]["tensors"][i]
    shape = tuple(wire["shapes"][: int(wire["ndims"])].tolist())
    dtype = DataType(int(wire["dtype"]))
    tag, item = _TAGS[ArgDirection(int(launch["directions"][i]))], get_element_size(dtype)
    nbytes = item * int(np.prod(shape, dtype=np.int64))
    strides = row_major(shape, 1)
    return F.RunTensor(i, tag, int(wire["data"]), nbytes, dtype.name, item, shape, strides)


def _tensors(launch: Any) -> Iterator[F.RunTensor]:
    yield from (_tensor(launch, i) for i in range(int(launch["args"]["tensor_count"])))


def _dependencies(run: ChipRun) -> dict[str, Any]:
    """Return the launches with their tensors, and the order that barriers put them into.

    Tensors that begin at one address share a buffer.
    """
    tensors = [one for _, launch in run.launches() for one in _tensors(launch)]
    buffers: dict[int, tuple[str, int]] = {}
    for one in sorted(tensors, key=lambda tensor: tensor.address):
        dtype, most = buffers.get(one.address, (one.dtype, 0))
        buffers[one.address] = dtype, max(most, one.nbytes // one.item)
    numbers = {address: i for i, address in enumerate(buffers)}
    tasks = []
    for i, launch in run.launches():
        mine = [(one, numbers[one.address]) for one in _tensors(launch)]
        tasks.append(F.dependency_task(i, "manual", int(launch["func_id"]), mine))
    return {
        "tasks": tasks,
        "tensors": [
            F.dependency_buffer(numbers[address], address, 0, *found)
            for address, found in buffers.items()
        ],
        "edges": [
            {"pred": str(pred), "succ": str(succ), "arg": -1, "source": "explicit"}
            for before, wave in zip(run.waves, run.waves[1:], strict=False)
            for succ in range(wave.first, wave.first + len(wave.launches))
            for pred in range(before.first, wave.first)
        ],
    }


def _dumped(run: ChipRun, level: int, dumped: str | None) -> Iterator[dict[str, Any]]:
    """Yield what was dumped, scalars after the tensors of their launch; their bytes are added."""
    at = 0
    for wave in run.waves:
        for after in (0, 1):
            for i, launch in enumerate(wave.launches):
                task = wave.first + i, int(launch["func_id"])
                mine = (wave.dumps["launch"] == i) & (wave.dumps["after"] == after)
                for _, index, _, size in wave.dumps[mine].tolist():
                    tensor = _tensor(launch, index)
                    entry = F.tensor_entry(*task, tensor, F.AFTER if after else F.BEFORE)
                    entry |= {"bin_offset": at, "bin_size": size}
                    entry["truncated"] = dumped is not None and size < tensor.nbytes
                    at += size
                    yield entry
                if after or level == MARKED or not wave.head["ran"]:
                    continue
                args = launch["args"]
                for k, value in enumerate(args["scalars"][: int(args["scalar_count"])]):
                    index = int(args["tensor_count"]) + k
                    yield F.scalar_entry(*task, index, "UINT64", int(value), dumped)


def _scopes(run: ChipRun, failed: bool) -> str:
    """Return the contents of the file: the run is a scope, and so are its waves."""
    lines: list[dict[str, Any]] = []
    back, use, most = Counter[str](), Counter[str](), Counter[str]()

    def note(phase: str, depth: int) -> None:
        lines.append(F.scope_line(run.name, phase, depth, 0, back, use, 0))
        most["heap"] = max(most["heap"], use["heap"])

    note("begin", 0)
    for wave in run.waves:
        if count := len(wave.launches):
            use["heap"] = int(wave.head["heap_before"])
            note("begin", 1)
            use["tasks"], use["heap"] = wave.first + count, int(wave.head["heap_after"])
            note("end", 1)
            back["tasks"], most["tasks"] = use["tasks"], max(most["tasks"], count)
    use["heap"] = int(run.waves[-1].head["heap_after"]) if run.waves else 0
    note("end", 0)
    return F.scope_lines(lines, failed, 0, [most], 0)
