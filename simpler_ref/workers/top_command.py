"""``python -m simpler_ref top PID``: ask a running process what its Workers do, again and again.

Rule     SEE-TOP-1, -4, -8
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from . import top, top_server

DEADLINE_S = 5.0
"""How long an answer may take. The thread that answers needs the lock of the interpreter."""
_CHUNK = 1 << 16
_NAME = re.compile("@(" + re.escape(top_server.NAME).replace(r"\{pid\}", "([0-9]+)") + "[0-9a-f]+)")
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


def ask(pid: int, deadline_s: float = DEADLINE_S) -> list[top.Top]:
    """Return what the Workers of a process do, with those of their child Workers' processes.

    Raises
    ------
    NoAnswerError
        There is no such process, it belongs to another user, it has no open Worker, it ends, or it does
        not answer in time.
    """
    until = time.monotonic() + deadline_s
    names = _names()
    _require(pid, names)
    return [complete(one, names, until) for one in _ask(pid, names, until)]


def complete(
    found: top.Top, names: dict[int, list[str]] | None = None, until: float | None = None
) -> top.Top:
    """Return it with what the Workers in the processes of its workers do."""
    names = _names() if names is None else names
    until = time.monotonic() + DEADLINE_S if until is None else until
    return replace(found, workers=tuple(_with_below(row, names, until) for row in found.workers))


def _with_below(row: top.Row, names: dict[int, list[str]], until: float) -> top.Row:
    below = row.below
    if row.pid is not None and row.pid in names:
        try:
            below = tuple(_ask(row.pid, names, until))
        except SilentError:
            return replace(row, silent=True)
        except NoAnswerError:  # it has just ended
            return row
    return replace(row, below=tuple(complete(one, names, until) for one in below))


# ---------------------------------------------------------------- one process
def _names() -> dict[int, list[str]]:
    """Return the names of the sockets on which processes answer."""
    found: dict[int, list[str]] = {}
    with open("/proc/net/unix", errors="replace") as sockets:
        for name, pid in _NAME.findall(sockets.read()):
            found.setdefault(int(pid), []).append(name)
    return found


def _ask(pid: int, names: dict[int, list[str]], until: float) -> list[top.Top]:
    silent = False
    for name in dict.fromkeys(names.get(pid, [])):  # connections have the same name
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            raw = _read(connection, name, pid, until)
        if raw:
            return _understand(pid, raw)
        silent |= raw is None
    if silent:
        raise SilentError(
            f"process {pid} does not answer: it is stopped, or one of its threads is in native code "
            f"that keeps the lock of the interpreter. `py-spy dump --native --pid {pid}` shows where"
        )
    raise NoAnswerError(f"process {pid} has no open Worker any more")


def _read(connection: socket.socket, name: str, pid: int, until: float) -> bytes | None:
    """Return the answer, None if it does not come in time.

    It is empty if the socket is gone, or that of a process which only says that it is `pid`.
    """
    chunks: list[bytes] = []
    try:
        connection.settimeout(max(0.001, until - time.monotonic()))
        connection.connect("\0" + name)
        if top_server.peer_of(connection)[0] != pid:
            return b""
        while True:
            connection.settimeout(max(0.001, until - time.monotonic()))
            chunk = connection.recv(_CHUNK)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
    except (TimeoutError, BlockingIOError):
        return None
    except OSError:
        return b""


def _understand(pid: int, raw: bytes) -> list[top.Top]:
    try:
        told: dict[str, Any] = json.loads(raw)
    except ValueError:
        raise NoAnswerError(f"process {pid} has ended while it was asked") from None
    if told["format"] != top_server.FORMAT:
        raise NoAnswerError(
            f"process {pid} has another version of simpler_ref, which answers in another format: use the "
            "`python -m simpler_ref top` of its environment"
        )
    if "error" in told:
        raise NoAnswerError(f"process {pid} could not look at its Workers: {told['error']}")
    if not told["workers"]:
        raise NoAnswerError(f"process {pid} has no open Worker any more")
    return [top.from_data(one) for one in told["workers"]]


def _require(pid: int, names: dict[int, list[str]]) -> None:
    """Refuse a process that cannot answer, and say why."""
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
    if pid in names:
        return
    text = f"process {pid} has no open Worker whose workers are started"
    above = next((one for one in _ancestors(pid) if one in names), None)
    if above is not None:
        text += f"; process {above}, above it, has one: `python -m simpler_ref top {above}`"
    raise NoAnswerError(text)


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
