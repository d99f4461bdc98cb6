"""The graph of an orchestration function: its tasks in order, what each waits for, and why.

Tensors are numbered in the order in which tasks first use them, so that the text has no address and is
the same each time.

Rule     SEE-GRAPH-1, SEE-GRAPH-3
"""

from __future__ import annotations

import difflib
import os
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

MOST_DRAWN = 5000
"""Tasks of a graph for graphviz, which takes minutes for more."""
BUFFER = "alloc"
"""In place of a function's name, and of the tag of its tensor: memory from a ring."""


@dataclass(frozen=True, slots=True)
class GraphArgument:
    """A tensor of a task."""

    tag: str
    tensor: str
    """Its name in the graph: ``t0`` is the first one that a task has; ``t0+64`` begins in it, 64 bytes
    after its start; ``none`` has no memory."""
    form: str
    """Element type and shape."""
    address: int
    nbytes: int
    worker: int
    """The worker whose memory it is in, -1 for the host's."""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Why a task depends on an earlier one."""

    producer: int
    """The id of that one."""
    waits: bool
    """Whether it waits for its end; otherwise it keeps the memory that it is in."""
    tensor: str
    tag: str
    """How the task uses the tensor."""
    producer_tag: str
    """How the other one uses it; ``alloc`` if it is a buffer."""
    kind: str = "data"
    """``data``: it reads what that one writes; ``order``: it overwrites what that one uses; ``future``:
    it takes the value of that call, and no tensor; ``memory``: it does not wait."""
    producer_tensor: str = ""
    """The tensor of the other one, which shares bytes with this one."""

    def __str__(self) -> str:
        if not self.waits:
            return f"keeps task {self.producer}: memory of {self.tensor}"
        if self.kind == "future":
            return f"after task {self.producer}: its value"
        other = f" {self.producer_tensor}" if self.producer_tensor not in ("", self.tensor) else ""
        return f"after task {self.producer}: {self.tag} {self.tensor} ← {self.producer_tag}{other}"


@dataclass(frozen=True, slots=True)
class GraphMember:
    """What one worker of a task is given; all but groups have one member."""

    arguments: tuple[GraphArgument, ...]
    scalars: tuple[str, ...]
    worker: int
    """The only worker that may run it, -1 for any."""

    def __str__(self) -> str:
        tensors = [" ".join(filter(None, (a.tag, a.tensor, a.form))) for a in self.arguments]
        where = f" on worker {self.worker}" if self.worker >= 0 else ""
        return f"({', '.join([*tensors, *self.scalars])}){where}"


@dataclass(frozen=True, slots=True)
class GraphTask:
    """A task, or a buffer from `alloc`."""

    id: int
    """As in a run, and in messages."""
    name: str
    """Of its callable; ``alloc`` for a buffer."""
    line: str
    """The file and line that submitted it."""
    depth: int
    """How many scopes are open around it, that of the run not counted."""
    members: tuple[GraphMember, ...]
    edges: tuple[GraphEdge, ...]

    @property
    def is_buffer(self) -> bool:
        """Whether it is a buffer: nothing runs."""
        return self.name == BUFFER

    @property
    def arguments(self) -> list[GraphArgument]:
        """The tensors of all members."""
        return [one for member in self.members for one in member.arguments]

    def lines(self, *, places: bool) -> list[str]:
        """Return its text."""
        where = ""
        if places:
            file, _, number = self.line.rpartition(":")
            where = f"  # {os.path.basename(file)}:{number}"
        if self.is_buffer:
            (one,) = self.arguments
            texts = [f"task {self.id}: {BUFFER} {one.tensor} {one.form}{where}"]
        elif len(self.members) == 1:
            texts = [f"task {self.id}: {self.name}{self.members[0]}{where}"]
        else:
            texts = [f"task {self.id}: {self.name}, a group{where}"]
            texts += [f"    {one}" for one in self.members]
        return [*texts, *(f"    {edge}" for edge in self.edges)]

    def __str__(self) -> str:
        return "\n".join(self.lines(places=False))


class TaskGraph:
    """What `Worker.graph` returns: the tasks of an orchestration function, and what they wait for.

    ``str(graph)`` is its text.

    Attributes
    ----------
    tasks : tuple[GraphTask, ...]
        In the order in which they were submitted.
    """

    def __init__(self, tasks: list[GraphTask], steps: list[tuple[int, str | int]]) -> None:
        self.tasks = tuple(tasks)
        self._steps = steps

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs (earlier task, later task that waits for it), each once."""
        pairs = {(e.producer, one.id): None for one in self.tasks for e in one.edges if e.waits}
        return list(pairs)

    def text(self, *, lines: bool = False) -> str:
        """Return the graph as text, with a line for each task and one for each reason to wait.

        It contains no address, and no file unless asked for: a test can compare it.

        Parameters
        ----------
        lines : bool
            Whether the lines that submit are in it.
        """
        texts = []
        for depth, step in self._steps:
            told = self.tasks[step].lines(places=lines) if isinstance(step, int) else [step]
            texts += ["    " * depth + one for one in told]
        return "".join(f"{one}\n" for one in texts)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<TaskGraph of {len(self.tasks)} tasks and {len(self.pairs)} edges>"

    def diff(self, other: TaskGraph | str) -> str:
        """Return what is different in another graph, or in a text of one; "" if nothing is.

        Lines of this one begin with ``-``, those of the other one with ``+``.
        """
        texts = self.text(), other.text() if isinstance(other, TaskGraph) else other
        before, after = (one.splitlines() for one in texts)
        found = difflib.unified_diff(before, after, "this", "other", lineterm="")
        return "".join(f"{one}\n" for one in found)

    def write_dot(self, path: str | os.PathLike[str]) -> None:
        """Write the graph for graphviz, with what each edge is owed to; at most 5000 tasks."""
        shown = self.tasks[:MOST_DRAWN]
        nodes = [(one.id, f"task {one.id} ({one.name})", one.is_buffer, False) for one in shown]
        arrows = [
            (edge.producer, one.id, f"{edge.tag} {edge.tensor}".strip() or "value", edge.waits)
            for one in shown
            for edge in one.edges
        ]
        draw(path, nodes, arrows, len(self.tasks))


