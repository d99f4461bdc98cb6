"""A dry run: an orchestration function's tasks and what they wait for, without running any.

The engine of a dry run has workers that answer nothing: no task ends, and its rings are addresses without
memory. So the dependencies are those that the kernels find, and all of them: in a run, a task need not
wait for one that has ended and is forgotten. What they find they note, as for a trace.

Rule     SEE-GRAPH-1, SEE-GRAPH-6
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from ..callables.identity import CallableHandle
from ..engine.memory import Engine
from ..jit import layout as L
from ..model import wire as W
from ..model.arguments import Members, TaskArgs, Workers, note_outputs, submit_words
from ..model.config import CallConfig
from ..model.scalars import as_it_went_in
from ..model.tensor import ContinuousTensor
from ..trace import graphs
from ..trace.timeline import KINDS, TAGS, WRITING
from ..workers.session import Session
from .checked import caller
from .listening import fresh_memory, listen
from .orchestrator import asked_for, never_fits, number_layouts

_MOST_SHOWN = 1 << 32
"""Integers from here on may be addresses, which differ from run to run: the text does not have them."""

Member: TypeAlias = tuple[Iterable[bytes], Iterable[str], int]
"""The tensors of a task, or of a member of a group; its scalars as text; its worker, −1 for any."""


class DryRun:
    """Submits to an engine that runs nothing, with the rings and workers that a session has."""

    why_not = "has no meaning in a dry run: nothing is executed; do it before Worker.graph"

    def __init__(self, session: Session) -> None:
        self.memory = first, end = fresh_memory()
        view = session.engine.view
        self._engine = engine = Engine(
            heap_ring_size=L.HEAP_ALIGN,
            ring_depth=view.ring_count,
            next_level=len(view.pool(L.NEXT_LEVEL)),
            sub=len(view.pool(L.SUB)),
            track_reads=session.options.track_reads,
        )
        self._names = graphs.TensorNames()
        self._made: list[graphs.GraphTask] = []
        self._extents: list[list[tuple[int, int]]] = []
        """Of each task: where its tensors begin and end."""
        self._steps: list[tuple[int, str | int]] = []
        kernels, mem = engine.kernels, engine.mem
        kernels.begin_trace(mem, L.TRACE_ALL)
        for one in range(engine.view.workers):
            kernels.set_usable(mem, one, 1)
        room = (end - first) // engine.view.ring_count
        engine.view.place_rings(first, room // L.HEAP_ALIGN * L.HEAP_ALIGN)
        kernels.begin_run(mem)

    @property
    def _depth(self) -> int:
        """How many scopes are open, that of the run not counted."""
        return self._engine.view.scope_depth - 1

    # ------------------------------------------------------------ tasks
    def task(self, handle: CallableHandle, word: int, members: Members, workers: Workers) -> None:
        """Submit a task, and write the addresses that the engine has provided into its arguments."""
        for one in members:
            number_layouts(one._tensors, self._engine.layouts)
        counts, whole = submit_words(members, workers)
        submit = self._engine.kernels.submit_and_pass
        slot = submit(self._engine.mem, word, counts, len(workers or ()), whole)
        self._require_slot(slot, whole, counts)
        if slot & L.AUTO_OUTPUT:
            wires = [(one._tensors, i) for one in members for i in range(len(one._tensors))]
            asked = [(mine, i) for mine, i in wires if W.asks_for_memory(mine[i])]
            note_outputs(members, self._engine.view.provided(slot ^ L.AUTO_OUTPUT, len(wires)))
            for mine, i in asked:
                if W.has_address(mine[i]):
                    self._names.provide(*ContinuousTensor._from_wire(mine[i])._span())
        places = workers or [word >> L.WORD_WORKER & L.WORKER_MASK]
        parts: list[Member] = []
        for one, worker in zip(members or [TaskArgs()], places, strict=True):
            texts = [shown_number(as_it_went_in(raw, raw[W.KIND_AT])) for raw in one._scalars]
            parts.append((one._tensors, texts, worker - 1))
        self._add(handle.name.rpartition(":")[2], parts)  # of "module:function" the function

    def buffer(self, tensor: ContinuousTensor) -> int:
        wire, counts = tensor._tagged(L.OUTPUT), W.counts_of(1, 0)
        slot = self._engine.kernels.alloc_buffer(self._engine.mem, wire)
        address = self._engine.view.buffer(self._require_slot(slot, wire, counts))
        buffer = tensor._at_address(address, None)
        if address:
            self._names.provide(*buffer._span())
        self._add(graphs.BUFFER, [([buffer._tagged(L.OUTPUT)], (), -1)])
        return address

    # ------------------------------------------------------------ the graph
    def _require_slot(self, slot: int, wire: bytes, counts: int) -> int:
        if slot == L.WOULD_BLOCK:
            raise MemoryError(
                f"a dry run keeps all of its tasks, and there is no room for more than "
                f"{len(self._made)}: give it a smaller problem"
            )
        if slot < 0:
            raise never_fits(slot, asked_for(wire, counts), self._engine.view.ring_bytes)
        return slot

    def _add(self, name: str, members: Iterable[Member]) -> None:
        self._steps.append((self._depth, len(self._made)))
        made = []
        extents: list[tuple[int, int]] = []
        for wires, texts, worker in members:
            arguments = []
            for wire in wires:
                tensor = ContinuousTensor._from_wire(wire, self._engine.layouts)
                start, nbytes = tensor._span()
                extents.append((start, start + nbytes))
                owner = worker if wire[W.CHILD_MEMORY_AT] == 1 else -1
                element = str(getattr(tensor.dtype, "name", tensor.dtype)).lower()
                known, form = self._names.name(owner, tensor.data, nbytes), list(tensor.shapes)
                about = TAGS[wire[W.TAG_AT]], known, f"{element}{form}", tensor.data, nbytes, owner
                arguments.append(graphs.GraphArgument(*about))
            made.append(graphs.GraphMember(tuple(arguments), tuple(texts), worker))
        self._extents.append(extents)
        line = caller().partition(", called at ")[0]
        edges = self._edges([one for member in made for one in member.arguments])
        self._made.append(
            graphs.GraphTask(len(self._made), name, line, self._depth, tuple(made), tuple(edges))
        )

    def _edges(self, mine: Sequence[graphs.GraphArgument]) -> list[graphs.GraphEdge]:
        """Return the edges to the task just submitted, as the kernels have noted them."""
        edges, waited = [], set()
        for what, _, address, producer in self._engine.view.take_notes(L.JOURNAL_OF_ORCH).tolist():
            if what & 0xFF != L.NOTED_EDGE:
                continue
            operand = what >> 8
            kind, tensor = KINDS[operand >> 24], operand & 0xFFFF
            waits = kind != "memory"
            if waits:
                waited.add(producer - 1)
            if tensor == L.NO_TENSOR:
                edges.append(graphs.GraphEdge(producer - 1, waits, "", "", "", kind))
                continue
            one, task = mine[tensor], self._made[producer - 1]
            other = self._used(task, one.worker, address, writes=kind != "order")
            tag = graphs.BUFFER if task.is_buffer else other.tag
            edges.append(
                graphs.GraphEdge(producer - 1, waits, one.tensor, one.tag, tag, kind, other.tensor)
            )
        return [edge for edge in edges if edge.waits or edge.producer not in waited]

    def _used(
        self, task: graphs.GraphTask, worker: int, address: int, *, writes: bool
    ) -> graphs.GraphArgument:
        found = [
            one
            for one, (start, end) in zip(task.arguments, self._extents[task.id], strict=True)
            if one.worker == worker and (one.address == address or start <= address < end)
            if one.tag in WRITING or not writes
        ]
        return next((one for one in found if one.address == address), found[0])

    # ------------------------------------------------------------ scopes, and what does not run
    def scope(self, begins: bool) -> None:
        if begins:
            self._steps.append((self._depth, "scope:"))
            self._engine.kernels.open_scope(self._engine.mem)
        else:
            self._engine.kernels.close_scope(self._engine.mem)

    def drain(self) -> None:
        """Note where a run would wait until all tasks have ended."""
        self._steps.append((self._depth, "drain"))

    def graph(self) -> graphs.TaskGraph:
        self._engine.close()
        return graphs.TaskGraph(self._made, self._steps)


def shown_number(value: Any) -> str:
    return "…" if isinstance(value, int) and abs(value) >= _MOST_SHOWN else repr(value)


def graph_of(
    session: Session, orch_fn: Callable[..., Any], args: Any, config: CallConfig
) -> graphs.TaskGraph:
    dry = DryRun(session)
    try:
        listen(dry, session, orch_fn, args, config)
    finally:
        graph = dry.graph()
    return graph
