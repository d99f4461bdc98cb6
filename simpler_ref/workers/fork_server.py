"""The process that forks the workers and notices their deaths.

It is forked from the user's process when the Worker starts, before its threads are busy, or is a fresh
interpreter (`fresh_interpreter.py`). It is single-threaded, so it can fork a successor for a dead worker
at any time: forking from a process with threads would inherit locks that no thread releases. It has the
snapshot of the registered callables and the kinds from which all workers are made.

It reports each worker's end over a socket. When the user's process has ended it kills the workers and
ends; when it is killed itself, the kernel kills the workers with it.

Rule     CALL-LIMIT-1, WM-FORK-1, WM-FORK-2, WM-FORK-3, SCHED-DEATH-3, SCHED-DEATH-4, SCHED-DEATH-5,
         FLOW-REG-4, WM-START-1, WM-LEFT-1, WM-RANDOM-1, WM-STOP-1
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import itertools
import mmap
import os
import pickle
import random
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from ..callables.registry import Snapshot
from ..engine.memory import Engine
from ..system.forks import fork_locks_taken
from ..system.polling import wait_readable
from .containment import end_as_python_does, flush_output, forget_endings
from .kinds import WorkerKind
from .loop import NotStartedError, become_worker, serve_mailbox
from .top import ignore_sigquit

REQUEST = struct.Struct("<ci")
"""Sent by the parent: ``F`` fork worker i, ``K`` kill worker i, ``Q`` all are stopped: end."""
REPORT = struct.Struct("<ciii")
"""Sent to the parent: ``B`` worker i was born as pid, ``D`` it died with a status, ``W`` it waits, at its
end, for what its tasks have started."""

GRACE_S = 5.0
"""How long workers may take to stop before they are killed."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ServerSetup(NamedTuple):
    """What a fork server has from the process of the program, by a fork or in a pickle."""

    sock: int
    """A descriptor, as the next one and the pipes."""
    parent_fd: int
    """A pidfd."""
    pipes: Mapping[str, int]
    """Where workers print, if not to the files that they inherit."""
    parent_pid: int
    signals: set[int]
    """The mask to restore: all are blocked while forking, so that none runs a handler of the program."""
    by_main_thread: bool
    """Whether the main thread makes the server."""
    entropy: Entropy


Makings = tuple[Engine, Sequence[WorkerKind], Snapshot]
"""What workers are made of."""


def serve(setup: ServerSetup, makings: Makings, limit_threads: Callable[[], None]) -> NoReturn:
    """Be the fork server until the parent ends it or is gone. Never returns.

    If the parent's main thread forked this process, the kernel kills it when the parent ends, even while
    it is stopped; otherwise the kernel would kill it when the forking thread ends.
    """
    try:
        if setup.by_main_thread:
            die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ignore_sigquit()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, setup.signals)
        limit_threads()
        gc.freeze()  # inherited pages stay shared: no collection writes to them
        server = _Server(setup, makings)
        while True:
            server.wait()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        flush_output()
    finally:
        os._exit(1)


class _Server:
    def __init__(self, setup: ServerSetup, makings: Makings) -> None:
        self.setup = setup
        self.engine, self.kinds, self.snapshot = makings
        self.sock = socket.socket(fileno=setup.sock)
        self.births = [0] * len(self.kinds)
        self.workers: dict[int, tuple[int, int]] = {}  # pidfd → (worker, pid)
        self.lifelines: dict[int, Lifeline] = {}  # of workers with others below them
        # which workers have, and end as Python does
        self.has_stopped = mmap.mmap(-1, 1 + len(self.kinds))
        self.poll = select.poll()
        self.poll.register(self.sock, select.POLLIN)
        self.poll.register(setup.parent_fd, select.POLLIN)
        if os.getppid() != setup.parent_pid:
            self.end_all()

    def wait(self, most_ms: float | None = None) -> None:
        """Do what comes next: an order, or what the end of a worker or of the parent asks for."""
        for fd, _ in self.poll.poll(most_ms):
            if fd == self.setup.parent_fd:
                self.end_all()
            elif fd == self.sock.fileno():
                self.obey()
            elif fd in self.workers:
                self.handle_death(fd)

    def obey(self) -> None:
        raw = b""
        with suppress(ConnectionResetError):  # the parent has ended, and not read all reports
            raw = self.sock.recv(REQUEST.size)
        if len(raw) < REQUEST.size:
            self.end_all()
        order, worker = REQUEST.unpack(raw)
        if order == b"F":
            self.fork(worker)
        elif order == b"K":
            for index, pid in self.workers.values():
                if index == worker:
                    os.kill(pid, signal.SIGKILL)
        else:
            self.wait_for_all()
            self.end_all()

    def wait_for_all(self) -> None:
        """Wait for the workers, which have been told to stop, and for what their tasks have started."""
        self.poll.unregister(self.sock)
        deadline = time.monotonic() + GRACE_S
        while self.workers and (rest := deadline - time.monotonic()) > 0:
            self.wait(rest * 1000)
        for worker, pid in self.workers.values():
            if self.has_stopped[worker]:
                self.report(b"W", worker, pid, 0)
            else:
                os.kill(pid, signal.SIGKILL)
        while self.workers:
            self.wait()

    def fork(self, worker: int) -> None:
        server = os.getpid()
        self.births[worker] += 1
        lifeline = Lifeline() if self.kinds[worker].has_workers_below else None
        with lifeline or nullcontext():
            pid = os.fork()
            if pid == 0:
                self.run_worker(worker, server, lifeline)
        if lifeline is not None:
            self.lifelines[worker] = lifeline
        pidfd = os.pidfd_open(pid)
        self.workers[pidfd] = (worker, pid)
        self.poll.register(pidfd, select.POLLIN)
        self.report(b"B", worker, pid, 0)

    def run_worker(self, worker: int, server: int, lifeline: Lifeline | None) -> NoReturn:
        status = 1
        try:
            die_with_parent()
            if os.getppid() != server:
                os._exit(1)
            if lifeline is not None:
                lifeline.hold()
            others = [one.reading for one in self.lifelines.values()]
            kind = self.kinds[worker]
            _prctl(_PR_SET_NAME, f"{kind.label.replace('_', '-')}-{worker}".encode()[:15])
            become_worker([self.sock.fileno(), self.setup.parent_fd, *self.workers, *others])
            forget_endings()
            self.setup.entropy.seed_worker(worker, self.births[worker])
            callables = self.snapshot.get(kind.target_namespace, {})
            serve_mailbox(self.engine, worker, kind, callables, in_thread=False)
            status = 0
        except NotStartedError:
            flush_output()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            flush_output()
        try:
            self.has_stopped[worker] = 1
            end_as_python_does()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            flush_output()
        finally:
            os._exit(status)

    def report(self, what: bytes, worker: int, pid: int, code: int) -> None:
        with suppress(OSError):  # the parent is gone: its pidfd says so
            self.sock.send(REPORT.pack(what, worker, pid, code))

    def handle_death(self, pidfd: int) -> None:
        worker, pid = self.workers.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        code = _reap(pid)
        if (lifeline := self.lifelines.pop(worker, None)) is not None:
            lifeline.wait(GRACE_S)
            lifeline.close()
        self.report(b"D", worker, pid, code)

    def end_all(self) -> NoReturn:
        for _, pid in self.workers.values():
            os.kill(pid, signal.SIGKILL)
        for _, pid in self.workers.values():
            _reap(pid)
        os._exit(0)


