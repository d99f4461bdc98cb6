"""Ring: task ids, slots, and the heap rings with FIFO reclamation.

What it is for. A task gets an id, a slot (the words that the runtime keeps of it), and memory for
those of its outputs that the program has no address for: a *slab*. Thousands of tasks a second ask
for all three and give them back, in about the order in which they came. So memory is not a heap
with free lists: it is a ring, in which an allocation moves a cursor and a release, sooner or later,
moves a tail after it.

    offset 0                tail            cursor                 size
    ├───────────────────────┼───────────────┼──────────────────────┤
      free: was reclaimed     slabs in use    free: to be given next

A slab is contiguous. If the bytes up to the end of the ring do not suffice, they are skipped, and
come back together with the slab that begins at offset 0 in their place. `R_TOP` and `R_TAIL` do not
wrap: they count the bytes ever given and ever reclaimed since the ring was last empty, skipped ones
included. Bytes in use are their difference, so "full" and "empty" cannot be confused, and no byte
is left unused to tell them apart. An empty ring starts over at offset 0: its first pages are in the
caches and have frames, while pages further on may never have been touched.

Reclamation. Each ring has a FIFO of its allocations: where the slab ends, whose slot it is, and a
bit that says whether it was released. A release sets the bit. Only a release of the *oldest* one
(`R_ALIVE`) moves the tail, past all that follow it and are released too. So a slab comes back when
it and every older one of its ring are released; that is the price of needing no search. Whoever
holds the oldest slab of a ring for long holds the ring, which is why there are several: scope depth
chooses the ring (`ring_of_depth`), so that buffers of an outer scope, which live long, do not hold
those of inner ones, which live for a step of a loop. Rings never wait for each other. Deeper scopes
than rings share the last one.

Tasks without a slab take an entry, too: the window of ids, where there is one, is counted from the
oldest live task. When a FIFO's array is full, released entries behind a live one are merged into
it; so a task that lives long costs one entry, however many come and go after it, and the array only
grows with tasks alive.

Who calls it. `submit_task` and `alloc_buffer` call `alloc`, always on the Orch thread; `reclaim`
calls `release`, on the Orch thread as well: the Scheduler hands consumed slots over in a chain. So
every word here has one writer and needs no atomic; other threads read some of them as hints, for
reports.

What must never happen. A kernel that waits: without room, `alloc` returns WOULD_BLOCK and has
changed nothing; its caller lets the Scheduler go on and calls again. A slab given twice, or before
its last reader has ended: references, not this module, see to that; a slot is released once, when
it is CONSUMED. An id used twice in a run: ids only count up, and start over in `reset_to_empty`,
when no task is left.

Why not something else. Free lists by size would give back memory out of order, but a search and a
lock per task cost more than the task; a stack per scope would be as fast, but tasks end out of
order and scopes end before their tasks. The documents' rules for all of this are ORCH-RING and
ORCH-WINDOW.

Rule     ORCH-RING-1, ORCH-RING-3, ORCH-RING-4, ORCH-RING-5, ORCH-RING-6, ORCH-RING-8, ORCH-RING-9,
         ORCH-RING-10, ORCH-RING-11, ORCH-RING-12, ORCH-RING-13, ORCH-RING-14, ORCH-SCOPE-1,
         ORCH-SUBMIT-1, ORCH-WINDOW-1, ORCH-WINDOW-2, ORCH-WINDOW-3, ORCH-WINDOW-5, ORCH-WINDOW-6
"""

from __future__ import annotations

from . import layout as L
from .atomics import store, unlikely
from .journal import note_held

LINE = L.LINE
RING_BLOCK = L.RING_BLOCK
HEAP_ALIGN = L.HEAP_ALIGN


def align(nbytes):
    return (nbytes + HEAP_ALIGN - 1) & -HEAP_ALIGN


def ring_of_depth(mem, depth):
    """Return the ring of a 0-based scope depth: the depth itself, at most the last ring.

    Without an open scope (depth -1) it is the first.
    """
    return max(0, min(depth, int(mem[L.RINGS]) - 1))


