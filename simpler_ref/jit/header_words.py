"""The beginning of an engine: geometry, rings, and the words of its threads.

Words that different parties write are on different cache lines.

Rule     SCHED-MAIL-1; FAIL-OUTCOME-1
"""

from __future__ import annotations

from .constants import LINE, MAX_RING_DEPTH, MAX_SCOPE_DEPTH
from .journal_words import NOTE_WORDS
from .schema import Record
from .worker_words import ERROR_MSG_WORDS, TRACE_WORDS

# ---------------------------------------------------------------- one ring
RING = Record("ring")
RING.line("", written_by="Orch", read_by="Orch; anyone as hint", ordering="own")
R_BASE = RING.word(
    "R_BASE", "address of the heap", written_by="start", read_by="Orch, anyone", ordering="fork"
)
R_SIZE = RING.word(
    "R_SIZE", "its bytes", written_by="start", read_by="Orch, anyone", ordering="fork"
)
R_TOP = RING.word("R_TOP", "bytes allocated since the ring was last empty, skipped ones included")
R_TAIL = RING.word("R_TAIL", "bytes freed, on the same scale")
R_CURSOR = RING.word("R_CURSOR", "offset of the next slab: `R_TOP` within the ring")
R_NEXT = RING.word(
    "R_NEXT",
    "FIFO position of the next allocation; lower again when released ones are left out",
)
R_ALIVE = RING.word("R_ALIVE", "FIFO position of the oldest live one")  # last_alive
R_PEAK = RING.word("R_PEAK", "most bytes in use in this run", read_by="Orch")

# ---------------------------------------------------------------- geometry
HEADER = Record("header")
HEADER.section(
    "Geometry",
    written_by="start",
    read_by="Scheduler",
    ordering="fork",
    note="Words that never change may share lines.",
)
HEADER.skip(1)  # NONE: nothing has offset 0
WORKER_STRIDE = HEADER.word(
    "WORKER_STRIDE",
    "words of one worker: `DEPTH` blocks",
    read_by="Scheduler, worker, requester",
)
WORKERS = HEADER.word("WORKERS", "workers of both types")
POOL_FIRST = HEADER.word("POOL_FIRST", "first worker of each type's pool", words=2)
POOL_END = HEADER.word("POOL_END", "one past its last", words=2)
POOL_OPEN = HEADER.word(
    "POOL_OPEN", "one past the last that takes tasks which name no worker", words=2
)
RINGS = HEADER.word("RINGS", "heap rings in use, 1 to 4", read_by="Orch, anyone")
WINDOW = HEADER.word("WINDOW", "tasks that may be alive at once", read_by="Orch")
DEPTH = HEADER.word("DEPTH", "tasks that a worker may have at once", read_by="Scheduler, worker")
A_SLOTS = HEADER.word("A_SLOTS", "offset of the slots", read_by="Orch")
A_SPILL = HEADER.word("A_SPILL", "offset of the blocks for long bodies", read_by="Orch")
A_SPILL_END = HEADER.word("A_SPILL_END", "their end", read_by="Orch")
A_MAP = HEADER.word(
    "A_MAP",
    "the two areas of the TensorMap: the live table, and the one it grows into",
    words=2,
    read_by="Orch",
)
MAP_AREA = HEADER.word("MAP_AREA", "entries of one area", read_by="Orch")
A_FIFO = HEADER.word("A_FIFO", "FIFO of each ring", words=MAX_RING_DEPTH, read_by="Orch, anyone")
A_READY = HEADER.word("A_READY", "ready queue of each worker type", words=2)
A_WIRING = HEADER.word("A_WIRING", "wiring queue", read_by="Orch, Scheduler")
A_WORKERS = HEADER.word("A_WORKERS", "area of worker 0", read_by="all")
A_CALLABLES = HEADER.word("A_CALLABLES", "digest of each callable", read_by="Orch, Scheduler")
SPIN_NS = HEADER.word("SPIN_NS", "how long a wait spins before it parks", read_by="Orch, workers")
DEFER_NS = HEADER.word("DEFER_NS", "how long a ready task is deferred for a worker that is awake")
PARK_NS = HEADER.word(
    "PARK_NS",
    "longest sleep of the Orch thread, so that Python handles signals",
    read_by="Orch",
)
PARKS_AT_ONCE = HEADER.word(
    "PARKS_AT_ONCE",
    "1: tasks are long, so that the Orch thread parks without spinning",
    read_by="Orch",
)
YIELD_NS = HEADER.word("YIELD_NS", "longest back-off time", read_by="Orch, workers")
PRIVATE = HEADER.word("PRIVATE", "first word that only the user's process uses", read_by="start")
A_CONFIGS = HEADER.word("A_CONFIGS", "configurations", read_by="Orch, Scheduler")
A_BLOCKS = HEADER.word(
    "A_BLOCKS", "blocks for values, a part for each party", read_by="Orch, worker"
)
BLOCKS_STRIDE = HEADER.word("BLOCKS_STRIDE", "words of a part", read_by="Orch, worker")
STUCK_NS = HEADER.word(
    "STUCK_NS",
    "how long a group waits for its workers before a warning",
    read_by="Scheduler thread",
)

