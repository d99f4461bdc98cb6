"""What the parent has decided about a task when it was submitted, as words behind the task's scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..jit import layout as L


class CopyPlan(NamedTuple):
    """A tensor of a task: its key (0: it is no copy), the versions that the task reads and makes, and
    which endpoint has made the first, plus one; 0: the parent.
    """

    key: int = 0
    reads: int = 0
    makes: int = 0
    source: int = 0


class Plan(NamedTuple):
    """What the link of an endpoint is told of a task or a call.

    `tensors` has a `CopyPlan` for each tensor. `run` numbers runs and streams of calls: copies of an
    earlier one are stale. `dropped` are keys that the session forgets.
    """

    run: int
    tensors: Sequence[CopyPlan]
    dropped: Sequence[int] = ()
    goes_home: bool = False
    """The task only brings its tensor home."""
    only: tuple[int, int] | None = None
    """The endpoint, and the sub worker there, that alone may run a call."""

    def words(self) -> list[int]:
        """Return it as words; the last one is how many there are before it."""
        only = 0 if self.only is None else (self.only[0] << L.HALF | self.only[1]) + 1
        told = [self.run << 1 | self.goes_home, only, len(self.dropped), *self.dropped]
        for one in self.tensors:
            told += one.key, one.reads << L.HALF | one.makes, one.source
        return [*told, len(told)]

    @classmethod
    def take(cls, words: list[int], kinds: list[int]) -> Plan:
        """Take it out of the scalars of a task, where the block of a call's data may follow it."""
        end = len(words) - (kinds[len(words) - 1] == L.PAYLOAD)
        start = end - 1 - words[end - 1]
        head, only, count, *rest = words[start : end - 1]
        del words[start:end], kinds[start:end]
        low = L.LOW_HALF
        tensors = [
            CopyPlan(rest[i], rest[i + 1] >> L.HALF, rest[i + 1] & low, rest[i + 2])
            for i in range(count, len(rest), 3)
        ]
        where = None if not only else ((only - 1) >> L.HALF, (only - 1) & low)
        return cls(head >> 1, tensors, rest[:count], bool(head & 1), where)
