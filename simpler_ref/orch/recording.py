"""Record once, replay many: an orchestration function's tasks, kept as a program.

`OpRecorder` makes each submit, buffer and scope an op of a program; see `jit/program.py`. Wherever an
address goes that belongs to memory which the runtime will provide, or to a tensor of ``args``, the
program has a patch, so that a replay puts the real address there. `Graph.run` carries the program out
through the same kernels as any run: dependencies, rings and scopes are not remembered but found anew.

Rule     FLOW-LAYOUT-3, ORCH-CHECK-9, SPEED-REPLAY-1, SPEED-REPLAY-2, SPEED-REPLAY-3, SPEED-REPLAY-6,
         SPEED-REPLAY-12
"""

from __future__ import annotations

import itertools
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..callables.identity import CallableHandle
from ..jit import layout as L
from ..jit.program import Patch, ProgramWriter, rewind, scalar_at, tensor_at
from ..model import visibility
from ..model import wire as W
from ..model.arguments import Members, TaskArgs, Workers, note_outputs, parts_of, table_of
from ..model.config import CallConfig
from ..model.scalars import BoundWord
from ..model.tensor import RECORDED_FIRST, RECORDED_LAST, ContinuousTensor
from ..system.types import Array
from ..workers.life import Life
from ..workers.session import Session
from . import listening, runs
from .orchestrator import Orchestrator
from .runs import RunTiming

_WORD = struct.Struct("<Q")
_GAP = L.HEAP_ALIGN
"""Between two buffers, so that an address one past the end of a buffer is not in the next."""


# ---------------------------------------------------------------- recording
class _Span(NamedTuple):
    """Memory whose address is known only when the graph runs."""

    start: int
    end: int
    variable: int
    data: int
    """The address that the variable has: of the first element, which need not be the lowest."""


def _spans_of(args: TaskArgs, why: str) -> dict[bool, list[_Span]]:
    """Return the memory of arguments, sorted: the host's under False, that of workers under True."""
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


