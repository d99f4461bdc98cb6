"""The trace of an endpoint, as its link has the session take it, and fetches the records.

Rule     SEE-REMOTE-1, -4
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from .connection import Order
from .frames import OwnFrameType
from .records import TRACE, TRACE_ANSWER, Incoming, TraceAnswer, TraceDetail, TraceRequest

if TYPE_CHECKING:
    from .link import Link

log = logging.getLogger("simpler_ref")


class LinkTrace:
    """The trace of one session."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._records: Incoming | None = None
        self._is_over = False

    def answer(self, request: bytes) -> bytes:
        """Have the session trace its Worker, and fetch the records; or end that."""
        asked = json.loads(request)
        if "file" in asked:
            return json.dumps({"why": self._begin(asked["file"], asked["detail"])}).encode()
        if self._records is None:
            return b"{}"
        if not self._is_over:
            self._is_over = True
            self._records.finish(self._ask(TraceDetail.OFF).size)
        left = self._records.left(asked["wait_s"])
        if not left:
            self.drop()
            self._ask(TraceDetail.OFF)  # once more: the session may let them go
        return json.dumps({"left": left}).encode()

    def _begin(self, file: str, detail: str) -> str:
        """Begin to fetch records into a file; return why there are none, or ""."""
        self.drop()
        link = self._link
        order = Order(link.session_id, link.number)
        name = link.place_name

        def warn(why: str) -> None:
            log.warning("the records of %s in %s end here: %s", name, file, why)

        records = Incoming(file, order, link.dealer(), link.spec.silence_s, warn)
        try:
            answer = self._ask(TraceDetail[detail.upper()])
            if answer.error:
                return answer.error
            host, port = link.announcement.frames, answer.address
            records.begin(f"{host.rpartition(':')[0]}:{port.rpartition(':')[2]}")
            self._records, self._is_over, records = records, False, None  # type: ignore[assignment]
        finally:
            if records is not None:
                records.close()
        return ""

    def drop(self) -> None:
        """Let the records go, if there are any."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _ask(self, detail: TraceDetail) -> TraceAnswer:
        raw = TRACE.encode(TraceRequest(detail))
        return TRACE_ANSWER.decode(self._link.exchange(OwnFrameType.TRACE, raw).payload)
