"""The memory of one worker: its control words, the frames of its tasks, their mailboxes.

Rule     SCHED-MAIL-1; WM-MAIL-3, -5
"""

from __future__ import annotations

from . import structures
from .constants import CALLABLE_HASH_DIGEST_BYTES, WORD
from .schema import Record

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

MAILBOX = Record("mailbox")
MAILBOX.section(written_by="Scheduler", read_by="worker", ordering="mailbox")
MAIL_STATE = MAILBOX.word(
    "MAIL_STATE",
    "state in the low half, error code in the high half; with TASK_READY the number of the task in a "
    "trace",
    written_by="Scheduler, requester, worker; monitor, closer at the end",
    read_by="Scheduler, requester, worker, Orch; `has_work` as hint",
    ordering="exchange / acquire",
)
MAIL_COMMAND = MAILBOX.word(
    "MAIL_COMMAND",
    "which control request; 0 for a task",
    written_by="requester; 0 by the Scheduler afterwards",
)
MAIL_CONFIG = MAILBOX.word(
    "MAIL_CONFIG",
    "`CallConfig` of the task",
    words=CONFIG_WORDS,
    written_by="Scheduler; requester: three arguments; worker: the result of a request",
    read_by="worker; requester",
)
MAIL_DIGEST = MAILBOX.word("MAIL_DIGEST", "SHA-256 of the callable", words=DIGEST_WORDS)
MAIL_COUNTS = MAILBOX.word(
    "MAIL_COUNTS", "tensors in the low half, scalars in the high half"
)  # two i32
MAIL_TENSORS = MAILBOX.word(
    "MAIL_TENSORS",
    "five words per tensor, then one per scalar",
    words=MAILBOX_WORDS - ERROR_MSG_WORDS - MAILBOX.size,
)
MAIL_ERROR_MSG = MAILBOX.word(
    "MAIL_ERROR_MSG",
    "message of a failed task",
    words=ERROR_MSG_WORDS,
    written_by="worker",
    read_by="Scheduler",
)

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
CACHE = Record("digest cache entry")
CACHE.section(written_by="worker", read_by="worker", ordering="own")
CACHE_DIGEST = CACHE.word("CACHE_DIGEST", "SHA-256 of a callable", words=DIGEST_WORDS)
CACHE_LOCAL = CACHE.word("CACHE_LOCAL", "its local slot + 1")
CACHE_LEAF = CACHE.word("CACHE_LEAF", "address of its compiled code, 0 for a Python callable")
DIGEST_CACHE_WORDS = CACHE.size
DIGEST_CACHE = 16
BY_KEY = -1
"""In CACHE_LEAF: these are calls, and each function may have compiled code of its own."""

# ---------------------------------------------------------------- the code of one function that is called
CODE = Record("code of calls")
CODE.section(written_by="worker", read_by="worker", ordering="own")
CODE_KEY = CODE.word("CODE_KEY", "the key of a function, see `CALL_KEY`; 0: the entry is free")
CODE_ADDRESS = CODE.word("CODE_ADDRESS", "address of its compiled code")
CODE_WORDS = CODE.size
CODES = 64
LOOKS_FOR_CODE = 8
"""Entries that a key can have."""

# ---------------------------------------------------------------- one worker: control, mailbox, trace
# A worker has one of these blocks for each task that it may have at once (DEPTH). Each is a frame: words
# with "each frame" exist in all of them. The others are used in the first block only.
MAX_DEPTH = 64
DEATH_BIAS = 1024
"""Added to an exit code in W_DEATH, where 0 is a worker that is alive."""
CLAIM_WAITS, CLAIM_GRANTED = 1, 2
"""Of W_CLAIM, beside 0."""
ENDED_WELL, ENDED_BADLY, ENDED_NOT = range(3)
"""The two low bits of W_ENDED."""
ALIVE, CLAIMED = 1, 2
"""Bits of W_USABLE."""
MOST_WAITS = 8
KINDS_WORDS = 240
TRACE_WORDS = 8192
TRACE_CAPACITY = (TRACE_WORDS - 1) * WORD