class OpRecorder:
    """Writes a program."""

    why_not = (
        "cannot be recorded: nothing is executed while a graph is recorded; do it before Worker.record, "
        "or between two runs of the graph"
    )

    def __init__(self, args: listening.RecordedArgs | None) -> None:
        self.memory = listening.fresh_memory()
        self.program = ProgramWriter()
        self.tasks = 0  # so far, buffers included
        self.layouts: dict[W.Layout, int] = {}
        """The layouts of tensors, and the variables that have their numbers in a replay."""
        tensors, scalars = (0, 0) if args is None else (len(args._tensors), len(args._scalars))
        self._first_scalar = tensors
        self.variables = tensors + 2 * scalars * L.SCALAR_WORDS
        self._spans: dict[bool, list[_Span]] = {False: [], True: []}
        if args is not None:
            why = "a recording could not tell which of them a task is given; pass one of them"
            self._spans = _spans_of(args, why)
        self._buffers: list[_Span] = []
        self._fresh = self.memory[0]

    # ------------------------------------------------------------ whose memory an address is in
    def _locate(self, address: int, child_memory: bool) -> tuple[int, int] | None:
        """Return the variable and the offset that an address is the sum of; None: it is a constant."""
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
        """Return an address that represents memory which a replay will provide."""
        if nbytes == 0:
            return 0
        address = self._fresh
        self._fresh += L.round_up(nbytes, L.HEAP_ALIGN) + _GAP
        if self._fresh > self.memory[1]:
            most = self.memory[1] - self.memory[0]
            raise MemoryError(f"a recording can ask for {most} bytes of memory in all")
        self._buffers.append(_Span(address, address + nbytes, variable, address))
        return address

    # ------------------------------------------------------------ tasks
    def task(self, handle: CallableHandle, word: int, members: Members, workers: Workers) -> None:
        """Write a submit; give outputs addresses that represent what a replay will provide."""
        tensors, scalars = parts_of(members)
        patches: list[Patch] = []
        asked: dict[int, int] = {}
        for i, wire in enumerate(tensors):
            address = _WORD.unpack_from(wire)[0]
            if address:
                found = self._locate(address, wire[W.CHILD_MEMORY_AT] == 1)
                if found is not None:
                    patches.append(Patch(tensor_at(i), *found))
                elif visibility.current.spawned:
                    visibility.require_wires_visible([wire])
            elif wire[W.TAG_AT] == L.OUTPUT:
                asked[i] = W.bytes_of(wire)
            if isinstance(wire, W.DescribedWire):
                patches.append(Patch(tensor_at(i) + L.TENSOR_SHAPE, self._layout(wire.layout), 0))
        for j, raw in enumerate(scalars):
            patches += self._scalar_patches(scalar_at(len(tensors), j), raw)
        outputs = -1
        if asked:
            outputs = self.variables
            self.variables += len(tensors)
        provided = {i: self._provide(nbytes, outputs + i) for i, nbytes in asked.items()}
        table = table_of(members, workers)
        counts, words = W.counts_of(len(tensors), len(scalars)), b"".join(tensors + scalars)
        self.program.submit(word, counts, words, table, patches, outputs)
        self._note_task(handle, tensors, scalars, table, patches, outputs)
        self.tasks += 1
        addresses = [provided.get(i, 0) for i in range(len(tensors))]
        note_outputs(members, b"".join(one.to_bytes(W.TENSOR_BYTES, "little") for one in addresses))

    def _scalar_patches(self, at: int, raw: bytes) -> list[Patch]:
        """Return what a replay changes of a scalar: one of ``args``, or an address of provided memory."""
        if isinstance(raw, BoundWord):
            first = self._first_scalar + raw.position * L.SCALAR_WORDS
            return [Patch(at + k, first + k, 0) for k in range(L.SCALAR_WORDS)]
        value = _WORD.unpack_from(raw)[0]
        mine = self.memory[0] <= value < self._fresh  # else it is just a number
        found = self._locate(value, False) if mine else None
        return [] if found is None else [Patch(at, *found)]

    def _note_task(self, *parts: Any) -> None:
        """Take the parts of a submit, for whoever carries the graph out step by step."""

    def _layout(self, layout: W.Layout) -> int:
        if layout not in self.layouts:
            self.layouts[layout] = self.variables
            self.variables += 1
        return self.layouts[layout]

    # ------------------------------------------------------------ buffers and scopes
    def buffer(self, tensor: ContinuousTensor) -> int:
        self.program.alloc(self.variables, tensor._tagged(L.OUTPUT))
        self.variables += 1
        self.tasks += 1
        return self._provide(tensor.nbytes(), self.variables - 1)

    def scope(self, begins: bool) -> None:
        if begins:
            self.program.open_scope()
        else:
            self.program.close_scope()

    def drain(self) -> None:
        """Refuse: a replay drains at its end only."""
        raise RuntimeError(f"drain {self.why_not}")


# ---------------------------------------------------------------- replay
_NO_CONFIG = CallConfig()


