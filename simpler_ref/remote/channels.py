"""Lines: connections to the movers of other sessions, each for one transfer at a time.

Loss is noticed by ZeroMQ's own thread, which needs no GIL: heartbeats end a connection whose other side
is silent, and the monitor of a line tells of that.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from .connection import prepare, zmq
from .keys import KeyPair, secure_client
from .windows import CHUNK, CREDIT, MOST_ASKED, NOBODY, Header, Kind, Refusal, decode

QUICK_S = 0.1
"""A chunk that comes sooner leaves room for another one beside it."""
MONITORED = struct.Struct("=HI")
"""The first part of a monitor's message: which event, and a number."""
CONNECTION_LOST = "the connection is lost: its process has ended, or is silent"


class Lost(Exception):
    """The other side is gone."""


class _Asked:
    """The chunks of some transfers: those under way, and those that are still to be asked for."""

    def __init__(self, ahead: Iterator[Header]) -> None:
        self._ahead = ahead
        self._next = next(ahead, None)
        self._under_way: dict[tuple[int, int], Header] = {}
        self._bytes, self._most = 0, CHUNK

    def __len__(self) -> int:
        return len(self._under_way)

    def more(self) -> Iterator[Header]:
        """Yield what may be asked for now."""
        while (header := self._next) is not None:
            full = self._bytes + header.size > self._most or len(self) >= MOST_ASKED
            if full and self._under_way:
                return
            self._under_way[header.transfer, header.at] = header
            self._bytes += header.size
            yield header
            self._next = next(self._ahead, None)

    def pop(self, got: Header) -> Header:
        """Return what an answer is to; NOBODY if nothing was asked for that it fits."""
        header = self._under_way.pop((got.transfer, got.at), NOBODY)
        self._bytes -= header.size if header is not NOBODY else 0
        return header

    def may_be_more(self, nbytes: int) -> None:
        """Let more be under way."""
        self._most = min(self._most + nbytes, CREDIT * CHUNK)


