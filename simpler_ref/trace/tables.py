"""From notes to tables: the steps of tasks, edges, waits and memory, as arrays of numpy.

Rule     SEE-READ-1
"""

from __future__ import annotations

import numpy as np

from ..jit import layout as L
from ..jit import slots
from ..system.types import Array
from .file import NOTE, TraceFile
from .lanes import ORCH, SCHEDULER_THREAD, WAITED

TASK = np.dtype(
    [
        ("run", "<i4"),
        ("line", "<i4"),
        ("function", "<i8"),
        ("worker", "<i4"),
        ("outcome", "i1"),  # 0: it has not ended, 1: it completed, 2: it failed
        ("buffer", "?"),
        ("ahead", "?"),  # it was pre-dispatched
        *((name, "<i8") for name in ("submitted", "ready", "sent", "begun")),
        *((name, "<i8") for name in ("ended", "collected", "freed")),
    ]
)
EDGE = np.dtype(
    [
        ("consumer", "<i8"),
        ("producer", "<i8"),
        ("tensor", "<u2"),
        ("tag", "u1"),
        ("kind", "u1"),  # 0 data, 1 order, 2 a future's value, 3 only memory
        ("address", "<i8"),
    ]
)
ARGUMENT = np.dtype(
    [
        *(("task", "<i8"), ("index", "<u2"), ("tag", "u1"), ("address", "<i8"), ("nbytes", "<i8")),
        ("provided", "?"),  # by the runtime, in a ring
        ("memory", "<i4"),  # -1 the host's, -2 an endpoint's, else that of a worker
        ("layout", "<i8"),  # of a view: its number; else -1
    ]
)
SPAN = np.dtype([("lane", "<i4"), ("what", "<i4"), ("begin", "<i8"), ("end", "<i8")])
RAN = np.dtype(
    [
        *(("task", "<i8"), ("worker", "<i4"), ("outcome", "<i4"), ("function", "<i8")),
        *(("begin", "<i8"), ("end", "<i8")),
    ]
)
"""What a worker ran; a group has one for each member."""
WROTE = np.dtype(
    [*(("task", "<i8"), ("index", "<u2"), ("worker", "<i4"), ("low", "<i8"), ("high", "<i8"))]
)
"""With ``check=True``: an INPUT that changed while its task ran, and the addresses of the changes."""
HELD = np.dtype([("time", "<i8"), ("ring", "<i4"), ("bytes", "<i8")])
SCOPE = np.dtype([("time", "<i8"), ("depth", "<i4"), ("opened", "?")])
FRAME = np.dtype(
    [
        *(("time", "<i8"), ("lane", "<i4"), ("sent", "?"), ("type", "u1"), ("nbytes", "<i8")),
        ("exchange", "<i8"),  # the same number for what asks and what answers
        ("task", "<i8"),  # of a COMPLETION that was received; else 0
    ]
)
MOVE = np.dtype(
    [
        *(("lane", "<i4"), ("stored", "?"), ("peer", "<i8"), ("nbytes", "<i8")),
        *(("begin", "<i8"), ("end", "<i8")),
    ]
)
"""A tensor that was fetched from a session's memory, named by `peer`, or stored there."""
RUN = np.dtype([("first", "<i8"), ("kind", "<i4"), ("begin", "<i8"), ("end", "<i8")])
"""A run (kind 1) or a stream of calls (2), and the number of its first task."""
EVENT = {event.name: number + 1 for number, event in enumerate(slots.EVENTS)}


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


def _of(notes: Array, kind: int) -> Array:
    """Return the notes of a kind."""
    rows: Array = notes[notes["what"] & 0xFF == kind]
    return rows


def ran_of(notes: Notes) -> Array:
    """Return what workers ran."""
    parts = [np.zeros(0, RAN)]
    for worker, own in notes.workers.items():
        found = _of(own, L.NOTED_RAN)
        found = found[found["task"] > 0]
        rows = np.zeros(len(found), RAN)
        rows["task"], rows["worker"] = found["task"], worker
        rows["outcome"] = found["what"] >> 8 & 0xFF
        rows["function"] = found["what"] >> 16
        rows["begin"], rows["end"] = found["time"], found["value"]
        parts.append(rows[rows["outcome"] < L.SKIPPED])
    return np.concatenate(parts)


def wrote_of(notes: Notes) -> Array:
    """Return the INPUTs that have changed."""
    parts = [np.zeros(0, WROTE)]
    for worker, own in notes.workers.items():
        found = _of(own, L.NOTED_WROTE)
        rows = np.zeros(len(found), WROTE)
        rows["task"], rows["index"], rows["worker"] = found["task"], found["what"] >> 8, worker
        rows["low"], rows["high"] = found["time"], found["value"]
        parts.append(rows)
    rows = np.concatenate(parts)
    return rows[np.argsort(rows["task"], kind="stable")]


