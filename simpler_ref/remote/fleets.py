"""Fleets start sessions: as processes of this machine, or of others by ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.spawn import get_executable

from ..system.values import filled, texts
from .hosting import Place, SessionProcess
from .manifest import Manifest

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
        """Start a session, and return where it is once it has announced itself.

        Parameters
        ----------
        manifest : Manifest
            What the session is handed; its `start_timeout_s` bounds the time.
        endpoint : int
            Which of the parent's endpoints it is for.

        Raises
        ------
        RemoteError
            It could not be started, or not in time; with what it has printed.
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
        """Return the host of an endpoint, for messages."""
        return self._host(endpoint) or "this machine"

    def _host(self, endpoint: int) -> str:
        return self.hosts[endpoint % len(self.hosts)] if self.hosts else ""

    def start(self, manifest: Manifest, endpoint: int) -> SessionProcess:
        """Start a session as a subprocess, and return where it is once it has announced itself."""
        host = self._host(endpoint)
        return SessionProcess(self._command(host), manifest, host).started()

    def _command(self, host: str) -> list[str]:
        if not host:
            return session_command(self.interface or THIS_MACHINE, self.python)
        words = shlex.join(session_command(self.interface or "ssh", "python3")[1:])
        return [*self.ssh, host, f"{self.python or 'python3'} {words}"]


def session_command(interface: str, python: str | None = None) -> list[str]:
    """Return the command of a session, in this program's interpreter or in another one."""
    start = [python] if python else this_python()
    return [*start, "-m", "simpler_ref.endpoint", "--interface", interface]


def this_python() -> list[str]:
    """Return the command of another interpreter like this one."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(get_executable()), *flags]
