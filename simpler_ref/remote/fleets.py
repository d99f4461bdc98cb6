"""Fleets start sessions, as processes of this machine or of others by ssh; how a session is one process.

A session is handed a manifest, and announces where it is reached: a line of JSON each. They travel over a
channel that the fleet trusts, never over the connections that they describe. The manifest goes to the
standard input of a session, whose end of file ends it: so it ends with the process that has started it,
however that ends. The announcement comes from its standard output.

Rule     REMOTE-LINK-6
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.spawn import get_executable
from typing import IO, Any

from ..errors import RemoteError, describe_status
from ..system.polling import wait_readable
from ..system.values import filled, texts
from ..version import __version__
from .limits import ANY_MODULE

TAIL_CHARACTERS = 4000
"""How much of what a session prints on stderr is kept for messages."""
TAIL_LINES = 20
LAST_S = 1.0
"""How long to wait for the status and the last lines of a session whose pipe has ended."""
TICK_S = 0.1
TRACEBACK = "Traceback (most recent call last)"
MISSING = re.compile("No module named '?(simpler_ref|numba|numpy|zmq)")
EVERYWHERE = re.compile(r"(?<=//)(0\.0\.0\.0|\*|\[::\])(?=:)")


# ---------------------------------------------------------------- manifest and announcement
@dataclass(frozen=True)
class Manifest:
    """What a session needs to know to begin.

    `session_id` is unlike that of any other session, and never 0; `endpoint_id` is the number among the
    next-level workers of the parent, `version` the parent's of this package. Of the CURVE keys, the
    parent's may alone command the session; all endpoints of the parent share the pair of the group, to
    move tensors. They are empty if the connections are in the open.

    `worker` are keyword arguments of the session's level 3 Worker. Callables may be imported from
    `modules` and those below them; `serialized` ones are accepted or not. On the parent's machine,
    `before` is how many workers of its other endpoints get a core before the first of this session, and
    modules are looked for in `path` first. For `original_names` see `compat.install`.
    """

    session_id: int
    endpoint_id: int
    version: str
    parent_key: str = ""
    group_key: str = ""
    group_secret: str = field(default="", repr=False)
    worker: dict[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    serialized: bool = False
    before: int | None = None
    path: tuple[str, ...] = ()
    original_names: bool = False
    start_timeout_s: float = 60.0
    silence_s: float = 2.0

    @property
    def is_secure(self) -> bool:
        return bool(self.parent_key)


@dataclass(frozen=True)
class Announcement:
    """Where a session is reached, once its sockets are open; it may not be ready yet.

    These are ZeroMQ addresses: of tasks and requests, of signs of life, of tensors. `key` is the
    session's public CURVE key, empty in the open; `host` and `pid` are for messages.
    """

    frames: str
    health: str
    tensors: str
    key: str = ""
    host: str = ""
    pid: int = 0


def allows(upper: str, module: str) -> bool:
    """Say whether one of a manifest's modules is a module, or above it, or any."""
    return upper in (ANY_MODULE, module) or module.startswith(upper + ".")


def to_line(value: Manifest | Announcement) -> str:
    """Return it as one line of JSON, without the end of the line."""
    return json.dumps(asdict(value), separators=(",", ":"))


def from_line(kind: type, line: str | bytes) -> Any:
    """Return what a line says; `ValueError` if it is no JSON, lacks a field, or has another one."""
    try:
        values = json.loads(line)
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"no {kind.__name__.lower()}: {error}: {line[:200]!r}") from None


def read_manifest(line: str | bytes) -> Manifest:
    """Return what a parent has handed over; `ValueError` if it is no manifest.

    One of another version may have other fields, so its `RemoteError` comes first.
    """
    with suppress(ValueError, TypeError, KeyError):
        version = json.loads(line)["version"]
        if version != __version__:
            raise RemoteError(
                f"the parent has simpler_ref {version}, this endpoint has {__version__}: install the "
                "same version on both"
            )
    found: Manifest = from_line(Manifest, line)
    return found


