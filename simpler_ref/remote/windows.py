"""Windows: the memory of a session that other sessions may read or write, and how they ask for it.

Tensors travel in chunks, each with a header of its own. A transfer is one range of one window, read or
written, or several small windows that are read together. Whoever wants it asks for one chunk after the
other, several at a time; each request names the window, the whole range and the place of its chunk in it.
So the side that serves keeps nothing between two chunks, and a range that is refused is refused from its
first chunk on.

Unlike frames, headers have one fixed form, written and read in one step: there is one for each chunk.
"""

from __future__ import annotations

import ctypes
import enum
import secrets
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .limits import (
    REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_READ_WRITE,
    REMOTE_BUFFER_ACCESS_WRITE,
)

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


class Refusal(Exception):
    """A request is not carried out; the text goes to the one who asked."""


class NotOffered(Refusal):
    """There is no such window: whoever asks expects that it may be so."""


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
        """The bytes of the chunk."""
        return min(CHUNK, self.nbytes - self.at)

    def encode(self) -> bytes:
        """Return its bytes."""
        return _HEADER.pack(MAGIC, VERSION, *self)

    def answer(self, kind: Kind) -> bytes:
        """Return the bytes of an answer to it."""
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
    """A part of a window of another session, and memory of this one: a buffer, or its address."""

    key: int
    memory: Any
    nbytes: int
    offset: int = 0

    def chunk(self, header: Header) -> Any:
        """Return the memory of a chunk."""
        return self.memory[header.at : header.at + header.size]


def encode_windows(spans: Sequence[Span]) -> bytes:
    """Return the second part of a READ: key and size of each window."""
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
MOST_SENDERS = 4096


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
        """Return the memory of a chunk."""
        return bytes_at(self.address + header.offset + header.at, header.size)

    def is_over(self, header: Header) -> bool:
        """Say whether a transfer is over, of which chunks were still under way.

        They may arrive behind those of the transfer that repeats it, over another connection.
        """
        known = self.newest
        newest = max(known.pop(header.sender, 0), header.transfer)
        if len(known) >= MOST_SENDERS:
            del known[next(iter(known))]
        known[header.sender] = newest
        return header.transfer < newest


def new_key() -> int:
    """Return a key for a window."""
    return secrets.randbits(64) or new_key()


def name_of(key: int) -> str:
    """Return what a window is called in messages, which must not give its key away."""
    return f"window {key >> 48:04x}…"


def bytes_at(address: int, nbytes: int) -> memoryview:
    """Return memory by its address."""
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
        """Let others reach a window."""
        with self._lock:
            if window.key in self._offered:
                raise ValueError(
                    f"{name_of(window.key)} is offered already: give it a key of its own"
                )
            self._offered[window.key] = window

    def has(self, key: int) -> bool:
        """Say whether a window is offered."""
        return key in self._offered

    def withdraw(self, key: int) -> None:
        """Let nobody reach a window any more; one that is not offered is left as it is."""
        with self._lock:
            self._offered.pop(key, None)

    def clear(self) -> None:
        """Withdraw all windows."""
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
            raise (NotOffered if kind == Kind.READ else Refusal)(
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
