"""Parts of graphs, prepared to be run: programs of tasks, and what is exchanged between them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..jit import layout as L
from ..jit.program import Patch, ProgramWriter, Words, rewind, scalar_at, tensor_at
from ..model.tensor import DescribedTensor
from ..model.wire import TENSOR_BYTES, DescribedWire, Layout, counts_of, layout_number
from ..system.cores import SPIN_NS
from ..system.types import Array
from .layouts import read_layout
from .parts import PARENT, WRITES, Action, Operation, Part

NOBODY = -1
"""The maker of a tensor that no task of the part has made."""
_SOMEWHERE = 1 << 20
"""An address for a tensor that gets its own before each run."""


class Sending(NamedTuple):
    """A tensor that is pushed, and the number of the task that makes it."""

    maker: int
    operation: Operation


class Pause(NamedTuple):
    """An operation that waits, and the numbers of the tasks that must have ended.

    `is_sent`: the tensor is pushed by an operation before, too.
    """

    operation: Operation
    users: Sequence[int]
    is_sent: bool = False


class Stretch:
    """The tasks between two operations that wait, as a program; see `jit.program`.

    Its variables are those of the part: the addresses of tensors, word and kind of the replay's scalars,
    and the numbers of layouts.
    """

    def __init__(self) -> None:
        self.sendings: list[Sending] = []
        self._writer = ProgramWriter()
        self._callables: list[int] = []
        self._program: Words | None = None
        self._words: Array | None = None
        """Those that are in the program."""

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

    @property
    def tasks(self) -> int:
        """How many they are."""
        return len(self._callables)

    def program(self, words: Array) -> Words:
        """Return it from its beginning on, with the words that callables have now."""
        if self._program is None:
            self._program = self._writer.words()
        if self._words is not words:
            self._program[self._writer.callables] = words[self._callables]
            self._words = words
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


class LoadedPart:
    """A part as it is run: what can be prepared is."""

    def __init__(self, part: Part) -> None:
        self.tensors, self.callables, self.spoiled = part.tensors, part.callables, part.spoiled
        self.named = sum(1 for one in part.tensors if one.named)
        self._named_at = [i for i, one in enumerate(part.tensors) if one.named]
        self._order = [part.tensors[i].named - 1 for i in self._named_at]
        own = [0 if one.named else L.round_up(one.nbytes, L.HEAP_ALIGN) for one in part.tensors]
        *self._offsets, self.own_bytes = itertools.accumulate(own, initial=0)
        self._words = np.empty(0, np.int64)
        self.variables = _Variables(part)
        exchanged = [one for one in part.operations if one.peer != PARENT]
        self.most_peer = max((one.peer for one in exchanged), default=-1)
        self.pushes = Counter(one.peer for one in exchanged if one.action == Action.SEND)
        """How many tensors go to each peer."""
        self.come, self.go = (
            [
                part.tensors[one.tensor].named - 1
                for one in part.operations
                if one.peer == PARENT and one.action == action
            ]
            for action in (Action.RECEIVE, Action.SEND)
        )
        self.steps = list(self._steps(part.operations))
        self.tasks = sum(one.action == Action.RUN for one in part.operations)
        self.last_ns = 0
        """How long the last replay took; 0 before that."""

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of the tensors that a replay names, in its order.

        Raises
        ------
        ValueError
            Two have the same place, or there is a gap.
        """
        if sorted(self._order) != list(range(self.named)):
            raise ValueError("the tensors that a replay names are not numbered one by one")
        sizes = [0] * self.named
        for i, place in zip(self._named_at, self._order, strict=True):
            sizes[place] = self.tensors[i].nbytes
        return sizes

    def addresses(self, named: Sequence[int], own: int) -> list[int]:
        """Return where all tensors are: those that a replay names, and others one behind the other."""
        found = [own + offset for offset in self._offsets]
        for i, place in zip(self._named_at, self._order, strict=True):
            found[i] = named[place]
        return found

    def words(self, now: Sequence[int]) -> Array:
        """Return the words that callables have now: the same array while they do not change."""
        if self._words.tolist() != now:
            self._words = np.array(now, np.int64)
        return self._words

    @property
    def has_long_tasks(self) -> bool:
        """Whether tasks have ended less often than a thread looks for that before it sleeps."""
        return self.last_ns > self.tasks * SPIN_NS

    def _steps(self, operations: Sequence[Operation]) -> Iterator[Stretch | Pause]:
        users: defaultdict[int, list[int]] = defaultdict(list)
        makers: dict[int, int] = {}
        sent: set[int] = set()
        tasks = 0
        stretch = Stretch()
        for one in operations:
            if one.action == Action.RUN:
                stretch.add(one, self.variables)
                for use in one.uses:
                    users[use.tensor].append(tasks)
                    if use.tag in WRITES:
                        makers[use.tensor] = tasks
                tasks += 1
            elif one.action == Action.SEND:
                stretch.sendings.append(Sending(makers.get(one.tensor, NOBODY), one))
                sent.add(one.tensor)
            else:
                yield stretch
                yield Pause(one, users.pop(one.tensor, ()), one.tensor in sent)
                stretch = Stretch()
        yield stretch


__all__ = ["NOBODY", "LoadedPart", "Pause", "Sending"]
