"""The records of a traced session: what asks for them, and how they are checked before they are used.

A trace of the session's Worker goes into a file without a name at the endpoint. From there it comes,
piece by piece, over a connection of its own, into a file beside that of the parent's trace. Each piece is
asked for, so at most one is under way; and each answer says what the clock of the endpoint is.

Rule     REMOTE-HEALTH-4, -5; SEE-REMOTE-1, -3, -5, -6
"""

from __future__ import annotations

import enum
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jit import layout as L
from ..system.polling import wait_readable
from ..trace.tables import MAGIC, NOTE, VERSION, head_of, text_notes
from .connection import Order, zmq
from .fields import U64, Blob, Message, OneOf, Text
from .frames import OwnFrameType
from .limits import MAX_ERROR_BYTES, MAX_STRING_BYTES

if TYPE_CHECKING:
    from ..worker import Worker

PIECE = 1 << 18
"""The most bytes of records that travel at once."""
PAUSE_S = 0.2
"""How long to wait for more when all have come."""
MOST_TEXT = 1 << 22
MOST_HEAD = 1 << 16
MOST_NOTES = 1 << 18
MOST_JOURNALS = 1 << 13
_FEW_TASKS, _TASKS_PER_NOTE = 1 << 20, 256
"""Tasks may be without notes; but so many more than there are notes no program has."""
_NOTE_BYTES = NOTE.itemsize


# ---------------------------------------------------------------- messages
class TraceDetail(enum.IntEnum):
    """What a session shall note."""

    OFF = 0
    TASKS = 1
    ALL = 2


@dataclass(frozen=True)
class TraceRequest:
    """A trace of the session's Worker begins, or is to end."""

    detail: TraceDetail


@dataclass(frozen=True)
class TraceAnswer:
    """Where the records are to be asked for; at the end how many bytes there are; or what is wrong."""

    sequence: int
    address: str = ""
    size: int = 0
    error: str = ""


@dataclass(frozen=True)
class RecordsRequest:
    """Asks for the bytes of the records from one on; and by the parent's clock when it does."""

    offset: int
    asked_ns: int


@dataclass(frozen=True)
class RecordsAnswer:
    """Bytes, and by the clock of the session when it was asked and when it answers."""

    offset: int
    asked_ns: int
    received_ns: int
    answered_ns: int
    data: bytes


TRACE = Message("TRACE", TraceRequest, detail=OneOf(TraceDetail))
TRACE_ANSWER = Message(
    "TRACE answer",
    TraceAnswer,
    sequence=U64,
    address=Text(MAX_STRING_BYTES),
    size=U64,
    error=Text(MAX_ERROR_BYTES),
)
RECORDS = Message("RECORDS", RecordsRequest, offset=U64, asked_ns=U64)
RECORDS_ANSWER = Message(
    "RECORDS answer",
    RecordsAnswer,
    offset=U64,
    asked_ns=U64,
    received_ns=U64,
    answered_ns=U64,
    data=Blob(PIECE),
)


