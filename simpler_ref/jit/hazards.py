"""Hazard tracking: which tasks a new one has to wait for, from the bytes that each reads and writes.

    read after write    the reader needs the writer: if that fails, the reader fails
    write after read    order alone: the writer waits for the end of the reader
    write after write   order alone

What it is for. The TensorMap knows buffers by their first address, which is what tags of a run are
about. Calls are made with arrays: views of them, tiles, columns, parts that overlap. So what counts
here are bytes: of a contiguous tensor those from its lowest to its highest address, of any other
view those of its *layout* (`tensors`). A task that is submitted is compared with those before it
that have not ended, and what it does itself is noted for those after it.

An *access* is what a task does with one tensor. Accesses are found by place. A *grid* has those of
about the same shape; it divides memory into *cells* a bit larger than they are, so an access
reaches at most into the next cell of each direction. It is in the chain of the cell where it
begins. Memory is one row of bytes for contiguous tensors, and rows of a stride for tiles of arrays
with that stride, so that a tile meets only its neighbours. Of reads of the same bytes only the
newest is there; it leads to the others.

    grid ──┬─▶ reads, writes            all accesses of the grid, for a search of many cells
           └─▶ cell ─▶ reads, writes    those that begin in it
    bytes ───▶ cell ─▶ reads            the newest read of just these bytes ─▶ older ones

Who calls it. For a stream, `submit_call`: `collect_conflicts` finds the tasks to wait for, before
anything is claimed, and `note_accesses` notes what the call does, when each of them has an edge and
a reference. `forget_memory` and `forget_accesses` follow when memory is given back and when a stream
ends. For a run of a Worker with `track_reads`, `submit_task`: producers come from the TensorMap as
always, `collect_readers` finds those who still read what the task writes, and `note_reads` notes what
it reads; what it writes is not noted, since the TensorMap knows that. All of it is the Orch thread's,
so no word here needs an atomic. Of the Scheduler's words it reads the state of a task, with the
fan-in of a failed one.

How long an access lives. A write keeps a reference to its task, whose state can therefore be read.
If the task completed, the access is over. If it failed, the access stays until overwritten, because
readers of these bytes have to fail. A read keeps no reference: the id tells whether its task is still
in the slot. Accesses that are over go when a write meets them, and all at once when there are twice
as many accesses as the last time left (`drop_over`): a constant number of steps each, in the long
run.

What supersedes what. A write supersedes the accesses that it covers: its task waits for theirs, and
later ones wait for it. So each task, even one that fails without a start, has to end after all that
it waits for: while the fan-in of a failed task is not 0, whoever depends on it waits. For the same
reason a write does not wait for accesses older than the last write of the same bytes.

What must never happen. In a stream, two tasks that share a byte, of which one writes, and no path
from the first to the second. A task that fails because of one that it only had to wait for: a
conflict says `NEEDS` or `ORDER`, and the stronger counts. A refused call that has changed something:
a search leaves only `S_SEEN` and stamps behind, and whether there is room (`has_access_room`) is
asked before a slot is claimed. A reference that stays: what writes release comes back as a chain of
slots, which the caller reclaims.

Why not something else. A table by first address, as the TensorMap, does not see overlaps. A sorted
list or a tree of spans does, but a tile of a matrix is as many spans as it has rows; and every
insertion would cost a logarithm, where a cell costs a hash. Bytes or pages with an owner each would
cost as much as the data. The rules are CALL-HAZARD and ORCH-READS.

Rule     CALL-HAZARD-1, CALL-HAZARD-4, ORCH-READS-1, SEE-NOTE-2
"""

from __future__ import annotations

from . import layout as L
from .atomics import load, stay_aside
from .journal import note_edge
from .slots import release_ref
from .tensormap import find
from .tensors import (
    covers,
    is_child_memory,
    nbytes_of,
    overlap,
    reads,
    tag_of,
    worker_of,
    writes,
)

TENSOR_WORDS = L.TENSOR_WORDS
SMALLEST = 64
"""Bytes of the smallest cells of contiguous memory."""
COARSEST = 62
"""Shift of a grid with one cell for all of memory."""


# ---------------------------------------------------------------- what a tensor stands for
def is_tracked(words, t):
    """Say whether accesses of a tensor are tracked: it has an address, and its tag is not NO_DEP."""
    return words[t + L.TENSOR_DATA] != 0 and tag_of(words, t) != L.NO_DEP


