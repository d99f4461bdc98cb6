"""The file of a trace, and the tables made of its notes: all that a reader of traces knows.

A file is a line about its program, then notes of 32 bytes, in chunks of one journal each:

    what          operand   NOTE_TASK   NOTE_TIME   NOTE_VALUE   what follows
    NOTED_CHUNK   journal   notes       when        dropped      so many notes of that journal
    NOTED_TEXT    0         notes       when        bytes        JSON, padded to so many notes
    NOTED_CLOCK   ± ns      0           when        ns ahead     nothing: how a session's clock goes

A file whose program was killed ends within a chunk: what is there is read.

    bytes ──TraceFile──► notes by journal ──tables_of──► TABLES, arrays of numpy ──► Trace
                                                                                      │
              timeline.py puts those of several Workers together ◄───────────────────────┤
              tasks, races, exports, page, command print them ◄───────────────────────┘

Rule     SEE-FILE-1, -4; SEE-READ-1
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..jit import layout as L
from ..jit import slots
from ..system.types import Array
from ..system.values import file_path

MAGIC = b"simpler_ref trace\n"
VERSION = 1

ORCH, SCHEDULER_THREAD = -1, -2
LANES = {ORCH: "Orch thread", SCHEDULER_THREAD: "Scheduler thread"}
"""Rows of a timeline that are no workers: threads, by their numbers as lanes."""
WAITED = 1000
"""Added to one of `GOALS`: what a wait of the Orch thread was for."""
GOALS = {
    L.WAITED_ROOM: "for room",
    L.WAITED_TASKS: "until tasks have ended",
    L.WAITED_END: "for the end of the run",
    L.WAITED_CALL: "for the result of a call",
}
SPANS = {
    L.NOTED_PARKED: "asleep",
    L.NOTED_PASSES: "runs passes",
    L.NOTED_REQUEST: "control request",
    **{WAITED + goal: f"waits {name}" for goal, name in GOALS.items()},
}
"""What a thread or a worker does, by `what` in the table of waits."""
EVENT = {event.name: number + 1 for number, event in enumerate(slots.EVENTS)}
TIMES = ("submitted", "ready", "sent", "begun", "ended", "collected", "freed")
"""Of a task, in their order."""


def _rows(columns: str) -> np.dtype[Any]:
    """Return the type of a row: names of columns, each after its type."""
    words = columns.split()
    return np.dtype([(name, kind) for kind, name in zip(words[::2], words[1::2], strict=True)])


NOTE = _rows("<i8 what <i8 task <i8 time <i8 value")
"""One note; `what` has the kind in its low byte, an operand above it."""
TASK = _rows(
    "<i4 run <i4 line <i8 function <i4 worker i1 outcome ? buffer ? ahead "
    + " ".join(f"<i8 {name}" for name in TIMES)
)
"""`outcome` is 0 until it ends, 1 if it completed, 2 if it failed; `ahead`: it was pre-dispatched."""
RAN = _rows("<i8 task <i4 worker <i4 outcome <i8 function <i8 begin <i8 end")
"""What a worker ran; a group has one for each member."""
EDGE = _rows("<i8 consumer <i8 producer <u2 tensor u1 tag u1 kind <i8 address")
"""Who depends on whom; `kind` is 0 for data, 1 order, 2 a future's value, 3 only memory."""
ARGUMENT = _rows(
    "<i8 task <u2 index u1 tag <i8 address <i8 nbytes ? provided <i4 memory <i8 layout"
)
"""`provided` by the runtime, in a ring; `memory` is -1 for the host's, -2 an endpoint's, else a worker's;
`layout` is the number of that of a view, else -1."""
SPAN = _rows("<i4 lane <i4 what <i8 begin <i8 end")
HELD = _rows("<i8 time <i4 ring <i8 bytes")
SCOPE = _rows("<i8 time <i4 depth ? opened")
RUN = _rows("<i8 first <i4 kind <i8 begin <i8 end")
"""A run (kind 1) or a stream of calls (2), and the number of its first task."""
WROTE = _rows("<i8 task <u2 index <i4 worker <i8 low <i8 high")
"""With ``check=True``: an INPUT that changed while its task ran, and the addresses of the changes."""
FRAME = _rows("<i8 time <i4 lane ? sent u1 type <i8 nbytes <i8 exchange <i8 task")
"""`exchange` is the same for what asks and what answers; `task` is 0 unless it is known."""
MOVE = _rows("<i4 lane ? stored <i8 peer <i8 nbytes <i8 begin <i8 end")
"""A tensor that was fetched from a session's memory, named by `peer`, or stored there."""

