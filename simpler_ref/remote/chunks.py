"""What movers say to each other: tensors travel in chunks, each with a header of its own.

A transfer is one range of one window, read or written. Whoever wants it asks for one chunk after the
other, several at a time; each request names the window, the whole range and the place of its chunk in it.
So the side that serves keeps nothing between two chunks, and a range that is refused is refused from its
first chunk on.

Unlike frames, headers have one fixed form, written and read in one step: there is one for each chunk.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import NamedTuple

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


class Header(NamedTuple):
    """The first part of a message; the data, or the text of a refusal, is the second.

    Attributes
    ----------
    kind : int
        A `Kind`.
    sender, transfer : int
        Who asks, and the number of the transfer among the sender's, counted on. A sender stores one after
        the other into a window: those with smaller numbers are over, whatever of them is still under way.
    key : int
        Of the window; of a question, who may ask it.
    offset, nbytes : int
        The whole range.
    at : int
        Where the chunk begins within the range.
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
    """Return the header that bytes hold.

    Raises
    ------
    ValueError
        They hold none, or one of another version.
    """
    if len(raw) != HEADER_BYTES:
        raise ValueError(f"a header has {HEADER_BYTES} bytes, not {len(raw)}")
    magic, version, *fields = _HEADER.unpack(raw)
    if magic != MAGIC:
        raise ValueError(f"a header begins with {MAGIC!r}, not with {magic!r}")
    if version != VERSION:
        raise ValueError(
            f"version {version} of the tensor protocol: this side has version {VERSION}; "
            f"install the same version of simpler_ref on both"
        )
    return Header(*fields)


def encode_windows(several: Iterable[tuple[int, int]]) -> bytes:
    """Return the second part of a READ: key and size of each window."""
    return b"".join([_WINDOW.pack(*one) for one in several])


def decode_windows(header: Header, raw: bytes) -> list[Header]:
    """Return the READ of each window in the second part of one.

    Raises
    ------
    ValueError
        These are no windows, or too many, or have other bytes than the header says.
    """
    if not raw or len(raw) % _WINDOW.size or len(raw) > MOST_TOGETHER * _WINDOW.size:
        raise ValueError(f"{len(raw)} bytes name no windows, or too many")
    found = [header._replace(key=key, nbytes=size) for key, size in _WINDOW.iter_unpack(raw)]
    if header.key or header.at or not sum(one.nbytes for one in found) == header.nbytes <= CHUNK:
        raise ValueError(f"the windows have not the {header.nbytes} bytes that the header says")
    return found