def extent_of(mem, words, t):
    """Return lowest address, address past the highest, and layout of a tensor; NONE: contiguous."""
    data = int(words[t + L.TENSOR_DATA])
    if int(words[t + L.TENSOR_KIND]) & L.TENSOR_DTYPE_MASK != L.TENSOR_DESCRIBED:
        return data, data + nbytes_of(words, t), L.NONE
    layout = int(mem[L.A_LAYOUTS]) + (int(words[t + L.TENSOR_SHAPE]) & L.LOW_HALF)
    low = data - int(mem[layout + L.LAYOUT_BELOW])
    extent = int(mem[layout + L.LAYOUT_EXTENT])
    if mem[layout + L.LAYOUT_RUN] == extent:
        return low, low + extent, L.NONE
    return low, low + extent, layout


# ---------------------------------------------------------------- what has become of a task
def has_ended(mem, access):
    """Say whether a later write need not wait for the task of an access.

    Ordering the fan-in of a failed task is read after its state, and never rises again
    """
    if is_over(mem, access):
        return True
    slot = int(mem[access + L.ACCESS_SLOT])
    return load(mem, slot + L.S_STATE) == L.FAILED and mem[slot + L.S_FANIN] == 0


def is_over(mem, access):
    """Say whether no task has to wait for an access again: the reader ended, or the writer succeeded."""
    slot = int(mem[access + L.ACCESS_SLOT])
    state = load(mem, slot + L.S_STATE)
    if mem[access + L.ACCESS_WRITES] == 1:
        return state == L.COMPLETED
    if mem[slot + L.S_ID] != mem[access + L.ACCESS_ID]:
        return True
    if state == L.FAILED and mem[L.STREAM] == 0:  # it may stand for others, see `note_reads`
        return mem[slot + L.S_FANIN] == 0
    return state != L.PENDING and state != L.READY and state != L.RUNNING


# ---------------------------------------------------------------- grids and cells
def shape_in(mem, low, high, layout, stride):
    """Return how many rows of `stride` bytes an access touches, and how many bytes from its first on."""
    if stride == 1:
        return high - low, 1
    if layout != L.NONE and mem[layout + L.LAYOUT_STRIDE] == stride:
        return int(mem[layout + L.LAYOUT_ROWS]), int(mem[layout + L.LAYOUT_WIDTH])
    if high - low <= stride:
        return 1, high - low
    return (high - low) // stride + 2, stride


def logarithm(value):
    """Return the smallest number whose power of two is at least `value`."""
    found = 0
    while found < COARSEST and 1 << found < value:
        found += 1
    return found


def grid_of(mem, low, high, layout):
    """Return the grid for accesses of this shape, a new one if there is none.

    Its cells have less than twice the rows and columns of the access, but not less than 64 bytes.
    """
    stride = 1 if layout == L.NONE else int(mem[layout + L.LAYOUT_STRIDE])
    rows, width = shape_in(mem, low, high, layout, stride)
    if stride == 1:
        rows = max(rows, SMALLEST)
    unused = L.NONE
    grid = int(mem[L.A_GRIDS])
    for _ in range(mem[L.GRIDS_USED]):
        if mem[grid + L.GRID_STRIDE] == stride:
            shifts = int(mem[grid + L.GRID_SHIFTS])
            most_rows, most_columns = 1 << (shifts & L.LOW_HALF), 1 << (shifts >> L.HALF)
            if rows <= most_rows < 2 * rows and width <= most_columns < 2 * width:
                return grid
        if unused == L.NONE and mem[grid + L.GRID_COUNT] + mem[grid + L.GRID_COUNT + 1] == 0:
            unused = grid
        grid += L.GRID_WORDS
    last = int(mem[L.A_GRIDS]) + (L.MAX_GRIDS - 1) * L.GRID_WORDS
    if unused == L.NONE and grid > last:
        return last
    if unused == L.NONE:
        mem[L.GRIDS_USED] += 1
        unused = grid
    mem[unused + L.GRID_STRIDE] = stride
    mem[unused + L.GRID_SHIFTS] = logarithm(rows) | logarithm(width) << L.HALF
    mem[unused + L.GRID_ORIGIN] = mem[unused + L.GRID_LOW] = low
    mem[unused + L.GRID_HIGH] = high
    if unused == last:  # it takes all that the others do not
        mem[unused + L.GRID_STRIDE] = 1
        mem[unused + L.GRID_SHIFTS] = COARSEST
    return unused


