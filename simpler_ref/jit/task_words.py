"""The memory of tasks: slots and bodies, the tables that lead to them, programs.

Rule     FLOW-DATA-3
"""

from __future__ import annotations

from . import structures
from .constants import LINE, WORD
from .schema import Record

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
TENSOR_REMOTE, TENSOR_INLINE = (
    0x40,
    0x20,
)  # likewise: in an endpoint's memory; to travel with the task
TENSOR_READ, TENSOR_WRITE = 0x08, 0x10  # of remote ones: what the task does with it
TENSOR_COPIED = 0x02  # likewise: this machine's memory, of which an endpoint gets a copy
TENSOR_TAG_SHIFT = 8 * (_AT["padding"] - _AT["dtype"])
TENSOR_MARK_SHIFT = TENSOR_TAG_SHIFT + 8  # on its way into submit: 1 if it is marked for dumps
TENSOR_NUMBER_SHIFT = TENSOR_TAG_SHIFT + 16  # in a mailbox, of a tensor that is dumped: its number
DUMP_BEFORE, DUMP_AFTER = 1, 2  # in the place of the tag there: when

# ---------------------------------------------------------------- one task: a slot
SLOT_WORDS = 48

SLOT = Record("slot")
SLOT.line(
    "the Scheduler's after submit",
    written_by="Orch at first, then Scheduler",
    read_by="Scheduler",
    ordering="lock",
)
S_STATE = SLOT.word(
    "S_STATE",
    "the state",
    written_by="Orch, Scheduler: each the events [that are its own](design/orchestrator.md#states)",
    read_by="Scheduler; Orch; anyone as hint",
    ordering="release; wiring and lock before it is read",
)
S_FANOUT = SLOT.word(
    "S_FANOUT",
    "references: total in the low half, released in the high half",
    written_by="Orch, Scheduler",
    read_by="Orch, Scheduler; anyone as hint",
    ordering="compare-and-exchange, fetch-and-add",
)
FANOUT_RELEASE = 1 << 32
FANOUT_TOTAL_MASK = FANOUT_RELEASE - 1
S_FANIN = SLOT.word(
    "S_FANIN",
    "live fan-ins not yet released, plus one until wiring ends",  # D16
    read_by="Scheduler; Orch as hint",
)
S_CONSUMERS = SLOT.word("S_CONSUMERS", "chain of edges to the consumers")
S_WORKER = SLOT.word(
    "S_WORKER",
    "worker that runs or ran it, −1 if none; of a group one of them",
    read_by="anyone as hint",
)
S_NEXT = SLOT.word(
    "S_NEXT",
    "next in a worker's chain of ready tasks, later in the chain `RETIRING`",
    written_by="Scheduler",
)
S_LEFT = SLOT.word(
    "S_LEFT",
    "of a group: members not yet done in the low half, 1 in the high half once one has failed",
)
S_FRAME = SLOT.also("S_FRAME", "of a single task: its frame, 0 for none, and")
S_ORDER = SLOT.word(
    "S_ORDER",
    "`READY_ORDER` when it became ready",
    written_by="Scheduler",
    read_by="Scheduler; `has_work` as hint",
)
S_UNSENT = SLOT.also("S_UNSENT", "before that: how many of its live producers are in no frame, and")
S_KIND = SLOT.also("S_KIND", "of a call that has ended: the kind of its value;")

SLOT.line("the Orch thread's", written_by="Orch", read_by="Orch, Scheduler", ordering="wiring")
S_ID = SLOT.word("S_ID", "task id in its run", read_by="Orch, Scheduler; anyone as hint")
S_SEEN = SLOT.word(
    "S_SEEN",
    "id + 1 of the last task that found this one as a producer; below 0: which conflict of "
    "which search it was, see `CONFLICT_STAMP`",
    read_by="Orch",
    ordering="own",
)
S_CALLABLE = SLOT.word(
    "S_CALLABLE",
    "the callable word: index of the callable, worker type, the one worker that may run it, "
    "configuration; −1 for an alloc",
    written_by="Orch; Scheduler: `hand_on`",
    ordering="wiring, then lock",
)
S_COUNTS = SLOT.word(
    "S_COUNTS",
    "tensors in the low half, scalars in the high half",
    read_by="Orch, Scheduler; `has_work` as hint",
)
S_BODY = SLOT.word(
    "S_BODY",
    "offset of the body, in the slot or in a block of its own",
    read_by="Orch, Scheduler; `has_work` as hint",
)
S_EDGES = SLOT.word("S_EDGES", "edges in the low half, room for edges in the high half")
S_RING = SLOT.word(
    "S_RING",
    "ring, and position in its FIFO above bit 3",
    read_by="Orch; anyone as hint",
    ordering="own",
)
S_LINK = SLOT.word(
    "S_LINK",
    "next in the scope's chain, later in the consumed chain, later in the free list",
    written_by="Orch; Scheduler once it is CONSUMED",
    ordering="own, then lock",
)

