"""Parts of a recorded graph: what one endpoint does in each replay, as a message.

The tasks of a part run in the order of its operations, as far as they wait for each other. What a task of
one part makes and one of another reads goes from endpoint to endpoint, without anybody asking for it.

Rule     REMOTE-PART-2 to -4, -6
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ..callables.identity import CALLABLE_HASH_DIGEST_BYTES
from ..jit import layout as L
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor
from .fields import POSITIVE, U32, U64, Blob, Exactly, Many, Message, OneOf, Reader, Text, refusal
from .limits import MAX_SCALARS, MAX_STRING_BYTES, MAX_TENSORS
from .tasks import read_tensor, write_tensor

READS = TensorArgType.INPUT, TensorArgType.INOUT
WRITES = TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
"""The tags of tensors that tasks read, and that they write; there are no others in a part."""
TOGETHER_BYTES = 512 << 10
"""Of tensors that come from the parent together, or go there: so others are woken less often.

Rule     SPEED-PARTS-10
"""
MOST_OPERATIONS = 1 << 20
MOST_PART_TENSORS = 1 << 16
MOST_PEERS = 1 << 12
PARENT = (1 << 32) - 1
"""The peer of what comes from the parent's memory, or goes there: a tensor that the replay names."""
MOST_BYTES = 12 << 20
"""Of a part: a frame has room for it, and for what a replay says beside it."""


class Action(enum.IntEnum):
    """What an operation is."""

    RUN = 1
    SEND = 2
    """Push a tensor to another endpoint, or let the parent have it, when the last task so far that makes
    it has ended."""
    RECEIVE = 3
    """Take a tensor that another endpoint pushes, once nothing uses its memory as WAIT says; or wait
    until the parent has stored it."""
    WAIT = 4
    """Wait until the tasks so far that use a tensor have ended, and what is sent of it is on its way."""


@dataclass(frozen=True)
class PartTensor:
    """Memory of a part. `named` is its place among what a replay names, plus one; 0: its own."""

    nbytes: int
    named: int = 0


@dataclass(frozen=True)
class PartUse:
    """What a task does with a tensor; `form` is the tensor without address, `layout` as in a TASK."""

    tensor: int
    tag: TensorArgType
    form: ContinuousTensor
    layout: str = ""


@dataclass(frozen=True)
class PartScalar:
    """A scalar: its word and kind, or which one of the replay's it is, plus one."""

    word: int
    kind: int = L.RAW
    bound: int = 0


@dataclass(frozen=True)
class Operation:
    """A task, with a callable's number; or a tensor that comes from, or goes to, a peer's number.

    `number` is that of what is pushed: the same on both sides, and of nothing else in the graph. The peer
    of what the parent has, or gets, is PARENT.
    """

    action: Action
    callable: int = 0
    uses: Sequence[PartUse] = ()
    scalars: Sequence[PartScalar] = ()
    tensor: int = 0
    peer: int = 0
    number: int = 0


@dataclass(frozen=True)
class Part:
    """What one endpoint does in a replay.

    `spoiled` are tensors that a replay names and of which the endpoint's copy is of no use afterwards.
    """

    callables: Sequence[bytes]
    tensors: Sequence[PartTensor]
    operations: Sequence[Operation]
    spoiled: Sequence[int] = ()


@dataclass(frozen=True)
class PartRun:
    """A replay of a part, with what the session has not been told before.

    Attributes
    ----------
    number : int
        Of the part; counted by the parent.
    part : bytes
        A `Part`, or nothing: the session has it.
    token : int
        Of the replay: what peers push for another one is not for this.
    peers : sequence of str
        The movers of the other endpoints, by the numbers that operations have.
    scalars : sequence of int
        Word and kind of each scalar that the replay provides.
    forgotten : sequence of int
        Parts that are of no use any more.
    """

    number: int
    part: bytes
    token: int
    peers: Sequence[str] = ()
    scalars: Sequence[int] = ()
    forgotten: Sequence[int] = ()


class _Form:
    """A tensor without address, as a TASK has it."""

    def write(self, value: ContinuousTensor, where: str) -> bytes:
        """Return its bytes."""
        return write_tensor(value, where)

    def read(self, reader: Reader, where: str) -> ContinuousTensor:
        """Return the tensor of the next bytes."""
        return read_tensor(reader, where)