def chains_at(mem, x):
    """Return the offset of the chains of a key; keys may share them."""
    return int(mem[L.A_CELLS]) + L.CELL_WORDS * ((x ^ x >> 17) & int(mem[L.CELL_MASK]))


def cell_at(mem, grid, row, column):
    """Return the offset of the chains of a cell; cells may share them."""
    x = (row & 0x3FFFFFFF) * 0x9E3779B1 + (column & 0xFFFFF) * 0x85EBCA6B + grid * 0xC2B2
    return chains_at(mem, x)


# ---------------------------------------------------------------- searches
def find_overlaps(mem, low, high, layout, first):
    """Find the accesses that share a byte with a tensor, or if `first` is 1, writes; return how many.

    They are at A_OVERLAPS, each once; of reads of the same bytes the newest. The answer to the last
    search is still there unless it could have changed since: a task that is noted asks what it asked
    when its conflicts were collected.
    """
    if (
        mem[L.FOUND_LOW] == low
        and mem[L.FOUND_HIGH] == high
        and mem[L.FOUND_LAYOUT] == layout
        and mem[L.FOUND_KINDS] == 2 - first
    ):
        return int(mem[L.FOUND_COUNT])
    mem[L.OVERLAP_STAMP] += 1
    found = 0
    if low >= high:
        return found
    grid = int(mem[L.A_GRIDS])
    for _ in range(mem[L.GRIDS_USED]):
        count = int(mem[grid + L.GRID_COUNT + 1])
        if first == 0:
            count += int(mem[grid + L.GRID_COUNT])
        if count != 0 and low < mem[grid + L.GRID_HIGH] and mem[grid + L.GRID_LOW] < high:
            found = search_grid(mem, grid, count, low, high, layout, first, found)
        grid += L.GRID_WORDS
    mem[L.FOUND_LOW] = low
    mem[L.FOUND_HIGH] = high
    mem[L.FOUND_LAYOUT] = layout
    mem[L.FOUND_KINDS] = 2 - first
    mem[L.FOUND_COUNT] = found
    return found


def search_grid(mem, grid, count, low, high, layout, first_kind, found):
    """Go through the cells from which accesses can reach a tensor, or all accesses if they are fewer."""
    stride, shifts = int(mem[grid + L.GRID_STRIDE]), int(mem[grid + L.GRID_SHIFTS])
    row_shift, column_shift = shifts & L.LOW_HALF, shifts >> L.HALF
    rows, width = shape_in(mem, low, high, layout, stride)
    place = low - int(mem[grid + L.GRID_ORIGIN])
    row, column = place // stride, place % stride
    last_row = row + rows - 1
    row += 1 - (1 << row_shift)
    last_column = column + width - 1
    column += 1 - (1 << column_shift)
    in_a_row = (stride - 1 >> column_shift) + 1
    columns = (last_column >> column_shift) - (column >> column_shift) + 1
    if column < 0 or last_column >= stride:  # around the end of a row
        row -= 1
        last_row += 1
        columns = in_a_row
        if last_column - column + (1 << column_shift) < stride:
            first, last = column % stride >> column_shift, last_column % stride >> column_shift
            columns = (last - first) % in_a_row + 1
        column %= stride
    row >>= row_shift
    last_row >>= row_shift
    column >>= column_shift
    if (last_row - row + 1) * columns >= count:
        for kind in range(first_kind, 2):
            first = int(mem[grid + L.GRID_ACCESSES + kind])
            found = search_chain(mem, first, L.ACCESS_AFTER, low, high, layout, found)
        return found
    while row <= last_row:
        for k in range(columns):
            at = column + k
            if at >= in_a_row:
                at -= in_a_row
            cell = cell_at(mem, grid, row, at)
            for kind in range(first_kind, 2):
                if mem[cell + kind] != L.NONE:
                    first = int(mem[cell + kind])
                    found = search_chain(mem, first, L.ACCESS_NEXT, low, high, layout, found)
        row += 1
    return found


