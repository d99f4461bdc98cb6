"""What running workers are asked for, through their mailboxes: to install callables, for memory, and
for traces of the Workers below.

Rule     REMOTE-REG-4, FLOW-REG-2, FLOW-REG-4, FLOW-UNDO-1, FLOW-UNDO-2, FLOW-UNREG-3, FLOW-UNREG-4,
         WM-CTRL-6, SEE-ON-4, SEE-REMOTE-1
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ..callables.pickling import require_serialised, staged, staged_object
from ..callables.registry import Registered
from ..errors import CallableError, ControlError, NoMemoryError, WorkerLostError
from ..jit import layout as L
from ..model.visibility import Visible, invisible
from ..system.values import whole
from .kinds import WorkerKind
from .manager import LostBeforeError, WorkerManager, log, worker_name


# ---------------------------------------------------------------- callables
class Installer:
    """Installs callables in all workers that take them, one after the other, or in none."""

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
        try:
            for worker in self._manager.targets(one.namespace):
                try:
                    self._prepare(one, worker)
                    done.append(worker)
                except LostBeforeError:
                    if self._manager.kinds[worker].has_two_phases:
                        raise
            for worker in done:
                self._commit(one, worker)
        except BaseException as error:
            refused = self._remove(one, done)
            if refused is not None:
                raise CallableError(
                    "REGISTER_CLEANUP_UNCERTAIN",
                    f"{one.name} is not registered ({error}), and that could not be undone: {refused}",
                ) from error
            if isinstance(error, (ControlError, WorkerLostError)):
                raise CallableError(
                    "REGISTER_PARTIAL_FAILURE", f"{one.name} is not registered: {error}"
                ) from error
            raise

    def install(self, one: Registered, worker: int) -> None:
        """Have one running worker install a callable."""
        self._prepare(one, worker)
        self._commit(one, worker)

    def _commit(self, one: Registered, worker: int) -> None:
        """Have a worker make a callable usable that it has only prepared."""
        if self._manager.kinds[worker].has_two_phases:
            self._manager.exchange(worker, L.LINK_COMMIT, one.payload)

    def _prepare(self, one: Registered, worker: int) -> None:
        command, _ = one.commands
        if self._manager.in_threads:
            staging, size = staged_object(one.target), 0
        else:
            require_serialised(one.name, one.payload, running=True)
            staging, size = staged(one.payload), len(one.payload)
        with staging as name:
            self._manager.control(worker, command, (size,), name=name, digest=one.digest)

    def remove_everywhere(self, one: Registered) -> ControlError | None:
        """Have every live worker forget a callable; return the first refusal."""
        return self._remove(one, self._manager.targets(one.namespace))

    def _remove(self, one: Registered, workers: Iterable[int]) -> ControlError | None:
        _, command = one.commands
        first = None
        for worker in workers:
            try:
                with suppress(WorkerLostError):  # its callables are gone with it
                    self._manager.control(worker, command, digest=one.digest)
            except ControlError as error:
                first = first or error
        return first


# ---------------------------------------------------------------- memory of chips
MOST_BYTES = 1 << 62
MOST_ADDRESS = (1 << 64) - 1


class ChipMemory:
    """Control requests about memory; see `Worker.malloc` and the others.

    `running` returns the manager of the workers, started if necessary; `check` says what host memory they
    cannot see, None: they see all.
    """

    def __init__(
        self,
        next_level: Sequence[WorkerKind],
        running: Callable[[], WorkerManager],
        check: Visible | None,
    ) -> None:
        self._kinds, self._running, self._check = next_level, running, check

    def malloc(self, worker_id: int, size: int) -> int:
        """Allocate memory and return its address."""
        return self._ask(L.CTRL_MALLOC, worker_id, whole("size", size, 1, MOST_BYTES))

    def free(self, worker_id: int, ptr: int) -> None:
        """Free memory."""
        self._ask(L.CTRL_FREE, worker_id, _address("ptr", ptr))

    def copy_to(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Copy host memory to a worker's."""
        self._require_visible("src", src, size, worker_id)
        self._ask(L.CTRL_COPY_TO, worker_id, _address("dst", dst), src, size)

    def copy_from(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Copy a worker's memory to the host's."""
        self._require_visible("dst", dst, size, worker_id)
        self._ask(L.CTRL_COPY_FROM, worker_id, dst, _address("src", src), size)

    def _require_visible(self, name: str, address: int, size: int, worker_id: int) -> None:
        _address(name, address)
        whole("size", size, 0, MOST_BYTES)
        self._worker(worker_id)
        if self._check is not None and (why := self._check(address, size)) is not None:
            raise invisible(address, size, why)

    def _ask(self, command: int, worker_id: int, *args: int) -> int:
        worker = self._worker(worker_id)  # before any are started
        return self._running().control(worker, command, args)

    def _worker(self, worker_id: int) -> int:
        """Return a next-level worker that has memory."""
        count = len(self._kinds)
        if not hasattr(worker_id, "__index__") or not 0 <= worker_id < count:
            raise IndexError(
                f"worker_id {worker_id!r} is out of range: there are {count} next-level workers"
            )
        worker = operator.index(worker_id)
        if not _manages_memory(self._kinds[worker]):
            with_memory = sum(map(_manages_memory, self._kinds))
            name = self._running().name(worker)
            raise NoMemoryError(
                f"{name}: CALLABLE_KIND_UNSUPPORTED: it has no memory of its own to "
                f"manage; worker_id {worker} is out of range of workers that have: there are "
                f"{with_memory}"
            )
        return worker


def _manages_memory(kind: WorkerKind) -> bool:
    """Say whether a kind of workers carries out requests about memory: all others inherit the refusal."""
    return type(kind).control is not WorkerKind.control


def _address(name: str, value: int) -> int:
    return whole(name, value, 0, MOST_ADDRESS)


# ---------------------------------------------------------------- traces of the Workers below
WAIT_S = 0.5
"""How long an endpoint may take to answer how many bytes are still to come."""


class ChildTraces:
    """Has the Workers below one take traces: child Workers, and those of endpoints.

    Each has a file of its own beside that of the parent, which names it. The workers that run them are
    told when they have started or when a trace begins, and when it ends.
    """

    def __init__(self, kinds: Sequence[WorkerKind]) -> None:
        self._kinds = kinds
        self._path: str | None = None
        self._detail = ""
        self._turns: dict[int, int] = {}
        """How many traces each worker has begun."""
        self._files: list[tuple[str, int]] = []
        self._untraced: dict[str, str] = {}
        self._cut_off: dict[str, str] = {}
        """Why a file lacks what was noted last."""

    def told(self) -> dict[str, Any]:
        """Return what a trace is told: the files beside it, their workers, what is missing and why."""
        files = list(self._files)
        return {
            "children": [name for name, _ in files],
            "child_workers": [worker for _, worker in files],
            "untraced": dict(self._untraced),
            "cut_off": dict(self._cut_off),
        }

    def open(self, path: str, detail: str) -> None:
        """Note that a trace of the Worker itself has begun."""
        self._path, self._detail = path, detail
        self._turns, self._files, self._untraced, self._cut_off = {}, [], {}, {}

    def begin(self, manager: WorkerManager, workers: Iterable[int] | None = None) -> None:
        """Begin the traces of all that run, or of some that have just started, if one is taken."""
        if self._path is None:
            return
        for worker in manager.present() if workers is None else workers:
            if not self._kinds[worker].has_traces:
                continue
            name = worker_name(self._kinds, worker)
            if worker in manager.dead:
                self._untraced[name] = self._kinds[worker].last_words() or "it is lost"
                continue
            file = self._file(worker)
            if why := _ask(manager, worker, {"file": file, "detail": self._detail}).get("why"):
                self._untraced[name] = why
                log.warning("%s is not traced: %s", name, why)
            else:
                self._files.append((os.path.basename(file), worker))

    def end(self, manager: WorkerManager) -> None:
        """End the traces, once all that was noted has come."""
        if self._path is None:
            return
        self._path = None
        for worker in manager.present():
            if not self._kinds[worker].has_traces or worker in manager.dead:
                continue
            while (told := _ask(manager, worker, {"wait_s": WAIT_S})).get("left"):
                pass
            if why := told.get("why"):
                if files := [file for file, other in self._files if other == worker]:
                    self._cut_off[files[-1]] = why
                log.warning("the trace of %s is cut off: %s", worker_name(self._kinds, worker), why)

    def _file(self, worker: int) -> str:
        """Return the next file of a worker: the number of those before it, and which one of its own."""
        number = sum(kind.has_traces for kind in self._kinds[:worker])
        turn = self._turns[worker] = self._turns.get(worker, 0) + 1
        return f"{self._path}.{number}" + (f"-{turn}" if turn > 1 else "")


def _ask(manager: WorkerManager, worker: int, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        answer = manager.exchange(worker, L.TRACE_BELOW, json.dumps(asked).encode())
    except (ControlError, WorkerLostError) as error:
        return {"why": str(error)}
    told: dict[str, Any] = json.loads(answer)
    return told
