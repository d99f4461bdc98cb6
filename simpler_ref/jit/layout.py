"""Every offset, record and constant that crosses a boundary, under one name: ``L``.

The engine is one array of 64-bit little-endian words, `mem`, in shared memory. All offsets are in
words. `constants` has limits, states, answers and times; here are the records, with what each word means,
who writes and who reads it, and what orders that:

    journals    notes of what happens, for traces
    a worker    its control words, the frames of its tasks, their mailboxes
    the header  the beginning of an engine: geometry, rings, the words of its threads
    tasks       slots and bodies, the tables that lead to them

Words that different parties write are on different cache lines. The end is the plan of an engine. Names
in kernels:

    slot, frame, edge, access, …  offsets in `mem`; the words W_AT, W_HEAD and W_TAIL say where a frame
                                  begins from `w` on
    worker, w                     the number of a worker; where its words begin
    words, t                      arguments on their way into submit; a tensor among them
    id, number                    of a task in its run, in a trace

Rule     SCHED-MAIL-1, WM-MAIL-3, WM-MAIL-5, FAIL-OUTCOME-1, FLOW-DATA-3, SEE-NOTE-2
"""

# ruff: noqa: F403, F405
from __future__ import annotations

import numpy as np

from . import structures
from .constants import *
from .structures import Record, name_words

# ---------------------------------------------------------------- one note, 32 bytes
WRITERS = "Orch, Scheduler, Scheduler thread, worker"

NOTE = Record("note", f"{WRITERS}; collector: in the file", "collector", "`J_PUSHED`")
NOTE_WHAT = NOTE.word("what it is in the low byte; an operand above it")
NOTE_TASK = NOTE.word("number of the task in the trace")
NOTE_TIME = NOTE.word("when, ns of the monotonic clock; of some notes an address")
NOTE_VALUE = NOTE.word("a second operand")
NOTE_WORDS = NOTE.size

# ---------------------------------------------------------------- a journal: a ring of notes
JOURNAL = Record("journal")
JOURNAL.line("its writer's", WRITERS, "collector", "own", note="Each journal has one writer.")
J_PUSHED = JOURNAL.word("notes ever put into it", order="release / acquire")
J_DROPPED = JOURNAL.word("notes for which it had no room", order="hint")
J_MASK = JOURNAL.word("its capacity, minus 1", by="none after the start", order="fork")
JOURNAL.line("the collector's", "collector", WRITERS, "release / acquire")
J_TAKEN = JOURNAL.word("notes ever taken out of it", by="collector; Orch before a trace")
JOURNAL.align()
JOURNAL_HEAD_WORDS = JOURNAL.size  # where its notes begin

JOURNAL_OF_ORCH, JOURNAL_OF_SCHEDULER, JOURNAL_OF_THREAD, JOURNALS_OF_WORKERS = range(4)
"""Numbers of journals: the Orch thread's, the Scheduler's, the Scheduler thread's, one per worker."""
BIG_JOURNAL, SMALL_JOURNAL = 1 << 17, 1 << 15
"""Notes that a journal of the program's process has room for, and one of a worker."""
WAKE_SHARE = 4  # the collector is woken whenever this part of a journal has filled

TRACE_TASKS, TRACE_ALL = 1, 2  # in TRACING: only what workers do is noted; or everything

DUMPED_AFTER, DUMPED_SCALAR, DUMPED_MEMBER = 1 << 16, 1 << 17, 18  # in the operand of NOTED_DUMPED
EXTRA_SHAPES, EXTRA_DUMP, EXTRA_MARKED = 1, 2, 4
"""Bits of TRACE_EXTRAS: shapes are noted; workers dump tensors, all or only marked ones."""

