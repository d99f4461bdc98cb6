"""Runs pytest again and again, each time in a process forked from this one, which has imported the rest.

A line on stdin is a list in JSON: pytest's arguments, the file for what it prints, and the seconds it may
take. The line on stdout that answers it says that no process of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress

import cloudpickle  # noqa: F401
import hypothesis.stateful  # noqa: F401
import numba  # noqa: F401
import psutil  # noqa: F401
import pytest


def run(arguments: list[str], log: str) -> int:
    """Be a program of its own that runs pytest."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    return pytest.main(arguments)


def end(pid: int, seconds: float) -> None:
    """Wait for a program, as long as it may take; end what is left of it then."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):  # not waited for yet, so the group is still its own
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main() -> None:
    del sys.path[0]  # the folder of this file
    while line := sys.stdin.readline():
        arguments, log, seconds = json.loads(line)
        pid = os.fork()
        if pid == 0:
            sys.exit(run(arguments, log))
        end(pid, seconds)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
