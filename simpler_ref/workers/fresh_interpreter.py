"""Workers that do not inherit the user's process: a fresh interpreter is their fork server.

A pickle has what a forked server would inherit: the regions of shared memory, which it maps at the same
addresses, the kinds of the workers, and the callables as bytes. Then it serves like any fork server
(`fork_server.py`), and forks workers from an interpreter in which no library has started threads.

If addresses that it must map are in use, it ends; another interpreter is started, whose own memory is
elsewhere.

Rule     WM-START-1, WM-START-3
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.spawn import get_executable
from typing import Any, NoReturn

import numpy as np

from ..callables.identity import TargetNamespace
from ..callables.pickling import ByAddress, load_payload, pickled
from ..callables.registry import Snapshot
from ..engine import shared_arrays
from ..engine.memory import PARK_NS, Engine
from ..errors import WorkerStartError
from ..system import forks
from ..system.polling import wait_readable
from ..system.regions import AddressTaken, attach, descriptors
from ..system.signals import signals_blocked
from ..system.types import Array
from .containment import relay, take_over
from .fork_server import Lifeline, Makings, ServerSetup, die_with_parent, held_lifelines, serve
from .kinds import NestedWorker, WorkerKind
from .processes import ProcessManager, fork_hygiene_once

ATTEMPTS = 8
"""Interpreters started until one has the addresses free."""

_READY, _TAKEN, _FAILED = b"R", b"T", b"F"
_LONGEST = 1 << 15

_PROGRAM = (
    "import os, pickle, sys; file = os.fdopen({fd}, 'rb'); sys.path[:], sys.argv[:] = pickle.load(file); "
    "from simpler_ref.workers.fresh_interpreter import main; main(file)"
)


# ---------------------------------------------------------------- serialising
def pack_kinds(kinds: Sequence[WorkerKind]) -> bytes:
    for kind in kinds:
        try:
            _pack(kind)
        except Exception as error:
            what = f"{kind.label} {type(getattr(kind, '_target', kind)).__qualname__}"
            remedy = "; make what it needs in its start(), or give Worker(start_method='fork')"
            if isinstance(kind, NestedWorker):
                what, remedy = f"a level {kind.inner.level} child Worker", ""
            raise TypeError(
                f"{what} cannot travel to a fresh interpreter ({type(error).__name__}: {error}){remedy}"
            ) from error
    return _pack(kinds)


def _pack(what: Any) -> bytes:
    """Return something as bytes; also a child Worker that has not been started, with its callables."""
    by_address = ByAddress()

    def reduce(obj: Any) -> Any:
        travelled = getattr(type(obj), "_travelled", None)
        return (travelled, (obj._life,)) if travelled else by_address(obj)

    return pickled(what, reduce)


# ---------------------------------------------------------------- in the user's process
class SpawnManager(ProcessManager):
    """Workers as processes that a fresh interpreter forks."""

    def _get_ready(self, snapshot: Snapshot) -> None:
        kinds, entropy = pack_kinds(self.kinds), self._draw_entropy()
        self.relay = relay()
        deadline = time.monotonic() + self._start_timeout_s
        for _ in range(ATTEMPTS):
            with signals_blocked() as mask:
                self._make_server(partial(self._spawn, kinds, snapshot), mask, entropy)
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

    def _spawn(
        self, kinds: bytes, snapshot: Snapshot, setup: ServerSetup, lifeline: Lifeline
    ) -> int:
        from ..compat import is_installed

        engine, held = self._engine, [*held_lifelines, lifeline.writing]
        program = os.memfd_create("simpler-setup")
        try:
            with descriptors() as found:
                memory = [(one.ctypes.data, len(one)) for one in (engine.mem, engine.heap)]
                inherited = dict(shared_arrays._populated), dict(forks.users_variables)
                with open(program, "wb", closefd=False) as file:
                    first = [entry or os.getcwd() for entry in sys.path], sys.argv
                    own = found, memory, engine.placement, *inherited, is_installed()
                    for part in (first, setup, held, own, kinds, dict(snapshot)):
                        pickle.dump(part, file)
                os.lseek(program, 0, os.SEEK_SET)
                fds = program, setup.sock, setup.parent_fd, *setup.pipes.values()
                return _execute(_PROGRAM.format(fd=program), [*fds, *found.values(), *held])
        finally:
            os.close(program)

    def _hear(self, deadline: float) -> bytes:
        """Return the first message of the fresh interpreter; wait in slices, to handle signals."""
        assert self._socket is not None
        while (rest := deadline - time.monotonic()) > 0:
            if wait_readable([self._socket.fileno()], min(rest, PARK_NS / 1e9)):
                try:
                    return self._socket.recv(_LONGEST)
                except ConnectionError:
                    return b""
        return _FAILED + f"silent for {self._start_timeout_s} s".encode()


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
        setup: ServerSetup = pickle.load(file)
        held_lifelines[:] = pickle.load(file)
        if setup.by_main_thread:
            die_with_parent()
        sock = socket.socket(fileno=setup.sock)
        for fd in (setup.sock, setup.parent_fd, *setup.pipes.values(), *held_lifelines):
            os.set_inheritable(fd, False)
        take_over(setup.pipes)
        try:
            makings = _build(file)
        except AddressTaken as error:
            _say_last(sock, _TAKEN, str(error))
        except BaseException as error:
            _say_last(sock, _FAILED, "".join(traceback.format_exception(error)))
    with suppress(OSError):  # the parent is gone: its pidfd reports that
        sock.send(_READY)
    sock.detach()
    serve(setup, makings, forks.limiter())


def _say_last(sock: socket.socket, what: bytes, text: str) -> NoReturn:
    with suppress(OSError):
        sock.send((what + text.encode(errors="replace"))[:_LONGEST])
    os._exit(1)


_mapped: list[Array] = []
"""The memory of the user's process, which is never released here."""


def _build(file: Any) -> Makings:
    """Map the memory, then make the kinds and the callables: both may refer to it.

    A child Worker comes first, so that functions which use its handles find them.
    """
    regions, memory, placement, populated, users_variables, original_names = pickle.load(file)
    mapped = {one.address: attach(one, fd) for one, fd in regions.items()}
    for fd in regions.values():
        os.close(fd)
    _mapped.extend(mapped.values())
    (address, words), (heap, nbytes) = memory
    mem = mapped[address][: 8 * words].view(np.int64)
    engine = Engine.attached(mem, mapped[heap][:nbytes], placement)
    shared_arrays._populated.update(populated)
    fork_hygiene_once()
    if original_names:
        from ..compat import install

        install()
    forks.users_variables.clear()  # it has those that the parent has set, too
    forks.users_variables.update(users_variables)
    kinds: Sequence[WorkerKind] = pickle.loads(pickle.load(file))
    payloads: Mapping[Any, Mapping[bytes, bytes]] = pickle.load(file)
    snapshot: dict[TargetNamespace, dict[bytes, Any]] = {}
    for namespace, table in payloads.items():
        chip = namespace != TargetNamespace.LOCAL_PYTHON
        snapshot[namespace] = {
            digest: load_payload(raw, chip, digest) for digest, raw in table.items()
        }
    return engine, kinds, snapshot
