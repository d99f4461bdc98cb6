"""Who a task is for: what a submit says of workers, checked against the pools there are.

Rule     WM-AFF-6; WM-GROUP-8
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..callables.identity import CallableHandle
from ..engine.view import View
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.wire import CHILD_MEMORY_AT, RemoteWire
from .columns import Batch


class Pools:
    """The pools of an engine: which of their workers a task is for.

    Every submit asks it for the *affinity* of its task: the worker that the task is for, plus one, 0 for
    any. What knows of workers on other machines overrides the methods that take a callable.

    Attributes
    ----------
    sizes : tuple[int, ...]
        Workers in each pool, next level and sub.
    """

    def __init__(self, view: View) -> None:
        self.sizes = tuple(len(view.pool(kind)) for kind in (L.NEXT_LEVEL, L.SUB))
        self._here = len(view.open_pool(L.NEXT_LEVEL))
        """Next-level workers of this machine; endpoints come after them."""

    def is_elsewhere(self, handle: Any) -> bool:
        """Say whether a callable is for workers of other machines."""
        return False

    def affinity(self, handle: CallableHandle, worker: int, args: TaskArgs | None) -> int:
        """Return the affinity of a task of the next-level pool that asks for a worker."""
        return self._here_or_any(worker, args)

    def affinity_of_sub(self, handle: CallableHandle, args: TaskArgs | None) -> int:
        """Return the affinity of a task for a sub worker."""
        return 0

    def affinities_of_members(
        self, handle: CallableHandle, workers: Sequence[int], members: Sequence[TaskArgs]
    ) -> list[int]:
        """Return the affinity of each member of a group, which asks for a worker."""
        return [self._here_or_any(one, args) for one, args in zip(workers, members, strict=True)]

    def affinities_of_sub_members(
        self, handle: CallableHandle, members: Sequence[TaskArgs]
    ) -> list[int]:
        """Return the affinity of each member of a group for sub workers."""
        return [0] * len(members)

    def places_each(self, handle: CallableHandle, batch: Batch) -> bool:
        """Say whether each task of many is placed when those before it are submitted."""
        return False

    def require_reached(self, handle: CallableHandle, args: TaskArgs) -> None:
        """Refuse a tensor in memory that the workers of a callable do not see."""
        i = next(i for i, wire in enumerate(args._tensors) if isinstance(wire, RemoteWire))
        raise ValueError(
            f"tensor {i} is in an endpoint's memory, which the workers of this machine do not see, and "
            f"{handle!r} is for those: copy it with Worker.remote_copy_from"
        )

    def naming_only(self) -> Pools:
        """Return what leaves open whatever a run has to choose."""
        return self

    def _here_or_any(self, worker: int, args: TaskArgs | None) -> int:
        """Return the affinity of a task for the next-level workers of this machine."""
        room = self.sizes[L.NEXT_LEVEL]
        if not hasattr(worker, "__index__") or not -1 <= worker < room:
            raise ValueError(
                f"worker {worker!r} is unknown: there are the next-level workers 0 … {room - 1}, and "
                "−1 for any of them"
            )
        chosen = operator.index(worker)
        if chosen >= self._here:
            raise ValueError(
                f"worker {chosen} is an endpoint, which has none of the callables of this machine: "
                "register RemoteCallable('module:function') with workers=[…]"
            )
        if chosen < 0 and args and any(wire[CHILD_MEMORY_AT] for wire in args._tensors):
            if room > 1:
                raise _which_memory()
            chosen = 0
        if chosen < 0 and not self._here:
            raise ValueError(
                "all next-level workers are endpoints, and this callable is for others"
            )
        return chosen + 1

    def affinities(self, batch: Batch) -> Any:
        """Return the affinity of each task of a batch."""
        if not np.ndim(batch.workers):
            self._here_or_any(batch.workers, None)
        wanted = np.asarray(batch.workers, np.int64)
        room = self.sizes[L.NEXT_LEVEL]
        for one in wanted[(wanted < -1) | (wanted >= self._here)][:1]:
            self._here_or_any(int(one), None)
        lost = batch.in_child_memory() & (wanted < 0)
        if room > 1 and np.any(lost):
            raise _which_memory()
        return np.where(lost, 0, wanted) + 1

    def members(
        self, handle: CallableHandle, args_list: Sequence[TaskArgs], pool: int
    ) -> list[TaskArgs]:
        """Return the members of a group, once they are found to fit its pool."""
        if isinstance(args_list, TaskArgs) or not isinstance(args_list, Iterable):
            raise TypeError(
                f"args_list must be a list of TaskArgs, one for each member, not {args_list!r}"
            )
        members = [TaskArgs() if one is None else one for one in args_list]
        if not members:
            raise ValueError("args_list must not be empty: a group has at least one member")
        for one in members:
            if not isinstance(one, TaskArgs):
                raise TypeError(f"args_list must hold TaskArgs, not {type(one).__name__}")
        room, where = self.room(handle, pool)
        if len(members) > room:
            raise ValueError(
                f"a group of {len(members)} needs as many workers, its pool has {room}: "
                f"all members run at once{where}"
            )
        return members

    def room(self, handle: CallableHandle, pool: int) -> tuple[int, str]:
        """Return how many members a group may have, and where they are, for messages."""
        return self._here if pool == L.NEXT_LEVEL else self.sizes[pool], ""


def require_distinct(workers: Sequence[int], members: int) -> None:
    """Refuse workers that are not one for each member of a group, each another one."""
    if not isinstance(workers, Sequence | np.ndarray) or isinstance(workers, str):
        raise TypeError(f"workers={workers!r} must be a list with a worker for each member")
    if len(workers) != members:
        raise ValueError(f"workers has {len(workers)} entries for {members} members")
    named = [one for one in workers if one != -1]
    if len(set(named)) != len(named):
        raise ValueError(f"workers={list(workers)} names a worker twice")


def _which_memory() -> ValueError:
    return ValueError(
        "a child_memory tensor is in the memory of one next-level worker: say which, with worker=…"
    )
