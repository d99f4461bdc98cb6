"""Every offset, record and constant that crosses a boundary, under one name: ``L``.

The engine is one array of 64-bit little-endian words, `mem`, in shared memory. All offsets are in
words. The declarations:

    constants   limits, states, answers, times
    structures  tensors, configurations and arguments, in bytes
    words       records of words: their places, and the parties that write and read them

Here they become the plan of an engine. Names in kernels:

    slot, frame, edge, access, …  offsets in `mem`; the words W_AT, W_HEAD and W_TAIL say where a frame
                                  begins from `w` on
    worker, w                     the number of a worker; where its words begin
    words, t                      arguments on their way into submit; a tensor among them
    id, number                    of a task in its run, in a trace

Rule     SCHED-MAIL-1, WM-MAIL-3, WM-MAIL-5, FLOW-DATA-3, FAIL-OUTCOME-1
"""

# ruff: noqa: F403, F405
from __future__ import annotations

import numpy as np

from .constants import *
from .schema import Record
from .words import *

RECORDS: dict[str, Record] = {
    one.name: one
    for one in (
        *(HEADER, RING, WORKER, MAILBOX, CACHE, CODE, SLOT, SCALAR, MEMBER, EDGE, ENTRY, FIFO),
        *(LAYOUT, ACCESS, GRID, CONFLICT, JOURNAL, NOTE),
    )
}
"""The records of the engine."""


def round_up(value: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit


def round_up_pow2(value: int) -> int:
    """Return the smallest power of two that is not below `value`."""
    return 1 << max(0, int(value) - 1).bit_length()


def journal_offset(first: int, journal: int) -> int:
    """Return the offset of a journal; `first` is that of the first one."""
    big = min(journal, JOURNALS_OF_WORKERS)
    notes = big * BIG_JOURNAL + (journal - big) * SMALL_JOURNAL
    return first + journal * JOURNAL_HEAD_WORDS + notes * NOTE_WORDS


def journals_words(workers: int) -> int:
    """Return the words of all journals; their pages take memory only while a trace is taken."""
    return journal_offset(0, JOURNALS_OF_WORKERS + workers)


def plan(
    *,
    window: int,
    rings: int,
    next_level: int,
    sub: int,
    depth: int = 1,
    id_window: int = 0,
    blocks_size: int = 0,
    endpoints: int = 0,
) -> tuple[int, dict[int, int]]:
    """Return the words an engine of this size needs and the values of its geometry words.

    A FIFO has room for twice the tasks that may be alive: when it is full, half of it is released.

    `blocks_size` bytes for values are the part of each worker, and of the parent. The last `endpoints` of
    the next-level workers get only tasks that name them.

    Only the parent uses the words from PRIVATE on: TensorMap, slots.
    """
    workers = next_level + sub
    circular = max(CIRCULAR_SMALLEST, round_up_pow2(window))
    words = {
        WORKERS: workers,
        POOL_FIRST + NEXT_LEVEL: 0,
        POOL_END + NEXT_LEVEL: next_level,
        POOL_OPEN + NEXT_LEVEL: next_level - endpoints,
        POOL_FIRST + SUB: next_level,
        POOL_END + SUB: workers,
        POOL_OPEN + SUB: workers,
        RINGS: rings,
        WINDOW: window,
        ID_WINDOW: id_window,
        DEPTH: depth,
        WORKER_STRIDE: depth * WORKER_WORDS,
        **{FIFO_MASK + ring: CIRCULAR_SMALLEST - 1 for ring in range(rings)},
    }
    end = HEADER_WORDS

    def area(where: int, size: int) -> None:
        nonlocal end
        words[where] = end
        end += round_up(size, LINE)

    area(A_WORKERS, workers * depth * WORKER_WORDS)
    area(A_CALLABLES, MAX_REGISTERED_CALLABLE_IDS * DIGEST_WORDS)
    area(A_WIRING, WIRING_CAPACITY)
    area(A_LAYOUTS, LAYOUTS_CAPACITY)
    for ring in range(rings):
        area(A_FIFO + ring, 2 * circular * FIFO_WORDS)
    end = round_up(end, PAGE_WORDS)
    words[BLOCKS_STRIDE] = round_up(-(-blocks_size // WORD), PAGE_WORDS)
    area(A_BLOCKS, (1 + workers) * words[BLOCKS_STRIDE])
    area(A_JOURNALS, journals_words(workers))
    for journal in range(JOURNALS_OF_WORKERS + workers):
        notes = BIG_JOURNAL if journal < JOURNALS_OF_WORKERS else SMALL_JOURNAL
        words[journal_offset(words[A_JOURNALS], journal) + J_MASK] = notes - 1
    end = words[PRIVATE] = round_up(end, PAGE_WORDS)
    entries = max(MAP_SMALLEST, 4 * round_up_pow2(window))
    words[MAP_AREA] = entries
    for half in (0, 1):
        area(A_MAP + half, entries * ENTRY_WORDS)
    area(A_SLOTS, window * SLOT_WORDS)
    area(A_SPILL, max(1 << 21, window * INLINE_WORDS))
    words[A_SPILL_END] = end
    area(A_CONFIGS, MAX_CONFIGS * CONFIG_ENTRY_WORDS)
    most_tensors = workers * (MAILBOX_ARGS_CAPACITY // (TENSOR_WORDS * WORD))
    accesses = round_up_pow2(max(2 * circular, most_tensors))
    area(A_ACCESSES, accesses * ACCESS_WORDS)
    words[A_ACCESSES_END] = end
    area(A_CELLS, CELL_WORDS * accesses)
    area(A_GRIDS, MAX_GRIDS * GRID_WORDS)
    area(A_OVERLAPS, accesses)
    area(A_CONFLICTS, window * CONFLICT_WORDS)
    words[ACCESSES_USED] = words[A_ACCESSES]
    words[SWEEP_AT] = SWEEP_SMALLEST
    words[CELL_MASK] = ACCESSES_SMALLEST - 1
    words[MAP_BASE] = words[A_MAP]
    words[MAP_MASK] = MAP_SMALLEST - 1
    words[SPILL_USED] = words[A_SPILL]
    return end, words


def initialise(
    mem: np.ndarray[tuple[int], np.dtype[np.int64]],
    words: dict[int, int],
    *,
    heap_bases: list[int],
    heap_size: int,
    **settings: int,
) -> None:
    """Write the geometry, and the words with these names in small letters, into fresh, zeroed memory."""
    for where, value in words.items():
        mem[where] = value
    for ring, base in enumerate(heap_bases):
        mem[RING_BLOCK + ring * LINE + R_BASE] = base
        mem[RING_BLOCK + ring * LINE + R_SIZE] = heap_size
    for name, value in settings.items():
        mem[globals()[name.upper()]] = value