def _require_consistent(part: Part, where: str) -> None:
    """Refuse numbers of what a part does not have, and tensors of other sizes than its own."""
    tensors, callables = part.tensors, len(part.callables)
    named = sum(1 for one in tensors if one.named)
    for i in part.spoiled:
        _require_below(i, named, f"{where}.spoiled")
    for i, one in enumerate(part.operations):
        path = f"{where}.operations[{i}]"
        if one.action != Action.RUN:
            _require_below(one.tensor, len(tensors), f"{path}.tensor")
            if one.peer == PARENT and not tensors[one.tensor].named:
                raise refusal(f"{path}.peer", "the parent does not name the tensor")
            continue
        _require_below(one.callable, callables, f"{path}.callable")
        for use in one.uses:
            _require_below(use.tensor, len(tensors), f"{path}.uses.tensor")
            if use.form.nbytes() != tensors[use.tensor].nbytes:
                raise refusal(
                    f"{path}.uses",
                    f"a tensor of {use.form.nbytes()} bytes is in memory of "
                    f"{tensors[use.tensor].nbytes}",
                )


def _require_below(number: int, limit: int, where: str) -> None:
    if number >= limit:
        raise refusal(where, f"{number} is not one of {limit}")


_USE = Message(
    "PART.uses",
    PartUse,
    tensor=U32,
    tag=OneOf(
        TensorArgType, TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
    ),
    form=_Form(),
    layout=Text(MAX_STRING_BYTES),
)
_SCALAR = Message("PART.scalars", PartScalar, word=U64, kind=U32, bound=U32)
_OPERATION = Message(
    "PART.operations",
    Operation,
    action=OneOf(Action),
    callable=U32,
    uses=Many(_USE, MAX_TENSORS),
    scalars=Many(_SCALAR, MAX_SCALARS),
    tensor=U32,
    peer=U32,
    number=U64,
)
PART = Message(
    "PART",
    Part,
    _require_consistent,
    callables=Many(Exactly(CALLABLE_HASH_DIGEST_BYTES), MOST_OPERATIONS),
    tensors=Many(
        Message("PART.tensors", PartTensor, nbytes=POSITIVE, named=U32), MOST_PART_TENSORS
    ),
    operations=Many(_OPERATION, MOST_OPERATIONS),
    spoiled=Many(U32, MAX_TENSORS),
)
PART_RUN = Message(
    "PART_RUN",
    PartRun,
    number=POSITIVE,
    part=Blob(),
    token=POSITIVE,
    peers=Many(Text(MAX_STRING_BYTES), MOST_PEERS),
    scalars=Many(U64, 2 * MAX_SCALARS),
    forgotten=Many(POSITIVE, MOST_PEERS),
)


# ---------------------------------------------------------------- what the parent asks of a link
@dataclass(frozen=True)
class NamedTensor:
    """A tensor of the parent's memory that a replay names: where it is, and what becomes of its copy."""

    address: int
    nbytes: int
    key: int
    reads: int
    makes: int


@dataclass(frozen=True)
class PartRequest:
    """A replay of a part, as the parent hands it to the link of an endpoint.

    `peers` are endpoints' ids; the link finds the movers. `tasks` is how many tasks the part has, `made`
    has the places of the tensors that it makes, in the order in which it does.
    """

    run: int
    dropped: Sequence[int]
    tensors: Sequence[NamedTensor]
    number: int
    part: bytes
    token: int
    peers: Sequence[int]
    scalars: Sequence[int]
    forgotten: Sequence[int]
    tasks: int
    made: Sequence[int]


PART_REQUEST = Message(
    "PART_REQUEST",
    PartRequest,
    run=U64,
    dropped=Many(POSITIVE, MOST_PEERS),
    tensors=Many(
        Message(
            "PART_REQUEST.tensors",
            NamedTensor,
            address=U64,
            nbytes=U64,
            key=POSITIVE,
            reads=U64,
            makes=U64,
        ),
        MAX_TENSORS,
    ),
    number=POSITIVE,
    part=Blob(),
    token=POSITIVE,
    peers=Many(U32, MOST_PEERS),
    scalars=Many(U64, 2 * MAX_SCALARS),
    forgotten=Many(POSITIVE, MOST_PEERS),
    tasks=U64,
    made=Many(U32, MAX_TENSORS),
)
