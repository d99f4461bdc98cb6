"""The identity of a callable, the SHA-256 of a canonical descriptor; and the handles of callables.

A mailbox carries the digest, and each worker maps it to a slot of its own.

Rule     FLOW-ID-1, FLOW-ID-2, FLOW-ID-3, FLOW-ID-4, FLOW-ID-6, FLOW-HANDLE-1, FLOW-HANDLE-4,
         FLOW-HANDLE-6, FLOW-DATA-2
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import itertools
import os
import re
import struct
import weakref
from typing import Any, ClassVar, NoReturn, cast

from ..errors import CallableError, HandleMutatedError
from ..model.enums import ArgDirection

CALLABLE_DESCRIPTOR_SCHEMA_VERSION = _SCHEMA = 1
_PAYLOAD_FORMAT = 1
_CLOUDPICKLE = 1
CALLABLE_HASH_DIGEST_BYTES = hashlib.sha256().digest_size
_ARCHITECTURES = ("a2a3", "a5")
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


class _Name(str, enum.Enum):
    """A text that also equals the number of the same name, and can be made from it."""

    _numbers: ClassVar[type[enum.IntEnum]]

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls[cls._numbers(cast(int, value)).name]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, self._numbers):
            return bool(other.name == self.name)
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]


class CallableKindName(_Name):
    """The kinds by name, as a handle has them."""

    CHIP_CALLABLE = "CHIP_CALLABLE"
    PYTHON_SERIALIZED = "PYTHON_SERIALIZED"
    PYTHON_IMPORT = "PYTHON_IMPORT"


class TargetNamespaceName(_Name):
    """The namespaces by name, as a handle has them."""

    LOCAL_CHIP = "LOCAL_CHIP"
    LOCAL_PYTHON = "LOCAL_PYTHON"
    REMOTE_TASK_DISPATCHER = "REMOTE_TASK_DISPATCHER"


CallableKindName._numbers, TargetNamespaceName._numbers = CallableKind, TargetNamespace


def _mismatch(why: str) -> CallableError:
    return CallableError("HASHID_DESCRIPTOR_MISMATCH", why)


def _u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _text(value: str | bytes) -> bytes:
    try:
        raw = value.encode(errors="surrogateescape") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise _mismatch(f"{value!r} is no text that UTF-8 has") from None
    return _u32(len(raw)) + raw


def build_python_serialized_descriptor(payload: bytes) -> bytes:
    """Describe a Python callable by its serialised form (cloudpickle's output)."""
    return _u32(_SCHEMA, CallableKind.PYTHON_SERIALIZED, _PAYLOAD_FORMAT, _CLOUDPICKLE) + _text(
        hashlib.sha256(payload).digest()
    )


def build_chip_signature_schema(target: Any) -> bytes:
    """Describe the directions of a chip callable's arguments, or of a sequence of directions.

    Raises CallableError HASHID_DESCRIPTOR_MISMATCH if one is no ArgDirection.
    """
    if hasattr(target, "sig_count"):
        target = [target.sig(i) for i in range(target.sig_count)]
    numbers = [int(direction) for direction in target]
    for i, number in enumerate(numbers):
        if not 0 <= number <= ArgDirection.INOUT:
            raise _mismatch(f"argument {i} has direction {number}; the directions are 0 to 3")
    return _u32(_SCHEMA, len(numbers), *numbers)


def architecture_of(platform: str) -> str:
    """Return the architecture of a platform, such as ``a2a3`` of ``a2a3sim``; empty if it is none."""
    return next((one for one in _ARCHITECTURES if platform.startswith(one)), "")


def build_chip_callable_descriptor(
    *, target: Any, platform: str = "", runtime: str = "", target_arch: str | None = None
) -> bytes:
    """Describe a chip callable: what it is built for, the hashes of its blob and its signature.

    `target` has `sig_count` and `sig`, and `to_bytes`, or `buffer_ptr` and `buffer_size`; `target_arch`
    is that of the platform if it is not given.
    """
    if hasattr(target, "to_bytes"):
        raw = target.to_bytes()
    else:
        raw = ctypes.string_at(target.buffer_ptr(), target.buffer_size())
    arch = architecture_of(platform) if target_arch is None else target_arch
    signature = build_chip_signature_schema(target)
    hashes = (hashlib.sha256(one).digest() for one in (bytes(raw), signature))
    parts: list[str | bytes] = [arch, platform, runtime, *hashes]
    return _u32(_SCHEMA, CallableKind.CHIP_CALLABLE) + b"".join(map(_text, parts))


def build_python_import_descriptor(module: str, qualname: str) -> bytes:
    """Describe a Python callable by where it can be imported from.

    Raises CallableError HASHID_DESCRIPTOR_MISMATCH if a part is none that can be imported.
    """
    for what, value in (("module", module), ("qualname", qualname)):
        if not value or not all(part.isidentifier() for part in value.split(".")):
            raise _mismatch(
                f"{what} {value!r} is not importable: identifiers joined by dots are needed"
            )
    return _u32(_SCHEMA, CallableKind.PYTHON_IMPORT) + _text(module) + _text(qualname)


def parse_python_import_descriptor(raw: bytes) -> tuple[str, str]:
    """Return module and qualified name from a descriptor."""
    try:
        size = int.from_bytes(raw[8:12], "little")
        module, qualname = raw[12 : 12 + size].decode(), raw[16 + size :].decode()
        if build_python_import_descriptor(module, qualname) == raw:
            return module, qualname
    except UnicodeDecodeError:
        pass
    raise _mismatch(f"{raw[:64]!r} describes no import")


def parse_python_import_target(target: str) -> tuple[str, str]:
    """Return module and qualified name of ``module:qualname``.

    Raises CallableError HASHID_DESCRIPTOR_MISMATCH: not exactly one colon, or a part that no import has.
    """
    if not isinstance(target, str):
        raise TypeError(f"a target is a text, module:qualname, got {target!r:.60}")
    module, colon, qualname = target.partition(":")
    if not colon:
        raise _mismatch(f"{target!r} has no colon: give module:qualname")
    build_python_import_descriptor(module, qualname)  # refuses what is not importable
    return module, qualname


def compute_callable_hashid(descriptor: bytes) -> str:
    """Return ``sha256:`` and the 64 hex digits of a descriptor's SHA-256."""
    return "sha256:" + hashlib.sha256(descriptor).hexdigest()


def validate_hashid(hashid: str) -> str:
    """Return `hashid` if it is one, or raise CallableError HASHID_FORMAT_INVALID."""
    if not isinstance(hashid, str) or not _HASHID.fullmatch(hashid):
        raise CallableError(
            "HASHID_FORMAT_INVALID",
            f"{hashid!r} is no hashid: sha256: and 64 lower-case hex digits are expected",
        )
    return hashid


def hashid_to_digest(hashid: str) -> bytes:
    """Return the 32 bytes a hashid stands for."""
    return bytes.fromhex(validate_hashid(hashid).removeprefix("sha256:"))


# ---------------------------------------------------------------- handles
_handle_numbers = itertools.count()
_handles: weakref.WeakValueDictionary[str, CallableHandle] = weakref.WeakValueDictionary()
"""Every handle of this process, and of those it was forked from."""


def _find_handle(token: str, hashid: str, kind: str, namespace: str, name: str) -> CallableHandle:
    """Return the deserialised handle: the same object where it is known."""
    handle = _handles.get(token)
    if handle is None:
        handle = CallableHandle(hashid, kind, namespace, name)
        handle._remember(token)
    elif (handle.hashid, handle.kind, handle.target_namespace) != (hashid, kind, namespace):
        raise _mismatch(
            f"{handle!r} was serialised with another hashid, kind or namespace: {hashid!r}, {kind!r}, "
            f"{namespace!r}",
        )
    return handle


_FIELDS = ("hashid", "kind", "target_namespace", "digest")


def _field(name: str) -> Any:
    """Return a field that can be set, also by ``object.__setattr__``; another value is noticed."""
    slot = f"_{name}"

    def read(handle: CallableHandle) -> Any:
        return getattr(handle, slot)

    def write(handle: CallableHandle, value: Any) -> None:
        object.__setattr__(handle, slot, value)
        kind = _ChangedHandle if handle._changes() else CallableHandle
        object.__setattr__(handle, "__class__", kind)

    return property(read, write)


class CallableHandle:
    """Identifies a registered callable: `Worker.register` returns it, submit takes it.

    Leave it as it is: one that was changed is refused.

    Attributes
    ----------
    hashid : str
    kind : CallableKindName
        A text, such as ``"CHIP_CALLABLE"``.
    target_namespace : TargetNamespaceName
        A text, such as ``"LOCAL_CHIP"``.
    digest : bytes
        32 bytes.
    name : str
        For messages.
    """

    __slots__ = (
        *("__weakref__", "_made", "_namespace", "_token", "name"),
        *map("_{}".format, _FIELDS),
    )

    hashid: str = _field("hashid")
    kind: CallableKindName = _field("kind")
    target_namespace: TargetNamespaceName = _field("target_namespace")
    digest: bytes = _field("digest")
    name: str
    _made: tuple[str, CallableKindName, TargetNamespaceName, bytes]
    _namespace: TargetNamespace
    _token: str

    def __init__(
        self,
        hashid: str,
        kind: CallableKind | CallableKindName | str,
        target_namespace: TargetNamespace | TargetNamespaceName | str,
        name: str = "",
    ) -> None:
        namespace = TargetNamespaceName(target_namespace)
        made = hashid, CallableKindName(kind), namespace, hashid_to_digest(hashid)
        values = *made, made, TargetNamespace[namespace.name], name
        names = *map("_{}".format, _FIELDS), "_made", "_namespace", "name"
        for field, value in zip(names, values, strict=True):
            object.__setattr__(self, field, value)
        self._remember(f"{os.getpid()}.{next(_handle_numbers)}")

    def _remember(self, token: str) -> None:
        object.__setattr__(self, "_token", token)
        _handles[token] = self

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.hashid, str(self.kind), str(self.target_namespace), self.name)
        return _find_handle, (self._token, *fields)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            raise AttributeError(f"a CallableHandle cannot be changed (tried to set {name!r})")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a CallableHandle cannot be changed (tried to delete {name!r})")

    def _changes(self) -> list[str]:
        """Return which fields are not as `register` has made them."""
        return [
            f"{field}={getattr(self, field)!r} (it was {made!r})"
            for field, made in zip(_FIELDS, self._made, strict=True)
            if getattr(self, field) != made
        ]

    def __repr__(self) -> str:
        return f"<CallableHandle {self.name or '?'} {self._made[0][:19]}…>"


