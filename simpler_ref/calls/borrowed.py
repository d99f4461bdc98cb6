"""Large arrays of other calls' values as the arguments of a task, without a copy.

A task may write what it gets, and each task has a copy of its own. To copy a large array takes longer
than most of what is done with it, and most tasks only read. So a worker maps the memory of all values
once more, copy on write, and a task gets its argument there:

    the block of a value     written once, by the worker that made it; the program and others read it
    the second mapping       shows the same pages, until the task writes one, which is its own then
    the last array dies      pages that were written are dropped: the next one finds the block's again

The system tells which pages are not the block's any more (``/proc/self/pagemap``). A block that is lent
has pages that no other block has. The engine holds it until the call has ended; should an array be kept
longer, by `sr.local` for instance, it gets pages of its own before that, and the same addresses are
lent to nobody meanwhile: who gets the value then, gets a copy. So does who gets one twice.

Rule     CALL-VALUE-2
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine.view.blocks import HEAD, Blocks
from ..jit import layout as L
from ..model.tensor import view_memory
from ..system import regions
from ..system.types import Array
from . import outcomes

_FROM = 1 << 18
"""In bytes: smaller blocks are sooner copied than lent."""
_OF_FILE, _THERE = np.uint64(1 << 61), np.uint64(3 << 62)
"""Bits of a page in the system's map: it is the block's; it is somewhere."""


class Loan:
    """The pages of one block in the second mapping, until the last array there dies."""

    def __init__(self, lender: Borrowed, address: int, nbytes: int) -> None:
        self._lender, self.address, self.nbytes = lender, address, nbytes
        self.is_kept = False

    def keep(self) -> None:
        """Make all pages the process's own."""
        if not self.is_kept:
            self.is_kept = True
            regions.write_privately(self.address, self.nbytes)

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter
            self._lender.take_back(self)


class Borrowed:
    """What a worker process lends to its tasks.

    Parameters
    ----------
    mem : Array
        The engine's memory.
    blocks : Blocks
        Some of it, by which the others are found.
    """

    def __init__(self, mem: Array, blocks: Blocks) -> None:
        self._mem, self._blocks = mem, blocks
        self._pid = os.getpid()
        self._has_begun = False
        self._start: int | None = None
        self._loans: dict[int, tuple[int, weakref.ref[Loan]]] = {}
        """Their bytes, by their addresses; those that die among them, until pages are the blocks'."""
        self._lock = threading.RLock()
        """An array may die in any thread of a task, and in the middle of anything."""
        os.register_at_fork(before=self.settle)  # the child does not hold blocks

    def value(self, block: int) -> Any:
        """Return the value in a block, for a task."""
        content = self._blocks.data_of(block)
        lent = self._lend(block, content) if len(content) >= _FROM else None
        if lent is None:
            return outcomes.decode_block(content)[0]
        return outcomes.decode_block(*lent)[0]

    def settle(self) -> None:
        """Let a call end: what it still has of its arguments does not depend on blocks any more."""
        if self._loans and os.getpid() == self._pid:
            with self._lock:
                for _, reference in list(self._loans.values()):
                    loan = reference()
                    if loan is not None:
                        loan.keep()

    def _lend(self, block: int, content: memoryview) -> tuple[memoryview, Loan] | None:
        """Return the bytes of a block, and what lives as long as arrays over them; None: copy them."""
        if not self._has_begun:
            self._has_begun = True
            self._start = regions.copy_on_write(self._mem)
        nbytes = len(content) + HEAD * L.WORD
        if self._start is None or block * L.WORD % regions.PAGE or nbytes % regions.PAGE:
            return None
        first = self._start + block * L.WORD
        for other, (size, _) in list(self._loans.items()):
            if other < first + nbytes and first < other + size:
                return None
        loan = Loan(self, first, nbytes)
        self._loans[first] = nbytes, weakref.ref(loan)
        return view_memory(first, (nbytes,), np.dtype(np.uint8)).data[-len(content) :], loan

    def take_back(self, loan: Loan) -> None:
        """Make the pages of a loan those of the block again; if that fails, they are lent to nobody."""
        if os.getpid() != self._pid:  # a copy of the task, with pages of its own
            return
        with self._lock:
            if loan.is_kept or _is_written(loan.address, loan.nbytes):
                regions.forget_private(loan.address, loan.nbytes)
            del self._loans[loan.address]


def _is_written(address: int, nbytes: int) -> bool:
    """Say whether pages are not the block's; also if the system does not tell."""
    pages = L.WORD * (nbytes // regions.PAGE)
    try:
        with open("/proc/self/pagemap", "rb", 0) as table:
            found = np.frombuffer(
                os.pread(table.fileno(), pages, L.WORD * (address // regions.PAGE)), "u8"
            )
    except OSError:
        return True
    return found.nbytes < pages or bool(((found & _THERE != 0) & (found & _OF_FILE == 0)).any())
