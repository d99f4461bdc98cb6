"""Every offset, record and constant that crosses a boundary. Nothing else is in this file.

The engine is one array of 64-bit little-endian words, `mem`, in shared memory. All offsets are in
words. Words that different threads or processes write often stand on different cache lines (8
words); who writes and who reads each of them is the ownership table of the documentation, and the
headings below name the writer.

Rule     SCHED-MAIL-1; WM-MAIL-3, -5; FLOW-DATA-3; FAIL-OUTCOME-1
"""

from __future__ import annotations

import numpy as np

LINE = 8
WORD = 8
PAGE_WORDS = (64 << 10) // WORD  # of the largest pages there are
NONE = 0
"""No slot, no edge, no block: offset 0 is the header's."""

# ---------------------------------------------------------------- constants of the documents
MAX_RING_DEPTH = 4
MAX_SCOPE_DEPTH = 64
HEAP_ALIGN = 1024
DEFAULT_HEAP_RING_SIZE = 1 << 30
DEFAULT_ALLOC_TIMEOUT_S = 10.0
CONTINUOUS_TENSOR_MAX_DIMS = 5
CHIP_MAX_TENSOR_ARGS = 128
CHIP_MAX_SCALAR_ARGS = 128
CORE_MAX_TENSOR_ARGS = 16
CORE_MAX_SCALAR_ARGS = 32
MAX_REGISTERED_CALLABLE_IDS = 4096
CALLABLE_HASH_DIGEST_BYTES = 32
DEFAULT_TASK_WINDOW = 1 << 21
"""Tasks that may be alive at once; memory for them is only touched as they come to life."""

DTYPE_SIZES = (4, 2, 4, 2, 1, 1, 2, 8, 8, 2, 4, 1)
"""Bytes per element of each DataType, in the order of its values."""

# tags (TensorArgType)
INPUT, OUTPUT, INOUT, OUTPUT_EXISTING, NO_DEP = range(5)
# worker types (WorkerType), also the index of a pool and of a ready queue
NEXT_LEVEL, SUB = range(2)
# states of a task (TaskState)
FREE, PENDING, READY, RUNNING, COMPLETED, CONSUMED, FAILED = range(7)
# states of a mailbox (MailboxState)
IDLE, TASK_READY, TASK_DONE, SHUTDOWN, CONTROL_REQUEST, CONTROL_DONE, INIT_DONE = range(7)
# outcomes of a task
SUCCESS, TASK_FAILURE, ENDPOINT_FAILURE, SKIPPED = range(4)
GIVEN_BACK = 4
"""No outcome: a worker did not start a task that it had been given ahead of time."""
# sub-commands of a control request
(
    CTRL_MALLOC,
    CTRL_FREE,
    CTRL_COPY_TO,
    CTRL_COPY_FROM,
    CTRL_PREPARE,
    CTRL_REGISTER,
    CTRL_UNREGISTER,
    CTRL_ALLOC_DOMAIN,
    CTRL_RELEASE_DOMAIN,
    CTRL_COMM_INIT,
    CTRL_PY_REGISTER,
    CTRL_PY_UNREGISTER,
) = range(12)

# ---------------------------------------------------------------- answers of the kernels
OK = 0
WOULD_BLOCK = -1
"""No room now: nothing was changed; wait and call again."""
TOO_LARGE = -2
"""The request exceeds its ring: it can never be served."""
RUN_FAILED = -3
"""A task of this run has failed: nothing more is accepted."""
TOO_DEEP = -4
"""MAX_SCOPE_DEPTH user scopes are open."""
NO_SCOPE = -5
"""No user scope is open."""
ILLEGAL = -6
"""The state machine has no such step: nothing was changed."""
TIMED_OUT = -7
INTERRUPTED = -8
TOO_MANY_ARGS = -9
"""The arguments do not fit a mailbox: nothing was changed."""
WRONG_THREAD = -10
"""Not the thread whose run it is: nothing was changed."""
STUCK = -11
"""A group has waited for its workers for STUCK_NS: somebody should say so."""

AUTO_OUTPUT = 1 << 62
"""Set in what submit returns when it provided the memory of an output."""

