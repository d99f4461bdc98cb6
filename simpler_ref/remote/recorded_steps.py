"""The steps of a recorded graph that has tasks of endpoints: what its program says, for Python.

Kernels carry programs out; but of the copies at endpoints Python keeps track. So each step is an op of
the program with its tensors as they were recorded, for a `PlacingOrchestrator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..callables.identity import CallableHandle
from ..jit import layout as L
from ..jit.program import Patch, part_at
from ..model.arguments import TaskArgs
from ..model.tensor import ContinuousTensor
from ..model.wire import SHAPE_AT, replaced

_BITS = (1 << 64) - 1


class SubmitStep(NamedTuple):
    """A submit; see `ProgramWriter.submit`. Without members it is a task that is no group.

    `members` has the counts of tensors and scalars of each member, and its worker plus one.
    """

    handle: CallableHandle
    tensors: Sequence[bytes]
    scalars: Sequence[bytes]
    members: Sequence[tuple[int, int]]
    patches: Sequence[Patch]
    outputs: int

    def arguments(self, variables: Sequence[int]) -> list[TaskArgs]:
        """Return the arguments of each member, for these variables."""
        parts = [*self.tensors, *self.scalars]
        tensor, scalar = 0, len(self.tensors)
        for one in self.patches:
            which, octet = part_at(one.at, scalar)
            value = variables[one.variable] + one.offset & _BITS
            parts[which] = replaced(parts[which], octet, value.to_bytes(L.WORD, "little"))
        made = []
        whole = scalar | len(self.scalars) << L.HALF
        for counts, _ in self.members or [(whole, 0)]:
            args = TaskArgs()
            args._tensors = parts[tensor : tensor + (counts & L.LOW_HALF)]
            args._scalars = parts[scalar : scalar + (counts >> L.HALF)]
            tensor, scalar = tensor + len(args._tensors), scalar + len(args._scalars)
            made.append(args)
        return made

    def note_outputs(self, members: Sequence[TaskArgs], variables: list[int]) -> None:
        """Store the addresses that the runtime has provided in the variables of their tensors."""
        if self.outputs >= 0:
            wires = [wire for one in members for wire in one._tensors]
            for i, wire in enumerate(wires):
                variables[self.outputs + i] = int.from_bytes(wire[:SHAPE_AT], "little")


class AllocStep(NamedTuple):
    """A buffer, whose address is stored in a variable."""

    tensor: ContinuousTensor
    variable: int


class ScopeStep(NamedTuple):
    """The beginning of a scope, or its end."""

    begins: bool


Step = SubmitStep | AllocStep | ScopeStep
