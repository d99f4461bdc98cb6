"""The beginning of an engine: geometry, rings, and the words of its threads.

Words that different parties write are on different cache lines.

Rule     SCHED-MAIL-1; FAIL-OUTCOME-1
"""

from __future__ import annotations

from .constants import LINE, MAX_RING_DEPTH, MAX_SCOPE_DEPTH
from .journal_words import NOTE_WORDS
from .schema import Record, name_words
from .worker_words import ERROR_MSG_WORDS, TRACE_WORDS

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
A_READY = HEADER.word("ready queue of each worker type", words=2)
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
PARKS_AT_ONCE = HEADER.word("1: tasks are long, so that it parks without spinning")

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
FOUND_KINDS = HEADER.word("kinds of accesses; 0: they have changed since")
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
READY_HEAD = HEADER.word("oldest task of each ready queue", words=2, hint="Orch")
READY_TAIL = HEADER.word("one past its newest", words=2, hint="Orch")
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
READY_MASK = HEADER.word("capacity of each ready queue, minus 1; it doubles as needed", words=2)
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
STUCK_TASK = HEADER.word("id of the group of `STUCK_SINCE`", words=2)
STUCK_CALLABLE = HEADER.word("its callable word", words=2)
STUCK_MEMBERS = HEADER.word("its members", words=2)

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

name_words(globals())
