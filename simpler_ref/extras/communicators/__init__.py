"""Communicators of chips that no Worker brings together: each `ChipWorker` is a rank, in any process.

The ranks meet under a name (`Rendezvous`), and the first of those concerned makes the memory. A Worker
does this for its chips by control requests instead (`orch/domains.py`).

Rule     CHIP-COMM-1, CHIP-COMM-2, CHIP-COMM-4
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ...model.wire import COUNTS_BYTES, SCALAR_BYTES, TENSOR_BYTES
from ...native_chip.abi import ChipError
from ...native_chip.domains import MAX_RANKS, ChipDomains, DomainMemory, domain_bytes, window_size
from ...system import regions
from ...system.polling import other_end
from ...system.types import Array
from ...system.values import positive_seconds, whole

if TYPE_CHECKING:
    from ...native_chip.chip_worker import ChipWorker

_arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The memory of domains that is mapped in this process, by its address."""
_numbers = itertools.count(1)
_MOST_BYTES = 1 << 40
_TIMEOUT_S = 30.0
_COUNTS = struct.Struct("<ii")


@dataclass
class Communicator:
    """One rank of some that have met under a name."""

    number: int
    rank: int
    size: int
    timeout_s: float
    name: str = ""
    devices: Sequence[int] = ()
    """The chip of each rank."""
    windows: int | None = None
    """The `device_ctx` of those that all ranks have."""
    derived: set[int] = field(default_factory=set)
    """The `device_ctx` of domains whose windows are parts of these."""
    addresses: dict[int, int] = field(default_factory=dict)
    """Of the memory of each domain, by its `device_ctx`."""
    turns: dict[tuple[int, ...], Any] = field(default_factory=dict)
    """How often some ranks have met, of which this is one."""

    def memory(self, device_ctx: int | None) -> DomainMemory:
        """Return the memory of a domain; None stands for that of all ranks that has no windows yet."""
        if device_ctx is None:
            raise ValueError(
                f"communicator {self.number} has no windows: call comm_alloc_windows first"
            )
        return DomainMemory(self.addresses[device_ctx])


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
        one = Communicator(next(_numbers), rank, size, positive_seconds("timeout_s", timeout_s))
        name = os.fsdecode(os.path.realpath(rootinfo_path))
        said = {"rank": rank, "size": size, "device": self._chip.device_id}
        met = Rendezvous(name, range(size), one.timeout_s).meet(rank, said, _greet).words
        one.name, one.devices = met["name"], met["devices"]
        self._made[one.number] = one
        return one.number

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
        one = self[comm_handle]
        if one.windows is not None:
            raise ValueError(
                f"communicator {comm_handle} has windows; comm_alloc_domain makes more"
            )
        one.windows = self.comm_alloc_domain(comm_handle, range(one.size), win_size)
        return one.windows

    def comm_get_local_window_base(self, comm_handle: int) -> int:
        """Return where the own window of `comm_alloc_windows` begins."""
        one = self[comm_handle]
        return one.memory(one.windows).window(one.rank)

    def comm_get_window_size(self, comm_handle: int) -> int:
        """Return the bytes of each window of `comm_alloc_windows`."""
        one = self[comm_handle]
        return one.memory(one.windows).window_size

    def comm_barrier(self, comm_handle: int) -> None:
        """Return when every rank has called this; `barrier` does it in kernels, and faster.

        Raises
        ------
        RuntimeError
            Others have not come in time.
        """
        one = self[comm_handle]
        _agree(one, range(one.size), {}, lambda heard: Answer({}))

    def comm_alloc_domain(self, comm_handle: int, ranks: Sequence[int], win_size: int) -> int:
        """Give some ranks windows as `comm_alloc_windows` gives them to all; return the `device_ctx`.

        The domain's rank of each is its index in `ranks`. Only they call this.

        Raises
        ------
        ValueError, RuntimeError, MemoryError
            See `comm_alloc_windows`; this rank is not in `ranks`.
        """
        one = self[comm_handle]
        nbytes = whole("win_size", win_size, 1, _MOST_BYTES)
        ranks = check_ranks(ranks, one.rank, one.size)
        return self._join(one, ranks, {"nbytes": nbytes}, window_size(nbytes), None)

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
        one = self[comm_handle]
        base, ranks = one.memory(one.windows), check_ranks(rank_ids, one.rank, one.size)
        if ranks.index(one.rank) != domain_rank:
            raise ValueError(
                f"domain_rank={domain_rank!r}: this is rank {one.rank}, which is at "
                f"{ranks.index(one.rank)} in {list(ranks)}"
            )
        offset = whole("window_offset", window_offset, 0, base.window_size - 1)
        nbytes = whole("window_size", window_size, 1, base.window_size - offset)
        windows = [base.window(rank) + offset for rank in ranks]
        made = self._join(one, ranks, {"nbytes": nbytes, "offset": offset}, nbytes, windows)
        one.derived.add(made)
        return made

    def comm_release_domain(self, comm_handle: int, device_ctx: int) -> None:
        """Close the windows of a domain to this rank; each rank does this for itself.

        Raises
        ------
        ValueError
            The communicator has no such domain.
        """
        one = self[comm_handle]
        address = one.addresses.pop(device_ctx, None)
        if address is None:
            raise ValueError(
                f"communicator {comm_handle} has no domain with device_ctx {device_ctx:#x}"
            )
        self._domains.close(address)
        one.derived.discard(device_ctx)
        if device_ctx == one.windows:
            one.windows = None
            for part in list(one.derived):  # their windows are gone
                self.comm_release_domain(comm_handle, part)

    def comm_destroy(self, comm_handle: int) -> None:
        """Leave a communicator: close all its windows to this rank; `finalize` does it as well.

        Raises
        ------
        ValueError
            There is no such communicator.
        """
        while one := self[comm_handle].addresses:
            self.comm_release_domain(comm_handle, next(iter(one)))
        del self._made[comm_handle]

    def comm_destroy_all(self) -> None:
        """Leave all communicators."""
        for number in list(self._made):
            self.comm_destroy(number)

    # ------------------------------------------------------------ domains
    def _join(
        self,
        one: Communicator,
        ranks: tuple[int, ...],
        said: Words,
        window: int,
        windows: list[int] | None,
    ) -> int:
        """Make a domain of some ranks, which all say the same; return the own `device_ctx`.

        `windows` has where theirs begin, None if the domain brings new ones.
        """
        made: list[Array] = []

        def decide(heard: list[Words]) -> Answer:
            for what in said:
                wanted = {words[what] for words in heard}
                if len(wanted) > 1:
                    of = "of" if what == "nbytes" else "from"
                    return Answer({"error": f"ranks ask for windows {of} {sorted(wanted)} bytes"})
            size = len(ranks) if windows is None else 0
            made.append(regions.create(domain_bytes(size, window), window=True))
            memory = DomainMemory(made[0].ctypes.data)
            devices = [one.devices[rank] for rank in ranks]
            memory.make("comm", devices, window, int(one.timeout_s * 1e9), windows)
            if windows is None:
                memory.guard()
            region = regions.region_of(made[0])
            _arrays[region.address] = made[0]
            place = {"address": region.address, "nbytes": region.nbytes, "pid": region.owner}
            return Answer(place, region.fd)

        device_ctx, failed = 0, ""
        try:
            place = _agree(one, ranks, said, decide)
            try:
                device_ctx = self._open(one, ranks, place, windows is None)
            except Exception as error:
                failed = f"rank {one.rank} cannot open the windows: {error}"
        finally:
            for array in made:
                regions.release(array)

        def find_failure(heard: list[Words]) -> Answer:
            found = [words["failed"] for words in heard if words["failed"]]
            return Answer({"error": found[0]} if found else {})

        try:  # every rank has opened the windows; if one could not, none keeps them
            _agree(one, ranks, {"failed": failed}, find_failure)
        except BaseException:
            if not failed:
                self.comm_release_domain(one.number, device_ctx)
            raise
        return device_ctx

    def _open(
        self, one: Communicator, ranks: tuple[int, ...], place: Answer, has_windows: bool
    ) -> int:
        """Map the memory of a domain and open its windows; return the `device_ctx`."""
        words, fd = place
        address, nbytes = words["address"], words["nbytes"]
        try:
            array = _arrays.get(address)
            if array is None or words["pid"] != os.getpid():
                array = regions.attach_window(address, nbytes, words["pid"], fd)
                _arrays[address] = array
            memory = DomainMemory(address)
            rank = ranks.index(one.rank)
            self._domains.take(memory, rank, array, has_windows)
        finally:
            if ranks[0] != one.rank:  # this process has got it for that
                os.close(fd)
        device_ctx = memory.context(rank)
        one.addresses[device_ctx] = address
        return device_ctx


