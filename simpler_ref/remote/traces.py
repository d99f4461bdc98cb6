"""The trace of an endpoint: its link has the session take it, and fetches the records.

A trace of the session's Worker goes into a file without a name at the endpoint. From there it comes,
piece by piece, as answers of the session's mover, into a file beside that of the parent's trace. Each
answer says what the clock of the endpoint is, which the link notes. Who reads the file checks it.

    session: Worker ──► file ──► mover          link: asks every 0.2 s ──► file ──► Trace
                                   └──── piece, clock ────┘    └─ NOTED_CLOCK ──► parent's trace

Rule     REMOTE-HEALTH-4, SEE-REMOTE-1, SEE-REMOTE-2, SEE-REMOTE-3, SEE-REMOTE-4, SEE-REMOTE-6
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from collections import deque
from typing import IO, Annotated, Any, BinaryIO, NamedTuple

from ..errors import TransferError
from ..jit import layout as L
from ..workers.reports import cut_utf8, describe_exception
from .fields import U64, Message, Uint64, blob, one_of, text
from .frames import Frame, OwnFrameType
from .limits import MAX_ERROR_BYTES
from .link_frames import LinkFrames
from .parent_memory import ParentMemory
from .session_frames import SessionFrames

log = logging.getLogger("simpler_ref")
MOST_BYTES = 1 << 34
"""Of the records of one trace: no endpoint may fill the disk of the program's machine."""
MOST_PIECES = 8
"""How many are fetched before the caller goes on with something else."""
PIECE = 1 << 18
"""The most bytes of records that travel at once."""


# ---------------------------------------------------------------- messages
class TraceDetail(enum.IntEnum):
    """What a session shall note."""

    OFF = 0
    TASKS = 1
    ALL = 2


class TraceAnswer(NamedTuple):
    """The key by which records are asked for; at the end how many bytes there are; or what is wrong."""

    sequence: Uint64
    key: Uint64 = 0
    size: Uint64 = 0
    error: Annotated[str, text(MAX_ERROR_BYTES)] = ""


class RecordsAnswer(NamedTuple):
    """The time by the clock of the session, and bytes."""

    time_ns: Uint64
    data: Annotated[bytes, blob(PIECE)]


TRACE = one_of(*TraceDetail).called("TRACE.detail")
"""A trace of the session's Worker begins, or is to end; a second OFF lets its records go."""
TRACE_ANSWER = Message("TRACE answer", TraceAnswer)
RECORDS = U64.called("RECORDS.offset")
"""Asks for the bytes of the records from one on."""
RECORDS_ANSWER = Message("RECORDS answer", RecordsAnswer)


# ---------------------------------------------------------------- notes
Note = tuple[int, int, int, int]
"""What, task, time and value, as journals have them."""


def frame_word(kind: int, number: int, session: int, *, sent: bool) -> int:
    """Return the first word of a note about a frame; `number` is that of the one that asks."""
    operand = kind | (L.FRAME_SENT if sent else 0)
    operand |= (number & L.FRAME_NUMBER) << 9 | (session & L.FRAME_SESSION) << 40
    return L.NOTED_FRAME | operand << 8


def moved_word(address: str, *, stored: bool) -> int:
    """Return the first word of a note about a tensor that was moved from or to a mover."""
    return L.NOTED_MOVED | (int(stored) | peer_of(address) << 1) << 8


def peer_of(address: str) -> int:
    """Return what notes name a mover by."""
    digest = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & L.MOVED_PEER


def clock_note(asked_ns: int, there_ns: int, came_ns: int) -> Note:
    """Return how far another clock was ahead between question and answer: plus or minus half the time."""
    when, half = (asked_ns + came_ns) // 2, max(0, (came_ns - asked_ns + 1) // 2)
    return L.NOTED_CLOCK | half << 8, 0, when, there_ns - when