def search_chain(mem, access, link, low, high, layout, found):
    """Note the accesses of a chain that share a byte with a tensor; return how many are found so far."""
    stamp = int(mem[L.OVERLAP_STAMP])
    while access != L.NONE:
        other_low, other_high = int(mem[access + L.ACCESS_LOW]), int(mem[access + L.ACCESS_HIGH])
        if other_low < high and low < other_high:
            other = int(mem[access + L.ACCESS_LAYOUT])
            if (
                layout == other == L.NONE
                or overlap(mem, low, high, layout, other_low, other_high, other)
            ) and mem[access + L.ACCESS_SEEN] != stamp:
                mem[access + L.ACCESS_SEEN] = stamp
                mem[int(mem[L.A_OVERLAPS]) + found] = access
                found += 1
        access = int(mem[access + link])
    return found


def is_just(mem, access, low, high, layout):
    """Say whether an access is of just these bytes."""
    return (
        mem[access + L.ACCESS_LOW] == low
        and mem[access + L.ACCESS_HIGH] == high
        and mem[access + L.ACCESS_LAYOUT] == layout
    )


def find_write(mem, found, low, high, layout):
    for k in range(found):
        access = int(mem[int(mem[L.A_OVERLAPS]) + k])
        if mem[access + L.ACCESS_WRITES] == 1 and is_just(mem, access, low, high, layout):
            return access
    return L.NONE


def readers_at(mem, low, high, layout):
    """Return the head of a chain of reads, which has those of just these bytes."""
    return chains_at(mem, (3 * low + high + layout & 0x3FFFFFFF) * 0x9E3779B1) + L.CELL_READS


def find_reads(mem, low, high, layout):
    """Return the newest access that reads just these bytes, or NONE."""
    access = int(mem[readers_at(mem, low, high, layout)])
    while access != L.NONE and not is_just(mem, access, low, high, layout):
        access = int(mem[access + L.ACCESS_SAME])
    return access


def collect_conflicts(mem, words, tensors):
    """Find the tasks that a new one with these tensors has to wait for, each once; return how many.

    A task that ends right after this call may be in the answer. Its slot must not be reclaimed before the
    caller has tried to reference it.
    """
    conflicts = 0
    for kind in range(2):  # first the tensors that are read: those written are searched for again
        for i in range(tensors):
            t = i * TENSOR_WORDS
            if int(writes(tag_of(words, t))) == kind and is_tracked(words, t):
                conflicts = collect_of(mem, words, t, kind, conflicts)
    mem[L.CONFLICT_STAMP] -= conflicts
    return conflicts


def collect_of(mem, words, t, kind, conflicts):
    """Add the tasks that one tensor makes a new one wait for; return how many there are now."""
    low, high, layout = extent_of(mem, words, t)
    needs = reads(tag_of(words, t))
    found = find_overlaps(mem, low, high, layout, 1 - kind)
    last = find_write(mem, found, low, high, layout) if kind == 1 else L.NONE
    since = mem[last + L.ACCESS_ID] if last != L.NONE else 0
    for k in range(found):
        access = newest = int(mem[int(mem[L.A_OVERLAPS]) + k])
        if needs and mem[access + L.ACCESS_WRITES] == 1:
            if not is_over(mem, access):
                conflicts = add_conflict(mem, access, newest, L.NEEDS, conflicts)
            access = L.NONE
        while access != L.NONE and mem[access + L.ACCESS_ID] >= since:
            if not has_ended(mem, access):
                conflicts = add_conflict(mem, access, newest, L.ORDER, conflicts)
            access = int(mem[access + L.ACCESS_OLDER])
    return conflicts


def add_conflict(mem, access, newest, kind, conflicts):
    """Note the task of an access, or that it is needed, if this search has it already; return how many.

    `newest` is the access of the same bytes that has these: an older one says nothing of them. A slot
    that this search has found says so: conflict `i` says `CONFLICT_STAMP` − 1 − `i`.
    """
    slot = int(mem[access + L.ACCESS_SLOT])
    stamp = int(mem[L.CONFLICT_STAMP])
    index = stamp - 1 - int(mem[slot + L.S_SEEN])
    if index < 0 or index >= conflicts:
        index = conflicts
        conflicts += 1
        mem[slot + L.S_SEEN] = stamp - 1 - index
        mem[conflict_at(mem, index) + L.CONFLICT_KIND] = -1
    conflict = conflict_at(mem, index)
    if kind > mem[conflict + L.CONFLICT_KIND]:
        mem[conflict + L.CONFLICT_SLOT] = slot
        mem[conflict + L.CONFLICT_KIND] = kind
        mem[conflict + L.CONFLICT_ACCESS] = newest
    return conflicts


