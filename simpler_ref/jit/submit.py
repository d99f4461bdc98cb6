"""The seven steps of submit, alloc, and the scopes: everything the Orch thread does to the graph.

    1 claim a slot and the slabs of its outputs      5 register with the open scope
    2 store the arguments                            6 push the wiring entry
    3 walk the tags: producers in, outputs out       7 return the slot
    4 record the producers as fan-in

What it is for. An orchestration function names tensors and says by a tag what a task does with
each. From the tags alone follows what the task waits for: a tensor that it reads is looked up in
the TensorMap, which knows the last task that writes each buffer; a tensor that it writes is entered
there. Nothing is inferred later, and nothing is remembered of tasks that were reclaimed: what a
task waits for is settled when it is submitted, by comparing addresses.

Two halves of a graph. Submit works on the near half: slots, TensorMap, scopes, rings. It never
looks at a worker, and of the tasks that exist it changes only those that it reclaims for room, from
CONSUMED to FREE. The far half, who is ready and who runs where, is the Scheduler's (`graph`,
`dispatch`, `collect`), which may be another thread, or this one a moment later. Between them stands
one queue: step 6 pushes the slot, `wire` pops it and connects it to the consumers' chains of its
producers. Only there is it decided whether a producer still counts, since only the Scheduler knows
which tasks have ended.

What keeps a producer. Between step 3 and `wire` a producer may end, its scope may end, and its slot
and slab would be given to another task. So step 3 takes a reference on each producer before it
notes the edge (`acquire_ref`, which a CONSUMED slot refuses). Whoever reads memory that the runtime
has provided also refers to the task that owns the slab: the last writer of a buffer need not be the
one that was given it. Such an edge names no consumer; `wire` does not count it.

    a scope            one reference on each task submitted in it, until it closes
    a consumer         one on each producer, and on each owner of a slab, until it has ended
    the task itself    one, until it has ended
    a future           one, in a stream of calls, instead of a scope's

The last one that is released makes the slot CONSUMED; `reclaim` erases its entries from the
TensorMap, unless a later writer has taken them over, and gives slot, body and slab back. Both
happen on the Orch thread, so the structures on this side have one writer.

Where arguments are. A slot has room for a short body (tensors, scalars, members of a group, edges);
a long one is in a spill block, of a power of two of words, with a free list for each size.
Arguments are copied once, from the caller's bytes into the body, and once more into the mailbox of
the worker.

What must never happen. A call that is refused and has changed something: every refusal (no room, a
run that has failed, words that are no task) comes before step 1 has claimed anything, or from
`alloc`, which changes nothing then. A task that is its own producer: all look-ups come before the
first insertion. A kernel that waits: without room it returns WOULD_BLOCK; the Orch thread helps the
Scheduler and calls again.

A Worker with `track_reads`, and every stream of calls, order writers after readers as well: see
`hazards`. A stream is a run without scopes. A call, its task, is submitted from any thread (one at a
time), depends on others through its tensors and through the futures among its scalars, and keeps its
own outcome: its value, or how it failed, in S_VALUE and S_KIND, until its future drops it.

Rule     CALL-FAIL-1, CALL-FUTURE-4, CALL-HAZARD-4, CALL-STREAM-1, CALL-STREAM-2, CALL-STREAM-8,
         CALL-VALUE-4, FLAG-CHIP-6, FLOW-ARGS-1, FLOW-ARGS-2, FLOW-ARGS-3, FLOW-LAYOUT-3, ORCH-ALLOC-1,
         ORCH-ALLOC-2, ORCH-ALLOC-3, ORCH-ALLOC-5, ORCH-ALLOC-6, ORCH-ALLOC-7, ORCH-AUTO-2, ORCH-AUTO-4,
         ORCH-DEDUP-1, ORCH-DEDUP-2, ORCH-DEDUP-3, ORCH-FAIL-2, ORCH-INV-4, ORCH-MAP-2, ORCH-MAP-3,
         ORCH-MAP-4, ORCH-MAP-5, ORCH-MAP-6, ORCH-MAP-7, ORCH-MISUSE-1, ORCH-MISUSE-5, ORCH-PIN-1,
         ORCH-PIN-2, ORCH-READS-1, ORCH-SCOPE-3, ORCH-SCOPE-5, ORCH-SCOPE-6, ORCH-SCOPE-7, ORCH-SCOPE-8,
         ORCH-STATE-6, ORCH-SUBMIT-1, ORCH-SUBMIT-2, ORCH-SUBMIT-3, ORCH-SUBMIT-4, ORCH-SUBMIT-5,
         ORCH-SUBMIT-6, ORCH-SUBMIT-7, ORCH-TAG-2, ORCH-TAG-3, ORCH-TAG-4, ORCH-TAG-5, ORCH-TAG-7,
         SCHED-CANCEL-1, SCHED-CANCEL-4, SCHED-CONSUME-2, SEE-NOTE-2, WM-CHIP-4, WM-GROUP-1, WM-GROUP-3,
         WM-GROUP-4, WM-GROUP-5, WM-GROUP-6, WM-GROUP-7
"""

