"""The memory of tasks: slots and bodies, the tables that lead to them, programs.

Rule     FLOW-DATA-3
"""

from __future__ import annotations

from . import structures
from .constants import LINE, WORD
from .schema import Record, name_words

# ---------------------------------------------------------------- a tensor, 40 bytes
_AT = structures.TENSOR.offsets
TENSOR_WORDS = structures.TENSOR.size // WORD
TENSOR_DATA = _AT["data"] // WORD
TENSOR_SHAPE = _AT["shapes"] // WORD  # five halves of words
TENSOR_DIMS = _AT["ndims"] // WORD  # the high half, beside the last of them
TENSOR_KIND = _AT["dtype"] // WORD  # dtype, child_memory; on its way into submit, the tag
TENSOR_KIND_MASK = (1 << 8 * (_AT["padding"] - _AT["dtype"])) - 1
TENSOR_DTYPE_MASK = 0xFF
TENSOR_DESCRIBED = 0xFF  # of dtype and ndims: the first dimension is the number of a layout
TENSOR_EXTENT = TENSOR_SHAPE + 1  # then: how many bytes it spans
TENSOR_CHILD_MASK = 0xFF << 8 * (_AT["child_memory"] - _AT["dtype"])
TENSOR_CHILD = TENSOR_CHILD_MASK & -TENSOR_CHILD_MASK  # 1 there
TENSOR_READ_ONLY = 0x80  # in the same byte: the host's memory, and the task must not write it
TENSOR_REMOTE = 0x40  # likewise: in an endpoint's memory
TENSOR_INLINE = 0x20  # likewise: to travel with the task
TENSOR_READ, TENSOR_WRITE = 0x08, 0x10  # of remote ones: what the task does with it
TENSOR_COPIED = 0x02  # likewise: this machine's memory, of which an endpoint gets a copy
TENSOR_TAG_SHIFT = 8 * (_AT["padding"] - _AT["dtype"])
TENSOR_MARK_SHIFT = TENSOR_TAG_SHIFT + 8  # on its way into submit: 1 if it is marked for dumps
TENSOR_NUMBER_SHIFT = TENSOR_TAG_SHIFT + 16  # in a mailbox, of a tensor that is dumped: its number
DUMP_BEFORE, DUMP_AFTER = 1, 2  # in the place of the tag there: when

# ---------------------------------------------------------------- one task: a slot
SLOT_WORDS = 48

SLOT = Record("slot")
SLOT.line("the Scheduler's after submit", "Orch at first, then Scheduler", "Scheduler", "lock")
S_STATE = SLOT.word(
    "the state",
    by="Orch, Scheduler: each the events [that are its own](design/orchestrator.md#states)",
    read="Scheduler; Orch; anyone as hint",
    order="release; wiring and lock before it is read",
)
S_FANOUT = SLOT.word(
    "references: total in the low half, released in the high half",
    by="Orch, Scheduler",
    read="Orch, Scheduler; anyone as hint",
    order="compare-and-exchange, fetch-and-add",
)
FANOUT_RELEASE = 1 << 32
FANOUT_TOTAL_MASK = FANOUT_RELEASE - 1
S_FANIN = SLOT.word("live fan-ins not yet released, plus one until wiring ends", hint="Orch")
S_CONSUMERS = SLOT.word("chain of edges to the consumers")
S_WORKER = SLOT.word(
    "worker that runs or ran it, −1 if none; of a group one", read="anyone as hint"
)
S_NEXT = SLOT.word("next in a worker's chain of ready tasks, later in `RETIRING`", by="Scheduler")
S_LEFT = SLOT.word("of a group: members not yet done; in the high half 1 once one has failed")
S_FRAME = SLOT.also("of a single task: its frame, 0 for none, and")
S_ORDER = SLOT.word("`READY_ORDER` when it became ready", by="Scheduler", hint="`has_work`")
S_UNSENT = SLOT.also("before that: how many of its live producers are in no frame, and")
S_KIND = SLOT.also("of a call that has ended: the kind of its value;")