def conflict_at(mem, index):
    return int(mem[L.A_CONFLICTS]) + index * L.CONFLICT_WORDS


def owed_to(mem, words, tensors, conflict):
    """Return the tensor that a conflict is owed to: of a need the first that reads, else that writes."""
    access = int(mem[conflict + L.CONFLICT_ACCESS])
    other_low, other_high = int(mem[access + L.ACCESS_LOW]), int(mem[access + L.ACCESS_HIGH])
    other = int(mem[access + L.ACCESS_LAYOUT])
    for i in range(tensors):
        t = i * TENSOR_WORDS
        tag = tag_of(words, t)
        fits = reads(tag) if mem[conflict + L.CONFLICT_KIND] == L.NEEDS else writes(tag)
        if fits and is_tracked(words, t):
            low, high, layout = extent_of(mem, words, t)
            if overlap(mem, low, high, layout, other_low, other_high, other):
                return i
    return L.NO_TENSOR


def note_conflict(mem, slot, words, conflict):
    """Note that a task, which is being submitted, waits for another: its tensor, and where both begin."""
    stay_aside()
    tensors = int(mem[slot + L.S_COUNTS]) & L.LOW_HALF
    tensor = owed_to(mem, words, tensors, conflict)
    tag, address = 0, 0
    if tensor != L.NO_TENSOR:
        t = tensor * TENSOR_WORDS
        tag = tag_of(words, t)
        address = extent_of(mem, words, t)[0]
        address = max(address, int(mem[int(mem[conflict + L.CONFLICT_ACCESS]) + L.ACCESS_LOW]))
    kind = L.OWED_DATA if mem[conflict + L.CONFLICT_KIND] == L.NEEDS else L.OWED_ORDER
    note_edge(mem, slot, int(mem[conflict + L.CONFLICT_SLOT]), tensor, tag, kind, address)


# ---------------------------------------------------------------- changes
def has_access_room(mem, tensors):
    """Say whether the accesses of a task with so many tensors fit; `drop_over` may make room."""
    room = int(mem[L.A_ACCESSES_END] - mem[L.A_ACCESSES]) // L.ACCESS_WORDS
    return mem[L.ACCESS_COUNT] + tensors <= room


def note_accesses(mem, slot, words, tensors):
    """Note what a task does, which is in its slot but not yet submitted; drop what it supersedes.

    The caller has referenced the task's conflicts, and `has_access_room` has said that there is room. A
    write keeps a reference on the slot.

    Returns  the chain, through S_LINK, of slots that the caller has to reclaim, or NONE
    """
    consumed = L.NONE
    if mem[L.ACCESS_COUNT] + tensors > mem[L.SWEEP_AT]:
        consumed = drop_over(mem, consumed)
    for kind in (1, 0):
        for k in range(tensors):  # the last tensor that is written was searched for last
            t = (tensors - 1 - k) * TENSOR_WORDS
            if int(writes(tag_of(words, t))) == kind and is_tracked(words, t):
                low, high, layout = extent_of(mem, words, t)
                if low < high and kind == 1:
                    consumed = note_write(mem, slot, low, high, layout, consumed)
                elif low < high:
                    note_read(mem, slot, low, high, layout)
    return consumed


def is_covered(mem, access, low, high, layout):
    other_low, other_high = int(mem[access + L.ACCESS_LOW]), int(mem[access + L.ACCESS_HIGH])
    return covers(mem, low, high, layout, other_low, other_high, int(mem[access + L.ACCESS_LAYOUT]))


def note_write(mem, slot, low, high, layout, consumed):
    """Note a write, in place of the last one of the same bytes; drop what it covers, or is over."""
    found = find_overlaps(mem, low, high, layout, 0)
    last = find_write(mem, found, low, high, layout)
    since = mem[last + L.ACCESS_ID] if last != L.NONE else 0
    for k in range(found):
        access = int(mem[int(mem[L.A_OVERLAPS]) + k])
        if access != last and is_covered(mem, access, low, high, layout):
            consumed = drop_all(mem, access, consumed)
        elif access != last:
            consumed = drop_ended(mem, access, since, consumed)
    if last == L.NONE:
        last = insert(mem, low, high, layout, 1)
    else:
        consumed = release_write(mem, last, consumed)
    mem[slot + L.S_FANOUT] += 1
    mem[last + L.ACCESS_SLOT] = slot
    mem[last + L.ACCESS_ID] = mem[slot + L.S_ID]
    return consumed