# ---------------------------------------------------------------- rendezvous
def _agree(
    one: Communicator, ranks: Sequence[int], said: Words, decide: Callable[[list[Words]], Answer]
) -> Answer:
    """Meet with some ranks, which have met as often as this one."""
    turn = next(one.turns.setdefault(tuple(ranks), itertools.count()))
    name = f"{one.name} {list(ranks)} {turn}"
    return Rendezvous(name, ranks, one.timeout_s).meet(one.rank, said, decide)


def _greet(heard: list[Words]) -> Answer:
    """Name a communicator, unlike any other one."""
    sizes = {one["size"] for one in heard}
    if len(sizes) > 1:
        return Answer({"error": f"ranks give different numbers of ranks: {sorted(sizes)}"})
    return Answer({"name": secrets.token_hex(8), "devices": [one["device"] for one in heard]})


def check_ranks(ranks: Sequence[int], rank: int, size: int) -> tuple[int, ...]:
    """Return the ranks of a domain, once they are found to be right and `rank` among them."""
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


# ---------------------------------------------------------------- how processes meet
# Processes of one user that know a name come together, and exchange a few words each. The first of them,
# the *leader*, listens at an abstract Unix socket, which the system removes with the process. All others
# connect, say something, and get one answer, with a descriptor if there is one.
Words = dict[str, Any]
"""What is said: JSON."""

