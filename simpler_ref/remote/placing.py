"""The Orchestrator of a Worker with endpoints: tasks of endpoints may name memory of this machine.

Before a task, it has those tensors come home that the task reads here and that an endpoint has written;
with a task of an endpoint, it sends what the endpoint's link has to know of the copies there.

Kernels carry the programs of recorded graphs out; but of the copies at endpoints Python keeps track. So
each step of a graph that has tasks of endpoints is an op of its program with its tensors as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..callables.identity import CallableHandle, TargetNamespace
from ..callables.runnable import CompiledCallable
from ..engine.view import View
from ..errors import TaskError
from ..jit import layout as L
from ..jit.kernel import INTERPRETED
from ..jit.program import Patch, part_at
from ..model.arguments import TaskArgs
from ..model.scalars import WORD
from ..model.tensor import ContinuousTensor
from ..model.wire import (
    CHILD_MEMORY_AT,
    RIGHTS,
    SHAPE_AT,
    TAG_AT,
    replaced,
)
from ..orch.columns import Batch
from ..orch.orchestrator import Handles, Orchestrator
from ..orch.words import Configs, Pools, require_distinct
from ..system.types import Array
from ..workers.session import Session
from .copies import is_of_loss
from .directory import HOME, CopyPlan, Directory, Held, Placed, Plan, Use, uses_of
from .endpoints import Endpoints
from .recovery import Log, Recovery, Submit

_BITS = (1 << 64) - 1


class SubmitStep(NamedTuple):
    """A submit; see `ProgramWriter.submit`. Without members it is a task that is no group.

    `members` has the counts of tensors and scalars of each member, and its worker plus one.
    """

    handle: CallableHandle
    tensors: Sequence[bytes]
    scalars: Sequence[bytes]
    members: Sequence[tuple[int, int]]
    patches: Sequence[Patch]
    outputs: int

    def arguments(self, variables: Sequence[int]) -> list[TaskArgs]:
        """Return the arguments of each member, for these variables."""
        parts = [*self.tensors, *self.scalars]
        tensor, scalar = 0, len(self.tensors)
        for one in self.patches:
            which, octet = part_at(one.at, scalar)
            value = variables[one.variable] + one.offset & _BITS
            parts[which] = replaced(parts[which], octet, value.to_bytes(L.WORD, "little"))
        made = []
        whole = scalar | len(self.scalars) << L.HALF
        for counts, _ in self.members or [(whole, 0)]:
            args = TaskArgs()
            args._tensors = parts[tensor : tensor + (counts & L.LOW_HALF)]
            args._scalars = parts[scalar : scalar + (counts >> L.HALF)]
            tensor, scalar = tensor + len(args._tensors), scalar + len(args._scalars)
            made.append(args)
        return made

    def note_outputs(self, members: Sequence[TaskArgs], variables: list[int]) -> None:
        """Store the addresses that the runtime has provided in the variables of their tensors."""
        if self.outputs >= 0:
            wires = [wire for one in members for wire in one._tensors]
            for i, wire in enumerate(wires):
                variables[self.outputs + i] = int.from_bytes(wire[:SHAPE_AT], "little")


class AllocStep(NamedTuple):
    """A buffer, whose address is stored in a variable."""

    tensor: ContinuousTensor
    variable: int


class ScopeStep(NamedTuple):
    """The beginning of a scope, or its end."""

    begins: bool


Step = SubmitStep | AllocStep | ScopeStep


def is_remote(handle: Any) -> bool:
    """Say whether a callable is for endpoints."""
    namespace: Any = getattr(handle, "_namespace", None)
    return bool(namespace == TargetNamespace.REMOTE_TASK_DISPATCHER)


class EndpointPools(Pools):
    """The pools of an engine whose last next-level workers stand for endpoints.

    Rule     REMOTE-LINK-9, REMOTE-LINK-11, REMOTE-ARGS-2
    """

    def __init__(self, view: View, endpoints: Endpoints) -> None:
        super().__init__(view)
        self._endpoints = endpoints
        self._chooses = True

    def naming_only(self) -> Pools:
        """Return what leaves open whatever a run has to choose."""
        made = EndpointPools.__new__(EndpointPools)
        vars(made).update(vars(self), _chooses=False)
        return made

    def is_elsewhere(self, handle: Any) -> bool:
        """Say whether a callable is for endpoints."""
        return is_remote(handle)

    def place(
        self,
        handle: CallableHandle,
        worker: int,
        args: TaskArgs | None,
        taken: Collection[int] = (),
        for_sub: bool | None = False,
    ) -> int:
        """Return the endpoint for a task; −1: a run chooses it. See `Endpoints.place`."""
        if not self._chooses:
            return self._endpoints.named(handle, worker, args, for_sub=for_sub)
        return self._endpoints.place(handle, worker, args, taken, for_sub=for_sub)

    def place_members(
        self,
        handle: CallableHandle,
        workers: Sequence[int],
        members: Sequence[TaskArgs],
        for_sub: bool | None = False,
    ) -> list[int]:
        """Return the affinities of the members of a group: each is for another endpoint."""
        taken = {one for one in workers if one != -1}
        chosen: list[int] = []
        for one, args in zip(workers, members, strict=True):
            chosen.append(self.place(handle, one, args, taken, for_sub))
            taken.add(chosen[-1])
        require_distinct(chosen, len(members))
        return [one + 1 for one in chosen]

    def affinity(
        self, handle: CallableHandle, pool: int, worker: int, args: TaskArgs | None
    ) -> int:
        """Return the affinity of a task of a pool that asks for a worker."""
        if is_remote(handle):
            return 1 + self.place(handle, worker, args, for_sub=pool == L.SUB)
        return super().affinity(handle, pool, worker, args)

    def affinities_of_members(
        self,
        handle: CallableHandle,
        pool: int,
        workers: Sequence[int],
        members: Sequence[TaskArgs],
    ) -> list[int]:
        """Return the affinity of each member of a group, which asks for a worker."""
        if is_remote(handle):
            return self.place_members(handle, workers, members, pool == L.SUB)
        return super().affinities_of_members(handle, pool, workers, members)

    def places_each(self, handle: CallableHandle, batch: Batch) -> bool:
        """Say whether each task of many is placed when those before it are submitted."""
        if not is_remote(handle):
            return False
        for one in np.unique(batch.workers):
            if one != -1:
                self._endpoints.require(int(one))
        return True

    def require_reached(self, handle: CallableHandle, args: TaskArgs) -> None:
        """Refuse a tensor in memory that the workers of a callable do not see."""
        if not is_remote(handle):
            super().require_reached(handle, args)

    def room(self, handle: CallableHandle, pool: int) -> tuple[int, str]:
        """Return how many members a group may have, and where they are, for messages."""
        if is_remote(handle):
            return self._endpoints.count, ", each at an endpoint of its own"
        return super().room(handle, pool)


class PlacingOrchestrator(Orchestrator):
    """An Orchestrator that knows where the tensors of its run are.

    Rule     REMOTE-COPY-1, REMOTE-COPY-3, REMOTE-COPY-6
    """

    _recovery: Recovery | None = None
    one_by_one: Callable[[], None] | None = None
    """How to submit the tasks of a replay that is one group, if too few endpoints are left for that."""
    _pools: EndpointPools

    def __init__(self, session: Session, configs: Configs, endpoints: Endpoints) -> None:
        super().__init__(session, configs, EndpointPools(session.engine.view, endpoints))
        self._endpoints = endpoints

    @property
    def _directory(self) -> Directory:
        return self._endpoints.tensors.directory

    # ------------------------------------------------------------ submits
    def _guards(self, word: int) -> bool:
        is_compiled = isinstance(self._session.registry.target(self._handle), CompiledCallable)
        return super()._guards(word) and (INTERPRETED or not is_compiled)

    def _send(self, word: int, members: list[TaskArgs], workers: list[int] | None) -> None:
        send, bare = super()._send, word & ~(L.WORKER_MASK << L.WORD_WORKER)
        where = [one - 1 for one in workers or [word >> L.WORD_WORKER & L.WORKER_MASK]]

        def submit(sent: list[TaskArgs], where: list[int]) -> None:
            if workers is None:
                send(bare | (where[0] + 1) << L.WORD_WORKER, sent, None)
            else:
                send(word, sent, [one + 1 for one in where])

        self._place_and_submit(members or [TaskArgs()], where, submit)

    def _place_and_submit(self, members: list[TaskArgs], where: list[int], submit: Submit) -> None:
        """Submit a task; if tasks before it were lost with an endpoint, those run again first.

        Rule     REMOTE-RETRY-1
        """
        handle, recovery = self._handle, self._recovery
        if recovery is None:
            self._place_once(members, where, submit)
            return
        while True:
            try:
                self._place_once(members, where, submit)
                return
            except TaskError as failure:
                if not self._view.has_failed:
                    raise
                recovery.make_good(failure)
                self._handle = handle
                if is_remote(handle):
                    found = recovery.present(handle, where, members)
                    if found is None:
                        return
                    where = found

    def _place_once(self, members: list[TaskArgs], where: list[int], submit: Submit) -> None:
        """Submit a task once what it reads is on its way, and note what it will have done."""
        tensors, directory = self._endpoints.tensors, self._directory
        recovery = self._recovery
        remote = is_remote(self._handle)
        if recovery is None and not remote and not directory and not tensors.has_lost:
            submit(members, where)
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
            if recovery is not None:
                recovery.save(found)
        number = self._view.next_task_id
        submit(members, where)
        for one, found in zip(members, uses, strict=True):
            directory.note_here(found)
            self._note_provided(one, found)
        if recovery is not None:
            recovery.note_task(number, members, [HOME] * len(members), uses, submit)

    def _submit_there(
        self,
        members: list[TaskArgs],
        where: list[int],
        uses: list[list[Use]],
        submit: Submit,
    ) -> None:
        """Submit a task of endpoints.

        Rule     REMOTE-COPY-1, REMOTE-COPY-6
        """
        directory = self._directory
        require_members_apart(uses)
        placed = [directory.place(*one, self._handle) for one in zip(where, uses, strict=True)]
        for place, found in zip(where, uses, strict=True):
            self._bring_home(*directory.to_bring_home(found, place))
        plans = [
            directory.plans(its, len(one._tensors))
            for one, its in zip(members, placed, strict=True)
        ]
        sent = [self._with_plan(*one) for one in zip(members, placed, plans, strict=True)]
        number = self._view.next_task_id
        submit(sent, where)
        for one, after, its in zip(members, sent, placed, strict=True):
            _take_addresses(one, after)
            self._endpoints.queues.note_given(its)
            directory.note_task(its, [_address(wire) for wire in one._tensors], task=number)
        if self._recovery is not None:
            self._recovery.note_task(number, members, where, uses, submit)

    def _with_plan(self, args: TaskArgs, placed: Placed, plans: Sequence[CopyPlan]) -> TaskArgs:
        """Return the arguments as they are sent: with the plan behind the scalars."""
        sent = TaskArgs()
        sent._tensors, sent._scalars = args._tensors.copy(), list(args._scalars)
        if not placed.uses:
            return sent
        for use in placed.uses:
            sent._tensors[use.index] = _copied(sent._tensors[use.index], use.rights)
        dropped = self._directory.dropped(placed.where)
        _append(sent, Plan(self._endpoints.tensors.run_number, plans, dropped))
        return sent

    # ------------------------------------------------------------ coming home
    def _bring_home(self, several: Sequence[Held], must_wait: bool) -> None:
        """Have tensors come home by tasks of the endpoints that have made them.

        They are INOUT there, so that whoever reads them later waits for that.

        Rule     REMOTE-COPY-3
        """
        for held in several:
            if self._log is not None:
                self._log.save(*held.span)
            word = self._next_level[held.handle] | (held.maker + 1) << L.WORD_WORKER
            args = TaskArgs()
            wire = replaced(held.wire, 0, held.start.to_bytes(SHAPE_AT, "little"))
            wire = replaced(wire, TAG_AT, bytes((L.INOUT,)))
            args._tensors = [_copied(wire, RIGHTS[L.INOUT])]
            plan = CopyPlan(held.key, held.version, 0, held.maker + 1)
            _append(args, Plan(self._endpoints.tensors.run_number, [plan], goes_home=True))
            number, edges = self._view.next_task_id, self._view.edges
            super()._send(word | self._config_word(None), [args], None)
            self._own_tasks += 1
            self._own_edges += self._view.edges - edges
            held.holders.add(HOME)
            if self._log is not None:
                self._log.moves.append((number, held.maker))
        if must_wait:
            self._until_idle()
            if self._view.has_failed:
                raise self._task_error()

    def _drain(self) -> None:
        if self._recovery is not None:
            self._recovery.settle()
            return
        super()._drain()
        self._all_home()

    def _all_home(self) -> None:
        """Wait for all tasks, have all tensors come home, and let endpoints forget them.

        Rule     REMOTE-COPY-5
        """
        if not self._directory:
            return
        if self._recovery is not None:
            self._recovery.settle()
        else:
            self._until_idle()
            self._endpoints.tensors.bring_home()

    def _play(self, program: Array, variables: Array) -> None:
        self._require_mine()
        self._all_home()
        if self._log is not None:
            self._log.unclear = "many tasks were submitted at once, or a graph"
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
                made = self._claim(step.tensor)
                variables[step.variable] = made.data
            elif step.begins:
                self._open_scope()
            else:
                self._close_scope()

    def _submit_step(self, step: SubmitStep, word: int, variables: list[int]) -> None:
        """Submit a task or a group, at the endpoints that are chosen now if it is for endpoints."""
        self._handle = step.handle
        remote = is_remote(step.handle)
        members = step.arguments(variables)
        if step.members:
            affinities = [one for _, one in step.members]
            if remote:
                workers = [one - 1 for one in affinities]
                affinities = self._pools.place_members(step.handle, workers, members, None)
            self._send(word, members, affinities)
        else:
            if remote:
                worker = (word >> L.WORD_WORKER & L.WORKER_MASK) - 1
                chosen = self._pools.place(step.handle, worker, members[0], for_sub=None)
                word += (chosen - worker) << L.WORD_WORKER
            self._send(word, members, None)
        step.note_outputs(members, variables)

    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        while True:
            try:
                made = super()._claim(tensor)
                break
            except TaskError as failure:
                if self._recovery is None:
                    raise
                self._recovery.make_good(failure)
        if self._directory:
            self._directory.give_back(made.data, made.nbytes())
        if self._log is not None:
            self._log.note_memory(made.data, made.nbytes(), self._depth())
        return made

    # ------------------------------------------------------------ losses
    @property
    def _log(self) -> Log | None:
        return self._endpoints.tensors.log

    def _open(self, next_level: Handles, subs: Handles) -> None:
        self._own_tasks = self._own_edges = 0
        self._losses = self._endpoints.losses()
        self._endpoints.begin_run()
        super()._open(next_level, subs)
        self._recovery = None if self._log is None else Recovery(self, self._log)
        self.one_by_one = None

    def _close_scope(self) -> None:
        depth = self._depth()
        super()._close_scope()
        if self._log is not None:
            self._log.end_scope(depth)

    def _settle_run(self) -> None:
        if self._recovery is not None:
            self._recovery.settle()

    def _end_run(
        self, failure: BaseException | None, failed: Collection[int]
    ) -> BaseException | None:
        endpoints = self._endpoints
        self.one_by_one = None  # it refers to the graph
        if failure is not None and endpoints.losses() > self._losses:
            dead = endpoints.lost(wait_for_one=True)  # else the next run would find that out
            lost = [
                one for one in dead if endpoints.has_all([one])
            ]  # workers of this machine are not
            # a task that missed what the endpoint had may have failed before that was noticed
            if lost and isinstance(failure, TaskError) and is_of_loss(failure):
                failure = endpoints.loss(lost[0], failure)
        return endpoints.tensors.end_run(failure, failed)

    def _forgive(self) -> None:
        """Forget that tasks have failed, all of which have ended.

        Rule     REMOTE-RETRY-1
        """
        self._engine.kernels.forgive_all(self._mem)
        self._error = None

    def _note_provided(self, args: TaskArgs, uses: Sequence[Use]) -> None:
        for use in uses:
            address = _address(args._tensors[use.index])
            if not use.start and address:
                self._directory.give_back(address, use.nbytes)


def require_members_apart(uses: Sequence[Sequence[Use]]) -> None:
    """Refuse a group whose members share bytes that one of them writes: each would get a copy.

    Rule     REMOTE-COPY-6
    """
    if len(uses) < 2:
        return
    spans = sorted(
        (use.start, use.start + use.nbytes, member, bool(use.writes))
        for member, its in enumerate(uses)
        for use in its
        if use.start and use.nbytes
    )
    met: list[tuple[int, int, int, bool]] = []
    for start, end, member, writes in spans:
        met = [one for one in met if one[1] > start]
        for _, _, other, other_writes in met:
            if other != member and (writes or other_writes):
                first, second = sorted((member, other))
                raise ValueError(
                    f"members {first} and {second} of the group name the same bytes, which one of them "
                    "writes, and each would get a copy of its own at its endpoint: give each member a "
                    "part of its own"
                )
        met.append((start, end, member, writes))


def _address(wire: bytes) -> int:
    return int.from_bytes(wire[:SHAPE_AT], "little")


def _copied(wire: bytes, rights: int) -> bytes:
    return replaced(wire, CHILD_MEMORY_AT, bytes((L.TENSOR_REMOTE | L.TENSOR_COPIED | rights,)))


def _append(args: TaskArgs, plan: Plan) -> None:
    args._scalars = [*args._scalars, *[WORD.pack(one, L.RAW) for one in plan.words()]]


def _take_addresses(args: TaskArgs, sent: TaskArgs) -> None:
    for i, wire in enumerate(sent._tensors):
        if not _address(args._tensors[i]) and _address(wire):
            args._tensors[i] = replaced(args._tensors[i], 0, wire[:SHAPE_AT])