def note_read(mem, slot, low, high, layout):
    """Note a read, before the older ones of the same bytes."""
    access = find_reads(mem, low, high, layout)
    if access == L.NONE:
        access = insert(mem, low, high, layout, 0)
    elif not is_over(mem, access):  # this task's own is over: it has no state yet
        older = take(mem)
        move(mem, access, older)
        mem[access + L.ACCESS_OLDER] = older
    mem[access + L.ACCESS_SLOT] = slot
    mem[access + L.ACCESS_ID] = mem[slot + L.S_ID]


def move(mem, access, to):
    """Give a record the task of another access, and what is older."""
    mem[to + L.ACCESS_SLOT] = mem[access + L.ACCESS_SLOT]
    mem[to + L.ACCESS_ID] = mem[access + L.ACCESS_ID]
    mem[to + L.ACCESS_OLDER] = mem[access + L.ACCESS_OLDER]


def take(mem):
    mem[L.ACCESS_COUNT] += 1
    access = int(mem[L.ACCESS_FREE])
    if access != L.NONE:
        mem[L.ACCESS_FREE] = mem[access + L.ACCESS_NEXT]
        return access
    access = int(mem[L.ACCESSES_USED])
    mem[access + L.ACCESS_WRITES] = -1
    mem[L.ACCESSES_USED] = access + L.ACCESS_WORDS
    return access


def give_back(mem, access):
    mem[access + L.ACCESS_WRITES] = -1
    mem[access + L.ACCESS_NEXT] = mem[L.ACCESS_FREE]
    mem[L.ACCESS_FREE] = access
    mem[L.ACCESS_COUNT] -= 1


def insert(mem, low, high, layout, kind):
    """Return a new access, in its grid and its cell, still without a task; `kind` is 1 for a write."""
    if mem[L.ACCESS_COUNT] > mem[L.CELL_MASK]:
        add_cells(mem)
    access = take(mem)
    grid = grid_of(mem, low, high, layout)
    mem[L.FOUND_KINDS] = 0
    mem[access + L.ACCESS_WRITES] = kind
    mem[access + L.ACCESS_LOW] = low
    mem[access + L.ACCESS_HIGH] = high
    mem[access + L.ACCESS_LAYOUT] = layout
    mem[access + L.ACCESS_OLDER] = L.NONE
    mem[access + L.ACCESS_GRID] = grid
    mem[grid + L.GRID_COUNT + kind] += 1
    mem[grid + L.GRID_LOW] = min(low, mem[grid + L.GRID_LOW])
    mem[grid + L.GRID_HIGH] = max(high, mem[grid + L.GRID_HIGH])
    link(mem, access, grid + L.GRID_ACCESSES + kind, L.ACCESS_AFTER, L.ACCESS_BEFORE)
    link_in_cells(mem, access)
    return access


def link_in_cells(mem, access):
    """Put an access into the chain of its cell, and a read into that of its bytes."""
    grid, kind = int(mem[access + L.ACCESS_GRID]), int(mem[access + L.ACCESS_WRITES])
    stride, shifts = int(mem[grid + L.GRID_STRIDE]), int(mem[grid + L.GRID_SHIFTS])
    place = int(mem[access + L.ACCESS_LOW]) - int(mem[grid + L.GRID_ORIGIN])
    row, column = place // stride >> (shifts & L.LOW_HALF), place % stride >> (shifts >> L.HALF)
    head = cell_at(mem, grid, row, column) + kind
    link(mem, access, head, L.ACCESS_NEXT, L.ACCESS_BACK)
    if kind == 0:
        low, high = int(mem[access + L.ACCESS_LOW]), int(mem[access + L.ACCESS_HIGH])
        head = readers_at(mem, low, high, int(mem[access + L.ACCESS_LAYOUT]))
        link(mem, access, head, L.ACCESS_SAME, L.ACCESS_SAME_BACK)


def link(mem, access, head, forth, back):
    """Put an access at the beginning of a chain; `back` is the word that says what leads to it."""
    after = int(mem[head])
    mem[access + forth] = after
    mem[access + back] = head
    mem[head] = access
    if after != L.NONE:
        mem[after + back] = access + forth


