"""Record once, replay many: an orchestration function's tasks, kept as a program.

`Recorder` is an Orchestrator that executes nothing: each submit, buffer and scope becomes an op of a
program; see `jit/ops.py`. Memory that the runtime will provide has an address in a range where no
memory is; wherever such an address goes, and wherever one goes that belongs to a tensor of ``args``,
the program has a patch, so that a replay puts the real address there. `Graph.run` carries the program
out through the same kernels as any run: dependencies, rings and scopes are not remembered but found
anew.
"""

from __future__ import annotations

import itertools
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..callables.handles import CallableHandle
from ..engine.introspection import requested_bytes
from ..engine.memory import Engine
from ..jit import layout as L
from ..jit.ops import Patch, ProgramWriter, rewind, scalar_at, tensor_at
from ..model import visibility
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from ..model.scalars import BoundFloat, BoundInt, BoundWord, scalar_wire
from ..model.tensor import RECORDED_FIRST, RECORDED_LAST, ContinuousTensor
from ..model.wire import (
    CHILD_MEMORY_AT,
    COUNTS_BYTES,
    SHAPE_AT,
    TAG_AT,
    TENSOR_BYTES,
    DescribedWire,
    Layout,
    RemoteWire,
    blob_bytes,
    bytes_of,
    counts_of,
    has_address,
    layout_number,
    tensors_of,
    with_address,
)
from ..system.types import Array
from ..trace.history import History
from ..workers.session import Session
from . import runs
from .checked import CheckedOrchestrator
from .columns import Batch
from .configs import config_wire
from .orchestrator import Handles, Orchestrator, is_remote
from .parted import PartedGraph
from .placing import PlacingOrchestrator
from .pools import Pools
from .room import never_fits
from .runs import RunTiming
from .steps import AllocStep, ScopeStep, Step, SubmitStep

if TYPE_CHECKING:
    from ..worker import Worker

_WORD = struct.Struct("<Q")
_MEMBER = struct.Struct("<QQ")
_GAP = L.HEAP_ALIGN
"""Between two buffers, so that an address one past the end of a buffer is not in the next."""
_REGION = 1 << 45
"""Bytes of such memory that one recording may ask for; the next ones have other addresses."""
_recordings = itertools.count()


# ---------------------------------------------------------------- the arguments of the whole graph
class RecordedArgs(TaskArgs):
    """The arguments that an orchestration function is recorded with; its scalars know their positions.

    Rule     SPEED-REPLAY-4
    """

    __slots__ = ("_floats",)

    _floats: list[BoundWord]

    def __init__(self, args: TaskArgs) -> None:
        super().__init__()
        self._tensors = list(args._tensors)
        provided = [BoundWord(raw, i) for i, raw in enumerate(_provided_scalars(args))]
        self._scalars = provided[: len(args._scalars)]
        self._floats = provided[len(args._scalars) :]
        self._doubts = args._doubts

    def scalar(self, i: int) -> int | float:
        """Return scalar `i`: a number that can be re-bound if it is passed to a task as it is."""
        value = super().scalar(i)
        word = self._scalars[i]
        if not isinstance(word, BoundWord):
            return value
        return BoundInt(value, word) if isinstance(value, int) else BoundFloat(value, word)

    def scalar_float(self, i: int) -> float:
        """Return scalar `i` as a float; see `scalar`."""
        value = super().scalar_float(i)
        word = self._scalars[i]
        if not isinstance(word, BoundWord):
            return value
        return BoundFloat(value, self._floats[word.position])


def _provided_scalars(args: TaskArgs) -> list[bytes]:
    """Return the scalars that a replay provides: as they are, then as `scalar_float` gives them."""
    floats = [scalar_wire(args.scalar_float(i)) for i in range(args.scalar_count())]
    return [*args._scalars, *floats]


class _Span(NamedTuple):
    """Memory whose address is known only when the graph runs."""

    start: int
    end: int
    variable: int
    data: int
    """The address that the variable has: of the first element, which need not be the lowest."""


