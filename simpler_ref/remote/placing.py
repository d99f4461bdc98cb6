"""The Orchestrator of a Worker with endpoints, and the stream of its calls that go there.

Tasks of endpoints may name memory of this machine. Before a task, the Orchestrator has those tensors come
home that the task reads here and that an endpoint has written. Each task or call is given to the link of
the endpoint that is likely to begin it first, with what that has to know of the copies there. All else,
hazards and futures above all, is as with workers of this machine.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from itertools import cycle
from typing import Any

import numpy as np

from ..callables.identity import CallableHandle, CallableKind, TargetNamespace
from ..callables.runnable import CompiledCallable
from ..calls import outcomes
from ..calls.arguments import key_of
from ..calls.call_errors import CallErrors
from ..calls.futures import Future
from ..calls.sending import Guards, How, Payload, guards_of_task, payload_of
from ..calls.stream import Stream
from ..calls.tasks import Task
from ..engine.view import View
from ..engine.view.blocks import data_of
from ..errors import ControlError, TaskError, WorkerStartError, origin_of, tell
from ..jit import layout as L
from ..jit.kernel import INTERPRETED
from ..model.arguments import TaskArgs
from ..model.scalars import INTEGER, WORD
from ..model.tensor import RECORDED_FIRST, RECORDED_LAST, ContinuousTensor
from ..model.visibility import require_visible
from ..model.wire import (
    CHILD_MEMORY_AT,
    RIGHTS,
    SHAPE_AT,
    TAG_AT,
    TENSOR_BYTES,
    DescribedWire,
    Layout,
    RemoteWire,
    bytes_below,
    bytes_of,
    replaced,
    span_of,
)
from ..orch.orchestrator import Handles, Orchestrator
from ..orch.words import Configs, Pools
from ..system.types import Array
from ..workers.session import Session
from .callables import Registration
from .copies import is_of_loss
from .directory import HOME, CopyPlan, Directory, Held, Placed, Plan, Use, require_apart, uses_of
from .endpoints import Endpoints
from .link_tasks import Function
from .parent_tensors import Submit
from .tasks import copied_layout, is_whole, layout_of, layout_text


# ---------------------------------------------------------------- runs
def is_remote(handle: Any) -> bool:
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
        return is_remote(handle)

    def affinity(
        self, handle: CallableHandle, pool: int, worker: int, args: TaskArgs | None
    ) -> int:
        """Return the affinity of a task: the endpoint that it names, or whose memory it refers to."""
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

    Rule     REMOTE-COPY-1, REMOTE-COPY-3, REMOTE-COPY-6, REMOTE-RETRY-1
    """

    one_by_one: Callable[[], None] | None = None
    """How to submit the tasks of a replay that is one group, if too few endpoints are left for that."""

    def __init__(self, session: Session, configs: Configs, endpoints: Endpoints) -> None:
        super().__init__(session, configs, EndpointPools(session.engine.view, endpoints))
        self._endpoints, self._tensors = endpoints, endpoints.tensors
        self._recovery, self._directory = endpoints.tensors.recovery, endpoints.tensors.directory

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
        """Submit a task; if tasks before it were lost with an endpoint, those run again first."""
        handle, recovery = self._handle, self._recovery
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
        tensors, directory, recovery = self._tensors, self._directory, self._recovery
        remote = is_remote(self._handle)
        if not (remote or directory or tensors.lost or recovery.retries):
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
            if not remote:
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
            directory.note_task(place, known, self._handle, task=number)
        recovery.note_task(number, members, where, uses, submit)

    def _with_plan(self, args: TaskArgs, where: int, placed: Placed) -> TaskArgs:
        """Return the arguments as they are sent: with the plan behind the scalars."""
        sent = TaskArgs()
        sent._tensors, sent._scalars = args._tensors.copy(), list(args._scalars)
        for use, _ in placed:
            sent._tensors[use.index] = _copied(sent._tensors[use.index], use.rights)
        if placed:
            run, count = self._tensors.run_number, len(args._tensors)
            _append(sent, self._directory.plan(run, where, placed, count))
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

    # ------------------------------------------------------------ coming home
    def _bring_home(self, several: Sequence[Held], must_wait: bool) -> None:
        """Have tensors come home by tasks of the endpoints that have made them.

        They are INOUT there, so that whoever reads them later waits for that.
        """
        for held in several:
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
            self._recovery.moves[number] = held.maker
        if must_wait:
            self._until_idle()
            if self._view.has_failed:
                raise self._task_error()

    def _drain(self) -> None:
        self._recovery.settle()

    def _play(self, program: Array, variables: Array) -> None:
        self._require_mine()
        if self._directory:
            self._recovery.settle()
        self._recovery.unclear = "many tasks were submitted at once, or a graph"
        super()._play(program, variables)

    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        while True:
            try:
                made = super()._claim(tensor)
                break
            except TaskError as failure:
                self._recovery.make_good(failure)
        if self._directory:
            self._directory.give_back(made.data, made.nbytes())
        return made

    # ------------------------------------------------------------ losses
    def _open(self, next_level: Handles, subs: Handles) -> None:
        self._own_tasks = self._own_edges = 0
        self._losses = self._endpoints.losses()
        self._tensors.begin_run()
        super()._open(next_level, subs)
        self._recovery.begin_run(self)
        self.one_by_one = None

    def _close_scope(self) -> None:
        self._recovery.end_scope(self._depth())
        super()._close_scope()

    def _settle_run(self) -> None:
        if self._recovery.retries:
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


