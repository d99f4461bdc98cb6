"""Installs callables in running workers, through their mailboxes: in all of them or in none."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from ..callables.payloads import staged, staged_object
from ..callables.registry import Registered, require_payload
from ..errors import CallableError, ControlError, WorkerLostError
from .manager import WorkerManager
from .threads import ThreadManager


class Installer:
    """Makes control requests to the workers of a manager, one after the other.

    Attributes
    ----------
    timeout_s : float
        How long a worker may take, its running task included.
    """

    def __init__(self, manager: WorkerManager, timeout_s: float) -> None:
        self._manager = manager
        self.timeout_s = timeout_s

    def install_everywhere(self, one: Registered) -> None:
        """Have every live worker that takes such callables install one.

        Raises
        ------
        CallableError
            REGISTER_PARTIAL_FAILURE: a worker could not install it, the others have forgotten it;
            REGISTER_CLEANUP_UNCERTAIN: one may not have.
        TypeError
            It cannot be serialised.

        Notes
        -----
        Rule     FLOW-REG-2; FLOW-UNDO-1
        """
        done: list[int] = []
        for worker in self._manager.targets(one.namespace):
            try:
                self.install(one, worker)
            except BaseException as error:
                self._roll_back(one, done, error)
                if isinstance(error, (ControlError, WorkerLostError)):
                    raise CallableError(
                        "REGISTER_PARTIAL_FAILURE", f"{one.name} is not registered: {error}"
                    ) from error
                raise
            done.append(worker)

    def install(self, one: Registered, worker: int) -> None:
        """Have one running worker install a callable."""
        command, _ = one.commands
        if isinstance(self._manager, ThreadManager):
            staging, size = staged_object(one.target), 0
        else:
            require_payload(one.name, one.target, one.payload, running=True)
            staging, size = staged(one.payload), len(one.payload)
        with staging as name:
            self._manager.control(
                worker, command, (size,), name=name, digest=one.digest, timeout_s=self.timeout_s
            )

    def _roll_back(self, one: Registered, done: list[int], why: BaseException) -> None:
        """Have the workers that installed a callable forget it.

        Rule     FLOW-UNDO-1, -2
        """
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
        """Have workers forget a callable, every one of them; return the first refusal.

        Rule     FLOW-UNREG-3, -4
        """
        _, command = one.commands
        first = None
        for worker in workers:
            try:
                with suppress(WorkerLostError):  # its callables are gone with it
                    self._manager.control(
                        worker, command, digest=one.digest, timeout_s=self.timeout_s
                    )
            except ControlError as error:
                first = first or error
        return first
