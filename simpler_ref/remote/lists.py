"""Lists of tasks: what endpoints run of a recorded graph, as a message, and how a session runs it.

A list is a callable like any other, but its payload says which tasks of which other callables it stands
for: a *part* for each endpoint. All parts are replayed at once, each as a task of its endpoint, and get
from each other what they need:

    part 0    task a ── shows x, version 1        gets y, version 3 ── task d
                              ╲                        ╱
    part 1                     gets x, version 1 ── task b, task c ── shows y, version 3

Before a task, its session waits for what it gets; after one, it shows what others get, once that has
ended. The wait is at the session that will show it: it answers a GET when the version is there. All are
carried out in the order of the recording, so the first task that has not ended waits for none that
comes after it: replays end. What is written and read again without an order between the two is not the
concern of a list, as it is not that of the graph: each tensor has one place at a session, into which its
versions come.

Rule     REMOTE-LIST-1, REMOTE-LIST-2, SPEED-LIST-1, SPEED-LIST-6
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, zip_longest
from typing import Annotated, Any, NamedTuple

import numpy as np

from ..callables.identity import CALLABLE_HASH_DIGEST_BYTES, CallableHandle
from ..engine.memory import PARK_NS
from ..errors import RemoteError, TransferError
from ..jit import layout as L
from ..jit.program import Patch, ProgramWriter, Words, rewind, scalar_at, tensor_at
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor, DescribedTensor
from ..model.wire import (
    TENSOR_BYTES,
    DescribedWire,
    Layout,
    counts_of,
    layout_number,
)
from ..system.types import Array
from .copies import Copies, SourceLost, window_key
from .fields import (
    TEXT,
    U32,
    U64,
    Message,
    Octets,
    Positive,
    ShortText,
    Uint32,
    Uint64,
    WireError,
    exactly,
    many,
    one_of,
)
from .layouts import read_layout
from .limits import MAX_SCALARS, MAX_TENSORS
from .tasks import TENSOR
from .windows import Span

READS = TensorArgType.INPUT, TensorArgType.INOUT
WRITES = TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
"""The tags of tensors that tasks read, and that they write; there are no others in a list."""
MOST_TASKS = 1 << 20
MOST_BYTES = 12 << 20
"""Of a list: a frame has room for it, and for what a registration says beside it."""
MOST_PLAYED = 1 << 12
"""Tasks that are submitted at once: the slots of some are looked up where all have waited to be wired."""
_SCALAR_BYTES = L.WORD * L.SCALAR_WORDS
_SOMEWHERE = 1 << 20
"""An address for a tensor that gets its own before each run."""


Tag = Annotated[
    TensorArgType,
    one_of(TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING),
]


@dataclass(frozen=True)
class ListUse:
    """What a task does with a tensor; `form` has no address, `layout` is as in a TASK."""

    tensor: Uint32
    tag: Tag
    form: Annotated[ContinuousTensor, TENSOR]
    layout: ShortText = ""

    @property
    def reads(self) -> bool:
        """Whether the task reads it."""
        return self.tag in READS

    @property
    def writes(self) -> bool:
        """Whether the task writes it."""
        return self.tag in WRITES


@dataclass(frozen=True)
class ListScalar:
    """A scalar: its word and kind, or which one of the replay's it is, plus one."""

    word: Uint64
    kind: Uint32 = L.RAW
    bound: Uint32 = 0


class ListVersion(NamedTuple):
    """A version of a tensor, counted from that which a replay begins with."""

    tensor: Uint32
    version: Uint32

    def window(self, key: int) -> int:
        """Return the key of its window in a replay."""
        return window_key(key, self.tensor << 32 | self.version)


VERSION = Message("LIST.version", ListVersion)


@dataclass(frozen=True)
class ListGet:
    """A version that another part shows."""

    what: Annotated[ListVersion, VERSION]
    part: Uint32


@dataclass(frozen=True)
class ListTask:
    """A task: what it gets before it begins, and shows when it has ended.

    `callable` is its place among the list's.
    """

    callable: Uint32
    uses: Annotated[Sequence[ListUse], many(Message("LIST.uses", ListUse), MAX_TENSORS)]
    scalars: Annotated[
        Sequence[ListScalar], many(Message("LIST.scalars", ListScalar), MAX_SCALARS)
    ] = ()
    gets: Annotated[Sequence[ListGet], many(Message("LIST.gets", ListGet), MAX_TENSORS)] = ()
    shows: Annotated[Sequence[ListVersion], many(VERSION, MAX_TENSORS)] = ()


