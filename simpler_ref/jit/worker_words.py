"""The memory of one worker: its control words, the frames of its tasks, their mailboxes.

Rule     SCHED-MAIL-1; WM-MAIL-3, -5
"""

from __future__ import annotations

from . import structures
from .constants import CALLABLE_HASH_DIGEST_BYTES, WORD
from .schema import Record, name_words

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
W_LEAF = WORKER.word("address of the compiled leaf that runs, else 0")
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
W_AFFINITY_HEAD = WORKER.word("oldest ready task with an affinity for this worker")
W_AFFINITY_TAIL = WORKER.word("its newest")
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

WORKER.line("what its task returned", "worker; 0 by Scheduler", "Scheduler", "mailbox")
W_VALUE = WORKER.word("each frame; of a call: its value, see `S_VALUE`")
W_KIND = WORKER.word("each frame; of a call: the kind of its value")

WORKER.line("traceback", "worker", "Scheduler, requester", "mailbox")
W_TRACE = WORKER.word("each frame; of a failed task: byte count, then UTF-8", words=TRACE_WORDS)
WORKER_WORDS = WORKER.align()  # one block: a worker's words at `DEPTH` 1

name_words(globals())
