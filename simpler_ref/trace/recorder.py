"""Taking a trace: the collector's thread, and what only Python knows of a run: names and lines.

The kernels note what happens, see `jit/journal.py`. A thread that stays inside one kernel, without the
interpreter's lock, writes these notes to the file. Before and after them the file has JSON.

Rule     SEE-FILE-4, SEE-ON-1
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from ..engine.memory import Engine
from ..jit import layout as L
from ..system.signals import signals_blocked
from ..version import __version__
from .tables import VERSION, head_of, text_notes

log = logging.getLogger("simpler_ref")

DETAILS = {"tasks": L.TRACE_TASKS, "all": L.TRACE_ALL}
"""How much is noted: what workers do, or everything."""
VARIABLE = "SIMPLER_REF_TRACE"
"""The environment variable that names the file for programs that do not."""
POKE_NS = 500_000_000
"""How often a run that ends has the collector write what there is."""
JOIN_TIMEOUT_S = 10.0
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_SUBMITTERS = "submit_and_pass", "run_program", "alloc_buffer", "call_and_pass"
"""The entries by which Python submits."""
_SCOPES = "open_scope", "close_scope"

_opened_by_variable = 0


def file_of_variable() -> str | None:
    """Return the file for the next Worker of this process that names none; None: it is not traced.

    The second Worker has its number after the name, and so on. ``{pid}`` becomes the process.
    """
    global _opened_by_variable
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    _opened_by_variable += 1
    name = name.replace("{pid}", str(os.getpid()))
    return name if _opened_by_variable == 1 else f"{name}.{_opened_by_variable}"


class TraceRecorder:
    """Takes traces of one engine, one after the other.

    `describe` returns what is to be told of the Worker in the file: its names of functions and workers.
    """

    def __init__(self, engine: Engine, describe: Callable[[], dict[str, Any]]) -> None:
        self._engine = engine
        self._describe = describe
        self._mem, self._plain = engine.mem, engine.kernels
        self._thread: threading.Thread | None = None
        self._ending = False
        self._told: dict[str, Any] = {}
        self._poked_ns = 0
        self._written = threading.Condition()
        self.notes_all = True
        """Whether everything is noted, not only what workers do."""
        self._lines: dict[tuple[CodeType, int], int] = {}
        """The numbers of the lines that submit, from 1 on."""
        self.path: str | None = None
        """The file of the trace that is being taken."""

    @property
    def is_on(self) -> bool:
        return self.path is not None

    @property
    def notes_lines(self) -> bool:
        """Whether what submits notes the lines that call it."""
        return self._engine.kernels is not self._plain

    @signals_blocked()  # an interrupt would leave half of it
    def begin(self, path: str | os.PathLike[str], detail: str, *, spans: bool = False) -> None:
        """Begin a trace, while no run is in progress; with `spans` each submit of Python is noted, too.

        Raises
        ------
        OSError
            The file cannot be written.
        RuntimeError
            A trace is being taken.
        """
        if self.path is not None:
            raise RuntimeError(f"a trace is being taken already, into {self.path}")
        whole = os.path.abspath(os.fspath(path))
        self._told, self._lines = {}, {}
        fd = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, head_of(_about()))
            self._tell(fd)
        finally:
            os.close(fd)
        self.path = whole
        self._poked_ns = time.monotonic_ns()
        self.notes_all = DETAILS[detail] == L.TRACE_ALL
        if self.notes_all:
            self._note_lines(spans)
        self._plain.begin_trace(self._mem, DETAILS[detail])

    @signals_blocked()  # an interrupt would leave half of it
    def start(self) -> None:
        """Start the collector's thread, once the workers are forked; a second call does nothing."""
        if self.path is None or self._thread is not None:
            return
        self._ending = False
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._thread = threading.Thread(
            target=self._collect, args=(fd,), name="simpler-collector", daemon=True
        )
        self._thread.start()

    def flush(self) -> bool:
        """Have all that was noted so far written, and say whether it was in time."""
        if self._thread is None or not self._thread.is_alive():
            return False
        with self._written:
            for _ in range(2):  # the first round may have begun before, and be past some of it
                self._plain.ask_collector(self._mem)
                if not self._written.wait(JOIN_TIMEOUT_S):
                    return False
        return True

    def poke(self) -> None:
        """Have written what there is, if that was long ago."""
        if self._thread is not None and time.monotonic_ns() - self._poked_ns > POKE_NS:
            self._poked_ns = time.monotonic_ns()
            self._plain.ask_collector(self._mem)

    @signals_blocked()  # an interrupt would leave half of it
    def end(self) -> str | None:
        """End the trace, and return its file; what was noted is written then."""
        path = self.path
        if path is None:
            return None
        self._plain.end_trace(self._mem)
        self._engine.kernels = self._plain
        self._ending = True
        self._plain.ask_collector(self._mem)
        if self._thread is None:
            self._collect(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        else:
            self._thread.join(JOIN_TIMEOUT_S)
        self._thread = self.path = None
        return path

    def note_function(self, function: Any) -> None:
        """Say that an orchestration function is run: what it submits without a line is its own."""
        code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
        self._engine.view.note_submit_line(self._number(code, code.co_firstlineno) if code else 0)

    # ------------------------------------------------------------ its parts
    def _note_lines(self, spans: bool) -> None:
        noting = SimpleNamespace(**vars(self._plain))
        for name in _SUBMITTERS + _SCOPES:
            entry = self._noting(getattr(self._plain, name), spans and name not in _SCOPES)
            setattr(noting, name, entry)
        self._engine.kernels = noting

    def _noting(self, submit: Callable[..., int], span: bool) -> Callable[..., int]:
        """Return an entry that notes the line that submits; with `span`, also how long it took."""
        mem, note = self._mem, self._plain.note
        view, number = self._engine.view, self._number

        def noting(*args: Any) -> int:
            frame = sys._getframe(1)
            while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
                frame = frame.f_back
            view.note_submit_line(number(frame.f_code, frame.f_lineno))
            began = time.monotonic_ns()
            result = submit(*args)
            if span:
                note(mem, L.JOURNAL_OF_ORCH, L.NOTED_SUBMIT, 0, began, time.monotonic_ns())
            return result

        return noting

    def _number(self, code: CodeType, line: int) -> int:
        return self._lines.setdefault((code, line), len(self._lines) + 1)

    def _collect(self, fd: int) -> None:
        try:
            while not self._ending:
                self._write_notes(fd)
            self._plain.ask_collector(self._mem)  # the end may have come while it returned
            self._write_notes(fd)
            write_all(fd, text_notes({"ended": True}))
        except OSError as error:
            self._plain.end_trace(self._mem)
            text = "the trace in %s ends here: it cannot be written: %s"
            log.warning(text, self.path, error.strerror)
        finally:
            os.close(fd)

    def _write_notes(self, fd: int) -> None:
        """Write notes until asked to return, then what is new about the Worker."""
        code = self._plain.collector_loop(self._mem, fd)
        if code != L.OK:
            raise OSError(-code, os.strerror(-code))
        self._tell(fd)
        with self._written:
            self._written.notify_all()

    def _tell(self, fd: int) -> None:
        """Write what is known of the Worker, and was not yet written."""
        lines = [(code.co_filename, line, code.co_name) for code, line in list(self._lines)]
        now = self._describe() | {"lines": lines}
        news = {name: value for name, value in now.items() if self._told.get(name) != value}
        self._told = now
        if news:
            write_all(fd, text_notes(news))


def clock_name() -> str:
    """Return what names the monotonic clock of this process: others with the same name share it."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return ""


def _about() -> dict[str, Any]:
    return {
        "version": VERSION,
        "by": __version__,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "program": sys.argv[0] if sys.argv else "",
        "ended": False,
        "clock": clock_name(),
        "wall_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
    }


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
