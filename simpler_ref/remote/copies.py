"""The store of a session: copies of the parent's tensors, values of calls, and how messages name them.

A tensor of the parent has a key, and a version that each task which writes it makes anew. A session has
at most one version of a tensor. What it has, others of its group may read in a window whose key follows
from the tensor's and the version. A value of a call never changes, so it has only a key.

Rule     REMOTE-COPY-1, REMOTE-COPY-2, REMOTE-COPY-3, REMOTE-COPY-4, REMOTE-COPY-10,
         REMOTE-COPY-13, REMOTE-AHEAD-8, REMOTE-TASK-7, REMOTE-TASK-14, CALL-KEEP-1, CALL-KEEP-3,
         CALL-KEEP-4
"""

from __future__ import annotations

import enum
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from ..errors import RemoteError, TaskError, TransferError, WorkerLostError
from ..jit import layout as L
from ..system.types import Array, address_of
from . import fields, limits
from .mover import Span, Window

if TYPE_CHECKING:
    from ..calls.futures import Lease

MOST_DROPPED = 1024
RACE = (
    "a later task has written the tensor already, and nothing orders the two: have the later one read "
    "what the first one writes"
)


SOURCE_LOST = 4
"""The error code of a task that could not read what another endpoint had."""


class SourceLost(TransferError):
    """An endpoint that has a version is lost, or cannot be reached."""


def outcome_of(error: BaseException) -> int:
    return SOURCE_LOST if isinstance(error, SourceLost) else L.TASK_FAILURE


def is_of_loss(error: BaseException) -> bool:
    """Say whether a task has failed for want of what a lost endpoint had."""
    is_a_task = isinstance(error, TaskError) and not isinstance(error, WorkerLostError)
    return is_a_task and f": {SourceLost.__name__}: " in str(error)


# ---------------------------------------------------------------- messages
class CopiedTensor(NamedTuple):
    """What a task does with a copy, and who has it.

    `reads` and `makes` are versions, or 0. `source` is the mover of the endpoint that has made the
    version it reads; "" if the parent has, which stores it before, or has it in `data`. `layout` is that
    of a call's array, or of a tensor which the TASK describes as bytes; see `layouts`.
    """

    key: fields.Uint64 = 0
    """0: the tensor is no copy."""
    reads: fields.Uint64 = 0
    makes: fields.Uint64 = 0
    source: fields.ShortText = ""
    layout: fields.ShortText = ""
    data: fields.InFrame = b""


_COPIED = fields.Message("RUN.tensors", CopiedTensor)
CopiedTensors = Annotated[Sequence[CopiedTensor], fields.many(_COPIED, limits.MAX_TENSORS)]
COMING = struct.Struct("<4Q")
"""What the parent asks the session's mover when it stores a version: for the window of which run, key,
version and bytes."""
_U64 = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
"""Odd, so that versions of a tensor have windows with keys unlike each other's."""


def window_key(key: int, version: int) -> int:
    return (key + version * _STEP) & _U64 or 1


# ---------------------------------------------------------------- the states of a version
class CopyState(enum.Enum):
    """What a version is at a session."""

    GONE = "not there"
    COMING = "stored by the parent, and no task has taken it"
    HERE = "there, and others can fetch it"
    CHANGING = "about to become the next one: nobody can reach it"


class CopyEvent(NamedTuple):
    """Something that happens to a version: in which states it can, and which window there is after it."""

    before: tuple[CopyState, ...]
    after: CopyState
    access: int = 0
    """What others may do with its window; 0: there is none."""


_GONE, _COMING, _HERE, _CHANGING = CopyState
_READ, _WRITE = limits.REMOTE_BUFFER_ACCESS_READ, limits.REMOTE_BUFFER_ACCESS_WRITE
EVENTS = {
    "open": CopyEvent((_GONE,), _COMING, _WRITE),
    "put": CopyEvent((_GONE,), _COMING),
    "take": CopyEvent((_COMING,), _HERE, _READ),
    "make room": CopyEvent((_GONE,), _CHANGING),
    "change": CopyEvent((_HERE, _CHANGING), _CHANGING),
    "keep": CopyEvent((_CHANGING,), _HERE, _READ),
    "drop": CopyEvent((_COMING, _HERE, _CHANGING), _GONE),
}
"""All that can happen to a version, by name; docs/design/remote.md says when. `Copies._step` lets it
happen, and nothing else does."""
_MOST_TOLD = 8
_COUNTED = (
    *("copies_hits", "copies_stored", "copies_fetched", "copies_dropped"),
    *("values_hits", "values_stored", "values_dropped"),
)