A_LAYOUTS = HEADER.word("A_LAYOUTS", "layouts of described tensors", read_by="Orch, worker")
A_ACCESSES = HEADER.word("A_ACCESSES", "accesses of live tasks", read_by="Orch")
A_ACCESSES_END = HEADER.word("A_ACCESSES_END", "their end", read_by="Orch")
A_CELLS = HEADER.word(
    "A_CELLS",
    "heads of chains of accesses, three for each cell: reads, writes, reads by their bytes",
    read_by="Orch",
)
A_GRIDS = HEADER.word("A_GRIDS", "grids of cells", read_by="Orch")
A_OVERLAPS = HEADER.word("A_OVERLAPS", "accesses that a search has found", read_by="Orch")
A_CONFLICTS = HEADER.word("A_CONFLICTS", "conflicts that a search has found", read_by="Orch")

A_JOURNALS = HEADER.word("A_JOURNALS", "journals", read_by="all")

HEADER.line("the rings", written_by="Orch", read_by="Orch; anyone as hint", ordering="own")
RING_BLOCK = HEADER.word(
    "RING_BLOCK", "a line for each ring, as below", words=MAX_RING_DEPTH * RING.size
)

# ---------------------------------------------------------------- Orch thread
SPILL_CLASSES = 32
SPILL_SMALLEST = 64

ORCH = HEADER.line("the Orch thread's counters", written_by="Orch", read_by="Orch", ordering="own")
NEXT_TASK_ID = HEADER.word("NEXT_TASK_ID", "id of the next task", read_by="Orch; anyone as hint")
FREE_SLOT = HEADER.word("FREE_SLOT", "first slot of the free list")
SLOTS_USED = HEADER.word("SLOTS_USED", "slots that were ever in use in this run")
LIVE = HEADER.word(
    "LIVE", "tasks not yet reclaimed", read_by="Orch; anyone as hint"
)  # active_tasks
SCOPE_DEPTH = HEADER.word(
    "SCOPE_DEPTH", "open scopes, the run's own included", read_by="Orch; anyone as hint"
)
EDGE_COUNT = HEADER.word("EDGE_COUNT", "edges of this run")
WIRING_PUSHED = HEADER.word(
    "WIRING_PUSHED",
    "entries ever put into the wiring queue",
    read_by="Scheduler; `has_work`",
    ordering="release / acquire",
)
CANCEL = HEADER.word(
    "CANCEL",
    "1: tasks that have not started fail",
    read_by="Scheduler; `has_work`",
    ordering="release / acquire",
)