# ---------------------------------------------------------------- what is noted
# Numbers below 16 are events of the state table (`slots.EVENTS`), plus 1.
NOTED_RAN = 16
"""A worker ran a task: NOTE_TIME to NOTE_VALUE. The operand: its outcome, from bit 8 its function."""
NOTED_PARKED = 17  # a thread or worker slept: NOTE_TIME to NOTE_VALUE
NOTED_REQUEST = 18  # a worker carried out a control request, the operand: NOTE_TIME to NOTE_VALUE
NOTED_ARGUMENT = 19
"""A tensor of a task: its number, from bit 16 its tag, bit 20 whether the runtime has provided it, bit 21
whether it is marked for dumps, from bit 24 the worker whose memory it is, plus 1, or ELSEWHERE, from bit
40 its element type; its address, and its bytes in NOTE_VALUE."""
NOTED_EDGE = 20
"""A task depends on task NOTE_VALUE: tensor, from bit 16 its tag, from bit 24 the kind; an address."""
NOTED_CALL = 21  # a task is a call; NOTE_VALUE is the key of its function
NOTED_HELD = 22  # a ring, the operand, holds NOTE_VALUE bytes from now on
NOTED_SCOPE = 23
"""A scope was opened or closed: its depth, from bit 16 whether it was; NOTE_TASK has the line, NOTE_VALUE
how many buffers have a producer."""
NOTED_WAITED = 24  # the Orch thread waited, from NOTE_TIME to NOTE_VALUE; the operand says for what
NOTED_PLAYED = 25  # the Orch thread carried out a part of a program: NOTE_TIME to NOTE_VALUE
NOTED_AHEAD = 26
"""A task was pre-dispatched to a worker, the operand; NOTE_VALUE is how many ends it waits for."""
NOTED_RUN = 28
"""A run (operand 1) or a stream of calls (2) begins; 0: it has ended. NOTE_TASK is its first task."""
NOTED_PASSES = 29  # the Scheduler thread ran passes that moved something: NOTE_TIME to NOTE_VALUE
NOTED_SHAPE = 30
"""Dimensions of a tensor: its number, from bit 16 how many, from bit 24 the fifth; then two and two."""
NOTED_SUBMIT = 31  # the Orch thread carried out one submit of Python: NOTE_TIME to NOTE_VALUE
NOTED_DUMPED = 32
"""A worker wrote a tensor into a file: its number, and `DUMPED_AFTER` if after the task; where, how many
bytes. With `DUMPED_SCALAR` it saw a scalar: its number, from bit `DUMPED_MEMBER` on the member of a group
that has it, plus 1; its bits and its kind."""
NOTED_COUNTED = 33
"""What two counters, of which the operand is the first, have counted during a task."""
NOTED_LAYOUT = 34
"""The tensor of the last NOTED_ARGUMENT is a view: NOTE_VALUE is the number of its layout, from bit 32
on their epoch."""
NOTED_FRAME = 36
"""A frame was sent to a session or by it (`FRAME_SENT`), or received: its type, from bit 9 the number of
the frame that asks or is answered, from bit 40 the session; NOTE_VALUE is its bytes."""
NOTED_MOVED = 37
"""A tensor was fetched, or stored (bit 0): NOTE_TIME to NOTE_VALUE; from bit 1 with which session,
NOTE_TASK bytes."""
NOTED_CLOCK = 38
"""At NOTE_TIME the clock of the endpoint whose link this is was ahead by NOTE_VALUE, plus or minus the
operand."""
# only in files
NOTED_CHUNK = 64
"""The next NOTE_TASK notes are of a journal, the operand; NOTE_VALUE is its J_DROPPED, at NOTE_TIME."""
NOTED_TEXT = 65  # the next NOTE_TASK notes are NOTE_VALUE bytes of JSON

OWED_DATA, OWED_ORDER, OWED_FUTURE, OWED_MEMORY = range(4)
"""Kinds of edges: it reads what that task writes; waits for its end; takes its value; keeps its slab."""
NO_TENSOR = (1 << 16) - 1  # of an edge: it is owed to no single tensor
ELSEWHERE = (1 << 16) - 1  # in place of a worker: the tensor is in an endpoint's memory
WAITED_ROOM, WAITED_TASKS, WAITED_END, WAITED_CALL = range(4)
"""What the Orch thread waits for: room; that tasks end; that all are reclaimed; that a call ends."""

FRAME_SENT = 1 << 8
FRAME_NUMBER = (1 << 31) - 1
"""The part of a frame's number that is noted, and of a session's id 15 bits."""
FRAME_SESSION = (1 << 15) - 1
MOVED_PEER = (1 << 40) - 1  # the part of what names a session's memory that is noted

FUNCTION_BITS = 40
FUNCTION_MASK = (1 << FUNCTION_BITS) - 1
"""A function is known by the low bits of its digest; of a call by its key, which has as many."""
FUNCTION_IS_KEY = 1 << FUNCTION_BITS
NUMBER_MASK = (1 << 31) - 1  # the part of a task's number that its worker is told

EINTR, ENOSPC = 4, 28  # numbers of the system's errors