def _reap(pid: int) -> int:
    """Return how a worker has ended; after a call with a time limit, end what the call started."""
    if os.getpgid(pid) == pid:
        with suppress(OSError):  # nobody is left
            _end_group(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_group(leader: int) -> None:
    """Kill a group, except trackers of multiprocessing, which clean up once the others have ended."""
    os.killpg(leader, signal.SIGSTOP)  # so nobody forks, and no number is used again
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if os.getpgid(int(name)) == leader:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if b"resource_tracker" not in file.read():
                        os.kill(int(name), signal.SIGKILL)
    os.killpg(leader, signal.SIGCONT)


def fork_server(serve_in_child: Callable[[], NoReturn]) -> int:
    with fork_locks_taken():
        flush_output()  # or each process would write buffered output
        pid = os.fork()
    if pid == 0:
        serve_in_child()
    return pid


# ---------------------------------------------------------------- random numbers
_starts = itertools.count()


class Entropy(dict[str, bytes]):
    """The seeds for the workers of one start, by the modules that have generators.

    A worker inherits the state of the generators, so without this all workers would draw the same
    numbers. They are seeded from the state of the parent's generators, which are only read.
    """

    def seed_worker(self, worker: int, birth: int) -> None:
        words = {
            name: int.from_bytes(_digest(seed, f"{worker} {birth}"), "little")
            for name, seed in self.items()
        }
        random.seed(words["random"])
        if "numpy" in words:
            np_random: Any = import_module("numpy.random")
            generator = np_random.get_bit_generator()
            if isinstance(generator, np_random.MT19937):
                np_random.seed([words["numpy"] >> 32 * i & 0xFFFFFFFF for i in range(8)])
            else:  # the user has replaced it
                np_random.set_bit_generator(type(generator)(words["numpy"]))
        if "torch" in words and (torch := sys.modules.get("torch")):
            torch.default_generator.manual_seed(words["torch"] >> 193)  # 63 bits


def draw_entropy(beside: int) -> Entropy:
    """Read the generators of this process before workers are made; `beside` other Workers run.

    From the same state of numpy's generator, once it has been seeded, the workers get the same streams.
    Whether the others have been seeded is unknown: the number of the start in this process is mixed in,
    so that two starts do not repeat each other, but two runs of a program do.
    """
    start = next(_starts)
    found = Entropy(random=_digest(repr(random.getstate()).encode(), f"{start}"))
    if np_random := sys.modules.get("numpy.random"):
        state = pickle.dumps(np_random.get_state(legacy=False), protocol=4)
        seeds = np_random.get_bit_generator().seed_seq  # none, once `seed` was called
        found["numpy"] = _digest(state, f"{beside if seeds is None else start}")
    if torch := sys.modules.get("torch"):
        found["torch"] = _digest(bytes(torch.get_rng_state().numpy()), f"{start}")
    return found


def _digest(state: bytes, number: str) -> bytes:
    return hashlib.sha256(state + f" {number}".encode()).digest()


# ---------------------------------------------------------------- lifelines
held_lifelines: list[int] = []
"""The writing ends that processes below this one are to have."""


class Lifeline:
    """A pipe that is open for writing while the processes below another one live.

    So a process learns that all of them have ended, after the other one has been killed: the kernel kills
    them one after another, each with its parent, and meanwhile their tasks may still write to memory that
    this process takes for its own. The first of them is made in a block ``with lifeline:``. They have its
    descriptor `writing`; once all have ended, `reading` is at its end of file.
    """

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def hold(self) -> None:
        """Be one of the processes below."""
        self.close()
        held_lifelines.append(self.writing)

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(self, *_: object) -> None:
        """Be the one that waits, now that the first process below has been made."""
        os.close(self.writing)

    def wait(self, limit_s: float) -> None:
        """Wait until all have ended; somebody may have made a process that outlives them."""
        wait_readable([self.reading], limit_s)

    def close(self) -> None:
        """Close what the one that waits has."""
        if self.reading >= 0:
            fd, self.reading = self.reading, -1
            os.close(fd)