# ---------------------------------------------------------------- a session
class Place(ABC):
    """Where a session runs, as the process that has asked for it sees it."""

    name: str
    """For messages: ``endpoint 2 on node7 (pid 123)``."""
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
    """A session that is a child of this process, or of an ``ssh`` that is, to a host unless that is "".

    It becomes the leader of a group of its own, so that Ctrl-C does not reach it. `RemoteError` if its
    command cannot be started.
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
        with suppress(BrokenPipeError):  # it has ended, which is found when it is waited for
            self._stdin.write(to_line(manifest).encode() + b"\n")

    def fileno(self) -> int:
        """Return what is readable when `announced` is worth a call; later, when the session has ended."""
        return self._pidfd if self._stdout.closed else self._stdout.fileno()

    def started(self) -> SessionProcess:
        """Wait until the session has announced itself, and return this; or stop it: see `announced`."""
        try:
            while not self.announced(TICK_S):
                pass
        except BaseException:
            self.stop(0)
            raise
        return self

    def announced(self, timeout_s: float) -> bool:
        """Return whether the session has announced itself, after at most that time.

        `RemoteError` with its last lines if it has ended, or its time is over.
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
            found: Announcement = from_line(Announcement, line)
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
        last = text.splitlines()[-1] if TRACEBACK in text else text  # all of one has been shown
        return RemoteError(
            f"{self.name} {describe_status(status)} while it was started"
            f"{_remedy(status, text, self.host)}{_quoted(last)}"
        )

    def why(self) -> str:
        status = self._process.poll()
        if status is None:
            return ""
        return describe_status(status) + _quoted(self._tail.text(LAST_S))

    def wait(self, timeout_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def end(self) -> None:
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
    """Copies what a session prints to this process's stderr, on a thread, and keeps the last of it."""

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
    names = "frames", "health", "tensors"
    found: Any = {name: EVERYWHERE.sub(host, getattr(announcement, name)) for name in names}
    return replace(announcement, **found)


# ---------------------------------------------------------------- fleets
SSH = ("ssh", "-o", "BatchMode=yes")
THIS_MACHINE = "127.0.0.1"
INTERFACE = "give an address or interface of that machine, such as 10.0.0.5, eth0 or 0.0.0.0"
_HOSTS = "give a list of names for ssh, or leave it out for processes of this machine"
_COMMAND = "give the words of a command, such as ['ssh', '-p', '2222']"
_PYTHON = "give the path of an interpreter, or leave it out"


class Fleet(ABC):
    """Starts the sessions of endpoints.

    A fleet travels to each endpoint's link, a process of its own, which calls `start`; so it keeps
    nothing that only one process can have.

    Attributes
    ----------
    is_local : bool
        Whether sessions run on this machine, and may import what the program can.
    size : int
        How many endpoints a Worker has of it, unless it is told.
    """

    is_local = False
    size = 1

    def open(self, endpoints: int) -> None:
        """Prepare for a number of endpoints: called in the program's process before links start."""
        return

    def where(self, endpoint: int) -> str:
        """Return where an endpoint is, for messages."""
        return repr(self)

    @abstractmethod
    def start(self, manifest: Manifest, endpoint: int) -> Place:
        """Start a session for an endpoint, and return where it is once it has announced itself.

        `RemoteError`, with what it has printed, if it could not be started within the manifest's
        `start_timeout_s`.
        """

    def close(self) -> None:
        """Free what `open` has made; sessions have ended by then."""
        return


class ProcessFleet(Fleet):
    """Sessions are processes of this machine, or of machines that ssh reaches.

    A session ends when the process that started it is gone. What it prints appears on this side's stderr.

    Parameters
    ----------
    hosts : sequence of str, optional
        Names for ``ssh``, such as ``["user@node1", "node2"]``; endpoint ``i`` is on host
        ``i % len(hosts)``. None: all are on this machine. Sessions listen on ports that the system
        chooses, which other machines of the fleet and this one must reach.
    python : str, optional
        The interpreter, by default that of this program, on hosts ``python3``. On hosts these are words
        of the shell there, such as ``~/env/bin/python``. It has the same version of this package.
    interface : str, optional
        The address that sessions listen at, by default the one that ssh has reached, on this machine
        127.0.0.1. ``0.0.0.0`` is all.
    ssh : sequence of str
        The command that comes before the host.

    Raises
    ------
    TypeError, ValueError
        Hosts are one string, none, or one of them is an option of ssh; another value means nothing.
    """

    def __init__(
        self,
        hosts: Sequence[str] | None = None,
        *,
        python: str | None = None,
        interface: str | None = None,
        ssh: Sequence[str] = SSH,
    ) -> None:
        self.hosts = None if hosts is None else texts("hosts", hosts, _HOSTS)
        if self.hosts == []:
            raise ValueError(
                "hosts=[]: name one, or leave hosts= out for processes of this machine"
            )
        for host in self.hosts or ():
            if not host or host.startswith("-"):
                raise ValueError(f"hosts= has {host!r}, which is the name of no host")
        self.ssh = tuple(texts("ssh", ssh, _COMMAND))
        if not self.ssh:
            raise ValueError(f"ssh={ssh!r}: {_COMMAND}")
        self.python = None if python is None else filled("python", python, _PYTHON)
        self.interface = None if interface is None else filled("interface", interface, INTERFACE)
        self.is_local = hosts is None
        self.size = len(self.hosts or "1")

    def __repr__(self) -> str:
        return f"ProcessFleet({self.hosts if self.hosts else ''})"

    def where(self, endpoint: int) -> str:
        return self._host(endpoint) or "this machine"

    def _host(self, endpoint: int) -> str:
        return self.hosts[endpoint % len(self.hosts)] if self.hosts else ""

    def start(self, manifest: Manifest, endpoint: int) -> SessionProcess:
        host = self._host(endpoint)
        command = session_command(self.interface or THIS_MACHINE, self.python)
        if host:
            words = shlex.join(session_command(self.interface or "ssh", "python3")[1:])
            command = [*self.ssh, host, f"{self.python or 'python3'} {words}"]
        return SessionProcess(command, manifest, host).started()


def session_command(interface: str, python: str | None = None) -> list[str]:
    """Return the command of a session, in this program's interpreter or in another one."""
    start = [python] if python else this_python()
    return [*start, "-m", "simpler_ref.endpoint", "--interface", interface]


def this_python() -> list[str]:
    """Return the command of another interpreter like this one."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(get_executable()), *flags]
