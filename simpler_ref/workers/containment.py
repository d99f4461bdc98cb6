"""Containment: keeps what a task leaves behind in its worker away from the tasks that follow.

A task is foreign code. It may fork, and its child then returns into the worker's loop. It may install a
signal handler, a timer, a trace function or a low recursion limit, which may raise after the task has
ended. Here the loop distinguishes the processes, and restores the worker's state of its start.

Rule     WM-LEFT-1, WM-LEFT-2, CALL-WORKER-5
"""

from __future__ import annotations

# the module `signal` makes an enum of every number, which costs more than the calls
import _signal  # type: ignore[import-not-found]
import atexit
import codecs
import ctypes
import functools
import io
import logging
import mmap
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import process, util
from typing import Any

from ..jit.kernel import INTERPRETED
from ..system.signals import signals_blocked

log = logging.getLogger("simpler_ref")

MOST_TRIALS = 100
"""Exceptions in a row between two tasks after which a worker gives up: the cause is permanent."""

_NUMBERS = tuple(
    int(number) for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)
)
"""The signals that can have a handler, except real-time ones."""
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, which the module mmap does not name


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, absent, or a user's own object
            stream.flush()


def keep_result(kernel: Callable[..., int]) -> Callable[..., int]:
    """Return a kernel whose result is not lost if a signal handler raises at its end.

    The result of a compiled one is safe if it is taken from an iterator. For an interpreted one, the next
    call only returns the result that was not taken.
    """
    if not INTERPRETED:
        return kernel
    results: list[int] = []

    def call(*args: Any) -> int:
        if not results:
            with signals_blocked():
                results.append(kernel(*args))
        return results.pop()

    return call


# ---------------------------------------------------------------- children of a task
class Origin:
    """Distinguishes a worker's process from one that a task has forked, by any means.

    `here` is true in the worker's process and in no other: it is in a page that a fork wipes. ``if not
    here`` costs 5 ns, a thirtieth of a call to `os.getpid`.
    """

    def __init__(self) -> None:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPE_ON_FORK)
        self.here = ctypes.c_bool.from_buffer(page)
        self.here.value = True

    def require(self, exception: BaseException | None = None) -> None:
        """End this process if it is the child of a task: the task's copy has returned, or raised.

        It ends as Python does, without touching anything of the worker.
        """
        if self.here:
            return
        status = 1
        try:
            if exception is None:
                status = 0
            elif not isinstance(exception, SystemExit):
                sys.excepthook(type(exception), exception, exception.__traceback__)
            elif exception.code is None or isinstance(exception.code, int):
                status = (exception.code or 0) & 0xFF
            else:
                print(exception.code, file=sys.stderr)
            flush_output()
        finally:
            os._exit(status)


# ---------------------------------------------------------------- what a worker does when it ends
def forget_endings() -> None:
    """Leave to the program what it wants done at its own end, and to end its own children."""
    atexit._clear()
    process._children = set()  # type: ignore[attr-defined]
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    util._run_after_forkers()  # type: ignore[attr-defined]
    main = threading.main_thread()
    if isinstance(main, threading._DummyThread):  # Python 3.11 cannot end with it
        threading._main_thread = threading._MainThread()  # type: ignore[attr-defined]


def end_as_python_does() -> None:
    """Do what Python does at the end of a process: join threads and children, call atexit."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    util._exit_function()  # type: ignore[attr-defined]
    flush_output()


# ---------------------------------------------------------------- what a task has changed
class Beginning:
    """The state at a worker's start that a task can change with effect on other tasks.

    In a thread only the thread's own state: signals belong to the process. `hold` blocks all signals
    until `restore`. It is not Python code, so no handler runs before it has taken effect.
    """

    def __init__(self, in_thread: bool) -> None:
        self._in_thread = in_thread
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._recursion = sys.getrecursionlimit()
        self._handlers: dict[int, Any] = {}
        self.hold: Callable[[], object] = bool
        if not in_thread:
            self._handlers = {number: _signal.getsignal(number) for number in _NUMBERS}
            self._mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
            self.hold = functools.partial(_signal.pthread_sigmask, signal.SIG_BLOCK, _NUMBERS)

    def restore(self) -> None:
        """Restore the state of the start; drop pending signals."""
        self.hold()
        if sys.gettrace() is not self._trace:
            sys.settrace(self._trace if callable(self._trace) else None)
        if sys.getprofile() is not self._profile:  # that of cProfile cannot be replaced
            sys.setprofile(self._profile if callable(self._profile) else None)
        if self._in_thread:
            return
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            _signal.setitimer(timer, 0)
        if sys.getrecursionlimit() < self._recursion:
            sys.setrecursionlimit(self._recursion)
        for number, handler in self._handlers.items():
            if handler is not None and _signal.getsignal(number) is not handler:
                _signal.signal(number, _signal.SIG_IGN)
                _signal.signal(number, handler)
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def contain(self, exception: BaseException, worker: str, before: str) -> None:
        """Log an exception raised between two tasks, fail no task, and remove its cause.

        `before` is the callable of the last task, for the message.
        """
        self.restore()
        if self._in_thread and isinstance(exception, SystemExit):
            return  # meant for a task that has ended
        where = f"{worker} (pid {os.getpid()})"
        log.warning(
            "%s: %s was raised between two tasks, by something that a task has left behind; the last "
            "one was %s. No task failed for it, and the worker has the signal handlers, timers and "
            "trace functions of its start again",
            where,
            type(exception).__name__,
            before or "none",
            exc_info=exception,
        )


# ---------------------------------------------------------------- what tasks print
# A process that is forked from the program writes to the same files. But an object that sends messages
# to a browser, say, as in a notebook, does so from the program's own process, and a copy of it leads
# nowhere. Such a stream has a pipe, and a thread of the program writes to the stream what workers write
# there.
_MOST = 1 << 16
"""In bytes: what a pipe holds."""
_is_relayed = False
"""Whether a stream of this process is a pipe to the program's."""


