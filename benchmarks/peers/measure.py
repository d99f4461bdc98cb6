"""Takes the figures: rounds over all peers, in each of which a peer starts, answers, and ends."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from .catalogue import METGS, PEERS, RANDOM, WORKERS, WORKLOADS, Peer, Workload
from .environments import Environments, SkippedError
from .gauge import Gauge
from .metg import efficiency, smallest_length
from .session import BrokenError, LateError, Session, UnsupportedError

LOOKS_BACK = 1000
MOST_PRODUCERS = 3
LISTEN_S = 0.2
START_S = 600.0
"""How long a runner may take until it is ready: the first one of ours may have to compile."""
HEAVY_S = 3.0
"""A workload that kept a peer longer than this in a round is left out after a few rounds."""
HEAVY_ROUNDS = 3
MOST_STOLEN = 0.03
"""Share of the cores' time kept by the host of a virtual machine, from which a figure is taken again."""


@dataclass(frozen=True)
class Effort:
    """How much is done to get a figure."""

    rounds: int
    minutes: float
    """How long all rounds together may take, the first one excepted."""
    runs: int
    budget_s: float
    """How long the runs of one workload in one round may take, the first one excepted."""
    limit: float
    """What the workloads' limits are multiplied by."""
    attempts: int
    """How often a figure is taken while the host takes the cores away."""
    patience_s: float
    """When a runner that does not answer is ended."""
    quick: bool
    metg_s: float
    """About how long a run in the search for METG takes."""
    longest_task_s: float


FULL = Effort(5, 11.0, 5, 0.2, 1.0, 4, 60.0, False, 0.01, 0.02)
QUICK = Effort(1, 11.0, 1, 0.05, 0.1, 1, 30.0, True, 0.002, 0.0005)


@dataclass
class Taken:
    """All that has been measured of one peer."""

    values: dict[str, list[float]] = field(default_factory=dict)
    """For each figure one value a round, in seconds, per task where the workload says so."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The size of each workload that could be afforded."""
    words: dict[str, str] = field(default_factory=dict)
    """Why a figure is missing."""
    spent: dict[str, float] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    first_s: float = 0.0
    """How long the first start on a machine takes, with caches that are empty; 0: not measured."""
    memories: list[float] = field(default_factory=list)
    """Of each start, the bytes of the processes that it started, by workers."""
    stolen: list[float] = field(default_factory=list)
    """For each value, which share of the cores' time the host of a virtual machine had meanwhile."""
    session: Session | None = None
    """That of a peer that stays."""
    versions: dict[str, str] = field(default_factory=dict)
    skipped: str = ""

    def close(self) -> None:
        """End the runner, if it has stayed."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def add_quietest(self, name: str, attempts: int, measure: Callable[[], float]) -> None:
        """Add what was measured while the host took least; no further attempt if that was little."""
        tries: list[tuple[float, float]] = []
        while len(tries) < attempts and (not tries or tries[-1][0] > MOST_STOLEN):
            before = psutil.cpu_times()
            value = measure()
            tries.append((stolen_share(before, psutil.cpu_times()), value))
        stolen, value = min(tries)
        self.stolen.append(stolen)
        self.add(name, value)


def stolen_share(before: Any, after: Any) -> float:
    """Return which share of the cores' time the host of a virtual machine kept to itself."""
    passed = sum(after) - sum(before)
    return (
        (getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)) / passed if passed else 0.0
    )


def random_graph(n: int, path: Path) -> Path:
    """Write a random graph: up to three producers for each task, among the last thousand before it."""
    if not path.exists():
        generator = np.random.default_rng(n)
        task = np.arange(n)[:, None]
        producers = task - generator.integers(1, LOOKS_BACK + 1, size=(n, MOST_PRODUCERS))
        several = generator.integers(0, MOST_PRODUCERS + 1, size=(n, 1))
        producers[(np.arange(MOST_PRODUCERS) >= several) | (producers < 0)] = -1
        producers[:, 1][producers[:, 1] == producers[:, 0]] = -1
        same = (producers[:, 2] == producers[:, 0]) | (producers[:, 2] == producers[:, 1])
        producers[:, 2][same] = -1
        producers.astype(np.int32).tofile(path)
    return path


class NoStartError(Exception):
    """A runner does not start; the text says why."""


