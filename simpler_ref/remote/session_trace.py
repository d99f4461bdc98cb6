"""The trace of a session: what its inner Worker does, its frames, and what it moves.

Rule     SEE-REMOTE-1, SEE-REMOTE-2, SEE-REMOTE-6
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
import time
from typing import IO, Any

from ..workers.reports import cut_utf8, describe_exception
from .frames import Frame
from .limits import MAX_ERROR_BYTES
from .records import (
    PIECE,
    RECORDS,
    RECORDS_ANSWER,
    TRACE,
    TRACE_ANSWER,
    RecordsAnswer,
    TraceAnswer,
    TraceDetail,
    frame_word,
    moved_word,
)
from .session_frames import SessionFrames


class SessionTrace:
    """The trace that a session takes, while its parent takes one.

    Attributes
    ----------
    key : int
        Of those who may ask for the records; 0 if there are none.
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
            detail = TRACE.decode(frame.payload).detail
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
        offset = RECORDS.decode(question).offset
        with self._lock:
            data = os.pread(self._file.fileno(), PIECE, offset) if self._file is not None else b""
        if not data and self._tracing is not None:
            self._kernels.ask_collector(
                self._mem
            )  # the next time there is what was noted until now
        return RECORDS_ANSWER.encode(RecordsAnswer(time.monotonic_ns(), data))

    def drop(self) -> None:
        """Let the records go, if there are any."""
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
            self._note(moved_word(address, stored=stored), nbytes, began, time.monotonic_ns())

    def _note(self, what: int, task: int, time_ns: int, value: int) -> None:
        """Put a note into the journal of the thread that serves frames, which is the Orch thread, too."""
        self._kernels.note_of_orch(self._mem, what, task, time_ns, value)
