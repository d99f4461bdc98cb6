"""Worker(check=True): submits that would race are refused, in runs, recordings and dry runs.

Each submit, buffer and scope goes through a `Check`, and its usual way. Tasks, dependencies and memory
are those without the check.

Rule     ORCH-CHECK-1, ORCH-CHECK-7, ORCH-CHECK-9, SEE-INPUT-3
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType

from ..jit import layout as L
from ..model import wire as W
from ..model.arguments import TaskArgs, note_outputs, parts_of
from ..model.tensor import ContinuousTensor
from ..trace.history import HOST, CheckedPlan, CheckedTensor, History, share, tensor_at
from ..workers.session import Session

_OURS = __name__.partition(".")[0] + "."
_MOST_PLACES = 3
"""Lines that messages name for a submit: it, and what has called its function, and so on."""
_BUFFER_AT = W.TAG_AT + 2
"""Where a tensor's wire has the number of its buffer; submit drops it with the tag."""
_READ_ONLY = bytes([L.TENSOR_READ_ONLY])


class Check:
    """What was submitted and provided so far; refuses what would race.

    Tasks are provided with the rings of a session, and with `memory`: the first address of each, and the
    one after the last. `note_unordered` is told of bytes that tasks may write while others have them as
    INPUT.
    """

    def __init__(
        self, session: Session, note_unordered: Callable[[int, int], None], *memory: tuple[int, int]
    ) -> None:
        heap = session.engine.heap
        rings = [(heap.ctypes.data, heap.ctypes.data + heap.nbytes), *memory]
        self.history = History(rings, session.options.track_reads)
        self._note_unordered = note_unordered
        self._view = session.engine.view
        self.places: dict[int, str] = {}
        """Where each task of the run was submitted."""

    def forget(self) -> None:
        """Forget all but the places: nothing more is submitted."""
        self.history = History()

    def submit(
        self,
        name: str,
        members: Sequence[TaskArgs],
        workers: Sequence[int],
        send: Callable[[list[TaskArgs]], None],
        *,
        guards: bool,
    ) -> None:
        """Submit a task or a group that races with none.

        `workers` has the worker of each member, plus one. `send` is given the arguments as they are sent:
        with `guards`, INPUTs say that they must not be written.
        """
        tensors = [
            _tensor_of(wire, worker - 1)
            for one, worker in zip(members, workers, strict=False)
            for wire in one._tensors
        ]
        plan = self.history.plan(name, caller(), tensors)
        self._find_unordered(members, plan)
        sent = [_sent(one, guards) for one in members]
        send(sent)
        wires = parts_of(sent)[0]
        note_outputs(members, b"".join(wires))
        provided = [
            (i, int.from_bytes(wire[: W.SHAPE_AT], "little"))
            for i, (wire, planned) in enumerate(zip(wires, plan.tensors, strict=True))
            if W.has_address(wire) and not planned.start
        ]
        self.places[self._view.next_task_id - 1] = sys.intern(plan.task.place)
        self.history.add(plan, provided)

    def _find_unordered(self, members: Sequence[TaskArgs], plan: CheckedPlan) -> None:
        """Find what tasks may write while others have it as INPUT: nothing is wrong then."""
        numbers = [k for k, one in enumerate(members) for _ in one._tensors]
        tensors = list(zip(numbers, plan.tensors, strict=True))
        for k, one in tensors:
            if one.memory != HOST or not one.data:
                continue
            writers = (o for j, o in tensors if j != k and o.data and o.tag != L.INPUT)
            if one.tag == L.NO_DEP or (
                one.tag == L.INPUT and any(share(one, other) for other in writers)
            ):
                self._note_unordered(one.start, one.end)

    def claim(self, buffer: ContinuousTensor) -> ContinuousTensor:
        """Return a buffer that was provided, with the number that it has from now on."""
        number = self.history.alloc(caller(), buffer.data, buffer.nbytes())
        buffer._note(_BUFFER_AT, number.to_bytes(len(buffer._wire) - _BUFFER_AT, "little"))
        return buffer

    def require_kept(self) -> None:
        """Refuse to end a scope whose memory tasks may still use, and do not keep."""
        if sys.exc_info()[1] is None:  # an exception goes before
            self.history.require_kept()


def _sent(args: TaskArgs, guards: bool) -> TaskArgs:
    """Return arguments as they are sent: with `guards`, INPUTs say that they must not be written."""
    sent = TaskArgs()
    sent._tensors, sent._scalars = args._tensors.copy(), args._scalars
    for i, wire in enumerate(sent._tensors):
        if guards and wire[W.TAG_AT] == L.INPUT and not wire[W.CHILD_MEMORY_AT]:
            sent._tensors[i] = W.replaced(wire, W.CHILD_MEMORY_AT, _READ_ONLY)
    return sent


def _tensor_of(wire: bytes, worker: int) -> CheckedTensor:
    """Return a tensor of a task; `worker` is the one whose memory `child_memory` means."""
    data, *_, child = W.TENSOR.unpack(wire)
    number = int.from_bytes(wire[_BUFFER_AT:], "little")
    layout = wire.layout if isinstance(wire, W.DescribedWire) else None
    memory = worker if child else HOST
    place = wire[W.TAG_AT], memory, data, W.bytes_of(wire), layout
    return tensor_at(*place, buffer=number, child_memory=child == 1)


def caller() -> str:
    """Return file and line of the innermost call from outside this package, and of those around it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    places: list[str] = []
    while frame is not None and not is_ours(frame) and len(places) < _MOST_PLACES:
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return ", called at ".join(places)


def is_ours(frame: FrameType) -> bool:
    """Say whether a frame is of this package."""
    return str(frame.f_globals.get("__name__")).startswith(_OURS)
