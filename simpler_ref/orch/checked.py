"""The Orchestrator of a Worker with ``check=True``: it refuses submits that would race.

Each submit, buffer and scope goes through `History`, and its usual way. Tasks, dependencies and
memory are those without the check.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from ..callables.handles import CallableHandle
from ..callables.leaves import Leaf
from ..engine.view.layouts import loops_of
from ..jit import layout as L
from ..jit.kernel import INTERPRETED
from ..model.arguments import TaskArgs
from ..model.tensor import ContinuousTensor
from ..model.wire import (
    CHILD_MEMORY_AT,
    SHAPE_AT,
    TAG_AT,
    TENSOR,
    DescribedWire,
    bytes_of,
    has_address,
    replaced,
    span_of,
)
from ..system.types import Array
from ..trace.history import HOST, History, Plan, Tensor, share
from .columns import Batch
from .orchestrator import Handles, Orchestrator

_OURS = __name__.partition(".")[0] + "."
_MOST_PLACES = 3
"""Lines that messages name for a submit: it, and what has called its function, and so on."""
_BUFFER_AT = TAG_AT + 2
"""Where a tensor's wire has the number of its buffer; submit drops it with the tag."""
_READ_ONLY = bytes([L.TENSOR_READ_ONLY])


class CheckedOrchestrator(Orchestrator):
    """An Orchestrator that checks what it is asked for; also mixed into a `Recorder`.

    Rule     ORCH-CHECK-4, -8, -11
    """

    _history: History
    _places: dict[int, str]
    """Where each task of the run was submitted."""
    _name = ""
    _in_arrays = False
    """Whether workers are told which of the task's tensors are INPUTs."""
    _guards_compiled = True
    """Whether they are of compiled tasks, too."""

    # ------------------------------------------------------------ submits
    def _require_handle(
        self, what: str, handle: Any, members: Sequence[Any], live: Handles, pool: int
    ) -> int:
        word = super()._require_handle(what, handle, members, live, pool)
        self._name = handle.name
        gets_no_arrays = (
            not self._guards_compiled
            and not INTERPRETED
            and isinstance(self._session.registry.target(handle), Leaf)
        )
        self._in_arrays = pool == L.SUB and not gets_no_arrays
        return word

    def submit_sub(self, handle: CallableHandle, args: TaskArgs | None = None) -> None:
        """Submit a task for a sub worker; see `Orchestrator.submit_sub`.

        Raises
        ------
        HazardError
            It would race with a task before, or use memory that was given back.
        """
        self._add(self._sub_word(handle, args), args)

    def _add(self, word: int, args: TaskArgs | None) -> None:
        self._require_mine()
        members = [] if args is None else [args]
        plan = self._plan(members, [word >> L.WORD_WORKER & L.WORKER_MASK])
        self._note_unordered(members, plan)
        sent = [self._sent(one) for one in members]
        super()._add(word, sent[0] if sent else None)
        self._note(plan, members, sent)

    def _submit_group(
        self, word: int, members: list[TaskArgs], affinities: list[int] | None
    ) -> None:
        self._require_mine()
        plan = self._plan(members, affinities or [0] * len(members))
        self._note_unordered(members, plan)
        sent = [self._sent(one) for one in members]
        super()._submit_group(word, sent, affinities)
        self._note(plan, members, sent)

    def _submit_many(self, word: Any, batch: Batch) -> Array:
        words = iter(np.broadcast_to(word, batch.size).tolist())
        return self._one_by_one(batch, lambda args, _worker: self._add(next(words), args))

    def _plan(self, members: Sequence[TaskArgs], affinities: Sequence[int]) -> Plan:
        tensors = [
            _tensor_of(wire, affinity - 1)
            for one, affinity in zip(members, affinities, strict=False)
            for wire in one._tensors
        ]
        return self._history.plan(self._name, caller(), tensors)

    def _note_unordered(self, members: Sequence[TaskArgs], plan: Plan) -> None:
        """Note the tensors that tasks may write while others have them as INPUT: nothing is wrong then.

        Rule     SEE-INPUT-4
        """
        mine: list[list[Tensor]] = []
        at = 0
        for args in members:
            mine.append(plan.tensors[at : at + len(args._tensors)])
            at += len(args._tensors)
        for i, tensors in enumerate(mine):
            others = [one for k, part in enumerate(mine) if k != i for one in part]
            for one in tensors:
                if one.memory != HOST or not one.data:
                    continue
                if one.tag == L.NO_DEP or (
                    one.tag == L.INPUT
                    and any(o.tag != L.INPUT and o.data and share(one, o) for o in others)
                ):
                    self._widen_unordered(one.start, one.end)

    def _widen_unordered(self, low: int, high: int) -> None:
        self._view.widen_unordered(low, high)

    def _sent(self, args: TaskArgs) -> TaskArgs:
        """Return the arguments as they are sent: INPUTs say that they must not be written.

        Rule     ORCH-CHECK-7
        """
        sent = TaskArgs()
        sent._tensors, sent._scalars = args._tensors.copy(), args._scalars
        for i, wire in enumerate(sent._tensors):
            if self._in_arrays and wire[TAG_AT] == L.INPUT and not wire[CHILD_MEMORY_AT]:
                sent._tensors[i] = replaced(wire, CHILD_MEMORY_AT, _READ_ONLY)
        return sent

    def _note(self, plan: Plan, members: Sequence[TaskArgs], sent: Sequence[TaskArgs]) -> None:
        """Note a task that was submitted; give its arguments the addresses it was provided with."""
        provided = []
        at = 0
        for args, after in zip(members, sent, strict=True):
            for i, wire in enumerate(after._tensors):
                if has_address(wire) and not plan.tensors[at + i].start:
                    provided.append((at + i, int.from_bytes(wire[:SHAPE_AT], "little")))
                    if not has_address(args._tensors[i]):
                        args._tensors[i] = wire
            at += len(args._tensors)
        self._places[self._view.next_task_id - 1] = sys.intern(plan.task.place)
        self._history.add(plan, provided)

    def _place_of(self, task: int) -> str:
        return self._places.get(task, "")

    # ------------------------------------------------------------ buffers, scopes, waiting
    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        made = super()._claim(tensor)
        number = self._history.alloc(caller(), made.data, made.nbytes())
        made._note(_BUFFER_AT, number.to_bytes(len(made._wire) - _BUFFER_AT, "little"))
        return made

    def _open_scope(self) -> int:
        code = super()._open_scope()
        if code == L.OK:
            self._history.open_scope()
        return code

    def scope_end(self) -> None:
        """End the innermost scope; see `Orchestrator.scope_end`.

        Raises
        ------
        HazardError
            A task that may still run uses memory of the scope, and does not keep it.
        """
        self._require_mine()
        if self._depth() > 1 and sys.exc_info()[1] is None:  # an exception goes before
            self._history.require_kept()
        super().scope_end()

    def _close_scope(self) -> None:
        super()._close_scope()
        self._history.close_scope()

    def drain(self) -> None:
        """Wait for all tasks; see `Orchestrator.drain`."""
        super().drain()
        self._history.drain()

    def _open(self, next_level: Handles, subs: Handles) -> None:
        self._history = History([_span(self._engine.heap)], self._session.options.track_reads)
        self._places = {}
        self._view.forget_unordered()
        super()._open(next_level, subs)

    def _close(self) -> None:
        super()._close()
        self._history = History()


def _span(memory: Array) -> tuple[int, int]:
    return memory.ctypes.data, memory.ctypes.data + memory.nbytes


def _tensor_of(wire: bytes, worker: int) -> Tensor:
    """Return a tensor of a task; `worker` is the one whose memory `child_memory` means."""
    data, *_, child = TENSOR.unpack(wire)
    number = int.from_bytes(wire[_BUFFER_AT:], "little")
    layout, below = None, 0
    if isinstance(wire, DescribedWire):
        dtype, shape, strides = wire.layout
        below, extent = span_of(wire.layout)
        if loops_of(shape, strides, dtype.itemsize) != (extent, []):  # it has gaps
            layout = wire.layout
    start = data - below
    memory = worker if child else HOST
    end = start + bytes_of(wire)
    return Tensor(wire[TAG_AT], memory, start, end, number, below, layout, child == 1)


def caller() -> str:
    """Return file and line of the innermost call from outside this package, and of those around it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    places: list[str] = []
    while frame is not None and not _is_ours(frame) and len(places) < _MOST_PLACES:
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return ", called at ".join(places)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_OURS)
