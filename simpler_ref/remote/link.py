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
import os
import pickle
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from ..callables.identity import TargetNamespace
from ..callables.payloads import read_staged
from ..engine.view.mailbox import MailboxView, ReceivedArgs
from ..errors import ControlError, RemoteError
from ..jit import layout as L
from ..system.cores import run_on
from ..workers.kinds import WorkerKind
from . import requests
from .buffers import (
    ALLOC,
    IDENTITY,
    AllocRequest,
    copy_parts,
    decode_export_buffer_result,
    encode_export_buffer_result,
)
from .chunks import CHUNK
from .connection import Order, has_message, prepare, zmq
from .fail_points import fail_point
from .frames import (
    EVERY_FEATURE,
    TASK_FRAMES,
    UNANSWERED,
    ControlName,
    Frame,
    FrameType,
    HelloPayload,
    OwnFrameType,
    ReadyState,
    decode_control_reply,
    decode_hello,
    encode_control,
    encode_hello,
    split_report,
)
from .keys import KeyPair, new_pair, secure_client
from .limits import (
    BYTES_RECEIVED,
    BYTES_SENT,
    CLOCK_OFFSET,
    FRAME_HEADER_BYTES,
    FRAMES_RECEIVED,
    FRAMES_SENT,
    HEALTH,
    PID,
    ROUND_TRIP,
    SESSION,
)
from .link_calls import CallTasks
from .link_tasks import LinkTasks, RunTasks, TaskReader
from .link_trace import LinkTrace
from .manifest import Manifest
from .parent_memory import ADDRESS_BYTES, ParentMemory
from .records import Note, frame_word, moved_word
from .session_frames import profile
from .spec import RemoteWorkerSpec
from .task_messages import TaskMaker
from .waiting_thread import WaitingThread

log = logging.getLogger("simpler_ref")

LOST = 75
"""Exit status of a link whose session was lost."""
BEAT_S = 0.2
STOP_S = 5.0
STATUS_S = 0.1
"""How long to wait for the exit status of a session whose connections have ended."""
TRACEBACK = "\nTraceback (most recent call last)"
REST = 4.0
"""For how many times as long as the start of a session took in vain none is started."""
WHY_BYTES = 1024
LATE_BYTES = 1 << 16
SOON_MS = 1
"""How long a link waits for an answer before it also looks out for calls that it is given meanwhile."""
_ANSWERS: dict[FrameType | OwnFrameType, FrameType | OwnFrameType] = {
    **dict.fromkeys(TASK_FRAMES, FrameType.COMPLETION),
    FrameType.CONTROL: FrameType.CONTROL_REPLY,
}
"""What answers a frame; others are answered by frames of their own type."""
_OF_ALL_PROCESSES = (
    *("spec", "number", "_group", "suffix", "words", "why", "late", "movers", "is_vacant"),
    *("start_timeout_s", "losses"),
)