TABLES = (
    *("tasks", "ran", "edges", "arguments", "waits", "held", "scopes", "runs", "wrote"),
    *("frames", "moves"),
)
"""The tables of a trace: attributes of `Trace`."""


# ---------------------------------------------------------------- the file
class TraceFileError(ValueError):
    """Raised for a file that is no trace, or one of a version that is not known here."""


class TraceFile:
    """A trace as it stands in its file.

    Attributes
    ----------
    path : str
    about : dict
        What the program knew of itself and of the Worker: names of functions, workers, lines.
    journals : dict[int, numpy.ndarray]
        The notes of each journal, of dtype `NOTE`.
    dropped : dict[int, int]
        How many notes had no room in each journal.
    clocks : list of tuple
        Of a session: when, by the parent's clock, how far its clock was ahead, plus or minus what; ns.
    is_whole : bool
        Whether the trace was ended, not cut off.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = file_path("path", path)
        if Path(self.path).stat().st_size == 0:
            raise TraceFileError(f"{self.path} is empty: no trace")
        octets = np.memmap(self.path, np.uint8, "r")
        self.about: dict[str, Any] = {}
        self.dropped: dict[int, int] = {}
        self.clocks: list[tuple[int, int, int]] = []
        self.is_whole = False
        end = self._read_head(octets)
        notes = octets[end : end + (len(octets) - end) // NOTE.itemsize * NOTE.itemsize].view(NOTE)
        chunks: dict[int, list[Array]] = {}
        at = 0
        while at < len(notes):
            what, count, when, value = notes[at].item()
            kind, operand = what & 0xFF, what >> 8
            chunk = notes[at + 1 : at + 1 + count]
            at += 1 + count
            if kind == L.NOTED_CHUNK:
                chunks.setdefault(operand, []).append(chunk)
                self.dropped[operand] = value
                self.is_whole = False
            elif kind == L.NOTED_CLOCK and count == 0:
                self.clocks.append((when, value, operand))
            elif kind == L.NOTED_TEXT and len(chunk) == count:
                self._merge(json.loads(chunk.tobytes()[:value]))
                self.is_whole = True
            else:
                break
        self.is_whole = bool(self.about.get("ended", self.is_whole))
        self.journals = {journal: np.concatenate(mine) for journal, mine in chunks.items()}

    def _read_head(self, octets: Array) -> int:
        """Read the line about the program; return the bytes of all that precedes the notes."""
        head = octets[: 1 << 16].tobytes()
        end = head.find(b"\n", len(MAGIC))
        if not head.startswith(MAGIC) or end < 0:
            raise TraceFileError(f"{self.path} is no trace: it does not begin as one")
        self.about = json.loads(head[len(MAGIC) : end])
        if self.about.get("version") != VERSION:
            raise TraceFileError(
                f"{self.path} has version {self.about.get('version')} of the format, and simpler_ref "
                f"{self.about.get('by')} wrote it; this one reads version {VERSION}"
            )
        return end + 1

    def _merge(self, news: dict[str, Any]) -> None:
        """Take up what was told later: tables grow, everything else is replaced."""
        for name, value in news.items():
            known = self.about.get(name)
            if isinstance(value, dict) and isinstance(known, dict):
                known.update(value)
            else:
                self.about[name] = value


def head_of(about: dict[str, Any]) -> bytes:
    """Return the beginning of a file that says this."""
    line = MAGIC + json.dumps(about).encode()
    return line.ljust(-(-(len(line) + 1) // NOTE.itemsize) * NOTE.itemsize - 1, b" ") + b"\n"


def text_notes(value: dict[str, Any]) -> bytes:
    """Return JSON as it stands in a file: after a note that says how long it is, padded."""
    text = json.dumps(value).encode()
    count = -(-len(text) // NOTE.itemsize)
    head = np.array([L.NOTED_TEXT, count, time.monotonic_ns(), len(text)], np.int64)
    return head.tobytes() + text.ljust(count * NOTE.itemsize, b" ")


# ---------------------------------------------------------------- the notes
class Notes:
    """The notes of a file, by who made them."""

    def __init__(self, file: TraceFile) -> None:
        empty = np.empty(0, NOTE)
        self.orch = file.journals.get(L.JOURNAL_OF_ORCH, empty)
        self.scheduler = file.journals.get(L.JOURNAL_OF_SCHEDULER, empty)
        self.thread = file.journals.get(L.JOURNAL_OF_THREAD, empty)
        self.workers = {
            journal - L.JOURNALS_OF_WORKERS: notes
            for journal, notes in sorted(file.journals.items())
            if journal >= L.JOURNALS_OF_WORKERS
        }

    @property
    def lanes(self) -> list[tuple[int, Array]]:
        """The notes of each lane."""
        threads = [(ORCH, self.orch), (SCHEDULER_THREAD, self.thread)]
        return [*threads, *self.workers.items()]


class Found(NamedTuple):
    """The notes of one kind that a lane has made, as columns."""

    lane: int
    kind: int
    operand: Array
    task: Array
    time: Array
    value: Array


def of_kind(notes: Array, kind: int) -> Array:
    """Return the notes of a kind."""
    rows: Array = notes[notes["what"] & 0xFF == kind]
    return rows


def _table(
    row: np.dtype[Any],
    lanes: Iterable[tuple[int, Array]],
    kinds: Iterable[int],
    columns: Callable[[Found], tuple[Any, ...]],
) -> Array:
    """Return a table of what some lanes have noted of some kinds; `columns` are those of the row."""
    parts = [np.zeros(0, row)]
    for lane, notes in lanes:
        for kind in kinds:
            mine = of_kind(notes, kind)
            rows = np.zeros(len(mine), row)
            found = Found(lane, kind, mine["what"] >> 8, mine["task"], mine["time"], mine["value"])
            for name, column in zip(rows.dtype.names or (), columns(found), strict=True):
                rows[name] = column
            parts.append(rows)
    return np.concatenate(parts)


def ran_of(notes: Notes) -> Array:
    """Return what workers ran."""
    rows = _table(
        RAN,
        notes.workers.items(),
        [L.NOTED_RAN],
        lambda n: (n.task, n.lane, n.operand & 0xFF, n.operand >> 8, n.time, n.value),
    )
    found: Array = rows[(rows["task"] > 0) & (rows["outcome"] < L.SKIPPED)]
    return found


def tables_of(file: TraceFile) -> dict[str, Array]:
    """Return the tables of a file by their names, see `TABLES`."""
    notes = Notes(file)
    orch, workers, lanes = [(ORCH, notes.orch)], notes.workers.items(), notes.lanes
    ran, runs = ran_of(notes), _runs(notes.orch)
    tasks = _tasks(notes, ran, runs)
    edges = _table(
        EDGE,
        orch,
        [L.NOTED_EDGE],
        lambda n: (
            *(n.task, n.value, n.operand & 0xFFFF, n.operand >> 16 & 0xFF, n.operand >> 24, n.time),
        ),
    )
    # tasks from before the trace have no number; of others the submission may have been dropped
    known = (edges["producer"] > 0) & (
        np.maximum(edges["producer"], edges["consumer"]) <= len(tasks)
    )
    wrote = _table(
        WROTE, workers, [L.NOTED_WROTE], lambda n: (n.task, n.operand, n.lane, n.time, n.value)
    )
    return {
        "tasks": tasks,
        "ran": ran,
        "edges": edges[known],
        "arguments": _arguments(notes.orch),
        "waits": _table(
            SPAN,
            lanes,
            [L.NOTED_PARKED, L.NOTED_WAITED, L.NOTED_PASSES, L.NOTED_REQUEST],
            lambda n: (
                n.lane,
                WAITED + n.operand if n.kind == L.NOTED_WAITED else n.kind,
                n.time,
                n.value,
            ),
        ),
        "held": _table(HELD, orch, [L.NOTED_HELD], lambda n: (n.time, n.operand, n.value)),
        "scopes": _table(
            SCOPE, orch, [L.NOTED_SCOPE], lambda n: (n.time, n.operand & 0xFFFF, n.operand >> 16)
        ),
        "runs": runs,
        "wrote": wrote[np.argsort(wrote["task"], kind="stable")],
        "frames": _table(
            FRAME,
            lanes,
            [L.NOTED_FRAME],
            lambda n: (
                *(n.time, n.lane, n.operand & L.FRAME_SENT != 0, n.operand & 0xFF, n.value),
                *(n.operand >> 9, n.task),
            ),
        ),
        "moves": _table(
            MOVE,
            lanes,
            [L.NOTED_MOVED],
            lambda n: (n.lane, n.operand & 1, n.operand >> 1, n.task, n.time, n.value),
        ),
    }


def _runs(orch: Array) -> Array:
    """Return the runs and streams."""
    found = of_kind(orch, L.NOTED_RUN)
    kinds = found["what"] >> 8
    begun = found[kinds != 0]
    rows = np.zeros(len(begun), RUN)
    rows["first"], rows["kind"], rows["begin"] = begun["task"], kinds[kinds != 0], begun["time"]
    over = np.sort(found["time"][kinds == 0])
    after = np.searchsorted(over, rows["begin"])
    rows["end"] = np.where(after < len(over), np.append(over, 0)[after], 0)
    return rows


def _arguments(orch: Array) -> Array:
    """Return the tensors of tasks."""

    def columns(n: Found) -> tuple[Any, ...]:
        index, tag, provided = n.operand & 0xFFFF, n.operand >> 16 & 0xF, n.operand >> 20 & 1
        place = n.operand >> 24 & 0xFFFF
        memory = np.where(place == L.ELSEWHERE, -2, place - 1)
        return n.task, index, tag, n.time, n.value, provided, memory, -1

    rows = _table(ARGUMENT, [(ORCH, orch)], [L.NOTED_ARGUMENT], columns)
    views = of_kind(orch, L.NOTED_LAYOUT)
    if len(views):
        keys = rows["task"] << 16 | rows["index"]
        order = np.argsort(keys, kind="stable")
        at = np.searchsorted(keys, views["task"] << 16 | views["what"] >> 8, sorter=order)
        rows["layout"][order[at]] = views["value"]
    return rows


# ---------------------------------------------------------------- tasks
def _tasks(notes: Notes, ran: Array, runs: Array) -> Array:
    """Return the tasks, from number 1 on: what Orch thread, Scheduler and workers have noted of each."""
    numbers = [
        ran["task"],
        *(of_kind(notes.orch, EVENT[one])["task"] for one in ("submit", "alloc")),
    ]
    count = max((int(one.max()) for one in numbers if len(one)), default=0)
    rows = np.zeros(count, TASK)
    rows["worker"] = -1
    rows["run"] = np.searchsorted(runs["first"], np.arange(1, count + 1), "right") - 1

    def noted(journal: Array, kind: int) -> tuple[Array, Array]:
        """Return the notes of a kind that are about these tasks, and the rows of these."""
        found = of_kind(journal, kind)
        found = found[(found["task"] > 0) & (found["task"] <= count)]
        return found, found["task"] - 1

    for event in ("submit", "alloc"):
        found, at = noted(notes.orch, EVENT[event])
        rows["submitted"][at], rows["line"][at] = found["time"], found["what"] >> 8
        rows["function"][at] = found["value"]
    rows["buffer"][at], rows["outcome"][at] = True, 1  # of alloc: it is complete at once
    for name in ("ready", "sent", "begun", "ended", "collected"):
        rows[name][at] = found["time"]
    found, at = noted(notes.orch, L.NOTED_CALL)
    rows["function"][at] = found["value"] | L.FUNCTION_IS_KEY
    for journal, event, column in (
        (notes.scheduler, "inputs done", "ready"),
        (notes.scheduler, "dispatch", "sent"),
        (notes.scheduler, "complete", "collected"),
        (notes.scheduler, "fail", "collected"),
        (notes.scheduler, "poison", "collected"),
        (notes.scheduler, "release", "freed"),
        (notes.orch, "reclaim", "freed"),
    ):
        found, at = noted(journal, EVENT[event])
        rows[column][at] = found["time"]
        if event == "dispatch":
            rows["worker"][at] = (found["what"] >> 8) - 1
        elif column == "collected":
            rows["outcome"][at] = 1 if event == "complete" else 2
    _take_over(rows, ran)
    found, at = noted(notes.scheduler, L.NOTED_AHEAD)
    # what a worker had before it was ready, and began by itself
    began = (rows["begun"][at] > 0) & (rows["begun"][at] < rows["sent"][at])
    found, at = found[began], at[began]
    rows["ahead"][at], rows["sent"][at] = True, found["time"]
    rows["ready"][at] = np.minimum(rows["ready"][at], rows["begun"][at])
    return rows


def _take_over(rows: Array, ran: Array) -> None:
    """Take over what workers know; a group begins with its first member and ends with its last."""
    at = ran["task"] - 1
    rows["function"][at], rows["worker"][at] = ran["function"], ran["worker"]
    never = np.iinfo(np.int64).max
    begun = np.full(len(rows), never)
    np.minimum.at(begun, at, ran["begin"])
    rows["begun"] = np.where(begun == never, rows["begun"], begun)
    np.maximum.at(rows["ended"], at, ran["end"])
    unseen = rows["outcome"][at] == 0
    rows["outcome"][at[unseen]] = np.where(ran["outcome"][unseen] == L.SUCCESS, 1, 2)