# ---------------------------------------------------------------- checking them
class Checked:
    """The bytes of a trace as they come: what is right of them, as whole parts of a file."""

    def __init__(self) -> None:
        self._rest = b""
        self.has_head = False
        self._left, self._head = 0, (0, 0, 0)
        """How many notes of a chunk are to come; its journal, time and dropped notes."""
        self._notes = 0

    def take(self, raw: bytes) -> bytes:
        """Return what can be written now.

        Raises
        ------
        ValueError
            These are no records.
        """
        self._rest += raw
        out = []
        if not self.has_head:
            if (head := self._take_head()) is None:
                return b""
            out.append(head)
        while (part := self._take_part()) is not None:
            out.append(part)
        return b"".join(out)

    def _cut(self, size: int) -> bytes:
        cut, self._rest = self._rest[:size], self._rest[size:]
        return cut

    def _take_head(self) -> bytes | None:
        end = self._rest.find(b"\n", len(MAGIC))
        _require(
            self._rest[: len(MAGIC)] == MAGIC[: len(self._rest)], "they do not begin as a trace"
        )
        _require(end >= 0 or len(self._rest) < MOST_HEAD, "their first line has no end")
        if end < 0:
            return None
        about = _object(self._cut(end + 1)[len(MAGIC) :])
        _require(
            about.get("version") == VERSION, f"version {about.get('version')!r} is not {VERSION}"
        )
        self.has_head = True
        kept = {name: about.get(name) for name in ("by", "host", "program", "clock")}
        _require(all(_is_text(one) for one in kept.values()), "their first line has no texts")
        _require(_is_number(about.get("pid")), "their first line has no pid")
        return head_of({"version": VERSION, "ended": False, "pid": about["pid"], **kept})

    def _take_part(self) -> bytes | None:
        """Return the next notes of a chunk, or a text; None if not enough has come."""
        if self._left == 0:
            if len(self._rest) < _NOTE_BYTES:
                return None
            what, count, when, value = np.frombuffer(self._rest, NOTE, 1)[0].item()
            if what == L.NOTED_TEXT:
                return self._take_text(count, value)
            journal = what >> 8
            _require(
                what & 0xFF == L.NOTED_CHUNK and 0 <= journal < MOST_JOURNALS, f"chunk {what:#x}"
            )
            _require(0 < count <= MOST_NOTES and value >= 0, f"a chunk of {count} notes")
            self._cut(_NOTE_BYTES)
            self._left, self._head = count, (what, when, value)
        count = min(self._left, len(self._rest) // _NOTE_BYTES)
        if count == 0:
            return None
        notes = np.frombuffer(self._cut(count * _NOTE_BYTES), NOTE)
        self._left -= count
        self._require_notes(notes)
        what, when, value = self._head
        return np.array([(what, count, when, value)], NOTE).tobytes() + notes.tobytes()

    def _require_notes(self, notes: Any) -> None:
        self._notes += len(notes)
        kinds = notes["what"] & 0xFF
        _require(bool((kinds < L.NOTED_CHUNK).all()), "a note of no kind")
        numbers = notes["task"][kinds != L.NOTED_MOVED]
        most = _FEW_TASKS + _TASKS_PER_NOTE * self._notes
        _require(
            bool(((numbers >= 0) & (numbers <= most)).all()),
            f"a task beyond number {most} in {self._notes} notes",
        )

    def _take_text(self, count: int, size: int) -> bytes | None:
        whole = count * _NOTE_BYTES
        _require(
            0 < size <= whole < size + _NOTE_BYTES and size <= MOST_TEXT, f"a text of {size} bytes"
        )
        if len(self._rest) < _NOTE_BYTES + whole:
            return None
        about = _object(self._cut(_NOTE_BYTES + whole)[_NOTE_BYTES : _NOTE_BYTES + size])
        kept = {name: check(about[name]) for name, check in _TOLD.items() if name in about}
        return text_notes(kept)


def _require(right: bool, why: str) -> None:
    if not right:
        raise ValueError(f"these are no records of a trace: {why}")


def _object(raw: bytes) -> dict[str, Any]:
    found = None
    with suppress(ValueError, RecursionError):
        found = json.loads(raw)
    _require(isinstance(found, dict), f"{raw[:40]!r} is no object")
    assert isinstance(found, dict)
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_STRING_BYTES


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_line(value: Any) -> bool:
    return (
        isinstance(value, list)
        and [type(one) for one in value] == [str, int, str]
        and _is_text(value[0])
        and _is_number(value[1])
        and _is_text(value[2])
    )


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        _require(isinstance(value, list) and all(map(is_right, value)), "a list of something else")
        return value

    return check


def _names(value: Any) -> Any:
    """Return names of functions, by their numbers."""
    _require(
        isinstance(value, dict)
        and all(key.isdecimal() and len(key) < 20 and _is_text(it) for key, it in value.items()),
        "names of functions",
    )
    return value


def _one(is_right: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        _require(is_right(value), f"{value!r:.40}")
        return value

    return check


_TOLD: dict[str, Callable[[Any], Any]] = {
    "functions": _names,
    "workers": _list_of(_is_text),
    "lines": _list_of(_is_line),
    "level": _one(_is_number),
    "rings": _one(_is_number),
    "ended": _one(lambda value: value is True),
}
"""What is kept of a text."""


# ---------------------------------------------------------------- the session's side
class Outgoing:
    """The trace of a session's Worker, and the thread that hands its records out.

    Parameters
    ----------
    inner : Worker
        It runs no task now.
    detail : TraceDetail
        What is noted.
    order : Order
        Of the frames of the connection.
    socket : zmq.Socket
        The parent alone can connect to it.
    """

    def __init__(self, inner: Worker, detail: TraceDetail, order: Order, socket: Any) -> None:
        self._engine = inner._life.live().engine
        self._order, self._socket = order, socket
        self.is_on = True
        self._thread: threading.Thread | None = None
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._ending, self._ended = os.pipe()
        try:
            path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
            self._tracing = inner.trace(path, detail=detail.name.lower())
            self._tracing.__enter__()
        except BaseException:
            self.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="simpler-records", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the records are to be asked for."""
        address: str = self._socket.last_endpoint.decode()
        return address

    def note(self, what: int, task: int, time_ns: int, value: int) -> None:
        """Put a note into the journal of the thread that serves frames, which is the Orch thread, too."""
        if self.is_on:
            self._engine.kernels.note_of_orch(self._engine.mem, what, task, time_ns, value)

    def end(self) -> int:
        """End the trace; return how many bytes its records have."""
        self.is_on = False
        self._tracing.__exit__(None, None, None)
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Hand out nothing more, and let the file go."""
        os.close(self._ended)
        if self._thread is not None:
            self._thread.join()
        os.close(self._ending)
        self._socket.close(linger=0)
        self._file.close()

    def _serve(self) -> None:
        module = zmq()
        poller = module.Poller()
        poller.register(self._socket, module.POLLIN)
        poller.register(self._ending, module.POLLIN)
        while self._ending not in dict(poller.poll()):
            identity, *parts = self._socket.recv_multipart()
            received = time.monotonic_ns()
            with suppress(ValueError):  # the parent asks for the right ones
                asked = RECORDS.decode(self._order.decode(parts[-1]).payload)
                data = os.pread(self._file.fileno(), PIECE, asked.offset)
                if not data:  # the next time there is what was noted until now
                    self._engine.kernels.ask_collector(self._engine.mem)
                answer = RecordsAnswer(
                    asked.offset, asked.asked_ns, received, time.monotonic_ns(), data
                )
                raw = self._order.encode(OwnFrameType.RECORDS, RECORDS_ANSWER.encode(answer))
                self._socket.send_multipart([identity, raw])


# ---------------------------------------------------------------- the parent's side
class Incoming:
    """The thread that fetches the records of a session, and writes them beside the parent's trace.

    Parameters
    ----------
    path : str
        The file, which is made.
    order, socket
        As of `Outgoing`; the socket is connected by `begin`.
    silence_s : float
        How long the session may take for an answer at the end.
    warn : Callable[[str], None]
        Told why the records end before the trace does.
    """

    def __init__(
        self,
        path: str,
        order: Order,
        socket: Any,
        silence_s: float,
        warn: Callable[[str], None],
    ) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o666)
        self._order, self._socket, self._warn = order, socket, warn
        self._silence_s = silence_s
        self._came = 0
        self._size: int | None = None
        self._news = threading.Condition()
        self._over = False
        self._wake, self._woken = os.pipe()
        self._thread: threading.Thread | None = None

    def begin(self, address: str) -> None:
        """Begin to fetch."""
        self._socket.connect(address)
        self._thread = threading.Thread(target=self._fetch, name="simpler-records", daemon=True)
        self._thread.start()

    def finish(self, size: int) -> None:
        """Say how many bytes there are in all."""
        with self._news:
            self._size = size
        os.write(self._woken, b"!")

    def left(self, timeout_s: float) -> int:
        """Return how many bytes are to come, or 0 if no more will; wait a moment for that."""
        with self._news:
            self._news.wait_for(lambda: self._over, timeout_s)
            return 0 if self._over else max(1, (self._size or 0) - self._came)

    def close(self) -> None:
        """Fetch no more, and close the file."""
        os.close(self._woken)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)
        self._socket.close(linger=0)
        os.close(self._fd)

    def _fetch(self) -> None:
        checked = Checked()
        try:
            while (come := self._ask()) is not None:
                answer, clock = come
                self._write(checked.take(answer.data))
                if checked.has_head:
                    self._write(clock)
                with self._news:
                    self._came += len(answer.data)
                    if self._size is not None and self._came >= self._size:
                        return
                    all_came = len(answer.data) < PIECE and self._size is None
                if all_came and not self._rest():
                    return
        except (OSError, ValueError, zmq().ZMQError) as error:
            self._warn(str(error))
            with suppress(OSError):
                self._write(text_notes({"records": str(error)}))
        finally:
            with self._news:
                self._over = True
                self._news.notify_all()

    def _rest(self) -> bool:
        """Wait until it is time to ask for more; return False if it is to end."""
        if not wait_readable([self._wake], PAUSE_S):
            return True
        return bool(os.read(self._wake, 1))

    def _ask(self) -> tuple[RecordsAnswer, bytes] | None:
        """Return the next piece, and a note of the clock it tells; None if there will be none."""
        asked = RecordsRequest(self._came, time.monotonic_ns())
        self._socket.send(self._order.encode(OwnFrameType.RECORDS, RECORDS.encode(asked)))
        module = zmq()
        poller = module.Poller()
        poller.register(self._socket, module.POLLIN)
        poller.register(self._wake, module.POLLIN)
        while self._socket not in (ready := dict(poller.poll(self._limit_ms()))):
            if not ready:
                raise ValueError(f"the session did not answer within {self._silence_s} s")
            if not os.read(self._wake, 1):
                return None
        raw = self._socket.recv()
        came_ns = time.monotonic_ns()
        answer = RECORDS_ANSWER.decode(self._order.decode(raw).payload)
        if (answer.offset, answer.asked_ns) != (asked.offset, asked.asked_ns):
            raise ValueError(f"RECORDS answer: not for byte {asked.offset}")
        return answer, clock_note(answer, came_ns)

    def _limit_ms(self) -> int | None:
        """Return how long to wait for an answer: while tasks run, a session may take any time."""
        return None if self._size is None else int(self._silence_s * 1000)

    def _write(self, raw: bytes) -> None:
        view = memoryview(raw)
        while view:
            view = view[os.write(self._fd, view) :]


def clock_note(answer: RecordsAnswer, came_ns: int) -> bytes:
    """Return how far the clock of a session is ahead, as an answer tells: plus or minus half its way."""
    most, least = answer.received_ns - answer.asked_ns, answer.answered_ns - came_ns
    half = max(0, (most - least + 1) // 2)
    what = L.NOTED_CLOCK | half << 8
    when = (answer.asked_ns + came_ns) // 2
    return np.array([(what, 0, when, (most + least) // 2)], NOTE).tobytes()
