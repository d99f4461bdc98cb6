"""Between Python and compiled orchestration: values on their way in, and what compiled code asks for.

A call of a compiled function has words of its own (`steps.C_…`), which say where the engine is and
which memory the workers see. What enters is turned into plain values; handles are looked up in the
Worker's live tables at that moment. `answer` is the way back: whatever is refused or must wait is
done by the plain Orchestrator, with the same arguments.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...callables.handles import CallableHandle
from ...engine.view.mailbox import ReceivedArgs
from ...errors import OrchestrationError
from ...jit import layout as L
from ...model import arguments, visibility
from ...model.arguments import TaskArgs
from ...model.config import CallConfig
from ...model.enums import DataType
from ...model.scalars import as_it_went_in
from ...model.tensor import ContinuousTensor, DescribedTensor
from ...model.wire import counts_of, tensors_of
from ...system.mappings import shared_mappings
from ...system.types import Array
from ...system.values import position
from ..orchestrator import Orchestrator, asked_for
from . import kinds as K
from . import machine as M
from . import steps as S
from .machine import Refused as Refused

_MOST_WORDS = L.SCALAR_WORDS * L.MAILBOX_ARGS_CAPACITY // L.WORD
_INDEXED = ("tensor", "tag", "scalar")


class Calls(threading.local):
    """What compiled code in this thread asks, and what it was refused last."""

    answer: Callable[[int, int, int, int, int], int] | None = None
    error: BaseException | None = None

    def take_error(self) -> BaseException | None:
        """Return and forget what compiled code was refused last."""
        error, self.error = self.error, None
        return error


calls = Calls()


class Call:
    """One call of a compiled orchestration function."""

    def __init__(self, orch: Orchestrator) -> None:
        self.orch = orch
        self.handles: list[CallableHandle] = []
        self.configs: dict[int, CallConfig] = {}
        self._given: list[tuple[TaskArgs, Any]] = []
        self._keep: list[Any] = []
        self._seen: dict[int, K.Native] = {}
        engine = orch._engine
        self.words = np.zeros(S.CALL_WORDS, np.int64)
        self.words[S.C_MEM] = engine.mem.ctypes.data
        self.words[S.C_MEM_WORDS] = engine.mem.size
        self.words[S.C_ROOM : S.C_ROOM + 2] = orch._pools.sizes
        for memory in orch._host.own_memory():
            start = memory.ctypes.data
            self._add_span(start, start + memory.nbytes)

    def _add_span(self, start: int, end: int) -> None:
        count = int(self.words[S.C_SPANS])
        if count < S.MAX_SPANS:
            at = S.C_FIRST_SPAN + S.SPAN_WORDS * count
            self.words[at : at + S.SPAN_WORDS] = start, end
            self.words[S.C_SPANS] = count + 1

    def orchestrator(self) -> K.Native:
        """Return the Orchestrator in its native form."""
        return K.Native(K.ORCHESTRATOR, self.words.ctypes.data)

    # ------------------------------------------------------------ values on their way in
    def native(self, value: Any) -> Any:
        """Return a value in the form that compiled code takes.

        Raises
        ------
        OrchestrationError
            It has none.
        """
        if isinstance(value, (np.ndarray, bool, int, float, str, np.generic, np.dtype)):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
                raise OrchestrationError(
                    f"the integer {value} has no compiled form: compiled integers have 64 bits; pass a "
                    "float, or run the plain function, fn.py_func"
                )
            return value
        if value is None:
            return value
        if isinstance(value, CallableHandle):
            return self._handle(value)
        if isinstance(value, (tuple, list)):
            items = [self.native(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, DescribedTensor):
            raise _not_compiled(repr(value))
        if isinstance(value, ContinuousTensor):
            kind = K.TensorType(value.ndims, int(value.dtype))
            return K.Native(kind, *np.frombuffer(value._wire, np.int64).tolist())
        if isinstance(value, ReceivedArgs):
            return self._received(value)
        if isinstance(value, TaskArgs):
            return self._task_args(value)
        if isinstance(value, CallConfig):
            number = self.orch._configs.number_of(value)
            self.configs[number] = value
            fields = [getattr(value, name) for name in CallConfig._FIELDS]
            return K.Native(K.CONFIG, number, *fields)
        if hasattr(type(value), "data_ptr"):  # a tensor of torch
            return self.native(visibility.make_tensor(value))
        raise OrchestrationError(
            f"a {type(value).__name__} has no compiled form: pass arrays, numbers, handles, tensors, "
            "TaskArgs, and tuples of them"
        )

    def _handle(self, handle: CallableHandle) -> K.Native:
        self.handles.append(handle)
        number = len(self.handles) - 1
        words = self.orch._subs.get(handle, -1), self.orch._next_level.get(handle, -1)
        return K.Native(K.HANDLE, number, *words)

    def _block(self, wires: Sequence[bytes], scalars: Sequence[bytes], room: int) -> Any:
        block = np.empty(1 + room, np.int64)
        words = np.frombuffer(b"".join([*wires, *scalars]), np.int64)
        block[0] = counts_of(len(wires), len(scalars))
        block[1 : 1 + len(words)] = words
        return block

    def _task_args(self, args: TaskArgs) -> K.Native:
        if id(args) not in self._seen:
            if args._doubts is not None:
                args._doubts.settle()
                if args._doubts.has_layouts:
                    raise _not_compiled("such a tensor in TaskArgs")
            used = _words_of(len(args._tensors), len(args._scalars))
            room = max(_MOST_WORDS, used)
            block = self._block(args._tensors, args._scalars, room)
            self._given.append((args, block))
            self._seen[id(args)] = K.Native(K.ARGS, block.ctypes.data, room)
        return self._seen[id(args)]

    def _received(self, args: ReceivedArgs) -> K.Native:
        tensors = [args.tensor(i) for i in range(args.tensor_count())]
        scalars = [bits + kind.to_bytes(L.WORD, "little") for bits, kind in args._all_scalars()]
        for one in tensors:
            if isinstance(one, DescribedTensor):
                raise _not_compiled(repr(one))
        wires = [tensor._wire for tensor in tensors]
        room = _words_of(len(wires), len(scalars))
        block = self._block(wires, scalars, room)
        self._keep.append(block)
        kinds = tuple((tensor.ndims, int(tensor.dtype)) for tensor in tensors)
        return K.Native(K.ReceivedType(kinds, len(scalars)), block.ctypes.data)

    def give_back(self) -> None:
        """Let the TaskArgs that entered have what compiled code made of them.

        Rule     SPEED-ORCH-8
        """
        for args, block in self._given:
            _take(args, block)

    # ------------------------------------------------------------ what compiled code asks for
    def answer(self, what: int, a: int, b: int, address: int, count: int) -> int:
        """Do what the compiled code cannot: wait, or raise.

        Rule     SPEED-ORCH-3, -5
        """
        more, what = what >> 8, what & 0xFF
        if what == M.ASK_RETRY:
            return self._retry(
                -(more & 0xFF), a, b, more >> 8, ctypes.string_at(address, L.WORD * count)
            )
        if what == M.ASK_SUBMIT:
            words = _words_at(address, count)
            self._submit(more & 0xFF, self.handles[a], self.configs.get(b), words, more >> 8)
        elif what == M.ASK_ALLOC:
            words = _words_at(address, count)
            words[L.TENSOR_DATA] = self.orch._claim(
                ContinuousTensor._from_wire(words.tobytes())
            ).data
        elif what == M.ASK_CONTIGUOUS:
            sizes, strides = _words_at(address, count).reshape(2, -1).tolist()
            raise ValueError(
                f"an array of shape {tuple(sizes[:a])} and strides {tuple(strides[:a])} is not "
                "contiguous, and compiled orchestration takes no other: submit it from Python, or pass "
                "Worker.share(array), which makes a contiguous copy"
            )
        elif what == M.ASK_SHAPE:
            sizes = _words_at(address, count)[:more].tolist()
            ContinuousTensor(a, sizes, DataType(b & 0xFF), bool(b >> 8))
        elif what == M.ASK_TAG:
            arguments.check_tag(a)
        elif what == M.ASK_DTYPE:
            DataType(a)
        elif what == M.ASK_INDEX:
            position(_INDEXED[address], a, b)
        elif what == M.ASK_SCALAR:
            _refuse_scalar(a, b, kind=address)
        elif what == M.ASK_NUMPY:
            ContinuousTensor(a, (1,), DataType.UINT8, bool(b >> 8)).numpy()
        return 0  # asked for signals, Python has seen to them on its way here

    def _retry(self, code: int, word: int, counts: int, members: int, wire: bytes) -> int:
        """Submit again what a kernel has refused with a code: wait for room, or raise."""
        mem, kernels = self.orch._mem, self.orch._engine.kernels
        attempt = partial(kernels.submit_group_and_pass, mem, word, counts, members, wire)
        asked = tensors_of(wire, counts) if members else asked_for(wire, counts)
        return self.orch._retry(code, attempt, lambda: asked)

    def _submit(
        self,
        how: int,
        handle: CallableHandle,
        config: CallConfig | None,
        words: Array,
        members: int,
    ) -> None:
        """Submit what compiled code has not tried: the blocks of its members, then their workers.

        What it finds out about memory, and the addresses that the runtime has chosen, are noted for the
        compiled code.
        """
        blocks, workers = words[:members].tolist(), words[members:].tolist()
        built = {at: _take(TaskArgs(), _block_at(at)) for at in blocks if at}
        doubts = [span for args in built.values() if args._doubts for span in args._doubts.spans]
        given: list[Any] = [built.get(at) for at in blocks]
        if how == S.SUBMIT_SUB:
            self.orch.submit_sub(handle, given[0])
        elif how == S.SUBMIT_NEXT:
            self.orch.submit_next_level(handle, given[0], config, worker=workers[0])
        elif how == S.SUBMIT_SUB_GROUP:
            self.orch.submit_sub_group(handle, given)
        else:
            self.orch.submit_next_level_group(handle, given, config, workers=workers)
        for at, args in built.items():
            tensors = np.frombuffer(b"".join(args._tensors), np.int64)
            _block_at(at)[1 : 1 + len(tensors)] = tensors
        for start, end, _ in shared_mappings() if doubts else ():
            if any(start <= at and at + nbytes <= end for at, nbytes in doubts):
                self._add_span(start, end)


def _not_compiled(what: str) -> OrchestrationError:
    return OrchestrationError(
        f"{what} has no compiled form: compiled orchestration takes contiguous tensors of DataType with "
        "at most five dimensions; submit it from Python"
    )


def _words_at(address: int, count: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


def _block_at(address: int) -> Array:
    tensors, scalars = _counts(_words_at(address, 1))
    return _words_at(address, 1 + _words_of(tensors, scalars))


def _counts(block: Array) -> tuple[int, int]:
    """Return how many tensors and scalars there are in a block."""
    tensors, scalars = block[:1].view(np.int32).tolist()
    return tensors, scalars


def _words_of(tensors: int, scalars: int) -> int:
    """Return how many words they take in a block."""
    return tensors * L.TENSOR_WORDS + scalars * L.SCALAR_WORDS


def _take(args: TaskArgs, block: Array) -> TaskArgs:
    """Give TaskArgs the tensors and scalars of a block.

    Rule     SPEED-ORCH-8
    """
    tensors, scalars = _counts(block)
    first = 1 + tensors * L.TENSOR_WORDS
    words = block[1:first].reshape(tensors, L.TENSOR_WORDS).copy()
    unseen = words[words[:, L.TENSOR_KIND] & S.FROM_ARRAY != 0]
    tensors_of_arrays = [ContinuousTensor._from_wire(row.tobytes()) for row in unseen]
    spans = [(one.data, one.nbytes()) for one in tensors_of_arrays]
    words[:, L.TENSOR_KIND] &= ~S.FROM_ARRAY
    args._tensors[:] = [row.tobytes() for row in words]
    rest = block[first : 1 + _words_of(tensors, scalars)].reshape(scalars, L.SCALAR_WORDS)
    args._scalars = [pair.tobytes() for pair in rest]
    args._doubts = visibility.Doubts(*spans) if spans else None
    return args


def _refuse_scalar(bits: int, i: int, kind: int) -> None:
    """Say that a scalar is no integer of compiled code.

    Rule     SPEED-ORCH-13
    """
    value = as_it_went_in(bits.to_bytes(L.WORD, "little", signed=True), kind)
    if isinstance(value, float):
        raise TypeError(
            f"scalar {i} is {value!r}, no integer; compiled code reads it with scalar_float"
        )
    raise OverflowError(
        f"scalar {i} is {value}, more than the signed 64 bits of a compiled integer; "
        "read a float with scalar_float"
    )