def alloc(mem, nbytes, depth):
    """Claim a task id, a slot and, for nbytes > 0, a slab of the ring of `depth`: all of them or nothing.

    Returns  the slot; or WOULD_BLOCK (no slot or no room) or TOO_LARGE (exceeds the ring), with
             nothing changed. The slab, if any, ends at the ring's cursor.
    """
    ring = ring_of_depth(mem, depth)
    r = RING_BLOCK + ring * LINE
    size = int(mem[r + L.R_SIZE])
    need = align(nbytes)
    if need > size:
        return L.TOO_LARGE
    if mem[L.LIVE] >= mem[L.WINDOW] or outside_window(mem):
        return L.WOULD_BLOCK
    top = int(mem[r + L.R_TOP])
    tail = int(mem[r + L.R_TAIL])
    cursor = int(mem[r + L.R_CURSOR])
    # A slab is contiguous: a short end is skipped, and freed with the slab. A ring that holds no
    # bytes starts over at 0; live tasks without bytes may keep it from being empty.
    if need > 0 and (cursor + need > size or (top == tail and cursor > 0)):
        rest = size - cursor
        if top == tail:  # the ring holds no bytes: the skipped end is free at once
            tail += rest
        top += rest
        cursor = 0
    if top + need - tail > size:
        return L.WOULD_BLOCK
    top += need
    mem[r + L.R_TOP] = top
    mem[r + L.R_TAIL] = tail
    mem[r + L.R_CURSOR] = cursor + need
    if top - tail > mem[r + L.R_PEAK]:
        mem[r + L.R_PEAK] = top - tail

    slot = int(mem[L.FREE_SLOT])
    if slot != L.NONE:
        mem[L.FREE_SLOT] = mem[slot + L.S_LINK]
    else:
        slot = int(mem[L.A_SLOTS] + mem[L.SLOTS_USED] * L.SLOT_WORDS)
        mem[L.SLOTS_USED] += 1
    if mem[r + L.R_NEXT] - mem[r + L.R_ALIVE] > mem[L.FIFO_MASK + ring]:
        make_fifo_room(mem, ring)
    position = int(mem[r + L.R_NEXT])
    entry = fifo_entry(mem, ring, position)
    mem[entry + L.FIFO_END] = top * 2
    mem[entry + L.FIFO_SLOT] = slot
    mem[r + L.R_NEXT] = position + 1
    mem[slot + L.S_RING] = ring | position << 3
    mem[slot + L.S_ID] = mem[L.NEXT_TASK_ID]
    mem[slot + L.S_SEEN] = 0
    mem[L.NEXT_TASK_ID] += 1
    mem[L.LIVE] += 1
    if unlikely(mem[L.TRACING] == L.TRACE_ALL) and need > 0:
        note_held(mem, ring)
    return slot


def outside_window(mem):
    """Say whether the next id would be too far above the oldest live task's: one ring, and a window."""
    if mem[L.ID_WINDOW] == 0 or mem[L.LIVE] == 0 or mem[L.STREAM] != 0:
        return False
    oldest = int(mem[fifo_entry(mem, 0, int(mem[L.RING_BLOCK + L.R_ALIVE])) + L.FIFO_SLOT])
    return mem[L.NEXT_TASK_ID] - mem[oldest + L.S_ID] >= mem[L.ID_WINDOW]


