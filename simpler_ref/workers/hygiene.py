"""Preparations, made once, so that this process can be forked at any moment.

Rule     ORCH-FORK-1 to -3
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from ..model import visibility
from ..system import forks, regions
from . import answering
from .processes import close_inherited


class _Disowned(Protocol):
    def disown(self) -> None: ...


_hygiene_done = False
_workers: weakref.WeakSet[_Disowned] = weakref.WeakSet()


def fork_hygiene_once() -> None:
    """Prepare the process for forking, once: thread-pool variables and an at-fork hook.

    Libraries loaded from now on start with one thread each; the user's values stay. The hook tells every
    forked child that the parent's Workers are not its own. No lock of this package is held across a fork
    where a child could wait for it. A thread takes several locks in this order: the registry of callables
    (`Worker`), the manager, a worker, the scheduler's pass, an allocator (the arena), the tensor map.

    Rule     ORCH-FORK-1 to -3
    """
    global _hygiene_done
    if _hygiene_done:
        return
    _hygiene_done = True
    forks.set_variables()
    if os.uname().sysname == "Darwin":
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    os.register_at_fork(after_in_child=_leave_to_parent)


def disown_after_fork(worker: _Disowned) -> None:
    """Have every process forked from this one disown a Worker."""
    _workers.add(worker)


def _leave_to_parent() -> None:
    visibility.forget_visibility()
    close_inherited()
    regions.close_inherited()
    answering.leave_to_parent()
    for worker in list(_workers):
        worker.disown()