SLOT.line(
    "members and body",
    written_by="Orch",
    read_by="Orch, Scheduler",
    ordering="wiring",
)
S_MEMBERS = SLOT.word(
    "S_MEMBERS",
    "members of a group; 0 for a single task",
    read_by="Orch, Scheduler; `has_work` as hint",
)
S_VALUE = SLOT.word(
    "S_VALUE",
    "of a call that has ended by itself: what it has returned or how it failed, see `S_KIND`",
    written_by="Orch: 0; Scheduler",
    read_by="Orch; any thread that waits for it",
    ordering="by `S_STATE`",
)
S_ORIGIN = SLOT.also(
    "S_ORIGIN", "below 0: minus the slot of the call whose failure it shares, its own if cancelled;"
)
S_RUNS = SLOT.also("S_RUNS", "of a call that has not ended: how often it was run again;")
S_BEGAN = SLOT.also(
    "S_BEGAN", "of a task of a run that has failed: `NEVER_BEGAN` or `MAY_HAVE_BEGUN`;"
)
INLINE_WORDS = SLOT_WORDS - SLOT.size
S_INLINE = SLOT.word(
    "S_INLINE",
    "a body that fits",
    words=INLINE_WORDS,
    written_by="Orch; Scheduler: `EDGE_NEXT`",
    ordering="wiring, then lock",
)

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

SCALAR = Record("scalar")
SCALAR.section(written_by="Orch", read_by="Scheduler", ordering="wiring")
SCALAR_BITS = SCALAR.word("SCALAR_BITS", "the 64 bits for the mailbox")
SCALAR_KIND = SCALAR.word(
    "SCALAR_KIND",
    "`RAW`, `SIGNED`, `UNSIGNED`, `FLOAT64` or `FLOAT32`; in a frame a byte of `W_KINDS`",
)
SCALAR_WORDS = SCALAR.size
RAW, SIGNED, UNSIGNED, FLOAT64, FLOAT32 = range(5)
FUTURE = 5
"""On its way into the stream: the slot of a call. In a frame: its value, with `FETCHED` in the kind."""
PAYLOAD = 6
"""The offset of a block: it is freed with the task."""
FETCHED = 64
"""Added to the kind of a value that was fetched, in a frame."""
"""Bits of unknown kind; integers; floats, those of 32 bits in the low half."""

MEMBER = Record("member")
MEMBER.section(written_by="Orch", read_by="Orch, Scheduler", ordering="wiring")
MEMBER_COUNTS = MEMBER.word(
    "MEMBER_COUNTS", "its tensors in the low half, its scalars in the high half"
)
MEMBER_WORKER = MEMBER.word(
    "MEMBER_WORKER",
    "the one worker that may run it, plus 1; 0 for any. It owns the member's `child_memory` tensors",
)
MEMBER_WORDS = MEMBER.size

EDGE = Record("edge")
EDGE.section(written_by="Orch", read_by="Scheduler", ordering="wiring")
EDGE_PRODUCER = EDGE.word("EDGE_PRODUCER", "the producer, which it references")
EDGE_NEXT = EDGE.word(
    "EDGE_NEXT",
    "next edge of the same producer; of a call that has failed: minus the producer's id, minus 1",
    written_by="Orch at first, then Scheduler",
    ordering="wiring, then lock",
)
EDGE_CONSUMER = EDGE.word(
    "EDGE_CONSUMER", "this task; NONE if the producer is kept only for its memory"
)
EDGE_WORDS = EDGE.size
ORDER_ONLY = 1 << 48
"""In EDGE_CONSUMER: the consumer waits for the end of the producer, and does not need its success."""
FETCHES = 1 << 49
"""In EDGE_CONSUMER: the consumer's frame gets the value of the producer, so it is filled after that."""
CONSUMER_MASK = ORDER_ONLY - 1

# ---------------------------------------------------------------- entries of tables
ENTRY = Record("TensorMap entry")
ENTRY.section(written_by="Orch", read_by="Orch", ordering="own")
E_DATA = ENTRY.word("E_DATA", "an address")
E_OWNER = ENTRY.word("E_OWNER", "owner of that memory: worker + 1, 0 for the host")
E_SLOT = ENTRY.word("E_SLOT", "the task that wrote it last; NONE: the entry is empty")
E_SLAB = ENTRY.word(
    "E_SLAB", "the live task whose slab begins at this address, NONE if it is no slab"
)
ENTRY_WORDS = ENTRY.size
MAP_SMALLEST = 1024

