"""What is measured: every figure, its target, what the original needs; and how values are summed up."""

from __future__ import annotations

import statistics
from typing import NamedTuple

UNITS = {
    "µs": 1e6,
    "ms": 1e3,
    "GB/s": 1e-9,
    "bytes": 1.0,
    "MiB": 1.0 / (1 << 20),
    "%": 100.0,
    "×": 1.0,
    "tasks": 1.0,
}
"""What a value, in seconds, bytes, or as a share, is multiplied by to be shown in a unit."""


DISTURBED = 0.05
"""Share of the cores' time used by other programs, from which a run says so."""


class Figure(NamedTuple):
    """One line of the table."""

    section: str
    title: str
    unit: str = "µs"
    target: float | None = None
    """The most it may be (the least, if more is better), in `unit`, on a machine with two cores."""
    original: float | None = None
    """The best the original reaches on such a machine, whatever its version and worker count."""
    more_is_better: bool = False
    grain: float = 0.0
    """The smallest step it can take, in `unit`: memory may come in huge pages."""
    informative: bool = False
    """It says something about the machine or about chance: no target, never a regression."""

    def is_time(self) -> bool:
        """Say whether it can be put as a multiple of the floor."""
        return self.unit in ("µs", "ms")

    def meets_target(self, value: float) -> bool | None:
        """Say whether a value reaches the target; None without a target."""
        if self.target is None:
            return None
        return value >= self.target if self.more_is_better else value <= self.target

    def times_better(self, value: float) -> float | None:
        """Return how many times better than the original a value is."""
        if self.original is None or not value:
            return None
        return value / self.original if self.more_is_better else self.original / value


FLOOR = "floor"