class Channel:
    """A connection to another mover, for one transfer at a time."""

    def __init__(
        self,
        context: Any,
        address: str,
        group: KeyPair | None,
        silence_s: float,
        stopped_s: float | None = None,
    ) -> None:
        self._zmq = zmq()
        self._silence_s = silence_s
        self._is_up = False
        self._ended = -1
        self._socket = context.socket(self._zmq.DEALER)
        self._monitor: Any = None
        try:
            prepare(self._socket, silence_s, stopped_s=stopped_s)
            if group is not None:
                secure_client(self._socket, group, group.public)
            self._monitor = self._socket.get_monitor_socket(self._zmq.EVENT_ALL)
            self._poller = self._zmq.Poller()
            self._poller.register(self._socket, self._zmq.POLLIN)
            self._poller.register(self._monitor, self._zmq.POLLIN)
            self._socket.connect(address)
            while not self._is_up:
                self._wait()
        except BaseException:
            self.close()
            raise

    def fetch_all(
        self,
        several: dict[Header, tuple[bytes, list[memoryview]]],
        here: Callable[[int], None],
        ended: int,
    ) -> None:
        """Copy ranges of windows into memory, or several windows at once into as many memories.

        The first header of each has what names several windows, and the memories. `here` is told the
        number of each transfer that is over. Nothing is waited for once there is something to read at the
        descriptor `ended`, unless that is −1.
        """
        into = {first.transfer: one for first, one in several.items()}
        left = {first.transfer: first.nbytes for first in several}

        def ask(header: Header) -> None:
            names, memories = into[header.transfer]
            self._send(header.encode(), *([names] if len(memories) > 1 else []))

        def take(header: Header) -> None:
            _, memories = into[header.transfer]
            if len(memories) == 1:
                memories = [memories[0][header.at : header.at + header.size]]
            sizes = [self._part(memory) for memory in memories]
            self._drop()
            if sizes != [len(memory) for memory in memories]:
                raise Lost(f"it answered with {sum(sizes)} bytes in place of {header.size}")
            left[header.transfer] -= header.size
            if not left[header.transfer]:
                here(header.transfer)

        with self._until(ended):
            self._run(list(several), ask, Kind.DATA, take)

    @contextmanager
    def _until(self, ended: int) -> Iterator[None]:
        """Wait for nothing in a block once there is something to read at a descriptor."""
        if ended < 0:
            yield
            return
        self._ended = ended
        self._poller.register(ended, self._zmq.POLLIN)
        try:
            yield
        finally:
            self._poller.unregister(ended)
            self._ended = -1

    def store_all(self, several: dict[Header, memoryview]) -> None:
        """Copy memory into ranges of windows, of each of which there is the first header."""
        source = {first.transfer: memory for first, memory in several.items()}

        def ask(header: Header) -> None:
            data = source[header.transfer][header.at : header.at + header.size]
            self._send(header.encode(), data)

        self._run(list(several), ask, Kind.WRITTEN, lambda header: None)

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
        except self._zmq.Again:
            raise Lost(CONNECTION_LOST) from None

    def _run(
        self,
        firsts: Sequence[Header],
        ask: Callable[[Header], Any],
        answer: Kind,
        take: Callable[[Header], None],
    ) -> None:
        """Ask for all chunks of some transfers, and take the answers; one that is refused ends all.

        First, no more are asked for than make a chunk of full size. While answers are quick, each lets as
        many bytes more be under way: on a slow connection signs of life wait behind one chunk only.
        """
        transfers = {first.transfer for first in firsts}
        asked = _Asked(
            first._replace(at=at) for first in firsts for at in range(0, first.nbytes, CHUNK)
        )
        while True:
            for header in asked.more():
                ask(header)
            if not asked:
                return
            start = time.monotonic()
            got = self._answer(transfers)
            header = asked.pop(got)
            if got.kind != answer or header is NOBODY:
                raise Lost(f"its answer of kind {got.kind} to byte {got.at} is to no request")
            take(header)
            if time.monotonic() - start < QUICK_S:
                asked.may_be_more(header.size)

    def _answer(self, transfers: Collection[int]) -> Header:
        """Wait for the next answer to one of some transfers; raise `Refusal` if it is one."""
        while True:
            got = self._header(self._receive())
            if got.kind == Kind.REFUSED and (got.transfer in transfers or not got.transfer):
                raise Refusal(self._second_part().decode(errors="replace"))
            if got.transfer in transfers:
                return got
            self._drop()  # of a transfer before, which was refused

    @staticmethod
    def _header(raw: bytes) -> Header:
        try:
            return decode(raw)
        except ValueError as error:
            raise Lost(f"its answer cannot be read: {error}") from None

    def _receive(self) -> bytes:
        while True:
            with suppress(self._zmq.Again):
                raw: bytes = self._socket.recv(self._zmq.NOBLOCK)
                return raw
            self._wait()

    def _part(self, into: memoryview) -> int:
        """Receive the next part of a message into memory; return its size."""
        return int(self._socket.recv_into(into)) if self._socket.rcvmore else 0

    def _second_part(self) -> bytes:
        part: bytes = self._socket.recv() if self._socket.rcvmore else b""
        self._drop()
        return part

    def _drop(self) -> None:
        while self._socket.rcvmore:
            self._socket.recv(copy=False)

    # ---------------------------------------------------------------- whether it is up
    def _wait(self) -> None:
        """Wait until there is something to receive; raise `Lost` if there never will be."""
        limit = None if self._is_up else int(self._silence_s * 1e3)
        found = dict(self._poller.poll(limit))
        if not found and not self._is_up:
            raise Lost(f"no session has answered there within {self._silence_s} s")
        if self._ended in found:
            raise Lost("nobody waits for it any more")
        if self._monitor in found:
            self._look()

    def _look(self) -> None:
        """Read what the monitor tells; raise `Lost` if that is the end of the connection."""
        with suppress(self._zmq.Again):
            while True:
                event, _ = MONITORED.unpack(self._monitor.recv_multipart(self._zmq.NOBLOCK)[0])
                if event == self._zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._is_up = True
                elif event in (self._zmq.EVENT_DISCONNECTED, self._zmq.EVENT_CLOSED):
                    never = "no session listens there, or it does not admit the keys of this one"
                    raise Lost(CONNECTION_LOST if self._is_up else never)

    def is_alive(self) -> bool:
        """Say whether a line that is not in use is still up."""
        try:
            self._look()
        except (Lost, self._zmq.ZMQError):
            return False
        return True

    def close(self) -> None:
        """Close it; what is under way is dropped."""
        if self._monitor is not None:
            with suppress(self._zmq.ZMQError):
                self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close(linger=0)


__all__ = ["Channel", "Lost"]
