"""Lists of tasks: what endpoints run of a recorded graph, as a message, and how a session runs it.

A list is a callable like any other, but its payload says which tasks of which other callables it stands
for. Its *parts* are run one by one: the task that names the list says which, and has the part's tensors.

Rule     REMOTE-LIST-1, REMOTE-LIST-2, SPEED-LIST-1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ..callables.identity import CALLABLE_HASH_DIGEST_BYTES, CallableHandle
from ..jit import layout as L
from ..jit.program import Patch, ProgramWriter, Words, rewind, scalar_at, tensor_at
from ..model.arguments import TaskArgs
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor, DescribedTensor
from ..model.wire import (
    SHAPE_AT,
    TENSOR_BYTES,
    DescribedWire,
    Layout,
    bytes_of,
    counts_of,
    layout_number,
)
from ..system.types import Array
from .fields import (
    U32,
    U64,
    Exactly,
    Many,
    Message,
    OneOf,
    Reader,
    ShortText,
    Uint32,
    Uint64,
    refusal,
)
from .layouts import read_layout
from .limits import MAX_SCALARS, MAX_TENSORS
from .tasks import decode_continuous_tensor, write_tensor

LIST_VERSION = 2
"""The version of a registration's payload that is a list."""
READS = TensorArgType.INPUT, TensorArgType.INOUT
WRITES = TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
"""The tags of tensors that tasks read, and that they write; there are no others in a list."""
MOST_TASKS = 1 << 20
MOST_BYTES = 12 << 20
"""Of a list: a frame has room for it, and for what a registration says beside it."""
_SOMEWHERE = 1 << 20
"""An address for a tensor that gets its own before each run."""


class _Form:
    """A tensor without address, as a TASK has it."""

    def write(self, value: ContinuousTensor, where: str) -> bytes:
        """Return its bytes."""
        return write_tensor(value, where)

    def read(self, reader: Reader, where: str) -> ContinuousTensor:
        """Return the tensor of the next bytes."""
        return decode_continuous_tensor(reader, where)


Tag = Annotated[
    TensorArgType,
    OneOf(TensorArgType, TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING),
]


@dataclass(frozen=True)
class ListUse:
    """What a task does with a tensor of its part; `form` has no address, `layout` is as in a TASK."""

    tensor: Uint32
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
class ListPart:
    """Tasks that are run at once.

    `tensors` are the numbers of its task's, `left` of those that parts before it have left there.
    """

    tensors: Annotated[Sequence[int], Many(U32, MAX_TENSORS)]
    left: Annotated[Sequence[int], Many(U32, MAX_TENSORS)]
    tasks: Annotated[Sequence[ListTask], Many(Message("LIST.tasks", ListTask), MOST_TASKS)]


@dataclass(frozen=True)
class TaskList:
    """The tasks of a graph, by the digests of their callables, and the bytes of its tensors."""

    callables: Annotated[Sequence[bytes], Many(Exactly(CALLABLE_HASH_DIGEST_BYTES), MOST_TASKS)]
    sizes: Annotated[Sequence[int], Many(U64, MOST_TASKS)]
    parts: Annotated[Sequence[ListPart], Many(Message("LIST.parts", ListPart), MOST_TASKS)]


def _require_consistent(one: TaskList, where: str) -> None:
    """Refuse numbers of what a list does not have, and tensors of another size than the part's."""
    for i, part in enumerate(one.parts):
        path = f"{where}.parts[{i}].tasks"
        numbers = [*part.tensors, *part.left]
        for number in numbers:
            _require_below(number, len(one.sizes), f"{where}.parts[{i}].tensors")
        for task in part.tasks:
            _require_below(task.callable, len(one.callables), f"{path}.callable")
            for use in task.uses:
                _require_below(use.tensor, len(numbers), f"{path}.uses.tensor")
                nbytes, room = use.form.nbytes(), one.sizes[numbers[use.tensor]]
                if nbytes != room:
                    raise refusal(
                        f"{path}.uses", f"a tensor of {nbytes} bytes is said to have {room}"
                    )


