"""Asks another process what its Workers do; see `answering.py`.

Rule     SEE-TOP-1, -4, -5, -7
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from . import answering, top

DEADLINE_S = 5.0
"""How long an answer may take. The thread that answers needs the lock of the interpreter."""
_CHUNK = 1 << 16
_NAME = re.compile("@(" + re.escape(answering.NAME).replace(r"\{pid\}", "([0-9]+)") + "[0-9a-f]+)")


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
        if answering.peer_of(connection)[0] != pid:
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
    if told["format"] != answering.FORMAT:
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