# ---------------------------------------------------------------- the mailbox
MAILBOX_SIZE = 16384
MAILBOX_ERROR_MSG_SIZE = 256
CALL_CONFIG_SIZE = structures.CALL_CONFIG.size
MAILBOX_WORDS = MAILBOX_SIZE // WORD
ERROR_MSG_WORDS = MAILBOX_ERROR_MSG_SIZE // WORD
CONFIG_WORDS = -(-CALL_CONFIG_SIZE // WORD)
ENV_WORDS = structures.RUNTIME_ENV.size // WORD
CONFIG_ENTRY_WORDS = CONFIG_WORDS + ENV_WORDS  # in the table of configurations
DIGEST_WORDS = CALLABLE_HASH_DIGEST_BYTES // WORD

MAILBOX = Record("mailbox", "Scheduler", "worker", "mailbox")
# with TASK_READY the number of the task in a trace is in place of the error code
MAIL_STATE = MAILBOX.word(
    "state in the low half, error code in the high half",
    by="Scheduler, requester, worker; monitor, closer at the end",
    read="Scheduler, requester, worker, Orch; `has_work` as hint",
    order="exchange / acquire",
)
MAIL_COMMAND = MAILBOX.word(
    "which control request; 0 for a task", by="requester; 0 by the Scheduler afterwards"
)
MAIL_CONFIG = MAILBOX.word(
    "`CallConfig` of the task",
    words=CONFIG_WORDS,
    by="Scheduler; requester: three arguments; worker: the result of a request",
    read="worker; requester",
)
MAIL_DIGEST = MAILBOX.word("SHA-256 of the callable", words=DIGEST_WORDS)
MAIL_COUNTS = MAILBOX.word("tensors in the low half, scalars in the high half")  # two i32
ARGS_WORDS = MAILBOX_WORDS - ERROR_MSG_WORDS - MAILBOX.size
MAIL_TENSORS = MAILBOX.word("five words per tensor, then one per scalar", words=ARGS_WORDS)
MAILBOX.parties("worker", "Scheduler")
MAIL_ERROR_MSG = MAILBOX.word("message of a failed task", words=ERROR_MSG_WORDS)

# the same in bytes
MAILBOX_OFF_STATE = MAIL_STATE * WORD  # i32 state | i32 error, one word
MAILBOX_OFF_COMMAND = MAIL_COMMAND * WORD
MAILBOX_OFF_CONFIG = MAIL_CONFIG * WORD
MAILBOX_OFF_DIGEST = MAIL_DIGEST * WORD
MAILBOX_OFF_ARGS = MAIL_COUNTS * WORD
MAILBOX_OFF_ERROR_MSG = MAIL_ERROR_MSG * WORD
MAILBOX_ARGS_CAPACITY = MAILBOX_OFF_ERROR_MSG - MAILBOX_OFF_ARGS
# a control request: its arguments are where a task has its configuration
MAILBOX_OFF_CONTROL_ARGS = MAILBOX_OFF_CONFIG  # u64 arg0, arg1, arg2
MAILBOX_OFF_CONTROL_RESULT = MAILBOX_OFF_CONFIG + 3 * WORD
MAILBOX_OFF_CONTROL_NAME = MAILBOX_OFF_DIGEST  # of the staged payload, ends with NUL
CONTROL_NAME_SIZE = 32
MAILBOX_OFF_CONTROL_DIGEST = MAILBOX_OFF_CONTROL_NAME + CONTROL_NAME_SIZE

# ---------------------------------------------------------------- an entry of a worker's digest cache
CACHE = Record("digest cache entry", "worker", "worker", "own")
CACHE_DIGEST = CACHE.word("SHA-256 of a callable", words=DIGEST_WORDS)
CACHE_LOCAL = CACHE.word("its local slot + 1")
CACHE_LEAF = CACHE.word("address of its compiled code, 0 for a Python callable")
DIGEST_CACHE_WORDS = CACHE.size
DIGEST_CACHE = 16
BY_KEY = -1  # in CACHE_LEAF: these are calls, and each function may have compiled code of its own

# ---------------------------------------------------------------- the code of one function that is called
CODE = Record("code of calls", "worker", "worker", "own")
CODE_KEY = CODE.word("the key of a function, see `CALL_KEY`; 0: the entry is free")
CODE_ADDRESS = CODE.word("address of its compiled code")
CODE_WORDS = CODE.size
CODES = 64
LOOKS_FOR_CODE = 8  # entries that a key can have

# ---------------------------------------------------------------- one worker: control, mailbox, trace
# A worker has one of these blocks for each task that it may have at once (DEPTH). Each is a frame: words
# with "each frame" exist in all of them. The others are used in the first block only.
MAX_DEPTH = 64
DEATH_BIAS = 1024  # added to an exit code in W_DEATH, where 0 is a worker that is alive
CLAIM_WAITS, CLAIM_GRANTED = 1, 2  # of W_CLAIM, beside 0
ENDED_WELL, ENDED_BADLY, ENDED_NOT = range(3)  # the two low bits of W_ENDED
ALIVE, CLAIMED = 1, 2  # bits of W_USABLE
MOST_WAITS = 8
KINDS_WORDS = 240
TRACE_WORDS = 8192
TRACE_CAPACITY = (TRACE_WORDS - 1) * WORD

WORKER = Record("worker")
WORKER.line("what is written once", "closer", "worker", "release / acquire", rare=True)
W_SHUTDOWN = WORKER.word("1: stop; set once in a process's life")  # D20
WORKER.parties("Scheduler", "requester")
W_CLAIM = WORKER.word("0, or that a requester waits for the mailbox or owns it")
WORKER.parties("monitor; in THREAD mode the thread that ends", "Scheduler, requester, Orch")
W_DEATH = WORKER.word("0 alive, else exit code + `DEATH_BIAS`")
WORKER.parties("tests, the worker at its start", "worker", "own")
W_FAIL = WORKER.word("tests only: the fail point to die at")

WORKER.line("what the worker reports", "worker", "worker", "hint")
W_PARKED = WORKER.word(
    "1 while the worker sleeps, or is about to, on the state of its mailbox",
    read="Scheduler, requester; `has_work`, `pass_in_bulk` and other workers as hint",
    order="store, fence, look again",
)
W_CORE = WORKER.word("number + 1 of the core it was last seen on", read="other workers, Orch")
WORKER.parties("Scheduler, worker", "Scheduler, worker")
W_KEPT_OFF = WORKER.word("number + 1 of the core it may not use since it was woken; 0: none")
WORKER.parties(order="park word")
W_LOOKOUT = WORKER.word("1 while a second thread of it sleeps until another task is sent")

WORKER.line("the worker's own state", "worker", "worker", "own")
W_AT = WORKER.word(
    "the frame it serves or waits for, as an offset from its first block",
    read="worker; Scheduler as hint, when it has seen it asleep",
    order="own; `W_PARKED`",
)
W_LEAF = WORKER.word(
    "address of the compiled leaf that runs, or of the error that it has raised; else 0"
)
W_BACK_OFF = WORKER.word("ns it spins before it offers its core")
W_HOME = WORKER.word("number + 1 of the core it goes to if it shares another; 0: none")
W_MOVED = WORKER.word("when it last moved, ns")
W_BEGAN = WORKER.word("while a trace is taken: when its task or request began, ns; 0: it has none")
W_NUMBER = WORKER.word("likewise: the number of its task in the trace")
WORKER.parties(read="Scheduler, Orch", order="mailbox")
W_THREAD = WORKER.word("the system's id of its thread; 0: the worker never chooses its core")
W_DEVICE_NS = WORKER.word("time its chip, or those below it, ever spent on tasks")
# by a clock that ticks every few ms
WORKER.parties(read="worker; anyone as hint; Scheduler after its death", order="hint")
W_SINCE = WORKER.word("when its task or request began; 0: it has none; or `ANSWERING`")

WORKER.line("what other workers read", "worker", "worker, other workers", "release / acquire")
W_ENDED = WORKER.word("each frame; answers ever given in it, times 4, plus how the last task ended")
# so that its call may have begun
WORKER.parties(read="Scheduler after the worker's death")
W_SENT = WORKER.word("each frame; `W_FILLED` for which an endpoint's link has sent its call on")

WORKER.line("callables it has seen", "worker", "worker", "own")
W_CACHE = WORKER.word("entries of its digest cache", words=DIGEST_CACHE * DIGEST_CACHE_WORDS)
W_CODES = WORKER.word("code of functions that calls have named", words=CODES * CODE_WORDS)

WORKER.line("contents of a frame", "Scheduler", "Scheduler", "lock")
W_SLOT = WORKER.word("each frame; its task, else NONE", hint="worker")
W_LAST_CALLABLE = WORKER.word("each frame; index + 1 of the digest in the mailbox")
W_LAST_CONFIG = WORKER.word("each frame; index + 1 of the configuration in the mailbox")
W_MEMBER = WORKER.word("each frame; which member of a group it is, plus 1; 0 for a single task")
WORKER.parties(read="Orch after a death")
# id + 1, above the index of its callable: for the message about a death
W_RAN = WORKER.word("the task that the worker ended last; 0: none")
WORKER.parties(read="Scheduler; worker when it looks out", order="`W_LOOKOUT`")
W_FILLED = WORKER.word("each frame; how often it was filled: `W_ENDED` counts up to this")

WORKER.line("the Scheduler's state of the worker", "Scheduler", "Scheduler", "lock")
W_HEAD = WORKER.word("the oldest frame in use, from the first block on", hint="`has_work`")
W_TAIL = WORKER.word(
    "the frame for the next task",
    read="Scheduler; requester, monitor, closer while it has no task; Orch at the start; "
    "`has_reserve` as hint",
)
W_GIVEN = WORKER.word("tasks sent, not collected", hint="`has_work`, `kill_busy`, `pass_in_bulk`")
W_COLLECTED = WORKER.word("1: it is idle, its mailbox still says TASK_DONE")
W_USABLE = WORKER.word("`ALIVE` from INIT_DONE to its death; `CLAIMED` while a requester has it")
W_AFFINITY = WORKER.word("chain of the ready tasks that only this worker may run", words=2)
W_UNTOLD = WORKER.word("1: it was sent a task in this pass, and may sleep")

WORKER.line("what its task waits for", "Scheduler", "worker", "mailbox")
WORKER.parties(read="worker, Scheduler")
W_WAITS = WORKER.word("each frame; ends that its pre-dispatched task waits for; 0: it was ready")
WORKER.parties(read="worker", order="release / acquire")
W_SKIP = WORKER.word("each frame; `SKIPPED` or `RETURNED`: the answer instead of starting")
WORKER.parties(order="mailbox")
# of each of `W_WAITS` ends: offset of its `W_ENDED`, and the count to wait for
W_WAIT_FOR = WORKER.word("each frame; the ends it waits for", words=2 * MOST_WAITS)

IN_TURN = "Scheduler or requester, and worker, in turn"
WORKER.line("the mailbox", IN_TURN, "Scheduler, requester, worker, Orch", "see below")
W_MAILBOX = WORKER.word("each frame; the mailbox", words=MAILBOX_WORDS)

WORKER.line("beside the mailbox", "Scheduler", "worker", "mailbox")
W_KINDS = WORKER.word("each frame; a byte for each scalar of its task: its kind", words=KINDS_WORDS)
W_ENV = WORKER.word("each frame; the `RuntimeEnv` of its task's configuration", words=ENV_WORDS)

WORKER.line("what the worker has decoded", "worker", "worker", "own")
W_COUNTS = WORKER.word("each frame; the counts in its mailbox, when the worker read them")
W_SCALARS_AT = WORKER.word("each frame; in bytes, where its scalars begin; negative: `MALFORMED`")

WORKER.line("what its task returned", "worker; 0 by Scheduler", "Scheduler", "mailbox")
W_VALUE = WORKER.word("each frame; of a call: its value, see `S_VALUE`")
W_KIND = WORKER.word("each frame; of a call: the kind of its value")

WORKER.line("traceback", "worker", "Scheduler, requester", "mailbox")
W_TRACE = WORKER.word("each frame; of a failed task: byte count, then UTF-8", words=TRACE_WORDS)
WORKER_WORDS = WORKER.align()  # one block: a worker's words at `DEPTH` 1

# ---------------------------------------------------------------- one ring
RING = Record("ring")
RING.line("", "Orch", "Orch; anyone as hint", "own")
R_BASE = RING.word("address of the heap", by="start", read="Orch, anyone", order="fork")
R_SIZE = RING.word("its bytes", by="start", read="Orch, anyone", order="fork")
R_TOP = RING.word("bytes allocated since the ring was last empty, skipped ones included")
R_TAIL = RING.word("bytes freed, on the same scale")
R_CURSOR = RING.word("offset of the next slab: `R_TOP` within the ring")
# lower again when released ones are left out
R_NEXT = RING.word("FIFO position of the next allocation")
R_ALIVE = RING.word("FIFO position of the oldest live one")  # last_alive
R_PEAK = RING.word("most bytes in use in this run", read="Orch")

# ---------------------------------------------------------------- geometry
HEADER = Record("header")
HEADER.section("Geometry", "start", "all", "fork", note="Words that never change may share lines.")
HEADER.skip(1)  # NONE: nothing has offset 0
A_WORKERS = HEADER.word("area of worker 0")
A_JOURNALS = HEADER.word("journals")
WORKER_STRIDE = HEADER.word("words of one worker: `DEPTH` blocks")

HEADER.parties(read="Scheduler")
WORKERS = HEADER.word("workers of both types")
POOL_FIRST = HEADER.word("first worker of each type's pool", words=2)
POOL_END = HEADER.word("one past its last", words=2)
POOL_OPEN = HEADER.word("one past the last that takes tasks which name no worker", words=2)
DEFER_NS = HEADER.word("how long a ready task is deferred for a worker that is awake")

HEADER.parties(read="Scheduler, worker")
DEPTH = HEADER.word("tasks that a worker may have at once")
CORES = HEADER.word("threads that can run at a time")

HEADER.parties(read="Orch, Scheduler")
A_WIRING = HEADER.word("wiring queue")
A_CALLABLES = HEADER.word("digest of each callable")
A_CONFIGS = HEADER.word("configurations")
TRACK_READS = HEADER.word("1: in runs, a task waits for earlier ones that read what it writes")

HEADER.parties(read="Orch, worker")
SPIN_NS = HEADER.word("how long a wait spins before it parks")
YIELD_NS = HEADER.word("longest back-off time")
A_BLOCKS = HEADER.word("blocks for values, a part for each party")
BLOCKS_STRIDE = HEADER.word("words of a part")
A_LAYOUTS = HEADER.word("layouts of described tensors")

HEADER.parties(read="Orch, anyone")
RINGS = HEADER.word("heap rings in use, 1 to 4")
A_FIFO = HEADER.word("FIFO of each ring", words=MAX_RING_DEPTH)

HEADER.parties(read="Orch")
WINDOW = HEADER.word("tasks that may be alive at once")
ID_WINDOW = HEADER.word("with one ring: most ids above the oldest live task's; 0: any number")
A_SLOTS = HEADER.word("offset of the slots")
A_SPILL = HEADER.word("offset of the blocks for long bodies")
A_SPILL_END = HEADER.word("their end")
A_MAP = HEADER.word("both areas of the TensorMap: the table, and what it grows into", words=2)
MAP_AREA = HEADER.word("entries of one area")
A_ACCESSES = HEADER.word("accesses of live tasks")
A_ACCESSES_END = HEADER.word("their end")
A_CELLS = HEADER.word("three chains of accesses for each cell: reads, writes, reads by bytes")
A_GRIDS = HEADER.word("grids of cells")
A_OVERLAPS = HEADER.word("accesses that a search has found")
A_CONFLICTS = HEADER.word("conflicts that a search has found")
PARK_NS = HEADER.word("longest sleep of the Orch thread, so that Python handles signals")

PRIVATE = HEADER.word("first word that only the user's process uses", read="start")
BESIDE = HEADER.word("1: unknown workers of other trees run on the same cores", read="worker")
STUCK_NS = HEADER.word("how long a group waits before a warning", read="Scheduler thread")

HEADER.line("the rings", "Orch", "Orch; anyone as hint", "own")
RING_BLOCK = HEADER.word("a line for each ring, as below", words=MAX_RING_DEPTH * RING.size)

# ---------------------------------------------------------------- Orch thread
SPILL_CLASSES = 32
SPILL_SMALLEST = 64

ORCH = HEADER.line("the Orch thread's counters", "Orch", "Orch", "own")
NEXT_TASK_ID = HEADER.word("id of the next task", hint="anyone")
FREE_SLOT = HEADER.word("first slot of the free list")
SLOTS_USED = HEADER.word("slots that were ever in use in this run")
LIVE = HEADER.word("tasks not yet reclaimed", hint="anyone")  # active_tasks
SCOPE_DEPTH = HEADER.word("open scopes, the run's own included", hint="anyone")
EDGE_COUNT = HEADER.word("edges of this run")
HEADER.parties(read="Scheduler; `has_work`", order="release / acquire")
WIRING_PUSHED = HEADER.word("entries ever put into the wiring queue")
CANCEL = HEADER.word("1: tasks that have not started fail")

HEADER.line("TensorMap and long bodies", "Orch", "Orch", "own")
MAP_BASE = HEADER.word("area the live table is in")
MAP_MASK = HEADER.word("its entries − 1")
MAP_COUNT = HEADER.word("keys in it")
SPILL_USED = HEADER.word("end of the blocks in use or on a free list")
SPILL_FREE = HEADER.word("free list of each block size", words=SPILL_CLASSES)
# a full one leaves out what is released, and doubles if most is alive
FIFO_MASK = HEADER.word("capacity of each ring's FIFO, minus 1", words=MAX_RING_DEPTH)

HEADER.line("hazards", "Orch", "Orch", "own")
ACCESS_FREE = HEADER.word("free list of accesses")
ACCESSES_USED = HEADER.word("end of the accesses that were ever in use")
ACCESS_COUNT = HEADER.word("accesses in use")
SWEEP_AT = HEADER.word("number of them at which those that are over are dropped")
CELL_MASK = HEADER.word("cells − 1")
GRIDS_USED = HEADER.word("grids that were ever in use")
OVERLAP_STAMP = HEADER.word("searches for accesses so far")
FOUND_LOW = HEADER.word("what the last search was for: lowest address")
FOUND_HIGH = HEADER.word("past its highest address")
FOUND_LAYOUT = HEADER.word("its layout")
FOUND_KINDS = HEADER.word("1: of writes; 2: of all accesses; 0: they have changed since")
FOUND_COUNT = HEADER.word("how many there are")
CONFLICT_STAMP = HEADER.word("conflicts that were ever found, as a number below 0")

HEADER.line("layouts of described tensors", "Orch", "Orch, worker", "mailbox", rare=True)
LAYOUTS_USED = HEADER.word("end of the layouts, from `A_LAYOUTS` on")
LAYOUTS_EPOCH = HEADER.word("how often they were forgotten")

SEEN = "hint: a change shows that it is not away"
HEADER.line("presence of the Orch thread", "Orch", "Scheduler thread", SEEN)
ORCH_PASSES = HEADER.word("passes the Orch thread ran, tried or found needless")
HEADER.parties(read="any thread that submits", order="hint: only it finds itself there")
ORCH_THREAD = HEADER.word("the thread whose run is open, 0 between runs")
HEADER.parties(read="Orch", order="own")
ORCH_BACK_OFF = HEADER.word("ns it spins before it offers its core")
ORCH_KEEPS = HEADER.word("due back-offs in which it keeps its core; below 0: in which it does not")

HEADER.line("scopes", "Orch", "Orch", "own")
SCOPE_STACK_WORDS = MAX_SCOPE_DEPTH + LINE
SCOPE_STACK = HEADER.word("head of each open scope's chain of tasks", words=SCOPE_STACK_WORDS)

# ---------------------------------------------------------------- Scheduler (holder of PASS_LOCK)
# Where a field has two words, there is one for each worker type.
CANDIDATES_CAPACITY = 256
FIRST_PENALTY, MOST_PENALTY = 16, 1024  # bounds of PREDISPATCH_PENALTY

SCHED = HEADER.line("the Scheduler's queues", "Scheduler", "Scheduler", "lock")
READY_CHAINS = HEADER.word("chain of the ready tasks of each worker type", words=4, hint="Orch")
BUSY = HEADER.word("workers that have a task", hint="`has_work`")
CONSUMED_HEAD = HEADER.word("chain of CONSUMED slots, for the Orch thread", hint="`help_scheduler`")
DEATHS_SEEN = HEADER.word("value of `DEATHS` that was acted on", hint="`has_work`")
HEADER.parties(read="Orch; `has_work` as hint", order="release / acquire")
WIRING_TAKEN = HEADER.word("entries ever taken from the wiring queue")

HEADER.line("outcome of the run", "Scheduler", "Scheduler", "lock")
DEALT = HEADER.word("tasks not PENDING, or pre-dispatched", hint="Orch and Scheduler thread")
UNCOLLECTED = HEADER.word("idle workers whose mailbox still says TASK_DONE", hint="`has_work`")
HEADER.parties("Scheduler; 0 by Orch before a run, while no task is alive", "anyone as hint")
COMPLETED_COUNT = HEADER.word("tasks that succeeded")
FAILED_COUNT = HEADER.word("tasks that failed, poisoned and cancelled ones included")
HEADER.parties(read="Orch", order="release / acquire")
RUN_ERROR = HEADER.word("0, or the kind of the run's first failure")
HEADER.parties("Scheduler", "Orch", "by `RUN_ERROR`")
ERROR_TASK = HEADER.word("id of that task")
ERROR_WORKER = HEADER.word("its worker, −1 if it never ran")
ERROR_CALLABLE = HEADER.word("its callable word")

HEADER.line("ready tasks", "Scheduler", "Scheduler", "lock")
READY_ORDER = HEADER.word("tasks that ever became ready")
RETIRING = HEADER.word("chain of terminal tasks, for `retire`")
HEADER.parties(read="Scheduler; Orch and Scheduler thread as hint")
DEFERRED_SINCE = HEADER.word("since when (ns) each queue's head is deferred; 0: it is not", words=2)

HEADER.line("affinity, groups that wait, pre-dispatch", "Scheduler", "Scheduler", "lock")
AFFINITY = HEADER.word("ready tasks in the chains of each pool's workers", words=2, hint="Orch")
CANDIDATES_HEAD = HEADER.word("the oldest of `CANDIDATES`", words=2)
CANDIDATES_TAIL = HEADER.word("one past its newest", words=2)
PREDISPATCH_AFTER = HEADER.word("`READY_ORDER` at which a pause of pre-dispatch ends")
PREDISPATCH_PENALTY = HEADER.word("length of its last pause, in tasks that become ready")
RETURNED_COUNT = HEADER.word("tasks that workers ever returned")
HEADER.parties(read="Scheduler; Orch and Scheduler thread as hint")
STUCK_SINCE = HEADER.word("since when (ns) a group heads each queue and waits; 0: none", words=2)
HEADER.parties("Scheduler thread", "Scheduler thread; Orch as hint", "own")
STUCK_TOLD = HEADER.word("`STUCK_SINCE` of the last group warned of", rare=True)

HEADER.line("what is read without the lock", "Scheduler", "Scheduler; anyone as hint", "lock")
MAY_MOVE = HEADER.word("1: since the last dispatch tasks became ready, or may start that could not")

MOST_NOTED = 14  # failed calls that are kept until Python looks at them

HEADER.line("calls that failed by themselves", "Scheduler", "Scheduler", "lock")
NOTED_CALLS = HEADER.word("slots, each with a reference", words=MOST_NOTED)
HEADER.parties("Scheduler; 0 by Orch before a stream")
NOTED = HEADER.word("how many of `NOTED_CALLS` there are")
NOT_NOTED = HEADER.word("calls of the stream for which these had no room", hint="Orch")

HEADER.line("candidates for pre-dispatch", "Scheduler", "Scheduler", "lock")
CANDIDATES = HEADER.word("a circular array for each worker type", words=2 * CANDIDATES_CAPACITY)

MOST_TOLD = 4  # tasks of either kind that the story of a failure names
STORY_WORDS = 1 + 2 * MOST_TOLD

HEADER.line("words of the first failure", "Scheduler", "Orch", "by `RUN_ERROR`")
ERROR_MSG = HEADER.word("copy of the failed task's message", words=ERROR_MSG_WORDS)
ERROR_TRACE = HEADER.word("copy of its traceback: byte count, then UTF-8", words=TRACE_WORDS)
ERROR_STATE = HEADER.word("the state of that task when it failed")
ERROR_DETAIL = HEADER.word("exit code of the dead worker, plus `DEATH_BIAS`")
ERROR_MEMBER = HEADER.word("which member of a group failed, −1 for a single task")
# how many there are, then id and callable word of the first
ERROR_NEEDED = HEADER.word("tasks that it waited for", words=STORY_WORDS)
ERROR_NEEDING = HEADER.word("tasks that wait for it", words=STORY_WORDS)

# ---------------------------------------------------------------- locks and park words
ACTIVE = 1  # parked, woken by any event: no other thread runs passes
STANDBY = 2  # parked while the Orch thread runs passes; woken when a completion stays uncollected
TIMED = 3  # like STANDBY, with a timer: a ready task is deferred, or an end may stay unseen
KEEP_TIME = 4  # woken to sleep on as TIMED: the Orch thread asks for no pass

CALLS, STRANDED = 1, 2  # states of a stream: dead workers get successors; none could be made

TAKERS = "the threads that take it: Orch, Scheduler thread, requester"
HEADER.line("the lock", TAKERS, "the same", "compare-and-exchange / release")
PASS_LOCK = HEADER.word("1 while a thread is the Scheduler")

PARKING = "store, fence, look again"
RARELY = (
    "They are 0 nearly all the time and are written only around a sleep, so they may share a line."
)
HEADER.line("park words", "Orch", "worker", PARKING, rare=True, note=RARELY)
HEADER.parties(
    "Orch; 0 also by worker, Scheduler thread, requester, monitor, to wake it", "who may wake it"
)
PARK_ORCH = HEADER.word("0 awake, else parked: `ACTIVE`, wake it for any event")
HEADER.parties(
    "Scheduler thread; 0 also by worker, Orch, requester, monitor, closer, to wake it; "
    "`STANDBY` and `KEEP_TIME` also by Orch"
)
PARK_SCHED = HEADER.word("0 or `KEEP_TIME` awake, else parked `ACTIVE`, `STANDBY` or `TIMED`")
HEADER.parties("Orch; 0 also by the Scheduler thread", "worker", "hint")
ORCH_CORE = HEADER.word("number + 1 of the core on which it submits; 0: it waits, or is away")

HEADER.line("rare events", "monitor", "Scheduler; `has_work`", "release / acquire", rare=True)
DEATHS = HEADER.word("workers that ever died")
STOPPING = HEADER.word("1: the Scheduler thread must end", by="closer", read="Scheduler thread")

HEADER.line("the stream of calls", "Orch", "Scheduler; Orch", PARKING, rare=True)
ORCH_WANTED = HEADER.word("1: another thread wants to be Orch, or has something for it: it leaves")
HEADER.parties("Orch, Scheduler", "Orch, Scheduler; worker, for its notes", "wiring")
STREAM = HEADER.word("0; while tasks are calls, with outcomes of their own: `CALLS`, `STRANDED`")

HEADER.line("tracing", "Orch", "Orch, Scheduler, Scheduler thread, worker", "hint", rare=True)
TRACING = HEADER.word("0; or what is noted: `TRACE_TASKS`, what workers do, or `TRACE_ALL`")
IDS_BEFORE = HEADER.word("ids given out before they began at 0 again", read="anyone as hint")
HEADER.parties(read="worker")
UNORDERED_LOW = HEADER.word("with `check=True`: lowest address of what may be written at any time")
UNORDERED_HIGH = HEADER.word("the address past the highest of it; 0: there is none")
HEADER.parties(read="Orch, Scheduler", order="wiring")
TRACED_FROM = HEADER.word("number in the trace of the run's first task")
# the Scheduler never reads the line, though the kernel of both names it
HEADER.parties(order="own")
SUBMIT_LINE = HEADER.word("number of the line of the program that submits")
TRACE_EXTRAS = HEADER.word("more that is noted: `EXTRA_SHAPES`, `EXTRA_DUMP`, `EXTRA_MARKED`")

HEADER.line("the collector of notes", "collector", "collector", "own", rare=True)
COLLECTOR_CHUNK = HEADER.word("in the file: what precedes notes of a journal", words=NOTE_WORDS)
HEADER.parties("collector; 0 also by Orch, Scheduler, Scheduler thread, worker", order=PARKING)
PARK_COLLECTOR = HEADER.word("0 awake, 1 parked")
HEADER.parties("collector; Orch", order="release / acquire")
COLLECTOR_ASKED = HEADER.word("1: it should return when it has written what there is")

HEADER.line("timers", "Scheduler thread", "Orch", "release / acquire")
WATCHING = HEADER.word("1 while it sleeps with a timer for a group that waits")

HEADER.line("tests only", "tests; 0 by the worker it names", "workers that start", "own", rare=True)
START_FAIL = HEADER.word("who dies during its start, and where: worker + 1 << 8 | fail point")
HEADER_WORDS = HEADER.align()

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
S_LEFT = S_FRAME = SLOT.word(
    "`S_LEFT` of a group: members not yet done, in the high half 1 once one has failed; "
    "`S_FRAME` of a single task: its frame, 0 for none"
)
S_ORDER = S_UNSENT = S_KIND = SLOT.word(
    "`S_UNSENT`: how many of its live producers are in no frame; `S_ORDER`: `READY_ORDER` when it "
    "became ready; `S_KIND` of a call that has ended: the kind of its value",
    by="Scheduler",
    hint="`has_work`",
)

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
S_VALUE = S_ORIGIN = S_RUNS = S_BEGAN = SLOT.word(
    "`S_RUNS` of a call that has not ended: how often it was run again; `S_VALUE` of one that has: what "
    "it returned or how it failed, see `S_KIND`; `S_ORIGIN`, below 0: minus the slot of the call whose "
    "failure it shares, or its own; `S_BEGAN` of a task of a run that has failed: `NEVER_BEGAN` or "
    "`MAY_HAVE_BEGUN`"
)
INLINE_WORDS = SLOT_WORDS - SLOT.size
SLOT.parties("Orch; Scheduler: `EDGE_NEXT`", "Orch, Scheduler", "wiring, then lock")
S_INLINE = SLOT.word("a body that fits", words=INLINE_WORDS)

# the callable word: callable, pool, worker and configuration of a task
CALLABLE_MASK = (1 << 24) - 1  # index of the callable
RAN_TASK = 24  # of W_RAN: the bits above the index are the task's id, plus 1
WORD_WAITS = 1 << 24  # of a call: if its worker is lost, it waits for the successor
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
# the first owns the member's child_memory tensors
MEMBER_WORKER = MEMBER.word(
    "low half: the one worker that may run it, plus 1; 0 for any. High half: the one it was sent to, "
    "plus 1",
    by="Orch; Scheduler: the high half",
    hint="anyone",
)
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

name_words(globals())

# ---------------------------------------------------------------- an engine
RECORDS: dict[str, Record] = {
    one.name: one
    for one in (
        *(HEADER, RING, WORKER, MAILBOX, CACHE, CODE, SLOT, SCALAR, MEMBER, EDGE, ENTRY, FIFO),
        *(LAYOUT, ACCESS, GRID, CONFLICT, JOURNAL, NOTE),
    )
}
"""The records of the engine."""


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def round_up_pow2(value: int) -> int:
    return 1 << max(0, int(value) - 1).bit_length()


def journal_offset(first: int, journal: int) -> int:
    """Return the offset of a journal; `first` is that of the first one."""
    big = min(journal, JOURNALS_OF_WORKERS)
    notes = big * BIG_JOURNAL + (journal - big) * SMALL_JOURNAL
    return first + journal * JOURNAL_HEAD_WORDS + notes * NOTE_WORDS


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
    # their pages take memory only while a trace is taken
    area(A_JOURNALS, journal_offset(0, JOURNALS_OF_WORKERS + workers))
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