# what a worker's `next_task` says besides a local slot
STOP = -1
PARK = -2
RESOLVE = -3
CONTROL = -4
COMPILED = -5
"""A task for a compiled leaf: W_LEAF has its address."""
MISMATCH = -6
"""The compiled leaf in W_LEAF takes other arguments than those in the mailbox."""

# waiting
CROWDED_NS = 1_000
"""An offer of the core that takes longer was taken by somebody: two switches and some work."""
PATIENCE_STEPS = 32
"""So many offers that nobody takes bring a thread from no patience back to YIELD_NS."""
KEEP_NS = 2_000
"""The Orch thread keeps its core for so long while an answer from another core may be near."""
KEEPS, KEEPS_OFF = 8, 64
"""After so many such waits in vain it leaves out so many."""
RESERVES = 4
"""A worker with no more tasks left than its frames by this needs a pass."""
REST_DEPTH = 16
"""With so many frames the Orch thread sleeps until then: fewer would not last while it wakes."""
AHEAD_PATIENCE = 4
"""A worker waits for so many times SPIN_NS before it gives a task back that it was given ahead."""
MOVE_NS = 1_000_000
"""A worker that shares its core with another goes elsewhere once in so long."""
UNSEEN_NS = 200_000
"""A worker that has had no task for so long tells somebody that its last answer is uncollected."""
LOOKS = 16
"""A worker that spins reads the clock once in so many looks."""

# ---------------------------------------------------------------- ContinuousTensor, 40 bytes
TENSOR_WORDS = 5
TENSOR_DATA = 0  # u64 data
TENSOR_SHAPE = 1  # u32 shapes[5] in words 1, 2 and the low half of 3
TENSOR_DIMS = 3  # u32 ndims in the high half
TENSOR_KIND = 4  # u8 dtype, u8 child_memory; on its way into submit, u8 tag at bit 16
TENSOR_KIND_MASK = 0xFFFF
TENSOR_TAG_SHIFT = 16

# ---------------------------------------------------------------- the mailbox, 16384 bytes
MAILBOX_SIZE = 16384
MAILBOX_ERROR_MSG_SIZE = 256
MAILBOX_OFF_STATE = 0  # i32 state | i32 error, one word
MAILBOX_OFF_COMMAND = 8
MAILBOX_OFF_CONFIG = 16
CALL_CONFIG_SIZE = 1052
MAILBOX_OFF_DIGEST = 1072
MAILBOX_OFF_ARGS = 1104
MAILBOX_OFF_ERROR_MSG = MAILBOX_SIZE - MAILBOX_ERROR_MSG_SIZE
MAILBOX_ARGS_CAPACITY = MAILBOX_OFF_ERROR_MSG - MAILBOX_OFF_ARGS

MAILBOX_WORDS = MAILBOX_SIZE // WORD
MAIL_STATE = MAILBOX_OFF_STATE // WORD
MAIL_COMMAND = MAILBOX_OFF_COMMAND // WORD
MAIL_CONFIG = MAILBOX_OFF_CONFIG // WORD
CONFIG_WORDS = (MAILBOX_OFF_DIGEST - MAILBOX_OFF_CONFIG) // WORD
MAIL_DIGEST = MAILBOX_OFF_DIGEST // WORD
MAIL_COUNTS = MAILBOX_OFF_ARGS // WORD  # i32 tensor_count | i32 scalar_count
MAIL_TENSORS = MAIL_COUNTS + 1
MAIL_ERROR_MSG = MAILBOX_OFF_ERROR_MSG // WORD
ERROR_MSG_WORDS = MAILBOX_ERROR_MSG_SIZE // WORD
# a control request: its arguments stand where a task has its configuration
MAILBOX_OFF_CONTROL_ARGS = MAILBOX_OFF_CONFIG  # u64 arg0, arg1, arg2
MAILBOX_OFF_CONTROL_RESULT = MAILBOX_OFF_CONFIG + 24
MAILBOX_OFF_CONTROL_NAME = MAILBOX_OFF_DIGEST  # of the staged payload, ends with NUL
CONTROL_NAME_SIZE = 32
MAILBOX_OFF_CONTROL_DIGEST = MAILBOX_OFF_CONTROL_NAME + CONTROL_NAME_SIZE
DIGEST_WORDS = CALLABLE_HASH_DIGEST_BYTES // WORD

