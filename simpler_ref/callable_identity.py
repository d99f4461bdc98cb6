"""Which callable a task runs: descriptors, their hashes, payloads, and the handles users hold.

A callable is named by the SHA-256 of a canonical description of it, never by a number: the digest
is what a mailbox carries, and each worker maps it to a slot of its own.
"""

from __future__ import annotations

import enum
import hashlib
import io
import itertools
import math
import os
import pickle
import platform as _platform
import re
import struct
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import cloudpickle
import numpy as np
from numpy.lib.array_utils import byte_bounds

from .errors import CallableError
from .jit import layout as L
from .model.enums import ArgDirection
from .model.tensor import ContinuousTensor, view_memory
from .model.visibility import is_shared

_SCHEMA = 1
_PAYLOAD_FORMAT = 1
_CLOUDPICKLE = 1
_HASHID = re.compile(r"sha256:[0-9a-f]{64}")


class CallableKind(enum.IntEnum):
    """What a callable is made from.

    Rule     FLOW-DATA-2
    """

    CHIP_CALLABLE = 1
    PYTHON_SERIALIZED = 2
    PYTHON_IMPORT = 3


class TargetNamespace(enum.IntEnum):
    """Where a digest is looked up.

    Rule     FLOW-DATA-2
    """

    LOCAL_CHIP = 1
    LOCAL_PYTHON = 2
    REMOTE_TASK_DISPATCHER = 3


def _u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _text(value: str | bytes) -> bytes:
    try:
        raw = value.encode(errors="surrogateescape") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", f"{value!r} is no text that UTF-8 has"
        ) from None
    return _u32(len(raw)) + raw


def build_python_serialized_descriptor(payload: bytes) -> bytes:
    """Describe a Python callable by its serialised form (cloudpickle's output).

    Rule     FLOW-ID-1
    """
    return _u32(_SCHEMA, CallableKind.PYTHON_SERIALIZED, _PAYLOAD_FORMAT, _CLOUDPICKLE) + _text(
        hashlib.sha256(payload).digest()
    )


class ChipTarget(Protocol):
    """What a chip callable must offer to be described."""

    @property
    def sig_count(self) -> int: ...  # noqa: D102

    def sig(self, i: int) -> int: ...  # noqa: D102

    def to_bytes(self) -> bytes: ...  # noqa: D102


def build_signature_schema(directions: Sequence[int]) -> bytes:
    """Describe the directions of a chip callable's arguments.

    Rule     FLOW-ID-1

    Raises
    ------
    CallableError
        HASHID_DESCRIPTOR_MISMATCH: one is no ArgDirection.
    """
    numbers = [int(direction) for direction in directions]
    for i, number in enumerate(numbers):
        if not 0 <= number <= ArgDirection.INOUT:
            raise CallableError(
                "HASHID_DESCRIPTOR_MISMATCH",
                f"argument {i} has direction {number}; the directions are 0 to 3",
            )
    return _u32(_SCHEMA, len(numbers), *numbers)


def build_chip_callable_descriptor(
    *, target: ChipTarget, platform: str, runtime: str, target_arch: str | None = None
) -> bytes:
    """Describe a chip callable: what it is built for, the hashes of its blob and its signature.

    `target_arch` is that of this machine if it is not given.

    Rule     FLOW-ID-1
    """
    arch = _platform.machine() if target_arch is None else target_arch
    signature = build_signature_schema([target.sig(i) for i in range(target.sig_count)])
    return (
        _u32(_SCHEMA, CallableKind.CHIP_CALLABLE)
        + _text(arch)
        + _text(platform)
        + _text(runtime)
        + _text(hashlib.sha256(target.to_bytes()).digest())
        + _text(hashlib.sha256(signature).digest())
    )


def build_python_import_descriptor(module: str, qualname: str) -> bytes:
    """Describe a Python callable by where it can be imported from.

    Rule     FLOW-ID-1, -3

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
    """Return ``sha256:`` and the 64 hex digits of a descriptor's SHA-256.

    Rule     FLOW-ID-2, -4
    """
    return "sha256:" + hashlib.sha256(descriptor).hexdigest()


def validate_hashid(hashid: str) -> str:
    """Return `hashid` if it is one.

    Rule     FLOW-ID-2

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
    """Return the 32 bytes a hashid stands for.

    Rule     FLOW-ID-2
    """
    return bytes.fromhex(validate_hashid(hashid).removeprefix("sha256:"))


