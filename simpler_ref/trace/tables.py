"""The file of a trace, and the tables made of its notes: all that a reader of traces knows.

A file is a line about its program, then notes of 32 bytes, in chunks of one journal each:

    what          operand   NOTE_TASK   NOTE_TIME   NOTE_VALUE   what follows
    NOTED_CHUNK   journal   notes       when        dropped      so many notes of that journal
    NOTED_TEXT    0         notes       when        bytes        JSON, padded to so many notes

A file whose program was killed ends within a chunk: what is there is read. One that has come from an
endpoint may hold anything: a number or a text that no trace has is refused.

    bytes ──TraceFile──► notes by journal ──tables_of──► TABLES, arrays of numpy ──► Timeline
                                                                                       │
             it puts those of several Workers together, and tells of each task ◄───────┤
             reader makes a summary, a page and files of it ◄──────────────────────────┘

Rule     SEE-FILE-4, SEE-READ-1, SEE-REMOTE-6
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
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
FRAME = _rows("<i8 time <i4 lane ? sent u1 type <i8 nbytes <i8 exchange <i8 task")
"""`exchange` is the same for what asks and what answers; `task` is 0 unless it is known."""
MOVE = _rows("<i4 lane ? stored <i8 peer <i8 nbytes <i8 begin <i8 end")
"""A tensor that was fetched from a session's memory, named by `peer`, or stored there."""

TABLES = (
    *("tasks", "ran", "edges", "arguments", "waits", "held", "scopes", "runs"),
    *("frames", "moves"),
)
"""The tables of a trace: attributes of `Trace`."""


EXCHANGE_BITS = 47
"""The numbers of exchanges have so many bits; above them is the lane of the link."""
_STRETCH_NS = 5_000_000_000
"""How long the difference of two clocks counts as one number; from one stretch to the next it changes."""
_MOST_STRETCHES = 64
_MOST_JOURNALS = 1 << 13
_FEW_TASKS, _TASKS_PER_NOTE = 1 << 20, 256
"""Tasks may be without notes; but so many more than there are notes no program has."""
_LANES = {
    L.JOURNAL_OF_ORCH: ORCH,
    L.JOURNAL_OF_THREAD: SCHEDULER_THREAD,
    L.JOURNAL_OF_SCHEDULER: -3,
}
"""Of journals that are no worker's; the Scheduler's has none."""
_WORKERS, _ALL_LANES = range(1 << 31), range(SCHEDULER_THREAD, 1 << 31)
_MAKERS = {
    L.NOTED_RAN: _WORKERS,
    **dict.fromkeys((L.NOTED_RUN, L.NOTED_EDGE, L.NOTED_ARGUMENT, L.NOTED_LAYOUT), (ORCH,)),
    **dict.fromkeys((L.NOTED_HELD, L.NOTED_SCOPE), (ORCH,)),
}
"""The lanes that make notes of a kind; all of them, where it is not here."""


# ---------------------------------------------------------------- the file
class Found(NamedTuple):
    """The notes of one kind, as columns."""

    lane: Array
    operand: Array
    task: Array
    time: Array
    value: Array


_NUMBER, _WORKER = range(-(1 << 62), 1 << 62), range(_MOST_JOURNALS)
_TOLD: dict[str, Any] = {
    **dict.fromkeys(("by", "host", "program", "clock"), str),
    "workers": [str],
    "children": [str],
    "child_workers": [_WORKER],
    "vacant": [_WORKER],
    "functions": {int: str},
    "lines": [(str, _NUMBER, str)],
    "layouts": {int: (_NUMBER, [_NUMBER], [_NUMBER])},
    "movers": {int: _WORKER},
    "untraced": {str: str},
    "cut_off": {str: str},
}
"""What a program has told, by its names in `about`, and how each has to be; see `_fits`."""


def _fits(value: Any, form: Any) -> bool:
    """Say whether JSON is text, a number in a range, a list, a row, or a table by numbers or texts."""
    if isinstance(form, range):
        return type(value) is int and value in form
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(one, form[0]) for one in value)
    if isinstance(form, tuple):
        return isinstance(value, list) and len(value) == len(form) and all(map(_fits, value, form))
    if isinstance(form, dict):
        ((kind, inner),) = form.items()
        return isinstance(value, dict) and all(
            (kind is str or (key.isdecimal() and len(key) < 20)) and _fits(one, inner)
            for key, one in value.items()
        )
    return isinstance(value, str)


class TraceFileError(ValueError):
    """Raised for a file that is no trace, or one of a version that is not known here."""