HEADER.line("TensorMap and long bodies", written_by="Orch", read_by="Orch", ordering="own")
MAP_BASE = HEADER.word("MAP_BASE", "area the live table is in")
MAP_MASK = HEADER.word("MAP_MASK", "its entries − 1")
MAP_COUNT = HEADER.word("MAP_COUNT", "keys in it")
SPILL_USED = HEADER.word("SPILL_USED", "end of the blocks in use or on a free list")
SPILL_FREE = HEADER.word("SPILL_FREE", "free list of each block size", words=SPILL_CLASSES)
FIFO_MASK = HEADER.word(
    "FIFO_MASK",
    "capacity of each ring's FIFO, minus 1; a full one leaves out what is released, and doubles if "
    "most is alive",
    words=MAX_RING_DEPTH,
)

HEADER.line("hazards", written_by="Orch", read_by="Orch", ordering="own")
ACCESS_FREE = HEADER.word("ACCESS_FREE", "free list of accesses")
ACCESSES_USED = HEADER.word("ACCESSES_USED", "end of the accesses that were ever in use")
ACCESS_COUNT = HEADER.word("ACCESS_COUNT", "accesses in use")
SWEEP_AT = HEADER.word("SWEEP_AT", "number of them at which those that are over are dropped")
CELL_MASK = HEADER.word("CELL_MASK", "cells − 1")
GRIDS_USED = HEADER.word("GRIDS_USED", "grids that were ever in use")
OVERLAP_STAMP = HEADER.word("OVERLAP_STAMP", "searches for accesses so far")
FOUND_LOW = HEADER.word("FOUND_LOW", "what the last search was for: lowest address")
FOUND_HIGH = HEADER.word("FOUND_HIGH", "past its highest address")
FOUND_LAYOUT = HEADER.word("FOUND_LAYOUT", "its layout")
FOUND_KINDS = HEADER.word("FOUND_KINDS", "kinds of accesses; 0: they have changed since")
FOUND_COUNT = HEADER.word("FOUND_COUNT", "how many there are")
CONFLICT_STAMP = HEADER.word(
    "CONFLICT_STAMP", "conflicts that were ever found, as a number below 0"
)

HEADER.line(
    "layouts of described tensors",
    written_by="Orch",
    read_by="Orch, worker",
    ordering="mailbox",
    rare=True,
)
LAYOUTS_USED = HEADER.word("LAYOUTS_USED", "end of the layouts, from `A_LAYOUTS` on")
LAYOUTS_EPOCH = HEADER.word("LAYOUTS_EPOCH", "how often they were forgotten")

HEADER.line("presence of the Orch thread", written_by="Orch", read_by="Orch", ordering="own")
ORCH_PASSES = HEADER.word(
    "ORCH_PASSES",
    "passes the Orch thread ran, tried or found needless; a change shows that it is not away",
    read_by="Scheduler thread as hint",
    ordering="hint",
)
ORCH_THREAD = HEADER.word(
    "ORCH_THREAD",
    "the thread whose run is open, 0 between runs",
    read_by="any thread that submits",
    ordering="hint: only the thread it names finds itself there",
)
ORCH_BACK_OFF = HEADER.word("ORCH_BACK_OFF", "ns it spins before it offers its core")
CORES = HEADER.word(
    "CORES",
    "threads that can run at a time",
    written_by="none after the start",
    read_by="Scheduler, worker",
    ordering="fork",
)
BESIDE = HEADER.word(
    "BESIDE",
    "1: workers of other trees, of which nothing is known here, run on the same cores",
    written_by="none after the start",
    read_by="worker",
    ordering="fork",
)
ID_WINDOW = HEADER.word(
    "ID_WINDOW",
    "how far ids may be above the oldest live task's, with one ring and a window; 0: any distance",
    written_by="none after the start",
    ordering="fork",
)
TRACK_READS = HEADER.word(
    "TRACK_READS",
    "1: in runs, a task waits for earlier ones that read bytes which it writes",
    written_by="none after the start",
    read_by="Orch, Scheduler",
    ordering="fork",
)
ORCH_KEEPS = HEADER.word(
    "ORCH_KEEPS",
    "times that it still keeps its core when due to back off; below 0: times that it does not",
)