@dataclass(frozen=True)
class ListPart:
    """What one endpoint runs.

    `tensors` are the numbers of its task's, `shows` what it has from the beginning.
    """

    tensors: Annotated[Sequence[int], many(U32, MAX_TENSORS)]
    shows: Annotated[Sequence[ListVersion], many(VERSION, MAX_TENSORS)]
    tasks: Annotated[Sequence[ListTask], many(Message("LIST.tasks", ListTask), MOST_TASKS)]


@dataclass(frozen=True)
class TaskList:
    """The tasks of a graph, by the digests of their callables, and the bytes of its tensors."""

    callables: Annotated[Sequence[bytes], many(exactly(CALLABLE_HASH_DIGEST_BYTES), MOST_TASKS)]
    sizes: Annotated[Sequence[int], many(U64, MOST_TASKS)]
    parts: Annotated[Sequence[ListPart], many(Message("LIST.parts", ListPart), MOST_TASKS)]


def _require_consistent(one: TaskList) -> None:
    """Refuse numbers of what a list does not have, and tensors of another size."""
    count = len(one.sizes)
    for i, part in enumerate(one.parts):
        path = f"parts[{i}]"
        for number in (*part.tensors, *(it.tensor for it in part.shows)):
            _require_below(number, count, f"{path}.tensors")
        for task in part.tasks:
            _require_below(task.callable, len(one.callables), f"{path}.tasks.callable")
            for it in (*task.shows, *(get.what for get in task.gets)):
                _require_below(it.tensor, count, f"{path}.tasks.tensor")
            for get in task.gets:
                _require_below(get.part, len(one.parts), f"{path}.tasks.part")
            for use in task.uses:
                _require_below(use.tensor, count, f"{path}.tasks.uses.tensor")
                nbytes, room = use.form.nbytes(), one.sizes[use.tensor]
                if nbytes != room:
                    why = f"a tensor of {nbytes} bytes is said to have {room}"
                    raise WireError(why, f"{path}.tasks.uses")


def _require_below(number: int, limit: int, where: str) -> None:
    if number >= limit:
        raise WireError(f"{number} is not one of {limit}", where)


LIST = Message("LIST", TaskList, _require_consistent)


class Replay(NamedTuple):
    """One replay of a part of a list, in a RUN: its tensors are those of the part.

    Attributes
    ----------
    digest, part : bytes, int
        The list, and which part.
    key : int
        What the windows of the replay follow from; who asks the mover with it ends the replay.
    movers : sequence of str
        Where the sessions of all parts show what they make.
    scalars : bytes
        The replay's, each as in a mailbox.
    """

    digest: Annotated[bytes, exactly(CALLABLE_HASH_DIGEST_BYTES)]
    part: Uint32
    key: Positive
    movers: Annotated[Sequence[str], many(TEXT, MAX_TENSORS)]
    scalars: Octets


REPLAY = Message("REPLAY", Replay)


# ---------------------------------------------------------------- at the session
class _Variables:
    """What the program of a part leaves open: addresses, the replay's scalars, numbers of layouts."""

    def __init__(self, tensors: int, scalars: int) -> None:
        self.tensors, self.scalars = tensors, scalars
        self.layouts: dict[Layout, int] = {}

    def of_scalar(self, number: int) -> int:
        """Return the variable of the word of a scalar, counted from 1; its kind is the next."""
        return self.tensors + (number - 1) * L.SCALAR_WORDS

    def of_layout(self, layout: Layout) -> int:
        """Return the variable of a layout's number."""
        first = self.of_scalar(self.scalars + 1)
        return self.layouts.setdefault(layout, first + len(self.layouts))

    def values(self, addresses: Sequence[int], scalars: bytes, orch: Any) -> Array:
        """Return all of them for a run."""
        wires: list[bytes] = [DescribedWire(bytes(TENSOR_BYTES), one) for one in self.layouts]
        if wires:
            orch._give_numbers([wires])
        given = np.frombuffer(scalars, np.int64, self.scalars * L.SCALAR_WORDS)
        numbers = np.array([*map(layout_number, wires)], np.int64)
        return np.concatenate([np.array(addresses, np.int64), given, numbers])


class _Step(NamedTuple):
    """Tasks of a program up to a word: what is got before the first of them.

    `last` is how many tasks there are up to its end, `shows` what is shown after which of these.
    """

    gets: Collection[ListVersion]
    end: int
    last: int
    shows: Sequence[tuple[int, Sequence[ListVersion]]]