from __future__ import annotations

from typing import Any

from . import layout as L
from . import slots
from .atomics import fetch_add, load, now_ns, stay_aside, unlikely
from .hazards import (
    collect_conflicts,
    collect_readers,
    conflict_at,
    drop_over,
    forget_all,
    forget_range,
    has_access_room,
    make_access_room,
    note_accesses,
    note_conflict,
    note_reads,
)
from .journal import note, note_edge, note_scope, number_of
from .queues import push_wiring, wiring_full
from .ring import align, alloc, release, slab_before_cursor
from .tensormap import erase, find, has_room, insert, insert_slab
from .tensors import (
    has_key,
    is_auto_output,
    is_child_memory,
    nbytes_of,
    reads,
    tag_of,
    worker_of,
    writes,
)

TENSOR_WORDS = L.TENSOR_WORDS
EDGE_WORDS = L.EDGE_WORDS
DTYPE_SIZES = L.DTYPE_SIZES
WRITTEN = (1 << L.MASK_TENSORS) - 1
"""The bits of the output mask that say which tensors a task writes."""
TOO_MANY_BYTES = 1 << 62
"""More than any ring has; adding one more tensor does not overflow 64 bits."""


# ---------------------------------------------------------------- tensors of a task
def owner_of(mem: Any, slot: int, t: int, i: int) -> int:
    """Return the owner of the memory that a task's tensor `i` is in: -1 the host, else a worker."""
    if not is_child_memory(mem, t):
        return -1
    members, word = int(mem[slot + L.S_MEMBERS]), int(mem[slot + L.S_CALLABLE])
    return worker_of(mem, members_at(mem, slot), members, word, i)


def in_a_ring(mem, data):
    """Say whether an address is in the heap rings, which are contiguous."""
    offset = data - int(mem[L.RING_BLOCK + L.R_BASE])
    return 0 <= offset < mem[L.RINGS] * mem[L.RING_BLOCK + L.R_SIZE]


# ---------------------------------------------------------------- bodies that do not fit the slot
def size_class(words):
    kind = 0
    while L.SPILL_SMALLEST << kind < words:
        kind += 1
    return kind


def could_have_room(mem, words):
    """Say whether a body of `words` words would fit if there were no others."""
    if words <= L.INLINE_WORDS:
        return True
    return L.SPILL_SMALLEST << size_class(words) <= mem[L.A_SPILL_END] - mem[L.A_SPILL]


def spill_has_room(mem, words):
    """Say whether a body of `words` words fits, in its slot or in a spill block."""
    if words <= L.INLINE_WORDS:
        return True
    kind = size_class(words)
    if mem[L.SPILL_FREE + kind] != L.NONE:
        return True
    return mem[L.SPILL_USED] + (L.SPILL_SMALLEST << kind) <= mem[L.A_SPILL_END]


def take_body(mem, slot, counts, members, words):
    """Give a slot the counts of its arguments, and room for its body, with an empty output mask."""
    mem[slot + L.S_COUNTS] = counts
    mem[slot + L.S_MEMBERS] = members
    body = slot + L.S_INLINE
    if words > L.INLINE_WORDS:
        kind = size_class(words)
        body = int(mem[L.SPILL_FREE + kind])
        if body != L.NONE:
            mem[L.SPILL_FREE + kind] = mem[body]
        else:
            body = int(mem[L.SPILL_USED])
            mem[L.SPILL_USED] = body + (L.SPILL_SMALLEST << kind)
    mem[slot + L.S_BODY] = body
    for k in range(mask_words(counts & L.LOW_HALF)):
        mem[body + k] = 0


def body_words(tensors, scalars, members, edges):
    """Return the words of a body: output mask, tensors, scalars, members, at most `edges` edges."""
    arguments = argument_words(tensors, scalars) + members * L.MEMBER_WORDS
    return mask_words(tensors) + arguments + edges * EDGE_WORDS


def argument_words(tensors, scalars):
    return tensors * TENSOR_WORDS + scalars * L.SCALAR_WORDS