class TraceFile:
    """A trace as it stands in its file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = file_path("path", path)
        if Path(self.path).stat().st_size == 0:
            raise TraceFileError(f"{self.path} is empty: no trace")
        octets = np.memmap(self.path, np.uint8, "r")
        self.about: dict[str, Any] = {}
        """What the program knew of itself and of the Worker: names of functions, workers, lines."""
        self.dropped: dict[int, int] = {}
        """How many notes had no room in each journal."""
        self.is_whole = False
        """Whether the trace was ended, not cut off."""
        end = self._read_head(octets)
        notes = octets[end : end + (len(octets) - end) // NOTE.itemsize * NOTE.itemsize].view(NOTE)
        chunks: dict[int, list[Array]] = {}
        at = 0
        while at < len(notes):
            what, count, _when, value = notes[at].item()
            kind, operand = what & 0xFF, what >> 8
            self._require(count >= 0 and value >= 0, f"{count} notes, {value} bytes")
            chunk = notes[at + 1 : at + 1 + count]
            at += 1 + count
            if kind == L.NOTED_CHUNK:
                self._require(0 <= operand < _MOST_JOURNALS, f"journal {operand}")
                chunks.setdefault(operand, []).append(chunk)
                self.dropped[operand] = value
                self.is_whole = False
            elif kind == L.NOTED_TEXT and len(chunk) == count:
                self._merge(self._object(chunk.tobytes()[:value]))
                self.is_whole = True
            else:
                break
        self.is_whole = bool(self.about.get("ended", self.is_whole))
        self.journals = {journal: np.concatenate(mine) for journal, mine in chunks.items()}
        """The notes of each journal, of dtype `NOTE`."""

    def journal(self, number: int) -> Array:
        return self.journals.get(number, np.empty(0, NOTE))

    def found(self, kind: int) -> Found:
        """Return the notes of a kind that all lanes have made."""
        parts = [np.empty(0, NOTE)]
        lanes = [np.empty(0, np.int32)]
        for journal in sorted(self.journals):
            lane = _LANES.get(journal, journal - L.JOURNALS_OF_WORKERS)
            if lane in _MAKERS.get(kind, _ALL_LANES):
                parts.append(of_kind(self.journals[journal], kind))
                lanes.append(np.full(len(parts[-1]), lane, np.int32))
        n = np.concatenate(parts)
        return Found(np.concatenate(lanes), n["what"] >> 8, n["task"], n["time"], n["value"])

    def _read_head(self, octets: Array) -> int:
        """Read the line about the program; return the bytes of all that precedes the notes."""
        head = octets[: 1 << 16].tobytes()
        end = head.find(b"\n", len(MAGIC))
        if not head.startswith(MAGIC) or end < 0:
            raise TraceFileError(f"{self.path} is no trace: it does not begin as one")
        self._merge(self._object(head[len(MAGIC) : end]))
        if self.about.get("version") != VERSION:
            raise TraceFileError(
                f"{self.path} has version {self.about.get('version')} of the format, and simpler_ref "
                f"{self.about.get('by')} wrote it; this one reads version {VERSION}"
            )
        return end + 1

    def clocks(self) -> dict[int, list[tuple[int, int, int]]]:
        """Return by workers what is known of their clocks: when, how far ahead, plus or minus what."""
        n, found = self.found(L.NOTED_CLOCK), {}
        for lane in np.unique(n.lane).tolist():
            columns = (one[n.lane == lane].tolist() for one in (n.time, n.value, n.operand))
            found[lane] = list(zip(*columns, strict=True))
        return found

    def _require(self, right: bool, what: str) -> None:
        if not right:
            raise TraceFileError(f"{self.path} is no trace, or damaged: it has {what}")

    def _object(self, raw: bytes) -> dict[str, Any]:
        found = None
        with suppress(ValueError, RecursionError):
            found = json.loads(raw)
        self._require(isinstance(found, dict), f"{raw[:40]!r} in place of an object")
        assert isinstance(found, dict)
        return found

    def _merge(self, news: dict[str, Any]) -> None:
        """Take up what was told later: tables grow, everything else is replaced."""
        for name, value in news.items():
            is_right = name not in _TOLD or _fits(value, _TOLD[name])
            self._require(is_right, f"{value!r:.40} as {name}")
            known = self.about.get(name)
            if isinstance(value, dict) and isinstance(known, dict):
                known.update(value)
            else:
                self.about[name] = value


def line_name(about: dict[str, Any], line: int) -> str:
    """Return a line of the program as ``file:number``; "" if it is not known."""
    lines = about.get("lines", [])
    return f"{lines[line - 1][0]}:{lines[line - 1][1]}" if 1 <= line <= len(lines) else ""


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


# ---------------------------------------------------------------- the tables
def of_kind(notes: Array, kind: int) -> Array:
    rows: Array = notes[notes["what"] & 0xFF == kind]
    return rows


def ran_of(file: TraceFile) -> Array:
    n = file.found(L.NOTED_RAN)
    outcome, function = n.operand & 0xFF, n.operand >> 8
    rows = _table(RAN, n.task, n.lane, outcome, function, n.time, n.value)
    found: Array = rows[(rows["task"] > 0) & (rows["outcome"] < L.SKIPPED)]
    return found


def tables_of(file: TraceFile) -> dict[str, Array]:
    """Return the tables of a file by their names, see `TABLES`."""
    ran, runs = ran_of(file), _runs(file)
    tasks = _tasks(file, ran, runs)
    n = file.found(L.NOTED_EDGE)
    tensor, tag, owed = n.operand & 0xFFFF, n.operand >> 16 & 0xFF, n.operand >> 24
    edges = _table(EDGE, n.task, n.value, tensor, tag, owed, n.time)
    # tasks from before the trace have no number; of others the submission may have been dropped
    last = np.maximum(edges["producer"], edges["consumer"])
    edges = edges[(edges["producer"] > 0) & (last <= len(tasks))]
    waits = []
    for kind in (L.NOTED_PARKED, L.NOTED_WAITED, L.NOTED_PASSES, L.NOTED_REQUEST):
        n = file.found(kind)
        what = WAITED + n.operand if kind == L.NOTED_WAITED else kind
        waits.append(_table(SPAN, n.lane, what, n.time, n.value))
    n = file.found(L.NOTED_HELD)
    held = _table(HELD, n.time, n.operand, n.value)
    n = file.found(L.NOTED_SCOPE)
    scopes = _table(SCOPE, n.time, n.operand & 0xFFFF, n.operand >> 16)
    n = file.found(L.NOTED_FRAME)
    sent = n.operand & L.FRAME_SENT != 0
    exchange = n.operand >> 9 | np.maximum(n.lane, 0).astype(np.int64) << EXCHANGE_BITS
    frames = _table(FRAME, n.time, n.lane, sent, n.operand & 0xFF, n.value, exchange, n.task)
    n = file.found(L.NOTED_MOVED)
    moves = _table(MOVE, n.lane, n.operand & 1, n.operand >> 1, n.task, n.time, n.value)
    return {
        "tasks": tasks,
        "ran": ran,
        "edges": edges,
        "arguments": _arguments(file),
        "waits": np.concatenate(waits),
        "held": held,
        "scopes": scopes,
        "runs": runs,
        "frames": frames,
        "moves": moves,
    }


def _table(row: np.dtype[Any], *columns: Array | int) -> Array:
    """Return a table of columns in the order of the row's; the first has the length."""
    rows = np.zeros(len(columns[0]), row)  # type: ignore[arg-type]
    for name, column in zip(row.names or (), columns, strict=True):
        rows[name] = column
    return rows


