"""Large arrays as values and as arguments without a copy, in a worker.

A value of a call is a block of memory that the program sees (`outcomes`). To copy a large array there
takes as long as to make it; and memory that is new in a worker takes several times as long, since the
system has to clear it. So a worker has numpy make arrays in blocks at once, if they are as large as
arrays that were values before:

    a call returns an array  ──▶ it is copied into a block, and there is one more *place* of its size
    numpy makes an array     ──▶ in a place of such a size, if one is free (`src/places.c`); a temporary
                                 one leaves the place to the next, which has its pages already
    a call returns an array  ──▶ in a place, and nothing else refers to it: the block is the value, and
                                 another block becomes a place

The head of the outcome comes before the array, whose memory is whole pages. That is also for processes
that a task forks: they have the array in memory of their own, as they would any other one. Nor does
such an array count as shared, though others could see its memory.

There are no places with interpreted kernels, in interpreters without the GIL, in worker threads, and in
workers of a Worker that a task has made: these may have arrays of that task, in its places.

A value may be the argument of another task, which may write what it gets: each has a copy of its own.
To copy a large array takes longer than most of what is done with it, and most tasks only read. So a
worker maps the memory of all values once more, copy on write, and a task gets its argument there:

    the block of a value     written once, by the worker that made it; the program and others read it
    the second mapping       shows the same pages, until the task writes one, which is its own then
    the last array dies      pages that were written are dropped: the next one finds the block's again

The system tells which pages are not the block's any more (``/proc/self/pagemap``). A block that is lent
has pages that no other block has. The engine holds it until the call has ended; should an array be kept
longer, by `sr.local` for instance, it gets pages of its own before that, and the same addresses are
lent to nobody meanwhile: who gets the value then, gets a copy. So does who gets one twice.

Rule     CALL-VALUE-2, CALL-VALUE-4
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from ..engine.view.blocks import HEAD, Blocks, span_of_part
from ..jit import layout as L
from ..model.tensor import view_memory
from ..system import regions
from ..system.types import Array, address_of
from . import outcomes, quick

_PLACED_FROM = 1 << 16
"""In bytes: smaller arrays are copied. `src/places.c` knows it as SMALLEST."""
_BEFORE = outcomes.ARRAY_AT + regions.PAGE - 1
_SET_HANDLER, _GET_HANDLER = 304, 305
"""Of numpy's table of functions, since numpy 1.22."""


def are_possible() -> bool:
    return quick.is_possible() and not quick.library().simpler_ref_has_places()


class Places:
    """The places of one worker process, a party of `blocks`, which are its numpy's from now on."""

    def __init__(self, mem: Array, party: int, blocks: Blocks) -> None:
        self._mem, self._blocks, self._start = mem, blocks, address_of(mem)
        size, number = ctypes.c_size_t, ctypes.c_int64
        make = _function("handler", ctypes.py_object, ctypes.py_object, size, size)
        self._wants = _function("wants_place", ctypes.c_int, size)
        self._add = _function("add_place", number, size, size, number)
        self._remove = _function("remove_place", number)
        self._used = _function("array_place", size, ctypes.c_int, ctypes.POINTER(size))
        self.give = _function("give_place", None, size)
        """Gives up the place of an array, by its address: its block is a value."""
        set_handler, get_handler = _numpys_functions()
        first, end = (self._start + at for at in span_of_part(mem, party))
        set_handler(make(get_handler(), first, end))
        regions.hide(first, end)
        self._pid = os.getpid()
        self._for_child: list[tuple[int, bytes]] | None = []
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._forget_child,
            after_in_child=self._in_child,
        )

    def add(self, nbytes: int) -> None:
        """Have one more place for arrays of a size, unless there are enough, or no room."""
        size = (nbytes + regions.PAGE - 1) & -regions.PAGE
        if nbytes < _PLACED_FROM or not self._wants(size):
            return
        try:
            block = self._blocks.take(outcomes.ARRAY_AT + regions.PAGE + size).offset
        except MemoryError:
            return
        memory = (self.address_in(block) + _BEFORE) & -regions.PAGE
        unneeded = self._add(memory, size, block)
        if unneeded:
            self._blocks.release(unneeded)

    def address_in(self, block: int) -> int:
        return self._start + (block + HEAD) * L.WORD

    def leave(self) -> bool:
        """Give up all free places, for want of room; say whether there were any."""
        found = False
        while block := self._remove():
            self._blocks.release(block)
            found = True
        return found

    # ------------------------------------------------------------ forks
    def _before_fork(self) -> None:
        """Keep what the arrays in places have now: the task has them, and so has its copy."""
        size = ctypes.c_size_t()
        self._for_child = None  # Python goes on with the fork if there is no memory for this
        kept = []
        for number in range(_MOST if os.getpid() == self._pid else 0):
            memory = self._used(number, size)
            if memory:
                kept.append((memory, ctypes.string_at(memory, size.value)))
        self._for_child = kept

    def _forget_child(self) -> None:
        self._for_child = []

    def _in_child(self) -> None:
        try:
            if self._for_child is None:
                raise MemoryError
            for memory, content in self._for_child:
                regions.make_private(memory, len(content))
                ctypes.memmove(memory, content, len(content))
        except BaseException:  # a copy of the task that went on would write into its arrays
            os.write(2, b"simpler_ref: no memory for the arrays of a task that has forked\n")
            os._exit(1)
        self._forget_child()


_MOST = 16
"""How many places there are at most."""


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((f"simpler_ref_{name}", quick.library()))


def _numpys_functions() -> tuple[Any, Any]:
    """Return what sets numpy's handler of memory, and what gets it."""
    table_of = ctypes.pythonapi.PyCapsule_GetPointer
    table_of.restype, table_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    numpys = importlib.import_module("numpy._core._multiarray_umath")
    table = (ctypes.c_size_t * (_GET_HANDLER + 1)).from_address(table_of(numpys._ARRAY_API, None))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
    return set_handler, ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER])


# ---------------------------------------------------------------- arguments
_LENT_FROM = 1 << 18
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
    """What a worker process lends to its tasks: blocks of the engine's memory, whoever has made them."""

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
        lent = self._lend(block, content) if len(content) >= _LENT_FROM else None
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
