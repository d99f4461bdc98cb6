"""Numbers that cross a boundary and are not offsets: limits, states, answers, times.

Rule     SCHED-MAIL-1, WM-MAIL-3, WM-MAIL-5, FAIL-OUTCOME-1
"""

from __future__ import annotations

LINE = 8  # words of a cache line
WORD = 8  # bytes of a word
PAGE_WORDS = (64 << 10) // WORD  # of the largest pages there are
HALF = 32  # bits of half a word, for words that hold two numbers
LOW_HALF = (1 << HALF) - 1
NONE = 0  # no slot, no edge, no block: offset 0 is the header's
STAY = -1  # in the place of a call to wait for: none, and the turn is not given to others

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
"""Tasks that may be alive at once; their memory is touched only when they are submitted."""

DTYPE_SIZES = (4, 2, 4, 2, 1, 1, 2, 8, 8, 2, 4, 1)
"""Bytes per element of each DataType, in the order of its values."""

# tags (TensorArgType)
INPUT, OUTPUT, INOUT, OUTPUT_EXISTING, NO_DEP = range(5)
# worker types (WorkerType), also the index of a pool and of a ready queue
NEXT_LEVEL, SUB = range(2)
# states of a task (TaskState)
FREE, PENDING, READY, RUNNING, COMPLETED, CONSUMED, FAILED = range(7)
# what a task has to wait for: to read what that task writes, so that it fails with it; or only its end
ORDER, NEEDS = range(2)
# states of a mailbox (MailboxState)
IDLE, TASK_READY, TASK_DONE, SHUTDOWN, CONTROL_REQUEST, CONTROL_DONE, INIT_DONE = range(7)
# outcomes of a task
SUCCESS, TASK_FAILURE, ENDPOINT_FAILURE, SKIPPED = range(4)
RETURNED = 4  # no outcome: a worker did not start a pre-dispatched task
ANSWERING = -1  # in W_SINCE: the task has run, and may not be answered yet
# what a call of a stream has returned: the kind of its value
(
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_UNSIGNED,
    VALUE_FLOAT,
    VALUE_NUMPY_BOOL,
    VALUE_NUMPY_INT64,
    VALUE_NUMPY_FLOAT64,
    VALUE_BLOCK,
    VALUE_ERROR,
) = range(10)
"""The last two are in a block, whose offset is the word."""
KEY_BITS = 40
CALL_KEY = (1 << KEY_BITS) - 1
"""Bits of the first scalar of a call: its key, the block of its task; see `calls/arguments.py`."""
BLOCK_AGAIN = 3  # word of that block: how often a call is run again whose worker has died
NEVER_BEGAN, MAY_HAVE_BEGUN = 1, 2  # S_BEGAN of tasks that have failed
VALUE_LOST = 16  # none: the worker has died; its number and exit code are in the word
VALUE_STRANDED = 17  # none: no worker was left that could run it
VALUE_POISONED = 18  # none: a call that it needs has failed; the word is minus the slot of that one
VALUE_NO_ROOM = 19  # none: there was no room for it; the word is the bytes that it needs
VALUE_CANCELLED = 20  # none: it was cancelled; the word is minus its own slot
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
LINK_COMMIT, LINK_ASK, LINK_COUNTERS, LINK_BRING_HOME = 64, 65, 66, 67
LINK_COMMANDS = LINK_COMMIT, LINK_ASK, LINK_COUNTERS, LINK_BRING_HOME
"""Of endpoints: the second phase of a registration; a request that is sent on; what was moved; tensors
that shall come home."""
PROBE_TASKS = 80
"""Of any worker: what it does around each task while flags ask for it; JSON, empty: nothing any more."""
TRACE_BELOW = 81
"""Of child Workers and endpoints: begin a trace, or end it; JSON, and so is the answer."""

# ---------------------------------------------------------------- answers of the kernels
OK = 0
WOULD_BLOCK = -1  # no room now: nothing changed; wait and call again
TOO_LARGE = -2  # the request exceeds its ring: it can never succeed
RUN_FAILED = -3  # a task of this run has failed: nothing more is accepted
TOO_DEEP = -4  # MAX_SCOPE_DEPTH user scopes are open
NO_SCOPE = -5  # no user scope is open
ILLEGAL = -6  # the state machine has no such step: nothing changed
TIMED_OUT = -7
INTERRUPTED = -8
TOO_MANY_ARGS = -9  # the arguments do not fit a mailbox: nothing changed
WRONG_THREAD = -10  # the calling thread does not own the run: nothing changed
WANTED = -12  # another thread wants to be the Orch thread of the stream
STUCK = -11  # a group has waited for its workers for STUCK_NS: a warning is due
MORE = 1  # a slice of a program is done, the program is not

AUTO_OUTPUT = 1 << 62  # set in what submit returns when it provided the memory of an output

# what a worker's `next_task` says besides a local slot
STOP = -1
PARK = -2
RESOLVE = -3
CONTROL = -4
COMPILED = -5  # a task for a compiled leaf: W_LEAF has its address
MISMATCH = -6  # the compiled leaf in W_LEAF takes other arguments than those in the mailbox
RAISED = -8  # the compiled leaf has raised an error, whose address W_LEAF has
MALFORMED = -7  # what the mailbox says of its arguments is wrong; see `mailbox.decode`

# many submits
PROGRAM_SLICE = 2048  # tasks after which Python handles signals
LOOK_EVERY = 8  # tasks submitted in bulk between two looks at the workers
PASS_AT_LATEST = 64  # tasks that wait to be wired, after which a pass is due

# waiting
CROWDED_NS = 1_000
"""An offer of the core that takes longer was accepted: two switches and some work."""
BACK_OFF_STEPS = 32  # refused offers that raise a back-off time from 0 to YIELD_NS
KEEP_NS = 2_000
"""How long the Orch thread keeps its core while an answer from another core may be near."""
KEEPS, KEEPS_OFF = 8, 64  # such waits in vain after which it stops, and waits for which it stops
RESERVES = 4
"""A worker's reserve is its frames divided by this; with no more tasks left it needs a pass."""
RETURN_BUDGETS = 4
"""Spin budgets (SPIN_NS) after which a worker returns a pre-dispatched task that still waits."""
MOVE_NS = 1_000_000  # a worker that shares its core with another moves at most this often
UNSEEN_NS = 200_000
"""A worker that has had no task for this long reports that its last answer is uncollected."""
LOOKS = 16  # a worker that spins reads the clock once in this many looks
