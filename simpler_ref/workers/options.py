"""The options of a Worker: name, type, default, check and text of each, in one place.

`Worker` has its parameters, and `help(Worker)` their texts, from here. `Options` is what a program gives;
`Settings` is what a Worker keeps, and what travels with it: the same, with None replaced and all checked.

Rule     CALL-STREAM-1, WM-CHIP-1, WM-CHIP-6, WM-CHIP-9
"""

from __future__ import annotations

import operator
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Generic, NoReturn, TypeVar

from ..jit import layout as L
from ..system.cores import find_cores
from ..system.regions import default_size
from ..system.values import file_path, flag, number, one_of, seconds, text, whole
from ..trace.recorder import DETAILS

T = TypeVar("T")

MOST_WORKERS = 1024
"""Of one pool."""
MOST_LEVELS = 1024
"""The highest level: each has a Worker of its own."""


# ---------------------------------------------------------------- checks of single values
def _level(_name: str, value: Any) -> int:
    if not hasattr(value, "__index__") or not 2 <= operator.index(value) <= MOST_LEVELS:
        raise ValueError(
            f"level {value!r:.60} not supported: a Worker has a level from 2 to {MOST_LEVELS}; for a "
            "number of workers, Worker(num_sub_workers=…)"
        )
    return operator.index(value)


