"""The methods of a `ChipWorker` with which chips share memory that no Worker brings together."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ..model.wire import COUNTS_BYTES, SCALAR_BYTES, TENSOR_BYTES
from ..system.values import positive_seconds, whole
from .errors import ChipError

if TYPE_CHECKING:
    from .communicator import Communicator
    from .domains import ChipDomains

DEFAULT_TIMEOUT_S = 30.0
_MOST_BYTES = 1 << 40
_COUNTS = struct.Struct("<ii")
_numbers = itertools.count(1)


class CommMethods:
    """What a chip can do with its communicators.

    Rule     CHIP-COMM-1 to -5
    """

    _domains: ChipDomains | None = None
    """The domains of all communicators; None without any."""
    _comms: dict[int, Communicator]

    def comm_init(
        self,
        rank: int,
        nranks: int,
        rootinfo_path: str | os.PathLike[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> int:
        """Join the ranks that meet under a name, and return a number for the communicator.

        Each rank is an open ChipWorker, in a process or thread of its own, and calls this: it returns
        when all have. They need no common parent, but one user and one machine.

        Parameters
        ----------
        rank, nranks : int
            This chip's number, and how many there are.
        rootinfo_path : str or os.PathLike
            The name. Nothing is written there.
        timeout_s : float
            How long ranks wait for each other, here and in other methods, and in kernels that name no
            deadline; in seconds.

        Raises
        ------
        ValueError, TypeError
            An argument that cannot be.
        RuntimeError
            Not all ranks have come in time; ranks disagree about `nranks`; the name is in use.

        Notes
        -----
        Rule     CHIP-COMM-1
        """
        from .communicator import Communicator
        from .domains import MAX_RANKS, ChipDomains

        self._open_shim()
        nranks = whole("nranks", nranks, 1, MAX_RANKS)
        rank = whole("rank", rank, 0, nranks - 1)
        timeout_s = positive_seconds("timeout_s", timeout_s)
        if self._domains is None:
            self._domains, self._comms = ChipDomains(cast(Any, self)), {}
        name = os.path.realpath(rootinfo_path)
        made = Communicator(self, rank, nranks, os.fsdecode(name), timeout_s, self._domains)
        number = next(_numbers)
        self._comms[number] = made
        return number

    def comm_alloc_windows(self, comm: int, win_size: int) -> int:
        """Give every rank a window of zeroed memory, and return the `device_ctx` for kernels.

        All ranks call this, with one size, which is rounded up to whole pages; it returns when all have.

        Raises
        ------
        ValueError
            An argument that cannot be; the ranks have windows.
        RuntimeError
            Ranks ask for different sizes, or have not come in time; a rank cannot map the memory.
        MemoryError
            There is no room for it.

        Notes
        -----
        Rule     CHIP-COMM-2
        """
        found = self._comm(comm)
        if found.windows is not None:
            raise ValueError(f"communicator {comm} has windows; comm_alloc_domain makes more")
        device_ctx = self.comm_alloc_domain(comm, range(found.size), win_size)
        found.windows = device_ctx
        return device_ctx

    def comm_get_local_window_base(self, comm: int) -> int:
        """Return where the own window of `comm_alloc_windows` begins."""
        memory, rank = self._windows(comm)
        return int(memory.window(rank))

    def comm_get_window_size(self, comm: int) -> int:
        """Return the bytes of each window of `comm_alloc_windows`."""
        memory, _rank = self._windows(comm)
        return int(memory.window_size)

    def comm_barrier(self, comm: int) -> None:
        """Return when every rank has called this; `barrier` does it in kernels, and faster.

        Raises
        ------
        RuntimeError
            Others have not come in time.

        Notes
        -----
        Rule     CHIP-COMM-1
        """
        self._comm(comm).barrier()

    def comm_alloc_domain(self, comm: int, ranks: Sequence[int], win_size: int) -> int:
        """Give some ranks windows as `comm_alloc_windows` gives them to all; return the `device_ctx`.

        The domain's rank of each is its index in `ranks`. Only they call this.

        Raises
        ------
        ValueError, RuntimeError, MemoryError
            See `comm_alloc_windows`; this rank is not in `ranks`.

        Notes
        -----
        Rule     CHIP-COMM-2, -3
        """
        from .communicator import check_ranks

        found = self._comm(comm)
        win_size = whole("win_size", win_size, 1, _MOST_BYTES)
        return found.allocate(check_ranks(ranks, found.rank, found.size), win_size)

    def comm_release_domain(self, comm: int, device_ctx: int) -> None:
        """Close the windows of a domain to this rank; each rank does this for itself.

        Raises
        ------
        ValueError
            The communicator has no such domain.

        Notes
        -----
        Rule     CHIP-COMM-4
        """
        if not self._comm(comm).release(device_ctx):
            raise ValueError(f"communicator {comm} has no domain with device_ctx {device_ctx:#x}")

    def comm_destroy(self, comm: int) -> None:
        """Leave a communicator: close all its windows to this rank; `finalize` does it as well.

        Raises
        ------
        ValueError
            There is no such communicator.

        Notes
        -----
        Rule     CHIP-COMM-4
        """
        self._comm(comm).destroy()
        del self._comms[comm]

    # ------------------------------------------------------------ what they share
    def _open_shim(self) -> Any:
        raise NotImplementedError

    def _comm(self, comm: int) -> Communicator:
        self._open_shim()
        found = None if self._domains is None else self._comms.get(comm)
        if found is None:
            raise ValueError(f"there is no communicator {comm!r}: comm_init returns one")
        return found

    def _windows(self, comm: int) -> tuple[Any, int]:
        found = self._comm(comm)
        if found.windows is None:
            raise ValueError(f"communicator {comm} has no windows: call comm_alloc_windows first")
        return found.memory(found.windows), found.rank

    def _leave_all(self) -> None:
        """Destroy all communicators."""
        if self._domains is not None:
            for one in self._comms.values():
                one.destroy()
            self._comms.clear()
            self._domains = None

    def _explain(self, error: ChipError, view: int) -> ChipError:
        """Return the error of a failed run, and break the domains that it was given.

        Rule     CHIP-COMM-5
        """
        if self._domains is None:
            return error
        return self._domains.explain(lambda: _scalars_at(view), error)


def _scalars_at(view: int) -> list[int]:
    """Return the scalars of an args blob that a chip has taken."""
    tensors, scalars = _COUNTS.unpack(ctypes.string_at(view, COUNTS_BYTES))
    first = view + COUNTS_BYTES + TENSOR_BYTES * tensors
    return list(struct.unpack(f"<{scalars}Q", ctypes.string_at(first, SCALAR_BYTES * scalars)))