def _address(wire: bytes) -> int:
    return int.from_bytes(wire[:SHAPE_AT], "little")


def _copied(wire: bytes, rights: int) -> bytes:
    return replaced(wire, CHILD_MEMORY_AT, bytes((L.TENSOR_REMOTE | L.TENSOR_COPIED | rights,)))


def _append(args: TaskArgs, plan: Plan) -> None:
    args._scalars = [*args._scalars, *[WORD.pack(one, L.RAW) for one in plan.words()]]


def _places(word: int, workers: list[int] | None) -> list[int]:
    """Return the workers that a task names, −1 for any."""
    return [one - 1 for one in workers or [word >> L.WORD_WORKER & L.WORKER_MASK]]


# ---------------------------------------------------------------- calls
_MOST_TASKS = 1 << 12
_MOST_KNOWN = 1 << 14
_UNKNOWN = 1
"""Bytes of a value that no call of the task has returned yet: of places alike its own is the best."""
_integer = INTEGER.pack
_DIGEST = sha256(b"the calls of a stream").hexdigest()


class RemoteStream(Stream):
    """The calls of one open Worker, at its endpoints.

    Rule     CALL-FAR-1, CALL-FAR-2, CALL-FAR-3, CALL-FAR-4, CALL-FAR-7, CALL-FAR-8, CALL-FAR-10,
             CALL-WORKER-4
    """

    def __init__(self, life: Any, session: Any, register: Any, add: Any) -> None:
        super().__init__(life, session, register)
        self._sums = None  # what arrives there are copies
        self.errors = _ErrorsThere(session)
        self._endpoints = life.endpoints
        self._directory = Directory(self._endpoints.links, session.engine.view.is_under_way)
        self._spans: dict[bytes, tuple[int, int, Layout | None]] = {}
        """Of arrays: first byte, how many, and the layout of one with gaps; as long as layouts last."""
        self._epoch = -1
        self._sizes: dict[int, int] = {}
        """How long the last value was that was seen of each task."""
        one = Registration((), b"")
        self._handle = add(*one.named(f"sha256:{_DIGEST}", CallableKind.PYTHON_IMPORT, "call"))

    def wait_for_turn(self, future: Future, timeout_s: float | None) -> bool:
        """Wait until a call has ended: an endpoint may have it while it waits for others."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return self.wait(future, deadline)

    # ------------------------------------------------------------ what is known before
    def _word_of_calls(self) -> int:
        return self._session.words[0][self._handle]

    def _begin(self) -> None:
        super()._begin()
        self._endpoints.tensors.begin_run()
        self._directory.clear()
        self._directory.empty_queues()

    def _start_quick(self) -> None:
        """Let no call be quick: each is placed."""

    def sent(self, task: Task) -> tuple[Payload, Guards | None]:
        """Return what links make a function from, and what must hold for that to stay right."""
        payload = Payload(How(0), task.serial, pickle.dumps(Function.of(task)))
        return payload, guards_of_task(task, {})

    def function_for_items(self, task: Task) -> tuple[Payload, Payload, bool]:
        """Return a task as it is now, as links get it, and as workers of endpoints do for many items."""
        alone, _, lasts = super().function_for_items(task)
        payload, _ = payload_of(task, {}, to_endpoints=True)
        return alone, payload, lasts

    def require_workers(self, task: Task) -> tuple[int, ...]:
        """Return the sub workers that a task names, counted through all endpoints."""
        there = len(self._endpoints.seats())
        for one in task.workers:
            if one >= there:
                raise ValueError(
                    f"{task!r} is for sub worker {one}, and those of this Worker's endpoints are 0 to "
                    f"{there - 1}: name another in workers=, or give more endpoints"
                )
        return task.workers

    @property
    def takes_pickles(self) -> bool:
        """Whether all endpoints have agreed to what is pickled."""
        return all(link.spec.serialized for link in self._endpoints.call_links())

    # ------------------------------------------------------------ submit
    def _submit(self, word: int, counts: int, wire: bytes, data: bytes) -> int:
        """Place a call, and submit it with what its link has to know."""
        view = self._engine.view
        if view.ended == view.next_task_id:
            self._directory.empty_queues()
        tensors = counts & L.LOW_HALF
        wires = [
            wire[at : at + TENSOR_BYTES] for at in range(0, tensors * TENSOR_BYTES, TENSOR_BYTES)
        ]
        uses, values = self._uses_of(wires), self._values_in(wire, counts)
        named = (word >> L.WORD_WORKER & L.WORKER_MASK) - 1
        only = self._endpoints.seats()[named] if named >= 0 else None
        where = only[0] if only else self._likely_first([*uses, *values])
        directory = self._directory
        require_apart([uses], "arrays {} and {} of the call")
        placed = directory.place(uses)
        run = self._endpoints.tensors.run_number
        words = directory.plan(run, where, placed, tensors, only).words()
        task = key_of(int.from_bytes(wire[tensors * TENSOR_BYTES :][: L.WORD], "little"))
        wire += b"".join([_integer(one, L.SIGNED) for one in words])
        word = self._word | (where + 1) << L.WORD_WORKER | (L.WORD_WAITS if only else 0)
        slot = super()._submit(word, counts + (len(words) << L.HALF), wire, data)
        if slot != L.WOULD_BLOCK:
            turn = directory.note_task(where, placed, call=(slot, view.next_task_id - 1))
            for use in values:
                directory.values[use.slot].holders.add(where)
            directory.values[slot] = Held(
                Use(-1, 0, _UNKNOWN, L.TENSOR_WRITE, slot=slot),
                maker=where,
                holders={where},
                handle=task,
                turn=turn,
            )
        return slot

    def _likely_first(self, uses: Sequence[Use]) -> int:
        """Return the endpoint that is likely to begin a call first."""
        present = [link.number for link in self._endpoints.call_links()]
        if not present:
            raise RuntimeError(
                "no endpoint with sub workers is left for calls: add one with add_remote_worker"
            )
        chosen: int = self._endpoints.likely_first(present, uses, self._directory)
        return chosen

    def _uses_of(self, wires: Sequence[bytes]) -> list[Use]:
        """Return what a call does with its arrays; `TypeError`: a message cannot describe one."""
        layouts = self._engine.layouts
        if layouts.epoch != self._epoch or len(self._spans) > _MOST_KNOWN:
            self._spans.clear()
            self._epoch = layouts.epoch
        uses = []
        for i, wire in enumerate(wires):
            found = self._spans.get(wire[:TAG_AT])
            if found is None:
                layout = layout_of(layouts, wire)
                layout_text(copied_layout(layout))
                below, nbytes = span_of(layout)
                start = int.from_bytes(wire[:SHAPE_AT], "little") - below
                found = start, nbytes, None if is_whole(layout) else layout
                self._spans[wire[:TAG_AT]] = found
            start, nbytes, gaps = found
            uses.append(Use(i, start, nbytes, RIGHTS[wire[TAG_AT]], wire, gaps))
        return uses

    # ------------------------------------------------------------ values of other calls
    def _values_in(self, wire: bytes, counts: int) -> list[Use]:
        """Return what a call does with values of other calls."""
        scalars = np.frombuffer(wire, np.int64, offset=(counts & L.LOW_HALF) * TENSOR_BYTES)
        words, kinds = scalars[::2].tolist(), scalars[1::2].tolist()
        slots = [word for word, kind in zip(words, kinds, strict=True) if kind == L.FUTURE]
        found = [(one, self._directory.values.get(one)) for one in slots]
        return [
            Use(-1, 0, self._size(held), L.TENSOR_READ, slot=slot)
            for slot, held in found
            if held is not None
        ]

    def _size(self, value: Held) -> int:
        """Return the bytes of a value; as long as it is not made, those of another one of its task."""
        slot = value.use.slot
        if value.use.nbytes == _UNKNOWN:
            if not self._kernels.has_settled(self._mem, slot):
                return self._sizes.get(value.handle, _UNKNOWN)
            has_failed, kind, word = self._engine.view.outcome(slot)
            is_block = kind == L.VALUE_BLOCK and not has_failed
            value.use.nbytes = outcomes.size_of(data_of(self._mem, word)) if is_block else 0
            if len(self._sizes) > _MOST_TASKS:
                self._sizes.clear()
            self._sizes[value.handle] = value.use.nbytes
        return value.use.nbytes

    # ------------------------------------------------------------ endpoints that have died
    def _lacks_workers(self) -> bool:
        if super()._lacks_workers():
            return True
        self._hand_on()
        return False

    def _replace_dead(self) -> None:
        """Start sessions for lost endpoints; others run the calls that wait for these."""
        super()._replace_dead()
        manager = self._session.manager
        if manager is not None and self._others(manager.dead):
            self._directory.empty_queues()
            self._hand_on()
            return
        words = [link.last_words() for link in self._endpoints.call_links()]
        self.errors.why_stranded = WorkerStartError(f"all endpoints are lost: {'; '.join(words)}")
        self._strand()
        raise self.errors.why_stranded

    def _others(self, gone: Collection[int]) -> list[int]:
        return [one.number for one in self._endpoints.call_links() if one.number not in gone]

    def _hand_on(self) -> None:
        """Give the calls that wait for lost endpoints to others, which need not wait for successors.

        Calls that only one of its sub workers may run wait for that, as long as there may be one.
        """
        manager = self._session.manager
        if manager is None or not (manager.dead or manager.starting):
            return
        soon = {*manager.starting, *manager.known_dead()}
        gone = soon.union(manager.dead)
        others = self._others(gone)
        turns = cycle(others)
        for lost in gone if others else ():
            while self._kernels.hand_on(self._mem, lost, next(turns), int(lost not in soon)):
                pass


class _ErrorsThere(CallErrors):
    """The errors of calls at endpoints."""

    def _raised(
        self, block: memoryview, worker: int, what: str, details: dict[str, Any]
    ) -> BaseException:
        """Return the error; one of this package says at which endpoint and in which call here."""
        error = super()._raised(block, worker, what, details)
        origin = origin_of(error)
        if origin is not error and isinstance(error, (TaskError, ControlError)):
            error.args = (f"{origin.where}: {error}",)
            vars(error).update(details)
        return error

    def of_item(
        self, block: bytes, worker: int, number: int, name: str, item: int, origin: str
    ) -> BaseException:
        """Return the error of one item of many that were one call, of a sub worker of some endpoint."""
        what = f"sub worker {worker} of an endpoint, call {number} ({name}), item {item}"
        details = {"task": number, "callable_name": name}
        error = outcomes.decode_error(memoryview(block), what, **details)
        tell(error, origin)
        return error
