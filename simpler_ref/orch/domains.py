"""Communication domains: windows in memory that several chips of a Worker share.

`Orchestrator.allocate_domain` makes one. Its memory is mapped in the user's process and in the workers of
its chips, at the same addresses. The end of its block releases it; its memory is freed when the run has
drained, since tasks that use it may still be running.

Rule     WM-DOMAIN-1, WM-DOMAIN-2, WM-DOMAIN-3, WM-DOMAIN-4, WM-DOMAIN-6, WM-DOMAIN-7, WM-DOMAIN-8,
         WM-DOMAIN-9
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..callables.identity import TargetNamespace
from ..errors import ControlError, WorkerLostError, describe_status
from ..jit import layout as L
from ..model.enums import get_element_size, to_dtype
from ..system import regions
from ..system.types import Array
from ..system.values import items, positive_seconds, whole
from ..workers.life import Life
from ..workers.manager import WorkerManager
from ..workers.session import Session

if TYPE_CHECKING:
    from ..native_chip.domains import DomainMemory

log = logging.getLogger("simpler_ref")

DEFAULT_TIMEOUT_S = 30.0
BUFFER_ALIGN = 64
_MOST_BYTES = 1 << 40


def _native() -> Any:
    """Return the module that has the memory of domains; a Worker without chips does not load it."""
    from ..native_chip import domains

    return domains


@dataclass(frozen=True)
class CommBufferSpec:
    """A buffer that every rank of a domain has in its window: `count` elements of `dtype`.

    `nbytes` is its size; without it, that of the elements. The original's flags `load_from_host` and
    `store_to_host` are kept and mean nothing, as there: `Orchestrator.copy_to` and `copy_from` move data.

    Raises ValueError if a number is negative, the elements do not fit `nbytes`, or there is no name.
    """

    name: str
    dtype: Any
    count: int
    nbytes: int = -1
    load_from_host: bool = False
    store_to_host: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a buffer needs a name, got {self.name!r}")
        whole("count", self.count, 0, _MOST_BYTES)
        needed = self.count * get_element_size(to_dtype(self.dtype))
        if self.nbytes == -1:
            object.__setattr__(self, "nbytes", needed)
        if whole("nbytes", self.nbytes, 0, _MOST_BYTES) < needed:
            raise ValueError(
                f"buffer {self.name!r}: {self.count} elements of {self.dtype} take {needed} bytes; "
                f"nbytes is {self.nbytes}"
            )


@dataclass(frozen=True)
class ChipDomainContext:
    """A domain as one of its chips sees it."""

    name: str
    """The domain's."""
    domain_rank: int
    """The chip's index in `workers`."""
    domain_size: int
    """Number of ranks."""
    device_ctx: int
    """What kernels get as a scalar: the address of a ``SimplerDomain`` (``simpler_domain.h``)."""
    local_window_base: int
    """Where the chip's window begins."""
    actual_window_size: int
    """Its bytes, whole pages."""
    buffer_ptrs: Mapping[str, int]
    """Where each buffer begins in it."""


@dataclass(eq=False, repr=False)
class CommDomainHandle:
    """A domain, until it is released: ``handle[chip]`` is the `ChipDomainContext` of a chip."""

    name: str
    workers: tuple[int, ...]
    """The chip of each rank."""
    _memory: Array | None
    _shared: DomainMemory
    """What the ranks share of it, as long as it is there."""
    allocation_id: int
    """Unlike that of any other domain of the Worker."""
    contexts: dict[int, ChipDomainContext] = field(default_factory=dict)
    """What ``handle[chip]`` gives, by chip, also once it is released."""
    released: bool = False
    """Its block has ended."""
    freed: bool = False
    """Its memory is gone."""

    def __getitem__(self, chip: int) -> ChipDomainContext:
        if self.released:
            raise RuntimeError(
                f"domain {self.name!r} is released: take what is needed from it before its block ends"
            )
        if chip not in self.contexts:
            raise KeyError(f"chip {chip!r} is not in domain {self.name!r} of chips {self.workers}")
        return self.contexts[chip]

    def __len__(self) -> int:
        return len(self.workers)

    def release(self) -> None:
        """Release the domain; tasks that were submitted may use it until the run has drained."""
        self.released = True

    def __enter__(self) -> CommDomainHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "freed" if self.freed else "released" if self.released else "live"
        return f"<CommDomainHandle {self.name!r}, chips {self.workers}, {state}>"


def domains_of(session: Session) -> Domains:
    assert isinstance(session.domains, Domains)
    return session.domains


