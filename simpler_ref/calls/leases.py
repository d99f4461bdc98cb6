"""Holds on blocks of values, which last as long as Python's references to them."""

from __future__ import annotations

import os

from ..engine.memory import Engine
from ..engine.view.blocks import mark_kept


class Lease:
    """A hold on the block of a value, until the last reference to it dies.

    It may be the argument of a call, whose worker then gets the value. Who submits that call keeps the
    lease until it has ended.

    Attributes
    ----------
    offset : int
        The block.
    """

    def __init__(self, engine: Engine, offset: int) -> None:
        self._engine = engine
        self.offset = offset
        self._holder = 0
        """The process that holds the block: one that is forked from it does not."""

    def begin(self) -> None:
        """Hold the block."""
        mark_kept(self._engine.mem, self.offset)
        self._engine.kernels.hold_block(self._engine.mem, self.offset, 1)
        self._holder = os.getpid()

    def __del__(self) -> None:
        if self._holder == os.getpid():
            self._engine.kernels.hold_block(self._engine.mem, self.offset, -1)
