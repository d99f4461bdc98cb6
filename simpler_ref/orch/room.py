"""Waiting while tasks run: for room in a ring, or until what was submitted has ended.

Rule     ORCH-BACK-1, ORCH-BACK-2, ORCH-BACK-4, ORCH-RING-11, SEE-HANG-2, SEE-TOP-1, SPEED-MANY-7
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..engine.introspection import describe_full, mib, requested_bytes, ring_cycle, waiting_tasks
from ..engine.memory import PARK_NS
from ..errors import RingFullError, tell
from ..jit import layout as L
from ..model.wire import COUNTS_BYTES, SCALAR_BYTES, TENSOR_BYTES
from ..workers.session import Session

MOST_BEHIND = 8192
"""Tasks that have not ended, from which on submits of many let the workers catch up."""
SLICE_NS = 1_000_000
FEWEST_PER_SLICE = 256


class Room:
    """Helps the Scheduler until there is room, or nothing left to wait for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session.engine

    def wait(self, code: int, attempt: Callable[[], int], wire: Callable[[], bytes]) -> int:
        """Call again what was refused, until it is not for want of room; return its last answer.

        `wire` returns the arguments of what was refused last.

        Raises RingFullError if there is none within `alloc_timeout_s` of the last progress.
        """
        mem, kernels, view = self._engine.mem, self._engine.kernels, self._engine.view
        timeout_s = self._session.options.alloc_timeout_s
        timeout_ns = int(timeout_s * 1e9)
        since = time.monotonic_ns()
        reclaimed = self._progress()
        self._engine.lacks = "room for another task"
        try:
            while code == L.WOULD_BLOCK:
                rest = timeout_ns - (time.monotonic_ns() - since)
                if rest <= 0:
                    asked, depth = requested_bytes(wire()), view.scope_depth - 1
                    error = RingFullError(describe_full(self._engine, timeout_s, asked, depth))
                    lines = ring_cycle(self._engine, self._session, depth)
                    lines += waiting_tasks(self._engine, self._session)
                    tell(error, "\n".join(f"  {line}" for line in lines))
                    raise error
                taken = view.taken
                code = attempt()
                waited = L.OK
                if code == L.WOULD_BLOCK:  # wait in slices, between which Python sees signals
                    waited = kernels.help_scheduler(mem, -1, -1, taken, min(rest, PARK_NS))
                if waited in (L.TIMED_OUT, L.INTERRUPTED):
                    self._session.look()
                if self._progress() != reclaimed:
                    reclaimed, since = self._progress(), time.monotonic_ns()
        finally:
            self._engine.lacks = ""
        return code

    def _progress(self) -> tuple[int, int]:
        """Return what changes whenever a task finishes or is reclaimed."""
        view = self._engine.view
        return view.next_task_id - view.live, view.ended

    def let_catch_up(self, tasks: int) -> None:
        """Wait a little if many of the run's `tasks` have not ended, as long as they end quickly.

        A task that waits for its turn among a few thousand is in the processor's caches when that comes,
        and its memory is used again soon: a graph of a million short tasks takes a third of the time.
        Tasks that take long, or wait for what the program does next, are not waited for.
        """
        mem, kernels, view = self._engine.mem, self._engine.kernels, self._engine.view
        ended = view.ended
        if tasks - ended <= MOST_BEHIND:
            return
        goal = tasks - MOST_BEHIND // 2
        while kernels.help_scheduler(mem, -1, goal, -1, SLICE_NS) != L.OK:
            before, ended = ended, view.ended
            if ended - before < FEWEST_PER_SLICE:
                return

    def until_ended(self, tasks: int) -> None:
        """Wait until `tasks` tasks of the run have ended, buffers not counted."""
        mem, kernels = self._engine.mem, self._engine.kernels
        while kernels.help_scheduler(mem, -1, tasks, -1, PARK_NS) != L.OK:
            self._session.look()  # between slices Python sees signals


def never_fits(code: int, wire: bytes, ring_bytes: int) -> Exception:
    """Return the exception for arguments that a kernel has refused with a code for good."""
    if code == L.TOO_MANY_ARGS:
        return ValueError(
            f"the arguments take {COUNTS_BYTES + len(wire)} bytes, a mailbox holds "
            f"{L.MAILBOX_ARGS_CAPACITY}: {COUNTS_BYTES} + {TENSOR_BYTES} per tensor + "
            f"{SCALAR_BYTES} per scalar; pass fewer, or put the numbers into a tensor"
        )
    if code == L.ILLEGAL:
        return ValueError(
            f"{len(wire)} bytes are not the tensors and scalars that were announced; build "
            "arguments with TaskArgs"
        )
    assert code == L.TOO_LARGE, code
    return RuntimeError(
        f"a request exceeds per-ring heap size: {mib(requested_bytes(wire))} were asked for, a "
        f"ring has {mib(ring_bytes)}; give Worker(heap_ring_size=…) a larger value"
    )
