"""The handles of callables.

Rule     FLOW-HANDLE-1, -4, -6
"""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any, NamedTuple, NoReturn

from ..errors import CallableError, HandleMutatedError
from .identity import (
    CallableKind,
    CallableKindName,
    TargetNamespace,
    TargetNamespaceName,
    hashid_to_digest,
    validate_hashid,
)

_handle_numbers = itertools.count()
_handles: weakref.WeakValueDictionary[str, CallableHandle] = weakref.WeakValueDictionary()
"""Every handle of this process, and of those it was forked from."""


def _find_handle(token: str, hashid: str, kind: str, namespace: str, name: str) -> CallableHandle:
    """Return the deserialised handle: the same object where it is known.

    Raises
    ------
    CallableError, ValueError
        The parts are not those of a handle, or of another one.
    """
    handle = _handles.get(token)
    if handle is None:
        handle = CallableHandle(hashid, kind, namespace, name)
        handle._remember(token)
    elif (handle.hashid, handle.kind, handle.target_namespace) != (hashid, kind, namespace):
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH",
            f"{handle!r} was serialised with another hashid, kind or namespace: {hashid!r}, {kind!r}, "
            f"{namespace!r}",
        )
    return handle


def _field(name: str) -> Any:
    """Return a field that can be set; to set it to another value makes a handle useless."""
    slot = f"_{name}"

    def read(handle: CallableHandle) -> Any:
        return getattr(handle, slot)

    def write(handle: CallableHandle, value: Any) -> None:
        object.__setattr__(handle, slot, value)
        changed = any(getattr(handle, one) != getattr(handle._made, one) for one in _FIELDS)
        object.__setattr__(handle, "__class__", ChangedHandle if changed else CallableHandle)

    return property(read, write)


class _Made(NamedTuple):
    """The fields as `register` has made them."""

    hashid: str
    kind: CallableKindName
    target_namespace: TargetNamespaceName
    digest: bytes


_FIELDS = _Made._fields


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
        "__weakref__",
        "_made",
        "_namespace",
        "_token",
        "name",
        *map("_{}".format, _FIELDS),
    )

    hashid: str = _field("hashid")
    kind: CallableKindName = _field("kind")
    target_namespace: TargetNamespaceName = _field("target_namespace")
    digest: bytes = _field("digest")
    name: str
    _made: _Made
    _namespace: TargetNamespace
    _token: str

    def __init__(
        self,
        hashid: str,
        kind: CallableKind | CallableKindName | str,
        target_namespace: TargetNamespace | TargetNamespaceName | str,
        name: str = "",
    ) -> None:
        write = object.__setattr__
        namespace = TargetNamespaceName(target_namespace)
        digest = hashid_to_digest(validate_hashid(hashid))
        made = _Made(hashid, CallableKindName(kind), namespace, digest)
        write(self, "_made", made)
        for field, value in zip(_FIELDS, made, strict=True):
            write(self, f"_{field}", value)
        write(self, "_namespace", TargetNamespace[namespace.name])
        write(self, "name", name)
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

    def __repr__(self) -> str:
        return f"<CallableHandle {self.name or '?'} {self._made.hashid[:19]}…>"


class ChangedHandle(CallableHandle):
    """What a handle becomes when a field is set to another value: to look it up in a table fails."""

    __slots__ = ()

    def __hash__(self) -> NoReturn:
        raise self._error()

    def __reduce__(self) -> NoReturn:
        raise self._error()

    def _error(self) -> HandleMutatedError:
        """Return the exception that says what was changed."""
        changed = [one for one in _FIELDS if getattr(self, one) != getattr(self._made, one)]
        values = ", ".join(
            f"{one}={getattr(self, one)!r} (it was {getattr(self._made, one)!r})" for one in changed
        )
        return HandleMutatedError(
            "CALLABLE_HANDLE_MUTATED",
            f"{self!r} was changed after register had returned it: {values}; use it as it was, or "
            "register the callable again",
        )