def _runs(file: TraceFile) -> Array:
    n = file.found(L.NOTED_RUN)
    begun = n.operand != 0
    begins, over = n.time[begun], np.sort(n.time[~begun])
    ends = np.append(over, 0)[np.searchsorted(over, begins)]
    return _table(RUN, n.task[begun], n.operand[begun], begins, ends)


def _arguments(file: TraceFile) -> Array:
    n = file.found(L.NOTED_ARGUMENT)
    index, tag, provided = n.operand & 0xFFFF, n.operand >> 16 & 0xF, n.operand >> 20 & 1
    place = n.operand >> 24 & 0xFFFF
    memory = np.where(place == L.ELSEWHERE, -2, place - 1)
    rows = _table(ARGUMENT, n.task, index, tag, n.time, n.value, provided, memory, -1)
    views = file.found(L.NOTED_LAYOUT)
    if len(views.task):
        keys = rows["task"] << 16 | rows["index"]
        order = np.argsort(keys, kind="stable")
        at = np.searchsorted(keys, views.task << 16 | views.operand, sorter=order)
        rows["layout"][order[at]] = views.value
    return rows


def _tasks(file: TraceFile, ran: Array, runs: Array) -> Array:
    """Return the tasks, from number 1 on: what Orch thread, Scheduler and workers have noted of each."""
    orch, scheduler = file.journal(L.JOURNAL_OF_ORCH), file.journal(L.JOURNAL_OF_SCHEDULER)
    made = [of_kind(orch, EVENT[one])["task"] for one in ("submit", "alloc")]
    count = max((int(one.max()) for one in (ran["task"], *made) if len(one)), default=0)
    notes = sum(len(one) for one in file.journals.values())
    if count > _FEW_TASKS + _TASKS_PER_NOTE * notes:
        raise TraceFileError(f"{file.path} is damaged: it has task {count} in {notes} notes")
    rows = np.zeros(count, TASK)
    rows["worker"] = -1
    rows["run"] = np.searchsorted(runs["first"], np.arange(1, count + 1), "right") - 1

    def noted(journal: Array, kind: int) -> tuple[Array, Array]:
        """Return the notes of a kind that are about these tasks, and the rows of these."""
        found = of_kind(journal, kind)
        found = found[(found["task"] > 0) & (found["task"] <= count)]
        return found, found["task"] - 1

    for event in ("submit", "alloc"):
        found, at = noted(orch, EVENT[event])
        rows["submitted"][at], rows["line"][at] = found["time"], found["what"] >> 8
        rows["function"][at] = found["value"]
    rows["buffer"][at], rows["outcome"][at] = True, 1  # of alloc: it is complete at once
    for name in ("ready", "sent", "begun", "ended", "collected"):
        rows[name][at] = found["time"]
    found, at = noted(orch, L.NOTED_CALL)
    rows["function"][at] = found["value"] | L.FUNCTION_IS_KEY
    for event, column in (
        ("inputs done", "ready"),
        ("dispatch", "sent"),
        ("complete", "collected"),
        ("fail", "collected"),
        ("poison", "collected"),
        ("release", "freed"),
        ("reclaim", "freed"),
    ):
        found, at = noted(orch if event == "reclaim" else scheduler, EVENT[event])
        rows[column][at] = found["time"]
        if event == "dispatch":
            rows["worker"][at] = (found["what"] >> 8) - 1
        elif column == "collected":
            rows["outcome"][at] = 1 if event == "complete" else 2
    _take_over(rows, ran)
    found, at = noted(scheduler, L.NOTED_AHEAD)
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


