"""One session as a subprocess: how it is started, announces itself, ends, and what it says when it fails.

The manifest goes to its standard input as one line, whose end of file ends the session: so it ends with
the process that has started it, however that ends. The announcement comes from its standard output.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO

from ..errors import RemoteError, describe_status
from ..system.polling import wait_readable
from ..version import __version__
from .manifest import Announcement, Manifest, from_line, to_line

TAIL_CHARACTERS = 4000
"""How much of what a session prints on stderr is kept for messages."""
TAIL_LINES = 20
LAST_S = 1.0
"""How long to wait for the status and the last lines of a session whose pipe has ended."""
TICK_S = 0.1
TRACEBACK = "Traceback (most recent call last)"
MISSING = re.compile("No module named '?(simpler_ref|numba|numpy|zmq)")
EVERYWHERE = re.compile(r"(?<=//)(0\.0\.0\.0|\*|\[::\])(?=:)")


class Place(ABC):
    """Where a session runs, as the process that has asked for it sees it.

    Attributes
    ----------
    name : str
        For messages: ``endpoint 2 on node7 (pid 123)``.
    announcement : Announcement
        Where the session is reached.
    """

    name: str
    announcement: Announcement

    @abstractmethod
    def why(self) -> str:
        """Return why the session has ended, with its last lines; "" while it lives."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait until the session has ended; return whether it has."""

    @abstractmethod
    def stop(self, timeout_s: float) -> None:
        """End the session, by force if it takes longer than this, and free what belongs to the place."""


