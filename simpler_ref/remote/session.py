"""A session: a level 3 Worker that serves the frames of a parent on another machine, or on this one.

The process forks the inner Worker's workers first; sockets and threads come after them. The main thread
serves frames one by one. A second thread answers signs of life, and ends the process when the parent is
gone, whatever the main thread does.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import secrets
import socket as sockets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..callables.handles import CallableHandle
from ..callables.identity import hashid_to_digest
from ..errors import RemoteError
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.runtime_env import RuntimeEnv
from ..model.tensor import ContinuousTensor
from ..system.cores import threads_on
from ..system.types import Array
from ..trace.recorder import VARIABLE
from ..version import __version__
from ..workers.reports import cut_utf8, describe_exception
from . import served
from .after import FailedTasks
from .buffers import (
    ALLOC,
    COPY,
    IDENTITY,
    RemoteAddressSpace,
    decode_export_buffer_request,
    decode_import_buffer_request,
    decode_release_import_request,
    encode_export_buffer_result,
    encode_import_buffer_result,
)
from .callables import decode_digest_callable_command, decode_register_callable_command
from .connection import (
    SNDMORE,
    SOURCE,
    Order,
    ended_descriptor,
    has_message,
    prepare,
    receive_parts,
    zmq,
)
from .copies import (
    OPEN_COPIES,
    TASK_COPIES,
    WANTED_COPIES,
    ComingCopies,
    CopiedTensor,
    Copies,
    TaskCopies,
    WantedCopies,
    outcome_of,
)
from .dispatcher import Dispatcher, InnerCallable
from .fail_points import fail_point
from .fleets import THIS_MACHINE
from .frames import (
    FEATURES,
    TASK_FRAMES,
    ControlName,
    Frame,
    FrameType,
    HelloPayload,
    OwnFrameType,
    ReadyState,
    decode_control,
    decode_hello,
    encode_control_reply,
    encode_hello,
)
from .keys import KeyPair, new_pair, secure_server
from .limits import MAX_ERROR_BYTES, MAX_STRING_BYTES, REMOTE_BUFFER_ACCESS_READ_WRITE
from .manifest import Announcement, Manifest
from .mover import ZmqMover
from .noted import frame_word, moved_word
from .part_runs import Parts
from .parts import PART_RUN
from .pushes import Inbox
from .received_tasks import ReadTask, ReceivedTask, TaskEnd, add_scalars, copy_at, receive_task
from .records import TRACE, TRACE_ANSWER, Outgoing, TraceAnswer, TraceDetail
from .reports import report_of
from .served import Served, wait_for
from .stores import Stores
from .windows import Refusal

if TYPE_CHECKING:
    from ..worker import Worker

log = logging.getLogger("simpler_ref")

LINGER_MS = 200
LOOK_S = 0.25
"""How often the main thread looks whether the parent is gone, while there is no frame."""
FETCHERS = 4
"""Threads that fetch what tasks read from other endpoints."""
GRACE_S = 1.0
"""How long the main thread may take to end once the parent is gone."""
STOPPED_S = 30.0
"""When other sessions give one up that is stopped, if nobody has killed it: a chunk may take as long."""

_current: Session | None = None


def get_inner_handle(hashid: str | Any) -> CallableHandle:
    """Return the handle of a callable that was registered for the inner Worker of this endpoint.

    Parameters
    ----------
    hashid : str or RemoteCallable
        Its hashid, or what was registered.

    Raises
    ------
    RuntimeError
        This process serves no endpoint.
    KeyError
        It is not registered here.

    Notes
    -----
    Rule     REMOTE-REG-8
    """
    if _current is None:
        raise RuntimeError("get_inner_handle is for functions that an endpoint runs")
    return _current.dispatcher.inner_handle(hashid_to_digest(getattr(hashid, "hashid", hashid)))


def address_at(interface: str) -> str:
    """Return an address for a socket: what only this machine reaches needs no TCP.

    The name of a Unix socket in the abstract namespace is no file, and is gone with its process.

    Rule     REMOTE-LINK-13
    """
    if interface == THIS_MACHINE:
        return f"ipc://@simpler_ref-{secrets.token_hex(16)}"
    return f"tcp://{interface}:*"


def profile() -> str:
    """Return what a HELLO says of this package."""
    return f"simpler_ref/{__version__}"


def serve(
    manifest: Manifest,
    announce: Callable[[Announcement], None],
    ended: int,
    interface: str,
    make_worker: Callable[..., Worker],
) -> None:
    """Be a session until the parent ends it, or is gone.

    Parameters
    ----------
    manifest : Manifest
        What the parent has handed over.
    announce : Callable[[Announcement], None]
        Called once the sockets are open.
    ended : int
        A descriptor at whose end of file the session ends.
    interface : str
        The address that sockets are bound to; others reach the session there.
    make_worker : Callable
        The class `Worker`.

    Raises
    ------
    RemoteError
        The parent has another version of this package, or did not greet in time.

    Notes
    -----
    Rule     REMOTE-LINK-2, -6
    """
    global _current
    deadline = time.monotonic() + manifest.start_timeout_s
    os.environ.pop(VARIABLE, None)  # it is traced if its parent is
    if manifest.version != __version__:
        raise RemoteError(
            f"the parent has simpler_ref {manifest.version}, this endpoint has {__version__}: install "
            "the same version on both"
        )
    session = Session(manifest, ended, interface, make_worker)
    _current = session
    try:
        session.open()
        fail_point("opened")
        announce(session.announcement)
        fail_point("announced")
        session.greet(deadline)
        fail_point("welcomed")
        gc.freeze()  # nothing of what has been imported ends before the process does
        session.loop()
    finally:
        _current = None
        session.close()


class Session:
    """The state of a session.

    Attributes
    ----------
    announcement : Announcement
        Where it is reached.
    dispatcher : Dispatcher
        Its callables.
    """

    announcement: Announcement
    dispatcher: Dispatcher

    def __init__(
        self, manifest: Manifest, ended: int, interface: str, make_worker: Callable[..., Worker]
    ) -> None:
        self._make_worker = make_worker
        self._manifest, self._ended, self._interface = manifest, ended, interface
        self._order = Order(manifest.session_id, manifest.endpoint_id)
        self._beats = Order(manifest.session_id, manifest.endpoint_id)
        self._peer = b""
        self._descriptors: set[int] = set()
        """Of the connection to the parent."""
        self._over = ""
        self._waiting: deque[Frame] = deque()
        """Frames that have come while another one was served."""
        self._failed = FailedTasks()
        self._has_several = manifest.worker.get("num_sub_workers", 1) > 1
        """Whether sub workers can run tasks side by side."""
        self._closing = False
        self._inner: Worker | None = None
        self._sockets: list[Any] = []
        self._mover: ZmqMover | None = None
        self._records: Outgoing | None = None
        self._watcher: threading.Thread | None = None

    # ------------------------------------------------------------ start and end
    def open(self) -> None:
        """Start the inner Worker, then open the sockets: all forks come before any thread."""
        manifest = self._manifest
        inner = self._inner = self._make_worker(level=3, **manifest.worker)
        inner._life.workers_before = manifest.before
        inner.init()
        inner.start()
        self.dispatcher = Dispatcher(
            manifest.modules,
            manifest.serialized,
            inner.register,
            inner.unregister,
            lambda token: self._stores.staged(token),
        )
        module = zmq()
        group = None
        if manifest.is_secure:
            group = KeyPair(manifest.group_key, manifest.group_secret)
        anywhere = f"tcp://{self._interface}:*"
        silence_s = manifest.silence_s
        self._mover = ZmqMover(anywhere, group, silence_s, max(silence_s, STOPPED_S))

        def empty(nbytes: int) -> Array:
            return inner.empty((nbytes,), np.uint8)

        self._copies = Copies(self._mover, empty, lambda: self._served.wait_for_room())
        self._stores = Stores(manifest.endpoint_id, self._mover, self._copies.empty)
        pair = self._pair = new_pair() if manifest.is_secure else None
        self._mover.on_moved = self._note_moved
        self._mover.on_ask = self._open_early
        with threads_on(inner.placement().core_for_frames(manifest.before)):
            self._context = module.Context()
            self._frames = self._socket(pair, stopped_s=0.0)  # the other one has the heartbeats
        self._frames.setsockopt(module.RCVTIMEO, int(LOOK_S * 1000))
        self._again = module.Again
        self._health = self._socket(pair)
        monitors = [
            one.get_monitor_socket(module.EVENT_DISCONNECTED)
            for one in (self._frames, self._health)
        ]
        self._wake, self._woken = os.pipe()
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._leaves = inner._leaf_tasks_from(
            self._copies,
            self._failed,
            ThreadPoolExecutor(FETCHERS, "simpler-fetch"),
            partial(os.eventfd_write, bell, 1),
        )
        self._served = Served(
            inner._calls_from(self.dispatcher, self._copies, self._mover),
            self._leaves,
            self._send,
            lambda: bool(self._waiting) or has_message(self._frames),
            lambda: self._over,
            (self._frames.getsockopt(module.FD), self._wake),
            bell,
        )
        push_bell = os.eventfd(0, os.EFD_NONBLOCK)
        inbox = Inbox(partial(os.eventfd_write, push_bell, 1))
        self._mover.on_pushed, self._mover.on_filled = inbox.put, inbox.note_filled
        for_parts = self._frames.getsockopt(module.FD), self._wake, push_bell

        def wait() -> bool:
            if not wait_for(for_parts, LOOK_S):
                return False
            with suppress(BlockingIOError):
                os.eventfd_read(push_bell)
            return True

        self._parts = Parts(
            self._copies,
            self._mover,
            inbox,
            self.dispatcher.find,
            inner.run,
            self._has_stopped_part,
            wait,
            silence_s,
        )
        self._watcher = threading.Thread(
            target=self._watch, args=(monitors,), name="simpler-session", daemon=True
        )
        self._watcher.start()
        self.announcement = Announcement(
            self._frames.last_endpoint.decode(),
            self._health.last_endpoint.decode(),
            self._mover.address,
            pair.public if pair else "",
            sockets.gethostname(),
            os.getpid(),
        )

    def _socket(self, pair: Any, **how: float) -> Any:
        socket = self._router(pair, **how)
        self._sockets.append(socket)
        return socket

    def _router(self, pair: Any, **how: float) -> Any:
        module = zmq()
        socket = self._context.socket(module.ROUTER)
        prepare(socket, self._manifest.silence_s, **how)
        if pair is not None:
            secure_server(socket, pair, {self._manifest.parent_key})
        socket.bind(address_at(self._interface))
        return socket

    def close(self) -> None:
        """Close everything: buffers are freed, the inner Worker is closed."""
        fail_point("closing")
        self._over = self._over or "closed"
        self._closing = True
        if self._watcher is not None:
            os.close(self._woken)
            self._served.end()
            self._watcher.join(GRACE_S)
        self._drop_records()
        if self._inner is not None:
            self._inner.close()
        if self._mover is not None:
            self._mover.close()
        for socket in self._sockets:
            socket.close(linger=LINGER_MS)  # no end of the context: the process waits for nothing

    def _watch(self, monitors: Sequence[Any]) -> None:
        """Answer signs of life; when the parent is gone, end the main thread, or else the process.

        Rule     REMOTE-FAIL-5
        """
        module = zmq()
        poller = module.Poller()
        for one in (*monitors, self._health, self._ended, self._wake):
            poller.register(one, module.POLLIN)
        why = ""
        while not why:
            ready = dict(poller.poll())
            if self._wake in ready:
                break
            if self._ended in ready and not os.read(self._ended, 1):
                why = "its starter is gone"
            elif ended := [one for one in monitors if one in ready]:
                if ended_descriptor(ended[0]) in self._descriptors:
                    why = "the connection to the parent has ended"
            elif self._health in ready:
                self._answer_health()
        for one in monitors:
            one.close()
        if not why:
            return
        if not self._over:
            log.warning("endpoint %d ends: %s", self._manifest.endpoint_id, why)
        self._over = self._over or why
        for _ in range(2):  # the main thread has to notice, then to close
            time.sleep(GRACE_S)
            if not self._closing:
                break
        sys.stderr.flush()
        os._exit(0)

    def _answer_health(self) -> None:
        """Send a sign of life back, with this machine's clock.

        Rule     REMOTE-HEALTH-2
        """
        sender, message = self._health.recv_multipart(copy=False)
        try:
            self._beats.decode(message.bytes, FrameType.HEALTH)
        except ValueError as error:
            self._refuse(error)
            return
        self._descriptors.add(message.get(SOURCE))
        clock = time.time_ns().to_bytes(8, "little")
        self._health.send_multipart([sender.bytes, self._beats.encode(FrameType.HEALTH, clock)])

    # ------------------------------------------------------------ frames
    def _receive(self) -> Frame | None:
        """Return the next frame of the parent; None if there is none in time, or it was refused.

        A thread that sleeps in ZeroMQ is woken sooner than one that looks again and again, and leaves
        its core to those that do the work meanwhile.

        Rule     REMOTE-TRUST-2
        """
        try:
            parts = receive_parts(self._frames)
        except self._again:
            return None
        try:
            if len(parts) != 2 or parts[0] != self._peer:
                raise ValueError("remote_wire: frame: it is not from the parent of this session")
            frame = self._order.decode(parts[1])
        except ValueError as error:
            self._refuse(error)
            return None
        if self._records is not None:
            self._note_frame(
                frame.header.frame_type, frame.header.sequence, len(parts[1]), sent=False
            )
        return frame

    def _receive_first(self) -> Frame | None:
        """Return the HELLO of whoever becomes the parent."""
        parts = self._frames.recv_multipart(copy=False)
        try:
            if len(parts) != 2:
                raise ValueError("remote_wire: frame: its message has not one part")
            frame = self._order.decode(parts[1].bytes, FrameType.HELLO)
        except ValueError as error:
            self._refuse(error)
            return None
        self._peer = parts[0].bytes
        self._descriptors.add(parts[1].get(SOURCE))
        return frame

    def _refuse(self, error: ValueError) -> None:
        log.warning("endpoint %d refuses: %s", self._manifest.endpoint_id, error)

    def _send(self, kind: FrameType | OwnFrameType, payload: bytes) -> None:
        raw = self._order.encode(kind, payload)
        if self._records is not None:  # what answers begins with the number of the frame that asked
            self._note_frame(kind, int.from_bytes(payload[:8], "little"), len(raw), sent=True)
        self._frames.send(self._peer, SNDMORE)
        self._frames.send(raw)

    def greet(self, deadline: float) -> None:
        """Answer the parent's HELLO.

        Rule     REMOTE-LINK-2, -6, -8
        """
        while not self._over:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise RemoteError(
                    f"the parent has not greeted within {self._manifest.start_timeout_s} s"
                )
            if not self._frames.poll(min(rest, LOOK_S) * 1000):
                continue
            frame = self._receive_first()
            if frame is None:
                continue
            hello = decode_hello(frame.payload)
            self._features = hello.feature_flags & FEATURES
            self._served.agree(self._features)
            same = hello.comm_profile == profile()
            ready = ReadyState.READY if same else ReadyState.NOT_READY
            ids = self._manifest.session_id, self._manifest.endpoint_id
            mine = HelloPayload(*ids, comm_profile=profile(), feature_flags=FEATURES, ready=ready)
            self._send(FrameType.HELLO, encode_hello(mine))
            if not same:
                raise RemoteError(f"the parent is {hello.comm_profile!r}, this is {profile()!r}")
            return

    def loop(self) -> None:
        """Serve frames until SHUTDOWN, or until the parent is gone.

        Rule     REMOTE-LINK-3; REMOTE-FAIL-5
        """
        while not self._over:
            if not self._served.answer_all():
                continue
            frame = self._next()
            if frame is None:
                continue
            kind = frame.header.frame_type
            if kind == FrameType.SHUTDOWN:
                self._over = "closed by its parent"
                return
            fail_point("received")
            if kind in TASK_FRAMES:
                self._serve_task(frame)
            elif kind == FrameType.CONTROL:
                self._serve_control(frame)
            elif kind == OwnFrameType.OPEN_COPIES:
                self._send(kind, self._open_copies(frame))
            elif kind in served.FRAMES:
                self._served.serve_call(frame)
            elif kind == OwnFrameType.STOP_PART:
                pass  # the part has ended meanwhile
            elif kind == OwnFrameType.COUNTERS:
                self._send(kind, frame.header.sequence.to_bytes(8, "little") + self._counters())
            elif kind == OwnFrameType.TRACE:
                self._send(kind, self._trace(frame))
            else:
                log.warning(
                    "endpoint %d refuses a %s frame",
                    self._manifest.endpoint_id,
                    kind.name,
                )

    def _next(self) -> Frame | None:
        """Return the frame to be served next; SHUTDOWN goes before tasks that have not begun.

        Rule     REMOTE-AHEAD-1, -5
        """
        waiting = self._waiting
        while not waiting or has_message(self._frames):
            frame = self._receive()
            if frame is None or frame.header.frame_type == FrameType.SHUTDOWN:
                return frame
            waiting.append(frame)
            if len(waiting) > 1:
                fail_point("queued")
        return waiting.popleft()

    # ------------------------------------------------------------ traces
    def _note_frame(self, kind: int, number: int, nbytes: int, *, sent: bool) -> None:
        """Note a frame in the trace that is being taken.

        Rule     SEE-REMOTE-2
        """
        assert self._records is not None
        word = frame_word(kind, number, self._order.session_id, sent=sent)
        self._records.note(word, 0, time.monotonic_ns(), nbytes)

    def _note_moved(self, address: str, stored: bool, nbytes: int, began: int) -> None:
        """Note a tensor that was moved, if a trace is taken.

        Rule     SEE-REMOTE-2
        """
        if self._records is not None:
            word = moved_word(address, stored=stored)
            self._records.note(word, nbytes, began, time.monotonic_ns())

    def _trace(self, frame: Frame) -> bytes:
        """Begin a trace of the inner Worker, or end it.

        Rule     SEE-REMOTE-1
        """
        address, size, text = "", 0, ""
        try:
            detail = TRACE.decode(frame.payload).detail
            if detail == TraceDetail.OFF:
                size = self._end_trace()
            else:
                address = self._begin_trace(detail)
        except BaseException as error:
            if self._over:
                raise
            text = cut_utf8(describe_exception(error), MAX_ERROR_BYTES).decode()
        return TRACE_ANSWER.encode(TraceAnswer(frame.header.sequence, address, size, text))

    def _end_trace(self) -> int:
        """End the trace, and return the bytes of its records; a second time let them go."""
        if self._records is None:
            return 0
        if self._records.is_on:
            return self._records.end()
        self._drop_records()
        return 0

    def _drop_records(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    def _begin_trace(self, detail: TraceDetail) -> str:
        self._drop_records()
        assert self._inner is not None
        order = Order(self._manifest.session_id, self._manifest.endpoint_id)
        self._records = Outgoing(self._inner, detail, order, self._router(self._pair))
        return self._records.address

    def _counters(self) -> bytes:
        """Return what was moved, and what there is, as JSON.

        Rule     REMOTE-HEALTH-3
        """
        assert self._mover is not None
        told = self._mover.counters() | self._stores.counts() | self._copies.counts()
        return json.dumps(told | self._served.counts()).encode()

    def _open_copies(self, frame: Frame) -> bytes:
        """Make room for what the parent is about to store.

        Rule     REMOTE-COPY-2
        """
        return self._wanted(frame.header.sequence, frame.payload, self._copies.open)

    def _open_early(self, key: int, question: bytes) -> bytes:
        """Do the same on the mover's thread, while the main thread runs a task.

        Rule     REMOTE-AHEAD-8
        """
        if key != self._manifest.session_id:
            raise Refusal("it is not from the parent of this session")
        return self._wanted(0, question, self._copies.open_early)

    def _wanted(
        self, sequence: int, question: bytes, opened: Callable[[ComingCopies], list[int]]
    ) -> bytes:
        wanted: list[int] = []
        text = ""
        fail_point("coming")
        try:
            wanted = opened(OPEN_COPIES.decode(question))
        except BaseException as error:
            if self._over:
                raise
            text = cut_utf8(describe_exception(error), MAX_STRING_BYTES).decode()
        return WANTED_COPIES.encode(WantedCopies(sequence, tuple(wanted), text))

    # ------------------------------------------------------------ tasks
    def _serve_task(self, frame: Frame) -> None:
        """Run a task, or a part of a graph, and send its outcome; or have it run beside other ones.

        Rule     REMOTE-FAIL-1, -2; FLAG-NEST-3
        """
        outcome: int | None = L.SUCCESS
        sequence, text = frame.header.sequence, ""
        is_part = frame.header.frame_type == OwnFrameType.RUN_PART
        try:
            outcome = (self._run_part if is_part else self._take_up)(frame)
        except BaseException as error:
            if self._over:
                raise
            outcome, text = outcome_of(error), report_of(error)
        if outcome is not None:
            self._failed.note(sequence, outcome)
            self._served.complete(TaskEnd(sequence, outcome, text))

    def _take_up(self, frame: Frame) -> int | None:
        """Run a task, unless one that it waits for has failed, and return its outcome.

        Those for sub workers, if there are several, run while the session serves other frames: it is None
        then. Others run alone, which costs less.

        Rule     REMOTE-AHEAD-7, -9
        """
        task = receive_task(frame)
        if self._failed.has_any(task.after):
            return L.SKIPPED
        read = task.read()
        fail_point("decoded")
        target = self.dispatcher.find(read.task.callable_digest)
        if self._has_several and self._leaves.takes(task, read, target):
            self._leaves.begin(task, read, target)
            return None
        self._served.settle()
        return self._run(task, read, target)

    def _run(self, task: ReceivedTask, read: ReadTask, target: Any) -> int:
        """Run a task that no other one runs beside, and return SUCCESS, or SKIPPED."""
        if self._failed.has_any(task.after):
            return L.SKIPPED
        if task.copies.run:
            self._forget_copies(task.copies)
        tensors = task.tensors(len(read.sizes))
        addresses = self._copies.take(tensors, read.sizes)
        fail_point("taken")
        succeeded = False
        try:
            args, after, kept = self._arguments(read, tensors, addresses)
            config = None
            if read.is_configured:
                config = copy(read.task.config)
                if read.more.env:
                    config.runtime_env = RuntimeEnv.from_bytes(read.more.env)
            assert self._inner is not None
            function = target.submit if isinstance(target, InnerCallable) else target
            self._inner.run(function, args, config)
            fail_point("ran")
            del kept
            for put_back in after:
                put_back()
            succeeded = True
        finally:
            self._copies.settle(tensors, succeeded)
        fail_point("settled")
        return L.SUCCESS

    def _forget_copies(self, told: TaskCopies) -> None:
        """Forget what the parent says is of no use any more."""
        self._copies.begin(told.run)
        self._copies.drop(told.dropped)

    def _run_part(self, frame: Frame) -> int:
        """Run a part of a graph, and return its outcome.

        Rule     SPEED-PARTS-1, -6; REMOTE-PART-1
        """
        told = TASK_COPIES.decode(frame.payload)
        asked = PART_RUN.decode(told.more)
        self._served.settle()
        self._forget_copies(told)
        self._parts.run(told, asked)
        return L.SUCCESS

    def _has_stopped_part(self) -> bool:
        """Say whether the parent has stopped the part that runs; keep other frames that have come.

        Rule     SPEED-PARTS-6
        """
        while has_message(self._frames):
            frame = self._receive()
            if frame is None:
                continue
            kind = frame.header.frame_type
            if kind == OwnFrameType.STOP_PART:
                return True
            if kind == FrameType.SHUTDOWN:
                self._waiting.appendleft(frame)
                return True
            self._waiting.append(frame)
        return bool(self._over)

    def _arguments(
        self, read: ReadTask, copied: Sequence[CopiedTensor], addresses: Sequence[int]
    ) -> tuple[TaskArgs, list[Callable[[], None]], list[Any]]:
        """Return the arguments with tensors of this machine, what to do after the task, what to keep.

        `addresses` has those of copies, and 0 for other tensors.

        Rule     REMOTE-ARGS-3; REMOTE-MEM-3, -4
        """
        wire = read.task.args
        rights = read.more.rights or bytes((REMOTE_BUFFER_ACCESS_READ_WRITE,)) * len(wire.tensors)
        args, after, kept = TaskArgs(), [], []
        for i, (tensor, beside) in enumerate(zip(wire.tensors, wire.sidecars, strict=True)):
            if addresses[i]:
                args.add_tensor(copy_at(addresses[i], tensor, copied[i].layout))
                continue
            desc = beside.desc
            if desc is None:
                raise ValueError(f"tensor {i} says not where its memory is")
            if desc.nbytes != tensor.nbytes():
                raise ValueError(
                    f"tensor {i} has {tensor.nbytes()} bytes, its descriptor {desc.nbytes}"
                )
            if desc.address_space == RemoteAddressSpace.HOST_INLINE:
                array = self._copies.empty(max(1, desc.nbytes))
                begin = desc.inline_payload_offset
                raw = wire.inline_arena[begin : begin + desc.nbytes]
                array[: desc.nbytes] = np.frombuffer(raw, np.uint8)
                kept.append(array)
                address = array.ctypes.data
            elif desc.address_space == RemoteAddressSpace.REMOTE_DEVICE:
                address = self._stores.address_of(desc)
            else:
                address, put_back = self._stores.fetch(desc, rights[i])
                after.append(put_back)
            args.add_tensor(ContinuousTensor(address, tensor.shapes, tensor.dtype))
        add_scalars(args, read)
        return args, after, kept

    # ------------------------------------------------------------ requests
    def _serve_control(self, frame: Frame) -> None:
        """Carry out a request, and answer it."""
        name, version, code, text, result = ControlName.COMM_INIT, 0, 0, "", b""
        try:
            fail_point("asked")
            control = decode_control(frame.payload)
            name, version = control.name, control.version
            if version != 1:
                raise ValueError(f"version {version} of {name.name} is not known, 1 is")
            result = self._obey(name, control.payload)
            fail_point("obeyed")
        except BaseException as error:
            if self._over:
                raise
            code, text = 1, report_of(error)
        reply = encode_control_reply(frame.header.sequence, name, version, code, text, result)
        self._send(FrameType.CONTROL_REPLY, reply)
        fail_point("replied")

    def _obey(self, name: ControlName, raw: bytes) -> bytes:
        """Carry out a request, and return its result."""
        stores, dispatcher = self._stores, self.dispatcher
        if name == ControlName.PREPARE_REGISTER_CALLABLE:
            dispatcher.prepare(decode_register_callable_command(raw))
        elif name == ControlName.COMMIT_REGISTER_CALLABLE:
            dispatcher.commit(decode_digest_callable_command(raw))
        elif name == ControlName.PREPARE_CALLABLE:
            dispatcher.require(decode_digest_callable_command(raw))
        elif name in (ControlName.ABORT_REGISTER_CALLABLE, ControlName.UNREGISTER_CALLABLE):
            dispatcher.remove(decode_digest_callable_command(raw))
        elif name == ControlName.ALLOC_REMOTE_BUFFER:
            return IDENTITY.encode(stores.alloc(ALLOC.decode(raw).nbytes))
        elif name == ControlName.FREE_REMOTE_BUFFER:
            stores.free(IDENTITY.decode(raw))
        elif name == ControlName.COPY_TO_REMOTE:
            stores.write(COPY.decode(raw))
        elif name == ControlName.COPY_FROM_REMOTE:
            return stores.read(COPY.decode(raw))
        elif name == ControlName.EXPORT_BUFFER:
            return encode_export_buffer_result(stores.export(decode_export_buffer_request(raw)))
        elif name == ControlName.IMPORT_BUFFER:
            return encode_import_buffer_result(stores.take(decode_import_buffer_request(raw)))
        elif name == ControlName.RELEASE_IMPORT:
            stores.release(decode_release_import_request(raw))
        else:
            raise NotImplementedError(
                f"an endpoint does not carry out {name.name}: domains are of the chips of one endpoint, "
                "whose functions allocate them with orch.allocate_domain"
            )
        return b""
