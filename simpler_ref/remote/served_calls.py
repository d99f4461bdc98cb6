"""How a session serves calls: it begins each when its frame comes, and answers when that has ended."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .fail_points import fail_point
from .frames import Frame, OwnFrameType
from .lookout import Lookout

if TYPE_CHECKING:
    from ..calls.far_side import FarCalls

FRAMES = OwnFrameType.TASK_CALL, OwnFrameType.VALUE_TAKEN


class ServedCalls:
    """The calls of a session, between its frames and those who run them.

    Parameters
    ----------
    calls
        Has them run.
    send
        Sends a frame to the parent.
    has_frame
        Says whether a frame waits to be served.
    is_over
        Says whether the session ends.
    descriptors
        Where something comes if there is a frame, or the session ends.

    Notes
    -----
    Rule     CALL-FAR-1, -12
    """

    def __init__(
        self,
        calls: FarCalls,
        send: Callable[[OwnFrameType, bytes], None],
        has_frame: Callable[[], bool],
        is_over: Callable[[], object],
        descriptors: Sequence[int],
    ) -> None:
        self._calls, self._send = calls, send
        self._has_frame, self._is_over = has_frame, is_over
        self._descriptors = descriptors
        self._lookout = Lookout(self._look_out, calls.stop_waiting)

    def end(self) -> None:
        """End the thread that looks out for frames; it has seen that the session ends, too."""
        self._lookout.end(lambda: None)

    def serve(self, frame: Frame) -> None:
        """Serve one of `FRAMES`."""
        if frame.header.frame_type == OwnFrameType.TASK_CALL:
            self._begin(frame)
        else:
            self._calls.forget_value(frame.payload)

    def _begin(self, frame: Frame) -> None:
        """Begin a call; if that cannot be done, answer why.

        Rule     CALL-FAR-1
        """
        try:
            self._calls.begin(frame.payload, frame.header.sequence)
        except BaseException as error:
            if self._is_over():
                raise
            self._answer(self._calls.failure(error, frame.header.sequence))

    def answer_all(self) -> bool:
        """Send what became of the calls that have ended; if no frame is there, wait for others to end.

        Returns whether there is a frame, or nothing to wait for.

        Rule     CALL-FAR-12
        """
        if not self._calls.running:
            return True
        for answer in self._calls.answers():
            self._answer(answer)
        if not self._calls.running or self._has_frame():
            return True
        self._calls.wait(self._lookout)
        return False

    def _answer(self, answer: bytes) -> None:
        self._send(OwnFrameType.TASK_CALL, answer)
        fail_point("completed")

    def _look_out(self) -> None:
        """Wait until something comes from the parent; for a thread of its own (see `Lookout`)."""
        poll = select.poll()
        for one in self._descriptors:
            poll.register(one, select.POLLIN)
        poll.poll()
