"""Workers that do not inherit the user's process: a fresh interpreter is their fork server.

A pickle has what a forked server would inherit: the regions of shared memory, which it maps at the same
addresses, the kinds of the workers, and the callables as bytes. Then it serves like any fork server
(`fork_server.py`), and forks workers from an interpreter in which no library has started threads.

If addresses that it must map are in use, it ends; another interpreter is started, whose own memory is
elsewhere.

Rule     WM-START-1, -3
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.spawn import get_executable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..callables.identity import TargetNamespace
from ..callables.payloads import load_payload
from ..callables.pickling import Serializer
from ..callables.registry import Snapshot
from ..engine import shared_arrays
from ..engine.memory import PARK_NS, Engine
from ..errors import WorkerStartError
from ..system import forks
from ..system.cores import Placement
from ..system.regions import AddressTaken, Region, attach, descriptors
from ..system.signals import signals_blocked
from ..system.types import Array
from .fork_server import ServerSetup, die_with_parent, held_lifelines, hold_lifelines, serve
from .kinds import NestedWorker, WorkerKind
from .output import relay, take_over
from .processes import ProcessManager, fork_hygiene_once
from .random_streams import Entropy

ATTEMPTS = 8
"""Interpreters started until one has the addresses free."""

_READY, _TAKEN, _FAILED = b"R", b"T", b"F"
_LONGEST = 1 << 15

_PROGRAM = (
    "import os, pickle, sys; file = os.fdopen({fd}, 'rb'); sys.path[:], sys.argv[:] = pickle.load(file); "
    "from simpler_ref.workers.fresh_interpreter import main; main(file)"
)


class _Setup(NamedTuple):
    """The first part of a fresh interpreter's pickle."""

    regions: dict[Region, int]
    """With descriptors."""
    mem: tuple[int, int]
    """Address and words of the engine."""
    heap: tuple[int, int]
    placement: Placement
    populated: dict[int, int]
    users_variables: dict[str, str]
    socket: int
    parent: int
    parent_pid: int
    by_main_thread: bool
    signals: set[int]
    entropy: Entropy
    pipes: dict[str, int]
    original_names: bool
    lifelines: list[int]


# ---------------------------------------------------------------- serialising
class _Traveller(Serializer):
    """Also serialises a child Worker that has not been started, with its callables."""

    def reducer_override(self, obj: Any) -> Any:
        if travelled := getattr(type(obj), "_travelled", None):
            return travelled, (obj._life,)
        return super().reducer_override(obj)


def pack_kinds(kinds: Sequence[WorkerKind]) -> bytes:
    """Return worker kinds as bytes.

    Raises
    ------
    TypeError
        One of them cannot be serialised.
    """
    for kind in kinds:
        try:
            _pack(kind)
        except Exception as error:
            if isinstance(kind, NestedWorker):
                raise TypeError(
                    f"a level {kind.inner.level} child Worker cannot travel to a fresh interpreter: "
                    f"{error}"
                ) from error
            raise TypeError(
                f"{kind.label} {_name(kind)} cannot travel to a fresh interpreter "
                f"({type(error).__name__}: {error}); make what it needs in its start(), or give "
                "Worker(start_method='fork')"
            ) from error
    return _pack(kinds)


def _pack(what: Any) -> bytes:
    buffer = io.BytesIO()
    _Traveller(buffer).dump(what)
    return buffer.getvalue()


def _name(kind: WorkerKind) -> str:
    return type(getattr(kind, "_target", kind)).__qualname__


# ---------------------------------------------------------------- in the user's process
class SpawnManager(ProcessManager):
    """Workers as processes that a fresh interpreter forks."""

    def _get_ready(self, snapshot: Snapshot) -> None:
        kinds, entropy = pack_kinds(self.kinds), self._draw_entropy()
        self._relay = relay()
        deadline = time.monotonic() + self._start_timeout_s
        for _ in range(ATTEMPTS):
            with signals_blocked() as mask:
                self._spawn_server(kinds, snapshot, mask, entropy)
            said = self._hear(deadline)
            if said[:1] == _READY:
                break
            with signals_blocked():
                self._end_server()
                self._close_descriptors()
            if said[:1] != _TAKEN:
                raise WorkerStartError(
                    "the fresh interpreter that was to make the workers did not start: "
                    + (said[1:].decode() or "it has ended, and says on stderr why")
                )
        else:
            raise WorkerStartError(
                f"{ATTEMPTS} fresh interpreters had something of their own where the memory of this "
                f"Worker must be mapped ({said[1:].decode()}); give Worker(start_method='fork')"
            )
        with signals_blocked():
            self._start_monitor()

    def _spawn_server(
        self, kinds: bytes, snapshot: Snapshot, mask: set[int], entropy: Entropy
    ) -> None:
        with (
            self._connect() as theirs,
            descriptors() as found,
            self._new_lifeline() as lifeline,
        ):
            parent = os.pidfd_open(os.getpid())
            program = os.memfd_create("simpler-setup")
            held = [*held_lifelines(), lifeline.writing]
            try:
                setup = self._describe(found, theirs.fileno(), parent, mask, entropy, held)
                with open(program, "wb", closefd=False) as file:
                    for part in ((_absolute(sys.path), sys.argv), setup, kinds, dict(snapshot)):
                        pickle.dump(part, file)
                os.lseek(program, 0, os.SEEK_SET)
                fds = [program, parent, theirs.fileno(), *found.values(), *self._pipes.values()]
                server = _execute(_PROGRAM.format(fd=program), [*fds, *held])
                self._watch_server(server)
            finally:
                os.close(parent)
                os.close(program)

    def _describe(
        self,
        found: dict[Region, int],
        sock: int,
        parent: int,
        mask: set[int],
        entropy: Entropy,
        held: list[int],
    ) -> _Setup:
        from ..compat import is_installed

        engine = self._engine
        return _Setup(
            regions=found,
            mem=(engine.mem.ctypes.data, len(engine.mem)),
            heap=(engine.heap.ctypes.data, len(engine.heap)),
            placement=engine.placement,
            populated=dict(shared_arrays._populated),
            users_variables=forks.users_variables(),
            socket=sock,
            parent=parent,
            parent_pid=os.getpid(),
            by_main_thread=threading.current_thread() is threading.main_thread(),
            signals={int(number) for number in mask},
            entropy=entropy,
            pipes=dict(self._pipes),
            original_names=is_installed(),
            lifelines=held,
        )

    def _hear(self, deadline: float) -> bytes:
        """Return the first message of the fresh interpreter; wait in slices, to handle signals."""
        assert self._socket is not None
        try:
            while (rest := deadline - time.monotonic()) > 0:
                self._socket.settimeout(min(rest, PARK_NS / 1e9))
                with suppress(TimeoutError):
                    return self._socket.recv(_LONGEST)
        except ConnectionError:
            return b""
        finally:
            self._socket.settimeout(None)
        return _FAILED + f"silent for {self._start_timeout_s} s".encode()


