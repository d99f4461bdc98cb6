"""TensorMap: (address, owner) → the current producer of the buffer at that address.

Where a slab of a ring begins, the entry names a second task: the one that owns the slab. A task that
reads or updates the buffer must keep both, the producer for its result, the owner for the memory. If the
producer is reclaimed first, the owner replaces it.

Open addressing with linear probing; removing an entry shifts its followers back, so the table needs no
tombstones. It doubles into its other area when half full and is small again after a run. The Orch thread
owns it.

Rule     ORCH-ALLOC-7, ORCH-MAP-1, ORCH-MAP-3, ORCH-MAP-5, ORCH-MAP-6, ORCH-MAP-8, ORCH-MAP-9
"""

from __future__ import annotations

from . import layout as L

ENTRY_WORDS = L.ENTRY_WORDS


def home(data, owner, mask):
    """Return the preferred index of a key: multiplicative hashing, all bits of the address count."""
    x = (data ^ data >> 29) + owner * 40503
    x = (x * 0x9E3779B1) & 0xFFFFFFFFFFFF
    return (x ^ x >> 23) & mask


def find(mem, data, owner):
    """Return the entry of the key, or the empty one where it belongs."""
    base = int(mem[L.MAP_BASE])
    mask = int(mem[L.MAP_MASK])
    index = home(data, owner, mask)
    while True:
        entry = base + index * ENTRY_WORDS
        if mem[entry + L.E_SLOT] == L.NONE:
            return entry
        if mem[entry + L.E_DATA] == data and mem[entry + L.E_OWNER] == owner:
            return entry
        index = (index + 1) & mask


def lookup(mem, data, owner):
    return int(mem[find(mem, data, owner) + L.E_SLOT])


def has_room(mem, keys):
    """Say whether `keys` more entries leave the table at most half full; grow it if necessary."""
    while 2 * (mem[L.MAP_COUNT] + keys) > mem[L.MAP_MASK] + 1:
        if not grow(mem):
            return False
    return True


def grow(mem):
    """Move every entry into a table of twice the size; False if the area is too small."""
    old_base = int(mem[L.MAP_BASE])
    old_mask = int(mem[L.MAP_MASK])
    if 2 * (old_mask + 1) > mem[L.MAP_AREA]:
        return False
    other = L.A_MAP + 1 if old_base == mem[L.A_MAP] else L.A_MAP
    mem[L.MAP_BASE] = mem[other]
    mem[L.MAP_MASK] = 2 * old_mask + 1
    mem[L.MAP_COUNT] = 0
    for index in range(old_mask + 1):
        entry = old_base + index * ENTRY_WORDS
        slot = int(mem[entry + L.E_SLOT])
        if slot != L.NONE:
            data, owner = int(mem[entry + L.E_DATA]), int(mem[entry + L.E_OWNER])
            insert(mem, data, owner, slot)
            mem[find(mem, data, owner) + L.E_SLAB] = mem[entry + L.E_SLAB]
            mem[entry + L.E_SLOT] = L.NONE
    return True


def insert(mem, data, owner, slot):
    """Make `slot` the producer of a buffer; the previous one keeps the consumers it has."""
    entry = find(mem, data, owner)
    if mem[entry + L.E_SLOT] == L.NONE:
        mem[entry + L.E_DATA] = data
        mem[entry + L.E_OWNER] = owner
        mem[entry + L.E_SLAB] = L.NONE
        mem[L.MAP_COUNT] += 1
    mem[entry + L.E_SLOT] = slot


def insert_slab(mem, data, owner, slot):
    """Make `slot` the producer and the owner of a slab it was just given."""
    insert(mem, data, owner, slot)
    mem[find(mem, data, owner) + L.E_SLAB] = slot


def erase(mem, data, owner, slot):
    """Remove a task from a key's entry: a newer producer stays (D5); say whether an entry was removed.

    If the task was the producer, the live owner of the slab replaces it; without one the entry is
    removed.
    """
    entry = find(mem, data, owner)
    if mem[entry + L.E_SLOT] == L.NONE:
        return False
    if mem[entry + L.E_SLAB] == slot:
        mem[entry + L.E_SLAB] = L.NONE
    if mem[entry + L.E_SLOT] != slot:
        return False
    if mem[entry + L.E_SLAB] != L.NONE:
        mem[entry + L.E_SLOT] = mem[entry + L.E_SLAB]
        return False
    base = int(mem[L.MAP_BASE])
    mask = int(mem[L.MAP_MASK])
    hole = (entry - base) // ENTRY_WORDS
    index = hole
    while True:
        index = (index + 1) & mask
        mover = base + index * ENTRY_WORDS
        if mem[mover + L.E_SLOT] == L.NONE:
            break
        wanted = home(int(mem[mover + L.E_DATA]), int(mem[mover + L.E_OWNER]), mask)
        if (index - wanted) & mask >= (index - hole) & mask:  # it may move to the hole
            target = base + hole * ENTRY_WORDS
            mem[target + L.E_DATA] = mem[mover + L.E_DATA]
            mem[target + L.E_OWNER] = mem[mover + L.E_OWNER]
            mem[target + L.E_SLOT] = mem[mover + L.E_SLOT]
            mem[target + L.E_SLAB] = mem[mover + L.E_SLAB]
            hole = index
    mem[base + hole * ENTRY_WORDS + L.E_SLOT] = L.NONE
    mem[L.MAP_COUNT] -= 1
    return True


def reset(mem):
    """Make an empty table small again, so that it stays in the cache."""
    if mem[L.MAP_COUNT] == 0:
        mem[L.MAP_BASE] = mem[L.A_MAP]
        mem[L.MAP_MASK] = L.MAP_SMALLEST - 1
