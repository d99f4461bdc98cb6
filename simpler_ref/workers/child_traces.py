"""The traces of the Workers below a Worker that is traced: child Workers, and those of endpoints.

Each has a file of its own beside that of the parent, which names it. The workers that run them are told
by control requests, when they have started or when a trace begins, and when it ends.

Rule     SEE-ON-4, SEE-REMOTE-1
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ControlError, WorkerLostError
from ..jit import layout as L
from .kinds import WorkerKind
from .manager import WorkerManager, log, worker_name

WAIT_S = 0.5
"""How long an endpoint may take to answer how many bytes are still to come."""


class ChildTraces:
    """Has the Workers below one take traces."""

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
            try:
                asked = {"file": file, "detail": self._detail}
                why = _ask(manager, worker, asked).get("why", "")
            except (ControlError, WorkerLostError) as error:
                why = str(error)
            if why:
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
            try:
                while (told := _ask(manager, worker, {"wait_s": WAIT_S})).get("left"):
                    pass
                why = told.get("why", "")
            except (ControlError, WorkerLostError) as error:
                why = str(error)
            if why:
                if files := [file for file, other in self._files if other == worker]:
                    self._cut_off[files[-1]] = why
                log.warning("the trace of %s is cut off: %s", worker_name(self._kinds, worker), why)

    def _file(self, worker: int) -> str:
        """Return the next file of a worker: the number of those before it, and which one of its own."""
        number = sum(kind.has_traces for kind in self._kinds[:worker])
        turn = self._turns[worker] = self._turns.get(worker, 0) + 1
        return f"{self._path}.{number}" + (f"-{turn}" if turn > 1 else "")


def _ask(manager: WorkerManager, worker: int, asked: dict[str, Any]) -> dict[str, Any]:
    answer = manager.exchange(worker, L.TRACE_BELOW, json.dumps(asked).encode())
    told: dict[str, Any] = json.loads(answer)
    return told
