"""Lists of tasks: what endpoints run of a recorded graph, as a message, and how a session runs it.

A list is a callable like any other, but its payload says which tasks of which other callables it stands
for: a *part* for each endpoint. All parts are replayed at once, each as a task of its endpoint, and get
from each other what they need:

    part 0    task a ── shows x               gets y, after task 2 of part 1 ── task d
                           ╲                     ╱
    part 1                  gets x, after task 1 of part 0 ── task b, task c ── shows y

Before a task, its session waits for what it gets; after one, it shows what others get of it, once that
has ended. The wait is at the session that will show it: it answers a GET when the version is there. All
are carried out in the order of the recording, so the first task that has not ended waits for none that
comes after it: replays end. What is written and read again without an order between the two is not the
concern of a list, as it is not that of the graph: each tensor has one place at a session, into which its
versions come.

At the session a part is a recorded graph of the inner Worker, which it carries out in steps.

Rule     REMOTE-LIST-1, REMOTE-LIST-2, SPEED-LIST-1, SPEED-LIST-6
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, zip_longest
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import numpy as np

from ..callables.identity import CALLABLE_HASH_DIGEST_BYTES, CallableHandle
from ..engine.memory import PARK_NS
from ..errors import RemoteError, TransferError
from ..jit import layout as L
from ..jit.program import rewind
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from ..model.enums import DataType, TensorArgType
from ..model.scalars import WORD, BoundWord, scalar_wire
from ..model.tensor import ContinuousTensor
from ..model.wire import SHAPE_AT
from ..orch.listening import RecordedArgs
from ..orch.recording import Graph, OpRecorder
from ..workers.life import Life
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
from .limits import MAX_SCALARS, MAX_TENSORS
from .mover import Span
from .task_messages import copy_at
from .tasks import TENSOR

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
"""From where on tensors have addresses while their tasks are recorded."""


Tag = Annotated[
    TensorArgType,
    one_of(TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING),
]


class ListUse(NamedTuple):
    """What a task does with a tensor; `form` has no address, `layout` is as in a TASK."""

    tensor: Uint32
    tag: Tag
    form: Annotated[ContinuousTensor, TENSOR]
    layout: ShortText = ""

    @property
    def reads(self) -> bool:
        return self.tag in READS

    @property
    def writes(self) -> bool:
        return self.tag in WRITES


class ListScalar(NamedTuple):
    """A scalar: its word and kind, or which one of the replay's it is, plus one."""

    word: Uint64
    kind: Uint32 = L.RAW
    bound: Uint32 = 0


class ListGet(NamedTuple):
    """A tensor as it is after so many tasks of another part, which shows it then; 0: before all."""

    tensor: Uint32
    part: Uint32
    after: Uint32

    def window(self, key: int) -> int:
        """Return the key of its window in a replay, at the session that shows it."""
        return window_key(key, self.tensor << 32 | self.after)


class ListTask(NamedTuple):
    """A task, and what it gets before it begins; `callable` is its place among the list's."""

    callable: Uint32
    uses: Annotated[Sequence[ListUse], many(Message("LIST.uses", ListUse), MAX_TENSORS)]
    scalars: Annotated[
        Sequence[ListScalar], many(Message("LIST.scalars", ListScalar), MAX_SCALARS)
    ] = ()
    gets: Annotated[Sequence[ListGet], many(Message("LIST.gets", ListGet), MAX_TENSORS)] = ()


class ListPart(NamedTuple):
    """What one endpoint runs; `tensors` are the numbers of its task's."""

    tensors: Annotated[Sequence[int], many(U32, MAX_TENSORS)]
    tasks: Annotated[Sequence[ListTask], many(Message("LIST.tasks", ListTask), MOST_TASKS)]


class TaskList(NamedTuple):
    """The tasks of a graph, by the digests of their callables, and the bytes of its tensors."""

    callables: Annotated[Sequence[bytes], many(exactly(CALLABLE_HASH_DIGEST_BYTES), MOST_TASKS)]
    sizes: Annotated[Sequence[int], many(U64, MOST_TASKS)]
    parts: Annotated[Sequence[ListPart], many(Message("LIST.parts", ListPart), MOST_TASKS)]


def _require_consistent(one: TaskList) -> None:
    """Refuse numbers of what a list does not have, and tensors of another size."""
    count = len(one.sizes)
    for i, part in enumerate(one.parts):
        path = f"parts[{i}]"
        for number in part.tensors:
            _require_below(number, count, f"{path}.tensors")
        for task in part.tasks:
            _require_below(task.callable, len(one.callables), f"{path}.tasks.callable")
            for get in task.gets:
                _require_below(get.tensor, count, f"{path}.tasks.tensor")
                _require_below(get.part, len(one.parts), f"{path}.tasks.part")
                _require_below(get.after, len(one.parts[get.part].tasks) + 1, f"{path}.tasks.after")
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
    """One replay of a part of the list with a digest, in a RUN, whose tensors are those of the part.

    The windows of the replay follow from `key`; who asks the mover with it ends the replay. `movers` are
    where the sessions of all parts show what they make; each of `scalars` is as in a mailbox.
    """

    digest: Annotated[bytes, exactly(CALLABLE_HASH_DIGEST_BYTES)]
    part: Uint32
    key: Positive
    movers: Annotated[Sequence[str], many(TEXT, MAX_TENSORS)]
    scalars: Octets