def runs_of(notes: Notes) -> Array:
    """Return the runs and streams."""
    found = _of(notes.orch, L.NOTED_RUN)
    kinds = found["what"] >> 8
    begun = found[kinds != 0]
    rows = np.zeros(len(begun), RUN)
    rows["first"], rows["kind"], rows["begin"] = begun["task"], kinds[kinds != 0], begun["time"]
    over = np.sort(found["time"][kinds == 0])
    after = np.searchsorted(over, rows["begin"])
    rows["end"] = np.where(after < len(over), np.append(over, 0)[after], 0)
    return rows


def edges_of(notes: Notes) -> Array:
    """Return who depends on whom."""
    found = _of(notes.orch, L.NOTED_EDGE)
    rows = np.zeros(len(found), EDGE)
    operand = found["what"] >> 8
    rows["consumer"], rows["producer"] = found["task"], found["value"]
    rows["tensor"], rows["tag"] = operand & 0xFFFF, operand >> 16 & 0xFF
    rows["kind"], rows["address"] = operand >> 24, found["time"]
    return rows[rows["producer"] > 0]  # the trace began after those of other numbers


def arguments_of(notes: Notes) -> Array:
    """Return the tensors of tasks."""
    found = _of(notes.orch, L.NOTED_ARGUMENT)
    rows = np.zeros(len(found), ARGUMENT)
    operand = found["what"] >> 8
    rows["task"], rows["index"] = found["task"], operand & 0xFFFF
    rows["tag"] = operand >> 16 & 0xF
    rows["address"], rows["nbytes"] = found["time"], found["value"]
    rows["provided"], place = operand >> 20 & 1, operand >> 24 & 0xFFFF
    rows["memory"] = np.where(place == L.ELSEWHERE, -2, place - 1)
    rows["layout"] = -1
    views = _of(notes.orch, L.NOTED_LAYOUT)
    if len(views):
        order = np.argsort(_key(rows["task"], rows["index"]), kind="stable")
        asked = _key(views["task"], views["what"] >> 8)
        at = np.searchsorted(_key(rows["task"], rows["index"]), asked, sorter=order)
        rows["layout"][order[at]] = views["value"]
    return rows


def _key(task: Array, index: Array) -> Array:
    """Return one number for a task and a tensor of it."""
    keys: Array = task.astype(np.int64) << 16 | index
    return keys


# ---------------------------------------------------------------- tasks
def tasks_of(notes: Notes, ran: Array, runs: Array) -> Array:
    """Return the tasks, from number 1 on."""
    numbers = [ran["task"], *(_of(notes.orch, EVENT[one])["task"] for one in ("submit", "alloc"))]
    count = max((int(one.max()) for one in numbers if len(one)), default=0)
    rows = np.zeros(count, TASK)
    rows["worker"] = -1
    rows["run"] = np.searchsorted(runs["first"], np.arange(1, count + 1), "right") - 1
    _note_submits(rows, notes.orch)
    _note_steps(rows, notes)
    _note_ran(rows, ran)
    _note_ahead(rows, notes.scheduler)
    return rows


def _known(rows: Array, notes: Array, kind: int) -> tuple[Array, Array]:
    """Return the notes of a kind that are about tasks of a table, and the rows of these."""
    found = _of(notes, kind)
    found = found[(found["task"] > 0) & (found["task"] <= len(rows))]
    return found, found["task"] - 1


def _note_submits(rows: Array, orch: Array) -> None:
    for event in ("submit", "alloc"):
        found, at = _known(rows, orch, EVENT[event])
        rows["submitted"][at], rows["line"][at] = found["time"], found["what"] >> 8
        rows["function"][at] = found["value"]
    rows["buffer"][at], rows["outcome"][at] = True, 1  # of alloc: it is complete at once
    for name in ("ready", "sent", "begun", "ended", "collected"):
        rows[name][at] = found["time"]
    found, at = _known(rows, orch, L.NOTED_CALL)
    rows["function"][at] = found["value"] | L.FUNCTION_IS_KEY