def draw(
    path: str | os.PathLike[str],
    nodes: list[tuple[int, str, bool, bool]],
    arrows: list[tuple[int, int, str, bool]],
    tasks: int,
) -> None:
    """Write a graph for graphviz, of the first ones of some tasks.

    A node is the number of a task, its name, whether it is a buffer, and whether it is critical; an arrow
    the numbers of both tasks, a label, and whether the second one waits for the first.
    """
    with open(path, "w", encoding="utf-8") as file:
        file.write("digraph tasks {\n  rankdir=LR; node [shape=box, fontname=sans];\n")
        for number, name, is_buffer, is_critical in nodes:
            quoted = name.replace("\\", "\\\\").replace('"', '\\"')
            shape = ", shape=ellipse" if is_buffer else ""
            colour = ", color=red, penwidth=2" if is_critical else ""
            file.write(f'  t{number} [label="{quoted}"{shape}{colour}];\n')
        for first, second, label, waits in arrows:
            style = "" if waits else ", style=dotted"
            file.write(f'  t{first} -> t{second} [label="{label}"{style}];\n')
        if len(nodes) < tasks:
            file.write(f'  more [label="… {tasks - len(nodes)} more tasks", shape=plaintext];\n')
        file.write("}\n")


@dataclass(slots=True)
class TensorNames:
    """Numbers tensors in the order in which they are asked for."""

    _wholes: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    """Of each worker's memory the tensors that have numbers: start, end and name, sorted."""
    _next: int = 0

    def name(self, worker: int, address: int, nbytes: int) -> str:
        """Return the name of a tensor: of its own, or by the one that it begins in."""
        if not address:
            return "none"
        wholes = self._wholes.get(worker, [])
        at = bisect_right(wholes, address, key=lambda one: one[0]) - 1
        if at < 0 or address >= wholes[at][1]:
            return self._fresh(worker, address, max(1, nbytes))
        start, _, name = wholes[at]
        return name if start == address else f"{name}+{address - start}"

    def provide(self, address: int, nbytes: int) -> str:
        """Return a new name for memory that the runtime provides, whatever was there before."""
        wholes = self._wholes.setdefault(-1, [])
        low = bisect_right(wholes, address, key=lambda one: one[1])  # in a ring they are apart
        high = bisect_left(wholes, address + nbytes, lo=low, key=lambda one: one[0])
        del wholes[low:high]
        return self._fresh(-1, address, nbytes)

    def _fresh(self, worker: int, address: int, nbytes: int) -> str:
        name = f"t{self._next}"
        self._next += 1
        insort(self._wholes.setdefault(worker, []), (address, address + nbytes, name))
        return name
