"""The link of an endpoint: the worker process that stands for it on the parent's machine.

It serves a mailbox like any worker, and has the session of its endpoint do the work: tasks and requests
become frames. When the session is lost the link ends, so that to the engine a lost endpoint is a lost
worker; its successor starts a new session.

Rule     REMOTE-LINK-1, REMOTE-LINK-2, REMOTE-LINK-3, REMOTE-LINK-6, REMOTE-LINK-8, REMOTE-REG-4,
         REMOTE-REG-5, REMOTE-REG-6, REMOTE-REG-9, REMOTE-MEM-1, REMOTE-MEM-5, REMOTE-MEM-6,
         REMOTE-FAIL-3, REMOTE-FAIL-4, REMOTE-FAIL-6, REMOTE-HEALTH-1, REMOTE-HEALTH-2, SEE-REMOTE-2,
         SPEED-WAIT-14
"""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from ..callables.identity import TargetNamespace
from ..callables.pickling import read_staged
from ..engine.view.mailbox import MailboxView, ReceivedArgs
from ..jit import layout as L
from ..system.types import Array
from ..workers.kinds import WorkerKind
from . import callables, tasks
from .connection import KeyPair
from .frames import ControlName, OwnFrameType
from .limits import SESSION
from .link_frames import TRACEBACK, LinkFrames
from .link_tasks import CallTasks, LinkTasks, Reader, RunTasks
from .mover import Mover
from .parent_memory import ADDRESS_BYTES, ParentMemory
from .spec import RemoteWorkerSpec
from .task_messages import TaskMaker
from .traces import LinkTrace

log = logging.getLogger("simpler_ref")

REST = 4.0
"""For how many times as long as the start of a session took in vain none is started."""
WHY_BYTES = 1024
LATE_BYTES = 1 << 16


def _padded(text: str, nbytes: int) -> Array:
    return np.frombuffer(text.encode()[:nbytes].ljust(nbytes, b"\0"), np.uint8)