class PlayedPart:
    """A part of a list as a program, see `jit.program`, and how a session carries it out."""

    def __init__(self, one: TaskList, part: ListPart) -> None:
        bound = [scalar.bound for task in part.tasks for scalar in task.scalars]
        used = {use.tensor for task in part.tasks for use in task.uses}
        self.tensors = [*part.tensors, *sorted(used.difference(part.tensors))]
        self.sizes = [one.sizes[tensor] for tensor in self.tensors]
        self.named, self.shows = len(part.tensors), part.shows
        self._variable = {tensor: i for i, tensor in enumerate(self.tensors)}
        self._variables = _Variables(len(self.tensors), max(bound, default=0))
        writer = ProgramWriter()
        self.steps: list[_Step] = []
        starts = [
            i for i, task in enumerate(part.tasks) if not i or task.gets or not i % MOST_PLAYED
        ]
        for start, end in pairwise([*starts, len(part.tasks)]):
            tasks = part.tasks[start:end]
            for task in tasks:
                self._write(writer, task)
            shows = [(start + i, task.shows) for i, task in enumerate(tasks) if task.shows]
            gets = [get.what for get in tasks[0].gets]
            self.steps.append(_Step(gets, writer.size, end, shows))
        self.gets = [get for task in part.tasks for get in task.gets]
        self.callables = [task.callable for task in part.tasks]
        self._program: Words = writer.words()
        self._places = writer.callables

    def _write(self, writer: ProgramWriter, one: ListTask) -> None:
        tensors, patches = [], []
        variables = self._variables
        for i, use in enumerate(one.uses):
            layout = read_layout(use.layout, use.form.nbytes()) if use.layout else None
            tensor = use.form if layout is None else DescribedTensor(_SOMEWHERE, layout)
            tensors.append(bytes(tensor._tagged(use.tag)))
            patches.append(Patch(tensor_at(i), self._variable[use.tensor], 0))
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

    def require_fitting(self, sizes: int, scalars: bytes) -> None:
        """Refuse a replay that has not what the part needs."""
        needed = self._variables.scalars
        if sizes != self.named or len(scalars) < needed * _SCALAR_BYTES:
            raise ValueError(
                f"a part of a list has {self.named} tensors and {needed} scalars, its task {sizes} and "
                f"{len(scalars) // _SCALAR_BYTES}"
            )

    def program(
        self, words: Sequence[int], addresses: Sequence[int], scalars: bytes, orch: Any
    ) -> tuple[Words, Array]:
        """Return it from the beginning, with the words that callables have now, and its variables."""
        self._program[self._places] = words
        rewind(self._program)
        return self._program, self._variables.values(addresses, scalars, orch)

    def address_in(self, addresses: Sequence[int], one: ListVersion) -> tuple[int, int]:
        """Return where a tensor is, and its bytes."""
        i = self._variable[one.tensor]
        return addresses[i], self.sizes[i]


class PlayedList:
    """A list as a session runs it. `find` returns the callable of the inner Worker that has a digest."""

    def __init__(self, one: TaskList, find: Callable[[bytes], CallableHandle]) -> None:
        self._find, self._list = find, one
        self._parts: dict[int, PlayedPart] = {}

    def part(self, number: int) -> PlayedPart:
        """Return a part."""
        if not 0 <= number < len(self._list.parts):
            raise ValueError(f"part {number} is not one of the {len(self._list.parts)} of the list")
        if number not in self._parts:
            self._parts[number] = PlayedPart(self._list, self._list.parts[number])
        return self._parts[number]

    def words(self, part: PlayedPart, orch: Any) -> list[int]:
        """Return the callable word of each task of a part."""
        digests = self._list.callables
        words = {
            one: orch._require_handle("a list", self._find(digests[one]), (), orch._subs, L.SUB)
            for one in set(part.callables)
        }
        return [words[one] for one in part.callables]