FIGURES: dict[str, Figure] = {
    FLOOR: Figure("floor", "one word to the other process and back", informative=True),
    "floor_two_lines": Figure(
        "floor", "the same, a cache line each way, no pause", informative=True
    ),
    # time in the orchestration function, divided by the tasks it submits
    "submit_0": Figure("submit", "no arguments"),
    "submit_1": Figure("submit", "one tensor", target=1.0, original=1.9),
    "submit_1_two_workers": Figure("submit", "one tensor, 2 workers", target=1.0, original=1.9),
    "submit_3": Figure("submit", "three tensors", target=1.3),
    "submit_1_array": Figure("submit", "one numpy array"),
    "submit_3_array": Figure("submit", "three numpy arrays"),
    # kernels only, no other core
    "alone_submit_1": Figure("one thread", "submit kernel, one tensor"),
    "alone_pass_1": Figure("one thread", "wire, dispatch, collect, one tensor"),
    "alone_submit_3": Figure("one thread", "submit kernel, three tensors"),
    "alone_pass_3": Figure("one thread", "wire, dispatch, collect, three tensors"),
    # time of Worker.run, divided by its tasks
    "chain_1": Figure("run", "chain of dependent tasks, 1 worker", target=2.0, original=12.7),
    "chain_2": Figure("run", "chain of dependent tasks, 2 workers", target=2.0, original=12.7),
    "independent_1": Figure("run", "independent tasks, 1 worker", target=1.5, original=9.4),
    "independent_2": Figure("run", "independent tasks, 2 workers", target=1.5, original=9.4),
    "own_buffer_1": Figure(
        "run", "independent tasks with a tensor each, 1 worker", target=1.5, original=9.4
    ),
    "stencil_1": Figure("run", "stencil, 1 worker", target=3.0, original=19.6),
    "stencil_2": Figure("run", "stencil, 2 workers", target=3.0, original=19.6),
    "empty_run": Figure("run", "empty run", target=10.0, original=1.3),
    "run_of_one": Figure("run", "run of one task after another", target=12.0, original=43.0),
    "alloc": Figure("run", "heap alloc and release"),
    # many tasks in one call, recorded graphs: time in the call, and of Worker.run, per task
    "submit_many": Figure("bulk", "many in one call: an array of tensors", target=0.1),
    "submit_many_behind": Figure("bulk", "the same, behind a long task"),
    "submit_many_3": Figure("bulk", "three arrays and a number in one call"),
    "replay_added": Figure("bulk", "replay of a stencil, time to submit", target=0.3),
    "replay_added_0": Figure("bulk", "replay of independent tasks, time to submit"),
    "replay_stencil_1": Figure("bulk", "replay of a stencil, 1 worker"),
    "replay_stencil_2": Figure("bulk", "replay of a stencil, 2 workers"),
    "replay_independent_1": Figure("bulk", "replay of independent tasks, 1 worker"),
    # calls of tasks: time from the first call to the last result, per call or item
    "call_stream": Figure("calls", "no-op calls in a stream of 10⁴, 2 workers", target=4.0),
    "call_alone": Figure("calls", "one call after another", target=12.0),
    "call_compiled_stream": Figure("calls", "compiled no-op calls in a stream of 10⁴, 2 workers"),
    "call_compiled_alone": Figure("calls", "one compiled call after another"),
    "map_values": Figure("calls", "map of 10⁵ no-op items, 2 workers", target=1.0),
    "map_lists": Figure("calls", "the same, each item a list"),
    "map_tiles": Figure("calls", "map over 10⁴ tiles of an array, 2 workers"),
    "executor_stream": Figure("calls", "Executor.submit of 10⁴ no-ops, 2 workers"),
    "executor_alone": Figure("calls", "… one after another"),
    "pool_alone": Figure("calls", "Pool.apply, one after another"),
    "actor_stream": Figure("calls", "10⁴ no-op calls of an actor"),
    "actor_alone": Figure("calls", "… one after another"),
    "call_nested": Figure("calls", "10⁵ calls of a recursion in a task", target=10.0),
    # cost per task by number of tasks
    "held_1e3": Figure("size", "10³ tasks, all held"),
    "held_1e4": Figure("size", "10⁴ tasks, all held"),
    "held_1e5": Figure("size", "10⁵ tasks, all held"),
    "held_1e6": Figure("size", "10⁶ tasks, all held"),
    "held_flat": Figure("size", "10⁶ beside 10³, all held", "×", target=1.25),
    "nested_1e3": Figure("size", "10³ tasks in nested scopes"),
    "nested_1e4": Figure("size", "10⁴ tasks in nested scopes"),
    "nested_1e5": Figure("size", "10⁵ tasks in nested scopes"),
    "nested_1e6": Figure("size", "10⁶ tasks in nested scopes"),
    "nested_flat": Figure("size", "10⁶ beside 10³, nested scopes", "×", target=1.25),
    "windowed_1e6": Figure("size", "10⁶ tasks in nested scopes, task_window=4096"),
    "held_1e6_fresh": Figure("size", "10⁶ tasks, all held, first run of a Worker"),
    # more workers than cores
    "noop_2": Figure("workers", "no-op tasks, 2 workers"),
    "noop_16": Figure("workers", "no-op tasks, 16 workers"),
    "noop_16_over_2": Figure("workers", "no-op tasks, 16 beside 2 workers", "×", target=2.0),
    "busy_2": Figure("workers", "tasks of 50 µs, 2 workers"),
    "busy_16": Figure("workers", "tasks of 50 µs, 16 workers"),
    "busy_16_over_2": Figure("workers", "tasks of 50 µs, 16 beside 2 workers", "×", target=2.0),
    "speed_up": Figure(
        "workers", "tasks of 1 ms, speed-up by a second worker", "×", more_is_better=True
    ),
    # kinds of workers: what one task after another costs, there and back
    "leaf_process": Figure("kinds", "Python leaf in a process"),
    "leaf_thread": Figure("kinds", "Python leaf in a thread"),
    "chip_process": Figure("kinds", "chip callable that does nothing, chip in a process"),
    "chip_thread": Figure("kinds", "chip callable that does nothing, chip in a thread"),
    "kernel_process": Figure("kinds", "chip callable that launches one block, chip in a process"),
    "nested_process": Figure("kinds", "orchestration function of a nested Worker, in a process"),
    "nested_thread": Figure("kinds", "orchestration function of a nested Worker, in a thread"),
    "nested_leaf": Figure("kinds", "the same with one Python leaf below, all in processes"),
    "group_2": Figure("kinds", "group of two Python leaves", original=9.5),
    "group_2_thread": Figure("kinds", "group of two Python leaves, in threads"),
    "control": Figure("kinds", "device malloc and free"),
    "register_before": Figure("kinds", "register, before the start"),
    "register_after": Figure("kinds", "register and unregister, 2 workers running"),
    # life of a Worker
    "import": Figure("life", "fresh process: import simpler_ref", "ms"),
    "ready": Figure("life", "fresh process: construct until ready, 2 workers", "ms"),
    "start_up": Figure("life", "fresh process: import until ready, 2 workers", "ms"),
    "life_1": Figure("life", "construct to close, warm process, 1 worker", "ms", original=5.0),
    "life_2": Figure("life", "construct to close, warm process, 2 workers", "ms", original=5.0),
    "idle_2": Figure(
        "life", "CPU of an idle Worker, 2 workers", "%", target=0.1, original=100.0, grain=0.01
    ),
    "idle_16": Figure(
        "life", "CPU of an idle Worker, 16 workers", "%", target=0.1, original=100.0, grain=0.01
    ),
    # 64 MiB: time in a task as a multiple of the time in this process, or of later tasks
    "large_read": Figure("64 MiB", "read by a task ÷ read here", "×", target=1.25),
    "large_write": Figure("64 MiB", "written by a task ÷ written here", "×", target=1.25),
    "large_fresh": Figure(
        "64 MiB", "untouched: written by a task ÷ written here", "×", target=1.25
    ),
    "large_first": Figure("64 MiB", "a worker's first write ÷ later ones", "×"),
    "large_first_populated": Figure("64 MiB", "the same with populate=True", "×", target=1.25),
    "large_here": Figure("64 MiB", "first write here ÷ later ones", "×"),
    "large_here_populated": Figure("64 MiB", "the same with populate=True", "×", target=1.25),
    # between sessions over loopback; more than two cores would do more
    "fetch_64": Figure("sessions", "fetch 64 MiB", "GB/s", target=2.0, more_is_better=True),
    "store_64": Figure("sessions", "store 64 MiB", "GB/s", target=2.0, more_is_better=True),
    "fetch_64_curve": Figure(
        "sessions", "fetch 64 MiB, encrypted", "GB/s", target=0.6, more_is_better=True
    ),
    "store_64_curve": Figure(
        "sessions", "store 64 MiB, encrypted", "GB/s", target=0.6, more_is_better=True
    ),
    "fetch_1": Figure("sessions", "fetch one byte"),
    "fetch_1_curve": Figure("sessions", "fetch one byte, encrypted"),
    # at an endpoint of this machine: what a task or a call costs that nothing else overlaps with
    "far_task": Figure("endpoints", "one empty task after another", target=100.0),
    "far_task_curve": Figure("endpoints", "one empty task after another, encrypted", target=150.0),
    "far_call_curve": Figure("endpoints", "one empty call after another, encrypted"),
    # a recorded tiled Cholesky, 2048², float32, tiles of 128; at endpoints columns are theirs in turn
    "cholesky": Figure("spread", "Cholesky, two workers", "ms"),
    "far_cholesky": Figure("spread", "… two endpoints", "ms"),
    "far_cholesky_curve": Figure("spread", "… two endpoints, encrypted", "ms"),
    "spread_cholesky": Figure("spread", "endpoints ÷ workers", "×", target=1.5),
    "spread_cholesky_curve": Figure("spread", "encrypted endpoints ÷ workers", "×", target=1.8),
    # memory
    "live_task": Figure("memory", "parent, per live task of 10⁵", "bytes", grain=20.5),
    "held_growth": Figure("memory", "parent after 10⁶ tasks, all held", "MiB", grain=2.0),
    "nested_growth": Figure(
        "memory", "parent after 10⁶ tasks in nested scopes", "MiB", informative=True
    ),
    "nested_alive": Figure(
        "memory", "… of which this many were alive at once", "tasks", informative=True
    ),
    "windowed_growth": Figure("memory", "the same with task_window=4096", "MiB", grain=2.0),
    "worker_pss": Figure("memory", "one worker process (PSS)", "MiB", original=10.0),
    "worker_own": Figure("memory", "one worker process, not shared with any other", "MiB"),
    "server_pss": Figure("memory", "the process that forks them (PSS)", "MiB"),
}


class Summary(NamedTuple):
    """Many values in one: the middle one, and how far the middle half of them spreads around it."""

    median: float
    spread: float
    """Half the distance between the first and the third quartile."""


def summarise(values: list[float]) -> Summary:
    """Return the median and the spread of at least one value."""
    if len(values) < 2:
        return Summary(values[0], 0.0)
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return Summary(middle, (third - first) / 2)


def number(value: float) -> str:
    """Write a number with about three digits."""
    if value >= 99.95:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