_LONGEST = 1 << 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


class Answer(NamedTuple):
    """What all get."""

    words: Words
    fd: int = -1


class Rendezvous(NamedTuple):
    """Where and with whom: each member is there once, under its index in `members`."""

    name: str
    members: Sequence[int]
    """For messages: the ranks that meet."""
    timeout_s: float

    def meet(self, rank: int, said: Words, decide: Callable[[list[Words]], Answer]) -> Answer:
        """Be a member that says something, and return the answer, which `decide` finds for all.

        Raises
        ------
        RuntimeError
            The answer is an error, others have not come in time, or another program leads under the name.
        """
        index = list(self.members).index(rank)
        answer = self._join(index, said) if index else self._lead(said, decide)
        if "error" in answer.words:
            raise RuntimeError(answer.words["error"])
        return answer

    def _lead(self, said: Words, decide: Callable[[list[Words]], Answer]) -> Answer:
        """Be the first member: hear all others, and give them the answer that `decide` finds."""
        deadline = time.monotonic() + self.timeout_s
        heard = [said] + [{}] * (len(self.members) - 1)
        others: dict[int, socket.socket] = {}
        with (
            ExitStack() as stack,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        ):
            try:
                listening.bind(address_of(self.name))
            except OSError as error:
                raise RuntimeError(
                    f"another program is rank {self.members[0]} under the name {self.name!r} at the "
                    "moment: take another name"
                ) from error
            listening.listen(len(self.members))
            while len(others) < len(self.members) - 1:
                _wait_at_most(listening, deadline)
                try:
                    one = stack.enter_context(listening.accept()[0])
                except TimeoutError:
                    missing = [rank for i, rank in enumerate(self.members) if i and i not in others]
                    raise self._late(", ".join(f"rank {rank}" for rank in missing)) from None
                _wait_at_most(one, deadline)
                with suppress(OSError):  # it has gone
                    if other_end(one)[1] != os.getuid() or not (raw := one.recv(_LONGEST)):
                        continue
                    words = json.loads(raw)
                    i = words["index"]
                    if i >= len(self.members):
                        count = len(self.members)
                        why = f"there are {count} ranks, says rank {self.members[0]}"
                        _send(one, Answer({"error": why}))
                    elif i in others:
                        _send(one, Answer({"error": f"rank {self.members[i]} is there already"}))
                    else:
                        heard[i], others[i] = words, one
            answer = decide(heard)
            for one in others.values():
                with suppress(OSError):  # it has gone
                    _send(one, answer)
        return answer

    def _join(self, index: int, said: Words) -> Answer:
        """Be another member: say something, and return the answer."""
        deadline = time.monotonic() + self.timeout_s
        gone = RuntimeError(f"rank {self.members[0]} has gone: it says why")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            self._connect(one, deadline)
            _wait_at_most(one, deadline)
            try:
                one.send(json.dumps({**said, "index": index}).encode())
                answer, fds, _flags, _from = socket.recv_fds(one, _LONGEST, 1)
            except TimeoutError:
                raise self._late("another rank") from None
            except OSError as error:
                raise gone from error
        if not answer:
            raise gone
        return Answer(json.loads(answer), fds[0] if fds else -1)

    def _connect(self, one: socket.socket, deadline: float) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                one.connect(address_of(self.name))
                return
            except (ConnectionRefusedError, BlockingIOError):
                if time.monotonic() > deadline:
                    raise self._late(f"rank {self.members[0]}") from None
            time.sleep(pause)  # nothing tells when a name comes into being
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _late(self, who: str) -> RuntimeError:
        return RuntimeError(f"{who} has not come within {self.timeout_s:g} s; all must call this")


def _wait_at_most(one: socket.socket, deadline: float) -> None:
    one.settimeout(max(0.001, deadline - time.monotonic()))


def _send(one: socket.socket, answer: Answer) -> None:
    raw = json.dumps(answer.words).encode()
    socket.send_fds(one, [raw], [answer.fd] if answer.fd >= 0 else [])


def address_of(name: str) -> str:
    return "\0simpler_ref." + hashlib.sha256(f"{os.getuid()} {name}".encode()).hexdigest()