def make_fifo_room(mem, ring):
    """Drop released allocations from a full FIFO; double its capacity if most are live.

    A released allocation is freed with the live one before it (the oldest is always live), which takes
    over its end. Half of the capacity is free afterwards, so the cost per allocation is constant.
    """
    r = RING_BLOCK + ring * LINE
    last = int(mem[r + L.R_ALIVE])
    for position in range(last + 1, int(mem[r + L.R_NEXT])):
        entry = fifo_entry(mem, ring, position)
        end = int(mem[entry + L.FIFO_END])
        if end & 1 == 0:
            last += 1
            slot = int(mem[entry + L.FIFO_SLOT])
            mem[fifo_entry(mem, ring, last) + L.FIFO_SLOT] = slot
            mem[slot + L.S_RING] = ring | last << 3
        mem[fifo_entry(mem, ring, last) + L.FIFO_END] = end & ~1
    mem[r + L.R_NEXT] = last + 1
    alive, mask = int(mem[r + L.R_ALIVE]), int(mem[L.FIFO_MASK + ring])
    if 2 * (last + 1 - alive) > mask + 1:
        mem[L.FIFO_MASK + ring] = double(mem, int(mem[L.A_FIFO + ring]), alive, L.FIFO_WORDS, mask)


def double(mem, base, first, words, mask):
    """Double a circular array's capacity: move each entry to its new position; return the new mask."""
    wider = 2 * mask + 1
    for position in range(first, first + mask + 1):
        old = base + (position & mask) * words
        new = base + (position & wider) * words
        if new != old:
            for k in range(words):
                mem[new + k] = mem[old + k]
    return wider


def slab_before_cursor(mem, ring, nbytes):
    """Return the address of the last `nbytes` (aligned) allocated from a ring."""
    r = RING_BLOCK + ring * LINE
    return int(mem[r + L.R_BASE] + mem[r + L.R_CURSOR]) - nbytes


def fifo_entry(mem, ring, position):
    return int(mem[L.A_FIFO + ring]) + (position & int(mem[L.FIFO_MASK + ring])) * L.FIFO_WORDS


def release(mem, slot):
    """Release a slot (CONSUMED), and free the bytes of its ring's oldest run of released allocations."""
    ring = int(mem[slot + L.S_RING]) & 7
    position = int(mem[slot + L.S_RING]) >> 3
    r = RING_BLOCK + ring * LINE
    mem[fifo_entry(mem, ring, position) + L.FIFO_END] |= 1
    alive = int(mem[r + L.R_ALIVE])
    if position == alive:
        end = int(mem[r + L.R_NEXT])
        before = tail = int(mem[r + L.R_TAIL])
        while alive != end:
            word = int(mem[fifo_entry(mem, ring, alive) + L.FIFO_END])
            if word & 1 == 0:
                break
            tail = max(tail, word >> 1)
            alive += 1
        if alive == end:
            rewind(mem, ring)
        else:
            mem[r + L.R_ALIVE] = alive
            mem[r + L.R_TAIL] = tail
        if unlikely(mem[L.TRACING] == L.TRACE_ALL) and tail != before:
            note_held(mem, ring)
    mem[slot + L.S_LINK] = mem[L.FREE_SLOT]
    mem[L.FREE_SLOT] = slot
    mem[L.LIVE] -= 1


def rewind(mem, ring):
    """Start an empty ring over at offset 0, with a short FIFO."""
    r = RING_BLOCK + ring * LINE
    mem[r + L.R_TOP] = 0
    mem[r + L.R_TAIL] = 0
    mem[r + L.R_CURSOR] = 0
    mem[r + L.R_NEXT] = 0
    mem[r + L.R_ALIVE] = 0
    mem[L.FIFO_MASK + ring] = L.CIRCULAR_SMALLEST - 1


def reset_to_empty(mem):
    """Forget every task: ids start at 0 again, every ring is empty, every slot is free.

    Ordering the release of IDS_BEFORE comes after NEXT_TASK_ID: who adds the two counts no id twice
    """
    given = int(mem[L.NEXT_TASK_ID])
    mem[L.TRACED_FROM] += given
    mem[L.NEXT_TASK_ID] = 0
    store(mem, L.IDS_BEFORE, mem[L.IDS_BEFORE] + given)
    mem[L.LIVE] = 0
    mem[L.FREE_SLOT] = L.NONE
    mem[L.SLOTS_USED] = 0
    for ring in range(mem[L.RINGS]):
        rewind(mem, ring)