HEADER.line("scopes", written_by="Orch", read_by="Orch", ordering="own")
SCOPE_STACK_WORDS = MAX_SCOPE_DEPTH + LINE
SCOPE_STACK = HEADER.word(
    "SCOPE_STACK", "head of each open scope's chain of tasks", words=SCOPE_STACK_WORDS
)

# ---------------------------------------------------------------- Scheduler (holder of PASS_LOCK)
# Where a field has two words, there is one for each worker type.
CANDIDATES_CAPACITY = 256
FIRST_PENALTY, MOST_PENALTY = 16, 1024
"""Bounds of PREDISPATCH_PENALTY."""

SCHED = HEADER.line(
    "the Scheduler's queues", written_by="Scheduler", read_by="Scheduler", ordering="lock"
)
WIRING_TAKEN = HEADER.word(
    "WIRING_TAKEN",
    "entries ever taken from the wiring queue",
    read_by="Orch; `has_work` as hint",
    ordering="release / acquire",
)
READY_HEAD = HEADER.word(
    "READY_HEAD", "oldest task of each ready queue", words=2, read_by="Scheduler; Orch as hint"
)
READY_TAIL = HEADER.word(
    "READY_TAIL", "one past its newest", words=2, read_by="Scheduler; Orch as hint"
)
BUSY = HEADER.word("BUSY", "workers that have a task", read_by="Scheduler; `has_work` as hint")
CONSUMED_HEAD = HEADER.word(
    "CONSUMED_HEAD",
    "chain of CONSUMED slots, on its way to the Orch thread",
    read_by="Scheduler; `help_scheduler` as hint",
)
DEATHS_SEEN = HEADER.word(
    "DEATHS_SEEN",
    "value of `DEATHS` that was acted on",
    read_by="Scheduler; `has_work` as hint",
)

HEADER.line(
    "outcome of the run",
    written_by="Scheduler",
    read_by="Orch",
    ordering="by `RUN_ERROR`",
    note="The Orch thread writes zeros into the counters and into `RUN_ERROR` when a run begins, "
    "while no task is alive.",
)
DEALT = HEADER.word(
    "DEALT",
    "tasks that are no longer PENDING, or are pre-dispatched",
    read_by="Scheduler; Orch and Scheduler thread as hint",
    ordering="lock",
)
UNCOLLECTED = HEADER.word(
    "UNCOLLECTED",
    "idle workers whose mailbox still says TASK_DONE",
    read_by="Scheduler; `has_work` as hint",
    ordering="lock",
)
COMPLETED_COUNT = HEADER.word(
    "COMPLETED_COUNT",
    "tasks that succeeded",
    written_by="Scheduler; 0 by Orch before a run",
    read_by="Orch and anyone as hint",
    ordering="lock",
)
FAILED_COUNT = HEADER.word(
    "FAILED_COUNT",
    "tasks that failed, poisoned and cancelled ones included",
    written_by="Scheduler; 0 by Orch before a run",
    read_by="Orch and anyone as hint",
    ordering="lock",
)
RUN_ERROR = HEADER.word(
    "RUN_ERROR",
    "0, or the kind of the run's first failure",
    written_by="Scheduler; 0 by Orch before a run",
    ordering="release / acquire",
)
ERROR_TASK = HEADER.word("ERROR_TASK", "id of that task")
ERROR_WORKER = HEADER.word("ERROR_WORKER", "its worker, −1 if it never ran")
ERROR_CALLABLE = HEADER.word("ERROR_CALLABLE", "its callable word")

