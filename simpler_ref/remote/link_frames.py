"""The frames between a link and its session, and how a link notices the end of that.

The main thread sends and receives. A second thread sends signs of life, and ends the process when the
session is lost, whatever the main thread does: to the engine a lost endpoint is a lost worker.

Rule     REMOTE-LINK-1, REMOTE-LINK-3, REMOTE-LINK-6, REMOTE-LINK-8, REMOTE-FAIL-3, REMOTE-FAIL-4,
         REMOTE-FAIL-6, REMOTE-HEALTH-1, REMOTE-HEALTH-2, SPEED-WAIT-14
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ..engine.view.mailbox import MailboxView
from ..errors import ControlError, RemoteError
from ..system.cores import run_on
from ..system.polling import WaitingThread
from . import frames as protocol
from . import limits
from .connection import KeyPair, Order, has_message, look_out, new_pair, prepare, secure_client, zmq
from .fleets import Manifest
from .session_frames import hello, profile
from .spec import RemoteWorkerSpec

TRACEBACK = "\nTraceback (most recent call last)"
LOST = 75
"""Exit status of a link whose session was lost."""
BEAT_S = 0.2
STOP_S = 5.0
STATUS_S = 0.1
"""How long to wait for the exit status of a session whose connections have ended."""
LOOK_S = 0.1
"""How often a link looks whether the run of a replay is over for others."""
SOON_MS = 1
"""How long a link waits for an answer before it also looks out for tasks that it is given meanwhile."""
_ANSWERS: dict[protocol.AnyFrameType, protocol.AnyFrameType] = {
    protocol.OwnFrameType.RUN: protocol.OwnFrameType.DONE,
    protocol.FrameType.CONTROL: protocol.FrameType.CONTROL_REPLY,
}
"""What answers a frame; others are answered by frames of their own type."""


class LinkFrames:
    """The frames of one link and its session, which it has its fleet start.

    `words` are counters in shared memory, in the order of `COUNTERS`; `say` is told why the process ends,
    before it does.
    """

    place: Any = None
    """Where the session is."""
    session_id: int
    """The session's number, which only its parent knows."""

    def __init__(
        self,
        spec: RemoteWorkerSpec,
        number: int,
        mailbox: MailboxView,
        words: Any,
        say: Callable[[str], None],
    ) -> None:
        self._spec, self._number, self._say = spec, number, say
        self.mailbox, self.words = mailbox, words
        self.is_stopping = False
        """Whether the session is about to end as it should."""
        self.on_beat: Callable[[], None] = lambda: None
        """Called with each sign of life, by the second thread."""
        self.note: Callable[[int, int, int, int, bool], None] = lambda *_: None
        """Told of each frame while a trace is taken: its type, the number of the one that it is or
        answers, the task that it is about, its bytes, and whether it was sent."""
        self._sockets: list[Any] = []
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self._watcher: threading.Thread | None = None
        self._unanswered: dict[int, protocol.AnyFrameType] = {}
        """The numbers of frames whose answers have not come, and what answers them."""
        self._answers: dict[int, protocol.Frame] = {}
        """Answers that nobody has asked for yet."""

    # ------------------------------------------------------------ start and end
    def start(self, group: KeyPair | None) -> None:
        """Have the fleet start a session, and greet it."""
        spec = self._spec
        self._pair = new_pair() if spec.secure else None
        session = self.session_id = secrets.randbits(63) | 1
        manifest = spec.manifest(session, self._number, self._pair, group)
        deadline = time.monotonic() + spec.start_timeout_s
        self._start_session(manifest)
        found = self.place.announcement
        self._order, self._beats = Order(session, self._number), Order(session, self._number)
        self._context = zmq.Context()
        self._frames = self._dealer(stopped_s=0.0)  # the other has the heartbeats
        self._health = self._dealer()
        self._sockets += self._frames, self._health
        self._frames.connect(found.frames)
        self._health.connect(found.health)
        self._greet(manifest, deadline)
        self._heard = time.monotonic()
        self.words[limits.SESSION], self.words[limits.PID] = session, found.pid
        self._wake, self._woken = os.pipe()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        ring = partial(os.eventfd_write, self._bell, 1)
        self._lookout = WaitingThread(self.mailbox.look_out, ring)
        for socket in self._sockets:
            look_out(socket, lambda _: self.give_up(""))
        self._watcher = threading.Thread(target=self._watch, name="simpler-link", daemon=True)
        self._watcher.start()

    def _start_session(self, manifest: Manifest) -> None:
        """Have the fleet start a session, then run on the core on which its frames are passed on."""
        placement = self.mailbox.engine.placement
        run_on(placement.cores.mask)  # which the session takes over
        self.place = self._spec.fleet.start(manifest, self._number)
        core = placement.core_for_frames(manifest.before)
        if core is not None:
            run_on((core,))

    def _dealer(self, **how: float) -> Any:
        socket = self._context.socket(zmq.DEALER)
        prepare(socket, self._spec.silence_s, **how)
        if self._pair is not None:
            secure_client(socket, self._pair, self.place.announcement.key)
        return socket

    def _greet(self, manifest: Manifest, deadline: float) -> None:
        """Exchange HELLOs: the session is ready, and is the one that was started."""
        said = hello(self._order, ready=False)
        self._send(self._order.encode(protocol.FrameType.HELLO, said))
        while not self._frames.poll(BEAT_S * 1000):
            why = self.place.why()
            if why or time.monotonic() > deadline:
                late = f"did not answer HELLO within {manifest.start_timeout_s} s"
                raise RemoteError(f"{self.place.name} {why or late}")
        answer = protocol.decode_hello(self._order.decode(self._frames.recv()).payload)
        if answer.comm_profile != profile() or answer.ready_state != protocol.ReadyState.READY:
            raise RemoteError(
                f"{self.place.name} is {answer.comm_profile!r} and {answer.ready_state.name}, this is "
                f"{profile()!r}: install the same version on both"
            )
        if (answer.session_id, answer.endpoint_id) != (self.session_id, self._number):
            raise RemoteError(f"{self.place.name} answers for another session: {answer}")

    def stop(self) -> None:
        """End the session: SHUTDOWN, then its process."""
        if self._watcher is not None:
            os.close(self._woken)
            self._watcher.join()
            self._lookout.end(self.mailbox.end_look_out)
            os.close(self._bell)
            with self._lock, suppress(zmq.Again):  # it has ended
                self._frames.send(self._order.encode(protocol.FrameType.SHUTDOWN))
            self.place.wait(STOP_S)
        if self.place is not None:
            self.place.stop(STOP_S)
        for socket in self._sockets:
            socket.close(linger=0)

    def _watch(self) -> None:
        """Send signs of life, and end this process when the session is lost."""
        poller = zmq.Poller()
        for one in (self._health, self._wake):
            poller.register(one, zmq.POLLIN)
        asked = 0.0
        while not self.is_stopping:
            now = time.monotonic()
            if now - asked >= BEAT_S:
                if self.place.why():
                    self.give_up("")
                asked, asked_ns = now, time.time_ns()
                try:
                    self._health.send(self._beats.encode(protocol.FrameType.HEALTH))
                except zmq.Again:
                    self.give_up("")
            ready = dict(poller.poll(BEAT_S * 1000))
            if self.is_stopping:
                break
            self.on_beat()
            if self._health in ready:
                self._note_health(asked_ns)
        os.close(self._wake)

    def _note_health(self, asked_ns: int) -> None:
        now = time.time_ns()
        frame = self._beats.decode(self._health.recv())
        self._heard = time.monotonic()
        trip = now - asked_ns
        self.words[limits.ROUND_TRIP] = trip
        self.words[limits.CLOCK_OFFSET] = (
            int.from_bytes(frame.payload, "little") - asked_ns - trip // 2
        )
        self.words[limits.HEALTH] += 1

    def give_up(self, why: str) -> None:
        """End this process, unless it is being stopped: the engine fails what the endpoint has.

        The thread that comes first says why: what it does then ends the connection for the other one.
        """
        if self.is_stopping:
            return
        self._ending.acquire()  # for good
        ended = self.place.why()
        if not ended:
            self.place.wait(STATUS_S)  # its status comes after the end of its connections
            ended = self.place.why()
        silence_s = self._spec.silence_s
        if time.monotonic() - self._heard < silence_s / 2:  # signs of life come every 0.2 s
            unsaid = "the connection has ended"
        else:
            unsaid = f"was silent for {silence_s} s"
        self._say(f"{self.place.name}: {why or ended or unsaid}")
        sys.stdout.flush()
        sys.stderr.flush()
        self.place.stop(0)
        os._exit(LOST)

    def end_if_lost(self) -> None:
        self.place.wait(STATUS_S)
        if self.place.why():
            self.give_up("")

    # ------------------------------------------------------------ frames
    def exchange(self, kind: protocol.AnyFrameType, payload: bytes) -> protocol.Frame:
        return self.receive(self.post(kind, payload))

    def post(self, kind: protocol.AnyFrameType, payload: bytes) -> int:
        """Send a frame, and return its number."""
        words, order = self.words, self._order
        with self._lock:
            raw = order.encode(kind, payload)
            if kind != protocol.OwnFrameType.VALUE_TAKEN:  # which nothing answers
                self._unanswered[order.sent] = _ANSWERS.get(kind, kind)
            if self.mailbox.engine.view.is_traced:
                self.note(kind, order.sent, 0, len(raw), True)
            self._send(raw)
            words[limits.FRAMES_SENT], words[limits.BYTES_SENT] = order.sent, order.bytes_sent
            return order.sent

    def receive(self, asked: int, task: int = 0) -> protocol.Frame:
        """Wait for the answer to a frame; others that come before it are kept.

        `task` is the number of the task, in a trace, that the answer is about.
        """
        self.wait_for_answer_to(asked, task)
        return self._answers.pop(asked)

    def wait_for_answer_to(self, asked: int, task: int = 0) -> None:
        while asked not in self._answers:
            self._take_answer(asked, task)

    def has_answer(self, asked: int) -> bool:
        """Say whether the answer to a frame is here, without waiting."""
        while asked not in self._answers and has_message(self._frames):
            self._take_answer(asked, 0)
        return asked in self._answers

    def has_answer_soon(self, asked: int) -> bool:
        """Say whether the answer to a frame is here, or comes within `LOOK_S`."""
        if not self.has_answer(asked):
            zmq.zmq_poll([(self._frames, zmq.POLLIN)], int(LOOK_S * 1e3))
        return self.has_answer(asked)

    def wait_for_answer_or_task(self, frame: int, filled: int) -> None:
        """Wait for an answer; if none comes soon, also for a task in a frame: see `MailboxView.place`."""
        frames = self._frames, zmq.POLLIN
        if not zmq.zmq_poll([frames], SOON_MS):
            self._lookout.arm(frame, filled)
            zmq.zmq_poll([frames, (self._bell, zmq.POLLIN)], -1)
            with suppress(BlockingIOError):  # whatever rings it has had until now
                os.eventfd_read(self._bell)

    def _take_answer(self, asked: int, task: int) -> None:
        """Wait for any answer, and keep it."""
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
        if self.mailbox.engine.view.is_traced:
            nbytes = limits.FRAME_HEADER_BYTES + len(frame.payload)
            self.note(kind, number, task if number == asked else 0, nbytes, False)
        words[limits.FRAMES_RECEIVED], words[limits.BYTES_RECEIVED] = (
            order.received,
            order.bytes_received,
        )

    def _send(self, raw: bytes) -> None:
        try:
            self._frames.send(raw)
        except zmq.Again:
            if self._watcher is not None:
                self.give_up("")
            raise RemoteError(f"the connection to {self.place.name} has ended") from None

    def ask(self, name: protocol.ControlName, payload: bytes) -> bytes:
        """Have the session carry out a request, and return the result, or raise why it has refused."""
        frame = self.exchange(protocol.FrameType.CONTROL, protocol.encode_control(name, 1, payload))
        reply = protocol.decode_control_reply(frame.payload)
        if reply.error_code:
            text, mark, trace = reply.error_message.partition(TRACEBACK)
            raise ControlError(text, remote_traceback=(mark + trace)[1:])
        return reply.result_bytes
