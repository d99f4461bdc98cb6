"""The options of a Worker: each value is checked once, and the error names it and the remedy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, NoReturn, TypeVar

from ..jit import layout as L
from ..system.regions import default_size
from ..system.values import file_path, flag, number, seconds, text, whole
from ..trace.recorder import DETAILS
from .start_method import check_start_method

T = TypeVar("T")

CHILD_MODES = ("process", "thread")
DEFAULT_ARENA_SIZE = default_size(1 << 32, 1 << 40)
MOST_WORKERS = 1024
"""Of one pool."""
MOST_LEVELS = 1024
"""The highest level: each has a Worker of its own."""


# ---------------------------------------------------------------- one value
def _optional(name: str, value: Any, check: Callable[..., Any], *limits: Any) -> Any:
    return None if value is None else check(name, value, *limits)


def _level(_name: str, value: Any) -> int:
    if not hasattr(value, "__index__") or not 2 <= operator.index(value) <= MOST_LEVELS:
        raise ValueError(
            f"level {value!r:.60} not supported: a Worker has a level from 2 to {MOST_LEVELS}"
        )
    return operator.index(value)


def chips(given: Any) -> tuple[int, ...]:
    """Return the numbers of chips, once they are found to be right."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"device_ids={given!r}: give a sequence of numbers, [0] for one chip")
    ids = tuple(whole("device_id", one, 0, 1 << 20) for one in given)
    if len(set(ids)) != len(ids):
        raise ValueError(f"device_ids={list(ids)} names a device twice")
    if len(ids) > MOST_WORKERS:
        raise ValueError(f"{len(ids)} device_ids are too many: at most {MOST_WORKERS}")
    return ids


def _child_mode(name: str, value: Any) -> str:
    if value not in CHILD_MODES:
        raise ValueError(f"{name}={value!r}: it is 'process' or 'thread'")
    return str(value)


def trace_detail(name: str, value: Any) -> str:
    """Return how much a trace notes, once it is found to be right."""
    if value not in tuple(DETAILS):
        raise ValueError(f"{name}={value!r}: it is 'all', or 'tasks': only what workers do")
    return str(value)


def _checked(check: Callable[..., Any], *limits: Any) -> Any:
    """Return a field whose value ``check(name, value, *limits)`` checks and converts."""
    return field(metadata={"check": lambda name, value: check(name, value, *limits)})


# ---------------------------------------------------------------- all of them
@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a Worker; `Worker` describes each.

    Raises
    ------
    ValueError, TypeError
        A value is out of range or of the wrong type, or does not fit another.
    """

    level: int = _checked(_level)
    num_sub_workers: int = _checked(whole, 0, MOST_WORKERS)
    heap_ring_size: int = _checked(whole, 1, 1 << 44)
    alloc_timeout_s: float = _checked(seconds)
    ring_depth: int = _checked(whole, 1, L.MAX_RING_DEPTH)
    task_window: int | None = _checked(_optional, whole, 1, 1 << 26)
    arena_size: int = _checked(whole, 1, 1 << 44)
    values_size: int = _checked(whole, 1, 1 << 40)
    start_timeout_s: float = _checked(seconds)
    py_control_timeout_s: float = _checked(seconds)
    mailbox_depth: int = _checked(whole, 1, L.MAX_DEPTH)
    pin: bool = _checked(flag)
    spin_us: float | None = _checked(_optional, number, 1_000_000)
    check: bool = _checked(flag)
    track_reads: bool = _checked(flag)
    trace: str | None = _checked(_optional, file_path)
    trace_detail: str = _checked(trace_detail)
    retries: int = _checked(whole, 0, 1 << L.HALF)
    hang_report_s: float | None = _checked(_optional, seconds)
    child_mode: str = _checked(_child_mode)
    start_method: str | None
    platform: str = _checked(text)
    runtime: str | None = _checked(_optional, file_path)
    device_id: int | None
    device_ids: Sequence[int]

    def __post_init__(self) -> None:
        for one in fields(self):
            if check := one.metadata.get("check"):
                object.__setattr__(self, one.name, check(one.name, getattr(self, one.name)))
        check_start_method(self.start_method, self.child_mode)
        object.__setattr__(self, "device_ids", self._devices())

    def _devices(self) -> tuple[int, ...]:
        """Return the requested devices, a worker each.

        Rule     WM-CHIP-1, -6
        """
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
        return chips(given)

    @property
    def in_process(self) -> bool:
        """Whether this is one chip, in the program's process, for which all its memory will do."""
        return self.level == 2 and self.child_mode == "thread"

    def require_chips_of_level(self) -> None:
        """Refuse chips above level 3.

        Raises
        ------
        RuntimeError
            There are `device_ids` on a level that has none.

        Notes
        -----
        Rule     WM-CHIP-6
        """
        if self.level > 3 and self.device_ids:
            raise RuntimeError(
                f"device_ids are only supported on L3, and this Worker has level {self.level}: give "
                f"device_ids={list(self.device_ids)} to a level 3 Worker, and that to add_worker"
            )


def require_options(given: Mapping[str, Any]) -> None:
    """Refuse options that no Worker of level 3 has, and values that are out of range.

    Raises
    ------
    ValueError, TypeError
        The error names the option.
    """
    checks = {one.name: one.metadata.get("check") for one in fields(Options) if one.name != "level"}
    for name, value in given.items():
        if name not in checks:
            raise TypeError(f"{name!r} is no option of a Worker; these are {', '.join(checks)}")
        if check := checks[name]:
            check(name, value)


class Option(Generic[T]):
    """An attribute of a Worker: the value of the option of that name, to read."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, worker: Any, _owner: type) -> T:
        return self if worker is None else getattr(worker._options, self._name)  # type: ignore[return-value]

    def __set__(self, worker: Any, value: T) -> NoReturn:
        raise AttributeError(
            f"{self._name} is fixed when a Worker is made: Worker({self._name}={value!r}, …)"
        )