SLOT.line("the Orch thread's", "Orch", "Orch, Scheduler", "wiring")
S_ID = SLOT.word("task id in its run", hint="anyone")
S_COUNTS = SLOT.word("tensors in the low half, scalars in the high half", hint="`has_work`")
S_BODY = SLOT.word("offset of the body, in the slot or in a block of its own", hint="`has_work`")
S_EDGES = SLOT.word("edges in the low half, room for edges in the high half")
SLOT.parties(read="Orch; anyone as hint", order="own")
S_RING = SLOT.word("ring, and position in its FIFO above bit 3")
# below 0: which conflict of which search it was, see CONFLICT_STAMP
S_SEEN = SLOT.word("id + 1 of the last task that found this one as a producer", read="Orch")
SLOT.parties("Orch; Scheduler: `hand_on`", "Orch, Scheduler", "wiring, then lock")
S_CALLABLE = SLOT.word("the callable word, see below; −1 for an alloc")
SLOT.parties("Orch; Scheduler once it is CONSUMED", order="own, then lock")
S_LINK = SLOT.word("next in the scope's chain, later in the consumed chain, in the free list")

SLOT.line("members and body", "Orch", "Orch, Scheduler", "wiring")
S_MEMBERS = SLOT.word("members of a group; 0 for a single task", hint="`has_work`")
SLOT.parties("Orch: 0; Scheduler", "Orch; any thread that waits for it", "by `S_STATE`")
S_VALUE = SLOT.word("of a call that has ended: what it returned or how it failed, see `S_KIND`")
S_ORIGIN = SLOT.also("below 0: minus the slot of the call whose failure it shares, or its own;")
S_RUNS = SLOT.also("of a call that has not ended: how often it was run again;")
S_BEGAN = SLOT.also("of a task of a run that has failed: `NEVER_BEGAN` or `MAY_HAVE_BEGUN`;")
INLINE_WORDS = SLOT_WORDS - SLOT.size
SLOT.parties("Orch; Scheduler: `EDGE_NEXT`", "Orch, Scheduler", "wiring, then lock")
S_INLINE = SLOT.word("a body that fits", words=INLINE_WORDS)

# the callable word: callable, pool, worker and configuration of a task
CALLABLE_MASK = (1 << 24) - 1  # index of the callable
RAN_TASK = 24  # of W_RAN: the bits above the index are the task's id, plus 1
WORD_KIND = 32  # worker type, 4 bits
WORD_WORKER = 36  # worker + 1, 0 for any, 12 bits; it owns the task's child_memory tensors
WORKER_MASK = (1 << 12) - 1
WORD_CONFIG = 48  # index of the configuration, 14 bits
CONFIG_MASK = (1 << 14) - 1
MAX_CONFIGS = 4096

# ---------------------------------------------------------------- a body: output mask, then these
MASK_TENSORS = 31  # tensors in a word of the output mask: a bit for those written; and above them
SLAB_BIT = MASK_TENSORS  # as many for those that have a slab of the task's own

SCALAR = Record("scalar", "Orch", "Scheduler", "wiring")
SCALAR_BITS = SCALAR.word("the 64 bits for the mailbox")
SCALAR_KIND = SCALAR.word("`RAW` and the others below; in a frame a byte of `W_KINDS`")
SCALAR_WORDS = SCALAR.size
RAW, SIGNED, UNSIGNED, FLOAT64, FLOAT32 = range(5)
"""Bits of unknown kind; integers; floats, those of 32 bits in the low half."""
FUTURE = 5
"""On its way into the stream: the slot of a call. In a frame: its value, with `FETCHED` in the kind."""
PAYLOAD = 6  # the offset of a block: it is freed with the task
FETCHED = 64  # added to the kind of a value that was fetched, in a frame

MEMBER = Record("member", "Orch", "Orch, Scheduler", "wiring")
MEMBER_COUNTS = MEMBER.word("its tensors in the low half, its scalars in the high half")
# it owns the member's child_memory tensors
MEMBER_WORKER = MEMBER.word("the one worker that may run it, plus 1; 0 for any")
MEMBER_WORDS = MEMBER.size

