"""Blocks of shared memory for values that do not fit a word: results of calls, and large arguments.

Each party (the user's process, each worker) has a part of its own, and alone takes blocks from it. The
word before a block counts the holds on it; at 0 the block is free, whoever has released it last. So no
lock is needed, and a worker that dies leaves nothing behind: its successor finds all blocks by the words
before them.

Rule     CALL-VALUE-2, CALL-VALUE-4
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...jit import layout as L
from ...system import regions
from ...system.types import Array, address_of

_HOLDS, _SIZE, _SLOT = range(3)  # words of a block before its data; of a task also BLOCK_AGAIN
_KEY = 4
_HAS_PAGES = 5
"""Word of a free block: it counts among those whose pages the system does not have."""
_FREED, _TAKEN = 1, 2
"""Words of a part behind the first: how many words such blocks had that were ever freed, as the program
counts them, and taken again, as the party does; each is written by one of them."""
_MUCH = 1 << 17
"""Words from which on a block's pages may go back to the system."""
_MOST_FREE = 1 << 25
"""Words of free blocks that keep their pages: to make them again costs more than to write them."""
_KEPT = -1
"""In the place of the slot: the program has arrays in the block."""
HEAD = L.LINE
"""Words of a block before its data."""
_SMALLEST = 4 * L.LINE
_LARGE = 1 << 14
"""Words from which on sizes are rounded up to an eighth of a power of two, not to the next one."""
_PAGE = regions.PAGE // L.WORD
_LOOKS = 8, 64
"""Blocks of the same size, small or large, that are looked at before another one is made."""


class Block(NamedTuple):
    """A block that was taken."""

    offset: int
    """In words, of the word before it: what others know it by."""
    data: memoryview
    """As many bytes as were asked for."""


