"""The parts of graphs that a session has, and how it runs them.

A part runs as one run of the inner Worker, on the main thread. Its tasks are submitted one after the
other; before a tensor goes to another endpoint, or comes from one, all of them have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..callables.handles import CallableHandle
from ..errors import RemoteError
from ..model.arguments import TaskArgs
from ..model.tensor import DescribedTensor
from ..model.wire import with_address
from ..system.types import Array
from .copies import CopiedTensor, Copies, TaskCopies
from .dispatcher import InnerCallable
from .fail_points import fail_point
from .gifts import Gifts, Inbox
from .layouts import read_layout
from .parts import PART, Action, Operation, Part, PartRun, PartTensor
from .windows import bytes_at

STOPPED = "the replay was stopped: another part of it has failed, or it was cancelled"
_SOMEWHERE = 1 << 20
"""An address for a tensor that gets its own before each run."""


class _Task(NamedTuple):
    """A task of a part, but for addresses."""

    callable: int
    tensors: Sequence[int]
    wires: Sequence[bytes]
    scalars: Sequence[tuple[bytes, int]]
    """What travels, and which one of the replay's it is instead, plus one."""
    is_described: bool


class _Loaded:
    """A part as it is run: what can be prepared is."""

    def __init__(self, part: Part) -> None:
        self.tensors = part.tensors
        self.callables = part.callables
        self.spoiled = part.spoiled
        self.named = sum(1 for one in part.tensors if one.named)
        self.operations = [
            _task(one) if one.action == Action.RUN else one for one in part.operations
        ]
        self.most_bound = max(
            (scalar.bound for one in part.operations for scalar in one.scalars), default=0
        )
        self.most_peer = max((one.peer for one in part.operations), default=-1)


def _task(one: Operation) -> _Task:
    wires = [
        DescribedTensor(_SOMEWHERE, read_layout(use.layout, use.form.nbytes()))._tagged(use.tag)
        if use.layout
        else use.form._tagged(use.tag)
        for use in one.uses
    ]
    scalars = [
        (scalar.word.to_bytes(8, "little") + scalar.kind.to_bytes(8, "little"), scalar.bound)
        for scalar in one.scalars
    ]
    tensors = [use.tensor for use in one.uses]
    return _Task(one.callable, tensors, wires, scalars, any(use.layout for use in one.uses))


class Parts:
    """The parts of graphs that a session has.

    Parameters
    ----------
    copies
        The session's copies of the parent's tensors.
    mover
        What gives tensors to others.
    inbox
        What others have given.
    find
        Returns the callable that has a digest.
    run
        Runs an orchestration function on the inner Worker.
    is_stopped
        Says whether the parent has stopped the replay, without waiting.
    wait
        Waits until something may have come: from another session, or from the parent.

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
        wait: Callable[[], None],
    ) -> None:
        self._copies, self._mover, self._inbox = copies, mover, inbox
        self._find, self._run_inner = find, run
        self._is_stopped, self._wait = is_stopped, wait
        self._loaded: dict[int, _Loaded] = {}

    def run(self, told: TaskCopies, asked: PartRun) -> None:
        """Run a part, which the frame may bring."""
        part = self._part(asked)
        self._require_told(part, told.tensors, asked)
        callables = [self._callable(one) for one in part.callables]
        fail_point("decoded")
        copied = _by_name(part.tensors, part.named)
        sizes = [one.nbytes for one in copied]
        self._inbox.begin(asked.token)
        try:
            addresses = self._copies.take(told.tensors, sizes)
            fail_point("taken")
            succeeded = False
            try:
                with self._mover.giving(asked.token) as gifts:
                    replay = _Replay(self, part, asked, callables, gifts)
                    replay.find_memory(addresses)
                    self._run_inner(replay.submit_all)
                    fail_point("ran")
                succeeded = True
            finally:
                self._copies.settle(told.tensors, succeeded)
        finally:
            self._inbox.end()
        self._copies.drop([told.tensors[i].key for i in part.spoiled])
        fail_point("settled")

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
            ("scalars", 2 * part.most_bound, len(asked.scalars)),
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

    def receive(self, number: int) -> list[tuple[int, memoryview]]:
        """Wait for what another endpoint gives."""
        while True:
            chunks = self._inbox.take(number)
            if chunks is not None:
                return chunks
            self.require_wanted()
            self._wait()

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
        gifts: Gifts,
    ) -> None:
        self._parts, self._part, self._asked, self._callables = parts, part, asked, callables
        self._gifts = gifts
        self._own: list[Array] = []
        self._addresses: list[int] = []
        self._octets: list[bytes] = []
        """The same, as tensors have them."""
        self._is_busy = False

    def find_memory(self, named: Sequence[int]) -> None:
        """Note where the copies are that the replay names, and find memory for what else there is."""
        for one in self._part.tensors:
            if one.named:
                self._addresses.append(named[one.named - 1])
            else:
                self._own.append(self._parts.own(one.nbytes))
                self._addresses.append(int(self._own[-1].ctypes.data))
        self._octets = [address.to_bytes(8, "little") for address in self._addresses]

    def submit_all(self, orch: Any, _args: Any, _config: Any) -> None:
        """Carry the operations out: the orchestration function of the inner Worker's run."""
        for one in self._part.operations:
            if isinstance(one, _Task):
                self._submit(orch, one)
                continue
            self._drain(orch)
            if one.action == Action.SEND:
                self._send(one)
            elif one.action == Action.RECEIVE:
                self._receive(one)
        self._drain(orch)

    def _submit(self, orch: Any, one: _Task) -> None:
        args = TaskArgs()
        octets = self._octets
        args._tensors = [
            with_address(wire, octets[tensor])
            for wire, tensor in zip(one.wires, one.tensors, strict=True)
        ]
        if one.scalars:
            args._scalars = [self._scalar(*scalar) for scalar in one.scalars]
        if one.is_described:
            orch._give_numbers([args._tensors])
        orch.submit_sub(self._callables[one.callable], args)
        self._is_busy = True

    def _scalar(self, raw: bytes, bound: int) -> bytes:
        if not bound:
            return raw
        word, kind = self._asked.scalars[2 * bound - 2 : 2 * bound]
        return word.to_bytes(8, "little") + kind.to_bytes(8, "little")

    def _drain(self, orch: Any) -> None:
        """Wait until all tasks so far have ended."""
        if self._is_busy:
            orch.drain()
            self._is_busy = False
            self._parts.require_wanted()

    def _send(self, one: Operation) -> None:
        self._gifts.give(self._asked.peers[one.peer], one.number, self._memory(one).tobytes())

    def _receive(self, one: Operation) -> None:
        memory = self._memory(one)
        for at, data in self._parts.receive(one.number):
            memory[at : at + data.nbytes] = data

    def _memory(self, one: Operation) -> memoryview:
        return bytes_at(self._addresses[one.tensor], self._part.tensors[one.tensor].nbytes)


__all__ = ["Parts"]