def mask_words(tensors):
    """Return the words of the output mask: two bits per tensor."""
    return (tensors + L.MASK_TENSORS - 1) // L.MASK_TENSORS


def tensors_at(mem: Any, slot: int) -> int:
    return int(mem[slot + L.S_BODY]) + mask_words(int(mem[slot + L.S_COUNTS]) & L.LOW_HALF)


def scalars_at(mem: Any, slot: int) -> int:
    return tensors_at(mem, slot) + (int(mem[slot + L.S_COUNTS]) & L.LOW_HALF) * TENSOR_WORDS


def members_at(mem: Any, slot: int) -> int:
    return scalars_at(mem, slot) + (int(mem[slot + L.S_COUNTS]) >> L.HALF) * L.SCALAR_WORDS


def edges_at(mem: Any, slot: int) -> int:
    return members_at(mem, slot) + int(mem[slot + L.S_MEMBERS]) * L.MEMBER_WORDS


def release_body(mem, slot):
    body = int(mem[slot + L.S_BODY])
    if body == slot + L.S_INLINE:
        return
    counts = int(mem[slot + L.S_COUNTS])
    tensors, scalars, members = counts & L.LOW_HALF, counts >> L.HALF, int(mem[slot + L.S_MEMBERS])
    kind = size_class(body_words(tensors, scalars, members, int(mem[slot + L.S_EDGES]) >> L.HALF))
    mem[body] = mem[L.SPILL_FREE + kind]
    mem[L.SPILL_FREE + kind] = body


def forget_bodies(mem):
    """Free all spill blocks (no task is live), so that their memory can be split into other sizes."""
    if mem[L.SPILL_USED] != mem[L.A_SPILL]:
        mem[L.SPILL_USED] = mem[L.A_SPILL]
        for kind in range(L.SPILL_CLASSES):
            mem[L.SPILL_FREE + kind] = L.NONE


# ---------------------------------------------------------------- submit
def submit_task(mem, callable_word, counts, members, words):
    """Add one task to the graph: the seven steps.

    `words` are the tensors, five words each with the tag in the padding, then the scalars, each with its
    kind in a second word, then a group's members, two words each. A group is one task with the tensors of
    all its members.

    Returns  the slot, with AUTO_OUTPUT set if it provided memory; or, with nothing changed, RUN_FAILED,
             WOULD_BLOCK, TOO_LARGE, TOO_MANY_ARGS, or ILLEGAL if the words are invalid
    """
    if load(mem, L.RUN_ERROR) != 0:
        return L.RUN_FAILED
    tensors = counts & L.LOW_HALF
    scalars = counts >> L.HALF
    if not are_there(mem, words, counts, members):
        return L.ILLEGAL
    if not fits_mailbox(words, counts, members):
        return L.TOO_MANY_ARGS
    most_edges, outputs, slab_bytes = 0, 0, 0
    for i in range(tensors):
        tag = tag_of(words, i * TENSOR_WORDS)
        if reads(tag):
            most_edges += 1 + in_a_ring(mem, int(words[i * TENSOR_WORDS + L.TENSOR_DATA]))
        outputs += writes(tag)
        if is_auto_output(words, i * TENSOR_WORDS):
            if not has_bytes(words, i * TENSOR_WORDS):
                return L.ILLEGAL
            slab_bytes += align(nbytes_of(words, i * TENSOR_WORDS))
            slab_bytes = min(slab_bytes, TOO_MANY_BYTES)
    room = body_words(tensors, scalars, members, most_edges)
    if not could_have_room(mem, room):
        return L.TOO_MANY_ARGS
    readers = 0
    if unlikely(mem[L.TRACK_READS] != 0):
        if not make_access_room(mem, tensors):
            return L.WOULD_BLOCK
        readers = collect_readers(mem, words, counts, members, callable_word)
        most_edges += readers
        room = body_words(tensors, scalars, members, most_edges)
    if wiring_full(mem) or not spill_has_room(mem, room) or not has_room(mem, outputs):
        return L.WOULD_BLOCK

    slot = alloc(mem, slab_bytes, int(mem[L.SCOPE_DEPTH]) - 1)  # step 1
    if slot < 0:
        return slot
    slots.prepare(mem, slot, callable_word, 0, 0)
    take_body(mem, slot, counts, members, room)
    store_arguments(mem, slot, words, slab_bytes)  # step 2
    if unlikely(mem[L.TRACING] == L.TRACE_ALL):
        note_arguments(mem, slot, words)
    edges = find_producers(mem, slot, words)  # steps 3 and 4
    if unlikely(mem[L.TRACK_READS] != 0):
        edges = add_readers(mem, slot, words, edges, readers)
        note_reads(mem, slot, words)
    mem[slot + L.S_EDGES] = edges | most_edges << L.HALF
    register_outputs(mem, slot, words)
    register_task(mem, slot)  # step 5
    slots.step(mem, slot, slots.SUBMIT)
    push_wiring(mem, slot)  # step 6
    if slab_bytes > 0:
        return slot | L.AUTO_OUTPUT
    return slot  # step 7