class _Copy:
    """A copy: its memory, and what is in it.

    `is_in_frame`: its memory is the frame that it came in, which tasks do not see. `is_fetched`: it was,
    and no task has taken it yet. `version` is that in the memory, or 0. `story` has what happened last.
    """

    __slots__ = (
        *("address", "is_fetched", "is_in_frame", "memory", "nbytes", "state", "story", "version"),
        "window",
    )

    def __init__(self, memory: Array, is_in_frame: bool = False) -> None:
        self.state, self.version, self.window = CopyState.GONE, 0, 0
        self.put_at(memory)
        self.is_in_frame, self.is_fetched = is_in_frame, False
        self.story: deque[tuple[str, int]] = deque(maxlen=_MOST_TOLD)

    def put_at(self, memory: Array) -> None:
        self.memory, self.address, self.nbytes = memory, address_of(memory), memory.nbytes
        self.is_in_frame = False

    def told(self) -> str:
        return ", ".join(f"{event} {version or ''}".rstrip() for event, version in self.story)


class _Value(NamedTuple):
    """A value of a call that is kept; `is_shown`: the parent may fetch it."""

    value: Lease | bytes
    nbytes: int
    is_shown: bool


class Copies:
    """The copies of one session, and the values that it keeps.

    What the parent stores comes into memory of its own, and is no copy before a task takes it: so it may
    come while other tasks run. `open` and `fetch` may therefore be called on other threads than all else;
    what is fetched is for tasks of which none uses a copy that another one writes.

    `empty` returns memory that the inner Worker's tasks see, or raises `MemoryError`.
    """

    def __init__(self, mover: Any, empty: Callable[[int], Array]) -> None:
        self._mover, self.empty = mover, empty
        self._copies: dict[int, _Copy] = {}
        self._coming: dict[tuple[int, int], _Copy] = {}
        """By key and version: what the parent stores, or has stored, and no task has taken."""
        self._lock = threading.RLock()
        """Held while what there is changes: tensors may come on other threads."""
        self._run = 0
        self._of_replay: list[Array] = []
        self._shown: list[int] = []
        """The memory of the last replay's tensors that are no copies, and the windows with them."""
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._values: dict[int, _Value] = {}

    def begin(self, run: int) -> None:
        """Forget the copies of an earlier run."""
        with self._lock:
            if run > self._run:
                self.drop(list(self._copies))
                self._drop_coming(list(self._coming))
                for key in self._shown:
                    self._mover.withdraw(key)
                self._shown, self._of_replay = [], []
                self._run = run

    def drop(self, keys: Iterable[int]) -> None:
        """Forget copies and values; calls that have those as arguments hold them."""
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._drop_value(key)  # what comes anew for another call stays
                else:
                    self._drop_copy(key)
                    self._drop_coming([one for one in self._coming if one[0] == key])

    def _drop_copy(self, key: int) -> None:
        copy = self._copies.pop(key, None)
        if copy is not None:
            self._step("drop", key, copy)
            self._counts["copies_dropped"] += 1

    def _drop_coming(self, several: Iterable[tuple[int, int]]) -> None:
        for one in several:
            if (copy := self._coming.pop(one, None)) is not None:
                self._step("drop", one[0], copy)

    def open(self, run: int, key: int, version: int, nbytes: int) -> int:
        """Return the key of the window into which the parent stores a version; 0: that is here.

        If there is no room, that is a `MemoryError`.
        """
        with self._lock:  # else a task that needs the room would not find what has it
            if run < self._run:
                raise RemoteError("it is of an earlier run, which has ended")
            self.begin(run)
            if self._is_here(key, version, nbytes):
                return 0
            coming = self._coming.get((key, version))
            if coming is None:
                coming = self._coming[key, version] = _Copy(self.empty(nbytes))
                self._step("open", key, coming, version)
            self._require_size(coming, nbytes)
            return coming.window  # none if it has come in a frame

    def _is_here(self, key: int, version: int, nbytes: int) -> bool:
        """Say whether a version is here already; refuse one that was replaced."""
        copy = self._copies.get(key)
        if copy is None:
            return False
        self._require_size(copy, nbytes)
        self._require_not_later(copy, version)
        return copy.version == version

    def put(self, tensors: Iterable[CopiedTensor]) -> None:
        """Have what has come in the frame of the task that reads it; it moves when that begins."""
        with self._lock:
            for one in tensors:
                if one.data and not self._is_here(one.key, one.reads, len(one.data)):
                    self._drop_coming([(one.key, one.reads)])  # a transfer of it was cut short
                    coming = _Copy(np.frombuffer(one.data, np.uint8), is_in_frame=True)
                    self._step("put", one.key, coming, one.reads)
                    self._coming[one.key, one.reads] = coming

    # ------------------------------------------------------------ replays
    def room(self, nbytes: int) -> int:
        """Return the address of memory that stays until another run begins."""
        self._of_replay.append(self.empty(nbytes))
        return address_of(self._of_replay[-1])

    def show(self, key: int, address: int, nbytes: int) -> None:
        """Let others have a version that a replay has made, until another run begins."""
        self._shown.append(key)
        self._mover.offer_to_gets(Window(key, address, nbytes, _READ))

    def take_stored(self, key: int) -> Array:
        """Return what the parent has stored under a key, which is no copy."""
        with self._lock:
            found = self._coming.pop((key, 1), None)
            if found is None:
                raise RemoteError("a value is not at this endpoint, which had it: it is lost")
            self._step("drop", key, found)
        return found.memory

    def data(self, key: int) -> bytes:
        return self._copies[key].memory.tobytes()

    def lacking(self, tensors: Sequence[CopiedTensor]) -> list[str]:
        """Return from where versions have to be fetched that a task reads."""
        needed = [one for one in tensors if one.source and not self._has(one.key, one.reads)]
        return [one for one in {it.source: 0 for it in needed} if one != self._mover.address]

    def _has(self, key: int, version: int) -> bool:
        copy = self._copies.get(key)
        is_here = copy is not None and copy.version >= version
        return is_here or (key, version) in self._coming

    def fetch(self, source: str, tensors: Sequence[CopiedTensor], sizes: Sequence[int]) -> None:
        """Fetch the versions that a task reads and one endpoint has, if there is room.

        On any thread, but from one endpoint on one thread at a time.
        """
        lacking: dict[int, tuple[int, _Copy]] = {}
        with self._lock:
            for one, nbytes in zip(tensors, sizes, strict=True):
                if one.source == source and one.reads and not self._has(one.key, one.reads):
                    copy = self._of(one.key, nbytes)
                    self._step("change", one.key, copy)
                    lacking[one.key] = one.reads, copy
        if not lacking:
            return
        try:
            self._mover.fetch_all(
                source,
                [
                    Span(window_key(key, version), copy.address, copy.nbytes)
                    for key, (version, copy) in lacking.items()
                ],
            )
        except TransferError as error:
            if not error.refused:
                raise SourceLost(str(error)) from error
            versions = ", ".join(str(version) for version, _ in lacking.values())
            raise RemoteError(
                f"version {versions} of the tensor is no longer at the endpoint that has made it: {RACE}"
            ) from error
        with self._lock:
            for key, (version, copy) in lacking.items():
                self._counts["copies_fetched"] += 1
                copy.is_fetched = True
                self._step("keep", key, copy, version)

    def take(self, tensors: Sequence[CopiedTensor], sizes: Sequence[int]) -> list[int]:
        """Return the address of each copy that a task gets, once the versions that it reads are there.

        Those that it writes are no longer in the reach of others; `settle` says how it has ended. All of
        them stay where they are until then. If there is no room, that is a `MemoryError`.
        """
        if not tensors:
            return []
        for source in self.lacking(tensors):
            self.fetch(source, tensors, sizes)
        with self._lock:
            both = [*zip(tensors, sizes, strict=True)]
            for one, nbytes in {one.key: (one, nbytes) for one, nbytes in both}.values():
                if one.key and one.reads:
                    self._require_here(one, nbytes)
            copies = [self._of(one.key, nbytes) if one.key else None for one, nbytes in both]
            made = [(one, it) for one, it in zip(tensors, copies, strict=True) if it and one.makes]
            for one, copy in made:
                self._require_not_later(copy, one.makes - 1)
            for one, copy in made:
                self._step("change", one.key, copy)
            return [copy.address if copy else 0 for copy in copies]

    def settle(self, tensors: Sequence[CopiedTensor], succeeded: bool) -> None:
        """Keep what a task has written, or forget it if it has failed."""
        with self._lock:
            for one in tensors:
                copy = self._copies.get(one.key)
                if copy is not None and copy.version != one.makes and one.makes:
                    if succeeded:
                        self._step("keep", one.key, copy, one.makes)
                    else:
                        self._drop_copy(one.key)

    def counts(self) -> dict[str, int]:
        both = [*self._copies.values(), *list(self._coming.values())]
        return {
            **self._counts,
            "copies": len(self._copies),
            "copy_bytes": sum(one.memory.nbytes for one in both),
            "values": len(self._values),
            "value_bytes": sum(one.nbytes for one in self._values.values()),
        }

    # ------------------------------------------------------------ values
    def keep(
        self,
        key: int,
        value: Lease | bytes,
        nbytes: int,
        *,
        address: int = 0,
        was_stored: bool = False,
    ) -> None:
        """Keep the value of a call, a block or bytes; the parent fetches it if there is an address.

        A call has returned it, or gets it as an argument; then the parent has stored it. The link knows
        what is kept, so it stays until the link says otherwise, also in other runs.
        """
        self._counts["values_stored"] += was_stored
        self._values[key] = _Value(value, nbytes, bool(address))
        if address:
            self._mover.offer(Window(key, address, nbytes, _READ))

    def find_value(self, key: int) -> Lease | bytes | None:
        found = self._values.get(key)
        self._counts["values_hits"] += found is not None
        return None if found is None else found.value

    def _drop_value(self, key: int) -> None:
        self._counts["values_dropped"] += 1
        if self._values.pop(key).is_shown:
            self._mover.withdraw(key)

    def forget_values(self) -> None:
        """Forget all values, while there is still the memory that they are in: the session ends."""
        self._values.clear()

    def _require_here(self, one: CopiedTensor, nbytes: int) -> None:
        """Refuse a version that a task reads and that is not here; if the parent has stored it, it is."""
        known, came = self._copies.get(one.key), None
        if known is None or known.version < one.reads:
            came = self._coming.pop((one.key, one.reads), None)
        if came is not None:
            if known is not None:
                self._step("drop", one.key, known)
            self._copies[one.key] = came
            self._step("take", one.key, came, one.reads)
        copy = self._of(one.key, nbytes)
        self._require_not_later(copy, one.reads)
        if copy.version != one.reads:
            raise RemoteError(
                f"version {one.reads} of the tensor is not at this endpoint, which had it: it is lost"
            )
        if copy.is_fetched:  # which was counted
            copy.is_fetched = False
        else:
            self._counts["copies_stored" if came else "copies_hits"] += 1

    def _of(self, key: int, nbytes: int) -> _Copy:
        """Return a copy whose memory tasks see."""
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = _Copy(self.empty(max(1, nbytes)))
            self._step("make room", key, copy)
        self._require_size(copy, nbytes)
        if copy.is_in_frame:
            memory = self.empty(copy.nbytes)
            memory[:] = copy.memory
            copy.put_at(memory)
        return copy

    @staticmethod
    def _require_size(copy: _Copy, nbytes: int) -> None:
        if copy.nbytes != (nbytes or 1):
            raise ValueError(f"a tensor of {nbytes} bytes is said to be one of {copy.nbytes} bytes")

    @staticmethod
    def _require_not_later(copy: _Copy, version: int) -> None:
        if copy.version > version:
            raise RemoteError(
                f"version {version} of the tensor is needed, not {copy.version}: {RACE} (here: "
                f"{copy.told()})"
            )

    # ------------------------------------------------------------ states
    def _step(self, name: str, key: int, copy: _Copy, version: int = 0) -> None:
        """Let an event happen to a copy, and have the window that belongs to the state then."""
        event = EVENTS[name]
        if copy.state not in event.before:
            raise RuntimeError(f"a copy that is {copy.state.name} cannot {name}: {copy.told()}")
        if copy.window:
            self._mover.withdraw(copy.window)
            copy.window = 0
        copy.state, copy.version = event.after, version
        copy.story.append((name, version))
        if event.access:
            copy.window = window_key(key, version)
            self._mover.offer(Window(copy.window, copy.address, copy.nbytes, event.access))
