"""Cores: which this process may use, how its threads wait on them, and the core of each worker.

``python -m simpler_ref`` prints what a Worker made now would find, `Worker.placement` what one found.

Rule     SPEED-WAIT-1, SPEED-WAIT-2, SPEED-WAIT-4, SPEED-WAIT-13, SPEED-WAIT-14
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SPIN_NS = 50_000
"""Spin budget: how long a thread with nothing to do spins before it sleeps, about a wake-up's cost."""
LONG_SPIN_NS = 100_000
"""Spin budget where there are more cores than threads: no other thread needs the core meanwhile."""
REMOTE_SPIN_NS = 300_000
"""Spin budget of a Worker with endpoints: an empty task there takes a quarter less time."""
YIELD_NS = 3_000
"""Longest back-off time: how long a thread spins before it offers its core; 0 if there is only one."""
DEFER_NS = 30_000
"""How long a ready task is deferred for a worker that is awake before one that sleeps is woken."""
NO_CORE = 1 << 30
"""Of a worker that gets no core of its own."""


# ---------------------------------------------------------------- available cores
class Cores(NamedTuple):
    """The cores that this process may use."""

    mask: tuple[int, ...]
    """Numbers of the cores it may run on; one of each pair of hyperthreads comes first."""
    quota: float | None
    """The CPU quota of its control groups, in cores; None without a limit."""

    @property
    def available(self) -> int:
        """How many threads can run at the same time."""
        if self.quota is None:
            return len(self.mask)
        return max(1, min(len(self.mask), int(self.quota)))


def find_cores(root: Path = Path("/")) -> Cores:
    """Return the cores that the calling thread's affinity mask and its control groups allow."""
    mask = os.sched_getaffinity(0)
    return Cores(_spread(mask, root), min(_quotas(root), default=None))


def _spread(mask: set[int], root: Path) -> tuple[int, ...]:
    """Sort cores so that those which share a physical one are far apart."""

    def rank(core: int) -> tuple[int, int]:
        siblings = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        mates = [mate for mate in _parse_list(_read(siblings)) if mate in mask]
        return (mates.index(core) if core in mates else 0, core)

    return tuple(sorted(mask, key=rank))