def are_there(mem, words, counts, members):
    """Say whether the words match the counts, and a group's members share out all arguments.

    Members must name workers that exist. The words may be bytes of any length: nothing past their end is
    read.
    """
    tensors, scalars = counts & L.LOW_HALF, counts >> L.HALF
    if scalars < 0 or members < 0 or members > len(words):
        return False
    member = tensors * TENSOR_WORDS + scalars * L.SCALAR_WORDS
    if member + members * L.MEMBER_WORDS > len(words):
        return False
    for _ in range(members):
        shared = int(words[member + L.MEMBER_COUNTS])
        tensors -= shared & L.LOW_HALF
        scalars -= shared >> L.HALF
        worker = int(words[member + L.MEMBER_WORKER])
        if shared < 0 or tensors < 0 or scalars < 0 or worker < 0 or worker > mem[L.WORKERS]:
            return False
        member += L.MEMBER_WORDS
    return members == 0 or (tensors == 0 and scalars == 0)


def has_bytes(words, t):
    """Say whether a tensor has an element type, at most five dimensions, and fewer than TOO_MANY_BYTES.

    One that a layout describes says so in place of both.
    """
    dims = int(words[t + L.TENSOR_DIMS]) >> L.HALF
    kind = int(words[t + L.TENSOR_KIND]) & L.TENSOR_DTYPE_MASK
    if kind == L.TENSOR_DESCRIBED:
        return dims == L.TENSOR_DESCRIBED and 0 <= int(words[t + L.TENSOR_EXTENT]) < TOO_MANY_BYTES
    if kind >= len(DTYPE_SIZES) or dims < 0 or dims > L.CONTINUOUS_TENSOR_MAX_DIMS:
        return False
    count = float(DTYPE_SIZES[kind])
    for d in range(dims):
        count *= int(words[t + L.TENSOR_SHAPE + (d >> 1)]) >> (L.HALF * (d & 1)) & L.LOW_HALF
    return count < TOO_MANY_BYTES


def fits_mailbox(words, counts, members):
    if members == 0:
        return frame_bytes(counts) <= L.MAILBOX_ARGS_CAPACITY
    member = argument_words(counts & L.LOW_HALF, counts >> L.HALF)
    for _ in range(members):
        if frame_bytes(int(words[member + L.MEMBER_COUNTS])) > L.MAILBOX_ARGS_CAPACITY:
            return False
        member += L.MEMBER_WORDS
    return True


def frame_bytes(counts):
    return L.WORD * (1 + (counts & L.LOW_HALF) * TENSOR_WORDS + (counts >> L.HALF))


def store_arguments(mem, slot, words, slab_bytes):
    """Copy everything into the slot, tensors without their tags; carve the slabs of the outputs.

    Marks stay on what next-level workers get: chips dump by them.
    """
    counts = int(mem[slot + L.S_COUNTS])
    tensors = counts & L.LOW_HALF
    slab = slab_before_cursor(mem, int(mem[slot + L.S_RING]) & 7, slab_bytes)
    kept = L.TENSOR_KIND_MASK
    if slots.kind_of(mem, slot) == L.NEXT_LEVEL:
        kept |= 1 << L.TENSOR_MARK_SHIFT
    at = tensors_at(mem, slot)
    for i in range(tensors):
        t = i * TENSOR_WORDS
        for k in range(TENSOR_WORDS - 1):
            mem[at + t + k] = words[t + k]
        mem[at + t + L.TENSOR_KIND] = words[t + L.TENSOR_KIND] & kept
        if is_auto_output(words, t):
            nbytes = align(nbytes_of(words, t))
            if nbytes > 0:
                mem[at + t + L.TENSOR_DATA] = slab
                slab += nbytes
    first = tensors * TENSOR_WORDS
    rest = int(mem[slot + L.S_MEMBERS]) * L.MEMBER_WORDS + (counts >> L.HALF) * L.SCALAR_WORDS
    for k in range(rest):
        mem[at + first + k] = words[first + k]


