"""Workers as threads of this process.

Rule     WM-MODE-1, WM-MODE-2, WM-THREAD-1, WM-THREAD-2, WM-THREAD-3, WM-THREAD-4
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..callables.registry import Snapshot
from ..engine.memory import Engine
from ..system.signals import raise_in, signals_blocked, take_back
from .fork_server import GRACE_S
from .kinds import WorkerKind
from .loop import serve_mailbox
from .manager import WorkerManager, log


class Terminated(SystemExit):
    """What a thread gets whose task is terminated."""


class ThreadManager(WorkerManager):
    """Workers as threads of this process, for leaves that release the GIL or take no time.

    A thread cannot be killed. To terminate a task, its thread gets a `Terminated` at its next line of
    Python.
    """

    in_threads = True

    def __init__(
        self, engine: Engine, kinds: Sequence[WorkerKind], start_s: float, control_s: float
    ) -> None:
        super().__init__(engine, kinds, start_s, control_s)
        self._threads: dict[int, threading.Thread] = {}
        self._terminated: set[int] = set()
        self._snapshot: Snapshot = {}

    def is_my_thread(self) -> bool:
        """Say whether this thread is one of the workers."""
        return threading.current_thread() in self._threads.values()

    def _get_ready(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for kind in self.kinds:
            kind.prepare()  # a nested Worker forks its processes before there are threads

    def _launch(self, worker: int) -> None:
        with signals_blocked():
            thread = threading.Thread(
                target=self._serve,
                args=(worker,),
                name=f"{self.kinds[worker].label}-{worker}",
                daemon=True,
            )
            thread.start()
            self._threads[worker] = thread

    def _serve(self, worker: int) -> None:
        kind = self.kinds[worker]
        snapshot = self._snapshot.get(kind.target_namespace, {})
        code = 0
        try:
            serve_mailbox(self._engine, worker, kind, snapshot, in_thread=True)
        except BaseException:  # described in the mailbox
            code = 1
        finally:
            if not self._closing:
                self._mark_dead(worker, code)

    def _wait_for_birth(self, worker: int) -> bool:
        return True

    def _terminate(self, worker: int) -> bool:
        thread = self._threads.get(worker)
        if thread is not None:
            self._terminated.add(worker)
            raise_in(thread, Terminated)
        return False

    def _rescind(self, worker: int) -> None:
        if worker in self._terminated:
            self._terminated.discard(worker)
            take_back(self._threads[worker])

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + GRACE_S
        for worker, thread in self._threads.items():
            if thread is threading.current_thread():
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._terminate(worker)
                thread.join(1.0)
            if thread.is_alive():
                log.warning(
                    "%s is still at a task %s s after it was told to stop; a thread cannot be killed",
                    self.name(worker),
                    GRACE_S,
                )

    def _shut_down(self) -> None:
        for worker, kind in enumerate(self.kinds):
            if worker not in self._threads:
                kind.abandon()
