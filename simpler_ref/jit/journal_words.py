"""The memory of traces: a journal for each thread and worker, and what is noted in it.

Rule     SEE-NOTE-2
"""

from __future__ import annotations

from .schema import Record, name_words

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

DUMPED_AFTER, DUMPED_SCALAR = 1 << 16, 1 << 17  # in the operand of NOTED_DUMPED
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
NOTED_WOKE = 27  # the Scheduler woke a worker, the operand
NOTED_RUN = 28
"""A run (operand 1) or a stream of calls (2) begins; 0: it has ended. NOTE_TASK is its first task."""
NOTED_PASSES = 29  # the Scheduler thread ran passes that moved something: NOTE_TIME to NOTE_VALUE
NOTED_SHAPE = 30
"""Dimensions of a tensor: its number, from bit 16 how many, from bit 24 the fifth; then two and two."""
NOTED_SUBMIT = 31  # the Orch thread carried out one submit of Python: NOTE_TIME to NOTE_VALUE
NOTED_DUMPED = 32
"""A worker wrote a tensor into a file: its number, and `DUMPED_AFTER` if after the task; where, how many
bytes. With `DUMPED_SCALAR` it saw a scalar: its number after the tensors; its bits and its kind."""
NOTED_COUNTED = 33
"""What two counters, of which the operand is the first, have counted during a task."""
NOTED_LAYOUT = 34
"""The tensor of the last NOTED_ARGUMENT is a view: NOTE_VALUE is the number of its layout, from bit 32
on their epoch."""
NOTED_WROTE = 35
"""With ``check=True``: an INPUT of a task, the operand, has changed: addresses of the first byte and
past the last one."""
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

name_words(globals())