class Domains:
    """The domains of a Worker."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._live: list[CommDomainHandle] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        """Taken to add and remove a domain, and while the memory of one is touched on another thread."""
        self._members: set[int] = set()
        """Chips of the base communicator."""

    def live(self) -> dict[str, CommDomainHandle]:
        return {one.name: one for one in list(self._live)}

    # ------------------------------------------------------------ allocation
    def allocate(
        self,
        name: str,
        workers: Sequence[int],
        window_size: int,
        buffers: Sequence[CommBufferSpec],
        timeout_s: float,
    ) -> CommDomainHandle:
        """Make a domain; see `Orchestrator.allocate_domain`."""
        session = self._life.live()
        self._check_name(name)
        chips = _check_chips(session, workers)
        window, places = _lay_out(window_size, buffers)
        timeout_s = positive_seconds("timeout_s", timeout_s)
        manager = self._life.running_manager()
        self._connect(session, manager)
        memory = regions.create(_native().domain_bytes(len(chips), window), window=True)
        shared = _native().DomainMemory(memory.ctypes.data)
        shared.make(name, chips, window, int(timeout_s * 1e9))
        shared.guard()
        handle = CommDomainHandle(name, tuple(chips), memory, shared, next(self._numbers))
        with self._lock:
            self._live.append(handle)
        try:
            self._open(manager, handle, window, places)
        except BaseException:
            self._free(session, handle)
            raise
        return handle

    def _check_name(self, name: str) -> None:
        most = _native().MAX_NAME
        if not isinstance(name, str) or not 0 < len(name.encode()) <= most or "\0" in name:
            raise ValueError(f"a domain needs a name of at most {most} bytes, got {name!r}")
        if any(one.name == name and not one.released for one in self._live):
            raise ValueError(
                f"domain {name!r} is already live: release it first, or take another name"
            )

    def _connect(self, session: Session, manager: WorkerManager) -> None:
        size = len(session.next_level)
        for chip in range(size):
            if chip not in self._members:
                manager.control(chip, L.CTRL_COMM_INIT, (chip, size))
                self._members.add(chip)

    def _open(
        self, manager: WorkerManager, handle: CommDomainHandle, window: int, places: dict[str, int]
    ) -> None:
        """Have every chip map the memory of a domain."""
        assert handle._memory is not None
        region = regions.region_of(handle._memory)
        args = _native().pack_file(os.getpid(), region.fd), region.address, region.nbytes
        for rank, chip in enumerate(handle.workers):
            device_ctx = manager.control(chip, L.CTRL_ALLOC_DOMAIN, args)
            base = handle._shared.window(rank)
            handle.contexts[chip] = ChipDomainContext(
                name=handle.name,
                domain_rank=rank,
                domain_size=len(handle),
                device_ctx=device_ctx,
                local_window_base=base,
                actual_window_size=window,
                buffer_ptrs={name: base + offset for name, offset in places.items()},
            )

    # ------------------------------------------------------------ the end
    def free_all(self, session: Session) -> None:
        """Free every domain, when no task runs: the released ones first, then the others in reverse."""
        while self._live:
            released = [one for one in self._live if one.released]
            self._free(session, (released or self._live[::-1])[0])

    def _free(self, session: Session, handle: CommDomainHandle) -> None:
        handle.released = True
        memory = handle._memory
        if memory is not None and session.manager is not None:
            for chip in reversed(handle.workers):
                try:
                    with suppress(WorkerLostError):  # its mapping is gone with it
                        session.manager.control(chip, L.CTRL_RELEASE_DOMAIN, (memory.ctypes.data,))
                except ControlError as error:
                    log.warning("a window of a freed domain is still mapped: %s", error)
        self._drop(handle)

    def _drop(self, handle: CommDomainHandle) -> None:
        """Give back this process's part of a domain's memory."""
        with self._lock:
            self._live.remove(handle)
            if handle._memory is not None:
                regions.release(handle._memory)
            handle._memory = None
            handle.released = handle.freed = True

    def close(self) -> None:
        while self._live:
            self._drop(self._live[-1])

    # ------------------------------------------------------------ deaths
    def forget_members(self) -> None:
        """Note that all workers are new."""
        self._members.clear()

    def note_death(self, worker: int, code: int) -> None:
        """Break the domains of a chip that has died: no rank waits for it any longer."""
        ended = f"was {describe_status(code)}" if code < 0 else describe_status(code)
        self._members.discard(worker)
        with self._lock:
            for one in self._live:
                if worker in one.workers and one._memory is not None:
                    rank = one._shared.rank_of(worker)
                    one._shared.break_because(f"rank {rank} (chip {worker}) {ended}")


def _check_chips(session: Session, workers: Sequence[int]) -> list[int]:
    chips, most = list(items("workers", workers, "chips")), _native().MAX_RANKS
    count = len(session.next_level)
    if not 1 <= len(chips) <= most:
        raise ValueError(f"a domain has 1 to {most} ranks; workers names {len(chips)}")
    for chip in chips:
        if not hasattr(chip, "__index__") or not 0 <= chip < count:
            raise ValueError(f"there is no chip {chip!r}: there are {count} next-level workers")
        if session.next_level[chip].target_namespace != TargetNamespace.LOCAL_CHIP:
            raise ValueError(f"next-level worker {chip} is no chip: a domain connects chips")
    twice = {chip for chip in chips if chips.count(chip) > 1}
    if twice:
        raise ValueError(
            f"workers names chip {min(twice)} twice: ranks wait for each other, so each needs a chip of "
            "its own"
        )
    return [int(chip) for chip in chips]


def _lay_out(wanted: int, buffers: Sequence[CommBufferSpec]) -> tuple[int, dict[str, int]]:
    """Return the size of a window, and where each buffer begins in it."""
    whole("window_size", wanted, 1, _MOST_BYTES)
    places: dict[str, int] = {}
    at = needed = 0
    for one in items("buffers", buffers, "CommBufferSpecs"):
        if not isinstance(one, CommBufferSpec):
            raise TypeError(f"buffers are CommBufferSpecs, got {type(one).__name__}")
        if one.name in places:
            raise ValueError(f"two buffers are called {one.name!r}")
        places[one.name] = at
        needed += one.nbytes
        at = L.round_up(at + one.nbytes, BUFFER_ALIGN)
    if needed > wanted:
        raise ValueError(
            f"the buffers take {needed} bytes ({', '.join(places)}); window_size is {wanted}"
        )
    return _native().window_size(max(wanted, at)), places