class SessionProcess(Place):
    """A session that is a child of this process, or of an ``ssh`` that is.

    Parameters
    ----------
    command : sequence of str
        Starts it. It becomes the leader of a group of its own, so that Ctrl-C does not reach it.
    manifest : Manifest
        What the session is handed.
    host : str
        The machine; "" for this one.

    Raises
    ------
    RemoteError
        The command cannot be started.
    """

    def __init__(self, command: Sequence[str], manifest: Manifest, host: str = "") -> None:
        self.command, self.host, self._manifest = list(command), host, manifest
        self.name = f"endpoint {manifest.endpoint_id} on {host or 'this machine'}"
        self._deadline = time.monotonic() + manifest.start_timeout_s
        self._read = b""
        try:
            self._process = subprocess.Popen(
                self.command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            raise RemoteError(
                f"{self.name} cannot be started: {error}; is {self.command[0]!r} installed here?"
                + ("" if host else " Name another Python with python=")
            ) from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._tail = Tail(self._process.stderr)
        with suppress(
            BrokenPipeError
        ):  # it has ended already, which is found when it is waited for
            self._stdin.write(to_line(manifest).encode() + b"\n")

    def fileno(self) -> int:
        """Return what is readable when `announced` is worth a call; later, when the session has ended."""
        return self._pidfd if self._stdout.closed else self._stdout.fileno()

    def started(self) -> SessionProcess:
        """Wait until the session has announced itself, and return this; or stop it.

        Raises
        ------
        RemoteError
            See `announced`.
        """
        try:
            while not self.announced(TICK_S):
                pass
        except BaseException:
            self.stop(0)
            raise
        return self

    def announced(self, timeout_s: float) -> bool:
        """Return whether the session has announced itself, after at most that time.

        Raises
        ------
        RemoteError
            It has ended, or its time is over; with its last lines.
        """
        if self._stdout.closed:
            return True
        over = self._process.poll() is not None or time.monotonic() >= self._deadline
        if wait_readable([self.fileno()], 0 if over else timeout_s):
            read = os.read(self._stdout.fileno(), 1 << 16)
            *lines, self._read = (self._read + read).split(b"\n")
            if any(self._is_announcement(line) for line in lines):
                self._stdout.close()
                return True
            if read:
                return False
            self.wait(LAST_S)
            over = True
        if over:
            raise self._failed_start()
        return False

    def _is_announcement(self, line: bytes) -> bool:
        """Note the announcement; show any other line, such as one that a login shell prints."""
        try:
            found = from_line(Announcement, line)
        except ValueError:
            self._tail.add(line.decode(errors="backslashreplace") + "\n")
            return False
        self.announcement = reached_at(found, self.host)
        where = f" on {found.host}" if self.host not in ("", found.host) else ""
        self.name += f" (pid {found.pid}{where})"
        return True

    def _failed_start(self) -> RemoteError:
        status = self._process.poll()
        if status is None:
            limit = self._manifest.start_timeout_s
            return RemoteError(
                f"{self.name} did not start within {limit} s: give start_timeout_s= a larger value, or "
                f"look for what it waits for{_quoted(self._tail.text(0))}"
            )
        text = self._tail.text(LAST_S)
        return RemoteError(
            f"{self.name} {describe_status(status)} while it was started"
            f"{_remedy(status, text, self.host)}{_quoted(_without_traceback(text))}"
        )

    def why(self) -> str:
        """Return why the session has ended, with its last lines; "" while it lives."""
        status = self._process.poll()
        if status is None:
            return ""
        return describe_status(status) + _quoted(self._tail.text(LAST_S))

    def wait(self, timeout_s: float) -> bool:
        """Wait until the session has ended; return whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def end(self) -> None:
        """Tell the session to end."""
        with suppress(OSError):
            self._stdin.close()

    def stop(self, timeout_s: float) -> None:
        """End the session, and kill it with its workers if it takes longer than this."""
        self.end()
        if not self.wait(timeout_s):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stdout.close()
        self._tail.text(LAST_S)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class Tail:
    """Copies what a session prints to this process's stderr, and keeps the last of it.

    Parameters
    ----------
    stream : file
        Read, and closed, by a thread.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, ""
        self._thread = threading.Thread(target=self._copy, name="simpler-tail", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        with self._stream as stream:
            while raw := os.read(stream.fileno(), 1 << 16):
                self.add(decoder.decode(raw))

    def add(self, text: str) -> None:
        """Show text, and keep it."""
        self._kept = (self._kept + text)[-TAIL_CHARACTERS:]
        with suppress(OSError, ValueError, AttributeError):  # nobody may be there to read it
            sys.stderr.write(text)
            sys.stderr.flush()

    def text(self, timeout_s: float) -> str:
        """Return the last lines, once the stream has ended or this time is over."""
        self._thread.join(timeout_s)
        return "\n".join(self._kept.strip().splitlines()[-TAIL_LINES:])


def _quoted(text: str) -> str:
    return f": {text}" if text else ""


def _without_traceback(text: str) -> str:
    """Return the last line of a traceback, all of which has been shown, or a text without one."""
    return text.splitlines()[-1] if TRACEBACK in text else text


def _remedy(status: int, text: str, host: str) -> str:
    there = f"on {host}" if host else "here"
    if MISSING.search(text):
        return f"; install simpler_ref[remote] {there}, or name a Python that has it with python="
    if host and status == 255:
        return f"; `ssh {host} true` must work without a password"
    if status in (126, 127):
        return f"; name a Python {there} with python="
    return ""


def reached_at(announcement: Announcement, host: str) -> Announcement:
    """Return an announcement in which a host stands for "all interfaces"."""
    if not host:
        return announcement
    host = host.rpartition("@")[2]
    frames, health, tensors = (
        EVERYWHERE.sub(host, address)
        for address in (announcement.frames, announcement.health, announcement.tensors)
    )
    return replace(announcement, frames=frames, health=health, tensors=tensors)


def read_manifest(line: str | bytes) -> Manifest:
    """Return what a parent has handed over.

    Raises
    ------
    RemoteError
        The parent has another version of this package, whose manifest may have other fields.
    ValueError
        It is no manifest.
    """
    with suppress(ValueError, TypeError, KeyError):
        version = json.loads(line)["version"]
        if version != __version__:
            raise RemoteError(
                f"the parent has simpler_ref {version}, this endpoint has {__version__}: install the "
                "same version on both"
            )
    return from_line(Manifest, line)
