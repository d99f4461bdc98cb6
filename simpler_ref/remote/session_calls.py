"""Calls at an endpoint: what their messages say, as work for its sub workers, and back.

A call is packed once, on the parent's machine: the session puts its own function, its copies and its
blocks of values in place of those that the link had, and unpickles nothing. Only its main thread comes
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calls import outcomes
from ..calls.forms import ARRAY, INNER_ARRAY, READ_ARRAY, form_of
from ..calls.futures import Future, Lease
from ..calls.packing import PackedElsewhere
from ..calls.tasks import Task
from ..engine.view.blocks import data_of
from ..errors import CallableError
from ..jit import layout as L
from ..model.tensor import view_memory
from ..system.types import address_of
from . import task_messages as messages
from .copies import CopiedTensor, Copies
from .dispatcher import AGREE, Dispatcher
from .limits import MOST_INLINE
from .side_by_side import Work
from .tasks import read_layout, size_of
from .windows import new_key

if TYPE_CHECKING:
    from ..calls.stream import Stream

_U64 = (1 << 64) - 1
_BLOCK = L.FETCHED | L.VALUE_BLOCK
_KINDS = {L.SIGNED, L.FLOAT64, *range(L.FETCHED, _BLOCK + 1)}
"""Those of words in calls: of nothing else on this machine."""


def new_value_key() -> int:
    """Return a key for a value, which fits a word of shared memory."""
    return new_key() >> 1 or new_value_key()


class SessionCalls:
    """Makes work of the calls that a session gets, and messages of what they return.

    Notes
    -----
    Rule     CALL-FAR-1, CALL-FAR-5, CALL-FAR-6, CALL-FAR-7, CALL-FAR-8, CALL-KEEP-1, CALL-KEEP-2
    """

    def __init__(
        self, stream_of: Callable[[], Stream], dispatcher: Dispatcher, copies: Copies
    ) -> None:
        self.stream_of, self._dispatcher, self.copies = stream_of, dispatcher, copies
        self._tasks: dict[tuple[Any, int], Task] = {}

    def work(self, sequence: int, told: messages.Run) -> CallWork:
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
        call, copies = messages.CALL.decode(told.call), self.copies
        copies.drop(told.dropped)
        try:
            copies.put(told.tensors)
            values = [self._held(one) for one in call.values]
            made = CallWork(sequence, told, call, values, self)
            self._require_agreed(call, made.form.has_items)
            made.task = self._task_of(call)
        except BaseException:
            copies.drop([call.items.key])
            raise
        return made

    def _require_agreed(self, call: messages.Call, has_items: bool) -> None:
        """Refuse what has to be unpickled where that was not agreed.

        Rule     CALL-FAR-7
        """
        if (has_items or call.values) and not self._dispatcher.takes_pickles:
            raise _refusal("arguments that are pickled: pass numbers and arrays in shared memory")

    def _held(self, piece: messages.Piece) -> Lease | bytes:
        """Return a value; one with a key is kept, in a block if there is room for one."""
        key, copies = piece.key, self.copies
        if not key:
            return piece.data
        if not piece.data and (found := copies.find_value(key)) is not None:
            return found
        data: Any = piece.data or copies.take_stored(key).data
        value: Lease | bytes
        try:
            value = self.stream_of().put(data)
        except MemoryError:
            value = bytes(data)
        copies.keep(key, value, len(data), was_stored=True)
        return value

    def _task_of(self, call: messages.Call) -> Task:
        found = self._dispatcher.find(call.digest)
        key = found, call.sub_worker
        task = self._tasks.get(key)
        if task is None:
            made = found if isinstance(found, Task) else self.stream_of().task_of(found)
            only = () if call.sub_worker == messages.ANY_SUB_WORKER else (call.sub_worker,)
            task = self._tasks[key] = made.on(only)
        return task

    # ------------------------------------------------------------ outcomes
    def outcome(self, future: Future, sequence: int, room: messages.FrameCapacity) -> messages.Done:
        """Return what a call has returned or raised, without unpickling it if it is where it was left."""
        stream = self.stream_of()
        raw = stream.raw_outcome(future)
        if raw is None:
            error = future.exception()
            if error is not None:
                return messages.failure_of(error, sequence)
            found = outcomes.encode(future.result())  # since something else needed the room
            kind, word = found.kind, found.word
            if kind == L.VALUE_BLOCK:
                block = bytearray(found.nbytes)
                outcomes.write(found.parts, memoryview(block))
                return self._block_outcome(stream.put(block), sequence, room)
        else:
            kind, word = raw
            if kind == L.VALUE_ERROR:
                failed = messages.reported(data_of(stream._mem, word), sequence)
                future.exception()  # it was asked for
                return failed
            if kind == L.VALUE_BLOCK:
                return self._block_outcome(stream.hold(word), sequence, room)
        return messages.Done(sequence, L.SUCCESS, kind, word & _U64)

    def _block_outcome(
        self, lease: Lease, sequence: int, room: messages.FrameCapacity
    ) -> messages.Done:
        """Return a value that is a block: a long one is kept until the parent says so."""
        if not self._dispatcher.takes_pickles:
            raise _refusal("values that are pickled: return numbers, or write into arrays")
        block = data_of(self.stream_of()._mem, lease.offset)
        block = block[: outcomes.size_of(block)]
        travels = room.takes(block.nbytes)
        data, key, nbytes = bytes(block) if travels else b"", 0, 0
        if block.nbytes > MOST_INLINE or not travels:
            key, nbytes = new_value_key(), block.nbytes
            address = 0 if travels else address_of(np.frombuffer(block, np.uint8))
            self.copies.keep(key, lease, nbytes, address=address)
        value = messages.Piece(data, key, nbytes)
        return messages.Done(sequence, L.SUCCESS, L.VALUE_BLOCK, 0, value)


class CallWork(Work):
    """A call; if its items have come beside its frame, they are a copy of its own, forgotten with it."""

    task: Task

    def __init__(
        self,
        sequence: int,
        told: messages.Run,
        call: messages.Call,
        values: Sequence[Lease | bytes],
        calls: SessionCalls,
    ) -> None:
        self._arrays = told.tensors
        self._layouts = [read_layout(one.layout) for one in told.tensors]
        tensors, sizes = told.tensors, [size_of(one) for one in self._layouts]
        if call.items.key:
            tensors = [*tensors, CopiedTensor(call.items.key, 1)]
            sizes.append(call.items.nbytes)
        super().__init__(sequence, told._replace(dropped=()), tensors, sizes)
        self._items, self._values, self._calls = call.items, values, calls
        self._words = np.frombuffer(call.words, np.int64).tolist()
        self.form = form_of(self._words)
        codes = [*self.form.inner, *self.form.codes]
        arrays = sum(codes.count(one) for one in (ARRAY, READ_ARRAY, INNER_ARRAY))
        shape = len(told.kinds), told.kinds.count(_BLOCK), arrays
        if shape != (len(self._words), len(values), len(told.tensors)) or set(told.kinds) - _KINDS:
            raise ValueError("the words of the call do not fit its arrays and values")

    def start(self, addresses: Sequence[int]) -> Future:
        """Give it to a sub worker, with its copies at some addresses."""
        stream, kinds = self._calls.stream_of(), self.told.kinds
        arrays = [
            (view_memory(address, layout[1], layout[0], strides=layout[2]), _tag(one))
            for one, layout, address in zip(self._arrays, self._layouts, addresses, strict=False)
        ]
        items: Any = self._items.data
        if self._items.key:
            items = view_memory(addresses[-1], (self.sizes[-1],), np.dtype(np.uint8)).data
        self._leases = [one if isinstance(one, Lease) else stream.put(one) for one in self._values]
        blocks = (one.offset for one in self._leases)
        words = [
            next(blocks) if kind == _BLOCK else word
            for word, kind in zip(self._words, kinds, strict=True)
        ]
        return stream.forward(self.task, PackedElsewhere(arrays, words, kinds, items))

    def end_of(self, future: Future) -> messages.Done:
        """Return how it has ended, with what it has returned, raised and written."""
        room = messages.FrameCapacity()
        try:
            outcome = self._calls.outcome(future, self.sequence, room)
        except Exception as error:
            return messages.failure_of(error, self.sequence)
        if outcome.outcome == L.SUCCESS:
            written = {
                one.key: size
                for one, size in zip(self._arrays, self.sizes, strict=False)
                if one.makes
            }
            data = self._calls.copies.data
            outcome = outcome._replace(
                written=[data(key) if room.takes(size) else b"" for key, size in written.items()]
            )
        return outcome

    def forget(self) -> None:
        """Forget its items."""
        self._calls.copies.drop([self._items.key])


def _tag(one: CopiedTensor) -> int:
    """Return the tag of a call's array."""
    if not one.makes:
        return L.INPUT
    return L.INOUT if one.reads else L.OUTPUT_EXISTING


def _refusal(what: str) -> CallableError:
    return CallableError(
        "CALLABLE_KIND_UNSUPPORTED",
        f"this endpoint takes no {what}; or {AGREE}",
    )
