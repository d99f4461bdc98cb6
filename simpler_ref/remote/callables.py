"""Commands about callables: to register one, to name one by its digest; chip callables on their way.

Rule     REMOTE-CALL-1, REMOTE-CALL-2, REMOTE-CALL-3, REMOTE-CALL-4, REMOTE-REG-2, REMOTE-REG-9,
         REMOTE-COPY-11
"""

from __future__ import annotations

import enum
import pickle
import sys
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any

from ..callables.identity import (
    CALLABLE_HASH_DIGEST_BYTES,
    CallableHandle,
    CallableKind,
    TargetNamespace,
    build_python_import_descriptor,
    compute_callable_hashid,
    parse_python_import_target,
)
from .fields import VERSION, Message, Octets, Uint64, WireError, blob, exactly
from .limits import MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES, MAX_STAGED_BLOB_TOKEN_BYTES

PAYLOAD_VERSION = 1
LIST_VERSION = 2
"""The version of a registration's payload that is a list of tasks."""
Digest = Annotated[bytes, exactly(CALLABLE_HASH_DIGEST_BYTES)]


class RemoteRegistryTarget(enum.IntEnum):
    """Which table of an endpoint a callable is for."""

    REMOTE_TASK_DISPATCHER = 1
    INNER_L3_WORKER = 2


class ChipCallableBlobLocation(enum.IntEnum):
    """Where the blob of a chip callable is."""

    INLINE_BLOB = 1
    STAGED_BLOB = 2


# ---------------------------------------------------------------- registration
@dataclass(frozen=True)
class RegisterCallableCommand:
    """A callable for an endpoint."""

    target_registry: RemoteRegistryTarget
    callable_kind: CallableKind
    digest: Digest
    payload_version: Annotated[int, VERSION]
    payload: Octets


_REGISTER = Message("REGISTER_CALLABLE", RegisterCallableCommand)
encode_register_callable_command = _REGISTER.encoder()
decode_register_callable_command = _REGISTER.decode


def registering(
    kind: CallableKind,
    descriptor: bytes,
    payload: bytes,
    *,
    inner: bool = False,
    version: int = PAYLOAD_VERSION,
) -> bytes:
    """Return the command that registers a callable of the dispatcher, or of the inner Worker."""
    dispatcher, inner_worker = RemoteRegistryTarget
    registry, digest = inner_worker if inner else dispatcher, sha256(descriptor).digest()
    return encode_register_callable_command(registry, kind, digest, version, payload)


@dataclass(frozen=True)
class DigestCallableCommand:
    """A callable that an endpoint knows."""

    target_registry: RemoteRegistryTarget
    callable_kind: CallableKind
    digest: Digest


_DIGEST = Message("DIGEST_CALLABLE", DigestCallableCommand)
encode_digest_callable_command = _DIGEST.encoder()
decode_digest_callable_command = _DIGEST.decode


# ---------------------------------------------------------------- chip callables
@dataclass(frozen=True)
class RemoteChipCallablePayload:
    """A chip callable: its descriptor, and its blob or the token of a blob that was staged before."""

    descriptor_bytes: Annotated[bytes, blob(MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES)]
    blob_location: ChipCallableBlobLocation
    blob_size: Uint64
    blob_sha256: Annotated[bytes, exactly(32)]
    inline_blob: Octets = b""
    staged_blob_token: Annotated[bytes, blob(MAX_STAGED_BLOB_TOKEN_BYTES)] = b""


def _check_chip(payload: RemoteChipCallablePayload) -> None:
    inline, token = len(payload.inline_blob), len(payload.staged_blob_token)
    is_inline = payload.blob_location == ChipCallableBlobLocation.INLINE_BLOB
    if bool(inline) != is_inline or bool(token) == is_inline:
        raise WireError(
            f"{ChipCallableBlobLocation(payload.blob_location).name} with a blob of {inline} bytes and a "
            f"token of {token}: give exactly the one that the location says"
        )
    if is_inline and payload.blob_size != inline:
        raise WireError(f"{payload.blob_size}, but the blob has {inline} bytes", "blob_size")


_CHIP = Message("CHIP_CALLABLE", RemoteChipCallablePayload, _check_chip, reserved=True)
encode_remote_chip_callable_payload = _CHIP.encode
decode_remote_chip_callable_payload = _CHIP.decode


# ---------------------------------------------------------------- what a program registers
@dataclass(frozen=True)
class Registration:
    """A callable for endpoints: which, and the command that registers it there."""

    workers: tuple[int, ...]
    command: bytes

    def named(
        self, hashid: str, kind: CallableKind, name: str
    ) -> tuple[CallableHandle, Registration, bytes]:
        """Return a handle for it, it, and it as bytes: what a Worker's registry takes."""
        handle = CallableHandle(hashid, kind, TargetNamespace.REMOTE_TASK_DISPATCHER, name)
        return handle, self, pickle.dumps(self)

    @property
    def is_of_calls(self) -> bool:
        """Whether its tasks are calls, each of which names its function; see `remote.link_tasks`."""
        return not self.command

    @cached_property
    def _told(self) -> RegisterCallableCommand:
        return _REGISTER.decode(self.command)

    @cached_property
    def digest_command(self) -> bytes:
        """The command that names it by its digest."""
        one = self._told
        return encode_digest_callable_command(one.target_registry, one.callable_kind, one.digest)

    @property
    def digest(self) -> bytes:
        return self._told.digest

    @property
    def is_list(self) -> bool:
        return self._told.payload_version == LIST_VERSION

    @property
    def is_inner(self) -> bool:
        """Whether it is for the inner Workers."""
        return self._told.target_registry == RemoteRegistryTarget.INNER_L3_WORKER


class RemoteCallable:
    """A function that endpoints import: ``RemoteCallable("module:qualname")``.

    Attributes
    ----------
    target : str
        What it was made from.
    hashid : str
        Its identity, see `get_inner_handle`.

    Raises
    ------
    CallableError
        HASHID_DESCRIPTOR_MISMATCH: not exactly one colon, or a part that no import has.
    """

    __slots__ = ("descriptor", "hashid", "target")

    def __init__(self, target: str) -> None:
        self.target = str(target)
        self.descriptor = build_python_import_descriptor(*parse_python_import_target(self.target))
        self.hashid = compute_callable_hashid(self.descriptor)

    def __repr__(self) -> str:
        return f"RemoteCallable({self.target!r})"


def by_name(target: Any) -> Any:
    """Return the `RemoteCallable` of what a module has by its name; of anything else, itself."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    found: Any = sys.modules.get(str(module))
    if module == "__main__":
        return target
    for part in name.split("."):
        found = getattr(found, part, None)
    return RemoteCallable(f"{module}:{name}") if found is target else target
