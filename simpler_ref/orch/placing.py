"""The Orchestrator of a Worker with endpoints: tasks of endpoints may name memory of this machine.

Before a task, it has those tensors come home that the task reads here and that an endpoint has written;
with a task of an endpoint, it sends what the endpoint's link has to know of the copies there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..callables.handles import CallableHandle
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.scalars import ScalarBits, scalar_wire
from ..model.tensor import ContinuousTensor
from ..model.wire import (
    CHILD_MEMORY_AT,
    RIGHTS,
    SHAPE_AT,
    TAG_AT,
    replaced,
)
from ..remote.directory import HOME, Directory, Held, Placed, Use, uses_of
from ..remote.home import CopyPlan, Plan
from ..system.types import Array
from .checked import CheckedOrchestrator
from .orchestrator import Handles, Orchestrator, is_remote
from .steps import AllocStep, Step, SubmitStep


class PlacingOrchestrator(Orchestrator):
    """An Orchestrator that knows where the tensors of its run are.

    Rule     REMOTE-COPY-1, -3, -6
    """

    _in_python = True
    _handle: CallableHandle

    @property
    def _directory(self) -> Directory:
        return self._host.endpoints.tensors.directory

    # ------------------------------------------------------------ submits
    def _require_handle(
        self, what: str, handle: Any, members: Sequence[Any], live: Handles, pool: int
    ) -> int:
        word = super()._require_handle(what, handle, members, live, pool)
        self._handle = handle
        return word

    def submit_sub(self, handle: CallableHandle, args: TaskArgs | None = None) -> None:
        """Submit a task for a sub worker, here or at an endpoint; see `Orchestrator.submit_sub`.

        The callables that were registered with ``inner=True`` are for endpoints.
        """
        self._add(self._sub_word(handle, args), args)

    def _add(self, word: int, args: TaskArgs | None) -> None:
        add = super()._add
        where = [(word >> L.WORD_WORKER & L.WORKER_MASK) - 1]
        members = [TaskArgs() if args is None else args]
        self._place_and_submit(members, where, lambda sent: add(word, sent[0]))

    def _submit_group(
        self, word: int, members: list[TaskArgs], affinities: list[int] | None
    ) -> None:
        add = super()._submit_group
        where = [one - 1 for one in affinities or [0] * len(members)]
        self._place_and_submit(members, where, lambda sent: add(word, sent, affinities))

    def _place_and_submit(
        self, members: list[TaskArgs], where: list[int], submit: Callable[[list[TaskArgs]], None]
    ) -> None:
        """Submit a task once what it reads is on its way, and note what it will have done."""
        tensors, directory = self._host.endpoints.tensors, self._directory
        remote = is_remote(self._handle)
        if not remote and not directory and not tensors.has_lost:
            submit(members)
            return
        self._require_mine()
        uses = [uses_of(one._tensors) for one in members]
        for found in uses:
            tensors.require_not_lost(found)
        if remote:
            self._submit_there(members, where, uses, submit)
            return
        for found in uses:
            self._bring_home(*directory.to_bring_home(found, HOME))
        submit(members)
        for one, found in zip(members, uses, strict=True):
            directory.note_here(found)
            self._note_provided(one, found)

    def _submit_there(
        self,
        members: list[TaskArgs],
        where: list[int],
        uses: list[list[Use]],
        submit: Callable[[list[TaskArgs]], None],
    ) -> None:
        """Submit a task of endpoints.

        Rule     REMOTE-COPY-1, -6
        """
        directory = self._directory
        placed = [directory.place(*one, self._handle) for one in zip(where, uses, strict=True)]
        for place, found in zip(where, uses, strict=True):
            self._bring_home(*directory.to_bring_home(found, place))
        sent = [self._with_plan(*one) for one in zip(members, placed, strict=True)]
        submit(sent)
        for one, after, its in zip(members, sent, placed, strict=True):
            _take_addresses(one, after)
            self._host.endpoints.queues.note_given(its)
            directory.note_task(its, [_address(wire) for wire in one._tensors])

    def _with_plan(self, args: TaskArgs, placed: Placed) -> TaskArgs:
        """Return the arguments as they are sent: with the plan behind the scalars."""
        sent = TaskArgs()
        sent._tensors, sent._scalars = args._tensors.copy(), list(args._scalars)
        if not placed.uses:
            return sent
        for use in placed.uses:
            sent._tensors[use.index] = _copied(sent._tensors[use.index], use.rights)
        plans = self._directory.plans(placed, len(args._tensors))
        dropped = self._directory.take_dropped(placed.where)
        _append(sent, Plan(self._host.endpoints.tensors.run_number, plans, dropped))
        return sent

    # ------------------------------------------------------------ coming home
    def _bring_home(self, several: Sequence[Held], must_wait: bool) -> None:
        """Have tensors come home by tasks of the endpoints that have made them.

        They are INOUT there, so that whoever reads them later waits for that.

        Rule     REMOTE-COPY-3
        """
        for held in several:
            word = self._next_level[held.handle] | (held.maker + 1) << L.WORD_WORKER
            args = TaskArgs()
            wire = replaced(held.wire, 0, held.start.to_bytes(SHAPE_AT, "little"))
            wire = replaced(wire, TAG_AT, bytes((L.INOUT,)))
            args._tensors = [_copied(wire, RIGHTS[L.INOUT])]
            plan = CopyPlan(held.key, held.version, 0, held.maker + 1)
            _append(args, Plan(self._host.endpoints.tensors.run_number, [plan], goes_home=True))
            Orchestrator._add(self, word | self._config_word(None), args)
            held.holders.add(HOME)
        if must_wait:
            self._until_idle()
            if self._view.has_failed:
                raise self._task_error()

    def drain(self) -> None:
        """Wait for all tasks; see `Orchestrator.drain`. What endpoints have written is here then."""
        super().drain()
        self._all_home()

    def _all_home(self) -> None:
        """Wait for all tasks, have all tensors come home, and let endpoints forget them.

        Rule     REMOTE-COPY-5
        """
        if self._directory:
            self._until_idle()
            self._host.endpoints.tensors.bring_home()

    def _play(self, program: Array, variables: Array) -> None:
        self._require_mine()
        self._all_home()
        super()._play(program, variables)

    # ------------------------------------------------------------ recorded graphs
    def _play_steps(
        self, steps: Sequence[Step], words: Sequence[int], variables: list[int]
    ) -> None:
        """Carry out a recorded graph step by step; `words` are the callable words of its submits.

        What a recording has checked is not checked again.

        Rule     SPEED-REPLAY-12
        """
        self._require_mine()
        following = iter(words)
        for step in steps:
            if isinstance(step, SubmitStep):
                self._submit_step(step, next(following), variables)
            elif isinstance(step, AllocStep):
                made = PlacingOrchestrator._claim(self, step.tensor)
                variables[step.variable] = made.data
            elif step.begins:
                Orchestrator._open_scope(self)
            else:
                Orchestrator._close_scope(self)

    def _submit_step(self, step: SubmitStep, word: int, variables: list[int]) -> None:
        """Submit a task or a group, at the endpoints that are chosen now if it is for endpoints."""
        self._handle = step.handle
        remote = is_remote(step.handle)
        members = step.arguments(variables)
        if step.members:
            affinities = [one for _, one in step.members]
            if remote:
                workers = [one - 1 for one in affinities]
                affinities = self._place_members(step.handle, workers, members)
            PlacingOrchestrator._submit_group(self, word, members, affinities)
        else:
            if remote:
                worker = (word >> L.WORD_WORKER & L.WORKER_MASK) - 1
                chosen = self._place(step.handle, worker, members[0], for_sub=None)
                word += (chosen - worker) << L.WORD_WORKER
            PlacingOrchestrator._add(self, word, members[0])
        step.note_outputs(members, variables)

    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        made = super()._claim(tensor)
        if self._directory:
            self._directory.give_back(made.data, made.nbytes())
        return made

    def _note_provided(self, args: TaskArgs, uses: Sequence[Use]) -> None:
        """Note which memory of rings a task was given."""
        for use in uses:
            address = _address(args._tensors[use.index])
            if not use.start and address:
                self._directory.give_back(address, use.nbytes)


class CheckedPlacingOrchestrator(CheckedOrchestrator, PlacingOrchestrator):
    """A `PlacingOrchestrator` that checks what it is asked for."""

    _guards_compiled = False


def _address(wire: bytes) -> int:
    return int.from_bytes(wire[:SHAPE_AT], "little")


def _copied(wire: bytes, rights: int) -> bytes:
    """Return a tensor as one of which an endpoint gets a copy."""
    return replaced(wire, CHILD_MEMORY_AT, bytes((L.TENSOR_REMOTE | L.TENSOR_COPIED | rights,)))


def _append(args: TaskArgs, plan: Plan) -> None:
    args._scalars = [*args._scalars, *(scalar_wire(ScalarBits(one)) for one in plan.words())]


def _take_addresses(args: TaskArgs, sent: TaskArgs) -> None:
    """Give arguments the addresses that the runtime has provided."""
    for i, wire in enumerate(sent._tensors):
        if not _address(args._tensors[i]) and _address(wire):
            args._tensors[i] = replaced(args._tensors[i], 0, wire[:SHAPE_AT])


__all__ = ["CheckedPlacingOrchestrator", "PlacingOrchestrator"]
