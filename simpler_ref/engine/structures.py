"""The documents' structures, each on its own: to learn, to test, to move by hand.

Every one is a handle over an engine, and its methods are the kernels that the engine itself runs. It
makes a small one for itself, or takes that of another part, as in `Scheduler(slots)`::

    Ring         ids and slabs             jit/ring.py
    TensorMap    producers of buffers      jit/tensormap.py
    Scope        references of scopes      jit/submit.py
    TaskSlots    states and references     jit/slots.py
    Mailbox      one frame of a worker     jit/mailbox.py

`simpler_ref.stepping` puts them together, with the Scheduler and workers. Nothing here may be used while
threads of a Worker move the same engine.

Rule     ORCH-API-4, ORCH-API-5, ORCH-RING-12, ORCH-RING-15, ORCH-SCOPE-1, ORCH-MAP-1, ORCH-MAP-7
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import RingFullError
from ..jit import layout as L
from ..jit.slots import EVENTS
from ..model.arguments import TaskArgs, submit_words
from ..model.config import CallConfig
from ..model.enums import DataType, MailboxState, TaskState, WorkerType
from ..model.tensor import ContinuousTensor
from ..system.values import position, whole
from .introspection import Rings, RingView, SlotView, describe_full
from .memory import Engine
from .view import mailbox, slots
from .view.slots import TaskView, read_slot

INVALID = -1
"""`TensorMap.lookup`: the buffer has no producer."""


class AllocResult(NamedTuple):
    """The result of `Ring.alloc`."""

    slot: int
    """Task id, counted from 0 since the ring was last reset."""
    heap_ptr: int | None
    """Address of the slab; None for zero bytes."""
    heap_end_offset: int
    """Offset in the ring just past the slab."""
    ring_idx: int


class Ring(Rings):
    """Task ids and heap rings: `alloc` claims an id and a slab, `release` releases them.

    Parameters
    ----------
    heap_bytes : int
        Size of each ring.
    timeout_ms : int
        How long `alloc` waits without progress.
    ring_depth : int
        Number of rings.
    task_window : int | None
        How many ids may be live at once, None: 2 097 152. With ``ring_depth=1``, how far an id may be
        above the oldest live one, None: any distance.
    """

    def __init__(
        self,
        heap_bytes: int = L.DEFAULT_HEAP_RING_SIZE,
        timeout_ms: int = int(L.DEFAULT_ALLOC_TIMEOUT_S * 1000),
        *,
        ring_depth: int = L.MAX_RING_DEPTH,
        task_window: int | None = None,
    ) -> None:
        super().__init__(
            Engine(heap_ring_size=heap_bytes, ring_depth=ring_depth, task_window=task_window)
        )
        self._timeout_s = timeout_ms / 1000
        self._slots: dict[int, int] = {}
        self._changed = threading.Condition()
        self._shut_down = False

    def alloc(self, nbytes: int = 0, scope_depth: int = 0) -> AllocResult:
        """Claim a task id and `nbytes` from the ring of a 0-based scope depth.

        Raises
        ------
        RingFullError
            No room within the timeout.
        RuntimeError
            The request exceeds the ring; the ring is shut down.
        """
        nbytes = whole("nbytes", nbytes, 0, _MOST)
        scope_depth = whole("scope_depth", scope_depth, 0, _MOST)
        mem, kernels = self._engine.mem, self._engine.kernels
        with self._changed:
            while True:
                if self._shut_down:
                    raise RuntimeError("this Ring is shut down")
                slot = kernels.ring_alloc(mem, nbytes, scope_depth)
                if slot >= 0:
                    break
                if slot == L.TOO_LARGE:
                    raise RuntimeError(
                        f"{nbytes} bytes exceeds per-ring heap size: a ring has {self.heap_size(0)}"
                    )
                if not self._changed.wait(self._timeout_s):
                    why = describe_full(self._engine, self._timeout_s, nbytes, scope_depth)
                    raise RingFullError(why)
            look = read_slot(self._engine.mem, slot)
            self._slots[look.task_id] = slot
            ring = self._engine.view.ring(look.ring_idx)
            size = L.round_up(nbytes, L.HEAP_ALIGN)
            pointer = ring.base + ring.cursor - size if nbytes else None
            return AllocResult(look.task_id, pointer, ring.cursor, look.ring_idx)

    def release(self, slot: int) -> None:
        """Release a task id; its ring's tail moves past the oldest run of released allocations.

        Raises KeyError if it is not live.
        """
        with self._changed:
            if slot not in self._slots:
                raise KeyError(f"task {slot} is not live in this Ring")
            self._engine.kernels.ring_release(self._engine.mem, self._slots.pop(slot))
            self._changed.notify_all()

    def slot_state(self, slot: int) -> SlotView:
        """Return a look at a live slot, whose state stays FREE: nothing submits a task here.

        Raises KeyError if it is not live.
        """
        if slot not in self._slots:
            raise KeyError(f"task {slot} is not live in this Ring")
        return read_slot(self._engine.mem, self._slots[slot])

    def reset_to_empty(self) -> None:
        """Forget every allocation: ids start at 0, every ring is empty."""
        with self._changed:
            self._slots.clear()
            self._engine.kernels.ring_reset(self._engine.mem)
            self._changed.notify_all()

    def shutdown(self) -> None:
        """Refuse every further alloc, also those that wait."""
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()


def small_engine(
    *, heap: int = 1 << 16, rings: int = L.MAX_RING_DEPTH, window: int = 64, **more: Any
) -> Engine:
    """Return a small engine; nothing moves it, and no process serves its mailboxes."""
    more = {"sub": 2} | more
    engine = Engine(heap_ring_size=heap, ring_depth=rings, task_window=window, **more)
    for index in range(CALLABLES):
        engine.view.write_digest(index, digest_of(index))
    return engine


CALLABLES = 16
"""How many callables a small engine knows, by number."""


def digest_of(callable: int) -> bytes:
    """Return the digest that stands for a callable of a small engine."""
    return bytes([callable + 1]) * L.CALLABLE_HASH_DIGEST_BYTES


class NumberedNames:
    """Names for an engine without a Worker."""

    def callable_name(self, word: int, key: int) -> str:
        return f"callable {word & L.CALLABLE_MASK}"

    def worker_name(self, worker: int) -> str:
        return f"worker {worker}"


class Part:
    """A handle over an engine that somebody moves by hand: that of another part, or a small one."""

    def __init__(self, engine: Engine | Part | None = None, **size: Any) -> None:
        self._is_alone = engine is None
        if isinstance(engine, Part):
            engine = engine._engine
        self._engine: Engine = small_engine(**size) if engine is None else engine
        engine = self._engine
        self._mem, self._kernels, self._steps = engine.mem, engine.kernels, engine.steps
        self._view = engine.view

    def _slot(self, task: int) -> int:
        """Return the slot of a live task."""
        slot = slots.find(self._mem, task)
        if slot is None:
            raise KeyError(f"task {task} is not live")
        return slot

    def _task(self, slot: int) -> int:
        return self._view.task_of(slot)[0]

    def _tasks(self, found: Sequence[int]) -> list[int]:
        return [self._task(slot) for slot in found]


_MOST = (1 << 62) - 1
"""Of bytes and numbers of tasks."""


def _key(base_ptr: int, owner: int) -> tuple[int, int]:
    """Return the key of a buffer as kernels have it."""
    address = whole("base_ptr", base_ptr, -(1 << 63), (1 << 64) - 1)
    signed = address - (1 << 64) if address >> 63 > 0 else address
    return signed, whole("owner", owner, -1, _MOST)


class TensorMap(Part):
    """Maps the address of a buffer to its current producer.

    On its own it takes any numbers for tasks.
    """

    def __init__(self, engine: Engine | Part | None = None) -> None:
        super().__init__(engine, heap=L.HEAP_ALIGN, rings=1, window=1 << 16)

    def lookup(self, base_ptr: int, owner: int = -1) -> int:
        """Return the producer of a buffer, or INVALID."""
        found = int(self._kernels.map_lookup(self._mem, *_key(base_ptr, owner)))
        return INVALID if found == L.NONE else found - 1 if self._is_alone else self._task(found)

    def insert(self, base_ptr: int, slot: int, owner: int = -1) -> None:
        """Make `slot` the producer of a buffer."""
        key, slot = _key(base_ptr, owner), whole("slot", slot, 0, _MOST)
        if key[0] == 0:
            raise ValueError("base_ptr=0: no buffer is at address 0")
        if self._kernels.map_insert(self._mem, *key, self._value(slot)) != L.OK:
            raise MemoryError("the TensorMap is full")

    def erase(self, base_ptr: int, slot: int | None = None, owner: int = -1) -> bool:
        """Remove a buffer's entry, with `slot` only if it still names that; say whether it did."""
        named = self.lookup(base_ptr, owner) if slot is None else whole("slot", slot, -1, _MOST)
        if named == INVALID:
            return False
        return bool(self._kernels.map_erase(self._mem, *_key(base_ptr, owner), self._value(named)))

    def _value(self, task: int) -> int:
        return task + 1 if self._is_alone else self._slot(task)

    def __len__(self) -> int:
        return self._view.buffers_known


