"""Workers as processes: how they come into being, and the manager of those that a fork server forks.

Rule     ORCH-FORK-1, ORCH-FORK-2, ORCH-FORK-3, ORCH-MISUSE-2, WM-MODE-1, WM-FORK-1, WM-FORK-2, WM-FORK-3,
         WM-START-2, WM-START-3
"""

from __future__ import annotations

import functools
import logging
import os
import select
import signal
import socket
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from ..callables.registry import Snapshot
from ..model import visibility
from ..system import forks, regions
from ..system.forks import why_not_fork as why_not_fork
from ..system.polling import wait_readable
from ..system.regions import PRIVATE, covers, is_private, shared_mappings
from ..system.signals import put_handlers_back, signals_blocked
from . import top
from .containment import relay, take_over
from .fork_server import (
    GRACE_S,
    REPORT,
    REQUEST,
    Entropy,
    Lifeline,
    ServerSetup,
    draw_entropy,
    fork_server,
    serve,
)
from .kinds import WorkerKind
from .manager import WorkerManager

# ---------------------------------------------------------------- before a fork
_of_this_process: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
"""Workers, and the managers with open descriptors: what has `disown`."""


@functools.cache
def fork_hygiene_once() -> None:
    """Prepare the process for forking, once: thread-pool variables and an at-fork hook.

    Libraries loaded from now on start with one thread each; the user's values stay. The hook tells every
    forked child that the parent's Workers are not its own. No lock of this package is held across a fork
    where a child could wait for it. A thread takes several locks in this order: the registry of callables
    (`Worker`), the manager, a worker, the scheduler's pass, an allocator (the arena), the tensor map.
    """
    forks.set_variables()
    if os.uname().sysname == "Darwin":
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    os.register_at_fork(after_in_child=_leave_to_parent)


def disown_after_fork(one: Any) -> None:
    """Have every process forked from this one disown a Worker, or what it has."""
    _of_this_process[one] = None


def _leave_to_parent() -> None:
    visibility.forget_visibility()
    regions.close_inherited()
    top.leave_to_parent()
    for one in list(_of_this_process):
        one.disown()


# ---------------------------------------------------------------- fork or spawn
log = logging.getLogger("simpler_ref")
_told = False

Mappings = list[tuple[int, int, str]]


class StartMethod:
    """The start method of one Worker: the option's value, or one chosen at each start; what workers see.

    `sees_all`: the Worker is in the program's process.
    """

    def __init__(self, given: str | None, sees_all: bool) -> None:
        self._given, self._sees_all = given, sees_all
        self.spawn = given == "spawn"  # a fresh interpreter makes the workers, or would now
        self.own_memory: list[tuple[int, int]] = []  # where that of the Worker begins and ends
        self.has_started = False  # at least once
        self._at_start: Mappings = []
        self._inherited: tuple[int, int] | None = None

    def decide(self, kinds: Iterable[WorkerKind]) -> None:
        """Choose a method for workers, unless it was given; remember which memory they will see.

        RuntimeError: they must not be forked, and memory was accepted that only forked workers see.
        """
        global _told
        if self._given is None:
            why = why_not_fork() if any(kind.runs_foreign_code for kind in kinds) else None
            self.spawn = why is not None
            if why is not None and self._inherited is not None:
                address, nbytes = self._inherited
                raise RuntimeError(
                    f"{why}; and workers in a fresh interpreter cannot see the {nbytes} bytes at "
                    f"{address:#x}, shared by other means, which were accepted before the start: use "
                    "Worker.share or Worker.empty, or give Worker(start_method='fork') if no task uses "
                    "those libraries"
                )
            if why is not None and not _told:
                _told = True
                log.warning(
                    "%s; so the workers are made by a fresh interpreter (start_method='spawn'); "
                    "Worker(start_method=…) decides otherwise",
                    why,
                )
        self._at_start = self._look()

    def _look(self) -> Mappings:
        return regions.spans() if self.spawn else shared_mappings()

    def why_array_is_invisible(self, array: Any, address: int, nbytes: int) -> str | None:
        if not self._sees_all and is_private(array):
            return PRIVATE
        return self.why_invisible(address, nbytes)

    def why_invisible(self, address: int, nbytes: int) -> str | None:
        """Say why the workers cannot see some memory; None if they can."""
        if self._sees_all:
            return None
        for low, high in self.own_memory:
            if low <= address and address + nbytes <= high:
                return None
        now = covers(self._look(), address, nbytes)
        if now is None:
            if self.spawn and covers(shared_mappings(), address, nbytes) is not None:
                return (
                    "it is shared by other means, and workers that a fresh interpreter makes "
                    "(start_method='spawn') do not inherit it"
                )
            return PRIVATE
        if self.has_started and covers(self._at_start, address, nbytes) != now:
            return "it was allocated after the workers were started"
        is_open = self._given is None and not self.has_started
        if is_open and covers(regions.spans(), address, nbytes) is None:
            self._inherited = address, nbytes
        return None