EDGE = Record("edge", "Orch", "Scheduler", "wiring")
EDGE_PRODUCER = EDGE.word("the producer, which it references")
EDGE_CONSUMER = EDGE.word("this task; NONE if the producer is kept only for its memory")
EDGE.parties("Orch at first, then Scheduler", order="wiring, then lock")
# of a call that has failed: minus the producer's id, minus 1
EDGE_NEXT = EDGE.word("next edge of the same producer")
EDGE_WORDS = EDGE.size
ORDER_ONLY = 1 << 48
"""In EDGE_CONSUMER: the consumer waits for the end of the producer, and does not need its success."""
FETCHES = 1 << 49
"""In EDGE_CONSUMER: the consumer's frame gets the value of the producer, so it is filled after that."""
CONSUMER_MASK = ORDER_ONLY - 1

# ---------------------------------------------------------------- entries of tables
ENTRY = Record("TensorMap entry", "Orch", "Orch", "own")
E_DATA = ENTRY.word("an address")
E_OWNER = ENTRY.word("owner of that memory: worker + 1, 0 for the host")
E_SLOT = ENTRY.word("the task that wrote it last; NONE: the entry is empty")
E_SLAB = ENTRY.word("the live task whose slab begins at this address, NONE if it is no slab")
ENTRY_WORDS = ENTRY.size
MAP_SMALLEST = 1024

FIFO = Record("FIFO entry", "Orch", "Orch; anyone as hint", "own")
FIFO_END = FIFO.word("`R_TOP` up to which it frees the ring, times 2, plus 1 once released")
FIFO_SLOT = FIFO.word("its slot")
FIFO_WORDS = FIFO.size

# ---------------------------------------------------------------- hazards: who accesses which bytes
LAYOUT = Record("layout", "Orch", "Orch, worker", "mailbox")
LAYOUT_EXTENT = LAYOUT.word("bytes from the lowest to past the highest")
LAYOUT_BELOW = LAYOUT.word("how many of them are below the tensor's address")
LAYOUT_ITEM = LAYOUT.word("bytes of an element")
# the axes follow the record, of each its size and its stride in bytes; then the loops, likewise, and
# the element type: bytes, and a pickle of so many
LAYOUT_DIMS = LAYOUT.word("axes")
LAYOUT_RUN = LAYOUT.word("bytes from which the loops go on; 0: no loops reach just these bytes")
LAYOUT_LOOPS = LAYOUT.word("loops, the outermost first; 0: its bytes are contiguous")
LAYOUT_ROWS = LAYOUT.word("turns of the outermost loop")
LAYOUT_STRIDE = LAYOUT.word("bytes from one of them to the next; 1 without loops")
LAYOUT_WIDTH = LAYOUT.word("bytes from the lowest to past the highest of one of them")
LAYOUT_WORDS = LAYOUT.size
LAYOUTS_CAPACITY = 1 << 20

ACCESS = Record("access", "Orch", "Orch", "own")
ACCESS_NEXT = ACCESS.word("next in its cell, or in the free list")
ACCESS_LOW = ACCESS.word("lowest address")
ACCESS_HIGH = ACCESS.word("past the highest address")
ACCESS_LAYOUT = ACCESS.word("offset of the layout, NONE: all bytes between them")
ACCESS_WRITES = ACCESS.word("1: the task writes; 0: it reads; −1: it is free, or of an older read")
ACCESS_SLOT = ACCESS.word("the task, which a write references")
ACCESS_ID = ACCESS.word("id of the task")
# a record in which only this, task and id count
ACCESS_OLDER = ACCESS.word("of a read: the one before of the same bytes")
ACCESS_SEEN = ACCESS.word("`OVERLAP_STAMP` of the last search that found it")
ACCESS_GRID = ACCESS.word("its grid")
ACCESS_AFTER = ACCESS.word("next in its grid")
ACCESS_BACK = ACCESS.word("word that leads to it in its cell")
ACCESS_BEFORE = ACCESS.word("word that leads to it in its grid")
ACCESS_SAME = ACCESS.word("of a read: next in the chain where those of its bytes are")
ACCESS_SAME_BACK = ACCESS.word("word that leads to it there")
ACCESS_WORDS = 2 * LINE
ACCESSES_SMALLEST = 1024
SWEEP_SMALLEST = 64  # accesses from which on those that are over are looked for

