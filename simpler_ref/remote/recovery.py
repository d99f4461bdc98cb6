"""What an orchestrator does about a lost endpoint: it has tasks run again, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..callables.identity import CallableHandle
from ..errors import ControlError, RemoteError, TaskError, tell
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.wire import SHAPE_AT, TAG_AT, RemoteWire, replaced
from ..workers.manager import log
from .directory import HOME, CopyPlan, Use, uses_of
from .lineage import UNKNOWN, Gone, Lineage, Logged, Replay, Rescue, Track
from .parent_memory import Homing

if TYPE_CHECKING:
    from .placing import PlacingOrchestrator

Submit = Callable[[list[TaskArgs], list[int]], None]


class Submission(NamedTuple):
    """A task as it is submitted again."""

    handle: CallableHandle
    members: list[TaskArgs]
    submit: Submit


class Recovery:
    """Notes the tasks of an orchestrator, and has those run again that a lost endpoint has cost.

    All of it happens on the thread that submits, while no task runs.

    Rule     REMOTE-RETRY-1, REMOTE-RETRY-2, REMOTE-RETRY-3, REMOTE-RETRY-4
    """

    def __init__(self, orch: PlacingOrchestrator, lineage: Lineage) -> None:
        self._orch, self._lineage = orch, lineage
        self._endpoints = orch._endpoints
        self._losses = self._endpoints.losses()
        """Those that were made good."""

    # ------------------------------------------------------------ what is submitted
    def note_task(
        self,
        number: int,
        members: Sequence[TaskArgs],
        where: Sequence[int],
        before: Sequence[Sequence[Use]],
        plans: Sequence[Sequence[CopyPlan]],
        submit: Submit,
        again: int,
    ) -> None:
        """Note a task that was submitted; `before` is what its members used before they got memory."""
        orch = self._orch
        uses = [uses_of(one._tensors) for one in members]
        for its, was in zip(uses, before, strict=True):
            for one in its:
                if one.wire[TAG_AT] == L.NO_DEP:
                    self._lineage.unclear = "a task has a tensor as NO_DEP"
                if one.nbytes and any(old.index == one.index and not old.start for old in was):
                    self._lineage.note_memory(one.start, one.nbytes, orch._depth())
        task = Logged(number, tuple(where), again)
        if not any(_is_far(wire) for one in members for wire in one._tensors):
            task.submit = Submission(orch._handle, [_copy(one) for one in members], submit)
        self._lineage.note_task(task, uses, plans)

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
        orch = self._orch
        orch._until_idle()
        moved: dict[Track, int] = {}
        try:
            outcomes, dead = self._outcomes()
            replay = self._bring_what_is_left(outcomes, dead, moved)
        except (Gone, MemoryError) as why:
            if self._endpoints.lost() or self._endpoints.losses() > self._losses:
                tell(failure, f"  the run cannot go on after the loss of an endpoint: {why}")
            raise failure from None
        self._endpoints.tensors.forget()
        orch._forgive()
        self._endpoints.replace_lost()
        self._losses = self._endpoints.losses()
        log.warning(
            "an endpoint was lost: %d tasks run again, %d tensors came from other endpoints",
            *(len(replay.tasks), len(replay.rescues)),
        )
        for task in replay.tasks:
            began = outcomes.get(task.number, True)
            self._submit_again(task, task.again + began, moved)

    def _outcomes(self) -> tuple[dict[int, bool], list[int]]:
        """Return which tasks have failed, and the lost endpoints; raise `Gone` if that is not why."""
        lineage, endpoints = self._lineage, self._endpoints
        outcomes = self._orch._view.failed_tasks()
        failed = lineage.failed(outcomes or {})
        if outcomes is None or len(failed) < len(outcomes):
            raise Gone("a task has failed that is not known any more")
        dead = endpoints.lost()
        began = [one for one in failed if outcomes[one.number]]
        others = [one for one in began if not {*one.places} & {*dead}]
        losses = endpoints.losses() - self._losses
        if len(others) > losses or any(one.is_here for one in others):
            raise Gone("a task has failed by itself")
        dead = dead or endpoints.lost(wait_for_one=True)
        endpoints.require_endpoints(dead)
        for key in endpoints.half_brought(dead):
            lineage.note_here(key, UNKNOWN)
        for one in began:
            if one.brings is not None and one.places[0] not in dead:
                lineage.note_unknown(one.brings[0])
        return outcomes, dead

    def _bring_what_is_left(
        self, outcomes: dict[int, bool], dead: Sequence[int], moved: dict[Track, int]
    ) -> Replay:
        """Have those versions come home that tasks begin with; return which tasks these are.

        Memory of scopes that have ended is the tasks' no more: `moved` says where they have other.
        """
        held = self._endpoints.held(dead)
        while True:
            replay = self._lineage.replay(outcomes, held)
            for track in replay.tracks:
                if track.is_over and track not in moved:
                    moved[track] = self._endpoints.keep(track.nbytes)
            spans = [one.span for one in replay.remade if not one.depth]
            self._endpoints.tensors.owed += spans
            if all(self._rescue(one, held, moved) for one in replay.rescues):
                return replay

    def _rescue(
        self, one: Rescue, held: dict[int, dict[int, int]], moved: dict[Track, int]
    ) -> bool:
        track = one.track
        address = moved.get(track, track.start)
        if not track.depth:
            self._endpoints.tensors.owed.append(track.span)
        homing = Homing(one.key, one.theirs, one.theirs, address, track.nbytes)
        if self._endpoints.rescue(one.endpoint, homing):
            self._lineage.note_here(one.key, one.theirs)
            return True
        self._lineage.note_unknown(track)
        del held[one.endpoint][one.key]
        return False

    def _submit_again(self, task: Logged, again: int, moved: dict[Track, int]) -> None:
        """Submit a task again, with the memory that it has now, at an endpoint that there is now."""
        one: Submission = task.submit
        members = [_copy(args) for args in one.members]
        for track in dict.fromkeys(track for track, _ in (*task.reads, *task.makes)):
            if track in moved:
                for args in members:
                    args._tensors = [_moved(wire, track, moved[track]) for wire in args._tensors]
        orch = self._orch
        orch._give_numbers([args._tensors for args in members])
        orch._handle = one.handle
        where = self.present(one.handle, task.places, members)
        orch._place_and_submit(members, where, one.submit, again)

    def present(
        self, handle: CallableHandle, places: Sequence[int], members: Sequence[TaskArgs]
    ) -> list[int]:
        """Return where a task runs: where it was to, or elsewhere if that endpoint is lost for good.

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
        chosen: list[int] = []
        for place, args in zip(places, members, strict=True):
            uses = uses_of(args._tensors)
            chosen.append(self._endpoints.substitute(handle, place, uses, {*places, *chosen}))
        if len({*chosen}) < len(chosen):
            raise RuntimeError(f"too few endpoints are left for a group of {handle!r}")
        return chosen


def _is_far(wire: bytes) -> bool:
    """Say whether a tensor is in memory of an endpoint that the program has allocated."""
    return isinstance(wire, RemoteWire) and not wire.is_inline


def _copy(args: TaskArgs) -> TaskArgs:
    """Return arguments for memory that is there: those who have it as INOUT hold it."""
    made = TaskArgs()
    made._scalars = list(args._scalars)
    made._tensors = [
        replaced(wire, TAG_AT, bytes((L.INOUT,))) if wire[TAG_AT] == L.OUTPUT else wire
        for wire in args._tensors
    ]
    return made


def _moved(wire: bytes, track: Track, address: int) -> bytes:
    at = int.from_bytes(wire[:SHAPE_AT], "little") - track.start
    if isinstance(wire, RemoteWire) or not 0 <= at < track.nbytes:
        return wire
    return replaced(wire, 0, (address + at).to_bytes(SHAPE_AT, "little"))


__all__ = ["Recovery"]
