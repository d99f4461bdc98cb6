"""Communicators of chips that no Worker brings together: each `ChipWorker` is a rank, in any process.

The ranks meet under a name (`rendezvous.py`), and the first of those concerned makes the memory. A Worker
does this for its chips by control requests instead (`orch/domains.py`).

Rule     CHIP-COMM-1, CHIP-COMM-2, CHIP-COMM-4
"""

from __future__ import annotations

import ctypes
import itertools
import os
import secrets
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...model.wire import COUNTS_BYTES, SCALAR_BYTES, TENSOR_BYTES
from ...native_chip.abi import ChipError
from ...native_chip.domains import MAX_RANKS, ChipDomains, DomainMemory, domain_bytes, window_size
from ...system import regions
from ...system.types import Array
from ...system.values import positive_seconds, whole
from .rendezvous import Answer, Rendezvous, Words

if TYPE_CHECKING:
    from ...native_chip.chip_worker import ChipWorker

_arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The memory of domains that is mapped in this process, by its address."""
_numbers = itertools.count(1)
_MOST_BYTES = 1 << 40
_TIMEOUT_S = 30.0
_COUNTS = struct.Struct("<ii")


class Communicators:
    """The communicators of a chip, whose `ChipWorker` has these methods as its own."""

    def __init__(self, chip: ChipWorker) -> None:
        self._chip = chip
        self._domains = ChipDomains(chip)
        self._made: dict[int, Communicator] = {}

    def __getitem__(self, number: int) -> Communicator:
        found = self._made.get(number)
        if found is None:
            raise ValueError(f"there is no communicator {number!r}: comm_init returns one")
        return found

    def leave(self) -> None:
        """Leave all communicators."""
        while self._made:
            self._made.popitem()[1].destroy()

    def explain(self, error: ChipError, view: int) -> ChipError:
        """Return the error of a failed run, and break the domains that it was given."""
        return self._domains.explain(lambda: _scalars_at(view), error)

    def comm_init(
        self,
        rank: int,
        nranks: int,
        rootinfo_path: str | os.PathLike[str],
        *,
        timeout_s: float = _TIMEOUT_S,
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
        """
        size = whole("nranks", nranks, 1, MAX_RANKS)
        rank = whole("rank", rank, 0, size - 1)
        timeout_s = positive_seconds("timeout_s", timeout_s)
        name, number = os.fsdecode(os.path.realpath(rootinfo_path)), next(_numbers)
        self._made[number] = Communicator(
            number, rank, size, name, timeout_s, self._chip, self._domains
        )
        return number

    def comm_alloc_windows(self, comm_handle: int, win_size: int) -> int:
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
        """
        return self[comm_handle].allocate_windows(win_size)

    def comm_get_local_window_base(self, comm_handle: int) -> int:
        """Return where the own window of `comm_alloc_windows` begins."""
        one = self[comm_handle]
        return one.windows_memory().window(one.rank)

    def comm_get_window_size(self, comm_handle: int) -> int:
        """Return the bytes of each window of `comm_alloc_windows`."""
        return self[comm_handle].windows_memory().window_size

    def comm_barrier(self, comm_handle: int) -> None:
        """Return when every rank has called this; `barrier` does it in kernels, and faster.

        Raises
        ------
        RuntimeError
            Others have not come in time.
        """
        self[comm_handle].barrier()

    def comm_alloc_domain(self, comm_handle: int, ranks: Sequence[int], win_size: int) -> int:
        """Give some ranks windows as `comm_alloc_windows` gives them to all; return the `device_ctx`.

        The domain's rank of each is its index in `ranks`. Only they call this.

        Raises
        ------
        ValueError, RuntimeError, MemoryError
            See `comm_alloc_windows`; this rank is not in `ranks`.
        """
        return self[comm_handle].allocate(ranks, win_size)

    def comm_release_domain(self, comm_handle: int, device_ctx: int) -> None:
        """Close the windows of a domain to this rank; each rank does this for itself.

        Raises
        ------
        ValueError
            The communicator has no such domain.
        """
        self[comm_handle].release(device_ctx)

    def comm_destroy(self, comm_handle: int) -> None:
        """Leave a communicator: close all its windows to this rank; `finalize` does it as well.

        Raises
        ------
        ValueError
            There is no such communicator.
        """
        self[comm_handle].destroy()
        del self._made[comm_handle]

    def comm_destroy_all(self) -> None:
        """Leave all communicators."""
        self.leave()

    def comm_derive_context(
        self,
        comm_handle: int,
        rank_ids: Sequence[int],
        domain_rank: int,
        window_offset: int,
        window_size: int,
    ) -> int:
        """Make a domain of some ranks in a part of the windows of `comm_alloc_windows`.

        Only they call this, and it returns when all have; the others keep their windows. Kernels get the
        returned `device_ctx`.

        Parameters
        ----------
        rank_ids : Sequence[int]
            The ranks, in the order of the domain.
        domain_rank : int
            The index of this one among them.
        window_offset, window_size : int
            Which part of each window, in bytes.

        Raises
        ------
        ValueError
            This rank is not at that index, or the part is not in the windows.
        """
        return self[comm_handle].derive(rank_ids, domain_rank, window_offset, window_size)


class Communicator:
    """One rank of some that have met under a name."""

    def __init__(
        self,
        number: int,
        rank: int,
        size: int,
        name: str,
        timeout_s: float,
        chip: ChipWorker,
        domains: ChipDomains,
    ) -> None:
        self.number = number
        self.rank, self.size = rank, size
        self.windows: int | None = None
        """The `device_ctx` of those that all ranks have."""
        self._domains = domains
        self._timeout_s = timeout_s
        self._turns: dict[tuple[int, ...], Any] = {}
        self._addresses: dict[int, int] = {}
        """Of the memory of each domain, by its `device_ctx`."""
        self._derived: set[int] = set()
        """The `device_ctx` of those whose windows are parts of `windows`."""
        self._everybody = tuple(range(size))
        said = {"rank": rank, "size": size, "device": chip.device_id}
        met = self._meet(Rendezvous(name, self._everybody, timeout_s), said, _greet)
        self._name, self._devices = met.words["name"], met.words["devices"]

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self._agree(self._everybody, {}, lambda heard: Answer({}))

    # ------------------------------------------------------------ domains
    def allocate_windows(self, nbytes: int) -> int:
        """Make a domain of all ranks, whose windows count as those of the communicator."""
        if self.windows is not None:
            raise ValueError(
                f"communicator {self.number} has windows; comm_alloc_domain makes more"
            )
        self.windows = device_ctx = self.allocate(self._everybody, nbytes)
        return device_ctx

    def windows_memory(self) -> DomainMemory:
        """Return the memory of the domain that `allocate_windows` has made."""
        if self.windows is None:
            raise ValueError(
                f"communicator {self.number} has no windows: call comm_alloc_windows first"
            )
        return self.memory(self.windows)

    def allocate(self, ranks: Sequence[int], nbytes: int) -> int:
        """Make a domain of some ranks, each of which calls this, and return the own `device_ctx`."""
        nbytes = whole("win_size", nbytes, 1, _MOST_BYTES)
        ranks = check_ranks(ranks, self.rank, self.size)
        return self._join(ranks, {"nbytes": nbytes}, window_size(nbytes), None)

    def derive(self, ranks: Sequence[int], domain_rank: int, offset: int, nbytes: int) -> int:
        """Make a domain of some ranks in a part of their windows, and return the own `device_ctx`."""
        base, ranks = self.windows_memory(), check_ranks(ranks, self.rank, self.size)
        if ranks.index(self.rank) != domain_rank:
            raise ValueError(
                f"domain_rank={domain_rank!r}: this is rank {self.rank}, which is at "
                f"{ranks.index(self.rank)} in {list(ranks)}"
            )
        offset = whole("window_offset", offset, 0, base.window_size - 1)
        nbytes = whole("window_size", nbytes, 1, base.window_size - offset)
        windows = [base.window(rank) + offset for rank in ranks]
        made = self._join(ranks, {"nbytes": nbytes, "offset": offset}, nbytes, windows)
        self._derived.add(made)
        return made

    def _join(
        self, ranks: Sequence[int], said: Words, window: int, windows: list[int] | None
    ) -> int:
        """Make a domain of some ranks, which all say the same; return the own `device_ctx`.

        `windows` has where theirs begin, None if the domain brings new ones.
        """
        made: list[Array] = []

        def decide(heard: list[Words]) -> Answer:
            for what in said:
                wanted = {one[what] for one in heard}
                if len(wanted) > 1:
                    of = "of" if what == "nbytes" else "from"
                    return Answer({"error": f"ranks ask for windows {of} {sorted(wanted)} bytes"})
            size = len(ranks) if windows is None else 0
            made.append(regions.create(domain_bytes(size, window), window=True))
            memory = DomainMemory(made[0].ctypes.data)
            devices = [self._devices[rank] for rank in ranks]
            memory.make("comm", devices, window, int(self._timeout_s * 1e9), windows)
            if windows is None:
                memory.guard()
            region = regions.region_of(made[0])
            _arrays[region.address] = made[0]
            place = {"address": region.address, "nbytes": region.nbytes, "pid": region.owner}
            return Answer(place, region.fd)

        try:
            place = self._agree(ranks, said, decide)
            device_ctx, error = self._open(ranks, place, windows is None)
        finally:
            for array in made:
                regions.release(array)
        self._confirm(ranks, device_ctx, error)
        return device_ctx

    def _open(
        self, ranks: Sequence[int], place: Answer, has_windows: bool
    ) -> tuple[int, Exception | None]:
        """Map the memory of a domain and open its windows; return the `device_ctx`, and what failed."""
        words, fd = place
        address, nbytes = words["address"], words["nbytes"]
        try:
            array = _arrays.get(address)
            if array is None or words["pid"] != os.getpid():
                array = regions.attach_window(address, nbytes, words["pid"], fd)
                _arrays[address] = array
            memory = DomainMemory(address)
            rank = list(ranks).index(self.rank)
            self._domains.take(memory, rank, array, has_windows)
        except Exception as error:
            return 0, error
        finally:
            if ranks[0] != self.rank:  # this process has got it for that
                os.close(fd)
        device_ctx = memory.context(rank)
        self._addresses[device_ctx] = address
        return device_ctx, None

    def _confirm(self, ranks: Sequence[int], device_ctx: int, error: Exception | None) -> None:
        """Return once every rank has opened the windows; if one could not, none keeps them."""

        def decide(heard: list[Words]) -> Answer:
            failed = [one["failed"] for one in heard if one["failed"]]
            return Answer({"error": failed[0]} if failed else {})

        failed = f"rank {self.rank} cannot open the windows: {error}" if error else ""
        try:
            self._agree(ranks, {"failed": failed}, decide)
        except BaseException:
            if device_ctx in self._addresses:
                self.release(device_ctx)
            raise

    def memory(self, device_ctx: int) -> DomainMemory:
        """Return the memory of a domain."""
        return DomainMemory(self._addresses[device_ctx])

    def release(self, device_ctx: int) -> None:
        """Close the windows of a domain to this rank's kernels."""
        address = self._addresses.pop(device_ctx, None)
        if address is None:
            raise ValueError(
                f"communicator {self.number} has no domain with device_ctx {device_ctx:#x}"
            )
        self._domains.close(address)
        self._derived.discard(device_ctx)
        if device_ctx == self.windows:
            self.windows = None
            for one in list(self._derived):  # their windows are gone
                self.release(one)

    def destroy(self) -> None:
        """Release every domain."""
        while self._addresses:
            self.release(next(reversed(self._addresses)))

    # ------------------------------------------------------------ rendezvous
    def _agree(
        self, ranks: Sequence[int], said: Words, decide: Callable[[list[Words]], Answer]
    ) -> Answer:
        """Meet with some ranks, which have met as often as this one."""
        turn = next(self._turns.setdefault(tuple(ranks), itertools.count()))
        name = f"{self._name} {list(ranks)} {turn}"
        return self._meet(Rendezvous(name, ranks, self._timeout_s), said, decide)

    def _meet(
        self, place: Rendezvous, said: Words, decide: Callable[[list[Words]], Answer]
    ) -> Answer:
        index = list(place.members).index(self.rank)
        answer = place.join(index, said) if index else place.lead(said, decide)
        if "error" in answer.words:
            raise RuntimeError(answer.words["error"])
        return answer


