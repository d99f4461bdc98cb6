"""The values of calls at endpoints: where they will be, and how long they are likely to be.

Only the choice of an endpoint depends on it: what an endpoint really has, its link knows.
"""

from __future__ import annotations

import numpy as np

from ..calls import outcomes
from ..engine.memory import Engine
from ..engine.view.blocks import data_of
from ..jit import layout as L
from ..model.wire import TENSOR_BYTES

_MOST_TASKS = 1 << 12
_UNKNOWN = 1
"""Bytes of a value that no call of the task has returned yet: of places alike its own is the best."""


class Value:
    """The value of a call, as an argument of another one; see `Kept` for the attributes."""

    __slots__ = ("holders", "maker", "nbytes", "task", "turn")

    def __init__(self, task: int, maker: int, turn: int) -> None:
        self.task = task
        self.maker, self.turn, self.holders = maker, turn, {maker}
        self.nbytes = _UNKNOWN


class ValueUse:
    """That a call reads a value."""

    __slots__ = ("kept",)
    reads, writes = True, False

    def __init__(self, kept: Value) -> None:
        self.kept = kept


class FarValues:
    """The values of a stream's calls.

    Rule     CALL-FAR-8
    """

    def __init__(self, engine: Engine) -> None:
        self._mem, self._view, self._kernels = engine.mem, engine.view, engine.kernels
        self._values: dict[int, Value] = {}
        """By the slots of calls."""
        self._sizes: dict[int, int] = {}
        """Of the last value seen of each task."""

    def uses_in(self, wire: bytes, counts: int) -> list[ValueUse]:
        """Return what a call does with values of other calls."""
        scalars = np.frombuffer(wire, np.int64, offset=(counts & L.LOW_HALF) * TENSOR_BYTES)
        words, kinds = scalars[::2].tolist(), scalars[1::2].tolist()
        slots = [word for word, kind in zip(words, kinds, strict=True) if kind == L.FUTURE]
        return [ValueUse(self._value(one)) for one in slots if one in self._values]

    def _value(self, slot: int) -> Value:
        """Return the value of a call with its size, or that of another value of the task."""
        value = self._values[slot]
        if value.nbytes == _UNKNOWN:
            if self._kernels.has_settled(self._mem, slot):
                value.nbytes = self._size_of(slot)
                if len(self._sizes) > _MOST_TASKS:
                    self._sizes.clear()
                self._sizes[value.task] = value.nbytes
            else:
                return self._likely(value)
        return value

    def _likely(self, value: Value) -> Value:
        likely = Value(value.task, value.maker, value.turn)
        likely.holders, likely.nbytes = value.holders, self._sizes.get(value.task, _UNKNOWN)
        return likely

    def _size_of(self, slot: int) -> int:
        has_failed, kind, word = self._view.outcome(slot)
        if has_failed or kind != L.VALUE_BLOCK:
            return 0
        return outcomes.size_of(data_of(self._mem, word))

    def note(
        self, wire: bytes, counts: int, uses: list[ValueUse], slot: int, where: int, turn: int
    ) -> None:
        """Note a call that was submitted, and where its arguments will be."""
        at = (counts & L.LOW_HALF) * TENSOR_BYTES
        task = int.from_bytes(wire[at : at + L.WORD], "little") & L.CALL_KEY
        self._values[slot] = Value(task, where, turn)
        for use in uses:
            use.kept.holders.add(where)