class Link(WorkerKind):
    """A worker that stands for an endpoint; its `number` is the index in the next-level pool.

    Arrays in shared memory are set before the workers are started.
    """

    label = "endpoint"
    has_traces = True
    has_core = False
    target_namespace = TargetNamespace.REMOTE_TASK_DISPATCHER
    pool_namespace = TargetNamespace.LOCAL_PYTHON
    comes_last = has_two_phases = True
    spec: RemoteWorkerSpec
    words: Any = None
    """Counters in shared memory, in the order of `COUNTERS`."""
    why: Any
    """Bytes in shared memory: what a link says before it ends."""
    movers: Any = None
    """Bytes there, a row for each worker: where the session of each endpoint serves its memory."""
    losses: Any
    """A number there: of tasks that have failed since what they read was at an endpoint that is lost."""
    calls: Any = None
    """What runs calls, once there are any."""
    late: Any = None
    """Bytes in shared memory: what an endpoint that joins later was asked for, pickled."""
    has_left = False
    _next_try = 0.0
    """Until when no new session is started, since the last one could not be."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_vacant = True
        self.frames: Any = None
        self.memory: Any = None
        self._starting = True

    def occupy(self, spec: RemoteWorkerSpec, group: KeyPair | None) -> None:
        """Make it the link of an endpoint; once there are processes, they learn of it when they start."""
        if self.late is not None:
            raw = cloudpickle.dumps((spec, group))
            if len(raw) > LATE_BYTES:
                raise ValueError(f"{spec!r} is too large: {len(raw)} bytes pickled")
            self.late[: len(raw)] = np.frombuffer(raw, np.uint8)
        self.spec, self._group, self.is_vacant = spec, group, False
        self.start_timeout_s = spec.start_timeout_s + 1.0
        self.suffix = f" of {spec.fleet.where(self.number)}"

    def leave(self) -> None:
        """Make it nobody's: its place is not used again, since callables know it by its number."""
        self.is_vacant = self.has_left = True
        self.words[SESSION] = 0

    # ------------------------------------------------------------ start and end
    def start(self, mailbox: MailboxView) -> None:
        if self.is_vacant:  # it has joined after this process's parent was made
            self.occupy(*pickle.loads(bytes(self.late)))
        self.words[:] = 0
        self.why[:] = 0
        self._maker = TaskMaker()
        self._committed: set[bytes] = set()
        frames = self.frames = LinkFrames(self.spec, self.number, mailbox, self.words, self._say)
        frames.start(self._group)
        self._starting = True
        where, silence_s = frames.place.announcement.tensors, self.spec.silence_s
        mover = Mover("tcp://127.0.0.1:*", self._group, silence_s)
        memory = self.memory = ParentMemory(frames.session_id, where, mover)
        self._trace = LinkTrace(frames, memory)
        self.tasks = LinkTasks(frames, memory)
        self.runs = RunTasks(frames, memory, self.movers, self._maker, self.losses)
        self.movers[self.number] = _padded(where, ADDRESS_BYTES)

    def stop(self) -> None:
        if self.frames is None:
            return
        self.frames.is_stopping = True
        if self.memory is not None:
            self.memory.mover.close()  # nobody waits any more for what the session does not send
            self._trace.drop()
        self.frames.stop()

    def _say(self, text: str) -> None:
        self.why[:] = _padded(text, WHY_BYTES)

    @property
    def successor(self) -> str:  # type: ignore[override]
        wait_s = self._next_try - time.monotonic()
        if wait_s <= 0:
            return WorkerKind.successor
        give_up = f"remove_remote_worker({self.number})"
        return f"a run tries that again after {wait_s:.1f} s, {give_up} gives it up"

    def may_be_made(self) -> bool:
        """To try in vain shall delay few runs."""
        return time.monotonic() >= self._next_try

    def stays_lost(self, why: str, took_s: float) -> bool:
        """Note that no new session could be started: the Worker goes on without the endpoint."""
        self._next_try = time.monotonic() + REST * took_s
        self._say(f"no new session could be started: {why.partition(TRACEBACK)[0]}")
        return True

    def last_words(self) -> str:
        return bytes(self.why).split(b"\0", 1)[0].decode(errors="replace")

    # ------------------------------------------------------------ callables
    def _ask(self, name: ControlName, payload: bytes) -> bytes:
        """Have the session carry out a request, once all tasks that it has are done."""
        self.tasks.settle_all()
        result: bytes = self.frames.ask(name, payload)
        return result

    def read_target(self, name: str, size: int, command: int, digest: bytes) -> Any:
        self._starting = False
        return pickle.loads(read_staged(name, size))

    def install(self, target: Any) -> callables.Registration:
        """Have the session prepare a callable; at the start, also commit it."""
        one: callables.Registration = pickle.loads(target) if isinstance(target, bytes) else target
        if self.number in one.workers:
            self._ask(ControlName.PREPARE_REGISTER_CALLABLE, one.command)
            (self.runs.lists if one.is_list else self.runs.known).add(one.digest)
            if self._starting:
                self._commit(one)
        return one

    def _commit(self, one: callables.Registration) -> None:
        if self.number in one.workers:
            self._ask(ControlName.COMMIT_REGISTER_CALLABLE, one.digest_command)
            self._committed.add(one.digest_command)

    def remove(self, installed: callables.Registration) -> None:
        if self.number not in installed.workers:
            return
        self.runs.known.discard(installed.digest)
        self.runs.lists.discard(installed.digest)
        if self.calls is not None:
            self.calls.forget(installed.digest)
        name = ControlName.ABORT_REGISTER_CALLABLE
        if installed.digest_command in self._committed:
            name = ControlName.UNREGISTER_CALLABLE
        self._ask(name, installed.digest_command)
        self._committed.discard(installed.digest_command)

    def leaf(self, installed: callables.Registration) -> Callable[[ReceivedArgs], Any]:
        if installed.is_of_calls:
            about = self.spec, self.number
            self.calls = CallTasks(self.frames, self.memory, self.movers, *about)
        kind: Reader = self.calls if installed.is_of_calls else self.runs
        return partial(self.tasks.run, kind)

    def report(self, installed: callables.Registration, error: BaseException) -> None:
        if installed.is_of_calls:
            self.calls.answer_failure(error)

    # ------------------------------------------------------------ requests
    def trace(self, request: bytes) -> bytes:
        self.tasks.settle_all()
        return self._trace.answer(request)

    def answer(self, command: int, request: bytes) -> bytes:
        """Send a request on, and return the result; note which memory it is about."""
        self.tasks.settle_all()
        if command == L.LINK_COUNTERS:
            if self.calls is not None:
                self.calls.forget_unneeded()
            raw = self.frames.exchange(OwnFrameType.COUNTERS, b"").payload[8:]
            return json.dumps({**json.loads(raw), "copies_brought": self.memory.brought}).encode()
        if command == L.LINK_BRING_HOME:
            brought: bytes = self.memory.bring_all(pickle.loads(request))
            if self.memory.is_cut:
                self.frames.end_if_lost()  # else the next run would find that out
            return brought
        if command == L.LINK_COMMIT:
            self._commit(pickle.loads(request))
            return b""
        asked = pickle.loads(request)
        result = self._ask(asked.name, asked.payload)
        if asked.name in (ControlName.ALLOC_REMOTE_BUFFER, ControlName.IMPORT_BUFFER):
            self._maker.add_memory(asked, result)
        elif asked.name in (ControlName.FREE_REMOTE_BUFFER, ControlName.RELEASE_IMPORT):
            self._maker.drop_memory(asked.base)
        elif asked.name == ControlName.EXPORT_BUFFER:
            return self._where_it_is_reached(result)
        return result

    def _where_it_is_reached(self, raw: bytes) -> bytes:
        """Return an export with the address at which others reach the session, which may not know it."""
        found = tasks.decode_export_buffer_result(raw)
        about = {
            **json.loads(found.transport_descriptor),
            "address": self.frames.place.announcement.tensors,
        }
        described = json.dumps(about).encode()
        return tasks.encode_export_buffer_result(replace(found, transport_descriptor=described))
