"""Moving tensors between sessions: from the memory of one straight into the memory of another.

A session *offers* windows of its memory; another one *fetches* from a window or *stores* into it. One
thread serves the windows, over a ROUTER socket. Whoever fetches or stores does so in its own thread, over
a *channel*: a DEALER socket that one transfer has to itself and that is kept for the next one. A channel
whose transfer has failed is closed, so nothing that still arrives over it can reach any memory. Loss is
noticed by ZeroMQ's own thread, which needs no GIL: heartbeats end a connection whose other side is
silent, and the monitor of a channel tells of that.

Tensors travel in chunks, each with a header of its own. A transfer is one range of one window, read or
written, or several small windows that are read together. Whoever wants it asks for one chunk after the
other, several at a time; each request names the window, the whole range and the place of its chunk in it.
So the side that serves keeps nothing between two chunks, and a range that is refused is refused from its
first chunk on. Unlike frames, headers have one fixed form, written and read in one step.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import logging
import secrets
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..errors import TransferError
from ..workers.reports import describe_exception
from .connection import (
    POLLIN,
    KeyPair,
    prepare,
    read_event,
    receive_parts,
    secure_client,
    secure_server,
    zmq,
)
from .limits import (
    REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_READ_WRITE,
    REMOTE_BUFFER_ACCESS_WRITE,
)

MOST_WAITING = 64
"""Requests of one channel that wait to be served; an honest one has fewer."""
MOST_GETS = 1 << 12
"""Windows for which a GET waits; the oldest ones are of those who are gone."""
OFFERS = "inproc://offers"
log = logging.getLogger("simpler_ref")

VERSION = 1
MAGIC = b"SLRT"
CHUNK = 1 << 20
"""The most bytes of one chunk."""
CREDIT = 8
"""How many chunks may be under way over one line, or smaller ones with as many bytes."""
MOST_ASKED = 32
"""How many of any size."""
GROUP = 1 << 18
"""The most bytes of windows that are read together, and how many."""
MOST_TOGETHER = 256

_WINDOW = struct.Struct("<QQ")
_HEADER = struct.Struct("<4sHHQQQQQQ")
HEADER_BYTES = _HEADER.size


class Kind(enum.IntEnum):
    """What a message is: READ, WRITE and ASK are requests, the others answers."""

    READ = 1
    """With key 0 several small windows are read: the second part has the key and the size of each, and
    each is a part of the answer."""
    WRITE = 2
    """With three parts the second is a question: what answers it gives the key of the window, or 0 if the
    bytes are there already."""
    DATA = 3
    WRITTEN = 4
    REFUSED = 5
    ASK = 6
    """A question about what is to be moved; its text, and that of the answer, is the second part."""
    ANSWER = 7
    GET = 8
    """A READ of one window that is answered once that is offered."""
    OFFERED = 9
    """Of the session itself: a window is offered for which a GET may wait."""
    NO_ROOM = 10
    """REFUSED, which whoever asks raises as `MemoryError`."""


class Refusal(Exception):
    """A request is not carried out; the text goes to the one who asked."""


class NoRoom(Refusal):
    """The same, for want of memory."""


class Header(NamedTuple):
    """The first part of a message; the data, or the text of a refusal, is the second.

    `sender` is who asks, and `transfer` counts the sender's transfers. A sender stores one after the
    other into a window: those with smaller numbers are over, whatever of them is still under way. `key`
    is of the window; of a question, who may ask it. `offset` and `nbytes` are the whole range, in which
    the chunk begins `at`.
    """

    kind: int
    sender: int
    transfer: int
    key: int
    offset: int
    nbytes: int
    at: int

    @property
    def size(self) -> int:
        return min(CHUNK, self.nbytes - self.at)

    def encode(self) -> bytes:
        return _HEADER.pack(MAGIC, VERSION, *self)

    def answer(self, kind: Kind) -> bytes:
        return _HEADER.pack(MAGIC, VERSION, kind, *self[1:])


NOBODY = Header(0, 0, 0, 0, 0, 0, 0)
"""What a message without a readable header is answered as."""


def decode(raw: bytes) -> Header:
    """Return the header that bytes hold; `Refusal` if they hold none, or one of another version."""
    if len(raw) != HEADER_BYTES:
        raise Refusal(f"a header has {HEADER_BYTES} bytes, not {len(raw)}")
    magic, version, *fields = _HEADER.unpack(raw)
    if (magic, version) != (MAGIC, VERSION):
        raise Refusal(
            f"a header begins with {MAGIC!r} and {VERSION}, not with {magic!r} and {version}: install "
            "the same version of simpler_ref on both sides"
        )
    return Header(*fields)


class Span(NamedTuple):
    """A part of a window of another session, and memory of this one: a buffer, or its address.

    With a `question`, the other session makes the window when this is asked, which `key` allows.
    """

    key: int
    memory: Any
    nbytes: int
    offset: int = 0
    question: bytes = b""

    def chunk(self, header: Header) -> Any:
        return self.memory[header.at : header.at + header.size]


def encode_windows(spans: Sequence[Span]) -> bytes:
    return b"".join([_WINDOW.pack(one.key, one.nbytes) for one in spans])


def decode_windows(header: Header, raw: bytes) -> list[Header]:
    """Return the READ of each window in the second part of one.

    `Refusal`: these are no windows, or too many, or have other bytes than the header says.
    """
    if not raw or len(raw) % _WINDOW.size or len(raw) > MOST_TOGETHER * _WINDOW.size:
        raise Refusal(f"{len(raw)} bytes name no windows, or too many")
    found = [header._replace(key=key, nbytes=size) for key, size in _WINDOW.iter_unpack(raw)]
    if header.key or header.at or not sum(one.nbytes for one in found) == header.nbytes <= CHUNK:
        raise Refusal(f"the windows have not the {header.nbytes} bytes that the header says")
    return found


NEEDS = {
    Kind.READ: (REMOTE_BUFFER_ACCESS_READ, "read"),
    Kind.WRITE: (REMOTE_BUFFER_ACCESS_WRITE, "written"),
}


@dataclass(slots=True)
class Window:
    """Memory that others may reach: whoever has the key may read 1, write 2 or both 3, as `access` says.

    The key is a token of 64 bits that nobody can guess, and never 0. The memory belongs to whoever offers
    the window, and stays until it is withdrawn. `newest` is the last transfer of each sender.
    """

    key: int
    address: int
    nbytes: int
    access: int = REMOTE_BUFFER_ACCESS_READ_WRITE
    newest: dict[int, int] = field(default_factory=dict)

    def chunk(self, header: Header) -> memoryview:
        return bytes_at(self.address + header.offset + header.at, header.size)

    def is_over(self, header: Header) -> bool:
        """Say whether a transfer is over, of which chunks were still under way.

        They may arrive behind those of the transfer that repeats it, over another connection.
        """
        newest = max(self.newest.get(header.sender, 0), header.transfer)
        self.newest[header.sender] = newest
        return header.transfer < newest


def new_key() -> int:
    return secrets.randbits(64) or new_key()


def name_of(key: int) -> str:
    """Return what a window is called in messages, which must not give its key away."""
    return f"window {key >> 48:04x}…"


def bytes_at(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


class Windows:
    """The windows that are offered, and every access to them.

    Each chunk is checked and copied under one lock, so that nothing touches the memory of a window once
    `withdraw` has returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered: dict[int, Window] = {}

    def offer(self, window: Window) -> None:
        with self._lock:
            if window.key in self._offered:
                raise ValueError(
                    f"{name_of(window.key)} is offered already: give it a key of its own"
                )
            self._offered[window.key] = window

    def has(self, key: int) -> bool:
        return key in self._offered

    def withdraw(self, key: int) -> None:
        """Let nobody reach a window any more; one that is not offered is left as it is."""
        with self._lock:
            self._offered.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._offered.clear()

    @contextmanager
    def read(self, several: Sequence[Header]) -> Iterator[list[memoryview]]:
        """Yield the bytes of chunks, to be copied."""
        with self._lock:
            yield [self._find(header, Kind.READ).chunk(header) for header in several]

    def write(self, header: Header, data: memoryview) -> bool:
        """Copy a chunk into a window; return False if its transfer is over, and nothing is copied."""
        with self._lock:
            found = self._find(header, Kind.WRITE)
            if len(data) != header.size:
                raise Refusal(f"a chunk of {header.size} bytes is announced, {len(data)} have come")
            if found.is_over(header):
                return False
            found.chunk(header)[:] = data
            return True

    def _find(self, header: Header, kind: Kind) -> Window:
        name = name_of(header.key)
        if header.key not in self._offered:
            raise Refusal(
                f"{name} is not offered, or not any more: what offered it has failed or is over; what "
                "the program exports, it releases only after the tasks that use it"
            )
        window = self._offered[header.key]
        access, verb = NEEDS[kind]
        if not window.access & access:
            raise Refusal(f"{name} may not be {verb}: export the memory with access to be {verb}")
        end = header.offset + header.nbytes
        if end > window.nbytes:
            raise Refusal(
                f"{name} has {window.nbytes} bytes: {header.nbytes} bytes from byte {header.offset} on "
                f"are not in it; name a range within the window"
            )
        if header.at % CHUNK or header.at >= header.nbytes:
            raise Refusal(f"no chunk of {header.nbytes} bytes begins at byte {header.at}")
        return window