# ---------------------------------------------------------------- one worker: control, mailbox, trace
# A worker has as many of these blocks as it may be given tasks at once (DEPTH). Each is a frame: what
# stands under "of each frame", a mailbox, a trace. All else is used in the first block only.
# written by the parent
W_SHUTDOWN = 0  # set once, never cleared while the process lives (D20)
W_DEATH = 1  # 0 alive, else exit code + DEATH_BIAS; written by the monitor thread
DEATH_BIAS = 1024
W_CLAIM = 2  # a control request: 0 none, CLAIM_WAITS, CLAIM_GRANTED; Scheduler
CLAIM_WAITS, CLAIM_GRANTED = 1, 2
W_FAIL = 3  # number of the fail point to die at; tests only
# written by the worker
W_PARKED = LINE  # 1 while it sleeps, or is about to, on its mailbox state
W_CORE = LINE + 1  # number + 1 of the core it was last seen on
W_KEPT_OFF = (
    LINE + 2
)  # number + 1 of the core it was kept off when it was woken, 0: none; Scheduler, too
W_AT = 2 * LINE  # the frame it serves, or waits for, as an offset from its first block
W_LEAF = W_AT + 1  # address of the compiled leaf that it is running, else 0
W_DEVICE_NS = W_AT + 2  # time its chip, or those below it, spent on tasks, ever
W_PATIENCE = W_AT + 3  # how long it spins before it offers its core, ns; see `offer_core`
W_HOME = (
    W_AT + 4
)  # number + 1 of the core it goes to if it shares another, 0: none; see `stay_apart`
W_MOVED = W_AT + 5  # ns, when it went there last
W_THREAD = W_AT + 6  # its thread, as the system numbers it; 0: leave to the system where it runs
W_ENDED = 3 * LINE  # of each frame; answers given in it, ever, << 2 | how the last task ended
ENDED_WELL, ENDED_BADLY, ENDED_NOT = range(3)
W_CACHE = 4 * LINE  # digest cache: DIGEST_CACHE entries
DIGEST_CACHE = 16
CACHE_LOCAL = DIGEST_WORDS  # after the digest: local slot + 1
CACHE_LEAF = CACHE_LOCAL + 1  # address of the compiled leaf, 0 for what Python has to call
DIGEST_CACHE_WORDS = CACHE_LEAF + 1
# written by the Scheduler; of each frame but for those marked
W_SLOT = W_CACHE + DIGEST_CACHE * DIGEST_CACHE_WORDS  # the task that was put into it, else NONE
W_LAST_CALLABLE = W_SLOT + 1  # index + 1 of the digest that stands in the mailbox
W_LAST_CONFIG = W_SLOT + 2  # index + 1 of the configuration that stands in the mailbox
W_MEMBER = W_SLOT + 3  # of a group: index + 1; 0 for a task of its own
W_FILLED = W_SLOT + 4  # how often the frame was filled, ever: the answers it will have had
W_RAN = (
    W_SLOT + 5
)  # first block only: the task it ended last, id + 1 << RAN_TASK | callable; 0: none
W_HEAD = (
    W_SLOT + LINE
)  # first block only: the oldest frame in use, as an offset from the first block
W_TAIL = W_HEAD + 1  # first block only: the frame for the next task
W_GIVEN = W_HEAD + 2  # first block only: tasks it was given and has not been seen to end
W_COLLECTED = W_HEAD + 3  # first block only; 1: it is idle, its last mailbox still says TASK_DONE
W_USABLE = (
    W_HEAD + 4
)  # first block only: ALIVE between INIT_DONE and death, with CLAIMED for a request
ALIVE, CLAIMED = 1, 2
W_PINNED_HEAD = (
    W_HEAD + 5
)  # first block only: chain of ready tasks that want this worker and no other
W_PINNED_TAIL = W_HEAD + 6  # first block only
W_UNTOLD = W_HEAD + 7  # first block only; 1: it was sent a task, and may sleep
W_WAITS = W_HEAD + LINE  # of each frame; so many ends its task waits for, 0: it was ready
W_SKIP = W_WAITS + 1  # of each frame; SKIPPED or GIVEN_BACK: answer so instead of starting
W_WAIT_FOR = W_WAITS + 2  # of each frame; for each of W_WAITS: where its W_ENDED is, and the count
MOST_WAITS = 8
W_MAILBOX = W_WAITS + 3 * LINE
W_KINDS = W_MAILBOX + MAILBOX_WORDS  # of each frame; a byte per scalar of its task: the kind
KINDS_WORDS = 240
W_TRACE = W_KINDS + KINDS_WORDS  # i64 byte count, UTF-8 bytes; written by the worker
TRACE_WORDS = 8192
TRACE_CAPACITY = (TRACE_WORDS - 1) * WORD
WORKER_WORDS = W_TRACE + TRACE_WORDS
"""One block: what a worker needs that is given one task at a time."""
MAX_DEPTH = 64

