"""The documents' three structures on their own, without a Worker, for tests and for learning.

`Ring` and `TensorMap` call the kernels of `jit/ring.py` and `jit/tensormap.py`. `Scope` is the stack of
scopes in plain Python: the engine keeps its own as chains through the slots.

Rule     ORCH-API-4, ORCH-API-5, ORCH-RING-12, ORCH-RING-15, ORCH-SCOPE-1, ORCH-MAP-1, ORCH-MAP-7
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from ..errors import RingFullError
from ..jit import layout as L
from .introspection import Rings, SlotView, describe_full
from .memory import Engine
from .view.slots import read_slot

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
        if nbytes < 0 or scope_depth < 0:
            raise ValueError(f"nbytes {nbytes} and scope_depth {scope_depth} must not be negative")
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

        Raises
        ------
        KeyError
            `slot` is not live.
        """
        with self._changed:
            if slot not in self._slots:
                raise KeyError(f"task {slot} is not live in this Ring")
            self._engine.kernels.ring_release(self._engine.mem, self._slots.pop(slot))
            self._changed.notify_all()

    def slot_state(self, slot: int) -> SlotView:
        """Return a look at a live slot, whose state stays FREE: nothing submits a task here.

        Raises
        ------
        KeyError
            `slot` is not live.
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


class TensorMap:
    """Maps the address of a buffer to its current producer."""

    def __init__(self) -> None:
        self._engine = Engine(heap_ring_size=L.HEAP_ALIGN, ring_depth=1, task_window=1 << 16)

    def lookup(self, base_ptr: int, owner: int = -1) -> int:
        """Return the producer of a buffer, or INVALID."""
        return int(self._engine.kernels.map_lookup(self._engine.mem, base_ptr, owner)) - 1

    def insert(self, base_ptr: int, slot: int, owner: int = -1) -> None:
        """Make `slot` the producer of a buffer."""
        if slot < 0 or base_ptr == 0:
            raise ValueError(f"slot {slot} must not be negative and address {base_ptr} not 0")
        if self._engine.kernels.map_insert(self._engine.mem, base_ptr, owner, slot + 1) != L.OK:
            raise MemoryError("the TensorMap is full")

    def erase(self, base_ptr: int, slot: int | None = None, owner: int = -1) -> bool:
        """Remove a buffer's entry, with `slot` only if it still names that; say whether it did."""
        named = self.lookup(base_ptr, owner) if slot is None else slot
        return bool(self._engine.kernels.map_erase(self._engine.mem, base_ptr, owner, named + 1))

    def __len__(self) -> int:
        return self._engine.view.buffers_known


class Scope:
    """The stack of open scopes, in plain Python: each has a reference to the tasks registered in it."""

    def __init__(self) -> None:
        self._scopes: list[list[int]] = []

    def scope_begin(self) -> None:
        """Open a scope.

        Raises
        ------
        RuntimeError
            The run's own scope and 64 more are open.
        """
        if len(self._scopes) > L.MAX_SCOPE_DEPTH:
            raise RuntimeError(
                f"maximum nesting depth exceeded: {L.MAX_SCOPE_DEPTH} scopes are open"
            )
        self._scopes.append([])

    def scope_end(self, release_ref: Callable[[int], None]) -> None:
        """End the innermost scope: call `release_ref` once for each of its tasks."""
        if not self._scopes:
            raise RuntimeError("scope_end without scope_begin: no scope is open")
        for slot in self._scopes.pop():
            release_ref(slot)

    def register_task(self, slot: int) -> None:
        """Bind a task to the innermost scope."""
        if not self._scopes:
            raise RuntimeError("register_task without scope_begin: no scope is open")
        if slot not in self._scopes[-1]:
            self._scopes[-1].append(slot)

    def depth(self) -> int:
        """Return how many scopes are open; 0 means none."""
        return len(self._scopes)

    def current_depth(self) -> int:
        """Return the 0-based depth, from which the ring follows; 0 also without a scope."""
        return max(0, len(self._scopes) - 1)


__all__ = ["INVALID", "AllocResult", "Ring", "Scope", "TensorMap"]