class Scope(Part):
    """The stack of open scopes: each has a reference to the tasks registered in it.

    On its own it takes any numbers for tasks: each gets a slot that is COMPLETED, as a buffer's is, so
    that the end of its scope reclaims it.
    """

    def __init__(self, engine: Engine | Part | None = None) -> None:
        super().__init__(engine, heap=L.HEAP_ALIGN, rings=1, window=1 << 16)
        self._numbers: dict[int, int] = {}
        """Of the slots claimed here."""

    def scope_begin(self) -> None:
        """Open a scope. Raises RuntimeError if the run's own scope and 64 more are open."""
        if self._kernels.open_scope(self._mem) != L.OK:
            raise RuntimeError(
                f"maximum nesting depth exceeded: {L.MAX_SCOPE_DEPTH} scopes are open"
            )

    def scope_end(self, release_ref: Callable[[int], None] = lambda slot: None) -> None:
        """End the innermost scope: release its reference to each of its tasks, and report each."""
        tasks = self.tasks()
        if self._kernels.close_scope(self._mem) != L.OK:
            raise RuntimeError("scope_end without scope_begin: no scope is open")
        for task in tasks:
            release_ref(task)

    def register_task(self, slot: int) -> None:
        """Bind a task to the innermost scope, once."""
        if not self.depth():
            raise RuntimeError("register_task without scope_begin: no scope is open")
        if slot in self.tasks():
            return
        if self._is_alone:
            claimed = self._kernels.alloc_buffer(self._mem, _NO_BYTES)
            if claimed < 0:
                raise MemoryError("too many tasks are registered")
            self._numbers[claimed] = slot
        else:
            self._steps.register_task(self._mem, self._slot(slot))

    def tasks(self, depth: int | None = None) -> list[int]:
        """Return the tasks of the scope at a 0-based depth, by default the innermost, oldest first."""
        depth = self.depth() - 1 if depth is None else depth
        found = self._view.scope(depth) if 0 <= depth < self.depth() else []
        return [self._numbers[one] for one in found] if self._is_alone else self._tasks(found)

    def depth(self) -> int:
        """Return how many scopes are open; 0 means none."""
        return self._view.scope_depth

    def current_depth(self) -> int:
        """Return the 0-based depth, from which the ring follows; 0 also without a scope."""
        return max(0, self.depth() - 1)


