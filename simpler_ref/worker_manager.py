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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .children import LocalCallables
from .engine import PARK_NS, Engine
from .errors import WorkerStartError, describe_status
from .fork_server import GRACE_S, REPORT, REQUEST, fork_server, serve
from .jit import layout as L

_open: weakref.WeakSet[WorkerManager] = weakref.WeakSet()
"""Managers with open descriptors."""


_FROM_OUTSIDE = signal.valid_signals() - {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
}


@contextmanager
def signals_blocked() -> Iterator[set[int | signal.Signals]]:
    """Let no signal handler run on this thread; threads started here never run one at all.

    A handler may raise (Ctrl-C does), in the middle of what must not be cut in two. Gives the mask
    that is restored afterwards.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_OUTSIDE)
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def close_inherited() -> None:
    """In a process just forked: close the descriptors of the parent's managers."""
    for manager in list(_open):
        manager._close_descriptors()


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
    lost : bool
        The fork server is gone.
    """

    def __init__(self, engine: Engine, workers: int, start_timeout_s: float) -> None:
        self._engine = engine
        self._workers = workers
        self._start_timeout_s = start_timeout_s
        self._closing = False
        self._socket: socket.socket | None = None
        self._server_fd = -1
        self._monitor: threading.Thread | None = None
        self._heard = threading.Condition()  # of the monitor thread: what it knows of processes
        self.pids: dict[int, int] = {}
        self.dead: dict[int, int] = {}
        self.lost = False

    def start(self, snapshot: dict[bytes, Callable[..., Any]]) -> None:
        """Fork the server and all workers from the present state of this process.

        After an exception, `stop` cleans up whatever was done.

        Raises
        ------
        WorkerStartError
            A worker ended, or did not report within the start timeout.
        """
        callables = LocalCallables(snapshot)
        with signals_blocked() as mask:
            self._fork_server(callables, mask)
            monitor = threading.Thread(target=self._watch, name="simpler-monitor", daemon=True)
            monitor.start()
            self._monitor = monitor
        self._bring_up(range(self._workers))

    def _fork_server(self, callables: LocalCallables, mask: set[int | signal.Signals]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _open.add(self)
        parent_pid = os.getpid()
        with theirs:
            parent_fd = os.pidfd_open(parent_pid)
            try:
                with warnings.catch_warnings():
                    # Python 3.12 warns of any fork beside threads. Threads of ours hold no lock here.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    server = fork_server(
                        lambda: serve(self._engine, theirs, parent_pid, parent_fd, callables, mask)
                    )
            finally:
                os.close(parent_fd)
        try:
            self._server_fd = os.pidfd_open(server)
        except OSError:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            raise

    def replace_dead(self) -> None:
        """Fork a successor for every worker that has died."""
        with self._heard:
            dead = sorted(self.dead)
        self._bring_up(dead)

    def _bring_up(self, workers: Iterable[int]) -> None:
        mem, kernels = self._engine.mem, self._engine.kernels
        for worker in workers:
            kernels.set_usable(mem, worker, 0)
            self.dead.pop(worker, None)
            self.pids.pop(worker, None)
            self._send(b"F", worker)
        deadline = time.monotonic_ns() + int(self._start_timeout_s * 1e9)
        for worker in workers:
            if self._wait_ready(worker, deadline) != L.OK or not self._wait_for_pid(worker):
                raise WorkerStartError(
                    f"sub worker {worker} (pid {self.pids.get(worker, '?')}) did not start: "
                    f"{self._why(worker)}"
                )
            kernels.set_usable(mem, worker, 1)

    def _why(self, worker: int) -> str:
        if self.lost:
            return "the process that forks the workers has ended; it says on stderr why"
        if worker in self.dead:
            return describe_status(self.dead[worker])
        return f"silent for {self._start_timeout_s} s"

    def _wait_ready(self, worker: int, deadline_ns: int) -> int:
        """Wait in slices, between which Python looks for signals."""
        while True:
            rest = deadline_ns - time.monotonic_ns()
            slice_ns = max(0, min(rest, PARK_NS))
            answer = self._engine.kernels.wait_ready(self._engine.mem, worker, slice_ns)
            if answer != L.TIMED_OUT or rest <= 0:
                return answer

    def _wait_for_pid(self, worker: int) -> bool:
        with self._heard:
            self._heard.wait_for(lambda: worker in self.pids or self.lost)
            return worker in self.pids

    def kill_busy(self) -> None:
        """Kill every worker that holds a task; the Scheduler will fail those tasks."""
        mem = self._engine.mem
        for worker in range(self._workers):
            if mem[int(mem[L.A_WORKERS]) + worker * L.WORKER_WORDS + L.W_SLOT] != L.NONE:
                self._send(b"K", worker)

    def _send(self, order: bytes, worker: int) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the server is gone: the monitor thread says so
                self._socket.send(REQUEST.pack(order, worker))

    # ------------------------------------------------------------ monitor thread
    def _watch(self) -> None:
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._server_fd, select.POLLIN)
        while self._socket.fileno() in [fd for fd, _ in poll.poll()]:  # what it said comes first
            try:
                raw = self._socket.recv(REPORT.size)
            except OSError:
                break
            if len(raw) < REPORT.size:
                break
            report, worker, pid, code = REPORT.unpack(raw)
            if report == b"B":
                with self._heard:
                    self.pids[worker] = pid
                    self._heard.notify_all()
            else:
                self._mark_dead(worker, code)
        with self._heard:
            self.lost = True
            self._heard.notify_all()
        for worker in range(self._workers):
            if worker not in self.dead:
                self._mark_dead(worker, -signal.SIGKILL)

    def _mark_dead(self, worker: int, code: int) -> None:
        with self._heard:  # no successor may have the worker's words before this is done
            self.dead[worker] = code
            if not self._closing:
                self._engine.kernels.report_death(self._engine.mem, worker, code)

    # ------------------------------------------------------------ the end
    def stop(self) -> None:
        """Stop the workers and the fork server; those that do not stop in time are killed."""
        self._closing = True
        try:
            for worker in range(self._workers):
                self._engine.kernels.request_stop(self._engine.mem, worker)
            self._send(b"Q", 0)
            self._wait_for_server(GRACE_S + 2.0)
        finally:
            with signals_blocked():
                self._end_server()
                if self._monitor is not None and self._monitor is not threading.current_thread():
                    self._monitor.join()
                self._close_descriptors()

    def _wait_for_server(self, timeout_s: float) -> None:
        if self._server_fd >= 0:
            poll = select.poll()
            poll.register(self._server_fd, select.POLLIN)
            poll.poll(timeout_s * 1000)

    def _end_server(self) -> None:
        if self._server_fd >= 0:
            with suppress(ProcessLookupError):  # it has ended, as it should
                signal.pidfd_send_signal(self._server_fd, signal.SIGKILL)  # its workers go with it
            with suppress(ChildProcessError):  # somebody else's os.wait() was faster
                os.waitid(os.P_PIDFD, self._server_fd, os.WEXITED)

    def _close_descriptors(self) -> None:
        _open.discard(self)
        if self._socket is not None:
            self._socket.close()
        if self._server_fd >= 0:
            fd, self._server_fd = self._server_fd, -1
            os.close(fd)
