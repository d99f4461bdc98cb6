"""Between Python and compiled orchestration: values on their way in, and what compiled code asks for.

A call of a compiled function has words of its own (`native.S_…`), which say where the engine is and
which memory the workers see. What enters is turned into plain values; handles are looked up in the
Worker's live tables at that moment. `answer` is the way back: whatever is refused or must wait is
done by the plain Orchestrator.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...callables.handles import CallableHandle
from ...errors import OrchestrationError
from ...jit import layout as L
from ...model import arguments, visibility
from ...model.arguments import TaskArgs
from ...model.config import CallConfig
from ...model.enums import DataType
from ...model.scalars import as_it_went_in
from ...model.tensor import ContinuousTensor
from ...model.wire import tensors_of, without_tag
from ...system.mappings import shared_mappings
from ...workers.view import ReceivedArgs
from ..orchestrator import SCOPE_ENDED_INSIDE, Orchestrator, asked_for
from . import native as N

errors: dict[int, BaseException] = {}
"""The last thing compiled code was refused, by thread."""
_MOST_WORDS = L.SCALAR_WORDS * L.MAILBOX_ARGS_CAPACITY // L.WORD
_SUBMITS = ("submit_sub", "submit_next_level", "submit_sub_group", "submit_next_level_group")
_INDEXED = ("tensor", "tag", "scalar")


class Calls(threading.local):
    """The call of compiled orchestration that is going on in this thread."""

    current: Call | None = None


calls = Calls()


class Call:
    """One call of a compiled orchestration function."""

    def __init__(self, orch: Orchestrator) -> None:
        self.orch = orch
        self.handles: list[CallableHandle] = []
        self._given: list[tuple[TaskArgs, Any]] = []
        self._keep: list[Any] = []
        self._seen: dict[int, N.Native] = {}
        engine = orch._engine
        self.state = np.zeros(N.STATE_WORDS, np.int64)
        self.state[N.S_MEM] = engine.mem.ctypes.data
        self.state[N.S_MEM_WORDS] = engine.mem.size
        self.state[N.S_ROOM : N.S_ROOM + 2] = orch._room
        for memory in orch._worker._own_memory():
            start = memory.ctypes.data
            self._add_span(start, start + memory.nbytes)

    def _add_span(self, start: int, end: int) -> None:
        count = int(self.state[N.S_SPANS])
        if count < N.MAX_SPANS:
            at = N.S_FIRST_SPAN + 2 * count
            self.state[at : at + 2] = start, end
            self.state[N.S_SPANS] = count + 1

    def orchestrator(self) -> N.Native:
        """Return the Orchestrator in its native form."""
        return N.Native(N.ORCHESTRATOR, self.state.ctypes.data)

    # ------------------------------------------------------------ values on their way in
    def native(self, value: Any) -> Any:
        """Return a value in the form that compiled code takes.

        Raises
        ------
        OrchestrationError
            It has none.
        """
        if isinstance(value, (np.ndarray, bool, int, float, str, np.generic, np.dtype)):
            return value
        if value is None:
            return value
        if isinstance(value, CallableHandle):
            return self._handle(value)
        if isinstance(value, (tuple, list)):
            items = [self.native(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, ContinuousTensor):
            kind = N.TensorType(value.ndims, int(value.dtype))
            return N.Native(kind, *np.frombuffer(value._wire, np.int64).tolist())
        if isinstance(value, ReceivedArgs):
            return self._received(value)
        if isinstance(value, TaskArgs):
            return self._task_args(value)
        if isinstance(value, CallConfig):
            fields = [getattr(value, name) for name in CallConfig._FIELDS]
            return N.Native(N.CONFIG, self.orch._worker._config_index(value), *fields)
        if hasattr(type(value), "data_ptr"):  # a tensor of torch
            return self.native(visibility.make_tensor(value))
        raise OrchestrationError(
            f"a {type(value).__name__} has no compiled form: pass arrays, numbers, handles, tensors, "
            "TaskArgs, and tuples of them"
        )

    def _handle(self, handle: CallableHandle) -> N.Native:
        self.handles.append(handle)
        number = len(self.handles) - 1
        words = self.orch._subs.get(handle, -1), self.orch._next_level.get(handle, -1)
        return N.Native(N.HANDLE, number, *words)

    def _block(self, wires: Sequence[bytes], scalars: Sequence[bytes], room: int) -> Any:
        block = np.empty(1 + room, np.int64)
        words = np.frombuffer(b"".join([*wires, *scalars]), np.int64)
        block[0] = len(wires) | len(scalars) << 32
        block[1 : 1 + len(words)] = words
        return block

    def _task_args(self, args: TaskArgs) -> N.Native:
        if id(args) not in self._seen:
            if args._doubts is not None:
                args._doubts.settle()
            used = len(args._tensors) * L.TENSOR_WORDS + len(args._scalars) * L.SCALAR_WORDS
            room = max(_MOST_WORDS, used)
            block = self._block(args._tensors, args._scalars, room)
            self._given.append((args, block))
            self._seen[id(args)] = N.Native(N.ARGS, block.ctypes.data, room)
        return self._seen[id(args)]

    def _received(self, args: ReceivedArgs) -> N.Native:
        tensors = [args.tensor(i) for i in range(args.tensor_count())]
        scalars = [bits + kind.to_bytes(8, "little") for bits, kind in args._all_scalars()]
        wires = [tensor._wire for tensor in tensors]
        room = len(wires) * L.TENSOR_WORDS + len(scalars) * L.SCALAR_WORDS
        block = self._block(wires, scalars, room)
        self._keep.append(block)
        kinds = tuple((tensor.ndims, int(tensor.dtype)) for tensor in tensors)
        return N.Native(N.ReceivedType(kinds, len(scalars)), block.ctypes.data)

    def give_back(self) -> None:
        """Let the TaskArgs that entered have what compiled code made of them.

        Rule     SPEED-ORCH-8
        """
        for args, block in self._given:
            tensors, scalars = int(block[0]) & 0xFFFFFFFF, int(block[0]) >> 32
            words = block[1 : 1 + tensors * L.TENSOR_WORDS].reshape(tensors, L.TENSOR_WORDS)
            unseen = [
                ContinuousTensor._from_wire(without_tag(row.tobytes()))
                for row in words
                if row[L.TENSOR_KIND] & N.FROM_ARRAY
            ]
            words[:, L.TENSOR_KIND] &= ~N.FROM_ARRAY
            args._tensors[:] = [row.tobytes() for row in words]
            first = 1 + tensors * L.TENSOR_WORDS
            rest = block[first : first + scalars * L.SCALAR_WORDS].reshape(scalars, L.SCALAR_WORDS)
            args._scalars = [pair.tobytes() for pair in rest]
            spans = [(one.data, one.nbytes()) for one in unseen]
            args._doubts = visibility.Doubts(*spans) if spans else None

    # ------------------------------------------------------------ what compiled code asks for
    def answer(self, what: int, a: int, b: int, address: int, count: int) -> int:
        """Do what the compiled code cannot: wait, or raise.

        Rule     SPEED-ORCH-3, -5
        """
        orch, code, members = self.orch, -(what >> 8 & 0xFF), what >> 16
        what &= 0xFF
        wire = ctypes.string_at(address, 8 * count) if count else b""
        words = np.frombuffer(wire, np.int64).tolist()
        if what == N.ASK_RETRY_SUBMIT:
            return self._retry_submit(code, a, b, members, wire)
        if what == N.ASK_RETRY_ALLOC:
            alloc = orch._engine.kernels.alloc_buffer
            return orch._retry(code, partial(alloc, orch._mem, wire), lambda: wire)
        if what == N.ASK_HANDLE:
            pool = L.SUB if b in (0, 2) else L.NEXT_LEVEL
            live = orch._subs if pool == L.SUB else orch._next_level
            raise orch._refusal(_SUBMITS[b], self.handles[a], None, live, pool)
        if what == N.ASK_VISIBLE:
            visibility.require_visible(a, b)
            for start, end, _ in shared_mappings():
                if start <= a and a + b <= end:
                    self._add_span(start, end)
        elif what == N.ASK_CONTIGUOUS:
            raise visibility.not_contiguous(tuple(words[:a]), tuple(words[5 : 5 + a]))
        elif what == N.ASK_SHAPE:
            ContinuousTensor(a, words[:-code], DataType(b & 0xFF), bool(b >> 8))
        elif what == N.ASK_TAG:
            arguments.check_tag(a)
        elif what == N.ASK_DTYPE:
            DataType(a)
        elif what == N.ASK_INDEX:
            arguments._check_index(a, range(b), _INDEXED[address])
        elif what == N.ASK_SCALAR:
            _refuse_scalar(a, b, kind=address)
        elif what == N.ASK_NUMPY:
            ContinuousTensor(a, (1,), DataType.UINT8, bool(b >> 8)).numpy()
        elif what == N.ASK_PLACE:
            child = TaskArgs()
            child.add_tensor(ContinuousTensor.make(1, (1,), DataType.UINT8, child_memory=True))
            orch._place(a, [child] if b else [])
        elif what == N.ASK_GROUP:
            orch._members([TaskArgs()] * a, b)
        elif what == N.ASK_NAMED:
            orch._require_distinct(words, a)
        elif what == N.ASK_OPEN_SCOPE:
            orch.scope_begin()
        elif what == N.ASK_END_SCOPE:
            orch.scope_end()
        elif what == N.ASK_LEAVE_SCOPE:
            raise RuntimeError(SCOPE_ENDED_INSIDE)
        elif what == N.ASK_LATE_TENSOR:
            raise RuntimeError(arguments.TENSOR_AFTER_SCALAR)
        return 0

    def _retry_submit(self, code: int, word: int, counts: int, members: int, wire: bytes) -> int:
        mem, kernels = self.orch._mem, self.orch._engine.kernels
        if members:
            asked = tensors_of(wire, counts)
            attempt = partial(kernels.submit_group_and_pass, mem, word, counts, members, wire)
            return self.orch._retry(code, attempt, lambda: asked)
        attempt = partial(kernels.submit_and_pass, mem, word, counts, wire)
        return self.orch._retry(code, attempt, lambda: asked_for(wire, counts))


def _refuse_scalar(bits: int, i: int, kind: int) -> None:
    """Say that a scalar is no integer of compiled code.

    Rule     SPEED-ORCH-13
    """
    value = as_it_went_in(bits.to_bytes(8, "little", signed=True), kind)
    if isinstance(value, float):
        raise TypeError(
            f"scalar {i} is {value!r}, no integer; compiled code reads it with scalar_float"
        )
    raise OverflowError(
        f"scalar {i} is {value}, more than the signed 64 bits of a compiled integer; "
        "read a float with scalar_float"
    )


def answer(what: int, a: int, b: int, address: int, count: int) -> int:
    """Answer the compiled code of this thread; an exception is its refusal."""
    call = calls.current
    assert call is not None
    return call.answer(what, a, b, address, count)


def take_error() -> BaseException | None:
    """Return and forget what this thread's compiled code was refused last."""
    return errors.pop(threading.get_ident(), None)