class Replaying:
    """A replay of a part, while it lasts.

    The main thread submits the tasks, and shows what they have made. A thread for each session that
    shows something gets that; it ends with the replay.

    Parameters
    ----------
    one, asked
        The list, and what the RUN says.
    copies, mover
        The session's.
    addresses
        Of the tensors that the task has.
    is_over
        Says whether the session ends.
    """

    def __init__(
        self,
        one: PlayedList,
        asked: Replay,
        copies: Copies,
        mover: Any,
        addresses: Sequence[int],
        is_over: Callable[[], Any],
    ) -> None:
        self._list, self._part, self._asked = one, one.part(asked.part), asked
        self._part.require_fitting(len(addresses), asked.scalars)
        self._copies, self._mover, self._is_over = copies, mover, is_over
        self._addresses = [*addresses, *self._own()]
        self._here: set[ListVersion] = set()
        self._due: deque[tuple[int, Sequence[ListVersion]]] = deque()
        """Slots of tasks that have not ended, and what is shown after each."""
        self._why: BaseException | None = None
        """Why it ends early."""
        self._lock = threading.Lock()
        self._ended = os.eventfd(0, os.EFD_NONBLOCK)
        self._threads: list[threading.Thread] = []
        self._orch: Any = None

    def _own(self) -> Iterator[int]:
        """Return the addresses of the tensors that its task has not."""
        sizes = self._part.sizes[self._part.named :]
        *offsets, total = accumulate((L.round_up(one, L.HEAP_ALIGN) for one in sizes), initial=0)
        try:
            first = self._copies.room(total) if total else 0
            return (first + at for at in offsets)
        except MemoryError:  # where there is room, but not in one piece
            return map(self._copies.room, sizes)

    # ------------------------------------------------------------ the main thread
    def orchestrate(self, orch: Any, _args: Any, _config: Any) -> None:
        """Submit the tasks, each when what it gets has come, and show what they make."""
        self._orch, part = orch, self._part
        program, values = part.program(
            self._list.words(part, orch), self._addresses, self._asked.scalars, orch
        )
        self._begin_to_get()
        self._show(part.shows)
        first, played = orch._view.pushed, 0
        shows: list[tuple[int, Sequence[ListVersion]]] = []
        for step, following in zip_longest(part.steps, part.steps[1:]):
            if step.gets:
                self._wait(partial(self._has, step.gets))
            shows += step.shows
            if following and following.last - played <= MOST_PLAYED and self._has(following.gets):
                continue  # to play both at once
            orch._play(program[: step.end], values)
            self._due += [(orch._view.pushed_as(first + i), several) for i, several in shows]
            played, shows = step.last, []
            self._show_ended()
        self._wait(lambda: not self._due)

    def _has(self, several: Collection[ListVersion]) -> bool:
        return self._here.issuperset(several)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for something, and show meanwhile what has been made."""
        orch = self._orch
        mem, kernels = orch._mem, orch._engine.kernels
        while True:
            self._show_ended()
            kernels.want_orch(mem, 0)  # before the look: who has news wants it after that
            if is_done():
                return
            self._go_on()
            slot = self._due[0][0] if self._due else L.NONE
            if kernels.help_stream(mem, -1, -1, slot, PARK_NS) != L.OK:
                orch._session.look()

    def _go_on(self) -> None:
        """Raise what ends the replay early."""
        if self._why is not None:
            raise self._why
        if self._orch._view.has_failed:
            raise self._orch._task_error()
        if self._is_over():
            raise RemoteError("the session ends")

    def _show_ended(self) -> None:
        view, has_settled = self._orch._view, self._orch._engine.kernels.has_settled
        while self._due and has_settled(self._orch._mem, self._due[0][0]):
            slot, shows = self._due[0]
            if view.outcome(slot)[0]:
                return  # it has failed: nobody gets that
            self._due.popleft()
            self._show(shows)

    def _show(self, several: Sequence[ListVersion]) -> None:
        for one in several:
            where = self._part.address_in(self._addresses, one)
            self._copies.show(one.window(self._asked.key), *where)

    # ------------------------------------------------------------ others
    def _begin_to_get(self) -> None:
        sources: dict[int, list[ListVersion]] = {}
        for get in self._part.gets:
            sources.setdefault(get.part, []).append(get.what)
        for source, several in sources.items():
            address = self._asked.movers[source]
            thread = threading.Thread(
                target=self._get, args=(address, several), name="simpler-get", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _get(self, address: str, several: Sequence[ListVersion]) -> None:
        spans = [
            Span(one.window(self._asked.key), *self._part.address_in(self._addresses, one))
            for one in several
        ]

        def here(i: int) -> None:
            self._here.add(several[i])
            self._tell()

        try:
            self._mover.get_all(address, spans, here, self._ended)
        except TransferError as error:
            self._why = self._why or (error if error.refused else SourceLost(str(error)))
            self._tell()
        except BaseException as error:
            self._why = self._why or error
            self._tell()

    def _tell(self) -> None:
        """Have the main thread look again."""
        self._orch._engine.kernels.want_orch(self._orch._mem, 1)

    def cut(self, key: int) -> bool:
        """End it early, from any thread, if it has a key; say whether it has."""
        with self._lock:
            if key != self._asked.key or self._orch is None or self._ended < 0:
                return False
            self._why = self._why or RemoteError(
                "the run is over for other endpoints: a task has failed, or it was cancelled"
            )
            self._tell()
            return True

    def end(self) -> None:
        """Get nothing more: whatever has not come is for nobody."""
        os.eventfd_write(self._ended, 1)
        for one in self._threads:
            one.join()
        with self._lock:
            os.close(self._ended)
            self._ended = -1