# ---------------------------------------------------------------- header
# geometry: written once, before the fork
WORKER_STRIDE = 1  # words of one worker: DEPTH blocks
WORKERS = 2
POOL_FIRST = 3  # first worker of each pool; POOL_FIRST + type
POOL_END = 5  # one past its last
RINGS = 7
WINDOW = 8  # tasks alive at once
DEPTH = 9  # tasks a worker may be given at once
A_SLOTS = 10
A_SPILL = 11
A_SPILL_END = 12
A_MAP = 13  # two areas: the live table and the one it grows into
MAP_AREA = 15  # entries that fit an area
A_FIFO = 16  # one circular array per ring
A_READY = 20  # one per worker type
A_WIRING = 22
A_WORKERS = 23
A_CALLABLES = 24
SPIN_NS = 25  # how long a thread spins before it parks
HOLD_NS = 26  # how long a ready task waits for a worker that is awake before one is woken
PARK_NS = 27  # longest sleep of a parked Orch thread, so that Python sees its signals
YIELD_NS = 28  # longest a thread spins before it offers its core between looks
PRIVATE = 29  # first word of the parent's own part
A_CONFIGS = 30
STUCK_NS = 31  # how long a group waits for its workers before somebody is told

# rings, one line each; written by the Orch thread
RING_BLOCK = 32
R_BASE = 0  # address
R_SIZE = 1
R_TOP = 2  # bytes handed out since the ring was last empty, skipped ones included
R_TAIL = 3  # bytes reclaimed, on the same scale
R_CURSOR = 4  # R_TOP as an offset in the ring
R_NEXT = 5  # position of the next allocation in the FIFO
R_ALIVE = 6  # position of the oldest one not yet released (the document's last_alive)
R_PEAK = 7

# Orch thread
ORCH = RING_BLOCK + MAX_RING_DEPTH * LINE
NEXT_TASK_ID = ORCH
FREE_SLOT = ORCH + 1
SLOTS_USED = ORCH + 2
LIVE = ORCH + 3  # slots not yet reclaimed (the document's active_tasks)
SCOPE_DEPTH = ORCH + 4
EDGE_COUNT = ORCH + 5
WIRING_PUSHED = ORCH + 6  # release; the Scheduler acquires
CANCEL = ORCH + 7  # 1: what has not started will not start; release
MAP_BASE = ORCH + 8
MAP_MASK = ORCH + 9
MAP_COUNT = ORCH + 10
SPILL_USED = ORCH + 11
SPILL_FREE = ORCH + 12  # one free list per size class
SPILL_CLASSES = 32
SPILL_SMALLEST = 64
FIFO_MASK = ORCH + 12 + SPILL_CLASSES  # + ring; capacity - 1 of its FIFO
ORCH_PASSES = (
    ORCH + 6 * LINE
)  # passes it ran or found needless: how the Scheduler thread sees that the Orch thread is there
ORCH_THREAD = ORCH_PASSES + 1  # the thread whose run is open, 0 between runs
ORCH_PATIENCE = ORCH_PASSES + 2  # how long it spins before it offers its core, ns
CORES = ORCH_PASSES + 3  # threads that can run at a time; written before the fork
ID_WINDOW = (
    ORCH_PASSES + 4
)  # ids from the oldest live task on, 0: any number; written before the fork
ORCH_KEEPS = ORCH_PASSES + 5  # how often more it keeps its core; below 0: how often it does not
SCOPE_STACK = ORCH + 7 * LINE  # head of each open scope's chain of tasks
SCOPE_STACK_WORDS = MAX_SCOPE_DEPTH + LINE

