"""The endpoints of a Worker, as its program uses them: callables, memory, tasks, counters.

Rule     CALL-FAR-8, REMOTE-LINK-1, REMOTE-LINK-9, REMOTE-LINK-10, REMOTE-REG-1, REMOTE-REG-2,
         REMOTE-REG-3, REMOTE-REG-4, REMOTE-REG-8, REMOTE-REG-9, REMOTE-ARGS-4, REMOTE-ARGS-5,
         REMOTE-COPY-1, REMOTE-COPY-7, REMOTE-RETRY-3, SPEED-LIST-4
"""

from __future__ import annotations

import itertools
import json
import operator
import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from hashlib import sha256
from typing import Any

import numpy as np

from ..callables.identity import (
    CallableHandle,
    CallableKind,
    build_chip_callable_descriptor,
    build_python_serialized_descriptor,
    compute_callable_hashid,
)
from ..callables.pickling import pack_payload, serialize, why_not_serialised
from ..callables.registry import is_chip_callable
from ..errors import CallableError, TaskError, WorkerLostError, describe_status, tell
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.wire import SHAPE_AT, RemoteWire, bytes_of
from ..orch.words import require_distinct
from ..workers.life import Life
from ..workers.session import RemoteWorkers
from . import callables
from .connection import KeyPair, new_pair
from .directory import Directory, Use, uses_of
from .fleets import Fleet
from .limits import COUNTERS, MAX_INLINE_PAYLOAD_BYTES, SESSION
from .link import LATE_BYTES, WHY_BYTES, Link
from .memory import EndpointMemory, RemoteBufferHandle
from .parent_memory import ADDRESS_BYTES, Homing, mover_of
from .parent_tensors import ParentTensors
from .spec import RemoteWorkerSpec
from .traces import peer_of

MOST_JOINING = 8
"""Endpoints that can join an open Worker."""
_LEAST_BYTES_PER_S = 1e7
"""How slow a network may be before tensors that come home are given up."""


