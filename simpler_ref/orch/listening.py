"""Orchestration functions of which no task runs: they are recorded, or their graph is drawn.

`ListeningOrchestrator` is what such a function holds. It has the methods of any other, and hands each
task, buffer and scope to a `Listener` once it is found to be right:

    orch_fn ──submit_*, alloc, scope──▶ ListeningOrchestrator ──task, buffer, scope──▶ OpRecorder, DryRun

Memory that the runtime will provide has an address in a range where no memory is.

Rule     ORCH-CHECK-9, SEE-GRAPH-6, SPEED-REPLAY-1, SPEED-REPLAY-3
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Protocol

from ..callables.identity import CallableHandle
from ..engine.introspection import requested_bytes
from ..jit import layout as L
from ..model import visibility
from ..model.arguments import Members, TaskArgs, Workers
from ..model.config import CallConfig
from ..model.scalars import BoundFloat, BoundInt, BoundWord, scalar_wire
from ..model.tensor import RECORDED_FIRST, RECORDED_LAST, ContinuousTensor
from ..model.wire import COUNTS_BYTES, blob_bytes, counts_of
from ..workers.session import Session
from .checked import Check
from .orchestrator import Handles, Orchestrator, never_fits, orchestrator_of
from .words import config_wire

_REGION = 1 << 45
"""Bytes of such memory that one function may ask for; the next ones have other addresses."""
_functions = itertools.count()


# ---------------------------------------------------------------- the arguments of the function
class RecordedArgs(TaskArgs):
    """The arguments that an orchestration function is recorded with; its scalars know their positions."""

    __slots__ = ("_floats",)

    _floats: list[BoundWord]

    def __init__(self, args: TaskArgs) -> None:
        super().__init__()
        self._tensors = list(args._tensors)
        provided = [BoundWord(raw, i) for i, raw in enumerate(provided_scalars(args))]
        self._scalars = provided[: len(args._scalars)]
        self._floats = provided[len(args._scalars) :]
        self._doubts = args._doubts

    def scalar(self, i: int) -> int | float:
        """Return scalar `i`: a number that can be re-bound if it is passed to a task as it is."""
        value = super().scalar(i)
        word = self._scalars[i]
        if not isinstance(word, BoundWord):
            return value
        return BoundInt(value, word) if isinstance(value, int) else BoundFloat(value, word)

    def scalar_float(self, i: int) -> float:
        value = super().scalar_float(i)
        word = self._scalars[i]
        if not isinstance(word, BoundWord):
            return value
        return BoundFloat(value, self._floats[word.position])


def provided_scalars(args: TaskArgs) -> list[bytes]:
    """Return the scalars that a replay provides: as they are, then as `scalar_float` gives them."""
    floats = [scalar_wire(args.scalar_float(i)) for i in range(args.scalar_count())]
    return [*args._scalars, *floats]


# ---------------------------------------------------------------- what it is told
class Listener(Protocol):
    """What becomes of tasks, buffers and scopes while nothing runs."""

    memory: tuple[int, int]
    """The first address of what it provides, and the one after the last."""
    why_not: str
    """Why a method means nothing while nothing runs, after its name."""

    def task(self, handle: CallableHandle, word: int, members: Members, workers: Workers) -> None:
        """Take a task, or a group, and give those of its tensors addresses that are provided.

        `word` is its callable word, with the handle's number; the rest is as for `Orchestrator._add`.
        """

    def buffer(self, tensor: ContinuousTensor) -> int:
        """Take a buffer; return its address."""

    def scope(self, begins: bool) -> None:
        """Take the beginning of a scope, or its end."""

    def drain(self) -> None:
        """Take that a run would wait for all tasks here."""


def fresh_memory() -> tuple[int, int]:
    """Return addresses for the memory that the runtime would provide one function with."""
    regions = (RECORDED_LAST - RECORDED_FIRST) // _REGION
    first = RECORDED_FIRST + next(_functions) % regions * _REGION
    return first, first + _REGION


# ---------------------------------------------------------------- what the function holds
class ListeningOrchestrator(Orchestrator):
    """The Orchestrator of a function of which no task runs."""

    def __init__(self, session: Session, listener: Listener) -> None:
        orch = orchestrator_of(session)
        super().__init__(session, orch._configs, orch._pools)
        self._listener = listener
        self._thread = get_ident()
        self._scopes = 1
        self.handles: dict[tuple[CallableHandle, int], int] = {}
        """Callables with their pools, and their numbers: a replay looks up what they mean then."""
        self.configs: dict[bytes, int] = {CallConfig().to_bytes(): 0}
        """The configurations of tasks and their numbers."""
        self._next_level, self._subs = session.words
        self.has_unordered = False
        """Whether tasks may write what others have as INPUT; only with ``check=True`` that is known."""
        if session.options.check:
            self._check = Check(session, self._note_unordered, listener.memory)

    # ------------------------------------------------------------ submits
    _in_bulk = False

    def _require_handle(
        self, what: str, handle: Any, members: Sequence[Any], live: Handles, pool: int
    ) -> int:
        super()._require_handle(what, handle, members, live, pool)
        number = self.handles.setdefault((handle, pool), len(self.handles))
        return number | pool << L.WORD_KIND

    def _send(self, word: int, members: list[TaskArgs], workers: list[int] | None) -> None:
        self._require_mine()
        self._require_possible(members)
        self._listener.task(self._handle, word, members, workers)

    def _note_unordered(self, _low: int, _high: int) -> None:
        self.has_unordered = True  # where that is, replays know

    def _require_possible(self, members: Sequence[TaskArgs]) -> None:
        for one in members:
            counts = counts_of(len(one._tensors), len(one._scalars))
            if COUNTS_BYTES + blob_bytes(counts) > L.MAILBOX_ARGS_CAPACITY:
                raise never_fits(L.TOO_MANY_ARGS, bytes(blob_bytes(counts)), self._view.ring_bytes)
        self._require_room(b"".join(wire for one in members for wire in one._tensors))

    def _require_room(self, tensors: bytes) -> None:
        if requested_bytes(tensors) > self._view.ring_bytes:
            raise never_fits(L.TOO_LARGE, tensors, self._view.ring_bytes)

    # What follows a run has to choose: numbers of configurations and of layouts.
    def _config_word(self, config: CallConfig | None) -> int:
        if config is None:
            return 0
        return self.configs.setdefault(config_wire(config), len(self.configs)) << L.WORD_CONFIG

    def _give_numbers(self, members: Sequence[list[bytes]]) -> None:
        pass

    # ------------------------------------------------------------ buffers, scopes, waiting
    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        self._require_room(tensor._tagged(L.OUTPUT))
        return tensor._at_address(self._listener.buffer(tensor), None)

    def _depth(self) -> int:
        return self._scopes

    def _open_scope(self) -> int:
        if self._scopes > L.MAX_SCOPE_DEPTH:
            return L.TOO_DEEP
        self._listener.scope(begins=True)
        self._scopes += 1
        return L.OK

    def _close_scope(self) -> None:
        self._listener.scope(begins=False)
        self._scopes -= 1

    def _drain(self) -> None:
        self._listener.drain()


def _refused(what: str) -> Callable[..., Any]:
    def refuse(orch: ListeningOrchestrator, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{what} {orch._listener.why_not}")

    return refuse


_OF_RUNS = ("malloc", "free", "copy_to", "copy_from", "live_tasks")
for _what in (*_OF_RUNS, "allocate_domain", "release_domain"):
    setattr(ListeningOrchestrator, _what, _refused(_what))
ListeningOrchestrator.ring = property(_refused("ring"))  # type: ignore[assignment, method-assign]


# ---------------------------------------------------------------- the function
def recorded(args: Any) -> RecordedArgs | None:
    if not isinstance(args, TaskArgs):
        return None
    if not hasattr(args, "_tensors"):
        raise TypeError("args belongs to a running task; build new TaskArgs")
    return RecordedArgs(args)


def listen(
    listener: Listener, session: Session, orch_fn: Callable[..., Any], args: Any, config: CallConfig
) -> tuple[ListeningOrchestrator, list[Any]]:
    """Call an orchestration function; return what it held, and what must be kept as long as the tasks."""
    kept: list[Any] = [orch_fn, args]

    def check(address: int, nbytes: int) -> str | None:  # one of its own: every array is asked for
        return session.method.why_invisible(address, nbytes)

    outer = visibility.current.check, visibility.current.kept, visibility.current.spawned
    try:
        visibility.set_current(check, kept, session.method.spawn)
        given = recorded(args)
        if given is not None and given._doubts is not None:
            given._doubts.settle()
        orch = ListeningOrchestrator(session, listener)
        try:
            orch_fn(orch, args if given is None else given, config)
            session.require_own_process()  # refuses a process that the function forked
        finally:
            orch._close()
    finally:
        visibility.set_current(*outer)
    return orch, kept
