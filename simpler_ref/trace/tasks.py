"""One task of a trace, and its story.

Rule     SEE-REMOTE-7; SEE-WHY-1, -2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..jit import layout as L

if TYPE_CHECKING:
    from .reader import Trace

TAGS = ("INPUT", "OUTPUT", "INOUT", "OUTPUT_EXISTING", "NO_DEP")
READING = ("INPUT", "INOUT")
WRITING = ("OUTPUT", "INOUT", "OUTPUT_EXISTING")
"""Those that write."""
KINDS = ("data", "order", "future", "memory")
"""Of dependencies; see `Dependency.kind`."""
SUCCEEDED, FAILED, UNFINISHED = "completed", "failed", "unfinished"
COMPLETION = 5
"""The type of a frame that says that a task has ended."""
QUICK_NS = 1000
"""A wait that is shorter is not worth a line."""


class Dependency(NamedTuple):
    """Why a task had to wait for another."""

    task: int
    """The number of that one."""
    kind: str
    """``data``: it reads what that one writes; ``order``; ``future``; ``memory``."""
    tensor: int
    """Index of the tensor among the arguments, -1 if the edge is owed to no single one."""
    tag: str
    """How the task uses that tensor."""
    producer_tag: str
    """How the other one uses it; "" if that is not known."""
    address: int


class Argument(NamedTuple):
    """A tensor of a task."""

    position: int
    tag: str
    address: int
    nbytes: int


class TracedTask:
    """One task, with its times in ns of the trace's clock; 0 where a time is not known."""

    def __init__(self, trace: Trace, number: int) -> None:
        self._trace = trace
        self.number = number
        """Its number in the trace, from 1 on."""
        row = trace.tasks[number - 1]
        self.run = int(row["run"])
        self.id = number - trace.first_of_run(self.run)
        """Its id in its run, as messages have it."""
        self.function = trace.function_name(int(row["function"]))
        self.line = trace.line_name(int(row["line"]))
        self.worker = int(row["worker"])
        self.outcome = (UNFINISHED, SUCCEEDED, FAILED)[int(row["outcome"])]
        self.is_buffer = bool(row["buffer"])
        self.sent_ahead = bool(row["ahead"])
        self.submitted, self.ready, self.sent = (int(row[name]) for name in trace.TIMES[:3])
        self.begun, self.ended = int(row["begun"]), int(row["ended"])
        self.collected, self.freed = int(row["collected"]), int(row["freed"])

    @property
    def name(self) -> str:
        """Return what it is called in texts."""
        what = "buffer" if self.is_buffer else self.function
        return f"task {self.id} ({what})"

    @property
    def arguments(self) -> list[Argument]:
        """Its tensors."""
        rows = self._trace.arguments_of(self.number)
        return [
            Argument(int(one["index"]), TAGS[one["tag"]], int(one["address"]), int(one["nbytes"]))
            for one in rows
        ]

    @property
    def dependencies(self) -> list[Dependency]:
        """The tasks that it depends on, in the order in which they were found."""
        return [self._dependency(one) for one in self._trace.edges_to(self.number)]

    @property
    def consumers(self) -> list[int]:
        """The numbers of the tasks that depend on it."""
        found = self._trace.edges_from(self.number)
        return sorted(set(found["consumer"].tolist()))

    def _dependency(self, edge: np.void) -> Dependency:
        producer, address = int(edge["producer"]), int(edge["address"])
        tensor = int(edge["tensor"])
        tag = "" if tensor == L.NO_TENSOR else TAGS[edge["tag"]]
        kind = KINDS[edge["kind"]]
        producer_tag = ""
        for one in self._trace.arguments_of(producer):
            low = self._trace.low_of(one)
            fits = kind != "data" or TAGS[one["tag"]] in WRITING
            if fits and low <= address < low + max(1, one["nbytes"]):
                producer_tag = TAGS[one["tag"]]
        missing = -1 if tensor == L.NO_TENSOR else tensor
        return Dependency(producer, kind, missing, tag, producer_tag, address)

    # ------------------------------------------------------------ the story
    def why(self) -> str:
        """Tell what the task waited for, from its submission until its memory was let go."""
        return "\n".join(self._story())

    def _story(self) -> list[str]:
        trace, at = self._trace, self._trace.relative
        lines = [self.name]
        above = int(trace.within[self.run]) if self.run >= 0 else 0
        if above:
            lines[0] += f", in {trace.task(above).name} at {trace.side(self.worker)}"
        if self.submitted:
            where = f" at {self.line}" if self.line else ""
            lines.append(f"  {at(self.submitted)}  submitted{where}")
        elif not self.begun:
            return [*lines, "  nothing else is known: notes were dropped, or the trace began later"]
        lines += self._waits()
        if self.is_buffer:
            lines.append("  a buffer: its memory is there at once")
        elif self.begun:
            lines += self._run()
        elif self.outcome == FAILED:
            lines.append(f"  {at(self.collected)}  failed without being started")
        elif self.sent:
            lines.append(f"  {at(self.sent)}  sent to {trace.worker_name(self.worker)}, not ended")
        if self.freed:
            lines.append(f"  {at(self.freed)}  let go: slot and memory are free")
        return lines

    def _waits(self) -> list[str]:
        """Say what it waited for before it was ready, and for a worker."""
        trace, at = self._trace, self._trace.relative
        lines, seen = [], set()
        for one in self.dependencies:
            other = trace.task(one.task)
            if one.kind == "memory" or one.task in seen:
                continue
            seen.add(one.task)
            until = "which was over"
            if other.is_buffer:
                until = "a buffer, which was there"
            elif not other.collected:
                until = "which has not ended"
            elif other.collected > self.submitted:
                until = f"until {at(other.collected)}"
            lines.append(f"      {'':>9}  waited for {other.name} {_through(one)}, {until}")
        if self.sent_ahead:
            lines.append(
                f"  {at(self.sent)}  sent ahead to {trace.worker_name(self.worker)}, to begin there"
            )
        elif self.ready and not self.is_buffer:
            lines.append(f"  {at(self.ready)}  ready")
            if self.sent - self.ready > QUICK_NS:
                lines.append(f"      {'':>9}  waited {span(self.sent - self.ready)} for a worker")
            if self.sent:
                lines.append(f"  {at(self.sent)}  sent to {trace.worker_name(self.worker)}")
        return lines

    def journey(self) -> list[tuple[int, str]]:
        """Return when frames about it were sent and received, when tensors moved for it, and what for."""
        trace, found = self._trace.whole, []
        if self.worker < 0 or not self.begun:
            return []
        for row in trace.frames_about(self.number):
            kind = "COMPLETION" if row["type"] == COMPLETION else "TASK"
            place = trace.side(int(row["lane"]))
            where = f" at {place}" if place else ""
            how = "sent" if row["sent"] else "received"
            found.append((int(row["time"]), f"{kind} {how}{where}, {row['nbytes']} bytes"))
        for row in trace.moves_for(self):
            one = trace.transfer(row)
            found.append((one.begin, f"{one} in {span(one.end - one.begin)}"))
        for _, begin, end, tasks in trace.runs_within.get(self.number, ()):
            found.append((begin, f"a run of {tasks} task{'s' * (tasks != 1)} begins there"))
            if end:
                found.append((end, "the run has ended there"))
        return sorted(found)

    def _run(self) -> list[str]:
        trace, at = self._trace, self._trace.relative
        lines = []
        start = max(self.sent, self.ready) if self.sent else 0
        if start and self.begun - start > QUICK_NS:
            late = span(self.begun - start)
            was = trace.state_before(self.worker, start, self.begun)
            lines.append(f"      {'':>9}  waited {late} until the worker took it{was}")
        place = trace.worker_name(self.worker)
        lines.append(f"  {at(self.begun)}  began on {place}")
        lines += [f"  {at(time)}    {text}" for time, text in self.journey()]
        if self.ended:
            how = "failed" if self.outcome == FAILED else "ended"
            lines.append(f"  {at(self.ended)}  {how} after {span(self.ended - self.begun)}")
        if self.collected and self.collected - self.ended > QUICK_NS:
            lines.append(
                f"  {at(self.collected)}  seen to have ended, {span(self.collected - self.ended)} later"
            )
        return lines

    def __repr__(self) -> str:
        return f"<{self.name}: {self.outcome}, {span(max(0, self.ended - self.begun))}>"


def _through(one: Dependency) -> str:
    """Say through what a task depends on another: its tensor, and the tags."""
    if one.kind == "future":
        return "(its value is an argument)"
    if one.tensor < 0:
        return f"({one.kind})"
    tags = f"{one.tag} ← {one.producer_tag}" if one.producer_tag else one.tag
    return f"(tensor {one.tensor} at {one.address:#x}, {tags})"


def span(ns: float) -> str:
    """Return a time span for people."""
    if ns < 1e3:
        return f"{ns:.0f} ns"
    if ns < 1e6:
        return f"{ns / 1e3:.1f} µs"
    if ns < 1e9:
        return f"{ns / 1e6:.2f} ms"
    return f"{ns / 1e9:.2f} s"
