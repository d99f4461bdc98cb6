"""What a session serves while it looks for other frames: calls, and tasks that sub workers run.

It begins each when its frame comes, and answers when that has ended.

Rule     CALL-FAR-1, -12; REMOTE-COPY-13; REMOTE-AHEAD-9
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..system.polling import wait_readable
from .fail_points import fail_point
from .frames import CompletionPayload, Frame, FrameType, OwnFrameType, encode_completion
from .lookout import Lookout

if TYPE_CHECKING:
    from .far_leaves import LeafTasks
    from .far_side import FarCalls

FRAMES = OwnFrameType.TASK_CALL, OwnFrameType.VALUE_TAKEN


class Served:
    """The calls and the tasks of a session that run side by side, between its frames and who runs them.

    Parameters
    ----------
    calls, leaves
        Have them run.
    send
        Sends a frame to the parent.
    has_frame
        Says whether a frame waits to be served.
    is_over
        Says whether the session ends.
    descriptors
        Where something comes if there is a frame, and if the session ends.
    bell
        One that wakes who waits for the tasks.
    """

    def __init__(
        self,
        calls: FarCalls,
        leaves: LeafTasks,
        send: Callable[[FrameType | OwnFrameType, bytes], None],
        has_frame: Callable[[], bool],
        is_over: Callable[[], object],
        descriptors: Sequence[int],
        bell: int,
    ) -> None:
        self._calls, self._leaves, self._send = calls, leaves, send
        self._has_frame, self._is_over = has_frame, is_over
        self._descriptors = *descriptors, bell
        self._bell = bell
        self._lookout = Lookout(partial(wait_readable, descriptors), calls.stop_waiting)

    def end(self) -> None:
        """End the threads; the one that looks out has seen that the session ends, too. Forget values."""
        self._lookout.end(lambda: None)
        self._leaves.end()
        self._calls.close()

    def counts(self) -> dict[str, int]:
        """Return how many values are kept, and where they came from."""
        return self._calls.counts()

    def serve_call(self, frame: Frame) -> None:
        """Serve one of `FRAMES`."""
        if frame.header.frame_type == OwnFrameType.TASK_CALL:
            self._begin(frame)
        else:
            self._calls.forget_value(frame.payload)

    def _begin(self, frame: Frame) -> None:
        """Begin a call; if that cannot be done, answer why."""
        try:
            self._calls.begin(frame.payload, frame.header.sequence)
        except BaseException as error:
            if self._is_over():
                raise
            self._answer(self._calls.failure(error, frame.header.sequence))

    def answer_all(self) -> bool:
        """Send what became of those that have ended; if no frame is there, wait for others to end.

        Returns whether there is a frame, or nothing to wait for.
        """
        if not self._is_busy:
            return True
        self._answer_ended()
        if not self._is_busy or self._has_frame():
            return True
        self._wait(for_frames=True)
        return False

    def settle(self) -> None:
        """Answer all, and serve no frame before: what comes next runs alone."""
        while self._is_busy and not self._is_over():
            self._answer_ended()
            if self._is_busy:
                self._wait(for_frames=False)

    def wait_for_room(self) -> bool:
        """Wait until one may have ended, whose tensors need not stay; return False if none runs."""
        if not self._is_busy:
            return False
        self._wait(for_frames=False)
        self._answer_ended()
        return True

    @property
    def _is_busy(self) -> bool:
        return bool(self._calls.running) or self._leaves.is_busy

    def _wait(self, for_frames: bool) -> None:
        """Wait until one may have ended, or go on, or a frame is there."""
        if self._calls.running or self._leaves.has_calls:
            self._calls.wait(self._lookout if for_frames else None, self._leaves.has_news)
        else:
            wait_readable(self._descriptors if for_frames else self._descriptors[1:])

    def _answer_ended(self) -> None:
        if self._calls.running or self._leaves.has_calls:
            for answer in self._calls.answers():
                self._answer(answer)
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        for end in self._leaves.ends():
            self.complete(end)

    def complete(self, end: CompletionPayload) -> None:
        """Send how a task has ended."""
        raw = encode_completion(end.sequence, end.error_code, end.error_message)
        self._send(FrameType.COMPLETION, raw)
        fail_point("completed")

    def _answer(self, answer: bytes) -> None:
        self._send(OwnFrameType.TASK_CALL, answer)
        fail_point("completed")
