"""What sessions push to each other: tensors that a part of a graph waits for.

Who pushes goes on at once; in the end it waits until all of it has arrived. The other side takes it when
it comes to that: what comes early waits here, outside of the memory that tasks see.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from .chunks import CHUNK, Header
from .windows import Refusal

MOST_OVER = 8
NOTHING = -1
MOST_EARLY_BYTES = 1 << 30
"""Of what was pushed for a replay that this session has not begun: all that one replay may push to it."""

Chunks = Sequence[tuple[int, memoryview]]
"""The parts of a tensor, and where each begins."""


class Line(Protocol):
    """A connection to another mover; see `mover`."""

    def push(self, header: Header, data: Any) -> None:
        """Send a chunk."""

    def require_arriving(self, header: Header) -> None:
        """Raise if it is known by now that chunks of a transfer do not arrive."""

    def settle(self, header: Header) -> None:
        """Wait until all chunks of a transfer have arrived."""


class Pushes:
    """What one session pushes in a replay: over one line for each of the others.

    `open_line` returns a line and the first header of its transfer, which `token` is the key of.
    `on_pushed` is told where to, how many bytes, and when that began. `address` is that of the session it
    had to do with last.
    """

    def __init__(
        self,
        open_line: Callable[[str, int], tuple[Line, Header]],
        token: int,
        on_pushed: Callable[[str, int, int], None],
    ) -> None:
        self._open_line, self._token, self._on_pushed = open_line, token, on_pushed
        self.lines: dict[str, tuple[Line, Header]] = {}
        self._finished: set[str] = set()
        self.bytes = self.count = 0
        self.address = ""

    def push(self, address: str, number: int, data: memoryview) -> None:
        """Send the bytes of what has a number to another session."""
        began, self.address = time.monotonic_ns(), address
        if address not in self.lines:
            self.lines[address] = self._open_line(address, self._token)
        line, (kind, sender, transfer, key, *_) = self.lines[address]
        for at in range(0, len(data), CHUNK):
            header = Header(kind, sender, transfer, key, number, len(data), at)
            line.push(header, data[at : at + CHUNK])
        self.bytes += len(data)
        self.count += 1
        self._on_pushed(address, len(data), began)

    def require_arriving(self) -> None:
        """Raise if it is known by now that some of it does not arrive."""
        for line, first in self._each():
            line.require_arriving(first)

    def finish(self, address: str) -> None:
        """Note that nothing more is pushed to another session: it says when all has arrived."""
        line, first = self.lines[address]
        self._finished.add(address)
        line.push(first, b"")

    def settle(self) -> None:
        """Wait until all of it has arrived."""
        for line, first in self._each():
            if self.address not in self._finished:
                line.push(first, b"")
        for line, first in self._each():
            line.settle(first)

    def _each(self) -> Iterator[tuple[Line, Header]]:
        for address, pair in self.lines.items():
            self.address = address
            yield pair


class _Coming:
    """Bytes that come in chunks."""

    __slots__ = ("chunks", "left")

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes
        self.chunks: dict[int, memoryview] = {}

    def add(self, at: int, data: memoryview) -> None:
        """Add a chunk; one that comes twice counts once."""
        if at not in self.chunks:
            self.chunks[at] = data
            self.left -= data.nbytes


class Inbox:
    """What others have pushed to a session, by the token of a replay and a number.

    The mover's thread puts, the main thread takes. `ring` is called if that has come which is waited for;
    it must not wait.
    """

    def __init__(self, ring: Callable[[], Any]) -> None:
        self._rings = [ring]
        self._lock = threading.Lock()
        self._token = 0
        self._over: deque[int] = deque(maxlen=MOST_OVER)
        """Tokens of the last replays that are over."""
        self._coming: dict[int, dict[int, _Coming]] = {}
        self._early_bytes = 0
        self._awaited = NOTHING
        """The number, or the window, that is waited for."""

    def begin(self, token: int) -> None:
        """Take what is pushed for one replay; forget what was for others, which are over."""
        with self._lock:
            self._token, self._early_bytes = token, 0
            self._coming = {token: self._coming.get(token, {})}

    def end(self) -> None:
        """Forget what was not taken, and what still comes: the replay is over."""
        with self._lock:
            self._over.append(self._token)
        self.begin(0)

    def await_window(self, key: int) -> None:
        """Ring when all of a window has been written."""
        with self._lock:
            self._awaited = key

    def note_filled(self, key: int) -> None:
        """Note that all of a window has been written."""
        with self._lock:
            self._note_come(key)

    def ring_also(self, ring: Callable[[], Any]) -> None:
        """Call this, too, if something has come that is waited for."""
        with self._lock:
            self._rings.append(ring)

    def ring_no_more(self, ring: Callable[[], Any]) -> None:
        """Call this no more."""
        with self._lock:
            self._rings.remove(ring)

    def put(self, header: Header, data: memoryview) -> None:
        """Keep a chunk until it is taken."""
        if data.nbytes != header.size or header.size <= 0:
            raise Refusal(f"a chunk of {header.size} bytes is announced, {data.nbytes} have come")
        with self._lock:
            if header.key in self._over:
                return
            if header.key != self._token:
                if self._early_bytes + data.nbytes > MOST_EARLY_BYTES:
                    raise Refusal(
                        f"{MOST_EARLY_BYTES} bytes are here for replays that have not begun"
                    )
                self._early_bytes += data.nbytes
            coming = self._coming.setdefault(header.key, {})
            one = coming.setdefault(header.offset, _Coming(header.nbytes))
            one.add(header.at, data)
            if not one.left and header.key == self._token:
                self._note_come(header.offset)

    def _note_come(self, what: int) -> None:
        if what == self._awaited:
            self._awaited = NOTHING
            for ring in self._rings:
                ring()

    def take(self, number: int) -> Chunks | None:
        """Return the chunks of what has a number, and where each begins; None: it has not come yet."""
        with self._lock:
            coming = self._coming[self._token]
            found = coming.get(number)
            if found is None or found.left:
                self._awaited = number
                return None
            return list(coming.pop(number).chunks.items())