def _view_shared(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array over shared memory that this process has, too.

    Rule     WM-START-4
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if not is_shared(address, nbytes):
        raise ValueError(
            f"the {nbytes} bytes at {address:#x}, an array that the callable refers to, are not in this "
            "process: it was mapped after the workers were started, or it is shared by other means; "
            "let the callable refer to an array of Worker.share or Worker.empty"
        )
    return view_memory(address, shape, dtype)


def _view_strided(
    place: tuple[int, int, int], shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any
) -> Any:
    """Return an array over shared memory whose elements do not stand one after the other."""
    low, span, offset = place
    memory = _view_shared(low, (span,), np.dtype(np.uint8))
    return np.ndarray(shape, dtype, buffer=memory, offset=offset, strides=strides)


class _Serializer(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, but an array in shared memory is named by its address, not copied.

    Two closures over two shared arrays are two callables, whatever the arrays hold.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and obj.nbytes:
            address = obj.__array_interface__["data"][0]
            low, high = byte_bounds(obj)
            if is_shared(low, high - low):
                if obj.flags.c_contiguous:
                    return _view_shared, (address, obj.shape, obj.dtype)
                place = low, high - low, address - low
                return _view_strided, (place, obj.shape, obj.strides, obj.dtype)
        if type(obj) is ContinuousTensor:
            return ContinuousTensor._from_wire, (obj._wire,)
        return super().reducer_override(obj)


BY_REGISTRATION = b"by registration only: "
"""How the stand-in begins for the bytes of a callable that cannot be serialised."""


def serialize(target: Callable[..., Any]) -> bytes:
    """Return the bytes that identify a callable.

    What cloudpickle cannot take (a lock, a socket in a closure) still reaches workers that are
    forked after its registration; such a callable is known by that registration alone.
    """
    buffer = io.BytesIO()
    try:
        _Serializer(buffer).dump(target)
    except Exception:
        return BY_REGISTRATION + uuid.uuid4().bytes
    return buffer.getvalue()


def why_not_serialisable(target: Callable[..., Any]) -> str:
    """Return what cloudpickle says of a callable that it cannot take.

    Rule     FLOW-UNDO-3
    """
    try:
        _Serializer(io.BytesIO()).dump(target)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it could not be when it was registered"


# ---------------------------------------------------------------- payloads for running workers
_ENVELOPE = struct.Struct("<4sBBHQ")
_MAGIC = b"SPYC"
_ENVELOPE_VERSION = 1


def pack_payload(payload: bytes) -> bytes:
    """Put serialised Python into its envelope.

    Rule     FLOW-PAYLOAD-1
    """
    head = _ENVELOPE.pack(_MAGIC, _ENVELOPE_VERSION, _CLOUDPICKLE, 0, len(payload))
    return head + payload


def unpack_payload(raw: bytes) -> bytes:
    """Return the serialised Python in an envelope, once the envelope is found to be right.

    Rule     FLOW-PAYLOAD-2

    Raises
    ------
    CallableError
        HASHID_DESCRIPTOR_MISMATCH: not an envelope of this version, or of another length.
    """
    problem = ""
    if len(raw) < _ENVELOPE.size:
        problem = f"{len(raw)} bytes are fewer than its head has"
    else:
        magic, version, serializer, flags, size = _ENVELOPE.unpack_from(raw)
        if magic != _MAGIC:
            problem = f"it begins with {magic!r}"
        elif (version, serializer, flags) != (_ENVELOPE_VERSION, _CLOUDPICKLE, 0):
            problem = f"version {version}, serializer {serializer}, flags {flags} are not known"
        elif size != len(raw) - _ENVELOPE.size:
            problem = f"it announces {size} bytes and has {len(raw) - _ENVELOPE.size}"
    if problem:
        raise CallableError("HASHID_DESCRIPTOR_MISMATCH", f"no payload envelope: {problem}")
    return raw[_ENVELOPE.size :]


_OBJECT = "object:"
_objects: dict[int, Any] = {}
_object_numbers = itertools.count()


@contextmanager
def staged(payload: bytes) -> Iterator[str]:
    """Keep a payload in shared memory and give the name under which another process finds it.

    The memory has no name in the file system that a killed process could leave behind: it is
    reached through this process.

    Rule     FLOW-PAYLOAD-3
    """
    fd = os.memfd_create("simpler-payload", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(payload)
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)


@contextmanager
def staged_object(target: Any) -> Iterator[str]:
    """Let the workers that are threads of this process take an object as it is.

    Rule     WM-THREAD-3
    """
    number = next(_object_numbers)
    _objects[number] = target
    try:
        yield f"{_OBJECT}{number}"
    finally:
        del _objects[number]


def _open_at_once(name: str, flags: int) -> int:
    """Open a file, and do not wait for anybody if it is a pipe."""
    return os.open(name, flags | os.O_NONBLOCK)


def _read_staged(name: str, size: int) -> bytes:
    """Return the bytes staged under a name; no more than there are, and than were announced."""
    try:
        with open(name, "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno()).st_size
            raw = file.read(size) if size == found else b""
    except (OSError, ValueError) as error:
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", f"nothing is staged as {name!r}: {error}"
        ) from None
    if not size == found == len(raw):
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", f"{size} bytes were announced, {found} are staged"
        )
    return raw


def read_payload(name: str, size: int, command: int, digest: bytes) -> Any:
    """Return the callable that was staged under a name, after checking it against its digest.

    Rule     FLOW-PAYLOAD-2

    Raises
    ------
    CallableError
        HASHID_DESCRIPTOR_MISMATCH: it is not what the digest stands for.
    """
    if name.startswith(_OBJECT):
        number = name.removeprefix(_OBJECT)
        if not number.isdecimal() or int(number) not in _objects:
            raise CallableError("HASHID_DESCRIPTOR_MISMATCH", f"no object is staged as {name!r}")
        return _objects[int(number)]
    return load_payload(_read_staged(name, size), command == L.CTRL_REGISTER, digest)


def load_payload(raw: bytes, chip: bool, digest: bytes) -> Any:
    """Return the callable that some bytes stand for, after checking them against its digest.

    Rule     FLOW-PAYLOAD-2

    Raises
    ------
    CallableError
        HASHID_DESCRIPTOR_MISMATCH: it is not what the digest stands for.
    """
    if chip:
        return raw
    payload = unpack_payload(raw)
    if hashlib.sha256(build_python_serialized_descriptor(payload)).digest() != digest:
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", "the payload is not the callable its digest stands for"
        )
    return pickle.loads(payload)