_NO_BYTES = ContinuousTensor.make(0, (0,), DataType.UINT8)._tagged(L.OUTPUT)


class TaskSlots(Part):
    """The pool of task slots, with their states and references.

    Parameters
    ----------
    engine : Part | Engine, optional
        The one that they are of.
    names : Names, optional
        What knows the names of callables and workers.
    """

    def __init__(
        self, engine: Engine | Part | None = None, names: slots.Names | None = None, **size: Any
    ) -> None:
        super().__init__(engine, **size)
        self.names = NumberedNames() if names is None else names

    def submit(
        self,
        args: TaskArgs | Sequence[TaskArgs] | None = None,
        *,
        callable: int = 0,
        config: CallConfig | None = None,
        worker_type: int = WorkerType.SUB,
        worker: int = -1,
    ) -> int:
        """Take the steps of submit with a small engine's callable, and no pass; return the task.

        A list of arguments makes a group.

        Raises
        ------
        RuntimeError
            The kernel refuses: no room, or the run has failed.
        IndexError, ValueError
            There is no such callable, type or worker.
        """
        size = 0
        if args is None or isinstance(args, TaskArgs):
            counts, wire = submit_words([args or TaskArgs()], None)
        else:
            counts, wire = submit_words(args, [0] * len(args))
            size = len(args)
        word = position("callable", callable, CALLABLES) | WorkerType(worker_type) << L.WORD_KIND
        word |= whole("worker", worker, -1, self._view.workers - 1) + 1 << L.WORD_WORKER
        if config is not None:
            self._view.write_config(1, config.to_bytes())
            word |= 1 << L.WORD_CONFIG
        code = self._steps.submit_task(self._mem, word, counts, size, wire)
        if code < 0:
            raise RuntimeError(f"submit was refused: {REFUSALS.get(code, code)}")
        return self._task(code & ~L.AUTO_OUTPUT)

    def state(self, task: int) -> TaskState:
        """Return the state of a task; FREE if it has gone."""
        slot = slots.find(self._mem, task)
        return TaskState.FREE if slot is None else read_slot(self._mem, slot).state

    def slot_state(self, task: int) -> TaskView:
        """Return a look at a live task, with all that the documents' TaskSlotState has."""
        return RingView(self._engine, self.names).slot_state(task)

    def step(self, task: int, event: str) -> TaskState:
        """Let an event of the state machine happen; return the state after it.

        Raises ValueError if it cannot happen in the task's state, or there is none: nothing has changed.
        """
        names = [one.name for one in EVENTS]
        if event not in names:
            raise ValueError(f"there is no event {event!r}: there are {', '.join(names)}")
        slot = self._slot(task)
        if self._steps.step(self._mem, slot, names.index(event)) != L.OK:
            raise ValueError(f"{event!r} cannot happen to task {task}, {self.state(task).name}")
        return read_slot(self._mem, slot).state

    def acquire_ref(self, task: int) -> bool:
        """Take one more reference on a task, unless it is CONSUMED; say whether it was taken."""
        return bool(self._steps.acquire_ref(self._mem, self._slot(task)))

    def release_ref(self, task: int) -> bool:
        """Release a reference on a task; say whether that was the last one: it is CONSUMED then."""
        return bool(self._steps.release_ref(self._mem, self._slot(task)))

    def reclaim(self) -> int:
        """Reclaim, as the Orch thread does, what is CONSUMED; return how many tasks."""
        return int(self._steps.reclaim(self._mem))

    def live_tasks(self) -> list[int]:
        """Return the tasks that are not FREE, in order."""
        return slots.live(self._mem)