class Graph:
    """What `Worker.record` returns: `tasks`, buffers included, that can be run any number of times."""

    def __init__(
        self,
        life: Life,
        recorder: OpRecorder,
        orch: listening.ListeningOrchestrator,
        args: TaskArgs | None,
        kept: Sequence[Any],
    ) -> None:
        self.tasks = recorder.tasks
        self._life = life
        self._args = args
        self._kept = kept
        self._handles = list(orch.handles)
        self._configs = list(orch.configs)
        self._layouts = recorder.layouts
        self._has_unordered = orch.has_unordered
        self._program = recorder.program.words()
        self._variables = np.zeros(recorder.variables, np.int64)
        self._callables = np.array(recorder.program.callables, np.int64)
        self._recorded: Array = self._program[self._callables]
        self._resolved: list[int] | None = None

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
        """
        start = time.perf_counter_ns()
        bound = self._args if args is None else self._require_fitting(args)
        return self._run(bound, start)

    def _run(self, bound: TaskArgs | None, start: int) -> RunTiming:
        return runs.run(self._life, self._replay, bound, _NO_CONFIG, start)

    def _require_fitting(self, args: TaskArgs) -> TaskArgs:
        """Refuse arguments that are not like those of the recording."""
        mine = self._args
        _require_here(args)
        if not isinstance(args, TaskArgs) or not hasattr(args, "_tensors"):
            raise TypeError(f"args must be TaskArgs of your own, not {type(args).__name__}")
        if mine is None:
            raise TypeError("this graph was not recorded with TaskArgs: nothing can be re-bound")
        for what, count, before in (
            ("tensors", len(args._tensors), len(mine._tensors)),
            ("scalars", len(args._scalars), len(mine._scalars)),
        ):
            if count != before:
                raise ValueError(f"args has {count} {what}, the recording has {before}")
        for i, (new, old) in enumerate(zip(args._tensors, mine._tensors, strict=True)):
            if _form(new) != _form(old) or W.has_address(new) != W.has_address(old):
                raise ValueError(
                    f"tensor {i} of args is {_describe(new)}, the recording has {_describe(old)}"
                )
        if self._life.options.check:
            _spans_of(args, "those of the recording did not when it was checked; pass others")
        return args

    def _replay(self, orch: Orchestrator, args: TaskArgs | None, _config: CallConfig) -> None:
        """Carry the program out: the orchestration function of a replay."""
        if args is not None:
            if args._doubts is not None:
                args._doubts.settle()
            if visibility.current.spawned:
                visibility.require_wires_visible(args._tensors)
            raw = b"".join(
                [*(wire[: W.SHAPE_AT] for wire in args._tensors), *listening.provided_scalars(args)]
            )
            bound = np.frombuffer(raw, np.int64)
            self._variables[: len(bound)] = bound
        if self._has_unordered:
            orch._view.widen_unordered(0, RECORDED_FIRST)
        self._resolve(orch)
        self._number_layouts(orch)
        self._play(orch)

    def _play(self, orch: Orchestrator) -> None:
        rewind(self._program)
        orch._play(self._program, self._variables)

    def _words(self) -> list[int]:
        found: list[int] = self._program[self._callables].tolist()
        return found

    def _number_layouts(self, orch: Orchestrator) -> None:
        """Put the numbers that the engine has for the layouts now into their variables."""
        wires: list[bytes] = [W.DescribedWire(bytes(W.TENSOR_BYTES), one) for one in self._layouts]
        if wires:
            orch._give_numbers([wires])
            self._variables[list(self._layouts.values())] = [*map(W.layout_number, wires)]

    def _resolve(self, orch: Orchestrator) -> None:
        """Put the current callables and configurations into the callable words."""
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


def _form(wire: bytes) -> bytes | W.Layout:
    return wire.layout if isinstance(wire, W.DescribedWire) else wire[W.SHAPE_AT : W.TAG_AT]


def _describe(wire: bytes) -> str:
    tensor = ContinuousTensor._from_wire(wire)
    if isinstance(wire, W.DescribedWire):
        dtype, shape, strides = wire.layout
        return f"{shape} {dtype} with strides {strides}"
    where = " in child memory" if tensor.child_memory else ""
    return f"{tensor.shapes} {tensor.dtype.name}{where}{'' if tensor.data else ' without address'}"


def _require_here(args: Any) -> None:
    """Refuse arguments in the memory of endpoints: a replay re-binds addresses of this machine."""
    for i, wire in enumerate(getattr(args, "_tensors", ())):
        if isinstance(wire, W.RemoteWire):
            raise TypeError(
                f"tensor {i} of args is in an endpoint's memory, which a replay cannot re-bind: let the "
                "orchestration function name its RemoteTensorRef, which is part of the recording then"
            )


def record(
    life: Life,
    session: Session,
    orch_fn: Callable[..., Any],
    args: Any,
    config: CallConfig,
    write: Callable[[listening.RecordedArgs | None], OpRecorder] = OpRecorder,
    make: Callable[..., Graph] = Graph,
) -> Graph:
    """Let an orchestration function write its graph down; see `Worker.record`.

    `write` makes what writes it, and `make` the graph of that.
    """
    _require_here(args)
    mine = listening.recorded(args)
    recorder = write(mine)
    orch, kept = listening.listen(recorder, session, orch_fn, args, config)
    return make(life, recorder, orch, mine, kept)