def chips(_name: str, given: Any) -> tuple[int, ...]:
    """Return the numbers of chips, once they are found to be right."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"device_ids={given!r}: give a sequence of numbers, [0] for one chip")
    ids = tuple(whole("device_id", one, 0, 1 << 20) for one in given)
    if len(set(ids)) != len(ids):
        raise ValueError(f"device_ids={list(ids)} names a device twice")
    if len(ids) > MOST_WORKERS:
        raise ValueError(f"{len(ids)} device_ids are too many: at most {MOST_WORKERS}")
    return ids


def trace_detail(name: str, value: Any) -> str:
    return one_of(name, value, DETAILS, "it is 'all', or 'tasks': only what workers do")


def within(low: int, high: int) -> Callable[[str, Any], int]:
    return lambda name, value: whole(name, value, low, high)


def option(default: Any, meaning: str, check: Callable[[str, Any], Any] | None = None) -> Any:
    """Return a field of options; ``check(name, value)`` converts its value, unless that is None."""
    return field(default=default, metadata={"meaning": meaning, "check": check})


def checked(one: Any, value: Any) -> Any:
    check = one.metadata["check"]
    if check is None or (value is None and one.default is None):
        return value
    return check(one.name, value)


def _mode(name: str, value: Any) -> str:
    modes = "process", "thread"
    if isinstance(value, str) and value.lower() in modes:
        return value.lower()
    return one_of(name, value, modes, "it is 'process' or 'thread'")


# ---------------------------------------------------------------- all of them
@dataclass
class Options:
    """What a program says of a Worker."""

    level: int | None = option(
        None,
        "2: one chip. 3: chips and sub workers. 4 and more: Workers and sub workers. None: 3, with a "
        "worker that calls Python functions for each core.",
        _level,
    )
    _: KW_ONLY
    num_sub_workers: int | None = option(
        None,
        "Workers that call Python functions; None: none, but without a level one for each core.",
        within(0, MOST_WORKERS),
    )
    heap_ring_size: int | None = option(
        None,
        "Bytes of each heap ring, None: 1 GiB; pages take memory only when touched.",
        within(1, 1 << 44),
    )
    alloc_timeout_s: float = option(
        L.DEFAULT_ALLOC_TIMEOUT_S,
        "How long submit and alloc wait for room without progress.",
        seconds,
    )
    ring_depth: int = option(
        L.MAX_RING_DEPTH,
        "Number of rings, 1 … 4. A task uses the ring of its scope depth, the last one if deeper.",
        within(1, L.MAX_RING_DEPTH),
    )
    task_window: int | None = option(
        None,
        "How many tasks may be alive at once; None: 2 097 152. With ``ring_depth=1``, how far the ids of "
        "a run may be ahead of the oldest live task.",
        within(1, 1 << 26),
    )
    arena_size: int = option(
        default_size(1 << 32, 1 << 40),
        "Bytes for `empty` and `share`, by default as many as the machine has memory; pages take memory "
        "only when touched.",
        within(1, 1 << 44),
    )
    values_size: int = option(
        default_size(1 << 30, 1 << 36),
        "Bytes for values of calls, in each worker for results and in the program for large arguments, "
        "by default as many as the machine has memory, at most 64 GiB; pages take memory only when "
        "touched.",
        within(1, 1 << 40),
    )
    start_timeout_s: float = option(
        30.0, "How long a worker may take to report that it is ready.", seconds
    )
    child_mode: str | None = option(
        None,
        '``"process"``: every worker is a process. ``"thread"``: every worker is a thread of this one. '
        "None: thread at level 2, unless a `start_method` is given; process above.",
        _mode,
    )
    start_method: str | None = option(
        None,
        'How worker processes come into being. ``"fork"``: they inherit this process. ``"spawn"``: they '
        "are made by a fresh interpreter, which has the Worker's memory at the same addresses and what "
        "was registered, and inherits nothing else. None: spawn where a library in this process has "
        "threads that a fork would leave behind (OpenMP, polars), fork otherwise. A child Worker has its "
        "own.",
        lambda name, value: one_of(name, value, ("fork", "spawn"), "it is 'fork', 'spawn' or None"),
    )
    device_id: int | None = option(None, "Level 2: the chip; 0 if it is not given.")
    device_ids: Sequence[int] = option((), "Level 3: the chips, a worker each.")
    platform: str = option("", "What chip callables are built for; part of their identity.", text)
    runtime: str | os.PathLike[str] | None = option(
        None,
        'Path of the chips\' ``runtime.so``; None, ``"tensormap_and_ringbuffer"`` or '
        '``"host_build_graph"``: the simulated chip. Part of their callables\' identity.',
        file_path,
    )
    py_control_timeout_s: float = option(
        30.0,
        "How long a worker may take to carry out a control request, its running task included.",
        seconds,
    )
    mailbox_depth: int | None = option(
        None,
        "How many tasks a worker may be given at once, 1 … 64; None: 1, and with ``fleet``, whose "
        "endpoints run several calls at a time, twice its sub workers and 2. With 2 or more a worker "
        "finds its next task waiting when it has ended one; what is given is not taken back, should "
        "another become idle.",
        within(1, L.MAX_DEPTH),
    )
    pin: bool = option(
        False,
        "Whether each worker is pinned to a core of its own, as long as there are enough; those for "
        "which there is none may run on any. For the whole tree, nested Workers and endpoints of this "
        "machine included.",
        flag,
    )
    spin_us: float | None = option(
        None,
        "How long a thread with nothing to do looks for work before it sleeps, µs; None: chosen from "
        "the cores that are available. For the whole tree, nested Workers included.",
        lambda name, value: number(name, value, 0, 1_000_000),
    )
    check: bool = option(
        False,
        "Whether a submit in a run or recording that would let tasks race for memory raises a "
        "`HazardError`, Python tasks get read-only arrays for INPUT, and the program may not touch what "
        "calls write before it has waited for them; for debugging. A child Worker has its own.",
        flag,
    )
    track_reads: bool = option(
        False,
        "Whether a task of a run that writes bytes in the host's memory waits for the earlier ones that "
        "read them, as calls do; the design documents leave that order to the program. A child Worker "
        "has its own.",
        flag,
    )
    trace: str | os.PathLike[str] | None = option(
        None,
        "A file into which a trace of all that happens is written, from the start to the end; see "
        "`trace`. None: if the environment variable SIMPLER_REF_TRACE names one, that.",
        file_path,
    )
    trace_detail: str = option(
        "all", '``"all"``, or ``"tasks"``: only what workers do, which costs less.', trace_detail
    )
    hang_report_s: float | None = option(
        None,
        "After how long without the end of a task the log tells who waits for what; None: 30 s.",
        seconds,
    )
    retries: int = option(
        0,
        "How often a task of a run may run again that was lost with an endpoint, or whose result was; "
        "the run then goes on. For calls see ``retries`` of `task`.",
        within(0, 1 << L.HALF),
    )

    @classmethod
    def described(cls) -> str:
        lines = ["Parameters", "----------"]
        for one in fields(cls):
            lines.append(f"{one.name} : {one.type}")
            lines += textwrap.wrap(
                one.metadata["meaning"], 96, initial_indent="    ", subsequent_indent="    "
            )
        return "\n".join(lines)


class Settings(Options):
    """The options of a Worker, each with a value that is in range, of its type, and fits the others."""

    level: int
    num_sub_workers: int
    heap_ring_size: int
    child_mode: str
    device_ids: tuple[int, ...]
    runtime: str | None
    mailbox_depth: int
    trace: str | None

    def __init__(self, given: Options) -> None:
        for one in fields(Options):
            setattr(self, one.name, checked(one, getattr(given, one.name)))
        has_level = self.level is not None
        if not has_level:
            self.level = 3
        if self.num_sub_workers is None:
            self.num_sub_workers = 0 if has_level else find_cores().available
        if self.heap_ring_size is None:
            self.heap_ring_size = L.DEFAULT_HEAP_RING_SIZE
        if self.mailbox_depth is None:
            self.mailbox_depth = 1
        if self.child_mode is None:  # the one chip of level 2 is in the process
            in_process = self.level == 2 and self.start_method is None
            self.child_mode = "thread" if in_process else "process"
        self.device_ids = self._devices()
        self._require_fitting()

    def _devices(self) -> tuple[int, ...]:
        given: Any = self.device_ids
        if self.level == 2:
            if self.num_sub_workers or given:
                raise ValueError(
                    "a level 2 Worker is one chip: it has a device_id, no device_ids and no "
                    "num_sub_workers"
                )
            given = (0 if self.device_id is None else self.device_id,)
        elif self.device_id is not None:
            raise ValueError(
                f"device_id={self.device_id!r} is for level 2; a level 3 Worker has device_ids"
            )
        return chips("device_ids", given)

    def _require_fitting(self) -> None:
        """Refuse values that do not fit each other."""
        if self.start_method is not None and self.child_mode == "thread":
            raise ValueError(
                f"start_method={self.start_method!r} is for processes, and child_mode='thread' makes "
                "none: leave one out"
            )
        if self.retries and self.level < 4:
            raise ValueError(
                f"retries={self.retries} is for tasks of endpoints, which a Worker of level {self.level} "
                "does not have: give fleet=ProcessFleet(); calls have retries= of task"
            )

    def require_chips_of_level(self) -> None:
        if self.level > 3 and self.device_ids:
            raise RuntimeError(
                f"device_ids are only supported on L3, and this Worker has level {self.level}: give "
                f"device_ids={list(self.device_ids)} to a level 3 Worker, and that to add_worker"
            )


def require_options(given: Mapping[str, Any]) -> None:
    """Refuse options that no Worker of level 3 has, and values that are out of range."""
    known = {one.name: one for one in fields(Options) if one.name != "level"}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{name!r} is no option of a Worker; these are {', '.join(known)}")
        checked(known[name], value)


class Option(Generic[T]):
    """An attribute of a Worker: the value of the option of that name, to read."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, worker: Any, _owner: type) -> T:
        return self if worker is None else getattr(worker._life.options, self._name)  # type: ignore[return-value]

    def __set__(self, worker: Any, value: T) -> NoReturn:
        raise AttributeError(
            f"{self._name} is fixed when a Worker is made: Worker({self._name}={value!r}, …)"
        )
