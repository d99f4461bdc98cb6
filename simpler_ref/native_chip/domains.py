"""The memory of communication domains, and what a chip worker does with it.

`include/simpler_domain.h` has the layout, which only C knows.

Rule     WM-DOMAIN-1, -2, -4, -9, -10
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..system.regions import Region, attach
from ..system.types import Array
from .chip_worker import ChipWorker, _shim
from .errors import ChipError

MAX_RANKS = 64
MAX_NAME = 127
_HALF = 32


@functools.cache
def _calls() -> Any:
    library = _shim()
    address, number, text = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p
    numbers = ctypes.POINTER(number)
    for name, result, parameters in (
        ("context", address, (address, number)),
        ("window", address, (address, number)),
        ("window_size", address, (address,)),
        ("window_bytes", address, (address,)),
        ("bytes", address, (number, address)),
        ("make", None, (address, text, number, numbers, address, address)),
        ("guard", ctypes.c_int32, (address,)),
        ("name", text, (address,)),
        ("size", number, (address,)),
        ("rank_of", ctypes.c_int32, (address, number)),
        ("chip_of", number, (address, number)),
        ("sleeps", ctypes.c_int64, (address, number)),
        ("break", None, (address, text)),
        ("is_broken", ctypes.c_int32, (address,)),
        ("broken", text, (address,)),
    ):
        function = getattr(library, f"shim_domain_{name}")
        function.restype, function.argtypes = result, parameters
    return library


def window_size(nbytes: int) -> int:
    """Return the size of a window for so many bytes: whole pages."""
    return int(_calls().shim_domain_window_size(nbytes))


def domain_bytes(size: int, window: int) -> int:
    """Return how many bytes a domain of `size` ranks takes, each with a window of so many bytes."""
    return int(_calls().shim_domain_bytes(size, window))


class DomainMemory(NamedTuple):
    """The memory of a domain, which is mapped in this process."""

    at: int

    def make(self, name: str, chips: Sequence[int], window: int, timeout_ns: int) -> None:
        """Lay out a domain in memory that is zero; rank i is on ``chips[i]``."""
        table = (ctypes.c_uint32 * len(chips))(*chips)
        _calls().shim_domain_make(self.at, name.encode(), len(chips), table, window, timeout_ns)

    def guard(self) -> None:
        """Make what is between the windows inaccessible in this process."""
        if not _calls().shim_domain_guard(self.at):
            raise MemoryError("the system refuses to protect the memory between two windows")

    @property
    def name(self) -> str:
        """The domain's name."""
        return str(_calls().shim_domain_name(self.at).decode())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(_calls().shim_domain_size(self.at))

    @property
    def window_size(self) -> int:
        """Bytes of each window."""
        return int(_calls().shim_domain_window_bytes(self.at))

    def rank_of(self, chip: int) -> int:
        """Return the rank of a chip, −1 for one that is no member."""
        return int(_calls().shim_domain_rank_of(self.at, chip))

    def chip_of(self, rank: int) -> int:
        """Return the chip of a rank."""
        return int(_calls().shim_domain_chip_of(self.at, rank))

    def context(self, rank: int) -> int:
        """Return the `device_ctx` of a rank."""
        return int(_calls().shim_domain_context(self.at, rank))

    def window(self, rank: int) -> int:
        """Return where the window of a rank begins."""
        return int(_calls().shim_domain_window(self.at, rank))

    def sleeps(self, rank: int) -> int:
        """Return how often a rank was woken, if it sleeps until another one does something; else −1."""
        return int(_calls().shim_domain_sleeps(self.at, rank))

    def break_because(self, why: str) -> None:
        """Break the domain, unless it is broken: every wait in it ends with an error."""
        _calls().shim_domain_break(self.at, why.encode(errors="replace"))

    @property
    def is_broken(self) -> bool:
        """Whether waits in it fail."""
        return bool(_calls().shim_domain_is_broken(self.at))

    def why_broken(self) -> str | None:
        """Say why the domain is broken; None if it is intact."""
        why = _calls().shim_domain_broken(self.at)
        return None if why is None else f"domain {self.name!r}: {why.decode(errors='replace')}"


def pack_file(pid: int, fd: int) -> int:
    """Return a process and one of its descriptors as one word of a control request."""
    return pid << _HALF | fd


class ChipDomains:
    """The domains that a chip worker is a member of."""

    def __init__(self, chip: ChipWorker) -> None:
        self._chip = chip
        self._base: tuple[int, int] | None = None
        """The chip's rank in the base communicator, and the size of that."""
        self._open: dict[int, tuple[DomainMemory, int, Array | None]] = {}
        """By address: the memory, the chip's rank, and the mapping, None for one of this process."""

    def join(self, rank: int, size: int) -> None:
        """Become a member of the base communicator, of all chips of the Worker."""
        if not rank < size or self._base not in (None, (rank, size)):
            raise ValueError(f"rank {rank} of {size}; this chip has {self._base}")
        self._base = rank, size

    def open(self, file: int, address: int, nbytes: int) -> int:
        """Map the memory of a domain, open its windows to the chip, and return the `device_ctx`."""
        if self._base is None:
            raise RuntimeError("the chip is in no communicator: COMM_INIT comes first")
        if address in self._open:
            raise ValueError(f"a domain is open at {address:#x} already")
        array = _attach(file >> _HALF, file & ((1 << _HALF) - 1), address, nbytes)
        memory = DomainMemory(address)
        rank = memory.rank_of(self._base[0])
        if rank < 0:
            raise ValueError(f"chip {self._base[0]} has no rank in domain {memory.name!r}")
        self.take(memory, rank, array)
        return memory.context(rank)

    def take(self, memory: DomainMemory, rank: int, array: Array | None) -> None:
        """Open the windows of mapped memory to the chip, which has a rank there."""
        memory.guard()
        opened: list[int] = []
        try:
            for other in range(memory.size):
                self._chip.open_window(memory.window(other), memory.window_size)
                opened.append(memory.window(other))
        except ChipError:
            for window in opened:
                self._chip.close_window(window)
            raise
        self._open[memory.at] = memory, rank, array

    def close(self, address: int) -> None:
        """Close the windows of a domain and unmap its memory; of an unknown one nothing."""
        if address not in self._open:
            return
        memory, _rank, _array = self._open.pop(address)
        for rank in range(memory.size):
            self._chip.close_window(memory.window(rank))

    def explain(self, scalars: Callable[[], list[int]], error: ChipError) -> ChipError:
        """Return the error of a task that has failed, and break the domains that it was given."""
        if not self._open:
            return error
        given = set(scalars())
        for memory, rank, _array in self._open.values():
            if memory.context(rank) not in given:
                continue
            why = memory.why_broken()
            if why is None:
                chip = memory.chip_of(rank)
                memory.break_because(f"rank {rank} (chip {chip}) has failed: {error}")
            else:
                error = ChipError(f"{error}: {why}", error.code)
        return error


def _attach(pid: int, fd: int, address: int, nbytes: int) -> Array | None:
    """Map a window of another process; None for one of this process, where a chip may be a thread."""
    if pid == os.getpid():
        return None
    mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        inode = os.fstat(mine).st_ino
        region = Region(address, nbytes, nbytes, pid, fd, inode, False, False, True)
        return attach(region, mine)
    finally:
        os.close(mine)