# ---------------------------------------------------------------- at the link
class LinkTrace:
    """The trace of one session, and the file into which its records come.

    It also notes frames, and tensors that were moved, in the trace that the parent takes. The journal is
    the main thread's, which takes up what others note.
    """

    def __init__(self, frames: LinkFrames, memory: ParentMemory) -> None:
        self._frames, self._memory = frames, memory
        frames.note, frames.on_beat = self._note_frame, self.poll
        memory.mover.on_moved = self._note_moved
        self._notes: deque[Note] = deque()
        self._lock = threading.Lock()
        """Held while a piece comes: the thread that sends signs of life fetches some, too."""
        self._file: BinaryIO | None = None
        self._key = self._came = 0
        self._size: int | None = None
        """How many bytes there are in all, once the trace has ended."""
        self._why = ""
        """Why the records end before that."""

    def answer(self, request: bytes) -> bytes:
        asked = json.loads(request)
        told = self._end(**asked) if "wait_s" in asked else self._begin(**asked)
        return json.dumps(told).encode()

    def _begin(self, file: str, detail: str) -> dict[str, str]:
        """Begin a trace; return why it cannot be."""
        self.drop()
        told = self._ask(TraceDetail[detail.upper()])
        if told.error:
            return {"why": told.error}
        try:
            opened = open(file, "wb")  # noqa: SIM115
        except OSError:
            self._let_go()
            raise
        with self._lock:
            self._file, self._key = opened, told.key
            self._came, self._size, self._why = 0, None, ""
        self.poll()
        return {"why": ""}

    def _end(self, wait_s: float) -> dict[str, Any]:
        """End the trace; return how many bytes are still to come after a while, and what went wrong."""
        if self._file is None:
            return {}
        if self._size is None:
            self._size = self._ask(TraceDetail.OFF).size
        deadline = time.monotonic() + wait_s
        while not self._why and self._came < self._size:
            if time.monotonic() > deadline:
                return {"left": self._size - self._came}
            self.poll()
        self.drop()
        self._let_go()
        return {"left": 0, "why": self._why}

    def poll(self) -> None:
        """Fetch what there is, if a trace is taken; for any thread."""
        with self._lock:
            if self._file is None or self._why:
                return
            try:
                for _ in range(MOST_PIECES):
                    if self._came == self._size or self._fetch(self._file) < PIECE:
                        break
                self._file.flush()
            except (OSError, ValueError, TransferError) as error:
                self._why = str(error)
                name = self._frames.place.name
                log.warning("the records of %s in %s end here: %s", name, self._file.name, error)

    def _fetch(self, file: BinaryIO) -> int:
        """Fetch the next piece, and note the clock that it tells; return its bytes."""
        question = RECORDS.encode(self._came)
        asked_ns = time.monotonic_ns()
        raw = self._memory.mover.ask(self._memory.address, self._key, question)
        came_ns = time.monotonic_ns()
        piece = RECORDS_ANSWER.decode(raw)
        self._note(clock_note(asked_ns, piece.time_ns, came_ns))
        self._came += len(piece.data)
        most = MOST_BYTES if self._size is None else min(MOST_BYTES, self._size)
        if self._came > most or (self._size is not None and not piece.data):
            raise ValueError(f"{self._came} bytes of records have come, {most} are allowed")
        file.write(piece.data)
        return len(piece.data)

    def _note_frame(self, kind: int, number: int, task: int, nbytes: int, sent: bool) -> None:
        word = frame_word(kind, number, self._frames.session_id, sent=sent)
        self._note((word, task, time.monotonic_ns(), nbytes))

    def _note_moved(self, address: str, stored: bool, nbytes: int, began: int) -> None:
        if self._frames.mailbox.engine.view.is_traced:
            word = moved_word(address, stored=stored)
            self._note((word, nbytes, began, time.monotonic_ns()))

    def _note(self, note: Note) -> None:
        self._notes.append(note)
        if threading.current_thread() is threading.main_thread():
            while self._notes:
                self._frames.mailbox.note(*self._notes.popleft())

    def drop(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _let_go(self) -> None:
        """Have the session end its trace, if it has not, and let the records go."""
        for _ in range(2):
            self._ask(TraceDetail.OFF)

    def _ask(self, detail: TraceDetail) -> TraceAnswer:
        answer = self._frames.exchange(OwnFrameType.TRACE, TRACE.encode(detail))
        return TRACE_ANSWER.decode(answer.payload)


# ---------------------------------------------------------------- at the session
class SessionTrace:
    """The trace that a session takes, while its parent takes one.

    Those who may ask for the records have its `key`; 0: there are none.
    """

    def __init__(self, session_id: int, frames: SessionFrames, inner: Any) -> None:
        self._session_id, self._frames, self._inner = session_id, frames, inner
        self._kernels, self._mem = inner._life.live().engine.kernels, inner._life.live().engine.mem
        self._lock = threading.Lock()
        """Held while a piece is read, on the mover's thread, or the file let go."""
        self._file: IO[bytes] | None = None
        self._tracing: Any = None
        """What takes the trace, until it has ended."""
        self.key = 0

    def serve(self, frame: Frame) -> bytes:
        """Begin a trace of the inner Worker, or end it; a second time let its records go."""
        key, size, text = 0, 0, ""
        try:
            detail = TRACE.decode(frame.payload)
            if detail != TraceDetail.OFF:
                key = self._begin(detail)
            elif self._tracing is not None:
                size = self._end()
            else:
                self.drop()
        except BaseException as error:
            if self._frames.over:
                raise
            text = cut_utf8(describe_exception(error), MAX_ERROR_BYTES).decode()
        return TRACE_ANSWER.encode(TraceAnswer(frame.header.sequence, key, size, text))

    def _begin(self, detail: TraceDetail) -> int:
        self.drop()
        file = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
            tracing = self._inner.trace(path, detail=detail.name.lower())
            tracing.__enter__()
        except BaseException:
            file.close()
            raise
        self._file, self._tracing, self.key = file, tracing, secrets.randbits(63) | 1
        self._frames.note = self._note_frame
        return self.key

    def _end(self) -> int:
        assert self._file is not None
        self._frames.note = None
        tracing, self._tracing = self._tracing, None
        tracing.__exit__(None, None, None)
        return os.fstat(self._file.fileno()).st_size

    def piece(self, question: bytes) -> bytes:
        """Return the bytes of the records from one on; on the mover's thread."""
        offset = RECORDS.decode(question)
        with self._lock:
            file = self._file
            data = b"" if file is None else os.pread(file.fileno(), PIECE, offset)
        if not data and self._tracing is not None:
            self._kernels.ask_collector(self._mem)  # next time there is what was noted by now
        return RECORDS_ANSWER.encode(RecordsAnswer(time.monotonic_ns(), data))

    def drop(self) -> None:
        self._frames.note = None
        with self._lock:
            self.key = 0
            if self._file is not None:
                self._file.close()
                self._file = None

    def _note_frame(self, kind: int, number: int, nbytes: int, sent: bool) -> None:
        word = frame_word(kind, number, self._session_id, sent=sent)
        self._note(word, 0, time.monotonic_ns(), nbytes)

    def note_moved(self, address: str, stored: bool, nbytes: int, began: int) -> None:
        """Note a tensor that was moved, if a trace is taken; for any thread."""
        if self._tracing is not None:
            word = moved_word(address, stored=stored)
            self._note(word, nbytes, began, time.monotonic_ns())

    def _note(self, what: int, task: int, time_ns: int, value: int) -> None:
        """Put a note into the journal of the thread that serves frames, which is the Orch thread, too."""
        self._kernels.note(self._mem, L.JOURNAL_OF_ORCH, what, task, time_ns, value)
