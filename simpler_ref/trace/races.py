"""Races in a trace: what its tasks did with which bytes, in the order in which they were submitted.

The submits, buffers, scopes and drains of each run are told to a `History`, as a Worker with
``check=True`` does while they happen. So what counts is what waits for what, and not which task
happened to end first.

Rule     SEE-INPUT-5; SEE-RACE-1 to -4, -6
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import HazardError
from ..jit import layout as L
from ..system.types import Array
from .history import HOST, History, Tensor
from .tables import ORCH, WAITED

if TYPE_CHECKING:
    from .reader import Trace

_RUN, _TASK, _OPEN, _CLOSE, _DRAIN = range(5)
"""What happens in a run."""
_OF_RUN = 1
"""The kind of a run that is no stream of calls."""


class Race(NamedTuple):
    """Two tasks that nothing orders and that use the same bytes; or one that uses memory given back."""

    kind: str
    """As `HazardError.kind`."""
    run: int
    """The run, from 0 on."""
    tasks: tuple[int, ...]
    """Ids of the tasks in their run, the one that was submitted last at the end."""
    places: tuple[str, ...]
    """The lines that submitted them."""
    text: str
    """What happened, and what to do."""
    more: int = 0
    """How many others the same lines have submitted."""

    def __str__(self) -> str:
        others = f"\n(and {self.more} more of these lines)" if self.more else ""
        return f"run {self.run}: {self.text}{others}\n"


def races(trace: Trace) -> list[Race]:
    """Return what is wrong in the runs of a trace, one for each pair of lines; see `Trace.races`."""
    if trace.submits_dropped:
        raise ValueError(
            f"{trace.submits_dropped} notes about what was submitted were dropped, so tensors are "
            "missing: trace a smaller part of the program, or give it fewer workers"
        )
    if not len(trace.arguments) and not trace.tasks["submitted"].any() and len(trace.tasks):
        raise ValueError("the trace has no tensors: take it with detail='all'")
    first: dict[tuple[object, ...], Race] = {}
    for one in all_races(trace):
        functions = [
            int(trace.tasks["function"][trace.first_of_run(one.run) - 1 + task])
            for task in one.tasks
        ]
        key = (one.kind, one.places, *functions)
        known = first.setdefault(key, one)
        if known is not one:
            first[key] = known._replace(more=known.more + 1)
    return list(first.values())


def all_races(trace: Trace) -> Iterator[Race]:
    """Yield everything that is wrong, also what the same lines have submitted."""
    yield from _in_order(trace)
    yield from _written(trace)


def _written(trace: Trace) -> Iterator[Race]:
    """Yield the tasks whose INPUTs have changed, as a Worker with ``check=True`` has found."""
    for number, index, worker, low, high in trace.wrote.tolist():
        if not 1 <= number <= len(trace.tasks):
            continue
        task = trace.task(number)
        is_call = trace.runs["kind"][task.run] != _OF_RUN
        what = f"argument {index}" if is_call else f"tensor {index}"
        place = task.line or "an unknown line"
        remedy = "Annotate the parameter with InOut" if is_call else "Tag the tensor INOUT"
        text = (
            f"write to INPUT: up to {high - low} bytes from {low:#x} on of {what}, an INPUT of "
            f"{task.name}, changed while the task ran on {trace.worker_name(worker)}\n"
            f"  submitted at {place}\n"
            f"{remedy} if the task writes there; else the program does, or another task that has it as "
            "INPUT."
        )
        yield Race("write to INPUT", task.run, (task.id,), (place,), text)


def _in_order(trace: Trace) -> Iterator[Race]:
    """Yield what is wrong with the order of tasks, and with their memory."""
    tensors = _Tensors(trace)
    tracks_reads = bool(trace.about.get("track_reads", False))
    history: History | None = None
    run, is_whole = -1, False
    buffers, lines = trace.tasks["buffer"], trace.tasks["line"]
    functions = trace.tasks["function"]
    for what, which in _events(trace):
        if what == _RUN:
            run = which
            is_run = trace.runs["kind"][run] == _OF_RUN
            history = History([tensors.heap], tracks_reads) if is_run else None
            is_whole = bool((trace.tasks["outcome"][trace.tasks["run"] == run] == 1).all())
        elif history is None:
            continue
        elif what == _TASK:
            place = trace.line_name(int(lines[which])) or "an unknown line"
            mine, provided = tensors.of(which)
            if buffers[which]:
                history.alloc(place, provided.get(0, mine[0].start), mine[0].nbytes)
                continue
            plan = history.expect(trace.function_name(int(functions[which])), place, mine)
            yield from _found(run, history.hazards(plan))
            history.add(plan, list(provided.items()))
        elif what == _DRAIN:
            history.drain()
        elif what == _OPEN:
            history.open_scope()
        else:
            if is_whole:  # else an exception may have ended it, in place of a drain
                yield from _found(run, history.not_kept())
            history.close_scope()


def _found(run: int, hazards: Iterable[HazardError]) -> Iterator[Race]:
    seen = set()
    for one in hazards:
        if (one.kind, one.tasks) not in seen:  # once for all tensors of two tasks
            seen.add((one.kind, one.tasks))
            yield Race(one.kind, run, one.tasks, one.places, str(one))


def _events(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield what the Orch thread did, in its order: what, and the index of the run or task."""
    submitted = trace.tasks["submitted"]
    tasks = np.flatnonzero(submitted)
    scopes = trace.scopes[trace.scopes["depth"] > 0]  # the run's own begins and ends with it
    mine = (trace.waits["lane"] == ORCH) & (trace.waits["what"] == WAITED + L.WAITED_TASKS)
    drains = trace.waits["end"][mine]
    parts: list[tuple[Array, Array, Array]] = [
        (trace.runs["begin"], np.full(len(trace.runs), _RUN), np.arange(len(trace.runs))),
        (submitted[tasks], np.full(len(tasks), _TASK), tasks),
        (scopes["time"], np.where(scopes["opened"], _OPEN, _CLOSE), np.arange(len(scopes))),
        (drains, np.full(len(drains), _DRAIN), np.arange(len(drains))),
    ]
    times, whats, which = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(times, kind="stable")
    yield from zip(whats[order].tolist(), which[order].tolist(), strict=True)


class _Tensors:
    """The tensors of a trace's tasks, as a `History` takes them."""

    def __init__(self, trace: Trace) -> None:
        low, high = trace.about.get("heap", (0, 0))
        self.heap = low, high
        rows = trace.arguments[np.lexsort((trace.arguments["index"], trace.arguments["task"]))]
        self._rows = rows
        self._first = np.searchsorted(rows["task"], np.arange(1, len(trace.tasks) + 2)).tolist()
        self._trace = trace

    def of(self, task: int) -> tuple[list[Tensor], dict[int, int]]:
        """Return the tensors of a task, and the addresses of those that the runtime has provided."""
        made, provided = [], {}
        rows = self._rows[self._first[task] : self._first[task + 1]].tolist()
        for i, (_, _, tag, address, nbytes, is_provided, memory, number) in enumerate(rows):
            layout, below = None, 0
            if number >= 0:
                layout, below, is_known = self._trace.form(number)
                if not is_known:
                    nbytes = 0
            if memory < HOST:
                nbytes = 0  # an endpoint's: not compared
            start = address - below
            if is_provided and address:
                provided[i], start = address, 0
            made.append(Tensor(tag, memory, start, start + nbytes, 0, below, layout, memory > HOST))
        return made, provided