HEADER.line(
    "the rest of the Scheduler's words",
    written_by="Scheduler",
    read_by="Scheduler",
    ordering="lock",
)
ERROR_DETAIL = HEADER.word(
    "ERROR_DETAIL",
    "exit code of the dead worker, plus `DEATH_BIAS`",
    read_by="Orch",
    ordering="by `RUN_ERROR`",
)
DEFERRED_SINCE = HEADER.word(
    "DEFERRED_SINCE",
    "since when (ns) the head of each ready queue is deferred; 0: it is not",
    words=2,
    read_by="Scheduler; Orch and Scheduler thread as hint",
)
RETIRING = HEADER.word("RETIRING", "chain of terminal tasks, for `retire`")
READY_MASK = HEADER.word(
    "READY_MASK", "capacity of each ready queue, minus 1; it doubles as needed", words=2
)
ERROR_MEMBER = HEADER.word(
    "ERROR_MEMBER",
    "which member of a group failed, −1 for a single task",
    read_by="Orch",
    ordering="by `RUN_ERROR`",
)
READY_ORDER = HEADER.word("READY_ORDER", "tasks that ever became ready")

HEADER.line(
    "tasks with an affinity, groups that wait, pre-dispatch",
    written_by="Scheduler",
    read_by="Scheduler",
    ordering="lock",
)
AFFINITY = HEADER.word(
    "AFFINITY",
    "ready tasks in the chains of each pool's workers",
    words=2,
    read_by="Scheduler; Orch as hint",
)
STUCK_SINCE = HEADER.word(
    "STUCK_SINCE",
    "since when (ns) the group at the head of each ready queue waits for its workers; 0: none",
    words=2,
    read_by="Scheduler; Orch and Scheduler thread as hint",
)
STUCK_TOLD = HEADER.word(
    "STUCK_TOLD",
    "`STUCK_SINCE` of the last group warned of",
    written_by="Scheduler thread",
    read_by="Scheduler thread; Orch as hint",
    ordering="own",
    rare=True,
)
CANDIDATES_HEAD = HEADER.word("CANDIDATES_HEAD", "the oldest of `CANDIDATES`", words=2)
CANDIDATES_TAIL = HEADER.word("CANDIDATES_TAIL", "one past its newest", words=2)
PREDISPATCH_AFTER = HEADER.word(
    "PREDISPATCH_AFTER", "`READY_ORDER` at which a pause of pre-dispatch ends"
)
RETURNED_COUNT = HEADER.word("RETURNED_COUNT", "tasks that workers ever returned")
PREDISPATCH_PENALTY = HEADER.word(
    "PREDISPATCH_PENALTY", "length of its last pause, in tasks that become ready"
)

HEADER.line(
    "answers for readers without the lock",
    written_by="Scheduler",
    read_by="Scheduler; anyone as hint",
    ordering="lock",
)
MAY_MOVE = HEADER.word(
    "MAY_MOVE",
    "1: after the last dispatch a task became ready, or ready tasks may start that could not",
    read_by="Scheduler; `has_work` as hint",
)
STUCK_TASK = HEADER.word("STUCK_TASK", "id of the group of `STUCK_SINCE`", words=2)
STUCK_CALLABLE = HEADER.word("STUCK_CALLABLE", "its callable word", words=2)
STUCK_MEMBERS = HEADER.word("STUCK_MEMBERS", "its members", words=2)

MOST_NOTED = 14
"""Failed calls that are kept until Python looks at them."""

HEADER.line(
    "calls that failed by themselves",
    written_by="Scheduler",
    read_by="Scheduler",
    ordering="lock",
)
NOTED = HEADER.word(
    "NOTED",
    "how many of `NOTED_CALLS` there are",
    written_by="Scheduler; 0 by Orch before a stream",
)
NOT_NOTED = HEADER.word(
    "NOT_NOTED",
    "calls of the stream for which these had no room",
    written_by="Scheduler; 0 by Orch before a stream",
    read_by="Scheduler; Orch as hint",
)
NOTED_CALLS = HEADER.word("NOTED_CALLS", "slots, each with a reference", words=MOST_NOTED)