WORKER = Record("worker")
WORKER.line(
    "what the parent tells the worker once",
    written_by="closer",
    read_by="worker",
    ordering="release / acquire",
    rare=True,
)
W_SHUTDOWN = WORKER.word("W_SHUTDOWN", "1: stop; set once in a process's life")  # D20
W_DEATH = WORKER.word(
    "W_DEATH",
    "0 alive, else exit code + `DEATH_BIAS`",
    written_by="monitor; in THREAD mode the thread that ends",
    read_by="Scheduler, requester, Orch at the start",
)
W_CLAIM = WORKER.word(
    "W_CLAIM",
    "0, or that a requester waits for the mailbox or owns it",
    written_by="Scheduler",
    read_by="requester",
)
W_FAIL = WORKER.word(
    "W_FAIL",
    "tests only: the fail point to die at",
    written_by="tests, the worker at its start",
    ordering="own",
)

WORKER.line("what the worker reports", written_by="worker", read_by="worker", ordering="hint")
W_PARKED = WORKER.word(
    "W_PARKED",
    "1 while the worker sleeps, or is about to, on the state of its mailbox",
    read_by="Scheduler, requester; `has_work`, `pass_in_bulk` and other workers as hint",
    ordering="store, fence, look again",
)
W_LOOKOUT = WORKER.word(
    "W_LOOKOUT",
    "1 while a second thread of the worker sleeps until it is sent another task",
    written_by="worker, Scheduler",
    read_by="Scheduler",
    ordering="park word",
)
W_CORE = WORKER.word(
    "W_CORE", "number + 1 of the core it was last seen on", read_by="worker, other workers, Orch"
)
W_KEPT_OFF = WORKER.word(
    "W_KEPT_OFF",
    "number + 1 of the core it may not use since it was woken; 0: none",
    written_by="Scheduler, worker",
    read_by="Scheduler, worker",
)

WORKER.line("the worker's own state", written_by="worker", read_by="worker", ordering="own")
W_AT = WORKER.word(
    "W_AT",
    "the frame it serves or waits for, as an offset from its first block",
    read_by="worker; Scheduler as hint, when it has seen it asleep",
    ordering="own; `W_PARKED`",
)
W_LEAF = WORKER.word("W_LEAF", "address of the compiled leaf that runs, else 0")
W_DEVICE_NS = WORKER.word(
    "W_DEVICE_NS",
    "time its chip, or those below it, ever spent on tasks",
    read_by="Orch before and after a run",
    ordering="mailbox",
)
W_BACK_OFF = WORKER.word("W_BACK_OFF", "ns it spins before it offers its core")
W_HOME = WORKER.word("W_HOME", "number + 1 of the core it goes to if it shares another; 0: none")
W_MOVED = WORKER.word("W_MOVED", "when it last moved, ns")
W_THREAD = WORKER.word(
    "W_THREAD",
    "the system's id of its thread; 0: the worker never chooses its core",
    read_by="Scheduler",
    ordering="mailbox",
)
W_BEGAN = WORKER.word(
    "W_BEGAN", "while a trace is taken: when its task or request began, ns; 0: it has none"
)
W_NUMBER = WORKER.word("W_NUMBER", "likewise: the number of its task in the trace")
W_SINCE = WORKER.word(
    "W_SINCE",
    "when its task or request began, by a clock that ticks every few ms; 0: it has none; or `ANSWERING`",
    read_by="worker; anyone as hint; Scheduler after the worker's death",
    ordering="hint",
)

WORKER.line(
    "what other workers read",
    written_by="worker",
    read_by="worker, other workers",
    ordering="release / acquire",
)
W_ENDED = WORKER.word(
    "W_ENDED",
    "each frame; answers ever given in it, times four, and how the last task ended",
)
W_SENT = WORKER.word(
    "W_SENT",
    "each frame; `W_FILLED` for which an endpoint's link has sent its call on, so that it may have begun",
    read_by="Scheduler after the worker's death",
)

WORKER.line("callables it has seen", written_by="worker", read_by="worker", ordering="own")
W_CACHE = WORKER.word(
    "W_CACHE",
    "digests seen, with the local slot of each and the address of its compiled code",
    words=DIGEST_CACHE * DIGEST_CACHE_WORDS,
)
W_CODES = WORKER.word(
    "W_CODES",
    "the compiled code of functions that calls have named",
    words=CODES * CODE_WORDS,
)

