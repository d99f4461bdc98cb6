"""The parts of graphs that a session has, and how it runs them.

A part runs as one run of the inner Worker, on the main thread. Its tasks are submitted one after the
other. A tensor goes to another endpoint when the task that has made it has ended, whatever is submitted
meanwhile; before one comes from there, those have ended that use its memory. What the parent has comes,
and what it gets goes, while tasks run.

Rule     REMOTE-PART-5; SPEED-PARTS-1, -3 to -8, -10, -11
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ..callables.identity import CallableHandle
from ..errors import RemoteError, TransferError
from ..jit import layout as L
from ..system.types import Array
from .copies import CopiedTensor, Copies, window_key
from .dispatcher import InnerCallable
from .fail_points import fail_point
from .part_programs import NOBODY, LoadedPart, Pause, Sending
from .parts import PARENT, PART, TOGETHER_BYTES, Action, Operation, PartRun
from .pushes import Chunks, Inbox, Pushes
from .task_messages import Run
from .windows import bytes_at

T = TypeVar("T")
STOPPED = "the replay was stopped: another part of it has failed, or it was cancelled"
LOOK_S = 0.02
"""How long it goes on, if something moves, before it looks whether the parent has stopped the replay."""
MOST_OVERTAKEN = 8
"""How many tensors that are not made yet are looked at for one that is, and may be pushed before them."""


class Parts:
    """The parts of graphs that a session has.

    Parameters
    ----------
    copies
        The session's copies of the parent's tensors.
    mover
        What pushes tensors to others.
    inbox
        What others have pushed.
    find
        Returns the callable that has a digest.
    run
        Runs an orchestration function on the inner Worker.
    is_stopped
        Says whether the parent has stopped the replay, without waiting.
    wait
        Waits until something may have come, from another session or from the parent; but not for long.
        Then it returns False.
    patience_s
        How long a part that has lost another one waits for the parent to say so.
    """

    def __init__(
        self,
        copies: Copies,
        mover: Any,
        inbox: Inbox,
        find: Callable[[bytes], Any],
        run: Callable[[Any], Any],
        is_stopped: Callable[[], bool],
        wait: Callable[[], bool],
        patience_s: float,
    ) -> None:
        self._copies, self._mover, self._inbox = copies, mover, inbox
        self._find, self._run_inner = find, run
        self._is_stopped, self.wait, self._patience_s = is_stopped, wait, patience_s
        self._loaded: dict[int, LoadedPart] = {}

    def run(self, told: Run, asked: PartRun) -> None:
        """Run a part, which the frame may bring."""
        part = self._part(asked)
        self._require_told(part, told.tensors, asked)
        self._inbox.begin(asked.token)
        try:
            self._run(part, told, asked)
        except TransferError as error:
            if not error.refused:
                self._await_stop()
            raise
        finally:
            self._inbox.end()
            self._mover.end_replay(asked.token)
        fail_point("part_settled")

    def _await_stop(self) -> None:
        """Let the parent, if it is about to notice a lost endpoint, be the first to say so."""
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline and not self._is_stopped():
            self.wait()

    def _run(self, part: LoadedPart, told: Run, asked: PartRun) -> None:
        callables = [self._callable(one) for one in part.callables]
        addresses = self._copies.take(told.tensors, part.sizes, comes_later=True)
        fail_point("part_taken")
        succeeded = False
        try:
            with self._mover.pushing(asked.token) as pushes:
                replay = _Replay(self, part, asked, told.tensors, callables, pushes)
                replay.find_memory(addresses)
                self._run_inner(replay.run)
                fail_point("part_ran")
            succeeded = True
        finally:
            self._copies.settle(told.tensors, succeeded)
            self._copies.drop([told.tensors[i].key for i in part.spoiled])

    def _part(self, asked: PartRun) -> LoadedPart:
        for number in asked.forgotten:
            self._loaded.pop(number, None)
        if asked.part:
            self._loaded[asked.number] = LoadedPart(PART.decode(asked.part))
        try:
            return self._loaded[asked.number]
        except KeyError:
            raise RemoteError(
                f"part {asked.number} of a graph is not known to this session"
            ) from None

    @staticmethod
    def _require_told(part: LoadedPart, copied: Sequence[CopiedTensor], asked: PartRun) -> None:
        """Refuse a replay that does not say all that its part needs."""
        for what, needed, there in (
            ("tensors", part.named, len(copied)),
            ("scalars", L.SCALAR_WORDS * part.variables.scalars, len(asked.scalars)),
            ("endpoints", part.most_peer + 1, len(asked.peers)),
        ):
            if there < needed:
                raise ValueError(f"the part names {needed} {what}, its replay {there}")
        for i in part.come:
            if not copied[i].reads:
                raise ValueError(f"the part waits for tensor {i}, which the parent does not store")
        for i in part.go:
            if not copied[i].makes:
                raise ValueError(f"the part makes tensor {i}, which the parent does not know of")

    def _callable(self, digest: bytes) -> CallableHandle:
        found = self._find(digest)
        if not isinstance(found, InnerCallable):
            raise TypeError("a task of a graph's part is not for the workers of this endpoint")
        return found.handle

    # ------------------------------------------------------------ for a replay
    def own(self, nbytes: int) -> Array:
        """Return memory that tasks see."""
        return self._copies.empty(nbytes)

    def look_for(self, number: int) -> Chunks | None:
        """Return what another endpoint has pushed; None if that has not come yet."""
        return self._inbox.take(number)

    def has_come(self, one: CopiedTensor) -> bool:
        """Say whether the parent has stored all of a tensor; if not, wake who waits when it has."""
        if self._copies.has_come(one):
            return True
        self._inbox.await_window(window_key(one.key, one.reads))
        return self._copies.has_come(one)

    def let_go(self, one: CopiedTensor) -> None:
        """Let the parent have what has been made."""
        self._copies.made(one)

    @contextmanager
    def ringing(self, room: Any) -> Iterator[None]:
        """End waits for tasks when something has come that is waited for."""
        self._inbox.ring_also(room.ring)
        try:
            yield
        finally:
            self._inbox.ring_no_more(room.ring)
            room.hush()

    def require_wanted(self) -> None:
        """Raise if the parent has stopped the replay."""
        if self._is_stopped():
            raise RemoteError(STOPPED)


class _Replay:
    """One run of a part."""

    def __init__(
        self,
        parts: Parts,
        part: LoadedPart,
        asked: PartRun,
        copied: Sequence[CopiedTensor],
        callables: Sequence[CallableHandle],
        pushes: Pushes,
    ) -> None:
        self._parts, self._part, self._asked, self._callables = parts, part, asked, callables
        self._copied, self._pushes = copied, pushes
        self._own: Array | None = None
        self._addresses: list[int] = []
        self._slots: list[int] = []
        """Those of its tasks, by their numbers."""
        self._sendings: deque[Sending] = deque()
        """What is to be pushed when it is made."""
        self._to_push = part.pushes.copy()
        self._leaving: list[CopiedTensor] = []
        """What the parent may have soon."""
        self._leaving_bytes = 0
        self._orch: Any = None
        self._has_settled: Callable[[int], int]
        self._looked = 0.0

    def find_memory(self, named: Sequence[int]) -> None:
        """Note where the copies are that the replay names, and find memory for what else there is."""
        begin = 0
        if self._part.own_bytes:
            self._own = self._parts.own(self._part.own_bytes)
            begin = int(self._own.ctypes.data)
        self._addresses = self._part.addresses(named, begin)

    def run(self, orch: Any, _args: Any, _config: Any) -> None:
        """Carry the operations out: the orchestration function of the inner Worker's run."""
        self._orch = orch
        began = time.monotonic_ns()
        orch._view.park_at_once(self._part.has_long_tasks)
        try:
            self._submit_all(orch)
        finally:
            orch._view.park_at_once(False)
        self._part.last_ns = time.monotonic_ns() - began

    def _submit_all(self, orch: Any) -> None:
        """Carry out one operation after the other, and wait for the end of all."""
        self._has_settled = orch._room.tell_ends()
        variables = self._part.variables.values(self._addresses, self._asked.scalars, orch)
        words = self._part.words(
            [orch._require_handle("a part", one, (), orch._subs, L.SUB) for one in self._callables]
        )
        with self._parts.ringing(orch._room):
            for one in self._part.steps:
                if isinstance(one, Pause):
                    self._pause(one)
                    continue
                if one.tasks:
                    orch._play(one.program(words), variables)
                    self._slots += orch._room.newest_tasks(one.tasks).tolist()
                self._sendings += one.sendings
                self._send_made()
            while self._sendings:
                self._await(self._sendings[0].maker)
            self._let_go()
        orch._until_idle(self._parts.require_wanted)
        orch.drain()
        self._parts.require_wanted()

    # ------------------------------------------------------------ waiting
    def _await(self, task: int) -> None:
        """Wait until a task has ended; what others have made meanwhile is pushed."""
        while not self._has_ended(task):
            self._orch._room.until_woken(self._slots[task])
            self._go_on()
        self._go_on()

    def _has_ended(self, task: int) -> bool:
        return task == NOBODY or bool(self._has_settled(self._slots[task]))

    def _go_on(self) -> None:
        """Push what is made by now; raise if a task has failed, or, soon, if the replay is stopped."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            self._parts.require_wanted()
        self._require_no_failure()
        self._send_made()

    def _send_made(self) -> None:
        """Push what is made by now, in about the order in which it is."""
        late: list[Sending] = []
        sendings, has_settled, slots = self._sendings, self._has_settled, self._slots
        while sendings and len(late) < MOST_OVERTAKEN:
            one = sendings.popleft()
            if one.maker != NOBODY and not has_settled(slots[one.maker]):
                late.append(one)
                continue
            self._require_no_failure()
            self._send(one.operation)
        sendings.extendleft(reversed(late))

    def _require_no_failure(self) -> None:
        """Raise if a task has failed: none of the part's begins any more."""
        if self._orch._view.has_failed:
            raise self._orch._task_error()

    def _send(self, one: Operation) -> None:
        if one.peer == PARENT:
            self._leaving.append(self._copy(one))
            self._leaving_bytes += self._part.tensors[one.tensor].nbytes
            if self._leaving_bytes >= TOGETHER_BYTES:
                self._let_go()
            return
        address = self._asked.peers[one.peer]
        self._pushes.push(address, one.number, self._memory(one))
        self._to_push[one.peer] -= 1
        if not self._to_push[one.peer]:
            self._pushes.finish(address)
        fail_point("pushed")

    def _let_go(self) -> None:
        """Let the parent have what was made, several tensors at once: that wakes others less often."""
        for one in self._leaving:
            self._parts.let_go(one)
        self._leaving.clear()
        self._leaving_bytes = 0

    def _pause(self, one: Pause) -> None:
        """Wait until nothing uses a tensor's memory, and have what another endpoint pushes there."""
        tensor = one.operation.tensor
        for task in one.users:
            self._await(task)
        while one.is_sent and any(it.operation.tensor == tensor for it in self._sendings):
            self._await(self._sendings[0].maker)
        if one.operation.action != Action.RECEIVE:
            return
        if one.operation.peer == PARENT:
            copy = self._copy(one.operation)
            self._wait_for(lambda: self._parts.has_come(copy) or None)
            return
        number = one.operation.number
        self._store(one.operation, self._wait_for(lambda: self._parts.look_for(number)))

    def _wait_for(self, look: Callable[[], T | None]) -> T:
        """Wait for what comes from elsewhere; raise if it cannot come, as far as can be known here."""
        orch = self._orch
        while True:
            found = look()
            if found is not None:
                return found
            self._go_on()
            if orch._is_busy():
                orch._room.until_woken(
                    self._slots[self._sendings[0].maker] if self._sendings else None
                )
            elif not self._parts.wait():
                self._pushes.require_arriving()

    # ------------------------------------------------------------ memory
    def _store(self, one: Operation, chunks: Chunks) -> None:
        memory = self._memory(one)
        for at, data in chunks:
            memory[at : at + data.nbytes] = data
        fail_point("pulled")

    def _copy(self, one: Operation) -> CopiedTensor:
        return self._copied[self._part.tensors[one.tensor].named - 1]

    def _memory(self, one: Operation) -> memoryview:
        return bytes_at(self._addresses[one.tensor], self._part.tensors[one.tensor].nbytes)


__all__ = ["Parts"]
