"""Calls at an endpoint: its session has them run by the calls of its own Worker.

So a call there is what it is on the parent's machine: its sub worker, its time limit, its value, its
error. Only the session's main thread comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..calls import outcomes
from ..calls.forms import ARRAY, CONSTANTS, INNER_ARRAY, ITEM, READ_ARRAY, VALUE, float_of
from ..calls.futures import Future, Lease
from ..calls.packing import load
from ..calls.tasks import Task
from ..engine.memory import PARK_NS
from ..engine.view.blocks import data_of
from ..errors import CallableError
from ..jit import layout as L
from ..model.tensor import view_memory
from ..system.types import Array
from .copies import ComingCopy, CopiedTensor, Copies
from .dispatcher import AGREE, Dispatcher
from .far_calls import (
    ANY_SUB_WORKER,
    FAR_CALL,
    FAR_OUTCOME,
    MOST_INLINE,
    VALUE_TAKEN,
    FarArray,
    FarCall,
    FarOutcome,
    Piece,
    Room,
)
from .kept_values import KeptValues, new_value_key
from .layouts import read_layout
from .lookout import Lookout
from .mover import Mover

if TYPE_CHECKING:
    from ..calls.stream import Stream

SOON_NS = 1_000_000
"""How long a session waits for the end of a call before it also looks out for frames."""
_U64 = (1 << 64) - 1


class _Running(NamedTuple):
    """A call that was begun: its future, its arrays, and the keys of what has come beside it.

    `written` are the arrays that it writes, with their sizes; `held` are values that are its arguments.
    """

    future: Future
    tensors: Sequence[CopiedTensor]
    beside: Sequence[int]
    written: dict[int, int]
    held: Sequence[Any]


class FarCalls:
    """The calls that a session serves, several at a time.

    Notes
    -----
    Rule     CALL-FAR-1, -5 to -8, -12; CALL-KEEP-1, -2
    """

    def __init__(
        self, stream_of: Any, dispatcher: Dispatcher, copies: Copies, mover: Mover
    ) -> None:
        self._stream_of = stream_of
        self._dispatcher, self._copies, self._mover = dispatcher, copies, mover
        self._values = KeptValues(stream_of, mover)
        self._tasks: dict[tuple[Any, int], Task] = {}
        self.running: dict[int, _Running] = {}
        """The calls that were begun and not answered, by the numbers of their frames."""
        self._seen = 0

    # ------------------------------------------------------------ one call
    def begin(self, payload: bytes, sequence: int) -> None:
        """Begin a call: what has to be answered then is in `running`.

        Raises
        ------
        Exception
            It could not be made.
        """
        call = FAR_CALL.decode(payload)
        copies = self._copies
        copies.begin(call.run)
        copies.drop(call.dropped)
        self._values.forget(call.dropped)
        self._require_agreed(call)
        held = self._held_values(call.values)
        task = self._task_of(call)
        beside = [one for one in (call.items, *call.values) if one.key and one.key not in held]
        try:
            self.running[sequence] = self._submit(call, task, beside, held)
        except BaseException:
            copies.drop([one.key for one in beside])
            raise

    def _held_values(self, values: Iterable[Piece]) -> dict[int, Lease | bytes]:
        """Return the values of a call that the session keeps, by key; those that have just come, too.

        Nothing of the call may fail before: the link knows that they are here once it has sent the call.

        Rule     CALL-KEEP-1; REMOTE-TASK-12
        """
        held: dict[int, Lease | bytes] = {}
        for one in values:
            if not one.key or one.key in held:
                continue
            found = None if one.data else self._values.find(one.key)
            held[one.key] = self._store(one) if found is None else found
        return held

    def _store(self, piece: Piece) -> Lease | bytes:
        """Keep a value that has come with the call, or before it."""
        if piece.data:
            return self._values.store(piece.key, piece.data)
        try:
            return self._values.store(piece.key, self._come(piece).data)
        finally:
            self._copies.drop([piece.key])

    def _come(self, piece: Piece) -> Array:
        """Return the bytes that have come before a call."""
        [address] = self._copies.take([CopiedTensor(piece.key, 1)], [piece.nbytes])
        return view_memory(address, (piece.nbytes,), np.dtype(np.uint8))

    def _submit(
        self, call: FarCall, task: Task, beside: Sequence[Piece], held: dict[int, Lease | bytes]
    ) -> _Running:
        copies = self._copies
        found: dict[int, Any] = {**held, **{one.key: self._come(one) for one in beside}}
        for one in call.arrays:
            if one.data:
                copies.put(ComingCopy(one.key, one.reads, one.nbytes), one.data)
        tensors = [CopiedTensor(one.key, one.reads, one.makes) for one in call.arrays]
        addresses = copies.take(tensors, [one.nbytes for one in call.arrays])
        try:
            arrays = [_array(*one) for one in zip(call.arrays, addresses, strict=True)]
            positional, named = self._arguments(call, arrays, found)
            future = self._stream_of().submit(task, positional, named)
        except BaseException:
            copies.settle(tensors, False)
            raise
        written = {one.key: one.nbytes for one in call.arrays if one.makes}
        keys = [one.key for one in beside]
        return _Running(future, tensors, keys, written, list(held.values()))

    def wait(self, lookout: Lookout | None, unless: Callable[[], bool]) -> None:
        """Wait until a call may have ended, unless something else is so: see `Stream.wait_for_end`.

        If none ends soon, until a lookout rings, too.
        """
        stream = self._stream_of()
        stream.wait_for_end(self._seen, SOON_NS if lookout else PARK_NS, unless)
        if lookout and stream.ended == self._seen and not unless():
            lookout.arm()
            stream.wait_for_end(self._seen, PARK_NS, lambda: lookout.has_rung() or unless())

    def stop_waiting(self) -> None:
        """Have the thread that waits look again."""
        self._stream_of().stop_waiting()

    def answers(self) -> Iterator[bytes]:
        """Return the answers to the calls that have ended."""
        stream = self._stream_of()
        self._seen = stream.ended
        ended = [one for one, running in self.running.items() if running.future.done()]
        for sequence in ended:
            running = self.running.pop(sequence)
            room = Room()
            try:
                outcome = self._outcome(stream, running.future, sequence, room)
            except Exception as error:
                outcome = _failure(memoryview(outcomes.error_block(error)), sequence)
            copies, succeeded = self._copies, outcome.kind != L.VALUE_ERROR
            copies.settle(running.tensors, succeeded)
            copies.drop(running.beside)
            if succeeded and running.written:
                written = [
                    copies.data(key) if room.takes(nbytes) else b""
                    for key, nbytes in running.written.items()
                ]
                outcome = replace(outcome, written=written)
            yield FAR_OUTCOME.encode(outcome)

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
        self, call: FarCall, arrays: Sequence[Array], beside: dict[int, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the named arguments of a call; see `Inside`, too."""
        names: Sequence[str] = ()
        found: list[Any] = []
        pieces, given = iter(call.values), iter(arrays)
        words = np.frombuffer(call.words, np.int64).tolist()
        values = (
            _value(kind, word, pieces, beside) for kind, word in zip(call.kinds, words, strict=True)
        )
        inner = [code for code in call.codes if code >= INNER_ARRAY]
        if ITEM in call.codes or call.named:
            data = _data(call.items, beside.get(call.items.key))
            names, found = load(data, inner, given, values)
        items = iter(found)
        made: list[Any] = []
        for code in call.codes[len(inner) :]:
            if code == VALUE:
                made.append(next(values))
            elif code in (ARRAY, READ_ARRAY):
                made.append(next(given))
            elif code == ITEM:
                made.append(next(items))
            else:
                made.append(CONSTANTS[code])
        count = len(made) - call.named
        return tuple(made[:count]), dict(zip(names, made[count:], strict=True))

    # ------------------------------------------------------------ outcomes
    def _outcome(self, stream: Stream, future: Future, sequence: int, room: Room) -> FarOutcome:
        """Return what a call has returned or raised, without unpickling it if it is where it was left."""
        raw = stream.raw_outcome(future)
        if raw is None:
            error = future.exception()
            if error is not None:
                return _failure(memoryview(outcomes.error_block(error)), sequence)
            return self._value_outcome(stream, future, sequence, room)
        kind, word = raw
        if kind == L.VALUE_ERROR:
            failed = _failure(data_of(stream._mem, word), sequence)
            future.exception()  # it was asked for
            return failed
        if kind != L.VALUE_BLOCK:
            return FarOutcome(sequence, kind, word & _U64)
        return self._block_outcome(stream, stream.hold(word), sequence, room)

    def _value_outcome(
        self, stream: Stream, future: Future, sequence: int, room: Room
    ) -> FarOutcome:
        """Return a value that the future has by now, since something else needed the room."""
        outcome = outcomes.encode(future.result())
        if outcome.kind != L.VALUE_BLOCK:
            return FarOutcome(sequence, outcome.kind, outcome.word & _U64)
        block = bytearray(outcome.nbytes)
        outcomes.write(outcome.parts, memoryview(block))
        return self._block_outcome(stream, stream.put(block), sequence, room)

    def _block_outcome(self, stream: Stream, lease: Lease, sequence: int, room: Room) -> FarOutcome:
        """Return a value that is a block: a long one is kept until the parent says so."""
        kind = L.VALUE_BLOCK
        if not self._dispatcher.takes_pickles:
            raise _refusal("values that are pickled: return numbers, or write into arrays")
        block = data_of(stream._mem, lease.offset)
        block = block[: outcomes.size_of(block)]
        travels = room.takes(block.nbytes)
        data = bytes(block) if travels else b""
        if block.nbytes <= MOST_INLINE and travels:
            return FarOutcome(sequence, kind, 0, Piece(data))
        key = new_value_key()
        self._values.keep(key, block, lease, not travels)
        return FarOutcome(sequence, kind, 0, Piece(data, key, block.nbytes))

    def forget_value(self, payload: bytes) -> None:
        """Forget a value that the parent has, or no longer needs."""
        self._values.forget([VALUE_TAKEN.decode(payload).key])

    def close(self) -> None:
        """Forget all values, while there is still the memory that they are in."""
        self._values.clear()

    def counts(self) -> dict[str, int]:
        """Return how many values are kept, and where they came from."""
        return self._values.counts()

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
        f"this endpoint takes no {what}; or {AGREE}",
    )


def _array(far: FarArray, address: int) -> Array:
    """Return the copy of an array."""
    dtype, shape, strides = read_layout(far.layout, far.nbytes)
    return view_memory(address, shape, dtype, strides=strides)


def _data(piece: Piece, found: Any) -> memoryview:
    """Return the bytes of a piece; `found` has them if they are not in it."""
    return memoryview(piece.data if found is None else found)


def _value(kind: int, word: int, blocks: Iterator[Piece], beside: dict[int, Any]) -> Any:
    """Return the value of a word, or that of a call."""
    if not kind & L.FETCHED:
        return float_of(word) if kind == L.FLOAT64 else word
    kind ^= L.FETCHED
    if kind == L.VALUE_BLOCK:
        piece = next(blocks)
        found = beside.get(piece.key)
        return found if type(found) is Lease else outcomes.decode_block(_data(piece, found))[0]
    return outcomes.decode_word(kind, word)