class Endpoints(RemoteWorkers):
    """What a Worker does with its endpoints."""

    are_there = True

    def __init__(self, life: Life, take_functions: bool = False) -> None:
        self._life = life
        self._group: KeyPair | None = None
        """The keys with which endpoints move tensors between them."""
        self._turn = itertools.count()
        self.take_functions = take_functions
        """Whether functions are registered for the sub workers of endpoints unless said otherwise."""
        self.tensors = ParentTensors(life, self)
        """The tensors of this machine that endpoints have copies of."""
        self.memory = EndpointMemory(life, self.link)
        self.dropped_lists: list[CallableHandle] = []
        """Those of graphs that the program has dropped: whenever garbage is collected."""

    # ------------------------------------------------------------ adding them
    def add(self, spec: RemoteWorkerSpec) -> int:
        """Add an endpoint to the next-level pool, and return its id."""
        if self._life.session is not None:
            return self._join(spec)
        link = Link(len(self._life.next_level))
        self._occupy(link, spec)
        self._life.add(link, self._life.next_level)
        return link.number

    def _occupy(self, link: Link, spec: RemoteWorkerSpec) -> None:
        options = self._life.options
        defaults = {
            "pin": options.pin and spec.fleet.is_local,
            "check": options.check and self.take_functions,
        }
        spec = copy(spec)
        spec.worker = {name: True for name, is_on in defaults.items() if is_on} | spec.worker
        if spec.secure and self._group is None:
            self._group = new_pair()
        link.occupy(spec, self._group if spec.secure else None)

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
        if (manager := self._life.live().manager) is not None:
            manager.join(vacant.number)
        return vacant.number

    def remove(self, worker: int) -> None:
        link = self.link(worker)
        if (manager := self._life.live().manager) is not None:
            manager.leave(link.number)
        link.leave()

    def reserve(self) -> None:
        vacant = sum(one.is_vacant for one in self._places())
        for _ in range(MOST_JOINING - vacant):
            self._life.add(Link(len(self._life.next_level)), self._life.next_level)

    def prepare(self, zeros: Any) -> None:
        """Give the links their shared memory, before there are processes; have fleets prepare."""
        fleets: dict[int, list[Fleet]] = defaultdict(list)
        movers = zeros((len(self._life.next_level), ADDRESS_BYTES), np.uint8)
        for link in self._places():
            link.movers = movers
            link.words = zeros((len(COUNTERS),), np.int64)
            link.why = zeros((WHY_BYTES,), np.uint8)
            link.late = zeros((LATE_BYTES,), np.uint8)
            link.losses = zeros((1,), np.int64)
            if not link.is_vacant:
                fleets[id(link.spec.fleet)].append(link.spec.fleet)
        for same in fleets.values():
            same[0].open(len(same))

    def close(self) -> None:
        for fleet in {id(link.spec.fleet): link.spec.fleet for link in self.links()}.values():
            fleet.close()

    def _places(self) -> list[Link]:
        return [one for one in self._life.next_level if isinstance(one, Link)]

    def links(self) -> list[Link]:
        return [one for one in self._places() if not one.is_vacant]

    def link(self, worker: int) -> Link:
        """Return the link of an endpoint; refuse a worker that is none."""
        pool = self._life.next_level
        number = operator.index(worker) if hasattr(worker, "__index__") else -1
        link = pool[number] if 0 <= number < len(pool) else None
        if isinstance(link, Link) and not link.is_vacant:
            return link
        known = [one.number for one in self.links()]
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
            numbers = tuple(link.number for link in self.links())
        elif isinstance(workers, str) or not isinstance(workers, Iterable):
            raise TypeError(f"workers={workers!r} must be a list of endpoints, such as [0, 1]")
        else:
            numbers = tuple(dict.fromkeys(self.link(one).number for one in workers))
        if not numbers:
            raise ValueError("workers=[…] names no endpoint: add one with add_remote_worker")
        is_chip = is_chip_callable(target)
        if isinstance(target, callables.RemoteCallable):
            kind, name = CallableKind.PYTHON_IMPORT, target.target
            descriptor = payload = target.descriptor
        elif is_chip:
            kind, name = CallableKind.CHIP_CALLABLE, target.config_name or target.func_name
            options = self.link(numbers[0]).spec.worker
            descriptor = build_chip_callable_descriptor(
                target=target, platform=options["platform"], runtime=options["runtime"] or ""
            )
            blob, inline = target.to_bytes(), callables.ChipCallableBlobLocation.INLINE_BLOB
            chip = callables.RemoteChipCallablePayload(
                descriptor, inline, len(blob), sha256(blob).digest(), blob
            )
            payload = callables.encode_remote_chip_callable_payload(chip)
        else:
            kind = CallableKind.PYTHON_SERIALIZED
            name = getattr(target, "__qualname__", type(target).__qualname__)
            raw = serialize(target, to_endpoints=True)
            if why := why_not_serialised(raw):
                raise TypeError(f"{name} cannot be sent to an endpoint ({why})")
            descriptor, payload = build_python_serialized_descriptor(raw), pack_payload(raw)
        hashid = compute_callable_hashid(descriptor)
        command = callables.registering(kind, descriptor, payload, inner=inner or is_chip)
        one = callables.Registration(numbers, command)
        described = one.named(hashid, kind, name)
        self.require_same(described[0], one)
        return described

    def require_same(
        self, handle: CallableHandle, one: callables.Registration | None = None
    ) -> None:
        """Refuse a callable that is registered in another way already.

        `one` is how it shall be; None: for workers of this machine.
        """
        found = self._life.registry.installed(handle.digest)
        is_here = not isinstance(found, callables.Registration)
        if found is None or found == one or (is_here and one is None):
            return
        whose, remedy = "workers of this machine", "give endpoints a function of their own"
        if not is_here:
            whose = f"the endpoints {list(found.workers)}"
            remedy = "give the workers of this machine a function"
        raise CallableError(
            "CALLABLE_KIND_UNSUPPORTED",
            f"{handle.name} is registered already, for {whose}: unregister it first"
            + (" to change that" if one and not is_here else f", or {remedy} that calls it"),
        )

    def registration(self, handle: CallableHandle) -> callables.Registration:
        found: callables.Registration = self._life.registry.target(handle)
        return found

    # ------------------------------------------------------------ tasks
    def present(self, handle: CallableHandle) -> list[int]:
        """Return the endpoints of a callable that have not left."""
        workers = self.registration(handle).workers
        return [link.number for link in self.links() if link.number in workers]

    def choose(
        self,
        handle: CallableHandle,
        members: Sequence[TaskArgs],
        named: Sequence[int],
        among: Collection[int] | None = None,
    ) -> list[int]:
        """Return the endpoint of each member of a task: the one that it has named, unless that is −1.

        Others are those of the callable, or of these `among` some. References get the addresses that the
        links know.
        """
        taken = {one for one in named if one != -1}
        chosen = []
        for args, one in zip(members, named, strict=True):
            if one == -1:
                present = [it for it in self.present(handle) if among is None or it in among]
                if not present:
                    workers = list(self.registration(handle).workers)
                    raise ValueError(
                        f"{handle!r} is registered for the endpoints {workers}, which have left: "
                        "register it for others with workers=[…]"
                    )
                uses = uses_of(args._tensors)
                one = self.likely_first(present, uses, self.tensors.directory, taken)
            chosen.append(one)
            taken.add(one)
        require_distinct(chosen, len(members))
        for args, one in zip(members, chosen, strict=True):
            self._settle(args._tensors, self.link(one))
        return chosen

    def likely_first(
        self,
        numbers: Sequence[int],
        uses: Sequence[Use],
        directory: Directory,
        taken: Collection[int] = (),
    ) -> int:
        """Return which of some endpoints is likely to begin a task first.

        Those alike take turns; those that are taken come last.
        """
        start = next(self._turn)
        manager = self._life.live().manager
        dead, starting = ((), ()) if manager is None else (manager.dead, manager.starting)
        turns = [numbers[(start + i) % len(numbers)] for i in range(len(numbers))]

        def rank(one: int) -> tuple[bool, bool, bool, float]:
            return one in taken, one in dead, one in starting, directory.start_s(one, uses)

        return min(turns, key=rank)

    def _settle(self, wires: list[bytes], link: Link) -> None:
        """Put the addresses that a link knows into references to memory that its endpoint has."""
        inline = sum(
            bytes_of(one) for one in wires if isinstance(one, RemoteWire) and one.is_inline
        )
        if inline > MAX_INLINE_PAYLOAD_BYTES:
            raise ValueError(
                f"{inline} bytes do not travel with a task, at most {MAX_INLINE_PAYLOAD_BYTES} do: use "
                "remote_malloc and remote_copy_to"
            )
        for i, wire in enumerate(wires):
            if isinstance(wire, RemoteWire):
                wires[i] = wire.at(self._address_of(i, wire, link))

    def _address_of(self, i: int, wire: RemoteWire, link: Link) -> int:
        rights = wire.rights // L.TENSOR_READ
        if wire.is_inline:
            if rights != 1:
                raise ValueError(
                    f"tensor {i} travels with the task, which can only read it: tag it INPUT, or use "
                    "remote_malloc"
                )
            return self.tensors.keep(wire.place)
        handle: RemoteBufferHandle = wire.place
        self.memory.require_current(handle, link)
        if rights & ~handle.access:
            raise ValueError(
                f"tensor {i}: its tag needs {'write' if rights & 2 else 'read'} access, and {handle!r} "
                "was imported without"
            )
        return int.from_bytes(wire[:SHAPE_AT], "little")

    def bring(self, number: int, homings: Sequence[Homing]) -> bytes:
        """Have an endpoint send what it has made; return what became of each."""
        timeout_s = self._life.options.py_control_timeout_s
        timeout_s += sum(one.nbytes for one in homings) / _LEAST_BYTES_PER_S
        raw = pickle.dumps(homings)
        return self._life.running_manager().exchange(number, L.LINK_BRING_HOME, raw, timeout_s)

    # ------------------------------------------------------------ calls
    def seats(self) -> list[tuple[int, int]]:
        """Return the sub workers of all endpoints: the endpoint and the number there of each."""
        return [(link.number, i) for link in self.links() for i in range(link.spec.sub_workers)]

    @property
    def sub_workers(self) -> int:  # type: ignore[override]
        return len(self.seats())

    def call_links(self) -> list[Link]:
        return [link for link in self.links() if link.spec.sub_workers]

    def why_no_calls(self, level: int) -> str:
        return (
            "no endpoint of this Worker has sub workers for calls: give "
            "RemoteWorkerSpec(num_sub_workers=…)"
        )

    def forget_lost(self, address: int, nbytes: int) -> None:
        self.tensors.forget_lost(address, nbytes)

    # ------------------------------------------------------------ losses
    def losses(self) -> int:
        """Return how many tasks could not read what was at another endpoint; it only grows."""
        return sum(int(link.losses[0]) for link in self.links())

    def lost(self, wait_for_one: bool = False) -> list[int]:
        """Return the workers that are lost; if there is none, wait until silence would tell of one."""
        manager = self._life.running_manager()
        limit_s = max((link.spec.silence_s for link in self.links()), default=0.0)
        return manager.dead_after(1 + 2 * limit_s if wait_for_one else 0.0)

    def loss(self, worker: int, failure: TaskError) -> WorkerLostError:
        """Return the error of a run in which a task could not read what a lost endpoint had."""
        life = self._life
        name, status = life.live().worker_name(worker), life.running_manager().dead[worker]
        ended = self.link(worker).last_words() or describe_status(status)
        error = WorkerLostError(
            f"level {life.options.level} {name} is lost: {ended}; for want of what it had, {failure}",
            status=status,
            task=failure.task,
            callable_name=failure.callable_name,
            worker=worker,
            remote_traceback=failure.remote_traceback,
        )
        tell(error, failure.story)
        return error

    def replace_lost(self) -> None:
        """Start new sessions of lost endpoints, in a run; those that cannot be started stay lost."""
        self._life.start_workers(self._life.live())
        self.tensors.directory.empty_queues()

    # ------------------------------------------------------------ lists of tasks
    def takes_list(self, number: int, nbytes: int) -> bool:
        """Say whether an endpoint is there, and the program's buffers leave room for so many bytes."""
        manager = self._life.live().manager
        if manager is None or number in manager.dead:
            return False
        link = self.link(number)
        arena = link.spec.worker.get("arena_size")
        held = self.memory.held[int(link.words[SESSION])]
        return arena is None or bool(nbytes <= arena - held)

    def has_all(self, numbers: Iterable[int]) -> bool:
        """Say whether all of them are endpoints, which may be lost."""
        return {link.number for link in self.links()}.issuperset(numbers)

    # ------------------------------------------------------------ looking in
    def transfers(self) -> list[dict[str, Any]]:
        told = []
        manager = self._life.running_manager()
        if self._life.stream is not None:
            self._life.stream.leases.look()
        for link in self.links():
            if link.number not in manager.dead:
                raw = manager.exchange(link.number, L.LINK_COUNTERS, b"")
                told.append({"endpoint": link.number, **json.loads(raw)})
        return told

    def movers(self) -> dict[str, int]:
        told = {}
        for link in self.links():
            if link.movers is not None and (address := mover_of(link.movers, link.number + 1)):
                told[str(peer_of(address))] = link.number
        return told

    def counters(self) -> list[dict[str, Any]]:
        session = self._life.session
        manager = None if session is None else session.manager
        gone = () if manager is None else manager.dead.keys() | manager.starting.keys()
        told = []
        for link in self.links():
            words = [0] * len(COUNTERS) if link.words is None else link.words.tolist()
            counts: dict[str, Any] = dict(zip(COUNTERS, words, strict=True))
            alive = manager is not None and link.number not in gone and counts["pid"] != 0
            counts["pid"] = counts["pid"] or None
            ended = "" if link.words is None or alive else link.last_words()
            where = link.spec.fleet.where(link.number)
            about = {"endpoint": link.number, "at": where, "alive": alive}
            told.append({**about, "ended": ended, **counts})
        return told
