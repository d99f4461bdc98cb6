"""Calls at an endpoint: what their messages say, as work for its sub workers, and back.

Only the session's main thread comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calls import outcomes
from ..calls.forms import ARRAY, CONSTANTS, INNER_ARRAY, ITEM, READ_ARRAY, VALUE, float_of
from ..calls.futures import Future, Lease
from ..calls.packing import load
from ..calls.tasks import Task
from ..engine.view.blocks import data_of
from ..errors import CallableError
from ..jit import layout as L
from ..model.tensor import view_memory
from ..model.wire import Layout
from ..system.types import Array, address_of
from .copies import CopiedTensor, Copies
from .dispatcher import AGREE, Dispatcher
from .layouts import read_layout, size_of
from .limits import MOST_INLINE
from .mover import new_key
from .side_by_side import Work
from .task_messages import (
    ANY_SUB_WORKER,
    CALL,
    Call,
    Done,
    FrameCapacity,
    Piece,
    Run,
    failure_of,
    reported,
)

if TYPE_CHECKING:
    from ..calls.stream import Stream

_U64 = (1 << 64) - 1


def new_value_key() -> int:
    """Return a key for a value, which fits a word of shared memory."""
    return new_key() >> 1 or new_value_key()


class SessionCalls:
    """Makes work of the calls that a session gets.

    Notes
    -----
    Rule     CALL-FAR-1, CALL-FAR-5, CALL-FAR-6, CALL-FAR-7, CALL-FAR-8, CALL-KEEP-1, CALL-KEEP-2
    """

    def __init__(
        self, stream_of: Callable[[], Stream], dispatcher: Dispatcher, copies: Copies
    ) -> None:
        self._stream_of, self._dispatcher, self._copies = stream_of, dispatcher, copies
        self._tasks: dict[tuple[Any, int], Task] = {}

    def work(self, sequence: int, told: Run) -> CallWork:
        """Return the work that a call is.

        What it says of copies and values holds at once, before anything of it may fail: the link knows
        what is here once it has sent the call.

        Raises
        ------
        Exception
            It could not be made.

        Notes
        -----
        Rule     CALL-KEEP-1
        """
        call, copies = CALL.decode(told.call), self._copies
        copies.drop(told.dropped)
        try:
            copies.put(told.tensors)
            layouts = [read_layout(one.layout) for one in told.tensors]
            self._require_agreed(call)
            held = self._held_values(call.values)
            return CallWork(sequence, told, call, layouts, held, self._task_of(call), self)
        except BaseException:
            copies.drop([call.items.key])
            raise

    def _require_agreed(self, call: Call) -> None:
        """Refuse what has to be unpickled where that was not agreed.

        Rule     CALL-FAR-7
        """
        if self._dispatcher.takes_pickles:
            return
        if ITEM in call.codes or call.named or call.values:
            raise _refusal("arguments that are pickled: pass numbers and arrays in shared memory")

    def _held_values(self, values: Iterable[Piece]) -> dict[int, Lease | bytes]:
        """Return the values of a call that the session keeps, by key; those that have just come, too."""
        held: dict[int, Lease | bytes] = {}
        for one in values:
            if not one.key or one.key in held:
                continue
            found = None if one.data else self._copies.find_value(one.key)
            held[one.key] = self._store(one) if found is None else found
        return held

    def _store(self, piece: Piece) -> Lease | bytes:
        """Keep a value that has come with the call, or before it, in a block if there is room for one."""
        data: Any = piece.data or self._copies.take_stored(piece.key).data
        value: Lease | bytes
        try:
            value = self._stream_of().put(data)
        except MemoryError:
            value = bytes(data)
        self._copies.keep(piece.key, value, len(data), was_stored=True)
        return value

    def _task_of(self, call: Call) -> Task:
        found = self._dispatcher.find(call.digest)
        key = found, call.sub_worker
        task = self._tasks.get(key)
        if task is None:
            made = found if isinstance(found, Task) else self._stream_of().task_of(found)
            only = () if call.sub_worker == ANY_SUB_WORKER else (call.sub_worker,)
            task = self._tasks[key] = made.on(only)
        return task

    # ------------------------------------------------------------ outcomes
    def outcome(self, future: Future, sequence: int, room: FrameCapacity) -> Done:
        """Return what a call has returned or raised, without unpickling it if it is where it was left."""
        stream = self._stream_of()
        raw = stream.raw_outcome(future)
        if raw is None:
            error = future.exception()
            if error is not None:
                return failure_of(error, sequence)
            return self._value_outcome(stream, future, sequence, room)
        kind, word = raw
        if kind == L.VALUE_ERROR:
            failed = reported(data_of(stream._mem, word), sequence)
            future.exception()  # it was asked for
            return failed
        if kind != L.VALUE_BLOCK:
            return Done(sequence, L.SUCCESS, kind, word & _U64)
        return self._block_outcome(stream, stream.hold(word), sequence, room)

    def _value_outcome(
        self, stream: Stream, future: Future, sequence: int, room: FrameCapacity
    ) -> Done:
        """Return a value that the future has by now, since something else needed the room."""
        outcome = outcomes.encode(future.result())
        if outcome.kind != L.VALUE_BLOCK:
            return Done(sequence, L.SUCCESS, outcome.kind, outcome.word & _U64)
        block = bytearray(outcome.nbytes)
        outcomes.write(outcome.parts, memoryview(block))
        return self._block_outcome(stream, stream.put(block), sequence, room)

    def _block_outcome(
        self, stream: Stream, lease: Lease, sequence: int, room: FrameCapacity
    ) -> Done:
        """Return a value that is a block: a long one is kept until the parent says so."""
        kind = L.VALUE_BLOCK
        if not self._dispatcher.takes_pickles:
            raise _refusal("values that are pickled: return numbers, or write into arrays")
        block = data_of(stream._mem, lease.offset)
        block = block[: outcomes.size_of(block)]
        travels = room.takes(block.nbytes)
        data = bytes(block) if travels else b""
        if block.nbytes <= MOST_INLINE and travels:
            return Done(sequence, L.SUCCESS, kind, 0, Piece(data))
        key = new_value_key()
        address = 0 if travels else address_of(np.frombuffer(block, np.uint8))
        self._copies.keep(key, lease, block.nbytes, address=address)
        return Done(sequence, L.SUCCESS, kind, 0, Piece(data, key, block.nbytes))


class CallWork(Work):
    """A call; if its items have come beside its frame, they are a copy of its own, forgotten with it."""

    def __init__(
        self,
        sequence: int,
        told: Run,
        call: Call,
        layouts: Sequence[Layout],
        held: dict[int, Lease | bytes],
        task: Task,
        calls: SessionCalls,
    ) -> None:
        tensors, sizes = told.tensors, [size_of(one) for one in layouts]
        if call.items.key:
            tensors = [*tensors, CopiedTensor(call.items.key, 1)]
            sizes.append(call.items.nbytes)
        super().__init__(sequence, told._replace(dropped=()), tensors, sizes)
        self._call, self._layouts, self._held, self._task = call, layouts, held, task
        self._calls, self._copies, self._stream = calls, calls._copies, calls._stream_of()

    def submit(self, addresses: Sequence[int]) -> Future:
        """Give it to a sub worker, with its copies at some addresses."""
        arrays = [_array(*one) for one in zip(self._layouts, addresses, strict=False)]
        items: Any = self._call.items.data
        if self._call.items.key:
            items = view_memory(addresses[-1], (self.sizes[-1],), np.dtype(np.uint8))
        arguments = self._arguments(arrays, memoryview(items))
        return self._stream.submit(self._task, *arguments)

    def _arguments(
        self, arrays: Sequence[Array], items: memoryview
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the named arguments of a call; see `Inside`, too."""
        call = self._call
        names: Sequence[str] = ()
        found: list[Any] = []
        blocks, given = iter(call.values), iter(arrays)
        words = np.frombuffer(call.words, np.int64).tolist()
        values = (
            self._value(kind, word, blocks)
            for kind, word in zip(self.told.kinds, words, strict=True)
        )
        inner = [code for code in call.codes if code >= INNER_ARRAY]
        if ITEM in call.codes or call.named:
            names, found = load(items, inner, given, values)
        others = iter(found)
        made: list[Any] = []
        for code in call.codes[len(inner) :]:
            if code == VALUE:
                made.append(next(values))
            elif code in (ARRAY, READ_ARRAY):
                made.append(next(given))
            elif code == ITEM:
                made.append(next(others))
            else:
                made.append(CONSTANTS[code])
        count = len(made) - call.named
        return tuple(made[:count]), dict(zip(names, made[count:], strict=True))

    def _value(self, kind: int, word: int, blocks: Iterator[Piece]) -> Any:
        if not kind & L.FETCHED:
            return float_of(word) if kind == L.FLOAT64 else word
        kind ^= L.FETCHED
        if kind != L.VALUE_BLOCK:
            return outcomes.decode_word(kind, word)
        piece = next(blocks)
        found = self._held.get(piece.key, piece.data)
        return found if isinstance(found, Lease) else outcomes.decode_block(memoryview(found))[0]

    def end_of(self, future: Future) -> Done:
        """Return how it has ended, with what it has returned, raised and written."""
        room = FrameCapacity()
        try:
            outcome = self._calls.outcome(future, self.sequence, room)
        except Exception as error:
            return failure_of(error, self.sequence)
        written = {
            one.key: size
            for one, size in zip(self.told.tensors, self.sizes, strict=False)
            if one.makes
        }
        if written and outcome.outcome == L.SUCCESS:
            data = [
                self._copies.data(key) if room.takes(nbytes) else b""
                for key, nbytes in written.items()
            ]
            outcome = outcome._replace(written=data)
        return outcome

    def forget(self) -> None:
        """Forget its items."""
        if self._call.items.key:
            self._copies.drop([self._call.items.key])


def _refusal(what: str) -> CallableError:
    return CallableError(
        "CALLABLE_KIND_UNSUPPORTED",
        f"this endpoint takes no {what}; or {AGREE}",
    )


def _array(layout: Layout, address: int) -> Array:
    dtype, shape, strides = layout
    return view_memory(address, shape, dtype, strides=strides)