class Visit:
    """One round of one peer."""

    def __init__(
        self, peer: Peer, taken: Taken, effort: Effort, environments: Environments
    ) -> None:
        self._peer = peer
        self._taken = taken
        self._effort = effort
        self._environments = environments
        self._session, taken.session = taken.session, None

    def run(self, names: Iterable[str]) -> None:
        """Take the named figures."""
        try:
            for name in names:
                if name in self._taken.words or self._is_heavy(name) or not self._is_asked(name):
                    continue
                begin = time.monotonic()
                self._take(name)
                self._taken.spent[name] = time.monotonic() - begin
        except BaseException:
            self._close(patience_s=0.0)
            raise
        if self._peer.stays:
            self._taken.session = self._session
        else:
            self._close()

    def _is_heavy(self, name: str) -> bool:
        rounds = len(self._taken.values.get(name, ()))
        return rounds >= HEAVY_ROUNDS and self._taken.spent[name] > HEAVY_S

    def _is_asked(self, name: str) -> bool:
        only = WORKLOADS[name].only if name in WORKLOADS else ()
        return not only or self._peer in [PEERS[one] for one in only]

    def _take(self, name: str) -> None:
        try:
            if name in METGS:
                self._take_metg(name)
            else:
                self._take_workload(name)
        except UnsupportedError as why:
            if name not in self._taken.values:  # it may miss METG in one round of several
                self._taken.words[name] = f"n/a: {why}"
        except LateError as why:
            self._fail(name, f"too slow: {why}")
        except BrokenError as why:
            self._fail(name, f"failed: {why}")

    def _fail(self, name: str, why: str) -> None:
        """Leave a figure out for good, even if earlier rounds have one."""
        self._taken.words[name] = why
        self._taken.values.pop(name, None)
        self._close(patience_s=0.0)

    # ------------------------------------------------------------ one figure
    def _take_workload(self, name: str) -> None:
        workload = WORKLOADS[name]
        smaller = RANDOM[RANDOM.index(name) - 1] if name in RANDOM[1:] else ""
        if smaller in self._taken.words:
            self._taken.words[name] = self._taken.words[smaller]
            return
        size = self._taken.sizes.get(name)
        seconds: list[float] | None = None
        tasks = 1
        if size is None:
            size, seconds, tasks = self._climb(workload, smaller)
        self._taken.sizes[name] = size
        once = seconds is not None and (self._effort.quick or min(seconds) > HEAVY_S)

        def measure() -> float:
            nonlocal seconds, tasks
            if not once:
                runs, budget_s = self._effort.runs, self._effort.budget_s
                seconds, tasks = self._ask(workload, size, runs, budget_s)
            assert seconds is not None
            return statistics.median(seconds) / (tasks if workload.per_task else 1)

        self._taken.add_quietest(name, 1 if once else self._effort.attempts, measure)

    def _climb(self, workload: Workload, smaller: str) -> tuple[int, list[float], int]:
        """Return the largest size that takes no longer than the limit, and what it took."""
        limit = workload.limit_s * self._effort.limit
        sizes = workload.quick if self._effort.quick else workload.sizes
        if smaller in self._taken.values:
            expected = self._taken.values[smaller][-1] * sizes[0]
            if expected > limit:
                raise UnsupportedError(f"a run would take about {expected:.0f} s")
        at = 0
        while True:
            seconds, tasks = self._ask(workload, sizes[at], 1, 0.0)
            affordable = [
                i
                for i, size in enumerate(sizes)
                if i > at and size / sizes[at] * min(seconds) <= limit
            ]
            if not affordable:
                return sizes[at], seconds, tasks
            at = affordable[-1]

    def _take_metg(self, name: str) -> None:
        width = METGS[name].width
        session = self._open()
        spin_s = session.seconds_per_spin
        effort = self._effort
        if self._peer.workers == "none":
            raise UnsupportedError("no workers")

        def measure(length: float) -> float:
            nonlocal overhead
            spins = max(1, round(length / spin_s))
            steps = max(4, min(2000, round(effort.metg_s / (width * (length + overhead)))))
            request = f"stencil width={width} steps={steps} spins={spins}"
            before = gauge.cores()
            seconds, tasks = self._ask_for(request, 3, 4 * effort.metg_s)
            cores = (before + gauge.cores()) / 2
            wall = statistics.median(seconds)
            overhead = max(0.0, wall / tasks - length / WORKERS)  # lest the next run be too short
            return efficiency(tasks, spins * spin_s, cores, wall)

        def search() -> float:
            nonlocal overhead
            request = f"stencil width={width} steps=64 spins=0"
            first, tasks = self._ask_for(request, 3, 4 * effort.metg_s)
            overhead = statistics.median(first) / tasks
            longest = max(effort.longest_task_s, 20 * overhead)
            found = smallest_length(measure, overhead, spin_s, longest)
            if found is None:
                raise UnsupportedError(f"not even tasks of {longest * 1e3:.1f} ms reach it")
            return found

        overhead = 0.0
        gauge = Gauge()
        try:
            self._taken.add_quietest(name, effort.attempts, search)
        finally:
            gauge.close()

    # ------------------------------------------------------------ asking
    def _ask(
        self, workload: Workload, size: int, runs: int, budget_s: float
    ) -> tuple[list[float], int]:
        graph = self._environments.folder / f"random-{size}.graph"
        if "{graph}" in workload.request:
            random_graph(size, graph)
        return self._ask_for(workload.request.format(size=size, graph=graph), runs, budget_s)

    def _ask_for(self, request: str, runs: int, budget_s: float) -> tuple[list[float], int]:
        line = f"{request} repeats={runs} budget={budget_s}"
        return self._open().ask(line, self._effort.patience_s)

    def _open(self) -> Session:
        if self._session is None:
            if not self._taken.starts and not self._effort.quick and self._peer.is_first:
                self._take_first()
            self._session = self._start()
            self._taken.starts.append(self._session.start_s)
            self._taken.memories.append(self._session.started_bytes / WORKERS)
            self._taken.versions = self._session.versions
        return self._session

    def _start(self, **more: str) -> Session:
        command = self._environments.command(self._peer)
        out = self._environments.folder / f"{Path(self._peer.runner).stem}.out"
        variables = self._environments.variables(self._peer, command) | more
        try:
            return Session(command, variables, out, START_S)
        except (LateError, BrokenError) as why:
            raise NoStartError(f"it does not start: {why}") from None

    def _take_first(self) -> None:
        """Start it as on a machine that has never run it: all caches are empty."""
        with (
            tempfile.TemporaryDirectory() as empty,
            self._start(XDG_CACHE_HOME=empty, PYTHONPYCACHEPREFIX=empty) as session,
        ):
            self._taken.first_s = session.start_s

    def _close(self, patience_s: float | None = None) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close() if patience_s is None else session.close(patience_s)