HEADER.line(
    "candidates for pre-dispatch",
    written_by="Scheduler",
    read_by="Scheduler",
    ordering="lock",
)
CANDIDATES = HEADER.word(
    "CANDIDATES",
    "per worker type: tasks that could be pre-dispatched, a circular array of hints",
    words=2 * CANDIDATES_CAPACITY,
)

HEADER.line(
    "words of the first failure",
    written_by="Scheduler",
    read_by="Orch",
    ordering="by `RUN_ERROR`",
)
ERROR_MSG = HEADER.word("ERROR_MSG", "copy of the failed task's message", words=ERROR_MSG_WORDS)
ERROR_TRACE = HEADER.word(
    "ERROR_TRACE", "copy of its traceback: byte count, then UTF-8", words=TRACE_WORDS
)
MOST_TOLD = 4
"""Tasks of either kind that the story of a failure names."""
STORY_WORDS = 1 + 2 * MOST_TOLD
ERROR_STATE = HEADER.word("ERROR_STATE", "the state of that task when it failed")
ERROR_NEEDED = HEADER.word(
    "ERROR_NEEDED",
    "tasks that it waited for: how many, then id and callable word of the first",
    words=STORY_WORDS,
)
ERROR_NEEDING = HEADER.word(
    "ERROR_NEEDING", "the same of the tasks that wait for it", words=STORY_WORDS
)

# ---------------------------------------------------------------- locks and park words
ACTIVE = 1
"""Parked, woken by any event: no other thread runs passes."""
STANDBY = 2
"""Parked while the Orch thread runs passes; woken when a completion stays uncollected."""
TIMED = 3
"""Like STANDBY, with a timer: a ready task is deferred, or an end may stay unseen."""
KEEP_TIME = 4
"""Woken to sleep on as TIMED: the Orch thread asks for no pass."""
AT_REST = 5
"""Parked while each worker has tasks left; woken by one that runs low, or whose task failed."""

CALLS, STRANDED = 1, 2
"""States of a stream."""

HEADER.line(
    "the lock",
    written_by="the threads that take it: Orch, Scheduler thread, requester",
    read_by="the same",
    ordering="compare-and-exchange / release",
)
PASS_LOCK = HEADER.word("PASS_LOCK", "1 while a thread is the Scheduler")

HEADER.line(
    "park words",
    written_by="Orch",
    read_by="the threads that may wake it",
    ordering="store, fence, look again",
    note="They are 0 nearly all the time and are written only around a sleep, so they may share a line.",
    rare=True,
)
ORCH_AWAITS = HEADER.word(
    "ORCH_AWAITS",
    "the task that an Orch thread at rest is woken by, else NONE or STAY",
    written_by="Orch",
    read_by="worker that has seen `AT_REST`",
)
PARK_ORCH = HEADER.word(
    "PARK_ORCH",
    "0 awake, else parked: `ACTIVE`, wake it for any event, or `AT_REST`",
    written_by="Orch; 0 also by worker, Scheduler thread, requester, monitor, to wake it",
)
PARK_SCHED = HEADER.word(
    "PARK_SCHED",
    "0 or `KEEP_TIME` awake, else parked `ACTIVE`, `STANDBY` or `TIMED`",
    written_by="Scheduler thread; 0 also by worker, Orch, requester, monitor, closer, to wake it; "
    "`STANDBY` and `KEEP_TIME` also by Orch",
)
ORCH_CORE = HEADER.word(
    "ORCH_CORE",
    "number + 1 of the core on which the Orch thread submits; 0: it waits, or is away",
    written_by="Orch; 0 also by the Scheduler thread",
    read_by="worker",
    ordering="hint",
)