GRID = Record("grid", "Orch", "Orch", "own")
GRID_STRIDE = GRID.word("bytes of a row of the memory that its cells divide")
GRID_SHIFTS = GRID.word("binary logarithms: of a cell's rows, above them of its columns")
GRID_ORIGIN = GRID.word("address at which a cell begins")
GRID_ACCESSES = GRID.word("chains of its accesses: reads, writes", words=2)
GRID_COUNT = GRID.word("their numbers", words=2)
GRID_LOW = GRID.word("none of them begins below this address")
GRID_HIGH = GRID.word("none of them ends above this address")
GRID_WORDS = 2 * LINE
MAX_GRIDS = 64

CELL_READS = 2
CELL_WORDS = 3  # chains of reads, of writes; of reads by the bytes that they read

CONFLICT = Record("conflict", "Orch", "Orch", "own")
CONFLICT_SLOT = CONFLICT.word("a task to wait for")
CONFLICT_KIND = CONFLICT.word("`NEEDS` or `ORDER`")
CONFLICT_ACCESS = CONFLICT.word("newest access that leads to it; if there is a need: of those")
CONFLICT_WORDS = CONFLICT.size

WIRING_CAPACITY = 8192
CIRCULAR_SMALLEST = 1024

# ---------------------------------------------------------------- a program: many submits, as words
# Private to the thread that runs it. Its ops are contiguous from PROGRAM_OPS on.
PROGRAM = Record("program", "Orch", "Orch", "own")
PROGRAM_AT = PROGRAM.word("offset of the next op")
PROGRAM_OPS = PROGRAM.size

OP_SUBMIT, OP_REPEAT, OP_ALLOC, OP_OPEN_SCOPE, OP_CLOSE_SCOPE = range(5)
OP = Record("op", "Orch", "Orch", "own")
OP_KIND = OP.word("one of these | words of the op << 8")
OP_SCOPE_WORDS = OP.size

SUBMIT_OP = Record("submit", "Orch", "Orch", "own", after=OP.size)
OP_CALLABLE = SUBMIT_OP.word("the callable word")
OP_COUNTS = SUBMIT_OP.word("tensors | scalars << 32")
OP_MEMBERS = SUBMIT_OP.word("members of a group; 0 for a single task")
OP_PATCHES = SUBMIT_OP.word("how many of its words come from variables")
OP_OUTPUTS = SUBMIT_OP.word("variable of its first tensor; the others follow; −1: none is used")
OP_ARGS = SUBMIT_OP.size  # tensors with tags, scalars with kinds, members; then the patches

PATCH = Record("patch", "Orch", "Orch", "own")
PATCH_AT = PATCH.word("word of the op | variable << 32")
PATCH_OFFSET = PATCH.word("added to the variable")
PATCH_WORDS = PATCH.size

REPEAT_OP = Record("repeat", "Orch", "Orch", "own", after=OP.size)
OP_TIMES = REPEAT_OP.word("how often to make the submit after it")
OP_DONE = REPEAT_OP.word("how often it was made")
OP_STEP = REPEAT_OP.word("variables from one time to the next")
OP_REPEAT_WORDS = REPEAT_OP.size

ALLOC_OP = Record("alloc", "Orch", "Orch", "own", after=OP.size)
OP_BUFFER = ALLOC_OP.word("the variable that gets the address")
OP_TENSOR = ALLOC_OP.word("the tensor", words=TENSOR_WORDS)
OP_ALLOC_WORDS = ALLOC_OP.size
PROGRAM_SLICE = 2048  # tasks after which Python handles signals
MORE = 1  # the slice is done, the program is not
LOOK_EVERY = 8  # tasks submitted in bulk between two looks at the workers
PASS_AT_LATEST = 64  # tasks that wait to be wired, after which a pass is due

name_words(globals())
