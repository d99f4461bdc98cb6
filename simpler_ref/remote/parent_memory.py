"""What the link of an endpoint does with the parent's memory: it stores versions into the session that a
task reads, and brings home those that the session has made.

Rule     REMOTE-COPY-2, REMOTE-COPY-3, REMOTE-COPY-5, REMOTE-AHEAD-8, REMOTE-RETRY-2
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from ctypes import string_at
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import RemoteError, TransferError
from ..system.types import Array, address_of
from . import copies
from .directory import CopyPlan
from .mover import Mover, Span, new_key
from .task_messages import FrameCapacity, Piece

ADDRESS_BYTES = 128
"""Of the address of an endpoint's mover, in shared memory."""
Coming = dict[int, tuple[int, int, int]]
"""By key: a version that is to be stored, from which address, and how many bytes."""


def mover_of(movers: Any, source: int) -> str:
    """Return where an endpoint's mover is; `source` is its number plus one, or 0.

    `movers` has a row for each worker of the pool.
    """
    return bytes(movers[source - 1]).split(b"\0", 1)[0].decode() if source else ""


# ---------------------------------------------------------------- bringing home
class Brought(enum.IntEnum):
    """What became of a version that was to come home."""

    NEVER_MADE = 0
    IS_HOME = 1
    IS_LOST = 2


class Homing(NamedTuple):
    """A tensor that shall come home, if the endpoint has made a version of it from `first` to `last`."""

    key: int
    first: int
    last: int
    address: int
    nbytes: int


@dataclass(slots=True)
class _Known:
    """What the session has of a tensor: the version that it holds, the last one that it has made, and the
    last one that has come home; 0 for none.
    """

    held: int = 0
    made: int = 0
    brought: int = 0


class Missing:
    """What the session of a link does not have of what a task reads.

    `coming` is stored before, by key; what is short travels in the frame. Of a call, `values` are those
    that the session keeps from now on: their blocks and sizes; `passing` are the keys of values for the
    call alone.
    """

    def __init__(self) -> None:
        self._room = FrameCapacity()
        self.coming: Coming = {}
        self.values: dict[int, tuple[int, int]] = {}
        self.passing: list[int] = []
        self._packed: list[Any] = []
        """Owners of memory that is stored."""

    def take(self, key: int, version: int, address: int, nbytes: int) -> bytes:
        """Return a version of a tensor, which is here at an address, if it travels in the frame."""
        if self._room.takes(nbytes):
            return string_at(address, nbytes)
        self.coming[key] = version, address, nbytes
        return b""

    def pack(self, memory: Array) -> tuple[int, int]:
        """Return where memory is, and how many bytes; it stays until the task has been sent."""
        self._packed.append(memory)
        return address_of(memory), memory.nbytes

    def piece(self, data: memoryview, key: int = 0) -> Piece:
        """Return bytes as they travel; with a key, the session keeps them under it."""
        if self._room.takes(data.nbytes):
            return Piece(bytes(data), key, data.nbytes if key else 0)
        key = key or new_key()
        address, nbytes = self.pack(np.frombuffer(data, np.uint8))
        self.coming[key] = 1, address, nbytes
        return Piece(b"", key, nbytes)


class ParentMemory:
    """The parent's memory, as the link of one endpoint serves it.

    `mover` moves tensors between this machine and the session, whose mover is at `address`.
    """

    def __init__(self, session: int, address: str, mover: Mover) -> None:
        self._session, self.address, self.mover = session, address, mover
        self._known: defaultdict[int, _Known] = defaultdict(_Known)
        """By key."""
        self.run = 0
        self.brought = 0
        self.is_cut = False
        """Whether a transfer has failed since the session is lost, or cannot be reached."""

    def begin(self, run: int) -> None:
        """Forget what was of an earlier run."""
        if run != self.run:
            self.run = run
            self._known.clear()

    def store_all(self, run: int, coming: Coming) -> None:
        """Store versions, each from its address; if the session has no room, that is a `MemoryError`."""
        spans = [
            Span(self._session, at, nbytes, question=copies.COMING.pack(run, key, version, nbytes))
            for key, (version, at, nbytes) in coming.items()
        ]
        if spans:
            self.mover.store_all(self.address, spans)

    def lacks(self, one: CopyPlan) -> bool:
        """Say whether a task reads a version that the parent has and the session has not."""
        return bool(one.reads and not one.source and self._known[one.key].held != one.reads)

    def forget(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._known.pop(key, None)

    def note(self, tensors: Sequence[copies.CopiedTensor], succeeded: bool) -> None:
        """Note what the session has after a task: one that has failed may not have kept what came."""
        for one in tensors:
            known = self._known[one.key]
            if not succeeded:
                known.held = 0
                continue
            known.held = one.makes or one.reads or known.held
            known.made = one.makes or known.made

    def bring(self, *several: Homing) -> None:
        """Copy versions that the session has made into the parent's memory, the `last` of each."""
        spans = [
            Span(copies.window_key(one.key, one.last), one.address, one.nbytes)
            for one in several
            if one.nbytes
        ]
        if not spans:
            return
        try:
            self.mover.fetch_all(self.address, spans)
        except TransferError as error:
            if not error.refused:
                self.is_cut = True
                raise
            first = several[0]
            raise RemoteError(
                f"version {first.last} of the tensor at {first.address:#x} cannot come home: "
                f"{copies.RACE}; or the endpoint was lost and has started anew"
            ) from None
        for one in several:
            self._known[one.key].brought = one.last
        self.brought += len(spans)

    def bring_all(self, several: Sequence[Homing]) -> bytes:
        """Bring several home, all at once if that can be; return what became of each."""
        ready = [one for one in several if self._known[one.key].made == one.last and one.nbytes]
        if len(ready) > 1:
            with suppress(RemoteError, TransferError):  # which those tell of that are brought again
                self.bring(*ready)
        return bytes(self.bring_newest(one) for one in several)

    def bring_newest(self, one: Homing) -> Brought:
        """Bring the newest version home that the session has made, if it is one of those."""
        known = self._known[one.key]
        if known.made < one.first:
            return Brought.NEVER_MADE
        if known.brought == known.made:  # since when tasks may have written it there
            return Brought.IS_HOME
        if known.made > one.last:
            return Brought.IS_LOST
        try:
            self.bring(one._replace(last=known.made))
        except (RemoteError, TransferError):
            return Brought.IS_LOST
        return Brought.IS_HOME