def _absolute(path: Sequence[str]) -> list[str]:
    return [os.path.abspath(entry) if entry == "" else entry for entry in path]


def _execute(program: str, fds: Sequence[int]) -> int:
    """Start another process of this interpreter, with some descriptors, and return its pid."""
    python = os.fsdecode(get_executable() or "")
    if not python:
        raise WorkerStartError(
            "start_method='spawn' starts sys.executable, which this program has not set; set it, or "
            "call multiprocessing.set_executable, or give Worker(start_method='fork')"
        )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    keep = [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]  # clears their close-on-exec flag
    return os.posix_spawn(python, [python, *flags, "-c", program], os.environ, file_actions=keep)


# ---------------------------------------------------------------- in the fresh interpreter
def main(file: Any) -> NoReturn:
    """Become the fork server of the Worker that started this interpreter. Never returns."""
    with file:
        setup: _Setup = pickle.load(file)
        if setup.by_main_thread:
            die_with_parent()
        sock = socket.socket(fileno=setup.socket)
        for fd in (setup.socket, setup.parent, *setup.pipes.values()):
            os.set_inheritable(fd, False)
        hold_lifelines(setup.lifelines)
        take_over(setup.pipes)
        try:
            engine, kinds, snapshot = _build(setup, file)
        except AddressTaken as error:
            _say_last(sock, _TAKEN, str(error))
        except BaseException as error:
            _say_last(sock, _FAILED, "".join(traceback.format_exception(error)))
    with suppress(OSError):  # the parent is gone: its pidfd reports that
        sock.send(_READY)
    serve(
        ServerSetup(
            engine=engine,
            sock=sock,
            parent_pid=setup.parent_pid,
            parent_fd=setup.parent,
            kinds=kinds,
            snapshot=snapshot,
            signals=setup.signals,
            by_main_thread=setup.by_main_thread,
            entropy=setup.entropy,
            limit_threads=forks.limiter(),
        )
    )


def _say_last(sock: socket.socket, what: bytes, text: str) -> NoReturn:
    with suppress(OSError):
        sock.send((what + text.encode(errors="replace"))[:_LONGEST])
    os._exit(1)


_mapped: list[Array] = []
"""The memory of the user's process, which is never released here."""


def _build(setup: _Setup, file: Any) -> tuple[Engine, Sequence[WorkerKind], Snapshot]:
    """Map the memory, then make the kinds and the callables: both may refer to it.

    A child Worker comes first, so that functions which use its handles find them.
    """
    mapped = {one.address: attach(one, fd) for one, fd in setup.regions.items()}
    for fd in setup.regions.values():
        os.close(fd)
    _mapped.extend(mapped.values())
    address, words = setup.mem
    heap, nbytes = setup.heap
    mem = mapped[address][: 8 * words].view(np.int64)
    engine = Engine.attached(mem, mapped[heap][:nbytes], setup.placement)
    shared_arrays._populated.update(setup.populated)
    fork_hygiene_once()
    if setup.original_names:
        from ..compat import install

        install()
    forks.take_over(setup.users_variables)
    kinds: Sequence[WorkerKind] = pickle.loads(pickle.load(file))
    payloads: Mapping[Any, Mapping[bytes, bytes]] = pickle.load(file)
    snapshot: dict[TargetNamespace, dict[bytes, Any]] = {}
    for namespace, table in payloads.items():
        chip = namespace != TargetNamespace.LOCAL_PYTHON
        snapshot[namespace] = {
            digest: load_payload(raw, chip, digest) for digest, raw in table.items()
        }
    return engine, kinds, snapshot
