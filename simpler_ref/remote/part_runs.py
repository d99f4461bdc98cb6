"""The parts of graphs that a session has, and how it runs them.

A part runs as one run of the inner Worker, on the main thread. Its tasks are submitted one after the
other. Before a tensor goes to another endpoint all of them have ended; before one comes from there, those
that use its memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..callables.handles import CallableHandle
from ..errors import RemoteError, TransferError
from ..jit import layout as L
from ..jit.ops import Patch, ProgramWriter, Words, rewind, scalar_at, tensor_at
from ..model.tensor import DescribedTensor
from ..model.wire import TENSOR_BYTES, DescribedWire, Layout, counts_of, layout_number
from ..system.types import Array
from .copies import CopiedTensor, Copies, TaskCopies
from .dispatcher import InnerCallable
from .fail_points import fail_point
from .layouts import read_layout
from .parts import PART, Action, Operation, Part, PartRun, PartTensor
from .pushes import Chunks, Inbox, Pushes
from .windows import bytes_at

STOPPED = "the replay was stopped: another part of it has failed, or it was cancelled"
MOST_EARLY = 16
"""How many of the tensors that come next are looked for while no task runs."""
_SOMEWHERE = 1 << 20
"""An address for a tensor that gets its own before each run."""


class _Stretch:
    """The tasks between two operations that wait, as a program; see `jit.ops`.

    Its variables are those of the part: the addresses of tensors, word and kind of the replay's scalars,
    and the numbers of layouts.
    """

    def __init__(self) -> None:
        self._writer = ProgramWriter()
        self._callables: list[int] = []
        self._program: Words | None = None

    def add(self, one: Operation, variables: _Variables) -> None:
        """Add a task."""
        tensors, patches = [], []
        for i, use in enumerate(one.uses):
            layout = read_layout(use.layout, use.form.nbytes()) if use.layout else None
            tensor = use.form if layout is None else DescribedTensor(_SOMEWHERE, layout)
            tensors.append(bytes(tensor._tagged(use.tag)))
            patches.append(Patch(tensor_at(i), use.tensor, 0))
            if layout is not None:
                patches.append(Patch(tensor_at(i) + L.TENSOR_SHAPE, variables.of_layout(layout), 0))
        scalars = []
        for j, scalar in enumerate(one.scalars):
            scalars.append(scalar.word.to_bytes(8, "little") + scalar.kind.to_bytes(8, "little"))
            if scalar.bound:
                first = variables.of_scalar(scalar.bound)
                at = scalar_at(len(tensors), j)
                patches += [Patch(at + k, first + k, 0) for k in range(L.SCALAR_WORDS)]
        counts = counts_of(len(tensors), len(scalars))
        self._writer.submit(0, counts, b"".join([*tensors, *scalars]), (), patches, -1)
        self._callables.append(one.callable)

    def program(self, words: Array) -> Words:
        """Return it from its beginning on, with the words that callables have now."""
        if self._program is None:
            self._program = self._writer.words()
        self._program[self._writer.callables] = words[self._callables]
        rewind(self._program)
        return self._program


class _Variables:
    """What the programs of a part leave open."""

    def __init__(self, part: Part) -> None:
        bound = [scalar.bound for one in part.operations for scalar in one.scalars]
        self.tensors, self.scalars = len(part.tensors), max(bound, default=0)
        self.layouts: dict[Layout, int] = {}

    def of_scalar(self, number: int) -> int:
        """Return the variable of the word of a scalar, counted from 1; its kind is the next."""
        return self.tensors + (number - 1) * L.SCALAR_WORDS

    def of_layout(self, layout: Layout) -> int:
        """Return the variable of a layout's number."""
        first = self.of_scalar(self.scalars + 1)
        return self.layouts.setdefault(layout, first + len(self.layouts))

    def values(self, addresses: Sequence[int], scalars: Sequence[int], orch: Any) -> Array:
        """Return all of them for a run."""
        wires: list[bytes] = [DescribedWire(bytes(TENSOR_BYTES), one) for one in self.layouts]
        if wires:
            orch._give_numbers([wires])
        given = scalars[: self.scalars * L.SCALAR_WORDS]
        return np.array([*addresses, *given, *map(layout_number, wires)], np.uint64).view(np.int64)