def find_producers(mem, slot, words):
    """Look up every buffer read; reference each producer once, and the owner of its slab.

    The owner keeps the memory: the producer holds a reference to it only until it is done itself, and a
    reader may still run after the owner's scope has ended.

    All look-ups come before the first insertion, so a task is never its own producer (D6).

    Returns  the number of edges, which are in the slot's body, each with a reference (D3)
    """
    stamp = int(mem[slot + L.S_ID]) + 1
    at = tensors_at(mem, slot)
    first = edges_at(mem, slot)
    edges = 0
    for i in range(int(mem[slot + L.S_COUNTS]) & L.LOW_HALF):
        t = i * TENSOR_WORDS
        data = int(mem[at + t + L.TENSOR_DATA])
        if not reads(tag_of(words, t)) or not has_key(words, t, data):
            continue
        entry = find(mem, data, owner_of(mem, slot, at + t, i))
        producer = int(mem[entry + L.E_SLOT])
        if producer == L.NONE:
            continue
        if unlikely(mem[L.TRACING] == L.TRACE_ALL):
            note_edge(mem, slot, producer, i, tag_of(words, t), L.OWED_DATA, data)
        edges += add_edge(mem, first, edges, producer, stamp, slot)
        owner = int(mem[entry + L.E_SLAB])
        if owner != L.NONE:
            if unlikely(mem[L.TRACING] == L.TRACE_ALL):
                note_edge(mem, slot, owner, i, tag_of(words, t), L.OWED_MEMORY, data)
            edges += add_edge(mem, first, edges, owner, stamp, L.NONE)
    return edges


def add_readers(mem, slot, words, edges, readers):
    """Have a task wait for the end of those that `collect_readers` has found; return its edges."""
    stamp = int(mem[slot + L.S_ID]) + 1
    first = edges_at(mem, slot)
    for i in range(readers):
        conflict = conflict_at(mem, i)
        reader = int(mem[conflict + L.CONFLICT_SLOT])
        before = mem[L.EDGE_COUNT]
        edges += add_edge(mem, first, edges, reader, stamp, slot | L.ORDER_ONLY)
        if unlikely(mem[L.TRACING] == L.TRACE_ALL) and mem[L.EDGE_COUNT] != before:
            note_conflict(mem, slot, words, conflict)
    return edges


def add_edge(mem, first, edges, producer, stamp, consumer):
    """Reference a producer and note the edge, unless this task has it already or it is CONSUMED.

    An edge to a task kept only for its memory names no consumer: `wire` skips it, since the task does not
    wait for it.

    Returns  the number of edges added, 0 or 1
    """
    if mem[producer + L.S_SEEN] == stamp:
        if consumer != L.NONE:
            wait_for_kept(mem, first, edges, producer, consumer)
        return 0
    mem[producer + L.S_SEEN] = stamp
    return write_edge(mem, first + edges * EDGE_WORDS, producer, consumer)


def write_edge(mem, edge, producer, consumer):
    """Write an edge, with a reference to its producer, unless that is CONSUMED; return how many."""
    if not slots.acquire_ref(mem, producer):
        return 0
    mem[edge + L.EDGE_PRODUCER] = producer
    mem[edge + L.EDGE_NEXT] = L.NONE
    mem[edge + L.EDGE_CONSUMER] = consumer
    mem[L.EDGE_COUNT] += consumer != L.NONE
    return 1


def wait_for_kept(mem, first, edges, producer, consumer):
    """Wait also for a task kept for its memory, which is the producer of another buffer too, or reads."""
    for k in range(edges):
        edge = first + k * EDGE_WORDS
        if mem[edge + L.EDGE_PRODUCER] == producer and mem[edge + L.EDGE_CONSUMER] == L.NONE:
            mem[edge + L.EDGE_CONSUMER] = consumer
            mem[L.EDGE_COUNT] += 1


