"""Regions of shared memory that processes not forked from this one can map, too.

A region is a `multiprocessing.shared_memory.SharedMemory` without a name, as one is that has been
unlinked; its file is one of `memfd_create`. So nothing is left behind, whoever is killed when, and Python
starts no process that tracks names, as it would before 3.13. Nor is there a limit as ``/dev/shm`` has,
where a page that finds no room ends the process.

Forked processes inherit the mapping. A fresh interpreter gets the descriptor, and maps the same bytes at
the same address. Addresses are therefore in a range that a new process does not use; if they are in use
all the same, another interpreter is started, whose addresses differ.

The mapping lives as long as any array over it, the descriptor until `release`. Only the process that made
a region keeps its descriptor.

Rule     ORCH-FORK-4, ORCH-FORK-6, ORCH-MISUSE-2, ORCH-INV-3
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any, cast

import numpy as np

from ..jit.layout import round_up
from .signals import signals_blocked
from .types import Array, address_of

PAGE = mmap.PAGESIZE
_ALIGN = 1 << 21
_LOW, _HIGH = 1 << 45, 1 << 46
"""The addresses of regions: below those of simulated chips, far from programs, heaps and libraries."""
_WINDOWS_LOW, _WINDOWS_HIGH = 0x500000000000, 0x540000000000
"""Those of windows: beyond the addresses that simulated chips have for their own memory."""
_ATTEMPTS = 16
_WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FIXED_NOREPLACE = 0x100000
_MADV_WIPEONFORK = 18
_MADV_POPULATE_WRITE = 23
_FAILED = ctypes.c_void_p(-1).value


class AddressTaken(Exception):
    """The addresses of a region to map are in use."""


@dataclass(eq=False, repr=False)
class Region(SharedMemory):
    """One region; pickled, all that another process needs to map it.

    The constructor of `SharedMemory` makes a name, and lets the system choose the address; this one does
    neither, and nothing but to note where the region is: `nbytes` at `address`, of which `size` are
    shared; what follows is private to each process. `fd` is its descriptor in the process `owner`, which
    made it. Only processes that attach a `window` have it: it is not inherited, nor mapped by a fresh
    interpreter.
    """

    address: int
    nbytes: int
    _size: int
    owner: int
    fd: int
    inode: int
    huge: bool
    window: bool
    _name = ""  # `unlink` has nothing to do
    _fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return Region, astuple(self)

    @property
    def buf(self) -> memoryview:
        """The shared bytes; they stay mapped as long as this or any array over them lives."""
        return memoryview(cast(Any, _owners[self]())).cast("B")[: self.size]

    def close(self) -> None:
        """Close the descriptor; mappings stay as long as arrays need them."""
        with signals_blocked():
            if _regions.get(self.address) is self:
                del _regions[self.address]
            self.close_descriptor()

    def close_descriptor(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):  # foreign code has closed it
                os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Leave it to `_unmap`, which comes before, unless the process ends."""


_regions: dict[int, Region] = {}
"""The regions that this process has mapped, until their owner releases them: address → region."""
_owners: dict[Region, weakref.ref[Any]] = {}
"""What keeps each region mapped."""


def spans() -> list[tuple[int, int, str]]:
    """Return the memory that a fresh interpreter can map, sorted, in the form that `covers` takes."""
    return sorted(
        (one.address, one.address + one.size, f"region {one.inode}")
        for one in _regions.values()
        if not one.window
    )


@contextmanager
def descriptors() -> Iterator[dict[Region, int]]:
    """Yield a descriptor of each region, for a fresh interpreter.

    A region of an ancestor, from which this process was forked, is opened through the ancestor.
    """
    found: dict[Region, int] = {}
    opened: list[int] = []
    try:
        for one in _regions.values():
            if one.window:
                continue
            if one._fd >= 0:
                found[one] = one.fd
                continue
            with suppress(OSError):  # its owner has released it
                fd = os.open(f"/proc/{one.owner}/fd/{one.fd}", os.O_RDWR)
                opened.append(fd)
                if os.fstat(fd).st_ino == one.inode:
                    found[one] = fd
        yield found
    finally:
        for fd in opened:
            os.close(fd)


def close_inherited() -> None:
    """In a process just forked: close the descriptors, which belong to the parent."""
    for one in _owners:
        one.close_descriptor()