# Scheduler (whoever holds PASS_LOCK)
SCHED = SCOPE_STACK + SCOPE_STACK_WORDS
WIRING_TAKEN = SCHED
READY_HEAD = SCHED + 1  # + type
READY_TAIL = SCHED + 3
BUSY = SCHED + 5  # workers that hold a task
CONSUMED_HEAD = SCHED + 6  # chain of consumed slots, for the Orch thread
DEATHS_SEEN = SCHED + 7
DEALT = SCHED + 8  # tasks that are PENDING no longer, or in a frame ahead of time
UNCOLLECTED = SCHED + 9  # workers whose mailbox has still to be set IDLE
COMPLETED_COUNT = SCHED + 10
FAILED_COUNT = SCHED + 11
RUN_ERROR = SCHED + 12  # 0, or outcome of the first failure; release
ERROR_TASK = SCHED + 13
ERROR_WORKER = SCHED + 14  # -1: it never ran
ERROR_CALLABLE = SCHED + 15
RETIRING = SCHED + 19  # chain of terminal tasks that `retire` has still to see off
READY_MASK = SCHED + 20  # + type; capacity - 1 of its ready queue
ERROR_DETAIL = SCHED + 16  # exit code of a dead worker + DEATH_BIAS
HELD_SINCE = SCHED + 17  # + type; ns, when a queue's head began to wait for a worker that is awake
ERROR_MEMBER = SCHED + 22  # of a group, -1 for a task of its own
READY_ORDER = SCHED + 23  # tasks that became ready, ever
PINNED = SCHED + 24  # + type; ready tasks in the chains of its workers
STUCK_SINCE = SCHED + 26  # + type; ns, when the group at a queue's head began to wait
STUCK_TOLD = SCHED + 28  # STUCK_SINCE of the group that somebody has been told of
AHEAD_HEAD = SCHED + 29  # + type; tasks that could be given ahead: a circular array of hints
AHEAD_TAIL = SCHED + 31  # + type
AHEAD_AFTER = SCHED + 33  # READY_ORDER from which on tasks are given ahead again
BACK_COUNT = SCHED + 34  # tasks given back, ever
MAY_MOVE = SCHED + 40  # 1: a task became ready, or a worker free for one, after the last dispatch
STUCK_TASK = SCHED + 41  # + type; id of the group that STUCK_SINCE speaks of
STUCK_CALLABLE = SCHED + 43  # + type; its callable word
STUCK_MEMBERS = SCHED + 45  # + type
AHEAD = SCHED + 6 * LINE  # + type * AHEAD_CAPACITY
AHEAD_CAPACITY = 256
AHEAD_PENALTY = SCHED + 35  # tasks that become ready before one is given ahead again, the next time
FIRST_PENALTY, MOST_PENALTY = 16, 1024
ERROR_MSG = AHEAD + 2 * AHEAD_CAPACITY
ERROR_TRACE = ERROR_MSG + ERROR_MSG_WORDS

# locks and park words, a line each
PASS_LOCK = ERROR_TRACE + TRACE_WORDS
PARK_ORCH = PASS_LOCK + LINE  # 0 awake, ON_DUTY: wake it for any event, or AT_REST
PARK_SCHED = PASS_LOCK + LINE + 1  # 0 or KEEP_TIME awake, else ON_DUTY, OFF_DUTY or TIMED
ORCH_CORE = PASS_LOCK + LINE + 2  # number + 1 of the core it submits on, 0: it waits, or is away
DEATHS = PASS_LOCK + 2 * LINE  # monitor thread: workers that died, ever
STOPPING = DEATHS + 1  # closing thread: the Scheduler thread shall end
WATCHING = PASS_LOCK + 3 * LINE  # Scheduler thread: 1 while it sleeps with an eye on a stuck group
START_FAIL = PASS_LOCK + 4 * LINE  # tests only: worker + 1 << 8 | fail point, for one that starts
HEADER_WORDS = PASS_LOCK + 5 * LINE

ON_DUTY = 1
"""Parked, and to be woken at once: nobody else runs passes."""
OFF_DUTY = 2
"""Parked while the Orch thread runs passes; woken when a completion stays uncollected."""
TIMED = 3
"""Like OFF_DUTY, and awake again soon by itself: a ready task is held back, or an end may stay unseen."""
AT_REST = 5
"""Parked while each worker has tasks left; woken by one that runs low, or did not end one well."""
KEEP_TIME = 4
"""Awake, and to sleep on as TIMED: the Orch thread asks for no pass."""

