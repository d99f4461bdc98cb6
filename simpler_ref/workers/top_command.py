"""``python -m simpler_ref top PID``: ask a running process what its Workers do, again and again.

Rule     SEE-TOP-1, SEE-TOP-4, SEE-TOP-8
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from .top import Row, Top, from_data
from .top_server import FORMAT, NAME, peer_of

DEADLINE_S = 5.0
"""How long an answer may take. The thread that answers needs the lock of the interpreter."""
_CHUNK = 1 << 16
_CLEAR = "\x1b[H\x1b[J"
"""Tells a terminal to begin again in its upper left corner."""
_LONGEST_S = 86400.0
"""Bound of `--interval`."""


def main(arguments: Sequence[str]) -> int:
    """Print tables until the process ends or Ctrl-C comes, as the options say; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simpler_ref top",
        description="Show what the open Workers of a running process do: the task of each worker and how "
        "long it has run, what waits for what, and what is in use of the rings. It ends with the "
        "process, or with Ctrl-C.",
    )
    parser.add_argument("pid", type=int, help="the process of the program, which must be yours")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    parser.add_argument("--once", action="store_true", help="look once, for scripts")
    given = parser.parse_args(arguments)
    try:
        return _show(given.pid, given.once, given.interval)
    except NoAnswerError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 0


def _show(pid: int, once: bool, interval: float) -> int:
    print(_table(pid, once), flush=True)
    while not once:
        time.sleep(interval)
        try:
            text = _table(pid, once)
        except SilentError as error:  # it may answer later
            text = f"\n{error}"
        except NoAnswerError as error:  # it has ended
            print(error)
            return 0
        print(text, flush=True)
    return 0


def _table(pid: int, once: bool) -> str:
    """Return the tables of a process, for a terminal to show in place of the last ones."""
    text = "\n\n".join(map(str, ask(pid, DEADLINE_S)))
    if once:
        return text
    return _CLEAR + text if sys.stdout.isatty() else text + "\n"


def _seconds(text: str) -> float:
    """Return a time that is above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0 and below a day")
    return seconds


# ---------------------------------------------------------------- asking another process
class NoAnswerError(Exception):
    """A process does not say what its Workers do; the text says why."""


class SilentError(NoAnswerError):
    """It has not answered in time."""


def ask(pid: int, deadline_s: float = DEADLINE_S) -> list[Top]:
    """Return what the Workers of a process do, with those of their child Workers' processes.

    Raises
    ------
    NoAnswerError
        There is no such process, it belongs to another user, it has no open Worker, it ends, or it does
        not answer in time.
    """
    until = time.monotonic() + deadline_s
    _require_mine(pid)
    found = _ask(pid, until)
    if found:
        return [complete(one, until) for one in found]
    text = f"process {pid} has no open Worker whose workers are started"
    for above in _ancestors(pid):
        with suppress(NoAnswerError):
            if _ask(above, until):
                text += f"; process {above}, above it, has one: `python -m simpler_ref top {above}`"
                break
    raise NoAnswerError(text)


def complete(found: Top, until: float | None = None) -> Top:
    """Return it with what the Workers in the processes of its workers do."""
    until = time.monotonic() + DEADLINE_S if until is None else until
    return replace(found, workers=tuple(_with_children(row, until) for row in found.workers))


def _with_children(row: Row, until: float) -> Row:
    children: Sequence[Top] = row.children
    if row.pid is not None:
        try:
            children = _ask(row.pid, until)
        except SilentError:
            return replace(row, silent=True)
        except NoAnswerError:  # it has just ended
            return row
    return replace(row, children=tuple(complete(one, until) for one in children))


def _require_mine(pid: int) -> None:
    """Refuse a process that does not exist, or is another user's."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
        if _status(pid)[0] == "Z":  # its parent has not noticed yet
            raise ProcessLookupError
    except OSError:
        raise NoAnswerError(f"there is no process {pid}") from None
    if owner != os.geteuid():
        raise NoAnswerError(
            f"process {pid} belongs to user {owner}, and this is user {os.geteuid()}: a process answers "
            "its own user only"
        )


def _ask(pid: int, until: float) -> Sequence[Top]:
    """Return what the Workers of one process do; nothing if it has none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            raw = _read(connection, pid, until)
        except (TimeoutError, BlockingIOError):
            raise SilentError(
                f"process {pid} does not answer: it is stopped, or one of its threads is in native code "
                f"that keeps the lock of the interpreter. `py-spy dump --native --pid {pid}` shows where"
            ) from None
        except OSError:  # nobody has the name
            return ()
    if not raw:
        return ()
    try:
        told: dict[str, Any] = json.loads(raw)
    except ValueError:
        raise NoAnswerError(f"process {pid} has ended while it was asked") from None
    if told["format"] != FORMAT:
        raise NoAnswerError(
            f"process {pid} has another version of simpler_ref, which answers in another format: use the "
            "`python -m simpler_ref top` of its environment"
        )
    if "error" in told:
        raise NoAnswerError(f"process {pid} could not look at its Workers: {told['error']}")
    return [from_data(one) for one in told["workers"]]


def _read(connection: socket.socket, pid: int, until: float) -> bytes:
    """Return the answer, empty if it is that of a process which only says that it is `pid`."""
    raw = b""
    connection.settimeout(max(0.001, until - time.monotonic()))
    connection.connect(NAME.format(pid=pid))
    if peer_of(connection)[0] != pid:
        return raw
    while True:
        connection.settimeout(max(0.001, until - time.monotonic()))
        chunk = connection.recv(_CHUNK)
        if not chunk:
            return raw
        raw += chunk


def _status(pid: int) -> list[str]:
    """Return what the system says of a process, from its state on."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has just ended
        while pid > 1:
            pid = int(_status(pid)[1])
            found.append(pid)
    return found
