"""Locks that other threads may have at a fork: a child waits for ever for those of threads that it lacks.

In a child, Python makes the locks of its own streams anew, and `logging` those of its handlers. But the
file of a handler stays locked if a thread was just writing to it; and so do the locks of imports, of
numpy's global generator and of numba's compiler. So a fork waits until it has them.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE_S = 5.0
"""How long to wait: a thread may have one for long, and tasks need not use it."""


@contextmanager
def fork_locks_taken() -> Iterator[None]:
    """Fork in this block, and leave it in the child, too.

    Rule     ORCH-FORK-8
    """
    deadline = time.monotonic() + PATIENCE_S
    held: list[Any] = []
    try:
        while True:
            for lock in _locks():
                if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    held.append(lock)
            if not _others_import() or time.monotonic() > deadline:
                break
            _release(held)
            time.sleep(0.001)
        yield
    finally:
        _release(held)


def _release(held: list[Any]) -> None:
    while held:
        with suppress(RuntimeError):  # it was made anew in the child
            held.pop().release()


def _locks() -> Iterator[Any]:
    """Yield them; who has a later one may want an earlier one only if that is its own."""
    if (numba := sys.modules.get("numba.core.compiler_lock")) is not None:
        yield numba.global_compiler_lock._lock
    if (random := sys.modules.get("numpy.random.mtrand")) is not None:
        yield random._rand._bit_generator.lock
    yield logging._lock  # type: ignore[attr-defined]
    for handler in list(logging._at_fork_reinit_lock_weakset):  # type: ignore[attr-defined]
        if handler.lock is not None:
            yield handler.lock


def _others_import() -> bool:
    """Say whether another thread is in the middle of an import."""
    imports = sys.modules["_frozen_importlib"]
    locks = [reference() for reference in list(imports._module_locks.values())]
    owners = {lock.owner for lock in locks if lock is not None}
    return bool(owners - {None, threading.get_ident()})