class _Loaded:
    """A part as it is run: what can be prepared is."""

    def __init__(self, part: Part) -> None:
        self.tensors, self.callables, self.spoiled = part.tensors, part.callables, part.spoiled
        self.named = sum(1 for one in part.tensors if one.named)
        own = [one.nbytes for one in part.tensors if not one.named]
        self.own_bytes = sum(L.round_up(nbytes, L.HEAP_ALIGN) for nbytes in own)
        self.variables = _Variables(part)
        self.most_peer = max((one.peer for one in part.operations), default=-1)
        self.operations: list[_Stretch | Operation] = []
        stretch: _Stretch | None = None
        for one in part.operations:
            if one.action != Action.RUN:
                stretch = None
                self.operations.append(one)
                continue
            if stretch is None:
                stretch = _Stretch()
                self.operations.append(stretch)
            stretch.add(one, self.variables)
        self.receives = _receives(part.operations)


def _receives(operations: Sequence[Operation]) -> list[tuple[int, Operation]]:
    """Return what a part takes from others, in order; and after how many waiting operations it may.

    No task before that uses the memory.
    """
    found, waits, used = [], 0, dict[int, int]()
    for one in operations:
        if one.action == Action.RUN:
            used.update((use.tensor, waits + 1) for use in one.uses)
            continue
        if one.action == Action.RECEIVE:
            found.append((used.get(one.tensor, 0), one))
        if one.action != Action.WAIT:
            used[one.tensor] = waits + 1
        waits += 1
    return found


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

    Notes
    -----
    Rule     SPEED-PARTS-1, -4 to -7
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
        self._is_stopped, self._wait, self._patience_s = is_stopped, wait, patience_s
        self._loaded: dict[int, _Loaded] = {}

    def run(self, told: TaskCopies, asked: PartRun) -> None:
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
        fail_point("part_settled")

    def _await_stop(self) -> None:
        """Let the parent, if it is about to notice a lost endpoint, be the first to say so.

        Rule     SPEED-PARTS-6
        """
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline and not self._is_stopped():
            self._wait()

    def _run(self, part: _Loaded, told: TaskCopies, asked: PartRun) -> None:
        callables = [self._callable(one) for one in part.callables]
        sizes = [one.nbytes for one in _by_name(part.tensors, part.named)]
        addresses = self._copies.take(told.tensors, sizes)
        fail_point("part_taken")
        succeeded = False
        try:
            with self._mover.pushing(asked.token) as pushes:
                replay = _Replay(self, part, asked, callables, pushes)
                replay.find_memory(addresses)
                self._run_inner(replay.submit_all)
                fail_point("part_ran")
            succeeded = True
        finally:
            self._copies.settle(told.tensors, succeeded)
            self._copies.drop([told.tensors[i].key for i in part.spoiled])

    def _part(self, asked: PartRun) -> _Loaded:
        for number in asked.forgotten:
            self._loaded.pop(number, None)
        if asked.part:
            self._loaded[asked.number] = _Loaded(PART.decode(asked.part))
        try:
            return self._loaded[asked.number]
        except KeyError:
            raise RemoteError(
                f"part {asked.number} of a graph is not known to this session"
            ) from None

    @staticmethod
    def _require_told(part: _Loaded, copied: Sequence[CopiedTensor], asked: PartRun) -> None:
        """Refuse a replay that does not say all that its part needs."""
        for what, needed, there in (
            ("tensors", part.named, len(copied)),
            ("scalars", L.SCALAR_WORDS * part.variables.scalars, len(asked.scalars)),
            ("endpoints", part.most_peer + 1, len(asked.peers)),
        ):
            if there < needed:
                raise ValueError(f"the part names {needed} {what}, its replay {there}")

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

    def receive(self, number: int, pushes: Pushes) -> Chunks:
        """Wait for what another endpoint pushes; raise if it cannot get what it may be waiting for.

        Rule     SPEED-PARTS-6
        """
        while True:
            chunks = self._inbox.take(number)
            if chunks is not None:
                return chunks
            self.require_wanted()
            if not self._wait():
                pushes.require_arriving()

    def require_wanted(self) -> None:
        """Raise if the parent has stopped the replay."""
        if self._is_stopped():
            raise RemoteError(STOPPED)


