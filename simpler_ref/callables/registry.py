"""The registered callables of one Worker, by digest.

A registration is all or nothing: the handle exists only once every live worker that takes such callables
has installed it. Workers started later are made from the registry; running ones are asked one after the
other through their mailboxes, and if one cannot, those that have installed it undo that. If a worker
cannot confirm the undoing, this Worker refuses the digest from then on.

Rule     FLOW-HANDLE-2, FLOW-HANDLE-3, FLOW-HANDLE-5, FLOW-REG-2, FLOW-REG-3, FLOW-REG-4, FLOW-REG-6,
         FLOW-UNDO-3, FLOW-UNREG-1, FLOW-UNREG-2, WM-START-3, WM-CHIP-2
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from ..engine.memory import Engine
from ..errors import CallableError, LocalSlotExhaustedError
from ..jit import layout as L
from ..model.enums import WorkerType
from .identity import CallableHandle, TargetNamespace, chip_handle, python_handle
from .pickling import load_payload, pack_payload, require_serialised, serialize, why_not_serialised

Snapshot = Mapping[TargetNamespace, Mapping[bytes, Any]]
"""The callables that workers are made with: digest → target, for each kind of callables."""

_REMOVED = "REGISTER_TOMBSTONE_ACTIVE"
_UNCONFIRMED = {
    _REMOVED: "its removal was not confirmed by every worker",
    "REGISTER_CLEANUP_UNCERTAIN": (
        "an earlier registration failed and could not be undone on every worker"
    ),
}
"""Errors of callables that a worker may still have, by their codes."""
_retired: weakref.WeakSet[CallableHandle] = weakref.WeakSet()
"""Unregistered handles, for the message when one is used again."""


def is_chip_callable(target: Any) -> bool:
    """Say whether a target is a ChipCallable, without importing the modules for chips."""
    chips = sys.modules.get("simpler_ref.native_chip.abi")
    return chips is not None and isinstance(target, chips.ChipCallable)


class Registered:
    """One installed callable, and the handles that refer to it."""

    __slots__ = ("digest", "handles", "index", "name", "namespace", "payload", "target")

    def __init__(self, handle: CallableHandle, index: int, target: Any, payload: bytes) -> None:
        self.digest = handle.digest
        self.namespace = handle._namespace
        self.name = handle.name
        self.index = index
        self.target = target
        self.payload = payload
        self.handles: set[CallableHandle] = set()

    @property
    def commands(self) -> tuple[int, int]:
        """The control commands that install and remove it."""
        if self.namespace == TargetNamespace.LOCAL_CHIP:
            return L.CTRL_REGISTER, L.CTRL_UNREGISTER
        return L.CTRL_PY_REGISTER, L.CTRL_PY_UNREGISTER


class Registry:
    """Digest → callable, handle → index, for one Worker.

    An installer is the `WorkerManager` of running workers, if there are any.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held during a registration, also while workers are asked."""
        self._installed: dict[bytes, Registered] = {}
        self._used: dict[int, Registered] = {}
        self._unconfirmed: dict[bytes, str] = {}
        """Callables that a worker may still have, and the code of the error for that."""
        self.has_leaving = False
        """Whether there are callables without handles: unregistered during a run, removed after it."""
        self._words: dict[tuple[TargetNamespace, int], dict[CallableHandle, int]] = {
            (namespace, pool): {} for namespace in TargetNamespace for pool in WorkerType
        }

    # ------------------------------------------------------------ looking things up
    def words(self, namespace: TargetNamespace, pool: int) -> dict[CallableHandle, int]:
        """Return live handle → callable word for tasks of a pool (the registry's own table)."""
        return self._words[namespace, pool]

    def is_live(self, handle: CallableHandle) -> bool:
        return handle in self._words[handle._namespace, L.SUB]

    def name(self, index: int) -> str:
        """Return the name of the callable at an index; any thread may ask."""
        found = self._used.get(index)
        return "?" if found is None else found.name

    def names(self) -> dict[bytes, str]:
        return {digest: one.name for digest, one in list(self._installed.items())}

    def target(self, handle: CallableHandle) -> Any:
        return self._installed[handle.digest].target

    def installed(self, digest: bytes) -> Any:
        """Return the callable that has a digest, None if there is none."""
        found = self._installed.get(digest)
        return None if found is None else found.target

    def snapshot(self, as_bytes: bool = False) -> Snapshot:
        """Return the callables for workers made now, or payloads for those in a fresh interpreter."""
        tables: dict[TargetNamespace, dict[bytes, Any]] = {ns: {} for ns in TargetNamespace}
        for digest, one in self._installed.items():
            if as_bytes:
                require_serialised(one.name, one.payload)
            tables[one.namespace][digest] = one.payload if as_bytes else one.target
        return tables

    def __getstate__(self) -> list[tuple[int, bytes, list[CallableHandle]]]:
        """Return what a fresh interpreter makes the registry of a child Worker from."""
        self.snapshot(as_bytes=True)  # refuses what cannot travel
        return [
            (one.index, one.payload, list(one.handles))
            for one in self._installed.values()
            if one.handles
        ]

    def __setstate__(self, state: list[tuple[int, bytes, list[CallableHandle]]]) -> None:
        self.__init__()  # type: ignore[misc]
        for index, payload, handles in state:
            chip = handles[0]._namespace != TargetNamespace.LOCAL_PYTHON
            target = load_payload(payload, chip, handles[0].digest)
            one = Registered(handles[0], index, target, payload)
            self._used[index] = self._installed[one.digest] = one
            for handle in handles:
                self._make_live(one, handle)

    def _make_live(self, one: Registered, handle: CallableHandle) -> None:
        one.handles.add(handle)
        for pool in WorkerType:
            self._table(one.namespace, pool)[handle] = one.index | pool << L.WORD_KIND

    def _table(self, namespace: TargetNamespace, pool: int) -> dict[CallableHandle, int]:
        """Return the table of a callable: those of endpoints are in their pool's beside the others."""
        if namespace == TargetNamespace.REMOTE_TASK_DISPATCHER and pool == L.NEXT_LEVEL:
            namespace = TargetNamespace.LOCAL_PYTHON
        return self._words[namespace, pool]

    def explain(self, handle: CallableHandle) -> Exception:
        if handle in _retired:
            return KeyError(f"{handle!r} is not live on this Worker: it was unregistered")
        return KeyError(f"{handle!r} does not belong to this Worker: register its callable here")

    # ------------------------------------------------------------ registering
    def describe(
        self, target: Any, chip: bool, platform: str, runtime: str
    ) -> tuple[CallableHandle, Any, bytes]:
        """Return a fresh handle for a callable, what a worker installs, and the bytes that travel."""
        if chip:
            payload = target.to_bytes()
            return chip_handle(target, platform, runtime), payload, payload
        raw = serialize(target)
        payload = raw if why_not_serialised(raw) else pack_payload(raw)
        name = getattr(target, "__qualname__", type(target).__qualname__)
        return python_handle(raw, name), target, payload

    def add(
        self,
        handle: CallableHandle,
        target: Any,
        payload: bytes,
        engine: Engine | None,
        installer: Any,
    ) -> None:
        """Install a callable wherever it belongs and make its handle live.

        CallableError REGISTER_PARTIAL_FAILURE: a worker could not install it, the others have forgotten
        it; REGISTER_CLEANUP_UNCERTAIN: one may not have; REGISTER_TOMBSTONE_ACTIVE: it is still being
        removed. TypeError: it cannot be serialised, and the workers run already.
        """
        with self.lock:
            digest = handle.digest
            if code := self._unconfirmed.get(digest):
                raise CallableError(
                    code, f"{handle.name}: {_UNCONFIRMED[code]}; register it with a new Worker"
                )
            one = self._installed.get(digest)  # perhaps one that was to leave after the run
            if one is None:
                one = Registered(handle, self._free_index(), target, payload)
                try:
                    if installer is not None:
                        installer.install_everywhere(one)
                except CallableError as error:
                    if error.code in _UNCONFIRMED:
                        self._unconfirmed[digest] = error.code
                    raise
                self._used[one.index] = one  # first: no other may get its index
                if engine is not None:
                    engine.view.write_digest(one.index, one.digest)
                self._installed[digest] = one
            self._make_live(one, handle)

    def _free_index(self) -> int:
        index = next(i for i in range(len(self._used) + 1) if i not in self._used)
        if index >= L.MAX_REGISTERED_CALLABLE_IDS:
            raise LocalSlotExhaustedError(
                f"LOCAL_SLOT_EXHAUSTED: {L.MAX_REGISTERED_CALLABLE_IDS} callables are registered "
                "(MAX_REGISTERED_CALLABLE_IDS); unregister those no longer needed"
            )
        return index

    def write_digests(self, engine: Engine) -> None:
        for one in self._used.values():
            engine.view.write_digest(one.index, one.digest)

    def missing(self, namespace: TargetNamespace, known: Mapping[bytes, Any]) -> list[Registered]:
        """Return the callables that are not in an old snapshot, from which a worker was made."""
        return [
            one
            for digest, one in self._installed.items()
            if one.namespace == namespace and digest not in known
        ]

    # ------------------------------------------------------------ unregistering
    def discard(self, handle: CallableHandle, installer: Any, running: bool) -> None:
        """Unregister a handle; with its last handle a callable is removed, after the current run if any.

        KeyError: it is foreign, or not live. CallableError UNREGISTER_TOMBSTONE_ACTIVE: its callable is
        still being removed. ControlTimeoutError: a worker did not confirm the removal in time.
        """
        with self.lock:
            if not self.is_live(handle):
                if self._unconfirmed.get(handle.digest) == _REMOVED:
                    raise CallableError(
                        "UNREGISTER_TOMBSTONE_ACTIVE",
                        f"{handle!r} was unregistered; a worker has not confirmed its removal yet",
                    )
                raise self.explain(handle)
            one = self._installed[handle.digest]
            for pool in WorkerType:
                del self._table(one.namespace, pool)[handle]
            one.handles.discard(handle)
            _retired.add(handle)
            if not one.handles:
                self.has_leaving = True
                if not running:
                    self.remove_leaving(installer)

    def remove_leaving(self, installer: Any) -> None:
        """Remove the callables unregistered while tasks could still need them."""
        if not self.has_leaving:
            return
        with self.lock:
            self.has_leaving, first = False, None
            for one in [one for one in self._used.values() if not one.handles]:
                del self._used[one.index], self._installed[one.digest]
                if installer is None:
                    continue
                error = installer.remove(one)
                if error is not None:
                    self._unconfirmed[one.digest] = _REMOVED
                    first = first or error
            if first is not None:
                raise first

    def forget_tombstones(self) -> None:
        """Forget the tombstones: new workers have no removed callables."""
        for digest, code in list(self._unconfirmed.items()):
            if code == _REMOVED:
                del self._unconfirmed[digest]