WORKER.line("contents of a frame", written_by="Scheduler", read_by="Scheduler", ordering="lock")
W_SLOT = WORKER.word(
    "W_SLOT", "each frame; its task, else NONE", read_by="Scheduler; worker as hint"
)
W_LAST_CALLABLE = WORKER.word(
    "W_LAST_CALLABLE", "each frame; index + 1 of the digest in the mailbox"
)
W_LAST_CONFIG = WORKER.word(
    "W_LAST_CONFIG", "each frame; index + 1 of the configuration in the mailbox"
)
W_MEMBER = WORKER.word(
    "W_MEMBER", "each frame; which member of a group it is, plus 1; 0 for a single task"
)
W_FILLED = WORKER.word(
    "W_FILLED",
    "each frame; how often it was filled: `W_ENDED` counts up to this",
    read_by="Scheduler; worker when it looks out",
    ordering="`W_LOOKOUT`",
)
W_RAN = WORKER.word(
    "W_RAN",
    "the task that the worker ended last, id + 1 above the index of its callable: for the message "
    "about a death; 0: none",
    read_by="Orch after a death",
)

WORKER.line(
    "the Scheduler's state of the worker",
    written_by="Scheduler",
    read_by="Scheduler",
    ordering="lock",
)
W_HEAD = WORKER.word(
    "W_HEAD",
    "the oldest frame in use, as an offset from the first block",
    read_by="Scheduler; `has_work` as hint",
)
W_TAIL = WORKER.word(
    "W_TAIL",
    "the frame for the next task",
    read_by="Scheduler; requester, monitor, closer while it has no task; Orch at the start; "
    "`has_reserve` as hint",
)
W_GIVEN = WORKER.word(
    "W_GIVEN",
    "tasks it was sent that are not collected",
    read_by="Scheduler; `has_work`, `kill_busy`, `pass_in_bulk` as hint",
)
W_COLLECTED = WORKER.word("W_COLLECTED", "1: it is idle, its mailbox still says TASK_DONE")
W_USABLE = WORKER.word(
    "W_USABLE",
    "`ALIVE` between INIT_DONE and death, and `CLAIMED` while a requester has claimed it",
)
W_AFFINITY_HEAD = WORKER.word(
    "W_AFFINITY_HEAD", "oldest ready task with an affinity for this worker"
)
W_AFFINITY_TAIL = WORKER.word("W_AFFINITY_TAIL", "its newest")
W_UNTOLD = WORKER.word("W_UNTOLD", "1: it was sent a task in this pass, and may sleep")

WORKER.line("what its task waits for", written_by="Scheduler", read_by="worker", ordering="mailbox")
W_WAITS = WORKER.word(
    "W_WAITS",
    "each frame; how many ends its pre-dispatched task waits for; 0: it was ready",
    read_by="worker, Scheduler",
)
W_SKIP = WORKER.word(
    "W_SKIP",
    "each frame; `SKIPPED` or `RETURNED`: the answer instead of starting",
    ordering="release / acquire",
)
W_WAIT_FOR = WORKER.word(
    "W_WAIT_FOR",
    "each frame; for each of `W_WAITS` ends: offset of its `W_ENDED`, and the count to wait for",
    words=2 * MOST_WAITS,
)

WORKER.line("the mailbox", written_by="Scheduler", read_by="worker", ordering="mailbox")
W_MAILBOX = WORKER.word(
    "W_MAILBOX",
    "each frame; the mailbox",
    words=MAILBOX_WORDS,
    written_by="Scheduler or requester, and worker, in turn",
    read_by="Scheduler, requester, worker, Orch",
    ordering="see below",
)

WORKER.line("beside the mailbox", written_by="Scheduler", read_by="worker", ordering="mailbox")
W_KINDS = WORKER.word(
    "W_KINDS",
    "each frame; a byte for each scalar of its task: its kind",
    words=KINDS_WORDS,
)
W_ENV = WORKER.word(
    "W_ENV", "each frame; the `RuntimeEnv` of its task's configuration", words=ENV_WORDS
)

WORKER.line(
    "what its task returned",
    written_by="worker; 0 by Scheduler",
    read_by="Scheduler",
    ordering="mailbox",
)
W_VALUE = WORKER.word("W_VALUE", "each frame; of a call: its value, see `S_VALUE`")
W_KIND = WORKER.word("W_KIND", "each frame; of a call: the kind of its value")

WORKER.line("traceback", written_by="worker", read_by="Scheduler, requester", ordering="mailbox")
W_TRACE = WORKER.word(
    "W_TRACE",
    "each frame; traceback of a failed task: byte count, then UTF-8",
    words=TRACE_WORDS,
)
WORKER_WORDS = WORKER.align()
"""One block: a worker's words at `DEPTH` 1."""