def unlink(mem, access, forth, back):
    after = int(mem[access + forth])
    before = int(mem[access + back])
    mem[before] = after
    if after != L.NONE:
        mem[after + back] = before


def add_cells(mem):
    """Double the cells, so that their chains stay short; there are at most as many as accesses."""
    if mem[L.CELL_MASK] + 1 >= (mem[L.A_ACCESSES_END] - mem[L.A_ACCESSES]) // L.ACCESS_WORDS:
        return
    cells = int(mem[L.A_CELLS])
    for head in range(cells, cells + L.CELL_WORDS * (int(mem[L.CELL_MASK]) + 1)):
        mem[head] = L.NONE
    mem[L.CELL_MASK] = 2 * mem[L.CELL_MASK] + 1
    for access in range(int(mem[L.A_ACCESSES]), int(mem[L.ACCESSES_USED]), L.ACCESS_WORDS):
        if mem[access + L.ACCESS_WRITES] >= 0:
            link_in_cells(mem, access)


def drop(mem, access, consumed):
    """Drop a write, or the newest of the reads of the same bytes; the next takes its place.

    Returns  the chain of slots to reclaim, with that of the access if it was the last reference
    """
    older, grid = int(mem[access + L.ACCESS_OLDER]), int(mem[access + L.ACCESS_GRID])
    if older != L.NONE:
        move(mem, older, access)
        give_back(mem, older)
        return consumed
    kind = int(mem[access + L.ACCESS_WRITES])
    unlink(mem, access, L.ACCESS_NEXT, L.ACCESS_BACK)
    unlink(mem, access, L.ACCESS_AFTER, L.ACCESS_BEFORE)
    if kind == 0:
        unlink(mem, access, L.ACCESS_SAME, L.ACCESS_SAME_BACK)
    mem[grid + L.GRID_COUNT + kind] -= 1
    mem[L.FOUND_KINDS] = 0
    give_back(mem, access)
    return release_write(mem, access, consumed) if kind == 1 else consumed


def release_write(mem, access, consumed):
    """Release the reference of a write; return the chain of slots to reclaim, maybe with one more."""
    slot = int(mem[access + L.ACCESS_SLOT])
    if not release_ref(mem, slot):
        return consumed
    mem[slot + L.S_LINK] = consumed
    return slot


def drop_all(mem, access, consumed):
    while mem[access + L.ACCESS_OLDER] != L.NONE:
        consumed = drop(mem, access, consumed)
    return drop(mem, access, consumed)


def drop_ended(mem, access, since, consumed):
    """Drop those of an access and of the older ones of the same bytes, back to an id, that are over."""
    last, older = access, int(mem[access + L.ACCESS_OLDER])
    while older != L.NONE and mem[older + L.ACCESS_ID] >= since:
        if is_over(mem, older):
            mem[last + L.ACCESS_OLDER] = mem[older + L.ACCESS_OLDER]
            give_back(mem, older)
        else:
            last = older
        older = int(mem[last + L.ACCESS_OLDER])
    return drop(mem, access, consumed) if is_over(mem, access) else consumed


def drop_over(mem, consumed):
    """Drop all accesses that are over: a constant number of steps per access, in the long run.

    Returns  the chain of slots to reclaim, which begins with the new ones and goes on with `consumed`
    """
    for access in range(int(mem[L.A_ACCESSES]), int(mem[L.ACCESSES_USED]), L.ACCESS_WORDS):
        if mem[access + L.ACCESS_WRITES] >= 0:
            consumed = drop_ended(mem, access, 0, consumed)
    mem[L.SWEEP_AT] = max(L.SWEEP_SMALLEST, 2 * mem[L.ACCESS_COUNT])
    return consumed


def forget_range(mem, low, high):
    """Drop the accesses inside of memory that is given back; return the chain of slots to reclaim."""
    consumed = L.NONE
    for k in range(find_overlaps(mem, low, high, L.NONE, 0)):
        access = int(mem[int(mem[L.A_OVERLAPS]) + k])
        if low <= mem[access + L.ACCESS_LOW] and mem[access + L.ACCESS_HIGH] <= high:
            consumed = drop_all(mem, access, consumed)
    return consumed