# ---------------------------------------------------------------- one task: a slot
# first line: the Scheduler's after submit, but for the atomic FANOUT
S_STATE = 0
S_FANOUT = 1  # fanout_total | fanout_released << 32, atomic
S_FANIN = 2  # live fan-ins not yet released, plus one until wiring ends (D16)
S_CONSUMERS = 3  # chain of edges to this task's consumers
S_WORKER = 4  # worker it runs or ran on, -1 if none
S_NEXT = 5  # next in the chain of tasks to retire; before that, in a worker's chain of ready tasks
S_LEFT = 6  # of a group: members not yet done | 1 << 32 once one has failed
S_FRAME = S_LEFT  # of a task of its own: the frame it stands or stood in, 0 for none
S_ORDER = 7  # READY_ORDER when it became ready
S_UNPLACED = S_ORDER  # before that: its live producers that stand in no frame
# second line: written by the Orch thread at submit
S_ID = 8
S_SEEN = 9  # id + 1 of the last task that found this one as a producer
S_CALLABLE = 10  # the callable word, below; -1 for an alloc
S_COUNTS = 11  # tensors | scalars << 32
S_BODY = 12
S_EDGES = 13  # edges | room for edges << 32
S_RING = 14  # ring_idx | ring_slot_idx << 3
S_LINK = 15  # next in the scope's chain, then in the consumed chain, then in the free list
S_MEMBERS = 16  # of a group; 0 for a task of its own
S_INLINE = 17
SLOT_WORDS = 48
INLINE_WORDS = SLOT_WORDS - S_INLINE

FANOUT_RELEASE = 1 << 32
FANOUT_TOTAL_MASK = (1 << 32) - 1

# the callable word: what to run, in which pool, on which worker, with which configuration
CALLABLE_MASK = (1 << 24) - 1  # index of the callable
RAN_TASK = 24  # of W_RAN: the bits above the index are the task's id, plus 1
WORD_KIND = 32  # worker type, 4 bits
WORD_WORKER = 36  # worker + 1, 0 for any, 12 bits; it owns the task's child_memory tensors
WORKER_MASK = (1 << 12) - 1
WORD_CONFIG = 48  # index of the configuration, 14 bits
CONFIG_MASK = (1 << 14) - 1
MAX_CONFIGS = 4096
MAX_WORKERS = 2048

# body: output mask, tensors, scalars with kinds, members, edges
SCALAR_BITS = 0  # what stands in the args blob
SCALAR_KIND = 1  # what was added, one of the following; in a mailbox's frame a byte of W_KINDS
SCALAR_WORDS = 2
RAW, SIGNED, UNSIGNED, FLOAT64, FLOAT32 = range(5)
"""Bits of which nobody says what they are; integers; floats, those of 32 bits in the low half."""
MEMBER_COUNTS = 0  # tensors | scalars << 32
MEMBER_WORKER = 1  # worker + 1, 0 for any
MEMBER_WORDS = 2
MASK_TENSORS = 31  # tensors in a word of the output mask: a bit for those written; and above them
SLAB_BIT = MASK_TENSORS  # as many for those that have a slab of the task's own
EDGE_PRODUCER = 0
EDGE_NEXT = 1
EDGE_CONSUMER = 2
EDGE_WORDS = 3

# ---------------------------------------------------------------- TensorMap entry
E_DATA = 0
E_OWNER = 1
E_SLOT = 2  # NONE: empty
E_SLAB = 3  # the live task whose slab begins at this address, NONE if it is no slab
ENTRY_WORDS = 4
MAP_SMALLEST = 1024

FIFO_END = 0  # R_TOP that comes back with the allocation, times two, plus one once released
FIFO_SLOT = 1
FIFO_WORDS = 2

WIRING_CAPACITY = 8192
CIRCULAR_SMALLEST = 1024

