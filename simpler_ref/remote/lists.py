"""Task lists: what one endpoint does in a replay of a recorded graph, as messages.

The endpoint carries the steps of its list out in order. Before its tasks, a step gets what others have
made, or the program has: into the one piece of memory, the *slot*, that each tensor has here. When a task
has made what others read, the endpoint shows it to them, and each fetches it. Whatever moves in a replay
has a number, the same on both sides and of nothing else.

Rule     REMOTE-LIST-1, REMOTE-LIST-2, REMOTE-LIST-3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..callables.identity import CALLABLE_HASH_DIGEST_BYTES
from ..jit import layout as L
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor
from .fields import (
    POSITIVE,
    U32,
    U64,
    Exactly,
    Many,
    Message,
    Octets,
    OneOf,
    Positive,
    Reader,
    ShortText,
    Text,
    Uint32,
    Uint64,
    refusal,
)
from .limits import MAX_SCALARS, MAX_STRING_BYTES, MAX_TENSORS
from .tasks import decode_continuous_tensor, write_tensor

READS = TensorArgType.INPUT, TensorArgType.INOUT
WRITES = TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
"""The tags of tensors that tasks read, and that they write; there are no others in a list."""
MOST_TASKS = 1 << 20
MOST_SLOTS = 1 << 16
MOST_PEERS = 1 << 12
PARENT = (1 << 32) - 1
"""The peer that has the program's memory: its link stores what it gives, and fetches what it gets."""
MOST_BYTES = 12 << 20
"""Of a list: a frame has room for it, and for what a replay says beside it."""


class _Form:
    """A tensor without address, as a TASK has it."""

    def write(self, value: ContinuousTensor, where: str) -> bytes:
        """Return its bytes."""
        return write_tensor(value, where)

    def read(self, reader: Reader, where: str) -> ContinuousTensor:
        """Return the tensor of the next bytes."""
        return decode_continuous_tensor(reader, where)


class _Flag:
    """Whether something is so: a u32, 0 or 1."""

    def write(self, value: bool, where: str) -> bytes:
        """Return its bytes."""
        return U32.write(int(value), where)

    def read(self, reader: Reader, where: str) -> bool:
        """Return what the next bytes say."""
        number = U32.read(reader, where)
        _require_below(number, 2, where)
        return bool(number)


Numbers = Annotated[Sequence[int], Many(U32, MOST_TASKS)]
Forgotten = Annotated[Sequence[int], Many(POSITIVE, MOST_PEERS)]
Words = Annotated[Sequence[int], Many(U64, 2 * MAX_SCALARS)]
Tag = Annotated[
    TensorArgType,
    OneOf(TensorArgType, TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING),
]


@dataclass(frozen=True)
class ListUse:
    """What a task does with a slot; `form` is the tensor without address, `layout` as in a TASK."""

    slot: Uint32
    tag: Tag
    form: Annotated[ContinuousTensor, _Form()]
    layout: ShortText = ""


@dataclass(frozen=True)
class ListScalar:
    """A scalar: its word and kind, or which one of the replay's it is, plus one."""

    word: Uint64
    kind: Uint32 = L.RAW
    bound: Uint32 = 0


@dataclass(frozen=True)
class ListTask:
    """A task; `callable` is its place among the list's."""

    callable: Uint32
    uses: Annotated[Sequence[ListUse], Many(Message("LIST.uses", ListUse), MAX_TENSORS)]
    scalars: Annotated[
        Sequence[ListScalar], Many(Message("LIST.scalars", ListScalar), MAX_SCALARS)
    ] = ()


@dataclass(frozen=True)
class Get:
    """Bytes for a slot, from a peer. `users` are the tasks of the list that must have ended before."""

    slot: Uint32
    peer: Uint32
    number: Positive
    users: Numbers = ()


@dataclass(frozen=True)
class Show:
    """A slot for others to fetch, so many times, once a task of the list has ended.

    `stays`: nothing changes the slot later.
    """

    task: Uint32
    slot: Uint32
    number: Positive
    readers: Uint32
    stays: Annotated[bool, _Flag()] = False


