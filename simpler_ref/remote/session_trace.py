"""The trace of a session: what its inner Worker does, its frames, and what it moves.

Rule     SEE-REMOTE-1, -2
"""

from __future__ import annotations

import time
from typing import Any

from ..workers.reports import cut_utf8, describe_exception
from .connection import Order
from .frames import Frame
from .limits import MAX_ERROR_BYTES
from .manifest import Manifest
from .noted import frame_word, moved_word
from .records import TRACE, TRACE_ANSWER, Outgoing, TraceAnswer, TraceDetail
from .session_frames import SessionFrames


class SessionTrace:
    """The trace that a session takes, while its parent takes one."""

    def __init__(self, manifest: Manifest, frames: SessionFrames, inner: Any) -> None:
        self._manifest, self._frames, self._inner = manifest, frames, inner
        self._records: Outgoing | None = None

    def serve(self, frame: Frame) -> bytes:
        """Begin a trace of the inner Worker, or end it."""
        address, size, text = "", 0, ""
        try:
            detail = TRACE.decode(frame.payload).detail
            if detail == TraceDetail.OFF:
                size = self._end()
            else:
                address = self._begin(detail)
        except BaseException as error:
            if self._frames.over:
                raise
            text = cut_utf8(describe_exception(error), MAX_ERROR_BYTES).decode()
        return TRACE_ANSWER.encode(TraceAnswer(frame.header.sequence, address, size, text))

    def _begin(self, detail: TraceDetail) -> str:
        self.drop()
        order = Order(self._manifest.session_id, self._manifest.endpoint_id)
        self._records = Outgoing(self._inner, detail, order, self._frames.router())
        self._frames.note = self._note_frame
        return self._records.address

    def _end(self) -> int:
        """End the trace, and return the bytes of its records; a second time let them go."""
        if self._records is None:
            return 0
        if self._records.is_on:
            return self._records.end()
        self.drop()
        return 0

    def drop(self) -> None:
        """Let the records go, if there are any."""
        self._frames.note = None
        if self._records is not None:
            self._records.close()
            self._records = None

    def _note_frame(self, kind: int, number: int, nbytes: int, sent: bool) -> None:
        """Note a frame."""
        assert self._records is not None
        word = frame_word(kind, number, self._manifest.session_id, sent=sent)
        self._records.note(word, 0, time.monotonic_ns(), nbytes)

    def note_moved(self, address: str, stored: bool, nbytes: int, began: int) -> None:
        """Note a tensor that was moved, if a trace is taken; for any thread."""
        records = self._records
        if records is not None:
            word = moved_word(address, stored=stored)
            records.note(word, nbytes, began, time.monotonic_ns())
