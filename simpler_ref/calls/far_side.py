"""Calls at an endpoint: its session has them run by the calls of its own Worker.

So a call there is what it is on the parent's machine: its sub worker, its time limit, its value, its
error. Only the session's main thread comes here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.view.blocks import data_of
from ..errors import CallableError
from ..jit import layout as L
from ..model.tensor import view_memory
from ..remote.copies import CopiedTensor, Copies
from ..remote.dispatcher import Dispatcher
from ..remote.far_calls import (
    ANY_SUB_WORKER,
    FAR_CALL,
    FAR_OUTCOME,
    MOST_INLINE,
    FarArray,
    FarCall,
    FarOutcome,
    Piece,
)
from ..remote.layouts import read_layout
from ..remote.limits import REMOTE_BUFFER_ACCESS_READ
from ..remote.mover import Mover, new_key
from ..remote.windows import Window
from ..system.types import Array
from . import outcomes
from .forms import ARRAY, CONSTANTS, ITEM, READ_ARRAY, VALUE, float_of
from .futures import Future
from .tasks import Task

if TYPE_CHECKING:
    from .stream import Stream

_U64 = (1 << 64) - 1


class FarCalls:
    """The calls that a session serves.

    Rule     CALL-FAR-1, -5 to -8
    """

    def __init__(
        self, stream_of: Any, dispatcher: Dispatcher, copies: Copies, mover: Mover
    ) -> None:
        self._stream_of = stream_of
        self._dispatcher, self._copies, self._mover = dispatcher, copies, mover
        self._tasks: dict[tuple[Any, int], Task] = {}
        self._window = 0
        self._held: Any = None
        """The future of the value in the window."""

    # ------------------------------------------------------------ one call
    def serve(self, payload: bytes, sequence: int) -> bytes:
        """Run a call, and return the answer to its frame."""
        call = FAR_CALL.decode(payload)
        self.forget_value()
        copies = self._copies
        copies.begin(call.run)
        copies.drop(call.dropped)
        self._require_agreed(call)
        task = self._task_of(call)
        pieces = [one for one in (call.items, *call.values) if one.key]
        try:
            read = [copies.take([CopiedTensor(one.key, 1)], [one.nbytes])[0] for one in pieces]
            beside = {
                one.key: view_memory(address, (one.nbytes,), np.dtype(np.uint8))
                for one, address in zip(pieces, read, strict=True)
            }
            return self._run(call, task, beside, sequence)
        finally:
            copies.drop([one.key for one in pieces])

    def _run(self, call: FarCall, task: Task, beside: dict[int, Array], sequence: int) -> bytes:
        tensors = [CopiedTensor(one.key, one.reads, one.makes) for one in call.arrays]
        addresses = self._copies.take(tensors, [one.nbytes for one in call.arrays])
        succeeded = False
        try:
            arrays = [_array(*one) for one in zip(call.arrays, addresses, strict=True)]
            positional, named = self._arguments(call, arrays, beside)
            stream = self._stream_of()
            future = stream.submit(task, positional, named)
            stream.wait(future, None)
            outcome = self._outcome(stream, future, sequence)
            succeeded = outcome.kind != L.VALUE_ERROR
        finally:
            self._copies.settle(tensors, succeeded)
        return FAR_OUTCOME.encode(outcome)

    def _require_agreed(self, call: FarCall) -> None:
        """Refuse what has to be unpickled where that was not agreed.

        Rule     CALL-FAR-7
        """
        if self._dispatcher.takes_pickles:
            return
        if ITEM in call.codes or call.named or call.values:
            raise _refusal("arguments that are pickled: pass numbers and arrays in shared memory")

    def _task_of(self, call: FarCall) -> Task:
        """Return the task of a function, for the sub workers that may run it."""
        found = self._dispatcher.find(call.digest)
        key = found, call.sub_worker
        task = self._tasks.get(key)
        if task is None:
            made = found if isinstance(found, Task) else self._stream_of().task_of(found)
            only = () if call.sub_worker == ANY_SUB_WORKER else (call.sub_worker,)
            task = self._tasks[key] = made.on(only)
        return task

    # ------------------------------------------------------------ arguments
    def _arguments(
        self, call: FarCall, arrays: Sequence[Array], beside: dict[int, Array]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the named arguments of a call; see `Inside`, too."""
        names: Sequence[str] = ()
        items: Iterator[Any] = iter(())
        if ITEM in call.codes or call.named:
            names, found = pickle.loads(_data(call.items, beside))
            items = iter(found)
        words = iter(np.frombuffer(call.words, np.int64).tolist())
        kinds, values, given = iter(call.kinds), iter(call.values), iter(arrays)
        made: list[Any] = []
        for code in call.codes:
            if code == VALUE:
                made.append(_value(next(kinds), next(words), values, beside))
            elif code in (ARRAY, READ_ARRAY):
                made.append(next(given))
            elif code == ITEM:
                made.append(next(items))
            else:
                made.append(CONSTANTS[code])
        count = len(made) - call.named
        return tuple(made[:count]), dict(zip(names, made[count:], strict=True))

    # ------------------------------------------------------------ outcomes
    def _outcome(self, stream: Stream, future: Future, sequence: int) -> FarOutcome:
        """Return what a call has returned or raised, without unpickling it."""
        raw = stream.raw_outcome(future)
        if raw is None:
            error = future.exception()
            assert error is not None
            return _failure(memoryview(outcomes.error_block(error)), sequence)
        kind, word = raw
        if kind == L.VALUE_ERROR:
            failed = _failure(data_of(stream._mem, word), sequence)
            future.exception()  # it was asked for
            return failed
        if kind != L.VALUE_BLOCK:
            return FarOutcome(sequence, kind, word & _U64)
        if not self._dispatcher.takes_pickles:
            raise _refusal("values that are pickled: return numbers, or write into arrays")
        block = data_of(stream._mem, word)
        block = block[: outcomes.size_of(block)]
        if block.nbytes <= MOST_INLINE:
            return FarOutcome(sequence, kind, 0, Piece(bytes(block)))
        self._held, self._window = future, new_key()
        address = np.frombuffer(block, np.uint8).ctypes.data
        self._mover.offer(Window(self._window, address, block.nbytes, REMOTE_BUFFER_ACCESS_READ))
        return FarOutcome(sequence, kind, 0, Piece(b"", self._window, block.nbytes))

    def forget_value(self) -> None:
        """Forget the last value that was too long for a frame: the parent has it."""
        if self._window:
            self._mover.withdraw(self._window)
            self._window, self._held = 0, None

    def failure(self, error: BaseException, sequence: int) -> bytes:
        """Return the answer about a call that could not be made."""
        return FAR_OUTCOME.encode(_failure(memoryview(outcomes.error_block(error)), sequence))