def build(names: Iterable[str], environments: Environments) -> dict[str, Taken]:
    """Make what each peer needs; a peer that cannot be had is marked as skipped."""
    taken: dict[str, Taken] = {}
    for name in names:
        peer = PEERS[name]
        one = taken[name] = Taken()
        note(f"{peer.title}: ")
        try:
            environments.command(peer)
            if peer.own:  # what has to be compiled is compiled now, and not timed as its start
                warm = Taken()
                Visit(peer, warm, QUICK, environments).run(["chain"])
                warm.close()
            note("ready\n")
        except (SkippedError, NoStartError) as why:
            one.skipped = str(why)
            note(f"skipped: {why}\n")
    return taken


@dataclass
class Around:
    """What the machine was like, each time before a peer was visited."""

    floors: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """Which share of the cores' time other programs had."""


def others_share() -> float:
    """Return which share of the cores' time anybody has while nothing of ours runs."""
    before = psutil.cpu_times()
    begin = time.perf_counter()
    time.sleep(LISTEN_S)
    passed = time.perf_counter() - begin
    after = psutil.cpu_times()
    idle = after.idle + after.iowait - before.idle - before.iowait
    return min(1.0, max(0.0, 1 - idle / (passed * (psutil.cpu_count() or 1))))


def take(
    taken: dict[str, Taken],
    figures: list[str],
    effort: Effort,
    environments: Environments,
    floor: Callable[[], float],
) -> Around:
    """Go round the peers; return what the machine was like meanwhile.

    A round that would not end in time is not begun, the first one excepted. Peers that stay have to be
    closed afterwards.
    """
    around = Around()
    begin_s = time.monotonic()
    names = [name for name, one in taken.items() if not one.skipped]
    for number in range(effort.rounds):
        spent = time.monotonic() - begin_s
        if number and spent / number * (number + 1) > effort.minutes * 60:
            note(f"{number} rounds took {spent:.0f} s: no time for another one\n")
            break
        turn = number * len(names) // effort.rounds  # nobody always follows the same peer
        for name in names[turn:] + names[:turn]:
            if taken[name].skipped:
                continue
            note(f"round {number + 1} of {effort.rounds}: {PEERS[name].title} … ")
            around.others.append(others_share())
            around.floors.append(floor())
            begin = time.monotonic()
            try:
                Visit(PEERS[name], taken[name], effort, environments).run(figures)
            except NoStartError as why:
                taken[name].skipped = str(why)
                note(f"skipped: {why}\n")
                continue
            note(f"{time.monotonic() - begin:.1f} s\n")
    return around


def note(text: str) -> None:
    """Show how far it is."""
    sys.stderr.write(text)
    sys.stderr.flush()