@dataclass(frozen=True)
class ListStep:
    """What has to be here, and the shows that must have been made, before some tasks; and their shows."""

    gets: Annotated[Sequence[Get], Many(Message("LIST.gets", Get), MOST_SLOTS)]
    shown: Numbers
    tasks: Annotated[Sequence[ListTask], Many(Message("LIST.tasks", ListTask), MOST_TASKS)]
    shows: Annotated[Sequence[Show], Many(Message("LIST.shows", Show), MOST_TASKS)]


@dataclass(frozen=True)
class TaskList:
    """What one endpoint does in a replay; `slots` are the bytes of each."""

    callables: Annotated[Sequence[bytes], Many(Exactly(CALLABLE_HASH_DIGEST_BYTES), MOST_TASKS)]
    slots: Annotated[Sequence[int], Many(POSITIVE, MOST_SLOTS)]
    steps: Annotated[Sequence[ListStep], Many(Message("LIST.steps", ListStep), MOST_TASKS)]


@dataclass(frozen=True)
class ListOpening:
    """That a replay of a list is about to begin: the session makes room for it.

    Attributes
    ----------
    number : int
        Of the list; counted by the parent.
    raw : bytes
        A `TaskList`, or nothing: the session has it.
    token : int
        Of the replay.
    forgotten : sequence of int
        Lists that are of no use any more.
    """

    number: Positive
    raw: Octets
    token: Positive
    forgotten: Forgotten = ()


@dataclass(frozen=True)
class ListOpened:
    """The answer: why there is no room, or nothing."""

    sequence: Uint64
    error: ShortText = ""


@dataclass(frozen=True)
class ListRun:
    """The replay itself: the movers of peers, by their numbers; word and kind of each of its scalars."""

    token: Positive
    peers: Annotated[Sequence[str], Many(Text(MAX_STRING_BYTES), MOST_PEERS)] = ()
    scalars: Words = ()


def _require_consistent(one: TaskList, where: str) -> None:
    """Refuse numbers of what a list does not have by then, and tensors that do not fill their slots."""
    slots, tasks, shows = len(one.slots), 0, 0
    for i, step in enumerate(one.steps):
        path = f"{where}.steps[{i}]"
        for get in step.gets:
            _require_below(get.slot, slots, f"{path}.gets.slot")
            for user in get.users:
                _require_below(user, tasks, f"{path}.gets.users")
        for number in step.shown:
            _require_below(number, shows, f"{path}.shown")
        for task in step.tasks:
            _require_below(task.callable, len(one.callables), f"{path}.tasks.callable")
            for use in task.uses:
                _require_below(use.slot, slots, f"{path}.tasks.uses.slot")
                nbytes, room = use.form.nbytes(), one.slots[use.slot]
                if nbytes != room:
                    raise refusal(
                        f"{path}.tasks.uses", f"a tensor of {nbytes} bytes is in a slot of {room}"
                    )
        tasks, shows = tasks + len(step.tasks), shows + len(step.shows)
        for show in step.shows:
            _require_below(show.slot, slots, f"{path}.shows.slot")
            _require_below(show.task, tasks, f"{path}.shows.task")


def _require_below(number: int, limit: int, where: str) -> None:
    if number >= limit:
        raise refusal(where, f"{number} is not one of {limit}")


LIST = Message("LIST", TaskList, _require_consistent)
OPEN_LIST = Message("OPEN_LIST", ListOpening)
LIST_OPENED = Message("OPEN_LIST answer", ListOpened)
RUN_LIST = Message("RUN_LIST", ListRun)


# ---------------------------------------------------------------- what the parent asks of a link
@dataclass(frozen=True)
class ProgramTensor:
    """A tensor of the program that a replay gives or gets, under its number."""

    number: Positive
    address: Uint64
    nbytes: Uint64


ProgramTensors = Annotated[
    Sequence[ProgramTensor], Many(Message("LIST_REQUEST.tensors", ProgramTensor), MOST_SLOTS)
]


@dataclass(frozen=True)
class ListRequest:
    """A replay of a list, as the program hands it to the link of an endpoint.

    `peers` are endpoints' ids; the link finds the movers. `tasks` is how many tasks the list has.
    """

    number: Positive
    raw: Octets
    token: Positive
    forgotten: Forgotten
    peers: Annotated[Sequence[int], Many(U32, MOST_PEERS)]
    scalars: Words
    comes: ProgramTensors
    goes: ProgramTensors
    tasks: Uint64


LIST_REQUEST = Message("LIST_REQUEST", ListRequest)