def _greet(heard: list[Words]) -> Answer:
    """Name a communicator, unlike any other one."""
    sizes = {one["size"] for one in heard}
    if len(sizes) > 1:
        return Answer({"error": f"ranks give different numbers of ranks: {sorted(sizes)}"})
    return Answer({"name": secrets.token_hex(8), "devices": [one["device"] for one in heard]})


def check_ranks(ranks: Sequence[int], rank: int, size: int) -> tuple[int, ...]:
    """Return the ranks of a domain, once they are found to be right.

    Raises
    ------
    ValueError
        There are none or too many, one does not exist or is named twice, or `rank` is not among them.
    """
    chosen = tuple(ranks)
    if not 1 <= len(chosen) <= MAX_RANKS:
        raise ValueError(f"a domain has 1 to {MAX_RANKS} ranks, these are {len(chosen)}")
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(size)):
        raise ValueError(f"ranks are {list(chosen)}; give each once, 0 to {size - 1}")
    if rank not in chosen:
        raise ValueError(f"rank {rank} is not one of {list(chosen)}: only members call this")
    return chosen


def _scalars_at(view: int) -> list[int]:
    """Return the scalars of an args blob that a chip has taken."""
    tensors, scalars = _COUNTS.unpack(ctypes.string_at(view, COUNTS_BYTES))
    first = view + COUNTS_BYTES + TENSOR_BYTES * tensors
    return list(struct.unpack(f"<{scalars}Q", ctypes.string_at(first, SCALAR_BYTES * scalars)))