def _spans_of(args: TaskArgs, why: str) -> dict[bool, list[_Span]]:
    """Return the memory of arguments, sorted: the host's under False, that of workers under True.

    Raises
    ------
    ValueError
        Two of them share memory, which must not be: `why`.
    """
    found: dict[bool, list[_Span]] = {False: [], True: []}
    for i, wire in enumerate(args._tensors):
        tensor = ContinuousTensor._from_wire(wire)
        start, nbytes = tensor._span()
        if tensor.data and nbytes:
            span = _Span(start, start + nbytes, i, tensor.data)
            found[tensor.child_memory].append(span)
    for spans in found.values():
        spans.sort()
        for one, other in itertools.pairwise(spans):
            if other.start < one.end:
                low, high = sorted((one.variable, other.variable))
                raise ValueError(f"tensors {low} and {high} of args share memory: {why}")
    return found


class _Numbers(dict[CallableHandle, int]):
    """Numbers the handles that are used; a replay looks up what they mean then."""

    def __init__(self, live: Handles, pool: int, used: list[tuple[CallableHandle, int]]) -> None:
        super().__init__()
        self._live, self._pool, self._used = live, pool, used

    def __missing__(self, handle: CallableHandle) -> int:
        if handle not in self._live:
            raise KeyError(handle)
        self[handle] = len(self._used) | self._pool << L.WORD_KIND
        self._used.append((handle, self._pool))
        return self[handle]

    def get(self, handle: CallableHandle, default: Any = None) -> Any:
        return self[handle] if handle in self._live else default

    def __contains__(self, handle: object) -> bool:
        return handle in self._live


