"""Memory of next-level workers, for `Worker` and `Orchestrator`, whose arguments differ in order."""

from __future__ import annotations

import operator

from ..errors import NoMemoryError
from ..jit import layout as L
from ..model import visibility
from ..system.values import whole
from .kinds import WorkerKind
from .life import Life

MOST_BYTES = 1 << 62
MOST_ADDRESS = (1 << 64) - 1


class ChipMemory:
    """Control requests about memory; see `Worker.malloc` and the others.

    Rule     WM-CHIP-3; WM-CTRL-6
    """

    def __init__(self, life: Life) -> None:
        self._life = life

    def malloc(self, worker_id: int, size: int) -> int:
        """Allocate memory and return its address."""
        return self._ask(L.CTRL_MALLOC, worker_id, whole("size", size, 1, MOST_BYTES))

    def free(self, worker_id: int, ptr: int) -> None:
        """Free memory."""
        self._ask(L.CTRL_FREE, worker_id, _address("ptr", ptr))

    def copy_to(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Copy host memory to a worker's."""
        self._require_visible("src", src, size, worker_id)
        self._ask(L.CTRL_COPY_TO, worker_id, _address("dst", dst), src, size)

    def copy_from(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Copy a worker's memory to the host's."""
        self._require_visible("dst", dst, size, worker_id)
        self._ask(L.CTRL_COPY_FROM, worker_id, dst, _address("src", src), size)

    def _require_visible(self, name: str, address: int, size: int, worker_id: int) -> None:
        _address(name, address)
        whole("size", size, 0, MOST_BYTES)
        self._worker(worker_id)
        why = self._life.live().why_invisible(address, size)
        if why is not None and self._life.options.child_mode == "process":
            raise visibility.invisible(address, size, why)

    def _ask(self, command: int, worker_id: int, *args: int) -> int:
        """Make a control request to a next-level worker.

        Rule     WM-CTRL-6
        """
        worker = self._worker(worker_id)
        session = self._life.live()
        manager = self._life.running_manager(session)
        return manager.control(worker, command, args, timeout_s=session.control_timeout_s)

    def _worker(self, worker_id: int) -> int:
        """Return a next-level worker that has memory.

        Rule     WM-CTRL-6
        """
        session = self._life.live()
        count = len(session.next_level)
        if not hasattr(worker_id, "__index__") or not 0 <= worker_id < count:
            raise IndexError(
                f"worker_id {worker_id!r} is out of range: there are {count} next-level workers"
            )
        worker = operator.index(worker_id)
        if not _manages_memory(session.next_level[worker]):
            manager = self._life.running_manager(session)
            with_memory = sum(map(_manages_memory, session.next_level))
            raise NoMemoryError(
                f"{manager.name(worker)}: CALLABLE_KIND_UNSUPPORTED: it has no memory of its own to "
                f"manage; worker_id {worker} is out of range of workers that have: there are "
                f"{with_memory}"
            )
        return worker


def _manages_memory(kind: WorkerKind) -> bool:
    """Say whether a kind of workers carries out requests about memory: all others inherit the refusal."""
    return type(kind).control is not WorkerKind.control


def _address(name: str, value: int) -> int:
    return whole(name, value, 0, MOST_ADDRESS)
