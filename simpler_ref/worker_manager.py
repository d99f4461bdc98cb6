"""The pool of worker processes: starting, watching, replacing and stopping them."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .children import LocalCallables
from .engine import Engine
from .errors import WorkerStartError, describe_status
from .fork_server import GRACE_S, REPORT, REQUEST, fork_server, serve
from .jit import layout as L

_descriptors: weakref.WeakSet[WorkerManager] = weakref.WeakSet()
"""Managers whose descriptors a fork server of another Worker must not keep."""


class WorkerManager:
    """Owns the fork server of one Worker, and with it the worker processes.

    A monitor thread sleeps until the fork server reports that a worker ended, or is gone itself; it
    then marks the worker dead and wakes the Scheduler, which fails the worker's task.

    Attributes
    ----------
    pids : dict[int, int]
        Process of each worker, also of those that have ended.
    dead : dict[int, int]
        How each worker that is not alive ended (see `os.waitstatus_to_exitcode`).
    """

    def __init__(self, engine: Engine, workers: int, start_timeout_s: float) -> None:
        self._engine = engine
        self._workers = workers
        self._start_timeout_s = start_timeout_s
        self._closing = False
        self.pids: dict[int, int] = {}
        self.dead: dict[int, int] = {}
        self.lost = False
        """The fork server is gone."""

    def start(self, snapshot: dict[bytes, Callable[..., Any]]) -> None:
        """Fork the server and all workers from the present state of this process.

        Raises
        ------
        WorkerStartError
            A worker ended, or did not report within the start timeout.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent_pid = os.getpid()
        parent_fd = os.pidfd_open(parent_pid)
        inherited = [fd for other in list(_descriptors) for fd in other._own_descriptors()]
        callables = LocalCallables(snapshot)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of any fork beside threads. Threads of ours hold no lock here.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._server = fork_server(
                    lambda: serve(
                        self._engine.mem,
                        theirs,
                        parent_pid,
                        parent_fd,
                        callables,
                        [ours.fileno(), *inherited],
                        blocked,
                    )
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
            os.close(parent_fd)
        self._socket = ours
        self._server_fd = os.pidfd_open(self._server)
        _descriptors.add(self)
        self._monitor = threading.Thread(target=self._watch, name="simpler-monitor", daemon=True)
        self._monitor.start()
        self._bring_up(range(self._workers))

    def replace_dead(self) -> None:
        """Fork a successor for every worker that has died."""
        self._bring_up(sorted(self.dead))

    def _bring_up(self, workers: Any) -> None:
        mem, kernels = self._engine.mem, self._engine.kernels
        for worker in workers:
            kernels.set_usable(mem, worker, 0)
            self.dead.pop(worker, None)
            self._send(b"F", worker)
        deadline = time.monotonic_ns() + int(self._start_timeout_s * 1e9)
        for worker in workers:
            rest = max(0, deadline - time.monotonic_ns())
            answer = kernels.wait_ready(mem, worker, rest)
            if answer != L.OK:
                how = (
                    describe_status(self.dead.get(worker, 0))
                    if answer == L.ILLEGAL
                    else f"silent for {self._start_timeout_s} s"
                )
                raise WorkerStartError(
                    f"sub worker {worker} (pid {self.pids.get(worker, '?')}) did not start: {how}"
                )
            kernels.set_usable(mem, worker, 1)

    def kill_busy(self) -> None:
        """Kill every worker that holds a task; the Scheduler will fail those tasks."""
        mem = self._engine.mem
        for worker in range(self._workers):
            if mem[int(mem[L.A_WORKERS]) + worker * L.WORKER_WORDS + L.W_SLOT] != L.NONE:
                self._send(b"K", worker)

    def _send(self, order: bytes, worker: int) -> None:
        with suppress(OSError):  # the server is gone: the monitor thread says so
            self._socket.send(REQUEST.pack(order, worker))

    # ------------------------------------------------------------ monitor thread
    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            poll.poll()
            try:
                raw = self._socket.recv(REPORT.size)
            except OSError:
                raw = b""
            if len(raw) < REPORT.size:
                break
            report, worker, pid, code = REPORT.unpack(raw)
            if report == b"B":
                self.pids[worker] = pid
            else:
                self._mark_dead(worker, code)
        self.lost = True
        for worker in range(self._workers):
            if worker not in self.dead:
                self._mark_dead(worker, -signal.SIGKILL)

    def _mark_dead(self, worker: int, code: int) -> None:
        self.dead[worker] = code
        if not self._closing:
            self._engine.kernels.report_death(self._engine.mem, worker, code)

    # ------------------------------------------------------------ the end
    def stop(self) -> None:
        """Stop the workers and the fork server; those that do not stop in time are killed."""
        self._closing = True
        for worker in range(self._workers):
            self._engine.kernels.request_stop(self._engine.mem, worker)
        self._send(b"Q", 0)
        self._end_server(GRACE_S + 2.0)
        self._monitor.join()
        self._close_descriptors()

    def _end_server(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self._server_fd, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            with suppress(ProcessLookupError):
                os.kill(self._server, signal.SIGKILL)  # the kernel ends its workers with it
        with suppress(ChildProcessError):  # somebody else's os.wait() was faster
            os.waitpid(self._server, 0)

    def _own_descriptors(self) -> list[int]:
        return [self._socket.fileno(), self._server_fd]

    def _close_descriptors(self) -> None:
        _descriptors.discard(self)
        self._socket.close()
        os.close(self._server_fd)
