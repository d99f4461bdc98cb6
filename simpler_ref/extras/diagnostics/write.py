"""Writing the files of the flags that a configuration has, and the contents of `pmu.csv`.

Rule     FLAG-NEST-2; FLAG-PMU-1, -3; FLAG-RUN-1, -5
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...jit import layout as L
from ...model.config import CallConfig
from .deps import dependencies
from .dump import BIN, arguments
from .run import FlaggedRun
from .scopes import scope_stats
from .swimlane import swimlane

FILES = {
    "enable_l2_swimlane": "l2_swimlane_records.json",
    "enable_dump_tensor": "args_dump/args_dump.json",
    "enable_pmu": "pmu.csv",
    "enable_dep_gen": "deps.json",
    "enable_scope_stats": "scope_stats/scope_stats.jsonl",
}
"""The file of each flag, below `output_prefix`."""
COUNTED = ("thread_id", "core_id", "task_id", "func_id", "core_type", "pmu_total_cycles")
"""The columns of `pmu.csv` before the counters."""


class Circumstances(NamedTuple):
    """What is known of a run beside its notes."""

    function: str
    """Name of the orchestration function."""
    site: str
    """Where it is, ``file:line``."""
    failed: bool
    counters: tuple[str, ...]
    """Names of the counters that were read."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, and write into it alone: of several tasks that name it the last one's files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_files(
    run: FlaggedRun, config: CallConfig, about: Circumstances, dumped: str | None
) -> None:
    """Write the files of a run, whose workers have dumped the bytes of tensors into a file."""
    folder = Path(os.fsdecode(config.output_prefix.encode(errors="surrogateescape")))
    found: dict[str, str] = {f"name_map_{about.function}.json": _as_json(_names(run, about))}
    if level := config.enable_l2_swimlane:
        found[FILES["enable_l2_swimlane"]] = _as_json(swimlane(run, level))
    if config.enable_dep_gen:
        found[FILES["enable_dep_gen"]] = _as_json(dependencies(run))
    if level := config.enable_dump_tensor:
        found[FILES["enable_dump_tensor"]] = _as_json(arguments(run, level, dumped))
    if config.enable_scope_stats:
        lines = scope_stats(run, about.site, about.failed)
        found[FILES["enable_scope_stats"]] = "".join(f"{json.dumps(one)}\n" for one in lines)
    if event_type := config.enable_pmu:
        found[FILES["enable_pmu"]] = counted(run, event_type, about.counters)
    with locked(folder):
        for name, text in found.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        if config.enable_dump_tensor:
            _write_bytes(dumped, (folder / FILES["enable_dump_tensor"]).with_name(BIN))


def _write_bytes(dumped: str | None, target: Path) -> None:
    """Copy the bytes of arguments; without any, leave none of another run."""
    if dumped is None:
        target.unlink(missing_ok=True)
    else:
        shutil.copyfile(dumped, target)


def _as_json(value: dict[str, Any]) -> str:
    return json.dumps(value)


def _names(run: FlaggedRun, about: Circumstances) -> dict[str, Any]:
    """Return the names by which viewers know functions."""
    return {
        "level": run.level,
        "orchestrator_name": about.function,
        "callable_id_to_name": {str(i): name for i, name in enumerate(run.names)},
    }


def counted(run: FlaggedRun, event_type: int, names: tuple[str, ...]) -> str:
    """Return the contents of `pmu.csv`: a row for each task, or member of a group."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((*COUNTED, *names, "event_type"))
    for worker in range(run.workers):
        values: dict[int, dict[int, int]] = {}
        for what, number, first, second in run.of_worker(worker, L.NOTED_COUNTED).tolist():
            at = what >> 8
            values.setdefault(number, {}).update({at: first, at + 1: second})
        for number, found in values.items():
            task = run.tasks.get(number)
            function = -1 if task is None else run.functions.get(task.function, -1)
            counts = [found.get(i, 0) for i in range(len(names) + 1)]
            row = (0, worker, f"{run.id_of(number):#x}", function, "aiv", *counts, event_type)
            rows.writerow(row)
    return text.getvalue()