def critical_path(tasks: Array, edges: Array) -> list[int]:
    """Return the numbers of the tasks of the longest chain of dependencies, the first one first.

    A task depends only on tasks of smaller numbers, so one walk in the order of numbers suffices.
    """
    spans = np.where(tasks["begun"] > 0, np.maximum(tasks["ended"] - tasks["begun"], 0), 0)
    waits = edges[edges["kind"] != L.OWED_MEMORY]
    order = np.argsort(waits["consumer"], kind="stable")
    producers = (waits["producer"][order] - 1).tolist()
    firsts = np.searchsorted(waits["consumer"][order], np.arange(1, len(tasks) + 2)).tolist()
    longest: list[int] = spans.tolist()
    before = [-1] * len(longest)
    for task in range(len(longest)):
        best, via = 0, -1
        for producer in producers[firsts[task] : firsts[task + 1]]:
            if producer < task and longest[producer] > best:
                best, via = longest[producer], producer
        if via >= 0:
            longest[task] += best
            before[task] = via
    path = []
    at = int(np.argmax(np.array(longest))) if longest else -1
    while at >= 0:
        path.append(at + 1)
        at = before[at]
    return [one for one in reversed(path) if not tasks["buffer"][one - 1]]


class Clock:
    """The clock of another machine, which was asked several times for its time.

    A sample is when, by the parent's clock; how far this one was ahead; plus or minus what.
    """

    def __init__(self, samples: Sequence[tuple[int, int, int]]) -> None:
        when, ahead, half = np.array(samples, np.int64).T
        self._zero, self._base = int(when[0]), int(ahead[0])  # floats have too few digits for times
        when, ahead = when - self._zero, ahead - self._base
        least, most = ahead - half, ahead + half
        count = int(np.clip(np.ptp(when) // _STRETCH_NS, 1, _MOST_STRETCHES))
        stretch = (when - when.min()) * count // (np.ptp(when) + 1)
        places, values, errors = [], [], []
        for one in np.unique(stretch):
            mine = stretch == one
            low, high = int(least[mine].max()), int(most[mine].min())
            if low > high:  # it has gained or lost time meanwhile: the quickest answer says most
                best = np.flatnonzero(mine)[half[mine].argmin()]
                low, high = int(least[best]), int(most[best])
            places.append(float(when[mine].mean()))
            values.append((low + high) / 2)
            errors.append((high - low + 1) // 2)
        self._places, self._values = np.array(places), np.array(values)
        found = np.interp(when, self._places, self._values)
        outside = np.maximum(np.maximum(least - found, found - most), 0).max()
        self.error_ns = int(max(errors)) + int(np.ceil(outside))
        """A time is wrong by at most so much."""

    def to_parent(self, times: Array) -> Array:
        apart = times.astype(np.int64) - (self._zero + self._base)
        ahead = np.interp(apart, self._places + self._values, self._values)
        shifted: Array = apart - np.rint(ahead).astype(np.int64) + self._zero
        return shifted
