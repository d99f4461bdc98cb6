"""What a Worker does at a moment, as data, and as a table; `Session.top` makes it.

``python -m simpler_ref top PID`` asks a running process what its Workers do, again and again.

Other processes of the same user are told it: a thread sleeps in `accept` on a socket while a Worker is
open. The socket has a name in the abstract namespace: the system forgets it with the process, however
that ends. A forked process has neither.

SIGQUIT is handled while a Worker is open that was started on the main thread, and only if the program has
no handler of its own, of Python or of C.

Rule     SEE-TOP-1, SEE-HANG-4, SEE-TOP-4, SEE-TOP-8
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..engine.introspection import RingRow, mib
from ..system.polling import other_end
from ..system.signals import do_nothing, signals_blocked

COLUMNS = ("worker", "pid", "task", "function", "running", "queue")


@dataclass(frozen=True, slots=True)
class Row:
    """What one worker does."""

    name: str
    """Its kind, and its index among those of its kind."""
    pid: int | None
    """Its process; None if it is a thread of the program."""
    state: str
    """``"running"``, ``"idle"`` or ``"lost"``."""
    task: int | None = None
    """The id of the task that it runs."""
    function: str | None = None
    """The name of its callable."""
    running_s: float | None = None
    """How long it has run so far, in seconds."""
    queue: int = 0
    """How many more tasks it was given, or wait for just this worker."""
    children: tuple[Top, ...] = ()
    """The Workers that run in it, as a child Worker does."""
    silent: bool = False
    """It has Workers that have not answered in time, so that they are missing in `children`."""


@dataclass(frozen=True, slots=True)
class Top:
    """What a Worker does at a moment; `Worker.top` returns it. ``str()`` is a table."""

    pid: int
    """The process that it is in."""
    level: int
    program: str
    """What the threads of the program do with it: ``"no run"``, ``"a run"``, ``"calls"``, ``"waits for
    its tasks"``, or ``"waits for room …"``."""
    ended: int
    submitted: int
    """Tasks of the run, without buffers, or calls; 0 where there are none."""
    for_inputs: int
    """Tasks that wait for other tasks."""
    for_worker: int
    """Tasks that wait for a free worker."""
    alive: int
    """Tasks that are alive, with those that have ended and whose memory is kept."""
    window: int
    """How many may be."""
    workers: tuple[Row, ...] = field(default=())
    rings: tuple[RingRow, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # notebooks


# ---------------------------------------------------------------- as JSON
def from_data(data: Mapping[str, Any]) -> Top:
    """Return what `asdict` has made data of, and JSON has brought here."""
    workers = [
        Row(**{**one, "children": tuple(map(from_data, one["children"]))})
        for one in data["workers"]
    ]
    rings = [RingRow(**one) for one in data["rings"]]
    return Top(**{**data, "workers": tuple(workers), "rings": tuple(rings)})


# ---------------------------------------------------------------- as a table
def _headline(top: Top) -> str:
    tasks = "calls" if top.program == "calls" else "tasks"
    head = f"Worker of level {top.level}, process {top.pid}: {top.program}"
    if top.program == "no run":
        return head
    return f"{head}, {top.ended} of {top.submitted} {tasks} have ended"


def _cells(row: Row) -> tuple[str, ...]:
    if row.state == "lost":
        return (row.name, "" if row.pid is None else str(row.pid), "", "lost", "", "")
    pid = "thread" if row.pid is None else str(row.pid)
    task = "" if row.task is None else str(row.task)
    running = "" if row.running_s is None else _duration(row.running_s)
    return (row.name, pid, task, row.function or "", running, str(row.queue or ""))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _sums(top: Top) -> list[str]:
    """Say what waits, and what is in use; nothing where there are no tasks."""
    if top.program == "no run" and not top.alive:
        return []
    lines = [f"waiting: {top.for_inputs} for inputs, {top.for_worker} for a free worker"]
    lines += [
        f"ring {number}: {ring.tasks} tasks, {mib(ring.used)} of {mib(ring.size)}"
        for number, ring in enumerate(top.rings)
        if ring.tasks or ring.used or not number
    ]
    lines.append(f"window: {top.alive} of {top.window} tasks")
    return lines


def _lines(top: Top) -> Iterator[str]:
    cells = [COLUMNS, *map(_cells, top.workers)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = (True, False, False, True, False, False)

    def text(row: tuple[str, ...]) -> str:
        padded = [
            one.ljust(width) if to_left else one.rjust(width)
            for one, width, to_left in zip(row, widths, left, strict=True)
        ]
        return ("  " + "  ".join(padded)).rstrip()

    yield _headline(top)
    yield text(COLUMNS)
    for row, shown in zip(top.workers, cells[1:], strict=True):
        yield text(shown)
        for inner in row.children:
            yield from ("      " + line for line in _lines(inner))
        if row.silent:
            yield "      its Worker does not answer"
    yield from ("  " + line for line in _sums(top))


# ---------------------------------------------------------------- for other processes, and SIGQUIT
log = logging.getLogger("simpler_ref")

NAME = "\0simpler_ref.top.{pid}"
"""The name of the socket. The system says who has it: one that another process took is not believed."""
FORMAT = 1
"""Version of the answers."""
_PATIENCE_S = 1.0
"""How long the thread waits for one that has asked to read the answer."""
_FORKED_S = 0.1
"""How long a process that was just forked may have the socket of a Worker closed since, and its name."""
_MAY_PASS = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM
"""Errors of `accept` after which it may succeed later: descriptors or memory are short at the moment."""
TWICE_S = 1.0
"""A second SIGQUIT within this time ends the program."""


_open: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""The `Life` of each Worker that has been started, in this order; whether it was on the main thread."""
_server: _TopServer | None = None
_lock = threading.RLock()
_last_quit = float("-inf")


class _TopServer:
    """The socket of this process, and the thread that answers there."""

    def __init__(self) -> None:
        self._closing = False
        self._connection: socket.socket | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind(time.monotonic() + _FORKED_S)
            self._socket.listen(8)
            self._thread = threading.Thread(target=self._serve, name="simpler-top", daemon=True)
            self._thread.start()
        except BaseException:
            self._socket.close()
            raise

    def _bind(self, until: float) -> None:
        while True:
            try:
                return self._socket.bind(NAME.format(pid=os.getpid()))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise
                time.sleep(0.001)

    def close(self) -> None:
        """End the thread, and forget the name."""
        self._closing = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # `accept` returns
        try:
            if self._thread is not threading.current_thread():
                self._thread.join()
        finally:
            self._socket.close()

    def abandon(self) -> None:
        """In a process just forked: leave all of it to the parent."""
        self._socket.close()
        if self._connection is not None:
            self._connection.close()

    def _serve(self) -> None:
        while True:
            try:
                self._connection, _ = self._socket.accept()
            except OSError as error:
                if self._closing or error.errno not in _MAY_PASS:
                    return
                time.sleep(0.1)  # nothing tells when there are descriptors again
                continue
            with self._connection as connection, suppress(OSError):  # who asks may go away
                connection.settimeout(_PATIENCE_S)
                if other_end(connection)[1] == os.geteuid():
                    connection.sendall(_answer())
                connection.shutdown(socket.SHUT_WR)  # a process forked meanwhile may have it, too


# ---------------------------------------------------------------- the Workers of this process
def listen(worker: Any) -> None:
    """Answer for a Worker that has been started."""
    global _server
    is_handled = _handle_sigquit()
    with signals_blocked(), _lock:  # or an interrupt could leave a thread that nobody knows
        _open[worker] = _open.get(worker, False) or is_handled
        if _server is None:
            try:
                _server = _TopServer()
            except (OSError, RuntimeError) as error:  # no name, descriptor or thread can be had
                log.warning("`python -m simpler_ref top` will not find this process: %s", error)


def leave(worker: Any) -> None:
    """Answer for a Worker no longer; after the last one, close the socket."""
    global _server, _last_quit
    with signals_blocked():
        with _lock:
            _open.pop(worker, None)
            is_handled = any(_open.values())
            closing, _server = (None, _server) if _open else (_server, None)
        if closing is not None:
            closing.close()  # without the lock, which its thread may want
    if not is_handled and _is_main_thread():
        _give_sigquit_back()
        _last_quit = float("-inf")


def leave_to_parent() -> None:
    """In a process just forked: answer for nobody."""
    global _server, _lock
    _lock = threading.RLock()
    _open.clear()
    if _server is not None:
        _server.abandon()
        _server = None


def _outermost() -> list[Any]:
    """Return the open Workers, but for those in threads, which are below their parents."""
    with _lock:
        workers = list(_open)
    inner = {below for worker in workers for below in worker.nested()}
    return [worker for worker in workers if worker not in inner]


def _answer() -> bytes:
    """Return what is sent to one who asks: it must not end the thread."""
    told: dict[str, Any] = {"format": FORMAT, "pid": os.getpid()}
    try:
        looks = [worker.look() for worker in _outermost()]
        told["workers"] = [asdict(one) for one in looks if one is not None]
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    return json.dumps(told).encode()


# ---------------------------------------------------------------- SIGQUIT
def has_own_handler() -> bool:
    """Say whether the program handles or ignores SIGQUIT, also below Python, as faulthandler does."""
    bit = 1 << signal.SIGQUIT - 1
    with open("/proc/self/status") as lines:
        masks = [line.split()[1] for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(int(mask, 16) & bit for mask in masks)


def ignore_sigquit() -> None:
    """In a process that will fork workers: ignore SIGQUIT, which a terminal sends to all processes."""
    if signal.getsignal(signal.SIGQUIT) is _report or not has_own_handler():
        signal.signal(signal.SIGQUIT, do_nothing)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _handle_sigquit() -> bool:
    """Handle SIGQUIT if this is the main thread, and the program does nothing else then; say so."""
    if not _is_main_thread():
        return False
    if signal.getsignal(signal.SIGQUIT) is not _report:
        if has_own_handler():
            return False
        signal.signal(signal.SIGQUIT, _report)
    return True


def _give_sigquit_back() -> None:
    if signal.getsignal(signal.SIGQUIT) is _report:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _report(_number: int, _frame: object) -> None:
    """Log what the Workers do; end the program at a second signal, or if none is open any more."""
    global _last_quit
    reports = [text for worker in _outermost() if (text := worker.report())]
    before, _last_quit = _last_quit, time.monotonic()
    if not reports or _last_quit - before < TWICE_S:
        _give_sigquit_back()
        os.kill(os.getpid(), signal.SIGQUIT)
        return
    for report in reports:
        log.warning("%s", report)


# ---------------------------------------------------------------- the command
DEADLINE_S = 5.0
"""How long an answer may take. The thread that answers needs the lock of the interpreter."""
_CHUNK = 1 << 16
_CLEAR = "\x1b[H\x1b[J"
"""Tells a terminal to begin again in its upper left corner."""
_LONGEST_S = 86400.0
"""Bound of `--interval`."""


def main(arguments: Sequence[str]) -> int:
    """Print tables until the process ends or Ctrl-C comes, as the options say; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simpler_ref top",
        description="Show what the open Workers of a running process do: the task of each worker and how "
        "long it has run, what waits for what, and what is in use of the rings. It ends with the "
        "process, or with Ctrl-C.",
    )
    parser.add_argument("pid", type=int, help="the process of the program, which must be yours")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    parser.add_argument("--once", action="store_true", help="look once, for scripts")
    given = parser.parse_args(arguments)
    try:
        return _show(given.pid, given.once, given.interval)
    except NoAnswerError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 0


def _show(pid: int, once: bool, interval: float) -> int:
    print(_table(pid, once), flush=True)
    while not once:
        time.sleep(interval)
        try:
            text = _table(pid, once)
        except SilentError as error:  # it may answer later
            text = f"\n{error}"
        except NoAnswerError as error:  # it has ended
            print(error)
            return 0
        print(text, flush=True)
    return 0


def _table(pid: int, once: bool) -> str:
    text = "\n\n".join(map(str, ask(pid)))
    if once:
        return text
    return _CLEAR + text if sys.stdout.isatty() else text + "\n"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0 and below a day")
    return seconds


# ---------------------------------------------------------------- asking another process
class NoAnswerError(Exception):
    """A process does not say what its Workers do; the text says why."""


class SilentError(NoAnswerError):
    """It has not answered in time."""


def ask(pid: int, deadline_s: float = DEADLINE_S) -> list[Top]:
    """Return what the Workers of a process do, with those of their child Workers' processes."""
    until = time.monotonic() + deadline_s
    _require_mine(pid)
    found = _ask(pid, until)
    if found:
        return [complete(one, until) for one in found]
    text = f"process {pid} has no open Worker whose workers are started"
    for above in _ancestors(pid):
        with suppress(NoAnswerError):
            if _ask(above, until):
                text += f"; process {above}, above it, has one: `python -m simpler_ref top {above}`"
                break
    raise NoAnswerError(text)


def complete(found: Top, until: float | None = None) -> Top:
    """Return it with what the Workers in the processes of its workers do."""
    until = time.monotonic() + DEADLINE_S if until is None else until
    return replace(found, workers=tuple(_with_children(row, until) for row in found.workers))


def _with_children(row: Row, until: float) -> Row:
    children: Sequence[Top] = row.children
    if row.pid is not None:
        try:
            children = _ask(row.pid, until)
        except SilentError:
            return replace(row, silent=True)
        except NoAnswerError:  # it has just ended
            return row
    return replace(row, children=tuple(complete(one, until) for one in children))


def _require_mine(pid: int) -> None:
    """Refuse a process that does not exist, or is another user's."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
        if _status(pid)[0] == "Z":  # its parent has not noticed yet
            raise ProcessLookupError
    except OSError:
        raise NoAnswerError(f"there is no process {pid}") from None
    if owner != os.geteuid():
        raise NoAnswerError(
            f"process {pid} belongs to user {owner}, and this is user {os.geteuid()}: a process answers "
            "its own user only"
        )


def _ask(pid: int, until: float) -> Sequence[Top]:
    """Return what the Workers of one process do; nothing if it has none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            raw = _read(connection, pid, until)
        except (TimeoutError, BlockingIOError):
            raise SilentError(
                f"process {pid} does not answer: it is stopped, or one of its threads is in native code "
                f"that keeps the lock of the interpreter. `py-spy dump --native --pid {pid}` shows where"
            ) from None
        except OSError:  # nobody has the name
            return ()
    if not raw:
        return ()
    try:
        told: dict[str, Any] = json.loads(raw)
    except ValueError:
        raise NoAnswerError(f"process {pid} has ended while it was asked") from None
    if told["format"] != FORMAT:
        raise NoAnswerError(
            f"process {pid} has another version of simpler_ref, which answers in another format: use the "
            "`python -m simpler_ref top` of its environment"
        )
    if "error" in told:
        raise NoAnswerError(f"process {pid} could not look at its Workers: {told['error']}")
    return [from_data(one) for one in told["workers"]]


def _read(connection: socket.socket, pid: int, until: float) -> bytes:
    """Return the answer, empty if it is that of a process which only says that it is `pid`."""
    raw = b""
    connection.settimeout(max(0.001, until - time.monotonic()))
    connection.connect(NAME.format(pid=pid))
    if other_end(connection)[0] != pid:
        return raw
    while True:
        connection.settimeout(max(0.001, until - time.monotonic()))
        chunk = connection.recv(_CHUNK)
        if not chunk:
            return raw
        raw += chunk


def _status(pid: int) -> list[str]:
    """Return what the system says of a process, from its state on."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has just ended
        while pid > 1:
            pid = int(_status(pid)[1])
            found.append(pid)
    return found
