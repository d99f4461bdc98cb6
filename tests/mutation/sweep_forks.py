"""Runs tests in forks of one process that has read and collected everything: a mutant costs no start."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from simpler_ref.workers.fork_server import die_with_parent

STEP = struct.Struct("<ii")
"""What a fork tells: the number of a step, and whether it passed."""

END_S = 20.0
"""How long a fork may take to end after its last step."""

PR_SET_CHILD_SUBREAPER = 36


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
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def adopt_orphans() -> None:
    """Have what forks leave behind become children of this process, so that it can end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _spare_others() -> None:
    """Keep a mutant with a wrong number from killing every process there is."""
    kill = os.kill

    def kill_one(pid: int, number: int) -> None:
        if pid in (-1, 1):
            raise PermissionError(f"a mutant must not kill {pid}")
        kill(pid, number)

    os.kill = kill_one


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
        _spare_others()
        prepare()
        for index, step in enumerate(steps):
            passed = step.run(steps[index + 1] if index + 1 < len(steps) else None)
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
