"""What a submit says of a task besides its arguments, as parts of its callable word.

`Pools` says who the task is for, checked against the pools there are; `Configs` gives a configuration the
number under which mailboxes get it.

Rule     FLAG-VALUE-1, FLOW-CONFIG-3, FLOW-CONFIG-5, FLOW-ENV-1, FLOW-ENV-3, WM-AFF-6, WM-GROUP-8
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..callables.identity import CallableHandle
from ..engine.memory import Engine
from ..engine.view import View
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import PMU_EVENTS, CallConfig
from ..model.wire import CHILD_MEMORY_AT
from .columns import Batch

log = logging.getLogger("simpler_ref")
_told = False

_MOST = {"enable_dump_tensor": 3, "enable_dep_gen": 1, "enable_scope_stats": 1}
"""The highest values of flags that have some."""


class Pools:
    """The pools of an engine: which of their workers a task is for.

    Every submit asks it for the *affinity* of its task: the worker that the task is for, plus one, 0 for
    any. What knows of workers on other machines overrides the methods that take a callable.
    """

    def __init__(self, view: View) -> None:
        self.sizes = tuple(len(view.pool(kind)) for kind in (L.NEXT_LEVEL, L.SUB))
        """Workers in each pool."""
        self._here = len(view.open_pool(L.NEXT_LEVEL))
        """Next-level workers of this machine; endpoints come after them."""

    def is_elsewhere(self, handle: Any) -> bool:
        """Say whether a callable is for workers of other machines."""
        return False

    def affinity(
        self, handle: CallableHandle, pool: int, worker: int, args: TaskArgs | None
    ) -> int:
        """Return the affinity of a task of a pool that asks for a worker; in that of subs none does."""
        return self._here_or_any(worker, args) if pool == L.NEXT_LEVEL else 0

    def affinities_of_members(
        self, handle: CallableHandle, pool: int, workers: Sequence[int], members: Sequence[TaskArgs]
    ) -> list[int]:
        """Return the affinity of each member of a group, which asks for a worker."""
        if pool == L.SUB and not self.is_elsewhere(handle):
            return [0] * len(members)
        found = [
            self.affinity(handle, pool, one, args)
            for one, args in zip(workers, members, strict=True)
        ]
        require_distinct([one - 1 for one in found], len(members))
        return found

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


# ---------------------------------------------------------------- configurations
def require_supported(config: CallConfig) -> None:
    """Refuse a configuration that is not valid, or has a flag with a value that means nothing."""
    if not isinstance(config, CallConfig):
        raise TypeError(f"config must be a CallConfig or None, got {type(config).__name__}")
    config.validate()
    for name, most in _MOST.items():
        if getattr(config, name) > most:
            raise ValueError(f"CallConfig.{name} is {getattr(config, name)}; it can be 0 to {most}")
    if config.enable_pmu and config.enable_pmu not in PMU_EVENTS:
        known = ", ".join(f"{number} ({name})" for number, name in PMU_EVENTS.items())
        raise ValueError(f"CallConfig.enable_pmu is {config.enable_pmu}; it can be 0, {known}")


def config_wire(config: CallConfig) -> bytes:
    """Return a configuration as it travels, and the sizes after it, once it is found to be right.

    The first one with sizes warns of what the simulated chip cannot honour.
    """
    global _told
    require_supported(config)
    env = config._runtime_env
    if not env:
        return config.to_bytes()
    if not _told:
        _told = True
        log.warning(
            "%r: the simulated chip has no rings of these sizes; it only passes them to kernels",
            env,
        )
    return config.to_bytes() + env.to_bytes()


class Configs:
    """The configurations that an engine knows, by number; 0 is the one that says nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = {CallConfig().to_bytes(): 0}

    def number_of(self, config: CallConfig | None) -> int:
        return 0 if config is None else self.number_of_wire(config_wire(config))

    def number_of_wire(self, wire: bytes) -> int:
        """Return the number of a configuration as it travels; a new one is made known."""
        number = self._numbers.get(wire)
        if number is None:
            number = len(self._numbers)
            if number >= L.MAX_CONFIGS:
                raise RuntimeError(
                    f"a run takes {L.MAX_CONFIGS} different CallConfigs; use fewer, or several runs"
                )
            self._engine.view.write_config(number, wire)
            self._numbers[wire] = number
        return number

    def forget_many(self) -> None:
        """Forget configurations between runs when many have gathered."""
        if len(self._numbers) > L.MAX_CONFIGS // 2:
            self._numbers = {CallConfig().to_bytes(): 0}
            self._engine.kernels.forget_configs(self._engine.mem)
