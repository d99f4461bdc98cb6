"""What an orchestrator does about a lost endpoint: it has tasks run again, and goes on.

It keeps the tasks since all tensors were last at home, and what this machine's memory had then. After a
loss that memory gets it back, all copies are forgotten, and the tasks are submitted once more, in their
order. So nobody has to know who had which version, and a loss costs what was done since then, which
`drain` bounds.

Rule     REMOTE-RETRY-1, REMOTE-RETRY-2, REMOTE-RETRY-3, REMOTE-RETRY-4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ctypes import memmove, string_at
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..callables.identity import CallableHandle
from ..errors import ControlError, RemoteError, TaskError, tell
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.wire import SHAPE_AT, TAG_AT, RemoteWire, replaced
from ..system.types import address_of
from ..workers.manager import log as logger
from .directory import HOME, Spans, Use, uses_of

Submit = Callable[[list[TaskArgs], list[int]], None]


class Gone(Exception):
    """The tasks cannot run again."""


@dataclass(eq=False)
class Buffer:
    """Memory that the runtime has given to a tensor, until the scope of a depth ends.

    `is_old`: when all tensors were last at home, or before its first task, it had contents that count.
    `written` are spans that tasks have written.
    """

    span: tuple[int, int]
    depth: int
    is_old: bool = False
    is_over: bool = False
    written: set[tuple[int, int]] = field(default_factory=set)


class Logged(NamedTuple):
    """A task, as it is submitted again.

    `buffers` has those that tensors are in, by the places of member and tensor. `written` are spans of
    the program's memory.
    """

    number: int
    places: Sequence[int]
    handle: CallableHandle
    members: Sequence[TaskArgs]
    submit: Submit
    buffers: dict[tuple[int, int], Buffer]
    written: Sequence[tuple[int, int]]


class Recovery:
    """The tasks since all tensors were last at home, which may run again `retries` times together.

    All of it happens on the thread that submits; after a loss, while no task runs.
    """

    _orch: Any
    """The `PlacingOrchestrator` of the run."""

    def __init__(self, endpoints: Any, retries: int) -> None:
        self._endpoints, self._retries = endpoints, retries
        self._losses = 0
        """Those that were made good."""
        self._buffers = Spans[Buffer]()
        """Those whose scopes are open."""
        self.clear()

    def begin_run(self, orch: Any) -> None:
        """Begin with no tasks."""
        self._orch, self._losses = orch, self._endpoints.losses()
        self._buffers = Spans[Buffer]()
        self.clear()

    def clear(self) -> None:
        """Begin anew: all has ended well, and is at home."""
        self.tasks: list[Logged] = []
        self.moves: dict[int, int] = {}
        """Tasks that bring a tensor home, and from which endpoint."""
        self._again = 0
        """How often they have run again."""
        self.unclear = ""
        """Why they cannot."""
        self._saved: dict[tuple[int, int], bytes] = {}
        """What there was before a task of this machine, or a tensor that came home, replaced it."""
        for one in self._buffers:
            one.is_old = True

    # ------------------------------------------------------------ memory
    def note_memory(self, start: int, nbytes: int, depth: int) -> None:
        """Note that memory was given to a new tensor, until the scope of a depth ends."""
        for one in self._buffers.overlapping(start, nbytes):
            self._end(one)
        self._buffers.add(Buffer((start, nbytes), depth))

    def end_scope(self, depth: int) -> None:
        """Note that the scope of a depth has ended."""
        for one in [one for one in self._buffers if one.depth >= depth]:
            self._end(one)

    def _end(self, one: Buffer) -> None:
        one.is_over = True
        self._buffers.remove(one)

    def buffer_of(self, start: int, nbytes: int) -> Buffer | None:
        """Return the buffer that bytes are in."""
        return next(iter(self._buffers.overlapping(start, nbytes)), None) if nbytes else None

    def _note_use(self, use: Use) -> Buffer | None:
        """Note what a task does with a buffer: what it reads and none has written, the program has."""
        buffer = self.buffer_of(*use.span)
        if buffer is None:
            return None
        if use.reads and use.span not in buffer.written:
            start, nbytes = use.span
            buffer.is_old |= not any(
                first < start + nbytes and start < first + size for first, size in buffer.written
            )
        if use.writes:
            buffer.written.add(use.span)
        return buffer

    def save(self, uses: Iterable[Use]) -> None:
        """Keep what a task of this machine will replace."""
        for use in uses:
            self._note_use(use)
            if use.writes and use.start:
                self.save_bytes(*use.span)

    def save_bytes(self, start: int, nbytes: int) -> None:
        """Keep what memory has, unless it is anything, before something of this run is written there."""
        span = start, nbytes
        if nbytes and span not in self._saved:
            buffer = self.buffer_of(*span)
            if buffer is None or buffer.is_old:
                self._saved[span] = string_at(*span)

    def restore(self) -> None:
        """Put back what memory had; of bytes that were saved twice, what was first."""
        for (start, nbytes), raw in reversed(self._saved.items()):
            memmove(start, raw, nbytes)

    # ------------------------------------------------------------ what is submitted
    def note_task(
        self,
        number: int,
        members: Sequence[TaskArgs],
        where: Sequence[int],
        uses: Sequence[Sequence[Use]],
        submit: Submit,
    ) -> None:
        """Note a task that was submitted."""
        remote = [wire for one in members for wire in one._tensors if isinstance(wire, RemoteWire)]
        if not all(wire.is_inline for wire in remote):
            self.unclear = (
                f"task {number} uses memory of an endpoint, which cannot be computed again"
            )
        buffers, written = {}, []
        for i, its in enumerate(uses):
            for one in its:
                found = self._note_use(one)
                if found is not None:
                    buffers[i, one.index] = found
                elif one.writes:
                    written.append(one.span)
        copies = [_copy(one) for one in members]
        self.tasks.append(
            Logged(number, tuple(where), self._orch._handle, copies, submit, buffers, written)
        )

    # ------------------------------------------------------------ after a loss
    def settle(self) -> None:
        """Wait for all tasks, and have all tensors come home.

        Rule     REMOTE-RETRY-1, REMOTE-COPY-5
        """
        orch = self._orch
        while True:
            orch._until_idle()
            try:
                if orch._view.has_failed:
                    raise orch._task_error()
                self._endpoints.tensors.bring_home()
                return
            except (TaskError, RemoteError, ControlError) as failure:
                self.make_good(failure)

    def make_good(self, failure: BaseException) -> None:
        """Have tasks run again after the loss of an endpoint; raise the failure if that is impossible."""
        orch, endpoints = self._orch, self._endpoints
        orch._until_idle()
        moved: dict[Buffer, int] = {}
        try:
            outcomes = self._require_loss()
            for one in dict.fromkeys(it for task in self.tasks for it in task.buffers.values()):
                if one.is_over and one.is_old:
                    raise Gone("they use what a buffer had, whose scope has ended")
                if one.is_over:
                    moved[one] = address_of(endpoints.tensors.keep(one.span[1]))
        except (Gone, MemoryError) as why:
            if endpoints.lost() or endpoints.losses() > self._losses:
                tell(failure, f"  the run cannot go on after the loss of an endpoint: {why}")
            raise failure from None
        self.restore()
        tasks, again = self.tasks, self._again + 1
        for task in tasks:
            if task.number not in outcomes:  # so it had made something
                endpoints.tensors.owed += task.written
        endpoints.tensors.forget()
        self._again = again
        orch._forgive()
        endpoints.replace_lost()
        self._losses = endpoints.losses()
        logger.warning("an endpoint was lost: %d tasks run again", len(tasks))
        for task in tasks:
            self._submit_again(task, moved)

    def _require_loss(self) -> dict[int, bool]:
        """Return which tasks have failed, and whether each may have begun.

        Raises
        ------
        Gone
            That is not for the loss of an endpoint, or the tasks cannot run again.
        """
        endpoints = self._endpoints
        outcomes: dict[int, bool] | None = self._orch._view.failed_tasks()
        places = {number: [place] for number, place in self.moves.items()}
        places |= {task.number: list(task.places) for task in self.tasks}
        if outcomes is None or not outcomes.keys() <= places.keys():
            raise Gone("a task has failed that is not known any more")
        dead = endpoints.lost()
        began = [places[number] for number, has_begun in outcomes.items() if has_begun]
        others = [one for one in began if not {*one} & {*dead}]
        if len(others) > endpoints.losses() - self._losses or [HOME] in [one[:1] for one in others]:
            raise Gone("a task has failed by itself")
        dead = dead or endpoints.lost(wait_for_one=True)
        if not dead:
            raise Gone("no endpoint is")
        for worker in dead:
            if not endpoints.has_all([worker]):
                raise Gone(f"worker {worker} of this machine is lost, too")
        if self.unclear:
            raise Gone(self.unclear)
        if self._again >= self._retries:
            raise Gone(f"its tasks have run {self._again + 1} times")
        return outcomes

    def _submit_again(self, task: Logged, moved: dict[Buffer, int]) -> None:
        """Submit a task again, with the memory that it has now, at an endpoint that there is now."""
        members = [_copy(args) for args in task.members]
        for (i, index), buffer in task.buffers.items():
            if buffer in moved:
                wire = members[i]._tensors[index]
                at = int.from_bytes(wire[:SHAPE_AT], "little") + moved[buffer] - buffer.span[0]
                members[i]._tensors[index] = replaced(wire, 0, at.to_bytes(SHAPE_AT, "little"))
        orch = self._orch
        orch._give_numbers([args._tensors for args in members])
        orch._handle = task.handle
        where = self.present(task.handle, task.places, members)
        if where is not None:
            orch._place_and_submit(members, where, task.submit)

    def present(
        self, handle: CallableHandle, places: Sequence[int], members: Sequence[TaskArgs]
    ) -> list[int] | None:
        """Return where a task runs: where it was to, or elsewhere if that endpoint is lost for good.

        None: it was a replay, whose tasks are submitted one by one now.

        Raises
        ------
        RuntimeError
            There are too few endpoints for a group.

        Notes
        -----
        Rule     REMOTE-RETRY-3
        """
        if places[0] == HOME:
            return list(places)
        endpoints, chosen = self._endpoints, list[int]()
        dead = endpoints.lost()
        alive = [one for one in endpoints.present(handle) if one not in dead]
        for place, args in zip(places, members, strict=True):
            if place not in alive and alive:
                uses, taken = uses_of(args._tensors), {*places, *chosen}
                place = endpoints.likely_first(alive, uses, endpoints.queues, taken)
            chosen.append(place)
        if len({*chosen}) < len(chosen):
            if one_by_one := self._orch.one_by_one:
                self._orch.one_by_one = None
                one_by_one()
                return None
            raise RuntimeError(f"too few endpoints are left for a group of {handle!r}")
        return chosen


def _copy(args: TaskArgs) -> TaskArgs:
    """Return arguments for memory that is there: those who have it as INOUT hold it."""
    made = TaskArgs()
    made._scalars = list(args._scalars)
    made._tensors = [
        replaced(wire, TAG_AT, bytes((L.INOUT,))) if wire[TAG_AT] == L.OUTPUT else wire
        for wire in args._tensors
    ]
    return made


__all__ = ["Gone", "Recovery"]
