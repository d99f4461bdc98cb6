"""The endpoints of a Worker, as its program uses them: callables, memory, tasks, counters."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import operator
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..callables.handles import CallableHandle
from ..callables.identity import (
    CallableKind,
    TargetNamespace,
    build_chip_callable_descriptor,
    build_python_serialized_descriptor,
    compute_callable_hashid,
)
from ..callables.payloads import BY_REGISTRATION, exchanged, pack_payload, serialize
from ..callables.registry import is_chip_callable, require_payload
from ..errors import CallableError
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.tensor import REMOTE_FIRST, REMOTE_LAST
from ..model.visibility import require_visible
from ..model.wire import CHILD_MEMORY_AT, SHAPE_AT, TAG_AT, DescribedWire, RemoteWire, bytes_of
from ..workers.life import Life
from ..workers.options import whole
from .buffers import (
    ALLOC,
    IDENTITY,
    AllocRequest,
    BufferIdentity,
    ExportBufferRequest,
    ImportBufferRequest,
    ReleaseImportRequest,
    copy_parts,
    decode_export_buffer_result,
    decode_import_buffer_result,
    encode_export_buffer_request,
    encode_import_buffer_request,
    encode_release_import_request,
)
from .callable_target import RemoteCallable
from .callables import (
    ChipCallableBlobLocation,
    RemoteChipCallablePayload,
    RemoteRegistryTarget,
    encode_register_callable_command,
    encode_remote_chip_callable_payload,
)
from .directory import uses_of
from .dispatcher import PAYLOAD_VERSION
from .frames import ControlName
from .home import ADDRESS_BYTES, Homing, pack_homings
from .keys import KeyPair, new_pair
from .limits import MAX_INLINE_ARENA_BYTES
from .link import COUNTERS, LATE_BYTES, WHY_BYTES, Link
from .parent_tensors import ParentTensors
from .queues import Queues
from .references import RemoteBufferExport, RemoteBufferHandle, access_of, require_live
from .requests import MOST_INLINE_BLOB, Registration, Request
from .spec import RemoteWorkerSpec

MOST_BYTES = 1 << 40
MOST_JOINING = 8
"""Endpoints that can join an open Worker."""
_PAGE = 4096
_LEAST_CHUNK, _MOST_CHUNK = 1 << 16, 1 << 20
_QUICK_S, _SLOW_S = 0.02, 0.2
_LEAST_BYTES_PER_S = 1e7
"""How slow a network may be before tensors that come home are given up."""


def require_copyable(i: int, wire: bytes, copies: bool) -> None:
    """Refuse a tensor of which an endpoint can have no copy; in a recording it has none.

    Rule     REMOTE-ARGS-4; REMOTE-COPY-1
    """
    if not copies:
        raise ValueError(
            f"tensor {i} is in the memory of this machine, of which endpoints have no copies in a "
            "recording: submit the task in a run, or give a RemoteTensorRef"
        )
    if isinstance(wire, DescribedWire):
        raise TypeError(
            f"tensor {i} has strides or an element type that messages do not have: give a contiguous "
            "array of a DataType, or its bytes as UINT8"
        )
    if wire[CHILD_MEMORY_AT] & 1:
        raise ValueError(f"tensor {i} is in the memory of a worker of this machine")
    if wire[TAG_AT] == L.NO_DEP:
        raise ValueError(
            f"tensor {i} is tagged NO_DEP, which does not say whether it is read or written, so an "
            "endpoint could not be given a copy: tag it INPUT, INOUT or OUTPUT_EXISTING"
        )
    address = int.from_bytes(wire[:SHAPE_AT], "little")
    if address:
        require_visible(address, bytes_of(wire))


class Endpoints:
    """What a Worker does with its endpoints.

    Rule     REMOTE-LINK-1; REMOTE-REG-4; REMOTE-ARGS-4
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._group: KeyPair | None = None
        self._addresses = REMOTE_FIRST
        self._turn = itertools.count()
        self._kept: list[Any] = []
        """Bytes that travel with tasks of the current run."""
        self.take_functions = False
        """Whether functions are registered for the sub workers of endpoints unless said otherwise."""
        self.tensors = ParentTensors(life, self._bring)
        """The tensors of this machine that endpoints have copies of."""
        self.queues = Queues(self._link, self.tensors.directory)
        self._chunk = _LEAST_CHUNK

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._links())

    # ------------------------------------------------------------ adding them
    def add(self, spec: RemoteWorkerSpec) -> int:
        """Add an endpoint to the next-level pool, and return its id."""
        if self._life.session is not None:
            return self._join(spec)
        tree = self._life.tree
        link = Link(len(tree.next_level))
        link.occupy(spec, self._keys(spec))
        tree.add_endpoint(link)
        return link.number

    def _keys(self, spec: RemoteWorkerSpec) -> KeyPair | None:
        """Return the keys with which endpoints move tensors between them."""
        if not spec.secure:
            return None
        if self._group is None:
            self._group = new_pair()
        return self._group

    def _join(self, spec: RemoteWorkerSpec) -> int:
        """Take up an endpoint between two runs: the next one starts it.

        Rule     REMOTE-LINK-10
        """
        vacant = next((one for one in self._places() if one.is_vacant and not one.has_left), None)
        if vacant is None:
            raise RuntimeError(
                f"no place is left: {MOST_JOINING} endpoints can join an open Worker; add those that are "
                "known before init"
            )
        spec.fleet.open(1)
        vacant.occupy(spec, self._keys(spec))
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
        tree = self._life.tree
        vacant = sum(one.is_vacant for one in self._places())
        for _ in range(MOST_JOINING - vacant):
            tree.add_endpoint(Link(len(tree.next_level)))

    def prepare(self, zeros: Any) -> None:
        """Give the links their shared memory, before there are processes; have fleets prepare."""
        fleets: dict[int, tuple[Any, int]] = {}
        movers = zeros((len(self._life.tree.next_level), ADDRESS_BYTES), np.uint8)
        for link in self._places():
            link.movers = movers
            link.words = zeros((len(COUNTERS),), np.int64)
            link.why = zeros((WHY_BYTES,), np.uint8)
            link.late = zeros((LATE_BYTES,), np.uint8)
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
        return [one for one in self._life.tree.next_level if isinstance(one, Link)]

    def _links(self) -> list[Link]:
        return [one for one in self._places() if not one.is_vacant]

    def require(self, worker: int) -> None:
        """Refuse a worker that is no endpoint."""
        self._link(worker)

    def _link(self, worker: int) -> Link:
        """Return the link of an endpoint."""
        pool = self._life.tree.next_level
        known = [link.number for link in self._links()]
        if not hasattr(worker, "__index__") or operator.index(worker) not in known:
            raise ValueError(
                f"worker={worker!r} is no endpoint; endpoints of this Worker are {known or 'none'}: add "
                f"them with add_remote_worker"
            )
        link: Any = pool[operator.index(worker)]
        return link  # type: ignore[no-any-return]

    # ------------------------------------------------------------ callables
    def describe(
        self, target: Any, workers: Iterable[int] | None, inner: bool
    ) -> tuple[CallableHandle, Registration, bytes]:
        """Return a fresh handle for a callable of endpoints, its registration, and that as bytes.

        Rule     REMOTE-REG-1 to -4, -8
        """
        if workers is None:
            numbers = tuple(link.number for link in self._links())
        else:
            numbers = tuple(dict.fromkeys(self._link(one).number for one in workers))
        if not numbers:
            raise ValueError("workers=[…] names no endpoint: add one with add_remote_worker")
        dispatcher = RemoteRegistryTarget.REMOTE_TASK_DISPATCHER
        registry, blob = RemoteRegistryTarget.INNER_L3_WORKER if inner else dispatcher, b""
        if isinstance(target, RemoteCallable):
            kind, descriptor, payload = (
                CallableKind.PYTHON_IMPORT,
                target.descriptor,
                target.descriptor,
            )
            name = target.target
        elif is_chip_callable(target):
            registry = RemoteRegistryTarget.INNER_L3_WORKER
            kind, name = CallableKind.CHIP_CALLABLE, target.config_name or target.func_name
            descriptor, payload, blob = self._chip_payload(target, numbers)
        else:
            kind = CallableKind.PYTHON_SERIALIZED
            name = getattr(target, "__qualname__", type(target).__qualname__)
            raw = serialize(target)
            packed = b"" if raw.startswith(BY_REGISTRATION) else pack_payload(raw)
            require_payload(name, target, packed)
            descriptor, payload = build_python_serialized_descriptor(raw), packed
        hashid = compute_callable_hashid(descriptor)
        handle = CallableHandle(hashid, kind, TargetNamespace.REMOTE_TASK_DISPATCHER, name)
        command = encode_register_callable_command(
            registry, kind, handle.digest, PAYLOAD_VERSION, payload
        )
        one = Registration(numbers, command, blob)
        self._require_same(handle, one)
        return handle, one, one.to_bytes()

    def _chip_payload(self, target: Any, numbers: Sequence[int]) -> tuple[bytes, bytes, bytes]:
        """Return a chip callable's descriptor, its payload, and its blob if that is to be staged.

        Rule     REMOTE-REG-9
        """
        options = self._link(numbers[0]).spec.worker
        descriptor = build_chip_callable_descriptor(
            target=target, platform=options["platform"], runtime=options["runtime"] or ""
        )
        blob = target.to_bytes()
        digest = hashlib.sha256(blob).digest()
        where, blobs = ChipCallableBlobLocation.INLINE_BLOB, (blob, b"")
        if len(blob) > MOST_INLINE_BLOB:
            where, blobs = ChipCallableBlobLocation.STAGED_BLOB, (b"", digest)
        payload = RemoteChipCallablePayload(descriptor, where, len(blob), digest, *blobs)
        staged = blob if len(blob) > MOST_INLINE_BLOB else b""
        return descriptor, encode_remote_chip_callable_payload(payload), staged

    def _require_same(self, handle: CallableHandle, one: Registration) -> None:
        """Refuse a callable that is registered in another way already."""
        found = self._life.registry.installed(handle.digest)
        if found is not None and found != one:
            raise CallableError(
                "CALLABLE_KIND_UNSUPPORTED",
                f"{handle.name} is registered already, for the endpoints {list(found.workers)}: "
                "unregister it first to change that",
            )

    # ------------------------------------------------------------ tasks
    def place(
        self,
        handle: CallableHandle,
        worker: int,
        args: TaskArgs | None,
        taken: Collection[int] = (),
        *,
        for_sub: bool = False,
        copies: bool = True,
    ) -> int:
        """Return the endpoint for a task, once its arguments are found to be what that can reach.

        References get the addresses that the endpoint's link knows. `for_sub`: a sub worker of the
        endpoint runs the task. `copies`: it may name memory of this machine.

        Tensors get the addresses that the endpoint's link knows.

        Rule     REMOTE-ARGS-4, -5; REMOTE-LINK-9
        """
        one: Registration = self._life.registry.target(handle)
        if one.is_inner != for_sub:
            raise TypeError(
                f"{handle!r} is for the workers of endpoints' own Workers: give it to submit_sub, "
                "or find it there with get_inner_handle"
                if one.is_inner
                else f"{handle!r} is an orchestration function of endpoints: give it to submit_next_level"
            )
        wires = args._tensors if args is not None else []
        for i, wire in enumerate(wires):
            if not isinstance(wire, RemoteWire):
                require_copyable(i, wire, copies)
        chosen = self._choose(handle, one, worker, wires, taken)
        link = self._link(chosen)
        inline = 0
        for i, wire in enumerate(wires):
            if not isinstance(wire, RemoteWire):
                continue
            inline += bytes_of(wire) if wire.is_inline else 0
            wires[i] = self._settled(i, wire, link)
        if inline > MAX_INLINE_ARENA_BYTES:
            raise ValueError(
                f"{inline} bytes do not travel with a task, at most {MAX_INLINE_ARENA_BYTES} do: use "
                "remote_malloc and remote_copy_to"
            )
        return chosen

    def _choose(
        self,
        handle: CallableHandle,
        one: Registration,
        worker: int,
        wires: Sequence[bytes],
        taken: Collection[int],
    ) -> int:
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
        present = [link.number for link in self._links() if link.number in one.workers]
        if not present:
            raise ValueError(
                f"{handle!r} is registered for the endpoints {list(one.workers)}, which have left: "
                "register it for others with workers=[…]"
            )
        free = [number for number in present if number not in taken] or present
        start = next(self._turn)
        manager = self._life.live().manager
        alive = [number for number in free if manager is None or number not in manager.dead] or free
        turns = [alive[(start + i) % len(alive)] for i in range(len(alive))]
        uses = uses_of(wires)
        return min(turns, key=lambda number: self.queues.start_s(number, uses))

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
        self._require_current(handle, link)
        if rights & ~handle.access:
            raise ValueError(
                f"tensor {i}: its tag needs {'write' if rights & 2 else 'read'} access, and {handle!r} "
                "was imported without"
            )
        return wire.at(int.from_bytes(wire[:8], "little"))

    def _require_current(self, handle: RemoteBufferHandle, link: Link) -> None:
        """Refuse memory of a session that is over.

        Rule     REMOTE-MEM-2
        """
        if handle.session != int(link.words[0]):
            handle.is_live = False
        require_live(handle)

    def begin_run(self) -> None:
        """Forget what travelled with the tasks of the run before."""
        self._kept.clear()
        self.tensors.begin_run()
        self.queues.begin_run(self._links())

    def _bring(self, number: int, homings: Sequence[Homing]) -> bytes:
        """Have an endpoint send what it has made; return what became of each."""
        timeout_s = self._life.live().control_timeout_s
        timeout_s += sum(one.nbytes for one in homings) / _LEAST_BYTES_PER_S
        raw = pack_homings(homings)
        return self._exchange(self._link(number), L.LINK_BRING_HOME, raw, timeout_s)

    # ------------------------------------------------------------ memory
    def malloc(self, worker: int, nbytes: int) -> RemoteBufferHandle:
        """Allocate memory of an endpoint; see `Worker.remote_malloc`."""
        link = self._link(worker)
        size = whole("nbytes", nbytes, 1, MOST_BYTES)
        base = self._take_addresses(size)
        request = Request(
            ControlName.ALLOC_REMOTE_BUFFER, ALLOC.encode(AllocRequest(size)), base, 0, size
        )
        made = IDENTITY.decode(self._ask(link, request))
        return RemoteBufferHandle(
            link.number,
            made.owner_endpoint_id,
            made.buffer_id,
            made.generation,
            0,
            size,
            address=base,
            session=int(link.words[0]),
        )

    def _take_addresses(self, nbytes: int) -> int:
        base = self._addresses
        self._addresses += (nbytes // _PAGE + 2) * _PAGE  # with a gap before the next
        if self._addresses >= REMOTE_LAST:
            raise MemoryError(
                "all addresses for memory of endpoints were given out: make a new Worker"
            )
        return base

    def free(self, handle: RemoteBufferHandle) -> None:
        """Free memory of an endpoint; see `Worker.remote_free`."""
        link = self._own(handle, "remote_free", own=True)
        identity = BufferIdentity(handle.owner, handle.buffer_id, handle.generation)
        request = Request(
            ControlName.FREE_REMOTE_BUFFER, IDENTITY.encode(identity), drops=handle.address
        )
        self._ask(link, request)
        handle.is_live = False

    def copy_to(self, handle: RemoteBufferHandle, host_ptr: int, nbytes: int, offset: int) -> None:
        """Copy memory of this process to an endpoint, in parts; see `Worker.remote_copy_to`."""
        link = self._copyable(handle, host_ptr, nbytes, offset, "remote_copy_to")
        for at, size in self._parts(nbytes):
            data = ctypes.string_at(host_ptr + at, size)
            payload = copy_parts(handle, offset + at, size, data)
            self._ask(link, Request(ControlName.COPY_TO_REMOTE, payload))

    def copy_from(
        self, handle: RemoteBufferHandle, host_ptr: int, nbytes: int, offset: int
    ) -> None:
        """Copy memory of an endpoint to this process, in parts; see `Worker.remote_copy_from`."""
        link = self._copyable(handle, host_ptr, nbytes, offset, "remote_copy_from")
        for at, size in self._parts(nbytes):
            payload = copy_parts(handle, offset + at, size)
            data = self._ask(link, Request(ControlName.COPY_FROM_REMOTE, payload))
            ctypes.memmove(host_ptr + at, data, size)

    def _parts(self, nbytes: int) -> Iterable[tuple[int, int]]:
        """Yield parts to copy, as large as the connection takes in a moment."""
        at = 0
        while at < nbytes:
            size = min(self._chunk, nbytes - at)
            begun = time.monotonic()
            yield at, size
            took = time.monotonic() - begun
            if took < _QUICK_S and size == self._chunk:
                self._chunk = min(2 * self._chunk, _MOST_CHUNK)
            elif took > _SLOW_S:
                self._chunk = max(self._chunk // 2, _LEAST_CHUNK)
            at += size

    def _copyable(self, handle: Any, host_ptr: Any, nbytes: Any, offset: Any, what: str) -> Link:
        link = self._own(handle, what, own=True)
        whole("host_ptr", host_ptr, 1, (1 << 64) - 1)
        handle.require_within(
            whole("offset", offset, 0, MOST_BYTES), whole("nbytes", nbytes, 0, MOST_BYTES)
        )
        return link

    def export(
        self,
        handle: RemoteBufferHandle,
        offset: int,
        nbytes: int | None,
        access: str | int,
        transport_profile: str,
    ) -> RemoteBufferExport:
        """Let other endpoints import a part of a buffer; see `Worker.remote_export`."""
        link = self._own(handle, "remote_export", own=True)
        at = whole("offset", offset, 0, MOST_BYTES)
        size = handle.nbytes - at if nbytes is None else whole("nbytes", nbytes, 1, MOST_BYTES)
        handle.require_within(at, size)
        request = ExportBufferRequest(
            handle.owner,
            handle.buffer_id,
            handle.generation,
            at,
            size,
            access_of(access),
            transport_profile,
        )
        payload = encode_export_buffer_request(request)
        raw = self._ask(link, Request(ControlName.EXPORT_BUFFER, payload))
        return RemoteBufferExport(handle, decode_export_buffer_result(raw))

    def take(
        self, exported: RemoteBufferExport, worker: int, access: str | int | None
    ) -> RemoteBufferHandle:
        """Import what another endpoint has exported; see `Worker.remote_import`."""
        if not isinstance(exported, RemoteBufferExport):
            raise TypeError(
                f"remote_import expects what remote_export has returned, not {type(exported).__name__}"
            )
        link, owner, found = self._link(worker), exported.handle, exported.result
        self._require_current(owner, self._link(owner.worker))
        if link.number == owner.worker:
            raise ValueError(f"endpoint {worker} has that memory itself: use its own handle")
        rights = found.access if access is None else access_of(access)
        request = ImportBufferRequest(link.number, rights, found)
        base = owner.address + found.offset
        payload = encode_import_buffer_request(request)
        raw = self._ask(
            link, Request(ControlName.IMPORT_BUFFER, payload, base, found.offset, found.nbytes)
        )
        made = decode_import_buffer_result(raw)
        return RemoteBufferHandle(
            link.number,
            made.owner_endpoint_id,
            made.buffer_id,
            made.generation,
            made.offset,
            made.nbytes,
            address=base,
            session=int(link.words[0]),
            access=made.access,
            import_id=made.import_id,
        )

    def release(self, handle: RemoteBufferHandle) -> None:
        """Forget what was imported; see `Worker.remote_release_import`."""
        link = self._own(handle, "remote_release_import", own=False)
        request = ReleaseImportRequest(
            link.number, handle.owner, handle.buffer_id, handle.generation, handle.import_id
        )
        self._ask(
            link,
            Request(
                ControlName.RELEASE_IMPORT,
                encode_release_import_request(request),
                drops=handle.address,
            ),
        )
        handle.is_live = False

    def _own(self, handle: Any, what: str, own: bool) -> Link:
        """Return the link of a live buffer."""
        if not isinstance(handle, RemoteBufferHandle):
            raise TypeError(
                f"{what} expects a handle from Worker.{'remote_malloc' if own else 'remote_import'}, not "
                f"{type(handle).__name__}"
            )
        if own == bool(handle.import_id):
            raise ValueError(
                f"{handle!r} is {'an import' if own else 'no import'}: {what} is for "
                f"{'the owner of a buffer' if own else 'imports'}"
            )
        link = self._link(handle.worker)
        self._require_current(handle, link)
        return link

    def _ask(self, link: Link, request: Request) -> bytes:
        """Have a link send a request on, and return the result."""
        return self._exchange(link, L.LINK_ASK, request.to_bytes())

    def _exchange(
        self, link: Link, command: int, raw: bytes, timeout_s: float | None = None
    ) -> bytes:
        session = self._life.live()
        manager = self._life.running_manager(session)
        with exchanged(raw) as staging:
            size = manager.control(
                link.number,
                command,
                (staging.size,),
                name=staging.name,
                timeout_s=session.control_timeout_s if timeout_s is None else timeout_s,
            )
            return staging.read(size)

    # ------------------------------------------------------------ looking in
    def transfers(self) -> list[dict[str, Any]]:
        """Return what the session of each endpoint has moved, and holds; see `Worker.transfers`."""
        told = []
        session = self._life.live()
        manager = self._life.running_manager(session)
        for link in self._links():
            if link.number not in manager.dead:
                raw = self._exchange(link, L.LINK_COUNTERS, b"")
                told.append({"endpoint": link.number, **json.loads(raw)})
        return told

    def counters(self) -> list[dict[str, Any]]:
        """Return what each link has counted; see `Worker.endpoints`."""
        session = self._life.session
        manager = None if session is None else session.manager
        told = []
        for link in self._links():
            words = getattr(link, "words", None)
            counts = (
                dict.fromkeys(COUNTERS, 0)
                if words is None
                else dict(zip(COUNTERS, words.tolist(), strict=True))
            )
            alive = manager is not None and link.number not in manager.dead
            ended = "" if words is None or alive else link.last_words()
            about = {"endpoint": link.number, "at": repr(link.spec.fleet), "alive": alive}
            told.append({**about, "ended": ended, **counts})
        return told
