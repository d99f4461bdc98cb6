"""Holds on blocks of values, which last as long as Python's references to them.

Rule     CALL-VALUE-4
"""

from __future__ import annotations

import os

from ..engine.memory import Engine
from ..engine.shared_arrays import InUse, Users
from ..engine.view.blocks import give_back, mark_kept, size_of_block

_MUCH = 1 << 20
"""Bytes from which on it is looked at once whether a task uses a block."""


class Leases:
    """The holds of one stream. A dropped block is held until tasks have ended that may use it."""

    def __init__(self, engine: Engine, users: Users | None) -> None:
        self._engine = engine
        self._in_use: InUse[int] = InUse(users)

    def take(self, offset: int) -> Lease:
        """Return a hold on a block, which begins when that is told to."""
        return Lease(self, offset)

    def hold(self, offset: int) -> int:
        """Hold a block; return what `drop` is told."""
        self.look()
        mark_kept(self._engine.mem, offset)
        self._engine.kernels.hold_block(self._engine.mem, offset, 1)
        return self._in_use.now()

    def drop(self, offset: int, first: int) -> None:
        """Release a block, once no task uses it."""
        nbytes = size_of_block(self._engine.mem, offset)
        is_free = nbytes >= _MUCH and not self._in_use.has_users(first)
        if is_free or not self._in_use.keep(first, nbytes, offset):
            self._release(offset)

    def look(self) -> None:
        """Release the blocks that no task uses any more."""
        for offset in self._in_use.look() if self._in_use else ():
            self._release(offset)

    def end(self) -> None:
        """Release from now on at once: there are no tasks any more."""
        self._in_use.users = None

    def _release(self, offset: int) -> None:
        give_back(self._engine.mem, offset)
        self._engine.kernels.hold_block(self._engine.mem, offset, -1)


class Lease:
    """A hold on the block of a value, until the last reference to it dies.

    It may be the argument of a call, whose worker then gets the value. Who submits that call keeps the
    lease until it has ended.

    Attributes
    ----------
    offset : int
        The block.
    """

    def __init__(self, leases: Leases, offset: int) -> None:
        self._leases = leases
        self.offset = offset
        self._first = 0
        self._holder = 0
        """The process that holds the block: one that is forked from it does not."""

    def begin(self) -> None:
        """Hold the block."""
        self._first = self._leases.hold(self.offset)
        self._holder = os.getpid()

    def __del__(self) -> None:
        if self._holder == os.getpid():
            self._leases.drop(self.offset, self._first)