@functools.lru_cache(maxsize=4096)
def _size_of(nbytes: int) -> int:
    """Return the words of a block for some bytes, its head included."""
    words = max(_SMALLEST, HEAD + -(-nbytes // L.WORD))
    power = L.round_up_pow2(words)
    return power if power <= _LARGE else L.round_up(words, power // 8)


class Blocks:
    """The blocks of one party."""

    def __init__(self, mem: Array, party: int) -> None:
        """Take over the part of a party: 0 the user's process, else a worker plus 1."""
        size = int(mem[L.BLOCKS_STRIDE])
        self._mem = mem
        self._octets: memoryview = mem.view(np.uint8).data
        self._top = int(mem[L.A_BLOCKS]) + party * size  # the word that says how far blocks go
        self._first = L.round_up(self._top + L.LINE, _PAGE)
        self._end = self._top + size
        self._known: dict[int, deque[int]] = {}
        if size and mem[self._top] == 0:
            mem[self._top] = self._first
        self._find()

    @property
    def nbytes(self) -> int:
        return (self._end - self._first) * L.WORD

    def __iter__(self) -> Iterator[int]:
        """Go through all blocks, free ones included."""
        offset, mem = self._first, self._mem
        while offset < self._end and offset < mem[self._top]:
            yield offset
            offset += int(mem[offset + _SIZE])

    def _find(self) -> None:
        self._known.clear()
        for offset in self:
            self._known.setdefault(int(self._mem[offset + _SIZE]), deque()).append(offset)

    def take(self, nbytes: int, slot: int = 0) -> Block:
        """Take a block for the value of a call."""
        size = _size_of(nbytes)
        offset = self._reuse(size)
        if offset is None:
            offset = self._extend(size)
        if offset is None:
            offset = self._split(size, nbytes)
        mem = self._mem
        mem[offset + _SLOT] = slot
        mem[offset] = 1
        start = (offset + HEAD) * L.WORD
        return Block(offset, self._octets[start : start + nbytes])

    def _reuse(self, size: int) -> int | None:
        """Return a free block of a size, if there is one among those taken longest ago."""
        known, mem = self._known.get(size), self._mem
        if known is None:
            return None
        for _ in range(min(_LOOKS[size > _LARGE], len(known))):
            offset = known[0]
            known.rotate(-1)
            if mem.item(offset) == 0:
                if mem.item(offset + _HAS_PAGES):
                    mem[offset + _HAS_PAGES] = 0
                    mem[self._top + _TAKEN] += size
                return offset
        return None

    def _extend(self, size: int) -> int | None:
        """Return a new block behind the others, if there is room."""
        offset = int(self._mem[self._top])
        gap = -offset % _PAGE if size > _LARGE else 0  # a large one has pages of its own
        if gap + offset + size > self._end:
            return None
        for each in (gap, size) if gap else (size,):
            self._mem[offset] = self._mem[offset + _HAS_PAGES] = 0
            self._mem[offset + _SIZE] = each
            self._known.setdefault(each, deque()).append(offset)
            offset += each
            self._mem[self._top] = offset
        return offset - size

    def _split(self, size: int, nbytes: int) -> int:
        """Merge free blocks that are neighbours, and return a part of the first that is large enough."""
        self._merge()
        offset = self._extend(size)
        if offset is not None:
            return offset
        mem = self._mem
        for offset in self:
            rest = int(mem[offset + _SIZE]) - size
            if mem[offset] == 0 and (rest == 0 or rest >= _SMALLEST):
                if rest:
                    mem[offset + size] = mem[offset + size + _HAS_PAGES] = 0
                    mem[offset + size + _SIZE] = rest
                    mem[offset + _SIZE] = size
                self._find()
                return offset
        raise MemoryError(
            f"no room for a value of {nbytes} bytes: there are {(self._end - self._top) * L.WORD} "
            "bytes for values; drop futures and results no longer needed, or give "
            "Worker(values_size=...) a larger number"
        )

    def _merge(self) -> None:
        """Merge free blocks that are neighbours; what is free at the end is room again."""
        mem, free = self._mem, 0
        mem[self._top + _TAKEN] = mem[self._top + _FREED]
        for offset in self:  # which reads the size of a block when it goes on
            mem[offset + _HAS_PAGES] = 0
            if mem[offset] != 0:
                free = 0
            elif free:
                mem[free + _SIZE] += mem[offset + _SIZE]
            else:
                free = offset
        if free:
            mem[self._top] = free
        self._find()

    def free_lost(self) -> None:
        """Free the blocks that a worker took and died before it had answered.

        Its answers are collected, and no worker takes blocks from this part now.
        """
        mem = self._mem
        for offset in self:
            slot = int(mem[offset + _SLOT])
            if mem[offset] and slot != _KEPT:
                kind = mem[slot + L.S_KIND]
                has_it = kind in (L.VALUE_BLOCK, L.VALUE_ERROR) and mem[slot + L.S_VALUE] == offset
                mem[offset] = int(slot > 0 and has_it)

    def data_of(self, offset: int) -> memoryview:
        """Return the bytes of a block of any party, as `data_of` does, in a fifth of the time."""
        end = offset + self._mem.item(offset + _SIZE)
        return self._octets[(offset + HEAD) * L.WORD : end * L.WORD]

    def give(self, offset: int, slot: int) -> None:
        """Let a block, which was taken for no call, be the value of one."""
        self._mem[offset + _SLOT] = slot

    def release(self, offset: int) -> None:
        """Release a block on which nobody else has a hold."""
        self._mem[offset] = 0


def span_of_part(mem: Array, party: int) -> tuple[int, int]:
    """Return where the part of a party begins and ends, in bytes."""
    start, size = int(mem[L.A_BLOCKS]), int(mem[L.BLOCKS_STRIDE])
    return (start + party * size) * L.WORD, (start + (party + 1) * size) * L.WORD


def data_of(mem: Array, offset: int) -> memoryview:
    """Return the bytes of a block, up to its end."""
    start = (offset + HEAD) * L.WORD
    end = (offset + int(mem[offset + _SIZE])) * L.WORD
    data: memoryview = mem.view(np.uint8).data[start:end]
    return data


def give_back(mem: Array, offset: int) -> None:
    """Let the system have the pages of a block, if it is large and others that are free have many.

    The caller has the last hold on it, and releases that next.
    """
    size = int(mem[offset + _SIZE])
    if size < _MUCH or mem[offset] != 1:
        return
    start, stride = int(mem[L.A_BLOCKS]), int(mem[L.BLOCKS_STRIDE])
    top = start + (offset - start) // stride * stride
    if mem[top + _FREED] - mem[top + _TAKEN] + size <= _MOST_FREE:
        mem[top + _FREED] += size
        mem[offset + _HAS_PAGES] = 1
    else:
        regions.give_back(address_of(mem) + (offset + HEAD) * L.WORD, (size - HEAD) * L.WORD)


def set_retries(mem: Array, offset: int, retries: int) -> None:
    """Note, in the block of a task, how often its calls are run again."""
    mem[offset + L.BLOCK_AGAIN] = retries


def retries_of(mem: Array, offset: int) -> int:
    return int(mem[offset + L.BLOCK_AGAIN])


def set_value_key(mem: Array, offset: int, key: int) -> None:
    """Note under which key endpoints know the value in a block; 0: under none."""
    mem[offset + _KEY] = key


def value_key(mem: Array, offset: int) -> int:
    """Return the key that was noted in a block; 0 if nobody holds the block any more."""
    return int(mem[offset + _KEY]) if mem[offset] else 0


def size_of_block(mem: Array, offset: int) -> int:
    """Return the bytes of a block, its head included."""
    return int(mem[offset + _SIZE]) * L.WORD


def mark_kept(mem: Array, offset: int) -> None:
    """Note that the program has arrays in a block."""
    mem[offset + _SLOT] = _KEPT