def relay() -> Relay | None:
    """Return a relay for those of the program's streams that are no files; None if they all are."""
    names = [name for name in ("stdout", "stderr") if not _is_file(getattr(sys, name))]
    return Relay(names) if names else None


def _is_file(stream: Any) -> bool:
    """Say whether forked processes write where a stream of this one does."""
    if stream is None:
        return True
    try:
        return isinstance(stream, io.TextIOWrapper) and stream.fileno() >= 0
    except io.UnsupportedOperation:
        return False
    except ValueError:  # it is closed
        return True


def take_over(pipes: Mapping[str, int]) -> None:
    """Let what this process prints go into pipes, line by line."""
    global _is_relayed
    for name, fd in pipes.items():
        stream = open(fd, "w", 1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        former: Any = getattr(sys, name)
        setattr(sys, name, stream)
        with suppress(AttributeError, TypeError):  # handlers of `logging` refer to the object
            former.write, former.flush = stream.write, stream.flush
        _is_relayed = True


def then_flush(leaf: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what runs a task and, if its output goes through the program, leaves none of it behind."""
    if not _is_relayed:
        return leaf

    def run(args: Any) -> Any:
        try:
            return leaf(args)
        finally:
            flush_output()

    return run


class Relay(threading.Thread):
    """Writes to the program's streams what workers print.

    It is a class of its own since ipykernel 6 has all others that are started in a cell print there,
    whatever cell is running. `pipes` are where workers write, for each stream.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(name="simpler-output", daemon=True)
        self._lock = threading.RLock()
        self._end = os.eventfd(0)
        self._decoders: dict[int, Any] = {}
        self._names: dict[int, str] = {}
        self.pipes: dict[str, int] = {}
        for name in names:
            out, self.pipes[name] = os.pipe()
            os.set_blocking(out, False)
            self._names[out] = name
            self._decoders[out] = codecs.getincrementaldecoder("utf-8")("replace")

    def run(self) -> None:
        poll = select.poll()
        for fd in (self._end, *self._names):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._end:
                    return
                if not self._pass_on(fd):
                    poll.unregister(fd)

    def pass_on(self) -> None:
        for fd in list(self._names):
            self._pass_on(fd)

    def _pass_on(self, fd: int) -> bool:
        """Write what is in a pipe to its stream, or the file behind that; say if there may be more."""
        with self._lock:
            try:
                data = os.read(fd, _MOST)
            except BlockingIOError:
                return True
            text, name = self._decoders[fd].decode(data, final=not data), self._names[fd]
            for stream in (getattr(sys, name), getattr(sys, f"__{name}__")) if text else ():
                with suppress(Exception):  # closed, absent, or a user's own object
                    stream.write(text)
                    break
        return bool(data)

    def close_writing(self) -> None:
        """Leave the pipes to the workers."""
        while self.pipes:
            os.close(self.pipes.popitem()[1])

    def close(self) -> None:
        """Write what is left, once the workers have ended."""
        if self.is_alive() and self is not threading.current_thread():
            os.eventfd_write(self._end, 1)
            self.join()
        self.close_writing()
        self.pass_on()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors for reading, in a process that was forked from the program, too."""
        if self._names:
            os.close(self._end)
        while self._names:
            os.close(self._names.popitem()[0])
