"""Task lists at an endpoint: how its session carries them out.

A list is one run of the inner Worker, on the main thread, which submits the tasks of one step after the
other. What others make comes on threads, one for each of them, into memory of its own; before a step the
main thread copies it into its slot, once the tasks that use the slot have ended. What others read it
shows them as soon as it is made: who fetches what is not shown yet waits for that at the mover.

So a step waits for tasks that come earlier in the graph, and for nothing else: no two lists wait for each
other in a circle.

Rule     REMOTE-LIST-3, SPEED-LIST-1, SPEED-LIST-3, SPEED-LIST-6, SPEED-LIST-7
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..callables.identity import CallableHandle
from ..errors import RemoteError, TransferError
from ..jit import layout as L
from ..jit.program import Patch, ProgramWriter, Words, rewind, scalar_at, tensor_at
from ..model.tensor import DescribedTensor
from ..model.wire import TENSOR_BYTES, DescribedWire, Layout, counts_of, layout_number
from ..system.cores import SPIN_NS
from ..system.types import Array
from .copies import window_key
from .dispatcher import InnerCallable
from .fail_points import fail_point
from .layouts import read_layout
from .limits import REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_WRITE
from .lists import LIST, PARENT, Get, ListOpening, ListRun, ListStep, ListTask, Show, TaskList
from .mover import Mover, Span
from .windows import Window, bytes_at

STOPPED = "the replay was stopped: another list of it has failed, or it was cancelled"
LOOK_S = 0.02
"""How long it goes on, if something moves, before it looks whether the parent has stopped the replay."""
MOST_OVERTAKEN = 8
"""How many shows that cannot be made yet are looked at for one that can."""
_SOMEWHERE = 1 << 20
"""An address for a tensor that gets its own before each run."""


class OthersFailed(RemoteError):
    """Another list of the replay has failed: the parent is about to say so."""


# ---------------------------------------------------------------- a list, prepared
class _Variables:
    """What the programs of a list leave open: the addresses of slots, the replay's scalars, layouts."""

    def __init__(self, slots: int, scalars: int) -> None:
        self.slots, self.scalars = slots, scalars
        self.layouts: dict[Layout, int] = {}

    def of_scalar(self, number: int) -> int:
        """Return the variable of the word of a scalar, counted from 1; its kind is the next."""
        return self.slots + (number - 1) * L.SCALAR_WORDS

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


class _Tasks:
    """The tasks of a step as a program; see `jit.program`."""

    def __init__(self, tasks: Sequence[ListTask], variables: _Variables) -> None:
        writer = ProgramWriter()
        for one in tasks:
            self._write(writer, one, variables)
        self.count = len(tasks)
        self._callables = [one.callable for one in tasks]
        self._program = writer.words()
        self._places = writer.callables
        self._words: Array | None = None
        """Those of callables that are in the program."""

    @staticmethod
    def _write(writer: ProgramWriter, one: ListTask, variables: _Variables) -> None:
        tensors, patches = [], []
        for i, use in enumerate(one.uses):
            layout = read_layout(use.layout, use.form.nbytes()) if use.layout else None
            tensor = use.form if layout is None else DescribedTensor(_SOMEWHERE, layout)
            tensors.append(bytes(tensor._tagged(use.tag)))
            patches.append(Patch(tensor_at(i), use.slot, 0))
            if layout is not None:
                patches.append(Patch(tensor_at(i) + L.TENSOR_SHAPE, variables.of_layout(layout), 0))
        scalars = []
        for j, scalar in enumerate(one.scalars):
            scalars.append(scalar.word.to_bytes(8, "little") + scalar.kind.to_bytes(8, "little"))
            if scalar.bound:
                first, at = variables.of_scalar(scalar.bound), scalar_at(len(tensors), j)
                patches += [Patch(at + k, first + k, 0) for k in range(L.SCALAR_WORDS)]
        counts = counts_of(len(tensors), len(scalars))
        writer.submit(0, counts, b"".join([*tensors, *scalars]), (), patches, -1)

    def program(self, words: Array) -> Words:
        """Return it from its beginning on, with the words that callables have now."""
        if self._words is not words:
            self._program[self._places] = words[self._callables]
            self._words = words
        rewind(self._program)
        return self._program