def _require_below(number: int, limit: int, where: str) -> None:
    if number >= limit:
        raise refusal(where, f"{number} is not one of {limit}")


LIST = Message("LIST", TaskList, _require_consistent)


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

    def values(self, addresses: Sequence[bytes], scalars: Sequence[bytes], orch: Any) -> Array:
        """Return all of them for a run."""
        wires: list[bytes] = [DescribedWire(bytes(TENSOR_BYTES), one) for one in self.layouts]
        if wires:
            orch._give_numbers([wires])
        raw = b"".join([*addresses, *scalars[: self.scalars]])
        numbers = np.array([*map(layout_number, wires)], np.int64)
        return np.concatenate([np.frombuffer(raw, np.int64), numbers])


class _Part:
    """A part as a program; see `jit.program`."""

    def __init__(self, part: ListPart, sizes: Sequence[int]) -> None:
        bound = [scalar.bound for task in part.tasks for scalar in task.scalars]
        self._named, self._left = part.tensors, part.left
        self._sizes = [sizes[one] for one in part.tensors]
        count = len(part.tensors) + len(part.left)
        self._variables = _Variables(count, max(bound, default=0))
        writer = ProgramWriter()
        for one in part.tasks:
            self._write(writer, one)
        self.callables = [one.callable for one in part.tasks]
        self._program: Words = writer.words()
        self._places = writer.callables

    def _write(self, writer: ProgramWriter, one: ListTask) -> None:
        tensors, patches = [], []
        variables = self._variables
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
                first, at = variables.of_scalar(scalar.bound), scalar_at(len(tensors), j)
                patches += [Patch(at + k, first + k, 0) for k in range(L.SCALAR_WORDS)]
        counts = counts_of(len(tensors), len(scalars))
        writer.submit(0, counts, b"".join([*tensors, *scalars]), (), patches, -1)

    def play(
        self, orch: Any, args: TaskArgs, words: Sequence[int], known: dict[int, bytes]
    ) -> None:
        """Submit its tasks.

        `words` are those that their callables have now; `known` has the addresses of the tensors that
        the parts of this replay have named.
        """
        sizes, scalars = [bytes_of(wire) for wire in args._tensors], args._scalars[1:]
        if sizes != self._sizes or len(scalars) < self._variables.scalars:
            raise ValueError(
                f"a part of a list has tensors of {self._sizes} bytes and {self._variables.scalars} "
                f"scalars, its task {sizes} and {len(scalars)}"
            )
        given = [wire[:SHAPE_AT] for wire in args._tensors]
        known.update(zip(self._named, given, strict=True))
        if not known.keys() >= set(self._left):
            raise ValueError("a part of a list uses tensors that no part before it has left here")
        given += [known[one] for one in self._left]
        self._program[self._places] = words
        rewind(self._program)
        orch._play(self._program, self._variables.values(given, scalars, orch))


class PlayedList:
    """A list as a session runs it: the function of the tasks that name it.

    `find` returns the callable of the inner Worker that has a digest.
    """

    def __init__(self, one: TaskList, find: Callable[[bytes], CallableHandle]) -> None:
        self._find, self._digests = find, one.callables
        self._parts = [_Part(part, one.sizes) for part in one.parts]
        self._known: dict[int, bytes] = {}
        """The addresses of tensors that parts have left here for others."""

    def __call__(self, orch: Any, args: TaskArgs, config: Any) -> None:
        """Run a part."""
        number = int(args.scalar(0))
        if not 0 <= number < len(self._parts):
            raise ValueError(f"part {number} is not one of the {len(self._parts)} of the list")
        part = self._parts[number]
        words = {
            one: orch._require_handle(
                "a list", self._find(self._digests[one]), (), orch._subs, L.SUB
            )
            for one in set(part.callables)
        }
        part.play(orch, args, [words[one] for one in part.callables], self._known)
