"""What a session does for CONTROL frames: its callables, and its memory.

The callables are those that tasks name, and those of the inner Worker. A registration has two phases:
`prepare` resolves a callable and keeps it apart, `commit` makes it usable. The memory is buffers, what
the session has exported, and what it has imported.

Rule     REMOTE-REG-1, REMOTE-REG-2, REMOTE-REG-3, REMOTE-REG-4, REMOTE-REG-5, REMOTE-REG-6, REMOTE-REG-7,
         REMOTE-REG-8, REMOTE-REG-9, REMOTE-REG-10, REMOTE-COPY-9, REMOTE-TRUST-3, REMOTE-MEM-1,
         REMOTE-MEM-2, REMOTE-MEM-3, REMOTE-MEM-4, REMOTE-MEM-5
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import secrets
import socket as sockets
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..callables.identity import CallableHandle, CallableKind, parse_python_import_descriptor
from ..callables.pickling import load_payload
from ..callables.runnable import CompiledCallable
from ..errors import CallableError
from ..model.arguments import TaskArgs
from ..system.types import Array, address_of
from . import callables, tasks
from .fleets import allows
from .frames import ControlName
from .limits import MAX_FRAME_PAYLOAD_BYTES, REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_WRITE
from .lists import LIST, PlayedList
from .mover import Mover, Span, Window
from .tasks import RemoteTensorDesc

_TASKS, _INNER = callables.RemoteRegistryTarget
AGREE = "give RemoteWorkerSpec(serialized=True), and a daemon --allow-serialized"
"""What a refusal of something pickled suggests."""
PROFILE = "zmq/1"
"""How exported memory is reached; the descriptor is JSON with the address of the mover."""


def obey(name: ControlName, raw: bytes, callees: Dispatcher, stores: Stores) -> bytes:
    registered = callables.decode_register_callable_command
    named = callables.decode_digest_callable_command
    requests: dict[ControlName, tuple[Any, ...]] = {
        ControlName.PREPARE_REGISTER_CALLABLE: (registered, callees.prepare),
        ControlName.COMMIT_REGISTER_CALLABLE: (named, callees.commit),
        ControlName.PREPARE_CALLABLE: (named, callees.require),
        ControlName.ABORT_REGISTER_CALLABLE: (named, callees.remove),
        ControlName.UNREGISTER_CALLABLE: (named, callees.remove),
        ControlName.ALLOC_REMOTE_BUFFER: (tasks.ALLOC.decode, stores.alloc, tasks.IDENTITY.encode),
        ControlName.FREE_REMOTE_BUFFER: (tasks.IDENTITY.decode, stores.free),
        ControlName.COPY_TO_REMOTE: (tasks.COPY.decode, stores.write),
        ControlName.COPY_FROM_REMOTE: (tasks.COPY.decode, stores.read, bytes),
        ControlName.EXPORT_BUFFER: (
            tasks.decode_export_buffer_request,
            stores.export,
            tasks.encode_export_buffer_result,
        ),
        ControlName.IMPORT_BUFFER: (
            tasks.decode_import_buffer_request,
            stores.take,
            tasks.encode_import_buffer_result,
        ),
        ControlName.RELEASE_IMPORT: (tasks.decode_release_import_request, stores.release),
    }
    if name not in requests:
        raise NotImplementedError(
            f"an endpoint does not carry out {name.name}: domains are of the chips of one endpoint, "
            "whose functions allocate them with orch.allocate_domain"
        )
    result: Any = raw
    for step in requests[name]:
        result = step(result)
    return result or b""


# ---------------------------------------------------------------- callables
class InnerCallable(NamedTuple):
    """A callable of the inner Worker."""

    handle: CallableHandle
    target: Any

    @property
    def is_plain(self) -> bool:
        """Whether sub workers run it by Python."""
        from ..native_chip.abi import ChipCallable

        return not isinstance(self.target, CompiledCallable | ChipCallable)

    def submit(self, orch: Any, args: TaskArgs, config: Any) -> None:
        """Submit it, as the orchestration function of a run."""
        orch.submit_sub(self.handle, args)


class Dispatcher:
    """Digest → callable, for each of the two registries of a session.

    `modules` are those that callables are imported from, with those below them; the Worker `inner` has
    some of the callables, and `stores` the blobs that are staged.
    """

    def __init__(
        self, modules: Sequence[str], serialized: bool, inner: Any, stores: Stores
    ) -> None:
        self._modules, self._inner, self._stores = tuple(modules), inner, stores
        self.takes_pickles = serialized
        """Whether the endpoint has agreed to serialised callables, and so to anything that is pickled."""
        self._prepared: dict[tuple[int, bytes], Any] = {}
        self._live: dict[tuple[int, bytes], Any] = {}

    # ------------------------------------------------------------ looking things up
    def find(self, digest: bytes, registries: Sequence[int] = (_TASKS, _INNER)) -> Any:
        """Return the callable of a task: an `InnerCallable` if it is one of the inner Worker."""
        for one in registries:
            if (one, digest) in self._live:
                return self._live[one, digest]
        raise KeyError(f"digest {digest.hex()} is not registered with this endpoint")

    def inner_handle(self, digest: bytes) -> CallableHandle:
        found = self._live.get((_INNER, digest))
        if found is None:
            raise KeyError(
                f"digest {digest.hex()} is not registered for the inner Worker of this endpoint: "
                "register it with register(…, workers=[…], inner=True)"
            )
        handle: CallableHandle = found.handle
        return handle

    # ------------------------------------------------------------ registration
    def prepare(self, command: callables.RegisterCallableCommand) -> None:
        """Resolve a callable, and keep it apart."""
        if command.payload_version not in (callables.PAYLOAD_VERSION, callables.LIST_VERSION):
            raise CallableError(
                "HASHID_DESCRIPTOR_MISMATCH",
                f"payload version {command.payload_version} is not known, {callables.PAYLOAD_VERSION} is",
            )
        key = command.target_registry, command.digest
        if key in self._live or key in self._prepared:
            return
        try:
            target = self._resolve(command)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error} on {sockets.gethostname()}: install it there, or name its folder in PYTHONPATH "
                "where sessions or their daemon are started"
            ) from error
        if command.target_registry == _INNER:
            target = InnerCallable(self._inner.register(target), target)
        self._prepared[key] = target

    def commit(self, command: callables.DigestCallableCommand) -> None:
        key = command.target_registry, command.digest
        if key not in self._live:
            if key not in self._prepared:
                raise KeyError(f"digest {command.digest.hex()} was not prepared")
            self._live[key] = self._prepared.pop(key)

    def require(self, command: callables.DigestCallableCommand) -> None:
        """Refuse a callable that is not usable: one that is needs no further preparation."""
        self.find(command.digest, (command.target_registry,))

    def remove(self, command: callables.DigestCallableCommand) -> None:
        """Forget a callable, prepared or usable; of one that is neither, nothing is to be done."""
        key = command.target_registry, command.digest
        for table in (self._prepared, self._live):
            target = table.pop(key, None)
            if isinstance(target, InnerCallable):
                self._inner.unregister(target.handle)

    # ------------------------------------------------------------ kinds
    def _resolve(self, command: callables.RegisterCallableCommand) -> Any:
        if command.payload_version == callables.LIST_VERSION:
            require_digest(command.payload, command.digest)
            return PlayedList(LIST.decode(command.payload), self.inner_handle)
        if command.callable_kind == CallableKind.PYTHON_IMPORT:
            return self._import(command)
        if command.callable_kind == CallableKind.PYTHON_SERIALIZED:
            if not self.takes_pickles:
                raise CallableError(
                    "CALLABLE_KIND_UNSUPPORTED",
                    "this endpoint takes no serialised callables: register RemoteCallable("
                    f"'module:function'), or {AGREE}",
                )
            return load_payload(command.payload, False, command.digest)
        if command.target_registry != _INNER:
            raise CallableError(
                "CALLABLE_KIND_UNSUPPORTED", "chip callables are for the inner Worker's chips"
            )
        return self._chip_callable(command)

    def _import(self, command: callables.RegisterCallableCommand) -> Any:
        require_digest(command.payload, command.digest)
        module, qualname = parse_python_import_descriptor(command.payload)
        if not any(allows(one, module) for one in self._modules):
            allowed = ", ".join(self._modules) or "none"
            raise CallableError(
                "CALLABLE_KIND_UNSUPPORTED",
                f"this endpoint does not import from {module!r}, allowed are: {allowed}; name it, "
                f"RemoteWorkerSpec(…, modules=[{module!r}]), and start a daemon with --module {module}",
            )
        target = importlib.import_module(module)
        for part in qualname.split("."):
            target = getattr(target, part)
        if not callable(target):
            raise TypeError(f"{module}:{qualname} is not callable, but a {type(target).__name__}")
        return target

    def _chip_callable(self, command: callables.RegisterCallableCommand) -> Any:
        from ..native_chip.abi import ChipCallable

        payload = callables.decode_remote_chip_callable_payload(command.payload)
        require_digest(payload.descriptor_bytes, command.digest)
        blob = payload.inline_blob
        if payload.blob_location == callables.ChipCallableBlobLocation.STAGED_BLOB:
            blob = self._stores.staged(payload.staged_blob_token)
        found = hashlib.sha256(blob).digest()
        if len(blob) != payload.blob_size or found != payload.blob_sha256:
            raise CallableError(
                "HASHID_DESCRIPTOR_MISMATCH", "the blob has another size or SHA-256"
            )
        if found not in payload.descriptor_bytes:
            raise CallableError("HASHID_DESCRIPTOR_MISMATCH", "the descriptor is of another blob")
        return ChipCallable.from_bytes(blob)


def require_digest(descriptor: bytes, digest: bytes) -> None:
    """Refuse a descriptor that has another digest: it is computed anew where it arrives."""
    if hashlib.sha256(descriptor).digest() != digest:
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", "the payload is not the callable its digest stands for"
        )


# ---------------------------------------------------------------- memory
class _Import(NamedTuple):
    """What was imported: a copy here, which tasks see, and the mover that has the memory."""

    made: tasks.ImportBufferResult
    memory: Array
    address: str


class Stores:
    """Buffers, exports and imports of one session.

    `empty` returns memory that the inner Worker's tasks see.
    """

    def __init__(self, endpoint_id: int, mover: Mover, empty: Callable[[int], Array]) -> None:
        self._endpoint_id, self._mover, self._empty = endpoint_id, mover, empty
        self._buffers: dict[tuple[int, ...], Array] = {}
        """By their identities."""
        self._exports: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        """The keys of the windows that each is exported in."""
        self._imports: dict[tuple[int, tuple[int, ...]], _Import] = {}
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------ buffers
    def alloc(self, nbytes: int) -> tasks.BufferIdentity:
        memory, generation = self._empty(nbytes), secrets.randbits(62) | 1
        identity = tasks.BufferIdentity(self._endpoint_id, next(self._numbers), generation)
        self._buffers[_ids(identity)] = memory
        return identity

    def free(self, identity: tasks.BufferIdentity) -> None:
        """Free a buffer, and end its exports."""
        self._find(identity)
        for key in self._exports.pop(_ids(identity), ()):
            self._mover.withdraw(key)
        del self._buffers[_ids(identity)]

    def write(self, copy: tasks.CopyRequest) -> None:
        self._span(copy)[:] = np.frombuffer(copy.data, np.uint8)

    def read(self, copy: tasks.CopyRequest) -> bytes:
        if copy.nbytes > MAX_FRAME_PAYLOAD_BYTES // 2:
            raise ValueError(f"{copy.nbytes} bytes do not fit an answer: read them in parts")
        return self._span(copy).tobytes()

    def staged(self, token: bytes) -> bytes:
        """Return the blob that is staged under a token: the identity of a buffer."""
        return self._find(tasks.IDENTITY.decode(token)).tobytes()

    def address_of(self, desc: RemoteTensorDesc) -> int:
        """Return the address of a tensor in a buffer of this endpoint."""
        return address_of(self._span(desc))

    def _find(self, part: Any) -> Array:
        found = self._buffers.get(_ids(part))
        if found is None:
            raise KeyError(
                f"{tasks.identity_of(part)} is not a live buffer of endpoint {self._endpoint_id}"
            )
        return found

    def _span(self, part: Any) -> Array:
        memory = self._find(part)
        if part.offset + part.nbytes > memory.nbytes:
            raise ValueError(
                f"{part.nbytes} bytes from offset {part.offset} are not all in a buffer of "
                f"{memory.nbytes}"
            )
        span: Array = memory[part.offset : part.offset + part.nbytes]
        return span

    # ------------------------------------------------------------ export and import
    def export(self, request: tasks.ExportBufferRequest) -> tasks.ExportBufferResult:
        _require_profile(request.transport_profile or PROFILE)
        memory, key = self._span(request), secrets.randbits(63) | 1
        self._mover.offer(Window(key, address_of(memory), memory.nbytes, request.access_flags))
        self._exports[_ids(request)].append(key)
        return tasks.ExportBufferResult(
            *_ids(request),
            tasks.RemoteAddressSpace.REMOTE_WINDOW,
            request.offset,
            request.nbytes,
            next(self._numbers),
            rkey_or_token=key,
            access_flags=request.access_flags,
            transport_profile=PROFILE,
            transport_descriptor=json.dumps({"address": self._mover.address}).encode(),
        )

    def take(self, request: tasks.ImportBufferRequest) -> tasks.ImportBufferResult:
        exported = request.export_desc
        self._require_importer(request)
        _require_profile(exported.transport_profile)
        address = str(json.loads(exported.transport_descriptor)["address"])
        made = tasks.ImportBufferResult(
            self._endpoint_id,
            *_ids(exported),
            next(self._numbers),
            exported.address_space,
            exported.offset,
            exported.nbytes,
            rkey_or_token=exported.rkey_or_token,
            access_flags=request.requested_access_flags,
            transport_profile=PROFILE,
            import_descriptor=exported.transport_descriptor,
        )
        found = _Import(made, self._empty(made.nbytes), address)
        self._imports[made.import_id, _ids(made)] = found
        return made

    def release(self, request: tasks.ReleaseImportRequest) -> None:
        self._require_importer(request)
        self._find_import(request, request.import_id)
        del self._imports[request.import_id, _ids(request)]

    def _require_importer(self, request: Any) -> None:
        if request.importer_endpoint_id != self._endpoint_id:
            raise ValueError(
                f"importer {request.importer_endpoint_id} is not this endpoint, {self._endpoint_id}"
            )

    def _find_import(self, part: Any, number: int) -> _Import:
        found = self._imports.get((number, _ids(part)))
        if found is None:
            raise KeyError(
                f"{tasks.identity_of(part)} is not a live import of endpoint {self._endpoint_id}"
            )
        return found

    def fetch(self, desc: RemoteTensorDesc, rights: int) -> tuple[int, Callable[[], None]]:
        """Return the address of an imported tensor, once its bytes are here, and what ends its use."""
        found = self._find_import(desc, desc.rkey_or_token)
        made = found.made
        if rights & ~made.access_flags:
            raise PermissionError(
                f"a task that {'writes' if rights & REMOTE_BUFFER_ACCESS_WRITE else 'reads'} needs more "
                f"than access {made.access_flags}, with which {tasks.identity_of(desc)} was imported"
            )
        at = desc.offset - made.offset
        if at < 0 or at + desc.nbytes > made.nbytes:
            raise ValueError(
                f"{desc.nbytes} bytes from offset {desc.offset} were not all imported: "
                f"{made.nbytes} from offset {made.offset} were"
            )
        address = address_of(found.memory) + at
        spans = [Span(made.rkey_or_token, address, desc.nbytes, at)]
        if rights & REMOTE_BUFFER_ACCESS_READ and desc.nbytes:
            self._mover.fetch_all(found.address, spans)

        def put_back() -> None:
            if rights & REMOTE_BUFFER_ACCESS_WRITE and desc.nbytes:
                self._mover.store_all(found.address, spans)

        return address, put_back

    def counts(self) -> dict[str, int]:
        return {
            "buffers": len(self._buffers),
            "buffer_bytes": sum(one.nbytes for one in self._buffers.values()),
            "exports": sum(map(len, self._exports.values())),
            "imports": len(self._imports),
        }


def _ids(part: Any) -> tuple[int, int, int]:
    return part.owner_endpoint_id, part.buffer_id, part.generation


def _require_profile(name: str) -> None:
    if name != PROFILE:
        raise ValueError(f"transport profile {name!r} is not known, {PROFILE!r} is")