def _failure(report: memoryview, sequence: int) -> FarOutcome:
    text, trace, exception = outcomes.read_report(report)
    raw = text.encode(errors="replace"), trace.encode(errors="replace")
    return FarOutcome(sequence, L.VALUE_ERROR, 0, Piece(), *raw, exception)


def _refusal(what: str) -> CallableError:
    return CallableError(
        "CALLABLE_KIND_UNSUPPORTED",
        f"this endpoint takes no {what}; or start it with serialized=True",
    )


def _array(far: FarArray, address: int) -> Array:
    """Return the copy of an array."""
    dtype, shape, strides = read_layout(far.layout, far.nbytes)
    return view_memory(address, shape, dtype, strides=strides)


def _data(piece: Piece, beside: dict[int, Array]) -> memoryview:
    return beside[piece.key].data if piece.key else memoryview(piece.data)


def _value(kind: int, word: int, blocks: Iterator[Piece], beside: dict[int, Array]) -> Any:
    """Return the value of a word, or that of a call."""
    if not kind & L.FETCHED:
        return float_of(word) if kind == L.FLOAT64 else word
    kind ^= L.FETCHED
    if kind == L.VALUE_BLOCK:
        return outcomes.decode_block(_data(next(blocks), beside))[0]
    return outcomes.decode_word(kind, word)