FIFO = Record("FIFO entry")
FIFO.section(written_by="Orch", read_by="Orch; anyone as hint", ordering="own")
FIFO_END = FIFO.word(
    "FIFO_END",
    "`R_TOP` up to which it frees the ring, times two, plus one once it is released",
)
FIFO_SLOT = FIFO.word("FIFO_SLOT", "its slot")
FIFO_WORDS = FIFO.size

# ---------------------------------------------------------------- hazards: who accesses which bytes
LAYOUT = Record("layout")
LAYOUT.section(written_by="Orch", read_by="Orch, worker", ordering="mailbox")
LAYOUT_EXTENT = LAYOUT.word("LAYOUT_EXTENT", "bytes from the lowest to past the highest")
LAYOUT_BELOW = LAYOUT.word("LAYOUT_BELOW", "how many of them are below the tensor's address")
LAYOUT_ITEM = LAYOUT.word("LAYOUT_ITEM", "bytes of an element")
LAYOUT_DIMS = LAYOUT.word(
    "LAYOUT_DIMS",
    "axes, which follow the record: of each its size and its stride in bytes. Then come the loops, the "
    "same of each, and the element type: bytes, and a pickle of so many",
)
LAYOUT_RUN = LAYOUT.word(
    "LAYOUT_RUN",
    "bytes of one run: the loops go from run to run; 0 if no loops reach just these bytes",
)
LAYOUT_LOOPS = LAYOUT.word(
    "LAYOUT_LOOPS", "loops, the outermost first; 0: its bytes are contiguous"
)
LAYOUT_ROWS = LAYOUT.word("LAYOUT_ROWS", "turns of the outermost loop")
LAYOUT_STRIDE = LAYOUT.word("LAYOUT_STRIDE", "bytes from one of them to the next; 1 without loops")
LAYOUT_WIDTH = LAYOUT.word(
    "LAYOUT_WIDTH", "bytes from the lowest to past the highest of one of them"
)
LAYOUT_WORDS = LAYOUT.size
LAYOUTS_CAPACITY = 1 << 20

ACCESS = Record("access")
ACCESS.section(written_by="Orch", read_by="Orch", ordering="own")
ACCESS_NEXT = ACCESS.word("ACCESS_NEXT", "next in its cell, or in the free list")
ACCESS_LOW = ACCESS.word("ACCESS_LOW", "lowest address")
ACCESS_HIGH = ACCESS.word("ACCESS_HIGH", "past the highest address")
ACCESS_LAYOUT = ACCESS.word("ACCESS_LAYOUT", "offset of the layout, NONE: all bytes between them")
ACCESS_WRITES = ACCESS.word(
    "ACCESS_WRITES",
    "1: the task writes here; 0: it only reads; −1: the record is free, or of an older read",
)
ACCESS_SLOT = ACCESS.word("ACCESS_SLOT", "the task, which a write references")
ACCESS_ID = ACCESS.word("ACCESS_ID", "id of the task")
ACCESS_OLDER = ACCESS.word(
    "ACCESS_OLDER",
    "of a read: the one before of the same bytes, a record in which only this, task and id count",
)
ACCESS_SEEN = ACCESS.word("ACCESS_SEEN", "`OVERLAP_STAMP` of the last search that found it")
ACCESS_GRID = ACCESS.word("ACCESS_GRID", "its grid")
ACCESS_AFTER = ACCESS.word("ACCESS_AFTER", "next in its grid")
ACCESS_BACK = ACCESS.word("ACCESS_BACK", "word that leads to it in its cell")
ACCESS_BEFORE = ACCESS.word("ACCESS_BEFORE", "word that leads to it in its grid")
ACCESS_SAME = ACCESS.word(
    "ACCESS_SAME", "of a read: next in the chain where those of its bytes are"
)
ACCESS_SAME_BACK = ACCESS.word("ACCESS_SAME_BACK", "word that leads to it there")
ACCESS_WORDS = 2 * LINE
ACCESSES_SMALLEST = 1024
SWEEP_SMALLEST = 64
"""Accesses from which on those that are over are looked for."""

