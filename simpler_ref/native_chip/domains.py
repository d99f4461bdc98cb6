"""Chips as workers: the kind that runs chip callables, and the memory of communication domains.

`include/simpler_domain.h` has the same structures for kernels.

Rule     CHIP-MEM-6, WM-CHIP-1, WM-CHIP-3, WM-CHIP-5, WM-DOMAIN-1, WM-DOMAIN-2, WM-DOMAIN-4, WM-DOMAIN-9
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..callables.identity import TargetNamespace
from ..engine.view.mailbox import MailboxView, ReceivedArgs, env_beside
from ..jit import layout as L
from ..system.regions import attach_window
from ..system.types import Array
from ..workers.kinds import WorkerKind
from .abi import ChipError
from .chip_worker import ChipWorker, _shim

MAX_RANKS = 64
MAX_NAME = 127
_HALF = 32
_CONTEXTS = 8192
"""Where the structures of the ranks begin."""
_STRIDE = 576
"""Bytes from one to the next."""
_WINDOWS = 65536
"""Where the windows begin."""
_GUARD = 65536
"""Bytes after each window that nobody can access; a multiple of any page size."""
_WRITING, _TEXT_WAIT_S = 1, 0.1
"""`broken` while the reason is written, and how long to wait for a writer, which may have died."""
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64


class _Waker(ctypes.Structure):
    _fields_ = (("wakes", _U32), ("sleepers", _U32), ("arrived", _U32), ("padding", _U32 * 13))


class _Shared(ctypes.Structure):
    """What the ranks share, besides the windows: `SimplerDomainShared`."""

    _fields_ = (
        *(("size", _U32), ("broken", _U32), ("text", ctypes.c_char * 504), ("barrier", _U64)),
        *(("padding", _U64 * 7), ("chips", _U32 * MAX_RANKS), ("wakers", _Waker * MAX_RANKS)),
        ("name", ctypes.c_char * (MAX_NAME + 1)),
    )


class _Domain(ctypes.Structure):
    """A domain as one rank sees it: `SimplerDomain`."""

    _fields_ = (
        *(("rank", _U32), ("size", _U32), ("window_size", _U64), ("timeout_ns", _U64)),
        *(("shared", _U64), ("windows", _U64 * MAX_RANKS)),
    )


@functools.cache
def _mprotect() -> Any:
    function = ctypes.CDLL(None).mprotect
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function


def window_size(nbytes: int) -> int:
    """Return the size of a window for so many bytes: whole pages."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def domain_bytes(size: int, window: int) -> int:
    """Return how many bytes a domain of `size` ranks takes, each with a window of so many bytes."""
    return _WINDOWS + size * (window + _GUARD)


class DomainMemory(NamedTuple):
    """The memory of a domain: what the ranks share, a structure for each, and the windows.

    It is mapped in this process.
    """

    at: int

    @property
    def _shared(self) -> _Shared:
        return _Shared.from_address(self.at)

    def _of(self, rank: int) -> _Domain:
        return _Domain.from_address(self.context(rank))

    def make(
        self,
        name: str,
        chips: Sequence[int],
        window: int,
        timeout_ns: int,
        windows: Sequence[int] | None = None,
    ) -> None:
        """Lay out a domain in memory that is zero; rank i is on ``chips[i]``.

        `windows` has where each begins, if they are another domain's.
        """
        shared, size = self._shared, len(chips)
        if windows is None:
            windows = [self.at + _WINDOWS + rank * (window + _GUARD) for rank in range(size)]
        shared.name, shared.size = name.encode(), size
        shared.chips[:size] = chips
        for rank in range(size):
            one = self._of(rank)
            one.rank, one.size, one.shared = rank, size, self.at
            one.window_size, one.timeout_ns = window, timeout_ns
            one.windows[:size] = windows

    def guard(self) -> None:
        """Make what is between the windows inaccessible in this process."""
        for rank in range(self.size):
            if _mprotect()(self.window(rank) + self.window_size, _GUARD, 0):
                raise MemoryError("the system refuses to protect the memory between two windows")

    @property
    def name(self) -> str:
        return bytes(self._shared.name).decode()

    @property
    def size(self) -> int:
        return int(self._shared.size)

    @property
    def window_size(self) -> int:
        return int(self._of(0).window_size)

    def rank_of(self, chip: int) -> int:
        """Return the rank of a chip, −1 for one that is no member."""
        chips = self._shared.chips[: self.size]
        return chips.index(chip) if chip in chips else -1

    def chip_of(self, rank: int) -> int:
        return int(self._shared.chips[rank])

    def context(self, rank: int) -> int:
        """Return the `device_ctx` of a rank."""
        return self.at + _CONTEXTS + rank * _STRIDE

    def window(self, rank: int) -> int:
        return int(self._of(0).windows[rank])

    def break_because(self, why: str) -> None:
        """Break the domain, unless it is broken: every wait in it ends with an error."""
        _shim().shim_domain_break(self.at, why.encode(errors="replace"))

    def why_broken(self) -> str | None:
        """Say why the domain is broken; None if it is intact."""
        shared, deadline = self._shared, time.monotonic() + _TEXT_WAIT_S
        while shared.broken == _WRITING and time.monotonic() < deadline:
            time.sleep(1e-4)
        if not shared.broken:
            return None
        why = "one of its ranks has failed"
        if shared.broken != _WRITING:
            why = shared.text.decode(errors="replace")
        return f"domain {self.name!r}: {why}"