class LoadedList:
    """A list as it is carried out: what can be prepared is."""

    def __init__(self, one: TaskList) -> None:
        self.slots, self.callables, self.steps = one.slots, one.callables, one.steps
        tasks = [task for step in one.steps for task in step.tasks]
        bound = [scalar.bound for task in tasks for scalar in task.scalars]
        self.variables = _Variables(len(one.slots), max(bound, default=0))
        self.programs = [_Tasks(step.tasks, self.variables) for step in one.steps]
        self.gets = [get for step in one.steps for get in step.gets]
        self.most_peer = max((one.peer for one in self.gets if one.peer != PARENT), default=-1)
        rounded = [L.round_up(nbytes, L.HEAP_ALIGN) for nbytes in one.slots]
        *self._offsets, self.nbytes = itertools.accumulate(rounded, initial=0)
        self.tasks = len(tasks)
        self._words = np.empty(0, np.int64)
        self.last_ns = 0
        """How long the last replay took; 0 before that."""

    def addresses(self, start: int) -> list[int]:
        """Return where all slots are: one behind the other."""
        return [start + offset for offset in self._offsets]

    def words(self, now: Sequence[int]) -> Array:
        """Return the words that callables have now: the same array while they do not change."""
        if self._words.tolist() != now:
            self._words = np.array(now, np.int64)
        return self._words

    @property
    def has_long_tasks(self) -> bool:
        """Whether tasks have ended less often than a thread looks for that before it sleeps."""
        return self.last_ns > self.tasks * SPIN_NS


# ---------------------------------------------------------------- what comes
class Arrivals:
    """What has come of a replay, by the keys of windows. Other threads note it, the main thread asks.

    `ring` is called if that has come which is waited for; it must not wait.
    """

    def __init__(self, ring: Callable[[], Any]) -> None:
        self._rings = [ring]
        self._lock = threading.Lock()
        self._here: set[int] = set()
        self._awaited = 0
        self.failure: TransferError | None = None
        """Why something never comes."""

    def note(self, key: int) -> None:
        """Note that all of a window has come, or has been fetched by all."""
        with self._lock:
            self._here.add(key)
            if key == self._awaited:
                self._ring()

    def fail(self, error: TransferError) -> None:
        """Note that nothing more comes."""
        with self._lock:
            self.failure = self.failure or error
            self._ring()

    def _ring(self) -> None:
        self._awaited = 0
        for ring in self._rings:
            ring()

    def have(self, key: int) -> bool:
        """Say whether a window has come; if not, ring when it does."""
        with self._lock:
            if key not in self._here:
                self._awaited = key
            return key in self._here

    def ring_also(self, ring: Callable[[], Any], on: bool) -> None:
        """Call this, too, or no more."""
        with self._lock:
            (self._rings.append if on else self._rings.remove)(ring)


# ---------------------------------------------------------------- the session's lists
class Lists:
    """The task lists that a session has.

    Parameters
    ----------
    mover
        Shows slots to others, and fetches from them.
    empty
        Returns memory that tasks see.
    find
        Returns the callable that has a digest.
    run
        Runs an orchestration function on the inner Worker.
    is_stopped
        Says whether the parent has stopped the replay, without waiting.
    ring, wait
        The first ends the second, which waits until something may have come, from another session or
        from the parent; but not for long.
    patience_s
        How long a list that others have failed waits for the parent to say so.
    """

    def __init__(
        self,
        mover: Mover,
        empty: Callable[[int], Array],
        find: Callable[[bytes], Any],
        run: Callable[[Any], Any],
        is_stopped: Callable[[], bool],
        ring: Callable[[], Any],
        wait: Callable[[], Any],
        patience_s: float,
    ) -> None:
        self.mover, self._empty = mover, empty
        self._find, self.run_inner = find, run
        self.is_stopped, self.wait, self._patience_s = is_stopped, wait, patience_s
        self._ring = ring
        self._loaded: dict[int, LoadedList] = {}
        self._opened: _Replay | None = None

    def open(self, asked: ListOpening) -> None:
        """Make room for a replay, so that the parent can store what the list reads first.

        Raises
        ------
        MemoryError
            There is none.
        RemoteError
            The list is not known.
        """
        self.close()
        for number in asked.forgotten:
            self._loaded.pop(number, None)
        if asked.raw:
            self._loaded[asked.number] = LoadedList(LIST.decode(asked.raw))
        found = self._loaded.get(asked.number)
        if found is None:
            raise RemoteError(f"list {asked.number} is not known to this session")
        memory = self._empty(max(1, found.nbytes))
        self._opened = _Replay(self, found, asked.token, memory, Arrivals(self._ring))

    def run(self, asked: ListRun) -> None:
        """Carry the list out that was opened last."""
        replay = self._opened
        if replay is None or replay.token != asked.token:
            raise RemoteError("no list was opened for this replay")
        try:
            replay.require_told(asked)
            callables = [self._callable(one) for one in replay.list.callables]
            replay.carry_out(asked, callables)
        except OthersFailed:
            self._await_stop()
            raise
        finally:
            self.close()
        fail_point("list_settled")

    def close(self) -> None:
        """End a replay that was opened, if any: nothing of it comes or goes any more."""
        replay, self._opened = self._opened, None
        if replay is not None:
            replay.close()

    def note(self, key: int) -> None:
        """Note that a window is full, or read by all; on the mover's thread."""
        replay = self._opened
        if replay is not None:
            replay.arrivals.note(key)

    def _await_stop(self) -> None:
        """Let the parent, if it is about to notice what has failed, be the first to say so."""
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline and not self.is_stopped():
            self.wait()

    def _callable(self, digest: bytes) -> CallableHandle:
        found = self._find(digest)
        if not isinstance(found, InnerCallable):
            raise TypeError("a task of a list is not for the workers of this endpoint")
        return found.handle


