"""The callables of a session: those that tasks name, and those of its inner Worker.

A registration has two phases: `prepare` resolves a callable and keeps it apart, `commit` makes it usable.

Rule     REMOTE-REG-1, REMOTE-REG-2, REMOTE-REG-3, REMOTE-REG-4, REMOTE-REG-5, REMOTE-REG-6, REMOTE-REG-7,
         REMOTE-REG-8, REMOTE-REG-9, REMOTE-REG-10, REMOTE-COPY-9, REMOTE-TRUST-3
"""

from __future__ import annotations

import hashlib
import importlib
import socket as sockets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..callables.identity import CallableHandle, CallableKind, parse_python_import_descriptor
from ..callables.payloads import load_payload
from ..callables.runnable import CompiledCallable
from ..errors import CallableError
from ..model.arguments import TaskArgs
from . import callables
from .fleets import allows
from .lists import LIST, PlayedList

_TASKS, _INNER = callables.RemoteRegistryTarget
AGREE = "give RemoteWorkerSpec(serialized=True), and a daemon --allow-serialized"
"""What a refusal of something pickled suggests."""


class InnerCallable(NamedTuple):
    """A callable of the inner Worker."""

    handle: CallableHandle
    target: Any

    @property
    def is_plain(self) -> bool:
        """Whether sub workers run it by Python."""
        from ..native_chip.callables import ChipCallable

        return not isinstance(self.target, CompiledCallable | ChipCallable)

    def submit(self, orch: Any, args: TaskArgs, config: Any) -> None:
        """Submit it, as the orchestration function of a run."""
        orch.submit_sub(self.handle, args)


class Dispatcher:
    """Digest → callable, for each of the two registries of a session.

    `modules` are those that callables are imported from, with those below them; `register` makes a
    callable known to the inner Worker, and `unregister` takes its handle; `staged` returns the blob that
    is under a token.
    """

    def __init__(
        self,
        modules: Sequence[str],
        serialized: bool,
        register: Callable[[Any], CallableHandle],
        unregister: Callable[[CallableHandle], None],
        staged: Callable[[bytes], bytes],
    ) -> None:
        self._modules = tuple(modules)
        self.takes_pickles = serialized
        """Whether the endpoint has agreed to serialised callables, and so to anything that is pickled."""
        self._register, self._unregister, self._staged = register, unregister, staged
        self._prepared: dict[tuple[int, bytes], Any] = {}
        self._live: dict[tuple[int, bytes], Any] = {}

    # ------------------------------------------------------------ looking things up
    def find(self, digest: bytes) -> Any:
        """Return the callable of a task: an `InnerCallable` if it is one of the inner Worker."""
        found = self._live.get((_TASKS, digest), self._live.get((_INNER, digest)))
        if found is None:
            raise KeyError(f"digest {digest.hex()} is not registered with this endpoint")
        return found

    def inner_handle(self, digest: bytes) -> CallableHandle:
        """Return the handle of a callable of the inner Worker."""
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
            target = InnerCallable(self._register(target), target)
        self._prepared[key] = target

    def commit(self, command: callables.DigestCallableCommand) -> None:
        """Make a prepared callable usable."""
        key = command.target_registry, command.digest
        if key not in self._live:
            if key not in self._prepared:
                raise KeyError(f"digest {command.digest.hex()} was not prepared")
            self._live[key] = self._prepared.pop(key)

    def require(self, command: callables.DigestCallableCommand) -> None:
        """Refuse a callable that is not usable: one that is needs no further preparation."""
        if (command.target_registry, command.digest) not in self._live:
            raise KeyError(f"digest {command.digest.hex()} is not registered with this endpoint")

    def remove(self, command: callables.DigestCallableCommand) -> None:
        """Forget a callable, prepared or usable; of one that is neither, nothing is to be done."""
        key = command.target_registry, command.digest
        for table in (self._prepared, self._live):
            target = table.pop(key, None)
            if isinstance(target, InnerCallable):
                self._unregister(target.handle)

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
        """Return a chip callable, whose blob is in the command or staged."""
        from ..native_chip.callables import ChipCallable

        payload = callables.decode_remote_chip_callable_payload(command.payload)
        require_digest(payload.descriptor_bytes, command.digest)
        blob = payload.inline_blob
        if payload.blob_location == callables.ChipCallableBlobLocation.STAGED_BLOB:
            blob = self._staged(payload.staged_blob_token)
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