def pack_file(pid: int, fd: int) -> int:
    """Return a process and one of its descriptors as one word of a control request."""
    return pid << _HALF | fd


class ChipDomains:
    """The domains that a chip worker is a member of."""

    def __init__(self, chip: ChipWorker) -> None:
        self._chip = chip
        self._base: tuple[int, int] | None = None
        """The chip's rank in the base communicator, and the size of that."""
        self._open: dict[int, tuple[DomainMemory, int, ExitStack, Array | None]] = {}
        """By address: the memory, the chip's rank, what closes the windows that were opened for it, and
        the mapping, None for one of this process."""

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

    def take(
        self, memory: DomainMemory, rank: int, array: Array | None, has_windows: bool = True
    ) -> None:
        """Open the windows of mapped memory, if it has any, to the chip, which has a rank there."""
        if has_windows:
            memory.guard()
        with ExitStack() as opened:
            for window in map(memory.window, range(memory.size if has_windows else 0)):
                self._chip.open_window(window, memory.window_size)
                opened.callback(self._chip.close_window, window)
            self._open[memory.at] = memory, rank, opened.pop_all(), array

    def close(self, address: int) -> None:
        """Close the windows of a domain and unmap its memory; of an unknown one nothing."""
        if address in self._open:
            _memory, _rank, opened, _array = self._open.pop(address)
            opened.close()

    def explain(self, scalars: Callable[[], list[int]], error: ChipError) -> ChipError:
        """Return the error of a task that has failed, and break the domains that it was given."""
        if not self._open:
            return error
        given = set(scalars())
        for memory, rank, _opened, _array in self._open.values():
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
        return attach_window(address, nbytes, pid, mine)
    finally:
        os.close(mine)


# ---------------------------------------------------------------- the worker of a chip
class ChipChild(WorkerKind):
    """Runs chip callables on one chip."""

    label = "chip_worker"
    runs_foreign_code = False
    target_namespace = TargetNamespace.LOCAL_CHIP

    def __init__(self, device_id: int, runtime: str | None) -> None:
        self.device_id = device_id
        self.runtime = runtime
        self.suffix = f" device={device_id}"
        self._mailbox: MailboxView
        self._chip: ChipWorker
        self._domains: ChipDomains

    def start(self, mailbox: MailboxView) -> None:
        self._mailbox = mailbox
        self._chip = ChipWorker(self.device_id, self.runtime)
        self._chip.init()
        self._domains = ChipDomains(self._chip)

    def stop(self) -> None:
        if hasattr(self, "_chip"):
            self._chip.finalize()

    def install(self, target: Any) -> int:
        return self._chip.prepare_free(target)

    def remove(self, installed: int) -> None:
        self._chip.unregister(installed)

    def leaf(self, installed: int) -> Callable[[ReceivedArgs], Any]:
        """Run a slot on the arguments in the mailbox, without decoding them here."""
        chip, mailbox = self._chip, self._mailbox
        run = chip.run
        frames = [(*mailbox.addresses(i), mailbox.box(i)) for i in range(mailbox.depth)]

        def leaf(received: ReceivedArgs) -> None:
            args, config, box = frames[mailbox.served if len(frames) > 1 else 0]
            chip.set_runtime_env(env_beside(box))
            try:
                run(installed, args, L.MAILBOX_ARGS_CAPACITY, config)
            except ChipError as error:
                raise self._domains.explain(received.scalar_words, error) from None
            mailbox.add_device_time(chip.device_wall_ns)

        return leaf

    def control(self, command: int, arg0: int, arg1: int, arg2: int) -> int:
        chip, domains = self._chip, self._domains
        actions: dict[int, Callable[[], int | None]] = {
            L.CTRL_MALLOC: lambda: chip.malloc(arg0),
            L.CTRL_FREE: lambda: chip.free(arg0),
            L.CTRL_COPY_TO: lambda: chip.copy_to(arg0, arg1, arg2),
            L.CTRL_COPY_FROM: lambda: chip.copy_from(arg0, arg1, arg2),
            L.CTRL_COMM_INIT: lambda: domains.join(arg0, arg1),
            L.CTRL_ALLOC_DOMAIN: lambda: domains.open(arg0, arg1, arg2),
            L.CTRL_RELEASE_DOMAIN: lambda: domains.close(arg0),
        }
        if command not in actions:
            return super().control(command, arg0, arg1, arg2)
        return actions[command]() or 0