def note_arguments(mem, slot, words):
    """Note the tensors of a task that is being submitted, with their tags."""
    stay_aside()
    number = number_of(mem, slot)
    at = tensors_at(mem, slot)
    for i in range(int(mem[slot + L.S_COUNTS]) & L.LOW_HALF):
        t = i * TENSOR_WORDS
        kind = int(words[t + L.TENSOR_KIND])
        place = owner_of(mem, slot, at + t, i) + 1
        if kind & L.TENSOR_CHILD_MASK & L.TENSOR_REMOTE * L.TENSOR_CHILD != 0:
            place = L.ELSEWHERE
        marked = kind >> L.TENSOR_MARK_SHIFT & 1
        operand = i | tag_of(words, t) << 16 | is_auto_output(words, t) << 20 | marked << 21
        operand |= place << 24 | (kind & L.TENSOR_DTYPE_MASK) << 40
        data = int(mem[at + t + L.TENSOR_DATA])
        what = L.NOTED_ARGUMENT | operand << 8
        note(mem, L.JOURNAL_OF_ORCH, what, number, data, nbytes_of(words, t))
        if kind & L.TENSOR_DTYPE_MASK == L.TENSOR_DESCRIBED:
            layout = int(words[t + L.TENSOR_SHAPE]) & L.LOW_HALF
            layout |= int(mem[L.LAYOUTS_EPOCH]) << L.HALF
            note(mem, L.JOURNAL_OF_ORCH, L.NOTED_LAYOUT | i << 8, number, data, layout)
        if mem[L.TRACE_EXTRAS] != 0:
            note_extras(mem, slot, words, i, at + t + L.TENSOR_KIND)


def note_extras(mem, slot, words, i, kind):
    """Note the dimensions of a tensor; tell a sub worker, beside the tensor's `kind`, when to dump it."""
    t = i * TENSOR_WORDS
    dims = int(words[t + L.TENSOR_DIMS])
    operand = i | (dims >> L.HALF & 0xFF) << 16 | (dims & L.NUMBER_MASK) << 24
    first, second = int(words[t + L.TENSOR_SHAPE]), int(words[t + L.TENSOR_SHAPE + 1])
    what = L.NOTED_SHAPE | operand << 8
    note(mem, L.JOURNAL_OF_ORCH, what, number_of(mem, slot), first, second)
    extras = int(mem[L.TRACE_EXTRAS])
    if extras & L.EXTRA_DUMP == 0 or slots.kind_of(mem, slot) != L.SUB:
        return
    marked = int(words[t + L.TENSOR_KIND]) >> L.TENSOR_MARK_SHIFT & 1
    if marked != 0 or extras & L.EXTRA_MARKED == 0:
        tag = tag_of(words, t)
        stages = L.DUMP_AFTER if writes(tag) else 0
        if reads(tag) or not writes(tag):
            stages |= L.DUMP_BEFORE
        mem[kind] |= stages << L.TENSOR_TAG_SHIFT | i << L.TENSOR_NUMBER_SHIFT