def _note_steps(rows: Array, notes: Notes) -> None:
    for journal, event, column in (
        (notes.scheduler, "inputs done", "ready"),
        (notes.scheduler, "dispatch", "sent"),
        (notes.scheduler, "complete", "collected"),
        (notes.scheduler, "fail", "collected"),
        (notes.scheduler, "poison", "collected"),
        (notes.scheduler, "release", "freed"),
        (notes.orch, "reclaim", "freed"),
    ):
        found, at = _known(rows, journal, EVENT[event])
        rows[column][at] = found["time"]
        if event == "dispatch":
            rows["worker"][at] = (found["what"] >> 8) - 1
        elif column == "collected":
            rows["outcome"][at] = 1 if event == "complete" else 2


def _note_ran(rows: Array, ran: Array) -> None:
    """Take over what workers know; a group begins with its first member and ends with its last."""
    at = ran["task"] - 1
    rows["function"][at], rows["worker"][at] = ran["function"], ran["worker"]
    far = np.iinfo(np.int64).max
    begun = np.full(len(rows), far)
    np.minimum.at(begun, at, ran["begin"])
    rows["begun"] = np.where(begun == far, rows["begun"], begun)
    np.maximum.at(rows["ended"], at, ran["end"])
    unseen = rows["outcome"][at] == 0
    rows["outcome"][at[unseen]] = np.where(ran["outcome"][unseen] == L.SUCCESS, 1, 2)


def _note_ahead(rows: Array, scheduler: Array) -> None:
    """Correct the times of tasks that a worker had before they were ready, and began by itself."""
    found, at = _known(rows, scheduler, L.NOTED_AHEAD)
    began = (rows["begun"][at] > 0) & (rows["begun"][at] < rows["sent"][at])
    found, at = found[began], at[began]
    rows["ahead"][at], rows["sent"][at] = True, found["time"]
    rows["ready"][at] = np.minimum(rows["ready"][at], rows["begun"][at])


# ---------------------------------------------------------------- the rest
def waits_of(notes: Notes) -> Array:
    """Return sleeps and waits of the threads; a lane is a worker, or one of `LANES`."""
    parts = [np.zeros(0, SPAN)]
    sources = [(ORCH, notes.orch), (SCHEDULER_THREAD, notes.thread), *notes.workers.items()]
    for lane, own in sources:
        for kind in (L.NOTED_PARKED, L.NOTED_WAITED, L.NOTED_PASSES, L.NOTED_REQUEST):
            found = _of(own, kind)
            rows = np.zeros(len(found), SPAN)
            rows["lane"], rows["begin"], rows["end"] = lane, found["time"], found["value"]
            rows["what"] = kind
            if kind == L.NOTED_WAITED:
                rows["what"] = WAITED + (found["what"] >> 8)
            parts.append(rows)
    return np.concatenate(parts)


def frames_of(notes: Notes) -> Array:
    """Return the frames that links, and the Orch thread of a session, have sent and received."""
    parts = [np.zeros(0, FRAME)]
    for lane, own in [(ORCH, notes.orch), *notes.workers.items()]:
        found = _of(own, L.NOTED_FRAME)
        rows = np.zeros(len(found), FRAME)
        operand = found["what"] >> 8
        rows["lane"], rows["time"], rows["nbytes"] = lane, found["time"], found["value"]
        rows["type"], rows["sent"] = operand & 0xFF, operand & L.FRAME_SENT != 0
        rows["exchange"], rows["task"] = operand >> 9, found["task"]
        parts.append(rows)
    return np.concatenate(parts)


def moves_of(notes: Notes) -> Array:
    """Return the tensors that links and sessions have moved."""
    parts = [np.zeros(0, MOVE)]
    for lane, own in [(ORCH, notes.orch), *notes.workers.items()]:
        found = _of(own, L.NOTED_MOVED)
        rows = np.zeros(len(found), MOVE)
        operand = found["what"] >> 8
        rows["lane"], rows["stored"], rows["peer"] = lane, operand & 1, operand >> 1
        rows["nbytes"], rows["begin"], rows["end"] = found["task"], found["time"], found["value"]
        parts.append(rows)
    return np.concatenate(parts)


def held_of(notes: Notes) -> Array:
    """Return how many bytes each ring held from when on."""
    found = _of(notes.orch, L.NOTED_HELD)
    rows = np.zeros(len(found), HELD)
    rows["time"], rows["ring"] = found["time"], found["what"] >> 8
    rows["bytes"] = found["value"]
    return rows


def scopes_of(notes: Notes) -> Array:
    """Return when scopes were opened and closed."""
    found = _of(notes.orch, L.NOTED_SCOPE)
    rows = np.zeros(len(found), SCOPE)
    operand = found["what"] >> 8
    rows["time"], rows["depth"], rows["opened"] = found["time"], operand & 0xFFFF, operand >> 16
    return rows