class Link(WorkerKind):
    """A worker that stands for an endpoint.

    Attributes
    ----------
    spec : RemoteWorkerSpec
        What the program has asked for.
    number : int
        The endpoint's id: its index in the next-level pool.
    words : Array
        Counters in shared memory, in the order of `COUNTERS`; set before the workers are started.
    why : Array
        Bytes in shared memory: what a link says before it ends.
    movers : Array
        Bytes in shared memory, a row for each worker of the pool: where the session of each endpoint
        serves its memory.
    losses : Array
        A number in shared memory: how many tasks have failed because what they read was at an endpoint
        that is lost.
    """

    label = "endpoint"
    has_traces = True
    has_core = False
    target_namespace = TargetNamespace.REMOTE_TASK_DISPATCHER
    pool_namespace = TargetNamespace.LOCAL_PYTHON
    comes_last = has_two_phases = True
    words: Any
    why: Any
    movers: Any
    losses: Any
    spec: RemoteWorkerSpec
    calls: Any = None
    """What runs calls, once there are any."""
    digests: set[bytes]
    """Of the callables that the session knows: no task of another one is sent ahead."""
    late: Any = None
    """Bytes in shared memory: what an endpoint that joins later was asked for."""
    has_left = False
    _next_try = 0.0
    """Until when no new session is started, since the last one could not be."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_vacant = True
        self.mailbox: MailboxView
        self.place: Any = None
        self.memory: Any = None
        self.tasks: Any = None
        self._notes: deque[Note] = deque()
        self._sockets: list[Any] = []
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self._watcher: threading.Thread | None = None
        self._trace = LinkTrace(self)
        self._starting = True
        self._unanswered: dict[int, FrameType | OwnFrameType] = {}
        """The numbers of frames whose answers have not come, and what answers them."""
        self._answers: dict[int, Frame] = {}
        """Answers that nobody has asked for yet."""

    def occupy(self, spec: RemoteWorkerSpec, group: KeyPair | None) -> None:
        """Make it the link of an endpoint; once there are processes, they learn of it when they start."""
        self.spec, self._group, self.is_vacant = spec, group, False
        self.start_timeout_s = spec.start_timeout_s + 1.0
        self.suffix = f" of {spec.fleet.where(self.number)}"
        if self.late is not None:
            raw = cloudpickle.dumps((spec, group))
            if len(raw) > LATE_BYTES - 8:
                raise ValueError(f"{spec!r} is too large: {len(raw)} bytes pickled")
            self.late[: len(raw) + 8] = list(len(raw).to_bytes(8, "little") + raw)

    def leave(self) -> None:
        """Make it nobody's: its place is not used again, since callables know it by its number."""
        self.is_vacant = True
        self.has_left = True
        self.words[SESSION] = 0

    def _learn(self) -> None:
        """Become the link of an endpoint that has joined after this process's parent was made."""
        assert self.late is not None
        size = int.from_bytes(bytes(self.late[:8]), "little")
        spec, group = pickle.loads(bytes(self.late[8 : 8 + size]))
        late, self.late = self.late, None
        self.occupy(spec, group)
        self.late = late

    # ------------------------------------------------------------ start and end
    def start(self, mailbox: MailboxView) -> None:
        """Have the fleet start a session, and greet it."""
        self.mailbox = mailbox
        if self.is_vacant:
            self._learn()
        self.words[:] = 0
        self.why[:] = 0
        self._maker = TaskMaker()
        self.digests = set()
        self._committed: set[bytes] = set()
        self._stopping = False
        module = zmq()
        spec, pair = self.spec, new_pair() if self.spec.secure else None
        session = secrets.randbits(63) | 1
        manifest = spec.manifest(session, self.number, pair, self._group)
        deadline = time.monotonic() + spec.start_timeout_s
        self._start_session(manifest)
        found = self.place.announcement
        self._order, self._beats = Order(session, self.number), Order(session, self.number)
        self._context = module.Context()
        self._pair = pair
        self._frames = self._dealer(stopped_s=0.0)  # the other has the heartbeats
        self._health = self._dealer()
        self._sockets += self._frames, self._health
        monitors = [
            one.get_monitor_socket(module.EVENT_DISCONNECTED)
            for one in (self._frames, self._health)
        ]
        self._frames.connect(found.frames)
        self._health.connect(found.health)
        self._greet(session, deadline, manifest)
        self._heard = time.monotonic()
        fail_point("greeted")
        self.words[SESSION], self.words[PID] = session, found.pid
        self._wake, self._woken = os.pipe()
        self._bell, self._ring = os.pipe()
        self._lookout = WaitingThread(self.mailbox.look_out, lambda: os.write(self._ring, b"\0"))
        self._watcher = threading.Thread(
            target=self._watch, args=(monitors,), name="simpler-link", daemon=True
        )
        self._watcher.start()
        self._starting = True
        self.memory = ParentMemory(
            session, found.tensors, self._group, spec.silence_s, self._note_moved
        )
        self.tasks = LinkTasks(self, self.memory)
        self.runs = RunTasks(self, self.memory, self._maker)
        where = found.tensors.encode()
        self.movers[self.number] = np.frombuffer(where.ljust(ADDRESS_BYTES, b"\0"), np.uint8)

    def _start_session(self, manifest: Manifest) -> None:
        """Have the fleet start a session, then run on the core on which its frames are passed on."""
        placement = self.mailbox.engine.placement
        run_on(placement.cores.mask)  # which the session takes over
        self.place = self.spec.fleet.start(manifest, self.number)
        fail_point("started")
        core = placement.core_for_frames(manifest.before)
        if core is not None:
            run_on((core,))

    def _dealer(self, **how: float) -> Any:
        socket = self._context.socket(zmq().DEALER)
        prepare(socket, self.spec.silence_s, **how)
        if self._pair is not None:
            secure_client(socket, self._pair, self.place.announcement.key)
        return socket

    def _greet(self, session: int, deadline: float, manifest: Manifest) -> None:
        """Exchange HELLOs: the session is ready, and is the one that was started."""
        hello = HelloPayload(
            session,
            self.number,
            comm_profile=profile(),
            feature_flags=EVERY_FEATURE,
            ready_state=ReadyState.NOT_READY,
        )
        self._send(self._order.encode(FrameType.HELLO, encode_hello(hello)))
        while not self._frames.poll(BEAT_S * 1000):
            why = self.place.why()
            if why or time.monotonic() > deadline:
                late = f"did not answer HELLO within {manifest.start_timeout_s} s"
                raise RemoteError(f"{self.place.name} {why or late}")
        answer = decode_hello(self._order.decode(self._frames.recv()).payload)
        if answer.comm_profile != profile() or answer.ready_state != ReadyState.READY:
            raise RemoteError(
                f"{self.place.name} is {answer.comm_profile!r} and {answer.ready_state.name}, this is "
                f"{profile()!r}: install the same version on both"
            )
        if (answer.session_id, answer.endpoint_id) != (session, self.number):
            raise RemoteError(f"{self.place.name} answers for another session: {answer}")

    def stop(self) -> None:
        """End the session: SHUTDOWN, then its process."""
        fail_point("stopping")
        self._stopping = True
        if self.memory is not None:
            self.memory.close()  # nobody waits any more for what the session does not send
        self._trace.drop()
        if self._watcher is not None:
            os.close(self._woken)
            self._watcher.join()
            self._lookout.end(self.mailbox.end_look_out)
            os.close(self._bell)
            os.close(self._ring)
            with self._lock, suppress(zmq().Again):  # it has ended
                self._frames.send(self._order.encode(FrameType.SHUTDOWN))
            self.place.wait(STOP_S)
        if self.place is not None:
            self.place.stop(STOP_S)
        for socket in self._sockets:
            socket.close(linger=0)

    def _watch(self, monitors: Sequence[Any]) -> None:
        """Send signs of life, and end this process when the session is lost."""
        module = zmq()
        poller = module.Poller()
        for one in (*monitors, self._health, self._wake):
            poller.register(one, module.POLLIN)
        asked = 0.0
        while not self._stopping:
            now = time.monotonic()
            if now - asked >= BEAT_S:
                if self.place.why():
                    self.give_up("")
                asked, asked_ns = now, time.time_ns()
                try:
                    self._health.send(self._beats.encode(FrameType.HEALTH))
                except module.Again:
                    self.give_up("")
            ready = dict(poller.poll(BEAT_S * 1000))
            if self._stopping:
                break
            self._trace.poll()
            if self._health in ready:
                self._note_health(asked_ns)
            if any(one in ready for one in monitors):
                self.give_up("")
        for one in monitors:
            one.close()
        os.close(self._wake)

    def _note_health(self, asked_ns: int) -> None:
        now = time.time_ns()
        frame = self._beats.decode(self._health.recv())
        self._heard = time.monotonic()
        trip = now - asked_ns
        self.words[ROUND_TRIP] = trip
        self.words[CLOCK_OFFSET] = int.from_bytes(frame.payload, "little") - asked_ns - trip // 2
        self.words[HEALTH] += 1

    def give_up(self, why: str) -> None:
        """End this process, unless it is being stopped: the engine fails what the endpoint has.

        The thread that comes first says why: what it does then ends the connection for the other one.
        """
        if self._stopping:
            return
        self._ending.acquire()  # for good
        ended = self.place.why()
        if not ended:
            self.place.wait(STATUS_S)  # its status comes after the end of its connections
            ended = self.place.why()
        silence_s = self.spec.silence_s
        if time.monotonic() - self._heard < silence_s / 2:  # signs of life come every 0.2 s
            unsaid = "the connection has ended"
        else:
            unsaid = f"was silent for {silence_s} s"
        text = f"{self.place.name}: {why or ended or unsaid}"
        self._say(text)
        sys.stdout.flush()
        sys.stderr.flush()
        self.place.stop(0)
        os._exit(LOST)

    def _say(self, text: str) -> None:
        raw = text.encode()[:WHY_BYTES].ljust(WHY_BYTES, b"\0")
        self.why[:] = np.frombuffer(raw, np.uint8)

    @property
    def successor(self) -> str:  # type: ignore[override]
        """What messages say of the next session."""
        wait_s = self._next_try - time.monotonic()
        if wait_s <= 0:
            return WorkerKind.successor
        give_up = f"remove_remote_worker({self.number})"
        return f"a run tries that again after {wait_s:.1f} s, {give_up} gives it up"

    def may_be_made(self) -> bool:
        """Say whether it is time to start a new session: to try in vain shall delay few runs."""
        return time.monotonic() >= self._next_try

    def stays_lost(self, why: str, took_s: float) -> bool:
        """Note that no new session could be started: the Worker goes on without the endpoint."""
        self._next_try = time.monotonic() + REST * took_s
        self._say(f"no new session could be started: {why.partition(TRACEBACK)[0]}")
        return True

    def last_words(self) -> str:
        """Return why the last session was lost."""
        return bytes(self.why).split(b"\0", 1)[0].decode(errors="replace")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to a session: a fresh interpreter makes it."""
        return {name: it for name, it in vars(self).items() if name in _OF_ALL_PROCESSES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["number"])  # type: ignore[misc]
        vars(self).update(state)

    # ------------------------------------------------------------ frames
    def exchange(self, kind: FrameType | OwnFrameType, payload: bytes) -> Frame:
        """Send a frame, once all tasks that the session has are done, and return the answer."""
        self.tasks.settle_all()
        return self.receive(self.post(kind, payload))

    def post(
        self,
        kind: FrameType | OwnFrameType,
        payload: bytes,
        answered_by: FrameType | OwnFrameType | None = None,
    ) -> int:
        """Send a frame, and return its number; `answered_by` is what answers it unlike others alike."""
        words, order = self.words, self._order
        with self._lock:
            raw = order.encode(kind, payload)
            if kind not in UNANSWERED:
                self._unanswered[order.sent] = answered_by or _ANSWERS.get(kind, kind)
            fail_point("encoded")
            if self.mailbox.is_traced:
                self._note_frame(kind, order.sent, 0, len(raw), sent=True)
            self._send(raw)
            fail_point("sent")
            words[FRAMES_SENT], words[BYTES_SENT] = order.sent, order.bytes_sent
            return order.sent

    def receive(self, asked: int, task: int = 0) -> Frame:
        """Wait for the answer to a frame; others that come before it are kept.

        `task` is the number of the task, in a trace, that the answer is about.
        """
        self.wait_for_answer_to(asked, task)
        return self._answers.pop(asked)

    def wait_for_answer_to(self, asked: int, task: int = 0) -> None:
        """Wait for the answer to a frame, and keep it."""
        while asked not in self._answers:
            self._take_answer(asked, task)

    def has_answer(self, asked: int) -> bool:
        """Say whether the answer to a frame is here, without waiting."""
        while asked not in self._answers and has_message(self._frames):
            self._take_answer(asked, 0)
        return asked in self._answers

    def wait_for_answer_or_task(self, frame: int, filled: int) -> None:
        """Wait for an answer; if none comes soon, also for a task in a frame: see `MailboxView.place`."""
        module = zmq()
        frames = self._frames, module.POLLIN
        if not module.zmq_poll([frames], SOON_MS):
            self._lookout.arm(frame, filled)
            module.zmq_poll([frames, (self._bell, module.POLLIN)], -1)
        if self._lookout.has_rung():
            os.read(self._bell, 1)

    def _take_answer(self, asked: int, task: int) -> None:
        """Wait for an answer, and keep it."""
        words, order = self.words, self._order
        with self._lock:
            try:
                frame = order.decode(self._frames.recv())
                number = int.from_bytes(frame.payload[:8], "little")
                kind = frame.header.frame_type
                expected = self._unanswered.pop(number, None)
                if expected is None:
                    raise ValueError(f"{kind.name}.sequence: {number} is not waited for")
                if kind != expected:
                    raise ValueError(f"remote_wire: frame.type: not {expected.name}")
            except ValueError as error:
                self.give_up(str(error))
                raise
            self._answers[number] = frame
        fail_point("answered")
        if self.mailbox.is_traced:
            nbytes = FRAME_HEADER_BYTES + len(frame.payload)
            self._note_frame(kind, number, task if number == asked else 0, nbytes, sent=False)
            self.note_all()
        words[FRAMES_RECEIVED], words[BYTES_RECEIVED] = order.received, order.bytes_received

    def _note_frame(self, kind: int, number: int, task: int, nbytes: int, *, sent: bool) -> None:
        word = frame_word(kind, number, self._order.session_id, sent=sent)
        self.mailbox.note(word, task, time.monotonic_ns(), nbytes)

    def _note_moved(self, address: str, stored: bool, nbytes: int, began: int) -> None:
        """Note a tensor that was moved between this machine and the endpoint, if a trace is taken."""
        if self.mailbox.is_traced:
            word = moved_word(address, stored=stored)
            self.note((word, nbytes, began, time.monotonic_ns()))

    def note(self, note: Note) -> None:
        """Note something in the trace that is being taken; for any thread.

        The journal is the main thread's, which takes up what others note.
        """
        self._notes.append(note)
        if threading.current_thread() is threading.main_thread():
            self.note_all()

    def note_all(self) -> None:
        """Put what other threads have noted into the journal."""
        while self._notes:
            self.mailbox.note(*self._notes.popleft())

    def _send(self, raw: bytes) -> None:
        try:
            self._frames.send(raw)
        except zmq().Again:
            if self._watcher is not None:
                self.give_up("")
            raise RemoteError(f"the connection to {self.place.name} has ended") from None

    def ask(self, name: ControlName, payload: bytes, settles: bool = True) -> bytes:
        """Have the session carry out a request, once all tasks that it has are done; return the result.

        `settles`: otherwise it need not be once they are done.

        Raises
        ------
        ControlError
            It has refused; with the traceback there.
        """
        if settles:
            self.tasks.settle_all()
        frame = self.receive(self.post(FrameType.CONTROL, encode_control(name, 1, payload)))
        reply = decode_control_reply(frame.payload)
        if reply.error_code:
            text, trace = split_report(reply.error_message)
            raise ControlError(text, remote_traceback=trace)
        return reply.result_bytes

    def trace(self, request: bytes) -> bytes:
        """Have the session trace its Worker, and fetch the records; or end that."""
        return self._trace.answer(request)

    # ------------------------------------------------------------ callables
    def read_target(self, name: str, size: int, command: int, digest: bytes) -> Any:
        """Return the registration that is staged under a name."""
        self._starting = False
        return pickle.loads(read_staged(name, size))

    def install(self, target: Any) -> requests.Registration:
        """Have the session prepare a callable; at the start, also commit it."""
        one: requests.Registration = target
        if isinstance(target, bytes):
            one = pickle.loads(target)
        if self.number in one.workers:
            with self._staged(one) as command:
                self.ask(ControlName.PREPARE_REGISTER_CALLABLE, command)
            self.digests.add(one.digest)
            if self._starting:
                self._commit(one)
        return one

    @contextmanager
    def _staged(self, one: requests.Registration) -> Iterator[bytes]:
        """Yield the command that registers a callable, whose blob may be in a buffer there till then."""
        if not one.blob:
            yield one.command
            return
        size = len(one.blob)
        token = self.ask(ControlName.ALLOC_REMOTE_BUFFER, ALLOC.encode(AllocRequest(size)))
        try:
            for at in range(0, size, CHUNK):
                data = one.blob[at : at + CHUNK]
                payload = copy_parts(IDENTITY.decode(token), at, len(data), data)
                self.ask(ControlName.COPY_TO_REMOTE, payload)
            yield one.naming(token)
        finally:
            self.ask(ControlName.FREE_REMOTE_BUFFER, token)

    def _commit(self, one: requests.Registration) -> None:
        if self.number in one.workers:
            fail_point("prepared")
            self.ask(ControlName.COMMIT_REGISTER_CALLABLE, one.digest_command)
            fail_point("committed")
            self._committed.add(one.digest_command)

    def remove(self, installed: requests.Registration) -> None:
        """Have the session forget a callable."""
        if self.number not in installed.workers:
            return
        self.digests.discard(installed.digest)
        if self.calls is not None:
            self.calls.forget(installed.digest)
        name = ControlName.ABORT_REGISTER_CALLABLE
        if installed.digest_command in self._committed:
            name = ControlName.UNREGISTER_CALLABLE
        self.ask(name, installed.digest_command)
        self._committed.discard(installed.digest_command)

    def leaf(self, installed: requests.Registration) -> Callable[[ReceivedArgs], Any]:
        """Return a function that has the session run a callable's tasks."""
        if installed.is_of_calls:
            self.calls = CallTasks(self)
        kind: TaskReader = self.calls if installed.is_of_calls else self.runs
        run: Callable[[ReceivedArgs], Any] = partial(self.tasks.run, kind)
        return run

    def report(self, installed: requests.Registration, error: BaseException) -> None:
        """Keep what a call has raised where its future finds it."""
        if installed.is_of_calls:
            self.calls.answer_failure(error)

    def end_if_lost(self) -> None:
        """End this process if that of its session has ended."""
        self.place.wait(STATUS_S)
        if self.place.why():
            self.give_up("")

    @property
    def session_id(self) -> int:
        """The session's number, which only its parent knows."""
        return self._order.session_id

    # ------------------------------------------------------------ tasks
    def mover_of(self, source: int) -> str:
        """Return where an endpoint's mover is; `source` is its number plus one, or 0."""
        if not source:
            return ""
        return bytes(self.movers[source - 1]).split(b"\0", 1)[0].decode()

    # ------------------------------------------------------------ requests
    def control(self, command: int, arg0: int, arg1: int, arg2: int) -> int:
        """Refuse what is for chips."""
        raise ControlError(f"an endpoint does not carry out request {command}")

    def answer(self, command: int, request: bytes) -> bytes:
        """Send a request on, and return the result; note which memory it is about."""
        self.tasks.settle_all()
        if command == L.LINK_COUNTERS:
            if self.calls is not None:
                self.calls.forget_unneeded()
            raw = self.exchange(OwnFrameType.COUNTERS, b"").payload[8:]
            return json.dumps({**json.loads(raw), "copies_brought": self.memory.brought}).encode()
        if command == L.LINK_BRING_HOME:
            brought: bytes = self.memory.bring_all(pickle.loads(request))
            if self.memory.is_cut:
                self.end_if_lost()  # else the next run would find that out
            return brought
        if command == L.LINK_COMMIT:
            self._commit(pickle.loads(request))
            return b""
        asked = pickle.loads(request)
        result = self.ask(asked.name, asked.payload)
        if asked.view_base:
            self._maker.views.add(requests.view_from(asked, result))
        elif asked.drops:
            self._maker.views.drop(asked.drops)
            self._maker.forget()
        elif asked.name == ControlName.EXPORT_BUFFER:
            return self._where_it_is_reached(result)
        return result

    def _where_it_is_reached(self, raw: bytes) -> bytes:
        """Return an export with the address at which others reach the session, which may not know it."""
        found = decode_export_buffer_result(raw)
        about = {
            **json.loads(found.transport_descriptor),
            "address": self.place.announcement.tensors,
        }
        described = json.dumps(about).encode()
        return encode_export_buffer_result(replace(found, transport_descriptor=described))