GRID = Record("grid")
GRID.section(written_by="Orch", read_by="Orch", ordering="own")
GRID_STRIDE = GRID.word("GRID_STRIDE", "bytes of a row of the memory that its cells divide")
GRID_SHIFTS = GRID.word(
    "GRID_SHIFTS", "binary logarithms: of a cell's rows in the low half, of its columns above them"
)
GRID_ORIGIN = GRID.word("GRID_ORIGIN", "address at which a cell begins")
GRID_ACCESSES = GRID.word("GRID_ACCESSES", "chains of its accesses: reads, writes", words=2)
GRID_COUNT = GRID.word("GRID_COUNT", "their numbers", words=2)
GRID_LOW = GRID.word("GRID_LOW", "none of them begins below this address")
GRID_HIGH = GRID.word("GRID_HIGH", "none of them ends above this address")
GRID_WORDS = 2 * LINE
MAX_GRIDS = 64

CELL_READS = 2
CELL_WORDS = 3
"""Chains of reads, of writes; of reads by the bytes that they read."""

CONFLICT = Record("conflict")
CONFLICT.section(written_by="Orch", read_by="Orch", ordering="own")
CONFLICT_SLOT = CONFLICT.word("CONFLICT_SLOT", "a task to wait for")
CONFLICT_KIND = CONFLICT.word("CONFLICT_KIND", "`NEEDS` or `ORDER`")
CONFLICT_ACCESS = CONFLICT.word(
    "CONFLICT_ACCESS",
    "the newest access of the bytes that lead to it; if there is a need: of those",
)
CONFLICT_WORDS = CONFLICT.size

WIRING_CAPACITY = 8192
CIRCULAR_SMALLEST = 1024

# ---------------------------------------------------------------- a program: many submits, as words
# Private to the thread that runs it. Its ops are contiguous from PROGRAM_OPS on.
PROGRAM = Record("program")
PROGRAM.section(written_by="Orch", read_by="Orch", ordering="own")
PROGRAM_AT = PROGRAM.word("PROGRAM_AT", "offset of the next op")
PROGRAM_OPS = PROGRAM.size

OP_SUBMIT, OP_REPEAT, OP_ALLOC, OP_OPEN_SCOPE, OP_CLOSE_SCOPE = range(5)
OP = Record("op")
OP.section(written_by="Orch", read_by="Orch", ordering="own")
OP_KIND = OP.word("OP_KIND", "one of these | words of the op << 8")
OP_SCOPE_WORDS = OP.size

SUBMIT_OP = Record("submit", after=OP.size)
SUBMIT_OP.section(written_by="Orch", read_by="Orch", ordering="own")
OP_CALLABLE = SUBMIT_OP.word("OP_CALLABLE", "the callable word")
OP_COUNTS = SUBMIT_OP.word("OP_COUNTS", "tensors | scalars << 32")
OP_MEMBERS = SUBMIT_OP.word("OP_MEMBERS", "members of a group; 0 for a single task")
OP_PATCHES = SUBMIT_OP.word("OP_PATCHES", "how many of its words come from variables")
OP_OUTPUTS = SUBMIT_OP.word(
    "OP_OUTPUTS",
    "variable of its first tensor; the others follow; −1: its outputs are not used",
)
OP_ARGS = SUBMIT_OP.size  # tensors with tags, scalars with kinds, members; then the patches

PATCH = Record("patch")
PATCH.section(written_by="Orch", read_by="Orch", ordering="own")
PATCH_AT = PATCH.word("PATCH_AT", "word of the op | variable << 32")
PATCH_OFFSET = PATCH.word("PATCH_OFFSET", "added to the variable")
PATCH_WORDS = PATCH.size

REPEAT_OP = Record("repeat", after=OP.size)
REPEAT_OP.section(written_by="Orch", read_by="Orch", ordering="own")
OP_TIMES = REPEAT_OP.word("OP_TIMES", "how often to make the submit after it")
OP_DONE = REPEAT_OP.word("OP_DONE", "how often it was made")
OP_STEP = REPEAT_OP.word("OP_STEP", "variables from one time to the next")
OP_REPEAT_WORDS = REPEAT_OP.size

ALLOC_OP = Record("alloc", after=OP.size)
ALLOC_OP.section(written_by="Orch", read_by="Orch", ordering="own")
OP_BUFFER = ALLOC_OP.word("OP_BUFFER", "the variable that gets the address")
OP_TENSOR = ALLOC_OP.word("OP_TENSOR", "the tensor", words=TENSOR_WORDS)
OP_ALLOC_WORDS = ALLOC_OP.size
PROGRAM_SLICE = 2048
"""Tasks after which Python handles signals."""
MORE = 1
"""The slice is done, the program is not."""
LOOK_EVERY = 8
"""Tasks submitted in bulk between two looks at the workers."""
PASS_AT_LATEST = 64
"""Tasks that wait to be wired, after which a pass is due."""
