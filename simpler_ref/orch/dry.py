"""A dry run: an orchestration function's tasks and what they wait for, without running any.

`DryRun` submits to an engine of its own, whose workers answer nothing: no task ends, and its rings are
addresses without memory. So the dependencies are those that the kernels find, and all of them: in a run,
a task need not wait for one that has ended and is forgotten. What they find they note, as for a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.memory import Engine
from ..jit import layout as L
from ..model.config import CallConfig
from ..model.scalars import as_it_went_in
from ..model.tensor import ContinuousTensor
from ..model.wire import (
    CHILD_MEMORY_AT,
    KIND_AT,
    SHAPE_AT,
    TAG_AT,
    TENSOR_BYTES,
    counts_of,
    has_address,
    with_address,
)
from ..trace.graphs import (
    BUFFER,
    GraphArgument,
    GraphEdge,
    GraphMember,
    GraphTask,
    TaskGraph,
    TensorNames,
)
from ..trace.history import History
from ..trace.tasks import KINDS, READING, TAGS, WRITING
from ..workers.session import Session
from .checked import CheckedOrchestrator, caller
from .orchestrator import is_remote, number_layouts
from .recording import _MEMBER, Recorder, listen

if TYPE_CHECKING:
    from ..worker import Worker

_MOST_SHOWN = 1 << 32
"""Integers from here on may be addresses, which differ from run to run: the text does not have them."""


class DryRun(Recorder):
    """The Orchestrator of a dry run.

    Rule     SEE-GRAPH-1, -2, -6, -11
    """

    def __init__(self, worker: Worker, engine: Engine, args: Any) -> None:
        super().__init__(worker, engine, args)
        view = engine.view
        self._dry = Engine(
            heap_ring_size=L.HEAP_ALIGN,
            ring_depth=view.ring_count,
            next_level=len(view.pool(L.NEXT_LEVEL)),
            sub=len(view.pool(L.SUB)),
            track_reads=worker.track_reads,
        )
        room = (self._end - self._first) // view.ring_count
        self._dry.view.place_rings(self._first, room // L.HEAP_ALIGN * L.HEAP_ALIGN)
        kernels, self._mem = self._dry.kernels, self._dry.mem
        kernels.begin_trace(self._mem, L.TRACE_ALL)
        kernels.begin_run(self._mem)
        for one in range(self._dry.view.workers):
            kernels.set_usable(self._mem, one, 1)
        self._names = TensorNames()
        self._extents: list[list[tuple[int, int]]] = []
        """Of each task: where its tensors begin and end."""
        self.made: list[GraphTask] = []
        self.steps: list[tuple[int, str | int]] = []

    # ------------------------------------------------------------ tasks
    def _append(
        self,
        word: int,
        tensors: Sequence[bytes],
        scalars: Sequence[bytes],
        members: Sequence[bytes] = (),
    ) -> dict[int, int]:
        """Submit a task; return the address of each tensor that the runtime has provided."""
        self._require_mine()
        wires, provided = list(tensors), {}
        number_layouts(wires, self._dry.layouts)
        arguments = b"".join(wires) + b"".join(scalars)
        self._require_possible(arguments, len(wires), len(scalars), members)
        counts = counts_of(len(wires), len(scalars))
        whole = arguments + b"".join(members)
        submit = self._dry.kernels.submit_group_and_pass
        slot = self._require_slot(submit(self._mem, word, counts, len(members), whole))
        if slot & L.AUTO_OUTPUT:
            made = self._dry.view.provided(slot ^ L.AUTO_OUTPUT, len(wires))
            for i, wire in enumerate(tensors):
                octets = made[i * TENSOR_BYTES : i * TENSOR_BYTES + SHAPE_AT]
                if wire[TAG_AT] == L.OUTPUT and not has_address(wire) and any(octets):
                    wires[i] = with_address(wire, octets)
                    provided[i] = int.from_bytes(octets, "little")
        any_worker = (word >> L.WORD_WORKER & L.WORKER_MASK) - 1
        table = [_MEMBER.unpack(one) for one in members] or [(counts, any_worker + 1)]
        handle = self.handles[word & L.CALLABLE_MASK][0]
        name = handle.name.rpartition(":")[2] if is_remote(handle) else handle.name
        self._add_task(name, table, wires, scalars, provided)
        return provided

    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        wire = tensor._tagged(L.OUTPUT)
        self._require_possible(wire, 1, 0, ())
        slot = self._require_slot(self._dry.kernels.alloc_buffer(self._mem, wire))
        address = self._dry.view.buffer(slot)
        made = tensor._at_address(address, None)
        provided = {0: address} if address else {}
        self._add_task(BUFFER, [(counts_of(1, 0), 0)], [made._tagged(L.OUTPUT)], (), provided)
        return made

    def _require_slot(self, code: int) -> int:
        """Refuse what the engine has refused."""
        if code == L.WOULD_BLOCK:
            raise MemoryError(
                f"a dry run keeps all of its tasks, and there is no room for more than {len(self.made)}: "
                "give it a smaller problem"
            )
        if code < 0:
            raise self._refused(code, b"")
        return code

    def _add_task(
        self,
        name: str,
        table: Sequence[tuple[int, int]],
        wires: Sequence[bytes],
        scalars: Sequence[bytes],
        provided: dict[int, int],
    ) -> None:
        """Add a task that was submitted to the graph; `table` has counts and worker of each member."""
        members = []
        tensor = scalar = 0
        for counts, worker in table:
            tensors = range(tensor, tensor + (counts & L.LOW_HALF))
            tensor, numbers = tensors.stop, scalars[scalar : scalar + (counts >> L.HALF)]
            scalar += len(numbers)
            arguments = [self._argument(wires[i], worker - 1, i in provided) for i in tensors]
            members.append(GraphMember(tuple(arguments), tuple(map(_number, numbers)), worker - 1))
        depth = self._scopes - 1
        line = caller().partition(", called at ")[0]
        self.steps.append((depth, len(self.made)))
        mine = [one for member in members for one in member.arguments]
        self._extents.append([_span_of(wire) for wire in wires])
        edges = self._edges(mine)
        self.made.append(GraphTask(len(self.made), name, line, depth, tuple(members), edges))
        self.tasks += 1

    def _argument(self, wire: bytes, worker: int, provided: bool) -> GraphArgument:
        tensor = ContinuousTensor._from_wire(wire)
        if provided:
            self._names.provide(*tensor._span())
        owner = worker if wire[CHILD_MEMORY_AT] == 1 else -1
        return graph_argument(self._names, tensor, wire[TAG_AT], owner)

    def _edges(self, mine: Sequence[GraphArgument]) -> tuple[GraphEdge, ...]:
        """Return the edges to the task just submitted, as the kernels have noted them."""
        edges, waited = [], set()
        for what, _, address, producer in self._dry.view.take_notes(L.JOURNAL_OF_ORCH).tolist():
            if what & 0xFF == L.NOTED_EDGE:
                operand = what >> 8
                waits = operand >> 24 != L.OWED_MEMORY
                one = mine[operand & 0xFFFF]
                if operand >> 24 == L.OWED_ORDER:
                    edges.append(self._order(producer - 1, one, address))
                    continue
                uses = [
                    BUFFER if self.made[producer - 1].is_buffer else other.tag
                    for other in self.made[producer - 1].arguments
                    if (other.worker, other.address) == (one.worker, one.address)
                    and other.tag in WRITING
                ]
                if waits:
                    waited.add(producer)
                kind = KINDS[operand >> 24]
                edges.append(GraphEdge(producer - 1, waits, one.tensor, one.tag, uses[-1], kind))
        return tuple(edge for edge in edges if edge.waits or edge.producer + 1 not in waited)

    def _order(self, producer: int, one: GraphArgument, address: int) -> GraphEdge:
        """Return the edge to a task that reads, at an address, what the one just submitted writes."""
        arguments, extents = self.made[producer].arguments, self._extents[producer]
        other = next(
            other
            for other, (start, end) in zip(arguments, extents, strict=True)
            if start <= address < end and other.worker < 0 and other.tag in READING
        )
        return GraphEdge(producer, True, one.tensor, one.tag, other.tag, "order", other.tensor)

    # ------------------------------------------------------------ scopes, and what does not run
    def _open_scope(self) -> int:
        code: int = self._dry.kernels.open_scope(self._mem)
        if code == L.OK:
            self.steps.append((self._scopes - 1, "scope:"))
            self._scopes += 1
        return code

    def _close_scope(self) -> None:
        self._dry.kernels.close_scope(self._mem)
        self._scopes -= 1

    def drain(self) -> None:
        """Note where a run would wait until all tasks have ended."""
        self._require_mine()
        self.steps.append((self._scopes - 1, "drain"))

    def _not_now(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"{what} has no meaning in a dry run: nothing is executed; do it before Worker.graph"
        )

    def _close(self) -> None:
        super()._close()
        self._dry.close()


class CheckedDryRun(CheckedOrchestrator, DryRun):
    """The Orchestrator of a dry run of a Worker with ``check=True``.

    Rule     SEE-GRAPH-7
    """

    def __init__(self, worker: Worker, engine: Engine, args: Any) -> None:
        DryRun.__init__(self, worker, engine, args)
        heap = engine.heap.ctypes.data
        rings = [(heap, heap + engine.heap.nbytes), (self._first, self._end)]
        self._history = History(rings, worker.track_reads)
        self._places = {}

    def _widen_unordered(self, low: int, high: int) -> None:
        """Do nothing: no task runs."""


def graph_argument(
    names: TensorNames, tensor: ContinuousTensor, tag: int, owner: int
) -> GraphArgument:
    """Return a tensor of a task as a graph has it; `owner` is the worker whose memory it is in, or -1."""
    _, nbytes = tensor._span()
    return GraphArgument(
        TAGS[tag],
        names.name(owner, tensor.data, nbytes),
        f"{str(getattr(tensor.dtype, 'name', tensor.dtype)).lower()}{list(tensor.shapes)}",
        tensor.data,
        nbytes,
        owner,
    )


def _span_of(wire: bytes) -> tuple[int, int]:
    start, nbytes = ContinuousTensor._from_wire(wire)._span()
    return start, start + nbytes


def _number(raw: bytes) -> str:
    """Return a scalar as text."""
    return shown_number(as_it_went_in(raw, raw[KIND_AT]))


def shown_number(value: Any) -> str:
    """Return a number as text."""
    return "…" if isinstance(value, int) and abs(value) >= _MOST_SHOWN else repr(value)


def graph_of(
    worker: Worker,
    session: Session,
    orch_fn: Callable[..., Any],
    args: Any,
    config: CallConfig,
) -> TaskGraph:
    """Return the graph of an orchestration function; see `Worker.graph`."""
    made: list[DryRun] = []

    def make(*given: Any) -> DryRun:
        made.append((CheckedDryRun if worker.check else DryRun)(*given))
        return made[0]

    listen(make, worker, session, orch_fn, args, config)
    return TaskGraph(made[0].made, made[0].steps)