REPLAY = Message("REPLAY", Replay)


# ---------------------------------------------------------------- at the session
class _Step(NamedTuple):
    """The tasks of a part up to one: what is got before the first of them, and how many there are."""

    gets: Collection[ListGet]
    end: int


class PlayedPart(Graph):
    """A part of a list as a graph, which a session carries out step by step.

    `find` returns the callable of the inner Worker that has a digest.
    """

    def __init__(
        self, life: Life, one: TaskList, number: int, find: Callable[[bytes], CallableHandle]
    ) -> None:
        part = one.parts[number]
        used = {use.tensor for task in part.tasks for use in task.uses}
        tensors = [*part.tensors, *sorted(used.difference(part.tensors))]
        self.sizes, self.named = [one.sizes[tensor] for tensor in tensors], len(part.tensors)
        self._place = {tensor: i for i, tensor in enumerate(tensors)}
        self.scalars = max((one.bound for task in part.tasks for one in task.scalars), default=0)
        self.gets = [get for task in part.tasks for get in task.gets]
        self._shows: defaultdict[int, list[ListGet]] = defaultdict(list)
        """What others get, by how many tasks have made it."""
        for get in {get for other in one.parts for task in other.tasks for get in task.gets}:
            if get.part == number:
                self._shows[get.after].append(get)
        firsts = [
            i for i, task in enumerate(part.tasks) if not i or task.gets or not i % MOST_PLAYED
        ]
        self.steps = [
            _Step(part.tasks[first].gets, end)
            for first, end in pairwise([*firsts, len(part.tasks)])
        ]
        numbers = {which: i for i, which in enumerate({task.callable for task in part.tasks})}
        self._find, self._digests = find, [one.callables[which] for which in numbers]
        *starts, _ = accumulate(
            (L.round_up(size, L.HEAP_ALIGN) for size in self.sizes), initial=_SOMEWHERE
        )
        args = TaskArgs()
        args._tensors = [
            ContinuousTensor(at, (size,), DataType.UINT8)._tagged(TensorArgType.INPUT)
            for at, size in zip(starts, self.sizes, strict=True)
        ]
        args._scalars = [scalar_wire(0)] * self.scalars  # at least as many as there are
        recorder = OpRecorder(RecordedArgs(args))
        nobody: Any = None  # a replay looks up who has a digest then
        self._ends: list[int] = []
        """How long the program is up to the end of each task."""
        for task in part.tasks:
            word = numbers[task.callable] | L.SUB << L.WORD_KIND
            recorder.task(nobody, word, [self._arguments(starts, task)], None)
            self._ends.append(recorder.program.size)
        recorded = SimpleNamespace(
            handles=(), configs=[CallConfig().to_bytes()], has_unordered=False
        )
        super().__init__(life, recorder, recorded, None, ())  # type: ignore[arg-type]

    def _arguments(self, starts: Sequence[int], task: ListTask) -> TaskArgs:
        """Return the arguments of a task, whose tensors begin at some addresses."""
        made = TaskArgs()
        for use in task.uses:
            address = starts[self._place[use.tensor]]
            if use.layout:
                wire = copy_at(address, use.form, use.layout)._tagged(use.tag)
            else:
                wire = address.to_bytes(SHAPE_AT, "little") + use.form._tagged(use.tag)[SHAPE_AT:]
            made._tensors.append(wire)
        words = [(one.bound, WORD.pack(one.word, one.kind)) for one in task.scalars]
        made._scalars = [BoundWord(raw, bound - 1) if bound else raw for bound, raw in words]
        return made

    def require_fitting(self, tensors: int, scalars: bytes) -> None:
        """Refuse a replay that has not what the part needs."""
        if tensors != self.named or len(scalars) < self.scalars * _SCALAR_BYTES:
            raise ValueError(
                f"a part of a list has {self.named} tensors and {self.scalars} scalars, its task "
                f"{tensors} and {len(scalars) // _SCALAR_BYTES}"
            )

    def begin(self, addresses: Sequence[int], scalars: bytes, orch: Any) -> None:
        """Prepare to be carried out from the beginning."""
        first, words = len(addresses), self.scalars * L.SCALAR_WORDS
        self._variables[:first] = addresses
        self._variables[first : first + words] = np.frombuffer(scalars, np.int64, words)
        self._handles = [(self._find(digest), L.SUB) for digest in self._digests]
        self._resolve(orch)
        self._number_layouts(orch)
        rewind(self._program)

    def play_up_to(self, end: int, orch: Any) -> None:
        orch._play(self._program[: self._ends[end - 1]], self._variables)

    def shown_after(self, start: int, end: int) -> Sequence[ListGet]:
        """Return what others get of what tasks have made, from one on up to so many."""
        return [one for after in range(start + 1, end + 1) for one in self._shows[after]]

    def span(self, addresses: Sequence[int], tensor: int) -> tuple[int, int]:
        i = self._place[tensor]
        return addresses[i], self.sizes[i]


