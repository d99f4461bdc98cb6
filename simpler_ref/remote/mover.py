"""Moving tensors between sessions: from the memory of one straight into the memory of another.

A session *offers* windows of its memory; another one *fetches* from a window or *stores* into it.

One thread serves the windows, over a ROUTER socket. Whoever fetches or stores does so in its own thread,
over a *line*: a DEALER socket that one transfer has to itself and that is kept for the next one. A line
whose transfer has failed is closed, so nothing that still arrives over it can reach any memory.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ..errors import TransferError
from ..workers.reports import describe_exception
from . import windows
from .channels import Channel, Lost
from .connection import prepare, receive_parts, zmq
from .fail_points import fail_point
from .keys import KeyPair, secure_server

MOST_WAITING = 64
"""Requests of one line that wait to be served; an honest line has fewer."""
MOST_GETS = 1 << 12
"""Windows for which a GET waits; the oldest ones are of those who are gone."""
OFFERS = "inproc://offers"
log = logging.getLogger("simpler_ref")


class Mover:
    """Moves bytes between sessions over ZeroMQ. It runs a thread, so it is made after all forks.

    Parameters
    ----------
    bind
        The ZeroMQ address to bind to, such as ``tcp://127.0.0.1:*``; others must be able to reach it, at
        what is `address` then.
    group
        The CURVE keys that all movers of a group share; only they reach each other. None: in the open.
    silence_s, stopped_s
        After how long the other side is given up if nothing gets through, and if its process is stopped:
        more than a chunk takes on the slowest connection. None: as soon.
    """

    def __init__(
        self,
        bind: str,
        group: KeyPair | None = None,
        silence_s: float = 2.0,
        stopped_s: float | None = None,
    ) -> None:
        self._group = group
        self._silence_s, self._stopped_s = silence_s, stopped_s
        self._windows = windows.Windows()
        self._sender = secrets.randbits(64)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._idle: dict[str, list[Channel]] = {}
        self._closed = False
        asked = "transfers", "bytes_in", "bytes_out", "lines", "lost", "refused"
        served = "served_chunks", "served_in", "served_out", "served_refused"
        self._counts = Counter(dict.fromkeys(asked + served, 0))
        """Those of what is served change on the thread that serves, the others under the lock."""
        self.on_ask: Callable[[int, bytes], bytes] | None = None
        """Answers the questions of others: a key and the question; on the thread that serves."""
        self._refused: dict[bytes, int] = {}
        self._gets: dict[int, list[tuple[bytes, list[Any]]]] = {}
        """Who waits for windows that are not offered yet, and what they have asked, by key."""
        self._offers: Any = None
        self.on_moved: Callable[[str, bool, int, int], None] | None = None
        """Told of each transfer that this side has asked for: with whom, whether it stored, how many
        bytes, when it began; on the thread that asked."""
        keep_freed_memory()
        self._context = zmq.Context()
        try:
            self._router = self._open_router(bind)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._serve, name="simpler-mover", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- the interface
    def offer(self, window: windows.Window) -> None:
        """Let others reach a window of this session's memory."""
        self._windows.offer(window)

    def offer_to_gets(self, window: windows.Window) -> None:
        """Offer a window for which others may wait; always on the same thread."""
        self._windows.offer(window)
        if self._offers is None:
            self._offers = self._context.socket(zmq.DEALER)
            self._offers.connect(OFFERS)
        self._offers.send(self._header(windows.Kind.OFFERED, window.key, 0).encode())

    def withdraw(self, key: int) -> None:
        """Let nobody reach a window any more; when it returns, nothing touches its memory."""
        self._windows.withdraw(key)

    def fetch_all(self, address: str, several: Sequence[windows.Span]) -> None:
        """Copy from windows of another session, whose mover is at an address, into memory of this one.

        Raises
        ------
        TransferError
            It was refused, or the other side is gone or silent. Some of the bytes may have been copied;
            none is copied any more.
        """
        self._move(windows.Kind.READ, address, several)

    def get_all(
        self, address: str, several: Sequence[windows.Span], here: Callable[[int], None], ended: int
    ) -> None:
        """Copy windows that another session offers now or later; see `fetch_all`.

        `here` is told the number of each that is there. Once there is something to read at the
        descriptor `ended`, the others are not waited for: that raises a `TransferError`.
        """
        self._move(windows.Kind.GET, address, several, here, ended)

    def store_all(self, address: str, several: Sequence[windows.Span]) -> None:
        """Copy from memory of this session into windows of another one; return when the bytes are there.

        After a `TransferError` bytes that were under way may still arrive until the window is withdrawn,
        but none behind those of a later `store_all` into it. A mover stores into one window from one
        thread at a time.
        """
        self._move(windows.Kind.WRITE, address, several)

    def _move(
        self,
        kind: windows.Kind,
        address: str,
        several: Sequence[windows.Span],
        here: Callable[[int], None] = lambda number: None,
        ended: int = -1,
    ) -> None:
        stored = kind == windows.Kind.WRITE
        spans = [one._replace(memory=memory_of(one)) for one in several]
        groups = grouped(spans) if kind == windows.Kind.READ else [[one] for one in spans]
        total = sum(one.nbytes for one in spans)
        what = windows.name_of(spans[0].key) if len(spans) == 1 else f"{len(spans)} windows"
        began = time.monotonic_ns()
        doing = f"fetch {total} bytes of {what} from {address}"
        if stored:
            doing = f"store {total} bytes into {what} at {address}"
        with self._transfer(doing, address) as line:
            line.move([(self._first(kind, group), group) for group in groups], here, ended)
        self._count(transfers=len(spans), **{"bytes_out" if stored else "bytes_in": total})
        if self.on_moved is not None:
            for one in spans:
                self.on_moved(address, stored, one.nbytes, began)

    def _first(self, kind: windows.Kind, spans: Sequence[windows.Span]) -> windows.Header:
        """Return the first header of a new transfer, of several windows together with key 0."""
        key, nbytes = 0 if len(spans) > 1 else spans[0].key, sum(one.nbytes for one in spans)
        return self._header(kind, key, nbytes, spans[0].offset)

    def _header(self, kind: windows.Kind, key: int, nbytes: int, offset: int = 0) -> windows.Header:
        """Return the first header of a new transfer."""
        return windows.Header(kind, self._sender, next(self._numbers), key, offset, nbytes, 0)

    def ask(self, address: str, key: int, question: bytes) -> bytes:
        """Return another session's answer to a question, which `key` allows to ask; see `fetch_all`."""
        with self._transfer("ask what to move", address) as line:
            return line.ask(self._header(windows.Kind.ASK, key, len(question)), question)

    def counters(self) -> dict[str, int]:
        """Return what has been moved, and what was in the way.

        ``transfers``, ``bytes_in``, ``bytes_out``, ``lost`` and ``refused`` are about transfers that this
        side asked for, ``lines`` counts the connections it made; ``served_…`` is about what others asked
        for.
        """
        return dict(self._counts)

    def close(self) -> None:
        """End it: transfers that wait raise `TransferError`. All windows are withdrawn."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle = [line for lines in self._idle.values() for line in lines]
            self._idle.clear()
        for line in idle:
            line.close()
        if self._offers is not None:
            self._offers.close(linger=0)
        self._context.term()  # whoever waits for a socket is told, and closes it
        self._thread.join()
        self._windows.clear()

    # ---------------------------------------------------------------- asking others
    @contextmanager
    def _transfer(self, doing: str, address: str) -> Iterator[Channel]:
        """Give a line; say what went wrong."""
        line, keep = None, False
        try:
            line = self._take_line(address)
            yield line
            keep = True
        except windows.Refusal as refusal:
            keep = True
            self._count(refused=1)
            why = f"cannot {doing}: it was refused: {refusal}"
            raise TransferError(why, refused=True) from None
        except (Lost, zmq.ZMQError) as error:
            self._count(lost=1)
            why = "this mover has been closed" if self._closed else str(error)
            raise TransferError(f"cannot {doing}: {why}") from None
        finally:
            if line is not None:
                self._give_back(address, line, keep)

    def _take_line(self, address: str) -> Channel:
        while True:
            with self._lock:
                lines = self._idle.get(address)
                line = lines.pop() if lines else None
            if line is None:
                self._close_dead_lines()
                self._count(lines=1)
                times = self._silence_s, self._stopped_s
                return Channel(self._context, address, self._group, *times)
            if line.is_alive():
                return line
            line.close()

    def _close_dead_lines(self) -> None:
        """Keep no lines to sessions that have ended."""
        with self._lock:
            for lines in self._idle.values():
                for line in [one for one in lines if not one.is_alive()]:
                    lines.remove(line)
                    line.close()
            self._idle = {address: lines for address, lines in self._idle.items() if lines}

    def _give_back(self, address: str, line: Channel, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed:
                self._idle.setdefault(address, []).append(line)
                return
        line.close()

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    # ---------------------------------------------------------------- serving others
    def _open_router(self, bind: str) -> Any:
        socket = self._context.socket(zmq.ROUTER)
        prepare(socket, self._silence_s, stopped_s=self._stopped_s)
        socket.rcvhwm = MOST_WAITING
        socket.maxmsgsize = windows.CHUNK + 1024  # CURVE adds some bytes
        if self._group is not None:
            secure_server(socket, self._group, {self._group.public})
        socket.bind(bind)
        self.address = socket.last_endpoint.decode()
        socket.bind(OFFERS)
        return socket

    def _serve(self) -> None:
        try:
            while True:
                peer, *parts = receive_parts(self._router, 2)  # those behind the header may be long
                self._serve_one(peer, parts)
        except zmq.ContextTerminated:
            pass
        finally:  # so that nobody waits for answers that never come
            self._router.close(linger=0)

    def _serve_one(self, peer: bytes, parts: list[Any]) -> None:
        header = windows.NOBODY
        try:
            header = windows.decode(parts[0] if parts else b"")
            fail_point("moving")
            is_get = header.kind == windows.Kind.GET and len(parts) == 1
            if is_get and not self._windows.has(header.key):
                while len(self._gets) >= MOST_GETS:
                    del self._gets[next(iter(self._gets))]
                self._gets.setdefault(header.key, []).append((peer, parts))
                return
            if header.kind == windows.Kind.OFFERED:
                for one, asked in self._gets.pop(header.key, ()):
                    self._serve_one(one, asked)
                return
            if is_get or (header.kind == windows.Kind.READ and len(parts) <= 2):
                several = [header]
                if len(parts) == 2:
                    several = windows.decode_windows(header, parts[1].bytes)
                with self._windows.read(several) as data:
                    self._counts["served_out"] += header.size  # before the other side sees it
                    self._reply(peer, header.answer(windows.Kind.DATA), *data)
            elif header.kind == windows.Kind.WRITE and len(parts) == 2:
                if self._windows.write(header, parts[1].buffer):
                    self._counts["served_in"] += header.size  # before the other side sees it
                    self._reply(peer, header.answer(windows.Kind.WRITTEN))
            elif header.kind == windows.Kind.ASK and len(parts) == 2 and self.on_ask is not None:
                answer = self.on_ask(header.key, parts[1].bytes)
                self._reply(peer, header.answer(windows.Kind.ANSWER), answer)
                return
            else:
                raise windows.Refusal(f"kind {header.kind} in {len(parts)} parts is no request")
            self._counts["served_chunks"] += 1
        except zmq.ContextTerminated:
            raise
        except Exception as error:  # which may not end the service of all others
            self._refuse(peer, header, error)

    def _reply(self, *parts: Any) -> None:
        self._router.send_multipart(parts)

    def _refuse(self, peer: bytes, header: windows.Header, error: Exception) -> None:
        """Answer that a request is refused, and log it unless another chunk of the transfer was."""
        why = str(error) if isinstance(error, windows.Refusal) else describe_exception(error)
        self._counts["served_refused"] += 1
        if self._refused.get(peer) != header.transfer:
            if len(self._refused) >= MOST_WAITING:
                self._refused.clear()
            self._refused[peer] = header.transfer
            is_no_fault = isinstance(error, windows.NotOffered)  # as after a task has failed
            level = logging.DEBUG if is_no_fault else logging.WARNING
            log.log(level, "the mover at %s refused a transfer: %s", self.address, why)
        self._reply(peer, header.answer(windows.Kind.REFUSED), why.encode())


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
MOST_FROM_HEAP = 32 << 20


def keep_freed_memory() -> None:
    """Have glibc keep the memory of chunks that have been moved for those that come.

    Unless told, it gives it back after each chunk, and to clear and map all pages again takes as long as
    to copy a chunk. These are the values that it reaches by itself in a process that frees large blocks.
    """
    with suppress(AttributeError):  # another library for C
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MOST_FROM_HEAP)
        library.mallopt(M_TRIM_THRESHOLD, 2 * MOST_FROM_HEAP)


def grouped(several: Sequence[windows.Span]) -> list[list[windows.Span]]:
    """Return windows in groups of which each is read at once, unless it is a part, or may be long."""
    groups: list[list[windows.Span]] = []
    left = room = 0
    for one in several:
        if one.offset or one.nbytes > left or not room:
            groups.append([])
            left, room = 0 if one.offset else windows.GROUP, windows.MOST_TOGETHER
        groups[-1].append(one)
        left, room = left - one.nbytes, room - 1
    return groups


def memory_of(span: windows.Span) -> memoryview:
    """Return the memory of a span."""
    if isinstance(span.memory, int):
        return windows.bytes_at(span.memory, span.nbytes)
    return np.frombuffer(span.memory, np.uint8).data[: span.nbytes]
