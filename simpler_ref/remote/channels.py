"""Channels: connections to the movers of other sessions, each for one call of a mover at a time.

Loss is noticed by ZeroMQ's own thread, which needs no GIL: heartbeats end a connection whose other side
is silent, and the monitor of a channel tells of that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from .connection import POLLIN, prepare, read_event, zmq
from .keys import KeyPair, secure_client
from .windows import (
    CHUNK,
    CREDIT,
    MOST_ASKED,
    NOBODY,
    Header,
    Kind,
    Refusal,
    Span,
    decode,
    encode_windows,
)

QUICK_S = 0.1
"""A chunk that comes sooner leaves room for another one beside it."""
CONNECTION_LOST = "the connection is lost: its process has ended, or is silent"


class Lost(Exception):
    """The other side is gone."""


class Channel:
    """A connection to another mover; see `Mover` for what is given."""

    def __init__(
        self,
        context: Any,
        address: str,
        group: KeyPair | None,
        silence_s: float,
        stopped_s: float | None = None,
    ) -> None:
        self._silence_s = silence_s
        self._is_up = False
        self._socket = context.socket(zmq.DEALER)
        self._monitor: Any = None
        try:
            prepare(self._socket, silence_s, stopped_s=stopped_s)
            if group is not None:
                secure_client(self._socket, group, group.public)
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_ALL)
            self._socket.connect(address)
            while not self._is_up:
                self._wait()
        except BaseException:
            self.close()
            raise

    def move(
        self,
        transfers: Sequence[tuple[Header, Sequence[Span]]],
        here: Callable[[int], None],
        ended: int,
    ) -> None:
        """Copy between windows and memory here; a transfer that is refused ends all.

        Of each there are the first header, and a span, or several that are read together. `here` is told
        the place of each that is over. Nothing is waited for once there is something to read at the
        descriptor `ended`, unless that is −1.

        First, no more are asked for than make a chunk of full size. While answers are quick, each lets as
        many bytes more be under way: on a slow connection signs of life wait behind one chunk only.
        """
        known = {first.transfer: (i, spans) for i, (first, spans) in enumerate(transfers)}
        left = {first.transfer: first.nbytes for first, _ in transfers}
        ahead = deque(
            first._replace(at=at) for first, _ in transfers for at in range(0, first.nbytes, CHUNK)
        )
        under_way: dict[tuple[int, int], Header] = {}
        nbytes, most = 0, CHUNK
        while ahead or under_way:
            while ahead and (
                not under_way or (nbytes + ahead[0].size <= most and len(under_way) < MOST_ASKED)
            ):
                header = ahead.popleft()
                under_way[header.transfer, header.at] = header
                nbytes += header.size
                self._send(header.encode(), *_beside(header, known[header.transfer][1]))
            start = time.monotonic()
            got = self._answer(known, ended)
            header = under_way.pop((got.transfer, got.at), NOBODY)
            expected = Kind.WRITTEN if header.kind == Kind.WRITE else Kind.DATA
            if header is NOBODY or got.kind != expected:
                raise Lost(f"its answer of kind {got.kind} to byte {got.at} is to no request")
            place, spans = known[header.transfer]
            if got.kind == Kind.DATA:
                self._take(header, spans)
            nbytes -= header.size
            left[header.transfer] -= header.size
            if not left[header.transfer]:
                here(place)
            if time.monotonic() - start < QUICK_S:
                most = min(most + header.size, CREDIT * CHUNK)

    def _take(self, header: Header, spans: Sequence[Span]) -> None:
        """Receive a chunk, or several windows, into memory."""
        memories = [one.memory for one in spans] if len(spans) > 1 else [spans[0].chunk(header)]
        sizes = [
            int(self._socket.recv_into(one)) if self._socket.rcvmore else 0 for one in memories
        ]
        self._drop()
        if sizes != [len(memory) for memory in memories]:
            raise Lost(f"it answered with {sum(sizes)} bytes in place of {header.size}")

    def ask(self, first: Header, question: bytes) -> bytes:
        """Ask a question, and return the answer."""
        self._send(first.encode(), question)
        got = self._answer({first.transfer})
        if got.kind != Kind.ANSWER:
            raise Lost(f"its answer of kind {got.kind} is to no question")
        return self._second_part()

    def _send(self, *parts: Any) -> None:
        try:
            self._socket.send_multipart(parts)
        except zmq.Again:
            raise Lost(CONNECTION_LOST) from None

    def _answer(self, transfers: Collection[int], ended: int = -1) -> Header:
        """Wait for the next answer to one of some transfers; raise `Refusal` if it is one."""
        while True:
            try:
                got = decode(self._receive(ended))
            except Refusal as error:
                raise Lost(f"its answer cannot be read: {error}") from None
            if got.kind == Kind.REFUSED and (got.transfer in transfers or not got.transfer):
                raise Refusal(self._second_part().decode(errors="replace"))
            if got.transfer in transfers:
                return got
            self._drop()  # of a transfer before, which was refused

    def _receive(self, ended: int) -> bytes:
        while True:
            with suppress(zmq.Again):
                raw: bytes = self._socket.recv(zmq.NOBLOCK)
                return raw
            self._wait(ended)

    def _second_part(self) -> bytes:
        part: bytes = self._socket.recv() if self._socket.rcvmore else b""
        self._drop()
        return part

    def _drop(self) -> None:
        while self._socket.rcvmore:
            self._socket.recv(copy=False)

    # ---------------------------------------------------------------- whether it is up
    def _wait(self, ended: int = -1) -> None:
        """Wait until there is something to receive; raise `Lost` if there never will be."""
        sources = [self._socket, self._monitor, *([ended] if ended >= 0 else ())]
        limit_ms = -1 if self._is_up else int(self._silence_s * 1e3)
        found = dict(zmq.zmq_poll([(one, POLLIN) for one in sources], limit_ms))
        if not found and not self._is_up:
            raise Lost(f"no session has answered there within {self._silence_s} s")
        if ended in found:
            raise Lost("nobody waits for it any more")
        if self._monitor in found:
            self._look()

    def _look(self) -> None:
        """Read what the monitor tells; raise `Lost` if that is the end of the connection."""
        with suppress(zmq.Again):
            while True:
                event, _ = read_event(self._monitor, zmq.NOBLOCK)
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._is_up = True
                elif event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
                    never = "no session listens there, or it does not admit the keys of this one"
                    raise Lost(CONNECTION_LOST if self._is_up else never)

    def is_alive(self) -> bool:
        """Say whether a channel that is not in use is still up."""
        try:
            self._look()
        except (Lost, zmq.ZMQError):
            return False
        return True

    def close(self) -> None:
        """Close it; what is under way is dropped."""
        if self._monitor is not None:
            with suppress(zmq.ZMQError):
                self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close(linger=0)


def _beside(header: Header, spans: Sequence[Span]) -> list[Any]:
    """Return what a request has beside its header: bytes to be written, or which windows to read."""
    if header.kind == Kind.WRITE:
        return [spans[0].chunk(header)]
    return [encode_windows(spans)] if len(spans) > 1 else []