# ---------------------------------------------------------------- the manager
class ProcessManager(WorkerManager):
    """Workers as processes: a fork server forks them, a monitor thread is notified of their deaths.

    The monitor thread sleeps until the fork server reports the end of a worker, or has ended itself; it
    then marks the worker dead and wakes the Scheduler, which fails the worker's tasks.
    """

    _socket: socket.socket | None = None
    _server_fd = -1
    _monitor: threading.Thread | None = None
    _lifeline: Lifeline | None = None
    _is_ending = _waits = False

    def _get_ready(self, snapshot: Snapshot) -> None:
        limit_threads = forks.limiter()

        def fork(setup: ServerSetup, lifeline: Lifeline) -> int:
            def in_the_child() -> NoReturn:
                lifeline.hold()
                put_handlers_back(all_of_them=True)
                take_over(setup.pipes)
                serve(setup, (self._engine, self.kinds, snapshot), limit_threads)

            with warnings.catch_warnings():
                # Python 3.12 warns of any fork beside threads. Our threads hold no lock here.
                warnings.simplefilter("ignore", DeprecationWarning)
                return fork_server(in_the_child)

        with signals_blocked() as mask:
            self.relay = relay()
            self._make_server(fork, mask, self._draw_entropy())
            self._start_monitor()

    def _draw_entropy(self) -> Entropy:
        others = [found() for found in _of_this_process.keyrefs()]  # other threads add some
        return draw_entropy(beside=sum(isinstance(one, ProcessManager) for one in others))

    def _make_server(
        self, start: Callable[[ServerSetup, Lifeline], int], mask: set[int], entropy: Entropy
    ) -> None:
        """Have a fork server, whose pid `start` returns, at the other end of a connection."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        disown_after_fork(self)
        self._lifeline = Lifeline()
        with theirs, self._lifeline:
            parent_fd = os.pidfd_open(os.getpid())
            setup = ServerSetup(
                sock=theirs.fileno(),
                parent_fd=parent_fd,
                pipes={} if self.relay is None else dict(self.relay.pipes),
                parent_pid=os.getpid(),
                signals={int(number) for number in mask},
                by_main_thread=threading.current_thread() is threading.main_thread(),
                entropy=entropy,
            )
            try:
                server = start(setup, self._lifeline)
            finally:
                os.close(parent_fd)
        try:
            self._server_fd = os.pidfd_open(server)
        except OSError:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            raise

    def _start_monitor(self) -> None:
        monitor = threading.Thread(target=self._watch, name="simpler-monitor", daemon=True)
        monitor.start()
        self._monitor = monitor
        if self.relay is not None:
            self.relay.close_writing()
            self.relay.start()

    def _launch(self, worker: int) -> None:
        self._send(b"F", worker)

    def _wait_for_birth(self, worker: int) -> bool:
        self._wait_for_news(lambda: worker in self.pids or self.lost)
        return worker in self.pids

    def _terminate(self, worker: int) -> bool:
        self._terminated.add(worker)
        self._send(b"K", worker)
        return True

    def _rescind(self, worker: int) -> None:
        """Wait for the death, which cannot be rescinded: it must not come in the next task."""
        if worker in self._terminated:
            self._wait_for_news(lambda: worker in self.dead or self.lost, GRACE_S)

    def _send(self, order: bytes, worker: int) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the server is gone: the monitor thread reports that
                self._socket.send(REQUEST.pack(order, worker))

    # ------------------------------------------------------------ monitor thread
    def _watch(self) -> None:
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._server_fd, select.POLLIN)
        while self._socket.fileno() in [fd for fd, _ in poll.poll()]:  # its reports come first
            try:
                raw = self._socket.recv(REPORT.size)
            except OSError:
                break
            if len(raw) < REPORT.size:
                break
            report, worker, pid, code = REPORT.unpack(raw)
            if report == b"B":
                with self._known:
                    self.pids[worker] = pid
                    self._heard.notify_all()
            elif report == b"W":
                self._waits = True
                log.warning(
                    "%s has stopped, and waits for children or threads that its tasks have started "
                    "(see ps --ppid %d); Ctrl-C ends it",
                    *(self.name(worker), pid),
                )
            else:
                self._mark_dead(worker, code)
        if self._lifeline is not None and not self._is_ending:  # the server was killed
            self._lifeline.wait(GRACE_S)
        with self._known:
            self.lost = True
            self._heard.notify_all()
        for worker in range(len(self.kinds)):
            if worker not in self.dead:
                self._mark_dead(worker, -signal.SIGKILL)

    # ------------------------------------------------------------ the end
    def _wait_for_end(self) -> None:
        self._is_ending = True
        self._send(b"Q", 0)
        if self._server_fd >= 0:
            while not wait_readable([self._server_fd], GRACE_S + 2.0) and self._waits:
                pass

    def _shut_down(self) -> None:
        self._is_ending = True
        self._end_server()
        if self._monitor is not None and self._monitor is not threading.current_thread():
            self._monitor.join()
        if self.relay is not None:
            self.relay.close()
        self._close_descriptors()

    def _end_server(self) -> None:
        if self._server_fd >= 0:
            with suppress(ProcessLookupError):  # it has ended, as it should
                signal.pidfd_send_signal(self._server_fd, signal.SIGKILL)  # its workers go with it
            with suppress(ChildProcessError):  # another thread's os.wait() was faster
                os.waitid(os.P_PIDFD, self._server_fd, os.WEXITED)

    def _close_descriptors(self) -> None:
        _of_this_process.pop(self, None)
        if self._socket is not None:
            self._socket.close()
        if self._server_fd >= 0:
            fd, self._server_fd = self._server_fd, -1
            os.close(fd)
        if self._lifeline is not None:
            self._lifeline.close()

    def disown(self) -> None:
        """In a process just forked: close the descriptors, which are those of the parent's manager."""
        if self.relay is not None:
            self.relay.abandon()
        self._close_descriptors()
