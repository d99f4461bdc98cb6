"""Programs in processes of their own, for tests in which a program must die, exit or be signalled.

Whoever a program starts inherits one end of a pipe, its lifeline: when the other end reads
end-of-file, the program and all its descendants are gone, however they ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import psutil

from simpler_ref.jit.entries import entries

from ..spec_rules import ROOT

DEADLINE_S = 40.0
"""A guard against hangs: no test asserts how long anything takes."""

PRELUDE = """
import gc, os, signal, sys, threading, time
import numpy as np
from simpler_ref import *
from simpler_ref import TensorArgType as T

def say(word):
    print(word, flush=True)
"""

entries()  # compiled here and now, so that no program has to do it


def buffered() -> dict[str, str]:
    """Return an environment in which Python buffers what it writes into a pipe."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


class Interpreter:
    """A Python that has started already, and runs each program in a fork of itself.

    Such a program lacks the second that an interpreter and the package take to start. It ends as every
    program does, with all that Python does then. Warnings are errors, and Python looks harder.
    """

    # the second -W: programs fork, and a Worker has threads
    OPTIONS = ("-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning")
    SERVE = """
import socket
from simpler_ref.jit.entries import entries
entries()
gc.freeze()  # at a program's end, Python need not look at what was there before
requests = socket.socket(fileno=int(sys.argv[1]))
while True:
    source, fds, *_ = socket.recv_fds(requests, 1 << 16, 4)
    if not source or os.fork() == 0:
        break
    for fd in fds:
        os.close(fd)
    requests.send(str(os.waitstatus_to_exitcode(os.wait()[1])).encode())
requests.close()
for number, fd in enumerate(fds[:3]):
    os.dup2(fd, number)
    os.close(fd)
if source:
    os.setsid()
del requests, fds
exec(source)
"""

    def __init__(self):
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = str(theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, *self.OPTIONS, "-c", PRELUDE + self.SERVE, number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # and so is not a terminal for the programs either
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=buffered(),
            )

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_) -> None:
        self._requests.close()
        self._process.wait(DEADLINE_S)

    def run(self, source: str, stdin: str = "") -> tuple[int, str, str]:
        """Run a script to its end; return (exit code, stdout, stderr). Nobody it started outlives it."""
        reads, writes = os.pipe()
        os.write(writes, stdin.encode())
        os.close(writes)
        (stdout, stderr, lifeline), theirs = zip(*[os.pipe() for _ in range(3)], strict=True)
        with open(stdout) as out, open(stderr) as err, open(lifeline):
            source = textwrap.dedent(source)
            socket.send_fds(self._requests, [source.encode()], [reads, *theirs])
            for fd in (reads, *theirs):
                os.close(fd)
            ended = select.select([self._requests], [], [], DEADLINE_S)[0]
            if not ended:
                for child in psutil.Process(self._process.pid).children():
                    child.kill()
            code = int(self._requests.recv(100))
            assert ended, f"the program hangs: {out.read()}{err.read()}"
            assert _end_of_file(lifeline), "processes outlive the program"
            return code, out.read(), err.read()

    def check(self, source: str) -> str:
        """Run a script that must succeed without a word on stderr; return its output."""
        code, out, err = self.run(source)
        assert (code, err) == (0, ""), f"exit code {code}\n{out}\n{err}"
        return out


def output_of(source: str, **environ: str) -> str:
    """Run a script in a fresh interpreter, with no word on stderr; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Fork:
    """A function that runs in a fork of the test: a program that needs no time to import."""

    def __init__(self, function: Callable[[], object]):
        self._lifeline, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._lifeline)
                function()
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
            finally:
                os._exit(status)
        os.close(theirs)

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._lifeline)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.pid
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the function's end; return the exit code, negative for a signal."""
        ends = dies(self.pid)
        if not ends:
            self.kill(signal.SIGABRT)  # pytest has made it say on stderr where its threads are
        assert ends, "the forked program hangs"
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def everybody_ends(self) -> bool:
        """Say whether the fork and all its descendants end within the deadline."""
        return _end_of_file(self._lifeline)


def in_a_fork(function: Callable[[], object]) -> None:
    """Run a function in a fork of the test, where Ctrl-C is a KeyboardInterrupt and nobody is left."""

    def prepared() -> None:
        gc.freeze()  # it need not look at what was there before
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        function()

    with Fork(prepared) as program:
        assert program.wait() == 0
        assert program.everybody_ends()


def interrupt_after(seconds: float, call: Callable[[], object], again: float = 0.0) -> bool:
    """Call, and raise a KeyboardInterrupt in the middle of it, unless it is over by then; say whether.

    `again`: so many seconds later one more.
    """
    pauses = [again, 0.0] if again else [0.0]

    def terminate(*_: object) -> None:
        if pauses:
            signal.setitimer(signal.ITIMER_REAL, pauses.pop(0))
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            try:
                signal.signal(signal.SIGALRM, terminate)
                signal.setitimer(signal.ITIMER_REAL, seconds)
                call()
                return False
            finally:
                pauses.clear()
        pauses.clear()
    return True


@contextlib.contextmanager
def signals_as_of_a_profiler(hertz: float = 100.0) -> Iterator[None]:
    """Have this process get a signal again and again, whose handler does nothing."""
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(1 / hertz):
            os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        with Concurrently(send), contextlib.ExitStack() as stack:
            stack.callback(ended.set)
            yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def _end_of_file(lifeline: int) -> bool:
    readable, _, _ = select.select([lifeline], [], [], DEADLINE_S)
    return bool(readable) and os.read(lifeline, 1) == b""


class Concurrently:
    """Run a function on another thread for the length of a with block; its exception is ours."""

    def __init__(self, function: Callable[[], object]):
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._error: BaseException | None = None

    def _run(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Concurrently:
        self._thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._thread.join(DEADLINE_S)
        assert kind or not self._thread.is_alive(), "the other thread hangs"
        if self._error is not None:
            raise self._error


def dies(pid: int) -> bool:
    """Say whether a process, our child or not, ends within the deadline."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], DEADLINE_S)[0])
    finally:
        os.close(fd)


def terminate(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that this one has started, directly or not, and to no other."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            ancestors = [parent.pid for parent in psutil.Process(pid).parents()]
            assert os.getpid() in ancestors, f"process {pid} is none of ours"
            signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)
