"""The handles of callables."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any

from ..errors import CallableError
from .identity import CallableKind, TargetNamespace, hashid_to_digest, validate_hashid

_handle_numbers = itertools.count()
_handles: weakref.WeakValueDictionary[str, CallableHandle] = weakref.WeakValueDictionary()
"""Every handle of this process, and of those it was forked from."""


def _find_handle(token: str, hashid: str, kind: int, namespace: int, name: str) -> CallableHandle:
    """Return the deserialised handle: the same object where it is known.

    Raises
    ------
    CallableError, ValueError
        The parts are not those of a handle, or of another one.

    Notes
    -----
    Rule     FLOW-HANDLE-4
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
    """Identifies a registered callable: `Worker.register` returns it, submit takes it; immutable.

    Attributes
    ----------
    hashid : str
    kind : CallableKind
    target_namespace : TargetNamespace
    digest : bytes
        32 bytes.
    name : str
        For messages.

    Notes
    -----
    Rule     FLOW-HANDLE-1
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
