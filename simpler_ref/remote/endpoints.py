"""The endpoints of a Worker, as its program uses them: callables, memory, tasks, counters.

Rule     CALL-FAR-8, REMOTE-LINK-1, REMOTE-LINK-9, REMOTE-LINK-10, REMOTE-REG-1, REMOTE-REG-2,
         REMOTE-REG-3, REMOTE-REG-4, REMOTE-REG-8, REMOTE-REG-9, REMOTE-ARGS-4, REMOTE-ARGS-5,
         REMOTE-COPY-1, REMOTE-COPY-7, REMOTE-RETRY-3, SPEED-LIST-4
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import pickle
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..callables.identity import (
    CallableHandle,
    CallableKind,
    TargetNamespace,
    build_chip_callable_descriptor,
    build_python_serialized_descriptor,
    compute_callable_hashid,
)
from ..callables.payloads import pack_payload, serialize_for_endpoints, why_not_serialised
from ..callables.registry import is_chip_callable
from ..errors import CallableError, TaskError, WorkerLostError, describe_status, tell
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.tensor import RECORDED_FIRST, RECORDED_LAST
from ..model.visibility import require_visible
from ..model.wire import CHILD_MEMORY_AT, SHAPE_AT, TAG_AT, DescribedWire, RemoteWire, bytes_of
from ..workers.life import Life
from ..workers.session import RemoteWorkers
from . import callables
from .directory import Queues, uses_of
from .dispatcher import PAYLOAD_VERSION
from .keys import KeyPair, new_pair
from .layouts import layout_text
from .limits import COUNTERS, MAX_INLINE_PAYLOAD_BYTES, SESSION
from .link import LATE_BYTES, WHY_BYTES, Link
from .memory import EndpointMemory
from .parent_memory import ADDRESS_BYTES, Homing, mover_of
from .parent_tensors import ParentTensors
from .records import peer_of
from .recovery import Gone, Log
from .references import RemoteBufferHandle
from .remote_stream import RemoteStream
from .spec import RemoteWorkerSpec

MOST_JOINING = 8
"""Endpoints that can join an open Worker."""
_LEAST_BYTES_PER_S = 1e7
"""How slow a network may be before tensors that come home are given up."""


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
    address = int.from_bytes(wire[:SHAPE_AT], "little")
    if not address and wire[TAG_AT] != L.OUTPUT and bytes_of(wire):
        raise ValueError(
            f"tensor {i} has no memory yet: tag it OUTPUT, so that the runtime provides it, or give it "
            "an address"
        )
    if address and not RECORDED_FIRST <= address < RECORDED_LAST:
        require_visible(address, bytes_of(wire))


class Endpoints(RemoteWorkers):
    """What a Worker does with its endpoints."""

    have_tensors = True
    are_there = True

    def __init__(self, life: Life, take_functions: bool = False) -> None:
        self._life = life
        self._group: KeyPair | None = None
        self._turn = itertools.count()
        self._kept: list[Any] = []
        """Bytes that travel with tasks of the current run."""
        self.take_functions = take_functions
        """Whether functions are registered for the sub workers of endpoints unless said otherwise."""
        self.tensors = ParentTensors(life, self._bring)
        """The tensors of this machine that endpoints have copies of."""
        if life.options.retries:
            self.tensors.log = Log(life.options.retries)
        self.queues = Queues(self._link, self.tensors.directory)
        self.memory = EndpointMemory(life, self._link)
        self.dropped_lists: list[CallableHandle] = []
        """Those of graphs that the program has dropped: whenever garbage is collected."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._links())

    # ------------------------------------------------------------ adding them
    def add(self, spec: RemoteWorkerSpec) -> int:
        """Add an endpoint to the next-level pool, and return its id."""
        if self._life.session is not None:
            return self._join(spec)
        link = Link(len(self._life.next_level))
        self._occupy(link, spec)
        self._life.add_endpoint(link)
        return link.number

    def _occupy(self, link: Link, spec: RemoteWorkerSpec) -> None:
        options = self._life.options
        if options.pin:
            spec = spec.pinned()
        if options.check and self.take_functions:
            spec = spec.checked()
        link.occupy(spec, self._keys(spec))

    def _keys(self, spec: RemoteWorkerSpec) -> KeyPair | None:
        """Return the keys with which endpoints move tensors between them."""
        if not spec.secure:
            return None
        if self._group is None:
            self._group = new_pair()
        return self._group

    def _join(self, spec: RemoteWorkerSpec) -> int:
        """Take up an endpoint between two runs: the next one starts it."""
        vacant = next((one for one in self._places() if one.is_vacant and not one.has_left), None)
        if vacant is None:
            raise RuntimeError(
                f"no place is left: {MOST_JOINING} endpoints can join an open Worker; add those that are "
                "known before init"
            )
        spec.fleet.open(1)
        self._occupy(vacant, spec)
        manager = self._life.live().manager
        if manager is not None:
            manager.join(vacant.number)
        return vacant.number

    def remove(self, worker: int) -> None:
        """End an endpoint between two runs; see `Worker.remove_remote_worker`."""
        link = self._link(worker)
        manager = self._life.live().manager
        if manager is not None:
            manager.leave(link.number)
        link.leave()

    def reserve(self) -> None:
        """Keep places for endpoints that join later; before the engine is made."""
        vacant = sum(one.is_vacant for one in self._places())
        for _ in range(MOST_JOINING - vacant):
            self._life.add_endpoint(Link(len(self._life.next_level)))

    def prepare(self, zeros: Any) -> None:
        """Give the links their shared memory, before there are processes; have fleets prepare."""
        fleets: dict[int, tuple[Any, int]] = {}
        movers = zeros((len(self._life.next_level), ADDRESS_BYTES), np.uint8)
        for link in self._places():
            link.movers = movers
            link.words = zeros((len(COUNTERS),), np.int64)
            link.why = zeros((WHY_BYTES,), np.uint8)
            link.late = zeros((LATE_BYTES,), np.uint8)
            link.losses = zeros((1,), np.int64)
            if link.is_vacant:
                continue
            fleet = link.spec.fleet
            fleets[id(fleet)] = fleet, fleets.get(id(fleet), (fleet, 0))[1] + 1
        for fleet, count in fleets.values():
            fleet.open(count)

    def close(self) -> None:
        """Let fleets give back what they hold."""
        for fleet in {id(link.spec.fleet): link.spec.fleet for link in self._links()}.values():
            fleet.close()

    def _places(self) -> list[Link]:
        return [one for one in self._life.next_level if isinstance(one, Link)]

    def _links(self) -> list[Link]:
        return [one for one in self._places() if not one.is_vacant]

    def require(self, worker: int) -> None:
        """Refuse a worker that is no endpoint."""
        self._link(worker)

    def _link(self, worker: int) -> Link:
        pool = self._life.next_level
        number = operator.index(worker) if hasattr(worker, "__index__") else -1
        link = pool[number] if 0 <= number < len(pool) else None
        if isinstance(link, Link) and not link.is_vacant:
            return link
        known = [one.number for one in self._links()]
        raise ValueError(
            f"worker={worker!r} is no endpoint; endpoints of this Worker are {known or 'none'}: add "
            f"them with add_remote_worker"
        )

    # ------------------------------------------------------------ callables
    def describe(
        self, target: Any, workers: Iterable[int] | None, inner: bool
    ) -> tuple[CallableHandle, callables.Registration, bytes]:
        """Return a fresh handle for a callable of endpoints, its registration, and that as bytes."""
        if workers is None:
            numbers = tuple(link.number for link in self._links())
        elif isinstance(workers, str) or not isinstance(workers, Iterable):
            raise TypeError(f"workers={workers!r} must be a list of endpoints, such as [0, 1]")
        else:
            numbers = tuple(dict.fromkeys(self._link(one).number for one in workers))
        if not numbers:
            raise ValueError("workers=[…] names no endpoint: add one with add_remote_worker")
        dispatcher = callables.RemoteRegistryTarget.REMOTE_TASK_DISPATCHER
        registry, blob = (
            callables.RemoteRegistryTarget.INNER_L3_WORKER if inner else dispatcher,
            b"",
        )
        if isinstance(target, callables.RemoteCallable):
            kind, descriptor, payload = (
                CallableKind.PYTHON_IMPORT,
                target.descriptor,
                target.descriptor,
            )
            name = target.target
        elif is_chip_callable(target):
            registry = callables.RemoteRegistryTarget.INNER_L3_WORKER
            kind, name = CallableKind.CHIP_CALLABLE, target.config_name or target.func_name
            descriptor, payload, blob = self._chip_payload(target, numbers)
        else:
            kind = CallableKind.PYTHON_SERIALIZED
            name = getattr(target, "__qualname__", type(target).__qualname__)
            raw = serialize_for_endpoints(target)
            if why := why_not_serialised(raw):
                raise TypeError(f"{name} cannot be sent to an endpoint ({why})")
            descriptor, payload = build_python_serialized_descriptor(raw), pack_payload(raw)
        hashid = compute_callable_hashid(descriptor)
        handle = CallableHandle(hashid, kind, TargetNamespace.REMOTE_TASK_DISPATCHER, name)
        command = callables.encode_register_callable_command(
            registry, kind, handle.digest, PAYLOAD_VERSION, payload
        )
        one = callables.Registration(numbers, command, blob)
        self._require_same(handle, one)
        return handle, one, pickle.dumps(one)

    def _chip_payload(self, target: Any, numbers: Sequence[int]) -> tuple[bytes, bytes, bytes]:
        """Return a chip callable's descriptor, its payload, and its blob if that is to be staged."""
        options = self._link(numbers[0]).spec.worker
        descriptor = build_chip_callable_descriptor(
            target=target, platform=options["platform"], runtime=options["runtime"] or ""
        )
        blob = target.to_bytes()
        digest = hashlib.sha256(blob).digest()
        where, blobs = callables.ChipCallableBlobLocation.INLINE_BLOB, (blob, b"")
        if len(blob) > callables.MOST_INLINE_BLOB:
            where, blobs = callables.ChipCallableBlobLocation.STAGED_BLOB, (b"", digest)
        payload = callables.RemoteChipCallablePayload(descriptor, where, len(blob), digest, *blobs)
        staged = blob if len(blob) > callables.MOST_INLINE_BLOB else b""
        return descriptor, callables.encode_remote_chip_callable_payload(payload), staged

    def _require_same(self, handle: CallableHandle, one: callables.Registration) -> None:
        """Refuse a callable that is registered in another way already."""
        found = self._life.registry.installed(handle.digest)
        if found is not None and not isinstance(found, callables.Registration):
            raise CallableError(
                "CALLABLE_KIND_UNSUPPORTED",
                f"{handle.name} is registered already, for workers of this machine: unregister it first, "
                "or give endpoints a function of their own that calls it",
            )
        if found is not None and found != one:
            raise CallableError(
                "CALLABLE_KIND_UNSUPPORTED",
                f"{handle.name} is registered already, for the endpoints {list(found.workers)}: "
                "unregister it first to change that",
            )

    def require_not_there(self, handle: CallableHandle) -> None:
        """Refuse a callable for workers of this machine that is registered for endpoints already."""
        found = self._life.registry.installed(handle.digest)
        if isinstance(found, callables.Registration):
            raise CallableError(
                "CALLABLE_KIND_UNSUPPORTED",
                f"{handle.name} is registered already, for the endpoints {list(found.workers)}: "
                "unregister it first, or give the workers of this machine a function that calls it",
            )

    # ------------------------------------------------------------ tasks
    def place(
        self,
        handle: CallableHandle,
        worker: int,
        args: TaskArgs | None,
        taken: Collection[int] = (),
        *,
        for_sub: bool | None = False,
    ) -> int:
        """Return the endpoint for a task, once its arguments are found to be what that can reach.

        Tensors get the addresses that the endpoint's link knows. `taken`: endpoints of other members
        of the group. `for_sub`: see `named`.
        """
        chosen = self.named(handle, worker, args, for_sub=for_sub)
        wires = args._tensors if args is not None else []
        if chosen == -1:
            chosen = self._choose(handle, wires, taken)
        link = self._link(chosen)
        inline = 0
        for i, wire in enumerate(wires):
            if not isinstance(wire, RemoteWire):
                continue
            inline += bytes_of(wire) if wire.is_inline else 0
            wires[i] = self._settled(i, wire, link)
        if inline > MAX_INLINE_PAYLOAD_BYTES:
            raise ValueError(
                f"{inline} bytes do not travel with a task, at most {MAX_INLINE_PAYLOAD_BYTES} do: use "
                "remote_malloc and remote_copy_to"
            )
        return chosen

    def named(
        self,
        handle: CallableHandle,
        worker: int,
        args: TaskArgs | None,
        *,
        for_sub: bool | None = False,
    ) -> int:
        """Return the endpoint that a task names, or whose memory it refers to; −1 if any will do.

        `for_sub`: a sub worker of the endpoint runs the task; None: if the callable is for those.

        Raises
        ------
        TypeError, ValueError
            No endpoint could be given the task.
        """
        one: callables.Registration = self._life.registry.target(handle)
        if one.is_inner != for_sub and for_sub is not None:
            raise TypeError(
                f"{handle!r} is for the workers of endpoints' own Workers: give it to submit_sub, "
                "or find it there with get_inner_handle"
                if one.is_inner
                else f"{handle!r} is an orchestration function of endpoints: give it to submit_next_level"
            )
        wires = args._tensors if args is not None else []
        for i, wire in enumerate(wires):
            if not isinstance(wire, RemoteWire):
                require_copyable(i, wire)
        if worker != -1 and self._link(worker).number not in one.workers:
            raise ValueError(
                f"{handle!r} is registered for the endpoints {list(one.workers)}, not for {worker}"
            )
        owners: set[int] = {
            wire.place.worker
            for wire in wires
            if isinstance(wire, RemoteWire) and not wire.is_inline
        }
        if worker != -1:
            owners.add(operator.index(worker))
        if len(owners) > 1:
            raise ValueError(
                f"the task needs memory of the endpoints {sorted(owners)}, and a task has one: import "
                "the buffers there with remote_export and remote_import"
            )
        if owners:
            (chosen,) = owners
            if chosen not in one.workers:
                raise ValueError(
                    f"{handle!r} is registered for the endpoints {list(one.workers)}, and the memory is "
                    f"endpoint {chosen}'s"
                )
            return chosen
        return -1

    def _choose(
        self, handle: CallableHandle, wires: Sequence[bytes], taken: Collection[int]
    ) -> int:
        """Return an endpoint for a task that names none."""
        one: callables.Registration = self._life.registry.target(handle)
        present = [link.number for link in self._links() if link.number in one.workers]
        if not present:
            raise ValueError(
                f"{handle!r} is registered for the endpoints {list(one.workers)}, which have left: "
                "register it for others with workers=[…]"
            )
        free = [number for number in present if number not in taken] or present
        return self._first_of(free, uses_of(wires), self.queues)

    def _first_of(self, free: Sequence[int], uses: Any, queues: Queues) -> int:
        """Return which of some endpoints is likely to begin a task first; those alike take turns."""
        start = next(self._turn)
        manager = self._life.live().manager
        dead, starting = ((), ()) if manager is None else (manager.dead, manager.starting)
        turns = [free[(start + i) % len(free)] for i in range(len(free))]
        return min(turns, key=lambda one: (one in dead, one in starting, queues.start_s(one, uses)))

    # ------------------------------------------------------------ calls
    def links(self) -> list[Link]:
        """Return the links whose endpoints take calls: those with sub workers."""
        return [link for link in self._links() if link.spec.worker["num_sub_workers"]]

    def make_stream(self, session: Any, register: Any, add_callable: Any) -> RemoteStream:
        """Return the stream of the calls that they run."""
        return RemoteStream(self._life, session, register, add_callable)

    def why_no_calls(self, level: int) -> str:
        """Return why nobody runs calls, and the remedy."""
        return (
            "no endpoint of this Worker has sub workers for calls: give "
            "RemoteWorkerSpec(num_sub_workers=…)"
        )

    def forget_lost(self, address: int, nbytes: int) -> None:
        """Forget what was lost in memory that is given out anew, or is right as it is."""
        self.tensors.forget_lost(address, nbytes)

    @property
    def sub_workers(self) -> int:  # type: ignore[override]
        """How many sub workers the endpoints have."""
        return sum(link.spec.worker["num_sub_workers"] for link in self._links())

    def seats(self) -> list[tuple[int, int]]:
        """Return the sub workers of all endpoints: the endpoint and the number there of each."""
        return [
            (link.number, one)
            for link in self.links()
            for one in range(link.spec.worker["num_sub_workers"])
        ]

    def likely_first(self, uses: Any, queues: Queues) -> int:
        """Return the endpoint that is likely to begin a call first."""
        present = [link.number for link in self.links()]
        if not present:
            raise RuntimeError(
                "no endpoint with sub workers is left for calls: add one with add_remote_worker"
            )
        return self._first_of(present, uses, queues)

    def _settled(self, i: int, wire: RemoteWire, link: Link) -> RemoteWire:
        """Return a tensor at the address that the link knows."""
        rights = wire.rights // L.TENSOR_READ
        if wire.is_inline:
            if rights != 1:
                raise ValueError(
                    f"tensor {i} travels with the task, which can only read it: tag it INPUT, or use "
                    "remote_malloc"
                )
            raw: bytes = wire.place
            array = self._life.live().arena.empty((max(1, len(raw)),), np.uint8)
            array[: len(raw)] = np.frombuffer(raw, np.uint8)
            self._kept.append(array)
            return wire.at(array.ctypes.data)
        handle: RemoteBufferHandle = wire.place
        self.memory.require_current(handle, link)
        if rights & ~handle.access:
            raise ValueError(
                f"tensor {i}: its tag needs {'write' if rights & 2 else 'read'} access, and {handle!r} "
                "was imported without"
            )
        return wire.at(int.from_bytes(wire[:8], "little"))

    def begin_run(self) -> None:
        """Forget what travelled with the tasks of the run before."""
        self._kept.clear()
        self.tensors.begin_run()
        self.queues.begin_run(self._links())

    def _bring(self, number: int, homings: Sequence[Homing]) -> bytes:
        """Have an endpoint send what it has made; return what became of each."""
        timeout_s = self._life.options.py_control_timeout_s
        timeout_s += sum(one.nbytes for one in homings) / _LEAST_BYTES_PER_S
        raw = pickle.dumps(homings)
        exchange = self._life.running_manager().exchange
        return exchange(self._link(number).number, L.LINK_BRING_HOME, raw, timeout_s)

    # ------------------------------------------------------------ losses
    def losses(self) -> int:
        """Return how many tasks could not read what was at another endpoint; it only grows."""
        return sum(int(link.losses[0]) for link in self._links())

    def lost(self, wait_for_one: bool = False) -> list[int]:
        """Return the workers that are lost; if there is none, wait until silence would tell of one."""
        manager = self._life.running_manager()
        limit_s = max((link.spec.silence_s for link in self._links()), default=0.0)
        return manager.dead_after(1 + 2 * limit_s if wait_for_one else 0.0)

    def loss(self, worker: int, failure: TaskError) -> WorkerLostError:
        """Return the error of a run in which a task could not read what a lost endpoint had."""
        life = self._life
        name = life.live().worker_name(worker)
        ended = self._link(worker).last_words() or describe_status(
            life.running_manager().dead[worker]
        )
        error = WorkerLostError(
            f"level {life.options.level} {name} is lost: {ended}; for want of what it had, {failure}",
            status=life.running_manager().dead[worker],
            task=failure.task,
            callable_name=failure.callable_name,
            worker=worker,
            remote_traceback=failure.remote_traceback,
        )
        tell(error, failure.story)
        return error

    def require_endpoints(self, workers: Collection[int]) -> None:
        """Refuse workers of this machine, or none."""
        if not workers:
            raise Gone("no endpoint is")
        known = {link.number for link in self._links()}
        for worker in workers:
            if worker not in known:
                raise Gone(f"worker {worker} of this machine is lost, too")

    def replace_lost(self) -> None:
        """Start new sessions of lost endpoints, in a run; those that cannot be started stay lost."""
        self._life.start_workers(self._life.live())
        self.queues.begin_run(self._links())

    def substitute(
        self, handle: CallableHandle, worker: int, uses: Any, taken: Collection[int]
    ) -> int:
        """Return an endpoint that runs a task in place of one; the same if it is there.

        Those that are taken come last.
        """
        manager = self._life.running_manager()
        one: callables.Registration = self._life.registry.target(handle)
        present = [link.number for link in self._links() if link.number in one.workers]
        alive = [number for number in present if number not in manager.dead]
        if worker in alive or not alive:
            return worker
        free = [number for number in alive if number not in taken]
        return self._first_of(free or alive, uses, self.queues)

    def keep(self, nbytes: int) -> int:
        """Return the address of memory that stays until the next run."""
        array = self._life.live().arena.empty((nbytes,), np.uint8)
        self._kept.append(array)
        address = int(array.ctypes.data)
        self.tensors.own.append((address, nbytes))
        return address

    # ------------------------------------------------------------ lists of tasks
    def takes_list(self, number: int, nbytes: int) -> bool:
        """Say whether an endpoint is there, and the program's buffers leave room for so many bytes."""
        manager = self._life.live().manager
        if manager is None or number in manager.dead:
            return False
        link = self._link(number)
        arena = link.spec.worker.get("arena_size")
        held = self.memory.held_by(int(link.words[SESSION]))
        return arena is None or bool(nbytes <= arena - held)

    def taking_lists(self, handle: CallableHandle) -> list[int]:
        """Return the endpoints that run a callable's tasks in lists; none for chips."""
        one: callables.Registration = self._life.registry.target(handle)
        if not one.is_inner or handle.kind == CallableKind.CHIP_CALLABLE:
            return []
        return [
            link.number
            for link in self._links()
            if link.number in one.workers and self.takes_list(link.number, 0)
        ]

    def has_all(self, numbers: Iterable[int]) -> bool:
        """Say whether all of them are endpoints, which may be lost."""
        return {link.number for link in self._links()}.issuperset(numbers)

    def sub_workers_of(self, number: int) -> int:
        """Return how many sub workers an endpoint has."""
        count: int = self._link(number).spec.worker["num_sub_workers"]
        return count

    def take_dropped_lists(self) -> list[CallableHandle]:
        """Return the lists of graphs that the program has dropped; each is returned once."""
        dropped: list[CallableHandle] = []
        while self.dropped_lists:
            dropped.append(self.dropped_lists.pop())
        return dropped

    # ------------------------------------------------------------ looking in
    def transfers(self) -> list[dict[str, Any]]:
        """Return what the session of each endpoint has moved, and holds; see `Worker.transfers`."""
        told = []
        manager = self._life.running_manager()
        if self._life.stream is not None:
            self._life.stream.release_unused()
        for link in self._links():
            if link.number not in manager.dead:
                raw = manager.exchange(link.number, L.LINK_COUNTERS, b"")
                told.append({"endpoint": link.number, **json.loads(raw)})
        return told

    def movers(self) -> dict[str, int]:
        """Return which endpoint is meant by what traces name a mover by."""
        told = {}
        for link in self._links():
            movers = getattr(link, "movers", None)
            if movers is not None and (address := mover_of(movers, link.number + 1)):
                told[str(peer_of(address))] = link.number
        return told

    def counters(self) -> list[dict[str, Any]]:
        """Return what each link has counted; see `Worker.endpoints`."""
        session = self._life.session
        manager = None if session is None else session.manager
        gone = () if manager is None else manager.dead.keys() | manager.starting.keys()
        told = []
        for link in self._links():
            words = getattr(link, "words", None)
            counts: dict[str, Any] = (
                dict.fromkeys(COUNTERS, 0)
                if words is None
                else dict(zip(COUNTERS, words.tolist(), strict=True))
            )
            alive = manager is not None and link.number not in gone and counts["pid"] != 0
            counts["pid"] = counts["pid"] or None
            ended = "" if words is None or alive else link.last_words()
            where = link.spec.fleet.where(link.number)
            about = {"endpoint": link.number, "at": where, "alive": alive}
            told.append({**about, "ended": ended, **counts})
        return told