REFUSALS = {
    L.RUN_FAILED: "the run has failed",
    L.WOULD_BLOCK: "there is no room; it would wait",
    L.TOO_LARGE: "the outputs exceed a ring",
    L.TOO_MANY_ARGS: "the arguments do not fit a mailbox",
    L.ILLEGAL: "the arguments are no task's",
}


class Mailbox(Part):
    """The mailbox of a worker: the frame that it serves or waits for."""

    def __init__(self, engine: Engine | Part | None = None, worker: int = 0) -> None:
        super().__init__(engine, sub=1)
        self.worker = position("worker", worker, self._view.workers)
        self._words = mailbox.MailboxView(self._engine, worker)

    @property
    def octets(self) -> memoryview:
        """Its bytes, to read and to write."""
        return self._words.box(self._words.served)[: L.MAILBOX_SIZE]

    def read_state(self) -> MailboxState:
        """Return its state."""
        return MailboxState(int.from_bytes(self.octets[:4], "little"))

    def write_state(self, state: int, error: int = 0) -> None:
        """Write state and error, which are one word."""
        self._steps.write_state(self._mem, self.worker, MailboxState(state) | error << L.HALF)

    def read_error(self) -> tuple[int, str]:
        """Return the error code, 0 if there is none, and the message that was written last."""
        message = mailbox.message_in(self.octets).split(b"\0", 1)[0]
        return int.from_bytes(self.octets[4:8], "little"), message.decode(errors="replace")

    def write_error(self, text: str) -> None:
        """Write a message, cut to what there is room for; the code goes with the state."""
        raw = text.encode()[: L.MAILBOX_ERROR_MSG_SIZE - 1]
        mailbox.write_message(self.octets, raw.decode(errors="ignore").encode())

    def encode(self, callable: int, config: CallConfig, args: TaskArgs) -> None:
        """Write what a task of a small engine's callable would have here.

        Raises RuntimeError if that does not fit, or the mailbox is a worker's, for `dispatch` to encode.
        """
        if not self._is_alone:
            raise RuntimeError("this mailbox is a worker's: dispatch a task to it")
        self._view.write_config(1, config.to_bytes())
        word = position("callable", callable, CALLABLES) | L.SUB << L.WORD_KIND | 1 << L.WORD_CONFIG
        counts, wire = submit_words([args], None)
        code = self._steps.encode(self._mem, self.worker, word, counts, wire)
        if code != L.OK:
            raise RuntimeError(f"encode was refused: {REFUSALS.get(code, code)}")

    def decode(self) -> tuple[bytes, mailbox.ReceivedArgs]:
        """Return the digest of the callable and the arguments, which have the configuration.

        Raises RuntimeError if the bytes are no task's.
        """
        box = self._words.box(self._words.served)
        if self._steps.decode(self._mem, self.worker) != L.OK:
            raise RuntimeError(mailbox.malformed(box))
        kind = mailbox.received_from(self._engine)
        args = kind.__new__(kind)
        args._box = box
        return mailbox.digest_in(box), args


__all__ = [
    "INVALID",
    "AllocResult",
    "Mailbox",
    "Part",
    "Ring",
    "Scope",
    "TaskSlots",
    "TensorMap",
    "small_engine",
]