# ---------------------------------------------------------------- asking: channels
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
        self.address, self._silence_s = address, silence_s
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
        memories = [one.memory for one in spans] if len(spans) > 1 else [spans[0].chunk(header)]
        sizes = [
            int(self._socket.recv_into(one)) if self._socket.rcvmore else 0 for one in memories
        ]
        self._drop()
        if sizes != [len(memory) for memory in memories]:
            raise Lost(f"it answered with {sum(sizes)} bytes in place of {header.size}")

    def ask(self, first: Header, question: bytes) -> bytes:
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
            is_refused = got.kind in (Kind.REFUSED, Kind.NO_ROOM)
            if is_refused and (got.transfer in transfers or not got.transfer):
                why = self._second_part().decode(errors="replace")
                raise NoRoom(why) if got.kind == Kind.NO_ROOM else Refusal(why)
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
        chunk, question = spans[0].chunk(header), spans[0].question
        return [question, chunk] if question else [chunk]
    return [encode_windows(spans)] if len(spans) > 1 else []


# ---------------------------------------------------------------- serving, and the interface
class Mover:
    """Moves bytes between sessions over ZeroMQ. It runs a thread, so it is made after all forks.

    It binds to a ZeroMQ address such as ``tcp://127.0.0.1:*``; others must be able to reach it, at what
    is `address` then. All movers of a group share CURVE keys, and only they reach each other; None: in
    the open. The other side is given up if nothing gets through for `silence_s`, and if its process is
    stopped for `stopped_s`: more than a chunk takes on the slowest connection. None: as soon.
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
        self._windows = Windows()
        self._sender = secrets.randbits(64)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._idle: list[Channel] = []
        self._closed = False
        asked = "transfers", "bytes_in", "bytes_out", "lines", "lost", "refused"
        served = "served_chunks", "served_in", "served_out", "served_refused"
        self._counts = Counter(dict.fromkeys(asked + served, 0))
        """Those of what is served change on the thread that serves, the others under the lock."""
        self.on_ask: Callable[[int, bytes], bytes] = _refuse_to_answer
        """Answers the questions of others: a key and the question; on the thread that serves."""
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
    def offer(self, window: Window) -> None:
        self._windows.offer(window)

    def offer_to_gets(self, window: Window) -> None:
        """Offer a window for which others may wait; always on the same thread."""
        self._windows.offer(window)
        if self._offers is None:
            self._offers = self._context.socket(zmq.DEALER)
            self._offers.connect(OFFERS)
        self._offers.send(self._header(Kind.OFFERED, window.key, 0).encode())

    def withdraw(self, key: int) -> None:
        """Let nobody reach a window any more; when it returns, nothing touches its memory."""
        self._windows.withdraw(key)

    def fetch_all(self, address: str, several: Sequence[Span]) -> None:
        """Copy from windows of another session, whose mover is at an address, into memory of this one.

        `TransferError`: it was refused, or the other side is gone or silent. Some of the bytes may have
        been copied; none is copied any more.
        """
        self._move(Kind.READ, address, several)

    def get_all(
        self, address: str, several: Sequence[Span], here: Callable[[int], None], ended: int
    ) -> None:
        """Copy windows that another session offers now or later; see `fetch_all`.

        `here` is told the number of each that is there. Once there is something to read at the
        descriptor `ended`, the others are not waited for: that raises a `TransferError`.
        """
        self._move(Kind.GET, address, several, here, ended)

    def store_all(self, address: str, several: Sequence[Span]) -> None:
        """Copy from memory of this session into windows of another one; return when the bytes are there.

        After a `TransferError` bytes that were under way may still arrive until the window is withdrawn,
        but none behind those of a later `store_all` into it. A mover stores into one window from one
        thread at a time.
        """
        self._move(Kind.WRITE, address, several)

    def _move(
        self,
        kind: Kind,
        address: str,
        several: Sequence[Span],
        here: Callable[[int], None] = lambda number: None,
        ended: int = -1,
    ) -> None:
        stored = kind == Kind.WRITE
        spans = [one._replace(memory=memory_of(one)) for one in several]
        groups = grouped(spans) if kind == Kind.READ else [[one] for one in spans]
        total = sum(one.nbytes for one in spans)
        what = name_of(spans[0].key) if len(spans) == 1 else f"{len(spans)} windows"
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

    def _first(self, kind: Kind, spans: Sequence[Span]) -> Header:
        """Return the first header of a new transfer, of several windows together with key 0."""
        key, nbytes = 0 if len(spans) > 1 else spans[0].key, sum(one.nbytes for one in spans)
        return self._header(kind, key, nbytes, spans[0].offset)

    def _header(self, kind: Kind, key: int, nbytes: int, offset: int = 0) -> Header:
        return Header(kind, self._sender, next(self._numbers), key, offset, nbytes, 0)

    def ask(self, address: str, key: int, question: bytes) -> bytes:
        """Return another session's answer to a question, which `key` allows to ask; see `fetch_all`."""
        with self._transfer("ask what to move", address) as line:
            return line.ask(self._header(Kind.ASK, key, len(question)), question)

    def counters(self) -> dict[str, int]:
        """Return what this side asked for, by how many connections; ``served_…`` is for others."""
        return dict(self._counts)

    def close(self) -> None:
        """End it: transfers that wait raise `TransferError`. All windows are withdrawn."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, []
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
        except Refusal as refusal:
            keep = True
            self._count(refused=1)
            if isinstance(refusal, NoRoom):
                raise MemoryError(str(refusal)) from None
            why = f"cannot {doing}: it was refused: {refusal}"
            raise TransferError(why, refused=True) from None
        except (Lost, zmq.ZMQError) as error:
            self._count(lost=1)
            why = "this mover has been closed" if self._closed else str(error)
            raise TransferError(f"cannot {doing}: {why}") from None
        finally:
            if line is not None:
                with self._lock:
                    keep = keep and not self._closed
                    if keep:
                        self._idle.append(line)
                if not keep:
                    line.close()

    def _take_line(self, address: str) -> Channel:
        """Return a line that is not in use, or a new one; keep none to sessions that have ended."""
        with self._lock:
            for line in self._idle:
                if line.address == address and line.is_alive():
                    self._idle.remove(line)
                    return line
            for line in [one for one in self._idle if not one.is_alive()]:
                self._idle.remove(line)
                line.close()
        self._count(lines=1)
        return Channel(self._context, address, self._group, self._silence_s, self._stopped_s)

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    # ---------------------------------------------------------------- serving others
    def _open_router(self, bind: str) -> Any:
        socket = self._context.socket(zmq.ROUTER)
        prepare(socket, self._silence_s, stopped_s=self._stopped_s)
        socket.rcvhwm = MOST_WAITING
        socket.maxmsgsize = CHUNK + 1024  # CURVE adds some bytes
        secure_server(socket, self._group, {self._group.public} if self._group else ())
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
        header = NOBODY
        try:
            header = decode(parts[0] if parts else b"")
            is_get = header.kind == Kind.GET and len(parts) == 1
            if is_get and not self._windows.has(header.key):
                while len(self._gets) >= MOST_GETS:
                    del self._gets[next(iter(self._gets))]
                self._gets.setdefault(header.key, []).append((peer, parts))
                return
            if header.kind == Kind.OFFERED:
                for one, asked in self._gets.pop(header.key, ()):
                    self._serve_one(one, asked)
                return
            if is_get or (header.kind == Kind.READ and len(parts) <= 2):
                several = [header]
                if len(parts) == 2:
                    several = decode_windows(header, parts[1].bytes)
                with self._windows.read(several) as data:
                    self._counts["served_out"] += header.size  # before the other side sees it
                    self._reply(peer, header.answer(Kind.DATA), *data)
            elif header.kind == Kind.WRITE and 2 <= len(parts) <= 3:
                into = header
                if len(parts) == 3:
                    window = self.on_ask(header.key, parts[1].bytes)
                    into = header._replace(key=int.from_bytes(window, "little"))
                is_here = len(parts) == 3 and not into.key
                if is_here or self._windows.write(into, parts[-1].buffer):
                    self._counts["served_in"] += header.size  # before the other side sees it
                    self._reply(peer, header.answer(Kind.WRITTEN))
            elif header.kind == Kind.ASK and len(parts) == 2:
                answer = self.on_ask(header.key, parts[1].bytes)
                self._reply(peer, header.answer(Kind.ANSWER), answer)
                return
            else:
                raise Refusal(f"kind {header.kind} in {len(parts)} parts is no request")
            self._counts["served_chunks"] += 1
        except zmq.ContextTerminated:
            raise
        except Exception as error:  # which may not end the service of all others
            kind = Kind.NO_ROOM if isinstance(error, MemoryError) else Kind.REFUSED
            is_told = isinstance(error, (Refusal, MemoryError))
            why = str(error) if is_told else describe_exception(error)
            log.info("the mover at %s refused a request: %s", self.address, why)
            self._counts["served_refused"] += 1
            self._reply(peer, header.answer(kind), why.encode())

    def _reply(self, *parts: Any) -> None:
        self._router.send_multipart(parts)


def _refuse_to_answer(_key: int, _question: bytes) -> bytes:
    raise Refusal("no request of this kind is answered here")


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


def grouped(several: Sequence[Span]) -> list[list[Span]]:
    """Return windows in groups of which each is read at once, unless it is a part, or may be long."""
    groups: list[list[Span]] = []
    left = room = 0
    for one in several:
        if one.offset or one.nbytes > left or not room:
            groups.append([])
            left, room = 0 if one.offset else GROUP, MOST_TOGETHER
        groups[-1].append(one)
        left, room = left - one.nbytes, room - 1
    return groups


def memory_of(span: Span) -> memoryview:
    if isinstance(span.memory, int):
        return bytes_at(span.memory, span.nbytes)
    return np.frombuffer(span.memory, np.uint8).data[: span.nbytes]
