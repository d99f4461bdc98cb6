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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ..errors import TransferError
from . import windows
from .channels import Channel, Lost
from .connection import prepare, zmq
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

    Attributes
    ----------
    address : str
        Where other movers reach this one.

    Parameters
    ----------
    bind
        The ZeroMQ address to bind to, such as ``tcp://127.0.0.1:*``; others must be able to reach it.
    group
        The CURVE keys that all movers of a group share; only they reach each other. None: in the open.
    silence_s
        After how long the other side is given up if nothing gets through.
    stopped_s
        After how long if its process is stopped; more than a chunk takes on the slowest connection.
        None: as soon.
    """

    def __init__(
        self,
        bind: str,
        group: KeyPair | None = None,
        silence_s: float = 2.0,
        stopped_s: float | None = None,
    ) -> None:
        self._zmq = zmq()
        self._group = group
        self._silence_s, self._stopped_s = silence_s, stopped_s
        self._windows = windows.Windows()
        self._sender = secrets.randbits(64)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._idle: dict[str, list[Channel]] = {}
        self._closed = False
        names = ("transfers", "bytes_in", "bytes_out", "lines", "lost", "refused")
        self._counts = dict.fromkeys(names, 0)
        self.on_ask: Callable[[int, bytes], bytes] | None = None
        """Answers the questions of others: a key and the question; on the thread that serves."""
        self._served = dict.fromkeys(
            ("served_chunks", "served_in", "served_out", "served_refused"), 0
        )
        self._refused: dict[bytes, int] = {}
        self._gets: dict[int, list[tuple[bytes, bytes]]] = {}
        """Who waits for windows that are not offered yet: with what headers, by key."""
        self._offers: Any = None
        self.on_moved: Callable[[str, bool, int, int], None] | None = None
        """Told of each transfer that this side has asked for: with whom, whether it stored, how many
        bytes, when it began; on the thread that asked."""
        keep_freed_memory()
        self._context = self._zmq.Context()
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
            self._offers = self._context.socket(self._zmq.DEALER)
            self._offers.connect(OFFERS)
        self._offers.send(windows.Header(windows.Kind.OFFERED, 0, 0, window.key, 0, 0, 0).encode())

    def withdraw(self, key: int) -> None:
        """Let nobody reach a window any more; when it returns, nothing touches its memory."""
        self._windows.withdraw(key)

    def fetch(self, address: str, key: int, offset: int, into: Any, nbytes: int) -> None:
        """Copy bytes of another session's window into memory of this one.

        Parameters
        ----------
        address
            The other mover's address.
        key, offset
            The window, and the first byte in it.
        into
            Writable memory: a buffer, or its address.
        nbytes
            How many bytes, at least 1.

        Raises
        ------
        TransferError
            It was refused, or the other side is gone or silent. Some of the bytes may have been copied;
            none is copied any more.
        """
        self._move(windows.Kind.READ, address, [windows.Span(key, into, nbytes)], offset)

    def fetch_all(self, address: str, several: Sequence[windows.Span]) -> None:
        """Copy several windows of another session; see `fetch`. After an error some may be there."""
        self._move(windows.Kind.READ, address, several)

    def get_all(
        self, address: str, several: Sequence[windows.Span], here: Callable[[int], None], ended: int
    ) -> None:
        """Copy windows that another session offers now or later; see `fetch`.

        `here` is told the number of each that is there. Once there is something to read at the
        descriptor `ended`, the others are not waited for: that raises a `TransferError`.
        """
        self._move(windows.Kind.GET, address, several, 0, here, ended)

    def store(self, address: str, key: int, offset: int, source: Any, nbytes: int) -> None:
        """Copy bytes of this session's memory into another session's window; return when they are there.

        The parameters are those of `fetch`, `source` in place of `into`. After a `TransferError` bytes
        that were under way may still arrive until the window is withdrawn, but none behind those of a
        later `store` into it. A mover stores into one window from one thread at a time.
        """
        self._move(windows.Kind.WRITE, address, [windows.Span(key, source, nbytes)], offset)

    def store_all(self, address: str, several: Sequence[windows.Span]) -> None:
        """Copy into several windows of another session, without waiting for one after the other."""
        self._move(windows.Kind.WRITE, address, several)

    def _move(
        self,
        kind: windows.Kind,
        address: str,
        several: Sequence[windows.Span],
        offset: int = 0,
        here: Callable[[int], None] = lambda number: None,
        ended: int = -1,
    ) -> None:
        """Copy from, or into, the windows of another session, each from a byte on."""
        stored = kind == windows.Kind.WRITE
        memories = {
            id(one): memory_of(one.memory, one.nbytes, writable=not stored) for one in several
        }
        for one in several:
            require_place(one.key, offset)
        total = sum(one.nbytes for one in several)
        what = windows.name_of(several[0].key) if len(several) == 1 else f"{len(several)} windows"
        is_together = kind == windows.Kind.READ and not offset
        groups = grouped(several) if is_together else [[one] for one in several]
        began = time.monotonic_ns()
        doing = f"fetch {total} bytes of {what} from {address}"
        if stored:
            doing = f"store {total} bytes into {what} at {address}"
        with self._transfer(doing, address) as (line, number):
            numbers = [number, *itertools.islice(self._numbers, len(groups) - 1)]
            firsts = [
                windows.Header(
                    *(kind, self._sender, mine, group[0].key if len(group) == 1 else 0, offset),
                    sum(one.nbytes for one in group),
                    0,
                )
                for mine, group in zip(numbers, groups, strict=True)
            ]
            if stored:
                line.store_all(dict(zip(firsts, memories.values(), strict=True)))
            else:
                line.fetch_all(
                    {
                        first: (
                            windows.encode_windows((one.key, one.nbytes) for one in group),
                            [memories[id(one)] for one in group],
                        )
                        for first, group in zip(firsts, groups, strict=True)
                    },
                    lambda transfer: here(numbers.index(transfer)),
                    ended,
                )
        self._count(transfers=len(several), **{"bytes_out" if stored else "bytes_in": total})
        if self.on_moved is not None:
            for one in several:
                self.on_moved(address, stored, one.nbytes, began)

    def ask(self, address: str, key: int, question: bytes) -> bytes:
        """Return another session's answer to a question, which `key` allows to ask.

        Raises
        ------
        TransferError
            It was refused, or the other side is gone or silent.
        """
        with self._transfer("ask what to move", address) as (line, number):
            return line.ask(
                windows.Header(windows.Kind.ASK, self._sender, number, key, 0, len(question), 0),
                question,
            )

    def counters(self) -> dict[str, int]:
        """Return what has been moved, and what was in the way.

        ``transfers``, ``bytes_in``, ``bytes_out``, ``lost`` and ``refused`` are about transfers that this
        side asked for, ``lines`` counts the connections it made; ``served_…`` is about what others asked
        for.
        """
        return {**self._counts, **self._served}

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
    def _transfer(self, doing: str, address: str) -> Iterator[tuple[Channel, int]]:
        """Give a line and a number; say what went wrong."""
        line, keep = None, False
        try:
            line = self._take_line(address)
            yield line, next(self._numbers)
            keep = True
        except windows.Refusal as refusal:
            keep = True
            self._count(refused=1)
            raise TransferError(
                f"cannot {doing}: it was refused: {refusal}", refused=True
            ) from None
        except (Lost, self._zmq.ZMQError) as error:
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
            for address, lines in list(self._idle.items()):
                alive = [line for line in lines if line.is_alive()]
                for line in lines:
                    if line not in alive:
                        line.close()
                self._idle[address] = alive
                if not alive:
                    del self._idle[address]

    def _give_back(self, address: str, line: Channel, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed:
                self._idle.setdefault(address, []).append(line)
                return
        line.close()

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    # ---------------------------------------------------------------- serving others
    def _open_router(self, bind: str) -> Any:
        socket = self._context.socket(self._zmq.ROUTER)
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
                peer, *parts = self._receive()
                self._serve_one(peer, parts)
        except self._zmq.ContextTerminated:
            pass
        finally:  # so that nobody waits for answers that never come
            self._router.close(linger=0)

    def _receive(self) -> list[Any]:
        """Return the parts of a request, of which only the third and later ones may be long."""
        router = self._router
        frame = router.recv(copy=False)
        parts: list[Any] = [frame.bytes]
        while frame.more:
            frame = router.recv(copy=False)
            parts.append(frame.bytes if len(parts) == 1 else frame)
        return parts

    def _serve_one(self, peer: bytes, parts: list[Any]) -> None:
        header = windows.NOBODY
        try:
            try:
                header = windows.decode(parts[0] if parts else b"")
            except ValueError as error:
                raise windows.Refusal(str(error)) from None
            fail_point("moving")
            if header.kind == windows.Kind.GET and len(parts) == 1:
                if not self._windows.has(header.key):
                    self._have_wait(peer, header.key, parts[0])
                    return
                self._windows.read([header], self._replier(peer, header))
            elif header.kind == windows.Kind.OFFERED:
                for one, asked in self._gets.pop(header.key, ()):
                    self._serve_one(one, [asked])
                return
            elif header.kind == windows.Kind.READ and len(parts) <= 2:
                several = [header]
                if len(parts) == 2:
                    several = windows.decode_windows(header, parts[1].bytes)
                self._windows.read(several, self._replier(peer, header))
            elif header.kind == windows.Kind.WRITE and len(parts) == 2:
                if self._windows.write(header, parts[1].buffer):
                    self._served["served_in"] += (
                        header.size
                    )  # before the other side sees the answer
                    self._reply(peer, header.answer(windows.Kind.WRITTEN))
            elif header.kind == windows.Kind.ASK and len(parts) == 2 and self.on_ask is not None:
                answer = self.on_ask(header.key, parts[1].bytes)
                self._reply(peer, header.answer(windows.Kind.ANSWER), answer)
                return
            else:
                raise windows.Refusal(f"kind {header.kind} in {len(parts)} parts is no request")
            self._served["served_chunks"] += 1
        except windows.NotOffered as refusal:  # as after a task has failed: nothing to warn of
            self._refuse(peer, header, str(refusal), logging.DEBUG)
        except windows.Refusal as refusal:
            self._refuse(peer, header, str(refusal))
        except self._zmq.ContextTerminated:
            raise
        except Exception as error:  # which may not end the service of all others
            self._refuse(peer, header, f"{type(error).__name__}: {error}")

    def _have_wait(self, peer: bytes, key: int, asked: bytes) -> None:
        while len(self._gets) >= MOST_GETS:
            del self._gets[next(iter(self._gets))]
        self._gets.setdefault(key, []).append((peer, asked))

    def _replier(self, peer: bytes, header: windows.Header) -> Callable[[list[memoryview]], None]:
        def send(data: list[memoryview]) -> None:
            self._served["served_out"] += header.size  # before the other side can see that it came
            self._reply(peer, header.answer(windows.Kind.DATA), *data)

        return send

    def _reply(self, *parts: Any) -> None:
        self._router.send_multipart(parts)

    def _refuse(
        self, peer: bytes, header: windows.Header, why: str, level: int = logging.WARNING
    ) -> None:
        """Answer that a request is refused, and log it unless another chunk of the transfer was."""
        self._served["served_refused"] += 1
        if self._refused.get(peer) != header.transfer:
            if len(self._refused) >= MOST_WAITING:
                self._refused.clear()
            self._refused[peer] = header.transfer
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
    """Return windows in groups of which each is read at once, unless it is one that may be long."""
    groups: list[list[windows.Span]] = []
    left = room = 0
    for one in several:
        if one.nbytes > left or not room:
            groups.append([])
            left, room = windows.GROUP, windows.MOST_TOGETHER
        groups[-1].append(one)
        left, room = left - one.nbytes, room - 1
    return groups


def require_place(key: int, offset: int) -> None:
    """Refuse what no window can have."""
    if not (0 <= key < windows.U64 and 0 <= offset < windows.U64):
        raise ValueError(f"key and offset are of 64 bits without a sign; the offset is {offset}")


def memory_of(memory: Any, nbytes: int, writable: bool) -> memoryview:
    """Return the first bytes of a buffer, or of what is at an address."""
    if nbytes <= 0:
        raise ValueError(f"a transfer has at least 1 byte, not {nbytes}")
    if isinstance(memory, int):
        return windows.bytes_at(memory, nbytes)
    view = np.frombuffer(memory, np.uint8).data
    if len(view) < nbytes:
        raise ValueError(f"the memory has {len(view)} bytes, of which {nbytes} cannot be moved")
    if writable and view.readonly:
        raise ValueError("the memory is read-only: fetch into memory that can be written")
    return view[:nbytes]