# ---------------------------------------------------------------- recording
class Recorder(Orchestrator):
    """The Orchestrator of a recording: it has the methods of any other, and writes a program.

    Rule     SPEED-REPLAY-1
    """

    has_unordered = False
    """Whether tasks may write what others have as INPUT; only with ``check=True`` that is known."""

    def __init__(self, worker: Worker, engine: Engine, args: Any) -> None:
        self._session = worker._life.live()
        self._engine = engine
        self._view = engine.view
        self._pools = Pools(engine.view)
        self._error = None
        self._thread = get_ident()
        self.handles: list[tuple[CallableHandle, int]] = []
        self.configs: dict[bytes, int] = {CallConfig().to_bytes(): 0}
        following, subs = worker._life.tree.words(worker._life.registry)
        self._next_level = _Numbers(following, L.NEXT_LEVEL, self.handles)
        self._subs = _Numbers(subs, L.SUB, self.handles)
        self.program = ProgramWriter()
        self.one_by_one: list[Step] = []
        self._has_endpoints = worker._life.endpoints is not None
        self.tasks = 0
        self.layouts: dict[Layout, int] = {}
        self._scopes = 1
        tensors, scalars = (0, 0) if args is None else (len(args._tensors), len(args._scalars))
        self._first_scalar = tensors
        self.variables = tensors + 2 * scalars * L.SCALAR_WORDS
        self._spans: dict[bool, list[_Span]] = {False: [], True: []}
        if args is not None:
            why = "a recording could not tell which of them a task is given; pass one of them"
            self._spans = _spans_of(args, why)
        self._buffers: list[_Span] = []
        regions = (RECORDED_LAST - RECORDED_FIRST) // _REGION
        self._first = RECORDED_FIRST + next(_recordings) % regions * _REGION
        self._fresh = self._first
        self._end = self._first + _REGION

    # ------------------------------------------------------------ whose memory an address is in
    def _locate(self, address: int, child_memory: bool) -> tuple[int, int] | None:
        """Return the variable and the offset that an address is the sum of; None: it is a constant.

        Rule     SPEED-REPLAY-3
        """
        if RECORDED_FIRST <= address < RECORDED_LAST:
            at = bisect_right(self._buffers, address, key=lambda span: span.start) - 1
            if at < 0 or address > self._buffers[at].end:
                raise ValueError(
                    f"address {address:#x} is in no buffer of this recording: buffers and outputs are "
                    "those of one recording, and tiles of them must not leave them"
                )
            return self._buffers[at].variable, address - self._buffers[at].data
        spans = self._spans[child_memory]
        at = bisect_right(spans, address, key=lambda span: span.start) - 1
        if at < 0 or address >= spans[at].end:
            return None
        return spans[at].variable, address - spans[at].data

    def _provide(self, nbytes: int, variable: int) -> int:
        """Return an address that represents memory which a replay will provide.

        Rule     SPEED-REPLAY-6
        """
        if nbytes == 0:
            return 0
        address = self._fresh
        self._fresh += L.round_up(nbytes, L.HEAP_ALIGN) + _GAP
        if self._fresh > self._end:
            raise MemoryError(f"a recording can ask for {_REGION} bytes of memory in all")
        self._buffers.append(_Span(address, address + nbytes, variable, address))
        return address

    # ------------------------------------------------------------ submits
    def submit_sub(self, handle: CallableHandle, args: TaskArgs | None = None) -> None:
        """Record a task for a sub worker; see `Orchestrator.submit_sub`."""
        self._add(self._sub_word(handle, args), args)

    def _place(
        self,
        handle: CallableHandle,
        worker: int,
        args: TaskArgs | None,
        taken: Collection[int] = (),
        for_sub: bool | None = False,
    ) -> int:
        """Leave the choice to replays, unless the task names an endpoint."""
        return self._endpoints.named(handle, worker, args, for_sub=for_sub)

    def _add(self, word: int, args: TaskArgs | None) -> None:
        tensors, scalars = ([], ()) if args is None else (args._tensors, args._scalars)
        outputs = self._append(word, tensors, scalars)
        if args is not None:
            _write_back([args], outputs)

    def _submit_group(
        self, word: int, members: list[TaskArgs], affinities: list[int] | None
    ) -> None:
        tensors = [wire for one in members for wire in one._tensors]
        scalars = [raw for one in members for raw in one._scalars]
        table = [
            _MEMBER.pack(
                counts_of(len(one._tensors), len(one._scalars)), affinities[i] if affinities else 0
            )
            for i, one in enumerate(members)
        ]
        _write_back(members, self._append(word, tensors, scalars, table))

    def _submit_many(self, word: Any, batch: Batch) -> Array:
        addresses: Array = np.empty((batch.size, len(batch.tensors)), np.uint64)
        words = np.broadcast_to(word, batch.size).tolist()
        for i, (tensors, scalars) in enumerate(batch.rows()):
            addresses[i] = [_WORD.unpack_from(wire)[0] for wire in tensors]
            for j, address in self._append(words[i], tensors, scalars).items():
                addresses[i, j] = address
        return addresses

    def _append(
        self,
        word: int,
        tensors: Sequence[bytes],
        scalars: Sequence[bytes],
        members: Sequence[bytes] = (),
    ) -> dict[int, int]:
        """Append a task; return the address of each tensor that the runtime has to provide."""
        self._require_mine()
        arguments = b"".join(tensors) + b"".join(scalars)
        self._require_possible(arguments, len(tensors), len(scalars), members)
        patches: list[Patch] = []
        asked: list[tuple[int, int]] = []
        for i, wire in enumerate(tensors):
            address = _WORD.unpack_from(wire)[0]
            if address:
                found = self._locate(address, wire[CHILD_MEMORY_AT] == 1)
                if found is not None:
                    patches.append(Patch(tensor_at(i), *found))
                elif visibility.current.spawned:
                    visibility.require_wires_visible([wire])
            elif wire[TAG_AT] == L.OUTPUT:
                asked.append((i, bytes_of(wire)))
            if isinstance(wire, DescribedWire):
                patches.append(Patch(tensor_at(i) + L.TENSOR_SHAPE, self._layout(wire.layout), 0))
        for j, raw in enumerate(scalars):
            at = scalar_at(len(tensors), j)
            if isinstance(raw, BoundWord):
                first = self._first_scalar + raw.position * L.SCALAR_WORDS
                patches += [Patch(at + k, first + k, 0) for k in range(L.SCALAR_WORDS)]
            else:
                value = _WORD.unpack_from(raw)[0]
                mine = self._first <= value < self._fresh  # else it is just a number
                found = self._locate(value, False) if mine else None
                if found is not None:
                    patches.append(Patch(at, *found))
        outputs = -1
        if asked:
            outputs = self.variables
            self.variables += len(tensors)
        provided = {i: self._provide(nbytes, outputs + i) for i, nbytes in asked}
        counts = counts_of(len(tensors), len(scalars))
        self.program.submit(word, counts, arguments, members, patches, outputs)
        handle = self.handles[word & L.CALLABLE_MASK][0]
        table = [_MEMBER.unpack(one) for one in members]
        self._note_step(SubmitStep(handle, list(tensors), list(scalars), table, patches, outputs))
        self.tasks += 1
        return provided

    def _note_step(self, step: Step) -> None:
        """Note what a replay does one by one if there are tasks of endpoints.

        Rule     SPEED-REPLAY-12
        """
        if self._has_endpoints:
            self.one_by_one.append(step)

    def _layout(self, layout: Layout) -> int:
        """Return the variable that has the number of a layout.

        Rule     FLOW-LAYOUT-6
        """
        if layout not in self.layouts:
            self.layouts[layout] = self.variables
            self.variables += 1
        return self.layouts[layout]

    def _give_numbers(self, members: Sequence[list[bytes]]) -> None:
        """Leave that to replays, which put them into variables."""

    def _require_possible(
        self, arguments: bytes, tensors: int, scalars: int, members: Sequence[bytes]
    ) -> None:
        """Refuse at once what no replay could submit.

        Rule     SPEED-REPLAY-7
        """
        counts, ring_bytes = counts_of(tensors, scalars), self._view.ring_bytes
        sizes = [_MEMBER.unpack(one)[0] for one in members] or [counts]
        for size in sizes:
            if COUNTS_BYTES + blob_bytes(size) > L.MAILBOX_ARGS_CAPACITY:
                raise never_fits(L.TOO_MANY_ARGS, bytes(blob_bytes(counts)), ring_bytes)
        wires = tensors_of(arguments, counts)
        if requested_bytes(wires) > ring_bytes:
            raise never_fits(L.TOO_LARGE, wires, ring_bytes)

    def _config_word(self, config: CallConfig | None) -> int:
        if config is None:
            return 0
        index = self.configs.setdefault(config_wire(config), len(self.configs))
        return index << L.WORD_CONFIG

    # ------------------------------------------------------------ buffers and scopes
    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        wire = tensor._tagged(L.OUTPUT)
        self._require_possible(wire, 1, 0, ())
        self.program.alloc(self.variables, wire)
        self._note_step(AllocStep(tensor, self.variables))
        self.variables += 1
        self.tasks += 1
        return tensor._at_address(self._provide(tensor.nbytes(), self.variables - 1), None)

    def _depth(self) -> int:
        return self._scopes

    def _open_scope(self) -> int:
        if self._scopes > L.MAX_SCOPE_DEPTH:
            return L.TOO_DEEP
        self.program.open_scope()
        self._note_step(ScopeStep(begins=True))
        self._scopes += 1
        return L.OK

    def _close_scope(self) -> None:
        self.program.close_scope()
        self._note_step(ScopeStep(begins=False))
        self._scopes -= 1

    # ------------------------------------------------------------ what has no meaning here
    def _not_now(self, what: str) -> RuntimeError:
        """Return the exception for what means nothing while a graph is recorded.

        Rule     SPEED-REPLAY-7
        """
        return RuntimeError(
            f"{what} cannot be recorded: nothing is executed while a graph is recorded; do it before "
            "Worker.record, or between two runs of the graph"
        )

    def drain(self) -> None:
        """Refuse."""
        raise self._not_now("drain")

    def malloc(self, worker_id: int, size: int) -> int:
        """Refuse."""
        raise self._not_now("malloc")

    def free(self, worker_id: int, ptr: int) -> None:
        """Refuse."""
        raise self._not_now("free")

    def copy_to(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Refuse."""
        raise self._not_now("copy_to")

    def copy_from(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Refuse."""
        raise self._not_now("copy_from")

    def allocate_domain(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        raise self._not_now("allocate_domain")

    def live_tasks(self) -> int:
        """Refuse."""
        raise self._not_now("live_tasks")

    @property
    def ring(self) -> Any:
        """Refuse."""
        raise self._not_now("ring")


class CheckedRecorder(CheckedOrchestrator, Recorder):
    """The Orchestrator of a recording of a Worker with ``check=True``.

    Rule     ORCH-CHECK-10
    """

    def __init__(self, worker: Worker, engine: Engine, args: Any) -> None:
        Recorder.__init__(self, worker, engine, args)
        heap = engine.heap.ctypes.data
        rings = [(heap, heap + engine.heap.nbytes), (self._first, self._end)]
        self._history = History(rings, worker.track_reads)
        self._places = {}

    def _widen_unordered(self, low: int, high: int) -> None:
        self.has_unordered = True  # where that is, replays know


def _write_back(members: Sequence[TaskArgs], outputs: dict[int, int]) -> None:
    """Write the addresses of provided outputs into the arguments."""
    at = 0
    for args in members:
        for i, wire in enumerate(args._tensors):
            if at + i in outputs:
                args._tensors[i] = with_address(wire, _WORD.pack(outputs[at + i]))
        at += len(args._tensors)


# ---------------------------------------------------------------- replay
_NO_CONFIG = CallConfig()


class Graph:
    """What `Worker.record` returns: tasks that can be run any number of times.

    Attributes
    ----------
    tasks : int
        Tasks recorded, buffers from `alloc` included.

    Notes
    -----
    Rule     SPEED-REPLAY-11
    """

    def __init__(
        self, worker: Worker, recorder: Recorder, args: TaskArgs | None, kept: Sequence[Any]
    ) -> None:
        self.tasks = recorder.tasks
        self._worker = worker
        self._args = args
        self._kept = kept
        self._handles = recorder.handles
        self._configs = list(recorder.configs)
        self._layouts = recorder.layouts
        self._has_unordered = recorder.has_unordered
        self._program = recorder.program.words()
        self._variables = np.zeros(recorder.variables, np.int64)
        self._callables = np.array(recorder.program.callables, np.int64)
        self._recorded: Array = self._program[self._callables]
        self._resolved: list[int] | None = None
        of_endpoints = any(is_remote(handle) for handle, _ in recorder.handles)
        self._steps = recorder.one_by_one if of_endpoints else []
        self._parted: PartedGraph | None = None
        self._has_run = self._is_whole = self._went_in_parts = False
        """Whether it has run, cannot go in parts, and went in parts the last time."""

    def __repr__(self) -> str:
        return f"<Graph of {self.tasks} tasks>"

    def run(self, args: TaskArgs | None = None) -> RunTiming:
        """Run the recorded tasks, and return when all of them are done; see `Worker.run`.

        Parameters
        ----------
        args : TaskArgs, optional
            As many tensors and scalars as the graph was recorded with, each tensor with the shape and
            dtype of the one at its position. None: those of the recording.

        Raises
        ------
        TypeError, ValueError
            `args` does not fit the recording; the message names the position and both values.
        KeyError
            A callable of the recording has been unregistered.
        TaskError, RingFullError, RuntimeError
            See `Worker.run`.

        Notes
        -----
        Rule     SPEED-REPLAY-2, -9, -10, -12
        """
        start = time.perf_counter_ns()
        bound = self._args if args is None else self._require_fitting(args)
        self._prepare_parts()
        try:
            timing = runs.run(self._worker._life, self._replay, bound, _NO_CONFIG, start)
        except BaseException:
            if self._parted is not None:
                self._parted.forget_sent()
            raise
        self._has_run = True
        if self._parted is None or not self._went_in_parts:
            return timing
        self._parted.note_run(timing.host_wall_ns / 1e9)
        return replace(timing, tasks=self.tasks)

    def _require_fitting(self, args: TaskArgs) -> TaskArgs:
        """Refuse arguments that are not like those of the recording.

        Rule     SPEED-REPLAY-5; ORCH-CHECK-10
        """
        mine = self._args
        _require_here(args)
        if not isinstance(args, TaskArgs) or not hasattr(args, "_tensors"):
            raise TypeError(f"args must be TaskArgs of your own, not {type(args).__name__}")
        if mine is None:
            raise TypeError("this graph was not recorded with TaskArgs: nothing can be re-bound")
        for what, new, old in (
            ("tensors", args._tensors, mine._tensors),
            ("scalars", args._scalars, mine._scalars),
        ):
            if len(new) != len(old):
                raise ValueError(f"args has {len(new)} {what}, the recording has {len(old)}")
        for i, (wire, recorded) in enumerate(zip(args._tensors, mine._tensors, strict=True)):
            if _form(wire) != _form(recorded) or has_address(wire) != has_address(recorded):
                raise ValueError(
                    f"tensor {i} of args is {_describe(wire)}, the recording has {_describe(recorded)}"
                )
        if self._worker.check:
            _spans_of(args, "those of the recording did not when it was checked; pass others")
        return args

    def _replay(self, orch: Orchestrator, args: TaskArgs | None, _config: CallConfig) -> None:
        """Carry the program out: the orchestration function of a replay."""
        if args is not None:
            if args._doubts is not None:
                args._doubts.settle()
            if visibility.current.spawned:
                visibility.require_wires_visible(args._tensors)
            raw = b"".join([*(wire[:SHAPE_AT] for wire in args._tensors), *_provided_scalars(args)])
            bound = np.frombuffer(raw, np.int64)
            self._variables[: len(bound)] = bound
        if self._has_unordered:
            orch._view.widen_unordered(0, RECORDED_FIRST)
        self._resolve(orch)
        self._number_layouts(orch)
        if self._steps and isinstance(orch, PlacingOrchestrator):
            self._replay_at_endpoints(orch)
            return
        rewind(self._program)
        orch._play(self._program, self._variables)

    def _replay_at_endpoints(self, orch: PlacingOrchestrator) -> None:
        """Carry the steps out: the first time task by task, then in parts if that can be.

        Rule     SPEED-REPLAY-12; SPEED-PARTS-1
        """
        variables = self._variables.tolist()
        self._went_in_parts = self._parted is not None and self._parted.submit(orch, variables)
        if not self._went_in_parts:
            orch._play_steps(self._steps, self._words(), variables)

    def _words(self) -> list[int]:
        """Return the callable words of its submits."""
        found: list[int] = self._program[self._callables].tolist()
        return found

    def _prepare_parts(self) -> None:
        """Find the parts for the second replay: how long tasks last is known by then.

        Rule     SPEED-PARTS-5
        """
        life = self._worker._life
        options = life.options
        if options.check or options.retries or options.track_reads:
            return  # a part has only the order that follows from its data
        if not self._steps or not self._has_run:
            return
        if self._parted is not None and not self._parted.are_all_there():
            self._parted = None
        if self._parted is None and not self._is_whole:
            mine = self._args
            provided = (0, 0) if mine is None else (len(mine._tensors), len(mine._scalars))
            with suppress(KeyError):  # which the run will raise
                self._parted = PartedGraph.of(life.endpoints, self._steps, self._words(), provided)
                self._is_whole = self._parted is None
        if self._parted is not None:
            self._parted.require_registered(self._worker)

    def _number_layouts(self, orch: Orchestrator) -> None:
        """Put the numbers that the engine has for the layouts now into their variables.

        Rule     FLOW-LAYOUT-6
        """
        wires: list[bytes] = [DescribedWire(bytes(TENSOR_BYTES), one) for one in self._layouts]
        if wires:
            orch._give_numbers([wires])
            self._variables[list(self._layouts.values())] = [*map(layout_number, wires)]

    def _resolve(self, orch: Orchestrator) -> None:
        """Put the current callables and configurations into the callable words.

        Rule     SPEED-REPLAY-8
        """
        now = []
        for handle, pool in self._handles:
            live = orch._subs if pool == L.SUB else orch._next_level
            now.append(orch._require_handle("Graph.run", handle, (), live, pool))
        configs = [orch._configs.number_of_wire(wire) for wire in self._configs]
        if now + configs == self._resolved:
            return
        fixed = ~(L.CALLABLE_MASK | L.CONFIG_MASK << L.WORD_CONFIG)
        words = self._recorded & fixed
        if len(words):
            words |= (np.array(now, np.int64) & L.CALLABLE_MASK)[self._recorded & L.CALLABLE_MASK]
            numbers = self._recorded >> L.WORD_CONFIG & L.CONFIG_MASK
            words |= np.array(configs, np.int64)[numbers] << L.WORD_CONFIG
        self._program[self._callables] = words
        self._resolved = now + configs


def _form(wire: bytes) -> bytes | Layout:
    """Return shape and dtype of a tensor."""
    return wire.layout if isinstance(wire, DescribedWire) else wire[SHAPE_AT:TAG_AT]


def _describe(wire: bytes) -> str:
    tensor = ContinuousTensor._from_wire(wire)
    if isinstance(wire, DescribedWire):
        dtype, shape, strides = wire.layout
        return f"{shape} {dtype} with strides {strides}"
    where = " in child memory" if tensor.child_memory else ""
    return f"{tensor.shapes} {tensor.dtype.name}{where}{'' if tensor.data else ' without address'}"


def _require_here(args: Any) -> None:
    """Refuse arguments in the memory of endpoints: what a replay re-binds are addresses of this machine.

    Rule     SPEED-REPLAY-12
    """
    for i, wire in enumerate(getattr(args, "_tensors", ())):
        if isinstance(wire, RemoteWire):
            raise TypeError(
                f"tensor {i} of args is in an endpoint's memory, which a replay cannot re-bind: let the "
                "orchestration function name its RemoteTensorRef, which is part of the recording then"
            )


Make = Callable[["Worker", Engine, RecordedArgs | None], Recorder]
"""Makes the Orchestrator of a recording."""


def record(
    worker: Worker,
    session: Session,
    orch_fn: Callable[..., Any],
    args: Any,
    config: CallConfig,
) -> Graph:
    """Let an orchestration function write its graph down; see `Worker.record`.

    Rule     SPEED-REPLAY-1, -10
    """
    _require_here(args)
    make = CheckedRecorder if worker.check else Recorder
    recorder, mine, kept = listen(make, worker, session, orch_fn, args, config)
    return Graph(worker, recorder, mine, kept)


def listen(
    make: Make,
    worker: Worker,
    session: Session,
    orch_fn: Callable[..., Any],
    args: Any,
    config: CallConfig,
) -> tuple[Recorder, RecordedArgs | None, list[Any]]:
    """Call an orchestration function with a recorder; return that, the arguments, what must be kept."""
    bindable = isinstance(args, TaskArgs)
    if bindable and not hasattr(args, "_tensors"):
        raise TypeError("args belongs to a running task; build new TaskArgs")
    mine = RecordedArgs(args) if bindable else None
    kept: list[Any] = [orch_fn, args]

    def check(address: int, nbytes: int) -> str | None:  # one of its own: every array is asked for
        return session.why_invisible(address, nbytes)

    outer = visibility.current.check, visibility.current.kept, visibility.current.spawned
    try:
        visibility.set_current(check, kept, session.method.spawn)
        if mine is not None and mine._doubts is not None:
            mine._doubts.settle()
        recorder = make(worker, session.engine, mine)
        given = RecordedArgs(args) if bindable else args
        try:
            orch_fn(recorder, given, config)
        finally:
            recorder._close()
    finally:
        visibility.set_current(*outer)
    return recorder, mine, kept