# ---------------------------------------------------------------- making one
@signals_blocked()  # or a descriptor could leak
def create(
    nbytes: int, private_from: int | None = None, *, huge: bool = False, window: bool = False
) -> Array:
    """Return fresh, zeroed bytes at an address that a fresh interpreter can use, too.

    Pages take memory only once they are touched. With `huge` they are huge pages where the system allows
    that for shared memory: the first touch then costs a third, and workers find them mapped.
    From `private_from` (page-aligned) on they are private: a forked child finds zeros there, and can
    neither read nor change the parent's contents. No process inherits a `window`: others attach the
    `region_of` it.
    """
    nbytes = round_up(max(nbytes, 1), PAGE)
    shared = nbytes if private_from is None else private_from
    for region, owner in _owners.copy().items():  # a copy of it in one step: finalizers change it
        if owner() is None:  # a signal has cut its finalizer short
            _unmap(region)
    fd = -1
    try:
        fd = os.memfd_create("simpler-region")
        os.ftruncate(fd, shared)
        inode = os.fstat(fd).st_ino
        at = _reserve(nbytes, among=(_WINDOWS_LOW, _WINDOWS_HIGH) if window else (_LOW, _HIGH))
        region = Region(at, nbytes, shared, os.getpid(), fd, inode, huge, window)
        array = _map(region, fd)
    except (OSError, OverflowError) as error:
        if fd >= 0:
            os.close(fd)
        remedy = "heap_ring_size, arena_size, values_size and task_window set the sizes"
        if window:
            remedy = "window_size sets the size"
        raise MemoryError(
            f"cannot map {nbytes} bytes of shared memory ({error}); ask for less: {remedy}"
        ) from error
    _regions[region.address], region._fd = region, fd
    return array


def region_of(array: Array) -> Region:
    return _regions[array.ctypes.data]


def release(array: Array) -> None:
    """Close the descriptor of a region; mappings stay as long as arrays need them."""
    region = _regions.get(array.ctypes.data)
    if region is not None:
        region.close()


def give_back(address: int, nbytes: int) -> None:
    """Let the system have the whole pages in some shared memory, which are zero then."""
    first, end = round_up(address, PAGE), (address + nbytes) // PAGE * PAGE
    if first < end:
        _libc.madvise(first, end - first, mmap.MADV_REMOVE)


def copy_on_write(array: Array) -> int | None:
    """Map the region that begins with an array once more, and return where; None if that is impossible.

    What is written there is private to this process, and others' writes are seen in other pages. Limited
    addresses are left to the user.
    """
    if _has_limited_addresses():
        return None
    region = _regions.get(address_of(array))
    with descriptors() as found:
        if region is None or region not in found:
            return None
        kind = mmap.MAP_PRIVATE | _MAP_NORESERVE
        try:
            address = _mmap(0, region.size, _WRITABLE, kind, found[region])
        except OSError:
            return None
    hide(address, address + region.size)
    return address


def forget_private(address: int, nbytes: int) -> None:
    """Drop what was written to whole pages of such a mapping: they are those of the region again."""
    if _libc.madvise(address, nbytes, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), f"{nbytes} bytes at {address:#x} keep their pages")


def write_privately(address: int, nbytes: int) -> None:
    """Make whole pages of such a mapping private to this process, as writing them does."""
    if _libc.madvise(address, nbytes, _MADV_POPULATE_WRITE):  # a kernel before 5.14
        _, pages = _array_at(address, nbytes)
        pages[::PAGE] = pages[::PAGE].copy()


def make_private(address: int, nbytes: int) -> None:
    """Put whole pages that are private to this process, and zero, in the place of shared ones."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
    _mmap(address, nbytes, _WRITABLE, kind)


def _has_limited_addresses() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def default_size(least: int, most: int) -> int:
    """Return how large memory is of which only touched pages count: as large as the machine's.

    Where the address space is limited (``ulimit -v``) it has the least size.
    """
    if _has_limited_addresses():
        return least
    there = os.sysconf("SC_PHYS_PAGES") * PAGE
    return min(max(least, round_up(there, 1 << 30)), most)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT, _LARGEST_KEPT = 64 << 20, 32 << 20
"""In bytes: the free memory at the end of the heap that stays, and the largest part made there."""


def keep_freed_memory() -> None:
    """Have this process keep what it frees for what it allocates next, unless the user has chosen.

    New pages cost more than most that a task does with them: the arrays that it makes and drops.
    """
    is_users = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if not is_users and hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)


# ---------------------------------------------------------------- mapping it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _mmap(address: int, nbytes: int, protection: int, flags: int, fd: int = -1) -> int:
    got = _libc.mmap(address, nbytes, protection, flags, fd, 0)
    if got == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return got or 0


def _reserve(
    nbytes: int, address: int | None = None, among: tuple[int, int] = (_LOW, _HIGH)
) -> int:
    """Reserve addresses: those given, or some that are probably free in a fresh interpreter."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    if address is not None:
        got = _mmap(address, nbytes, 0, kind | _MAP_FIXED_NOREPLACE)
        if got != address:  # a kernel before 4.17 treats the address as a hint
            _libc.munmap(got, nbytes)
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        return got
    low, high = among
    room = high - low - nbytes
    for _ in range(_ATTEMPTS if room > 0 else 0):
        chosen = low + int.from_bytes(os.urandom(8), "little") % room // _ALIGN * _ALIGN
        with suppress(OSError):  # taken, or this machine has no such addresses
            return _reserve(nbytes, chosen)
    return _mmap(0, nbytes, 0, kind)