class PlayedList:
    """A list as a session runs it; `find` is as for its parts."""

    def __init__(self, one: TaskList, find: Callable[[bytes], CallableHandle]) -> None:
        self._find, self._list = find, one
        self._parts: dict[int, PlayedPart] = {}

    def part(self, number: int, life: Life) -> PlayedPart:
        if not 0 <= number < len(self._list.parts):
            raise ValueError(f"part {number} is not one of the {len(self._list.parts)} of the list")
        if number not in self._parts:
            self._parts[number] = PlayedPart(life, self._list, number, self._find)
        return self._parts[number]


class Replaying:
    """A replay of a part, while it lasts; `addresses` are of the tensors that its task has.

    The main thread submits the tasks, and shows what they have made. A thread for each session that
    shows something gets that; it ends with the replay. `is_over` says whether the session ends.
    """

    def __init__(
        self,
        part: PlayedPart,
        asked: Replay,
        copies: Copies,
        mover: Any,
        addresses: Sequence[int],
        is_over: Callable[[], Any],
    ) -> None:
        self._part, self._asked = part, asked
        part.require_fitting(len(addresses), asked.scalars)
        self._copies, self._mover, self._is_over = copies, mover, is_over
        self._addresses = [*addresses, *self._own()]
        self._here: set[ListGet] = set()
        self._due: deque[tuple[int, ListGet]] = deque()
        """What is shown when the task in a slot has ended."""
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
        part.begin(self._addresses, self._asked.scalars, orch)
        self._begin_to_get()
        for one in part.shown_after(-1, 0):
            self._show(one)
        first, played = orch._view.pushed, 0
        for step, following in zip_longest(part.steps, part.steps[1:]):
            if step.gets:
                self._wait(partial(self._has, step.gets))
            if following and following.end - played <= MOST_PLAYED and self._has(following.gets):
                continue  # to play both at once
            part.play_up_to(step.end, orch)
            for one in part.shown_after(played, step.end):
                self._due.append((orch._view.pushed_as(first + one.after - 1), one))
            played = step.end
            self._show_ended()
        self._wait(lambda: not self._due)

    def _has(self, several: Collection[ListGet]) -> bool:
        return self._here.issuperset(several)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for something, and show meanwhile what has been made; raise what ends the replay early."""
        orch = self._orch
        mem, kernels = orch._mem, orch._engine.kernels
        while True:
            self._show_ended()
            kernels.want_orch(mem, 0)  # before the look: who has news wants it after that
            if is_done():
                return
            if self._why is not None:
                raise self._why
            if orch._view.has_failed:
                raise orch._task_error()
            if self._is_over():
                raise RemoteError("the session ends")
            slot = self._due[0][0] if self._due else L.NONE
            if kernels.help_scheduler(mem, -1, -1, -1, slot, PARK_NS) != L.OK:
                orch._session.look()

    def _show_ended(self) -> None:
        view, has_settled = self._orch._view, self._orch._engine.kernels.has_settled
        while self._due and has_settled(self._orch._mem, self._due[0][0]):
            slot, one = self._due[0]
            if view.outcome(slot)[0]:
                return  # it has failed: nobody gets that
            self._due.popleft()
            self._show(one)

    def _show(self, one: ListGet) -> None:
        where = self._part.span(self._addresses, one.tensor)
        self._copies.show(one.window(self._asked.key), *where)

    # ------------------------------------------------------------ others
    def _begin_to_get(self) -> None:
        sources: dict[int, list[ListGet]] = {}
        for get in self._part.gets:
            sources.setdefault(get.part, []).append(get)
        for source, several in sources.items():
            address = self._asked.movers[source]
            thread = threading.Thread(
                target=self._get, args=(address, several), name="simpler-get", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _get(self, address: str, several: Sequence[ListGet]) -> None:
        spans = [
            Span(one.window(self._asked.key), *self._part.span(self._addresses, one.tensor))
            for one in several
        ]

        def here(i: int) -> None:
            self._here.add(several[i])
            self._tell()

        try:
            self._mover.get_all(address, spans, here, self._ended)
        except BaseException as error:
            is_loss = isinstance(error, TransferError) and not error.refused
            self._why = self._why or (SourceLost(str(error)) if is_loss else error)
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