_handle_numbers = itertools.count()
_handles: weakref.WeakValueDictionary[str, CallableHandle] = weakref.WeakValueDictionary()
"""Every handle of this process, and of those it was forked from."""


def _find_handle(token: str, hashid: str, kind: int, namespace: int, name: str) -> CallableHandle:
    """Return the handle that was serialised: the very same one where it is known.

    Rule     FLOW-HANDLE-4

    Raises
    ------
    CallableError, ValueError
        These are the parts of no handle, or those of another one.
    """
    handle = _handles.get(token)
    if handle is None:
        handle = CallableHandle(hashid, CallableKind(kind), TargetNamespace(namespace), name)
        handle._remember(token)
    elif (handle.hashid, handle.kind, handle.target_namespace) != (hashid, kind, namespace):
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH",
            f"{handle!r} was serialised with another hashid, kind or namespace: {hashid!r}, {kind!r}, "
            f"{namespace!r}",
        )
    return handle


class CallableHandle:
    """What `Worker.register` returns and submit takes; cannot be changed.

    Rule     FLOW-HANDLE-1

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

    __slots__ = ("__weakref__", "_token", "digest", "hashid", "kind", "name", "target_namespace")

    hashid: str
    kind: CallableKind
    target_namespace: TargetNamespace
    digest: bytes
    name: str
    _token: str

    def __init__(
        self, hashid: str, kind: CallableKind, target_namespace: TargetNamespace, name: str = ""
    ) -> None:
        write = object.__setattr__
        write(self, "hashid", validate_hashid(hashid))
        write(self, "kind", CallableKind(kind))
        write(self, "target_namespace", TargetNamespace(target_namespace))
        write(self, "digest", hashid_to_digest(hashid))
        write(self, "name", name)
        self._remember(f"{os.getpid()}.{next(_handle_numbers)}")

    def _remember(self, token: str) -> None:
        object.__setattr__(self, "_token", token)
        _handles[token] = self

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.hashid, int(self.kind), int(self.target_namespace), self.name)
        return _find_handle, (self._token, *fields)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a CallableHandle cannot be changed (tried to set {name!r})")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a CallableHandle cannot be changed (tried to delete {name!r})")

    def __repr__(self) -> str:
        return f"<CallableHandle {self.name or '?'} {self.hashid[:19]}…>"
