"""What a Worker does at a moment, as data, and as a table; `Session.top` makes it.

Rule     SEE-TOP-1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engine.introspection import RingRow, mib

COLUMNS = ("worker", "pid", "task", "function", "running", "queue")


@dataclass(frozen=True, slots=True)
class Row:
    """What one worker does.

    Attributes
    ----------
    name : str
        Its kind, and its index among those of its kind.
    pid : int | None
        Its process; None if it is a thread of the program.
    state : str
        ``"running"``, ``"idle"`` or ``"lost"``.
    task : int | None
        The id of the task that it runs; with that, `function` is the name of its callable, and
        `running_s` how long it has run so far, in seconds.
    function : str | None
    running_s : float | None
    queue : int
        How many more tasks it was given, or wait for just this worker.
    children : tuple[Top, ...]
        The Workers that run in it, as a child Worker does.
    silent : bool
        It has Workers that have not answered in time, so that they are missing in `children`.
    """

    name: str
    pid: int | None
    state: str
    task: int | None = None
    function: str | None = None
    running_s: float | None = None
    queue: int = 0
    children: tuple[Top, ...] = ()
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Top:
    """What a Worker does at a moment; `Worker.top` returns it. ``str()`` is a table.

    Attributes
    ----------
    pid : int
        The process that it is in.
    level : int
    program : str
        What the threads of the program do with it: ``"no run"``, ``"a run"``, ``"calls"``, ``"waits for
        its tasks"``, or ``"waits for room …"``.
    ended, submitted : int
        Tasks of the run, without buffers, or calls; 0 where there are none.
    for_inputs : int
        Tasks that wait for other tasks.
    for_worker : int
        Tasks that wait for a free worker.
    alive, window : int
        Tasks that are alive, with those that have ended and whose memory is kept; how many may be.
    workers : tuple[Row, ...]
    rings : tuple[RingRow, ...]
    """

    pid: int
    level: int
    program: str
    ended: int
    submitted: int
    for_inputs: int
    for_worker: int
    alive: int
    window: int
    workers: tuple[Row, ...] = field(default=())
    rings: tuple[RingRow, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join(_lines(self))


# ---------------------------------------------------------------- as JSON
def from_data(data: Mapping[str, Any]) -> Top:
    """Return what `asdict` has made data of, and JSON has brought here."""
    workers = [
        Row(**{**one, "children": tuple(map(from_data, one["children"]))})
        for one in data["workers"]
    ]
    rings = [RingRow(**one) for one in data["rings"]]
    return Top(**{**data, "workers": tuple(workers), "rings": tuple(rings)})


# ---------------------------------------------------------------- as a table
def _headline(top: Top) -> str:
    tasks = "calls" if top.program == "calls" else "tasks"
    head = f"Worker of level {top.level}, process {top.pid}: {top.program}"
    if top.program == "no run":
        return head
    return f"{head}, {top.ended} of {top.submitted} {tasks} have ended"


def _cells(row: Row) -> tuple[str, ...]:
    if row.state == "lost":
        return (row.name, "" if row.pid is None else str(row.pid), "", "lost", "", "")
    pid = "thread" if row.pid is None else str(row.pid)
    task = "" if row.task is None else str(row.task)
    running = "" if row.running_s is None else _duration(row.running_s)
    return (row.name, pid, task, row.function or "", running, str(row.queue or ""))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _sums(top: Top) -> list[str]:
    """Say what waits, and what is in use; nothing where there are no tasks."""
    if top.program == "no run" and not top.alive:
        return []
    lines = [f"waiting: {top.for_inputs} for inputs, {top.for_worker} for a free worker"]
    lines += [
        f"ring {number}: {ring.tasks} tasks, {mib(ring.used)} of {mib(ring.size)}"
        for number, ring in enumerate(top.rings)
        if ring.tasks or ring.used or not number
    ]
    lines.append(f"window: {top.alive} of {top.window} tasks")
    return lines


def _lines(top: Top) -> Iterator[str]:
    cells = [COLUMNS, *map(_cells, top.workers)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = (True, False, False, True, False, False)

    def text(row: tuple[str, ...]) -> str:
        padded = [
            one.ljust(width) if to_left else one.rjust(width)
            for one, width, to_left in zip(row, widths, left, strict=True)
        ]
        return ("  " + "  ".join(padded)).rstrip()

    yield _headline(top)
    yield text(COLUMNS)
    for row, shown in zip(top.workers, cells[1:], strict=True):
        yield text(shown)
        for inner in row.children:
            yield from ("      " + line for line in _lines(inner))
        if row.silent:
            yield "      its Worker does not answer"
    yield from ("  " + line for line in _sums(top))