# ---------------------------------------------------------------- a program: many submits, as words
# private to the thread that runs it; its ops follow each other from PROGRAM_OPS on
PROGRAM_AT = 0  # where the next op stands
PROGRAM_OPS = 1
OP_SUBMIT, OP_REPEAT, OP_ALLOC, OP_OPEN_SCOPE, OP_CLOSE_SCOPE = range(5)
OP_KIND = 0  # one of these | words of the op << 8
OP_CALLABLE = 1  # of a submit: the callable word
OP_COUNTS = 2  # tensors | scalars << 32
OP_MEMBERS = 3
OP_PATCHES = 4  # how many of its words come from the places
OP_OUTPUTS = 5  # place of its first tensor, from which those of its outputs follow; -1: nobody asks
OP_ARGS = 6  # tensors with tags, scalars with kinds, members; then the patches
OP_TIMES = 1  # of a repeat: how often the submit after it is made
OP_DONE = 2  # how often it was
OP_STEP = 3  # from one time to the next, its places move by so many
OP_REPEAT_WORDS = 4
OP_BUFFER = 1  # of an alloc: the place that gets the address
OP_TENSOR = 2
OP_ALLOC_WORDS = OP_TENSOR + TENSOR_WORDS
OP_SCOPE_WORDS = 1
PATCH_AT = 0  # word of the op | place << 32
PATCH_OFFSET = 1  # what is added to what stands in the place
PATCH_WORDS = 2
PROGRAM_SLICE = 2048
"""Tasks in a row, after which Python looks for signals."""
MORE = 1
"""The slice is over and the program is not."""
LOOK_EVERY = 8
"""Tasks submitted in bulk from one look at the workers to the next."""
PASS_AT_LATEST = 64
"""Tasks that wait to be wired, after which a pass is due."""


def round_up(value: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit


def round_up_pow2(value: int) -> int:
    """Return the smallest power of two that is not below `value`."""
    return 1 << max(0, int(value) - 1).bit_length()


def plan(
    *,
    window: int,
    rings: int,
    next_level: int,
    sub: int,
    depth: int = 1,
    id_window: int = 0,
) -> tuple[int, dict[int, int]]:
    """Return the words an engine of this size needs and what its geometry words hold.

    A FIFO has twice the room of the tasks that may be alive: when it is full, half of it is released.

    From the word in PRIVATE on, nobody but the parent ever looks: ready queues, TensorMap, slots.
    """
    workers = next_level + sub
    circular = max(CIRCULAR_SMALLEST, round_up_pow2(window))
    words = {
        WORKERS: workers,
        POOL_FIRST + NEXT_LEVEL: 0,
        POOL_END + NEXT_LEVEL: next_level,
        POOL_FIRST + SUB: next_level,
        POOL_END + SUB: workers,
        RINGS: rings,
        WINDOW: window,
        ID_WINDOW: id_window,
        DEPTH: depth,
        WORKER_STRIDE: depth * WORKER_WORDS,
        **{READY_MASK + kind: CIRCULAR_SMALLEST - 1 for kind in (NEXT_LEVEL, SUB)},
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
    for ring in range(rings):
        area(A_FIFO + ring, 2 * circular * FIFO_WORDS)
    end = words[PRIVATE] = round_up(end, PAGE_WORDS)
    for kind in (NEXT_LEVEL, SUB):
        area(A_READY + kind, circular)
    entries = max(MAP_SMALLEST, 4 * round_up_pow2(window))
    words[MAP_AREA] = entries
    for half in (0, 1):
        area(A_MAP + half, entries * ENTRY_WORDS)
    area(A_SLOTS, window * SLOT_WORDS)
    area(A_SPILL, max(1 << 21, window * INLINE_WORDS))
    words[A_SPILL_END] = end
    area(A_CONFIGS, MAX_CONFIGS * CONFIG_WORDS)
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
    spin_ns: int,
    yield_ns: int,
    hold_ns: int,
    cores: int,
    park_ns: int,
    stuck_ns: int,
) -> None:
    """Write the geometry into fresh, zeroed memory."""
    for where, value in words.items():
        mem[where] = value
    for ring, base in enumerate(heap_bases):
        mem[RING_BLOCK + ring * LINE + R_BASE] = base
        mem[RING_BLOCK + ring * LINE + R_SIZE] = heap_size
    mem[SPIN_NS] = spin_ns
    mem[YIELD_NS] = yield_ns
    mem[HOLD_NS] = hold_ns
    mem[CORES] = cores
    mem[PARK_NS] = park_ns
    mem[STUCK_NS] = stuck_ns