def _map(region: Region, fd: int) -> Array:
    """Map a region at its reserved addresses; they are unmapped with the last array."""
    try:
        flags = mmap.MAP_SHARED | _MAP_FIXED | _MAP_NORESERVE
        _mmap(region.address, region.size, _WRITABLE, flags, fd)
        if region.huge:  # a kernel without them refuses
            _libc.madvise(region.address, region.size, mmap.MADV_HUGEPAGE)
        if region.window:
            _libc.madvise(region.address, region.size, mmap.MADV_DONTFORK)
        if (private := region.nbytes - region.size) > 0:  # zeros in a child, not the parent's
            kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
            _mmap(region.address + region.size, private, _WRITABLE, kind)
            _libc.madvise(region.address + region.size, private, _MADV_WIPEONFORK)
    except BaseException:
        _libc.munmap(region.address, region.nbytes)
        raise
    owner, array = _array_at(region.address, region.nbytes)
    _owners[region] = weakref.ref(owner)
    weakref.finalize(owner, _unmap, region).atexit = False
    return array


def _unmap(region: Region) -> None:
    with signals_blocked():
        if _owners.pop(region, None) is not None:
            _libc.munmap(region.address, region.nbytes)
            region.close()


def _array_at(address: int, nbytes: int) -> tuple[Any, Array]:
    """Return an array over memory, and what lives as long as any array over it."""
    owner = (ctypes.c_uint8 * nbytes).from_address(address)
    return owner, np.frombuffer(memoryview(owner), np.uint8)


def attach(region: Region, fd: int) -> Array:
    """Map a region of another process at the address it has there; `fd` is a descriptor of it.

    Raises AddressTaken, or an OSError if the system does not allow a region of this size.
    """
    try:
        _reserve(region.nbytes, region.address)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        raise AddressTaken(f"{region.nbytes} bytes at {region.address:#x}") from error
    array = _map(region, fd)
    _regions[region.address] = region
    return array


def attach_window(address: int, nbytes: int, owner: int, fd: int) -> Array:
    """Map a window of another process; see `create` and `attach`."""
    inode = os.fstat(fd).st_ino
    return attach(Region(address, nbytes, nbytes, owner, fd, inode, huge=False, window=True), fd)


# ---------------------------------------------------------------- which memory is shared
PRIVATE = "it is private to this process"


def is_private(array: Any) -> bool:
    """Say whether an array's memory is private for certain, since numpy or Python has allocated it.

    It takes a microsecond; to look through the mappings takes a thousand.
    """
    if _hidden and isinstance(array, np.ndarray):
        address = address_of(array)
        if any(low <= address < high for low, high in _hidden):
            return True
    owner = array
    while isinstance(owner, np.ndarray):
        if owner.flags.owndata:
            return True
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return isinstance(owner, bytes | bytearray)


_hidden: list[tuple[int, int]] = []
"""Where arrays of this process are private, though others see that memory, or see it in other places."""


def hide(low: int, high: int) -> None:
    """Let no array count as shared that is between two addresses."""
    _hidden.append((low, high))


def shared_mappings() -> list[tuple[int, int, str]]:
    """Return (start, end, identity) of this process's shared, writable mappings, sorted."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode, offset, device, inode, *_ = line.split(maxsplit=5)
            if mode[3] == "s" and mode[1] == "w":
                start, end = (int(part, 16) for part in span.split("-"))
                identity = f"{device} {inode} {int(offset, 16) - start}"
                for low, high in sorted(_hidden):
                    if start <= low < end:
                        found.append((start, low, identity))
                        start = min(high, end)
                found.append((start, end, identity))
    return found


def has_memory(address: int, nbytes: int) -> bool:
    """Say whether there is memory of this process at all bytes [address, address + n)."""
    begin = address - address % mmap.PAGESIZE
    pages = -(-(address + nbytes - begin) // mmap.PAGESIZE)
    resident = ctypes.create_string_buffer(pages)
    return not _libc.mincore(
        ctypes.c_void_p(begin), ctypes.c_size_t(pages * mmap.PAGESIZE), resident
    )


def covers(mappings: list[tuple[int, int, str]], address: int, nbytes: int) -> set[str] | None:
    """Return the identities of the mappings that contain bytes [address, address + n), or None."""
    identities = set()
    at = address
    for start, end, identity in mappings:
        if start <= at < end:
            identities.add(identity)
            at = end
            if at >= address + nbytes:
                return identities
    return None
