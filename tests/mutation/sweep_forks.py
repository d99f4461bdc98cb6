"""Runs tests in forks of one process that has read and collected everything: a mutant costs no start.

Interpreted kernels are plain functions, so a fork becomes a mutant when one function gets other code; all
modules that hold the function see it. Processes that the tests start with a new interpreter do not.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from simpler_ref.workers.fork_server import die_with_parent

from .sweep_changes import Mutant, code_of, is_of

STEP = struct.Struct("<ii")
"""What a fork tells: the number of a step, and whether it passed."""

END_S = 20.0
"""How long a fork may take to end after its last step."""


class Step(NamedTuple):
    """A test to be run: it answers whether it passed."""

    name: str
    limit_s: float
    run: Callable[[Step | None], bool]
    """Called with the step that follows."""
    item: Any = None
    """The test as pytest has collected it."""


class Failure(NamedTuple):
    """The first of some steps that did not pass."""

    index: int
    hung: bool


# ---------------------------------------------------------------- one fork
def first_failure(steps: Sequence[Step], prepare: Callable[[], None]) -> Failure | None:
    """Run steps in a fork, one after the other, until one fails, dies or hangs."""
    from ..conftest import processes  # once pytest has made it ready

    before = set(processes())
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_all(steps, prepare, writes)
    os.close(writes)
    try:
        failure = _follow(steps, reads)
        if failure is None:
            _let_end(pid)
        return failure
    finally:
        os.close(reads)
        os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number is its own
        os.waitpid(pid, 0)
        for left in set(processes()) - before:
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


def _follow(steps: Sequence[Step], reads: int) -> Failure | None:
    for index, step in enumerate(steps):
        if not select.select([reads], [], [], step.limit_s)[0]:
            return Failure(index, hung=True)
        told = os.read(reads, STEP.size)
        if len(told) < STEP.size or STEP.unpack(told) != (index, 1):
            return Failure(index, hung=False)
    return None


def _let_end(pid: int) -> None:
    """Give a fork that has told everything time to end by itself."""
    watched = os.pidfd_open(pid)
    select.select([watched], [], [], END_S)
    os.close(watched)


def _run_all(steps: Sequence[Step], prepare: Callable[[], None], writes: int) -> None:
    """Run steps and say of each whether it passed; never return."""
    try:
        die_with_parent()
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nowhere, fd)
        prepare()
        for index, step in enumerate(steps):
            after = steps[index + 1] if index + 1 < len(steps) else None
            passed = step.run(after)
            os.write(writes, STEP.pack(index, passed))
            if not passed:
                break
    finally:
        os._exit(0)


# ---------------------------------------------------------------- one mutant
class Verdict(NamedTuple):
    """What became of a mutant."""

    caught_by: str
    """The test that noticed it, empty if none did."""
    hung: bool = False
    seconds: float = 0.0
    unreliable: tuple[str, ...] = ()
    """Tests that failed with the mutant, and then without it as well."""


def judge(steps: Sequence[Step], prepare: Callable[[], None]) -> Verdict:
    """Run tests with a mutant until one notices it: it fails with the mutant, and not without."""
    start = time.monotonic()
    unreliable: list[str] = []
    while steps:
        failure = first_failure(steps, prepare)
        if failure is None:
            break
        step = steps[failure.index]
        if first_failure([step], lambda: None) is None:
            return Verdict(step.name, failure.hung, time.monotonic() - start, tuple(unreliable))
        unreliable.append(step.name)
        steps = steps[failure.index + 1 :]
    return Verdict("", False, time.monotonic() - start, tuple(unreliable))


def function_of(mutant: Mutant, module: ModuleType) -> FunctionType | None:
    """Return the function that a mutant changes, or None if the interpreted module has none."""
    holders = [module, *(value for value in vars(module).values() if isinstance(value, type))]
    for value in [value for holder in holders for value in vars(holder).values()]:
        function = getattr(value, "__func__", value)
        if not isinstance(function, FunctionType):
            continue
        code = function.__code__
        if is_of(code, mutant) and code.co_filename == module.__file__:
            return function
    return None


def become(mutant: Mutant, module: ModuleType) -> None:
    """Give a function of this process the code of a mutant, for good."""
    function = function_of(mutant, module)
    if function is None:
        raise ValueError(f"{module.__name__} has no function {mutant.key.function}")
    function.__code__ = code_of(mutant, str(module.__file__))