def chip_handle(target: Any, platform: str = "", runtime: str = "") -> CallableHandle:
    """Return a fresh handle for a chip callable."""
    descriptor = build_chip_callable_descriptor(target=target, platform=platform, runtime=runtime)
    hashid, name = compute_callable_hashid(descriptor), target.config_name or target.func_name
    return CallableHandle(hashid, CallableKind.CHIP_CALLABLE, TargetNamespace.LOCAL_CHIP, name)


def python_handle(raw: bytes, name: str) -> CallableHandle:
    """Return a fresh handle for a Python callable, from its serialised form."""
    hashid = compute_callable_hashid(build_python_serialized_descriptor(raw))
    kind, namespace = CallableKind.PYTHON_SERIALIZED, TargetNamespace.LOCAL_PYTHON
    return CallableHandle(hashid, kind, namespace, name)


class _ChangedHandle(CallableHandle):
    """What a handle becomes when a field is set to another value: to look it up in a table fails."""

    __slots__ = ()

    def __hash__(self) -> NoReturn:
        raise self._error()

    def __reduce__(self) -> NoReturn:
        raise self._error()

    def _error(self) -> HandleMutatedError:
        return HandleMutatedError(
            "CALLABLE_HANDLE_MUTATED",
            f"{self!r} was changed after register had returned it: {', '.join(self._changes())}; use it "
            "as it was, or register the callable again",
        )