def register_outputs(mem, slot, words):
    """Make the task the producer of every buffer it writes, and note these in the mask, for `reclaim`."""
    body = int(mem[slot + L.S_BODY])
    at = tensors_at(mem, slot)
    for i in range(int(mem[slot + L.S_COUNTS]) & L.LOW_HALF):
        t = i * TENSOR_WORDS
        data = int(mem[at + t + L.TENSOR_DATA])
        if writes(tag_of(words, t)) and has_key(words, t, data):
            owner = owner_of(mem, slot, at + t, i)
            bit = 1 << (i % L.MASK_TENSORS)
            if is_auto_output(words, t):
                insert_slab(mem, data, owner, slot)
                bit |= bit << L.SLAB_BIT
            else:
                insert(mem, data, owner, slot)
            mem[body + i // L.MASK_TENSORS] |= bit


# ---------------------------------------------------------------- alloc
def alloc_buffer(mem, words):
    """Add a synthetic task, already COMPLETED, that owns a slab.

    `words` is the tensor to be, an OUTPUT without an address.

    Returns  the slot, whose first tensor has the slab's address; or, with nothing changed, RUN_FAILED,
             WOULD_BLOCK, TOO_LARGE, or ILLEGAL if the words are no tensor. Zero bytes claim a slot
             without slab and key (D12)
    """
    if load(mem, L.RUN_ERROR) != 0:
        return L.RUN_FAILED
    if len(words) < TENSOR_WORDS or not has_bytes(words, 0):
        return L.ILLEGAL
    if not has_room(mem, 1):
        return L.WOULD_BLOCK
    nbytes = align(nbytes_of(words, 0))
    slot = alloc(mem, nbytes, int(mem[L.SCOPE_DEPTH]) - 1)
    if slot < 0:
        return slot
    slots.prepare(mem, slot, -1, 0, 1)
    take_body(mem, slot, 1, 0, body_words(1, 0, 0, 0))
    store_arguments(mem, slot, words, nbytes)
    register_outputs(mem, slot, words)
    register_task(mem, slot)
    if unlikely(mem[L.TRACING] == L.TRACE_ALL):
        note_arguments(mem, slot, words)
    slots.step(mem, slot, slots.ALLOC)
    return slot


# ---------------------------------------------------------------- scopes
def register_task(mem, slot):
    """Add the reference of the innermost open scope, if there is one, to a fresh slot."""
    depth = int(mem[L.SCOPE_DEPTH])
    if depth == 0:
        return
    mem[slot + L.S_FANOUT] += 1
    mem[slot + L.S_LINK] = mem[L.SCOPE_STACK + depth - 1]
    mem[L.SCOPE_STACK + depth - 1] = slot


def open_scope(mem):
    """Open a scope; TOO_DEEP, with nothing changed: the run's own scope and 64 more are the limit."""
    depth = int(mem[L.SCOPE_DEPTH])
    if depth > L.MAX_SCOPE_DEPTH:
        return L.TOO_DEEP
    mem[L.SCOPE_STACK + depth] = L.NONE
    mem[L.SCOPE_DEPTH] = depth + 1
    if unlikely(mem[L.TRACING] == L.TRACE_ALL):
        note_scope(mem, depth, 1)
    return L.OK


def close_scope(mem):
    """End the innermost scope: release its reference to each of its tasks. Does not wait."""
    depth = int(mem[L.SCOPE_DEPTH])
    if depth == 0:
        return L.NO_SCOPE
    mem[L.SCOPE_DEPTH] = depth - 1
    slot = int(mem[L.SCOPE_STACK + depth - 1])
    while slot != L.NONE:
        after = int(mem[slot + L.S_LINK])
        if slots.release_ref(mem, slot):
            reclaim(mem, slot)
        slot = after
    if unlikely(mem[L.TRACING] == L.TRACE_ALL):
        note_scope(mem, depth - 1, 0)
    return L.OK


# ---------------------------------------------------------------- reclamation
def reclaim(mem, slot):
    """Reclaim a CONSUMED slot: its TensorMap entries, its body, its slab, itself.

    Of a call also that of the call whose failure it shares.
    """
    if slots.step(mem, slot, slots.RECLAIM) != L.OK:
        return L.ILLEGAL
    if mem[L.STREAM] != 0:
        origin = free_value(mem, slot)
        if origin != L.NONE and slots.step(mem, origin, slots.RECLAIM) == L.OK:
            free_value(mem, origin)
            reclaim_slot(mem, origin)
    reclaim_slot(mem, slot)
    return L.OK


def reclaim_chain(mem, slot):
    count = 0
    while slot != L.NONE:
        after = int(mem[slot + L.S_LINK])
        reclaim(mem, slot)
        slot = after
        count += 1
    return count


def free_value(mem, slot):
    """Release the blocks of a call's arguments and value, and the call whose failure it shares.

    Returns  the slot of that call if this consumed it, else NONE
    """
    kind = int(mem[slot + L.S_KIND])
    scalars = int(mem[slot + L.S_COUNTS]) >> L.HALF
    last = scalars_at(mem, slot) + (scalars - 1) * L.SCALAR_WORDS
    if scalars > 0 and mem[last + L.SCALAR_KIND] == L.PAYLOAD:
        fetch_add(mem, int(mem[last + L.SCALAR_BITS]), -1)
    if kind == L.VALUE_BLOCK or kind == L.VALUE_ERROR:
        fetch_add(mem, int(mem[slot + L.S_VALUE]), -1)
    elif kind == L.VALUE_POISONED and slots.release_ref(mem, -int(mem[slot + L.S_ORIGIN])):
        return -int(mem[slot + L.S_ORIGIN])
    return L.NONE


def reclaim_slot(mem, slot):
    body = int(mem[slot + L.S_BODY])
    at = tensors_at(mem, slot)
    for k in range(at - body):
        mask = int(mem[body + k]) & WRITTEN
        i = k * L.MASK_TENSORS
        while mask != 0:
            if mask & 1 != 0:
                t = at + i * TENSOR_WORDS
                erase(mem, int(mem[t + L.TENSOR_DATA]), owner_of(mem, slot, t, i), slot)
            mask >>= 1
            i += 1
    release_body(mem, slot)
    release(mem, slot)
    if mem[L.LIVE] == 0:
        forget_bodies(mem)


# ---------------------------------------------------------------- calls
def submit_call(mem, callable_word, counts, words):
    """Add one call to the stream, with a reference for its future.

    `words` are tensors with their tags, then scalars with their kinds; a scalar of the kind FUTURE is the
    slot of a call that is not dropped.

    Returns  the slot; or, with nothing changed, WOULD_BLOCK, TOO_MANY_ARGS, or ILLEGAL if the words are
             invalid
    """
    tensors, scalars = counts & L.LOW_HALF, counts >> L.HALF
    if not are_there(mem, words, counts, 0):
        return L.ILLEGAL
    if not fits_mailbox(words, counts, 0):
        return L.TOO_MANY_ARGS
    conflicts = collect_conflicts(mem, words, tensors)
    most_edges = conflicts
    for k in range(scalars):
        kind = tensors * L.TENSOR_WORDS + k * L.SCALAR_WORDS + L.SCALAR_KIND
        most_edges += words[kind] == L.FUTURE
    room = body_words(tensors, scalars, 0, most_edges)
    if not could_have_room(mem, room):
        return L.TOO_MANY_ARGS
    if wiring_full(mem):
        return L.WOULD_BLOCK
    if not has_call_room(mem, room, tensors):
        reclaim_chain(mem, drop_over(mem, L.NONE))
        if not has_call_room(mem, room, tensors):
            return L.WOULD_BLOCK
        # once more: one may have ended and be reclaimed
        conflicts = collect_conflicts(mem, words, tensors)
    slot = alloc(mem, 0, 0)
    slots.prepare(mem, slot, callable_word, 1, 0)
    take_body(mem, slot, counts, 0, room)
    store_arguments(mem, slot, words, 0)
    edges = add_call_edges(mem, slot, words, conflicts)
    mem[slot + L.S_EDGES] = edges | most_edges << L.HALF
    reclaim_chain(mem, note_accesses(mem, slot, words, tensors))
    if unlikely(mem[L.TRACING] == L.TRACE_ALL):
        note_arguments(mem, slot, words)
        key = int(mem[scalars_at(mem, slot) + L.SCALAR_BITS]) & L.CALL_KEY
        note(mem, L.JOURNAL_OF_ORCH, L.NOTED_CALL, number_of(mem, slot), now_ns(), key)
    slots.step(mem, slot, slots.SUBMIT)
    push_wiring(mem, slot)
    return slot


def has_call_room(mem, room, tensors):
    """Say whether a call fits, with a body of `room` words; `drop_over` may make room.

    Calls that have ended keep their slots while they are noted as the last to write something.
    """
    return (
        mem[L.LIVE] < mem[L.WINDOW] and spill_has_room(mem, room) and has_access_room(mem, tensors)
    )


def add_call_edges(mem, slot, words, conflicts):
    """Reference each call that this one waits for, and note the edge; return the number of edges."""
    edge = edges_at(mem, slot)
    edges = 0
    for i in range(conflicts):
        conflict = conflict_at(mem, i)
        flag = 0 if mem[conflict + L.CONFLICT_KIND] == L.NEEDS else L.ORDER_ONLY
        at = edge + edges * L.EDGE_WORDS
        producer = int(mem[conflict + L.CONFLICT_SLOT])
        if unlikely(mem[L.TRACING] == L.TRACE_ALL):
            note_conflict(mem, slot, words, conflict)
        edges += write_edge(mem, at, producer, slot | flag)
    scalar = scalars_at(mem, slot)
    for _ in range(int(mem[slot + L.S_COUNTS]) >> L.HALF):
        if mem[scalar + L.SCALAR_KIND] == L.FUTURE:
            producer = int(mem[scalar + L.SCALAR_BITS])
            if unlikely(mem[L.TRACING] == L.TRACE_ALL):
                note_edge(mem, slot, producer, L.NO_TENSOR, 0, L.OWED_FUTURE, 0)
            edges += write_edge(mem, edge + edges * L.EDGE_WORDS, producer, slot | L.FETCHES)
        scalar += L.SCALAR_WORDS
    return edges


def drop_call(mem, slot):
    """Release the reference of a future that no one refers to any more."""
    if slots.release_ref(mem, slot):
        reclaim(mem, slot)


def forget_memory(mem, low, high):
    """Forget who reads and writes memory that is given back."""
    reclaim_chain(mem, forget_range(mem, low, high))


def forget_accesses(mem):
    """Forget who reads and writes what: everything has ended."""
    reclaim_chain(mem, forget_all(mem))


def drop_forgotten(mem):
    """Drop the calls that have no future, when all have ended and all futures have their values.

    A signal may have come between a call and its future.
    """
    slot = int(mem[L.A_SLOTS])
    for _ in range(mem[L.SLOTS_USED]):
        state = load(mem, slot + L.S_STATE)
        if state == L.COMPLETED or state == L.FAILED:
            drop_call(mem, slot)
        slot += L.SLOT_WORDS