class _Replay:
    """One replay of a list."""

    def __init__(
        self, lists: Lists, one: LoadedList, token: int, memory: Array, arrivals: Arrivals
    ) -> None:
        self._lists, self.list, self.token, self.arrivals = lists, one, token, arrivals
        self._memory, self._mover = memory, lists.mover
        self._addresses = one.addresses(memory.ctypes.data)
        self._windows: set[int] = set()
        self._copies: list[Any] = []
        """Of slots that change, for others to fetch."""
        self._came: dict[int, Array] = {}
        """By number: where something comes."""
        self._threads: list[threading.Thread] = []
        self._is_over = False
        self._slots: list[int] = []
        """The engine's slots of its tasks, by their numbers."""
        self._to_show: deque[tuple[int, Show]] = deque()
        self._not_shown: set[int] = set()
        self._looked = 0.0
        self._scalars: Sequence[int] = ()
        self._callables: Sequence[CallableHandle] = ()
        self._orch: Any = None
        self._has_ended: Callable[[int], int]
        for get in one.gets:
            if get.peer == PARENT:
                nbytes = one.slots[get.slot]
                self._offer(get, self._addresses[get.slot], nbytes, REMOTE_BUFFER_ACCESS_WRITE)

    def _key(self, one: Get | Show) -> int:
        return window_key(self.token, one.number)

    def _offer(
        self, one: Get | Show, address: int, nbytes: int, access: int, reads: int = 0
    ) -> None:
        key = self._key(one)
        self._mover.offer(Window(key, address, nbytes, access, reads))
        self._windows.add(key)

    def require_told(self, asked: ListRun) -> None:
        """Refuse a replay that does not say all that its list needs."""
        for what, needed, there in (
            ("scalars", L.SCALAR_WORDS * self.list.variables.scalars, len(asked.scalars)),
            ("endpoints", self.list.most_peer + 1, len(asked.peers)),
        ):
            if there < needed:
                raise ValueError(f"the list names {needed} {what}, its replay {there}")

    def carry_out(self, asked: ListRun, callables: Sequence[CallableHandle]) -> None:
        """Carry the steps out, and return when all of it has ended and others have what they read."""
        fail_point("list_taken")
        self._fetch(asked.peers)
        self._scalars, self._callables = asked.scalars, callables
        self._lists.run_inner(self._run)
        fail_point("list_ran")
        for show in (one for step in self.list.steps for one in step.shows):
            while not self.arrivals.have(self._key(show)):
                self._require_coming()
                self._lists.wait()
                self._require_wanted()

    def close(self) -> None:
        """Let nothing come or go any more."""
        self._is_over = True
        for key in self._windows:
            self._mover.withdraw(key)
        self._mover.end_replay(self.token)
        for thread in self._threads:
            thread.join()

    # ------------------------------------------------------------ fetching
    def _fetch(self, peers: Sequence[str]) -> None:
        """Begin to fetch what others make, in the order in which it is needed."""
        wanted: defaultdict[int, list[Get]] = defaultdict(list)
        for get in self.list.gets:
            if get.peer != PARENT:
                wanted[get.peer].append(get)
                self._came[get.number] = np.empty(self.list.slots[get.slot], np.uint8)
        for peer, gets in wanted.items():
            what = (peers[peer], gets)
            thread = threading.Thread(
                target=self._fetch_from, args=what, name="simpler-fetch", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _fetch_from(self, address: str, gets: Sequence[Get]) -> None:
        keys = [self._key(one) for one in gets]
        memories = [self._came[one.number] for one in gets]
        spans = [
            Span(key, memory, memory.nbytes) for key, memory in zip(keys, memories, strict=True)
        ]
        try:
            came = self._mover.fetch_made(
                address, self.token, spans, self._require_not_over, came=self.arrivals.note
            )
            if not all(came):
                raise TransferError("it was not made", refused=True)
        except TransferError as error:
            self.arrivals.fail(error)

    def _require_not_over(self) -> None:
        if self._is_over:
            raise TransferError("the replay is over")

    # ------------------------------------------------------------ on the inner Worker
    def _run(self, orch: Any, _args: Any, _config: Any) -> None:
        """Carry the steps out: the orchestration function of the inner Worker's run."""
        self._orch, one = orch, self.list
        began = time.monotonic_ns()
        orch._view.park_at_once(one.has_long_tasks)
        self.arrivals.ring_also(orch._room.ring, True)
        try:
            self._has_ended = orch._room.tell_ends()
            variables = one.variables.values(self._addresses, self._scalars, orch)
            words = one.words(
                [
                    orch._require_handle("a list", it, (), orch._subs, L.SUB)
                    for it in self._callables
                ]
            )
            shows = 0
            for step, program in zip(one.steps, one.programs, strict=True):
                self._prepare(step)
                orch._play(program.program(words), variables)
                self._slots += orch._room.newest_tasks(program.count).tolist()
                self._to_show += enumerate(step.shows, shows)
                self._not_shown.update(range(shows, shows + len(step.shows)))
                shows += len(step.shows)
                self._show_made()
            while self._to_show:
                self._await(self._to_show[0][1].task)
            orch._until_idle(self._require_wanted)
            orch.drain()
            self._require_wanted()
        finally:
            self.arrivals.ring_also(orch._room.ring, False)
            orch._room.hush()
            orch._view.park_at_once(False)
        one.last_ns = time.monotonic_ns() - began

    def _prepare(self, step: ListStep) -> None:
        """Wait until what a step changes was shown, and have what it gets in its slots."""
        for number in step.shown:
            while number in self._not_shown:
                self._await(self._to_show[0][1].task)
        for get in step.gets:
            key = self._key(get)
            while not self.arrivals.have(key):
                self._require_coming()
                self._wait()
            for task in get.users:
                self._await(task)
            if get.peer != PARENT:
                memory = self._came.pop(get.number)
                bytes_at(self._addresses[get.slot], memory.nbytes)[:] = memory.data
                fail_point("got")

    def _await(self, task: int) -> None:
        """Wait until a task has ended; what is made meanwhile is shown."""
        while not self._has_ended(self._slots[task]):
            self._orch._room.until_woken(self._slots[task])
            self._go_on()
        self._go_on()

    def _wait(self) -> None:
        """Wait until something may have come, or been made."""
        self._go_on()
        if self._orch._is_busy():
            first = self._slots[self._to_show[0][1].task] if self._to_show else None
            self._orch._room.until_woken(first)
        else:
            self._lists.wait()

    def _go_on(self) -> None:
        """Show what is made by now; raise if a task has failed, or, soon, if the replay is stopped."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            self._require_wanted()
        self._require_no_failure()
        self._show_made()

    def _show_made(self) -> None:
        """Show what is made by now, in about the order in which it is."""
        late: list[tuple[int, Show]] = []
        waiting, has_ended, slots = self._to_show, self._has_ended, self._slots
        while waiting and len(late) < MOST_OVERTAKEN:
            number, one = waiting.popleft()
            if not has_ended(slots[one.task]):
                late.append((number, one))
                continue
            self._require_no_failure()
            self._show(one)
            self._not_shown.discard(number)
        waiting.extendleft(reversed(late))

    def _show(self, one: Show) -> None:
        address, nbytes = self._addresses[one.slot], self.list.slots[one.slot]
        if not one.stays:
            copy = np.frombuffer(bytes(bytes_at(address, nbytes)), np.uint8)
            self._copies.append(copy)
            address = copy.ctypes.data
        self._offer(one, address, nbytes, REMOTE_BUFFER_ACCESS_READ, one.readers)
        fail_point("shown")

    # ------------------------------------------------------------ what goes wrong
    def _require_no_failure(self) -> None:
        """Raise if a task has failed: none of the list's begins any more."""
        if self._orch._view.has_failed:
            raise self._orch._task_error()

    def _require_coming(self) -> None:
        if self.arrivals.failure is not None:
            raise OthersFailed(f"{STOPPED}: {self.arrivals.failure}") from self.arrivals.failure

    def _require_wanted(self) -> None:
        if self._lists.is_stopped():
            raise RemoteError(STOPPED)


__all__ = ["Lists"]
