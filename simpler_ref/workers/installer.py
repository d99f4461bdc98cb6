"""Installs callables in running workers, through their mailboxes: in all of them or in none.

Rule     REMOTE-REG-4; FLOW-REG-2, -4; FLOW-UNDO-1, -2; FLOW-UNREG-3, -4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from ..callables.payloads import require_serialised, staged, staged_object
from ..callables.registry import Registered
from ..errors import CallableError, ControlError, WorkerLostError
from ..jit import layout as L
from .manager import LostBeforeError, WorkerManager
from .threads import ThreadManager


class Installer:
    """Makes control requests to the workers of a manager, one after the other."""

    def __init__(self, manager: WorkerManager) -> None:
        self._manager = manager

    def install_everywhere(self, one: Registered) -> None:
        """Have every live worker that takes such callables install one.

        One that dies before it is asked needs none: its successor gets all that is registered.

        Raises
        ------
        CallableError
            REGISTER_PARTIAL_FAILURE: a worker could not install it, the others have forgotten it;
            REGISTER_CLEANUP_UNCERTAIN: one may not have.
        TypeError
            It cannot be serialised.
        """
        done: list[int] = []
        for worker in self._manager.targets(one.namespace):
            with self._all_or_none(one, done):
                if self._is_prepared(one, worker):
                    done.append(worker)
        for worker in done if one.is_remote else ():
            with self._all_or_none(one, done):
                self._commit(one, worker)

    def _is_prepared(self, one: Registered, worker: int) -> bool:
        """Have a worker install a callable; return False if it died before it was asked."""
        try:
            self._prepare(one, worker)
        except LostBeforeError:
            if one.is_remote:
                raise
            return False
        return True

    @contextmanager
    def _all_or_none(self, one: Registered, done: list[int]) -> Iterator[None]:
        """Should a worker refuse, have those that did not forget a callable, and say so."""
        try:
            yield
        except BaseException as error:
            self._roll_back(one, done, error)
            if isinstance(error, (ControlError, WorkerLostError)):
                raise CallableError(
                    "REGISTER_PARTIAL_FAILURE", f"{one.name} is not registered: {error}"
                ) from error
            raise

    def install(self, one: Registered, worker: int) -> None:
        """Have one running worker install a callable."""
        self._prepare(one, worker)
        if one.is_remote:
            self._commit(one, worker)

    def _commit(self, one: Registered, worker: int) -> None:
        """Have an endpoint make a callable usable that it has prepared."""
        self._manager.exchange(worker, L.LINK_COMMIT, one.payload)

    def _prepare(self, one: Registered, worker: int) -> None:
        command, _ = one.commands
        if isinstance(self._manager, ThreadManager):
            staging, size = staged_object(one.target), 0
        else:
            require_serialised(one.name, one.payload, running=True)
            staging, size = staged(one.payload), len(one.payload)
        with staging as name:
            self._manager.control(worker, command, (size,), name=name, digest=one.digest)

    def _roll_back(self, one: Registered, done: list[int], why: BaseException) -> None:
        """Have the workers that installed a callable forget it."""
        error = self._remove(one, done)
        if error is not None:
            raise CallableError(
                "REGISTER_CLEANUP_UNCERTAIN",
                f"{one.name} is not registered ({why}), and that could not be undone: {error}",
            ) from why

    def remove_everywhere(self, one: Registered) -> ControlError | None:
        """Have every live worker forget a callable; return the first refusal."""
        return self._remove(one, self._manager.targets(one.namespace))

    def _remove(self, one: Registered, workers: Iterable[int]) -> ControlError | None:
        """Have workers forget a callable, every one of them; return the first refusal."""
        _, command = one.commands
        first = None
        for worker in workers:
            try:
                with suppress(WorkerLostError):  # its callables are gone with it
                    self._manager.control(worker, command, digest=one.digest)
            except ControlError as error:
                first = first or error
        return first
