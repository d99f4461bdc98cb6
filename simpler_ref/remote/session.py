"""A session: a level 3 Worker that serves the frames of a parent on another machine, or on this one.

The process forks the inner Worker's workers first; sockets and threads come after them. The main thread
serves frames one by one. A second thread answers signs of life, and ends the process when the parent is
gone, whatever the main thread does.

Rule     REMOTE-LINK-2, REMOTE-LINK-3, REMOTE-LINK-6, REMOTE-REG-8, REMOTE-FAIL-5, REMOTE-HEALTH-3
"""

from __future__ import annotations

import gc
import json
import logging
import os
import socket as sockets
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..callables.identity import CallableHandle, hashid_to_digest
from ..errors import RemoteError
from ..trace.recorder import VARIABLE
from ..workers.reports import describe_exception, format_traceback
from . import frames as protocol
from .connection import KeyPair, zmq
from .controls import obey
from .fleets import INTERFACE, Announcement, Manifest
from .limits import SIZES
from .mover import Mover
from .session_frames import SessionFrames, cut_report
from .session_tasks import FRAMES, SessionTasks
from .traces import SessionTrace

if TYPE_CHECKING:
    from ..worker import Worker

log = logging.getLogger("simpler_ref")

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
    """
    if _current is None:
        raise RuntimeError("get_inner_handle is for functions that an endpoint runs")
    return _current.tasks.dispatcher.inner_handle(
        hashid_to_digest(getattr(hashid, "hashid", hashid))
    )


def serve(
    manifest: Manifest,
    announce: Callable[[Announcement], None],
    ended: int,
    interface: str,
    make_worker: Callable[..., Worker],
) -> None:
    """Be a session until the parent ends it, or is gone; `RemoteError` if it does not greet in time.

    `announce` is called once the sockets are open, which are bound to `interface`, where others reach the
    session. It ends at the end of file of the descriptor `ended`. `make_worker` is the class `Worker`.
    """
    global _current
    deadline = time.monotonic() + manifest.start_timeout_s
    os.environ.pop(VARIABLE, None)  # it is traced if its parent is
    session = _current = Session(manifest, ended, interface)
    try:
        announce(session.open(make_worker))
        session.frames.greet(deadline)
        gc.freeze()  # nothing of what has been imported ends before the process does
        session.loop()
    finally:
        _current = None
        session.close()


class Session:
    """A session: what it is made of, and how it serves its parent."""

    tasks: SessionTasks
    _mover: Mover
    _trace: SessionTrace

    def __init__(self, manifest: Manifest, ended: int, interface: str) -> None:
        self._manifest, self._interface = manifest, interface
        self.frames = SessionFrames(manifest, ended, interface)
        self._closing = ExitStack()

    # ------------------------------------------------------------ start and end
    def open(self, make_worker: Callable[..., Worker]) -> Announcement:
        """Start the inner Worker, then open the sockets: all forks come before any thread."""
        manifest, frames, closing = self._manifest, self.frames, self._closing
        closing.callback(frames.close)
        inner = make_worker(level=3, **SIZES | manifest.worker)
        closing.callback(inner.close)
        inner._life.workers_before = manifest.before
        inner.init()
        inner.start()
        inner._life.live().arena.in_use.users = None  # this class knows what uses its memory
        group = KeyPair(manifest.group_key, manifest.group_secret) if manifest.is_secure else None
        anywhere, silence_s = f"tcp://{self._interface}:*", manifest.silence_s
        try:
            mover = Mover(anywhere, group, silence_s, max(silence_s, STOPPED_S))
        except zmq.ZMQError as error:
            raise RemoteError(
                f"cannot listen at interface={self._interface!r}: {zmq.strerror(error.errno)}; "
                f"{INTERFACE}"
            ) from None
        self._mover = mover
        closing.callback(mover.close)

        frames.open(inner.placement().core_for_frames(manifest.before))
        self.tasks = SessionTasks(manifest, frames, inner, mover)
        self._trace = SessionTrace(manifest.session_id, frames, inner)
        mover.on_moved, mover.on_ask = self._trace.note_moved, self._answer
        frames.watch()
        address, health, key = frames.addresses()
        for end in (self._trace.drop, frames.join, self.tasks.end):
            closing.callback(end)
        return Announcement(address, health, mover.address, key, sockets.gethostname(), os.getpid())

    def close(self) -> None:
        self.frames.end()
        self._closing.close()

    def _answer(self, key: int, question: bytes) -> bytes:
        """Answer what the parent asks the mover, whose thread this is, while the main one runs tasks."""
        if key == self._trace.key:
            return self._trace.piece(question)
        return self.tasks.answer(key, question)

    # ------------------------------------------------------------ frames
    def loop(self) -> None:
        """Serve frames until SHUTDOWN, or until the parent is gone."""
        frames = self.frames
        while not frames.over:
            if not self.tasks.answer_all():
                continue
            frame = frames.next_frame()
            if frame is None:
                continue
            if frame.header.frame_type == protocol.FrameType.SHUTDOWN:
                frames.over = "closed by its parent"
                return
            self._serve(frame)

    def _serve(self, frame: protocol.Frame) -> None:
        kind, send = frame.header.frame_type, self.frames.send
        if kind in FRAMES:
            self.tasks.serve(frame)
        elif kind == protocol.FrameType.CONTROL:
            self._serve_control(frame)
        elif kind == protocol.OwnFrameType.COUNTERS:
            send(kind, frame.header.sequence.to_bytes(8, "little") + self._counters())
        elif kind == protocol.OwnFrameType.TRACE:
            send(kind, self._trace.serve(frame))
        else:
            number = self._manifest.endpoint_id
            log.warning("endpoint %d refuses a %s frame", number, kind.name)

    def _counters(self) -> bytes:
        told = self._mover.counters() | self.tasks.stores.counts() | self.tasks.copies.counts()
        return json.dumps(told).encode()

    # ------------------------------------------------------------ requests
    def _serve_control(self, frame: protocol.Frame) -> None:
        name, version, code, text, result = protocol.ControlName.COMM_INIT, 0, 0, "", b""
        try:
            control = protocol.decode_control(frame.payload)
            name, version = control.control_name, control.control_version
            if version != 1:
                raise ValueError(f"version {version} of {name.name} is not known, 1 is")
            result = obey(name, control.command_bytes, self.tasks.dispatcher, self.tasks.stores)
        except BaseException as error:
            if self.frames.over:
                raise
            code = 1
            text = cut_report(describe_exception(error), format_traceback(error))
        reply = protocol.encode_control_reply(
            frame.header.sequence, name, version, code, text, result
        )
        self.frames.send(protocol.FrameType.CONTROL_REPLY, reply)