def forget_all(mem):
    """Drop all accesses, at the end of a stream; return the chain of slots to reclaim."""
    consumed = L.NONE
    for access in range(int(mem[L.A_ACCESSES]), int(mem[L.ACCESSES_USED]), L.ACCESS_WORDS):
        if mem[access + L.ACCESS_WRITES] >= 0:
            consumed = drop_all(mem, access, consumed)
    mem[L.ACCESSES_USED] = mem[L.A_ACCESSES]
    mem[L.ACCESS_FREE] = L.NONE
    mem[L.GRIDS_USED] = 0
    mem[L.CELL_MASK] = L.ACCESSES_SMALLEST - 1
    mem[L.SWEEP_AT] = L.SWEEP_SMALLEST
    return consumed


# ---------------------------------------------------------------- runs that track reads
def is_of_host(words, counts, members, callable_word, i):
    """Say whether accesses of a task's tensor `i` are tracked in a run: it is in the host's memory.

    Memory of no worker in particular counts as the host's, as in the TensorMap.
    """
    t = i * TENSOR_WORDS
    if not is_tracked(words, t):
        return False
    if not is_child_memory(words, t):
        return True
    member = (counts & L.LOW_HALF) * TENSOR_WORDS + (counts >> L.HALF) * L.SCALAR_WORDS
    return worker_of(words, member, members, callable_word, i) < 0


def make_access_room(mem, tensors):
    """Drop accesses that are over if there are many; say whether those of so many tensors fit."""
    if mem[L.ACCESS_COUNT] + tensors > mem[L.SWEEP_AT] or not has_access_room(mem, tensors):
        drop_over(mem, L.NONE)
    return has_access_room(mem, tensors)


def collect_readers(mem, words, counts, members, callable_word):
    """Find the tasks of a run that read what a new one with these arguments writes, as conflicts."""
    readers = 0
    for i in range(counts & L.LOW_HALF):
        t = i * TENSOR_WORDS
        if writes(tag_of(words, t)) and is_of_host(words, counts, members, callable_word, i):
            readers = collect_of(mem, words, t, 1, readers)
    mem[L.CONFLICT_STAMP] -= readers
    return readers


def note_reads(mem, slot, words):
    """Note what a task of a run reads, which is in its slot but not yet submitted, and no producer yet.

    What it writes is not noted: later writers do not wait for it. So a write supersedes no read. A read
    supersedes others if its task waits for theirs, maybe through tasks in between. So there are few of
    them, even if a buffer is used again and again:

        the task updates all bytes of theirs              it waits for them itself
        the producer of the same bytes came after them    it waits for that, which has waited for them

    `make_access_room` has found room.
    """
    counts, members = int(mem[slot + L.S_COUNTS]), int(mem[slot + L.S_MEMBERS])
    word, tensors = int(mem[slot + L.S_CALLABLE]), counts & L.LOW_HALF
    for kind in (1, 0):
        for k in range(tensors):  # the last tensor that is written was searched for last
            i = tensors - 1 - k
            t = i * TENSOR_WORDS
            tag = tag_of(words, t)
            if (
                int(writes(tag)) == kind
                and reads(tag)
                and is_of_host(words, counts, members, word, i)
            ):
                low, high, layout = extent_of(mem, words, t)
                if low < high and kind == 1:
                    drop_covered(mem, low, high, layout)
                elif low < high:
                    drop_before(mem, int(words[t + L.TENSOR_DATA]), low, high, layout)
                if low < high:
                    note_read(mem, slot, low, high, layout)


def drop_covered(mem, low, high, layout):
    for k in range(find_overlaps(mem, low, high, layout, 0)):
        access = int(mem[int(mem[L.A_OVERLAPS]) + k])
        if is_covered(mem, access, low, high, layout):
            drop_all(mem, access, L.NONE)


def drop_before(mem, data, low, high, layout):
    """Drop the reads of just these bytes up to that of the producer of the buffer at `data`.

    A producer that was given this memory has waited for nobody.
    """
    entry = find(mem, data, -1)
    producer = int(mem[entry + L.E_SLOT])
    if producer != L.NONE and producer != mem[entry + L.E_SLAB]:
        access = find_reads(mem, low, high, layout)
        if access != L.NONE and mem[access + L.ACCESS_ID] <= mem[producer + L.S_ID]:
            drop_all(mem, access, L.NONE)