HEADER.line(
    "rare events",
    written_by="monitor",
    read_by="Scheduler; `has_work`",
    ordering="release / acquire",
    rare=True,
)
DEATHS = HEADER.word("DEATHS", "workers that ever died")
STOPPING = HEADER.word(
    "STOPPING",
    "1: the Scheduler thread must end",
    written_by="closer",
    read_by="Scheduler thread",
)

HEADER.line(
    "the stream of calls",
    written_by="Orch",
    read_by="Scheduler; Orch",
    ordering="wiring",
    rare=True,
)
STREAM = HEADER.word(
    "STREAM",
    "0, or while tasks are calls, which keep their own outcomes: `CALLS`, dead workers get successors; "
    "`STRANDED`, none could be made",
    written_by="Orch, Scheduler",
    read_by="Orch, Scheduler; worker, for its notes",
)
ORCH_WANTED = HEADER.word(
    "ORCH_WANTED",
    "1: another thread wants to be the Orch thread, or has something for it: the one that waits leaves",
    ordering="store, fence, look again",
)

HEADER.line(
    "tracing",
    written_by="Orch",
    read_by="Orch, Scheduler, Scheduler thread, worker",
    ordering="hint",
    rare=True,
)
TRACING = HEADER.word(
    "TRACING", "0; or what is noted: `TRACE_TASKS`, what workers do, or `TRACE_ALL`"
)
TRACED_FROM = HEADER.word(
    "TRACED_FROM",
    "number in the trace of the run's first task",
    read_by="Orch, Scheduler",
    ordering="wiring",
)
IDS_BEFORE = HEADER.word(
    "IDS_BEFORE",
    "how many ids were given out before they began at 0 again",
    read_by="anyone as hint",
    ordering="hint",
)
SUBMIT_LINE = HEADER.word(
    "SUBMIT_LINE",
    "number of the line of the program that submits",
    read_by="Orch; Scheduler never does, though the kernel of both names it",
    ordering="own",
)
TRACE_EXTRAS = HEADER.word(
    "TRACE_EXTRAS",
    "what else is noted of tensors: `EXTRA_SHAPES`; `EXTRA_DUMP`, `EXTRA_MARKED`: workers are told",
    read_by="Orch",
    ordering="own",
)

UNORDERED_LOW = HEADER.word(
    "UNORDERED_LOW",
    "with `check=True`: the lowest address of tensors of the run that may be written at any time",
    read_by="worker",
)
UNORDERED_HIGH = HEADER.word(
    "UNORDERED_HIGH", "the address past the highest of them; 0: there is none", read_by="worker"
)

HEADER.line(
    "the collector of notes",
    written_by="collector",
    read_by="collector",
    ordering="own",
    rare=True,
)
PARK_COLLECTOR = HEADER.word(
    "PARK_COLLECTOR",
    "0 awake, 1 parked",
    written_by="collector; 0 also by Orch, Scheduler, Scheduler thread, worker",
    ordering="store, fence, look again",
)
COLLECTOR_ASKED = HEADER.word(
    "COLLECTOR_ASKED",
    "1: the collector should return when it has written what there is",
    written_by="collector; Orch",
    ordering="release / acquire",
)
COLLECTOR_CHUNK = HEADER.word(
    "COLLECTOR_CHUNK", "the note that precedes those of a journal in the file", words=NOTE_WORDS
)

HEADER.line("timers", written_by="Scheduler thread", read_by="Orch", ordering="release / acquire")
WATCHING = HEADER.word("WATCHING", "1 while it sleeps with a timer for a group that waits")

HEADER.line(
    "tests only",
    written_by="tests; 0 by the worker it names",
    read_by="workers that start",
    ordering="own",
    rare=True,
)
START_FAIL = HEADER.word(
    "START_FAIL",
    "the worker that dies during its start, and the fail point: worker + 1 << 8 | fail point",
)
HEADER_WORDS = HEADER.align()
