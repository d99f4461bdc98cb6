"""Which callable a task runs: descriptors, their hashes, and the handles users hold.

A callable is named by the SHA-256 of a canonical description of it, never by a number: the digest
is what a mailbox carries, and each worker maps it to a slot of its own.
"""

from __future__ import annotations

import enum
import hashlib
import io
import re
import struct
import uuid
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

from .errors import CallableError
from .task_interface import ContinuousTensor, is_shared, view_memory

_SCHEMA = 1
_PAYLOAD_FORMAT = 1
_CLOUDPICKLE = 1
_HASHID = re.compile(r"sha256:[0-9a-f]{64}")


class CallableKind(enum.IntEnum):
    """What a callable is made from."""

    CHIP_CALLABLE = 1
    PYTHON_SERIALIZED = 2
    PYTHON_IMPORT = 3


class TargetNamespace(enum.IntEnum):
    """Where a digest is looked up."""

    LOCAL_CHIP = 1
    LOCAL_PYTHON = 2
    REMOTE_TASK_DISPATCHER = 3


def _u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _u32(len(raw)) + raw


def build_python_serialized_descriptor(payload: bytes) -> bytes:
    """Describe a Python callable by its serialised form (cloudpickle's output)."""
    return _u32(_SCHEMA, CallableKind.PYTHON_SERIALIZED, _PAYLOAD_FORMAT, _CLOUDPICKLE) + _text(
        hashlib.sha256(payload).digest()
    )


def build_python_import_descriptor(module: str, qualname: str) -> bytes:
    """Describe a Python callable by where it can be imported from.

    Raises
    ------
    CallableError
        HASHID_DESCRIPTOR_MISMATCH: a part is not made of identifiers, or names a local function.
    """
    for what, value in (("module", module), ("qualname", qualname)):
        if not value or not all(part.isidentifier() for part in value.split(".")):
            raise CallableError(
                "HASHID_DESCRIPTOR_MISMATCH",
                f"{what} {value!r} is not importable: identifiers joined by dots are needed",
            )
    return _u32(_SCHEMA, CallableKind.PYTHON_IMPORT) + _text(module) + _text(qualname)


def compute_callable_hashid(descriptor: bytes) -> str:
    """Return ``sha256:`` and the 64 hex digits of a descriptor's SHA-256."""
    return "sha256:" + hashlib.sha256(descriptor).hexdigest()


def validate_hashid(hashid: str) -> str:
    """Return `hashid` if it is one.

    Raises
    ------
    CallableError
        HASHID_FORMAT_INVALID
    """
    if not isinstance(hashid, str) or not _HASHID.fullmatch(hashid):
        raise CallableError(
            "HASHID_FORMAT_INVALID",
            f"{hashid!r} is no hashid: sha256: and 64 lower-case hex digits are expected",
        )
    return hashid


def hashid_to_digest(hashid: str) -> bytes:
    """Return the 32 bytes a hashid stands for."""
    return bytes.fromhex(validate_hashid(hashid).removeprefix("sha256:"))


class _Serializer(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, but an array in shared memory is named by its address, not copied.

    Two closures over two shared arrays are two callables, whatever the arrays hold.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and obj.nbytes and obj.flags.c_contiguous:
            address = obj.__array_interface__["data"][0]
            if is_shared(address, obj.nbytes):
                return view_memory, (address, obj.shape, obj.dtype)
        if type(obj) is ContinuousTensor:
            return ContinuousTensor._from_wire, (obj._wire,)
        return super().reducer_override(obj)


def serialize(target: Callable[..., Any]) -> bytes:
    """Return the bytes that identify a callable.

    What cloudpickle cannot take (a lock, a socket in a closure) still reaches workers that are
    forked after its registration; such a callable is known by that registration alone.
    """
    buffer = io.BytesIO()
    try:
        _Serializer(buffer).dump(target)
    except Exception:
        return b"by registration only: " + uuid.uuid4().bytes
    return buffer.getvalue()


class CallableHandle:
    """What `Worker.register` returns and submit takes; cannot be changed.

    Attributes
    ----------
    hashid : str
    kind : CallableKind
    target_namespace : TargetNamespace
    digest : bytes
        32 bytes.
    name : str
        For messages.
    """

    __slots__ = ("__weakref__", "digest", "hashid", "kind", "name", "target_namespace")

    hashid: str
    kind: CallableKind
    target_namespace: TargetNamespace
    digest: bytes
    name: str

    def __init__(
        self, hashid: str, kind: CallableKind, target_namespace: TargetNamespace, name: str = ""
    ) -> None:
        write = object.__setattr__
        write(self, "hashid", validate_hashid(hashid))
        write(self, "kind", CallableKind(kind))
        write(self, "target_namespace", TargetNamespace(target_namespace))
        write(self, "digest", hashid_to_digest(hashid))
        write(self, "name", name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a CallableHandle cannot be changed (tried to set {name!r})")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a CallableHandle cannot be changed (tried to delete {name!r})")

    def __repr__(self) -> str:
        return f"<CallableHandle {self.name or '?'} {self.hashid[:19]}…>"
