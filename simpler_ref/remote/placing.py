"""The Orchestrator of a Worker with endpoints: tasks of endpoints may name memory of this machine.

Before a task, it has those tensors come home that the task reads here and that an endpoint has written;
with a task of an endpoint, it sends what the endpoint's link has to know of the copies there.

Kernels carry the programs of recorded graphs out; but of the copies at endpoints Python keeps track. So
each step of a graph that has tasks of endpoints is an op of its program with its tensors as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from ..callables.identity import CallableHandle, TargetNamespace
from ..callables.runnable import CompiledCallable
from ..engine.view import View
from ..errors import TaskError
from ..jit import layout as L
from ..jit.kernel import INTERPRETED
from ..jit.program import Patch, part_at
from ..model.arguments import TaskArgs
from ..model.scalars import WORD
from ..model.tensor import RECORDED_FIRST, RECORDED_LAST, ContinuousTensor
from ..model.visibility import require_visible
from ..model.wire import (
    CHILD_MEMORY_AT,
    RIGHTS,
    SHAPE_AT,
    TAG_AT,
    DescribedWire,
    RemoteWire,
    bytes_below,
    bytes_of,
    replaced,
)
from ..orch.orchestrator import Handles, Orchestrator
from ..orch.words import Configs, Pools
from ..system.types import Array
from ..workers.session import Session
from .copies import is_of_loss
from .directory import HOME, CopyPlan, Directory, Held, Placed, Plan, Use, require_apart, uses_of
from .endpoints import Endpoints
from .layouts import layout_text
from .recovery import Submit

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


def require_copyable(i: int, wire: bytes) -> None:
    """Refuse a tensor of which an endpoint can have no copy."""
    if isinstance(wire, DescribedWire):
        try:
            layout_text(wire.layout)
        except TypeError as error:
            raise TypeError(f"tensor {i} cannot be copied to an endpoint: {error}") from None
    if wire[CHILD_MEMORY_AT] & 1:
        raise ValueError(f"tensor {i} is in the memory of a worker of this machine")
    if wire[TAG_AT] == L.NO_DEP:
        raise ValueError(
            f"tensor {i} is tagged NO_DEP, which does not say whether it is read or written, so an "
            "endpoint could not be given a copy: tag it INPUT, INOUT or OUTPUT_EXISTING"
        )
    address = _address(wire)
    if not address and wire[TAG_AT] != L.OUTPUT and bytes_of(wire):
        raise ValueError(
            f"tensor {i} has no memory yet: tag it OUTPUT, so that the runtime provides it, or give it "
            "an address"
        )
    if address and not RECORDED_FIRST <= address < RECORDED_LAST:
        require_visible(address, bytes_of(wire))


def _not_registered(handle: CallableHandle, workers: Sequence[int], why: str) -> ValueError:
    return ValueError(f"{handle!r} is registered for the endpoints {list(workers)}, {why}")


class EndpointPools(Pools):
    """The pools of an engine whose last next-level workers stand for endpoints.

    Rule     REMOTE-LINK-9, REMOTE-LINK-11, REMOTE-ARGS-2
    """

    def __init__(self, view: View, endpoints: Endpoints) -> None:
        super().__init__(view)
        self._endpoints = endpoints

    def is_elsewhere(self, handle: Any) -> bool:
        """Say whether a callable is for endpoints."""
        return is_remote(handle)

    def affinity(
        self, handle: CallableHandle, pool: int, worker: int, args: TaskArgs | None
    ) -> int:
        """Return the affinity of a task: the endpoint that it names, or whose memory it refers to.

        Raises
        ------
        TypeError, ValueError
            No endpoint could be given the task.
        """
        if not is_remote(handle):
            return super().affinity(handle, pool, worker, args)
        one = self._endpoints.registration(handle)
        if one.is_inner != (pool == L.SUB):
            raise TypeError(
                f"{handle!r} is for the workers of endpoints' own Workers: give it to submit_sub, "
                "or find it there with get_inner_handle"
                if one.is_inner
                else f"{handle!r} is an orchestration function of endpoints: give it to submit_next_level"
            )
        owners = set()
        for i, wire in enumerate(args._tensors if args is not None else ()):
            if not isinstance(wire, RemoteWire):
                require_copyable(i, wire)
            elif not wire.is_inline:
                owners.add(wire.place.worker)
        if worker != -1:
            owners.add(self._endpoints.link(worker).number)
            if worker not in one.workers:
                raise _not_registered(handle, one.workers, f"not for {worker}")
        if len(owners) > 1:
            raise ValueError(
                f"the task needs memory of the endpoints {sorted(owners)}, and a task has one: import "
                "the buffers there with remote_export and remote_import"
            )
        chosen = owners.pop() if owners else -1
        if chosen != -1 and chosen not in one.workers:
            raise _not_registered(handle, one.workers, f"and the memory is endpoint {chosen}'s")
        return chosen + 1

    def room(self, handle: CallableHandle, pool: int) -> tuple[int, str]:
        """Return how many members a group may have, and where they are, for messages."""
        if is_remote(handle):
            return len(self._endpoints.links()), ", each at an endpoint of its own"
        return super().room(handle, pool)


class PlacingOrchestrator(Orchestrator):
    """An Orchestrator that knows where the tensors of its run are.

    Rule     REMOTE-COPY-1, REMOTE-COPY-3, REMOTE-COPY-6
    """

    one_by_one: Callable[[], None] | None = None
    """How to submit the tasks of a replay that is one group, if too few endpoints are left for that."""

    def __init__(self, session: Session, configs: Configs, endpoints: Endpoints) -> None:
        super().__init__(session, configs, EndpointPools(session.engine.view, endpoints))
        self._endpoints, self._tensors = endpoints, endpoints.tensors
        self._recovery = endpoints.tensors.recovery

    @property
    def _directory(self) -> Directory:
        return self._tensors.directory

    # ------------------------------------------------------------ submits
    def _guards(self, word: int) -> bool:
        is_compiled = isinstance(self._session.registry.target(self._handle), CompiledCallable)
        return super()._guards(word) and (INTERPRETED or not is_compiled)

    def _add(self, word: int, members: list[TaskArgs], workers: list[int] | None = None) -> None:
        super()._add(*self._chosen(word, members, workers))

    def _chosen(
        self, word: int, members: list[TaskArgs], workers: list[int] | None
    ) -> tuple[int, list[TaskArgs], list[int] | None]:
        """Return a task with an endpoint for each member, if it is for endpoints."""
        members = members or [TaskArgs()]
        if is_remote(self._handle):
            named = _places(word, workers)
            chosen = self._endpoints.choose(self._handle, members, named)
            if workers is not None:
                return word, members, [one + 1 for one in chosen]
            word += (chosen[0] - named[0]) << L.WORD_WORKER
        return word, members, workers

    def _send(self, word: int, members: list[TaskArgs], workers: list[int] | None) -> None:
        send, bare = super()._send, word & ~(L.WORKER_MASK << L.WORD_WORKER)

        def submit(sent: list[TaskArgs], where: list[int]) -> None:
            if workers is None:
                send(bare | (where[0] + 1) << L.WORD_WORKER, sent, None)
            else:
                send(word, sent, [one + 1 for one in where])

        self._place_and_submit(members, _places(word, workers), submit)

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
        """Submit a task once what it reads is on its way, and note what it will have done.

        Rule     REMOTE-COPY-1
        """
        tensors, directory, recovery = self._tensors, self._directory, self._recovery
        remote = is_remote(self._handle)
        if recovery is None and not remote and not directory and not tensors.lost:
            submit(members, where)
            return
        self._require_mine()
        uses = [uses_of(one._tensors) for one in members]
        for its in uses:
            tensors.require_not_lost(its)
        placed, sent = [], members
        if remote:
            require_apart(uses)
            placed = [directory.place(its) for its in uses]
        for place, its in zip(where, uses, strict=True):
            self._bring_home(*directory.to_bring_home(its, place if remote else HOME))
            if recovery is not None and not remote:
                recovery.save(its)
        if remote:
            sent = [self._with_plan(*one) for one in zip(members, where, placed, strict=True)]
        number = self._view.next_task_id
        submit(sent, where)
        for one, its, after in zip(members, uses, sent, strict=True):
            self._note_provided(one, its, after)
        if not remote:
            where = [HOME] * len(members)
            for its in uses:
                directory.note_here(its)
        for place, known in zip(where, placed, strict=False):
            self._endpoints.queues.note_given(place, known)
            directory.note_task(place, known, self._handle, task=number)
        if recovery is not None:
            recovery.note_task(number, members, where, uses, submit)

    def _with_plan(self, args: TaskArgs, where: int, placed: Placed) -> TaskArgs:
        """Return the arguments as they are sent: with the plan behind the scalars."""
        sent = TaskArgs()
        sent._tensors, sent._scalars = args._tensors.copy(), list(args._scalars)
        for use, _ in placed:
            sent._tensors[use.index] = _copied(sent._tensors[use.index], use.rights)
        if placed:
            plans = self._directory.plans(placed, len(args._tensors))
            _append(sent, Plan(self._tensors.run_number, plans, self._directory.dropped(where)))
        return sent

    def _note_provided(self, args: TaskArgs, uses: Sequence[Use], sent: TaskArgs) -> None:
        """Note the memory that the runtime has provided to tensors of a task that was sent."""
        for use in uses:
            wire = sent._tensors[use.index]
            if use.start or not _address(wire):
                continue
            use.start = _address(wire) - bytes_below(wire)
            own = args._tensors[use.index]
            args._tensors[use.index] = replaced(own, 0, wire[:SHAPE_AT])
            self._directory.give_back(*use.span)
            if self._recovery is not None and use.nbytes:
                self._recovery.note_memory(*use.span, self._depth())

    # ------------------------------------------------------------ coming home
    def _bring_home(self, several: Sequence[Held], must_wait: bool) -> None:
        """Have tensors come home by tasks of the endpoints that have made them.

        They are INOUT there, so that whoever reads them later waits for that.

        Rule     REMOTE-COPY-3
        """
        for held in several:
            if self._recovery is not None:
                self._recovery.save_bytes(*held.span)
            word = self._next_level[held.handle] | (held.maker + 1) << L.WORD_WORKER
            args = TaskArgs()
            wire = replaced(held.use.wire, 0, held.use.start.to_bytes(SHAPE_AT, "little"))
            wire = replaced(wire, TAG_AT, bytes((L.INOUT,)))
            args._tensors = [_copied(wire, RIGHTS[L.INOUT])]
            plan = CopyPlan(held.key, held.version, 0, held.maker + 1)
            _append(args, Plan(self._tensors.run_number, [plan], goes_home=True))
            number, edges = self._view.next_task_id, self._view.edges
            super()._send(word | self._config_word(None), [args], None)
            self._own_tasks += 1
            self._own_edges += self._view.edges - edges
            held.holders.add(HOME)
            if self._recovery is not None:
                self._recovery.moves[number] = held.maker
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
            self._tensors.bring_home()

    def _play(self, program: Array, variables: Array) -> None:
        self._require_mine()
        self._all_home()
        if self._recovery is not None:
            self._recovery.unclear = "many tasks were submitted at once, or a graph"
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
        members = step.arguments(variables)
        affinities = [one for _, one in step.members] or None
        self._send(*self._chosen(word, members, affinities))
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
        if self._recovery is not None:
            self._recovery.note_memory(made.data, made.nbytes(), self._depth())
        return made

    # ------------------------------------------------------------ losses
    def _open(self, next_level: Handles, subs: Handles) -> None:
        self._own_tasks = self._own_edges = 0
        self._losses = self._endpoints.losses()
        self._endpoints.begin_run()
        super()._open(next_level, subs)
        if self._recovery is not None:
            self._recovery.begin_run(self)
        self.one_by_one = None

    def _close_scope(self) -> None:
        depth = self._depth()
        super()._close_scope()
        if self._recovery is not None:
            self._recovery.end_scope(depth)

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
            lost = [one for one in dead if endpoints.has_all([one])]  # no workers of this machine
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


def _address(wire: bytes) -> int:
    return int.from_bytes(wire[:SHAPE_AT], "little")


def _copied(wire: bytes, rights: int) -> bytes:
    return replaced(wire, CHILD_MEMORY_AT, bytes((L.TENSOR_REMOTE | L.TENSOR_COPIED | rights,)))


def _append(args: TaskArgs, plan: Plan) -> None:
    args._scalars = [*args._scalars, *[WORD.pack(one, L.RAW) for one in plan.words()]]


def _places(word: int, workers: list[int] | None) -> list[int]:
    """Return the workers that a task names, −1 for any."""
    return [one - 1 for one in workers or [word >> L.WORD_WORKER & L.WORKER_MASK]]