def _by_name(tensors: Sequence[PartTensor], count: int) -> list[PartTensor]:
    """Return the tensors that a replay names, in its order.

    Raises
    ------
    ValueError
        Two have the same place, or there is a gap.
    """
    found = sorted((one for one in tensors if one.named), key=lambda one: one.named)
    if [one.named for one in found] != list(range(1, count + 1)):
        raise ValueError("the tensors that a replay names are not numbered one by one")
    return found


class _Replay:
    """One run of a part."""

    def __init__(
        self,
        parts: Parts,
        part: _Loaded,
        asked: PartRun,
        callables: Sequence[CallableHandle],
        pushes: Pushes,
    ) -> None:
        self._parts, self._part, self._asked, self._callables = parts, part, asked, callables
        self._pushes = pushes
        self._own: Array | None = None
        self._addresses: list[int] = []
        self._is_busy = False
        self._waits = self._received = self._drained = 0
        """How many operations that may wait are over, how many tensors were received; and how many of the
        former were begun when all tasks had ended last."""
        self._taken: set[int] = set()
        """What was received before its turn."""

    def find_memory(self, named: Sequence[int]) -> None:
        """Note where the copies are that the replay names, and find memory for what else there is."""
        following = 0
        if self._part.own_bytes:
            self._own = self._parts.own(self._part.own_bytes)
            following = int(self._own.ctypes.data)
        for one in self._part.tensors:
            if one.named:
                self._addresses.append(named[one.named - 1])
            else:
                self._addresses.append(following)
                following += L.round_up(one.nbytes, L.HEAP_ALIGN)

    def submit_all(self, orch: Any, _args: Any, _config: Any) -> None:
        """Carry the operations out: the orchestration function of the inner Worker's run."""
        part = self._part
        variables = part.variables.values(self._addresses, self._asked.scalars, orch)
        words = np.array(
            [orch._require_handle("a part", one, (), orch._subs, L.SUB) for one in self._callables],
            np.int64,
        )
        for one in part.operations:
            if isinstance(one, _Stretch):
                orch._play(one.program(words), variables)
                self._is_busy = True
                continue
            if one.action == Action.RECEIVE:
                self._receive(orch, one)
            else:
                self._drain(orch)
                if one.action == Action.SEND:
                    self._send(one)
            self._waits += 1
        self._drain(orch)

    def _drain(self, orch: Any) -> None:
        """Wait until all tasks so far have ended, or the replay is stopped.

        Rule     SPEED-PARTS-6
        """
        if self._is_busy:
            orch._until_idle(self._parts.require_wanted)
            orch.drain()
            self._is_busy = False
            self._parts.require_wanted()
        self._drained = self._waits + 1

    def _send(self, one: Operation) -> None:
        self._pushes.push(self._asked.peers[one.peer], one.number, self._memory(one).tobytes())
        fail_point("pushed")

    def _receive(self, orch: Any, one: Operation) -> None:
        """Have what another endpoint pushes, and what has come for later operations.

        Rule     SPEED-PARTS-3
        """
        earliest, _ = self._part.receives[self._received]
        self._received += 1
        if one.number in self._taken:
            self._taken.discard(one.number)
            return
        if earliest > self._drained:
            self._drain(orch)
        self._store(one, self._parts.receive(one.number, self._pushes))
        following = self._part.receives[self._received : self._received + MOST_EARLY]
        for earliest, other in following:
            if earliest <= self._drained and other.number not in self._taken:
                chunks = self._parts.look_for(other.number)
                if chunks is not None:
                    self._store(other, chunks)
                    self._taken.add(other.number)

    def _store(self, one: Operation, chunks: Chunks) -> None:
        memory = self._memory(one)
        for at, data in chunks:
            memory[at : at + data.nbytes] = data
        fail_point("pulled")

    def _memory(self, one: Operation) -> memoryview:
        return bytes_at(self._addresses[one.tensor], self._part.tensors[one.tensor].nbytes)


__all__ = ["Parts"]