def _parse_list(text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas of this process's control groups and their ancestors, in cores."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, group = line.split(":", 2)
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        kind = "cgroup2" if number == "0" else "cgroup"
        for top, folder in _mounted(root, kind, group):
            while True:
                yield from _quota_of(folder)
                if folder == top:
                    break
                folder = folder.parent


def _mounted(root: Path, kind: str, group: str) -> Iterator[tuple[Path, Path]]:
    """Yield the mount point of a hierarchy, and the folder of a group in it."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        shown, top = left.split()[3:5]
        what, _, options = right.split(maxsplit=2)
        if what != kind or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        mount = root / top.lstrip("/")
        inside = group.removeprefix(shown) if shown != "/" else group
        folder = mount / inside.lstrip("/")
        yield mount, folder if ".." not in folder.parts and folder.is_dir() else mount


def _quota_of(folder: Path) -> Iterator[float]:
    found = _read(folder / "cpu.max").split()
    if not found:
        found = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
    if len(found) == 2 and found[0].isdigit() and found[1].isdigit() and int(found[1]):
        yield int(found[0]) / int(found[1])


# ---------------------------------------------------------------- how to wait
class Waits(NamedTuple):
    """Waiting times, ns; see the constants above."""

    spin_ns: int
    yield_ns: int
    hold_ns: int


def choose_waits(
    available: int, threads: int, spin_us: float | None = None, *, is_remote: bool = False
) -> Waits:
    """Choose the waiting times of threads on available cores; `is_remote`: there are endpoints.

    `spin_us` replaces the choice of `spin_ns` and shortens the others if they were longer.
    """
    spin_ns = LONG_SPIN_NS if threads < available else SPIN_NS
    if is_remote and available > 1:
        spin_ns = REMOTE_SPIN_NS
    if spin_us is not None:
        spin_ns = int(spin_us * 1000)
    yield_ns = YIELD_NS if available > 1 else 0
    return Waits(spin_ns, min(yield_ns, spin_ns), min(DEFER_NS, spin_ns))


# ---------------------------------------------------------------- cores of workers
class PlacedWorker(NamedTuple):
    """One worker of a live Worker."""

    name: str
    """Its kind, its index in its pool, its process."""
    core: int | None
    """The core it is pinned to; None if it may run on any."""


@dataclass(frozen=True)
class Placement:
    """The cores of a tree of Workers, how its threads wait, and where they run."""

    cores: Cores
    """The cores that the process of the outermost Worker may use."""
    threads: int
    """Threads of the tree that may want a core at a time: the outermost Orch thread and all workers."""
    waits: Waits
    pin: bool = False
    first: int = 0
    """How many workers of the tree get a core before this Worker's first."""
    ranks: tuple[int, ...] = ()
    """The same for each worker of this Worker."""
    beside: bool = False
    """Whether workers of other trees run on the same cores: of other endpoints of a program."""
    workers: tuple[PlacedWorker, ...] = ()
    """The workers of a live Worker; empty before its start."""

    @classmethod
    def find(
        cls,
        threads: int,
        *,
        pin: bool = False,
        spin_us: float | None = None,
        before: int | None = None,
        is_remote: bool = False,
    ) -> Placement:
        """Find the cores that this process may use, and choose.

        `before` is how many workers of other trees get a core before the first of this one; None: there
        are no other trees. `is_remote`: the tree has endpoints.
        """
        cores = find_cores()
        waits = choose_waits(cores.available, threads, spin_us, is_remote=is_remote)
        return cls(cores, threads, waits, pin, first=before or 0, beside=before is not None)

    @property
    def _order(self) -> tuple[int, ...]:
        return self.cores.mask[1:] + self.cores.mask[:1]

    def core_of(self, worker: int) -> int | None:
        """Return the core that a worker is pinned to, None if it is not."""
        return self.own_core(worker) if self.pin else None

    def own_core(self, worker: int) -> int | None:
        """Return a worker's own core, None if there are too few, or no ranks.

        The first core is the last to be assigned: it is the outermost Orch thread's. Beside other trees,
        all have one, if not for themselves.
        """
        order = self._order
        rank = self.ranks[worker] if self.ranks else len(order)
        if self.beside:
            rank %= len(order)
        return order[rank] if rank < len(order) else None

    def core_for_frames(self, before: int | None) -> int | None:
        """Return the core of what passes the frames of an endpoint; None if it is not on this machine.

        `before` is how many workers of other endpoints get a core before its first one, or None.
        """
        return None if before is None else self._order[before % len(self._order)]

    def pin_worker(self, worker: int) -> None:
        """Pin the calling worker thread, or let it run on all cores; a link has found its own."""
        if not self.pin:
            return
        core = self.core_of(worker)
        if core is None and self.ranks and self.ranks[worker] == NO_CORE:
            return
        cores = self.cores.mask if core is None else (core,)
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            raise RuntimeError(
                f"cannot pin to core {', '.join(map(str, cores))} ({error.strerror}); the cores that "
                "may be used have changed since init: make a new Worker, or give pin=False"
            ) from error

    def __str__(self) -> str:
        quota = "no quota" if self.cores.quota is None else f"quota {self.cores.quota:g}"
        numbers = ", ".join(map(str, self.cores.mask))
        lines = [
            f"cores      {self.cores.available} available: mask {numbers}; {quota}",
            f"threads    {self.threads}",
            f"spin       {self.waits.spin_ns / 1000:g} µs, offering the core after "
            f"{self.waits.yield_ns / 1000:g} µs at most; then sleep",
            f"hold       {self.waits.hold_ns / 1000:g} µs",
        ]
        for one in self.workers:
            where = "any core" if one.core is None else f"core {one.core}"
            lines.append(f"{where:10} {one.name}")
        return "\n".join(lines)


@contextmanager
def threads_on(core: int | None) -> Iterator[None]:
    """Have threads that begin in this block run on one core, if it may be used; None: on any."""
    mine = os.sched_getaffinity(0)
    run_on(mine if core is None else (core,))
    try:
        yield
    finally:
        run_on(mine)


def run_on(cores: Iterable[int]) -> None:
    """Let the calling thread run on some cores only, unless the system refuses."""
    with suppress(OSError):
        os.sched_setaffinity(0, cores)
